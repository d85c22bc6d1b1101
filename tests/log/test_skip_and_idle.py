"""Readers that pass over what is broken, when they are told to (H164), and readers to whom nothing comes."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import build_entry
from distributedlog.log.read.skipped_entries import SKIPPED_RANGES_KEPT, Skipped, SkipRecorder
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    InvalidRequest,
    LedgerStateUnknown,
    NoSuchEntry,
    ReaderIdle,
)
from tests.log.conftest import World
from tests.log.records import control_entry, everything, put, rec

DENIED = "b1: its copy is damaged; b2: it has none; b3: it has none"


async def test_what_every_replica_denies_is_passed_over_and_counted(
    world: World, autojump_clock: MockClock
) -> None:
    """Within a segment, at both its ends, and a whole one; the counts are those of what is around."""
    async with world.process() as ns:
        log = ns.open_log("l")
        for segment in range(4):
            async with log.open_writer() as writer:
                for entry in range(4):
                    txid = 8 * segment + 2 * entry
                    await writer.write_bulk([rec(txid), rec(txid + 1)])
        every = await everything(log)
        assert len(every) == 32
        broken = {(1, 0), (1, 1), (1, 3), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (4, 2)}
        world.ledgers.broken = dict.fromkeys(broken, DENIED)
        left = [r for r in every if (r.dlsn.segment, r.dlsn.entry) not in broken]

        with pytest.raises(CorruptData):
            await everything(log)
        told: list[Skipped] = []
        async with log.open_reader(to="end", broken="skip", on_skipped=told.append) as reader:
            assert [r async for r in reader] == left
            assert reader.ended
            found = reader.skipped
        assert told == [
            Skipped(DLSN(1, 0, 0), DLSN(1, 2, 0), 4, DENIED),
            Skipped(DLSN(1, 3, 0), DLSN(2, 0, 0), 2, DENIED),
            Skipped(DLSN(2, 0, 0), DLSN(2, 1, 0), 2, DENIED),
            Skipped(DLSN(3, 0, 0), DLSN(4, 0, 0), 8, DENIED),
            Skipped(DLSN(4, 2, 0), DLSN(4, 3, 0), 2, DENIED),
        ]
        assert (found.ranges, found.entries, found.records) == (5, 9, 18)
        assert found.newest == tuple(told)
        async with log.open_reader(dlsn=DLSN(1, 1, 0), to=DLSN(3, 2, 0), broken="skip") as reader:
            assert [r async for r in reader] == [r for r in left if (1, 1) <= r.dlsn[:2] <= (3, 2)]
            assert [one.records for one in reader.skipped.newest] == [None, 2, 2, None]


async def test_a_reader_that_skips_much_says_little(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost disk is a hundred thousand entries: a line in ten seconds, and all of them in `skipped`."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, *range(200))
        world.ledgers.broken = {(1, entry): DENIED for entry in range(0, 200, 2)}
        async with log.open_reader(to="end", broken="skip") as reader:
            assert len([r async for r in reader]) == 100
            assert reader.skipped.entries == 100
        told = [one for one in caplog.records if "skipped entry" in one.getMessage()]
        assert len(told) == 1


async def test_what_may_come_back_is_waited_for_and_never_passed_over(
    world: World, autojump_clock: MockClock
) -> None:
    """H164: two replicas are damaged and the third is away: that is no loss. So is nothing of a segment
    in progress, which is recovered yet."""
    async with world.process(read_retry_s=60) as ns:
        log = ns.open_log("l")
        await put(log, 1, 2, 3)
        world.ledgers.broken = {(1, 1): ""}
        async with log.open_reader(broken="skip") as reader:
            assert (await reader.read_next()) == rec(1, b"1")
            assert await reader.read_next(wait_s=30) is None
            del world.ledgers.broken[1, 1]
            assert (await reader.read_next()) == rec(2, b"2")
            assert reader.skipped.ranges == 0
        world.ledgers.broken = {(1, 1): ""}
        async with log.open_reader(broken="skip") as reader:
            assert len(await reader.read_bulk(9)) == 1
            with pytest.raises(LedgerStateUnknown, match="not all replicas confirm its loss"):
                await reader.read_next()
        world.ledgers.broken = {(2, 0): DENIED}
        async with log.open_writer() as writer:
            await writer.write_bulk([rec(4)])
            await writer.commit()
            async with log.open_reader(dlsn=DLSN(2, 0, 0), broken="skip") as reader:
                with pytest.raises((CorruptData, NoSuchEntry)):
                    await reader.read_next()


async def test_records_that_were_given_already_do_not_follow_a_skip(
    world: World, autojump_clock: MockClock
) -> None:
    """What comes after a stretch counts the records in it: fewer than none is damage, and no count."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for first in (0, 2, 4):
                await writer.write_bulk([rec(first), rec(first + 1)])
        again, _ = build_entry((4, 5), (b"4", b"5"), records_before=1, written_ms=0)
        world.ledgers.stores[1].entries[2] = b"".join(again)
        world.ledgers.broken = {(1, 1): DENIED}

        async with log.open_reader(to="end", broken="skip") as reader:
            assert len(await reader.read_bulk(9)) == 2
            with pytest.raises(CorruptData, match=r"1\.2: .* 1, but the reader is at 2"):
                await reader.read_next()


