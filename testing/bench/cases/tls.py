"""Measure the CPU cost of TLS on both sides, compared with plain connections: per GB and per message.

    python -m distributedlog.testing.bench.cases.tls DIR [--mib 512]

DIR is a directory of `dlog pki issue bookie/…`, used by both ends. One process sends and another one
receives, over loopback. Each reports its own CPU time, so that other processes of the machine have little
effect. The round with the lowest time counts.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import trio

from ....runtime.interfaces.host import Connection, Host
from ....runtime.machine import real_host
from ....runtime.net.tls import Tls, with_tls
from ..measure.bench_plan import parser_of, run

SIZES = (64, 4096, 65_536, 1 << 20)
WINDOW_BYTES = 1 << 20
ROUNDS = 3


def main() -> None:
    """Print one line per message size: CPU seconds per GB with and without TLS, and the added time."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mib", type=int, default=256, help="sent per size and round")
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        trio.run(_receive, arguments.directory, json.loads(arguments.receive))
        return
    print("bytes   | plain: send  receive | TLS: send  receive | added µs per message and side")
    for size in SIZES:
        count = max(1, min(arguments.mib << 20, size * 400_000) // size)
        least_cpu_s = {
            secret: min(
                trio.run(_round, arguments.directory, size, count, secret) for _ in range(ROUNDS)
            )
            for secret in (False, True)
        }
        gb = size * count / 1e9
        (sent, received_s), (sent_tls, received_tls_s) = least_cpu_s[False], least_cpu_s[True]
        added_us = [
            (tls - plain) / count * 1e6
            for plain, tls in ((sent, sent_tls), (received_s, received_tls_s))
        ]
        print(
            f"{size:7} | {sent / gb:11.2f} {received_s / gb:8.2f} | {sent_tls / gb:9.2f} "
            f"{received_tls_s / gb:8.2f}"
            f" | {added_us[0]:.1f} {added_us[1]:.1f}",
            flush=True,
        )


def _host(directory: Path, secret: bool) -> Host:
    return with_tls(real_host("bench"), Tls(directory)) if secret else real_host("bench")


async def _round(directory: Path, size: int, count: int, use_tls: bool) -> tuple[float, float]:
    """Return the CPU seconds of the sender and of the receiver."""
    host = _host(directory, use_tls)
    listener = await host.listen(("127.0.0.1", 0))
    receiver_arguments = json.dumps(
        {"port": listener.address[1], "bytes": size * count, "secret": use_tls}
    )
    command = [
        sys.executable,
        "-m",
        "distributedlog.testing.bench.cases.tls",
        str(directory),
        "--receive",
        receiver_arguments,
    ]
    async with trio.open_nursery() as nursery:
        receiver = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE))
        connection = await listener.accept()
        await connection.receive_into(memoryview(bytearray(1)))  # the handshake is not counted
        begun_at = time.process_time()
        await _send(connection, bytes(size), count)
        sent_s = time.process_time() - begun_at
        result_line = b""
        while not result_line.endswith(b"\n"):
            result_line += await receiver.stdout.receive_some()
        received_s = float(result_line)
    connection.close()
    listener.close()
    return sent_s, received_s


async def _send(connection: Connection, message: bytes, count: int) -> None:
    """Send messages as a link does: up to 64 at once, and the unsent rest again."""
    remainder = memoryview(b"")
    while count or remainder:
        buffers = [remainder] if remainder else []
        new_messages = min(count, 64 - len(buffers))
        buffers += [memoryview(message)] * new_messages
        offered = sum(map(len, buffers))
        sent = connection.try_send(buffers)
        count -= new_messages
        if sent < offered:
            unsent_bytes = offered - sent
            whole_messages, partial_bytes = divmod(unsent_bytes, len(message))
            count += whole_messages
            remainder = (
                memoryview(message)[len(message) - partial_bytes :]
                if partial_bytes
                else memoryview(b"")
            )
            await connection.wait_writable()
        else:
            remainder = memoryview(b"")


async def _receive(directory: Path, arguments: dict[str, int]) -> None:
    connection = await _host(directory, bool(arguments["secret"])).dial(
        ("127.0.0.1", arguments["port"])
    )
    async with trio.open_nursery() as nursery:
        window = memoryview(bytearray(WINDOW_BYTES))
        nursery.start_soon(_hello, connection)
        bytes_left, begun_at = arguments["bytes"], 0.0
        while bytes_left:
            bytes_left -= await connection.receive_into(window)
            begun_at = begun_at or time.process_time()
        print(time.process_time() - begun_at, flush=True)
    connection.close()


async def _hello(connection: Connection) -> None:
    while not connection.try_send([b"!"]):
        await connection.wait_writable()


if __name__ == "__main__":
    run(main)
