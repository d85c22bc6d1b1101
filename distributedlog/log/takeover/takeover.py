"""Opening a log for writing: make the end of the previous writer certain, then begin a segment (H12).

The order is fixed: (1) the epoch is raised by compare-and-set (`lock.claim`), from when on no earlier
writer can roll or close; (2) every segment in progress in that very state is recovered, ascending; (3) each
is closed under our epoch; (4) a new segment is opened; (5) only then is anything written.
The same two steps, close and open, serve a roll.
"""

from collections.abc import Callable
from dataclasses import replace

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Put, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    EntriesLost,
    LogNotFound,
    VersionConflict,
)
from ..format.control_record import last_record
from ..format.producer_section import notes_of
from ..format.producer_table import ProducerTable
from ..format.record import EntryHeader, decode_header
from ..interfaces.segment_store import (
    ClosedLedger,
    NewSegmentLedger,
    SegmentEntry,
    SegmentEntryReader,
    SegmentEntryStore,
)
from ..model.log_keys import purge_key, segment_key
from ..model.log_state import LogState
from ..model.segment_record import EMPTY_END, UNKNOWN, SegmentEnd, SegmentRecord
from ..model.writer_log_state import WriterLogState
from ..read.segment_reader import read_header
from ..services.log_context import LogContext
from .producer_recovery import replay

CREATE_ATTEMPTS = 5
"""A ledger's creation may meet a bookie that has just gone: choose again this often."""


async def read_segment(metadata: Metadata, state: LogState, segment: int) -> SegmentRecord:
    """A segment's record. Raises `LogNotFound` when it is not there (any more)."""
    found = await metadata.get(segment_key(state.log_id, segment))
    if found is None:
        raise LogNotFound(f'log "{state.name}" has no segment {segment}')
    return SegmentRecord.decode(found.value)


async def recover_segments(
    owned: WriterLogState, ledgers: SegmentEntryStore, *, closed_ms: int
) -> int:
    """Recover and close all that a previous writer left in progress; how many it were.

    Raises `RecoveryIncomplete` when too few bookies answer: then nothing was decided (G3), and the same
    call may work later.
    """
    left = list(owned.state.in_progress)
    for segment in left:
        record = await read_segment(owned.metadata, owned.state, segment)
        ledger = await ledgers.recover(record.ledger_id)
        end = await read_end(ledgers, record, ledger)
        await close_segment(owned, record, end, closed_ms=closed_ms)
    return len(left)


async def recover_patiently(
    context: LogContext, owned: WriterLogState, *, timeout_s: float
) -> None:
    """As `recover_segments`, when it is this log's turn, and again for ``timeout_s`` while that may help."""
    await context.turns.patiently(
        lambda: recover_segments(owned, context.ledgers, closed_ms=context.wall_ms()),
        name=owned.state.name,
        timeout_s=timeout_s,
    )


async def take_over(
    context: LogContext, owned: WriterLogState
) -> tuple[tuple[SegmentRecord, NewSegmentLedger], ProducerTable | None]:
    """Recover what earlier writers left, open a segment; tries for ``recover_timeout_s``.

    With the segment: the log's producers, None where it has none.

    Raises `RecoveryIncomplete`, `NotEnoughBookies`, `WriterFenced`, `LogNotFound`, `CorruptData`.
    """
    opening: SegmentOpening | None = None
    table: ProducerTable | None = None

    async def attempt() -> tuple[SegmentRecord, NewSegmentLedger]:
        nonlocal opening, table
        if opening is None:  # else an earlier try may have registered what is ours
            await recover_segments(owned, context.ledgers, closed_ms=context.wall_ms())
            # Only now is it certain where the log ends, and so what it says of producers (H61).
            table = await replay(owned.metadata, context.ledgers, owned.state)
            opening = SegmentOpening(owned, context.ledgers, context.wall_ms())
        return await opening.open()

    first = await context.turns.patiently(
        attempt, name=owned.state.name, timeout_s=context.options.recover_timeout_s
    )
    return first, table


async def read_end(
    ledgers: SegmentEntryStore, record: SegmentRecord, ledger: ClosedLedger
) -> SegmentEnd:
    """What a closed ledger holds, from its last entries and its first ones.

    The last entry counts the records before it; where it holds none itself, it says which entry does.
    """
    last_entry = UNKNOWN if ledger.last_entry is None else ledger.last_entry
    length = ledger.length or 0
    if last_entry < 0:
        return EMPTY_END
    reader = await ledgers.open(record.ledger_id)
    try:
        return await _read_end(reader, record, last_entry, length)
    finally:
        reader.close()


async def _read_end(
    reader: SegmentEntryReader, record: SegmentRecord, last_entry: int, length: int
) -> SegmentEnd:
    (found,) = await reader.read(last_entry, last_entry, bytes_max=1)
    end = await _records_before(reader, record, found, length)
    notes = notes_of(last_entry, found.payload)
    return replace(end, producers=notes is not None and notes.snapshot_entry >= 0)


