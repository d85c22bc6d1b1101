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
from ..format.producer_section import read_producer_section
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
from .producer_recovery import recover_producers

CREATE_ATTEMPTS = 5
"""A ledger's creation may meet a bookie that has just gone: choose again this often."""


async def read_segment(metadata: Metadata, state: LogState, segment: int) -> SegmentRecord:
    """A segment's record. Raises `LogNotFound` when it is not there (any more)."""
    stored_segment = await metadata.get(segment_key(state.log_id, segment))
    if stored_segment is None:
        raise LogNotFound(f'log "{state.name}" has no segment {segment}')
    return SegmentRecord.decode(stored_segment.value)


async def recover_segments(
    writer_state: WriterLogState, ledgers: SegmentEntryStore, *, closed_ms: int
) -> int:
    """Recover and close all that a previous writer left in progress; how many it were.

    Raises `RecoveryIncomplete` when too few bookies answer: then nothing was decided (G3), and the same
    call may work later.
    """
    unclosed = list(writer_state.state.in_progress)
    for segment in unclosed:
        record = await read_segment(writer_state.metadata, writer_state.state, segment)
        ledger = await ledgers.recover(record.ledger_id)
        end = await read_end(ledgers, record, ledger)
        await close_segment(writer_state, record, end, closed_ms=closed_ms)
    return len(unclosed)


async def recover_with_retry(
    context: LogContext, writer_state: WriterLogState, *, timeout_s: float
) -> None:
    """As `recover_segments`, when it is this log's turn, and again for ``timeout_s`` while that may help."""
    await context.recovery_semaphore.run_with_retries(
        lambda: recover_segments(writer_state, context.ledgers, closed_ms=context.clock_ms()),
        name=writer_state.state.name,
        timeout_s=timeout_s,
    )


