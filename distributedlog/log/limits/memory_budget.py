"""Limit the accepted bytes that are not durable yet, over all logs of a process (pure; H168).

Each log can always hold `FREE_BYTES`, so that every log stays writable, whatever other logs hold. Additional
bytes are granted in steps from one budget for all logs. If the budget is used up, further requests wait.
Freed bytes are granted to the longest waiting request, whatever its size, so no request overtakes another.

So all logs together hold at most the budget, and `FREE_BYTES` each.
"""

from collections import deque
from collections.abc import Callable

PROCESS_BYTES_MAX = 256 * 1024 * 1024
FREE_BYTES = 64 * 1024
"""The bytes that each log can hold without a grant. Only records that fit are accepted this way. A record
of 1 MiB waits for a grant."""
STEP_BYTES = 64 * 1024
"""Grants are multiples of this, so that a busy log does not request one for each record."""


class MemoryBudget:
    """The budget for all logs of a process."""

    def __init__(self, bytes_max: int = PROCESS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.granted_bytes = 0
        """The granted bytes, which logs hold or can hold above `FREE_BYTES`."""
        self.waiters: deque[BudgetShare] = deque()

    def create_share(self, on_granted: Callable[[], None]) -> "BudgetShare":
        """Create the share of another log. ``on_granted`` is called when a request is granted."""
        return BudgetShare(self, on_granted)

    def grant_waiters(self) -> None:
        """Grant available bytes to the longest waiting requests."""
        while self.waiters and self.waiters[0].try_grant_request():
            self.waiters.popleft().notify_granted()


class BudgetShare:
    """The part of the budget that one log holds."""

    __slots__ = ("_is_waiting", "_on_granted", "_wanted_bytes", "budget", "free_bytes", "granted")

    def __init__(self, budget: MemoryBudget, on_granted: Callable[[], None]) -> None:
        self.budget = budget
        self._on_granted = on_granted
        self._wanted_bytes = 0
        """The requested bytes, until they are used."""
        self._is_waiting = False
        self.free_bytes = FREE_BYTES
        self.granted = 0

    def available(self, held_bytes: int) -> int:
        """Return how many bytes above ``held_bytes`` need no grant. Negative if too many are held."""
        return self.free_bytes + self.granted - held_bytes

    def try_reserve(self, held_bytes: int) -> bool:
        """Return whether the log can hold this many bytes now. Missing bytes are granted if available."""
        if held_bytes <= self.free_bytes + self.granted:
            return True
        if self.budget.waiters:
            return False
        return self._grant(held_bytes)

    def prefetch(self, expected_bytes: int) -> None:
        """Grant bytes that the log is likely to hold soon, while half of the budget is unused.

        So a busy log needs one grant per entry, not one per step. `retain` returns unused bytes.
        """
        if expected_bytes > self.free_bytes + self.granted and not self.budget.waiters:
            added_bytes = _round_up_to_step(expected_bytes - self.free_bytes) - self.granted
            if 2 * (self.budget.granted_bytes + added_bytes) <= self.budget.bytes_max:
                self.budget.granted_bytes += added_bytes
                self.granted += added_bytes

    def retain(self, held_bytes: int, expected_bytes: int) -> bool:
        """Release bytes as `release_to`, but keep ``expected_bytes`` more, while half of the budget is
        unused.

        Returns:
            False if nothing was done, because more than half of the budget is used or another log waits.
        """
        if self.budget.waiters or 2 * self.budget.granted_bytes > self.budget.bytes_max:
            return False
        self.release_to(held_bytes + expected_bytes)
        return True

    def request(self, wanted_bytes: int) -> None:
        """Request this many bytes, and call ``on_granted`` when they are granted.

        The grant is kept until `cancel_request`.
        """
        self._wanted_bytes = wanted_bytes
        if not self._is_waiting:
            self._is_waiting = True
            self.budget.waiters.append(self)

    def cancel_request(self) -> None:
        """Withdraw the request."""
        self._wanted_bytes = 0
        if self._is_waiting:
            self._is_waiting = False
            self.budget.waiters.remove(self)
            self.budget.grant_waiters()  # the next request may be smaller

    def release_to(self, held_bytes: int) -> None:
        """Return the granted bytes that exceed ``held_bytes``."""
        kept_bytes = _round_up_to_step(max(held_bytes, self._wanted_bytes) - self.free_bytes)
        if kept_bytes < self.granted:
            self.budget.granted_bytes -= self.granted - kept_bytes
            self.granted = kept_bytes
            assert self.budget.granted_bytes >= 0, "each log returns only granted bytes"
            self.budget.grant_waiters()

    def close(self) -> None:
        """Return all bytes for good."""
        self.cancel_request()
        self.release_to(0)

    def try_grant_request(self) -> bool:
        """For `MemoryBudget.grant_waiters`: return whether the request can be granted now."""
        return self._wanted_bytes <= self.free_bytes + self.granted or self._grant(
            self._wanted_bytes
        )

    def notify_granted(self) -> None:
        """For `MemoryBudget.grant_waiters`: report that the request was granted."""
        self._is_waiting = False
        self._on_granted()

    def _grant(self, wanted_bytes: int) -> bool:
        added_bytes = _round_up_to_step(wanted_bytes - self.free_bytes) - self.granted
        # A request above the whole budget is granted if nothing else is, so that it does not wait forever.
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
