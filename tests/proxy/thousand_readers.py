"""A thousand readers of one log: ``python -m tests.proxy.thousand_readers --rate 10 100 1000``.

One metadata node, three bookies, two read proxies, each a process; readers at the log's end in processes of
their own, through the proxies; a writer. Each reader has each record once, in order (scenario 32). With
``--kill`` one proxy is killed half way, and its readers go on at the other one. With ``--cold N`` so many
more read the log from its beginning, again and again (scenario 33); with ``--slow N`` so many never read.

Printed: what the proxies read of the storage beside what two direct readers would, latencies from the
writer's call to the reader's, CPU and memory of the proxies.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.cluster.status.node_health import query_info
from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.services.log_metrics import LogMeters
from distributedlog.proxy.client.entry_source import ReadLinks, open_proxied_reader
from distributedlog.proxy.protocol.read_messages import Subscribe
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.uri import parse_uri
from tests.cluster.story import Cluster, dlog

LOG = "tailed"
END_S = 60.0
"""What a reader waits for the next record at most."""
HISTORY = 2000
"""Records of 1 KB that are there before anybody reads."""
STAMP = struct.Struct("<d")


async def write(first: int, records: int, rate: int, payload_bytes: int) -> dict[str, Any]:
    """One record after the other, evenly, each with the time when it was handed over."""
    rest = bytes(payload_bytes - STAMP.size)
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        log = namespace.open_log(LOG)
        async with log.open_writer() as writer:
            began = trio.current_time()
            for number in range(records):
                await trio.sleep_until(began + number / rate)
                await writer.submit(LogRecord(first + number, STAMP.pack(time.monotonic()) + rest))
    return {"seconds": round(trio.current_time() - began, 2)}


class Reading:
    """The readers of one process."""

    def __init__(self, proxies: Sequence[Address], nursery: trio.Nursery, number: int) -> None:
        endpoint = Endpoint(real_host(f"readers{number}"), Hello)
        self._links = ReadLinks(endpoint, nursery, lambda path, name: proxies)
        self._nursery = nursery
        self._turn = 7919 * number

    async def open(self, at: str, *, to_end: bool = False, ahead: int = 1 << 20) -> LogReader:
        self._turn += 1
        return await open_proxied_reader(
            self._links,
            Subscribe(parse_uri(os.environ["DLOG_URI"]).path, LOG, at=at, to_end=to_end),
            options=LogOptions(read_ahead_bytes=ahead),
            meters=LogMeters(),
            proxy_offset=self._turn,
            start=self._nursery.start_soon,
        )


async def tail(number: int, records: int, readers: int, proxies: Sequence[Address]) -> Any:
    """Raises where a record is missing, or comes twice. Waits for a line before it is through."""
    late: list[float] = []
    waited: list[float] = []

    async def one(reader: LogReader) -> None:
        wanted = HISTORY
        longest = 0.0
        while wanted < HISTORY + records:
            before = time.monotonic()
            columns = await reader.read_columns(wait_s=END_S)
            assert columns is not None, f"record {wanted} did not come within {END_S:g} s"
            now = time.monotonic()
            if wanted > HISTORY:
                longest = max(longest, now - before)
            assert columns.first_sequence_id == wanted, (columns.first_sequence_id, wanted)
            assert columns.txids.tolist() == list(range(wanted, wanted + columns.count))
            for at in columns.offsets[: columns.count]:
                late.append(now - STAMP.unpack_from(columns.payload, at)[0])
            wanted += columns.count
        waited.append(longest)

    async with trio.open_nursery() as nursery:
        reading = Reading(proxies, nursery, number)
        opened = [await reading.open("latest") for _ in range(readers)]
        print("ready", flush=True)
        async with trio.open_nursery() as tails:
            for reader in opened:
                tails.start_soon(one, reader)
        nursery.cancel_scope.cancel()
    late.sort()
    return {
        "longest_wait_s": round(max(waited), 2),
        "ms": [round(1000 * late[int(part * (len(late) - 1))], 2) for part in (0.5, 0.99, 1.0)],
    }


async def replay(number: int, readers: int, slow: bool, proxies: Sequence[Address]) -> Any:
    """Read from the beginning to the end, over and over; or, slow, never read at all."""
    read = 0
    async with trio.open_nursery() as nursery:
        reading = Reading(proxies, nursery, number)

        async def one() -> None:
            nonlocal read
            while True:
                async with await reading.open("earliest", to_end=not slow) as reader:
                    if slow:
                        await trio.sleep_forever()
                    async for _ in reader:
                        read += 1

        for _ in range(readers):
            nursery.start_soon(one)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    return {"replayed": read}


async def infos(addresses: Sequence[Address]) -> list[dict[str, Any]]:
    host = real_host("story")
    return [(await query_info(host, address, timeout_s=10))[1] for address in addresses]


def serve_proxy(cluster: Cluster) -> "tuple[subprocess.Popen[bytes], Address]":
    quorum = ",".join(
        f"{n.name}={n.address[0]}:{n.address[1]}" for n in cluster.plan.nodes_of_kind("metadata")
    )
    process = subprocess.Popen(
        dlog("serve", "read-proxy", "--metadata", quorum, "--listen", "127.0.0.1:0"),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    host, _, port = str(json.loads(process.stdout.readline())["address"]).rpartition(":")
    return process, (host, int(port))


def used(pid: int) -> tuple[float, float]:
    """CPU seconds, and MiB in memory."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / ticks, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def play(directory: Path, given: argparse.Namespace, rate: int) -> dict[str, Any]:
    """What was seen. Raises where anybody missed a record."""
    records = int(given.seconds * rate)
    with Cluster.planned(directory, bookies=3, metadata_nodes=1) as cluster:
        cluster.start()
        proxies = [serve_proxy(cluster) for _ in range(2)]
        places = [address for _, address in proxies]
        others: list[subprocess.Popen[bytes]] = []

        def start(role: str, *arguments: object) -> "subprocess.Popen[bytes]":
            one = subprocess.Popen(
                [
                    *[sys.executable, "-m", "tests.proxy.thousand_readers", "--role", role],
                    json.dumps([*arguments, places] if role != "write" else arguments),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**environment(), "DLOG_URI": cluster.uri},
            )
            others.append(one)
            return one

        try:
            result(start("write", 0, HISTORY, 100_000, 1000), END_S)
            history = entries_of(cluster)
            empty = [used(process.pid)[1] for process, _ in proxies]
            share = given.readers // given.processes
            tails = [start("tail", n, records, share) for n in range(given.processes)]
            more = []
            if given.cold:
                more.append(start("replay", 100, given.cold, False))
            if given.slow:
                more.append(start("replay", 200, given.slow, True))
            for one in (*tails, *more):
                assert one.stdout is not None
                assert one.stdout.readline() == b"ready\n"
            before = trio.run(infos, places)
            cpu = [used(process.pid)[0] for process, _ in proxies]
            writing = start("write", HISTORY, records, rate, given.payload)
            if given.kill:
                time.sleep(given.seconds / 2)
                proxies[1][0].kill()
            wrote = result(writing, given.seconds + END_S)
            said = [result(one, 2 * END_S) for one in tails]
            replays = [result(one, END_S) for one in more]
            left = [0] if given.kill else [0, 1]
            after = trio.run(infos, [places[n] for n in left])
            return {
                "readers": share * given.processes,
                "records": records,
                "rate": rate,
                "writer_s": wrote["seconds"],
                "p50_p99_max_ms": [max(one["ms"][k] for one in said) for k in range(3)],
                "longest_wait_s": max(one["longest_wait_s"] for one in said),
                "proxies": [
                    {
                        "entries_taken": told["entries_taken"] - before[n]["entries_taken"],
                        "ranges_read": told["ranges_read"] - before[n]["ranges_read"],
                        "frames_sent": told["frames_sent"] - before[n]["frames_sent"],
                        "rounds": told["rounds"] - before[n]["rounds"],
                        "cpu_s": round(used(proxies[n][0].pid)[0] - cpu[n], 2),
                        "rss_mib": round(used(proxies[n][0].pid)[1], 1),
                        "rss_mib_before_readers": round(empty[n], 1),
                    }
                    for n, told in zip(left, after, strict=True)
                ],
                "others": replays,
                "entries": entries_of(cluster) - history,
            }
        finally:
            for one in (*others, *(process for process, _ in proxies)):
                one.kill()
                one.wait()


