"""Measure the rate and the latency of one writing process.

In a closed loop, it submits as many records as the limit permits, and latency counts from the call until the
process receives the result. In an open loop (``rate``), latency counts from the *intended* time, so that a
stall counts for every record that it delays. Above some rate only every n-th record is timed, because timing
would otherwise distort the result.
"""

import gc
import os
from array import array
from collections import deque
from itertools import cycle, islice
from time import perf_counter, process_time
from typing import Any

import trio

from ....log.format.record import RECORD_COLUMN_BYTES, LogRecord
from ....log.write.entry_batch import PendingBulk
from ..measure.bench_plan import BenchPlan, own_logs, result
from ..measure.histogram import Histogram, per_second
from ..measure.machine_info import OthersCpu

SAMPLE = 256
"""At full speed, one of this many records is timed. With 32, timing used 3 % of a 100-byte record's time."""
TIMED_RATE_MAX = 5_000
TICK_S = 0.001
"""Interval of checks for due records at high rates. Waking up per record would be most of its cost."""
OPENED_AT_ONCE = 32
FROZEN_FROM_LOGS = 100
"""From this number of logs, call `gc.freeze` (docs/internals/performance.md)."""
BULK_BYTES = 64 * 1024
BULK_RECORDS_MAX = 1000
PACKED_BYTES = 256 * 1024
"""Size of an entry, including columns."""


async def measure(plan: BenchPlan) -> dict[str, Any]:
    """Write as the plan requires, and return the result."""
    from .... import open_namespace

    histogram = Histogram()
    other_processes = OthersCpu()
    written: list[int] = []
    async with (
        open_namespace(plan.uri, config=plan.config) as namespace,
        own_logs(namespace, plan) as names,
    ):
        writers: list[Any] = []
        try:
            await _open_all(namespace, names, plan, writers)
            if plan.logs >= FROZEN_FROM_LOGS:
                gc.collect()
                gc.freeze()
            start, cpu_s = perf_counter(), -process_time()
            async with per_second(namespace, "dlog_client_records_written_total") as rates:
                if plan.rate:
                    written.append(await _at_a_rate(plan, writers, start, histogram))
                else:
                    async with trio.open_nursery() as nursery:
                        for writer in writers:
                            nursery.start_soon(_write_one, plan, writer, start, histogram, written)
            seconds = perf_counter() - start
            cpu_s += process_time()
        finally:
            gc.unfreeze()
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(writer.__aexit__, None, None, None)
        stored = None
        if plan.codec is not None and len(names) == 1:
            stored = (await namespace.open_log(names[0]).describe()).size_bytes
    count = sum(written)
    bench_result = result(plan, count, seconds, histogram, other_processes, rates)
    bench_result["writer_cpu_us"] = round(cpu_s / count * 1e6, 3) if count else 0.0
    if stored is not None:
        bench_result["stored_bytes"] = stored
    return bench_result


async def _open_all(namespace: Any, names: list[str], plan: BenchPlan, writers: list[Any]) -> None:
    """Open writers, a few at a time, because opening waits for metadata."""
    limit = trio.CapacityLimiter(OPENED_AT_ONCE)

    async def open_one(name: str) -> None:
        async with limit:
            writers.append(await stack_writer(namespace, name, plan))

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(open_one, name)


async def stack_writer(namespace: Any, name: str, plan: BenchPlan) -> Any:
    """Return an open writer. The caller must close it."""
    return await namespace.open_log(name, config=plan.log_config).open_writer().__aenter__()


