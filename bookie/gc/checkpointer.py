"""Write checkpoints of a bookie's index, and serialize all changes of the index's map."""

from collections.abc import Awaitable, Callable
from random import Random

import trio

from ...runtime.declarations.health_conditions import Code, condition
from ...runtime.interfaces.errors import DiskFull
from ..declarations.counters import BookieHealth
from ..format.extent_map import ExtentLocation
from ..format.index_format import IndexCheckpoint
from ..ledgers.ledger_table import Ledger
from ..storage.bookie_storage import BookieStorage
from ..storage.file_preallocator import RETRY_SPACE_S
from ..storage.group_commit import GroupCommit
from ..storage.ledger_state_snapshot import LedgerStateSnapshots

INDEX_LAG_S = 60.0
"""After this time without a checkpoint, a condition reports that the index is behind."""
CHECKPOINT_PAUSE_S = 0.002
"""Pause between two slices of a checkpoint, for adds. Without it, fifty thousand single-entry extents stopped
the adds of all bookies of an ensemble at the same moment, because all of them count the same entries."""
THRESHOLD_FACTOR_MIN = 0.6
"""Each checkpoint waits for a random fraction of its thresholds, at least this one. This keeps bookies from
synchronizing."""


class Checkpointer:
    """The checkpoints of one bookie's index."""

    def __init__(
        self, storage: BookieStorage, group_commit: GroupCommit, health: BookieHealth
    ) -> None:
        self._journal = storage.journal
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._space = storage.space
        self._index_reserve = storage.reserves["index"]
        self._checkpoint_s = storage.options.checkpoint_s
        self._state_snapshots = LedgerStateSnapshots(
            storage.disk, storage.journal, storage.index, storage.ledgers, storage.space
        )
        self._group_commit = group_commit
        self._health = health
        self.lock = trio.Lock()
        """Held while a checkpoint or a relocation changes extents of the map."""
        self._index_written_at = trio.current_time()
        self.first_unindexed_sequence = 0
        """The sequence of the first block that is not in the index's map."""

    async def run(self, after_each: Callable[[], Awaitable[None]]) -> None:
        """Write a checkpoint whenever one is due, then call ``after_each``. Runs until cancelled."""
        rng = Random(self._journal.seed)
        while True:
            self._group_commit.checkpoint_threshold_factor = rng.uniform(THRESHOLD_FACTOR_MIN, 1.0)
            with trio.move_on_after(self._checkpoint_s):
                await self._group_commit.checkpoint_wanted.wait()
            self._group_commit.checkpoint_wanted = trio.Event()
            pause_s = 0.0 if self._space.is_low else CHECKPOINT_PAUSE_S
            succeeded = not self._index.dirty or await self.try_checkpoint(pause_s)
            self._report_lag(succeeded)
            await self._update_state_snapshot()
            await after_each()
            if not succeeded:
                await trio.sleep(RETRY_SPACE_S)

    def _report_lag(self, succeeded: bool) -> None:
        """Report an index that is behind. The next start is slow then, and no journal file can be removed."""
        now = trio.current_time()
        if succeeded:
            self._index_written_at = now
        lag_s = now - self._index_written_at
        if lag_s < INDEX_LAG_S:
            self._health.conditions.clear(Code.INDEX_BEHIND)
        else:
            self._health.conditions.set(condition(Code.INDEX_BEHIND, minutes=int(lag_s // 60)))

    async def try_checkpoint(self, pause_s: float = 0.0) -> bool:
        """Write a checkpoint; return False if the disk of the index is full. The bookie is then read-only.

        ``pause_s`` is the pause between two slices, for adds.
        """
        try:
            await self.checkpoint(pause_s)
        except DiskFull:
            return False
        return True

    async def checkpoint(self, pause_s: float = 0.0) -> None:
        """Write a checkpoint. Raises `DiskFull` if nothing was written, even without the reserve."""
        async with self.lock:  # a later position must not be stored before earlier extents
            try:
                await self._write_checkpoint(pause_s)
            except DiskFull:
                self._space.checkpoint_failed = True
                # The reserve has space for deletions, fences and adds that were accepted before.
                reserve_freed = await self._index_reserve.free()
                self._space.check()
                if not reserve_freed:
                    raise
                await self._write_checkpoint()
            self._space.checkpoint_failed = False

    async def replace_extents(
        self, ledger: Ledger, changes: list[tuple[ExtentLocation, list[ExtentLocation]]]
    ) -> None:
        """Replace these extents of a ledger by parts of them, durably. Raises `DiskFull`."""
        async with self.lock:
            # The map then has all extents, and is the only place to change.
            await self._write_checkpoint()
            await self._index.replace_extents(ledger, changes)

    async def delete_extents(self, ledger: Ledger) -> None:
        """Delete the extents of a ledger durably; no add to it may be pending. Raises `DiskFull`."""
        async with self.lock:
            await self._write_checkpoint()
            if not ledger.deleted:
                await self._index.delete_extents(ledger)

    async def _write_checkpoint(self, pause_s: float = 0.0) -> None:
        await self._index.find_removable_tombstones()
        position = self._current_position()
        await self._index.checkpoint(position, pause_s=pause_s)
        self.first_unindexed_sequence = position.first_unindexed_sequence
        self._health.stats.checkpoints += 1

    def _current_position(self) -> IndexCheckpoint:
        applied = self._group_commit.applied_position
        return IndexCheckpoint(
            bookie_id=self._space.bookie_id,
            seed=self._journal.seed,
            first_unindexed_sequence=applied.next_sequence,
            file_number=applied.file_number,
            offset=applied.offset,
            first_sequence=applied.first_sequence,
            start_count=self._journal.start_count,
            limbo_below=self._ledgers.limbo_below,
            next_file_number=self._journal.preallocator.next_number,
            sealed_files=[
                (number, *sequences)
                for number, sequences in sorted(self._journal.sealed_files.items())
            ],
            last_block_offset=applied.last_block_offset,
            must_verify_below=self._ledgers.must_verify_below,
            compacted_files=[file.row for _, file in sorted(self._journal.compacted_files.items())],
            state_snapshot=self._journal.state_snapshot,
        )

    async def _update_state_snapshot(self) -> None:
        await self._state_snapshots.remove_old()
        if self.first_unindexed_sequence and self._state_snapshots.is_due:
            async with self.lock:
                await self._state_snapshots.write_next(self.first_unindexed_sequence)
