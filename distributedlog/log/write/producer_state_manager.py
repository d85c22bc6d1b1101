"""The producers of a log at its writer: what is stored of each, what is on its way, who may go on.

What is *stored* is a `ProducerTable`, moved on by what is confirmed, in order. What is *taken* is that and
the frames on their way. A frame is taken where it follows what was taken before it; one that was taken before
is answered when its first copy is durable, never earlier (H62). A snapshot, which is sent at a segment's
beginning and then by bytes, holds what is stored and what was sent to this very ledger before it: what was
sent to another one, and was cut off there by a recovery, is no more than taken.
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
    BATCHES_KEPT,
    NAME_BYTES_MAX,
    PRODUCERS_MAX,
    BatchSpan,
    EntryProducers,
    ProducerOpening,
    ProducerTable,
)
from .entry_batch import EntryBatch
from .sequenced_batch import SequencedBatch

IDLE_MS = 3_600_000
"""Of the log's clock: who was idle for so long may be forgotten for another one."""
FENCED_NUMBERS_MAX = 10_000
"""Numbers that were replaced under this writer; of others it is not said by whom."""


@dataclass(frozen=True, slots=True)
class OpenedProducer:
    """A producer, as it was opened."""

    name: str
    number: int
    """Of this opening; it ends the one before."""
    next_sequence: int
    """How many records of it are stored: where its source goes on."""
    known: bool
    """Is anything of the name stored, as far as the log knows? Of one that was forgotten it does not say what
    it had stored; nor is it known when it is opened once more after that, whose answer may have been lost."""


class SequenceCheck(Enum):
    """A frame that neither is on its way nor has a place that is known."""

    NEW = "the next one"
    WINDOW_FULL = "the next one, and too many are on their way"
    EVICTED = "stored, long ago"


class _ActiveProducer:
    """A producer that may send."""

    __slots__ = ("next_sequence", "unacked_batches")

    def __init__(self, next_sequence: int) -> None:
        self.next_sequence = next_sequence
        """After what was taken."""
        self.unacked_batches: deque[SequencedBatch] = deque()
        """On their way, ascending."""