async def test_who_is_told_of_a_skip_and_raises_harms_no_reader(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2, 3)
        world.ledgers.broken = {(1, 1): DENIED}

        def boom(_: Skipped) -> None:
            raise RuntimeError("mine")

        async with log.open_reader(to="end", broken="skip", on_skipped=boom) as reader:
            assert [r.txid async for r in reader] == [1, 3]
        for bad in ({"broken": "ignore"}, {"on_skipped": boom}, {"idle_error_s": 0}):
            with pytest.raises(InvalidRequest):
                log.open_reader(**bad)


def test_the_newest_stretches_are_kept_and_all_are_counted() -> None:
    notes = SkipRecorder()
    for entry in range(SKIPPED_RANGES_KEPT + 10):
        notes.add_entry(DLSN(1, 2 * entry, 0), "why")
        notes.end_range(DLSN(1, 2 * entry + 1, 0), 1)

    found = notes.to_value()
    assert (found.ranges, found.records, len(found.newest)) == (
        SKIPPED_RANGES_KEPT + 10,
        SKIPPED_RANGES_KEPT + 10,
        SKIPPED_RANGES_KEPT,
    )
    assert found.newest[-1].first == DLSN(1, 2 * (SKIPPED_RANGES_KEPT + 9), 0)


async def test_a_reader_knows_how_long_nothing_came_and_nobody_answered(
    world: World, autojump_clock: MockClock
) -> None:
    """Silence of the writer and of the cluster are two numbers; a control entry is a sign of life."""
    async with world.process() as ns:
        log = ns.open_log("l")
        async with log.open_writer() as writer, log.open_reader(idle_error_s=10) as reader:
            await writer.write(rec(1))
            assert await reader.read_next() == rec(1)
            await trio.sleep(6)
            quiet = await reader.idle()
            assert 5.9 < quiet.idle_s < 6.5
            assert quiet.since_response_s < 2
            assert await reader.read_next(wait_s=2) is None
            (ledger,) = (w for w in world.ledgers.writers if not w.over and not w.closing)
            ledger.add(*control_entry(1, records_before=1))
            with trio.fail_after(11), pytest.raises(ReaderIdle, match="no entry arrived for 10"):
                await reader.read_next()
            assert trio.current_time() > 17
            assert await reader.read_next(wait_s=0) is None, "what does not wait is not told"
            assert await reader.read_next(wait_s=9) is None, "nor is anybody twice in that time"
            with pytest.raises(ReaderIdle):
                await reader.read_next(wait_s=2)
            world.ledgers.silent = True
            await trio.sleep(20)
            assert 18 < (await reader.idle()).since_response_s < 21
            world.ledgers.silent = False
            await writer.write(rec(2))
            await trio.sleep(0.1)
            assert await reader.read_next() == rec(2), "it goes on"


async def test_who_is_slow_to_take_is_not_told_that_nothing_came(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process(read_ahead_bytes=10, read_bytes=1) as ns:
        log = ns.open_log("l")
        await put(log, *range(5))
        async with log.open_writer(), log.open_reader(idle_error_s=5) as reader:
            for txid in range(5):
                await trio.sleep(20)
                assert (await reader.read_next()) == rec(txid, b"%d" % txid)
