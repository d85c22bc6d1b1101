"""A bookie in limbo heals itself: copies, verifies, lifts the mark durably; the fence stays."""

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.client.bookie_client import BookieClient
from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.ledgers.ledger_table import LIMBO_ALL
from distributedlog.cluster.node.bookie_assembly import confine_limbo
from distributedlog.cluster.repair.copier import Copier
from distributedlog.cluster.repair.limbo_repair import EVERY_MAX_S, LimboRepair
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_ids import BLOCK_LIFETIME_S, LedgerIds
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.interfaces.errors import CorruptData, LedgerStateUnknown, NoSuchLedger
from tests.conditions import codes_of
from tests.metadata.local_metadata import LocalMetadata

from ..bookie.kit import CutDisk, running
from .bookie_world import BOOKIES, KEY, LEDGER, Pool, World, world


def _healing(w: World, bookie: str = "b3") -> LimboRepair:
    store = w.stores[bookie]
    turn = trio.Lock()
    return LimboRepair(
        w.metadata, w.pool, w.copier, store.limbo, store.corruption_tracker, bookie, turn
    )


async def _in_limbo(w: World, bookie: str = "b3") -> None:
    """As a start does that found a loss."""
    store = w.stores[bookie]
    for ledger in store.ledgers.loaded_ledgers():
        store.ledgers.set_flags(ledger, ledger.flags | jb.FENCED | jb.LIMBO)
    store.ledgers.limbo_below = 100


async def test_a_closed_ledger_is_copied_verified_and_taken_out_of_limbo() -> None:
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(40))
        await w.write("b3", range(10))
        await w.ledger(39)
        await _in_limbo(w)

        assert await _healing(w).run_pass()

        assert await w.held("b3", 39) == await w.held("b1", 39)
        client = w.pool.clients["b3"]
        absent = await client.read(LEDGER, KEY, 40, 40, 1000, past_lac=True, timeout_s=5)
        assert absent.proves_absence
        assert w.stores["b3"].ledgers.limbo_below == 0
        assert w.stores["b3"].ledgers.get_known(LEDGER, KEY).fenced
        [told] = w.stores["b3"].health_conditions()  # it is over before anybody looks
        assert told.code == Code.LIMBO_ENDED
        await _in_limbo(w)  # again, within the hour
        assert Code.LIMBO_ENDED not in codes_of(w.stores["b3"].health_conditions())


async def test_an_open_ledger_stays_in_limbo_and_so_does_what_is_not_known() -> None:
    """Inv. 22: nobody can say yet what was lost of it."""
    async with world() as w:
        for bookie in ("b1", "b2", "b3"):
            await w.write(bookie, range(10))
        await w.ledger(None)
        await _in_limbo(w)

        assert not await _healing(w).run_pass()

        assert w.stores["b3"].limbo.is_in_limbo(LEDGER)
        with pytest.raises(LedgerStateUnknown):
            w.stores["b3"].ledgers.get_known(99, KEY)


async def test_what_no_other_replica_has_now_keeps_the_mark() -> None:
    async with world() as w:
        await w.write("b1", range(10))
        await w.write("b3", range(5))
        await w.ledger(9)
        await _in_limbo(w)
        away = w.pool.clients.pop("b1")

        assert not await _healing(w).run_pass()
        assert w.stores["b3"].limbo.is_in_limbo(LEDGER)

        w.pool.clients["b1"] = away
        assert await _healing(w).run_pass()
        assert not w.stores["b3"].limbo.is_in_limbo(LEDGER)


async def test_what_is_damaged_here_keeps_the_mark() -> None:
    """The copy is in the index and its bytes are rotten: it counts as held and is no copy."""
    async with world() as w:
        for bookie in ("b1", "b2", "b3"):
            await w.write(bookie, range(10))
        await w.ledger(9)
        await _in_limbo(w)
        collect = w.stores["b3"].reader.collect

        def rotten(*args: object, **kwargs: object) -> object:
            found = collect(*args, **kwargs)  # type: ignore[arg-type]
            last = bytearray(found.parts[-1])
            last[-9] ^= 1
            found.parts[-1] = bytes(last)
            return found

        w.stores["b3"].reader.collect = rotten  # type: ignore[assignment, method-assign]

        assert not await _healing(w).run_pass()

        assert w.stores["b3"].limbo.is_in_limbo(LEDGER)


