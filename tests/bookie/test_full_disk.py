"""Full disks: a bookie serves what it has, says why it takes nothing new, and goes on by itself."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.disk.disk_reserve import START_BYTES, Reserve, free_reserve, reserve_name
from distributedlog.bookie.gc.checkpointer import INDEX_LAG_S
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    BookieReadOnly,
    DiskFailed,
    DiskFull,
    DistributedLogError,
    NoSuchLedger,
    TooBusy,
)
from distributedlog.runtime.interfaces.host import File
from tests.conditions import codes_of

from .kit import (
    KEY,
    OPTIONS,
    SMALL,
    Adder,
    CutDisk,
    CutMap,
    PowerCut,
    add_acked,
    dies_at_step,
    fence,
    host_of,
    journal_names,
    read_all,
    record,
    running,
    some_files,
)

Clock = trio.testing.MockClock
MIB = 1 << 20
BALLAST = "ballast"


async def _fill(disk: MemoryDisk) -> None:
    """Somebody else takes what is left."""
    while BALLAST not in disk.list():
        with suppress(DiskFull):  # the bookie was quicker with a part of it
            await disk.create(BALLAST, size=disk.free_bytes())


async def _until_writable(store: BookieStore) -> None:
    for _ in range(600):
        await trio.sleep(0.1)
        if not store.space.read_only:
            return
    raise AssertionError(store.space.conditions)


async def _refused(
    store: BookieStore, ledger: int, entry: int, *, recovery: bool = False
) -> Exception:
    adder = Adder(store, ledger, recovery=recovery)
    adder.send(record(ledger, entry))
    return (await adder.refusal())[0]


# --- starts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed_while", ["full already", "there was room"])
async def test_a_full_bookie_starts_and_serves_and_goes_on_when_there_is_room(
    autojump_clock: Clock, killed_while: str
) -> None:
    """No byte is free on the journal's disk: reads, fences and deletions are served, again and again."""
    options = replace(OPTIONS, free_bytes_min=2 * MIB)
    disk = CutDisk(bytes_max=20 * MIB)
    async with running(disk, options) as store:
        adder = await some_files(store)
        if killed_while == "full already":
            await _fill(disk)
            await trio.sleep(5)
    if killed_while != "full already":
        await _fill(disk)

    for start in range(6):
        disk = disk.cut(random.Random(start))
        async with running(disk, options) as store:
            assert Code.JOURNAL_DISK_LOW in codes_of(store.space.conditions)
            assert store.ledgers.limbo_below == 0
            assert list((await read_all(store, 7)).values()) == adder.sent
            error = await _refused(store, 8, 0)
            assert isinstance(error, BookieReadOnly)
            assert "read-only: " in str(error)
            assert (await fence(store, 20 + start)).fenced
            await store.delete_ledger(40 + start)
            await trio.sleep(10)
            if disk.free_bytes():
                await disk.delete(BALLAST)
                await _fill(disk)
    async with running(disk, options) as store:
        await disk.delete(BALLAST)
        await _until_writable(store)
        assert store.space.conditions == ()
        await add_acked(store, 8)
        assert all(store.ledgers.get_known(ledger, KEY).fenced for ledger in range(20, 26))
        with pytest.raises(NoSuchLedger):
            store.ledgers.get_known(40, KEY)


@pytest.mark.properties
async def test_a_start_on_a_full_disk_that_dies_at_any_step_loses_nothing(
    autojump_clock: Clock,
) -> None:
    """What it gives up is the reserve and what nobody counts: never what was acknowledged."""
    died, steps = True, 0
    while died:
        disk = CutDisk(bytes_max=40 * SMALL.journal_file_bytes)
        async with running(disk, SMALL) as store:
            adder = await some_files(store)
            await fence(store, 9)
        await _fill(disk)
        disk = disk.cut(random.Random(steps), survive=0.5)
        died = await dies_at_step(steps, disk, serve_s=5)
        disk = disk.cut(random.Random(steps), survive=0.5)
        async with running(disk, SMALL) as store:
            assert list((await read_all(store, 7)).values()) == adder.sent, steps
            assert store.ledgers.get_known(9, KEY).fenced
            assert store.ledgers.limbo_below == 0
        steps += 1
    assert steps > 8


