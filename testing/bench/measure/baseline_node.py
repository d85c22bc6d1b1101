"""One of the three nodes of the replicated baseline: it receives, writes, syncs and answers.

Run as ``python -m distributedlog.testing.bench.measure.baseline_node MODE DIRECTORY SIZE``. It prints its
port, serves one connection, and ends with it. In MODE ``message`` it appends each message of SIZE bytes,
calls fdatasync and answers with 8 bytes. In MODE ``stream`` it writes all received bytes to fallocated files
with O_DIRECT, with one fdatasync per batch, and answers with the number of durable bytes.
"""

import contextlib
import mmap
import os
import socket
import sys
from pathlib import Path

from ....runtime.net.tcp import set_socket_options

RECEIVE_BYTES = 1 << 20
FILE_BYTES = 256 << 20
PAGE = 4096


def main() -> None:
    """Serve one connection."""
    mode, directory, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    set_socket_options(connection)
    with contextlib.suppress(ConnectionError):  # the other end closes it after the measurement
        (serve_messages if mode == "message" else serve_stream)(connection, directory, size)


def serve_messages(connection: socket.socket, directory: Path, size: int) -> None:
    """Append and sync each message, then answer."""
    file = os.open(directory / "messages", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    buffer = memoryview(bytearray(size))
    while True:
        received_bytes = 0
        while received_bytes < size:
            received = connection.recv_into(buffer[received_bytes:])
            if not received:
                return
            received_bytes += received
        os.write(file, buffer)
        os.fdatasync(file)
        connection.sendall(b"8 bytes.")


def serve_stream(connection: socket.socket, directory: Path, _: int) -> None:
    """Write and sync the received bytes, then answer with the number of durable bytes."""
    buffer = memoryview(mmap.mmap(-1, RECEIVE_BYTES))
    durable = number = 0
    file, offset = _new_file(directory, number)
    while received := connection.recv_into(buffer):
        padded = -(-received // PAGE) * PAGE
        if offset + padded > FILE_BYTES:
            os.close(file)
            (directory / f"stream-{number}").unlink()
            number += 1
            file, offset = _new_file(directory, number)
        os.pwrite(file, buffer[:padded], offset)
        os.fdatasync(file)
        offset += padded
        durable += received
        connection.sendall(durable.to_bytes(8, "little"))


def _new_file(directory: Path, number: int) -> tuple[int, int]:
    path = directory / f"stream-{number}"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:  # tmpfs does not support O_DIRECT
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(file, 0, FILE_BYTES)
    os.fdatasync(file)
    return file, 0


if __name__ == "__main__":
    main()