async def test_a_ledger_of_which_all_is_lost_here_is_known_again() -> None:
    """Also an empty one: then it is fenced, and denies what never was."""
    async with world() as w:
        await w.ledger(-1)
        await _in_limbo(w)

        assert await _healing(w).run_pass()

        ledger = w.stores["b3"].ledgers.get_known(LEDGER, KEY)
        assert ledger.fenced
        assert not ledger.limbo


async def test_a_ledger_that_is_elsewhere_now_is_no_business_of_this_bookie() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        for bookie in ("b1", "b2", "b3", "b4"):
            await w.write(bookie, range(10))
        await w.ledger(9, ensembles=(Fragment(0, ("b1", "b2", "b4"), 0),))
        await _in_limbo(w)

        assert await _healing(w).run_pass()

        assert w.stores["b3"].limbo.is_in_limbo(LEDGER)  # nobody asks it
        with pytest.raises(NoSuchLedger):
            w.stores["b3"].ledgers.get_known(99, KEY)


async def test_limbo_without_a_bound_ends_only_with_one() -> None:
    """H89, H95: what else was lost, fences of copies that had moved away, is asked for below it."""
    async with world() as w:
        for bookie in ("b1", "b2", "b3"):
            await w.write(bookie, range(10))
        await w.ledger(9)
        await _in_limbo(w)
        ledgers = w.stores["b3"].ledgers
        ledgers.limbo_below = LIMBO_ALL

        async def say(value: bytes) -> None:
            await w.metadata.transact(Transaction((), (Put(keys.NEXT_LEDGER, value),)))

        await say(b"rot")
        with pytest.raises(CorruptData):
            await _healing(w).run_pass()
        with pytest.raises(LedgerStateUnknown):
            ledgers.get_known(99, KEY)
        assert not w.stores["b3"].limbo.is_in_limbo(LEDGER)

        await say(b"100")
        assert await _healing(w).run_pass()
        assert (ledgers.limbo_below, ledgers.must_verify_below) == (0, 100)


@pytest.mark.parametrize("open_s", [5.0, 45.0])
async def test_limbo_ends_beside_a_program_that_has_written_since_before_the_loss(
    open_s: float, autojump_clock: MockClock
) -> None:
    """H7: it went on making ledgers with ids of before, and one of them was open at each look."""
    metadata, pool = LocalMetadata(), Pool()
    ids = LedgerIds(metadata)

    async def write() -> None:
        """Segment after segment, each open for a while and without entries: none is to be copied."""
        while True:
            ledger = LedgerMetadata(await ids.next(), 3, 3, 2, (Fragment(0, BOOKIES, 0),), KEY)
            await metadata.transact(transactions.creation_ops(ledger, ()))
            await trio.sleep(open_s)
            closed = ledger.close_by_writer(-1, 0)
            await metadata.transact(transactions.close_ops(closed, 1, ()))

    async with running(CutDisk()) as store, trio.open_nursery() as nursery:
        pool.clients["b1"] = cast("BookieClient", object())  # empty ledgers ask nothing of it
        nursery.start_soon(write)
        await trio.sleep(1)
        store.ledgers.limbo_below = LIMBO_ALL
        await confine_limbo(store, metadata)
        healing = LimboRepair(
            metadata, pool, Copier(pool), store.limbo, store.corruption_tracker, "b1", trio.Lock()
        )
        nursery.start_soon(healing.run)
        await trio.sleep(open_s + 1)
        assert store.limbo.any_limbo  # the next one is of before, too

        with trio.fail_after(BLOCK_LIFETIME_S + open_s + EVERY_MAX_S):
            while store.limbo.any_limbo:  # noqa: ASYNC110 (virtual time)
                await trio.sleep(0.1)

        assert healing.repaired_ledgers >= 2
        nursery.cancel_scope.cancel()
