"""Follow the end of one ledger with long polls. Their answers are callbacks, without a task per poll.

The first poll is persistent: its bookie sends each entry as it becomes readable, for one second at a time
and up to a limit in bytes. The second poll requests only the LAC, from another bookie each time. If the
second bookie reports a LAC that the first one does not deliver within `GRACE_S`, the first poll moves to
another bookie. A disconnected or paused bookie therefore hides no entries for long (H23), and the other
bookies have little work for a tailing reader.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...bookie.client.bookie_client import BookieClient, LongPollResponse
from ...bookie.format.bookie_messages import WaitLacRequest
from ...bookie.format.entry import EntryRecord, records
from ...runtime.declarations.options import MIB
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.net.client_link import PendingReply
from ..declarations.options import LONG_POLL_S
from ..model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ..placement.bookie_pool import BookiePool

GRACE_S = 0.02
"""How long the first bookie may take to send entries that the second one has reported."""
SECOND_POLL_PAUSE_S = 0.25
"""The pause after a LAC from the second bookie, during which the first bookie should send its entries."""
POLL_TIMEOUT_MARGIN_S = 0.5
"""A poll without an answer fails this time after its end."""
TAIL_READ_BYTES = MIB
"""The most bytes of entries in one answer of the first bookie."""
ERROR_PAUSE_S = 0.1
"""The pause before a bookie that returned an error is polled again."""


@dataclass(slots=True, eq=False)
class _TailPoll:
    bookie: str
    client: BookieClient
    previous_lac: int
    timeout_at: float
    pending_reply: PendingReply | None = None


class TailPolls:
    """The long polls of one reader. All calls are synchronous."""

    def __init__(
        self,
        ledger_id: int,
        pool: BookiePool,
        *,
        bookie_offset: int,
        on_response: Callable[[int], None],
    ) -> None:
        self.fenced = False
        """Whether a bookie reported that the ledger is being recovered. The caller resets it."""
        self.pushed_entries: list[EntryRecord] = []
        """Verified entries that arrived with answers, contiguous and ascending."""
        self.last_response_at = -float("inf")
        """When a bookie last answered, by trio's clock."""
        self._ledger_id = ledger_id
        self._pool = pool
        self._bookie_offset = bookie_offset
        self._on_response = on_response
        """Receives the LAC that a poll proved, or -1 if the reader must check something else."""
        self._entry_poll: _TailPoll | None = None
        self._lac_poll: _TailPoll | None = None
        self._preferred_bookie = ""
        """The bookie of the first poll while it answers."""
        self._next_lac_poll_at = -float("inf")
        self._lac_poll_lac = NO_ENTRY
        self._entry_poll_behind_at = float("inf")
        self._paused_until: dict[str, float] = {}

    def start_polls(self, metadata: LedgerMetadata, previous_lac: int) -> float:
        """Ensure that two bookies are polled for entries after ``previous_lac``.

        Returns:
            When to call again.
        """
        now = trio.current_time()
        bookies = metadata.last_fragment.bookies
        for poll in (self._entry_poll, self._lac_poll):
            if poll is not None and (now >= poll.timeout_at or poll.bookie not in bookies):
                self._cancel_poll(poll, now + LONG_POLL_S)
        next_call_at = float("inf")
        if self._lac_poll_lac > previous_lac:
            if now < self._entry_poll_behind_at:
                next_call_at = self._entry_poll_behind_at
            elif self._entry_poll is not None:
                self._cancel_poll(self._entry_poll, now + LONG_POLL_S)
        if self._entry_poll is None:
            del self.pushed_entries[: self._count_pushed_through(previous_lac)]
            self._entry_poll = self._start_poll(
                metadata, self._first_bookie(bookies, now), previous_lac, with_entries=True
            )
            if self._entry_poll is None:
                next_call_at = min(next_call_at, now + ERROR_PAUSE_S)
        if self._lac_poll is None and now >= self._next_lac_poll_at:
            self._bookie_offset += 1
            first_bookie = self._entry_poll.bookie if self._entry_poll is not None else ""
            self._lac_poll = self._start_poll(
                metadata,
                self._next_bookie(bookies, first_bookie, now),
                previous_lac,
                with_entries=False,
            )
            if self._lac_poll is None:
                self._next_lac_poll_at = now + SECOND_POLL_PAUSE_S
        for poll in (self._entry_poll, self._lac_poll):
            if poll is not None:
                next_call_at = min(next_call_at, poll.timeout_at)
        return (
            next_call_at
            if self._lac_poll is not None
            else min(next_call_at, self._next_lac_poll_at)
        )

    def take_entries(self, first: int, last: int) -> list[EntryRecord]:
        """Remove and return contiguous entries from ``first`` to at most ``last``; [] if there are none."""
        pushed_entries = self.pushed_entries
        if not pushed_entries or not pushed_entries[0].entry <= first <= pushed_entries[-1].entry:
            return []
        start, stop = first - pushed_entries[0].entry, last + 1 - pushed_entries[0].entry
        entries = pushed_entries[start:stop]
        del pushed_entries[:stop]
        return entries

    @property
    def is_following(self) -> bool:
        """Whether a bookie continues to send entries, and there is nothing else to check."""
        return self._entry_poll is not None and not self.fenced

    def close(self) -> None:
        """Cancel the polls. Idempotent."""
        for poll in (self._entry_poll, self._lac_poll):
            if poll is not None:
                self._cancel_poll(poll, -float("inf"))
        self.pushed_entries.clear()

    # --- asking -----------------------------------------------------------------------------------

    def _first_bookie(self, bookies: tuple[str, ...], now: float) -> str | None:
        if self._preferred_bookie in bookies and self._is_available(self._preferred_bookie, now):
            return self._preferred_bookie
        bookie = self._next_bookie(bookies, "", now)
        self._preferred_bookie = bookie or ""
        return bookie

    def _next_bookie(self, bookies: tuple[str, ...], other_bookie: str, now: float) -> str | None:
        """Return the next bookie in turn that is connected, not paused, and not ``other_bookie``."""
        for k in range(len(bookies)):
            bookie = bookies[(self._bookie_offset + k) % len(bookies)]
            if bookie != other_bookie and self._is_available(bookie, now):
                return bookie
        return None

    def _is_available(self, bookie: str, now: float) -> bool:
        return self._pool.get(bookie) is not None and now >= self._paused_until.get(bookie, now)

    def _start_poll(
        self, metadata: LedgerMetadata, bookie: str | None, previous_lac: int, *, with_entries: bool
    ) -> _TailPoll | None:
        client = None if bookie is None else self._pool.get(bookie)
        if bookie is None or client is None:
            return None
        wait_s = LONG_POLL_S
        poll = _TailPoll(
            bookie, client, previous_lac, trio.current_time() + wait_s + POLL_TIMEOUT_MARGIN_S
        )
        bytes_max = TAIL_READ_BYTES if with_entries else 0
        request = WaitLacRequest(
            self._ledger_id, metadata.key, previous_lac, int(wait_s * 1000), bytes_max
        )
        on_poll_response = (
            self._on_entry_poll_response if with_entries else self._on_lac_poll_response
        )
        with suppress(DistributedLogError):
            poll.pending_reply = client.long_poll_lac(
                request,
                lambda answer, more: on_poll_response(poll, answer, more),
                persistent=with_entries,
            )
            return poll
        return None

    def _cancel_poll(self, poll: _TailPoll, paused_until: float) -> None:
        """Cancel a poll and ignore its answers."""
        if poll.pending_reply is not None:
            poll.client.cancel(poll.pending_reply)
        self._paused_until[poll.bookie] = paused_until
        if poll is self._entry_poll:
            self._entry_poll = None
        elif poll is self._lac_poll:
            self._lac_poll = None

    # --- answers: calls from the link ----------------------------------------------------------------

    def _on_entry_poll_response(
        self, poll: _TailPoll, response: LongPollResponse | DistributedLogError, is_persistent: bool
    ) -> None:
        if poll is not self._entry_poll:
            return
        if isinstance(response, DistributedLogError):
            self._cancel_poll(poll, trio.current_time() + ERROR_PAUSE_S)
            self._on_response(NO_ENTRY)
            return
        self.last_response_at = trio.current_time()
        if not is_persistent:
            self._entry_poll = None
        if response.lac > poll.previous_lac:
            if len(response.body):
                with suppress(CorruptData, UnsupportedFormat):  # the regular read reports the error
                    self._add_pushed_entries(response.body, response.lac)
            elif not is_persistent:  # it has the LAC without the entries; another may have them
                self._paused_until[poll.bookie] = trio.current_time() + ERROR_PAUSE_S
            poll.previous_lac = response.lac
        elif response.fenced:
            self.fenced = True
        self._on_response(response.lac)

    def _on_lac_poll_response(
        self, poll: _TailPoll, response: LongPollResponse | DistributedLogError, more: bool
    ) -> None:
        """Handle the answer of the second poll.

        Its LAC is not reported to the reader, which would then read entries that the first poll is about to
        deliver. It is only compared with the first poll. ``more`` is always False.
        """
        if poll is not self._lac_poll:
            return
        now = trio.current_time()
        if isinstance(response, DistributedLogError):
            self._cancel_poll(poll, now + ERROR_PAUSE_S)
        else:
            self._lac_poll = None
            self.last_response_at = now
            if response.lac > poll.previous_lac:
                self._lac_poll_lac = response.lac
                self._next_lac_poll_at = now + SECOND_POLL_PAUSE_S
                self._entry_poll_behind_at = now + GRACE_S
            elif response.fenced:
                self.fenced = True
        self._on_response(NO_ENTRY)

    def _add_pushed_entries(self, body: memoryview, lac: int) -> None:
        pushed_entries = self.pushed_entries
        for record in records(body):
            if record.ledger != self._ledger_id:
                raise CorruptData(
                    f"ledger {record.ledger} in a reply about ledger {self._ledger_id}"
                )
            if record.entry > lac:
                return
            if pushed_entries and record.entry != pushed_entries[-1].entry + 1:
                pushed_entries.clear()  # a gap is read separately
            pushed_entries.append(record)

    def _count_pushed_through(self, previous_lac: int) -> int:
        return (
            0
            if not self.pushed_entries
            else max(0, previous_lac + 1 - self.pushed_entries[0].entry)
        )
