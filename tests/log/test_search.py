"""Searches in long logs: what they find, and how little they read (scenario 11)."""

from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import build_entry
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import incarnation_id, segment_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import EMPTY_END, SegmentEnd, SegmentRecord
from distributedlog.log.read.position_search import Probes, interpolation_search
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import KeyValue, Put, Transaction
from distributedlog.runtime.interfaces.errors import InvalidRequest, LogEmpty, LogTruncated
from distributedlog.runtime.protocol.frames import pack
from tests.examples import examples, few
from tests.log.conftest import World
from tests.log.model_ledger import ModelLedgers, ModelReader, Store
from tests.log.records import control_entry, everything, put, rec
from tests.metadata.local_metadata import LocalMetadata

ENTRIES = 40
"""Of each segment; each has ten records."""


def looked(looks: Probes, values: list[int]) -> tuple[int, int]:
    """What a search finds among these, and in how many looks."""
    number, answer = 0, None
    while True:
        try:
            place = looks.send(answer)  # type: ignore[arg-type]
        except StopIteration as over:
            return over.value, number
        number, answer = number + 1, values[place]


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 50), max_size=60),
    st.integers(-5, 1600),
    st.integers(-100, 2000),
    st.integers(-100, 2000),
)
def test_a_guess_finds_what_a_scan_finds_and_is_never_dear(
    steps: list[int], wanted: int, low_value: int, high_value: int
) -> None:
    """Whatever it is told of the ends."""
    values: list[int] = []
    for step in steps:
        values.append((values[-1] if values else 0) + step)

    found, number = looked(
        interpolation_search(wanted, 0, len(values), low_value, high_value), values
    )

    assert found == bisect_left(values, wanted)
    assert number <= 2 * len(values).bit_length() + 1


@pytest.mark.parametrize("uneven", [1, 1.2])
def test_what_grows_evenly_is_found_in_few_looks(uneven: float) -> None:
    values = [int(100 * n**uneven) for n in range(100_000)]

    most, whole = 0, 0
    for at in range(0, len(values), 997):
        looks = interpolation_search(values[at], 0, len(values), values[0], values[-1])
        found, number = looked(looks, values)
        assert found == at
        most, whole = max(most, number), whole + number
    assert most <= (6 if uneven == 1 else 20)
    assert whole / 101 <= (5 if uneven == 1 else 14)


class CountedMetadata(LocalMetadata):
    """Counts the reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def get(self, key: bytes) -> KeyValue | None:
        self.reads += 1
        return await super().get(key)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        self.reads += 1
        return await super().range(start, end, limit=limit)


class CountedLedgers(ModelLedgers):
    """Ledgers of `ENTRIES` entries each, made when they are opened; counts what is read of them."""

    reads = 0

    async def open(self, ledger_id: int, *, replica_offset: int = 0) -> ModelReader:
        if ledger_id not in self.stores:
            store = self.stores[ledger_id] = Store()
            for entry in range(ENTRIES):
                first = ((ledger_id - 1) * ENTRIES + entry) * 10
                buffers, _ = build_entry(
                    tuple(range(2 * first, 2 * first + 20, 2)),
                    (b"x",) * 10,
                    records_before=10 * entry,
                    written_ms=1000 * ledger_id + entry,
                )
                store.entries.append(b"".join(buffers))
            value = pack(["closed", ENTRIES - 1, 0, None, 0, {}])
            await self.metadata.transact(
                Transaction((), (Put(b"ledger/%016x" % ledger_id, value),))
            )
        reader = await super().open(ledger_id, replica_offset=replica_offset)
        read = reader.read

        async def counted(first: int, last: int, *, bytes_max: int) -> object:
            self.reads += 1
            return await read(first, last, bytes_max=bytes_max)

        reader.read = counted  # type: ignore[method-assign,assignment]
        return reader


class LongWorld(World):
    """A world that counts reads."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.metadata = self.counted = CountedMetadata()
        self.ledgers = self.counted_ledgers = CountedLedgers(self.metadata)

    @asynccontextmanager
    async def reads(self) -> AsyncIterator[list[int]]:
        """The reads of the store, and of entries, within the block."""
        found: list[int] = []
        self.counted.reads = self.counted_ledgers.reads = 0
        yield found
        found += [self.counted.reads, self.counted_ledgers.reads]


@pytest.fixture
async def long(nursery: trio.Nursery, autojump_clock: MockClock) -> LongWorld:
    return LongWorld(nursery)


