"""Child processes that cannot outlive us: started with a pipe for their stdin, whose end ends them."""

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
"""A child that was told to end and has not is killed after this."""


class Child:
    """One child that serves: its pid, what it said when ready, and the ways to end it."""

    def __init__(
        self, name: str, process: trio.Process | ForkedProcess, ready: dict[str, Any]
    ) -> None:
        self.name = name
        self.process = process
        self.ready = ready

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL: it gets to tidy nothing up."""
        self.process.kill()

    async def stop(self) -> None:
        """Close its life line, wait, kill it after `STOP_S`."""
        await _stop(self.process)


COMMAND = (sys.executable, "-m", f"{__package__}.node_child")


def start_fork_server() -> ForkServer:
    """One for callers that run trio already: a process of its own, with imports of its own."""
    return ForkServer.spawn([*COMMAND, "--forks"], environment())


async def start_child(
    name: str, spec: dict[str, Any], forks: ForkServer | None = None, *, timeout_s: float = START_S
) -> Child:
    """Start a child (cluster/local/node_child.py), by ``forks`` where there is one, and wait until it serves.

    Raises the error that it could not start with, `RequestTimeout` when it says nothing in time.
    """
    process = await _start_process(name, forks, timeout_s)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        received = b""
        with trio.move_on_after(timeout_s):
            with_name = {"name": name, **spec}
            # If it has ended already, what it said, or did not, tells below.
            with contextlib.suppress(trio.BrokenResourceError):
                await process.stdin.send_all(json.dumps(with_name).encode() + b"\n")
            while not received.endswith(b"\n"):
                chunk = await process.stdout.receive_some(65_536)
                if not chunk:
                    code = await process.wait()
                    raise DistributedLogError(f"{name} ended with {code} before it served")
                received += chunk
        if not received.endswith(b"\n"):
            raise RequestTimeout(f"{name} did not begin to serve within {timeout_s:g} s")
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
        # There is none, or it has ended: it costs more, and starts as well.
        return await trio.lowlevel.open_process(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            process_group=0,  # the terminal's Ctrl-C is for us alone; the session stays ours
        )
    except trio.TooSlowError:
        raise RequestTimeout(f"{name} was not started within {timeout_s:g} s") from None
    except OSError as error:  # no descriptor, no memory, no more processes: now
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
    """Ours, so that a child finds this package also in a checkout that is not installed."""
    root = str(
        Path(__file__).absolute().parents[2]
    )  # .../distributedlog/cluster -> ... , or the checkout
    import_root = str(Path(root).parent) if Path(root).name == "distributedlog" else root
    paths = [import_root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
