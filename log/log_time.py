"""Log time: when a record was written, as clocks can tell, and never less than what was before it (pure).

A writer stamps each entry with its machine's clock, and never below the entry before (`LogClock`). A
segment's floor lifts what was stamped elsewhere and linked. So log time never goes back (H148): a search by
it is binary.
"""

from collections.abc import Callable


class LogClock:
    """What one writer stamps its entries with."""

    def __init__(self, wall_ms: Callable[[], int], floor_ms: int = 0) -> None:
        """``floor_ms``: the log's time so far."""
        self._wall_ms = wall_ms
        self._last_ms = floor_ms

    def now_ms(self) -> int:
        """The clock of this machine, or what was given last while that is greater."""
        now = self._wall_ms()
        if now < self._last_ms:
            return self._last_ms
        self._last_ms = now
        return now
