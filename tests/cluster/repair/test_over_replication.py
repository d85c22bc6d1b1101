"""Copies too many go, after two looks that found the same; nothing else ever does (H93, H94)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from distributedlog.bookie.format import journal_format as jb
from distributedlog.cluster.coordination.gc_hold import HOLD, RESTORES
from distributedlog.cluster.repair import over_replication as module
from distributedlog.cluster.repair.limbo_repair import LimboRepair
from distributedlog.cluster.repair.over_replication import OverReplication
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import DeclaredLoss, Fragment, LedgerMetadata
from distributedlog.metadata.model.transaction import Delete, KeyValue, Put, Transaction
from distributedlog.runtime.interfaces.errors import LedgerStateUnknown, NoSuchLedger

from ..bookie_world import KEY, LEDGER, World, world

ELSEWHERE = (Fragment(0, ("b1", "b2", "b4"), 0),)


@pytest.fixture(autouse=True)
def _passes_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APART_S", 0.0)


def _surplus(w: World, bookie: str = "b3") -> OverReplication:
    store = w.stores[bookie]
    return OverReplication(
        w.metadata,
        w.pool,
        store.ledgers,
        store.replica_removal,
        store.delete_ledger,
        bookie,
        every_s=1.0,
    )


async def _put(w: World, key: bytes, value: bytes = b"") -> None:
    await w.metadata.transact(Transaction((), (Put(key, value),)))


async def _replaced(w: World) -> None:
    """b4 took the place of b3, which is back."""
    for bookie in ("b1", "b2", "b3", "b4"):
        await w.write(bookie, range(8))
    await w.ledger(7, ensembles=ELSEWHERE)


async def test_a_copy_of_who_was_replaced_goes_and_the_fence_stays() -> None:
    """H95: a writer of then is acknowledged nothing; and nothing is denied."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        store = w.stores["b3"]
        live = sum(store._index.live_bytes.values())
        passes = _surplus(w)

        await passes.check_all()
        assert await w.ids("b3") == list(range(8))
        await passes.check_all()

        assert passes.dropped_copies == 1
        assert await w.ids("b3") == []
        assert live > 0
        assert sum(store._index.live_bytes.values()) == 0
        assert not store.limbo.any_limbo  # a stub is nothing to heal
        with pytest.raises(LedgerStateUnknown):
            await w.pool.clients["b3"].read(LEDGER, KEY, 0, 7, 1000, past_lac=True, timeout_s=5)
        refused = trio.Event()
        stream = w.pool.clients["b3"].open_stream(
            LEDGER,
            KEY,
            recovery=False,
            fragment_epoch=0,
            on_acked=lambda count: pytest.fail("a writer of then was acknowledged"),
            on_refused=lambda position, error: refused.set(),
        )
        stream.send(store.ledgers.get_or_make(LEDGER).state_record())
        with trio.fail_after(5):
            await refused.wait()
        await passes.check_all()
        assert passes.dropped_copies == 1


Guard = Callable[[World], Awaitable[None]]


async def _named(w: World) -> None:
    await w.metadata.transact(
        Transaction(
            (), (Delete(keys.ledger_key(LEDGER)), Delete(keys.bookie_ledger_key("b4", LEDGER)))
        )
    )
    await w.ledger(7)


async def _open(w: World) -> None:
    await w.metadata.transact(Transaction((), (Delete(keys.ledger_key(LEDGER)),)))
    await w.ledger(None, ensembles=ELSEWHERE)


async def _moving(w: World) -> None:
    await _put(w, keys.moves_to_prefix("b3") + b"%016x" % LEDGER)


async def _held(w: World) -> None:
    await _put(w, HOLD)


async def _in_limbo(w: World) -> None:
    ledger = w.stores["b3"].ledgers.get_or_make(LEDGER)
    w.stores["b3"].ledgers.set_flags(ledger, jb.FENCED | jb.LIMBO)


async def _away(w: World) -> None:
    del w.pool.clients["b4"]


