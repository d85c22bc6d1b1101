"""What a bookie does beside serving: idle blocks, checkpoints of the index, removal of dead files, space."""

from collections import deque
from functools import partial
from random import Random

import trio

from ..runtime.errors import DiskFull
from ..runtime.health_conditions import Code, NodeConditions, condition
from ..runtime.log_lines import get_logger
from ..runtime.work_failures import WorkFailures
from . import journal_blocks as jb
from .commits import Commits
from .gather import GatheringBlock, GatherRing
from .index import Index
from .index_records import Saved
from .journal import RETRY_SPACE_S, Journal
from .ledgers import Ledger, Ledgers
from .options import BookieOptions
from .reads import JournalFiles
from .reserve import Reserve
from .runs import Located
from .space import Space
from .state_base import Bases
from .stats import Stats

TICK_S = 0.25
LAG_TICKS = 240
"""A minute of them: the gauge of how late the loop runs is the worst of these."""
INDEX_LAG_S = 60.0
"""Longer than a dozen checkpoints in a row that were not written: the bookie says so."""
CHECKPOINT_REST_S = 0.002
"""Between two slices of a checkpoint while adds go on: fifty thousand runs of lone entries held them up as
long as they took, in all bookies of an ensemble at one moment: all count the same entries."""
CHECKPOINT_SHARE_MIN = 0.6
"""Of what a checkpoint waits for, the least that is drawn each time: so that those of an ensemble part."""
REMOVED_AT_ONCE = 16
"""Files that one commit says to be gone, and one update of the directory removes. One at a time, the twenty
of a log of 5 GB made the device's other writes wait for as many updates, up to 10 ms each."""

log = get_logger("distributedlog.bookie")


