"""Fork a child process for each node from one process that has already imported the modules of nodes.

The imports of a node cost more CPU time than its start, so seven nodes pay for them only once. The server is
forked before anything runs (no thread, event loop or open disk), or started separately. It has one thread and
does not run trio, so its children start as clean as after an ``exec`` (H15).

The end of the server does not end any node. As for every child, the end of a pipe held by its parent ends it
(`cluster/local/child_processes.py`).

The client and the server communicate over a socket. A request has a number and three descriptors: stdin and
stdout of the child, and a pipe for its exit code. The response has the same number, the process ID, and a
descriptor of the process (pidfd).
"""

import array
import contextlib
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import trio

from ...runtime.process.stderr_writer import drain_stderr

_REQUEST = struct.Struct("<Q")
#  number u64 |                           with the descriptors of stdin, stdout and the exit code pipe
_RESPONSE = struct.Struct("<QQ")
#  number u64 | process id u64 |          with the descriptor of the process
_EXIT_CODE = struct.Struct("<i")
#  exit code i32 |                        negative for the signal that ended it
# The forkserver of multiprocessing is not used. Its children get no pipes as stdin and stdout, and run the
# caller's main module.
EXIT_CODE_S = 1.0
"""How long to wait for the exit code of a child that has ended. Without the server it is never reported."""


class ForkedProcess:
    """A child of the server that this process can end.

    It corresponds to `trio.Process` for spawned processes.
    """

    def __init__(
        self, pid: int, descriptor: int, stdin: int, stdout: int, exit_code_pipe: int
    ) -> None:
        self.pid = pid
        self.stdin: trio.lowlevel.FdStream | None = trio.lowlevel.FdStream(stdin)
        self.stdout: trio.lowlevel.FdStream | None = trio.lowlevel.FdStream(stdout)
        self.returncode: int | None = None
        """None while it runs, negative for the signal that ended it, 255 if the code is unknown."""
        self._descriptor = descriptor
        self._exit_code_pipe = exit_code_pipe

    def kill(self) -> None:
        """Kill it by SIGKILL unless it has ended. The pidfd guarantees that no other process is killed."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end, and return its exit code. Any number of tasks may wait."""
        while self.returncode is None:
            await _wait_readable(self._descriptor)
            if self.returncode is None:
                with trio.move_on_after(EXIT_CODE_S):
                    await _wait_readable(self._exit_code_pipe)
            self._read_exit_code()
        return self.returncode

    def _read_exit_code(self) -> None:
        if self.returncode is not None:
            return  # another task has read it
        packed_code = b""
        os.set_blocking(self._exit_code_pipe, False)
        with contextlib.suppress(BlockingIOError):
            packed_code = os.read(self._exit_code_pipe, _EXIT_CODE.size)
        self.returncode = (
            _EXIT_CODE.unpack(packed_code)[0] if len(packed_code) == _EXIT_CODE.size else 255
        )
        os.close(self._exit_code_pipe)
        os.close(self._descriptor)


