"""Limit the memory of a process over all its ledgers: bytes kept for slow bookies, and bytes sent (pure).

Kept: a writer keeps confirmed entries until its slowest slot has them. Each ledger has a limit for that. A
process with a thousand logs and one paused bookie must not keep a thousand times this limit, so there is a
common one, too (H22). At the common limit, writers that keep entries for a slot block until the slot
catches up or is replaced. The other writers continue.

Sent and not confirmed: each ledger has a limit. A thousand ledgers together could queue more data on a
connection than allowed, which would close the connection. At the common limit, writers wait in a queue, and
each confirmation lets the next one send. A writer whose entry was confirmed queues behind them.
"""

from collections import deque
from collections.abc import Callable

COUNTED_BYTES_MIN = 64 * 1024
"""A ledger that keeps fewer bytes is not counted, because a slot is always slightly late."""
WOKEN_LEDGERS_MAX = 8
"""The maximum number of woken ledgers that have not sent yet.

The limit of bytes can be exceeded by that many entries.
"""


class RetainedBytes:
    """The bytes that a process keeps for slow bookies."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.retained_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.retained_bytes >= self.bytes_max

    def for_ledger(self) -> "LedgerRetainedBytes":
        """Return the share of one more ledger."""
        return LedgerRetainedBytes(self)


class LedgerRetainedBytes:
    """The bytes that one ledger keeps for slow bookies."""

    __slots__ = ("_total", "counted_bytes")

    def __init__(self, total: RetainedBytes) -> None:
        self._total = total
        self.counted_bytes = 0

    def is_over_budget(self, retained_bytes: int) -> bool:
        """Set the bytes that the ledger keeps, and return whether it must wait for its slow slots."""
        counted = retained_bytes if retained_bytes >= COUNTED_BYTES_MIN else 0
        self._total.retained_bytes += counted - self.counted_bytes
        self.counted_bytes = counted
        assert self._total.retained_bytes >= 0, "a ledger frees only bytes that it counted"
        return counted > 0 and self._total.is_full


class InFlightBytes:
    """The bytes that a process has sent and that are not confirmed."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.in_flight_bytes = 0
        self.waiting_ledgers: deque[LedgerInFlightBytes] = deque()
        self.woken_count = 0

    def for_ledger(self, on_capacity: Callable[[], None]) -> "LedgerInFlightBytes":
        """Return the share of one more ledger.

        Args:
            on_capacity: Called when the ledger may send after `LedgerInFlightBytes.join_queue`.
        """
        return LedgerInFlightBytes(self, on_capacity)

    def wake_waiting(self) -> None:
        """Let the next waiting ledgers send."""
        for _ in range(len(self.waiting_ledgers)):
            if self.in_flight_bytes >= self.bytes_max or self.woken_count >= WOKEN_LEDGERS_MAX:
                return
            self.waiting_ledgers.popleft().grant_turn()


class LedgerInFlightBytes:
    """The unconfirmed bytes of one ledger."""

    __slots__ = ("_bytes", "_ended", "_is_waiting", "_may_send", "_on_capacity", "_total")

    def __init__(self, total: InFlightBytes, on_capacity: Callable[[], None]) -> None:
        self._total = total
        self._on_capacity = on_capacity
        self._bytes = 0
        self._is_waiting = self._may_send = self._ended = False

    @property
    def has_capacity(self) -> bool:
        """Whether an entry may be sent now."""
        total = self._total
        if self._may_send or not total.in_flight_bytes:  # also if woken ledgers do not send
            return True
        return total.in_flight_bytes < total.bytes_max and not total.waiting_ledgers

    def add_sent(self, size_bytes: int) -> None:
        """Add the size of an entry that was sent."""
        self._bytes += size_bytes
        self._total.in_flight_bytes += size_bytes
        if self._may_send:
            self._finish_turn()

    def set_unconfirmed(self, size_bytes: int) -> None:
        """Set the bytes of this ledger that are not confirmed."""
        freed = self._bytes - size_bytes
        if freed:
            self._bytes = size_bytes
            total = self._total
            total.in_flight_bytes -= freed
            assert total.in_flight_bytes >= 0, "a ledger frees only bytes that it counted"
            if total.waiting_ledgers:
                total.wake_waiting()

    def join_queue(self) -> None:
        """Wait in the queue: call ``on_capacity`` when the ledger may send."""
        if not self._is_waiting and not self.has_capacity:
            self._is_waiting = True
            self._total.waiting_ledgers.append(self)

    def end(self) -> None:
        """Release all bytes and leave the queue, because the ledger sends nothing more."""
        self._ended = True
        self.set_unconfirmed(0)
        if self._may_send:
            self._finish_turn()

    def grant_turn(self) -> None:
        """Allow the ledger at the head of the queue to send."""
        self._is_waiting = False
        if not self._ended:
            self._may_send = True
            self._total.woken_count += 1
            self._on_capacity()

    def _finish_turn(self) -> None:
        self._may_send = False
        self._total.woken_count -= 1
        self._total.wake_waiting()