async def lengthen(world: LongWorld, log: Log, segments: int) -> None:
    """Every tenth is empty; record n has txid 2n, and lies in segment n // 400 + 1."""
    incarnation = (await log.snapshot()).incarnation
    log_id = incarnation_id(incarnation)
    found = await world.metadata.get(state_key(log_id))
    assert found is not None
    state = LogState.decode(found.value)
    puts: list[Put] = []
    records, last_txid = 0, -1
    for number in range(1, segments + 1):
        end = EMPTY_END
        if number % 10 != 0:
            first = 2 * (number - 1) * ENTRIES * 10
            last_txid = first + 2 * (ENTRIES * 10 - 1)
            end = SegmentEnd(ENTRIES - 1, 10, ENTRIES * 10, first, last_txid, ENTRIES - 1, 9)
        record = SegmentRecord(
            number, number, 1, 1000 * number, records, True, 1000 * number + 999, end.first_txid,
            last_txid, end.records, end.size_bytes, end.last_entry, end.last_user_entry, end.last_slot,
        )  # fmt: skip
        puts.append(Put(segment_key(log_id, number), record.encode()))
        records += end.records
        if len(puts) == 1000 or number == segments:
            await world.metadata.transact(Transaction((), tuple(puts)))
            puts = []
    state = replace(
        state,
        first_open_segment=segments + 1,
        last_segment=segments,
        next_sequence_id=records,
        last_txid=last_txid,
    )
    await world.metadata.transact(Transaction((), (Put(state_key(log_id), state.encode()),)))


