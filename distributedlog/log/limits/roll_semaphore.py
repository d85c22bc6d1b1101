"""How many logs of a process end a segment at once; first come, first served.

A thousand logs that are opened together, or lie on one bookie that is lost, would else roll together, and
each asks the metadata for a ledger and to close one (H98). Who gets no permit writes on. A ledger's error, or
a better ensemble, asks nobody.
"""

from collections.abc import Callable


class RollSemaphore:
    """One a namespace."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[RollPermit, None] = {}

    def ask(self, one: "RollPermit") -> bool:
        """For `RollPermit.ask`."""
        if self._free:
            self._free -= 1
            return True
        self._waiting[one] = None
        return False

    def give_back(self) -> None:
        """For `RollPermit.give_back`."""
        for one in self._waiting:
            del self._waiting[one]
            one.granted()
            return
        self._free += 1

    def withdraw(self, one: "RollPermit") -> None:
        """It is waited for no more. Idempotent."""
        self._waiting.pop(one, None)


class RollPermit:
    """One writer's: from before its next segment is made until the one before that is closed."""

    __slots__ = ("_on_granted", "_permits", "held")

    def __init__(self, permits: RollSemaphore, on_granted: Callable[[], None]) -> None:
        """``on_granted``: it was waited for, and is held now. It must not raise."""
        self._permits = permits
        self._on_granted = on_granted
        self.held = False

    def ask(self) -> bool:
        """Is it held? If not, it is queued for."""
        if not self.held:
            self.held = self._permits.ask(self)
        return self.held

    def give_back(self) -> None:
        """It is neither held nor waited for from here on. Idempotent."""
        self._permits.withdraw(self)
        if self.held:
            self.held = False
            self._permits.give_back()

    def granted(self) -> None:
        """For `RollSemaphore`: it is this one's turn."""
        self.held = True
        self._on_granted()
