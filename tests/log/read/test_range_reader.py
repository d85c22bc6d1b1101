"""Ranges of several logs, fetched at once, given in order: complete, bounded, definite about what is gone."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.segment_ranges import SegmentRange
from distributedlog.log.namespace import Namespace
from distributedlog.log.read import range_reader
from distributedlog.log.read.log_view import view_log
from distributedlog.log.read.range_reader import OnLoss, RangePart, RangeReader
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    LogDeleted,
    LogNotFound,
    LogTruncated,
    NoSuchLedger,
)
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader

RECORDS = 300


async def fill(ns: Namespace, name: str, numbers: range, entry: int = 10) -> None:
    """A segment; ``entry`` records an entry, whose txids are their numbers."""
    async with ns.open_log(name).open_writer() as writer:
        for at in range(0, len(numbers), entry):
            part = list(numbers[at : at + entry])
            await writer.submit_columns(part, [b"%d" % number * 20 for number in part])
            await writer.commit()


async def planned(ns: Namespace, name: str) -> list[SegmentRange]:
    """All of a log as it is now."""
    view = await view_log(ns.metadata, ns.ledgers, name, await ns.resolve_name(name))
    view.close()
    return view.ranges(DLSN.INITIAL, view.end)


def reader_of(
    ns: Namespace,
    plan: list[SegmentRange],
    *,
    on_loss: OnLoss | None = None,
    several: bool = False,
    **options: Any,
) -> RangeReader:
    context = replace(ns.context, options=replace(ns.context.options, **options))
    reader = RangeReader(context, plan, on_loss=on_loss, parallel=several)
    context.start(reader.run)
    return reader


async def taken(reader: RangeReader) -> list[tuple[str, int]]:
    """(log, txid) of everything that is read."""
    found = []
    async with reader:
        while some := await reader.read_by_log(bytes_max=1):
            found += [(name, txid) for name, parts in some for one in parts for txid in one.txids]
    return found


@pytest.mark.parametrize(
    ("sizes", "several", "at_once"),
    [
        ([100] * 5_000, False, 16),
        ([100] * 4, False, 4),
        ([1 << 23] * 50, True, 3),
        ([1 << 30], True, 1),
        ([1 << 21] * 50, False, 12),
        ([1 << 30] * 4, False, 1),
        ([1 << 30] * 4, True, 3),
    ],
)
def test_small_parts_are_fetched_more_at_once(
    sizes: list[int], several: bool, at_once: int
) -> None:
    """S22: thousands of logs of a few records are waiting, not bytes."""
    parts = [SegmentRange("a", 1, 1, 0, 0, 0, size_bytes=size) for size in sizes]
    found = range_reader._parallelism([RangePart(part, 0) for part in parts], parallel=several)
    assert found == at_once


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize(("part", "ahead"), [(1 << 23, 1 << 23), (4_000, 1_000), (1, 1)])
async def test_everything_once_and_in_order(
    world: World,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    part: int,
    ahead: int,
    several: bool,
) -> None:
    """Several parts at once, and what is fetched ahead is bounded: order and completeness stay."""
    monkeypatch.setattr(range_reader, "PART_BYTES", part)
    async with world.process() as ns:
        await fill(ns, "a", range(RECORDS))
        await fill(ns, "a", range(RECORDS, RECORDS + 20))
        await fill(ns, "b", range(7))

        plan = await planned(ns, "a") + await planned(ns, "b")
        reader = reader_of(ns, plan, several=several, read_ahead_bytes=ahead, read_bytes=500)

        expected = [("a", n) for n in range(RECORDS + 20)] + [("b", n) for n in range(7)]
        assert await taken(reader) == expected
        assert reader._buffered_bytes == 0, "what was taken makes room"


@pytest.mark.parametrize("waits", [True, False], ids=["for its bookie", "for nobody"])
async def test_only_who_waits_for_one_bookie_asks_several(
    world: World,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    turns: list[int],
    waits: bool,
) -> None:
    """A large range is one part, and its ledger is opened once, as long as that is enough."""
    monkeypatch.setattr(range_reader, "PART_BYTES", 4_000)
    original = ModelReader.read

    async def slow(self: ModelReader, first: int, last: int, *, bytes_max: int) -> Any:
        await trio.sleep(0.1 if waits else 0.001)
        return await original(self, first, last, bytes_max=bytes_max)

    monkeypatch.setattr(ModelReader, "read", slow)
    async with world.process() as ns:
        await fill(ns, "a", range(2 * RECORDS))
        await fill(ns, "a", range(2 * RECORDS, 2 * RECORDS + 100))
        plan = await planned(ns, "a")
        reader = reader_of(ns, plan, read_ahead_bytes=2_000, read_bytes=500)
        found: list[int] = []
        async with reader:
            while (columns := await reader.read_columns()) is not None:
                found += columns.txids
                await trio.sleep(0.001 if waits else 0.1)

        assert found == list(range(2 * RECORDS + 100)), "whatever was cut off under way"
        assert (len(set(turns)) >= 3) == waits
        assert (len(turns) == 2) != waits


@pytest.mark.parametrize("read_bytes", [300, 5_000])
@pytest.mark.parametrize("fetched", [0, 1, 7, 40])
async def test_what_is_cut_off_under_way_comes_once(
    world: World,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    fetched: int,
    read_bytes: int,
) -> None:
    """Wherever the first part is then, however often it is said, and whatever has been asked for."""
    monkeypatch.setattr(range_reader, "PART_BYTES", 1_500)
    original = ModelReader.read

    async def slow(self: ModelReader, first: int, last: int, *, bytes_max: int) -> Any:
        await trio.sleep(1.5)
        return await original(self, first, last, bytes_max=bytes_max)

    monkeypatch.setattr(ModelReader, "read", slow)
    async with world.process() as ns:
        await fill(ns, "a", range(RECORDS))
        await fill(ns, "b", range(RECORDS))
        plan = await planned(ns, "a") + await planned(ns, "b")
        cut = [replace(plan[0], first_slot=3), *plan[1:-1], replace(plan[-1], stop_slot=4)]
        reader = reader_of(ns, cut, read_ahead_bytes=500, read_bytes=read_bytes)
        found: list[int] = []
        async with reader:
            for _ in range(fetched):
                columns = await reader.read_columns()
                assert columns is not None
                found += columns.txids
            for _ in range(2):
                reader.start_parallel_read()
                await trio.sleep(1)
            assert reader._nursery is not None
            assert len(reader._nursery.child_tasks) == range_reader.PARALLEL_PARTS
            while (columns := await reader.read_columns()) is not None:
                found += columns.txids

        assert found == [*range(3, RECORDS), *range(RECORDS - 6)]


async def test_no_more_are_fetched_at_once_for_being_waited_for(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small ranges as many as may be are under way already."""
    monkeypatch.setattr(range_reader, "PARALLEL_SMALL_PARTS_MAX", 3)
    async with world.process() as ns:
        for number in range(8):
            await fill(ns, "a", range(100 * number, 100 * number + 100))
        reader = reader_of(ns, await planned(ns, "a"), read_ahead_bytes=100, read_bytes=100)
        async with reader:
            await trio.sleep(1)
            assert reader._nursery is not None
            assert len(reader._nursery.child_tasks) == 3
            reader.start_parallel_read()
            assert len(reader._nursery.child_tasks) == 3


