"""Truncation: a point that never goes back, that open readers see, anywhere in the log (G6, H12, H30)."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_ranges import SegmentInfo
from distributedlog.log.segments.segment_purge import last_purgeable_segment
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import InvalidRequest, LogNotFound, LogTruncated
from tests.log.conftest import World
from tests.log.records import everything, put


async def written(log: Log, *segments: range) -> list[DLSN]:
    """One segment a range, one entry a record."""
    found: list[DLSN] = []
    for txids in segments:
        found += await put(log, *txids)
    return found


async def txids(log: Log) -> list[int]:
    return [record.txid for record in await everything(log)]


async def test_nothing_before_the_point_is_read_and_everything_after_it_is(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        places = await written(log, range(3), range(3, 6))
        for at, first in ((1, 1), (0, 1), (3, 3), (4, 4), (2, 4)):
            assert await log.truncate(places[at]) == places[first]
            assert await txids(log) == list(range(first, 6))
            snapshot = await log.snapshot()
            assert (snapshot.first_dlsn, snapshot.first_sequence_id) == (places[first], first)
        with pytest.raises(LogTruncated) as caught:
            await log.open_reader(dlsn=places[3])
        assert DLSN.parse(caught.value.first) == places[4]
        assert await log.truncate(txid=5) == places[5]
        assert await txids(log) == [5]


@pytest.mark.parametrize(("slot", "purged"), [(0, 0), (1, 0), (2, 1)])
async def test_a_segment_is_purged_only_if_the_point_is_after_its_last_record(
    slot: int, purged: int, world: World, autojump_clock: MockClock
) -> None:
    """The record at the point is readable, also where it is the segment's last."""
    async with world.log("orders") as log:
        async with log.open_writer() as writer:
            await writer.write_bulk([LogRecord(0, b""), LogRecord(1, b"")])
        await written(log, range(2, 4))
        found = await world.metadata.get(state_key(await log._resolve_log_id()))
        assert found is not None
        state = replace(LogState.decode(found.value), truncated_to=DLSN(1, 0, slot))

        assert await last_purgeable_segment(world.metadata, state) == purged


async def test_a_point_after_the_end_is_the_end(world: World, autojump_clock: MockClock) -> None:
    """What is written later stays, with a writer and without one."""
    async with world.log("orders") as log:
        await written(log, range(2))
        assert await log.truncate(DLSN(99, 0, 0)) == DLSN(2, 0, 0)
        assert await txids(log) == []
        async with log.open_writer() as writer:
            await writer.write_bulk([LogRecord(2, b""), LogRecord(3, b"")])
            assert await log.truncate(DLSN(99, 0, 0)) == DLSN(2, 1, 0)
            assert await writer.truncate(DLSN(2, 77, 0)) == DLSN(2, 1, 0)
            await writer.write(LogRecord(4, b""))
            await writer.commit()
            assert await txids(log) == [4]
        async with log.open_reader() as reader:
            record = await reader.read_next()
            assert record is not None
            assert (record.txid, record.sequence_id) == (4, 4)


async def test_a_living_writer_keeps_its_log_and_the_point_through_rolls(
    world: World, autojump_clock: MockClock
) -> None:
    """H12: its next roll meets another version of the key, and neither dies nor takes the point back."""
    async with world.process(segment_bytes_max=200) as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            for txid in range(40):
                place = await writer.write(LogRecord(txid, bytes(40)))
                if txid % 3 == 0:
                    await writer.truncate(place)
            assert place.segment > 5
        assert await txids(log) == [39]


