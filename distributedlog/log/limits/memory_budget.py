"""What a process has taken and not yet seen durable, in bytes, over all its logs (pure; H168).

The first `FREE_BYTES` of a log are its own: whatever others hold, a log that can be written is written. What
it holds above them is granted to it, in steps, out of one sum for all. When that is given out, who wants more
waits, and what is given back goes to whoever waits longest, however much he wants: nobody overtakes.

So all logs together hold at most the sum, and `FREE_BYTES` each.
"""

from collections import deque
from collections.abc import Callable

PROCESS_BYTES_MAX = 256 * 1024 * 1024
FREE_BYTES = 64 * 1024
"""Of each log, without asking. Only what fits it goes in by it: a record of 1 MiB waits its turn."""
STEP_BYTES = 64 * 1024
"""What is granted is a multiple of this: a busy log asks once for some of its records."""


class MemoryBudget:
    """The sum for all logs of a process."""

    def __init__(self, bytes_max: int = PROCESS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Granted: what logs hold, or may hold without asking, above what is free."""
        self.waiting: deque[BudgetShare] = deque()

    def for_log(self, on_room: Callable[[], None]) -> "BudgetShare":
        """The part of one more log; ``on_room`` is called when it has what it waited for."""
        return BudgetShare(self, on_room)

    def give(self) -> None:
        """Grant what there is to who waits longest."""
        while self.waiting and self.waiting[0].take():
            self.waiting.popleft().go()


class BudgetShare:
    """What one log may hold of it."""

    __slots__ = ("_on_room", "_waits", "_wanted", "free_bytes", "granted", "of")

    def __init__(self, of: MemoryBudget, on_room: Callable[[], None]) -> None:
        self.of = of
        self._on_room = on_room
        self._wanted = 0
        """What is waited for, until it is made use of."""
        self._waits = False
        self.free_bytes = FREE_BYTES
        self.granted = 0

    def left(self, held: int) -> int:
        """How much more may be held than ``held`` without asking; below 0: so much too much is."""
        return self.free_bytes + self.granted - held

    def fits(self, held: int) -> bool:
        """May the log hold so much now? What it needs for that it is granted, if it is there."""
        if held <= self.free_bytes + self.granted:
            return True
        if self.of.waiting:
            return False
        return self._grant(held)

    def ahead(self, held: int) -> None:
        """The log is likely to hold so much soon: have it granted at once, while half of all is left.

        So a busy log asks once an entry, not once a step, and gives back what does not come (`keeps`).
        """
        if held > self.free_bytes + self.granted and not self.of.waiting:
            more = _steps(held - self.free_bytes) - self.granted
            if 2 * (self.of.bytes + more) <= self.of.bytes_max:
                self.of.bytes += more
                self.granted += more

    def keeps(self, held: int, ahead: int) -> bool:
        """As `holds`, but for so much that is likely to come, while half of all is left; was there?"""
        if self.of.waiting or 2 * self.of.bytes > self.of.bytes_max:
            return False
        self.holds(held + ahead)
        return True

    def wait(self, held: int) -> None:
        """Have ``on_room`` called when the log may hold so much; what it is granted then, it keeps
        until `leave`."""
        self._wanted = held
        if not self._waits:
            self._waits = True
            self.of.waiting.append(self)

    def leave(self) -> None:
        """Nothing is waited for."""
        self._wanted = 0
        if self._waits:
            self._waits = False
            self.of.waiting.remove(self)
            self.of.give()  # who is next may want less

    def holds(self, held: int) -> None:
        """The log holds so much, and no more: give back what it was granted for more."""
        kept = _steps(max(held, self._wanted) - self.free_bytes)
        if kept < self.granted:
            self.of.bytes -= self.granted - kept
            self.granted = kept
            assert self.of.bytes >= 0, "each log gives back what it was granted"
            self.of.give()

    def end(self) -> None:
        """The log holds nothing more, for good."""
        self.leave()
        self.holds(0)

    def take(self) -> bool:
        """For `MemoryBudget.give`: is what is waited for granted now?"""
        return self._wanted <= self.free_bytes + self.granted or self._grant(self._wanted)

    def go(self) -> None:
        """For `MemoryBudget.give`: it was granted."""
        self._waits = False
        self._on_room()

    def _grant(self, held: int) -> bool:
        more = _steps(held - self.free_bytes) - self.granted
        # What is more than there is at all goes when nobody has any: it would wait for ever.
        if self.of.bytes and self.of.bytes + more > self.of.bytes_max:
            return False
        self.of.bytes += more
        self.granted += more
        return True


def _steps(size: int) -> int:
    return max(0, -(-size // STEP_BYTES) * STEP_BYTES)
