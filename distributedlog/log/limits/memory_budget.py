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
        self.granted_bytes = 0
        """Granted: what logs hold, or may hold without asking, above what is free."""
        self.waiters: deque[BudgetShare] = deque()

    def create_share(self, on_granted: Callable[[], None]) -> "BudgetShare":
        """The part of one more log; ``on_room`` is called when it has what it waited for."""
        return BudgetShare(self, on_granted)

    def grant_waiters(self) -> None:
        """Grant what there is to who waits longest."""
        while self.waiters and self.waiters[0].try_grant_request():
            self.waiters.popleft().notify_granted()


class BudgetShare:
    """What one log may hold of it."""

    __slots__ = ("_is_waiting", "_on_granted", "_wanted_bytes", "budget", "free_bytes", "granted")

    def __init__(self, budget: MemoryBudget, on_granted: Callable[[], None]) -> None:
        self.budget = budget
        self._on_granted = on_granted
        self._wanted_bytes = 0
        """What is waited for, until it is made use of."""
        self._is_waiting = False
        self.free_bytes = FREE_BYTES
        self.granted = 0

    def available(self, held_bytes: int) -> int:
        """How much more may be held than ``held`` without asking; below 0: so much too much is."""
        return self.free_bytes + self.granted - held_bytes

    def try_reserve(self, held_bytes: int) -> bool:
        """May the log hold so much now? What it needs for that it is granted, if it is there."""
        if held_bytes <= self.free_bytes + self.granted:
            return True
        if self.budget.waiters:
            return False
        return self._grant(held_bytes)

    def prefetch(self, expected_bytes: int) -> None:
        """The log is likely to hold so much soon: have it granted at once, while half of all is left.

        So a busy log asks once an entry, not once a step, and gives back what does not come (`retain`).
        """
        if expected_bytes > self.free_bytes + self.granted and not self.budget.waiters:
            added_bytes = _round_up_to_step(expected_bytes - self.free_bytes) - self.granted
            if 2 * (self.budget.granted_bytes + added_bytes) <= self.budget.bytes_max:
                self.budget.granted_bytes += added_bytes
                self.granted += added_bytes

    def retain(self, held_bytes: int, expected_bytes: int) -> bool:
        """As `holds`, but for so much that is likely to come, while half of all is left; was there?"""
        if self.budget.waiters or 2 * self.budget.granted_bytes > self.budget.bytes_max:
            return False
        self.release_to(held_bytes + expected_bytes)
        return True

    def request(self, wanted_bytes: int) -> None:
        """Have ``on_room`` called when the log may hold so much; what it is granted then, it keeps
        until `leave`."""
        self._wanted_bytes = wanted_bytes
        if not self._is_waiting:
            self._is_waiting = True
            self.budget.waiters.append(self)

    def cancel_request(self) -> None:
        """Nothing is waited for."""
        self._wanted_bytes = 0
        if self._is_waiting:
            self._is_waiting = False
            self.budget.waiters.remove(self)
            self.budget.grant_waiters()  # who is next may want less

    def release_to(self, held_bytes: int) -> None:
        """The log holds so much, and no more: give back what it was granted for more."""
        kept_bytes = _round_up_to_step(max(held_bytes, self._wanted_bytes) - self.free_bytes)
        if kept_bytes < self.granted:
            self.budget.granted_bytes -= self.granted - kept_bytes
            self.granted = kept_bytes
            assert self.budget.granted_bytes >= 0, "each log gives back what it was granted"
            self.budget.grant_waiters()

    def close(self) -> None:
        """The log holds nothing more, for good."""
        self.cancel_request()
        self.release_to(0)

    def try_grant_request(self) -> bool:
        """For `MemoryBudget.grant_waiters`: is what is waited for granted now?"""
        return self._wanted_bytes <= self.free_bytes + self.granted or self._grant(
            self._wanted_bytes
        )

    def notify_granted(self) -> None:
        """For `MemoryBudget.grant_waiters`: it was granted."""
        self._is_waiting = False
        self._on_granted()

    def _grant(self, wanted_bytes: int) -> bool:
        added_bytes = _round_up_to_step(wanted_bytes - self.free_bytes) - self.granted
        # What is more than there is at all goes when nobody has any: it would wait for ever.
        if (
            self.budget.granted_bytes
            and self.budget.granted_bytes + added_bytes > self.budget.bytes_max
        ):
            return False
        self.budget.granted_bytes += added_bytes
        self.granted += added_bytes
        return True


def _round_up_to_step(size: int) -> int:
    return max(0, -(-size // STEP_BYTES) * STEP_BYTES)
