"""How many logs of a process end a segment at once; first come, first served.

A thousand logs that are opened together, or lie on one bookie that is lost, would else roll together, and
each asks the metadata for a ledger and to close one (H98). Who gets no permit writes on. A ledger's error, or
a better ensemble, asks nobody.
"""

from collections.abc import Callable


class RollSemaphore:
    """One a namespace."""

    def __init__(self, permits: int) -> None:
        self._free_permits = permits
        self._waiters: dict[RollPermit, None] = {}

    def acquire(self, permit: "RollPermit") -> bool:
        """For `RollPermit.acquire`."""
        if self._free_permits:
            self._free_permits -= 1
            return True
        self._waiters[permit] = None
        return False

    def release(self) -> None:
        """For `RollPermit.release`."""
        for permit in self._waiters:
            del self._waiters[permit]
            permit.grant()
            return
        self._free_permits += 1

    def cancel_wait(self, permit: "RollPermit") -> None:
        """It is waited for no more. Idempotent."""
        self._waiters.pop(permit, None)


class RollPermit:
    """One writer's: from before its next segment is made until the one before that is closed."""

    __slots__ = ("_on_granted", "_semaphore", "is_held")

    def __init__(self, semaphore: RollSemaphore, on_granted: Callable[[], None]) -> None:
        """``on_granted``: it was waited for, and is held now. It must not raise."""
        self._semaphore = semaphore
        self._on_granted = on_granted
        self.is_held = False

    def acquire(self) -> bool:
        """Is it held? If not, it is queued for."""
        if not self.is_held:
            self.is_held = self._semaphore.acquire(self)
        return self.is_held

    def release(self) -> None:
        """It is neither held nor waited for from here on. Idempotent."""
        self._semaphore.cancel_wait(self)
        if self.is_held:
            self.is_held = False
            self._semaphore.release()

    def grant(self) -> None:
        """For `RollSemaphore`: it is this one's turn."""
        self.is_held = True
        self._on_granted()
