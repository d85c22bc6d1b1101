"""What a bookie promises, at its store: reads, long polls, LACs, space, bounds."""

from dataclasses import replace

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.format.journal_format import FILE_PREFIX, file_name
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    BookieReadOnly,
    CorruptData,
    LedgerStateUnknown,
    NoSuchLedger,
    TooBusy,
    WrongLedgerKey,
)

from ..kit import (
    KEY,
    OPTIONS,
    Adder,
    CutDisk,
    CutFile,
    Poller,
    add_acked,
    fence,
    ids,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock
SMALL = replace(
    OPTIONS, journal_file_bytes=128 << 10, gather_bytes=64 << 10, unsynced_bytes_max=48 << 10
)


async def test_what_was_acked_is_read(autojump_clock: Clock) -> None:
    """G1: many frames of many ledgers, all come back as they were sent."""
    async with running(MemoryDisk()) as store:
        adders = [Adder(store, ledger) for ledger in range(1, 6)]
        for frame in range(20):
            for adder in adders:
                adder.send(*(record(adder.ledger, frame * 5 + n) for n in range(5)))
        for adder in adders:
            await adder.all_acked()

        for adder in adders:
            assert list((await read_all(store, adder.ledger)).values()) == adder.sent


async def test_reads_hand_out_memory_of_their_own(autojump_clock: Clock) -> None:
    """H16, H17: the ring is used again and again; what was read before stays what it was."""
    async with running(CutDisk(), SMALL) as store:
        adder = Adder(store, 7)
        kept = []
        for n in range(100):
            adder.send(record(7, n, bytes([n]) * 3000))
            await adder.all_acked()
            kept += store.collect(store.ledgers.get_known(7, KEY), n, n, 9999).parts

        assert kept == adder.sent


async def test_a_read_that_ends_after_missing_entries_reports_only_those_as_missing(
    autojump_clock: Clock,
) -> None:
    """The entry after them does not fit into the reply: it is stored, and was not read."""
    async with running(MemoryDisk()) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0), record(7, 1))
        adder.send(record(7, 5, bytes(3000)))
        await adder.all_acked()

        found = store.collect(store.ledgers.get_known(7, KEY), 0, 9, 500)

        assert [each.entry for part in found.parts for each in entries.records(part)] == [0, 1]
        assert found.complete_to == 4
        assert sorted(await read_all(store, 7)) == [0, 1, 5]


async def test_a_lack_of_descriptors_holds_up_the_next_file_and_ends_nothing(
    autojump_clock: Clock,
) -> None:
    """H108: the disk is well; a descriptor comes free."""

    class Starved(CutDisk):
        starved = False

        async def create(self, name: str, *, size: int = 0, direct: bool = False) -> CutFile:
            if self.starved and name.startswith(FILE_PREFIX):
                raise TooBusy(f"{name}: too many open files")
            return await super().create(name, size=size, direct=direct)

    disk = Starved()
    async with running(disk, SMALL) as store:
        await trio.sleep(1)
        disk.starved = True
        adder = Adder(store, 7)
        for n in range(150):
            adder.send(record(7, n, bytes(3000)))
            await trio.sleep(0.01)
        await trio.sleep(5)
        assert 0 < adder.acked < 150
        assert not store.space.read_only

        disk.starved = False
        await adder.all_acked()
        assert list((await read_all(store, 7)).values()) == adder.sent


async def test_damage_that_a_read_meets_is_told(autojump_clock: Clock) -> None:
    """With the reader, and with whoever looks at this bookie."""
    disk = CutDisk()
    async with running(disk) as store:
        await add_acked(store, 7)
        await store.checkpoint()
        place = store._index.find(store.ledgers.get_known(7, KEY), 0)
        assert place is not None
        await trio.sleep(1)
    disk._files[file_name(place.file_number)].write(place.offset, [bytes(64)], 64, "rot")

    async with running(disk) as store:
        before = store.health_conditions()
        with pytest.raises(CorruptData):
            await read_all(store, 7)

        told = {one.code: one for one in store.health_conditions() if one not in before}
        assert told[Code.DAMAGED_READS].integer("reads") == 1
        assert Code.ENTRIES_CORRUPT in told, "what is to be repaired is a condition of its own"


