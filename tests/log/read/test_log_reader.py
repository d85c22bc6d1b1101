"""Where a reader begins and ends, how it waits, and what ends it."""

import re
from dataclasses import replace

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord, build_entry
from distributedlog.log.log import Log
from distributedlog.log.model.log_keys import incarnation_id, segment_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.position import Position
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    EndOfStream,
    InvalidRequest,
    LogTruncated,
    NoSuchLedger,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import control_entry, everything, rec
from tests.parts import files_of


async def fill(log: Log, txids: list[list[int]]) -> list[LogRecord]:
    """A segment a list, an entry for every three records; what a reader finds."""
    for segment in txids:
        async with log.open_writer() as writer:
            for at in range(0, len(segment), 3):
                await writer.write_bulk([rec(txid) for txid in segment[at : at + 3]])
    return await everything(log)


async def test_from_any_dlsn_and_its_next(world: World, autojump_clock: MockClock) -> None:
    """Also across a segment border, and between records."""
    async with world.process() as ns:
        log = ns.open_log("l")
        records = await fill(log, [[1, 2, 3, 4], [], [5, 6], [7]])
        assert [r.dlsn for r in records] == sorted({r.dlsn for r in records})

        for i, record in enumerate(records):
            async with log.open_reader(dlsn=record.dlsn, to="end") as reader:
                assert await reader.read_next() == record
            async with log.open_reader(dlsn=record.dlsn.next(), to="end") as reader:
                following = await reader.read_next()
            if i + 1 < len(records):
                assert following is not None
                assert following.dlsn == records[i + 1].dlsn
                assert following.sequence_id == i + 1
            else:
                assert following is None


async def test_the_end_that_to_sets(world: World, autojump_clock: MockClock) -> None:
    """Up to and with `to`; "end" is the last readable position at opening."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer():
            pass
        async with log.open_reader(to="end") as empty:
            assert await empty.read_next() is None
            assert [r async for r in empty] == []
        records = await fill(log, [[1, 2, 3, 4], [5, 6]])
        for i, record in enumerate(records):
            async with log.open_reader(to=record.dlsn) as reader:
                assert [r.dlsn async for r in reader] == [r.dlsn for r in records[: i + 1]]
                assert reader.ended
        async with log.open_reader(dlsn=records[3].dlsn, to=records[1].dlsn) as reader:
            assert await reader.read_bulk(5) == []
        async with log.open_reader(to=DLSN(2, 99, 0)) as reader:  # between two segments
            assert len([r async for r in reader]) == 4


async def test_after_the_latest(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3]])
        async with log.open_reader(at="latest") as before_writer, log.open_writer() as writer:
            await writer.write(rec(4))
            await writer.commit()
            async with log.open_reader(at="latest") as reader:
                await writer.write(rec(5))
                found = await reader.read_next()
                assert found is not None
                assert found.txid == 5
            assert [r.txid for r in await before_writer.read_bulk(2, wait_s=1)] == [4, 5]


@pytest.mark.properties
@given(st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=5), st.booleans())
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
def test_by_txid_gives_what_a_linear_scan_gives(steps: list[list[int]], opened: bool) -> None:
    """Txids with duplicates and holes over several segments, one of them in progress."""
    txids, last = [], 0
    for segment in steps:
        txids.append([last := last + step for step in segment])

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            ns = world.namespace(nursery, "p", {})
            log = ns.open_log("l")
            records = await fill(log, txids)
            writer = None
            if opened:
                writer = await log.open_writer()
                await writer.write_bulk([rec(last), rec(last + 2)])
                await writer.commit()
                records = await everything(log)
            for txid in range(last + 4):
                scan = [r.dlsn for r in records if r.txid >= txid]
                async with log.open_reader(txid=txid, to="end") as reader:
                    assert [r.dlsn async for r in reader] == scan, (txid, txids)
            nursery.cancel_scope.cancel()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_txid_that_is_not_there_yet(world: World, autojump_clock: MockClock) -> None:
    """Beyond the end: the first record that comes with such a txid."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader(txid=10) as reader:
            await writer.write_bulk([rec(1), rec(9)])
            await writer.write_bulk([rec(9), rec(12), rec(13)])
            assert [r.txid for r in await reader.read_bulk(2, wait_s=1)] == [12, 13]


