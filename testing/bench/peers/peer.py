"""The operations of each compared system: three servers on this machine, single records, and many records."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

READY_S = 60.0


class PeerMissing(Exception):
    """A program or a client library is missing on this machine. The text names it."""


class Peer(Protocol):
    """One system: three servers and copies of each record, acknowledged after a majority has synced it."""

    name: str
    settings: str
    """The durability settings in one line."""

    def start(self, directory: Path, servers: ExitStack) -> None:
        """Start the servers with their data in ``directory``.

        Closing ``servers`` ends them. Raises `PeerMissing`.
        """
        ...

    def version(self) -> str:
        """Return the version of the server."""
        ...

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """Write records of ``size`` bytes one after the other.

        Returns:
            p50, p99 and p999 until the acknowledgement, in milliseconds.
        """
        ...

    def throughput(self, size: int, seconds: float) -> float:
        """Return the acknowledged records per second, with as many pending as are best for the system."""
        ...


def program(*names: str) -> str:
    """Return the path of the first of these programs that is installed. Raises `PeerMissing`."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise PeerMissing(f"no program {' or '.join(names)}")


class PeerServer:
    """A started server and its output."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    def exit_reason(self) -> str:
        """Return the last line of output if the server has ended, otherwise ""."""
        if self._process.poll() is None:
            return ""
        log_lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{self._log.stem} ended: {log_lines[-1] if log_lines else 'without output'}"


def run_server(servers: ExitStack, command: Sequence[str], log: Path) -> PeerServer:
    """Start a process that ends when ``servers`` is closed. Its output is written to ``log``."""
    with log.open("wb") as log_file:
        process = subprocess.Popen(command, stdout=log_file, stderr=log_file)

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    servers.callback(end)
    return PeerServer(process, log)


def free_ports(count: int) -> list[int]:
    """Return loopback ports on which no process listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound_socket in sockets:
            bound_socket.bind(("127.0.0.1", 0))
        return [bound_socket.getsockname()[1] for bound_socket in sockets]


def payloads(size: int, count: int = 64) -> list[bytes]:
    """Return incompressible payloads for use in rotation."""
    return [os.urandom(size) for _ in range(count)]


def until(ready: Callable[[], bool], description: str, started: Sequence[PeerServer] = ()) -> None:
    """Poll until ``ready`` returns True. Raises `PeerMissing` after a minute, or when a server ends."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if ready():
            return
        for reason in filter(None, (server.exit_reason() for server in started)):
            raise PeerMissing(f"{description}: {reason}")
        time.sleep(0.1)
    raise PeerMissing(f"{description} did not serve within {READY_S:g} s")
