"""Positions, subscribers and work queues of a log, with lag and owners."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.status.consumer_overview import consumers
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_keys import (
    all_workers_prefix,
    lock_key,
    position_key,
    subscriber_key,
    work_key,
    worker_key,
)
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import LogNotFound
from distributedlog.runtime.protocol.frames import pack
from tests.log.conftest import World


@asynccontextmanager
async def orders(owner: str = "app-1") -> AsyncIterator[tuple[World, Namespace]]:
    """A log of ten records of 100 bytes, an entry each, in two segments."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process(owner) as namespace:
            await namespace.create_log("orders")
            for first in (0, 5):
                async with namespace.open_log("orders").open_writer() as writer:
                    for txid in range(first, first + 5):
                        await writer.write(LogRecord(txid, b"x" * 100))
            yield world, namespace
        nursery.cancel_scope.cancel()


async def test_a_log_without_consumers(autojump_clock: MockClock) -> None:
    async with orders() as (_, namespace):
        overview = await consumers(namespace, "orders")

        assert (overview["writer"], overview["positions"], overview["queues"]) == (None, [], [])
        with pytest.raises(LogNotFound):
            await consumers(namespace, "nobody")


async def test_positions_with_lag_and_subscribers(autojump_clock: MockClock) -> None:
    async with orders() as (_, namespace):
        log = namespace.open_log("orders")
        last = await log.last_dlsn()
        await log.positions.advance("ended", DLSN(3, 0, 0))
        await log.positions.advance("free", DLSN(2, 0, 0))
        async with log.open_writer(), log.subscribe("taken", at="earliest"):
            overview = await consumers(namespace, "orders")
        rows = {row["position"]: row for row in overview["positions"]}

        assert overview["writer"]["owner"] == "app-1"
        lags = {name: row["lag"]["records"] for name, row in rows.items()}
        assert lags == {"ended": 0, "free": 5, "taken": 10}
        assert rows["taken"]["subscriber"]["owner"] == "app-1"
        assert rows["free"]["subscriber"] is None
        assert rows["ended"]["lag"] == {"records": 0, "bytes": 0, "seconds": 0.0, "lost": 0}
        assert rows["free"]["lag"]["bytes"] >= 500
        assert last < DLSN(3, 0, 0)


async def test_queues_with_lag_and_the_workers_of_claims(autojump_clock: MockClock) -> None:
    async with orders("worker-7") as (_, namespace):
        log = namespace.open_log("orders")
        async with log.work_queue("a/b") as queue:
            claim = await queue.claim(bytes_max=1)
            assert claim is not None
            (row,) = (await consumers(namespace, "orders"))["queues"]
            [claimed] = row["claims"]
            assert (row["queue"], row["lag"]["records"]) == ("a/b", 10)
            assert (claimed["number"], claimed["worker"]["owner"]) == (claim.number, "worker-7")


async def test_a_key_that_no_worker_has_written_hides_nothing(autojump_clock: MockClock) -> None:
    async with orders() as (world, namespace):
        log = namespace.open_log("orders")
        log_id = await namespace.resolve_name("orders")
        strange = worker_key(log_id, "q", 1)[:-4] + b"\xffzzz"
        await world.metadata.transact(Transaction((), (Put(strange, b"\xc1"),)))
        async with log.work_queue("q"):
            overview = await consumers(namespace, "orders")

        assert [row["queue"] for row in overview["queues"]] == ["q"]


async def test_unreadable_entries_make_the_lag_unknown_and_hide_no_row(
    autojump_clock: MockClock,
) -> None:
    async with orders() as (world, namespace):
        log = namespace.open_log("orders")
        await log.positions.advance("at an entry", DLSN(1, 2, 0))
        await log.positions.advance("at the end", DLSN(3, 0, 0))
        world.ledgers.stores.clear()
        rows = {row["position"]: row for row in (await consumers(namespace, "orders"))["positions"]}

        assert rows["at an entry"]["lag"] is None
        assert rows["at an entry"]["problem"]
        assert rows["at the end"]["lag"]["records"] == 0


