"""Survivors: blocks that a start finds and that nothing proves synced (H4).

They count where they were found until their copies are durable, and never again there afterwards.
"""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from distributedlog.bookie.format.journal_format import IDENTITY_FILE_NAME, file_number
from distributedlog.bookie.storage.index import MAP_NAME
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.interfaces.errors import CorruptData, DiskFailed
from tests.examples import few

from ..kit import MANUAL, SMALL, Adder, CutDisk, dies_at_step, host_of, read_all, record, running

Clock = trio.testing.MockClock


async def _acknowledged(disk: CutDisk, index: CutDisk) -> list[bytes]:
    """Records that are synced and acknowledged, and no block after them says so: the power goes off."""
    async with running(disk, SMALL, index) as store:
        adder = Adder(store, 7)
        for n in range(4):
            adder.send(record(7, n, bytes(500)))
            await adder.all_acked()
        return adder.sent


@pytest.mark.parametrize("lost_index", few([False, True], 1))
@pytest.mark.parametrize("survive", few([0.0, 1.0], 1))
async def test_a_start_that_dies_at_any_step_leaves_the_survivors_to_the_next(
    autojump_clock: Clock, survive: float, lost_index: bool
) -> None:
    """Seeds 743 and 974: forgotten where they were found before the copies were durable, then the index
    was lost, and the files' heads said that there was nothing.
    """
    died = True
    steps = 0
    while died:
        disk, index = CutDisk(), CutDisk()
        acked = await _acknowledged(disk, index)
        disk = disk.cut(random.Random(1), survive=0.0)
        died = await dies_at_step(steps, disk, index)
        disk = disk.cut(random.Random(steps), survive)

        async with running(disk, SMALL, CutDisk() if lost_index else index) as store:
            assert (await _read(store))[: len(acked)] == acked, steps
            assert store.ledgers.limbo_below == 0
        steps += 1
    assert steps > 10


async def _removed(disk: CutDisk, index: CutDisk) -> list[bytes]:
    """What is acknowledged, beside files that only the newest block says to be gone."""
    async with running(disk, MANUAL, index) as store:
        gone, kept = Adder(store, 6), Adder(store, 7)
        for n in range(4):
            gone.send(record(6, n, bytes(40_000)))
            await gone.all_acked()
        await store.delete_ledger(6)
        await store.checkpoint()
        kept.send(record(7, 0, bytes(500)))
        await kept.all_acked()
        await store.file_removal.remove_dead_files()
        assert store.stats.files_removed
        return kept.sent


async def _failed(disk: CutDisk, index: CutDisk) -> list[bytes]:
    """What is acknowledged, before one more that only the cache has."""
    acked = await _acknowledged(disk, index)
    await _die_of_a_failed_sync(disk, index, len(acked))
    return acked


@pytest.mark.parametrize("lost_index", [False, True])
@pytest.mark.parametrize("survive", [0.0, 1.0])
async def test_a_start_that_dies_leaves_to_the_next_which_files_were_removed(
    autojump_clock: Clock, survive: float, lost_index: bool
) -> None:
    """Cluster seed 120: only a survivor said so, its copy did not, and a sound bookie was in limbo."""
    steps, died = 0, True
    while died:
        disk, index = CutDisk(), CutDisk()
        kept = await _removed(disk, index)
        disk = disk.cut(random.Random(1), survive=0.0)
        died = await dies_at_step(steps, disk, index, MANUAL)
        disk = disk.cut(random.Random(steps), survive)

        async with running(disk, MANUAL, CutDisk() if lost_index else index) as store:
            assert await _read(store) == kept
            assert not store.limbo.any_limbo, steps
        steps += 1
    assert steps > 10


@pytest.mark.properties
@pytest.mark.parametrize(
    ("was", "lost_index"),
    [(_acknowledged, False), (_acknowledged, True), (_failed, True), (_removed, False)],
)
async def test_two_starts_that_die_in_a_row_lose_nothing(
    autojump_clock: Clock, was: Callable[..., Awaitable[list[bytes]]], lost_index: bool
) -> None:
    """What the first one said of survivors, and the second one replayed, is known without an index."""
    options = MANUAL if was is _removed else SMALL
    first, pairs, died = 0, 0, True
    while died:
        second, died_again = 0, True
        while died_again:
            disk, index = CutDisk(), CutDisk()
            acked = await was(disk, index)
            if was is not _failed:  # there only the process died
                disk = disk.cut(random.Random(1), survive=0.0)
            died = await dies_at_step(first, disk, index, options)
            disk = disk.cut(random.Random(first), survive=0.5)
            died_again = await dies_at_step(second, disk, index, options)
            disk = disk.cut(random.Random(second), survive=0.5)

            async with running(disk, options, CutDisk() if lost_index else index) as store:
                assert (await _read(store))[: len(acked)] == acked, (first, second)
                assert not store.limbo.any_limbo, (first, second)
            second, pairs = second + 1, pairs + 1
        first += 1
    assert pairs > 100


