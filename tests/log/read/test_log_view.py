"""What a planner sees of a log: how far it goes, what lies between positions, where a share of it ends."""

import pytest
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_view import LogView, view_log
from distributedlog.runtime.interfaces.errors import LogNotFound
from tests.log.conftest import World


async def fill(ns: Namespace, *segments: list[int]) -> None:
    """Segments with entries of these numbers of records; txids count on from 0, a record a byte."""
    txid = 0
    for sizes in segments:
        async with ns.open_log("l").open_writer() as writer:
            for size in sizes:
                await writer.submit_columns(list(range(txid, txid + size)), [b"x"] * size)
                await writer.commit()
                txid += size


async def seen(ns: Namespace) -> LogView:
    return await view_log(ns.metadata, ns.ledgers, "l", await ns.resolve_name("l"))


async def test_a_view_follows_a_log_that_grows_ends_and_is_cut(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await fill(ns, [2, 3], [4])
        view = await seen(ns)
        assert [one.records for one in view.segments] == [5, 4]
        assert (view.earliest, view.end, view.tail) == (DLSN(1, 0, 0), DLSN(3, 0, 0), None)

        async with ns.open_log("l").open_writer() as writer:
            await writer.write(LogRecord(9, b"x"))
            await view.refresh()
            assert view.tail is not None
            assert (view.end, view.tail.start_sequence_id) == (DLSN(3, 1, 0), 9)
            await writer.write(LogRecord(10, b"x"))
            assert view.end == DLSN(3, 1, 0), "nothing is known before it looks again"
            await view.refresh()
            assert (view.end, view.tail.records) == (DLSN(3, 2, 0), 2)
        await ns.open_log("l").truncate(DLSN(2, 0, 1))
        await view.refresh()
        assert [view.earliest, view.end, view.tail] == [DLSN(2, 0, 1), DLSN(4, 0, 0), None]
        assert (await view.totals_before(view.end)).sequence_id == 11

        await ns.delete_log("l")
        with pytest.raises(LogNotFound):
            await view.refresh()
        assert view.end == DLSN(4, 0, 0), "what was seen stays"


async def test_what_was_seen_or_proved_stays_when_the_bookies_forget_it(
    world: World, autojump_clock: MockClock
) -> None:
    """H24."""
    async with world.process() as ns, ns.open_log("l").open_writer() as writer:
        await writer.write_bulk([LogRecord(1, b"1"), LogRecord(2, b"2")])
        await writer.write(LogRecord(3, b"3"))
        await writer.commit()
        view = await seen(ns)
        end = view.end
        world.ledgers.stores[1].lac = -1  # all bookies were restarted
        await view.refresh()
        assert view.end == end
        later = await seen(ns)
        assert later.end == DLSN(1, 0, 0)
        later.mark_readable_before(end)
        await later.refresh()
        assert later.end == end
        assert [one.entries for one in later.ranges(DLSN.INITIAL, end)] == [end.entry]


async def test_counts_shares_and_searches_meet_what_a_scan_meets(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        sizes = [[3, 1, 5], [2], [7, 7, 1]]
        await fill(ns, *sizes)
        view = await seen(ns)
        starts = {}  # the first record of each entry
        records = 0
        for segment, entries in enumerate(sizes, 1):
            for entry, size in enumerate(entries):
                starts[DLSN(segment, entry, 0)] = records
                records += size

        for place, before in starts.items():
            assert (await view.totals_before(place)).sequence_id == before
            assert (await view.totals_between(place, view.end))[0] == records - before
            for share in range(1, records - before + 1):
                end = await view.limit_position(place, view.end, records=share, size=None)
                got, _ = await view.totals_between(place, end)
                assert got <= share
                assert (
                    end == view.end
                    or (await view.totals_between(place, view.entry_after(end)))[0] > share
                )
        for txid in range(records):
            place = max(place for place, before in starts.items() if before <= txid)
            found = DLSN(place.segment, place.entry, txid - starts[place])
            assert await view.first_with_txid(txid) == found
        assert await view.first_with_txid(records) == view.end


async def test_a_slot_after_the_records_of_its_entry_counts_no_others(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await fill(ns, [2, 3], [4])
        view = await seen(ns)
        for slot, before in ((0, 0), (1, 1), (2, 2), (3, 2), (1000, 2)):
            assert (await view.totals_before(DLSN(1, 0, slot))).sequence_id == before
        assert (await view.totals_before(DLSN(1, 1, 1000))).sequence_id == 5
        assert (await view.totals_before(DLSN(1, 2, 1000))).sequence_id == 5
        assert (await view.totals_between(DLSN(1, 0, 1000), view.end))[0] == 7
        assert await view.time_at(DLSN(1, 0, 1000)) == await view.time_at(DLSN(1, 1, 0))
        assert await view.time_at(DLSN(1, 1, 1000)) == await view.time_at(DLSN(2, 0, 0))
        assert await view.time_at(DLSN(2, 0, 1000)) is None
