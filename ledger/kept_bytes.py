"""Records that a process keeps for slow bookies, over all its ledgers (pure).

A writer keeps what is confirmed until its slowest slot has it. That is bounded for each ledger, and here
for all together: a process with a thousand logs and one paused bookie must not keep a thousand times the
one bound (H22). When they are full, whoever keeps something for a slot has no room until the slot caught
up or was let go; who keeps nothing writes on.
"""

COUNTED_FROM_BYTES = 64 * 1024
"""A ledger that keeps less is not counted: a slot is always a little behind."""


class KeptBytes:
    """The sum over a process."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Is there too much of it?"""
        return self.bytes >= self.bytes_max

    def share(self) -> "KeptShare":
        """For one more ledger."""
        return KeptShare(self)


class KeptShare:
    """What one ledger keeps."""

    __slots__ = ("_all", "bytes")

    def __init__(self, of: KeptBytes) -> None:
        self._all = of
        self.bytes = 0

    def crowded(self, kept: int) -> bool:
        """The ledger keeps so many bytes for its slow slots now: must it wait for them?"""
        counted = kept if kept >= COUNTED_FROM_BYTES else 0
        self._all.bytes += counted - self.bytes
        self.bytes = counted
        assert self._all.bytes >= 0, "each ledger takes back what it counted"
        return counted > 0 and self._all.full
