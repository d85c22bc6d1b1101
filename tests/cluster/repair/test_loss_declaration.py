"""Entries that somebody declares lost: never what a bookie has, and given to nobody again (H103, G5)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from distributedlog.cli.storage.ledger_view import describe
from distributedlog.cluster.repair.copier import lacking_ranges, list_held_entries
from distributedlog.cluster.repair.loss_declaration import declare_lost, force_close
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import (
    LOSSES_MAX,
    DeclaredLoss,
    Fragment,
    LedgerState,
)
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.interfaces.errors import InvalidRequest

from ..bookie_world import LEDGER, World, world

LOSS = DeclaredLoss(3, 6, "op", 1, "two disks")


async def _away(w: World, *bookies: str) -> None:
    for bookie in bookies:
        del w.pool.clients[bookie]
        await w.metadata.transact(Transaction((), (Delete(keys.bookie_key(bookie)),)))


async def test_what_a_bookie_has_or_may_have_is_not_given_up() -> None:
    async with world() as w:
        for bookie in ("b1", "b2", "b3"):
            await w.write(bookie, [0, 1, 2, 7, 8, 9])
        await w.write("b2", [5])
        await w.ledger(9)
        with pytest.raises(InvalidRequest, match="bookie b2 has entries from 5 on"):
            await declare_lost(w.metadata, w.pool, LEDGER, LOSS)
        client = w.pool.clients.pop("b2")
        with pytest.raises(InvalidRequest, match="b2 is registered and cannot be reached"):
            await declare_lost(w.metadata, w.pool, LEDGER, LOSS)
        for first, last in ((3, 10), (6, 3)):
            wrong = DeclaredLoss(first, last, "op", 1, "")
            with pytest.raises(InvalidRequest):
                await declare_lost(w.metadata, w.pool, LEDGER, wrong)
        assert (await w.record()).lost == ()

        w.pool.clients["b2"] = client
        await _away(w, "b2")
        assert (await declare_lost(w.metadata, w.pool, LEDGER, LOSS)).lost == (LOSS,)
        assert (await w.record()).lost == (LOSS,)


async def test_nobody_wants_copies_of_what_was_given_up() -> None:
    """Also not of a bookie that comes back with some; the rest is wanted as ever."""
    async with world() as w:
        await w.write("b1", [0, 1, 2, 8, 9])
        await w.ledger(9)
        await declare_lost(w.metadata, w.pool, LEDGER, LOSS, force=True)
        ledger = await w.record()
        target = w.pool.clients["b1"]

        missing = lacking_ranges(ledger, "b1", await list_held_entries(ledger, target))

        assert [(one.first, one.last) for one in missing] == [(7, 7)]


async def test_an_open_ledger_is_closed_where_it_is_said_and_not_before_what_is_confirmed() -> None:
    async with world() as w:
        await w.write("b1", range(5))  # the last one says that entry 3 is confirmed
        await w.ledger(None)
        await _away(w, "b2", "b3")
        with pytest.raises(InvalidRequest, match="confirmed to entry 3"):
            await force_close(w.metadata, w.pool, LEDGER, 2, by="op", why="gone")
        with pytest.raises(InvalidRequest, match="no bookie that answers has entry 5"):
            await force_close(w.metadata, w.pool, LEDGER, 5, by="op", why="gone")
        assert (await w.record()).state is LedgerState.IN_RECOVERY

        closed = await force_close(w.metadata, w.pool, LEDGER, 4, by="op", why="gone")

        assert (closed.last_entry, closed.length, closed.closed) == (4, 50, True)
        assert (await w.record()).custom["closed_why"] == b"gone"
        with pytest.raises(InvalidRequest, match="its end is known"):
            await force_close(w.metadata, w.pool, LEDGER, 4, by="op", why="gone")


async def test_an_open_ledger_does_not_end_where_a_bookie_that_is_there_may_know_more() -> None:
    """H103: a bookie that is registered and silent may take a living writer's entries; one that has an entry
    after the end may hold the one copy that is left of what was acknowledged."""
    async with world() as w:
        await w.write("b1", range(5))
        await w.write("b2", range(8))
        await w.ledger(None)
        await _away(w, "b3")
        silent = w.pool.clients.pop("b2")
        with pytest.raises(InvalidRequest, match="b2 is registered and does not answer"):
            await force_close(w.metadata, w.pool, LEDGER, 4, by="op", why="gone")

        w.pool.clients["b2"] = silent
        with pytest.raises(InvalidRequest, match="bookie b2 has entry 7"):
            await force_close(w.metadata, w.pool, LEDGER, 6, by="op", why="gone")
        with pytest.raises(InvalidRequest, match="confirmed to entry 6"):
            await force_close(w.metadata, w.pool, LEDGER, 5, by="op", why="gone", force=True)
        assert (await w.record()).state is LedgerState.IN_RECOVERY

        closed = await force_close(w.metadata, w.pool, LEDGER, 6, by="op", why="gone", force=True)

        assert (closed.last_entry, closed.length) == (6, 70)


async def test_an_open_ledger_does_not_end_by_the_word_of_a_bookie_in_limbo() -> None:
    async with world() as w:
        await w.write("b1", range(5))
        await w.ledger(None)
        await _away(w, "b3")
        w.stores["b2"].ledgers.limbo_below = LEDGER + 1
        with pytest.raises(InvalidRequest, match="b2 may have lost"):
            await force_close(w.metadata, w.pool, LEDGER, 4, by="op", why="gone")

        closed = await force_close(w.metadata, w.pool, LEDGER, 4, by="op", why="gone", force=True)

        assert closed.last_entry == 4


async def test_what_a_bookie_has_that_the_record_does_not_name_any_more_is_not_lost() -> None:
    """It was away until another one took its place, and is back: the others are gone for good."""
    async with world("b1", "b2", "b3", "b4") as w:
        await w.write("b4", range(5))
        await w.ledger(9)
        await _away(w, "b1", "b2", "b3")
        with pytest.raises(InvalidRequest, match="bookie b4 has entries from 3 on, although"):
            await declare_lost(w.metadata, w.pool, LEDGER, LOSS)
        later = DeclaredLoss(5, 9, "op", 1, "three disks")

        assert (await declare_lost(w.metadata, w.pool, LEDGER, later)).lost == (later,)


async def test_a_record_is_not_made_one_that_nobody_can_read() -> None:
    """The most stretches that a record takes: one more and the whole ledger would be `CorruptData`."""
    async with world() as w:
        await w.ledger(3000)
        ledger = await w.record()
        many = tuple(DeclaredLoss(2 * n, 2 * n, "op", 1, "") for n in range(LOSSES_MAX))
        full = replace(ledger, lost=many)
        await w.metadata.transact(Transaction((), (Put(keys.ledger_key(LEDGER), full.encode()),)))
        with pytest.raises(InvalidRequest, match="declare longer ranges"):
            await declare_lost(w.metadata, w.pool, LEDGER, DeclaredLoss(2500, 2500, "op", 1, ""))
        assert (await w.record()).lost == many


async def test_who_decides_is_shown_the_last_entry_of_each_bookie_and_what_was_given_up() -> None:
    """docs/operate/accept-data-loss.md, "End an open ledger": N is the last entry that a bookie lists."""
    async with world() as w:
        logs = SimpleNamespace(metadata=w.metadata, ledgers=SimpleNamespace(pool=w.pool))
        await w.write("b1", [0, 1, 2, 7])
        await w.write("b2", [0])
        await w.ledger(None)
        shown = await describe(logs, LEDGER)
        assert [one["last"] for one in shown["bookies"]] == [7, 0, None]
        assert shown["placement_violations"] == ["b1 and b2 share host h1"]
        assert shown["lost"] == []

        await force_close(w.metadata, w.pool, LEDGER, 7, by="op", why="gone")
        await declare_lost(w.metadata, w.pool, LEDGER, LOSS)

        shown = await describe(logs, LEDGER)
        assert shown["lost"] == [
            {"first": 3, "last": 6, "by": "op", "at_ms": 1, "why": "two disks"}
        ]
        assert shown["bookies"][0]["report"] == "has all required entries"


async def test_an_open_ledger_does_not_end_before_its_last_ensemble_also_where_nobody_is_left() -> (
    None
):
    """What is before it was confirmed by construction (inv. 6): no bookie need say so."""
    async with world("b1", "b2", "b3", "b4", "b5", "b6") as w:
        await w.write("b1", range(5))
        fragments = (Fragment(0, ("b1", "b2", "b3"), 0), Fragment(5, ("b4", "b5", "b6"), 1))
        await w.ledger(None, ensembles=fragments)
        await _away(w, "b4", "b5", "b6")
        with pytest.raises(InvalidRequest, match="confirmed to entry 4"):
            await force_close(w.metadata, w.pool, LEDGER, 3, by="op", why="gone", force=True)

        closed = await force_close(w.metadata, w.pool, LEDGER, 4, by="op", why="gone")

        assert closed.last_entry == 4