async def test_bulk_reads_wait_for_the_first_then_for_the_time(
    world: World, autojump_clock: MockClock
) -> None:
    """``read_bulk(100, 50 ms)``."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            await writer.write_bulk([rec(1), rec(2), rec(3)])
            await writer.commit()
            began = trio.current_time()
            assert len(await reader.read_bulk(100, wait_s=0.05)) == 3
            assert trio.current_time() - began == pytest.approx(0.05, abs=0.01)

            async with trio.open_nursery() as nursery:

                async def later() -> None:
                    await trio.sleep(10)
                    await writer.write(rec(4))

                nursery.start_soon(later)
                found = await reader.read_bulk(100, wait_s=0.05)
            assert [r.txid for r in found] == [4]  # on an empty tail it waits for the first
            assert trio.current_time() - began > 10
            assert await reader.read_bulk(100, wait_s=0) == []
            with pytest.raises(InvalidRequest):
                await reader.read_bulk(0)


async def test_read_next_waits_as_long_as_told(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await ns.create_log("l")
        async with log.open_reader() as reader:
            began = trio.current_time()
            assert await reader.read_next(wait_s=0) is None
            assert trio.current_time() == began
            assert await reader.read_next(wait_s=3) is None
            assert trio.current_time() == pytest.approx(began + 3)
            async with log.open_writer() as writer:
                await writer.write(rec(1))
                assert await reader.read_next() == rec(1)


async def test_columns_are_the_rest_of_the_entry_at_hand(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3, 4, 5]])
        async with log.open_reader(to=DLSN(1, 1, 0)) as reader:
            assert (await reader.read_next()) == rec(1)
            rest = await reader.read_columns()
            assert rest is not None
            assert (rest.first_dlsn, rest.first_sequence_id, rest.count) == (DLSN(1, 0, 1), 1, 2)
            assert rest.txids.tolist() == [2, 3]
            following = await reader.read_columns()
            assert following is not None
            assert following.tuples() == [(4, b"x")]
            assert await reader.read_columns() is None


async def test_read_ahead_is_bounded_in_bytes(world: World, autojump_clock: MockClock) -> None:
    async with world.process(read_ahead_bytes=5000, read_bytes=1000) as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for i in range(50):
                await writer.write(rec(i, bytes(1000)))
        async with log.open_reader() as reader:
            await trio.sleep(1)
            assert 5000 <= reader._queue.buffered_bytes <= 7000
            assert len(await reader.read_bulk(50, wait_s=1)) == 50


async def test_control_entries_are_skipped_and_counted_nowhere(
    world: World, autojump_clock: MockClock
) -> None:
    """Not visible, and no sequence id is lost."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write(rec(1))
            ledger = world.ledgers.writers[0]
            ledger.add(*control_entry(1, records_before=1))
            await trio.sleep(0.1)
            await writer.write(rec(2))
            await writer.abort()
        # What recovery counts from the entries is what the writer would have.
        async with log.open_writer() as writer:
            await writer.write(rec(3))
        async with log.open_reader(to="end") as reader:
            assert [(r.txid, r.sequence_id, str(r.dlsn)) async for r in reader] == [
                (1, 0, "1.0.0"), (2, 1, "1.2.0"), (3, 2, "2.0.0"),
            ]  # fmt: skip


async def test_the_end_of_a_sealed_log(world: World, autojump_clock: MockClock) -> None:
    """EndOfStream after the last record; iteration just ends."""
    async with world.process() as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await writer.write(rec(1))
        async with log.open_reader() as reader:
            assert await reader.read_next() == rec(1)
            await writer.mark_end_of_stream()
            assert [r.txid async for r in reader] == []
            for _ in range(2):
                with pytest.raises(EndOfStream):
                    await reader.read_next()


async def change_state(world: World, log_id: int, **changes: object) -> None:
    found = await world.metadata.get(state_key(log_id))
    assert found is not None
    state = replace(LogState.decode(found.value), **changes)  # type: ignore[arg-type]
    await world.metadata.transact(Transaction((), (Put(found.key, state.encode()),)))


async def test_truncation_is_a_definite_error_never_a_gap(
    world: World, autojump_clock: MockClock
) -> None:
    """H30: with the first position that is left."""
    async with world.process(read_ahead_bytes=1) as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
        async with log.open_reader() as late, log.open_reader(dlsn=DLSN(3, 0, 0)) as ahead:
            await trio.sleep(1)
            await log.truncate(DLSN(3, 0, 1))

            assert [r.txid for r in await late.read_bulk(9, wait_s=5)] == [1, 2, 3]
            for _ in range(2):
                with pytest.raises(LogTruncated, match=r"first position is 3\.0\.1"):
                    await late.read_next()
            assert len(await ahead.read_bulk(3)) == 3
        async with log.open_reader(at="earliest", to="end") as reader:
            assert [r.txid async for r in reader] == [8, 9]


