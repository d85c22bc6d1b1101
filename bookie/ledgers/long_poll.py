"""Long polls: requests that wait for a ledger's LAC to move, parked without a task each.

A standing one stays parked after an answer: a tail reader then pays one request for a second of entries,
not one for each. A waiter lies in its ledger's list and in one heap by deadline. One task sweeps the heap.
"""

from heapq import heappop, heappush

import trio

from ...runtime.interfaces.errors import DistributedLogError, TooBusy
from .ledger_table import Ledger, Waiter

SWEEP_S = 0.02
"""A wait ends at most this much late."""


class LongPolls:
    """All long polls of a bookie."""

    def __init__(self, waiters_max: int) -> None:
        self._waiters_max = waiters_max
        self._heap: list[tuple[float, int, Waiter]] = []
        self._serial = 0
        self._wake = trio.Event()
        self._due = float("inf")
        """When the sweep comes again."""
        self.waiting = 0

    def park(self, waiter: Waiter) -> None:
        """Wait from now on. Raises `TooBusy`."""
        if self.waiting >= self._waiters_max or len(self._heap) >= 2 * self._waiters_max:
            raise TooBusy(f"{self.waiting} long polls wait here")
        self._serial += 1
        self.waiting += 1
        heappush(self._heap, (waiter.deadline, self._serial, waiter))
        waiter.ledger.waiters.append(waiter)
        if waiter.deadline + SWEEP_S < self._due:
            self._wake.set()

    def wake(self, ledger: Ledger, *, error: DistributedLogError | None = None) -> None:
        """Answer those for whom the ledger's LAC moved; all of them on a fence or an error."""
        everyone = error is not None or ledger.fence_durable
        waiting, ledger.waiters = ledger.waiters, []
        for waiter in waiting:
            if everyone or (
                ledger.lac > waiter.previous_lac
                and not (waiter.standing and waiter.owner.on_wait_news(waiter))
            ):
                self._answer(waiter, error)
            else:
                ledger.waiters.append(waiter)

    def forget(self, waiter: Waiter) -> None:
        """Its connection is gone."""
        if not waiter.over:
            waiter.over = True
            self.waiting -= 1
            waiter.ledger.waiters.remove(waiter)

    def _answer(self, waiter: Waiter, error: DistributedLogError | None) -> None:
        waiter.over = True
        self.waiting -= 1
        waiter.owner.on_wait_over(waiter, error)

    async def run(self) -> None:
        """End the waits whose time is over, until cancelled."""
        while True:
            # No timer a wait, and none that runs on: an expiry costs more than a lone add does.
            with trio.CancelScope(deadline=self._due):
                await self._wake.wait()
            self._wake = trio.Event()
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                waiter = heappop(self._heap)[2]
                if not waiter.over:
                    waiter.ledger.waiters.remove(waiter)
                    self._answer(waiter, None)
            self._due = max(now, self._heap[0][0]) + SWEEP_S if self._heap else float("inf")
