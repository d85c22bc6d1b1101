"""What a reader with ``broken="skip"`` has passed over: entries that certainly cannot be read (pure)."""

from collections import deque
from dataclasses import dataclass

from ..format.dlsn import DLSN

SKIPPED_RANGES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A stretch of entries that was passed over."""

    first: DLSN
    """Where it began."""
    next: DLSN
    """The first position after it: readable, or the next segment's first."""
    records: int | None
    """How many there were, by what the entries around it count; None: the reader began within."""
    why: str
    """What each replica of the first of these entries says."""


@dataclass(frozen=True, slots=True)
class Skips:
    """All that one reader has passed over so far."""

    stretches: int = 0
    entries: int = 0
    records: int = 0
    """Of the stretches that know."""
    last: tuple[Skipped, ...] = ()
    """The newest thousand."""


class SkipRecorder:
    """Gathers entries into stretches. Told of each broken entry, and of whatever comes after it."""

    def __init__(self) -> None:
        self._first: DLSN | None = None
        self._reason = ""
        self.entries = 0
        """Passed over so far."""
        self._stretches = self._records = 0
        self._last: deque[Skipped] = deque(maxlen=SKIPPED_RANGES_KEPT)

    @property
    def has_open_range(self) -> bool:
        """Is a stretch begun and not ended?"""
        return self._first is not None

    def add_entry(self, position: DLSN, reason: str) -> None:
        """The entry there is passed over."""
        if self._first is None:
            self._first, self._reason = position, reason
        self.entries += 1

    def end_range(self, next_position: DLSN, records: int | None) -> Skipped:
        """The stretch ends here, and ``records`` are missing."""
        assert self._first is not None, "a stretch is begun"
        skipped = Skipped(self._first, next_position, records, self._reason)
        self._first = None
        self._stretches += 1
        self._records += records or 0
        self._last.append(skipped)
        return skipped

    def to_value(self) -> Skips:
        """As a value."""
        return Skips(self._stretches, self.entries, self._records, tuple(self._last))
