"""Long polls: requests that wait for a ledger's LAC to move, parked without a task each.

A standing one stays parked after an answer: a tail reader then pays one request for a second of entries,
not one for each. A waiter lies in its ledger's list and in one heap by deadline. One task sweeps the heap.
"""

from heapq import heappop, heappush

import trio

from ...runtime.interfaces.errors import DistributedLogError, TooBusy
from .ledger_table import Ledger, LongPoll

SWEEP_S = 0.02
"""A wait ends at most this much late."""


class LongPolls:
    """All long polls of a bookie."""

    def __init__(self, polls_max: int) -> None:
        self._polls_max = polls_max
        self._by_deadline: list[tuple[float, int, LongPoll]] = []
        self._serial = 0
        self._wake = trio.Event()
        self._next_sweep_at = float("inf")
        """When the sweep comes again."""
        self.waiting_count = 0

    def add(self, poll: LongPoll) -> None:
        """Wait from now on. Raises `TooBusy`."""
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
        """Answer those for whom the ledger's LAC moved; all of them on a fence or an error."""
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
        """Its connection is gone."""
        if not poll.is_done:
            poll.is_done = True
            self.waiting_count -= 1
            poll.ledger.long_polls.remove(poll)

    def _answer(self, poll: LongPoll, error: DistributedLogError | None) -> None:
        poll.is_done = True
        self.waiting_count -= 1
        poll.owner.on_poll_done(poll, error)

    async def run(self) -> None:
        """End the waits whose time is over, until cancelled."""
        while True:
            # No timer a wait, and none that runs on: an expiry costs more than a lone add does.
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
