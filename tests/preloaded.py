"""`dlog` commands in processes that are forked from one that has imported the command line.

Half of a short command's CPU is imports, and the tests start more than a thousand commands and nodes. Each
worker of pytest starts one server (`python -m tests.preloaded`), which forks a process per command. Those are
real processes with pids, descriptors, signals and exit codes of their own.

On the socket (`SOCK_SEQPACKET`): a JSON object with `arguments`, `env` and `cwd`, and four descriptors:
stdin, stdout, stderr, and a pipe. On that pipe the server writes the pid (i64) and later the exit code (i64).
"""

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from distributedlog.cluster.local.child_processes import environment
from distributedlog.runtime.process.stderr_writer import drain_stderr

MODULE: Final = "distributedlog.cli.main"
"""What the forked processes run."""

_NUMBER: Final = struct.Struct("<q")
_MESSAGE_BYTES_MAX: Final = 128 * 1024


class Process:
    """A forked command with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        args: Sequence[str],
        report: int,
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
        stderr: IO[bytes] | None,
    ) -> None:
        self.args = list(args)
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | Any = None
        self._report = report
        self.pid: int = _NUMBER.unpack(os.read(report, _NUMBER.size))[0]

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; negative is the number of the signal."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def communicate(
        self, data: bytes | None = None, timeout: float | None = None
    ) -> tuple[Any, Any]:
        """Send `data` to stdin, read both outputs to their ends, and wait."""
        end = None if timeout is None else time.monotonic() + timeout
        found: dict[str, bytes] = {}

        def feed() -> None:
            assert self.stdin is not None
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(data or b"")

        def drain(name: str, stream: IO[bytes]) -> None:
            with stream:
                found[name] = stream.read()

        threads = [
            threading.Thread(target=drain, args=(name, stream), daemon=True)
            for name in ("stdout", "stderr")
            if (stream := getattr(self, name)) is not None
        ]
        if self.stdin is not None and not self.stdin.closed:
            threads.append(threading.Thread(target=feed, daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        return found.get("stdout"), found.get("stderr")

    def send_signal(self, number: int) -> None:
        """Send a signal to this process only."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """End it by SIGTERM, as a service manager does."""
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def _end(self) -> None:
        code = os.read(self._report, _NUMBER.size)
        os.close(self._report)
        self.returncode = _NUMBER.unpack(code)[0] if code else 255


Started = Process | subprocess.Popen[bytes]
"""What `popen` returns."""


class _Client:
    """The end of the socket that the tests hold."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment(),
                cwd=Path(__file__).parents[1],
                process_group=0,
            )
        self._server.returncode = 0  # it ends when this process does
        self._socket = ours
        self._lock = threading.Lock()

    def ask(self, message: bytes, descriptors: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._socket, [message], descriptors)


_client: list[_Client] = []


def popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    **others: Any,
) -> Started:
    """Start `command` as `subprocess.Popen` does: forked if it is `dlog` of this build in our environment."""
    if others or list(command[:3]) != [sys.executable, "-m", MODULE] or _differs(env):
        return subprocess.Popen(
            command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, **others
        )
    if not _client:
        _client.append(_Client())
    opened: list[int] = []
    streams: list[IO[bytes] | None] = []
    theirs: list[int] = []
    for at, asked in enumerate((stdin, stdout, stderr)):
        stream = None
        if asked == subprocess.PIPE:
            read, write = os.pipe()
            descriptor, ours = (read, write) if at == 0 else (write, read)
            stream = open(ours, "wb" if at == 0 else "rb")  # noqa: SIM115
            opened.append(descriptor)
        elif asked == subprocess.DEVNULL:
            descriptor = os.open(os.devnull, os.O_RDWR)
            opened.append(descriptor)
        elif asked == subprocess.STDOUT:
            descriptor = theirs[1]
        elif asked is None:
            descriptor = at
        else:
            descriptor = asked if isinstance(asked, int) else asked.fileno()
        theirs.append(descriptor)
        streams.append(stream)
    report, reported = os.pipe()
    opened.append(reported)
    message = json.dumps(
        {"arguments": command[3:], "env": dict(env), "cwd": os.fspath(cwd or os.getcwd())}
    ).encode()
    try:
        _client[0].ask(message, [*theirs, reported])
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return Process(command, report, *streams)


def run(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    timeout: float | None = None,
    stdin: Any = None,
    **options: Any,
) -> "subprocess.CompletedProcess[bytes]":
    """Run `command` to its end with both outputs captured unless told otherwise, as `subprocess.run` does."""
    stdin = subprocess.PIPE if input is not None else stdin
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with popen(command, stdin=stdin, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.wait(), stdout or b"", stderr or b"")


def _differs(env: Mapping[str, str]) -> bool:
    """Whether an interpreter would start otherwise in `env` than in our environment."""
    ours = environment()
    changed = (name for name in {*env, *ours} if env.get(name) != ours.get(name))
    return any(name.startswith(("PYTHON", "LC_", "LANG", "LD_")) for name in changed)


def _serve(control: socket.socket) -> None:
    """Fork a process for each message, until the tests have ended."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(running):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    _report(running.pop(pid), os.waitstatus_to_exitcode(status))
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(
                control, _MESSAGE_BYTES_MAX, 4, socket.MSG_CMSG_CLOEXEC
            )
            if not message:
                break
            pid = os.fork()
            if pid == 0:
                for descriptor in (woken, wake, *running.values()):
                    os.close(descriptor)
                control.close()
                _become(json.loads(message), descriptors)
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            running[pid] = descriptors[3]
            os.write(descriptors[3], _NUMBER.pack(pid))
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _report(descriptor: int, code: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, _NUMBER.pack(code))
    os.close(descriptor)


def _become(message: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """In the child: be a process that was started by `python -m`, and end as one."""
    from distributedlog.cli.main import main

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for standard, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, standard)
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(message["cwd"])
        os.environ.clear()
        os.environ.update(message["env"])
        sys.argv = [sys.modules[MODULE].__file__ or MODULE, *message["arguments"]]
        for name, standard, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
            errors = "backslashreplace" if name == "stderr" else "strict"
            binary = open(standard, f"{mode}b", closefd=False)  # noqa: SIM115
            text = io.TextIOWrapper(
                binary, encoding="utf-8", errors=errors, line_buffering=name == "stderr"
            )
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        drain_stderr()
        os._exit(code)


def _preload() -> None:
    """Import what commands and nodes import."""
    import distributedlog.cli
    import distributedlog.cluster.local.node_child  # the nodes

    for module in pkgutil.iter_modules(distributedlog.cli.__path__, "distributedlog.cli."):
        importlib.import_module(module.name)


if __name__ == "__main__":
    with socket.socket(fileno=os.dup(0)) as asked:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.close(nothing)
        _preload()
        gc.collect()
        gc.freeze()  # no collection of a child writes into shared pages
        _serve(asked)
    os._exit(0)