class ProducerStateManager:
    """The producers of one log that is open for writing. Nothing waits here."""

    def __init__(self, table: ProducerTable, log_name: str) -> None:
        self.table = table
        """What is stored."""
        self.default_number = 0
        """The number of who writes the records that come without a frame; 0: nobody."""
        self._log_name = log_name
        self._opened_at, self._clock_base_ms = trio.current_time(), table.clock_ms
        self._next_number = table.next_number
        self._active = {
            row.number: _ActiveProducer(row.next_sequence) for row in table.rows.values()
        }
        self._numbers = {row.name: row.number for row in table.rows.values()}
        """As they were taken: of names whose opening is not stored yet, too."""
        self._fenced: dict[int, None] = {}
        self._default_from_slot = (
            0  # of the open batch: from here on its records are its owner's, and not noted
        )

    @property
    def clock_ms(self) -> int:
        """The log's: how long it was being written, in sum."""
        return self._clock_base_ms + int((trio.current_time() - self._opened_at) * 1000)

    # --- what is taken ----------------------------------------------------------------------------

    def next_sequence(self, number: int) -> int:
        """How many records of a producer were taken. Raises `ProducerFenced`, `ProducerForgotten`."""
        return self._require_active(number).next_sequence

    def check_sequence(
        self, number: int, sequence: int, records: int
    ) -> SequenceCheck | SequencedBatch | DLSN:
        """What a frame is: new, or its first copy on its way, or where that is.

        Raises `ProducerFenced`, `ProducerForgotten`; `InvalidRequest` for one that leaves a gap or does not
        have the borders that it had before.
        """
        active = self._require_active(number)
        if sequence == active.next_sequence:
            return (
                SequenceCheck.NEW
                if len(active.unacked_batches) < BATCHES_KEPT
                else SequenceCheck.WINDOW_FULL
            )
        if sequence > active.next_sequence:
            raise InvalidRequest(
                f'log "{self._log_name}": producer {number} sends from {sequence} on, and '
                f"{active.next_sequence} is next"
            )
        stored = self.table.rows[number]
        for unacked in active.unacked_batches:
            if (unacked.sequence, unacked.records) == (sequence, records):
                return unacked
        for kept_batch in stored.stored_batches:
            if (kept_batch.sequence, kept_batch.records) == (sequence, records):
                return kept_batch.first
        oldest_known = (
            stored.stored_batches[0].sequence if stored.stored_batches else stored.next_sequence
        )
        if sequence + records <= oldest_known:
            return SequenceCheck.EVICTED
        raise InvalidRequest(
            f'log "{self._log_name}": producer {number} sends {records} records from {sequence} on, of which '
            f"some were sent in other frames; {active.next_sequence} is next"
        )

    def record_batch(self, batch: EntryBatch, slot: int, new_batch: SequencedBatch) -> None:
        """A new frame is in a batch."""
        if self.default_number:
            self.record_default(batch, slot)
            self._default_from_slot = slot + new_batch.records
        self._record_span(
            batch, BatchSpan(new_batch.producer, new_batch.sequence, slot, new_batch.records)
        )
        self._require_active(new_batch.producer).unacked_batches.append(new_batch)

    def record_default(self, batch: EntryBatch, end: int) -> None:
        """The records of a batch up to a slot were taken, those that no frame holds from the `own` one."""
        slot, self._default_from_slot = self._default_from_slot, end
        if end > slot:
            self._record_span(
                batch,
                BatchSpan(
                    self.default_number, self.next_sequence(self.default_number), slot, end - slot
                ),
            )

    def close_batch(self, batch: EntryBatch) -> None:
        """The open batch takes no more."""
        if self.default_number:
            self.record_default(batch, len(batch.txids))
            self._default_from_slot = 0

    def _record_span(self, batch: EntryBatch, span: BatchSpan) -> None:
        self._active[span.producer_number].next_sequence += span.records
        if batch.producer_section is None:
            batch.producer_section = EntryProducers()
        batch.producer_section.spans.append(span)

    def batches_from(
        self, number: int, sequence: int, on_done: Callable[[SequencedBatch], object]
    ) -> list[SequencedBatch]:
        """What is known of a producer's frames from there on, ascending, each with an outcome of its own:
        ``on_done`` is called for those that are stored in here. Raises as `next_sequence`."""
        active, batches = self._require_active(number), list[SequencedBatch]()
        for kept_batch in self.table.rows[number].stored_batches:
            if kept_batch.sequence >= sequence:
                duplicate = SequencedBatch(
                    kept_batch.records, on_done, producer=number, sequence=kept_batch.sequence
                )
                duplicate.finish_stored(kept_batch.first)
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
                f'log "{self._log_name}": producer {number} was opened by another one, under the same name'
            )
        raise self._forgotten_error(str(number))

    def _forgotten_error(self, who: str) -> ProducerForgotten:
        return ProducerForgotten(
            f'log "{self._log_name}": nothing is known of producer {who} (any more): this call stored '
            "nothing; what was not acknowledged before may be stored. Open it by its name"
        )

    def window_blocker(self, number: int) -> EntryBatch | None:
        """What is to be waited for where too many of a producer's frames are on their way; else None.

        Raises as `next_sequence`.
        """
        unacked = self._require_active(number).unacked_batches
        return unacked[0].batch_and_slot[0] if len(unacked) >= BATCHES_KEPT else None

    # --- openings ---------------------------------------------------------------------------------

    def resume(self, name: str, number: int) -> OpenedProducer:
        """A producer that was opened before, by this writer or an earlier one: it goes on.

        Raises `ProducerFenced`, `ProducerForgotten`.
        """
        current_number = self._numbers.get(name)
        if current_number is not None and current_number > number and number not in self._active:
            self._fence(number)
        elif current_number != number:
            raise self._forgotten_error(f'"{name}" with the number {number}')
        return OpenedProducer(name, number, self._require_active(number).next_sequence, known=True)

    def open(self, name: str) -> tuple[int, EntryBatch]:
        """A new number for a name, and the batch that says so, to be sent after all that was taken. Who had
        the name is fenced from now on.

        Raises `TooBusy` where there are too many, none of them idle for an hour.
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
        """The opening is stored. Raises `ProducerFenced` where the next one was faster."""
        next_sequence = self._require_active(number).next_sequence
        return OpenedProducer(name, number, next_sequence, known=next_sequence > 0)

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
                f'log "{self._log_name}" has {PRODUCERS_MAX} producers, none of which has been idle for '
                f"{IDLE_MS // 60_000} min"
            )
        return number

    # --- what is sent and stored ------------------------------------------------------------------

    def snapshot(self, in_flight: Iterable[EntryBatch]) -> EntryBatch:
        """A batch that says what is stored, and what was sent to this ledger since: ``in_flight``.

        One that is being told there is `done`, and stored: who is told may write, and so come here.
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
        """What the entry of a batch says, which is sent now."""
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
        """A batch is durable; before anybody is told."""
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
    """Raise `InvalidRequest` unless it is one: a number below 0 must not pass for one stored long ago."""
    check_whole("sequence", sequence, 0, NUMBER_MAX)


def check_producer_name(name: object) -> str:
    """Return it, or raise `InvalidRequest`: a producer's name is text of 1 to 255 bytes."""
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise InvalidRequest(
            f"a producer's name is text of 1 to {NAME_BYTES_MAX} bytes, not {quoted(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"a producer's name is text of UTF-8, not {quoted(name)}") from None
    return name