@pytest.mark.parametrize(("segments", "store"), few([(10, 3), (1_000, 7), (100_000, 14)], 2))
async def test_a_search_reads_little_however_long_the_log(
    long: LongWorld, autojump_clock: MockClock, segments: int, store: int
) -> None:
    """Name, state, and of the segments as many as it takes to halve them down to one page."""
    async with long.process() as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        await lengthen(long, log, segments)
        every = [n for n in (1, segments // 3, segments // 2 + 1, segments - 1) if n % 10]
        for number in every:
            first = 2 * (number - 1) * ENTRIES * 10
            for entry, slot in ((0, 0), (17, 3), (ENTRIES - 1, 9)):
                txid = first + 20 * entry + 2 * slot
                async with long.reads() as read:
                    assert await log.find(txid=txid - 1) == DLSN(number, entry, slot)
                assert read[0] <= store + 1  # the ledger's own record
                assert read[1] <= 6
                async with long.reads() as read, log.open_reader(txid=txid) as reader:
                    record = await reader.read_next()
                    assert record is not None
                    assert (record.txid, record.dlsn) == (txid, DLSN(number, entry, slot))
                assert read[0] <= store + 6  # with those of the reader that follows
                async with long.reads() as read:
                    wall_ms = 1000 * number + entry
                    assert await log.find(wall_ms=wall_ms) == DLSN(number, entry, 0)
                assert read[0] <= store + 1
        # Nothing of an empty segment is found, nor of what is after the end.
        assert await log.find(txid=2 * 9 * ENTRIES * 10 - 1) == DLSN(11, 0, 0)
        async with long.reads() as read:
            assert await log.find(txid=1 << 60) == DLSN(segments + 1, 0, 0)
        assert read == [store, 0]

        async with long.reads() as read:
            last = await log.last_dlsn()
        assert last == DLSN(segments - 1, ENTRIES - 1, 9)
        assert read[0] <= store
        async with long.reads() as read:
            shown = await log.describe(segments_max=5)
        assert [one.segment for one in shown.segments] == [*range(segments - 4, segments + 1)]
        assert shown.records == segments // 10 * 9 * ENTRIES * 10
        assert read[0] <= 2 * store + 3
        async with long.reads() as read:
            snapshot = await log.snapshot(first=segments - 1, limit=1)
        assert [one.segment for one in snapshot.segments] == [segments - 1]
        assert (snapshot.next_segment, snapshot.end_dlsn) == (segments, DLSN(segments + 1, 0, 0))
        assert snapshot.records == shown.records
        assert read == [4, 0]


async def test_pages_of_a_snapshot_are_the_whole_one(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        for txid in range(6):
            await put(log, txid)
        await log.truncate(DLSN(3, 0, 0))
        async with log.open_writer() as writer:
            await writer.write(rec(7))
            await writer.commit()
            whole = await log.snapshot()
            assert [one.segment for one in whole.segments] == [3, 4, 5, 6, 7]
            assert whole.next_segment is None
            for limit in (1, 2, 3, 4, 5, 6):
                pages, first = [await log.snapshot(limit=limit)], 0
                while (first := pages[-1].next_segment or 0) > 0:
                    pages.append(await log.snapshot(first=first, limit=limit))
                assert [one for page in pages for one in page.segments] == [*whole.segments]
                assert all(page.end_dlsn == whole.end_dlsn for page in pages)
                assert all(page.records == whole.records == 5 for page in pages)
            assert [one.segment for one in await log.segments(first=4, limit=2)] == [4, 5]
            assert await log.segments(first=8) == []
            for first, limit in ((0, 1), (1, 0)):
                with pytest.raises(InvalidRequest):
                    await log.snapshot(first=first, limit=limit)
                with pytest.raises(InvalidRequest):
                    await log.segments(first=first, limit=limit)


async def test_the_last_record_is_found_before_what_holds_none(
    world: World, autojump_clock: MockClock
) -> None:
    """Control entries, also many, and empty segments."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2, 3)
        for _ in range(3):
            async with log.open_writer():
                pass
        assert await log.last_dlsn() == DLSN(1, 2, 0)
        async with log.open_writer() as writer:
            await writer.commit()
            (ledger,) = (w for w in world.ledgers.writers if not w.over and not w.closing)
            for _ in range(20):
                ledger.add(*control_entry(3, records_before=0))
            await trio.sleep(1)
            assert await log.last_dlsn() == DLSN(1, 2, 0)
            await writer.write_bulk([rec(4), rec(5)])
            for _ in range(50):
                ledger.add(*control_entry(5, records_before=2))
            await trio.sleep(1)
            assert await log.last_dlsn() == DLSN(5, 20, 1)
            assert await log.find(txid=4) == DLSN(5, 20, 0)
        assert [record.txid for record in await everything(log)] == [1, 2, 3, 4, 5]


async def test_the_first_the_last_and_how_many_are_known_without_reading_what_is_between(
    long: LongWorld, autojump_clock: MockClock
) -> None:
    """Scenario 11's log, and the bounds of design: two segments' records and two entries."""
    async with long.process() as ns:
        await ns.create_log("l")
        log = ns.open_log("l")
        for empty in (log.first_record(), log.last_record()):
            with pytest.raises(LogEmpty):
                await empty
        assert await log.count() == 0
        await lengthen(long, log, 1000)
        first, last = await log.first_record(), await log.last_record()
        assert (first.txid, first.dlsn, first.sequence_id) == (0, DLSN(1, 0, 0), 0)
        assert (last.dlsn, last.sequence_id) == (DLSN(999, ENTRIES - 1, 9), 359_999)
        assert await log.count() == 360_000
        async with long.reads() as read:
            assert (
                await log.count(DLSN(11, 5, 3), DLSN(501, 20, 0)) == 450 * 400 + 200 - 53 - 400 * 9
            )
        assert read[0] <= 2 + 2 + 2  # with the records of the two ledgers
        assert read[1] == 2
        assert await log.count(DLSN(501, 20, 0), DLSN(11, 5, 3)) == 0
        assert await log.count(to=DLSN(5000, 0, 0)) == 360_000


async def test_counts_are_those_of_a_scan(world: World, autojump_clock: MockClock) -> None:
    """Over closed, empty and open segments, control entries, and a truncation."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2, 3)
        async with log.open_writer():
            pass
        async with log.open_writer() as writer:
            await writer.write_bulk([rec(4), rec(5), rec(6)])
            (ledger,) = (w for w in world.ledgers.writers if not w.over and not w.closing)
            ledger.add(*control_entry(6, records_before=3))
            await trio.sleep(1)
            for point in (None, DLSN(1, 1, 0), DLSN(3, 0, 1)):
                if point is not None:
                    await log.truncate(point)
                records = await everything(log)
                assert (await log.first_record()).dlsn == records[0].dlsn
                assert await log.first_record() == records[0]
                assert await log.last_record() == records[-1]
                ends = [*(record.dlsn for record in records), DLSN(3, 1, 0), DLSN(3, 2, 0), None]
                for i, start in enumerate(ends):
                    for j, end in enumerate(ends):
                        number = max(0, min(j, len(records)) - min(i, len(records)))
                        if start is not None:
                            assert await log.count(start, end) == number
                        elif j == len(ends) - 1:
                            assert await log.count() == len(records)
                if point is not None:
                    for cut in ((DLSN.INITIAL, None), (None, DLSN.INITIAL)):
                        with pytest.raises(LogTruncated):
                            await log.count(*cut)
        await log.truncate(DLSN(9, 0, 0))
        with pytest.raises(LogEmpty):
            await log.first_record()
        with pytest.raises(LogEmpty):
            await log.last_record()
        assert await log.count() == 0


async def test_sums_are_the_whole_logs_however_few_segments_are_shown(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        for txid in range(5):
            await put(log, txid)
        whole, few = await log.describe(), await log.describe(segments_max=1)
        assert len(few.segments) == 1
        assert whole.size_bytes == few.size_bytes == sum(one.size_bytes for one in whole.segments)


async def test_a_txid_is_not_searched_for_where_they_went_back(
    world: World, autojump_clock: MockClock
) -> None:
    """A search would give some place, and no one could tell that it is wrong."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2)
        key = state_key(await ns.resolve_name("l"))
        found = await world.metadata.get(key)
        assert found is not None
        state = replace(LogState.decode(found.value), had_unordered_txids=True)
        await world.metadata.transact(Transaction((), (Put(key, state.encode()),)))
        with pytest.raises(InvalidRequest, match="decreasing txids"):
            await log.find(txid=1)
        with pytest.raises(InvalidRequest, match="decreasing txids"):
            await log.open_reader(txid=1)
        assert await log.find(wall_ms=0) == DLSN(1, 0, 0)