@pytest.mark.parametrize("starts_between", [0, 2])
@pytest.mark.parametrize("lost_index", [False, True])
async def test_a_survivor_whose_sync_failed_counts_where_it_was_copied_to(
    autojump_clock: Clock, lost_index: bool, starts_between: int
) -> None:
    """Seeds 324 and 454: the page cache shows what the next power cut takes away."""
    disk, index = CutDisk(), CutDisk()
    acked = await _acknowledged(disk, index)
    await _die_of_a_failed_sync(disk, index, len(acked))
    # Only the process died: the next one reads the cache.
    async with running(disk, SMALL, index) as store:
        served = await _read(store)
        assert len(served) == len(acked) + 1
    disk = disk.cut(random.Random(1), survive=0.0)
    for _ in range(starts_between):  # whose heads name the files, and not what to skip in them
        async with running(disk, SMALL, index):
            pass

    async with running(disk, SMALL, CutDisk() if lost_index else index) as store:
        assert await _read(store) == served
        assert store.ledgers.limbo_below == 0


async def _die_of_a_failed_sync(disk: CutDisk, index: CutDisk, entry: int) -> None:
    """The page cache shows one more record than the platter holds, or ever will."""

    async def add_and_die() -> None:
        async with running(disk, SMALL, index) as store:
            disk.fail_syncs = True
            Adder(store, 7).send(record(7, entry, bytes(500)))
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await add_and_die()
    assert caught.group_contains(DiskFailed)
    disk.fail_syncs = False
    doomed = {name for name, file in disk.files.items() if file.doomed}
    assert any(file_number(name) for name in doomed)


@pytest.mark.parametrize("lost_index", [False, True])
async def test_a_start_that_dies_over_a_survivor_whose_sync_failed_calls_it_synced_nowhere(
    autojump_clock: Clock, lost_index: bool
) -> None:
    """H4: until its copy is durable no block may say that it is, else each such power cut is limbo."""
    steps, died = 0, True
    while died:
        disk, index = CutDisk(), CutDisk()
        acked = await _acknowledged(disk, index)
        await _die_of_a_failed_sync(disk, index, len(acked))
        died = await dies_at_step(steps, disk, index)
        disk = disk.cut(random.Random(steps), survive=0.0)

        async with running(disk, SMALL, CutDisk() if lost_index else index) as store:
            assert (await _read(store))[: len(acked)] == acked, steps
            assert not store.limbo.any_limbo, steps
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("lost_index", [False, True])
async def test_what_a_start_finds_in_the_page_cache_is_durable_before_it_is_served(
    autojump_clock: Clock, lost_index: bool
) -> None:
    """G2: a writer's second copy of it is acknowledged at once, so one power cut later it must be there.

    A process was killed before its last sync, the next one at any step of its start, and nothing but the
    cache had the record; then the index was lost or not.
    """
    steps, died = 0, True
    while died:
        disk, index = CutDisk(), CutDisk()
        await _acknowledged(disk, index)
        disk.sync_s = 10.0
        async with running(disk, SMALL, index) as store:
            Adder(store, 7).send(record(7, 4, bytes(500)))
            await trio.sleep(1.0)
        disk.sync_s = 0.0
        died = await dies_at_step(steps, disk, index)
        disk.off, disk.fuse = False, -1  # it was only the process

        index = CutDisk() if lost_index else index
        async with running(disk, SMALL, index) as store:
            served = await _read(store)
            again = Adder(store, 7)
            again.send(*served)
            await again.all_acked()
            disk = disk.cut(random.Random(steps), survive=0.0)
        for later in (index, CutDisk()):
            async with running(disk, SMALL, later) as store:
                assert await _read(store) == served, steps
                assert not store.limbo.any_limbo, steps
        steps += 1
    assert steps > 10


async def _read(store: BookieStore) -> list[bytes]:
    return list((await read_all(store, 7)).values())


async def test_without_seed_and_index_it_does_not_start_and_with_the_seed_restored_it_does(
    autojump_clock: Clock,
) -> None:
    """docs/operate/replace-bookie.md, "CorruptData": nothing is guessed, nothing is destroyed."""
    disk, index = CutDisk(), CutDisk()
    acked = await _acknowledged(disk, index)
    backup = bytes(disk._files[IDENTITY_FILE_NAME].data)
    disk.flip(IDENTITY_FILE_NAME, 20)
    await index.delete_map(MAP_NAME)

    for _ in range(2):
        with pytest.raises(CorruptData, match="decommission the old id"):
            await open_store(host_of(disk, index), SMALL, bookie_id="b1")
        await index.delete_map(MAP_NAME)  # it left none open

    disk._files[IDENTITY_FILE_NAME].data[:] = backup
    async with running(disk, SMALL, index) as store:
        assert await _read(store) == acked
        assert store.ledgers.limbo_below == 0
