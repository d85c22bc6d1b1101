"""Compare Spark's source with an in-memory source of the same columns, and its sink with a plain writer.

    python -m distributedlog.testing.bench.cases.spark --mib 256

The variants run alternately, and the result has ratios of medians. It shows the cost of the log in addition
to Spark's own transfer of Arrow batches of the same size. The figures are the time, and the CPU seconds per
GB of payload of all processes (JVM, Spark's Python, the cluster's nodes, this one). CPU time depends less on
the load of the machine. Each variant also runs with `FEW` records, which gives the fixed cost of a job. With
256 MiB it is a sixth to a third of the time. The last line per size divides the CPU time by kind of process.
It includes a sink that drops all batches, which is Spark's own part of the sink's cost.

All variants are warm: the first turns do not count, because the JVM then compiles frequent code, which makes
the baseline twice as fast. Both baselines have their records in memory, each in separate memory. The
namespace of the plain writer stays open, as those of Spark's workers do. The benchmark needs the extra
``spark`` and Java. It starts and removes its own cluster, with one process per node.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import trio

from .... import Namespace, open_namespace
from ....cluster.local.local_cluster import local_cluster
from ..measure.bench_plan import parser_of, run

TURNS = 5
READ_TURNS_BEFORE, WRITE_TURNS_BEFORE = 6, 3
"""Turns that do not count, until the JVM has compiled the code. A written byte needs three on disk."""
KINDS = ("JVM", "Spark's Python", "nodes", "this process")
MIB = 1024 * 1024
BATCH_BYTES = 2 * MIB
"""Size of the batches of the in-memory source: the default of the option ``batchBytes``."""
BULK_BYTES = 4 * MIB
"""Size of the batches that the plain writer receives."""
FEW = 10

_in_memory: dict[tuple[int, int], list[Any]] = {}
"""The batches of the in-memory source in this Spark worker, by number and size of the records."""


def batches_in_memory(records: int, size: int) -> list[Any]:
    """Return records as Arrow batches, each in separate memory, created once per process."""
    import numpy as np
    import pyarrow as pa

    def batch(first: int, rows: int) -> Any:
        ids: Any = np.arange(first, first + rows, dtype=np.int64)
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * size).buffers()[1]
        payload = pa.py_buffer(np.random.default_rng(first).bytes(rows * size))
        columns = {
            "log": pa.repeat("a", rows), "segment": pa.array(ids), "entry": pa.array(ids.copy()),
            "slot": pa.array(ids.astype(np.int32)), "sequence_id": pa.array(ids.copy()),
            "txid": pa.array(ids.copy()),
            "payload": pa.Array.from_buffers(pa.binary(), rows, [None, offsets, payload]),
            "timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", tz="UTC")), rows),
        }  # fmt: skip
        return pa.RecordBatch.from_pydict(columns)

    batch_records = max(1, BATCH_BYTES // size)
    if records and (records, size) not in _in_memory:
        _in_memory.clear()
        _in_memory[records, size] = [
            batch(first, min(batch_records, records - first))
            for first in range(0, records, batch_records)
        ]
    return _in_memory.get((records, size), [])


def source_in_memory(schema: Any, records: int, size: int, tasks: int) -> type[Any]:
    """Return a Python source whose tasks yield the same columns from memory."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class BenchReader(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(task) for task in range(tasks)]

        def read(self, partition: Any) -> Iterator[Any]:
            from ....spark.client.worker_heap import freeze_worker_heap
            from .spark import batches_in_memory  # the function of the worker process

            freeze_worker_heap()
            yield from batches_in_memory(records // tasks, size)

    class BenchSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"memory{size}"

        def schema(self) -> str:
            return str(schema)

        def reader(self, schema: Any) -> Any:
            return BenchReader()

    return BenchSource


def dropping_sink() -> type[Any]:
    """Return a Python sink that drops all batches without reading them."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, batches: Iterator[Any]) -> Any:
            from ....spark.client.worker_heap import freeze_worker_heap

            freeze_worker_heap()
            for _ in batches:
                pass
            return WriterCommitMessage()

    class BenchSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "dropped"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer()

    return BenchSink


def payloads_in_memory(size: int) -> list[bytes]:
    """Return the records that the plain writer writes repeatedly, each as a separate object."""
    data = os.urandom(size * max(1, BULK_BYTES // size))
    return [data[start : start + size] for start in range(0, len(data), size)]


async def fill(namespace: Namespace, name: str, records: int, payloads: Sequence[bytes]) -> None:
    """Write a log as fast as one plain writer can."""
    async with namespace.open_log(name).open_writer() as writer:
        for start in range(0, records, len(payloads)):
            batch = payloads[: records - start]
            await writer.submit_columns(list(range(start, start + len(batch))), list(batch))


@dataclass(slots=True)
class BenchTimings:
    """The measurements of one variant."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)
    """CPU seconds of this process and its descendants, by kind (`KINDS`), one item per turn."""

    @property
    def median(self) -> tuple[float, float]:
        """Median seconds and median CPU seconds."""
        return statistics.median(self.seconds), statistics.median(
            sum(turn_cpu.values()) for turn_cpu in self.cpu_s
        )

    def __str__(self) -> str:
        """Return the median CPU seconds by kind of process."""
        return ", ".join(
            f"{kind} {statistics.median(turn_cpu[kind] for turn_cpu in self.cpu_s):.2f}"
            for kind in KINDS
        )


def compared(title: str, mb: float, timings: Sequence[BenchTimings]) -> str:
    """Return rates, CPU time and ratios of two variants, in total and without their fixed cost.

    Args:
        title: Names the comparison.
        mb: Payload per turn in MB.
        timings: This project's variant with ``mb`` and with `FEW` records, then the baseline with both.
    """
    (seconds, cpu_s), (few_s, few_cpu_s), (floor_seconds, floor_cpu_s), floor_few = (
        timing.median for timing in timings[:4]
    )
    floor_few_s, floor_few_cpu_s = floor_few
    gb = mb / 1e3
    return (
        f"{title} {mb / seconds:5.0f} against {mb / floor_seconds:5.0f} MB/s, ratio "
        f"{floor_seconds / seconds:.2f}; CPU {cpu_s / gb:.2f} against {floor_cpu_s / gb:.2f} s/GB, ratio "
        f"{floor_cpu_s / cpu_s:.2f}; {FEW} records {few_s:.2f} against {floor_few_s:.2f} s, CPU "
        f"{few_cpu_s:.2f} against {floor_few_cpu_s:.2f} s; beyond these, ratio "
        f"{(floor_seconds - floor_few_s) / (seconds - few_s):.2f}, of CPU "
        f"{(floor_cpu_s - floor_few_cpu_s) / (cpu_s - few_cpu_s):.2f}"
    )


def alternate(calls: Sequence[Callable[[], object]], turns_before: int) -> list[BenchTimings]:
    """Call the functions in rotation, and return the measurements of the last `TURNS` turns."""
    timings = [BenchTimings() for _ in calls]
    for turn in range(turns_before + TURNS):
        for call, timing in zip(calls, timings, strict=True):
            cpu_before, started = _cpu_s(), time.perf_counter()
            call()
            if turn >= turns_before:
                timing.seconds.append(time.perf_counter() - started)
                timing.cpu_s.append(_used_s(cpu_before))
    return timings


def frames_to_read(spark: Any, uri: str, name: str, size: int, records: int) -> tuple[Any, ...]:
    """Return frames of a log, of a log with `FEW` records, and of both sizes in memory."""
    from ....spark.read.table_schema import ddl

    spark.dataSource.register(source_in_memory(ddl(), records, size, 2))
    source = spark.read.format("distributedlog")
    source = source.option("maxBytesPerPartition", max(MIB, records * (size + 12) // 2))
    frame, few_frame = (source.option("log", log).load(uri) for log in (name, f"{name}-few"))
    memory = spark.read.format(f"memory{size}").load()
    spark.dataSource.register(source_in_memory(ddl(), 0, size, 2))
    memory_few = spark.read.format(f"memory{size}").load()
    return frame, few_frame, memory, memory_few


def measure(spark: Any, uri: str, size: int, records: int) -> str:
    """Measure one record size, and return lines with rates and ratios of medians."""
    from ....spark import recommended_conf
    from ....spark.client.spark_client import client

    name = f"bench-{size}"
    log_numbers = count()
    spark_client = client(uri, 10.0)
    payloads = payloads_in_memory(size)
    batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(batch, recommended_conf(record_bytes=size)[batch])

    def read(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def made(number: int) -> Any:
        frame = spark.range(0, number, 1, 2)
        return frame.selectExpr(f"cast(repeat('x', {size}) as binary) as payload").write

    def link(number: int) -> None:
        writer = made(number).format("distributedlog").mode("append").option("createLogs", "true")
        writer.option("log", f"out-{size}").save(uri)

    def drop() -> None:
        made(records).format("dropped").mode("append").save()

    def write(log: str, number: int) -> None:
        spark_client.run(fill, spark_client.namespace, log, number, payloads)

    write(name, records)
    write(f"{name}-few", FEW)
    spark.dataSource.register(dropping_sink())
    frames = frames_to_read(spark, uri, name, size, records)
    mb = records * size / 1e6
    reads = alternate([partial(read, frame) for frame in frames], READ_TURNS_BEFORE)
    writes = alternate(
        [
            lambda: link(records),
            lambda: link(FEW),
            lambda: write(f"plain-{size}-{next(log_numbers)}", records),
            lambda: write(f"plain-{size}-{next(log_numbers)}", FEW),
            drop,
        ],
        WRITE_TURNS_BEFORE,
    )
    return (
        f"{size:5} B: {compared('source and in-memory source', mb, reads)}\n"
        f"         {compared('sink and plain writer', mb, writes)}\n"
        f"         CPU s: source ({reads[0]}), in memory ({reads[2]}); sink ({writes[0]}), plain "
        f"({writes[2]}), dropped ({writes[4]}), {writes[4].median[0] / writes[0].median[0]:.2f} of its time"
    )


def idle(spark: Any, uri: str, seconds: float) -> str:
    """Measure an idle streaming query with one trigger per second: its batches, and its Python CPU usage."""

    async def prepare() -> None:
        async with open_namespace(uri) as namespace:
            await fill(namespace, "idle", 1_000, payloads_in_memory(100))

    trio.run(prepare)
    query = _stream(spark, uri, "idle").format("noop").trigger(processingTime="1 second").start()
    try:
        while query.lastProgress is None or query.lastProgress.numInputRows:
            time.sleep(0.5)
        time.sleep(5.0)
        batch, cpu_before, started = query.lastProgress.batchId, _cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = _used_s(cpu_before)["Spark's Python"] / (time.monotonic() - started)
        batches = query.lastProgress.batchId - batch
    finally:
        query.stop()
    return f"idle for {seconds:.0f} s at a trigger of 1 s: {batches} batches, {share:.2%} of a core in Python"


def latency(spark: Any, uri: str, seconds: float) -> str:
    """Measure the time from an acknowledged record to its collected micro-batch, at a trigger of 100 ms."""
    latencies_ms: list[float] = []

    def take(frame: Any, _: int) -> None:
        rows = frame.select("txid").collect()
        now = time.time_ns() // 1_000_000
        latencies_ms.extend(now - row[0] for row in rows)

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
    sorted_ms = sorted(
        latencies_ms[len(latencies_ms) // 3 :]
    )  # the first batches start Spark's Python processes
    if not sorted_ms:
        return "latency: no batch arrived"
    p95_ms = sorted_ms[len(sorted_ms) * 95 // 100]
    median_ms = sorted_ms[len(sorted_ms) // 2]
    return (
        f"record to collected batch: median {median_ms:.0f} ms, p95 {p95_ms:.0f} ms, "
        f"{len(sorted_ms)} records"
    )


def _stream(spark: Any, uri: str, log: str) -> Any:
    reader = spark.readStream.format("distributedlog").option("log", log)
    return reader.option("startingPosition", "earliest").load(uri).writeStream


def _used_s(cpu_before: dict[int, tuple[str, float]]) -> dict[str, float]:
    used_by_kind = dict.fromkeys(KINDS, 0.0)
    for pid, (kind, cpu_s) in _cpu_s().items():
        used_by_kind[kind] += cpu_s - cpu_before.get(pid, (kind, 0.0))[1]
    return used_by_kind


def _cpu_s() -> dict[int, tuple[str, float]]:
    """Return the kind (`KINDS`) and the CPU seconds of this process and its descendants, from /proc."""
    parents: dict[int, int] = {}
    cpu_by_pid: dict[int, tuple[str, float]] = {}
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    name, _, stat_fields = file.read().partition(") ")
            except OSError:
                continue  # the process has just ended
            values = stat_fields.split()
            parents[int(entry)] = int(values[1])
            cpu_by_pid[int(entry)] = (
                name.partition("(")[2],
                (int(values[11]) + int(values[12])) / ticks_per_s,
            )

    def above(pid: int) -> Iterator[int]:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
            yield pid

    jvm, sparks_python, nodes, this_process = KINDS
    kind_and_cpu = {}
    for pid, (name, cpu_s) in cpu_by_pid.items():
        ancestors = list(above(pid))
        if pid == os.getpid():
            kind_and_cpu[pid] = (this_process, cpu_s)
        elif os.getpid() in ancestors:
            below_a_jvm = any(
                cpu_by_pid.get(ancestor, ("", 0.0))[0] == "java" for ancestor in ancestors
            )
            kind_and_cpu[pid] = (
                jvm if name == "java" else sparks_python if below_a_jvm else nodes,
                cpu_s,
            )
    return kind_and_cpu


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument(
        "--mib",
        type=int,
        default=256,
        help="MiB of payload at 1 KB, half of it at 100 B; needs about 80 times as much disk space",
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="duration of the idle and of the slow query"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from ....spark import session

    make_session = partial(session, conf={"spark.driver.memory": "2g"})

    async def run() -> None:
        async with local_cluster(processes=True) as cluster:
            spark = await trio.to_thread.run_sync(make_session)
            try:
                for size in (1024, 100):
                    records = arguments.mib * MIB // size // (1 if size > 512 else 2)
                    line = await trio.to_thread.run_sync(measure, spark, cluster.uri, size, records)
                    print(line, flush=True)
                for measurement in (idle, latency):
                    line = await trio.to_thread.run_sync(
                        measurement, spark, cluster.uri, arguments.seconds
                    )
                    print(line, flush=True)
            finally:
                spark.stop()

    trio.run(run)


if __name__ == "__main__":
    run(main)
