"""A checkpoint that fails wrote nothing, and forgets nothing: neither states nor runs, old or new."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from distributedlog.bookie.format.extent_map import ExtentMap
from distributedlog.bookie.format.index_format import (
    EXTENT_KEY,
    IndexCheckpoint,
    IndexTotals,
    decode_extent,
    extent_pairs,
)
from distributedlog.bookie.format.journal_format import DELETED
from distributedlog.bookie.gc.checkpointer import CHECKPOINT_PAUSE_S, THRESHOLD_FACTOR_MIN
from distributedlog.bookie.ledgers.ledger_table import Ledger, LedgerTable
from distributedlog.bookie.storage.index import MAP_NAME, PUTS_PER_SLICE, Index
from distributedlog.runtime.disk.memory_disk import MemoryDisk, MemoryMap, _Pairs
from distributedlog.runtime.interfaces.errors import DiskFull
from distributedlog.runtime.interfaces.host import Summary

from .kit import SMALL, Adder, CutDisk, record, running

Clock = trio.testing.MockClock
SAVED = IndexCheckpoint("b1", 1, 10, 1, 4096, 1, 1, 0, 2)


class FullMap(MemoryMap):
    """A map of a full disk: a transaction takes a moment, and then there was no room for it."""

    def __init__(self, pairs: _Pairs) -> None:
        super().__init__(MAP_NAME, pairs)
        self.full = False
        self.begun = trio.Event()

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        self.begun.set()
        await trio.sleep(1)
        if self.full:
            raise DiskFull("no room")
        await super().apply(puts, deletes, summary)


async def _index() -> tuple[FullMap, Index, LedgerTable, MemoryDisk]:
    disk = MemoryDisk()
    await disk.open_map(MAP_NAME)
    stored = FullMap(disk._maps[MAP_NAME])
    ledgers = LedgerTable(stored, 100)
    return stored, Index(stored, ledgers), ledgers, disk


async def _loaded(disk: MemoryDisk) -> tuple[Index, LedgerTable]:
    """What a start finds."""
    stored = await disk.open_map(MAP_NAME)
    ledgers = LedgerTable(stored, 100)
    index = Index(stored, ledgers)
    assert await index.load() is not None
    return index, ledgers


def _stored_ledger(ledgers: LedgerTable, index: Index, id: int, lac: int) -> Ledger:
    ledger = ledgers.get_or_make(id)
    ledgers.set_state(ledger, 0, lac, b"k" * 16)
    index.mark_state_dirty(ledger)
    return ledger


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_failed_checkpoint_forgets_neither_states_nor_runs(
    autojump_clock: Clock, cancelled: bool
) -> None:
    """What it took and what came while it ran: the next one writes it all, and finds it meanwhile."""
    stored, index, ledgers, disk = await _index()
    old = _stored_ledger(ledgers, index, 7, lac=3)
    only_state = _stored_ledger(ledgers, index, 8, lac=5)
    index.add(old, 0, 4, 1, 4096, 400)
    stored.full = True

    async def come_meanwhile() -> None:
        await stored.begun.wait()
        index.add(old, 4, 2, 1, 8192, 200)
        new = _stored_ledger(ledgers, index, 9, lac=0)
        index.add(new, 0, 1, 1, 9000, 100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_meanwhile)
        if cancelled:
            with trio.move_on_after(0.5):
                await index.checkpoint(SAVED)
        else:
            with pytest.raises(DiskFull):
                await index.checkpoint(SAVED)

    assert index.dirty
    assert (index.extents_in_memory, index.extents_frozen, index.bytes_since_checkpoint) == (
        3,
        0,
        700,
    )
    for entry in range(6):
        assert index.find(old, entry) is not None
    stored.full = False
    await index.checkpoint(SAVED)
    assert not index.dirty
    index, ledgers = await _loaded(disk)
    assert [ledgers.get_or_make(id).lac for id in (7, 8, 9)] == [3, 5, 0]
    assert [ledgers.get_or_make(id).last_entry for id in (7, 8, 9)] == [5, -1, 0]
    assert index.ranges(ledgers.get_or_make(7), 0, 10) == ([(0, 6)], -1)
    assert index.live_bytes == {1: 700}
    assert only_state.lac == 5


async def test_a_checkpoint_rests_between_slices(autojump_clock: Clock) -> None:
    """So that adds beside fifty thousand runs wait for one slice at most, of one ledger or of many."""
    stored, index, ledgers, _ = await _index()
    long = _stored_ledger(ledgers, index, 9_000, lac=0)
    for entry in range(2 * PUTS_PER_SLICE):
        index.add(long, entry, 1, 2, 4096 * entry, 100)
    many = [_stored_ledger(ledgers, index, id, lac=0) for id in range(1, 1 + PUTS_PER_SLICE)]
    for ledger in many:
        index.add(ledger, 0, 1, 1, 4096 * ledger.id, 100)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(index.checkpoint, SAVED, pause_s=10.0))
        await stored.begun.wait()
        # A slice of states, two of one ledger's runs, one of many ledgers'.
        assert trio.current_time() - begun == pytest.approx(4 * 10.0)
        assert index.extents_frozen == 3 * PUTS_PER_SLICE
        found = index.find(long, 7)
        assert found is not None
        assert found.offset == 4096 * 7
    assert (index.extents_frozen, index.stored_totals.extent_count) == (0, 3 * PUTS_PER_SLICE)


async def test_a_checkpoint_does_not_rest_when_it_falls_behind(autojump_clock: Clock) -> None:
    """As much has come meanwhile as it writes: else the index would wait in memory until adds are refused."""
    stored, index, ledgers, _ = await _index()
    long = _stored_ledger(ledgers, index, 1, lac=0)
    for entry in range(10 * PUTS_PER_SLICE):
        index.add(long, entry, 1, 1, 4096 * entry, 100)
    begun = trio.current_time()

    async def add_much() -> None:
        await trio.sleep(35.0)
        for entry in range(10 * PUTS_PER_SLICE, 20 * PUTS_PER_SLICE):
            index.add(long, entry, 1, 1, 4096 * entry, 100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(index.checkpoint, SAVED, pause_s=10.0))
        nursery.start_soon(add_much)
        await stored.begun.wait()
        assert trio.current_time() - begun == pytest.approx(4 * 10.0)
    assert (index.stored_totals.extent_count, index.extents_in_memory) == (
        10 * PUTS_PER_SLICE,
        10 * PUTS_PER_SLICE,
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(1, 3), st.integers(0, 1 << 40), st.integers(1, 1 << 30)
        ),
        min_size=1,
        max_size=30,
    )
)
def test_runs_are_written_by_columns_as_one_by_one(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    """Keys, values, totals: of many runs what each by itself would give."""
    runs, entry = ExtentMap(), 0
    for count, file, offset, length in drawn:
        runs.add(entry, count, file, offset, length)
        entry += count + 1
    one_by_one, together = IndexTotals(), IndexTotals()
    added: Counter[int] = Counter()
    pairs: list[tuple[bytes, bytes]] = []
    for at in range(0, len(runs), 7):
        columns = runs.columns(at, at + 7)
        pairs += extent_pairs(77, columns)
        added.update(together.add_extents(columns))
    for run in runs:
        one_by_one.add_extent(run)
    assert [decode_extent(*pair) for pair in pairs] == list(runs)
    assert {EXTENT_KEY.unpack(key)[1] for key, _ in pairs} == {77}
    assert together == one_by_one
    assert added == runs.bytes_by_file() == together.live_bytes


@pytest.mark.parametrize("bound", ["checkpoint_runs", "checkpoint_bytes"])
async def test_bookies_of_an_ensemble_do_not_write_their_index_at_one_moment(
    autojump_clock: Clock, bound: str
) -> None:
    """All of them count the same entries: how many are waited for is drawn by each, each time anew."""
    took: list[list[int]] = []
    for seed in (1, 2, 3):
        counts: list[int] = []
        bounds = {"checkpoint_runs": 1 << 20, "checkpoint_bytes": 1 << 30}
        bounds[bound] = 40 if bound == "checkpoint_runs" else 40 * len(record(5, 0))
        options = replace(SMALL, checkpoint_s=1e6, **bounds)
        async with running(CutDisk(), options, seed=seed) as store:
            adder = Adder(store, 5)
            while len(counts) < 4:
                before = store.stats.checkpoints
                sent = 0
                while store.stats.checkpoints == before:
                    adder.send(record(5, len(adder.sent)))
                    await adder.all_acked()
                    await trio.sleep(0.1)
                    sent += 1
                counts.append(sent)
        assert len(set(counts)) > 1
        assert all(40 * THRESHOLD_FACTOR_MIN - 2 <= count <= 42 for count in counts)
        took.append(counts)
    assert took[0] != took[1] != took[2]


async def test_a_bookie_rests_in_its_own_checkpoints_and_not_in_those_that_are_waited_for(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    checkpoint = Index.checkpoint

    async def noted(index: Index, saved: IndexCheckpoint, *, pause_s: float = 0.0) -> None:
        rests.append(pause_s)
        await checkpoint(index, saved, pause_s=pause_s)

    monkeypatch.setattr(Index, "checkpoint", noted)
    async with running(CutDisk(), replace(SMALL, checkpoint_s=5.0)) as store:
        rests.clear()  # a start waits for its own
        adder = Adder(store, 5)
        adder.send(record(5, 0))
        await adder.all_acked()
        await trio.sleep(6)
        assert rests == [CHECKPOINT_PAUSE_S]
        await store.checkpoint()
        assert rests == [CHECKPOINT_PAUSE_S, 0.0]


async def test_a_failed_checkpoint_forgets_no_deletion(autojump_clock: Clock) -> None:
    """Runs of a ledger that was deleted before it and while it ran: gone with the next one."""
    stored, index, ledgers, disk = await _index()
    first, second = (_stored_ledger(ledgers, index, id, lac=0) for id in (1, 2))
    for number, ledger in ((1, first), (2, second)):
        index.add(ledger, 0, 1, number, 4096, 100)
    await index.checkpoint(SAVED)
    index.add(second, 1, 1, 2, 8192, 50)
    stored.full, stored.begun = True, trio.Event()
    ledgers.set_flags(first, DELETED)
    index.mark_state_dirty(first)

    async def delete_meanwhile() -> None:
        await stored.begun.wait()
        ledgers.set_flags(second, DELETED)
        index.mark_state_dirty(second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete_meanwhile)
        with pytest.raises(DiskFull):
            await index.checkpoint(SAVED)
    stored.full = False
    await index.checkpoint(SAVED)

    assert index.live_bytes == {1: 0, 2: 0}
    assert (index.stored_totals.extent_count, index.extents_in_memory) == (0, 0)
    index, _ = await _loaded(disk)
    assert index.live_bytes == {}