async def test_long_polls(autojump_clock: Clock) -> None:
    """The next entry, the time, a fence; and an unknown ledger is no answer."""
    async with running(CutDisk(sync_s=0.001)) as store:
        adder, poller = Adder(store, 7), Poller()
        poller.wait(store, 7, -1, wait_s=5)
        adder.send(record(7, 0), record(7, 1))
        await trio.sleep(0.01)
        assert poller.answers == [(0, False, None)]

        start = trio.current_time()
        poller.wait(store, 7, 0, wait_s=0.5)
        await poller.changed.wait()
        await trio.sleep(0.6)
        assert poller.answers[1:] == [(0, False, None)]
        assert trio.current_time() - start < 1.2

        poller.wait(store, 7, 0, wait_s=60)
        await fence(store, 7)
        assert poller.answers[2:] == [(0, True, None)]
        poller.wait(store, 9, -1, wait_s=0.2)
        await trio.sleep(0.3)
        assert poller.answers[3:] == [(-1, False, None)]
        assert store.long_polls.waiting_count == 0


async def test_deleting_a_ledger_tells_those_who_wait(autojump_clock: Clock) -> None:
    async with running(CutDisk()) as store:
        adder, poller = Adder(store, 7), Poller()
        adder.send(record(7, 0))
        await adder.all_acked()
        poller.wait(store, 7, 5, wait_s=60)

        await store.delete_ledger(7)

        assert isinstance(poller.answers[0][2], NoSuchLedger)
        with pytest.raises(NoSuchLedger):
            poller.wait(store, 7, -1)


async def test_lacs_are_published_after_the_sync_and_never_move_back(
    autojump_clock: Clock,
) -> None:
    """Inv. 5, H24: from adds after their sync, explicit ones at once, none after a fence."""
    async with running(CutDisk(sync_s=0.1)) as store:
        adder = Adder(store, 7)
        adder.send(*(record(7, n) for n in range(5)))
        await trio.sleep(0.05)
        ledger = adder.stream.ledger
        assert ledger.lac == -1
        await adder.all_acked()
        assert ledger.lac == 3

        store.write_lac(adder.stream, 4)
        store.write_lac(adder.stream, 2)
        adder.send(record(7, 5, lac=1))
        await adder.all_acked()
        assert ledger.lac == 4

        await fence(store, 7)
        store.write_lac(adder.stream, 5)
        assert ledger.lac == 4


async def test_a_lac_is_taken_of_who_writes_what_is_stored_and_wakes_who_waits(
    autojump_clock: Clock,
) -> None:
    """Inv. 5, D18: a recovery tells none; of a ledger of which nothing is stored nothing becomes known."""
    async with running(CutDisk(sync_s=0.001)) as store:
        adder, unknown = await add_acked(store, 7, 3), Adder(store, 8)
        recovering = Adder(store, 7, recovery=True)
        poller = Poller()
        poller.wait(store, 7, 1, wait_s=60)
        store.write_lac(recovering.stream, 2)
        store.write_lac(unknown.stream, 5)
        await trio.sleep(1)
        assert not poller.answers
        assert unknown.stream.ledger.lac == -1
        assert not unknown.stream.ledger.is_known

        store.write_lac(adder.stream, 2)
        await trio.sleep(1)
        assert poller.answers == [(2, False, None)]


async def test_a_full_disk_keeps_room_for_fences_and_recovery(autojump_clock: Clock) -> None:
    """H28: read-only, the reserve for control and recovery adds; then writable again."""
    disk = CutDisk(bytes_max=7 * SMALL.journal_file_bytes)
    async with running(disk, SMALL) as store:
        adder = Adder(store, 7)
        n = 0
        while not adder.refused:
            adder.send(record(7, n, bytes(3000)))
            n += 1
            await trio.sleep(0.05)
            assert n < 1000
        assert isinstance(adder.refused[0][0], BookieReadOnly)
        await fence(store, 7)
        healing = Adder(store, 7, recovery=True)
        healing.send(record(7, n, bytes(3000)))
        await healing.all_acked()
        assert len(await read_all(store, 7)) == adder.acked + 1

        disk.bytes_max = 20 * SMALL.journal_file_bytes
        await trio.sleep(3)
        await add_acked(store, 8)


async def test_little_space_means_read_only(autojump_clock: Clock) -> None:
    """H28: by the free bytes of the device, and back without a restart."""
    disk = CutDisk(bytes_max=4 << 20)
    options = replace(SMALL, free_bytes_min=2 << 20)
    async with running(disk, options) as store:
        assert not store.space.read_only
        ballast = await disk.create("ballast", size=3 << 20)
        await trio.sleep(1)
        assert store.space.read_only
        ballast.close()
        await disk.delete("ballast")
        await trio.sleep(1)
        assert not store.space.read_only