async def fill(
    namespace: Any, name: str, records: int, size: int, plan: BenchPlan | None = None
) -> None:
    """Write ``records`` records as fast as possible, with the codec and payloads of the plan, if any."""
    plan = plan or BenchPlan(uri="", size=size)
    next_payloads = cycle(plan.payloads())
    batch_records_max = max(1, min(BULK_RECORDS_MAX, BULK_BYTES // size))
    async with namespace.open_log(name, config=plan.log_config).open_writer() as writer:
        for first in range(0, records, batch_records_max):
            txids = list(range(first, min(first + batch_records_max, records)))
            await writer.submit_columns(txids, list(islice(next_payloads, len(txids))))


async def _write_one(
    plan: BenchPlan, writer: Any, start: float, histogram: Histogram, written: list[int]
) -> None:
    records_of_log = plan.records // plan.logs if plan.records else 0
    payloads = plan.payloads()
    payload = payloads[0]
    if plan.outstanding == 1:
        count = await _one_at_a_time(
            writer, payload, records_of_log, start + plan.seconds, histogram
        )
    elif plan.call == "packed":
        count = await _packed(
            plan, writer, payloads, records_of_log, start + plan.seconds, histogram
        )
    elif plan.call == "bulk" or len(payloads) > 1:
        count = await _bulk(plan, writer, payloads, records_of_log, start + plan.seconds, histogram)
    else:
        count = await _submit(
            plan, writer, payload, records_of_log, start + plan.seconds, histogram
        )
    await writer.commit()
    written.append(count)


async def _at_a_rate(
    plan: BenchPlan, writers: list[Any], start: float, histogram: Histogram
) -> int:
    """Write all logs in rotation from one task. A timer per log would distort the result."""
    payload = os.urandom(plan.size)
    count = await open_loop(
        writers, payload, plan.rate, plan.records, plan.seconds, start, histogram, plan.call
    )
    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(writer.commit)
    return count


async def _one_at_a_time(
    writer: Any, payload: bytes, records: int, end: float, histogram: Histogram
) -> int:
    count = 0
    while (count < records) if records else (perf_counter() < end):
        begun_at = perf_counter()
        await writer.write(LogRecord(count, payload))
        histogram.add(perf_counter() - begun_at)
        count += 1
    return count


async def _submit(
    plan: BenchPlan, writer: Any, payload: bytes, records: int, end: float, histogram: Histogram
) -> int:
    """Call `submit` for each record, and time the first of every 256."""
    if plan.outstanding:
        return await _submit_within(plan.outstanding, writer, payload, records, end, histogram)
    count = 0
    submit = writer.submit
    async with Timed(histogram) as timed:
        while (count < records) if records else (perf_counter() < end):
            sample_end = min(count + SAMPLE, records) if records else count + SAMPLE
            begun_at = perf_counter()
            timed.add(begun_at, await submit(LogRecord(count, payload)))
            for txid in range(count + 1, sample_end):
                await submit(LogRecord(txid, payload))
            count = sample_end
    return count


async def _submit_within(
    outstanding: int, writer: Any, payload: bytes, records: int, end: float, histogram: Histogram
) -> int:
    """Keep at most ``outstanding`` records pending, and time each of them."""
    window: deque[Any] = deque()
    count = 0
    async with Timed(histogram) as timed:
        while (count < records) if records else (perf_counter() < end):
            if len(window) >= outstanding:
                await window.popleft()
            begun_at = perf_counter()
            pending = await writer.submit(LogRecord(count, payload))
            timed.add(begun_at, pending)
            window.append(pending)
            count += 1
    return count


async def _bulk(
    plan: BenchPlan,
    writer: Any,
    payloads: list[bytes],
    records: int,
    end: float,
    histogram: Histogram,
) -> int:
    """Call `submit_bulk` with batches of about 64 KiB.

    The latency of a batch counts as that of its records.
    """
    batch_records_max = max(1, min(BULK_RECORDS_MAX, BULK_BYTES // plan.size))
    payload, next_payloads = payloads[0], cycle(payloads)
    count = 0
    async with Timed(histogram) as timed:
        while (count < records) if records else (perf_counter() < end):
            batch_records = (
                min(batch_records_max, records - count) if records else batch_records_max
            )
            if len(payloads) == 1:
                batch = [LogRecord(txid, payload) for txid in range(count, count + batch_records)]
            else:
                batch = list(
                    map(
                        LogRecord,
                        range(count, count + batch_records),
                        islice(next_payloads, batch_records),
                    )
                )
            begun_at = perf_counter()
            timed.add(begun_at, await writer.submit_bulk(batch))
            count += batch_records
    return count


async def _packed(
    plan: BenchPlan,
    writer: Any,
    payloads: list[bytes],
    records: int,
    end: float,
    histogram: Histogram,
) -> int:
    """Call `submit_packed` with entries of 256 KiB, whose records share a txid like a time stamp.

    The latency of an entry counts as that of its records.
    """
    entry_records_max = max(1, PACKED_BYTES // (plan.size + RECORD_COLUMN_BYTES))
    data = b"".join(islice(cycle(payloads), entry_records_max))
    offsets = array("i", range(0, (entry_records_max + 1) * plan.size, plan.size)).tobytes()
    count = 0
    async with Timed(histogram) as timed:
        while (count < records) if records else (perf_counter() < end):
            entry_records = (
                min(entry_records_max, records - count) if records else entry_records_max
            )
            txids = (array("q", [count]) * entry_records).tobytes()
            begun_at = perf_counter()
            pending = await writer.submit_packed(
                txids, offsets[: 4 * (entry_records + 1)], data[: entry_records * plan.size]
            )
            timed.add(begun_at, pending)
            count += entry_records
    return count


async def open_loop(
    writers: list[Any],
    payload: bytes,
    rate: float,
    records: int,
    seconds: float,
    start: float,
    histogram: Histogram | None,
    call: str,
) -> int:
    """Write ``rate`` records per second in total. Latency counts from the intended time."""
    sample_every = max(1, int(rate / TIMED_RATE_MAX))
    idle_s = TICK_S if rate * TICK_S > 1 else 0.0
    total = records or int(rate * seconds)
    count = next_writer = 0
    async with Timed(histogram) as timed:
        while count < total:
            due = min(total, int((perf_counter() - start) * rate) + 1)
            if due <= count:
                await trio.sleep(max(idle_s, start + count / rate - perf_counter()))
                continue
            if call == "bulk":
                batch = [LogRecord(txid, payload) for txid in range(count, due)]
                writer = writers[next_writer % len(writers)]
                next_writer += 1
                timed.add(start + count / rate, await writer.submit_bulk(batch))
                count = due
                continue
            while count < due:
                pending = await writers[count % len(writers)].submit(LogRecord(count, payload))
                if count % sample_every == 0:
                    timed.add(start + count / rate, pending)
                count += 1
    return count


class Timed:
    """Awaits pending writes in order in a separate task, and adds their durations to a histogram."""

    def __init__(self, histogram: Histogram | None) -> None:
        self._histogram = histogram
        self._queue: deque[tuple[float, Any]] = deque()
        self._is_over = False
        self._wake = trio.Event()

    def add(self, begun_at: float, pending: Any) -> None:
        """Measure a write that has been pending since ``begun_at`` (`perf_counter`)."""
        self._queue.append((begun_at, pending))
        self._wake.set()

    async def __aenter__(self) -> "Timed":
        self._manager = trio.open_nursery()
        nursery = await self._manager.__aenter__()
        nursery.start_soon(self._run)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._is_over = True
        self._wake.set()
        await self._manager.__aexit__(*error)

    async def _run(self) -> None:
        queue = self._queue
        while queue or not self._is_over:
            if not queue:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            begun_at, pending = queue.popleft()
            if not pending.done():
                # Awaiting a bulk would create a position per record. Its error is raised by `commit`.
                await (pending.wait() if isinstance(pending, PendingBulk) else pending)
            if self._histogram is not None:
                self._histogram.add(perf_counter() - begun_at)
