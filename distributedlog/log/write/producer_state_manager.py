"""Track the producers of a log at its writer: their stored frames, their frames in flight, and fenced
producers.

The *stored* state is a `ProducerTable`, which confirmed entries update in order. The *accepted* state also
includes the frames in flight.

A frame is accepted if it follows the frames accepted before. A repeated frame is answered when its first copy
is durable, never earlier (H62).

A snapshot is sent at the start of a segment and then after a number of bytes. It has the stored state and the
frames that were sent to the same ledger before it. Frames that were sent to another ledger and cut off by
recovery are accepted, but not in the snapshot.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import trio

from ...runtime.declarations.options import check_whole, quoted
from ...runtime.interfaces.errors import InvalidRequest, ProducerFenced, ProducerForgotten, TooBusy
from ...runtime.protocol.schema import NUMBER_MAX
from ..format.dlsn import DLSN
from ..format.producer_section import encode_section
from ..format.producer_table import (
    FRAMES_KEPT,
    NAME_BYTES_MAX,
    PRODUCERS_MAX,
    EntryProducers,
    FrameSpan,
    ProducerOpening,
    ProducerTable,
)
from .entry_batch import EntryBatch
from .sequenced_batch import SequencedBatch

IDLE_MS = 3_600_000
"""A producer that was idle for this long, by the log's producer clock, can be evicted for a new one."""
FENCED_NUMBERS_MAX = 10_000
"""The maximum number of replaced producers that are remembered. For others the error is
`ProducerForgotten`."""


@dataclass(frozen=True, slots=True)
class OpenedProducer:
    """A producer at the time it was opened."""

    name: str
    number: int
    """The number of this opening. It fences the previous one."""
    next_sequence: int
    """The number of stored records of the producer, where its source continues."""
    has_stored_records: bool
    """Whether records of this name are known to be stored. After the producer was evicted this is False,
    although it may have stored records. That also applies to further openings after the eviction, because
    the answer of an earlier opening may have been lost."""


class SequenceCheck(Enum):
    """The result for a frame that is not in flight and has no known position."""

    NEW = "the next one"
    WINDOW_FULL = "the next one, and too many are on their way"
    EVICTED = "stored, long ago"


class _ActiveProducer:
    __slots__ = ("next_sequence", "unacked_batches")

    def __init__(self, next_sequence: int) -> None:
        self.next_sequence = next_sequence
        """The sequence after the accepted records."""
        self.unacked_batches: deque[SequencedBatch] = deque()
        """The frames in flight, in ascending order."""


