"""Measure the rate and the cost of changes of a metadata quorum: three separate nodes and one client.

    python -m distributedlog.testing.bench.cases.metadata_changes --seconds 5 --turns 3 --data DIR

Three metadata nodes run as processes in DIR, with a new quorum per turn. The cases are single puts one after
the other, 64 concurrent puts, and four concurrent transactions of 100 puts. A put stores a new value of 100
bytes for one of 10,000 keys. The result has the medians of the turns. CPU time is that of the client and the
three nodes per transaction.
"""

import json
import os
import resource
import statistics
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
from ....runtime.machine import client_host
from ....runtime.net.rpc import Endpoint
from ....runtime.protocol.handshake import Hello
from ....uri import parse_uri
from ..measure.bench_plan import parser_of, run
from ..measure.histogram import Histogram
from ..measure.interpreter_info import this_build
from ..measure.machine_info import OthersCpu, cpu_seconds, data_directory, settings

KEYS = 10_000
VALUE_BYTES = 100
WARM_S = 0.5
CASES = {"one outstanding": (1, 1), "64 under way": (1, 64), "100 puts each, 4 under way": (100, 4)}
"""Name to (puts per transaction, concurrent transactions)."""


async def measure(data: Path | None, seconds: float) -> dict[str, Any]:
    """Run all cases on a new quorum in a directory in ``data``, each for ``seconds``."""
    with tempfile.TemporaryDirectory(prefix="dlog-metadata-", dir=data) as scratch:
        async with local_cluster(scratch, bookies=1, processes=True) as cluster:
            # A cluster has at least one bookie, which is idle here.
            pids = [node.pid for node in cluster.nodes if node.kind == "metadata"]
            host = client_host("bench")
            client = MetadataClient(
                Endpoint(host, lambda: Hello(kind="client", label="bench")),
                parse_uri(cluster.uri).addresses,
                client_id=f"{host.random.getrandbits(64):016x}",
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(client.run)
                numbers = count()
                await _run(client, 1, 16, WARM_S, numbers)
                results = {}
                for name, (puts, width) in CASES.items():
                    cpu_before, begun_at = _cpu_s(pids), perf_counter()
                    histogram = await _run(client, puts, width, seconds, numbers)
                    elapsed_s = perf_counter() - begun_at
                    results[name] = {
                        "transactions_per_s": round(histogram.count / elapsed_s, 1),
                        "cpu_us": round((_cpu_s(pids) - cpu_before) / histogram.count * 1e6, 1),
                        "latency_ms": histogram.summary_ms(),
                    }
                nursery.cancel_scope.cancel()
            return results


async def _run(
    client: MetadataClient, puts: int, width: int, seconds: float, numbers: Iterator[int]
) -> Histogram:
    """Run ``width`` tasks for ``seconds``. Each sends a change and waits for its result."""
    histogram = Histogram()
    end = perf_counter() + seconds

    async def change() -> None:
        while (begun_at := perf_counter()) < end:
            value = os.urandom(VALUE_BYTES)
            keys = [b"bench/%06d" % (next(numbers) % KEYS) for _ in range(puts)]
            await client.transact(Transaction((), tuple(Put(key, value) for key in keys)))
            histogram.add(perf_counter() - begun_at)

    async with trio.open_nursery() as nursery:
        for _ in range(width):
            nursery.start_soon(change)
    return histogram


def _cpu_s(pids: list[int]) -> float:
    own_usage = resource.getrusage(resource.RUSAGE_SELF)
    return own_usage.ru_utime + own_usage.ru_stime + sum(cpu_seconds(pid) for pid in pids)


def medians(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the turns, by case."""

    def of(name: str, *keys: str) -> float:
        values = []
        for turn in turns:
            value = turn[name]
            for key in keys:
                value = value[key]
            values.append(value)
        return float(statistics.median(values))

    return {
        name: {
            "transactions_per_s": of(name, "transactions_per_s"),
            "cpu_us": of(name, "cpu_us"),
            "p50_ms": of(name, "latency_ms", "p50"),
            "p99_ms": of(name, "latency_ms", "p99"),
        }
        for name in CASES
    }


def main() -> None:
    """Measure and print one line per case, or JSON."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per case (default: 5)")
    parser.add_argument("--turns", type=int, default=3, help="quorums, one after the other")
    parser.add_argument("--data", type=data_directory, help="a directory on the device to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    other_processes = OthersCpu()
    case_medians = medians([trio.run(measure, args.data, args.seconds) for _ in range(args.turns)])
    if args.json:
        result = {
            "cases": case_medians,
            "settings": settings(),
            "others_cpu_pct": other_processes.percent(),
        }
        print(json.dumps(result))
        return
    print(this_build().describe())
    for name, figures in case_medians.items():
        print(
            f"{name:28} {figures['transactions_per_s']:>9,.0f}/s  {figures['cpu_us']:>7,.0f} us of CPU"
            f"  p50 {figures['p50_ms']:.3f} ms, p99 {figures['p99_ms']:.3f} ms"
        )
    print(f"other processes used {other_processes.percent()} % of the CPU")


if __name__ == "__main__":
    run(main)