class Upkeep:
    """The background of one store, in three tasks."""

    def __init__(
        self,
        journal: Journal,
        ring: GatherRing,
        index: Index,
        ledgers: Ledgers,
        files: JournalFiles,
        commits: Commits,
        bases: Bases,
        space: Space,
        reserves: dict[str, Reserve],
        options: BookieOptions,
        stats: Stats,
        conditions: NodeConditions,
        failures: WorkFailures,
    ) -> None:
        self._journal = journal
        self._ring = ring
        self._index = index
        self._ledgers = ledgers
        self._files = files
        self._commits = commits
        self._bases = bases
        self._space = space
        self._reserves = reserves
        self._options = options
        self._stats = stats
        self._conditions = conditions
        self._failures = failures
        self.checkpoint_lock = trio.Lock()
        """Who changes runs of the map holds it: a checkpoint, and who moves records."""
        self._index_written_at = trio.current_time()
        self.checkpointed = 0
        """The sequence of the first block that is not in the index's map."""

    async def run(self) -> None:
        """Until cancelled. Raises what ends the node."""
        keep = self._failures.keep
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, "the journal's watermark", self._idle_blocks)
            nursery.start_soon(keep, "checkpoints of the index", self._checkpoints)
            nursery.start_soon(keep, "the look at free space", self._ticks)

    async def _idle_blocks(self) -> None:
        """When idle for a moment after a sync, prove it with one small block (H3)."""
        idle_s = self._options.idle_watermark_s
        while True:
            if not (self._journal.unproven or self._commits.has_dirty_lacs):
                self._commits.something_to_prove = trio.Event()
                await self._commits.something_to_prove.wait()
            due = max(self._journal.last_sync_at, trio.current_time() - idle_s / 2) + idle_s
            await trio.sleep_until(due)
            if self._ring.has_work or trio.current_time() < self._journal.last_sync_at + idle_s:
                continue
            if self._journal.unproven or self._commits.has_dirty_lacs:
                self._commits.lacs_are_due()
                self._commits.with_block(_mark_watermark)

    async def _checkpoints(self) -> None:
        chance = Random(self._journal.seed)
        while True:
            self._commits.checkpoint_share = chance.uniform(CHECKPOINT_SHARE_MIN, 1.0)
            with trio.move_on_after(self._options.checkpoint_s):
                await self._commits.checkpoint_wanted.wait()
            self._commits.checkpoint_wanted = trio.Event()
            rest_s = 0.0 if self._space.short else CHECKPOINT_REST_S
            done = not self._index.dirty or await self.checkpoint_if_room(rest_s)
            self._note_lag(done)
            await self._renew_base()
            await self._remove_dead_files()
            if not done:
                await trio.sleep(RETRY_SPACE_S)

    def _note_lag(self, done: bool) -> None:
        """An index that falls behind makes the next start long, and keeps every file of the journal."""
        now = trio.current_time()
        if done:
            self._index_written_at = now
        lag_s = now - self._index_written_at
        if lag_s < INDEX_LAG_S:
            self._conditions.clear(Code.INDEX_BEHIND)
        else:
            self._conditions.set(condition(Code.INDEX_BEHIND, minutes=int(lag_s // 60)))

    async def checkpoint_if_room(self, rest_s: float = 0.0) -> bool:
        """Write the index as it stands; False where its disk is full: this bookie is read-only then.

        ``rest_s``: as in `Index.checkpoint`.
        """
        try:
            await self.checkpoint(rest_s)
        except DiskFull:
            return False
        return True

    async def checkpoint(self, rest_s: float = 0.0) -> None:
        """Write the index as it stands. Raises `DiskFull`: nothing was written, whatever was given up."""
        async with self.checkpoint_lock:  # a later position must not land before earlier runs
            try:
                await self._checkpoint(rest_s)
            except DiskFull:
                self._space.checkpoint_failed = True
                # With it deletions and fences get through, and what had been taken before.
                given_up = await self._reserves["index"].give_up()
                self._space.look()
                if not given_up:
                    raise
                await self._checkpoint()
            self._space.checkpoint_failed = False

    async def replace_runs(
        self, ledger: Ledger, changes: list[tuple[Located, list[Located]]]
    ) -> None:
        """Have parts of a ledger's runs in the place of these runs, durably. Raises `DiskFull`."""
        async with self.checkpoint_lock:
            await (
                self._checkpoint()
            )  # what is in memory is in the map: there is one place to change
            await self._index.replace_runs(ledger, changes)

    async def delete_runs(self, ledger: Ledger) -> None:
        """Have nothing of a ledger in the index, to which nothing is added meanwhile. Raises `DiskFull`."""
        async with self.checkpoint_lock:
            await self._checkpoint()
            if not ledger.deleted:
                await self._index.delete_runs(ledger)

    async def _checkpoint(self, rest_s: float = 0.0) -> None:
        await self._index.look_for_ended()
        saved = self._saved()
        await self._index.checkpoint(saved, rest_s=rest_s)
        self.checkpointed = saved.sequence
        self._stats.checkpoints += 1

    def _saved(self) -> Saved:
        applied = self._commits.applied
        return Saved(
            bookie_id=self._space.bookie_id,
            seed=self._journal.seed,
            sequence=applied.sequence,
            file_number=applied.file_number,
            offset=applied.offset,
            first_sequence=applied.first_sequence,
            start_count=self._journal.start_count,
            limbo_below=self._ledgers.limbo_below,
            next_file=self._journal.next_number,
            files=[(number, *span) for number, span in sorted(self._journal.sealed.items())],
            last_offset=applied.last_offset,
            gone_below=self._ledgers.gone_below,
            cold=[file.row for _, file in sorted(self._journal.cold.items())],
            base=self._journal.base,
        )

    async def _renew_base(self) -> None:
        await self._bases.remove_old()
        if self.checkpointed and self._bases.wanted:
            async with self.checkpoint_lock:
                await self._bases.make(self.checkpointed)

    async def _remove_dead_files(self) -> None:
        """Delete sealed, checkpointed files without a live record; their control records live on (H7).

        Every file begins with the state of all ledgers, so the current one repeats what they held; or it
        names a base, and files from there on stay.
        """
        dead = self._dead_files()
        for at in range(0, len(dead), REMOVED_AT_ONCE):
            await self._remove_files(dead[at : at + REMOVED_AT_ONCE])
            self._space.look()  # who was refused need not wait for the next tick

    def _dead_files(self) -> list[int]:
        if not self.checkpointed:
            return []
        base = self._journal.named_base
        upto = self.checkpointed if base is None else min(self.checkpointed, base.position)
        passed = [number for number, (_, last) in self._journal.sealed.items() if last < upto]
        return [
            number
            for number in (*passed, *self._journal.cold)
            if not self._index.live_bytes.get(number, 0) and number not in self._journal.held
        ]

    async def _remove_files(self, numbers: list[int]) -> None:
        left = set(numbers)
        durable = trio.Event()

        def removed(number: int) -> None:
            # At the very commit that says so: no checkpoint lists the file as there, and lies after it.
            self._journal.sealed.pop(number, None)
            self._journal.cold.pop(number, None)
            self._index.live_bytes.pop(number, None)
            left.remove(number)
            if not left:
                durable.set()

        def write(number: int, block: GatheringBlock) -> None:
            block.controls.append(jb.file_removed_record(number))
            block.after_sync.append(partial(removed, number))

        for number in numbers:
            self._commits.with_block(partial(write, number))
        await durable.wait()
        for number in numbers:
            self._files.forget(number)
        await self._journal.delete(*numbers)
        self._stats.files_removed += len(numbers)

    async def _ticks(self) -> None:
        """Look at free space, at how late the loop runs, and at whether the index was found damaged."""
        late_ms: deque[float] = deque(maxlen=LAG_TICKS)
        while True:
            before = trio.current_time()
            await trio.sleep(TICK_S)
            late_ms.append((trio.current_time() - before - TICK_S) * 1000)
            self._stats.loop_lag_max_ms = max(late_ms)
            if self._ledgers.damage is not None:
                raise self._ledgers.damage
            await self.make_reserves()
            self._space.look()
            # What was deleted goes, for which somebody may be waiting.
            if self._space.short and (self._index.dirty or self._dead_files()):
                self._commits.checkpoint_wanted.set()
            self._journal.look_at_rest()

    async def make_reserves(self) -> None:
        """Have the reserves whole, where there is room for them."""
        for reserve in self._reserves.values():
            if not reserve.held:
                await reserve.make()


def _mark_watermark(block: GatheringBlock) -> None:
    block.watermark = True
