"""What TLS costs, on both sides, beside plain connections in the same run: CPU seconds a GB, and a message.

python -m distributedlog.testing.bench.cases.tls DIR [--mib 512]

DIR is a directory of `dlog pki issue bookie/…`, shown by both ends. A process sends, another one receives,
over loopback; each tells its own CPU time, so that a machine that others use too changes little. The least
of the rounds counts.
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
    """One line a size: CPU seconds a GB of sender and receiver, plain and with TLS, and the ratio."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mib", type=int, default=256, help="sent at each size, in each round")
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.receive:
        trio.run(_receive, given.directory, json.loads(given.receive))
        return
    print("bytes   | plain: send  receive | TLS: send  receive | more, µs a message a side")
    for size in SIZES:
        count = max(1, min(given.mib << 20, size * 400_000) // size)
        least = {
            secret: min(
                trio.run(_round, given.directory, size, count, secret) for _ in range(ROUNDS)
            )
            for secret in (False, True)
        }
        gb = size * count / 1e9
        (sent, got), (sent_tls, got_tls) = least[False], least[True]
        more = [(tls - plain) / count * 1e6 for plain, tls in ((sent, sent_tls), (got, got_tls))]
        print(
            f"{size:7} | {sent / gb:11.2f} {got / gb:8.2f} | {sent_tls / gb:9.2f} {got_tls / gb:8.2f}"
            f" | {more[0]:.1f} {more[1]:.1f}",
            flush=True,
        )


def _host(directory: Path, secret: bool) -> Host:
    return with_tls(real_host("bench"), Tls(directory)) if secret else real_host("bench")


async def _round(directory: Path, size: int, count: int, secret: bool) -> tuple[float, float]:
    """CPU seconds of the sender and of the receiver."""
    host = _host(directory, secret)
    listener = await host.listen(("127.0.0.1", 0))
    told = json.dumps({"port": listener.address[1], "bytes": size * count, "secret": secret})
    command = [
        sys.executable,
        "-m",
        "distributedlog.testing.bench.cases.tls",
        str(directory),
        "--receive",
        told,
    ]
    async with trio.open_nursery() as nursery:
        receiver = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE))
        connection = await listener.accept()
        await connection.receive_into(memoryview(bytearray(1)))  # the handshake is not counted
        began = time.process_time()
        await _send(connection, bytes(size), count)
        sent_s = time.process_time() - began
        said = b""
        while not said.endswith(b"\n"):
            said += await receiver.stdout.receive_some()
        received_s = float(said)
    connection.close()
    listener.close()
    return sent_s, received_s


async def _send(connection: Connection, message: bytes, count: int) -> None:
    """Messages as a link sends them: up to 64 at once, and again what was not taken."""
    left = memoryview(b"")
    while count or left:
        buffers = [left] if left else []
        fresh = min(count, 64 - len(buffers))
        buffers += [memoryview(message)] * fresh
        offered = sum(map(len, buffers))
        sent = connection.try_send(buffers)
        count -= fresh
        if sent < offered:
            rest = offered - sent
            whole, part = divmod(rest, len(message))
            count += whole
            left = memoryview(message)[len(message) - part :] if part else memoryview(b"")
            await connection.wait_writable()
        else:
            left = memoryview(b"")


async def _receive(directory: Path, told: dict[str, int]) -> None:
    connection = await _host(directory, bool(told["secret"])).dial(("127.0.0.1", told["port"]))
    async with trio.open_nursery() as nursery:
        window = memoryview(bytearray(WINDOW_BYTES))
        nursery.start_soon(_hello, connection)
        left, began = told["bytes"], 0.0
        while left:
            left -= await connection.receive_into(window)
            began = began or time.process_time()
        print(time.process_time() - began, flush=True)
    connection.close()


async def _hello(connection: Connection) -> None:
    while not connection.try_send([b"!"]):
        await connection.wait_writable()


if __name__ == "__main__":
    run(main)
