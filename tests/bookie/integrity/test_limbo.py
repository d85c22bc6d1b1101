"""The mark is lifted durably or not at all; what stands after it, the fence, stays."""

import random

import pytest
import trio
import trio.testing

from distributedlog.bookie.declarations.metrics import METRICS
from distributedlog.bookie.format.journal_format import file_number
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.declarations.meters import samples
from distributedlog.runtime.interfaces.errors import (
    LedgerFenced,
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
    add_acked,
    fence,
    host_of,
    journal_names,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock


async def _disk_in_limbo(sync_s: float = 0.0) -> CutDisk:
    """Two ledgers of two entries, and a rotten block."""
    disk = CutDisk(sync_s=sync_s)
    async with running(disk) as store:
        offset = store._journal.position().offset
        for ledger in (7, 8):
            adder = Adder(store, ledger)
            adder.send(record(ledger, 0), record(ledger, 1))
            await adder.all_acked()
        await trio.sleep(0.1)  # idle: proven by a watermark
    disk.flip(journal_names(disk)[0], offset + 70)
    return disk


async def test_a_lifted_mark_stays_lifted_and_the_fence_stays(autojump_clock: Clock) -> None:
    """Inv. 11, 22: also after a power cut right after it, for a known ledger and an unknown one."""
    disk = await _disk_in_limbo(sync_s=0.001)
    async with running(disk) as store:
        assert store.info()["corrupt_ranges"] == 1
        assert store.ledgers.limbo_count == 1
        assert store.limbo.is_in_limbo(8)
        assert store.limbo.is_in_limbo(9)
        for ledger in (7, 8, 9):
            healing = Adder(store, ledger, recovery=True)
            healing.send(record(ledger, 0), record(ledger, 1))
            await healing.all_acked()
        await store.limbo.lift_limbo(8, KEY)
        await store.limbo.lift_limbo(9, KEY)
        disk = disk.cut(random.Random(1), survive=0.0)

    for _ in range(2):
        async with running(disk) as store:
            assert store.limbo.is_in_limbo(7)
            for ledger in (8, 9):
                assert not store.ledgers.get_known(ledger, KEY).limbo
                adder = Adder(store, ledger)
                adder.send(record(ledger, 2))
                error, _ = await adder.refusal()
                assert isinstance(error, LedgerFenced)


async def test_a_start_in_doubt_denies_nothing_and_says_why(autojump_clock: Clock) -> None:
    """Nobody could say how far it had synced: what is here is served, what is not is unknown."""
    disk = CutDisk()
    async with running(disk) as store:
        adder = Adder(store, 7)
        adder.send(record(7, 0))
        await adder.all_acked()
    doubt = "how far it came cannot be read"
    store = await open_store(
        host_of(disk, None), OPTIONS, bookie_id="b1", sync_point_unknown_reason=doubt
    )
    try:
        assert store.limbo.is_in_limbo(7)
        assert store.ledgers.get_known(7, KEY).limbo
        with pytest.raises(LedgerStateUnknown):
            store.ledgers.get_known(9, KEY)
        assert any(doubt in one.text("cause") for one in store.health_conditions())
    finally:
        store.close()


async def test_who_waits_for_a_ledger_of_which_nothing_is_known_takes_it_out_of_no_limbo(
    autojump_clock: Clock,
) -> None:
    """Inv. 22: its object is in memory, and nothing of it was ever stored."""
    disk = await _disk_in_limbo()
    async with running(disk) as store:
        waits = store.ledgers.get_or_make(9)

        assert not waits.is_known
        assert store.limbo.is_in_limbo(9)


async def test_a_bound_that_was_lowered_stays_low(autojump_clock: Clock) -> None:
    disk = await _disk_in_limbo()
    async with running(disk) as store:
        await store.limbo.lower_bound(0)
        disk = disk.cut(random.Random(1), survive=0.0)
    async with running(disk) as store:
        with pytest.raises(NoSuchLedger):
            store.ledgers.get_known(99, KEY)
        assert store.limbo.is_in_limbo(8)


async def test_limbo_that_nobody_can_count_is_told_until_the_bound_falls(
    autojump_clock: Clock,
) -> None:
    """The alert counted known ledgers alone: of a bookie that had forgotten all of them it said nothing."""
    disk = await _disk_in_limbo()
    async with running(disk) as store:
        healing = Adder(store, 8, recovery=True)
        healing.send(record(8, 0), record(8, 1))
        await healing.all_acked()
        await store.limbo.lift_limbo(8, KEY)

        def told() -> tuple[object, object]:
            said = {one.metric.name: one.value for one in samples(METRICS, store.info())}
            return said["dlog_bookie_limbo_ledgers"], said["dlog_bookie_limbo_unknown"]

        assert told() == (0, 1)
        assert store.limbo.limbo_bound == 0  # nobody would know which ledgers are newer
        await store.limbo.lower_bound(100)
        assert told() == (0, 1)
        assert store.limbo.limbo_bound == 100
        await store.limbo.lower_bound(0)
        assert told() == (0, 0)
        assert store.limbo.limbo_bound == 0


async def test_what_was_fenced_here_and_moved_away_is_asked_for_after_limbo(
    autojump_clock: Clock,
) -> None:
    """H89, H95: with the rest the loss took stubs and tombstones, and the bound that stands for them."""
    disk = await _disk_in_limbo()
    for _ in range(2):
        async with running(disk) as store:
            await store.limbo.lower_bound(100)
            await store.limbo.lower_bound(0)
            old, new = Adder(store, 50), Adder(store, 100)
            old.send(record(50, 0))
            new.send(record(100, 0))
            await new.all_acked()

            assert isinstance((await old.refusal())[0], TooBusy)  # nobody can tell


async def test_a_new_loss_marks_again_what_was_lifted(autojump_clock: Clock) -> None:
    disk = await _disk_in_limbo()
    async with running(disk) as store:
        await store.limbo.lift_limbo(8, KEY)
        offset = store._journal.position().offset
        adder = Adder(store, 8, recovery=True)
        adder.send(record(8, 2))
        await adder.all_acked()
        await trio.sleep(0.1)
        (name,) = [n for n in journal_names(disk) if file_number(n) == store._journal.number]
        assert not store.limbo.is_in_limbo(8)
    disk.flip(name, offset + 70)
    async with running(disk) as store:
        assert store.limbo.is_in_limbo(8)


async def test_only_who_knows_the_key_lifts_and_a_tombstone_stays(autojump_clock: Clock) -> None:
    disk = await _disk_in_limbo()
    async with running(disk) as store:
        healing = Adder(store, 8, recovery=True)
        healing.send(record(8, 0))
        await healing.all_acked()
        with pytest.raises(WrongLedgerKey):
            await store.limbo.lift_limbo(8, bytes(16))
        assert store.limbo.is_in_limbo(8)
        await store.delete_ledger(8)
        with pytest.raises(NoSuchLedger):
            await store.limbo.lift_limbo(8, KEY)


async def test_a_fence_on_an_unknown_ledger_lifts_no_limbo(autojump_clock: Clock) -> None:
    """Inv. 22: its state is known from then on, not what it had: it still denies nothing."""
    disk = await _disk_in_limbo()
    for _ in range(2):
        async with running(disk) as store:
            found = await fence(store, 9)
            assert found.limbo
            assert store.limbo.is_in_limbo(9)
            assert store.ledgers.get_known(9, KEY).limbo
            await store.limbo.lower_bound(9)
            assert store.limbo.is_in_limbo(9)
            disk = disk.cut(random.Random(1))


async def test_what_was_read_back_and_dropped_meanwhile_is_not_lifted(
    autojump_clock: Clock,
) -> None:
    """Inv. 22: who healed saw entries that are gone since; the stub goes on denying nothing."""
    async with running(CutDisk(), OPTIONS) as store, trio.open_nursery() as nursery:
        adder = await add_acked(store, 7, 3)
        store.add_handler.close_stream(adder.stream)
        await store.checkpointer.lock.acquire()
        nursery.start_soon(store.replica_removal.remove_replica, 7)
        await trio.sleep(1)
        assert list(await read_all(store, 7)) == [0, 1, 2]  # as who heals reads it back

        with pytest.raises(TooBusy):
            await store.limbo.lift_limbo(7, KEY)
        store.checkpointer.lock.release()
        await trio.sleep(1)
        with pytest.raises(TooBusy):
            await store.limbo.lift_limbo(7, KEY)
        assert store.limbo.is_in_limbo(7)
        assert not await read_all(store, 7)

        await store.replica_removal.restore_to_limbo(7)
        await store.limbo.lift_limbo(7, KEY)
        assert not store.limbo.is_in_limbo(7)