async def test_a_start_without_room_for_its_checkpoint_serves(autojump_clock: Clock) -> None:
    """The index's disk is full: the position stays where it was, and nothing after it goes."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        adder = await some_files(store)
    index.full_maps = True
    for _ in range(3):
        async with running(journal, SMALL, index) as store:
            assert Code.CHECKPOINT_NO_SPACE in codes_of(store.space.conditions)
            assert list((await read_all(store, 7)).values()) == adder.sent
            assert isinstance(await _refused(store, 8, 0), BookieReadOnly)
            await trio.sleep(5)
            await fence(store, 9)
    async with running(journal, SMALL, index) as store:
        index.full_maps = False
        await _until_writable(store)
        assert store.ledgers.get_known(9, KEY).fenced
        assert list((await read_all(store, 7)).values()) == adder.sent


async def test_an_index_that_falls_behind_is_told_until_it_is_written(
    autojump_clock: Clock,
) -> None:
    """It makes the next start long, and keeps all files; readers and writers see nothing of it."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        index.full_maps = True
        await fence(store, 9)
        await trio.sleep(INDEX_LAG_S / 2)
        assert Code.INDEX_BEHIND not in codes_of(store.health_conditions())
        await trio.sleep(INDEX_LAG_S)
        assert condition(Code.INDEX_BEHIND, minutes=1) in store.health_conditions()

        index.full_maps = False
        await _until_writable(store)
        await trio.sleep(2 * SMALL.checkpoint_s)
        assert store.health_conditions() == ()


async def test_a_directory_without_a_reserve_makes_do_with_what_its_files_leave(
    autojump_clock: Clock,
) -> None:
    """One of before there were reserves: the last file's end is cut, and a short file begins there."""
    disk = CutDisk(bytes_max=40 * SMALL.journal_file_bytes)
    async with running(disk, SMALL) as store:
        adder = await some_files(store)
    await disk.delete(reserve_name("journal"), reserve_name("index"))
    await _fill(disk)
    async with running(disk, SMALL) as store:
        assert store.space.read_only
        assert list((await read_all(store, 7)).values()) == adder.sent
        await fence(store, 9)


async def test_a_start_without_any_room_says_so_and_destroys_nothing(
    autojump_clock: Clock,
) -> None:
    disk = CutDisk(bytes_max=1 * MIB)
    await _fill(disk)
    for _ in range(2):
        with pytest.raises(DiskFull):
            await open_store(host_of(disk), SMALL, bookie_id="b1")
    await disk.delete(BALLAST)
    async with running(disk, SMALL) as store:
        await add_acked(store, 7)


async def test_a_block_longer_than_a_short_file_is_sealed_whole(autojump_clock: Clock) -> None:
    """What seals a file is never written over a block that was longer than the file was made."""
    disk = CutDisk(bytes_max=20 * MIB)
    store = await open_store(host_of(disk), OPTIONS, bookie_id="b1")
    await free_reserve(disk, "journal", OPTIONS.journal_file_bytes - (64 << 10))
    await _fill_file(disk, BALLAST, disk.free_bytes() - (600 << 10))
    adder = Adder(store, 7)
    while not store._journal.counters.rolls:
        adder.send(record(7, len(adder.sent), bytes(150_000)))
        await store._journal.flush(store.group_commit.on_synced)
    assert adder.acked == len(adder.sent)
    assert store._journal.file_bytes[store._journal.number] < 400 << 10
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await disk.delete(BALLAST)
        await _until_writable(store)
        more = Adder(store, 7)
        for n in range(3):
            more.send(record(7, len(adder.sent) + n, bytes(150_000)))
        await more.all_acked()
        assert store._journal.counters.rolls > 1
        nursery.cancel_scope.cancel()

    async with running(disk.cut(random.Random(1)), OPTIONS, CutDisk()) as store:
        assert list((await read_all(store, 7)).values()) == adder.sent + more.sent
        assert store.ledgers.limbo_below == 0