def entries_of(cluster: Cluster) -> int:
    """Of the log, control entries too."""

    async def count() -> int:
        async with open_namespace(cluster.uri) as namespace:
            snapshot = await namespace.open_log(LOG).snapshot()
            return sum(one.last_entry + 1 for one in snapshot.segments)

    return trio.run(count)


def result(process: "subprocess.Popen[bytes]", timeout_s: float) -> Any:
    text, _ = process.communicate(b"\n", timeout=timeout_s)
    assert process.returncode == 0, "a process of the story failed"
    return json.loads(text.splitlines()[-1])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="of the readers")
    parser.add_argument(
        "--rate", type=int, nargs="+", default=[100], help="records a second; one run for each"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--payload", type=int, default=100, help="bytes of a record")
    parser.add_argument(
        "--cold", type=int, default=0, help="readers of the whole log, again and again"
    )
    parser.add_argument("--slow", type=int, default=0, help="readers that never read")
    parser.add_argument("--kill", action="store_true", help="one proxy, half way")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        role, text = given.role
        arguments = json.loads(text)
        if role != "write":
            arguments[-1] = [(host, port) for host, port in arguments[-1]]
        played: dict[str, Callable[..., Awaitable[Any]]] = {
            "write": write,
            "tail": tail,
            "replay": replay,
        }
        print(json.dumps(trio.run(partial(played[role], *arguments))))
        return
    for rate in given.rate:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(play(Path(directory), given, rate), indent=1), flush=True)


if __name__ == "__main__":
    main()
