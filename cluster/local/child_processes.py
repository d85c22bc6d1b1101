"""Start child processes that cannot outlive their parent: they end when the pipe at their stdin is closed."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from ...runtime.interfaces.errors import DistributedLogError, RequestTimeout, from_code
from .fork_server import ForkedProcess, ForkServer

START_S = 30.0
STOP_S = 5.0
"""A child that does not end within this time after a request is killed."""


class Child:
    """A running child process."""

    def __init__(
        self, name: str, process: trio.Process | ForkedProcess, ready: dict[str, Any]
    ) -> None:
        self.name = name
        self.process = process
        self.ready = ready

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self.process.pid

    def kill(self) -> None:
        """Kill it by SIGKILL, without cleanup."""
        self.process.kill()

    async def stop(self) -> None:
        """Close its stdin and wait until it ends. Kill it after `STOP_S`."""
        await _stop(self.process)


COMMAND = (sys.executable, "-m", f"{__package__}.node_child")


def start_fork_server() -> ForkServer:
    """Start a fork server in a separate process with its own imports, for callers that already run trio."""
    return ForkServer.spawn([*COMMAND, "--forks"], environment())


async def start_child(
    name: str, spec: dict[str, Any], forks: ForkServer | None = None, *, timeout_s: float = START_S
) -> Child:
    """Start a child (`cluster/local/node_child.py`), and wait until it serves.

    Args:
        name: The name of the child.
        spec: The description of its task.
        forks: The fork server that starts it, if there is one.
        timeout_s: The time limit of the start.

    Raises:
        DistributedLogError: The error with which the child failed to start.
        RequestTimeout: The child did not report its start in time.
    """
    process = await _start_process(name, forks, timeout_s)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        received = b""
        with trio.move_on_after(timeout_s):
            with_name = {"name": name, **spec}
            # If it has already ended, its output, or the lack of it, shows the cause below.
            with contextlib.suppress(trio.BrokenResourceError):
                await process.stdin.send_all(json.dumps(with_name).encode() + b"\n")
            while not received.endswith(b"\n"):
                chunk = await process.stdout.receive_some(65_536)
                if not chunk:
                    code = await process.wait()
                    raise DistributedLogError(
                        f"{name} ended with exit code {code} before it served"
                    )
                received += chunk
        if not received.endswith(b"\n"):
            raise RequestTimeout(f"{name} did not start to serve within {timeout_s:g} s")
        ready = json.loads(received)
        if "error" in ready:
            code, _, message = ready["error"]
            raise from_code(code, f"{name}: {message}")
        return Child(name, process, ready)
    except BaseException:
        process.kill()
        await _stop(process)
        raise


async def _start_process(
    name: str, forks: ForkServer | None, timeout_s: float
) -> trio.Process | ForkedProcess:
    try:
        if forks is not None:
            with contextlib.suppress(BrokenPipeError), trio.fail_after(timeout_s):
                return await forks.fork()
        # There is no fork server, or it has ended: this start costs more, but works as well.
        return await trio.lowlevel.open_process(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            process_group=0,  # Ctrl-C must reach only the parent; the session stays the same
        )
    except trio.TooSlowError:
        raise RequestTimeout(f"{name} was not started within {timeout_s:g} s") from None
    except OSError as error:  # a lack of descriptors, memory or processes
        raise DistributedLogError(f"{name} was not started: {error}") from None


async def _stop(process: trio.Process | ForkedProcess) -> None:
    with trio.CancelScope(shield=True):
        if process.stdin is not None:
            await process.stdin.aclose()
        with trio.move_on_after(STOP_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        if process.stdout is not None:
            await process.stdout.aclose()


def environment() -> dict[str, str]:
    """Return the environment for a child, which finds this package also in a checkout without
    installation.
    """
    root = str(
        Path(__file__).absolute().parents[2]
    )  # .../distributedlog/cluster -> ... , or the checkout
    import_root = str(Path(root).parent) if Path(root).name == "distributedlog" else root
    paths = [import_root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
