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
CHECKPOINT_REST_S = 0.002
"""Pause between two slices of a checkpoint, for adds. Without it, fifty thousand runs of lone entries stopped
the adds of all bookies of an ensemble at the same moment, because all of them count the same entries."""
CHECKPOINT_SHARE_MIN = 0.6
"""Each checkpoint waits for a random share of the bounds, at least this: bookies do not synchronize."""


class Checkpointer:
    """The checkpoints of one bookie's index."""

    def __init__(self, storage: BookieStorage, commits: GroupCommit, health: BookieHealth) -> None:
        self._journal = storage.journal
        self._index = storage.index
        self._ledgers = storage.ledgers
        self._space = storage.space
        self._index_reserve = storage.reserves["index"]
        self._checkpoint_s = storage.options.checkpoint_s
        self._bases = LedgerStateSnapshots(
            storage.disk, storage.journal, storage.index, storage.ledgers, storage.space
        )
        self._commits = commits
        self._health = health
        self.lock = trio.Lock()
        """Held while runs of the map change: by a checkpoint, and by a relocation of records."""
        self._index_written_at = trio.current_time()
        self.checkpointed = 0
        """The sequence of the first block that is not in the index's map."""

    async def run(self, after_each: Callable[[], Awaitable[None]]) -> None:
        """Write a checkpoint whenever one is due, then call ``after_each``, until cancelled."""
        chance = Random(self._journal.seed)
        while True:
            self._commits.checkpoint_share = chance.uniform(CHECKPOINT_SHARE_MIN, 1.0)
            with trio.move_on_after(self._checkpoint_s):
                await self._commits.checkpoint_wanted.wait()
            self._commits.checkpoint_wanted = trio.Event()
            rest_s = 0.0 if self._space.short else CHECKPOINT_REST_S
            done = not self._index.dirty or await self.checkpoint_if_room(rest_s)
            self._note_lag(done)
            await self._renew_base()
            await after_each()
            if not done:
                await trio.sleep(RETRY_SPACE_S)

    def _note_lag(self, done: bool) -> None:
        """Report an index that is behind: it makes the next start slow, and keeps every journal file."""
        now = trio.current_time()
        if done:
            self._index_written_at = now
        lag_s = now - self._index_written_at
        if lag_s < INDEX_LAG_S:
            self._health.conditions.clear(Code.INDEX_BEHIND)
        else:
            self._health.conditions.set(condition(Code.INDEX_BEHIND, minutes=int(lag_s // 60)))

    async def checkpoint_if_room(self, rest_s: float = 0.0) -> bool:
        """Write a checkpoint; return False if the disk of the index is full. The bookie is then read-only.

        ``rest_s``: as in `Index.checkpoint`.
        """
        try:
            await self.checkpoint(rest_s)
        except DiskFull:
            return False
        return True

    async def checkpoint(self, rest_s: float = 0.0) -> None:
        """Write a checkpoint. Raises `DiskFull` if nothing was written, even without the reserve."""
        async with self.lock:  # a later position must not land before earlier runs
            try:
                await self._checkpoint(rest_s)
            except DiskFull:
                self._space.checkpoint_failed = True
                # The reserve has room for deletions, fences and adds that were taken before.
                given_up = await self._index_reserve.give_up()
                self._space.look()
                if not given_up:
                    raise
                await self._checkpoint()
            self._space.checkpoint_failed = False

    async def replace_runs(
        self, ledger: Ledger, changes: list[tuple[ExtentLocation, list[ExtentLocation]]]
    ) -> None:
        """Replace these runs of a ledger by parts of them, durably. Raises `DiskFull`."""
        async with self.lock:
            await self._checkpoint()  # the map then has all runs, and is the only place to change
            await self._index.replace_runs(ledger, changes)

    async def delete_runs(self, ledger: Ledger) -> None:
        """Delete the runs of a ledger without adds under way, durably. Raises `DiskFull`."""
        async with self.lock:
            await self._checkpoint()
            if not ledger.deleted:
                await self._index.delete_runs(ledger)

    async def _checkpoint(self, rest_s: float = 0.0) -> None:
        await self._index.look_for_ended()
        saved = self._saved()
        await self._index.checkpoint(saved, rest_s=rest_s)
        self.checkpointed = saved.sequence
        self._health.stats.checkpoints += 1

    def _saved(self) -> IndexCheckpoint:
        applied = self._commits.applied
        return IndexCheckpoint(
            bookie_id=self._space.bookie_id,
            seed=self._journal.seed,
            sequence=applied.sequence,
            file_number=applied.file_number,
            offset=applied.offset,
            first_sequence=applied.first_sequence,
            start_count=self._journal.start_count,
            limbo_below=self._ledgers.limbo_below,
            next_file=self._journal.preallocator.next_number,
            files=[(number, *span) for number, span in sorted(self._journal.sealed.items())],
            last_offset=applied.last_offset,
            gone_below=self._ledgers.gone_below,
            cold=[file.row for _, file in sorted(self._journal.cold.items())],
            base=self._journal.base,
        )

    async def _renew_base(self) -> None:
        await self._bases.remove_old()
        if self.checkpointed and self._bases.wanted:
            async with self.lock:
                await self._bases.make(self.checkpointed)