async def test_a_point_inside_an_entry_cuts_the_entry(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log, log.open_writer() as writer:
        places = await writer.write_bulk([LogRecord(n, b"%d" % n) for n in range(5)])
        assert places[3] == DLSN(1, 0, 3)
        await log.truncate(places[3])
        await writer.commit()
        assert await txids(log) == [3, 4]
        (segment,) = (await log.snapshot()).segments
        async with log.open_ranges([segment.range()]) as reader:
            columns = await reader.read_columns()
        assert columns is not None
        assert columns.first_dlsn == places[3]


async def test_a_plan_loses_no_slot_without_a_word(world: World, autojump_clock: MockClock) -> None:
    """G6: a range that was planned before a point fell into its first entry is truncated; one that was
    planned after begins at the point, and later ones in it at their entries."""
    async with world.log("orders") as log, log.open_writer() as writer:
        await writer.write_bulk([LogRecord(n, b"") for n in range(5)])
        await writer.write_bulk([LogRecord(n, b"") for n in range(5, 8)])
        await writer.commit()
        (before,) = (await log.snapshot()).segments
        await log.truncate(DLSN(1, 0, 3))
        with pytest.raises(LogTruncated):
            await log.open_ranges([before.range()])
        (after,) = (await log.snapshot()).segments
        assert SegmentInfo.from_json(after.to_json()) == after
        async with log.open_ranges([after.range(), after.range(1), before.range(1)]) as reader:
            found = [columns.txids.tolist() async for columns in reader]
        assert found == [[3, 4], [5, 6, 7], [5, 6, 7], [5, 6, 7]]


async def test_an_open_reader_below_the_point_gets_the_first_position_that_is_left(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(read_ahead_bytes=1, read_bytes=1) as ns:
        log = ns.open_log("orders")
        places = await written(log, range(3), range(3, 6))
        reader = await log.open_reader()
        assert (await reader.read_next()).txid == 0  # type: ignore[union-attr]
        await log.truncate(places[4])
        await trio.sleep(1)
        seen: list[int] = []

        async def read_on() -> None:
            async for record in reader:
                seen.append(record.txid)

        with pytest.raises(LogTruncated) as caught:
            await read_on()
        assert seen in ([], [1], [1, 2])  # what was fetched before; never a gap
        async with log.open_reader(dlsn=DLSN.parse(caught.value.first)) as reader:
            record = await reader.read_next()
            assert record is not None
            assert record.txid == 4


async def test_a_reader_that_has_had_all_before_the_point_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.log("orders") as log:
        places = await written(log, range(3))
        reader = await log.open_reader()
        assert [r.txid for r in await reader.read_bulk(3)] == [0, 1, 2]
        # Three names of one place: after the last record, after its entry, the next segment.
        for point in (places[2].next(), DLSN(2, 0, 0)):
            await log.truncate(point)
            for start in (places[2].next(), DLSN(1, 3, 0), DLSN(2, 0, 0)):
                async with log.open_reader(dlsn=start):
                    pass
            with pytest.raises(LogTruncated):
                await log.open_reader(dlsn=places[2])
        await written(log, range(3, 4))
        with trio.fail_after(30):
            record = await reader.read_next()
        assert record is not None
        assert record.txid == 3


async def test_what_cannot_be_meant_is_refused(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("orders")
        with pytest.raises(LogNotFound):
            await log.truncate(DLSN(1, 0, 0))
        await ns.create_log("orders")
        for given in ({}, {"dlsn": DLSN(1, 0, 0), "txid": 3}, {"dlsn": (1, 0, 0)}):
            with pytest.raises(InvalidRequest):
                await log.truncate(**given)
        assert await log.truncate(DLSN(1, 0, 0)) == DLSN(1, 0, 0)
        assert await log.truncate(txid=5) == DLSN(1, 0, 0)


@pytest.mark.parametrize("slot", [2, 5])
@pytest.mark.parametrize("open_writer", [False, True])
async def test_a_point_after_the_records_of_its_entry_is_the_next_entry(
    slot: int, open_writer: bool, world: World, autojump_clock: MockClock
) -> None:
    """A DLSN need not be that of a record. Readers computed the sequence ID of the entry from the slot.

    The slot after the last record, which `DLSN.next` returns, stays as it is.
    """
    async with world.log("orders") as log, log.open_writer() as writer:
        first, second, *_ = [await writer.write(LogRecord(n, b"%d" % n)) for n in range(4)]
        await writer.commit()
        if not open_writer:
            await writer.aclose()

        assert await log.truncate(DLSN(first.segment, first.entry, slot)) == second

        assert await txids(log) == [1, 2, 3]
        assert await log.count() == 3


@pytest.mark.parametrize("producer", [None, "p"])
@pytest.mark.parametrize("slot", [0, 1, 5])
async def test_a_point_stored_after_the_records_of_its_entry_is_readable(
    slot: int, producer: str | None, world: World, autojump_clock: MockClock
) -> None:
    """Earlier versions stored such points. The first entry of a producer's segment has no record."""
    async with world.log("orders") as log:
        async with log.open_writer(producer=producer) as writer:
            first, *_ = [await writer.write(LogRecord(n, b"%d" % n)) for n in range(4)]
        log_id = await log._resolve_log_id()
        stored = await world.metadata.get(state_key(log_id))
        assert stored is not None
        state = LogState.decode(stored.value)
        records_before = 0 if producer or not slot else 1
        state = state.with_truncation(DLSN(first.segment, 0, slot), records_before)
        await world.metadata.transact(Transaction((), (Put(state_key(log_id), state.encode()),)))

        assert await txids(log) == list(range(records_before, 4))
        async with log.open_reader(dlsn=DLSN(first.segment, 0, slot)) as reader:
            record = await reader.read_next()
        assert record is not None
        assert record.sequence_id == records_before
