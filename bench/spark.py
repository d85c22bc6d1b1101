"""Spark's source beside a source that has the same columns in memory, and its sink beside a plain writer.

    python -m distributedlog.bench.spark --mib 256

One run, by turns, ratios of medians: what the log costs on top of Spark's own hand-over of the same Arrow
batches, in time and in CPU seconds a GB of payload of all processes together (JVM, Spark's Python, the
cluster's nodes, this one): the latter depends less on what else the machine does. Each is also done with
`FEW` records: what a job takes whatever it moves, and what is left for the bytes; with 256 MiB that is a
sixth to a third of the time. Needs the extra ``spark`` and Java. A cluster of its own, each node a process,
is started and removed.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import trio

from .. import Namespace, open_namespace
from ..cluster.local import local_cluster

TURNS = 5
MIB = 1024 * 1024
ENTRY_BYTES = 256 * 1024
FEW = 10


def synthetic(schema: Any, records: int, size: int, tasks: int) -> type[Any]:
    """A Python source whose tasks yield the same columns, made once, from memory."""
    import numpy as np
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(task) for task in range(tasks)]

        def read(self, partition: Any) -> Iterator[Any]:
            from ..spark.heap import settle

            settle()
            each = max(1, ENTRY_BYTES // (size + 12))
            payload = pa.py_buffer(bytes(each * size))
            offsets = pa.array(np.arange(each + 1, dtype=np.int32) * size).buffers()[1]
            ids = pa.array(np.arange(each, dtype=np.int64))
            columns = {
                "log": pa.repeat("a", each), "segment": ids, "entry": ids,
                "slot": pa.array(np.arange(each, dtype=np.int32)), "sequence_id": ids, "txid": ids,
                "payload": pa.Array.from_buffers(pa.binary(), each, [None, offsets, payload]),
                "timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", tz="UTC")), each),
            }  # fmt: skip
            batch = pa.RecordBatch.from_pydict(columns)
            for _ in range(records // tasks // each):
                yield batch

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"synthetic{size}"

        def schema(self) -> str:
            return str(schema)

        def reader(self, schema: Any) -> Any:
            return Reader()

    return Source


async def fill(namespace: Namespace, name: str, records: int, size: int) -> None:
    """Write a log, as fast as one plain writer does."""
    payload = os.urandom(size)
    each = max(1, 4 * MIB // size)
    async with namespace.open_log(name).open_writer() as writer:
        for at in range(0, records, each):
            number = min(each, records - at)
            await writer.submit_columns(list(range(at, at + number)), [payload] * number)


@dataclass(slots=True)
class Taken:
    """What the turns of one of the compared took."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Of this process and all below it."""

    @property
    def median(self) -> tuple[float, float]:
        """Seconds and CPU seconds of the median turn."""
        return statistics.median(self.seconds), statistics.median(self.cpu_s)


def compared(what: str, mb: float, taken: Sequence[Taken]) -> str:
    """Rates and CPU of the two, whole and beyond what each takes for `FEW` records, and their ratios.

    ``taken``: ours of ``mb``, ours of few records, then the floor of both.
    """
    (seconds, cpu_s), (few_s, few_cpu_s), (floor_seconds, floor_cpu_s), floor_few = (
        one.median for one in taken
    )
    floor_few_s, floor_few_cpu_s = floor_few
    gb = mb / 1e3
    return (
        f"{what} {mb / seconds:5.0f} against {mb / floor_seconds:5.0f} MB/s, ratio "
        f"{floor_seconds / seconds:.2f}; CPU {cpu_s / gb:.2f} against {floor_cpu_s / gb:.2f} s/GB, ratio "
        f"{floor_cpu_s / cpu_s:.2f}; {FEW} records {few_s:.2f} against {floor_few_s:.2f} s, CPU "
        f"{few_cpu_s:.2f} against {floor_few_cpu_s:.2f} s; beyond these, ratio "
        f"{(floor_seconds - floor_few_s) / (seconds - few_s):.2f}, of CPU "
        f"{(floor_cpu_s - floor_few_cpu_s) / (cpu_s - few_cpu_s):.2f}"
    )


def by_turns(calls: Sequence[Callable[[], object]]) -> list[Taken]:
    """One after the other, `TURNS` times, after a turn that starts the workers."""
    taken = [Taken() for _ in calls]
    for turn in range(TURNS + 1):
        for call, into in zip(calls, taken, strict=True):
            before, started = _cpu_s(), time.perf_counter()
            call()
            if turn:
                into.seconds.append(time.perf_counter() - started)
                into.cpu_s.append(sum(cpu - before.get(pid, 0.0) for pid, cpu in _cpu_s().items()))
    return taken


