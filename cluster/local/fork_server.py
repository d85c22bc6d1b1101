"""A process that has imported what nodes are made of, and forks one for each that is asked for.

A node's imports cost more CPU than its start: seven nodes pay them once. The server is forked before anything
runs (no thread, no loop, no open disk), or started by itself; it has one thread and runs no trio, so what it
forks begins as clean as after an ``exec`` (H15). Its end is no node's end: each node's life line is a
pipe whose other end its real parent holds, as for any child (cluster/local/child_processes.py).

On the socket between the two: a number and three descriptors (the child's stdin, its stdout, a pipe on which
its exit code is told) ask for a child; the same number, its process id and a descriptor of it (pidfd) answer.
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
# | number u64 |                           with the descriptors: stdin, stdout, where its exit code goes
_RESPONSE = struct.Struct("<QQ")
# | number u64 | process id u64 |          with the descriptor: of the process
_EXIT_CODE = struct.Struct("<i")
# | exit code i32 |                        negative: the signal that ended it
# The forkserver of multiprocessing is not used. Its children get no pipes as stdin and stdout, and run the
# caller's main module.
EXIT_CODE_S = 1.0
"""The code of a child that has ended is waited for so long; without the server nobody knows it."""


class ForkedProcess:
    """A child of the server that is ours to end: what `trio.Process` is for one that was spawned."""

    def __init__(
        self, pid: int, descriptor: int, stdin: int, stdout: int, exit_code_pipe: int
    ) -> None:
        self.pid = pid
        self.stdin: trio.lowlevel.FdStream | None = trio.lowlevel.FdStream(stdin)
        self.stdout: trio.lowlevel.FdStream | None = trio.lowlevel.FdStream(stdout)
        self.returncode: int | None = None
        """None while it runs; negative: the signal that ended it. 255 where nobody can tell."""
        self._descriptor = descriptor
        self._exit_code_pipe = exit_code_pipe

    def kill(self) -> None:
        """SIGKILL, unless it has ended. Its number cannot mean another process: it goes by the descriptor."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code, when it has ended; any number of tasks may wait."""
        while self.returncode is None:
            await _wait_readable(self._descriptor)
            if self.returncode is None:
                with trio.move_on_after(EXIT_CODE_S):
                    await _wait_readable(self._exit_code_pipe)
            self._read_exit_code()
        return self.returncode

    def _read_exit_code(self) -> None:
        if self.returncode is not None:
            return  # another task was first
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
    """Our end of one. Only one trio run at a time may use it."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control = control
        self.pid = pid
        self._request_lock = trio.Lock()
        self._request_count = 0

    @classmethod
    def fork_here(cls, run: Callable[[], None]) -> "ForkServer":
        """Fork it from this process, which must have one thread and must not run trio.

        What is imported now its children need not import. ``run`` is what each of them does.
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
        """Start it by a command, which calls `serve_forks` with its stdin."""
        our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with their_end:
            server = subprocess.Popen(
                command,
                stdin=their_end.fileno(),
                stdout=subprocess.DEVNULL,
                env=env,
                process_group=0,
            )
        server.returncode = 0  # `close` waits for it, not the object's end
        return cls(our_end, server.pid)

    async def fork(self) -> ForkedProcess:
        """Another child. Raises `BrokenPipeError` when the server has ended."""
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
            # A child that is answered too late finds its life line cut.
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
                with contextlib.suppress(ConnectionResetError):  # it ended with a question unread
                    response, received, _, _ = socket.recv_fds(
                        self._control, _RESPONSE.size, 1, socket.MSG_CMSG_CLOEXEC
                    )
                if len(response) != _RESPONSE.size or len(received) != 1:
                    raise BrokenPipeError("the process that forks the nodes has ended")
                number, pid = _RESPONSE.unpack(response)
                if number == self._request_count:
                    return pid, received[0]
                os.close(received[0])  # for one who was cancelled and asks no more

    def close(self) -> None:
        """End it: it has nothing to tidy. Its children live on. Again: nothing."""
        if self._control.fileno() == -1:
            return
        self._control.close()
        os.kill(self.pid, signal.SIGKILL)  # not waited for yet: the number is its own
        os.waitpid(self.pid, 0)


async def _wait_readable(descriptor: int) -> None:
    """Wait for one descriptor, which others may wait for as well: so on a copy of it."""
    copy = os.dup(descriptor)
    try:
        await trio.lowlevel.wait_readable(copy)
    finally:
        os.close(copy)


def serve_forks(control: socket.socket, run: Callable[[], None]) -> NoReturn:
    """Fork a child that does ``run`` for each that is asked for, until the other end closes."""
    os.setpgid(0, 0)  # the terminal's Ctrl-C is for the parent alone
    dev_null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # whoever reads what the parent prints waits for no one else
        os.dup2(dev_null, standard)
    os.close(dev_null)
    gc.collect()
    gc.freeze()  # what all of them share stays shared: no collection writes into it
    server = _Server(control, run)
    try:
        server.serve()
    finally:
        os._exit(0)


class _Server:
    """The server's own side: one thread, one loop over two descriptors."""

    def __init__(self, control: socket.socket, run: Callable[[], None]) -> None:
        self._control = control
        self._run = run
        self._exit_code_pipes: dict[int, int] = {}
        """Process id to where its exit code goes."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Until the other end closes."""
        control = self._control.fileno()
        poll = (
            select.poll()
        )  # `select` takes no descriptor from 1024 on, and our parent may have had many
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
        process = os.pidfd_open(pid)  # before it can be buried
        number = _REQUEST.unpack(request)[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [process]))]
        self._control.sendmsg([_RESPONSE.pack(number, pid)], rights)
        os.close(process)

    def _reap_children(self) -> None:
        """Tell the codes of those that have ended."""
        for pid in list(self._exit_code_pipes):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                exit_code_pipe = self._exit_code_pipes.pop(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(exit_code_pipe, _EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
                os.close(exit_code_pipe)

    def _run_child(self, stdin: int, stdout: int, exit_code_pipe: int) -> NoReturn:
        """In the child: be a process of its own, and never come back."""
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