class ProducerStateManager:
    """The producers of one log that is open for writing. No call waits."""

    def __init__(self, table: ProducerTable, log_name: str) -> None:
        self.table = table
        """The stored state."""
        self.default_number = 0
        """The number of the producer of all records without a frame. 0 if there is none."""
        self._log_name = log_name
        self._opened_at, self._clock_base_ms = trio.current_time(), table.clock_ms
        self._next_number = table.next_number
        self._active = {
            row.number: _ActiveProducer(row.next_sequence) for row in table.rows.values()
        }
        self._numbers = {row.name: row.number for row in table.rows.values()}
        """The newest number per name, also of openings that are not stored yet."""
        self._fenced: dict[int, None] = {}
        self._default_from_slot = 0
        """From this slot of the open batch on, the records of the default producer are not recorded yet."""

    @property
    def clock_ms(self) -> int:
        """The log's producer clock: the total time for which writers had the log open, in milliseconds."""
        return self._clock_base_ms + int((trio.current_time() - self._opened_at) * 1000)

    # --- accepted frames --------------------------------------------------------------------------

    def next_sequence(self, number: int) -> int:
        """Return the number of accepted records of a producer.

        Raises:
            ProducerFenced: The name was opened again.
            ProducerForgotten: The number is unknown, for example because it was evicted.
        """
        return self._require_active(number).next_sequence

    def check_sequence(
        self, number: int, sequence: int, records: int
    ) -> SequenceCheck | SequencedBatch | DLSN:
        """Classify a frame by its sequence and number of records.

        Returns:
            The result for a new or long stored frame, the first copy that is in flight, or the stored
            position.
        Raises:
            ProducerFenced, ProducerForgotten: As for `next_sequence`.
            InvalidRequest: The frame leaves a gap, or some of its records were sent in other frames.
        """
        active = self._require_active(number)
        if sequence == active.next_sequence:
            return (
                SequenceCheck.NEW
                if len(active.unacked_batches) < FRAMES_KEPT
                else SequenceCheck.WINDOW_FULL
            )
        if sequence > active.next_sequence:
            raise InvalidRequest(
                f'log "{self._log_name}": producer {number} sent a frame from {sequence} on, expected '
                f"{active.next_sequence}"
            )
        stored = self.table.rows[number]
        for unacked in active.unacked_batches:
            if (unacked.sequence, unacked.records) == (sequence, records):
                return unacked
        for kept_frame in stored.stored_frames:
            if (kept_frame.sequence, kept_frame.records) == (sequence, records):
                return kept_frame.first
        oldest_known = (
            stored.stored_frames[0].sequence if stored.stored_frames else stored.next_sequence
        )
        if sequence + records <= oldest_known:
            return SequenceCheck.EVICTED
        raise InvalidRequest(
            f'log "{self._log_name}": producer {number} sent {records} records from {sequence} on, of which '
            f"some were sent in other frames. Expected {active.next_sequence}."
        )

    def record_batch(self, batch: EntryBatch, slot: int, new_batch: SequencedBatch) -> None:
        """Record a new frame that starts at a slot of a batch."""
        if self.default_number:
            self.record_default(batch, slot)
            self._default_from_slot = slot + new_batch.records
        self._record_span(
            batch, FrameSpan(new_batch.producer, new_batch.sequence, slot, new_batch.records)
        )
        self._require_active(new_batch.producer).unacked_batches.append(new_batch)

    def record_default(self, batch: EntryBatch, end: int) -> None:
        """Assign the records before slot ``end`` that belong to no frame to the default producer."""
        slot, self._default_from_slot = self._default_from_slot, end
        if end > slot:
            self._record_span(
                batch,
                FrameSpan(
                    self.default_number, self.next_sequence(self.default_number), slot, end - slot
                ),
            )

    def close_batch(self, batch: EntryBatch) -> None:
        """Record the default producer's last records of a batch that is being closed."""
        if self.default_number:
            self.record_default(batch, len(batch.txids))
            self._default_from_slot = 0

    def _record_span(self, batch: EntryBatch, span: FrameSpan) -> None:
        self._active[span.producer_number].next_sequence += span.records
        if batch.producer_section is None:
            batch.producer_section = EntryProducers()
        batch.producer_section.spans.append(span)

    def batches_from(
        self, number: int, sequence: int, on_done: Callable[[SequencedBatch], object]
    ) -> list[SequencedBatch]:
        """Return the known frames of a producer from ``sequence`` on, ascending, as new objects.

        Stored frames are finished in this call, so ``on_done`` is called for them. Raises as `next_sequence`.
        """
        active, batches = self._require_active(number), list[SequencedBatch]()
        for kept_frame in self.table.rows[number].stored_frames:
            if kept_frame.sequence >= sequence:
                duplicate = SequencedBatch(
                    kept_frame.records, on_done, producer=number, sequence=kept_frame.sequence
                )
                duplicate.finish_stored(kept_frame.first)
                batches.append(duplicate)
        for unacked in active.unacked_batches:
            if unacked.sequence >= sequence:
                duplicate = SequencedBatch(
                    unacked.records, on_done, producer=number, sequence=unacked.sequence
                )
                duplicate.share_outcome(unacked)
                batches.append(duplicate)
        return batches

    def _require_active(self, number: int) -> _ActiveProducer:
        active = self._active.get(number)
        if active is not None:
            return active
        if number in self._fenced:
            raise ProducerFenced(
                f'log "{self._log_name}": producer {number} was fenced, because its name was opened again'
            )
        raise self._forgotten_error(str(number))

    def _forgotten_error(self, who: str) -> ProducerForgotten:
        return ProducerForgotten(
            f'log "{self._log_name}": producer {who} is unknown or was evicted. This call stored nothing, '
            "earlier unacknowledged records may be stored. Open the producer by its name."
        )

    def window_blocker(self, number: int) -> EntryBatch | None:
        """Return the batch to wait for if too many frames of a producer are in flight. Otherwise return None.

        Raises as `next_sequence`.
        """
        unacked = self._require_active(number).unacked_batches
        return unacked[0].batch_and_slot[0] if len(unacked) >= FRAMES_KEPT else None

    # --- openings ---------------------------------------------------------------------------------

    def resume(self, name: str, number: int) -> OpenedProducer:
        """Return a producer that was opened earlier, by this writer or a previous one.

        Raises:
            ProducerFenced: The name was opened again.
            ProducerForgotten: The name or the number is unknown.
        """
        current_number = self._numbers.get(name)
        if current_number is not None and current_number > number and number not in self._active:
            self._fence(number)
        elif current_number != number:
            raise self._forgotten_error(f'"{name}" with the number {number}')
        return OpenedProducer(
            name, number, self._require_active(number).next_sequence, has_stored_records=True
        )

    def open(self, name: str) -> tuple[int, EntryBatch]:
        """Return a new number for a name and the batch that stores the opening.

        The caller sends the batch after all accepted records. The previous producer of the name is fenced
        immediately.

        Raises:
            TooBusy: The log has too many producers, none of which was idle for an hour.
        """
        # The rate of opening one name is not limited.
        old_number = self._numbers.get(name)
        evicted_number = 0
        if old_number is None and len(self._numbers) >= PRODUCERS_MAX:
            evicted_number = self._find_longest_idle()
            del self._numbers[self.table.rows[evicted_number].name]
            del self._active[evicted_number]
        if old_number is not None:
            self._fence(old_number)
            self._active.pop(old_number, None)
        number = self._next_number
        self._next_number += 1
        self._numbers[name] = number
        batch = EntryBatch()
        batch.producer_section = EntryProducers(
            openings=(ProducerOpening(number, name, evicted_number),)
        )
        return number, batch

    def opened(self, name: str, number: int) -> OpenedProducer:
        """Return the producer whose opening is stored.

        Raises:
            ProducerFenced: The name was opened once more since.
        """
        next_sequence = self._require_active(number).next_sequence
        return OpenedProducer(name, number, next_sequence, has_stored_records=next_sequence > 0)

    def _fence(self, number: int) -> None:
        self._fenced[number] = None
        if len(self._fenced) > FENCED_NUMBERS_MAX:
            del self._fenced[next(iter(self._fenced))]

    def _find_longest_idle(self) -> int:
        candidates = [
            (row.last_ms, row.number)
            for row in self.table.rows.values()
            if row.number != self.default_number
            and (active := self._active.get(row.number)) is not None
            and not active.unacked_batches
        ]
        last_ms, number = min(candidates, default=(self.clock_ms, 0))
        if self.clock_ms - last_ms < IDLE_MS:
            raise TooBusy(
                f'log "{self._log_name}" has {PRODUCERS_MAX} producers, and none was idle for '
                f"{IDLE_MS // 60_000} min"
            )
        return number

    # --- sent and stored entries ------------------------------------------------------------------

    def snapshot(self, in_flight: Iterable[EntryBatch]) -> EntryBatch:
        """Return a batch with the stored state and the frames sent to this ledger since, which are
        ``in_flight``.

        The callbacks of a finished batch can write and so call this method. The batch is then still in
        flight, but done, and the table already includes it.
        """
        table = self.table.copy()
        for batch in in_flight:
            if (entry_section := batch.producer_section) is not None and not batch.is_done:
                table.apply_entry(
                    entry_section.spans,
                    entry_section.openings,
                    batch.segment,
                    batch.entry,
                    entry_section.clock_ms,
                )
        snapshot_batch = EntryBatch()
        snapshot_batch.producer_section = EntryProducers(table=table)
        return snapshot_batch

    def encode_section(self, batch: EntryBatch, entry: int, snapshot_entry: int) -> bytes:
        """Return the producer section of an entry that is sent now."""
        clock_ms, entry_section = self.clock_ms, batch.producer_section
        if entry_section is None:
            return encode_section(snapshot_entry, clock_ms, self._next_number)
        entry_section.clock_ms = clock_ms
        return encode_section(
            snapshot_entry if entry_section.table is None else entry,
            clock_ms,
            self._next_number,
            spans=entry_section.spans,
            openings=entry_section.openings,
            table=entry_section.table,
        )

    def apply_confirmed(self, batch: EntryBatch) -> None:
        """Apply a durable batch to the stored state, before the batch is finished."""
        entry_section = batch.producer_section
        if entry_section is None:
            return
        self.table.apply_entry(
            entry_section.spans,
            entry_section.openings,
            batch.segment,
            batch.entry,
            entry_section.clock_ms,
        )
        for span in entry_section.spans:
            active = self._active.get(span.producer_number)
            if (
                active is not None
                and active.unacked_batches
                and active.unacked_batches[0].sequence == span.sequence
            ):
                active.unacked_batches.popleft()
        for opened in entry_section.openings:
            if self._numbers.get(opened.name) == opened.number:
                row = self.table.rows[opened.number]
                self._active[opened.number] = _ActiveProducer(row.next_sequence)


def check_sequence(sequence: object) -> None:
    """Raise `InvalidRequest` for an invalid sequence.

    A negative number must not be treated as a frame that was stored long ago.
    """
    check_whole("sequence", sequence, 0, NUMBER_MAX)


def check_producer_name(name: object) -> str:
    """Return the name, or raise `InvalidRequest` unless it is text of 1 to 255 bytes."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise InvalidRequest(
            f"a producer name must be text of 1 to {NAME_BYTES_MAX} bytes, got {quoted(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"a producer name must be valid UTF-8, got {quoted(name)}") from None
    return name