async def test_a_position_below_the_truncation_point_is_truncated_also_the_very_first(
    world: World, autojump_clock: MockClock
) -> None:
    """G6: a saved position that begins where the log began is no word for "the earliest that is left"."""
    async with world.process() as ns:
        log = ns.open_log("l")
        records = await fill(log, [[], [1, 2, 3, 4, 5, 6, 7]])
        await log.truncate(DLSN(2, 0, 0))
        async with log.open_reader(dlsn=DLSN.INITIAL, to="end") as reader:  # nothing was lost yet
            assert await reader.read_bulk(9) == records
        for cut in range(1, len(records)):
            point = await log.truncate(records[cut].dlsn)
            for place in [DLSN.INITIAL, *(record.dlsn for record in records[:cut])]:
                with pytest.raises(LogTruncated, match='at="earliest"') as caught:
                    await log.open_reader(dlsn=place)
                assert DLSN.parse(caught.value.first) == point
            for left in range(cut, len(records)):
                async with log.open_reader(dlsn=records[left].dlsn, to="end") as reader:
                    assert await reader.read_next() == records[left]


def test_what_is_read_is_never_decided_by_equality_with_the_first_position() -> None:
    """G6: "from the beginning" is no position; whoever compares one with it takes it for that."""
    for part in ("log", "distributedlog", "cli", "spark", "ledger"):
        for file in files_of(part):
            found = re.search(r"[=!]= *DLSN(\.INITIAL|\(1, 0, 0\))", file.read_text())
            assert found is None, f"{file}: {found}"


async def test_a_miss_under_the_current_state_is_data_loss_and_said(
    world: World, autojump_clock: MockClock
) -> None:
    """H30: only after the log's state was read again."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3]])
        del world.ledgers.stores[1]
        original = world.ledgers.open

        async def without(ledger_id: int, *, replica_offset: int = 0):  # type: ignore[no-untyped-def]
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")

        world.ledgers.open = without  # type: ignore[method-assign]
        async with log.open_reader() as reader:
            with pytest.raises(NoSuchLedger):
                await reader.read_next()
        world.ledgers.open = original  # type: ignore[method-assign]


async def test_a_damaged_entry_ends_the_reader_after_what_was_good(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3, 4]])
        world.ledgers.stores[1].entries[1] = b"nonsense" * 20
        async with log.open_reader() as reader:
            assert len(await reader.read_bulk(9, wait_s=1)) == 3
            for _ in range(2):
                with pytest.raises(CorruptData):
                    await reader.read_next()


async def test_a_damaged_entry_at_the_tail_ends_the_reader(
    world: World, autojump_clock: MockClock
) -> None:
    """Handed over or read, it is the reader who hears of it, after what was good."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader() as reader:
            for txid in (1, 2, 3):
                await writer.write(rec(txid))
                assert await reader.read_next(wait_s=5) == rec(txid)
            store = world.ledgers.stores[1]
            good, _ = build_entry((3,), (b"x",), records_before=3, written_ms=0)
            store.entries += [b"".join(good), b"nonsense" * 20]
            store.durable += 2
            store.learn_lac(len(store.entries) - 1)
            assert await reader.read_next(wait_s=5) == rec(3)
            for _ in range(2):
                with pytest.raises(CorruptData):
                    await reader.read_next(wait_s=5)
            await writer.abort()


