"""The lag of positions: equal to a view that has all segments, at a cost that does not grow with the log."""

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_view import view_log
from distributedlog.log.read.position_lag import LagCache, LagMeter, PositionLag, age_s, lag_meter
from distributedlog.log.read.state_watch import open_state_watch
from tests.examples import few
from tests.log.conftest import World
from tests.log.read.test_log_view import fill


async def meter(namespace: Namespace, cache: LagCache | None = None) -> LagMeter:
    log_id = await namespace.resolve_name("l")
    state_watch = await open_state_watch(namespace.metadata, log_id, "l", namespace.path)
    return await lag_meter(namespace.metadata, namespace.ledgers, state_watch, cache)


@pytest.mark.parametrize("has_writer", [False, True])
async def test_lag_equals_the_counts_of_a_view_at_every_position(
    world: World, autojump_clock: MockClock, has_writer: bool
) -> None:
    async with world.process() as namespace, AsyncExitStack() as stack:
        await fill(namespace, [2, 3], [], [], [1], [4, 1, 2], [])
        if has_writer:
            writer = await stack.enter_async_context(namespace.open_log("l").open_writer())
            await writer.write_bulk([LogRecord(100, b"abc"), LogRecord(101, b"d")])
            await writer.write(LogRecord(102, b"e"))
            await writer.commit()
        view = await view_log(
            namespace.metadata, namespace.ledgers, "l", await namespace.resolve_name("l")
        )
        measured = await meter(namespace)
        now_ms = namespace.wall_ms() + 5000
        assert measured.end == view.end

        boundaries = [
            DLSN(segment, entry, 0)
            for segment in range(1, view.end.segment + 2)
            for entry in range(5)
        ]
        for position in [*boundaries, DLSN(1, 0, 1), DLSN(1, 1, 2), DLSN(5, 0, 3)]:
            records, size = await view.totals_between(position, view.end)
            since_ms = await view.time_at(position) if records else None
            newest_ms = view.tail.last_time_ms if view.tail else view.state.time_ms
            seconds = 0.0 if since_ms is None else age_s(since_ms, newest_ms, now_ms)
            expected = PositionLag(records, size if records else 0, seconds)
            assert await measured.lag(position, now_ms) == expected, position


@pytest.mark.parametrize("keep_alive_s", few([0.0, 10.0], 1))
@pytest.mark.parametrize("has_roll", few([True, False], 1))
@pytest.mark.parametrize("position", [DLSN(1, 0, 1), DLSN(1, 1, 0)])
async def test_age_of_a_lag_is_that_of_the_first_unread_record(
    world: World, autojump_clock: MockClock, keep_alive_s: float, has_roll: bool, position: DLSN
) -> None:
    """It was the age of the last record that was read, or of a control entry between the two."""
    cache: LagCache = {}
    async with world.process(keep_alive_s=keep_alive_s) as namespace:
        log = namespace.open_log("l")
        writer = await log.open_writer()
        await writer.write(LogRecord(1, b"read"))
        if has_roll:
            await writer.aclose()
            writer = await log.open_writer()
        await trio.sleep(600)
        assert (await (await meter(namespace, cache)).lag(position, 0)).seconds == 0
        for txid in (2, 3):
            await writer.write(LogRecord(txid, b"unread"))
            await trio.sleep(60)

        measured = await meter(namespace, cache)
        view = await view_log(
            namespace.metadata, namespace.ledgers, "l", await namespace.resolve_name("l")
        )
        now_ms = namespace.wall_ms()
        lag = await measured.lag(position, now_ms)
        first_unread_ms = await view.time_at(position)
        view.close()
        await writer.aclose()

    assert lag.records == 2
    assert lag.seconds == pytest.approx(120, abs=1)
    assert first_unread_ms == pytest.approx(now_ms - 120_000, abs=1000)
    async with world.process() as namespace:
        closed = await meter(namespace)
        assert (await closed.lag(position, now_ms)).seconds == lag.seconds


async def test_lag_of_a_truncated_position_counts_the_lost_records(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as namespace:
        await fill(namespace, [2, 3], [4], [5])
        await namespace.open_log("l").truncate(DLSN(2, 0, 1))
        measured = await meter(namespace)

        lag = await measured.lag(DLSN(1, 1, 0), 0)
        assert (lag.records, lag.lost) == (8, 4)
        lag = await measured.lag(DLSN(1, 1, 0), 0, sequence_id=5)
        assert (lag.records, lag.lost) == (8, 1)
        assert (await measured.lag(DLSN(2, 0, 2), 0)).lost == 0


async def test_a_position_that_has_not_moved_costs_no_request(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as namespace:
        await fill(namespace, *[[2, 2]] * 300)
        cache: LagCache = {}
        positions = [DLSN(segment, 1, 1) for segment in range(1, 300, 30)]
        before = [await (await meter(namespace, cache)).lag(one, 0) for one in positions]
        later, reads = await meter(namespace, cache), 0
        ordinary = world.metadata.get

        async def counted(key: bytes) -> object:
            nonlocal reads
            reads += 1
            return await ordinary(key)

        world.metadata.get = counted  # type: ignore[assignment, method-assign]

        assert [await later.lag(one, 0) for one in positions] == before
        assert reads == 0


def test_a_record_from_a_writer_with_a_fast_clock_is_not_negative_in_age() -> None:
    assert age_s(5000, 6000, 1000) == 1.0
    assert age_s(5000, 5000, 65_000) == 60.0
