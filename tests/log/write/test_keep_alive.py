"""Control entries of a writer that has nothing to write: who notices, and what they cost whoever looks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.control_record import (
    LastRecord,
    build_control_entry,
    decode_last_record,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import decode_columns, decode_header
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.runtime.interfaces.errors import CorruptData, WriteFailed
from tests.examples import few
from tests.log.conftest import World
from tests.log.model_ledger import ModelReader
from tests.log.records import everything, rec

EVERY_S = 10.0


@asynccontextmanager
async def counted_reads() -> AsyncIterator[list[int]]:
    """The entries that are asked for one by one, as searches do."""
    asked: list[int] = []
    original = ModelReader.read

    async def read(self: ModelReader, first: int, last: int, *, bytes_max: int) -> Any:
        if bytes_max == 1:
            asked.append(first)
        return await original(self, first, last, bytes_max=bytes_max)

    ModelReader.read = read  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        ModelReader.read = original  # type: ignore[method-assign]


def test_a_control_entry_says_where_the_last_record_is() -> None:
    last = LastRecord(3, 1, 40)
    buffers, length = build_control_entry(last, 50, records_before=8, written_ms=9)
    entry = b"".join(buffers)
    header = decode_header(entry)

    assert len(entry) == length
    assert (header.is_control, header.records_through, header.last_txid) == (True, 8, 50)
    assert decode_last_record(4, entry, header) == last
    for index in (0, 3):  # it is not before the record
        with pytest.raises(CorruptData):
            decode_last_record(index, entry, header)
    none, _ = build_control_entry(None, -1, records_before=0, written_ms=9)
    header = decode_header(b"".join(none))
    assert decode_last_record(4, b"".join(none), header) is None
    assert (header.records_through, header.last_txid) == (0, 0)


async def test_off_it_writes_nothing(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns, ns.open_log("l").open_writer() as writer:
        await writer.write(rec(1))
        await trio.sleep(3600)
        assert world.ledgers.writers[0].added == 1


async def test_an_idle_writer_says_that_it_lives_and_a_busy_one_need_not(
    world: World, autojump_clock: MockClock
) -> None:
    """After so long without an entry; readers see no record, and that somebody is there; log time moves."""
    async with world.process(keep_alive_s=EVERY_S) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            for txid in range(10):
                await writer.write(rec(txid))
                await trio.sleep(0.9 * EVERY_S)
            (ledger,) = world.ledgers.writers
            assert ledger.added == 10
            assert len(await reader.read_bulk(10)) == 10
            quiet = 0.0
            for _ in range(50):
                await trio.sleep(EVERY_S / 10)
                quiet = max(quiet, (await reader.idle()).idle_s)
            assert 0.8 * EVERY_S < quiet <= EVERY_S + 0.5
            assert 14 <= ledger.added <= 15
            assert await reader.read_next(wait_s=0) is None
            state = (await log.describe()).state
            pending = await writer.submit(rec(100))
            assert await pending == DLSN(1, ledger.added - 1, 0)
            await trio.sleep(20 * EVERY_S)
        shown = await log.describe()
        (segment,) = shown.segments
        assert (segment.records, segment.last_dlsn) == (11, await pending)
        assert segment.last_entry > segment.last_user_entry
        assert shown.state.time_ms - state.time_ms >= 19 * EVERY_S * 1000
        assert segment.size_bytes == sum(map(len, world.ledgers.stores[1].entries))
        assert [one.txid for one in await everything(log)] == [*range(10), 100]


async def test_it_is_a_setting_that_is_changed_while_the_log_is_open(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(1))
            await log.set({"keep_alive_s": EVERY_S})
            await trio.sleep(100)
            added = world.ledgers.writers[0].added
            assert 8 <= added <= 11
            await log.set({"keep_alive_s": None})
            await trio.sleep(6)
            added = world.ledgers.writers[0].added
            await trio.sleep(100)
            assert world.ledgers.writers[0].added == added


async def test_a_writer_whose_bookies_are_slow_is_not_idle(
    world: World, autojump_clock: MockClock
) -> None:
    """What it sent is not confirmed: nothing could say yet where the last record is."""
    async with world.process(keep_alive_s=EVERY_S) as ns, ns.open_log("l").open_writer() as writer:
        await writer.write(rec(1))
        world.ledgers.held = True
        pending = await writer.submit(rec(2))
        await trio.sleep(5 * EVERY_S)
        (ledger,) = world.ledgers.writers
        assert ledger.added == 2
        world.ledgers.release()
        assert await pending == DLSN(1, 1, 0)
        await trio.sleep(EVERY_S / 2)  # that was long ago
        assert ledger.added == 3
        assert await writer.write(rec(3)) == DLSN(1, 3, 0)


async def test_a_segment_without_records_does_not_end_for_its_age(
    world: World, autojump_clock: MockClock
) -> None:
    """Else an idle log would have a segment each two hours, for ever; by size it rolls."""
    options: dict[str, Any] = {"keep_alive_s": EVERY_S, "segment_age_max_s": 100.0}
    async with world.process(**options) as ns, ns.open_log("l").open_writer() as writer:
        await trio.sleep(250)
        assert writer.segment == 1
        await writer.write(rec(1))
        await trio.sleep(20)
        assert writer.segment == 2
        await trio.sleep(250)
        assert writer.segment == 2
    async with world.process(**options | {"segment_bytes_max": 800}) as ns:  # noqa: SIM117
        async with ns.open_log("m").open_writer() as writer:
            await trio.sleep(300)
            assert writer.segment > 2


@pytest.mark.parametrize(("before", "after"), few([(150, 150), (0, 0), (150, 0), (0, 150)], 1))
async def test_the_end_is_found_in_a_few_reads_however_long_nobody_wrote(
    world: World, autojump_clock: MockClock, before: int, after: int
) -> None:
    """What its writer counted is what recovery finds; neither walks over control entries one by one."""
    records = []
    for killed in (False, True):
        async with world.process(keep_alive_s=1.0) as ns:
            log = ns.open_log(f"l{killed}")
            writer = await log.open_writer()
            await trio.sleep(before * 1.3)
            first = (await writer.write_bulk([rec(7), rec(8), rec(8)]))[0]
            last = await writer.write(rec(9))
            await trio.sleep(after * 1.3)
            async with counted_reads() as asked:
                assert await log.last_dlsn() == last
                assert len(asked) <= 1
                assert await log.find(txid=9) == last
                assert await log.find(since=0) == await log.find(txid=0) == first
                assert len(asked) <= 60
                del asked[:]
                if killed:
                    await writer.abort()
                    async with log.open_writer():
                        pass
                    assert len(asked) <= 12, asked
                else:
                    await writer.aclose()
            record = (await log.describe()).segments[0]
            entries = world.ledgers.stores[record.ledger_id].entries
            assert (record.last_dlsn, record.last_entry) == (last, len(entries) - 1)
            assert record.size_bytes == sum(map(len, entries))
            records.append(record)
    closed, recovered = records
    for name in ("records", "first_txid", "last_txid", "last_slot", "start_sequence_id"):
        assert getattr(closed, name) == getattr(recovered, name), name
    assert closed.records == 4


@pytest.mark.parametrize("before", [0, 20])
async def test_takeover_after_control_entries_has_the_greatest_txid_not_the_last(
    world: World, autojump_clock: MockClock, before: int
) -> None:
    """Otherwise an assigned txid would be lower than a stored one, and a search would miss a record."""
    async with world.process(keep_alive_s=1.0) as ns:
        await ns.create_log("l", txids="count")
        log = ns.open_log("l")
        writer = await log.open_writer()
        await trio.sleep(before)
        greatest = await writer.write(rec(50))
        await writer.write(rec(7))
        await trio.sleep(20)
        await writer.abort()

        async with log.open_writer() as successor:
            recovered = (await log.describe()).segments[0]
            await successor.write(b"assigned")

        assert recovered.last_entry > recovered.last_user_entry, "control entries are at the end"
        assert (recovered.first_txid, recovered.last_txid) == (50, 50)
        assert await log.find(txid=50) == greatest
        assert [one.txid for one in await everything(log)] == [50, 7, 51]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 20), (20, 0), (20, 20)])
async def test_first_txid_of_an_open_segment_is_that_of_its_first_record(
    world: World, autojump_clock: MockClock, before: int, after: int
) -> None:
    """A control entry before it has the txid 0, which is that of no record."""
    async with world.process(keep_alive_s=1.0) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await trio.sleep(before)
            await writer.write(rec(7))
            await writer.write(rec(9))
            await trio.sleep(after)
            (segment,) = (await log.snapshot()).segments

    assert (segment.records, segment.first_txid, segment.last_txid) == (2, 7, 9)


async def test_it_is_written_again_where_the_ledger_fails_under_it(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(keep_alive_s=EVERY_S) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(1))
            world.ledgers.held = True
            await trio.sleep(EVERY_S + 1)
            pending = await writer.submit(rec(2))
            await trio.sleep(0.1)
            assert world.ledgers.writers[0].added == 3
            world.ledgers.held = False
            world.ledgers.writers[0].fail(WriteFailed("a bookie went"))
            assert await pending == DLSN(2, 1, 0)
            await trio.sleep(3 * EVERY_S)
        found = await everything(log)
        assert [(one.txid, one.sequence_id) for one in found] == [(1, 0), (2, 1)]


async def test_it_is_an_entry_like_any_other_to_what_is_linked_and_counted(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(keep_alive_s=EVERY_S) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for txid in range(5):
                await writer.write(rec(txid))
                await trio.sleep(5 * EVERY_S)
            assert await log.count() == 5
            position = writer.position
            await trio.sleep(5 * EVERY_S)
            assert writer.position == position
            assert position.sequence_id == 5
        async with log.open_segment_writer() as segment:
            await segment.write(rec(9))
            token = await segment.aclose()
        await log.link_segments([token])
        snapshot = await log.snapshot()
        async with log.open_ranges([one.range() for one in snapshot.segments]) as ranges:
            assert sum([columns.count async for columns in ranges]) == 6
        last = await log.last_record()
        assert (last.txid, last.sequence_id) == (9, 5)


def test_readers_of_before_pass_it_over() -> None:
    """Its section is not critical: whoever does not know it reads the entry as a control entry."""
    entry = b"".join(
        build_control_entry(LastRecord(3, 1, 40), 50, records_before=8, written_ms=9)[0]
    )
    header = decode_header(entry)
    columns = decode_columns(entry, header, SegmentRecord(1, 1, 1, 0).origin(4, header))
    assert (columns.count, columns.payload_bytes) == (1, 0)
