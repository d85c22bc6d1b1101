"""A bookie heals what rotted in it from the copies of others, within what the ledger's record says (H91)."""

import pytest
import trio

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format.entry import HEADER_BYTES
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.format.journal_format import file_name
from distributedlog.cluster.repair.copier import Copier
from distributedlog.cluster.repair.corruption_repair import CorruptionRepair
from distributedlog.cluster.repair.limbo_repair import LimboRepair
from distributedlog.ledger.model.ledger_metadata import Fragment
from distributedlog.ledger.model.ledger_transactions import close_ops
from distributedlog.ledger.model.striping import Striping
from distributedlog.runtime.declarations.health_conditions import REPAIRED_SHOWN_S, Code
from distributedlog.runtime.interfaces.errors import CorruptData, LedgerFenced
from tests.conditions import codes_of

from ..bookie_world import KEY, LEDGER, World, world


def _healing(w: World, bookie: str = "b3") -> CorruptionRepair:
    store = w.stores[bookie]
    return CorruptionRepair(
        w.metadata,
        w.pool,
        Copier(w.pool),
        store.limbo,
        store.corruption_tracker,
        bookie,
        trio.Lock(),
    )


async def _rot(w: World, *entries: int, bookie: str = "b3") -> None:
    """A bit flips in the payload of these entries, where they lie; the bookie notes it as its scrub does."""
    store = w.stores[bookie]
    ledger = store.ledgers.get_or_make(LEDGER)
    for entry in entries:
        run = store._index.find(ledger, entry)
        assert run is not None
        at = run.offset + (run.length // run.count) * (entry - run.first)
        store._disk._files[file_name(run.file_number)].data[at + HEADER_BYTES] ^= 1  # type: ignore[attr-defined]
    for rotten in await store.corruption_tracker.find_corrupt(LEDGER, 0, 1 << 40):
        store.corruption_tracker.record(
            LEDGER, rotten.corrupt_ranges[0][0], rotten.corrupt_ranges[-1][1]
        )
    low, high = store.corruption_tracker.corrupt_ranges[LEDGER]
    assert low <= min(entries)
    assert high >= max(entries)


async def _sound(w: World, bookie: str, last: int) -> bool:
    return not await w.stores[bookie].corruption_tracker.find_corrupt(LEDGER, 0, last)


def _forget_memory(w: World) -> None:
    """There are no sound bytes in memory either."""
    for store in w.stores.values():
        store._buffer.find_bytes = lambda *place: None  # type: ignore[method-assign]


async def _written(w: World, count: int = 8) -> None:
    """Records of one length each."""
    for bookie in w.stores:
        await w.write(bookie, range(count))


async def test_rotten_entries_of_a_closed_ledger_are_healed_in_place() -> None:
    async with world() as w:
        await _written(w)
        await w.ledger(7)
        await _rot(w, 2, 3, 7)
        store = w.stores["b3"]

        assert await _healing(w).run_pass()

        assert await _sound(w, "b3", 7)
        assert await w.ids("b3") == list(range(8))
        assert await w.held("b3", 7) == await w.held("b1", 7)
        assert store.corruption_tracker.corrupt_ranges == {}
        assert store.corruption_tracker.repaired_entries == 3
        assert not store.limbo.is_in_limbo(LEDGER)
        [told] = store.health_conditions()  # it is over before anybody looks
        assert (told.code, told.integer("ledgers")) == (Code.ENTRIES_REPAIRED, 1)
        store.corruption_tracker.repaired_ledgers.last_at -= REPAIRED_SHOWN_S
        assert store.health_conditions() == ()
        absent = await w.pool.clients["b3"].read(
            LEDGER, KEY, 8, 8, 1000, past_lac=True, timeout_s=5
        )
        assert absent.proves_absence


async def test_what_is_noted_while_another_entry_is_healed_is_healed_next() -> None:
    """Forgotten, it would wait for the next pass of the scrub: two weeks."""
    async with world() as w:
        await _written(w)
        await w.ledger(7)
        await _rot(w, 2)
        store, healing = w.stores["b3"], _healing(w)
        drop = store.corruption_tracker.drop_corrupt

        async def and_rot(*args: object) -> object:
            dropped = await drop(*args)  # type: ignore[arg-type]
            store.corruption_tracker.drop_corrupt = drop  # type: ignore[method-assign]
            await _rot(w, 6)
            return dropped

        store.corruption_tracker.drop_corrupt = and_rot  # type: ignore[assignment, method-assign]
        await healing.run_pass()
        assert LEDGER in store.corruption_tracker.corrupt_ranges
        assert not await _sound(w, "b3", 7)

        assert await healing.run_pass()
        assert await _sound(w, "b3", 7)


async def test_what_nobody_else_has_stays_as_it_is_and_is_told() -> None:
    """A device may read better tomorrow; until then it is no "no"."""
    async with world() as w:
        await _written(w)
        await w.ledger(7)
        for bookie in ("b1", "b2"):
            await _rot(w, 5, bookie=bookie)
        await _rot(w, 2, 5)
        _forget_memory(w)
        store = w.stores["b3"]
        healing = _healing(w)

        assert not await healing.run_pass()

        assert not await _sound(w, "b3", 7)
        assert await w.ids("b3") == list(range(8))
        assert not store.limbo.is_in_limbo(LEDGER)
        assert "entry 5" in store.corruption_tracker.unrepairable[LEDGER]
        assert Code.ENTRIES_CORRUPT_WITHOUT_COPY in codes_of(store.health_conditions())

        run = w.stores["b1"]._index.find(w.stores["b1"].ledgers.get_or_make(LEDGER), 5)
        assert isinstance(run, ExtentLocation)
        at = run.offset + (run.length // run.count) * (5 - run.first) + HEADER_BYTES
        w.stores["b1"]._disk._files[file_name(run.file_number)].data[at] ^= 1  # type: ignore[attr-defined]
        assert await healing.run_pass()
        assert await _sound(w, "b3", 7)
        assert store.corruption_tracker.unrepairable == {}


async def test_an_open_ledger_waits_until_it_is_closed() -> None:
    """Only then it is known which entries are of the ledger; its writer goes on meanwhile."""
    async with world() as w:
        await _written(w)
        await w.ledger(None)
        await _rot(w, 2)
        healing = _healing(w)

        assert not await healing.run_pass()
        await w.write("b3", range(8, 10))
        assert not w.stores["b3"].limbo.is_in_limbo(LEDGER)

        closed = (await w.record()).close_by_writer(7, 80)
        await w.metadata.transact(close_ops(closed, 1, ()))
        assert await healing.run_pass()
        assert await _sound(w, "b3", 7)


@pytest.mark.parametrize("write_quorum", [2, 3])
async def test_what_a_recovery_meets_is_healed_before_the_ledger_is_closed(
    write_quorum: int,
) -> None:
    """Where all copies must acknowledge and nobody can stand in, it could not be closed otherwise."""
    async with world() as w:
        striping = Striping(3, write_quorum, write_quorum)
        held = [entry for entry in range(8) if striping.holds(2, entry)]
        for slot, bookie in enumerate(w.stores):
            await w.write(bookie, [entry for entry in range(8) if striping.holds(slot, entry)])
        await w.ledger(None, sizes=(3, write_quorum, write_quorum))
        await _rot(w, held[1], held[-1])
        _forget_memory(w)
        await w.begin_recovery()
        store = w.stores["b3"]
        assert isinstance(await w.refused("b3", held[1], recovery=True), CorruptData)

        assert await _healing(w).run_pass()

        assert await _sound(w, "b3", 7)
        assert await w.ids("b3") == held
        assert store.corruption_tracker.repaired_entries == 2
        assert not store.limbo.is_in_limbo(LEDGER)
        await w.write("b3", held, recovery=True)
        assert isinstance(await w.refused("b3", 8), LedgerFenced)


async def test_what_only_a_rotten_copy_has_waits_for_the_end_of_the_ledger() -> None:
    """The others' "no" closes the ledger before it: nobody asks for it any more, and it is forgotten."""
    async with world() as w:
        await _written(w)
        await w.write("b3", [8])
        await w.ledger(None, sizes=(3, 3, 3))
        await _rot(w, 8)
        await w.begin_recovery()
        healing = _healing(w)

        assert not await healing.run_pass()
        assert await w.ids("b3") == list(range(9))
        assert not w.stores["b3"].limbo.is_in_limbo(LEDGER)

        recovering = await w.record()
        closed = recovering.close_by_recovery(7, 80, recovering.ensembles)
        await w.metadata.transact(close_ops(closed, 2, ()))
        assert await healing.run_pass()
        assert w.stores["b3"].corruption_tracker.corrupt_ranges == {}


async def test_nothing_is_copied_after_the_end_nor_from_who_was_replaced() -> None:
    """H91: entry 8 is a fenced writer's; b4 left the ensemble, and its copy of entry 2 counts for nothing."""
    async with world("b1", "b2", "b3", "b4") as w:
        await w.write("b4", range(9))
        await w.write("b3", range(9))
        await w.ledger(7, ensembles=(Fragment(0, ("b1", "b2", "b3"), 0),))
        await _rot(w, 2, 8)
        store = w.stores["b3"]
        healing = _healing(w)

        assert not await healing.run_pass()
        assert store.corruption_tracker.repaired_entries == 0

        for bookie in ("b1", "b2"):
            await w.write(bookie, range(8))
        assert await healing.run_pass()
        assert await w.ids("b3") == list(range(8))  # nobody wants entry 8


async def test_a_ledger_that_is_elsewhere_now_or_gone_is_forgotten() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _written(w)
        await w.ledger(7, ensembles=(Fragment(0, ("b1", "b2", "b4"), 0),))
        await _rot(w, 2)

        assert await _healing(w).run_pass()

        assert w.stores["b3"].corruption_tracker.corrupt_ranges == {}
        assert w.stores["b3"].corruption_tracker.repaired_entries == 0


async def test_a_bookie_whose_device_fails_heals_nothing() -> None:
    """H92: the rest of its life is for reads."""
    async with world() as w:
        await _written(w)
        await w.ledger(7)
        await _rot(w, 2)
        w.stores["b3"].space.has_read_errors = True

        assert not await _healing(w).run_pass()

        assert not await _sound(w, "b3", 7)
        assert w.stores["b3"].corruption_tracker.repaired_entries == 0


async def test_limbo_ends_where_an_indexed_entry_rotted() -> None:
    """What the copy is compared with was not sound, and counted as held for ever."""
    async with world() as w:
        await _written(w)
        await w.ledger(7)
        store = w.stores["b3"]
        ledger = store.ledgers.get_or_make(LEDGER)
        store.ledgers.set_flags(ledger, jb.FENCED | jb.LIMBO)
        await _rot(w, 2)
        store.corruption_tracker.clear(LEDGER)
        store._buffer.find_bytes = lambda *place: None  # type: ignore[method-assign]
        turn = trio.Lock()
        limbo = LimboRepair(
            w.metadata, w.pool, w.copier, store.limbo, store.corruption_tracker, "b3", turn
        )

        assert not await limbo.run_pass()
        assert await _healing(w).run_pass()
        assert await limbo.run_pass()

        assert not store.limbo.is_in_limbo(LEDGER)
        assert await _sound(w, "b3", 7)


async def test_a_limbo_of_before_is_not_lifted_with_the_rot() -> None:
    """Entries that a start lost are not denied because others, which rotted, were healed."""
    async with world() as w:
        await w.write("b1", range(8))
        await w.write("b2", range(8))
        await w.write("b3", range(6))  # it lost two
        await w.ledger(7)
        store = w.stores["b3"]
        store.ledgers.set_flags(store.ledgers.get_or_make(LEDGER), jb.FENCED | jb.LIMBO)
        await _rot(w, 2)

        assert await _healing(w).run_pass()

        assert await _sound(w, "b3", 5)
        assert store.limbo.is_in_limbo(LEDGER)
