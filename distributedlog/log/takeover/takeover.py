"""Open a log for writing: determine the end of the previous writer, then start a segment (H12).

The order is fixed:

1. Raise the epoch by compare-and-set (`acquire_log_lock`). Afterwards no earlier writer can roll or close a
   segment.
2. Recover every segment in progress in that state, in ascending order.
3. Close each of them under the new epoch.
4. Open a new segment.
5. Only then write the first record.

A roll uses the same two steps, close and open.
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
from ..format.control_record import decode_last_record
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
"""The number of attempts to create a ledger. An attempt fails if a chosen bookie has just become
unavailable."""


async def read_segment(metadata: Metadata, state: LogState, segment: int) -> SegmentRecord:
    """Read the record of a segment.

    Raises:
        LogNotFound: The record does not exist.
    """
    stored_segment = await metadata.get(segment_key(state.log_id, segment))
    if stored_segment is None:
        raise LogNotFound(f'log "{state.name}" has no segment {segment}')
    return SegmentRecord.decode(stored_segment.value)


async def recover_segments(
    writer_state: WriterLogState, ledgers: SegmentEntryStore, *, closed_ms: int
) -> int:
    """Recover and close all segments that a previous writer left in progress, and return their number.

    Raises:
        RecoveryIncomplete: Too few bookies answered. Nothing was decided (G3), and a later call can succeed.
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
    """Run `recover_segments` when it is this log's turn, and retry it for ``timeout_s``."""
    await context.recovery_semaphore.run_with_retries(
        lambda: recover_segments(writer_state, context.ledgers, closed_ms=context.clock_ms()),
        name=writer_state.state.name,
        timeout_s=timeout_s,
    )


