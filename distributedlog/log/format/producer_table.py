"""What a log says of its producers: who they are, and how far each one's records are stored (pure).

A producer has a name, and a number that is drawn from a counter of the log at each opening of the name and
never used again in that log. Its records are counted from 0, over all openings. A frame of it, which is the
records that it sent in one go, is stored where its sequence is the producer's next one, and nowhere else.

The table is what follows from the log's entries in their order (`producer_section.py`); the writer of the log
keeps it beside them (`producer_state_manager.py`), and the next one gets it by reading them
(`producer_recovery.py`).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...runtime.interfaces.errors import CorruptData
from .dlsn import DLSN

PRODUCERS_MAX = 1000
"""Of one log. With `BATCHES_KEPT` it bounds a snapshot, which is one entry, to less than 1 MiB."""
BATCHES_KEPT = 16
"""Of a producer: as many may be unanswered, so that of each unanswered one it is known where it is."""
NAME_BYTES_MAX = 255


class BatchSpan(NamedTuple):
    """A frame in an entry."""

    producer_number: int
    sequence: int
    slot: int
    """Of its first record."""
    records: int


class StoredBatch(NamedTuple):
    """A frame that is stored, and where."""

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
    """The opening of a producer, as an entry says it."""

    number: int
    name: str
    evicted_number: int = 0
    """The number of a producer that is forgotten for it; 0: none is."""


@dataclass(slots=True)
class EntryProducers:
    """What a batch has of producers, beside its records: spans, or openings, or a snapshot."""

    spans: list[BatchSpan] = field(default_factory=list)
    openings: tuple[ProducerOpening, ...] = ()
    table: "ProducerTable | None" = None
    clock_ms: int = 0
    """Of the log, when it was sent."""


@dataclass(slots=True)
class Producer:
    """One producer, as far as the log goes."""

    number: int
    name: str
    next_sequence: int = 0
    """How many records of it are stored."""
    last_ms: int = 0
    """Of the log's clock, when it last stored something or was opened."""
    stored_batches: deque[StoredBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    """Its newest frames, ascending."""


class ProducerTable:
    """The producers of a log after some entry of it."""

    def __init__(
        self, rows: Iterable[Producer] = (), *, next_number: int = 1, clock_ms: int = 0
    ) -> None:
        self.rows = {row.number: row for row in rows}
        self.by_name = {row.name: row for row in self.rows.values()}
        self.next_number = next_number
        """Of the next opening; all numbers below were used, or never will be."""
        self.clock_ms = clock_ms
        """How long the log's writers have been at work, in sum, by their monotonic clocks."""
        if len(self.by_name) != len(self.rows) or max(self.rows, default=0) >= next_number:
            raise CorruptData(
                f"{len(self.rows)} producers with {len(self.by_name)} names, up to number "
                f"{max(self.rows, default=0)}, where the next one is {next_number}"
            )

    def copy(self) -> "ProducerTable":
        """One that goes on by itself."""
        rows = [
            Producer(
                row.number, row.name, row.next_sequence, row.last_ms, row.stored_batches.copy()
            )
            for row in self.rows.values()
        ]
        return ProducerTable(rows, next_number=self.next_number, clock_ms=self.clock_ms)

    def add_span(self, span: BatchSpan, segment: int, entry: int) -> None:
        """A frame is in an entry. Raises `CorruptData` where it is not the producer's next one."""
        row = self.rows.get(span.producer_number)
        if row is None or span.sequence != row.next_sequence:
            state_text = "is not there" if row is None else f"has stored {row.next_sequence}"
            raise CorruptData(
                f"entry {segment}.{entry} has {span.records} records from {span.sequence} on of producer "
                f"{span.producer_number}, which {state_text}"
            )
        row.next_sequence += span.records
        row.last_ms = self.clock_ms
        row.stored_batches.append(
            StoredBatch(span.sequence, span.records, segment, entry, span.slot)
        )

    def apply_opening(self, opened: ProducerOpening) -> Producer | None:
        """A name has a new number from here on; who had it before, or None. Its count goes on.

        Raises `CorruptData` where that cannot be.
        """
        if opened.evicted_number:
            evicted = self.rows.pop(opened.evicted_number, None)
            if evicted is None:
                raise CorruptData(
                    f"producer {opened.evicted_number} is forgotten, and is not there"
                )
            del self.by_name[evicted.name]
        previous = self.by_name.get(opened.name)
        if opened.number in self.rows or opened.number < 1:
            raise CorruptData(f"producer {opened.number} is opened, and there already")
        row = Producer(opened.number, opened.name, 0, self.clock_ms)
        if previous is not None:
            row.next_sequence, row.stored_batches = previous.next_sequence, previous.stored_batches
            del self.rows[previous.number]
        self.rows[row.number] = self.by_name[row.name] = row
        self.next_number = max(self.next_number, row.number + 1)
        return previous

    def apply_entry(
        self,
        spans: Iterable[BatchSpan],
        openings: Iterable[ProducerOpening],
        segment: int,
        entry: int,
        clock_ms: int,
    ) -> None:
        """What one entry says. Raises `CorruptData`."""
        self.clock_ms = max(self.clock_ms, clock_ms)
        for opened in openings:
            self.apply_opening(opened)
        for span in spans:
            self.add_span(span, segment, entry)
