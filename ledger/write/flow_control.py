"""What a process may hold in bytes, over all its ledgers: kept for slow bookies, and sent (pure).

Kept: a writer keeps what is confirmed until its slowest slot has it. That is bounded for each ledger, and
here for all together: a process with a thousand logs and one paused bookie must not keep a thousand times
the one bound (H22). When they are full, whoever keeps something for a slot has no room until the slot
caught up or was let go; who keeps nothing writes on.

Sent and not confirmed: each ledger's window is bounded; a thousand of them together queued more on a
connection than may wait there, which ends it. When the process' bound is reached, whoever has
something to send waits in a queue, and each confirmation lets the next one go: also whoever it belongs to
sends again only after those.
"""

from collections import deque
from collections.abc import Callable

COUNTED_BYTES_MIN = 64 * 1024
"""A ledger that keeps less is not counted: a slot is always a little late."""
WOKEN_LEDGERS_MAX = 8
"""Ledgers that may go at the same time and have not sent yet: by so many entries the bound is exceeded."""


class RetainedBytes:
    """What a process keeps for slow bookies."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.retained_bytes = 0

    @property
    def is_full(self) -> bool:
        """Is there too much of it?"""
        return self.retained_bytes >= self.bytes_max

    def for_ledger(self) -> "LedgerRetainedBytes":
        """The part of one more ledger."""
        return LedgerRetainedBytes(self)


class LedgerRetainedBytes:
    """What one ledger of it keeps."""

    __slots__ = ("_total", "counted_bytes")

    def __init__(self, total: RetainedBytes) -> None:
        self._total = total
        self.counted_bytes = 0

    def is_over_budget(self, retained_bytes: int) -> bool:
        """The ledger keeps so many bytes for its slow slots now: must it wait for them?"""
        counted = retained_bytes if retained_bytes >= COUNTED_BYTES_MIN else 0
        self._total.retained_bytes += counted - self.counted_bytes
        self.counted_bytes = counted
        assert self._total.retained_bytes >= 0, "each ledger takes back what it counted"
        return counted > 0 and self._total.is_full


class InFlightBytes:
    """What a process has sent that is not confirmed."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.in_flight_bytes = 0
        self.waiting_ledgers: deque[LedgerInFlightBytes] = deque()
        self.woken_count = 0

    def for_ledger(self, on_capacity: Callable[[], None]) -> "LedgerInFlightBytes":
        """The part of one more ledger; ``on_room`` is called when it may send after
        `LedgerInFlightBytes.join_queue`."""
        return LedgerInFlightBytes(self, on_capacity)

    def wake_waiting(self) -> None:
        """Let the next ones go."""
        for _ in range(len(self.waiting_ledgers)):
            if self.in_flight_bytes >= self.bytes_max or self.woken_count >= WOKEN_LEDGERS_MAX:
                return
            self.waiting_ledgers.popleft().grant_turn()


class LedgerInFlightBytes:
    """What one ledger of it has sent."""

    __slots__ = ("_bytes", "_ended", "_is_waiting", "_may_send", "_on_capacity", "_total")

    def __init__(self, total: InFlightBytes, on_room: Callable[[], None]) -> None:
        self._total = total
        self._on_capacity = on_room
        self._bytes = 0
        self._is_waiting = self._may_send = self._ended = False

    @property
    def has_capacity(self) -> bool:
        """May an entry be sent now?"""
        total = self._total
        if self._may_send or not total.in_flight_bytes:  # also when those who were called do not go
            return True
        return total.in_flight_bytes < total.bytes_max and not total.waiting_ledgers

    def add_sent(self, size_bytes: int) -> None:
        """An entry of so many bytes was."""
        self._bytes += size_bytes
        self._total.in_flight_bytes += size_bytes
        if self._may_send:
            self._finish_turn()

    def set_unconfirmed(self, size_bytes: int) -> None:
        """So many bytes of it are not confirmed now."""
        freed = self._bytes - size_bytes
        if freed:
            self._bytes = size_bytes
            total = self._total
            total.in_flight_bytes -= freed
            assert total.in_flight_bytes >= 0, "each ledger takes back what it counted"
            if total.waiting_ledgers:
                total.wake_waiting()

    def join_queue(self) -> None:
        """Have ``on_room`` called when it may send."""
        if not self._is_waiting and not self.has_capacity:
            self._is_waiting = True
            self._total.waiting_ledgers.append(self)

    def end(self) -> None:
        """It sends nothing more, and nothing of it is waited for."""
        self._ended = True
        self.set_unconfirmed(0)
        if self._may_send:
            self._finish_turn()

    def grant_turn(self) -> None:
        """Its turn has come."""
        self._is_waiting = False
        if not self._ended:
            self._may_send = True
            self._total.woken_count += 1
            self._on_capacity()

    def _finish_turn(self) -> None:
        self._may_send = False
        self._total.woken_count -= 1
        self._total.wake_waiting()
