"""S22 in full: 5,000 logs of ten records and 1,000 segments of 1 KB in one log, each read in a few tasks and
below 30 s; a bounded range of one log beside them.

    python -m tests.spark.many_logs --logs 5000 --segments 1000
"""

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from distributedlog import Namespace, open_namespace
from distributedlog.spark import session
from tests.cluster.story import Cluster
from tests.spark.conftest import spark_env

AT_ONCE = 32
READ_S = 30.0
"""How long a read may take."""


async def each(number: int, call: Callable[[int], Awaitable[None]]) -> None:
    """Call for 0 to ``number`` - 1, some at a time."""
    left = iter(range(number))

    async def work() -> None:
        for one in left:
            await call(one)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(work)


async def fill(uri: str, logs: int, segments: int) -> None:
    """The logs, and the one of many segments."""

    async def segment(namespace: Namespace, name: str, records: int, size: int) -> Any:
        async with namespace.open_log(name).open_segment_writer() as writer:
            await writer.write_columns(list(range(records)), [bytes(size)] * records)
        return writer.token

    async with open_namespace(uri) as namespace:

        async def log(number: int) -> None:
            name = f"many/{number:05d}"
            await namespace.create_log(name)
            token = await segment(namespace, name, 10, 10)
            await namespace.open_log(name).link_segments([token])

        await each(logs, log)
        await namespace.create_log("one")
        tokens: dict[int, Any] = {}

        async def small(number: int) -> None:
            tokens[number] = await segment(namespace, "one", 1, 1_000)

        await each(segments, small)
        for at in range(0, segments, 500):
            part = range(at, min(at + 500, segments))
            await namespace.open_log("one").link_segments([tokens[number] for number in part])


def main(logs: int, segments: int) -> int:
    """0: right answers, few tasks, in time."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="many-logs-") as directory:
        spark_env()
        cluster = Cluster.planned(Path(directory) / "cluster", bookies=3)
        cluster.start()
        with cluster:
            started = time.monotonic()
            trio.run(fill, cluster.uri, logs, segments)
            print(
                f"{logs} logs and {segments} segments written in {time.monotonic() - started:.0f} s"
            )
            spark = session(conf={"spark.driver.memory": "1g"})
            spark.range(10).count()
            for which, value, right in (
                ("logPattern", "many/*", logs * 10),
                ("log", "one", segments),
            ):
                for turn in ("first", "again"):
                    started = time.monotonic()
                    reader = spark.read.format("distributedlog").option(which, value)
                    frame = reader.option("requestTimeout", "60s").load(cluster.uri)
                    count = frame.selectExpr("count(txid)").collect()[0][0]
                    tasks = frame.rdd.getNumPartitions()
                    took = time.monotonic() - started
                    fine = count == right and tasks <= 10 and took < READ_S
                    failures += not fine
                    print(
                        f"{value} {turn}: {count} records in {tasks} tasks after {took:.1f} s: "
                        f"{'right' if fine else 'WRONG'}",
                        flush=True,
                    )
            spark.stop()
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=5_000)
    parser.add_argument("--segments", type=int, default=1_000)
    arguments = parser.parse_args()
    raise SystemExit(main(arguments.logs, arguments.segments))
