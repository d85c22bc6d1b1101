"""Copies brought back at once, for ledgers that somebody names: what each lacks, and why some wait."""

import random

import pytest

from distributedlog.cluster.repair import manual_repair as repair_now
from distributedlog.cluster.repair.manual_repair import ManualRepair
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.ledger.placement.ensemble_placement import Candidate
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.runtime.interfaces.errors import ConfirmationRequired

from ..bookie_world import BOOKIES, KEY, LEDGER, World, world


async def _dies(w: World, bookie: str) -> None:
    w.pool.clients.pop(bookie, None)
    await w.metadata.transact(Transaction((), (Delete(keys.bookie_key(bookie)),)))


async def _now(w: World) -> ManualRepair:
    now = ManualRepair(w.metadata, w.pool, w.candidates, random.Random(1).random)
    await now.load_bookies()
    return now


async def test_what_nobody_noted_is_copied_and_the_note_of_the_rest_goes() -> None:
    async with world() as w:
        await w.write("b1", range(10))
        await w.write("b2", range(3))
        await w.ledger(9)
        await w.note(MissingRange("b3", 0, None))

        now = await _now(w)
        done = await now.work([LEDGER])

        assert (done.ledgers, done.full, done.left) == (1, 1, {})
        assert [await w.ids(bookie) for bookie in BOOKIES] == [list(range(10))] * 3
        assert await w.noted() == ()
        assert now.copier.copied_entries == 7 + 10
        assert now.copier.copied_bytes > 0
        again = await _now(w)
        assert (await again.work([LEDGER, LEDGER])).full == 1
        assert again.copier.copied_entries == 0


async def test_what_lies_on_a_bookie_that_is_down_is_stored_elsewhere_without_a_delay() -> None:
    """But only where a copy is to be had: a record never names who has nothing."""
    async with world(*BOOKIES, "b4") as w:
        for bookie in BOOKIES:
            await w.write(bookie, range(5))
        await w.ledger(4)
        await _dies(w, "b3")
        assert await repair_now.under_replicated_ledgers(w.metadata) == [LEDGER]

        done = await (await _now(w)).work([LEDGER])

        assert (done.full, done.left) == (1, {})
        assert (await w.record()).bookies() == ("b1", "b2", "b4")
        assert await w.ids("b4") == list(range(5))
        assert await repair_now.under_replicated_ledgers(w.metadata) == []
        assert await repair_now.ledgers_of_bookie(w.metadata, "b4") == [LEDGER]
        assert await repair_now.all_ledgers(w.metadata) == [LEDGER]

        await _dies(w, "b1")
        left = (await (await _now(w)).work([LEDGER])).left[LEDGER]
        assert left.startswith("bookie b1: NotEnoughBookies")
        assert (await w.record()).bookies() == ("b1", "b2", "b4")


async def test_what_waits_is_told_with_its_reason_and_the_rest_is_done() -> None:
    """A note stays while a copy that it names is missing."""
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(5))
        await w.ledger(4)
        await w.note(MissingRange("b3", 0, None))
        unreached = w.pool.clients.pop("b3")
        open_one = LedgerMetadata(LEDGER + 1, 3, 3, 2, (Fragment(0, BOOKIES, 0),), KEY)
        await w.metadata.transact(transactions.creation_ops(open_one, ()))

        done = await (await _now(w)).work([LEDGER, LEDGER + 1, LEDGER + 2])

        assert (done.ledgers, done.full) == (3, 1)  # there is no third one: it lacks nothing
        assert done.left[LEDGER] == "bookie b3: is registered, but cannot be reached from here"
        assert done.left[LEDGER + 1].startswith("open, of no log")
        assert await w.noted() == (MissingRange("b3", 0, None),)
        w.pool.clients["b3"] = unreached
        assert (await (await _now(w)).work([LEDGER])).full == 1


async def test_a_bookie_in_limbo_is_left_to_heal_itself() -> None:
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(5))
        await w.ledger(4)
        w.stores["b3"].ledgers.limbo_below = 100

        now = await _now(w)
        left = (await now.work([LEDGER])).left

        assert left == {
            LEDGER: "bookie b3: may have lost some of it (limbo state), and repairs itself"
        }
        assert now.copier.copied_entries == 0


async def test_what_has_the_fewest_copies_comes_first() -> None:
    async with world() as w:
        for bookie in BOOKIES:
            await w.write(bookie, range(5))
        await w.ledger(4)
        for ledger_id, bookies in ((1, BOOKIES), (9, ("b1", "x", "y")), (5, ("b1", "b2", "x"))):
            other = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, bookies, 0),), KEY)
            await w.metadata.transact(transactions.creation_ops(other, ()))
            closed = other.close_by_writer(4, 50)
            await w.metadata.transact(transactions.close_ops(closed, 1, ()))
        now = await _now(w)
        seen = []

        async def repair(ledger_id: int) -> str:
            seen.append(ledger_id)
            return ""

        now.repair_ledger = repair  # type: ignore[method-assign]
        await now.work([1, LEDGER, 9, 5])

        assert seen == [9, 5, 1, LEDGER]


async def test_while_most_bookies_are_away_nothing_is_stored_elsewhere_by_mistake() -> None:
    """H99: more likely it is our network."""
    async with world() as w:
        await _dies(w, "b2")
        now = await _now(w)
        await _dies(w, "b3")

        with pytest.raises(ConfirmationRequired, match="2 of 3 bookies are away"):
            await now.load_bookies()
        await now.load_bookies(force=True)


async def test_copies_that_stand_together_are_moved_where_that_puts_them_apart() -> None:
    """Each moves to where it is better, and none where it is as good: of two racks three copies share one."""
    hosts = {"b1": "h1", "b2": "h1", "b3": "h1", "b4": "h2", "b5": "h3", "b6": "h3"}
    async with world(*hosts) as w:
        labels = {
            one: {"host": host, "rack": "r1" if host == "h1" else "r2"}
            for one, host in hosts.items()
        }
        for bookie in BOOKIES:
            await w.write(bookie, range(5))
        await w.ledger(4)

        def candidates() -> list[Candidate]:
            return [Candidate(one, labels[one]) for one in sorted(there)]

        there = {*BOOKIES}
        for apart, hosts_after in ((True, 1), (False, 1), (True, 3), (True, 3)):
            before = (await w.record()).bookies()
            now = ManualRepair(
                w.metadata,
                w.pool,
                candidates,
                random.Random(1).random,
                labels=lambda one: labels[one],
                move_apart=apart,
            )
            await now.load_bookies()
            assert (await now.work([LEDGER])).left == {}
            after = (await w.record()).bookies()
            assert len({hosts[one] for one in after}) == hosts_after
            assert (now.copier.copied_entries == 0) == (before == after)
            there = {*hosts}
        for bookie in after:
            assert await w.ids(bookie) == list(range(5))