async def recover_and_open(
    context: LogContext, writer_state: WriterLogState
) -> tuple[tuple[SegmentRecord, NewSegmentLedger], ProducerTable | None]:
    """Recover the segments of earlier writers and open a new one, with retries for ``recover_timeout_s``.

    Returns:
        The new segment with its ledger, and the log's producers. The producers are None if the log never had
        one.
    Raises:
        RecoveryIncomplete: Too few bookies answered in time.
        NotEnoughBookies: No ledger could be created in time.
        WriterFenced: Another writer has taken over the log.
        LogNotFound: The log was deleted.
        CorruptData: An entry at the end of the log is damaged.
    """
    opening: SegmentOpening | None = None
    table: ProducerTable | None = None

    async def attempt() -> tuple[SegmentRecord, NewSegmentLedger]:
        nonlocal opening, table
        if opening is None:  # otherwise an earlier attempt may have registered the new segment
            await recover_segments(writer_state, context.ledgers, closed_ms=context.clock_ms())
            # Only now the end of the log is certain, and so are its producers (H61).
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
    """Return the end of a closed ledger, read from its first and last entries.

    The last entry counts the records before it. If it is a control entry, which has no records, it has the
    position of the last record.

    Raises:
        CorruptData: An entry is damaged, or the counts of two entries contradict each other.
        EntriesLost: An entry at the end is declared lost.
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
    end = await _end_without_producers(reader, record, last_read, length)
    section = read_producer_section(last_entry, last_read.payload)
    return replace(end, has_producer_snapshot=section is not None and section.snapshot_entry >= 0)


async def _end_without_producers(
    reader: SegmentEntryReader, record: SegmentRecord, last_entry_read: SegmentEntry, length: int
) -> SegmentEnd:
    """Return the end of a segment, without the producers' snapshot.

    The last entry has the counts. The txid of the first record comes from the first entry with records. In
    the search for it, entries that are declared lost are skipped. A damaged entry raises `CorruptData`.
    """
    last_entry = last_entry_read.entry
    last_record_entry, last_header = last_entry, decode_header(last_entry_read.payload)
    records, time_ms = last_header.records_through, last_header.written_ms
    if last_header.is_control and records == 0:
        return SegmentEnd(last_entry, length, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, time_ms)
    stored_last = (
        decode_last_record(last_entry, last_entry_read.payload, last_header)
        if last_header.is_control
        else None
    )
    if stored_last is not None:
        # A control entry needs no search, and its txid cannot break an order: like that of an entry with
        # records, it is the greatest of the segment so far, of all records before the entry. They are stored
        # if this entry is, because entries are stored in order. A program of version 0.1 stored the txid of
        # the last record, in both kinds of entries. It is the greatest one too, except in a log that is not
        # searchable (`LogState.is_txid_searchable`). Retention and searches by time use ``written_ms``,
        # which a writer never decreases.
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
    # The last entry has records, or it is a control entry without the position of the last record.
    while last_header.is_control and last_record_entry > 0:
        last_record_entry -= 1
        last_header = await read_header(reader, last_record_entry)
    if last_header.is_control or last_header.records_through != records:
        raise CorruptData(
            f"ledger {record.ledger_id}: entry {last_entry} counts {records} records before its end, "
            f"entry {last_record_entry} counts {last_header.records_through}"
        )
    _, first = await _first_header_not_lost(reader, 0, last_record_entry)
    if first.is_control:
        # An idle writer may have added thousands before the first record. Binary search for the first entry
        # that counts a record.
        low, high = 1, last_record_entry
        while low < high:
            middle = (low + high) // 2
            middle_entry, header = await _first_header_not_lost(reader, middle, high)
            low, high = (middle_entry + 1, high) if header.records_through == 0 else (low, middle)
        _, first = await _first_header_not_lost(reader, low, last_record_entry)
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


async def _first_header_not_lost(
    reader: SegmentEntryReader, entry: int, last: int
) -> tuple[int, EntryHeader]:
    """Return the first entry from ``entry`` to ``last`` that is not declared lost, and its header."""
    while True:
        try:
            return entry, await read_header(reader, entry)
        except EntriesLost:  # from the ledger's record, so no bookie is queried
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

    Args:
        ledger_close_ops: Operations that close the ledger in the same transaction. None if it is closed
            already.
        final_change: Another change of the state, for example the release of the log, together with the close
            of the last segment in progress. It is left out if another segment is in progress.
    Raises:
        DistributedLogError: As for `WriterLogState.change`.
    """
    number = record.segment
    if record.closed:  # by an earlier attempt or by a later writer, which the state shows
        await writer_state.refresh()

    def apply(state: LogState) -> LogState:
        if state.first_open_segment <= number:
            state = state.with_closed(
                number, record.with_end(end, state, closed_ms=closed_ms).totals
            )
            if end.has_producer_snapshot:
                state = state.with_producer_snapshot(number)
        return state if final_change is None or state.in_progress else final_change(state)

    async def extra_ops(state: LogState) -> Transaction:
        if state.first_open_segment > number:
            return Transaction()  # an earlier attempt succeeded, and only the final change remains
        closed_record = record.with_end(end, state, closed_ms=closed_ms)
        puts = [Put(segment_key(state.log_id, number), closed_record.encode())]
        if number < state.last_segment:
            # Read at each attempt, because its registration may be very recent.
            next_record = await read_segment(writer_state.metadata, state, number + 1)
            numbered_next = next_record.with_start(state.with_closed(number, closed_record.totals))
            puts.append(Put(segment_key(state.log_id, number + 1), numbered_next.encode()))
        if (
            end.has_producer_snapshot
            and 0 < state.producer_snapshot_segment <= state.truncated_to.segment
        ):
            puts.append(Put(purge_key(state.log_id), b""))  # deletes older snapshots
        segment_ops = Transaction((), tuple(puts))
        return segment_ops if ledger_close_ops is None else segment_ops + ledger_close_ops()

    await writer_state.change(
        apply, is_done=lambda state: apply(state) == state, extra_ops=extra_ops
    )


class SegmentOpening:
    """Creates the next segment: a ledger that is chosen, created and registered in one transaction.

    The object is kept until the outcome is known. After an error the caller calls `open` again, so that a
    creation that succeeded without an answer is used.
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
        """Return the segment and its ledger, both stored.

        Raises:
            NotEnoughBookies: Too few bookies are available.
            DistributedLogError: As for `WriterLogState.change`.
        """
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
                self._prepared = None  # a bookie became unavailable, or the ledger ID is used
                if attempt + 1 == CREATE_ATTEMPTS:
                    raise
                continue
            record = await read_segment(
                self._writer_state.metadata, self._writer_state.state, self.segment
            )
            # If there were several attempts, an earlier one may have taken effect late.
            assert record.ledger_id in self._prepared_ledgers, "one epoch opens a segment once"
            return record, self._prepared_ledgers[record.ledger_id]
        raise AssertionError("the last attempt has raised")

    async def _register(self, prepared: NewSegmentLedger) -> None:
        async def extra_ops(state: LogState) -> Transaction:
            record = SegmentRecord(self.segment, prepared.ledger_id, state.epoch, self._created_ms)
            if not state.in_progress:  # otherwise the close of that segment numbers this one (H11)
                record = record.with_start(state)
            put = Put(segment_key(state.log_id, self.segment), record.encode())
            return Transaction((), (put,)) + prepared.create_ops()

        await self._writer_state.change(
            LogState.with_segment,
            is_done=lambda state: state.last_segment >= self.segment,
            extra_ops=extra_ops,
        )
