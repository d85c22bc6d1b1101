"""Record the entries that a reader with ``broken="skip"`` skips because they certainly cannot be read
(pure)."""

from collections import deque
from dataclasses import dataclass

from ..format.dlsn import DLSN

SKIPPED_RANGES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A range of skipped entries."""

    first: DLSN
    """The position of the first skipped entry."""
    next: DLSN
    """The first position after the range: a readable entry, or the start of the next segment."""
    records: int | None
    """The number of skipped records, computed from the entries around the range. None if the reader
    started within it."""
    reason: str
    """The errors of all replicas for the first of these entries."""


@dataclass(frozen=True, slots=True)
class Skips:
    """All entries that one reader has skipped so far."""

    ranges: int = 0
    """The number of ranges."""
    entries: int = 0
    records: int = 0
    """The number of records in ranges where it is known."""
    newest: tuple[Skipped, ...] = ()
    """The newest thousand ranges."""


class SkipRecorder:
    """Groups skipped entries into ranges. Called for each broken entry, and for the first entry after it."""

    def __init__(self) -> None:
        self._first: DLSN | None = None
        self._reason = ""
        self.entries = 0
        """The number of entries skipped so far."""
        self._ranges = self._records = 0
        self._newest: deque[Skipped] = deque(maxlen=SKIPPED_RANGES_KEPT)

    @property
    def has_open_range(self) -> bool:
        """Whether a range has started and not ended."""
        return self._first is not None

    def add_entry(self, position: DLSN, reason: str) -> None:
        """Record that the entry at ``position`` is skipped."""
        if self._first is None:
            self._first, self._reason = position, reason
        self.entries += 1

    def end_range(self, next_position: DLSN, records: int | None) -> Skipped:
        """End the range at ``next_position``, after ``records`` skipped records, and return it."""
        assert self._first is not None, "a range has started"
        skipped = Skipped(self._first, next_position, records, self._reason)
        self._first = None
        self._ranges += 1
        self._records += records or 0
        self._newest.append(skipped)
        return skipped

    def to_value(self) -> Skips:
        """Return the totals so far."""
        return Skips(self._ranges, self.entries, self._records, tuple(self._newest))
