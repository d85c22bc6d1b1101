"""Segments as they are opened, closed and cut off."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.read.segment_watch import SegmentChange, SegmentWatch
from distributedlog.runtime.interfaces.errors import AlreadyClosed, InvalidRequest, LogNotFound
from tests.log.conftest import World
from tests.log.records import put, rec


def said(change: SegmentChange | None) -> tuple[str, int | str]:
    assert change is not None
    if change.segment is not None:
        assert change.segment.closed == (change.kind == "closed")
        return change.kind, change.segment.segment
    return change.kind, "" if change.first_dlsn is None else str(change.first_dlsn)


async def all_here(watch: SegmentWatch) -> list[tuple[str, int | str]]:
    found = []
    while (change := await watch.next(1.0)) is not None:
        found.append(said(change))
    return found


async def test_each_segment_is_told_once_and_in_order(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1)
        await put(log, 2)
        async with log.watch_segments() as watch, log.watch_segments(first=1) as whole:
            assert await watch.next(0) is None
            assert await all_here(whole) == [("closed", 1), ("closed", 2)]
            async with log.open_writer() as writer:
                assert await all_here(watch) == [("opened", 3)]
                await writer.write(rec(3))
            await put(log, 4)
            expected = [("closed", 3), ("closed", 4)]
            assert await all_here(watch) == expected, (
                "4 was opened and closed before anybody looked"
            )
            assert await all_here(whole) == expected
            async with log.watch_segments(first=4) as later:
                assert await all_here(later) == [("closed", 4)]
            async with log.open_segment_writer() as linked:
                await linked.write(rec(5))
            assert linked.token is not None
            await log.link_segments([linked.token])
            assert await all_here(watch) == [("closed", 5)]

            await log.truncate(DLSN(3, 0, 0))
            assert await all_here(watch) == [("truncated", "3.0.0")]
            await log.seal()
            assert await all_here(watch) == [("sealed", "")]
            assert [change async for change in watch] == [], "and that is the end"
            await ns.delete_log("l")
            with pytest.raises(LogNotFound):
                await all_here(whole)
        with pytest.raises(InvalidRequest):
            log.watch_segments(first=0)


async def test_a_waiting_watch_hears_at_once_and_of_its_own_end(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1)
        watch = await log.watch_segments()
        heard: list[tuple[str, int | str]] = []

        async def listen() -> None:
            while True:
                try:
                    heard.append(said(await watch.next()))
                except AlreadyClosed:
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.sleep(1)
            await put(log, 2)
            await trio.sleep(1)
            assert heard == [("opened", 2), ("closed", 2)]
            await watch.aclose()


async def test_a_roll_under_way_is_told_as_it_goes(world: World, autojump_clock: MockClock) -> None:
    """Many rolls, a slow listener: every end once, in order."""
    async with world.process(segment_bytes_max=500) as ns:
        log = ns.open_log("l")
        ends: list[int] = []
        async with log.open_writer() as writer, log.watch_segments(first=1) as watch:
            for n in range(200):
                await writer.write(rec(n, bytes(100)))
                if n % 50 == 49:
                    ends += [n for kind, n in await all_here(watch) if kind == "closed"]  # type: ignore[misc]
            last = (await log.describe(segments_max=1)).state.first_open_segment - 1
        assert ends == [*range(1, last + 1)]
        assert last > 20