class ForkServer:
    """The client side of a fork server. Only one trio run at a time may use it."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control = control
        self.pid = pid
        self._request_lock = trio.Lock()
        self._request_count = 0

    @classmethod
    def fork_here(cls, run: Callable[[], None]) -> "ForkServer":
        """Fork a server from this process, which must have one thread and must not run trio.

        The children need not import the modules that are imported now. Each child calls ``run``.
        """
        our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            our_end.close()
            serve_forks(their_end, run)
        their_end.close()
        return cls(our_end, pid)

    @classmethod
    def spawn(cls, command: list[str], env: dict[str, str]) -> "ForkServer":
        """Start a server by a command, which calls `serve_forks` with its stdin."""
        our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with their_end:
            server = subprocess.Popen(
                command,
                stdin=their_end.fileno(),
                stdout=subprocess.DEVNULL,
                env=env,
                process_group=0,
            )
        server.returncode = 0  # `close` waits for it, so its destructor need not
        return cls(our_end, server.pid)

    async def fork(self) -> ForkedProcess:
        """Start another child.

        Raises:
            BrokenPipeError: The server has ended.
        """
        child_stdin, our_stdin = os.pipe()
        our_stdout, child_stdout = os.pipe()
        exit_code_read, exit_code_write = os.pipe()
        our_descriptors = [our_stdin, our_stdout, exit_code_read]
        try:
            pid, descriptor = await self._request([child_stdin, child_stdout, exit_code_write])
            our_descriptors.append(descriptor)
            child = ForkedProcess(pid, descriptor, our_stdin, our_stdout, exit_code_read)
            our_descriptors.clear()
            return child
        finally:
            # A child of a cancelled request has a closed stdin, and ends.
            for unused in (child_stdin, child_stdout, exit_code_write, *our_descriptors):
                os.close(unused)

    async def _request(self, descriptors: list[int]) -> tuple[int, int]:
        async with self._request_lock:
            self._request_count += 1
            socket.send_fds(self._control, [_REQUEST.pack(self._request_count)], descriptors)
            while True:
                await _wait_readable(self._control.fileno())
                response = b""
                received: list[int] = []
                with contextlib.suppress(
                    ConnectionResetError
                ):  # it ended before it read the request
                    response, received, _, _ = socket.recv_fds(
                        self._control, _RESPONSE.size, 1, socket.MSG_CMSG_CLOEXEC
                    )
                if len(response) != _RESPONSE.size or len(received) != 1:
                    raise BrokenPipeError("the process that forks the nodes has ended")
                number, pid = _RESPONSE.unpack(response)
                if number == self._request_count:
                    return pid, received[0]
                os.close(received[0])  # the answer to a request that was cancelled

    def close(self) -> None:
        """End the server by SIGKILL, since it needs no cleanup.

        Its children continue. Further calls have no effect.
        """
        if self._control.fileno() == -1:
            return
        self._control.close()
        os.kill(self.pid, signal.SIGKILL)  # it was not waited for yet, so the ID is still its own
        os.waitpid(self.pid, 0)


async def _wait_readable(descriptor: int) -> None:
    """Wait until a descriptor is readable, on a copy of it, because other tasks may wait for it as well."""
    copy = os.dup(descriptor)
    try:
        await trio.lowlevel.wait_readable(copy)
    finally:
        os.close(copy)


def serve_forks(control: socket.socket, run: Callable[[], None]) -> NoReturn:
    """Fork a child that calls ``run`` for each request, until the other end closes."""
    os.setpgid(0, 0)  # Ctrl-C on the terminal must reach only the parent
    dev_null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # a reader of the parent's output must not wait for this process
        os.dup2(dev_null, standard)
    os.close(dev_null)
    gc.collect()
    gc.freeze()  # garbage collection then does not write to shared memory pages
    server = _Server(control, run)
    try:
        server.serve()
    finally:
        os._exit(0)


class _Server:
    """The server side: one thread, and one loop over two descriptors."""

    def __init__(self, control: socket.socket, run: Callable[[], None]) -> None:
        self._control = control
        self._run = run
        self._exit_code_pipes: dict[int, int] = {}
        """By process ID: the pipe for its exit code."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Serve requests until the other end closes."""
        control = self._control.fileno()
        poll = (
            select.poll()
        )  # `select` accepts no descriptor above 1023, and the parent may have many
        poll.register(control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap_children()
            if control in ready:
                request, descriptors, _, _ = socket.recv_fds(
                    self._control, _REQUEST.size, 3, socket.MSG_CMSG_CLOEXEC
                )
                if len(request) != _REQUEST.size or len(descriptors) != 3:
                    return
                self._fork(request, descriptors)

    def _fork(self, request: bytes, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._run_child(*descriptors)
        stdin, stdout, exit_code_pipe = descriptors
        os.close(stdin)
        os.close(stdout)
        self._exit_code_pipes[pid] = exit_code_pipe
        process = os.pidfd_open(pid)  # before the child is reaped
        number = _REQUEST.unpack(request)[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [process]))]
        self._control.sendmsg([_RESPONSE.pack(number, pid)], rights)
        os.close(process)

    def _reap_children(self) -> None:
        """Send the exit codes of children that have ended."""
        for pid in list(self._exit_code_pipes):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                exit_code_pipe = self._exit_code_pipes.pop(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(exit_code_pipe, _EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
                os.close(exit_code_pipe)

    def _run_child(self, stdin: int, stdout: int, exit_code_pipe: int) -> NoReturn:
        """In the child: set up a separate process, run the task, and exit."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            for inherited in (
                stdin,
                stdout,
                exit_code_pipe,
                self._wake_read,
                self._wake_write,
                *self._exit_code_pipes.values(),
            ):
                os.close(inherited)
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
            try:
                self._run()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            drain_stderr()
            os._exit(code)
