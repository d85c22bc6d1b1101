"""What joins a commit of the journal, and what follows when its sync has made it durable.

Until then nothing is acknowledged (H1); what joins a commit may rely on all that was asked for before it.
"""

from collections import deque
from collections.abc import Callable
from math import inf

import trio

from ..declarations.options import BookieOptions
from ..ledgers.ledger_table import Ledger, StreamOwner
from ..ledgers.long_poll import LongPolls
from .index import Index
from .journal import Journal, JournalPosition
from .journal_buffer import CommitBlock, JournalBuffer

IDLE_WATERMARK_S = 0.02
"""The time after a sync until a block proves it, so that its corruption is detected (H3, H24)."""
LACS_WAIT_S = 0.1
"""A LAC that was told by itself waits so long, and twice that at most, for an add of its ledger that says it:
what writes a record now and then would pay a control record for each. On an idle disk it does not wait."""
SEVERAL_S = 0.005
"""Adds of two connections within this time are those of several writers, who share a commit."""


class GroupCommit:
    """The commits of one store. All calls are synchronous."""

    def __init__(
        self,
        journal: Journal,
        ring: JournalBuffer,
        index: Index,
        waiters: LongPolls,
        options: BookieOptions,
    ) -> None:
        self.applied = JournalPosition(1, 0, 0, 1)
        """Behind the last block that is in the index."""
        self.something_to_prove = trio.Event()
        """Set when a block was written that none after it proves, or an explicit LAC came."""
        self.checkpoint_wanted = trio.Event()
        """Set when the index has much that its map has not."""
        self.checkpoint_share = 1.0
        """Of ``checkpoint_runs`` and ``checkpoint_bytes``, what is much now."""
        self._journal = journal
        self._ring = ring
        self._index = index
        self._waiters = waiters
        self._options = options
        self._owed_lacs: dict[Ledger, int] = {}
        """Told since the last look, of each ledger the last one; also such as are owed no more."""
        self._older_lacs: dict[Ledger, int] = {}
        self._lacs_due = -inf
        """When the older ones are written."""
        self._late: deque[tuple[Callable[[CommitBlock], None], bool]] = deque()
        """Who waits for a block, in the order they asked."""
        self._waiting_for_room: list[Callable[[], None]] = []
        self._added_last: StreamOwner | None = None
        self._several_until = -inf

    # --- what joins -------------------------------------------------------------------------------

    def gathered(self, owner: StreamOwner) -> None:
        """Adds of one receive of ``owner``'s connection have gathered.

        A lone writer's are committed in this call, where the disk allows it: its record waits for no task's
        turn. Where several connections add, each turn of the loop takes what all of them sent, and one
        commit follows.
        """
        now = trio.current_time()
        if owner is not self._added_last:
            self._added_last = owner
            self._several_until = now + SEVERAL_S
        if now < self._several_until or not self._journal.commit_now(
            self.before_take, self.on_synced
        ):
            self._journal.wake()

    def wake(self) -> None:
        """Something has gathered, after others or late: it is committed with the next turn."""
        self._journal.wake()

    def gone(self, owner: StreamOwner) -> None:
        """A connection has ended: what it had gathered is committed all the same."""
        if self._added_last is owner:
            self._added_last = None
        self._journal.wake()

    def with_block(self, use: Callable[[CommitBlock], None], *, control: bool = True) -> None:
        """Give ``use`` the block that gathers (with room for a control record), or a later one.

        In the order of the calls: what joins a commit may rely on a record that was asked for before.
        """
        self._late.append((use, control))
        self._use_late()
        self._journal.wake()

    def _use_late(self) -> None:
        while self._late:
            use, control = self._late[0]
            block = self._ring.control_block() if control else self._ring.newest()
            if block is None:
                return
            self._late.popleft()
            use(block)
            self._journal.wake()

    def write_state(self, ledger: Ledger, durable: Callable[[], None]) -> None:
        """Write the ledger's state with the next commit; ``durable`` is called after its sync."""

        def write(block: CommitBlock) -> None:
            block.controls.append(ledger.state_record())
            block.after_sync.append(durable)

        ledger.journaled = True
        self._index.note_state(ledger)
        self.with_block(write)

    def publish(self, lacs: dict[Ledger, int]) -> None:
        """The LACs of these moved, each by a word of its writer: published at once, durable a little later
        (H24)."""
        self._owed_lacs |= lacs
        self._index.note_states(lacs)
        self.something_to_prove.set()
        for ledger in lacs:
            if ledger.waiters:
                self._waiters.wake(ledger)

    @property
    def has_dirty_lacs(self) -> bool:
        """Explicit LACs that are not in the journal yet."""
        return bool(self._owed_lacs or self._older_lacs)

    def lacs_are_due(self) -> None:
        """Nothing is added that would say them: they go with the next block."""
        self._older_lacs |= self._owed_lacs
        self._owed_lacs = {}
        self._lacs_due = -inf

    def before_take(self) -> None:
        """The journal is about to take the block: explicit LACs that have waited go with it (H24)."""
        if not (self._owed_lacs or self._older_lacs):
            return
        now = trio.current_time()
        if now < self._lacs_due:
            return
        older = self._older_lacs
        while older:
            ledger = next(reversed(older))
            if ledger.lac_owed and ledger.lac == older[ledger]:
                block = self._ring.control_block()
                if block is None:
                    return
                ledger.lac_owed = False
                block.controls.append(ledger.state_record())
            del older[ledger]
        self._older_lacs, self._owed_lacs = self._owed_lacs, older
        self._lacs_due = now + LACS_WAIT_S

    # --- what follows -----------------------------------------------------------------------------

    def on_synced(self, block: CommitBlock, file_number: int, shift: int) -> None:
        """A block is durable: acknowledge, index it, publish LACs; all for one commit."""
        if block.acks:  # first: the sender waits, and what follows is done before it can ask for it
            by_owner: dict[StreamOwner, list[tuple[int, int]]] = {}
            of: StreamOwner | None = None
            for stream, count in block.acks.items():
                if stream.owner is not of:
                    of = stream.owner
                    mine = by_owner.setdefault(of, [])
                mine.append((stream.number, count))
            for owner, acks in by_owner.items():
                owner.on_acked(acks)
        index = self._index
        awaited: dict[Ledger, None] = {}
        for note in block.notes:
            ledger = note.ledger
            pending = ledger.pending
            assert pending[0] is note, "runs become durable in the order they were gathered"
            del pending[0]
            if not pending:
                ledger.pending_in_order = True
            if ledger.waiters:
                awaited[ledger] = None  # its LAC may be known already
        index.add_notes(block.notes, file_number, shift)
        self.applied = self._journal.position()
        for ledger, lac in block.lacs.items():
            if lac > ledger.lac:
                ledger.lac = lac
                index.note_state(ledger)
                if ledger.waiters:
                    awaited[ledger] = None
        for ledger in awaited:
            self._waiters.wake(ledger)
        for callback in block.after_sync:
            callback()
        if self._journal.unproven:
            self.something_to_prove.set()
        self._use_late()
        if self._waiting_for_room and not self.congested:
            waiting, self._waiting_for_room = self._waiting_for_room, []
            for resume in waiting:
                resume()
        share = self.checkpoint_share
        if (
            index.runs_in_memory >= self._options.checkpoint_runs * share
            or index.bytes_since >= self._options.checkpoint_bytes * share
        ):
            self.checkpoint_wanted.set()

    async def prove_when_idle(self) -> None:
        """When idle for a moment after a sync, prove it with one small block (H3). Until cancelled."""
        idle_s = IDLE_WATERMARK_S
        while True:
            if not (self._journal.unproven or self.has_dirty_lacs):
                self.something_to_prove = trio.Event()
                await self.something_to_prove.wait()
            due = max(self._journal.last_sync_at, trio.current_time() - idle_s / 2) + idle_s
            await trio.sleep_until(due)
            if self._ring.has_work or trio.current_time() < self._journal.last_sync_at + idle_s:
                continue
            if self._journal.unproven or self.has_dirty_lacs:
                self.lacs_are_due()
                self.with_block(_mark_watermark)

    # --- room -------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Is it time to stop reading connections until a sync has finished?"""
        return self._ring.unsynced_bytes >= self._options.unsynced_bytes_max

    def on_room(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once when a sync has made room."""
        self._waiting_for_room.append(resume)


def _mark_watermark(block: CommitBlock) -> None:
    block.watermark = True
