"""Deleted ledgers stay deleted, and their journal files go."""

import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from distributedlog.bookie.storage.journal import IDLE_S
from distributedlog.runtime.interfaces.errors import (
    LedgerFenced,
    NoSuchLedger,
)

from .kit import (
    KEY,
    OPTIONS,
    SMALL,
    Adder,
    CutDisk,
    add_acked,
    fence,
    journal_names,
    record,
    running,
    some_files,
)

Clock = trio.testing.MockClock


async def test_a_deleted_ledger_stays_deleted(autojump_clock: Clock) -> None:
    """H21: the old writer is refused, before and after a restart; others go on."""
    disk = CutDisk()
    for _ in range(3):
        async with running(disk, SMALL) as store:
            if not disk.syncs:
                await add_acked(store, 7)
            await store.delete_ledger(7)
            old, copy, other = Adder(store, 7), Adder(store, 7, recovery=True), Adder(store, 8)
            for each in (old, copy):
                each.send(record(7, 1))
                error, _ = await each.refusal()
                assert isinstance(error, NoSuchLedger)
            other.send(record(8, 0))
            await other.all_acked()
            with pytest.raises(NoSuchLedger):
                store.ledgers.get_known(7, KEY)
            await trio.sleep(10)
            disk = disk.cut(random.Random(0))


async def test_dead_files_go_and_their_fences_stay(autojump_clock: Clock) -> None:
    """H7: fence, fill, delete, lose the index: the old writer is still refused."""
    journal = CutDisk()
    async with running(journal, SMALL, CutDisk()) as store:
        await fence(store, 1)
        await some_files(store)
        await trio.sleep(6)
        before = len(journal_names(journal))
        await store.delete_ledger(7)
        await trio.sleep(12)
        assert len(journal_names(journal)) < before
        assert store.stats.files_removed > 2

    async with running(journal, SMALL, CutDisk()) as store:
        assert store.ledgers.limbo_below == 0
        for ledger, wanted in ((1, LedgerFenced), (7, NoSuchLedger)):
            again = Adder(store, ledger)
            again.send(record(ledger, 0))
            error, _ = await again.refusal()
            assert isinstance(error, wanted)


async def test_a_deletion_that_is_replayed_frees_its_files(autojump_clock: Clock) -> None:
    """The tombstone was durable and the index had not heard of it: the runs go after the start."""
    journal, index = CutDisk(), CutDisk()
    async with running(journal, SMALL, index) as store:
        await some_files(store)
        await store.checkpoint()
        await store.delete_ledger(7)
    before = len(journal_names(journal))

    async with running(journal, SMALL, index) as store:
        await trio.sleep(12)
        assert store.info()["live_bytes"] == 0
        assert store.stats.files_removed >= before - 4


async def test_a_deletion_in_a_checkpoint_leaves_no_runs_after_a_crash(
    autojump_clock: Clock,
) -> None:
    """The index knew the tombstone and had the runs still: no start looked at them ever again."""
    journal, index = CutDisk(sync_s=0.5), CutDisk()
    async with running(journal, SMALL, index) as store:
        adder = Adder(store, 7)
        adder.send(*(record(7, n, bytes(3000)) for n in range(10)))
        await adder.all_acked()
        await store.checkpoint()
        assert store.info()["live_bytes"] != 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.delete_ledger, 7)
            await trio.sleep(0.1)  # asked for, not durable yet
            await store.checkpoint()
            await trio.sleep(1)
        journal = journal.cut(random.Random(0))

    async with running(journal, SMALL, index) as store:
        assert store.info()["live_bytes"] == 0
        assert store.info()["runs_in_map"] == 0
    assert not [key for key in index._maps["bookie"].keys if key.startswith(b"r")]


async def test_a_deletion_that_nobody_waits_for_any_more_frees_its_runs(
    autojump_clock: Clock,
) -> None:
    """Who asked was cancelled before the tombstone was durable: it is, and the next one asks in vain."""
    index = CutDisk()
    async with running(CutDisk(sync_s=0.5), SMALL, index) as store:
        await add_acked(store, 7)
        await store.checkpoint()
        with trio.move_on_after(0.1):
            await store.delete_ledger(7)
        await trio.sleep(5)
        await store.delete_ledger(7)
        await store.checkpoint()

        assert store.info()["live_bytes"] == 0
        assert not [key for key in index._maps["bookie"].keys if key.startswith(b"r")]


async def test_files_that_somebody_else_has_removed_end_no_bookie(autojump_clock: Clock) -> None:
    """One that is dead, and the one made ahead that is given back at rest."""
    options = replace(OPTIONS, journal_file_bytes_min=256 << 10)
    journal = CutDisk()
    async with running(journal, options) as store:
        adder = Adder(store, 7)
        for n in range(100):
            adder.send(record(7, n, bytes(30_000)))
            await adder.all_acked()
        await trio.sleep(1)
        names = journal_names(journal)
        for name in (names[1], names[-1]):
            del journal._files[name], journal.files[name]

        await store.delete_ledger(7)
        await trio.sleep(3 * IDLE_S)

        await add_acked(store, 8)
        assert names[0] not in journal.list()
        assert not {names[1], names[-1]} & set(journal.list())
