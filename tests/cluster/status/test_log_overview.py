"""Sizes of many logs, as `dlog log list --sizes` shows them."""

from typing import Any

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.status.log_overview import LOGS_AT_ONCE, read_log_sizes
from tests.log.conftest import World
from tests.proxy.proxy_world import world


async def test_sizes_of_many_logs_are_read_by_a_limited_number_of_tasks() -> None:
    """There was a task per log: 100,000 tasks for a namespace of this size."""
    async with trio.open_nursery() as nursery, World(nursery).process() as logs:
        before = most = trio.lowlevel.current_statistics().tasks_living
        rows: list[dict[str, Any]] = [{"name": f"missing-{n}"} for n in range(20 * LOGS_AT_ONCE)]

        async def observe() -> None:
            nonlocal most
            while True:
                most = max(most, trio.lowlevel.current_statistics().tasks_living)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(observe)
        await read_log_sizes(logs, rows)
        nursery.cancel_scope.cancel()

    assert all(row["error"].startswith("LogNotFound") for row in rows)
    assert most <= before + 1 + LOGS_AT_ONCE


async def test_bytes_of_a_segment_in_progress_are_counted_or_reported_as_unknown() -> None:
    """Proxies describe closed segments only."""
    async with world() as it:
        proxy = await it.proxy("w1")
        uri = f"distributedlog+proxy://{proxy.address[0]}:{proxy.address[1]}/default"
        async with open_namespace(uri) as proxied:
            await proxied.create_log("l")
            async with proxied.open_log("l").open_writer() as writer:
                await writer.write(LogRecord(1, bytes(1000)))
                await writer.commit()
                direct_row: dict[str, Any] = {"name": "l"}
                proxied_row: dict[str, Any] = {"name": "l"}

                await read_log_sizes(it.namespace, [direct_row])
                await read_log_sizes(proxied, [proxied_row])

    assert direct_row["records"] == proxied_row["records"] == 1
    assert direct_row["bytes"] == direct_row["open_bytes"] > 1000
    assert (proxied_row["bytes"], proxied_row["open_bytes"]) == (0, None)
