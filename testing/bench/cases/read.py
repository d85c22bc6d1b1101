"""How fast a log is read from its beginning: as records, or as columns. Filling it does not count.

What was just written lies on the device alone (the journal is written past the page cache): the first pass
reads it from there, the second from the page cache of the bookie that served the first. With ``--passes``
both have keys of their own, ``cold`` and ``hot``.
"""

from time import perf_counter, process_time
from typing import Any

from ....runtime.interfaces.errors import InvalidRequest
from ..measure.bench_plan import BenchPlan, own_logs, result
from ..measure.histogram import per_second
from ..measure.machine_info import OthersCpu
from .write import fill

READ_RECORDS = 256
"""In one call: what is made and dropped stays in the core's cache, and is young to Python's collector."""
FILL_BYTES = 512 * 1024 * 1024
"""What its own log is filled with when only a time was given, or a number of passes."""


async def measure(plan: BenchPlan) -> dict[str, Any]:
    """Fill the log (unless one was named that holds something), then read it as the plan says."""
    from .... import open_namespace

    if plan.passes == 1:
        raise InvalidRequest("one pass is cold; --passes wants at least 2")
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
        # --records: once through; --seconds: again from the beginning until the time is over.
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
    """Once through all logs: what was read, and what that took of time and of this process' CPU."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = -perf_counter()
        self.cpu_s = -process_time()

    def end(self) -> None:
        """It is over now."""
        self.seconds += perf_counter()
        self.cpu_s += process_time()


def summary(plan: BenchPlan, passes: list[Pass]) -> dict[str, float]:
    """Several passes as one."""
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
