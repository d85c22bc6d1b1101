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

COUNTED_FROM_BYTES = 64 * 1024
"""A ledger that keeps less is not counted: a slot is always a little late."""
CALLED_MAX = 8
"""Ledgers that may go at the same time and have not sent yet: by so many entries the bound is exceeded."""


class RetainedBytes:
    """What a process keeps for slow bookies."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Is there too much of it?"""
        return self.bytes >= self.bytes_max

    def for_ledger(self) -> "LedgerRetainedBytes":
        """The part of one more ledger."""
        return LedgerRetainedBytes(self)


class LedgerRetainedBytes:
    """What one ledger of it keeps."""

    __slots__ = ("_all", "bytes")

    def __init__(self, of: RetainedBytes) -> None:
        self._all = of
        self.bytes = 0

    def crowded(self, kept: int) -> bool:
        """The ledger keeps so many bytes for its slow slots now: must it wait for them?"""
        counted = kept if kept >= COUNTED_FROM_BYTES else 0
        self._all.bytes += counted - self.bytes
        self.bytes = counted
        assert self._all.bytes >= 0, "each ledger takes back what it counted"
        return counted > 0 and self._all.full


class InFlightBytes:
    """What a process has sent that is not confirmed."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.waiting: deque[LedgerInFlightBytes] = deque()
        self.called = 0

    def for_ledger(self, on_room: Callable[[], None]) -> "LedgerInFlightBytes":
        """The part of one more ledger; ``on_room`` is called when it may send after
        `LedgerInFlightBytes.wait`."""
        return LedgerInFlightBytes(self, on_room)

    def call(self) -> None:
        """Let the next ones go."""
        for _ in range(len(self.waiting)):
            if self.bytes >= self.bytes_max or self.called >= CALLED_MAX:
                return
            self.waiting.popleft().go()


class LedgerInFlightBytes:
    """What one ledger of it has sent."""

    __slots__ = ("_all", "_bytes", "_may_go", "_on_room", "_over", "_waits")

    def __init__(self, of: InFlightBytes, on_room: Callable[[], None]) -> None:
        self._all = of
        self._on_room = on_room
        self._bytes = 0
        self._waits = self._may_go = self._over = False

    @property
    def room(self) -> bool:
        """May an entry be sent now?"""
        everybody = self._all
        if self._may_go or not everybody.bytes:  # also when those who were called do not go
            return True
        return everybody.bytes < everybody.bytes_max and not everybody.waiting

    def sent(self, size: int) -> None:
        """An entry of so many bytes was."""
        self._bytes += size
        self._all.bytes += size
        if self._may_go:
            self._went()

    def left(self, size: int) -> None:
        """So many bytes of it are not confirmed now."""
        freed = self._bytes - size
        if freed:
            self._bytes = size
            everybody = self._all
            everybody.bytes -= freed
            assert everybody.bytes >= 0, "each ledger takes back what it counted"
            if everybody.waiting:
                everybody.call()

    def wait(self) -> None:
        """Have ``on_room`` called when it may send."""
        if not self._waits and not self.room:
            self._waits = True
            self._all.waiting.append(self)

    def end(self) -> None:
        """It sends nothing more, and nothing of it is waited for."""
        self._over = True
        self.left(0)
        if self._may_go:
            self._went()

    def go(self) -> None:
        """Its turn has come."""
        self._waits = False
        if not self._over:
            self._may_go = True
            self._all.called += 1
            self._on_room()

    def _went(self) -> None:
        self._may_go = False
        self._all.called -= 1
        self._all.call()
