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
from ..format.producer_section import encode
from ..format.producer_table import (
    FRAMES_KEPT,
    NAME_BYTES_MAX,
    PRODUCERS_MAX,
    Carried,
    Open,
    ProducerTable,
    Span,
)
from .entry_batch import EntryBatch
from .sequenced_batch import SequencedBatch

IDLE_MS = 3_600_000
"""Of the log's clock: who was idle for so long may be forgotten for another one."""
FENCED_KEPT = 10_000
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
    FULL = "the next one, and too many are on their way"
    LET_GO = "stored, long ago"


class _Live:
    """A producer that may send."""

    __slots__ = ("frames", "next_sequence")

    def __init__(self, next_sequence: int) -> None:
        self.next_sequence = next_sequence
        """After what was taken."""
        self.frames: deque[SequencedBatch] = deque()
        """On their way, ascending."""


class ProducerStateManager:
    """The producers of one log that is open for writing. Nothing waits here."""

    def __init__(self, table: ProducerTable, log_name: str) -> None:
        self.table = table
        """What is stored."""
        self.own = 0
        """The number of who writes the records that come without a frame; 0: nobody."""
        self._log_name = log_name
        self._since, self._before_ms = trio.current_time(), table.clock_ms
        self._next_number = table.next_number
        self._live = {row.number: _Live(row.next_sequence) for row in table.rows.values()}
        self._numbers = {row.name: row.number for row in table.rows.values()}
        """As they were taken: of names whose opening is not stored yet, too."""
        self._fenced: dict[int, None] = {}
        self._own_slot = (
            0  # of the open batch: from here on its records are its owner's, and not noted
        )

    @property
    def clock_ms(self) -> int:
        """The log's: how long it was being written, in sum."""
        return self._before_ms + int((trio.current_time() - self._since) * 1000)

    # --- what is taken ----------------------------------------------------------------------------

    def next_sequence(self, number: int) -> int:
        """How many records of a producer were taken. Raises `ProducerFenced`, `ProducerForgotten`."""
        return self._of(number).next_sequence

    def meet(
        self, number: int, sequence: int, records: int
    ) -> SequenceCheck | SequencedBatch | DLSN:
        """What a frame is: new, or its first copy on its way, or where that is.

        Raises `ProducerFenced`, `ProducerForgotten`; `InvalidRequest` for one that leaves a gap or does not
        have the borders that it had before.
        """
        live = self._of(number)
        if sequence == live.next_sequence:
            return SequenceCheck.NEW if len(live.frames) < FRAMES_KEPT else SequenceCheck.FULL
        if sequence > live.next_sequence:
            raise InvalidRequest(
                f'log "{self._log_name}": producer {number} sends from {sequence} on, and '
                f"{live.next_sequence} is next"
            )
        stored = self.table.rows[number]
        for frame in live.frames:
            if (frame.sequence, frame.records) == (sequence, records):
                return frame
        for one in stored.kept:
            if (one.sequence, one.records) == (sequence, records):
                return one.first
        oldest = stored.kept[0].sequence if stored.kept else stored.next_sequence
        if sequence + records <= oldest:
            return SequenceCheck.LET_GO
        raise InvalidRequest(
            f'log "{self._log_name}": producer {number} sends {records} records from {sequence} on, of which '
            f"some were sent in other frames; {live.next_sequence} is next"
        )

    def took(self, batch: EntryBatch, slot: int, frame: SequencedBatch) -> None:
        """A new frame is in a batch."""
        if self.own:
            self.note_own(batch, slot)
            self._own_slot = slot + frame.records
        self._note(batch, Span(frame.producer, frame.sequence, slot, frame.records))
        self._of(frame.producer).frames.append(frame)

    def note_own(self, batch: EntryBatch, end: int) -> None:
        """The records of a batch up to a slot were taken, those that no frame holds from the `own` one."""
        slot, self._own_slot = self._own_slot, end
        if end > slot:
            self._note(batch, Span(self.own, self.next_sequence(self.own), slot, end - slot))

    def closed(self, batch: EntryBatch) -> None:
        """The open batch takes no more."""
        if self.own:
            self.note_own(batch, len(batch.txids))
            self._own_slot = 0

    def _note(self, batch: EntryBatch, span: Span) -> None:
        self._live[span.number].next_sequence += span.records
        if batch.carried is None:
            batch.carried = Carried()
        batch.carried.spans.append(span)

    def frames_from(
        self, number: int, sequence: int, on_done: Callable[[SequencedBatch], object]
    ) -> list[SequencedBatch]:
        """What is known of a producer's frames from there on, ascending, each with an outcome of its own:
        ``on_done`` is called for those that are stored in here. Raises as `next_sequence`."""
        live, found = self._of(number), list[SequencedBatch]()
        for one in self.table.rows[number].kept:
            if one.sequence >= sequence:
                frame = SequencedBatch(one.records, on_done, producer=number, sequence=one.sequence)
                frame.stored_at(one.first)
                found.append(frame)
        for first in live.frames:
            if first.sequence >= sequence:
                frame = SequencedBatch(
                    first.records, on_done, producer=number, sequence=first.sequence
                )
                frame.shares(first)
                found.append(frame)
        return found

    def _of(self, number: int) -> _Live:
        live = self._live.get(number)
        if live is not None:
            return live
        if number in self._fenced:
            raise ProducerFenced(
                f'log "{self._log_name}": producer {number} was opened by another one, under the same name'
            )
        raise self._forgotten(str(number))

    def _forgotten(self, who: str) -> ProducerForgotten:
        return ProducerForgotten(
            f'log "{self._log_name}": nothing is known of producer {who} (any more): this call stored '
            "nothing; what was not acknowledged before may be stored. Open it by its name"
        )

    def first_on_way(self, number: int) -> EntryBatch | None:
        """What is to be waited for where too many of a producer's frames are on their way; else None.

        Raises as `next_sequence`.
        """
        frames = self._of(number).frames
        return frames[0].place[0] if len(frames) >= FRAMES_KEPT else None

    # --- openings ---------------------------------------------------------------------------------

    def resume(self, name: str, number: int) -> OpenedProducer:
        """A producer that was opened before, by this writer or an earlier one: it goes on.

        Raises `ProducerFenced`, `ProducerForgotten`.
        """
        now = self._numbers.get(name)
        if now is not None and now > number and number not in self._live:
            self._fence(number)
        elif now != number:
            raise self._forgotten(f'"{name}" with the number {number}')
        return OpenedProducer(name, number, self._of(number).next_sequence, known=True)

    def open(self, name: str) -> tuple[int, EntryBatch]:
        """A new number for a name, and the batch that says so, to be sent after all that was taken. Who had
        the name is fenced from now on.

        Raises `TooBusy` where there are too many, none of them idle for an hour.
        """
        # The rate of opening one name is not limited.
        before = self._numbers.get(name)
        forgets = 0
        if before is None and len(self._numbers) >= PRODUCERS_MAX:
            forgets = self._longest_idle()
            del self._numbers[self.table.rows[forgets].name]
            del self._live[forgets]
        if before is not None:
            self._fence(before)
            self._live.pop(before, None)
        number = self._next_number
        self._next_number += 1
        self._numbers[name] = number
        batch = EntryBatch()
        batch.carried = Carried(opens=(Open(number, name, forgets),))
        return number, batch

    def opened(self, name: str, number: int) -> OpenedProducer:
        """The opening is stored. Raises `ProducerFenced` where the next one was faster."""
        next_sequence = self._of(number).next_sequence
        return OpenedProducer(name, number, next_sequence, known=next_sequence > 0)

    def _fence(self, number: int) -> None:
        self._fenced[number] = None
        if len(self._fenced) > FENCED_KEPT:
            del self._fenced[next(iter(self._fenced))]

    def _longest_idle(self) -> int:
        idle = [
            (row.last_ms, row.number)
            for row in self.table.rows.values()
            if row.number != self.own
            and (live := self._live.get(row.number)) is not None
            and not live.frames
        ]
        last_ms, number = min(idle, default=(self.clock_ms, 0))
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
            if (carried := batch.carried) is not None and not batch.done:
                table.take(
                    carried.spans, carried.opens, batch.segment, batch.entry, carried.clock_ms
                )
        found = EntryBatch()
        found.carried = Carried(table=table)
        return found

    def section(self, batch: EntryBatch, entry: int, snapshot_entry: int) -> bytes:
        """What the entry of a batch says, which is sent now."""
        clock_ms, carried = self.clock_ms, batch.carried
        if carried is None:
            return encode(snapshot_entry, clock_ms, self._next_number)
        carried.clock_ms = clock_ms
        return encode(
            snapshot_entry if carried.table is None else entry,
            clock_ms,
            self._next_number,
            spans=carried.spans,
            opens=carried.opens,
            table=carried.table,
        )

    def confirm(self, batch: EntryBatch) -> None:
        """A batch is durable; before anybody is told."""
        carried = batch.carried
        if carried is None:
            return
        self.table.take(carried.spans, carried.opens, batch.segment, batch.entry, carried.clock_ms)
        for span in carried.spans:
            live = self._live.get(span.number)
            if live is not None and live.frames and live.frames[0].sequence == span.sequence:
                live.frames.popleft()
        for opened in carried.opens:
            if self._numbers.get(opened.name) == opened.number:
                row = self.table.rows[opened.number]
                self._live[opened.number] = _Live(row.next_sequence)


def check_sequence(sequence: object) -> None:
    """Raise `InvalidRequest` unless it is one: a number below 0 must not pass for one stored long ago."""
    check_whole("sequence", sequence, 0, NUMBER_MAX)


def check_name(name: object) -> str:
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