@pytest.mark.parametrize("error", [TooBusy, DiskFailed])
async def test_a_reserve_that_cannot_be_opened_ends_no_bookie(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, error: type[DistributedLogError]
) -> None:
    """For a lack of descriptors, or for what is wrong with that file: nothing is in it."""
    options = replace(SMALL, checkpoint_s=1e6)
    disk, index = CutDisk(bytes_max=8 * SMALL.journal_file_bytes), CutDisk()
    whole = MemoryDisk.open
    refused: set[str] = set()

    async def refuse(self: MemoryDisk, name: str) -> File:
        if name in refused and name in self.list():
            raise error(f"{name}: opening it failed")
        return await whole(self, name)

    monkeypatch.setattr(MemoryDisk, "open", refuse)
    async with running(disk, options, index) as store:
        refused |= {reserve_name("journal"), reserve_name("index")}
        await _fill(disk)
        index.full_maps = True
        await fence(store, 9)
        assert not await store.checkpointer.try_checkpoint()
        await trio.sleep(5)
        index.full_maps = False
        await disk.delete(BALLAST)
        await store.checkpoint()
        await trio.sleep(5)
        assert store.ledgers.get_known(9, KEY).fenced
    async with running(disk, options, index) as store:
        assert store.ledgers.get_known(9, KEY).fenced
        assert store.ledgers.limbo_below == 0


