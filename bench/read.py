"""How fast a log is read from its beginning: as records, or as columns. Filling it does not count."""

from time import perf_counter
from typing import Any

from .machine import OthersCpu
from .plan import Plan, own_logs, result
from .write import fill

READ_RECORDS = 4096


async def measure(plan: Plan) -> dict[str, Any]:
    """Fill the log (unless one was named that holds something), then read it until the time is over."""
    from .. import open_namespace

    async with open_namespace(plan.uri) as namespace, own_logs(namespace, plan) as names:
        records = plan.records or FILL_BYTES // plan.size
        for name in names:
            if plan.log is None:
                await fill(namespace, name, records, plan.size)
        others = OthersCpu()
        count = 0
        start = perf_counter()
        # --records: once through; --seconds: again from the beginning until the time is over.
        while True:
            for name in names:
                end = None if plan.records else start + plan.seconds
                count += await _read_once(plan, namespace, name, end)
            if plan.records or perf_counter() - start >= plan.seconds or not count:
                break
        seconds = perf_counter() - start
    return result(plan, count, seconds, None, others)


FILL_BYTES = 512 * 1024 * 1024
"""What its own log is filled with when only a time was given."""


async def _read_once(plan: Plan, namespace: Any, name: str, end: float | None) -> int:
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