async def _records_before(
    reader: SegmentEntryReader, record: SegmentRecord, found: SegmentEntry, length: int
) -> SegmentEnd:
    """What there is up to and with the last entry, which is ``found``."""
    last_entry = found.entry
    user_entry, last = last_entry, decode_header(found.payload)
    records, time_ms = last.records_through, last.wall_ms
    if last.control and records == 0:
        return SegmentEnd(last_entry, length, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, time_ms)
    said = last_record(last_entry, found.payload, last) if last.control else None
    if said is not None:  # however many control entries there are
        return SegmentEnd(
            last_entry, length, records, said.first_txid, last.max_txid, said.entry, said.slot, time_ms
        )  # fmt: skip
    while last.control and user_entry > 0:
        user_entry -= 1
        last = await read_header(reader, user_entry)
    if last.control or last.records_through != records:
        raise CorruptData(
            f"ledger {record.ledger_id}: entry {last_entry} counts {records} records before its end, "
            f"entry {user_entry} counts {last.records_through}"
        )
    _, first = await _first_left(reader, 0, user_entry)
    if first.control:  # thousands may be, before the first record: by halves
        low, high = 1, user_entry
        while low < high:
            middle = (low + high) // 2
            at, header = await _first_left(reader, middle, high)
            low, high = (at + 1, high) if header.records_through == 0 else (low, middle)
        _, first = await _first_left(reader, low, user_entry)
    return SegmentEnd(
        last_entry, length, records, first.first_txid, last.max_txid, user_entry, last.count - 1, time_ms
    )  # fmt: skip


async def _first_left(reader: SegmentEntryReader, entry: int, last: int) -> tuple[int, EntryHeader]:
    """The first from ``entry`` to ``last`` that nobody has declared lost, and its header."""
    while True:
        try:
            return entry, await read_header(reader, entry)
        except EntriesLost:  # said by the ledger's record: no bookie is asked for the next one
            if entry == last:
                raise
            entry += 1


async def close_segment(
    owned: WriterLogState,
    record: SegmentRecord,
    end: SegmentEnd,
    *,
    closed_ms: int,
    ledger_share: Callable[[], Transaction] | None = None,
    then: Callable[[LogState], LogState] | None = None,
) -> None:
    """Close the oldest segment in progress in the log's metadata, and number the next one.

    ``ledger_share`` closes its ledger in the same transaction, where it is not closed already. ``then``
    is a further change of the state (the writer goes), with the close of the last segment in progress: where
    another one turns out to be, it is left out. Raises as `WriterLogState.change`.
    """
    number = record.segment
    if record.closed:  # by an earlier try of ours, or by who fenced us: the state says which
        await owned.refresh()

    def apply(state: LogState) -> LogState:
        if state.open_from <= number:
            state = state.with_closed(
                number, record.with_end(end, state, closed_ms=closed_ms).added
            )
            if end.producers:
                state = state.with_producers_in(number)
        return state if then is None or state.in_progress else then(state)

    async def share(state: LogState) -> Transaction:
        if state.open_from > number:
            return Transaction()  # an earlier try was done, and `then` is left
        closed = record.with_end(end, state, closed_ms=closed_ms)
        puts = [Put(segment_key(state.log_id, number), closed.encode())]
        if number < state.last_segment:
            # Read here, at each try: its registration may have come in a moment ago.
            following = await read_segment(owned.metadata, state, number + 1)
            numbered = following.numbered(state.with_closed(number, closed.added))
            puts.append(Put(segment_key(state.log_id, number + 1), numbered.encode()))
        if end.producers and 0 < state.producers <= state.truncated_to.segment:
            puts.append(Put(purge_key(state.log_id), b""))  # what was kept for its producers may go
        own = Transaction((), tuple(puts))
        return own if ledger_share is None else own + ledger_share()

    await owned.change(apply, done=lambda state: apply(state) == state, share=share)


class SegmentOpening:
    """The next segment, on its way: a ledger that is chosen, created and registered in one transaction.

    Kept until its outcome is known: after an error the same opening is asked again, so that a creation
    that went through unseen is found and used, not left behind.
    """

    def __init__(self, owned: WriterLogState, ledgers: SegmentEntryStore, created_ms: int) -> None:
        self._owned = owned
        self._ledgers = ledgers
        self._created_ms = created_ms
        self._prepared: NewSegmentLedger | None = None
        self._tried: dict[int, NewSegmentLedger] = {}
        self.segment = owned.state.last_segment + 1

    async def open(self) -> tuple[SegmentRecord, NewSegmentLedger]:
        """The segment and its ledger, both stored. Raises `NotEnoughBookies`, and as
        `WriterLogState.change`."""
        for attempt in range(CREATE_ATTEMPTS):
            if self._prepared is None:
                self._prepared = await self._ledgers.prepare(
                    custom={"log": self._owned.state.name.encode()},
                    owner=(self._owned.log_id, self.segment),
                    quorums=self._owned.state.quorums,
                )
                self._tried[self._prepared.ledger_id] = self._prepared
            try:
                await self._register(self._prepared)
            except VersionConflict:
                self._prepared = None  # a bookie went, or the id is taken: choose again
                if attempt + 1 == CREATE_ATTEMPTS:
                    raise
                continue
            record = await read_segment(self._owned.metadata, self._owned.state, self.segment)
            # Of several tries it may be an earlier one's, which came in late.
            assert record.ledger_id in self._tried, "one epoch opens a segment once"
            return record, self._tried[record.ledger_id]
        raise AssertionError("the last attempt has raised")

    async def _register(self, prepared: NewSegmentLedger) -> None:
        async def share(state: LogState) -> Transaction:
            record = SegmentRecord(self.segment, prepared.ledger_id, state.epoch, self._created_ms)
            if not state.in_progress:  # else its number follows with that one's close (H11)
                record = record.numbered(state)
            put = Put(segment_key(state.log_id, self.segment), record.encode())
            return Transaction((), (put,)) + prepared.transaction()

        await self._owned.change(
            LogState.with_segment,
            done=lambda state: state.last_segment >= self.segment,
            share=share,
        )
