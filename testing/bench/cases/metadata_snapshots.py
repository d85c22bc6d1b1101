"""Measure the latency of single changes while metadata nodes take snapshots of a large state.

    python -m distributedlog.testing.bench.cases.metadata_snapshots --keys 100000 --seconds 60 --data DIR

Three metadata nodes run as processes in DIR, with ``--keys`` keys of 200 bytes. The benchmark then puts 100
bytes every 5 ms and measures each put. Concurrent puts of 32 KiB fill the log, so that each node repeatedly
takes a snapshot, after 32 MiB of log plus half of the state's size. A latency counts as one during snapshots
if any node was writing a snapshot file in that time or up to 0.1 s before.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import trio

from ....cluster.local.local_cluster import local_cluster
from ....metadata.client.metadata_client import MetadataClient
from ....metadata.model.transaction import Put, Transaction
from ....runtime.disk.atomic_file import TEMPORARY_SUFFIX
from ....runtime.machine import real_host
from ....runtime.net.rpc import Endpoint
from ....runtime.protocol.handshake import Hello
from ....uri import parse_uri
from ..measure.bench_plan import parser_of, run
from ..measure.histogram import Histogram
from ..measure.interpreter_info import this_build
from ..measure.machine_info import OthersCpu, data_directory, settings

KEY_VALUE_BYTES = 200
PUTS_PER_TRANSACTION = 500
VALUE_BYTES = 100
EVERY_S = 0.005
FILLER_BYTES = 32 * 1024
FILLER_KEYS = 64
FILLERS = 4
"""Concurrent puts that fill the log."""
CHECK_INTERVAL_S = 0.01
AFTER_S = 0.1
"""How long a snapshot affects changes after its end: a new log begins, and older files are deleted."""


class Snapshots:
    """Observes snapshots of all nodes of a quorum in their directories."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.completed = 0
        self.last_seen_at = float("-inf")
        """When a snapshot was last in progress."""
        self._known_files: frozenset[str] = frozenset()

    async def watch(self) -> None:
        """Check the files repeatedly until cancelled."""
        while True:
            files = frozenset(str(path) for path in self._data.glob("**/snapshot.*"))
            new_files = files - self._known_files
            self.completed += sum(not name.endswith(TEMPORARY_SUFFIX) for name in new_files)
            if files != self._known_files or any(name.endswith(TEMPORARY_SUFFIX) for name in files):
                self.last_seen_at = perf_counter()
            self._known_files = files
            await trio.sleep(CHECK_INTERVAL_S)


async def measure(
    data: Path | None, keys: int, seconds: float, filler_per_s: float
) -> dict[str, Any]:
    """Fill the state, then measure puts."""
    with tempfile.TemporaryDirectory(prefix="dlog-snapshots-", dir=data) as scratch:
        async with local_cluster(scratch, bookies=1, processes=True) as cluster:
            host = real_host("bench")
            client = MetadataClient(
                Endpoint(host, lambda: Hello(kind="client", label="bench")),
                parse_uri(cluster.uri).addresses,
                client_id=f"{host.random.getrandbits(64):016x}",
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(client.run)
                for first in range(0, keys, PUTS_PER_TRANSACTION):
                    numbers = range(first, min(keys, first + PUTS_PER_TRANSACTION))
                    puts = (Put(b"bench/%08d" % n, os.urandom(KEY_VALUE_BYTES)) for n in numbers)
                    await client.transact(Transaction((), tuple(puts)))
                snapshots = Snapshots(Path(scratch))
                nursery.start_soon(snapshots.watch)
                await trio.sleep(1.0)  # until snapshots caused by filling have ended
                nursery.start_soon(_fill, client, filler_per_s, count())
                snapshots.completed = 0
                during_snapshots, without_snapshots = await _put(client, snapshots, seconds)
                nursery.cancel_scope.cancel()
            return {
                "keys": keys,
                "snapshots": snapshots.completed,
                "beside": {"count": during_snapshots.count, **during_snapshots.summary_ms()},
                "apart": {"count": without_snapshots.count, **without_snapshots.summary_ms()},
            }


async def _put(
    client: MetadataClient, snapshots: Snapshots, seconds: float
) -> tuple[Histogram, Histogram]:
    """Return the latencies of puts during snapshots, and of the others."""
    during_snapshots, without_snapshots = Histogram(), Histogram()
    end = perf_counter() + seconds
    while (begun_at := perf_counter()) < end:
        await client.transact(Transaction((), (Put(b"paced", os.urandom(VALUE_BYTES)),)))
        now = perf_counter()
        await trio.sleep(max(0.0, begun_at + EVERY_S - now))
        histogram = (
            during_snapshots if snapshots.last_seen_at > begun_at - AFTER_S else without_snapshots
        )
        histogram.add(now - begun_at)
    return during_snapshots, without_snapshots


async def _fill(client: MetadataClient, per_s: float, numbers: Iterator[int]) -> None:
    """Put at most ``per_s`` large values per second, a few concurrently."""

    async def some() -> None:
        while True:
            key = b"filler/%03d" % (next(numbers) % FILLER_KEYS)
            await client.transact(Transaction((), (Put(key, os.urandom(FILLER_BYTES)),)))
            await trio.sleep(FILLERS / per_s)

    async with trio.open_nursery() as nursery:
        for _ in range(FILLERS):
            nursery.start_soon(some)


def main() -> None:
    """Measure and print one line per part, or JSON."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--filler", type=float, default=100.0, help="puts of 32 KiB per second")
    parser.add_argument("--data", type=data_directory, help="a directory on the device to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    other_processes = OthersCpu()
    results = trio.run(measure, args.data, args.keys, args.seconds, args.filler)
    if args.json:
        print(
            json.dumps(
                {**results, "settings": settings(), "others_cpu_pct": other_processes.percent()}
            )
        )
        return
    print(this_build().describe())
    print(f"{results['snapshots']} snapshots of {results['keys']:,} keys and more")
    for part, part_text in (("beside", "during snapshots"), ("apart", "without snapshots")):
        figures = results[part]
        print(
            f"puts {part_text}: {figures['count']:,}, p50 {figures['p50']:.2f} ms,"
            f" p99 {figures['p99']:.2f} ms, longest {figures['max']:.2f} ms"
        )
    print(f"other processes used {other_processes.percent()} % of the CPU")


if __name__ == "__main__":
    run(main)