def measure(spark: Any, uri: str, size: int, records: int) -> str:
    """One size of records; lines of rates and ratios, medians of turns."""
    from ..spark.schema import ddl

    name = f"bench-{size}"
    fresh = count()

    def write(log: str, number: int) -> None:
        async def run() -> None:
            async with open_namespace(uri) as namespace:
                await fill(namespace, log, number, size)

        trio.run(run)

    def read(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def link(number: int) -> None:
        frame = spark.range(0, number, 1, 2).selectExpr(
            f"cast(repeat('x', {size}) as binary) as payload"
        )
        writer = frame.write.format("distributedlog").mode("append").option("createLogs", "true")
        writer.option("log", f"out-{size}").save(uri)

    write(name, records)
    write(f"{name}-few", FEW)
    spark.dataSource.register(synthetic(ddl(), records, size, 2))
    ours = spark.read.format("distributedlog")
    ours = ours.option("maxBytesPerPartition", max(MIB, records * (size + 12) // 2))
    frame, few = (ours.option("log", one).load(uri) for one in (name, f"{name}-few"))
    memory = spark.read.format(f"synthetic{size}").load()
    spark.dataSource.register(synthetic(ddl(), 0, size, 2))
    memory_few = spark.read.format(f"synthetic{size}").load()
    mb = records * size / 1e6
    reads = by_turns([partial(read, one) for one in (frame, few, memory, memory_few)])
    writes = by_turns(
        [
            lambda: link(records),
            lambda: link(FEW),
            lambda: write(f"plain-{size}-{next(fresh)}", records),
            lambda: write(f"plain-{size}-{next(fresh)}", FEW),
        ]
    )
    return (
        f"{size:5} B: {compared('source beside one in memory', mb, reads)}\n"
        f"         {compared('sink beside a plain writer', mb, writes)}"
    )


def idle(spark: Any, uri: str, seconds: float) -> str:
    """A query with nothing to read, a trigger a second: its batches, and what its Python processes use."""

    async def prepare() -> None:
        async with open_namespace(uri) as namespace:
            await fill(namespace, "idle", 1_000, 100)

    trio.run(prepare)
    query = _stream(spark, uri, "idle").format("noop").trigger(processingTime="1 second").start()
    try:
        while query.lastProgress is None or query.lastProgress.numInputRows:
            time.sleep(0.5)
        time.sleep(5.0)
        batch, before, started = (
            query.lastProgress.batchId,
            _cpu_s(python_of_spark=True),
            time.monotonic(),
        )
        time.sleep(seconds)
        used = sum(cpu - before.get(pid, 0.0) for pid, cpu in _cpu_s(python_of_spark=True).items())
        share = used / (time.monotonic() - started)
        batches = query.lastProgress.batchId - batch
    finally:
        query.stop()
    return f"idle for {seconds:.0f} s at a trigger of 1 s: {batches} batches, {share:.2%} of a core in Python"


def latency(spark: Any, uri: str, seconds: float) -> str:
    """From an acknowledged record to the micro-batch that has it collected, at a trigger of 100 ms."""
    seen: list[float] = []

    def take(frame: Any, _: int) -> None:
        rows = frame.select("txid").collect()
        now = time.time_ns() // 1_000_000
        seen.extend(now - row[0] for row in rows)

    async def write() -> None:
        async with (
            open_namespace(uri) as namespace,
            namespace.open_log("late").open_writer() as writer,
        ):
            until = trio.current_time() + seconds
            while trio.current_time() < until:
                await writer.submit_columns([time.time_ns() // 1_000_000], [b"x"])
                await writer.commit()
                await trio.sleep(0.05)

    async def create() -> None:
        async with open_namespace(uri) as namespace:
            await namespace.create_log("late")

    trio.run(create)
    writer = _stream(spark, uri, "late").foreachBatch(take)
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        trio.run(write)
        time.sleep(3.0)
    finally:
        query.stop()
    late = sorted(seen[len(seen) // 3 :])  # the first batches start Spark's Python processes
    if not late:
        return "latency: no batch came"
    p95 = late[len(late) * 95 // 100]
    middle = late[len(late) // 2]
    return (
        f"record to collected batch: median {middle:.0f} ms, p95 {p95:.0f} ms, {len(late)} records"
    )


def _stream(spark: Any, uri: str, log: str) -> Any:
    reader = spark.readStream.format("distributedlog").option("log", log)
    return reader.option("startingPosition", "earliest").load(uri).writeStream


def _cpu_s(*, python_of_spark: bool = False) -> dict[int, float]:
    """CPU seconds of this process and each below it, by /proc; or only of the Python ones below a JVM."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    name, _, rest = file.read().partition(") ")
            except OSError:
                continue  # it has just ended
            values = rest.split()
            parents[int(entry)] = int(values[1])
            used[int(entry)] = (name.partition("(")[2], (int(values[11]) + int(values[12])) / tick)

    def above(pid: int) -> Iterator[int]:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
            yield pid

    found = {}
    for pid, (name, cpu) in used.items():
        ancestors = list(above(pid))
        below_a_jvm = any(one in used and used[one][0] == "java" for one in ancestors)
        ours = os.getpid() in (pid, *ancestors)
        wanted = below_a_jvm and name != "java" if python_of_spark else ours
        if wanted:
            found[pid] = cpu
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--mib", type=int, default=256, help="MiB of payload at 1 KB; half of it at 100 B"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of the idle and the slow query"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from ..spark import session

    made = partial(session, conf={"spark.driver.memory": "2g"})

    async def run() -> None:
        async with local_cluster(processes=True) as cluster:
            spark = await trio.to_thread.run_sync(made)
            try:
                for size in (1024, 100):
                    records = arguments.mib * MIB // size // (1 if size > 512 else 2)
                    line = await trio.to_thread.run_sync(measure, spark, cluster.uri, size, records)
                    print(line, flush=True)
                for measured in (idle, latency):
                    line = await trio.to_thread.run_sync(
                        measured, spark, cluster.uri, arguments.seconds
                    )
                    print(line, flush=True)
            finally:
                spark.stop()

    trio.run(run)


if __name__ == "__main__":
    main()