async def test_a_gap_is_damage_and_said_with_both_numbers(
    world: World, autojump_clock: MockClock
) -> None:
    """Between entries and between segments; G1, G6."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3, 4, 5], [6], [7, 8, 9, 10]])
        ranges = [one.range() for one in (await log.snapshot()).segments]

        async def meets(said: str, records: int) -> None:
            async with log.open_reader(to="end") as reader:
                assert len(await reader.read_bulk(99, wait_s=1)) == records
                with pytest.raises(CorruptData, match=said):
                    await reader.read_next()

        entries = world.ledgers.stores[3].entries
        kept = entries[1]
        lost, _ = build_entry((10,), (b"x",), records_before=4, written_ms=0)
        entries[1] = b"".join(lost)
        await meets(r"entry 3.1: .* sequence id 10, and 9 should", 9)
        async with log.open_ranges(ranges) as found:
            with pytest.raises(CorruptData, match="sequence id 10, and 9 should"):
                assert [columns.count async for columns in found] == []
        entries[1] = kept
        key = segment_key(incarnation_id(ranges[0].incarnation), 2)
        at = await world.metadata.get(key)
        assert at is not None
        wrong = replace(SegmentRecord.decode(at.value), start_sequence_id=7)
        await world.metadata.transact(Transaction((), (Put(key, wrong.encode()),)))
        await meets(r"entry 2.0: .* sequence id 7, and 5 should", 5)
        async with log.open_reader(
            dlsn=DLSN(2, 0, 0)
        ) as reader:  # what is before it is not known here
            assert (await reader.read_next()) == rec(6)
        known = Position(ranges[0].incarnation, DLSN(2, 0, 0), 5)  # here it is
        async with log.open_reader(position=known) as reader:
            with pytest.raises(CorruptData, match="sequence id 7, and 5 should"):
                await reader.read_next()


async def test_a_position_proves_nothing_about_what_lies_there(
    world: World, autojump_clock: MockClock
) -> None:
    """G5: anybody writes a DLSN down. What is at bookies and not confirmed is never given, wherever a reader
    begins: recovery may cut it off. Neither is it by a position that was stored."""
    async with world.process() as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await writer.write_bulk([rec(1), rec(2)])
        await writer.commit()
        store = world.ledgers.stores[1]
        for number in range(1, 11):  # at one bookie, and acknowledged to nobody
            store.entries.append(
                b"".join(
                    build_entry([9, 9], [b"", b""], records_before=2 * number, written_ms=0)[0]
                )
            )
        store.tell()

        for entry in range(12):
            for slot in (0, 1, 2):
                place = DLSN(1, entry, slot)
                await log.positions.advance(f"{place}", place)
                async with log.open_reader(dlsn=await log.positions.get(f"{place}")) as reader:
                    found = await reader.read_bulk(9, wait_s=1) if place < DLSN(1, 0, 2) else []
                    assert [r.txid for r in found] == ([1, 2][slot:] if entry == 0 else [])
                    assert await reader.read_next(wait_s=1) is None

        del store.entries[1:]  # a recovery that finds one bookie the less
        await writer.abort()
        async with log.open_writer() as second:
            await second.write(rec(3))
        assert [r.txid for r in await everything(log)] == [1, 2, 3]


async def test_what_was_delivered_may_be_hidden_for_a_moment_and_is_never_lost(
    world: World, autojump_clock: MockClock
) -> None:
    """G5, H24: when all bookies have forgotten how far is confirmed, a reader goes on with the next."""
    async with world.process() as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await writer.write_bulk([rec(1), rec(2)])
        await writer.commit()
        world.ledgers.stores[1].lac = -1  # all bookies were restarted

        async with (
            log.open_reader(dlsn=DLSN(1, 0, 1)) as reader,
            log.open_reader(dlsn=DLSN(1, 0, 2)) as late,
        ):
            assert await reader.read_next(wait_s=1) is None
            assert await late.read_next(wait_s=1) is None
            await writer.write(rec(3))
            assert await reader.read_bulk(3, wait_s=5) == [rec(2), rec(3)]
            assert await late.read_bulk(3, wait_s=5) == [rec(3)]
        await writer.aclose()


async def test_a_plan_proves_what_it_was_told_can_be_read(
    world: World, autojump_clock: MockClock
) -> None:
    """H24: a snapshot saw it confirmed; its ranges are read whatever the bookies remember. So is a position
    below a truncation point, which was placed below what could be read."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            await writer.write_bulk([rec(1), rec(2)])
            await writer.write_bulk([rec(3), rec(4)])
            await writer.commit()
            plan = (await log.snapshot()).segments[0].range()
            await log.truncate(DLSN(1, 1, 1))
            world.ledgers.stores[1].lac = -1  # all bookies were restarted

            with pytest.raises(LogTruncated):
                await log.open_reader(dlsn=DLSN(1, 1, 0))
            with pytest.raises(LogTruncated):
                await log.open_ranges([plan])
            async with log.open_ranges([replace(plan, first_entry=1, first_slot=1)]) as ranges:
                assert [c.txids.tolist() async for c in ranges] == [[4]]


async def test_a_closed_reader_says_so(world: World, autojump_clock: MockClock) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await fill(log, [[1, 2, 3]])
        reader = await log.open_reader()
        await reader.read_next()
        await reader.aclose()
        with pytest.raises(AlreadyClosed):
            await reader.read_next()