async def recover_and_open(
    context: LogContext, writer_state: WriterLogState
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
            await recover_segments(writer_state, context.ledgers, closed_ms=context.clock_ms())
            # Only now is it certain where the log ends, and so what it says of producers (H61).
            table = await recover_producers(
                writer_state.metadata, context.ledgers, writer_state.state
            )
            opening = SegmentOpening(writer_state, context.ledgers, context.clock_ms())
        return await opening.open()

    first_segment = await context.recovery_semaphore.run_with_retries(
        attempt, name=writer_state.state.name, timeout_s=context.options.recover_timeout_s
    )
    return first_segment, table


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
    (last_read,) = await reader.read(last_entry, last_entry, bytes_max=1)
    end = await _records_before(reader, record, last_read, length)
    section = read_producer_section(last_entry, last_read.payload)
    return replace(end, has_producer_snapshot=section is not None and section.snapshot_entry >= 0)


async def _records_before(
    reader: SegmentEntryReader, record: SegmentRecord, last_stored: SegmentEntry, length: int
) -> SegmentEnd:
    """What there is up to and with the last entry, which is ``found``."""
    last_entry = last_stored.entry
    last_record_entry, last_header = last_entry, decode_header(last_stored.payload)
    records, time_ms = last_header.records_through, last_header.written_ms
    if last_header.is_control and records == 0:
        return SegmentEnd(last_entry, length, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, time_ms)
    stored_last = (
        last_record(last_entry, last_stored.payload, last_header)
        if last_header.is_control
        else None
    )
    if stored_last is not None:  # however many control entries there are
        return SegmentEnd(
            last_entry,
            length,
            records,
            stored_last.first_txid,
            last_header.max_txid,
            stored_last.entry,
            stored_last.slot,
            time_ms,
        )
    while last_header.is_control and last_record_entry > 0:
        last_record_entry -= 1
        last_header = await read_header(reader, last_record_entry)
    if last_header.is_control or last_header.records_through != records:
        raise CorruptData(
            f"ledger {record.ledger_id}: entry {last_entry} counts {records} records before its end, "
            f"entry {last_record_entry} counts {last_header.records_through}"
        )
    _, first = await _first_readable_header(reader, 0, last_record_entry)
    if first.is_control:  # thousands may be, before the first record: by halves
        low, high = 1, last_record_entry
        while low < high:
            middle = (low + high) // 2
            middle_entry, header = await _first_readable_header(reader, middle, high)
            low, high = (middle_entry + 1, high) if header.records_through == 0 else (low, middle)
        _, first = await _first_readable_header(reader, low, last_record_entry)
    return SegmentEnd(
        last_entry,
        length,
        records,
        first.first_txid,
        last_header.max_txid,
        last_record_entry,
        last_header.count - 1,
        time_ms,
    )


async def _first_readable_header(
    reader: SegmentEntryReader, entry: int, last: int
) -> tuple[int, EntryHeader]:
    """The first from ``entry`` to ``last`` that nobody has declared lost, and its header."""
    while True:
        try:
            return entry, await read_header(reader, entry)
        except EntriesLost:  # said by the ledger's record: no bookie is asked for the next one
            if entry == last:
                raise
            entry += 1


async def close_segment(
    writer_state: WriterLogState,
    record: SegmentRecord,
    end: SegmentEnd,
    *,
    closed_ms: int,
    ledger_close_ops: Callable[[], Transaction] | None = None,
    final_change: Callable[[LogState], LogState] | None = None,
) -> None:
    """Close the oldest segment in progress in the log's metadata, and number the next one.

    ``ledger_share`` closes its ledger in the same transaction, where it is not closed already. ``then``
    is a further change of the state (the writer goes), with the close of the last segment in progress: where
    another one turns out to be, it is left out. Raises as `WriterLogState.change`.
    """
    number = record.segment
    if record.closed:  # by an earlier try of ours, or by who fenced us: the state says which
        await writer_state.refresh()

    def apply(state: LogState) -> LogState:
        if state.first_open_segment <= number:
            state = state.with_closed(
                number, record.with_end(end, state, closed_ms=closed_ms).totals
            )
            if end.has_producer_snapshot:
                state = state.with_producer_snapshot(number)
        return state if final_change is None or state.in_progress else final_change(state)

    async def share(state: LogState) -> Transaction:
        if state.first_open_segment > number:
            return Transaction()  # an earlier try was done, and `then` is left
        closed_record = record.with_end(end, state, closed_ms=closed_ms)
        puts = [Put(segment_key(state.log_id, number), closed_record.encode())]
        if number < state.last_segment:
            # Read here, at each try: its registration may have come in a moment ago.
            next_record = await read_segment(writer_state.metadata, state, number + 1)
            numbered_next = next_record.with_start(state.with_closed(number, closed_record.totals))
            puts.append(Put(segment_key(state.log_id, number + 1), numbered_next.encode()))
        if (
            end.has_producer_snapshot
            and 0 < state.producer_snapshot_segment <= state.truncated_to.segment
        ):
            puts.append(Put(purge_key(state.log_id), b""))  # what was kept for its producers may go
        segment_ops = Transaction((), tuple(puts))
        return segment_ops if ledger_close_ops is None else segment_ops + ledger_close_ops()

    await writer_state.change(apply, is_done=lambda state: apply(state) == state, extra_ops=share)


class SegmentOpening:
    """The next segment, on its way: a ledger that is chosen, created and registered in one transaction.

    Kept until its outcome is known: after an error the same opening is asked again, so that a creation
    that went through unseen is found and used, not left behind.
    """

    def __init__(
        self, writer_state: WriterLogState, ledgers: SegmentEntryStore, created_ms: int
    ) -> None:
        self._writer_state = writer_state
        self._ledgers = ledgers
        self._created_ms = created_ms
        self._prepared: NewSegmentLedger | None = None
        self._prepared_ledgers: dict[int, NewSegmentLedger] = {}
        self.segment = writer_state.state.last_segment + 1

    async def open(self) -> tuple[SegmentRecord, NewSegmentLedger]:
        """The segment and its ledger, both stored. Raises `NotEnoughBookies`, and as
        `WriterLogState.change`."""
        for attempt in range(CREATE_ATTEMPTS):
            if self._prepared is None:
                self._prepared = await self._ledgers.prepare(
                    custom={"log": self._writer_state.state.name.encode()},
                    owner=(self._writer_state.log_id, self.segment),
                    quorums=self._writer_state.state.quorums,
                )
                self._prepared_ledgers[self._prepared.ledger_id] = self._prepared
            try:
                await self._register(self._prepared)
            except VersionConflict:
                self._prepared = None  # a bookie went, or the id is taken: choose again
                if attempt + 1 == CREATE_ATTEMPTS:
                    raise
                continue
            record = await read_segment(
                self._writer_state.metadata, self._writer_state.state, self.segment
            )
            # Of several tries it may be an earlier one's, which came in late.
            assert record.ledger_id in self._prepared_ledgers, "one epoch opens a segment once"
            return record, self._prepared_ledgers[record.ledger_id]
        raise AssertionError("the last attempt has raised")

    async def _register(self, prepared: NewSegmentLedger) -> None:
        async def share(state: LogState) -> Transaction:
            record = SegmentRecord(self.segment, prepared.ledger_id, state.epoch, self._created_ms)
            if not state.in_progress:  # else its number follows with that one's close (H11)
                record = record.with_start(state)
            put = Put(segment_key(state.log_id, self.segment), record.encode())
            return Transaction((), (put,)) + prepared.create_ops()

        await self._writer_state.change(
            LogState.with_segment,
            is_done=lambda state: state.last_segment >= self.segment,
            extra_ops=share,
        )
