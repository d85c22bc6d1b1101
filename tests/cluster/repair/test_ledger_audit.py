"""The audit of entry lists: holes that nobody noted are found, noted, and filled (H22b)."""

import trio

from distributedlog.cluster.repair.ledger_audit import MISSING_RANGES_MAX, LedgerAudit
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.metadata.model.transaction import KeyValue, Put, Transaction

from ..bookie_world import BOOKIES, LEDGER, World, world


def _audit(w: World) -> LedgerAudit:
    return LedgerAudit(w.metadata, w.pool, w.election, every_s=1.0)


async def _item(w: World) -> KeyValue:
    found = await w.metadata.get(keys.ledger_key(LEDGER))
    assert found is not None
    return found


async def test_a_hole_that_nobody_noted_is_found_and_filled() -> None:
    """A writer that was killed before its first note was stored, and a recovery that did not need b3."""
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(40))
        await w.write("b3", [*range(10), 20, 21])
        await w.ledger(39)

        await _audit(w).audit_all()

        assert await w.noted() == (MissingRange("b3", 10, 20), MissingRange("b3", 22, 40))
        await w.repair.run_pass()
        assert await w.held("b3", 39) == await w.held("b1", 39)
        assert await w.noted() == ()
        audit = _audit(w)
        await audit.audit_all()
        assert audit.recorded_ledgers == 0


async def test_only_what_the_record_wants_of_a_bookie_is_asked_of_it() -> None:
    """Replaced slots and stripes: what lies elsewhere is no hole."""
    fragments = (Fragment(0, BOOKIES, 0), Fragment(5, ("b1", "b4", "b3"), 1))
    async with world("b1", "b2", "b3", "b4") as w:
        for bookie, held in (
            ("b1", range(10)), ("b2", range(5)), ("b3", range(10)), ("b4", range(5, 10)),
        ):  # fmt: skip
            await w.write(bookie, held)
        await w.ledger(9, ensembles=fragments)

        assert await _audit(w).audit_ledger(await _item(w)) == ()


async def test_open_ledgers_and_bookies_that_are_away_are_passed_over() -> None:
    async with world() as w:
        await w.write("b1", range(10))
        await w.ledger(None)
        assert await _audit(w).audit_ledger(await _item(w)) == ()
    async with world("b1", "b2") as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(10))
        await w.ledger(9)
        assert await _audit(w).audit_ledger(await _item(w)) == ()


async def test_what_is_noted_already_stays_and_a_record_that_changed_gets_no_note() -> None:
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(10))
        await w.ledger(9)
        item = await _item(w)
        await w.note(MissingRange("b2", 3, 5))

        await _audit(w).audit_ledger(item)
        assert await w.noted() == (MissingRange("b2", 3, 5), MissingRange("b3", 0, 10))

        await w.note(MissingRange("b2", 3, 5))
        await w.metadata.transact(Transaction((), (Put(item.key, item.value),)))
        await _audit(w).audit_ledger(item)
        assert await w.noted() == (MissingRange("b2", 3, 5),)


async def test_many_small_holes_are_one_note_of_a_bounded_size() -> None:
    last = 2 * (MISSING_RANGES_MAX + 5)
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(last + 1))
        await w.write("b3", range(0, last + 1, 2))
        await w.ledger(last)

        assert await _audit(w).audit_ledger(await _item(w)) == (MissingRange("b3", 1, last + 1),)


async def test_it_runs_while_elected_only() -> None:
    async with world() as w:
        for bookie in ("b1", "b2"):
            await w.write(bookie, range(10))
        await w.ledger(9)
        await w.metadata.transact(Transaction((), (Put(b"repair/leader", b"another"),)))
        audit = LedgerAudit(w.metadata, w.pool, w.election, every_s=0.01)

        with trio.move_on_after(0.2):
            await audit.run()

        assert await w.noted() == ()
