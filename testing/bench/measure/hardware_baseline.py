"""Measure baselines of the machine in the same run. Every other figure is a ratio to one of them.

``file`` appends and calls fdatasync. ``replicated`` sends one message by TCP to three processes that append
and sync it, until two of them have answered. ``framing`` sends framed records to three processes that write
and sync them in batches, and counts the records that two of them have synced.
"""

import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from ....runtime.net.tcp import set_socket_options
from .histogram import Histogram
from .machine_info import OthersCpu, settings

NODES = 3
ACKS = 2
BATCH_BYTES = 256 * 1024
WINDOW_BYTES = 16 * 1024 * 1024
ENVELOPE = struct.Struct("<QQQ")
"""24 bytes before each record, as in distributedlog/runtime/protocol/frames.py."""


def measure(data: Path | None, size: int, seconds: float) -> dict[str, Any]:
    """Measure the three baselines, each for a third of ``seconds``, with records of ``size`` bytes.

    Files are in a temporary directory in ``data``.
    """
    other_processes = OthersCpu()
    with tempfile.TemporaryDirectory(prefix="dlog-floor-", dir=data) as scratch:
        directory = Path(scratch)
        part_s = seconds / 3
        file = file_baseline(directory, size, part_s)
        replicated = replicated_baseline(directory, size, part_s)
        framing = framing_baseline(directory, size, part_s)
    return {
        "file": _short(file),
        "replicated": _short(replicated),
        "framing": {"records_per_s": round(framing), "bytes_per_s": round(framing * size)},
        "settings": {**settings(), "size": size, "seconds": seconds, "data": str(data or scratch)},
        "others_cpu_pct": other_processes.percent(),
    }


def file_baseline(directory: Path, size: int, seconds: float) -> Histogram:
    """Append ``size`` bytes to a growing file and call fdatasync, one after the other."""
    histogram = Histogram()
    payload = os.urandom(size)
    file = os.open(directory / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    end = perf_counter() + seconds
    while (begun_at := perf_counter()) < end:
        os.write(file, payload)
        os.fdatasync(file)
        histogram.add(perf_counter() - begun_at)
    os.close(file)
    return histogram


def replicated_baseline(directory: Path, size: int, seconds: float) -> Histogram:
    """Send one message at a time to three nodes, until two have synced it."""
    histogram = Histogram()
    payload = os.urandom(size)
    with nodes(directory, "message", size) as connections:
        owed_bytes = {connection.fileno(): 0 for connection in connections}  # expected answer bytes
        by_number = {connection.fileno(): connection for connection in connections}
        poll = select.epoll()
        for number in by_number:
            poll.register(number, select.EPOLLIN)
        end = perf_counter() + seconds
        while (begun_at := perf_counter()) < end:
            for number, connection in by_number.items():
                connection.sendall(payload)
                owed_bytes[number] += 8
            while sum(1 for owed in owed_bytes.values() if owed <= 0) < ACKS:
                for number, _ in poll.poll():
                    owed_bytes[number] -= _receive(by_number[number])
            histogram.add(perf_counter() - begun_at)
            while any(
                owed > 0 for owed in owed_bytes.values()
            ):  # the third node does not pipeline either
                for number, _ in poll.poll():
                    owed_bytes[number] -= _receive(by_number[number])
    return histogram


def framing_baseline(directory: Path, size: int, seconds: float) -> float:
    """Return the records per second that two of three nodes have synced."""
    record = os.urandom(size)
    batch_records = max(1, BATCH_BYTES // (size + ENVELOPE.size))
    with nodes(directory, "stream", size) as connections:
        by_number = {connection.fileno(): connection for connection in connections}
        queues: dict[int, list[memoryview]] = {number: [] for number in by_number}
        durable = dict.fromkeys(by_number, 0)
        partial_answers = dict.fromkeys(by_number, b"")
        poll = select.epoll()
        for number, connection in by_number.items():
            connection.setblocking(False)
            poll.register(number, select.EPOLLIN)
        sent_bytes = 0
        serials = itertools.count()
        start = perf_counter()
        now = start
        while now < start + seconds:
            quorum_bytes = sorted(durable.values())[NODES - ACKS]
            # The slowest node may also lag by the window, and its unsent frames are kept for it.
            if (
                sent_bytes - quorum_bytes < WINDOW_BYTES
                and sent_bytes - min(durable.values()) < 2 * WINDOW_BYTES
            ):
                parts: list[bytes] = []
                for serial in itertools.islice(serials, batch_records):
                    parts += (ENVELOPE.pack(ENVELOPE.size + size, serial, 0), record)
                frame = memoryview(b"".join(parts))
                sent_bytes += len(frame)
                for number in queues:
                    queues[number].append(frame)
                wait_s = 0.0
            else:
                wait_s = 1.0
            for number, queue in queues.items():
                _send(by_number[number], queue)
                poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if queue else 0))
            for number, events in poll.poll(wait_s):
                if events & select.EPOLLIN:
                    partial_answers[number] += by_number[number].recv(65_536)
                    complete_bytes = len(partial_answers[number]) // 8 * 8
                    if complete_bytes:
                        durable[number] = int.from_bytes(
                            partial_answers[number][complete_bytes - 8 : complete_bytes], "little"
                        )
                        partial_answers[number] = partial_answers[number][complete_bytes:]
            now = perf_counter()
        quorum_bytes = sorted(durable.values())[NODES - ACKS]
        return quorum_bytes / (ENVELOPE.size + size) / (now - start)


def _send(connection: socket.socket, queue: list[memoryview]) -> None:
    while queue:
        try:
            sent_bytes = connection.send(queue[0])
        except BlockingIOError:
            return
        if sent_bytes == len(queue[0]):
            queue.pop(0)
        else:
            queue[0] = queue[0][sent_bytes:]


def _receive(connection: socket.socket) -> int:
    received = len(connection.recv(4096))
    if not received:
        raise RuntimeError("a node of the baseline ended")
    return received


@contextmanager
def nodes(directory: Path, mode: str, size: int) -> Iterator[list[socket.socket]]:
    """Start three processes, and yield a connection to each."""
    processes: list[subprocess.Popen[str]] = []
    connections: list[socket.socket] = []
    try:
        for number in range(NODES):
            node_directory = directory / f"{mode}-{number}"
            node_directory.mkdir()
            command = [
                sys.executable,
                "-m",
                __package__ + ".baseline_node",
                mode,
                str(node_directory),
                str(size),
            ]
            processes.append(
                # Ctrl-C is only for the parent. Closing its connections ends the processes.
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
            )
        for process in processes:
            assert process.stdout is not None
            connection = socket.create_connection(("127.0.0.1", int(process.stdout.readline())))
            set_socket_options(connection)
            connections.append(connection)
        yield connections
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            if len(connections) < NODES:
                process.kill()  # it is still waiting for its connection
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _short(histogram: Histogram) -> dict[str, float]:
    summary = histogram.summary_ms()
    return {"p50": summary["p50"], "p99": summary["p99"], "count": histogram.count}
