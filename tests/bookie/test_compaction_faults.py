"""What goes wrong while records move, or was healed since: nothing is left behind, no node ends for it."""

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import compacted_format as cb
from distributedlog.bookie.format.journal_format import file_name
from distributedlog.bookie.gc import compactor as compaction
from distributedlog.runtime.interfaces.errors import NoSuchLedger, TooBusy

from .gc.test_compactor import cold_names, compact, delete, interleaved
from .kit import KEY, SMALL, Adder, CutDisk, add_acked, read_all, record, running

Clock = trio.testing.MockClock


async def test_without_descriptors_no_half_made_file_is_left(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look left one, as long as a cold file, until the next start."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        names = disk.list()

        async def busy(number: int) -> None:
            raise TooBusy("no descriptor")

        with monkeypatch.context() as patched:
            patched.setattr(store.compactor._files, "open", busy)
            assert not await store.compactor.compact_once()

        assert disk.list() == names
        await compact(store)
        assert cold_names(disk)
        assert await read_all(store, 4) == wanted[4]


async def test_no_room_in_the_index_for_the_switch_ends_nothing(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before found room, the switch does not: the copies go, the records stay."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2, 3)
        checkpoint = store.checkpointer.try_checkpoint

        async def then_full() -> bool:
            done = await checkpoint()
            disk.full_maps = True
            return done

        with monkeypatch.context() as patched:
            patched.setattr(store.checkpointer, "try_checkpoint", then_full)
            assert not await store.compactor.compact_once()
        disk.full_maps = False
        assert await read_all(store, 4) == wanted[4]
        assert not store._journal.pinned_files
        await compact(store)

        assert {cb.compacted_file_name(number) for number in store._journal.compacted_files} == {
            *cold_names(disk)
        }
        assert await read_all(store, 4) == wanted[4]


async def test_a_cold_file_that_cannot_be_opened_ends_nothing(autojump_clock: Clock) -> None:
    """Who reads in it is told; the pages of others are given back."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        await interleaved(store, (1, 2, 3, 4), 60)
        await delete(store, 1, 2)
        await compact(store)
        await delete(store, 3)
        name = cb.compacted_file_name(next(iter(store._journal.compacted_files)))
        store._files.close()
        await disk.delete(name)

        for _ in range(3):
            await store.compactor.compact_once()


async def test_a_file_whose_rot_was_healed_is_compacted(autojump_clock: Clock) -> None:
    """What is sound of the run lies there still: it held the file until the next start."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        adder = Adder(store, 4)
        for n in range(8):
            adder.send(record(4, n))
        await adder.all_acked()
        wanted = await interleaved(store, (1, 2, 3), 60)
        await delete(store, 1, 2)
        run = store._index.find(store.ledgers.get_or_make(4), 5)
        assert run is not None
        assert run.count > 5
        disk.flip(file_name(run.file_number), run.offset + run.length - 8)
        await compact(store)
        assert file_name(run.file_number) in disk.list()

        rotten = await store.corruption_tracker.find_corrupt(4, 0, 7)
        assert await store.corruption_tracker.drop_corrupt(4, KEY, rotten)
        await compact(store)

        assert file_name(run.file_number) not in disk.list()
        assert await read_all(store, 3) == wanted[3]
        assert await read_all(store, 4, 0, 6) == dict(enumerate(adder.sent[:7]))


async def test_no_file_takes_a_number_that_a_removed_one_had(autojump_clock: Clock) -> None:
    """Without its index a start reads that the number is gone, and would take the new file for it."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, (1, 2, 3, 4), 20)
        await delete(store, 1, 2, 3)
        await compact(store)
        highest = max(store._journal.compacted_files)
        assert highest > store._journal.number
        await delete(store, 4)
        await compact(store)
        assert not store._journal.compacted_files
        wanted = await interleaved(store, (5,), 3)
    for name in disk.list():
        if name > file_name(store._journal.number) and name.startswith("journal-"):
            await disk.delete(name)  # made ahead: not yet, where the disk is full
    disk._maps = {}

    async with running(disk, SMALL) as store:
        assert not store.ledgers.limbo_below
        assert store._journal.number > highest
        assert await read_all(store, 5) == wanted[5]
        with pytest.raises(NoSuchLedger):
            store.ledgers.get_known(4, KEY)


async def test_a_number_that_no_file_was_made_of_is_taken_again(autojump_clock: Clock) -> None:
    """Unless a later one was given out meanwhile: two files would have it."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        preallocator = store._journal.preallocator
        await add_acked(store, 7)
        disk.bytes_max = disk.used_bytes
        before = preallocator.next_number
        assert await preallocator.create_next() is None
        assert preallocator.next_number == before

        create = disk.create

        async def overtaken(name: str, *, size: int = 0, direct: bool = False) -> object:
            taken.append(preallocator.next_file_number())
            return await create(name, size=size, direct=direct)

        taken: list[int] = []
        disk.create = overtaken  # type: ignore[method-assign, assignment]
        assert await preallocator.create_next() is None
        assert taken == [before + 1]
        assert preallocator.next_file_number() == before + 2


async def test_the_newer_of_two_copies_is_taken_where_the_older_was_given_back(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold file is rewritten in parts, the pages of what has moved go; then the index is lost."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        wanted = await interleaved(store, range(1, 121), 1)
        await delete(store, *range(2, 121, 2))
        await compact(store)
        (old,) = store._journal.compacted_files
        await delete(store, *range(3, 121, 4))
        live = range(1, 121, 4)
        monkeypatch.setattr(compaction, "EXTENTS_MAX", 10)
        punched = store.stats.punched_bytes
        moved = False
        while store.stats.punched_bytes == punched or not moved:
            punched = store.stats.punched_bytes
            assert await store.compactor.compact_once()
            moved = moved or store.stats.files_compacted > 1
        assert old in store._journal.compacted_files
        assert store._index.live_bytes[old]
    disk._maps = {}

    async with running(disk, SMALL) as store:
        assert not store.ledgers.limbo_below
        for ledger in live:
            assert await read_all(store, ledger) == wanted[ledger], f"ledger {ledger}"


async def test_what_came_back_is_taken_where_its_old_place_was_given_back(
    autojump_clock: Clock,
) -> None:
    """A copy was dropped, its pages given back, and it was copied here anew; then the index is lost."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        adder = await add_acked(store, 4, 40, 3000, apart_s=0.001)
        store.add_handler.close_stream(adder.stream)
        wanted = await interleaved(store, (1, 3), 40)
        await delete(store, 1)
        await compact(store)
        assert await store.replica_removal.remove_replica(4)
        await store.checkpoint()
        assert await store.compactor.compact_once()
        assert store.stats.punched_bytes
        await store.replica_removal.restore_to_limbo(4)
        again = Adder(store, 4, recovery=True)
        for n in range(40):
            again.send(adder.sent[n])
            await trio.sleep(0.001)
        await again.all_acked()
    disk._maps = {}

    async with running(disk, SMALL) as store:
        assert not store.ledgers.limbo_below
        assert await read_all(store, 3) == wanted[3]
        assert await read_all(store, 4) == dict(enumerate(adder.sent))


async def test_a_rotten_run_that_lies_partly_elsewhere_ends_no_start(
    autojump_clock: Clock,
) -> None:
    """Without its index a start steps over records by lengths that rotted."""
    disk = CutDisk()
    async with running(disk, SMALL) as store:
        adder = Adder(store, 4)
        adder.send(*(record(4, n) for n in range(8)))
        await adder.all_acked()
        others = Adder(store, 5)
        for n in range(0, 60, 10):
            others.send(*(record(5, n + m, bytes(3000)) for m in range(10)))
            await others.all_acked()
        run = store._index.find(store.ledgers.get_or_make(4), 5)
        assert run is not None
        assert run.count == 8
        await store.checkpoint()
        disk.flip(file_name(run.file_number), run.offset + len(b"".join(adder.sent[:2])) + 10)
        assert await store.corruption_tracker.drop_corrupt(
            4, KEY, await store.corruption_tracker.find_corrupt(4, 0, 7)
        )
        again = Adder(store, 4, recovery=True)
        again.send(*adder.sent[2:])
        await again.all_acked()
        await interleaved(store, (6,), 60)
        await store.checkpoint()
        copied = store._index.find(store.ledgers.get_or_make(4), 5)
        assert copied is not None
        assert copied.file_number > run.file_number
        store.compactor._work_allowed.set()
        assert await store.compactor._move([copied.file_number])
        assert cold_names(disk)
        assert file_name(run.file_number) in disk.list()
        assert await read_all(store, 4) == dict(enumerate(adder.sent))
    disk._maps = {}

    async with running(disk, SMALL) as store:
        assert not store.ledgers.limbo_below
        assert await read_all(store, 4) == dict(enumerate(adder.sent))
        assert await read_all(store, 5) == dict(enumerate(others.sent))