async def test_a_reserve_that_cannot_become_a_file_stays_the_reserve(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would find a journal file that it cannot read."""
    disk = CutDisk()
    reserve = Reserve(disk, "journal", 1 << 20)
    await reserve.ensure()
    whole = MemoryDisk.open

    async def refuse(self: MemoryDisk, name: str) -> File:
        raise TooBusy(f"{name}: too many open files")

    monkeypatch.setattr(MemoryDisk, "open", refuse)
    assert await reserve.convert_to_file("journal-000000000001") is None
    assert disk.list() == [reserve_name("journal"), reserve_name("start")]

    monkeypatch.setattr(MemoryDisk, "open", whole)
    taken = await reserve.convert_to_file("journal-000000000001")
    assert taken is not None
    assert taken[1] == 1 << 20
    assert disk.list() == ["journal-000000000001", reserve_name("start")]


async def test_a_reserve_is_made_and_given_up_one_at_a_time(autojump_clock: Clock) -> None:
    """A tick has found a short one; a checkpoint that finds no room is not quicker in between."""
    disk = CutDisk()
    (await disk.create(reserve_name("index"), size=4096)).close()
    reserve = Reserve(disk, "index", 1 << 20)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(reserve.ensure)
            nursery.start_soon(reserve.free)
            nursery.start_soon(reserve.convert_to_file, "journal-000000000001")

    assert not reserve.is_complete or reserve_name("index") in disk.list()


# --- while it runs ----------------------------------------------------------------------------------


async def test_recovery_adds_leave_the_last_file_to_fences_and_deletions(
    autojump_clock: Clock,
) -> None:
    """Copies are refused before there is no room to write a fence; and nothing ends the node."""
    disk = CutDisk(bytes_max=8 * SMALL.journal_file_bytes)
    async with running(disk, SMALL) as store:
        await _fill(disk)
        refused: list[DistributedLogError] = []
        n = 0
        while not refused:
            healing = Adder(store, 7, recovery=True)
            healing.send(record(7, n, bytes(3000)))
            await trio.sleep(0.1)
            refused = [error for error, _ in healing.refused]
            n += healing.acked
            assert n < 200
        assert isinstance(refused[0], TooBusy)
        assert n >= 8  # the rest of the current file, but for what is kept
        number = store._journal.number
        for ledger in range(100, 106):
            await fence(store, ledger)
        assert (
            store._journal.number == number
        )  # a quarter of it was kept; the reserve is not touched
        for ledger in range(106, 120):
            await fence(store, ledger)
        await store.delete_ledger(120)
        assert len(await read_all(store, 7)) == n

        await disk.delete(BALLAST)
        await _until_writable(store)
        healing = Adder(store, 7, recovery=True)
        healing.send(record(7, n, bytes(3000)))
        await healing.all_acked()


async def test_when_even_the_reserve_is_used_up_it_waits_and_lives(autojump_clock: Clock) -> None:
    """Fences are told to come again, reads are served; with space all that waited goes on."""
    disk = CutDisk(bytes_max=8 * SMALL.journal_file_bytes)
    async with running(disk, SMALL) as store:
        await add_acked(store, 7)
        await _fill(disk)
        await trio.sleep(5)
        waiting: list[int] = []
        ledger = 100
        while len(waiting) < 3:
            ledger += 1
            with trio.move_on_after(2) as scope, suppress(TooBusy):
                await fence(store, ledger)
                continue
            waiting.append(ledger)
            assert scope.cancelled_caught == (len(waiting) == 1)  # it waits; then they are refused
            assert ledger < 2000
        assert ledger > 130  # the rest of a file, the one ahead, and the reserve: a block each
        assert len(await read_all(store, 7)) == 1
        assert isinstance(await _refused(store, 8, 0), BookieReadOnly)
        await trio.sleep(100)

        await disk.delete(BALLAST)
        await _until_writable(store)
        for each in range(101, ledger + 1):
            assert (await fence(store, each)).fence_durable
    async with running(disk.cut(random.Random(1)), SMALL) as store:
        assert all(store.ledgers.get_known(each, KEY).fenced for each in range(101, ledger + 1))


async def test_what_is_deleted_on_a_full_disk_comes_back_at_once(autojump_clock: Clock) -> None:
    """Writers are refused until then, and no checkpoint is due."""
    disk = CutDisk()
    options = replace(SMALL, checkpoint_s=1e6, free_bytes_min=1 << 20)
    async with running(disk, options) as store:
        adder = Adder(store, 7)
        for n in range(60):
            adder.send(record(7, n, bytes(8000)))
            await trio.sleep(0.01)
        await adder.all_acked()
        disk.bytes_max = disk.used_bytes + options.free_bytes_min - 1
        await trio.sleep(1)
        assert isinstance(await _refused(store, 8, 0), BookieReadOnly)

        await store.delete_ledger(7)
        await trio.sleep(1)

        assert store.stats.files_removed > 0
        assert not store.space.read_only
        await add_acked(store, 8)


async def test_a_full_index_disk_stays_a_reason_until_a_checkpoint_succeeds(
    autojump_clock: Clock,
) -> None:
    """It was set by the failed checkpoint and taken back by the next look at the journal's disk."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await add_acked(store, 7)
        index.full_maps = True
        await trio.sleep(10)  # its checkpoint is due
        for _ in range(40):
            assert Code.CHECKPOINT_NO_SPACE in codes_of(store.space.conditions)
            assert store.info()["read_only_codes"] == codes_of(store.space.conditions)
            assert Code.CHECKPOINT_NO_SPACE in codes_of(store.health_conditions())
            await trio.sleep(0.1)
        assert isinstance(await _refused(store, 7, 1), BookieReadOnly)
        healing = Adder(store, 7, recovery=True)
        healing.send(record(7, 1))
        await healing.all_acked()
        await store.delete_ledger(8)

        index.full_maps = False
        await _until_writable(store)
        assert len(await read_all(store, 7)) == 2


async def test_a_reason_stays_while_what_would_end_it_is_tried_again(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that takes longer than the looks at the space, and finds no room at its end."""
    apply = CutMap.apply

    async def apply_slowly(self: CutMap, *changes: Any) -> None:
        await trio.sleep(2)
        await apply(self, *changes)

    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await add_acked(store, 7)
        index.full_maps = True
        await trio.sleep(10)
        monkeypatch.setattr(CutMap, "apply", apply_slowly)
        for _ in range(100):
            assert Code.CHECKPOINT_NO_SPACE in codes_of(store.space.conditions)
            assert store.space.read_only
            await trio.sleep(0.1)
        monkeypatch.undo()


async def test_what_the_index_disk_does_not_take_is_bounded_in_memory(
    autojump_clock: Clock,
) -> None:
    """Recovery adds as well: they are told to come again."""
    options = replace(SMALL, checkpoint_runs=5)
    index = CutDisk()
    async with running(CutDisk(), options, index) as store:
        index.full_maps = True
        n = 0
        with trio.fail_after(1000):
            while True:
                healing = Adder(store, 7, recovery=True)
                healing.send(record(7, 2 * n, b"x"))
                await trio.sleep(0.3)
                if healing.refused:
                    break
                n += 1
        assert isinstance(healing.refused[0][0], TooBusy)
        assert 80 < n < 90
        assert Code.INDEX_MEMORY_FULL in codes_of(store.space.conditions)
        await fence(store, 9)

        index.full_maps = False
        await _until_writable(store)
        healing = Adder(store, 7, recovery=True)
        healing.send(record(7, 2 * n, b"x"))
        await healing.all_acked()


async def test_the_indexs_reserve_lets_one_more_checkpoint_through(autojump_clock: Clock) -> None:
    """What was in memory, and deletions, which give space back."""

    class Tight(CutDisk):
        """Its map finds room only where the reserve was."""

        async def delete(self, *names: str) -> None:
            await super().delete(*names)
            if reserve_name("index") in names:
                self.full_maps = False

    index = Tight()
    async with running(CutDisk(), SMALL, index) as store:
        await add_acked(store, 7)
        await store.checkpoint()
        await store.delete_ledger(7)
        index.full_maps = True

        await store.checkpoint()

        assert store.info()["live_bytes"] == 0
        assert reserve_name("index") not in index.list()
        assert reserve_name("start") in index.list()  # of the next start, and of nothing else
        assert store.space.conditions
        await _until_writable(store)
        assert reserve_name("index") in index.list()


# --- the reserve --------------------------------------------------------------------------------------


async def test_a_reserve_is_given_up_in_steps_and_made_whole_again() -> None:
    disk = MemoryDisk(bytes_max=10 * MIB)
    reserve = Reserve(disk, "journal", 4 * MIB)
    await reserve.ensure()
    assert reserve.is_complete
    await _fill(disk)

    freed = []
    while await free_reserve(disk, "journal", 1 * MIB):
        freed.append(disk.free_bytes() // MIB)
    assert freed == [1, 2, 3, 4]
    assert reserve_name("journal") not in disk.list()

    await _fill_file(disk, "more", 2 * MIB)
    reserve = Reserve(disk, "journal", 4 * MIB)
    await reserve.ensure()
    assert not reserve.is_complete
    await disk.delete("more")
    await reserve.ensure()
    assert reserve.is_complete
    assert disk.free_bytes() == 0


async def test_a_reserve_becomes_a_file_without_any_space() -> None:
    disk = MemoryDisk(bytes_max=4 * MIB + START_BYTES)
    reserve = Reserve(disk, "journal", 4 * MIB)
    await reserve.ensure()

    taken = await reserve.convert_to_file("journal-000000000001")

    assert taken is not None
    assert taken[1] == 4 * MIB
    assert disk.list() == ["journal-000000000001", reserve_name("start")]
    assert not reserve.is_complete
    assert await reserve.convert_to_file("journal-000000000002") is None


async def _fill_file(disk: MemoryDisk, name: str, size: int) -> None:
    file = await disk.create(name, size=size)
    file.close()


# --- sizes ----------------------------------------------------------------------------------------------


DEFAULTS = replace(BookieOptions(), free_bytes_min=0)
GROWING = replace(
    OPTIONS,
    journal_file_bytes=2 * MIB,
    journal_file_bytes_min=256 << 10,
    gather_bytes=64 << 10,
    unsynced_bytes_max=48 << 10,
)


async def test_restarts_of_an_almost_empty_bookie_take_hardly_any_room(
    autojump_clock: Clock,
) -> None:
    """Each kept 256 MiB for good: now the last file is cut at its end, and the first ones are small."""
    disk = CutDisk()
    sizes = []
    for start in range(5):
        async with running(disk, DEFAULTS) as store:
            adder = Adder(store, start)
            adder.send(record(start, 0))
            await adder.all_acked()
            await trio.sleep(10)
            sizes.append(disk.used_bytes)
            stored = store._journal.stored_bytes
            files = [
                *journal_names(disk),
                *(name for name in disk.list() if name.startswith("cold-")),
            ]
            assert stored == sum(disk._files[name].size for name in files)
        disk = disk.cut(random.Random(start))

    assert sizes[0] < 70 * MIB  # the file, the next one, a reserve on each of two disks
    assert sizes[-1] - sizes[0] < 1 * MIB


@asynccontextmanager
async def _written(every_s: float) -> AsyncIterator[list[int]]:
    """The sizes of the files of a bookie that stores 4 KiB every so often."""
    disk = CutDisk()
    async with running(disk, GROWING) as store:
        adder = Adder(store, 7)
        for n in range(1500):
            adder.send(record(7, n, bytes(3900)))
            await trio.sleep(every_s)
        await adder.all_acked()
        yield [disk._files[name].size for name in journal_names(disk)]


async def test_files_grow_with_the_rate(autojump_clock: Clock) -> None:
    """A file is to last about five seconds: at full speed they are soon as long as they may be."""
    async with _written(0.001) as sizes:
        assert sizes[:2] == [256 << 10, 256 << 10]
        assert set(sizes[2:]) == {2 * MIB}
    async with _written(0.2) as sizes:
        assert set(sizes) == {256 << 10}


@pytest.mark.parametrize("lost_index", [False, True])
async def test_at_rest_a_bookie_gives_back_what_a_rate_had_asked_for(
    autojump_clock: Clock, lost_index: bool
) -> None:
    """After a minute: the long file is cut at its end, the next ones are short; once, not each minute."""
    disk, index = CutDisk(), CutDisk()
    async with running(disk, GROWING, index) as store:
        adder = await add_acked(store, 7, 400, 3900, apart_s=0.001)
        await trio.sleep(30)
        assert store._journal.stored_bytes > 4 * MIB
        await trio.sleep(60)
        rolls = store._journal.counters.rolls
        assert store._journal.stored_bytes < 400 * 4096 + 3 * (256 << 10)
        await trio.sleep(1000)
        assert store._journal.counters.rolls == rolls
        assert store._journal.stored_bytes == sum(
            disk._files[name].size for name in journal_names(disk)
        )
        more = await add_acked(store, 8)
    disk = disk.cut(random.Random(1))
    async with running(disk, GROWING, CutDisk() if lost_index else index) as store:
        assert list((await read_all(store, 7)).values()) == adder.sent
        assert list((await read_all(store, 8)).values()) == more.sent
        assert store.ledgers.limbo_below == 0


@pytest.mark.properties
async def test_the_power_goes_off_at_every_step_of_giving_back(autojump_clock: Clock) -> None:
    """H4: nothing that was acknowledged is cut off, and nothing looks lost."""
    died, steps = True, 0
    while died:
        died = False
        disk, index = CutDisk(), CutDisk()
        try:
            async with running(disk, GROWING, index) as store:
                adder = await add_acked(store, 7, 150, 3900, apart_s=0.001)
                await trio.sleep(30)
                disk.fuse = steps
                await trio.sleep(60)
                disk.fuse = -1
        except* PowerCut:
            died = True
        disk = disk.cut(random.Random(steps), survive=0.5)
        async with running(disk, GROWING, index if steps % 2 else CutDisk()) as store:
            assert list((await read_all(store, 7)).values()) == adder.sent, steps
            assert store.ledgers.limbo_below == 0
        steps += 1
    assert steps > 10


async def test_a_start_with_more_to_copy_than_a_file_holds_makes_the_next_one(
    autojump_clock: Clock,
) -> None:
    """Before it serves nobody makes files ahead."""
    disk = CutDisk()
    store = await open_store(host_of(disk), SMALL, bookie_id="b1")
    adder = Adder(store, 7)
    for n in range(60):
        adder.send(record(7, n, bytes(5000)))
        with trio.fail_after(10):
            await store._journal.flush(store.group_commit.on_synced)
    assert adder.acked == 60
    assert store._journal.counters.rolls > 1
    store.close()