async def test_bookies_that_do_not_answer_hide_no_row(autojump_clock: MockClock) -> None:
    async with orders("app-9") as (world, namespace):
        log = namespace.open_log("orders")
        for number in range(5):
            await log.positions.advance(f"p{number}", DLSN(1, number, 0))
        async with log.subscribe("p3"):
            world.ledgers.read_s = 60.0
            started_at = trio.current_time()
            overview = await consumers(namespace, "orders", measure_until=started_at + 2)

        assert trio.current_time() - started_at < 3
        assert [row["lag"] for row in overview["positions"]] == [None] * 5
        assert all(row["problem"] for row in overview["positions"])
        assert overview["positions"][3]["subscriber"]["owner"] == "app-9"


async def test_more_rows_than_requested_are_left_out(autojump_clock: MockClock) -> None:
    async with orders() as (_, namespace):
        positions = namespace.open_log("orders").positions
        for number in range(5):
            await positions.advance(f"p{number}", DLSN(1, 0, 0))
        overview = await consumers(namespace, "orders", rows_max=4)

        assert [row["position"] for row in overview["positions"]] == ["p0", "p1", "p2", "p3"]
        assert overview["left_out"]
        assert not (await consumers(namespace, "orders", rows_max=5))["left_out"]


CORRUPT, NEWER = b"\xc1", pack([99, "of a newer version"])


async def _store(world: World, key: bytes, value: bytes) -> None:
    await world.metadata.transact(Transaction((), (Put(key, value),)))


@pytest.mark.parametrize(("value", "damage"), [(CORRUPT, "corrupt"), (NEWER, "unsupported")])
async def test_a_damaged_position_is_one_row_and_hides_no_other(
    autojump_clock: MockClock, value: bytes, damage: str
) -> None:
    async with orders() as (world, namespace):
        positions = namespace.open_log("orders").positions
        for name in ("a", "c"):
            await positions.advance(name, DLSN(2, 0, 0))
        await _store(world, position_key(await namespace.resolve_name("orders"), "b"), value)
        rows = (await consumers(namespace, "orders"))["positions"]

    assert [(row["position"], row["damage"]) for row in rows] == [
        ("a", ""),
        ("b", damage),
        ("c", ""),
    ]
    assert [row["dlsn"] for row in rows] == ["2.0.0", None, "2.0.0"]
    assert [row["lag"] and row["lag"]["records"] for row in rows] == [5, None, 5]
    assert [bool(row["problem"]) for row in rows] == [False, True, False]


async def test_a_damaged_owner_hides_no_row(autojump_clock: MockClock) -> None:
    """The records of a writer, of a subscriber and of a worker."""
    async with orders() as (world, namespace):
        log, log_id = namespace.open_log("orders"), await namespace.resolve_name("orders")
        await log.positions.advance("p", DLSN(2, 0, 0))
        async with log.work_queue("q") as queue:
            assert await queue.claim(bytes_max=1) is not None
            prefix = all_workers_prefix(log_id)
            page = await world.metadata.range(prefix, prefix_end(prefix))
            for key in (lock_key(log_id), subscriber_key(log_id, "p"), page.items[0].key):
                await _store(world, key, CORRUPT)
            overview = await consumers(namespace, "orders")
        [position], [queue_row] = overview["positions"], overview["queues"]

    damaged = {"owner": "", "since_ms": None, "damage": "corrupt"}
    assert (
        overview["writer"] == position["subscriber"] == queue_row["claims"][0]["worker"] == damaged
    )
    assert (position["lag"]["records"], queue_row["lag"]["records"]) == (5, 10)


async def test_a_damaged_queue_is_one_row_and_hides_no_other(autojump_clock: MockClock) -> None:
    async with orders() as (world, namespace):
        log, log_id = namespace.open_log("orders"), await namespace.resolve_name("orders")
        async with log.work_queue("sound"):
            await _store(world, work_key(log_id, "broken"), CORRUPT)
            broken, sound = (await consumers(namespace, "orders"))["queues"]

    assert (broken["queue"], broken["damage"], broken["floor"]) == ("broken", "corrupt", None)
    assert (broken["claims"], broken["dead_lettered"], broken["lag"]) == ([], [], None)
    assert (sound["queue"], sound["damage"], sound["lag"]["records"]) == ("sound", "", 10)
