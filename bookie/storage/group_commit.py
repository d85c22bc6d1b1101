"""Collect records for a commit, and acknowledge them when its sync has made them durable.

Nothing is acknowledged before (H1). A record may rely on all records that were requested before it, because
they are in the same or an earlier commit.
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
"""The time after a sync until a block proves it, so that a corruption of the synced block is detected (H3,
H24)."""
EXPLICIT_LAC_DELAY_S = 0.1
"""An explicit LAC waits up to this time, or twice this time, for an add of its ledger that contains it.
Otherwise an occasional writer would cause one control record per entry. On an idle disk it does not wait."""
CONCURRENT_ADDS_S = 0.005
"""Adds of two connections within this time come from concurrent writers, which share a commit."""


class GroupCommit:
    """The commits of one store. All methods except `write_watermarks` are synchronous."""

    def __init__(
        self,
        journal: Journal,
        buffer: JournalBuffer,
        index: Index,
        long_polls: LongPolls,
        options: BookieOptions,
    ) -> None:
        self.applied_position = JournalPosition(1, 0, 0, 1)
        """The position after the last block that is in the index."""
        self.proof_wanted = trio.Event()
        """Set when no later block proves that a written block was synced, or when an explicit LAC arrived."""
        self.checkpoint_wanted = trio.Event()
        """Set when the index has many extents that its map lacks."""
        self.checkpoint_threshold_factor = 1.0
        """The fraction of ``checkpoint_runs`` and ``checkpoint_bytes`` at which a checkpoint is requested."""
        self._journal = journal
        self._buffer = buffer
        self._index = index
        self._long_polls = long_polls
        self._options = options
        self._recent_lacs: dict[Ledger, int] = {}
        """Explicit LACs since the last check, the newest of each ledger. Some may have been written since."""
        self._older_lacs: dict[Ledger, int] = {}
        self._older_lacs_due_at = -inf
        self._block_requests: deque[tuple[Callable[[CommitBlock], None], bool]] = deque()
        """Callbacks that wait for a block, in the order of the requests."""
        self._capacity_waiters: list[Callable[[], None]] = []
        self._last_owner: StreamOwner | None = None
        self._concurrent_until = -inf

    # --- joining a commit -------------------------------------------------------------------------

    def commit_adds(self, owner: StreamOwner) -> None:
        """Commit the adds of one receive of ``owner``'s connection.

        If only this connection adds, and the disk allows it, they are committed in this call, so that a
        record does not wait for a task switch. If several connections add, one commit follows for all adds
        that arrive in an event-loop iteration.
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
        """Commit records that were collected outside of a receive, in the next event-loop iteration."""
        self._journal.wake()

    def on_owner_closed(self, owner: StreamOwner) -> None:
        """Commit the adds of a connection that has ended."""
        if self._last_owner is owner:
            self._last_owner = None
        self._journal.wake()

    def request_block(
        self, on_block: Callable[[CommitBlock], None], *, for_control: bool = True
    ) -> None:
        """Call ``on_block`` with the open block, or with a later one if the ring is full.

        Requests are served in order, so a record may rely on records that were requested before.

        Args:
            on_block: Receives the block, synchronously or later.
            for_control: Whether the block must have space for one more control record.
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
        """Write the ledger's state with the next commit, and call ``on_durable`` after its sync."""

        def write(block: CommitBlock) -> None:
            block.control_records.append(ledger.state_record())
            block.after_sync.append(on_durable)

        ledger.is_journaled = True
        self._index.mark_state_dirty(ledger)
        self.request_block(write)

    def publish_lacs(self, lacs: dict[Ledger, int]) -> None:
        """Publish explicit LACs of writers at once, and make them durable a little later (H24)."""
        self._recent_lacs |= lacs
        self._index.mark_states_dirty(lacs)
        self.proof_wanted.set()
        for ledger in lacs:
            if ledger.long_polls:
                self._long_polls.on_ledger_changed(ledger)

    @property
    def has_dirty_lacs(self) -> bool:
        """Whether there are explicit LACs that are not in the journal yet."""
        return bool(self._recent_lacs or self._older_lacs)

    def flush_lacs(self) -> None:
        """Write all explicit LACs with the next block, because no adds arrive that would contain them."""
        self._older_lacs |= self._recent_lacs
        self._recent_lacs = {}
        self._older_lacs_due_at = -inf

    def add_due_lacs(self) -> None:
        """Add explicit LACs that have waited long enough to the block that the journal takes next (H24)."""
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

    # --- after the sync ---------------------------------------------------------------------------

    def on_synced(self, block: CommitBlock, file_number: int, shift: int) -> None:
        """Acknowledge, index and publish the contents of a durable block.

        ``shift`` is the difference between an offset in the file and a position in the block's buffer.
        """
        if (
            block.acks
        ):  # first, because senders wait; the rest is done before they can send a request
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
                "extents become durable in the order in which they were collected"
            )
            del pending[0]
            if not pending:
                ledger.pending_in_order = True
            if ledger.long_polls:
                ledgers_to_wake[ledger] = (
                    None  # an explicit LAC may have arrived before the entries
                )
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
        if self._journal.last_sync_unproven:
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
        """After a short idle time, write one small block that proves the last sync (H3).

        Runs until cancelled.
        """
        idle_s = IDLE_WATERMARK_S
        while True:
            if not (self._journal.last_sync_unproven or self.has_dirty_lacs):
                self.proof_wanted = trio.Event()
                await self.proof_wanted.wait()
            due = max(self._journal.last_sync_at, trio.current_time() - idle_s / 2) + idle_s
            await trio.sleep_until(due)
            if self._buffer.has_work or trio.current_time() < self._journal.last_sync_at + idle_s:
                continue
            if self._journal.last_sync_unproven or self.has_dirty_lacs:
                self.flush_lacs()
                self.request_block(_mark_watermark)

    # --- capacity ---------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether connections must stop receiving until a sync has finished."""
        return self._buffer.unsynced_bytes >= self._options.unsynced_bytes_max

    def call_when_capacity(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once after a sync has freed space in the ring."""
        self._capacity_waiters.append(resume)


def _mark_watermark(block: CommitBlock) -> None:
    block.is_watermark = True
