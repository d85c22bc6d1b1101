"""Following the end of one ledger: long polls whose answers are calls, with no task or scope a poll.

The first bookie is asked to stand: it sends each entry as it becomes readable, for a second at a time and
up to a bound in bytes. A second one is asked for the LAC alone, now and then another: what it knows and the
first does not bring within `GRACE_S` moves the first poll there. So a bookie that is cut off, or paused,
hides nothing for long (H23), and the others pay nothing for a tail.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...bookie.client.bookie_client import BookieClient, WaitAnswer
from ...bookie.format.bookie_messages import WaitLac
from ...bookie.format.entry import EntryRecord, records
from ...runtime.declarations.options import MIB
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.net.client_link import PendingReply
from ..declarations.options import LONG_POLL_S
from ..model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ..placement.bookie_pool import BookiePool

GRACE_S = 0.02
"""What the first bookie has left to bring what the second one has told of."""
SECOND_REST_S = 0.25
"""After news from the second bookie: what comes meanwhile is the first one's to tell."""
LATE_S = 0.5
"""A poll that is not answered so long after its end has failed."""
TAIL_READ_BYTES = MIB
"""The most bytes of entries that one answer of the first bookie carries."""
ERROR_PAUSE_S = 0.1
"""Before a bookie that could not answer is asked again."""


@dataclass(slots=True, eq=False)
class _Poll:
    bookie: str
    client: BookieClient
    after: int
    late_at: float
    pending: PendingReply | None = None


