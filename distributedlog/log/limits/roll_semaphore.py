"""Limit how many logs of a process end a segment at the same time, in the order of their requests.

A thousand logs that were opened together, or that are stored on one lost bookie, would otherwise roll
together. Each of them creates and closes a ledger in the metadata (H98). A writer without a permit continues
in its segment. A roll after a ledger error or for a better ensemble needs no permit.
"""

from collections.abc import Callable


class RollSemaphore:
    """One per namespace."""

    def __init__(self, permits: int) -> None:
        self._free_permits = permits
        self._waiters: dict[RollPermit, None] = {}

    def acquire(self, permit: "RollPermit") -> bool:
        """For `RollPermit.acquire`: return whether a permit was free. Otherwise queue the request."""
        if self._free_permits:
            self._free_permits -= 1
            return True
        self._waiters[permit] = None
        return False

    def release(self) -> None:
        """For `RollPermit.release`: pass the permit to the next waiting writer."""
        for permit in self._waiters:
            del self._waiters[permit]
            permit.grant()
            return
        self._free_permits += 1

    def cancel_wait(self, permit: "RollPermit") -> None:
        """Remove a permit from the queue. Idempotent."""
        self._waiters.pop(permit, None)


class RollPermit:
    """The permit of one writer, held from before its next segment is created until the previous one is
    closed."""

    __slots__ = ("_on_granted", "_semaphore", "is_held")

    def __init__(self, semaphore: RollSemaphore, on_granted: Callable[[], None]) -> None:
        """Start without a permit.

        Args:
            on_granted: Called when a queued permit is granted. It must not raise.
        """
        self._semaphore = semaphore
        self._on_granted = on_granted
        self.is_held = False

    def acquire(self) -> bool:
        """Return whether the permit is held. Otherwise queue for it."""
        if not self.is_held:
            self.is_held = self._semaphore.acquire(self)
        return self.is_held

    def release(self) -> None:
        """Return the permit, or leave the queue. Idempotent."""
        self._semaphore.cancel_wait(self)
        if self.is_held:
            self.is_held = False
            self._semaphore.release()

    def grant(self) -> None:
        """For `RollSemaphore`: grant the queued permit."""
        self.is_held = True
        self._on_granted()