async def _being_added_to(w: World) -> None:
    w.pool.clients["b3"].open_stream(
        LEDGER,
        KEY,
        recovery=True,
        fragment_epoch=0,
        on_acked=lambda count: None,
        on_refused=lambda position, error: None,
    )
    await w.ids("b3")  # it has come


async def _others_in_limbo(w: World) -> None:
    ledger = w.stores["b1"].ledgers.get_or_make(LEDGER)
    w.stores["b1"].ledgers.set_flags(ledger, jb.FENCED | jb.LIMBO)


async def _others_rotten(w: World) -> None:
    said = BookieRegistration("b1", {"": ("127.0.0.1", 1)}, corruption_counts=(1, 0, 0))
    await _put(w, keys.bookie_key("b1"), said.encode())


async def _missing_elsewhere(w: World) -> None:
    await w.stores["b2"].delete_ledger(LEDGER)


async def _declared_lost(w: World) -> None:
    found = await w.metadata.get(keys.ledger_key(LEDGER))
    assert found is not None
    ledger = LedgerMetadata.decode(found.key, found.value)
    lost = replace(ledger, lost=(DeclaredLoss(3, 4, "me", 0, "a test"),))
    await _put(w, found.key, lost.encode())


@pytest.mark.parametrize(
    "guard",
    [
        _named,
        _open,
        _moving,
        _held,
        _in_limbo,
        _being_added_to,
        _away,
        _others_in_limbo,
        _others_rotten,
        _missing_elsewhere,
        _declared_lost,
    ],
)
async def test_nothing_goes_that_may_be_wanted(guard: Guard) -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        await guard(w)
        passes = _surplus(w)

        for _ in range(3):
            await passes.check_all()

        assert await w.ids("b3") == list(range(8))


async def _killed_while_dropping(w: World) -> None:
    """b3's copy: its state is a stub's, its entries are there."""
    await _replaced(w)
    ledger = w.stores["b3"].ledgers.get_or_make(LEDGER)
    w.stores["b3"].ledgers.set_flags(ledger, jb.FENCED | jb.LIMBO | jb.DROPPED)


async def _named_and_not_listed(w: World) -> None:
    await _named(w)
    await w.metadata.transact(Transaction((), (Delete(keys.bookie_ledger_key("b3", LEDGER)),)))


@pytest.mark.parametrize("guard", [_named_and_not_listed, _open, _moving, _held, _away])
async def test_what_a_kill_left_of_a_dropped_copy_goes_on_proof_alone(guard: Guard) -> None:
    """After a restore, say, this may be what the record names again."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _killed_while_dropping(w)
        await guard(w)
        passes = _surplus(w)
        for _ in range(3):
            await passes.check_all()
        assert w.stores["b3"].ledgers.get_or_make(LEDGER).last_added_entry == 7


async def test_what_a_kill_left_of_a_dropped_copy_goes() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _killed_while_dropping(w)
        passes = _surplus(w)
        await passes.check_all()
        assert w.stores["b3"].ledgers.get_or_make(LEDGER).last_added_entry == 7
        await passes.check_all()
        assert await w.ids("b3") == []
        assert w.stores["b3"].replica_removal.is_stub(LEDGER)


async def test_a_stream_that_opens_while_a_copy_goes_is_refused() -> None:
    """What it stored after the copy had gone was taken for what was left of it."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _killed_while_dropping(w)
        ledger = w.stores["b3"].ledgers.get_or_make(LEDGER)
        ledger.removing = True
        refused = trio.Event()
        stream = w.pool.clients["b3"].open_stream(
            LEDGER,
            KEY,
            recovery=True,
            fragment_epoch=0,
            on_acked=lambda count: None,
            on_refused=lambda position, error: refused.set(),
        )
        with trio.fail_after(5):
            await refused.wait()
        stream.close()
        ledger.removing = False
        await w.write("b3", [8], recovery=True)
        assert not w.stores["b3"].replica_removal.is_stub(LEDGER)


