"""Long polls: requests that wait until the LAC of a ledger advances, without a task for each.

A persistent poll continues after an answer, so that a tail reader needs one request per second instead of one
per entry. Each poll is in the list of its ledger, and in one heap by deadline, which one task checks.
"""

from heapq import heappop, heappush

import trio

from ...runtime.interfaces.errors import DistributedLogError, TooBusy
from .ledger_table import Ledger, LongPoll

SWEEP_S = 0.02
"""The maximum delay of a timeout."""


class LongPolls:
    """All long polls of a bookie."""

    def __init__(self, polls_max: int) -> None:
        self._polls_max = polls_max
        self._by_deadline: list[tuple[float, int, LongPoll]] = []
        self._serial = 0
        self._wake = trio.Event()
        self._next_sweep_at = float("inf")
        """The time of the next check of the heap."""
        self.waiting_count = 0

    def add(self, poll: LongPoll) -> None:
        """Add a poll. Raises `TooBusy` if there are too many."""
        if self.waiting_count >= self._polls_max or len(self._by_deadline) >= 2 * self._polls_max:
            raise TooBusy(f"{self.waiting_count} long polls wait here")
        self._serial += 1
        self.waiting_count += 1
        heappush(self._by_deadline, (poll.deadline, self._serial, poll))
        poll.ledger.long_polls.append(poll)
        if poll.deadline + SWEEP_S < self._next_sweep_at:
            self._wake.set()

    def on_ledger_changed(
        self, ledger: Ledger, *, error: DistributedLogError | None = None
    ) -> None:
        """Answer the polls for which the LAC advanced, or all polls on a fence or an error."""
        answers_all = error is not None or ledger.fence_durable
        polls, ledger.long_polls = ledger.long_polls, []
        for poll in polls:
            if answers_all or (
                ledger.lac > poll.previous_lac
                and not (poll.persistent and poll.owner.on_lac_advanced(poll))
            ):
                self._answer(poll, error)
            else:
                ledger.long_polls.append(poll)

    def remove(self, poll: LongPoll) -> None:
        """Remove a poll without an answer, because its connection has ended or it was refused."""
        if not poll.is_done:
            poll.is_done = True
            self.waiting_count -= 1
            poll.ledger.long_polls.remove(poll)

    def _answer(self, poll: LongPoll, error: DistributedLogError | None) -> None:
        poll.is_done = True
        self.waiting_count -= 1
        poll.owner.on_poll_done(poll, error)

    async def run(self) -> None:
        """End polls that time out, until cancelled."""
        while True:
            # One timer for all polls, and none without polls: an expiry costs more than a single add.
            with trio.CancelScope(deadline=self._next_sweep_at):
                await self._wake.wait()
            self._wake = trio.Event()
            now = trio.current_time()
            while self._by_deadline and self._by_deadline[0][0] <= now:
                poll = heappop(self._by_deadline)[2]
                if not poll.is_done:
                    poll.ledger.long_polls.remove(poll)
                    self._answer(poll, None)
            self._next_sweep_at = (
                max(now, self._by_deadline[0][0]) + SWEEP_S if self._by_deadline else float("inf")
            )
