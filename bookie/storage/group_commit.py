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
EXPLICIT_LAC_DELAY_S = 0.1
"""A LAC that was told by itself waits so long, and twice that at most, for an add of its ledger that says it:
what writes a record now and then would pay a control record for each. On an idle disk it does not wait."""
CONCURRENT_ADDS_S = 0.005
"""Adds of two connections within this time are those of several writers, who share a commit."""


class GroupCommit:
    """The commits of one store. All calls are synchronous."""

    def __init__(
        self,
        journal: Journal,
        buffer: JournalBuffer,
        index: Index,
        long_polls: LongPolls,
        options: BookieOptions,
    ) -> None:
        self.applied_position = JournalPosition(1, 0, 0, 1)
        """Behind the last block that is in the index."""
        self.proof_wanted = trio.Event()
        """Set when a block was written that none after it proves, or an explicit LAC came."""
        self.checkpoint_wanted = trio.Event()
        """Set when the index has much that its map has not."""
        self.checkpoint_threshold_factor = 1.0
        """Of ``checkpoint_runs`` and ``checkpoint_bytes``, what is much now."""
        self._journal = journal
        self._buffer = buffer
        self._index = index
        self._long_polls = long_polls
        self._options = options
        self._recent_lacs: dict[Ledger, int] = {}
        """Told since the last look, of each ledger the last one; also such as are owed no more."""
        self._older_lacs: dict[Ledger, int] = {}
        self._older_lacs_due_at = -inf
        """When the older ones are written."""
        self._block_requests: deque[tuple[Callable[[CommitBlock], None], bool]] = deque()
        """Who waits for a block, in the order they asked."""
        self._capacity_waiters: list[Callable[[], None]] = []
        self._last_owner: StreamOwner | None = None
        self._concurrent_until = -inf

    # --- what joins -------------------------------------------------------------------------------

    def commit_adds(self, owner: StreamOwner) -> None:
        """Adds of one receive of ``owner``'s connection have gathered.

        A lone writer's are committed in this call, where the disk allows it: its record waits for no task's
        turn. Where several connections add, each turn of the loop takes what all of them sent, and one
        commit follows.
        """
        now = trio.current_time()
        if owner is not self._last_owner:
            self._last_owner = owner
            self._concurrent_until = now + CONCURRENT_ADDS_S
        if now < self._concurrent_until or not self._journal.try_commit_inline(
            self.add_due_lacs, self.on_synced
        ):
            self._journal.wake()

    def wake(self) -> None:
        """Something has gathered, after others or late: it is committed with the next turn."""
        self._journal.wake()

    def on_owner_closed(self, owner: StreamOwner) -> None:
        """A connection has ended: what it had gathered is committed all the same."""
        if self._last_owner is owner:
            self._last_owner = None
        self._journal.wake()

    def request_block(
        self, on_block: Callable[[CommitBlock], None], *, for_control: bool = True
    ) -> None:
        """Give ``use`` the block that gathers (with room for a control record), or a later one.

        In the order of the calls: what joins a commit may rely on a record that was asked for before.
        """
        self._block_requests.append((on_block, for_control))
        self._serve_block_requests()
        self._journal.wake()

    def _serve_block_requests(self) -> None:
        while self._block_requests:
            on_block, for_control = self._block_requests[0]
            block = self._buffer.control_block() if for_control else self._buffer.newest()
            if block is None:
                return
            self._block_requests.popleft()
            on_block(block)
            self._journal.wake()

    def write_state(self, ledger: Ledger, on_durable: Callable[[], None]) -> None:
        """Write the ledger's state with the next commit; ``durable`` is called after its sync."""

        def write(block: CommitBlock) -> None:
            block.control_records.append(ledger.state_record())
            block.after_sync.append(on_durable)

        ledger.is_journaled = True
        self._index.mark_state_dirty(ledger)
        self.request_block(write)

    def publish_lacs(self, lacs: dict[Ledger, int]) -> None:
        """The LACs of these moved, each by a word of its writer: published at once, durable a little later
        (H24)."""
        self._recent_lacs |= lacs
        self._index.mark_states_dirty(lacs)
        self.proof_wanted.set()
        for ledger in lacs:
            if ledger.long_polls:
                self._long_polls.on_ledger_changed(ledger)

    @property
    def has_dirty_lacs(self) -> bool:
        """Explicit LACs that are not in the journal yet."""
        return bool(self._recent_lacs or self._older_lacs)

    def flush_lacs(self) -> None:
        """Nothing is added that would say them: they go with the next block."""
        self._older_lacs |= self._recent_lacs
        self._recent_lacs = {}
        self._older_lacs_due_at = -inf

    def add_due_lacs(self) -> None:
        """The journal is about to take the block: explicit LACs that have waited go with it (H24)."""
        if not (self._recent_lacs or self._older_lacs):
            return
        now = trio.current_time()
        if now < self._older_lacs_due_at:
            return
        older = self._older_lacs
        while older:
            ledger = next(reversed(older))
            if ledger.lac_unjournaled and ledger.lac == older[ledger]:
                block = self._buffer.control_block()
                if block is None:
                    return
                ledger.lac_unjournaled = False
                block.control_records.append(ledger.state_record())
            del older[ledger]
        self._older_lacs, self._recent_lacs = self._recent_lacs, older
        self._older_lacs_due_at = now + EXPLICIT_LAC_DELAY_S

    # --- what follows -----------------------------------------------------------------------------

    def on_synced(self, block: CommitBlock, file_number: int, shift: int) -> None:
        """A block is durable: acknowledge, index it, publish LACs; all for one commit."""
        if block.acks:  # first: the sender waits, and what follows is done before it can ask for it
            by_owner: dict[StreamOwner, list[tuple[int, int]]] = {}
            current_owner: StreamOwner | None = None
            for stream, count in block.acks.items():
                if stream.owner is not current_owner:
                    current_owner = stream.owner
                    owner_acks = by_owner.setdefault(current_owner, [])
                owner_acks.append((stream.number, count))
            for owner, acks in by_owner.items():
                owner.on_acked(acks)
        index = self._index
        ledgers_to_wake: dict[Ledger, None] = {}
        for pending_extent in block.pending_extents:
            ledger = pending_extent.ledger
            pending = ledger.pending_extents
            assert pending[0] is pending_extent, (
                "runs become durable in the order they were gathered"
            )
            del pending[0]
            if not pending:
                ledger.pending_in_order = True
            if ledger.long_polls:
                ledgers_to_wake[ledger] = None  # its LAC may be known already
        index.add_pending_extents(block.pending_extents, file_number, shift)
        self.applied_position = self._journal.position()
        for ledger, lac in block.highest_lacs.items():
            if lac > ledger.lac:
                ledger.lac = lac
                index.mark_state_dirty(ledger)
                if ledger.long_polls:
                    ledgers_to_wake[ledger] = None
        for ledger in ledgers_to_wake:
            self._long_polls.on_ledger_changed(ledger)
        for callback in block.after_sync:
            callback()
        if self._journal.last_block_unattested:
            self.proof_wanted.set()
        self._serve_block_requests()
        if self._capacity_waiters and not self.is_full:
            waiting, self._capacity_waiters = self._capacity_waiters, []
            for resume in waiting:
                resume()
        threshold_factor = self.checkpoint_threshold_factor
        if (
            index.extents_in_memory >= self._options.checkpoint_runs * threshold_factor
            or index.bytes_since_checkpoint >= self._options.checkpoint_bytes * threshold_factor
        ):
            self.checkpoint_wanted.set()

    async def write_watermarks(self) -> None:
        """When idle for a moment after a sync, prove it with one small block (H3). Until cancelled."""
        idle_s = IDLE_WATERMARK_S
        while True:
            if not (self._journal.last_block_unattested or self.has_dirty_lacs):
                self.proof_wanted = trio.Event()
                await self.proof_wanted.wait()
            due = max(self._journal.last_sync_at, trio.current_time() - idle_s / 2) + idle_s
            await trio.sleep_until(due)
            if self._buffer.has_work or trio.current_time() < self._journal.last_sync_at + idle_s:
                continue
            if self._journal.last_block_unattested or self.has_dirty_lacs:
                self.flush_lacs()
                self.request_block(_mark_watermark)

    # --- room -------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Is it time to stop reading connections until a sync has finished?"""
        return self._buffer.unsynced_bytes >= self._options.unsynced_bytes_max

    def call_when_capacity(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once when a sync has made room."""
        self._capacity_waiters.append(resume)


def _mark_watermark(block: CommitBlock) -> None:
    block.is_watermark = True
