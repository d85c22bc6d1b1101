"""What a bookie does in one turn of its loop is bounded in runs and ledgers, not only in bytes (H112).

Counted are calls, not time: the same on every machine. Reads and lists: `test_read_budget.py`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import MockClock

from distributedlog.runtime.disk.directory_disk import DirectoryDisk

from .kit import KEY, OPTIONS, Adder, CutDisk, record, running

RUNS = 10_922
"""One entry each: what an interleaved ledger of a busy bookie had in 64 MiB, and 0.3 s of loop."""
CALLS_MAX = 40_000
"""Some milliseconds; all of the runs in one turn are ten times as many."""


class _Turns(trio.abc.Instrument):
    """How many calls the longest turn of a task made."""

    def __init__(self) -> None:
        self.most = 0
        self._calls = 0

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self._calls += event in ("call", "c_call")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._calls = 0
        sys.setprofile(self._count)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.setprofile(None)
        self.most = max(self.most, self._calls)


@contextmanager
def _turns() -> Iterator[_Turns]:
    counted = _Turns()
    trio.lowlevel.add_instrument(counted)
    try:
        yield counted
    finally:
        trio.lowlevel.remove_instrument(counted)


async def test_ten_thousand_tiny_runs_are_written_and_forgotten_some_a_turn(tmp_path: Path) -> None:
    """A checkpoint of them, the deletion of those in memory and of those in the map."""
    index, disk = DirectoryDisk(tmp_path), DirectoryDisk(tmp_path / "journal")
    async with running(disk, OPTIONS, index) as store:
        both = [Adder(store, 7), Adder(store, 8)]
        for n in range(0, 2 * RUNS, 2):
            for adder in both:
                adder.send(record(adder.ledger, n, b"x"))
            if n % 1000 == 0:
                await trio.lowlevel.checkpoint()
        for adder in both:
            await adder.all_acked()
        assert store.info()["runs_in_memory"] == 2 * RUNS

        with _turns() as turns:
            await store.delete_ledger(7)
            await store.checkpoint()
            assert store.info()["runs_in_map"] == RUNS
            await store.delete_ledger(8)
            await store.checkpoint()

        assert store.info()["runs_in_map"] == store.info()["live_bytes"] == 0
        assert turns.most < CALLS_MAX
    await disk.close()
    await index.close()


@pytest.mark.properties
async def test_tiny_runs_move_some_a_turn(autojump_clock: MockClock) -> None:
    """What lives of a file of single entries: laid out, read, put in order, pointed to."""
    async with running(CutDisk(), OPTIONS) as store:
        both = [Adder(store, 7), Adder(store, 8)]
        for n in range(RUNS):
            for adder in both:
                adder.send(record(adder.ledger, n, b"x"))
            if n % 1000 == 0:
                await trio.sleep(0.001)
        for adder in both:
            await adder.all_acked()
        await store.delete_ledger(7)
        await store.checkpoint()

        with _turns() as turns:
            while await store.compactor.compact_once():
                pass

        assert store.stats.files_compacted
        assert store._index.stored_totals.extent_count < RUNS / 2
        # Of it 20,000 are the memory map's own, which applies a transaction in one turn.
        assert turns.most < 0.6 * CALLS_MAX


async def test_what_is_told_with_each_renewal_costs_the_same_however_many_ledgers_are_known(
    tmp_path: Path,
) -> None:
    """Counted where it changes, never walked: 400,000 known ledgers held the loop for 0.4 s a renewal."""
    disk = DirectoryDisk(tmp_path)
    calls: list[int] = []
    async with running(disk, OPTIONS) as store:
        for first, last in ((0, 50), (50, 5_000)):
            for ledger in range(first, last):
                store.fence(ledger, KEY, lambda ledger, error: None)
            made = _Turns()
            made.before_task_step(trio.lowlevel.current_task())
            assert store.ledgers.known_count == last
            assert not store.health_conditions()
            assert not store.limbo.any_limbo
            assert store.info()["ledgers"] == last
            made.after_task_step(trio.lowlevel.current_task())
            calls.append(made.most)

    assert calls[1] < calls[0] + 50
    await disk.close()
