"""Measure how fast a log is read from its beginning, as records or as columns, without the time of filling
it.

New data is only on the device, because the journal bypasses the page cache. The first pass therefore reads
from the device, and the second one from the page cache of the bookie that served the first. With ``--passes``
the result has separate keys for them, ``cold`` and ``hot``.
"""

from time import perf_counter, process_time
from typing import Any

from ....runtime.interfaces.errors import InvalidRequest
from ..measure.bench_plan import BenchPlan, own_logs, result
from ..measure.histogram import per_second
from ..measure.machine_info import OthersCpu
from .write import fill

READ_RECORDS = 256
"""Records per call. With this number, objects stay in the core's cache and in the youngest generation of
Python's garbage collector."""
FILL_BYTES = 512 * 1024 * 1024
"""Size to which a new log is filled if only a time or a number of passes is given."""


async def measure(plan: BenchPlan) -> dict[str, Any]:
    """Fill the log, unless the plan names a log, then read it as the plan requires."""
    from .... import open_namespace

    if plan.passes == 1:
        raise InvalidRequest("--passes must be at least 2: the first pass is cold")
    async with (
        open_namespace(plan.uri, config=plan.config) as namespace,
        own_logs(namespace, plan) as names,
    ):
        records = plan.records or FILL_BYTES // plan.size
        for name in names:
            if plan.log is None:
                await fill(namespace, name, records, plan.size, plan)
        other_processes = OthersCpu()
        passes: list[Pass] = []
        start = perf_counter()
        # With --records, read once; with --seconds, read repeatedly for that time.
        is_timed = not plan.records and not plan.passes
        async with per_second(namespace, "dlog_client_records_read_total") as rates:
            is_over = False
            while not is_over:
                current_pass = Pass()
                passes.append(current_pass)
                for name in names:
                    end = start + plan.seconds if is_timed else None
                    current_pass.count += await _read_once(plan, namespace, name, end)
                current_pass.end()
                if is_timed:
                    is_over = perf_counter() - start >= plan.seconds or not current_pass.count
                else:
                    is_over = len(passes) >= plan.passes
        seconds = perf_counter() - start
    read_result = result(
        plan, sum(read_pass.count for read_pass in passes), seconds, None, other_processes, rates
    )
    read_result["reader_cpu_us"] = summary(plan, passes)["reader_cpu_us"]
    if plan.passes:
        read_result["cold"] = summary(plan, passes[:1])
        read_result["hot"] = summary(plan, passes[1:])
    return read_result


class Pass:
    """One pass through all logs: the records read, the elapsed time, and the CPU time of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = -perf_counter()
        self.cpu_s = -process_time()

    def end(self) -> None:
        """Stop the measurement of this pass."""
        self.seconds += perf_counter()
        self.cpu_s += process_time()


def summary(plan: BenchPlan, passes: list[Pass]) -> dict[str, float]:
    """Return the rates and the CPU time per record of several passes together."""
    count = sum(read_pass.count for read_pass in passes)
    seconds = sum(read_pass.seconds for read_pass in passes)
    cpu_s = sum(read_pass.cpu_s for read_pass in passes)
    return {
        "records_per_s": round(count / seconds, 1),
        "bytes_per_s": round(count * plan.size / seconds, 1),
        "reader_cpu_us": round(cpu_s / count * 1e6, 3) if count else 0.0,
    }


async def _read_once(plan: BenchPlan, namespace: Any, name: str, end: float | None) -> int:
    count = 0
    async with namespace.open_log(name).open_reader(to="end") as reader:
        while end is None or perf_counter() < end:
            if plan.take == "columns":
                columns = await reader.read_columns()
                if columns is None:
                    break
                count += columns.count
            else:
                batch = await reader.read_bulk(READ_RECORDS)
                if not batch:
                    break
                count += len(batch)
    return count
