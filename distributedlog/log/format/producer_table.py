"""The producers of a log, and the number of records that the log has stored of each (pure).

A producer has a name and a number. Each opening of the name gets a new number from a counter of the log, and
no number is used twice in a log. The records of a producer are counted from 0, over all openings. A frame is
a batch of consecutive records of a producer. It is stored only if its sequence number is the producer's next
one.

The table follows from the log's entries in their order (`producer_section.py`). The writer of the log keeps
it in memory (`producer_state_manager.py`). The next writer rebuilds it from the entries
(`producer_recovery.py`).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...runtime.interfaces.errors import CorruptData
from .dlsn import DLSN

PRODUCERS_MAX = 1000
"""Maximum number of producers of one log. With `FRAMES_KEPT` it limits a snapshot, which is one entry, to
less than 1 MiB."""
FRAMES_KEPT = 16
"""Number of frames per producer whose positions are kept, and maximum number of unacknowledged frames per
producer.

So the position of each unacknowledged frame is known.
"""
NAME_BYTES_MAX = 255


class FrameSpan(NamedTuple):
    """The range of a frame in an entry."""

    producer_number: int
    sequence: int
    slot: int
    """The slot of its first record."""
    records: int


class StoredFrame(NamedTuple):
    """A stored frame and its position."""

    sequence: int
    records: int
    segment: int
    entry: int
    slot: int

    @property
    def first(self) -> DLSN:
        """The position of its first record."""
        return DLSN(self.segment, self.entry, self.slot)


class ProducerOpening(NamedTuple):
    """The opening of a producer, as stored in an entry."""

    number: int
    name: str
    evicted_number: int = 0
    """The number of the producer that is removed from the table to make space for this one, or 0 for none."""


@dataclass(slots=True)
class EntryProducers:
    """The producer state of a batch of records: spans, openings or a snapshot."""

    spans: list[FrameSpan] = field(default_factory=list)
    openings: tuple[ProducerOpening, ...] = ()
    table: "ProducerTable | None" = None
    clock_ms: int = 0
    """The clock of the log when the batch was sent, as `ProducerTable.clock_ms`."""


@dataclass(slots=True)
class Producer:
    """One producer, as the log has it."""

    number: int
    name: str
    next_sequence: int = 0
    """The number of its records that are stored."""
    last_ms: int = 0
    """The log's clock (`ProducerTable.clock_ms`) when the producer last stored a record or was opened."""
    stored_frames: deque[StoredFrame] = field(default_factory=lambda: deque(maxlen=FRAMES_KEPT))
    """Its newest frames, oldest first."""


class ProducerTable:
    """The producers of a log after a given entry."""

    def __init__(
        self, rows: Iterable[Producer] = (), *, next_number: int = 1, clock_ms: int = 0
    ) -> None:
        self.rows = {row.number: row for row in rows}
        self.by_name = {row.name: row for row in self.rows.values()}
        self.next_number = next_number
        """The number of the next opening. Smaller numbers were used or never will be."""
        self.clock_ms = clock_ms
        """The total working time of all writers of the log, by their monotonic clocks, in ms."""
        if len(self.by_name) != len(self.rows) or max(self.rows, default=0) >= next_number:
            raise CorruptData(
                f"{len(self.rows)} producers with {len(self.by_name)} names, up to number "
                f"{max(self.rows, default=0)}, where the next one is {next_number}"
            )

    def copy(self) -> "ProducerTable":
        """Return an independent copy."""
        rows = [
            Producer(row.number, row.name, row.next_sequence, row.last_ms, row.stored_frames.copy())
            for row in self.rows.values()
        ]
        return ProducerTable(rows, next_number=self.next_number, clock_ms=self.clock_ms)

    def add_span(self, span: FrameSpan, segment: int, entry: int) -> None:
        """Record that a frame is stored in an entry.

        Raises:
            CorruptData: The producer is unknown, or the frame is not its next one.
        """
        row = self.rows.get(span.producer_number)
        if row is None or span.sequence != row.next_sequence:
            state_text = "is unknown" if row is None else f"has {row.next_sequence} stored records"
            raise CorruptData(
                f"entry {segment}.{entry} has a frame of {span.records} records at sequence "
                f"{span.sequence} of producer {span.producer_number}, which {state_text}"
            )
        row.next_sequence += span.records
        row.last_ms = self.clock_ms
        row.stored_frames.append(
            StoredFrame(span.sequence, span.records, segment, entry, span.slot)
        )

    def apply_opening(self, opened: ProducerOpening) -> Producer | None:
        """Give a producer name a new number. The count of its records continues.

        Returns:
            The row of the previous number of this name, or None.
        Raises:
            CorruptData: The number is already in use, or the evicted producer is unknown.
        """
        if opened.evicted_number:
            evicted = self.rows.pop(opened.evicted_number, None)
            if evicted is None:
                raise CorruptData(f"evicted producer {opened.evicted_number} is not in the table")
            del self.by_name[evicted.name]
        previous = self.by_name.get(opened.name)
        if opened.number in self.rows or opened.number < 1:
            raise CorruptData(f"opened producer {opened.number} is already in the table")
        row = Producer(opened.number, opened.name, 0, self.clock_ms)
        if previous is not None:
            row.next_sequence, row.stored_frames = previous.next_sequence, previous.stored_frames
            del self.rows[previous.number]
        self.rows[row.number] = self.by_name[row.name] = row
        self.next_number = max(self.next_number, row.number + 1)
        return previous

    def apply_entry(
        self,
        spans: Iterable[FrameSpan],
        openings: Iterable[ProducerOpening],
        segment: int,
        entry: int,
        clock_ms: int,
    ) -> None:
        """Apply the producer section of one entry.

        Raises:
            CorruptData: The section contradicts the table.
        """
        self.clock_ms = max(self.clock_ms, clock_ms)
        for opened in openings:
            self.apply_opening(opened)
        for span in spans:
            self.add_span(span, segment, entry)