class TailPolls:
    """The long polls of one reader. All calls are synchronous; see the module."""

    def __init__(
        self,
        ledger_id: int,
        pool: BookiePool,
        *,
        turn: int,
        on_news: Callable[[int], None],
    ) -> None:
        self.fenced = False
        """A bookie said that somebody recovers the ledger; whoever acts on it sets it back."""
        self.ahead: list[EntryRecord] = []
        """Entries that came with answers: verified, without a gap, ascending."""
        self.heard_at = -float("inf")
        """When a bookie last answered."""
        self._ledger_id = ledger_id
        self._pool = pool
        self._turn = turn
        self._on_news = on_news
        """Gets the LAC that a poll proved (or -1 when something else is to be looked at)."""
        self._first: _Poll | None = None
        self._second: _Poll | None = None
        self._favourite = ""
        """The bookie that the first poll stays with while it answers."""
        self._second_at = -float("inf")
        self._second_lac = NO_ENTRY
        self._behind_at = float("inf")
        self._rests: dict[str, float] = {}

    def arm(self, metadata: LedgerMetadata, after: int) -> float:
        """See to it that two bookies are asked for what lies past ``after``; when to come again."""
        now = trio.current_time()
        bookies = metadata.last_fragment.bookies
        for poll in (self._first, self._second):
            if poll is not None and (now >= poll.late_at or poll.bookie not in bookies):
                self._drop(poll, now + LONG_POLL_S)
        due = float("inf")
        if self._second_lac > after:
            if now < self._behind_at:
                due = self._behind_at
            elif self._first is not None:
                self._favourite = self._next(bookies, self._first.bookie, now) or ""
                self._drop(self._first, now + LONG_POLL_S)
        if self._first is None:
            del self.ahead[: self._count_ahead(after)]
            self._first = self._ask(metadata, self._first_bookie(bookies, now), after, first=True)
            if self._first is None:
                due = min(due, now + ERROR_PAUSE_S)
        if self._second is None and now >= self._second_at:
            self._turn += 1
            other = self._first.bookie if self._first is not None else ""
            self._second = self._ask(metadata, self._next(bookies, other, now), after, first=False)
            if self._second is None:
                self._second_at = now + SECOND_REST_S
        for poll in (self._first, self._second):
            if poll is not None:
                due = min(due, poll.late_at)
        return due if self._second is not None else min(due, self._second_at)

    def take(self, first: int, last: int) -> list[EntryRecord]:
        """What came of the entries ``first`` to ``last`` without a gap; nothing where ``first`` did not."""
        ahead = self.ahead
        if not ahead or not ahead[0].entry <= first <= ahead[-1].entry:
            return []
        start, stop = first - ahead[0].entry, last + 1 - ahead[0].entry
        found = ahead[start:stop]
        del ahead[:stop]
        return found

    @property
    def follows(self) -> bool:
        """Does a bookie go on telling, and nothing else is to be looked at?"""
        return self._first is not None and not self.fenced

    def close(self) -> None:
        """Ask nobody any more. Idempotent."""
        for poll in (self._first, self._second):
            if poll is not None:
                self._drop(poll, -float("inf"))
        self.ahead.clear()

    # --- asking -----------------------------------------------------------------------------------

    def _first_bookie(self, bookies: tuple[str, ...], now: float) -> str | None:
        if self._favourite in bookies and self._answers(self._favourite, now):
            return self._favourite
        found = self._next(bookies, "", now)
        self._favourite = found or ""
        return found

    def _next(self, bookies: tuple[str, ...], other: str, now: float) -> str | None:
        """The next one in turn that is connected, does not rest and is not the ``other`` poll's."""
        for k in range(len(bookies)):
            bookie = bookies[(self._turn + k) % len(bookies)]
            if bookie != other and self._answers(bookie, now):
                return bookie
        return None

    def _answers(self, bookie: str, now: float) -> bool:
        return self._pool.get(bookie) is not None and now >= self._rests.get(bookie, now)

    def _ask(
        self, metadata: LedgerMetadata, bookie: str | None, after: int, *, first: bool
    ) -> _Poll | None:
        client = None if bookie is None else self._pool.get(bookie)
        if bookie is None or client is None:
            return None
        hold_s = LONG_POLL_S
        poll = _Poll(bookie, client, after, trio.current_time() + hold_s + LATE_S)
        bytes_max = TAIL_READ_BYTES if first else 0
        request = WaitLac(self._ledger_id, metadata.key, after, int(hold_s * 1000), bytes_max)
        answered = self._on_first if first else self._on_second
        with suppress(DistributedLogError):
            poll.pending = client.follow_lac(
                request, lambda answer, more: answered(poll, answer, more), standing=first
            )
            return poll
        return None

    def _drop(self, poll: _Poll, rest_until: float) -> None:
        """Its answers count no more."""
        if poll.pending is not None:
            poll.client.forget(poll.pending)
        self._rests[poll.bookie] = rest_until
        if poll is self._first:
            self._first = None
        elif poll is self._second:
            self._second = None

    # --- answers: calls from the link ----------------------------------------------------------------

    def _on_first(self, poll: _Poll, answer: WaitAnswer | DistributedLogError, more: bool) -> None:
        if poll is not self._first:
            return
        if isinstance(answer, DistributedLogError):
            self._drop(poll, trio.current_time() + ERROR_PAUSE_S)
            self._on_news(NO_ENTRY)
            return
        self.heard_at = trio.current_time()
        if not more:
            self._first = None
        if answer.lac > poll.after:
            if len(answer.body):
                with suppress(CorruptData, UnsupportedFormat):  # the read proper will say so
                    self._take(answer.body, answer.lac)
            elif not more:  # it heard of what it does not have: another one may
                self._rests[poll.bookie] = trio.current_time() + ERROR_PAUSE_S
            poll.after = answer.lac
        elif answer.fenced:
            self.fenced = True
        self._on_news(answer.lac)

    def _on_second(self, poll: _Poll, answer: WaitAnswer | DistributedLogError, more: bool) -> None:
        if poll is not self._second:
            return
        now = trio.current_time()
        if isinstance(answer, DistributedLogError):
            self._drop(poll, now + ERROR_PAUSE_S)
        else:
            self._second = None
            self.heard_at = now
            if answer.lac > poll.after:
                self._second_lac = answer.lac
                self._second_at = now + SECOND_REST_S
                self._behind_at = now + GRACE_S
            elif answer.fenced:
                self.fenced = True
        self._on_news(NO_ENTRY)

    def _take(self, body: memoryview, lac: int) -> None:
        ahead = self.ahead
        for one in records(body):
            if one.ledger != self._ledger_id:
                raise CorruptData(f"ledger {one.ledger} in a reply about ledger {self._ledger_id}")
            if one.entry > lac:
                return
            if ahead and one.entry != ahead[-1].entry + 1:
                ahead.clear()  # a striped ledger, or a hole: what lies between is read
            ahead.append(one)

    def _count_ahead(self, after: int) -> int:
        return 0 if not self.ahead else max(0, after + 1 - self.ahead[0].entry)