async def test_a_metadata_that_is_begun_anew_between_two_reads_deletes_nothing() -> None:
    """Its first answers are of before the restore, the record's absence of after it."""
    async with world() as w:
        await w.write("b3", range(8))
        await _put(w, keys.NEXT_LEDGER, b"1000")
        passes = _surplus(w)
        await passes.check_all()
        get = w.metadata.get

        async def restored_at_the_record(key: bytes) -> KeyValue | None:
            if key == keys.ledger_key(LEDGER):
                await _held(w)
                await _restored(w)
            return await get(key)

        w.metadata.get = restored_at_the_record  # type: ignore[method-assign]
        await passes.check_all()
        assert await w.ids("b3") == list(range(8))


async def _rewritten(w: World) -> None:
    found = await w.metadata.get(keys.ledger_key(LEDGER))
    assert found is not None
    await _put(w, found.key, bytes(found.value))


async def _restored(w: World) -> None:
    await _put(w, RESTORES, b"%f" % trio.current_time())


async def _copied_to(w: World) -> None:
    top = w.stores["b3"].ledgers.get_or_make(LEDGER).last_added_entry
    await w.write("b3", [top + 1], recovery=True)


@pytest.mark.parametrize("change", [_rewritten, _restored, _copied_to])
async def test_what_changed_between_two_looks_is_looked_at_anew(change: Guard) -> None:
    """H93, H94: a swap away and back, a restored metadata, a move that is under way without a key."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        passes = _surplus(w)

        for _ in range(3):
            await passes.check_all()
            await change(w)
        held = await w.ids("b3")
        await passes.check_all()
        await passes.check_all()

        assert held[:8] == list(range(8))
        assert passes.dropped_copies == 1


async def test_what_is_added_while_the_record_is_read_counts() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        passes = _surplus(w)
        await passes.check_all()
        get = w.metadata.get

        async def added_at_the_record(key: bytes) -> KeyValue | None:
            if key == keys.ledger_key(LEDGER):
                await _copied_to(w)
                await w.ids("b3")  # the end of the stream has come
            return await get(key)

        w.metadata.get = added_at_the_record  # type: ignore[method-assign]
        await passes.check_all()
        assert await w.ids("b3") == list(range(9))


async def test_two_looks_are_an_hour_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APART_S", 3600.0)
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        passes = _surplus(w)
        for _ in range(5):
            await passes.check_all()
        assert await w.ids("b3") == list(range(8))


async def test_a_ledger_without_a_record_goes_only_if_its_id_was_given() -> None:
    """H93: metadata that is older than the ledger, or not what it was, proves nothing."""
    async with world() as w:
        await w.write("b3", range(8))
        passes = _surplus(w)
        for _ in range(3):
            await passes.check_all()
        assert await w.ids("b3") == list(range(8))

        await _put(w, keys.NEXT_LEDGER, b"1000")
        for _ in range(2):
            await passes.check_all()
        with pytest.raises(NoSuchLedger):
            await w.ids("b3")


async def test_what_comes_back_after_its_copy_went_is_healed() -> None:
    """H94: also by a move that swapped the record after the copy had gone."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        passes = _surplus(w)
        await passes.check_all()
        await passes.check_all()
        store = w.stores["b3"]
        before = await w.record()
        found = await w.metadata.get(keys.ledger_key(LEDGER))
        assert found is not None
        after = before.with_bookie_replaced(0, 2, "b3")
        swap = transactions.change_ops(before, after, found.version)
        assert (await w.metadata.transact(swap)).succeeded

        await passes.check_all()
        assert store.limbo.is_in_limbo(LEDGER)
        assert store.limbo.any_limbo
        turn = trio.Lock()
        limbo = LimboRepair(
            w.metadata, w.pool, w.copier, store.limbo, store.corruption_tracker, "b3", turn
        )
        assert await limbo.run_pass()

        assert await w.held("b3", 7) == await w.held("b1", 7)
        assert not store.limbo.any_limbo


async def test_a_stub_takes_copies_again_and_is_no_stub_then() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _replaced(w)
        passes = _surplus(w)
        await passes.check_all()
        await passes.check_all()

        await w.write("b3", range(8), recovery=True)

        assert await w.ids("b3") == list(range(8))
        assert not w.stores["b3"].replica_removal.is_stub(LEDGER)
        assert w.stores["b3"].limbo.any_limbo