async def test_nothing_after_a_loss_is_cut(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be fetched for nothing."""
    monkeypatch.setattr(range_reader, "PART_BYTES", 10_000)
    async with world.process() as ns:
        await fill(ns, "a", range(20))
        await fill(ns, "b", range(RECORDS))
        plan = await planned(ns, "a") + await planned(ns, "b")
        lost = Delete(b"ledger/%016x" % plan[0].ledger_id)
        await world.metadata.transact(Transaction((), (lost,)))
        reader = reader_of(ns, plan, read_ahead_bytes=500, read_bytes=300)
        async with reader:
            await trio.sleep(1)
            before = list(reader._parts)
            assert reader._nursery is not None, "the second one waits for room"
            reader.start_parallel_read()

            assert reader._parts == before
            with pytest.raises(NoSuchLedger):
                await reader.read_columns()


async def test_without_waiting_what_is_here_is_taken(
    world: World, autojump_clock: MockClock
) -> None:
    """Whoever is told takes until nothing, or the end, is there; then it is told again, or is not."""
    async with world.process() as ns:
        await fill(ns, "a", range(RECORDS))
        options = replace(ns.context.options, read_ahead_bytes=1_000, read_bytes=500)
        found: list[int] = []
        told = ends = 0

        def take() -> None:
            nonlocal told, ends
            told += 1
            while some := reader.read_ready(bytes_max=400):
                for name, parts in some:
                    assert name == "a"
                    for one in parts:
                        found.extend(one.txids)
            ends += some is None

        reader = RangeReader(
            replace(ns.context, options=options), await planned(ns, "a"), on_ready=take
        )
        assert reader.read_ready(bytes_max=1) == []
        await reader.run()

        assert found == list(range(RECORDS))
        assert told > 10
        assert ends == 1
        assert reader.read_ready(bytes_max=1) is None
        assert RangeReader(ns.context, []).read_ready(bytes_max=1) is None


async def test_what_is_fetched_and_not_taken_is_bounded(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "PART_BYTES", 2_000)
    async with world.process() as ns:
        await fill(ns, "a", range(RECORDS))
        reader = reader_of(ns, await planned(ns, "a"), read_ahead_bytes=1_000, read_bytes=500)
        most = 0
        async with reader:
            while await reader.read_columns() is not None:
                await trio.sleep(1)
                most = max(most, reader._buffered_bytes)
        assert (
            1_000 < most < 1_000 + 16 * (500 + 10 * 80)
        )  # a request beyond it for each that fetches


async def test_a_part_that_waits_for_room_goes_on_when_its_turn_comes(
    world: World, autojump_clock: MockClock
) -> None:
    """What fills the room is of those after it, and is not taken before it."""
    async with world.process() as ns:
        for number in range(3):
            await fill(ns, "a", range(10 * number, 10 * number + 10))
        reader = RangeReader(ns.context, await planned(ns, "a"))
        first, second, _ = reader._parts
        reader._buffered_bytes = 1 << 40  # of the third
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader._wait_capacity, 1, second)
            await trio.sleep(1)
            assert nursery.child_tasks
            first.is_fetched = True
            assert reader._ready_part() is None
            await trio.sleep(1)
            assert not nursery.child_tasks
            nursery.cancel_scope.cancel()


async def test_what_was_truncated_since_the_plan(world: World, autojump_clock: MockClock) -> None:
    """S5: an error that says what is left, or all that is."""
    async with world.process() as ns:
        await fill(ns, "cut", range(100))
        plan = await planned(ns, "cut")
        await ns.open_log("cut").truncate(DLSN(1, 4, 0))

        with pytest.raises(LogTruncated, match=r'"cut" was truncated: wanted 1\.0\.0, .* 1\.4\.0'):
            await taken(reader_of(ns, plan))
        told: list[Exception] = []
        left = await taken(reader_of(ns, plan, on_loss=told.append))
        assert left == [("cut", n) for n in range(40, 100)]
        assert [type(one) for one in told] == [LogTruncated]


async def test_what_was_deleted_since_the_plan(world: World, autojump_clock: MockClock) -> None:
    """H30: a definite error, not a missing entry."""
    async with world.process() as ns:
        await fill(ns, "gone", range(10))
        await fill(ns, "here", range(5))
        plan = await planned(ns, "gone") + await planned(ns, "here")
        await ns.delete_log("gone")

        with pytest.raises(LogNotFound, match='log "gone" was deleted'):
            await taken(reader_of(ns, plan))
        told: list[Exception] = []
        left = await taken(reader_of(ns, plan, on_loss=told.append))
        assert left == [("here", n) for n in range(5)]
        assert [type(one) for one in told] == [LogDeleted]


@pytest.mark.parametrize("told_of_it", [True, False])
async def test_what_is_purged_while_it_is_read_was_truncated(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, told_of_it: bool
) -> None:
    """H30: at a miss the log is asked anew, whatever it said at the beginning."""
    monkeypatch.setattr(range_reader, "PARALLEL_PARTS", 1)
    monkeypatch.setattr(range_reader, "PARALLEL_SMALL_PARTS_MAX", 1)
    async with world.process() as ns:
        for number in range(4):
            await fill(ns, "a", range(10 * number, 10 * number + 10))
        plan = await planned(ns, "a")
        told: list[Exception] = []
        reader = reader_of(
            ns, plan, on_loss=told.append if told_of_it else None, read_ahead_bytes=1, read_bytes=1
        )
        await trio.sleep(1)  # the first one is here, the state is known
        await ns.open_log("a").truncate(DLSN(4, 0, 0))
        for one in plan[1:3]:
            gone = Delete(b"ledger/%016x" % one.ledger_id)
            await world.metadata.transact(Transaction((), (gone,)))

        if told_of_it:
            wanted = [*range(10), *range(30, 40)]
            assert await taken(reader) == [("a", number) for number in wanted]
            assert [type(one) for one in told] == [LogTruncated] * 2
        else:
            assert await reader.read_columns() is not None
            with pytest.raises(LogTruncated, match=r"its first position is 4\.0\.0"):
                await reader.read_columns()


async def test_a_loss_is_told_after_all_that_comes_before_it(
    world: World, autojump_clock: MockClock
) -> None:
    """H30: a ledger that is gone while the log names it is no truncation. What follows is not given."""
    async with world.process() as ns:
        for number in range(4):
            await fill(ns, "a", range(10 * number, 10 * number + 10))
        plan = await planned(ns, "a")
        lost = Delete(b"ledger/%016x" % plan[2].ledger_id)
        await world.metadata.transact(Transaction((), (lost,)))
        reader = reader_of(ns, plan)

        for number in (0, 10):
            columns = await reader.read_columns()
            assert columns is not None
            assert columns.txids.tolist() == list(range(number, number + 10))
        with pytest.raises(NoSuchLedger):
            await reader.read_columns()
        with pytest.raises(NoSuchLedger):
            await reader.read_columns()


async def test_a_reader_says_that_it_or_its_namespace_was_closed(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await fill(ns, "a", range(RECORDS))
        reader = reader_of(ns, await planned(ns, "a"))
        assert await reader.read_columns() is not None
        await reader.aclose()
        with pytest.raises(AlreadyClosed, match="this reader is closed"):
            await reader.read_columns()
        other = reader_of(ns, await planned(ns, "a"), read_ahead_bytes=1, read_bytes=1)
        assert await other.read_columns() is not None
    with pytest.raises(AlreadyClosed, match="the namespace was closed"):
        await taken(other)