async def test_gathered_bytes_are_bounded_and_all_is_acked(autojump_clock: Clock) -> None:
    """Ten times what fits is offered at once while the disk is slow."""
    async with running(CutDisk(sync_s=0.5), SMALL) as store:
        adders = [Adder(store, ledger) for ledger in range(1, 11)]
        for n in range(40):
            for adder in adders:
                adder.send(record(adder.ledger, n, bytes(2000)))
                assert store._buffer.unsynced_bytes <= SMALL.unsynced_bytes_max
        for adder in adders:
            await adder.all_acked()
        for adder in adders:
            assert len(await read_all(store, adder.ledger)) == 40


async def test_ledgers_nobody_wrote_to_are_not_remembered(autojump_clock: Clock) -> None:
    """Bounds: streams and long polls on unknown ledgers leave nothing behind."""
    async with running(CutDisk()) as store:
        for ledger in range(100):
            store.add_handler.close_stream(Adder(store, ledger).stream)
        assert await ids(store) == []
        assert store.info()["ledgers"] == 0


async def test_keys_are_checked_before_anything_is_said(autojump_clock: Clock) -> None:
    async with running(CutDisk()) as store:
        adder = await add_acked(store, 7)

        with pytest.raises(WrongLedgerKey):
            store.ledgers.get_known(7, b"x" * 16)
        with pytest.raises(WrongLedgerKey):
            await fence(store, 7, b"x" * 16)
        assert not adder.stream.ledger.fenced


async def test_rot_under_a_read_is_said_and_never_served_as_absent(autojump_clock: Clock) -> None:
    """The disk lied: `CorruptData`, never "no such entry"."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        adder = await add_acked(store, 7, 60, 5000)
        run = store._index.find(adder.stream.ledger, 0)
        assert run is not None
        await store.checkpoint()  # replayed no more, so nobody looked at it before it is read
        disk.flip(file_name(run.file_number), run.offset + 24)
    async with running(disk, SMALL) as store:
        with pytest.raises(CorruptData):
            await read_all(store, 7, 0, 0)


async def test_a_damaged_index_value_ends_the_node_and_says_unknown(
    autojump_clock: Clock,
) -> None:
    """Never a silently wrong answer; the next start builds the index again."""
    journal, index = CutDisk(), CutDisk()
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with running(journal, SMALL, index) as store:
            adder = Adder(store, 7)
            adder.send(*(record(7, n) for n in range(10)))
            await adder.all_acked()
            await store.checkpoint()
            pairs = index._maps["bookie"]
            key = next(key for key in pairs.keys if key.startswith(b"r"))
            pairs.values[key] = bytes(len(pairs.values[key]))
            with pytest.raises(LedgerStateUnknown):
                await read_all(store, 7)
            await trio.sleep(10)
    assert caught.group_contains(CorruptData)

    async with running(journal, SMALL, index) as store:
        assert list((await read_all(store, 7)).values()) == adder.sent


async def test_a_checkpoint_keeps_what_changes_meanwhile(autojump_clock: Clock) -> None:
    """H34: slices are prepared while adds go on; nothing is lost between them."""
    index = CutDisk()
    async with running(CutDisk(), OPTIONS, index) as store:
        adders = [Adder(store, ledger) for ledger in range(1, 4)]

        async def add(adder: Adder) -> None:
            for n in range(50):
                adder.send(record(adder.ledger, n))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for adder in adders:
                nursery.start_soon(add, adder)
            for _ in range(20):
                await store.checkpoint()
        for adder in adders:
            await adder.all_acked()
            assert list((await read_all(store, adder.ledger)).values()) == adder.sent


async def test_to_look_at_the_counters_changes_none(autojump_clock: Clock) -> None:
    """How late the loop ran is told to everybody who asks, for a minute."""
    async with running(MemoryDisk()) as store:
        await trio.sleep(0.1)
        autojump_clock.jump(5.0)
        await trio.sleep(0.5)

        first, second = store.info(), store.info()

        assert first == second
        assert float(str(first["loop_lag_max_ms"])) > 4000
        await trio.sleep(61)
        assert float(str(store.info()["loop_lag_max_ms"])) < 1
