"""What is asked of each system: three servers on this machine; records one at a time, and many."""

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


class NotHere(Exception):
    """A program or a client library that this machine does not have; the text names it."""


class Peer(Protocol):
    """One system: three servers, three copies of each record, acknowledged when a majority has synced it."""

    name: str
    settings: str
    """What was set for durability, in one line."""

    def start(self, directory: Path, servers: ExitStack) -> None:
        """Start its servers, with their data in ``directory``; ``servers`` ends them. Raises `NotHere`."""
        ...

    def version(self) -> str:
        """Of the server."""
        ...

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """Records of ``size`` bytes, one after the other: p50, p99, p999 in ms until acknowledged."""
        ...

    def throughput(self, size: int, seconds: float) -> float:
        """Records a second that were acknowledged, with as many on their way as suits it."""
        ...


def program(*names: str) -> str:
    """The path of the first of these programs that is here. Raises `NotHere`."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise NotHere(f"no program {' or '.join(names)}")


class PeerServer:
    """A server that was started, and what it says."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    def exit_reason(self) -> str:
        """Its last words, where it has ended; "" while it runs."""
        if self._process.poll() is None:
            return ""
        log_lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{self._log.stem} ended: {log_lines[-1] if log_lines else 'without a word'}"


def run_server(servers: ExitStack, command: Sequence[str], log: Path) -> PeerServer:
    """Start a process that ends with ``servers``; what it says goes to ``log``."""
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
    """Ports of loopback that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound_socket in sockets:
            bound_socket.bind(("127.0.0.1", 0))
        return [bound_socket.getsockname()[1] for bound_socket in sockets]


def payloads(size: int, count: int = 64) -> list[bytes]:
    """Incompressible payloads, taken in turns."""
    return [os.urandom(size) for _ in range(count)]


def until(ready: Callable[[], bool], description: str, started: Sequence[PeerServer] = ()) -> None:
    """Ask again and again until the answer is yes. Raises `NotHere` after a minute, or when a server ends."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if ready():
            return
        for reason in filter(None, (server.exit_reason() for server in started)):
            raise NotHere(f"{description}: {reason}")
        time.sleep(0.1)
    raise NotHere(f"{description} did not serve within {READY_S:g} s")
