"""Fetch the entries of a log from a position on, segment by segment, into a reader's `EntryQueue`.

One task owns the fetch position. It leaves a segment only when all its entries are read, and the segment is
closed or proved to have ended (H11). The fetched entries are limited in bytes. An error that ends the reader
(truncation, deletion, unreadable data) is raised after all entries before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Literal

import trio

from ...ledger.declarations.options import LONG_POLL_S
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DistributedLogError,
    LedgerStateUnknown,
    LogDeleted,
    LogTruncated,
    NoSuchEntry,
    NoSuchLedger,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ..format.dlsn import DLSN
from ..format.record import EntryHeader, decode_columns, decode_header
from ..interfaces.error_boundary import error_boundary, to_internal_error
from ..interfaces.segment_store import SegmentEntry, SegmentEntryReader
from ..model.deleted_log_lookup import explain_deleted
from ..model.position import Position, ReadStart, TimeStart, TxidStart
from ..model.position_outcome import HeldPosition, LogLookup, PositionOutcome, resolve_position
from ..model.segment_record import UNKNOWN, SegmentBegin, SegmentRecord
from ..services.log_context import LogContext
from ..services.log_metrics import ReaderLag
from .entry_queue import EntryQueue, ReadRange, StarvationDetector
from .log_snapshot import take_snapshot
from .next_segment import NextSegment
from .position_lag import lag_meter
from .position_search import find_time, find_txid, held_position_at, last_readable
from .range_reader import RangeReader
from .segment_reader import open_segment
from .skipped_entries import Skipped, SkipRecorder
from .state_watch import StateWatch

SKIP_LOG_INTERVAL_S = 10.0
"""The least time between two log lines about skipped entries of a reader. `LogReader.skipped` has them
all."""

PARALLEL_READ_MIN_BYTES = 32 * 1024 * 1024
"""A reader with a larger backlog reads from several bookies at once."""
PARALLEL_READ_AHEAD_BYTES = 8 * 1024 * 1024
"""The additional bytes that a parallel read fetches ahead, besides ``read_ahead_bytes``."""
PARALLEL_READ_SEGMENTS = 64

END_LOOKUP_INTERVAL_S = 10.0
"""The least time between two lookups of the log's end for the metrics of a reader."""

OnStoredEntry = Callable[[SegmentRecord, SegmentEntry, EntryHeader], None]
"""Receives an entry in its stored form. Not called for control entries."""

log = get_logger("distributedlog.log")


class Fetcher:
    """Fetches the entries of a log from the bookies for one reader. `run` is its task."""

    def __init__(
        self,
        context: LogContext,
        state_watch: StateWatch,
        queue: EntryQueue,
        *,
        on_skipped: Callable[[Skipped], object] | None = None,
        on_stored_entry: OnStoredEntry | None = None,
    ) -> None:
        """Start at the start of the queue.

        Args:
            on_skipped: Called for each range of skipped entries.
            on_stored_entry: Receives the entries in their stored form. The queue then stays empty.
        """
        self.queue = queue
        """The queue that receives the entries, with the range to fetch."""
        self._name = queue.name
        self._last_response_at = queue.last_entry_at
        self._ledger: SegmentEntryReader | None = None
        self._on_skipped = on_skipped
        self._on_stored_entry = on_stored_entry
        self._ledgers = context.ledgers
        self._options = context.options
        self._state_watch = state_watch
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._tail_wait_scope = trio.CancelScope()
        """Around a wait for more entries of the present segment."""
        self._next_segment: NextSegment | None = None
        """The next segment, opened ahead and about to be entered. None if it must be looked up."""
        self._entered_record: SegmentRecord | None = None
        """The record of a segment that was entered before the log's metadata had its first sequence ID."""
        self._proven_before = None if queue.position is None else queue.start
        self._segment_number, self._next_entry = queue.start.segment, queue.start.entry
        self._failing_since: float | None = None
        self._context = context
        self._parallel_read = False
        """Whether the backlog is read from several bookies at once."""
        self._starvation = StarvationDetector()
        """Observes whether one bookie is too slow for the reader."""
        self._sequential_segment = 0
        """A segment that is read from one bookie, because a parallel read of it failed."""
        self._skip_logged_at = -float("inf")
        self._segment_ledger_id = 0
        """The ledger from which the present segment is read."""
        self._segment: SegmentRecord | None = None
        """The record of the segment that was entered last, or that is being opened."""
        self._last_known = (0, -1)
        """The greatest known readable entry: its segment and ID. It is kept while no ledger is open."""
        self._record_bytes = 0.0
        """The mean size of a record in the segment that was read last, with the overhead of its entry."""
        self._left_tail_ms = 0
        """The clock when the last wait at the end of the log ended. Entries that followed are newer."""
        self._opened_ms, self._end_sequence_id = context.clock_ms(), 0
        """The number of records up to the end of the log, as of the last lookup or snapshot."""
        self._end_requested = False
        """Whether the lag was measured while the end of the log was not known."""
        self._end_lookup_at = -inf
        """The time of the next lookup of the end, if it is requested."""
        queue.connect_source(
            last_response=self._latest_response_at,
            stop=self._scope.cancel,
            unfetched=self._unfetched,
        )

    def _latest_response_at(self) -> float:
        return max(
            self._last_response_at, -1.0 if self._ledger is None else self._ledger.last_response_at
        )

    def mark_readable_before(self, dlsn: DLSN) -> None:
        """State that a reader received all records before this position, so that they are confirmed (H24)."""
        if self._proven_before is None or self._proven_before < dlsn:
            self._proven_before = dlsn
            if self._ledger is not None:
                self._record_proven_lac(self._ledger)
                self._tail_wait_scope.cancel()

    def _record_proven_lac(self, ledger: SegmentEntryReader) -> None:
        """Pass the proven position to the ledger.

        A DLSN at which the caller began proves nothing, because users can write one down. Readers read only
        entries that bookies report as confirmed, or up to a closed end (G5). A position proves what was
        delivered (H141).
        """
        proven_before = self._proven_before
        if (
            proven_before is not None
            and proven_before.segment == self._segment_number
            and not ledger.closed
        ):
            ledger.record_lac(proven_before.entry - (proven_before.slot == 0))

    async def run(self) -> None:
        """Fetch until the end, an error, or the reader is closed. Runs in a task of the namespace."""
        try:
            with self._scope, error_boundary(f'a reader of log "{self._name}"', self.queue.end):
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._state_watch.run)
                    await self._fetch()
                    nursery.cancel_scope.cancel()
        finally:
            if self._next_segment is not None:
                self._next_segment.close()
            if not self.queue.ended:
                self.queue.end(AlreadyClosed(f'log "{self._name}": the namespace was closed'))

    async def _fetch(self) -> None:
        backoff = Backoff()
        while not self.queue.ended:
            position_before = (self._segment_number, self._next_entry)
            self._start_end_lookup()
            try:
                try:
                    if self._parallel_read:
                        await self._read_parallel()
                    else:
                        await self._read_current_segment()
                except (NoSuchLedger, NoSuchEntry, LogTruncated, LogDeleted) as error:
                    await self._resolve_position(error)
                continue
            except DistributedLogError as error:
                if not error.retryable:
                    self.queue.end(error)
                    return
                if (
                    self._segment_number,
                    self._next_entry,
                ) != position_before or self._failing_since is None:
                    self._failing_since = trio.current_time()
                    backoff.reset()
                elif trio.current_time() - self._failing_since > self._options.read_retry_s:
                    self.queue.end(error)
                    return
            await trio.sleep(backoff.next_s())

    async def _read_current_segment(self) -> None:
        """Fetch from the present position to the end of its segment, then move to the start of the next
        one."""
        number = self._segment_number
        if self._next_segment is not None:
            (record, ledger), self._next_segment = self._next_segment.enter(), None
            self._entered_record, self._segment_ledger_id = record, record.ledger_id
        else:
            found_record = await self._find_segment(number)
            if found_record is None:
                self.queue.sealed = True
                self.queue.end()
                return
            record = found_record
            self._segment_ledger_id, self._segment = record.ledger_id, record
            ledger = await open_segment(self._ledgers, record)
        if self.queue.next_sequence_id is None and self._next_entry == 0:
            self.queue.next_sequence_id = record.start_sequence_id
        elif (
            self.queue.next_sequence_id is None
            and record.closed
            and self._next_entry > record.last_user_entry
        ):
            self.queue.next_sequence_id = record.end_sequence_id
        self._segment, self._ledger = record, ledger
        next_segment = self._open_ahead(record, ledger)
        try:
            await self._drain(record, ledger, next_segment)
            if not (self.queue.ended or self._parallel_read) and self._proves_drained(next_segment):
                next_segment, self._next_segment = None, next_segment
        finally:
            self._last_known = max(self._last_known, (number, ledger.lac))
            self._last_response_at, self._ledger = self._latest_response_at(), None
            ledger.close()
            if next_segment is not None:
                next_segment.close()
        if self.queue.ended or self._parallel_read:
            return
        if self._next_segment is None:
            if self.queue.skips is not None and self.queue.skips.has_open_range:
                end = (await self._state_watch.segment(number)).end_sequence_id
                self._finish_skip(DLSN(number + 1, 0, 0), end)
            if self.queue.last_dlsn is not None and self.queue.last_dlsn.segment <= number:
                self.queue.end()
                return
            # The ledger can be closed shortly before the log's state has the close and the next segment.
            await self._state_watch.wait_until(lambda state: state.first_open_segment > number)
        self._segment_number, self._next_entry = number + 1, 0

    async def _find_segment(self, number: int) -> SegmentRecord | None:
        """Wait for a segment's record with its first sequence ID. Return None if the log is sealed before
        it."""
        self.queue.is_at_tail = number > self._state_watch.state.last_segment
        state = await self._state_watch.wait_until(
            lambda state: number <= state.last_segment or state.sealed
        )
        if number > state.last_segment:
            return None
        record = await self._state_watch.segment(number)
        if record.start_sequence_id == UNKNOWN:
            entered_record = self._entered_record
            if entered_record is not None and entered_record.segment == number:
                return entered_record
            # The segment was opened in a roll whose older segment is not closed yet and was not read
            # here. Wait until that one is closed, as readers of it do (H11).
            await self._state_watch.wait_until(lambda state: state.first_open_segment >= number)
            record = await self._state_watch.segment(number)
        return record

    def _open_ahead(self, record: SegmentRecord, ledger: SegmentEntryReader) -> NextSegment | None:
        """Start to open the next segment while this one is in progress, unless the range ends in this one."""
        if ledger.closed or (
            self.queue.last_dlsn is not None and self.queue.last_dlsn.segment <= record.segment
        ):
            return None

        def on_begun(begin: SegmentBegin) -> None:
            ledger.record_lac(begin.last_entry)
            self._tail_wait_scope.cancel()

        next_segment = NextSegment(
            record,
            self._state_watch,
            self._ledgers,
            wait_s=LONG_POLL_S,
            on_previous_end_known=on_begun,
        )
        assert self._nursery is not None, "segments are read by `run`"
        self._nursery.start_soon(next_segment.run)
        return next_segment

    def _proves_drained(self, next_segment: NextSegment | None) -> bool:
        """Return whether the next segment proves that all entries of the present one were read."""
        return (
            next_segment is not None
            and not (self.queue.skips is not None and self.queue.skips.has_open_range)
            and next_segment.proves_read_before(self._next_entry, self.queue.next_sequence_id)
        )

    async def _drain(
        self, record: SegmentRecord, ledger: SegmentEntryReader, next_segment: NextSegment | None
    ) -> None:
        """Deliver the segment from the present position until all entries are delivered and it is closed
        or has ended."""
        number = record.segment

        def take(entries: Sequence[SegmentEntry]) -> int:
            return self._deliver_tail(record, entries)

        self._record_proven_lac(ledger)
        while not self.queue.ended:
            closed, lac = ledger.closed, ledger.lac
            self.queue.is_at_tail = self._next_entry > lac
            if not self.queue.is_at_tail:
                # Checked only here, because a reader that has read all entries before the truncation
                # point has lost nothing.
                self._state_watch.check_position(number, self._next_entry)
                try:
                    read_entries = await ledger.read(
                        self._next_entry, lac, bytes_max=self.queue.read_bytes
                    )
                except (CorruptData, NoSuchEntry) as error:
                    if self.queue.skips is None or not closed:
                        raise
                    await self._skip_entry(record, ledger, error)
                    continue
                self._failing_since = None
                self._last_response_at = self.queue.last_entry_at = trio.current_time()
                # Decompressed entries can be many times as large as the read ones.
                queue_bytes_max = self.queue.bytes_max + self.queue.read_bytes
                for entry in read_entries:
                    if self.queue.buffered_bytes > queue_bytes_max:
                        await self.queue.wait_capacity()
                    self._deliver(record, entry)
                    self._next_entry = entry.entry + 1
                self._record_mean_size(record, read_entries[-1])
                self._start_end_lookup()
                self._parallel_read = self._should_read_parallel(record, read_entries, ledger.lac)
                if self._parallel_read:
                    return
                await self.queue.wait_capacity()
            elif closed or self._proves_drained(next_segment):
                return
            else:
                wait_s = LONG_POLL_S
                with trio.CancelScope() as self._tail_wait_scope:
                    await ledger.wait(self._next_entry - 1, wait_s=wait_s, on_entries=take)
                self._failing_since, self._left_tail_ms = None, self._context.clock_ms()

    def _should_read_parallel(
        self, record: SegmentRecord, entries: Sequence[SegmentEntry], lac: int
    ) -> bool:
        """Return whether to read the entries after the read ones from several bookies.

        The backlog must be large, and the reader must have waited for its only bookie. Excluded are readers
        that skip entries, have a small byte limit, or receive stored entries.
        """
        if (
            self.queue.skips is not None
            or self._sequential_segment == record.segment
            or self.queue.ended
        ):
            return False
        if self._on_stored_entry is not None or not self.queue.has_full_capacity:
            return False
        last_read, total = entries[-1], self._state_watch.state.bytes_total
        if self.queue.last_dlsn is not None and self.queue.last_dlsn.segment == record.segment:
            lac, total = min(lac, self.queue.last_dlsn.entry), -1
        remaining_bytes = (lac - last_read.entry) * last_read.length_so_far // (last_read.entry + 1)
        if record.closed and min(total, record.bytes_before) >= 0:
            remaining_bytes += max(0, total - record.bytes_before - record.size_bytes)
        if remaining_bytes <= PARALLEL_READ_MIN_BYTES:
            self._starvation.reset()
            return False
        return self._starvation.is_starved(
            self.queue.waited_s, self.queue.last_entry_at
        )  # `last_entry_at` is the present time

    async def _read_parallel(self) -> None:
        """Read a large backlog from several bookies at once, in order (`range_reader.py`).

        After an error there, the segment is read from one bookie, which handles the error.
        """
        self._parallel_read = False
        state_watch, context = self._state_watch, self._context
        await state_watch.load()
        state_watch.check_position(self._segment_number, self._next_entry)
        snapshot = await take_snapshot(
            context.metadata,
            self._ledgers,
            state_watch,
            first=self._segment_number,
            limit=PARALLEL_READ_SEGMENTS,
        )
        self._end_sequence_id = max(self._end_sequence_id, snapshot.end_sequence_id)
        ranges = []
        for segment in snapshot.segments:
            first = (
                self._next_entry if segment.segment == self._segment_number else segment.first_entry
            )
            last = segment.last_entry
            if self.queue.last_dlsn is not None and segment.segment >= self.queue.last_dlsn.segment:
                last = (
                    min(last, self.queue.last_dlsn.entry)
                    if segment.segment == self.queue.last_dlsn.segment
                    else -1
                )
            if first <= last:
                ranges.append(replace(segment.range(first, last), first_slot=0))
        options = replace(self._options, read_ahead_bytes=PARALLEL_READ_AHEAD_BYTES)
        reader = RangeReader(replace(context, options=options), ranges, parallel=True)
        parallel_error: DistributedLogError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            try:
                while not self.queue.ended and (
                    batches := await reader.read_columns_many(bytes_max=self.queue.read_bytes)
                ):
                    self._failing_since = None
                    self._last_response_at = self.queue.last_entry_at = trio.current_time()
                    for columns in batches:
                        origin = columns.origin
                        state_watch.check_position(origin.segment, origin.entry)
                        if not self.queue.ended:
                            self.queue.add_entry(columns)
                        self._segment_number, self._next_entry = origin.segment, origin.entry + 1
                    self._start_end_lookup()
                    await self.queue.wait_capacity()
            except DistributedLogError as error:
                parallel_error = error
            nursery.cancel_scope.cancel()
        if parallel_error is not None:
            log.info('log "%s": reading from one bookie again (%s)', self._name, parallel_error)
            self._sequential_segment = self._segment_number

    def _deliver_tail(self, record: SegmentRecord, entries: Sequence[SegmentEntry]) -> int:
        """Deliver entries that arrive at the end of the log, without a switch to the fetching task.

        An entry that cannot be delivered is left to that task, which reads it again and reports the error.
        """
        first_entry = self._next_entry
        self.queue.last_entry_at = trio.current_time()
        try:
            for entry in entries:
                if self.queue.buffered_bytes > self.queue.bytes_max:
                    break
                self._state_watch.check_position(record.segment, self._next_entry)
                self._deliver(record, entry)
                self._next_entry = entry.entry + 1
        except DistributedLogError:
            pass
        except Exception as error:  # this is a call of a connection that other logs share
            self.queue.end(to_internal_error(f'a reader of log "{self._name}"', error))
        return 0 if self.queue.ended else self._next_entry - first_entry

    def _deliver(self, record: SegmentRecord, entry: SegmentEntry) -> None:
        if self.queue.ended:
            return
        header = decode_header(entry.payload)
        number = record.segment
        sequence_id = record.start_sequence_id + header.records_before
        if self.queue.skips is not None and self.queue.skips.has_open_range:
            self._finish_skip(DLSN(number, entry.entry, 0), sequence_id)
        if header.is_control:
            return
        if self._on_stored_entry is not None:
            self.queue.check_sequence(DLSN(number, entry.entry, 0), sequence_id, header.count)
            self._on_stored_entry(record, entry, header)
            return
        origin = record.origin(entry.entry, header)
        self.queue.add_entry(decode_columns(entry.payload, header, origin, self._name))

    # --- the lag, for metrics ---------------------------------------------------------------------

    def _unfetched(self) -> ReaderLag:
        """Return the records that are known to exist and not fetched. Any thread may call it.

        Their number is exact in closed segments. In the open one, it is the number of entries up to the last
        known LAC, times the mean number of records per entry. While older segments are read, or the open one
        has no ledger, the end counts as of the last lookup, which this call requests.
        """
        state, queue, number = self._state_watch.state, self.queue, self._segment_number
        segment, ledger, next_entry = self._segment, self._ledger, self._next_entry
        if segment is None or segment.segment != number:
            segment = None
        lac = self._last_known[1] if self._last_known[0] == number else -1
        if segment is not None and segment.closed:
            lac = segment.last_user_entry
        elif ledger is not None:
            lac = max(lac, ledger.lac)
        entries = max(0, lac + 1 - next_entry)
        fetched = queue.next_sequence_id
        if fetched is None:
            fetched = queue.start_sequence_id
        is_open = number >= state.first_open_segment
        if not is_open or ledger is None:
            self._end_requested = bool(state.in_progress)
        if fetched is None:
            # Nothing was received, so the sequence ID is not known. Each entry has at least one record.
            records = entries
            if segment is not None and segment.closed:
                records += (
                    max(self._end_sequence_id, state.next_sequence_id) - segment.end_sequence_id
                )
        else:
            records = max(self._end_sequence_id, state.next_sequence_id) - fetched
            if is_open and segment is not None:
                fetched_records = fetched - segment.start_sequence_id
                records_per_entry = fetched_records / next_entry if next_entry else 1.0
                records = max(records, ceil(entries * records_per_entry))
        records = max(0, records)
        since_ms = self._left_tail_ms or (0 if queue.last_time_ms else self._opened_ms)
        return ReaderLag(records, int(records * self._record_bytes), since_ms)

    def _record_mean_size(self, record: SegmentRecord, last_read: SegmentEntry) -> None:
        """Store the mean size of the records up to an entry. Called once per read request."""
        records = (self.queue.next_sequence_id or 0) - record.start_sequence_id
        if records > 0:
            self._record_bytes = last_read.length_so_far / records

    def _start_end_lookup(self) -> None:
        """Look up the end of the log, if `_unfetched` has requested it.

        Called once per read request, and before each attempt to read a segment.
        """
        if self._end_requested and trio.current_time() >= self._end_lookup_at:
            assert self._nursery is not None, "segments are read by `run`"
            self._end_requested, self._end_lookup_at = False, inf
            self._nursery.start_soon(self._look_up_end)

    async def _look_up_end(self) -> None:
        try:
            meter = await lag_meter(self._context.metadata, self._ledgers, self._state_watch)
            self._end_sequence_id = max(self._end_sequence_id, meter.end_sequence_id)
            self._last_known = max(self._last_known, (meter.end.segment, meter.end.entry - 1))
        except DistributedLogError as error:
            log.debug('log "%s": its end is unknown to metrics: %s', self._name, error)
        finally:
            self._end_lookup_at = trio.current_time() + END_LOOKUP_INTERVAL_S

    async def _skip_entry(
        self, record: SegmentRecord, ledger: SegmentEntryReader, error: DistributedLogError
    ) -> None:
        """Skip the next entry, which no replica returned, if all replicas certainly cannot return it."""
        assert self.queue.skips is not None
        number, entry = record.segment, self._next_entry
        reason = await ledger.why_unreadable(entry)
        if not reason:  # an unreachable bookie may have the entry
            raise LedgerStateUnknown(f"{error}; not all replicas confirm its loss") from error
        self._state_watch.check_position(number, entry)
        self.queue.skips.add_entry(DLSN(number, entry, 0), reason)
        now = trio.current_time()
        if (
            now >= self._skip_logged_at + SKIP_LOG_INTERVAL_S
        ):  # no line per entry, because a whole disk may be lost
            self._skip_logged_at = now
            log.warning(
                'log "%s": skipped entry %d.%d, %d skipped by this reader so far (%s)',
                self._name,
                number,
                entry,
                self.queue.skips.entries,
                reason,
            )
        self._next_entry = entry + 1
        if self.queue.last_dlsn is not None and (number, entry) >= self.queue.last_dlsn[:2]:
            self._finish_skip(DLSN(number, entry + 1, 0), None)
            self.queue.end()

    def _finish_skip(self, position: DLSN, sequence_id: int | None) -> None:
        """End the range of skipped entries. The next record has this sequence ID."""
        assert self.queue.skips is not None
        records, first_skipped = None, self.queue.next_sequence_id
        if self.queue.start_sequence_id is not None:
            first_skipped = self.queue.start_sequence_id
        if sequence_id is not None and first_skipped is not None:
            records = sequence_id - first_skipped
            if records < 0:
                raise CorruptData(
                    f'log "{self._name}" entry {position.segment}.{position.entry}: its first record has '
                    f"sequence id {sequence_id}, but the reader is at {first_skipped}"
                )
        self.queue.next_sequence_id, self.queue.start_sequence_id = sequence_id, None
        skipped = self.queue.skips.end_range(position, records)
        if self._on_skipped is not None:
            try:
                self._on_skipped(skipped)
            except Exception:  # a user's error must not break a connection that others share
                log.exception('log "%s": on_skipped raised', self._name)

    async def _resolve_position(self, error: DistributedLogError) -> None:
        """End the reader if the log was truncated or deleted (H30), or continue at the resolved position.

        A reader after the last record of a segment loses nothing if that segment is deleted (G6).
        """
        held_position = self._held_position()
        resolution = await self._state_watch.resolve_position(held_position)
        if resolution.outcome is not PositionOutcome.CONTINUE:
            self.queue.end(resolution.error(self._name, held_position))
            return
        assert resolution.position is not None, "it has a position"
        if resolution.position == held_position.dlsn:
            # By the log's state the entry exists. It was merged into another ledger since the segment was
            # opened, or it is lost, or a deletion has started that has deleted nothing yet.
            is_moved = (
                await self._state_watch.segment(held_position.dlsn.segment)
            ).ledger_id != self._segment_ledger_id
            if not is_moved and not isinstance(error, LogDeleted):
                self.queue.end(error)
        elif self.queue.last_dlsn is not None and self.queue.last_dlsn < resolution.position:
            self.queue.end()
        else:
            self._segment_number, self._next_entry, _ = resolution.position

    def _held_position(self) -> HeldPosition:
        position = DLSN(self._segment_number, self._next_entry, 0)
        if position[:2] == self.queue.start[:2]:
            position = self.queue.start
            if self.queue.start_sequence_id is not None:
                return self._state_watch.held_position(position, self.queue.start_sequence_id)
        sequence_id = self.queue.next_sequence_id
        if sequence_id is None or (
            self.queue.skips is not None and self.queue.skips.has_open_range
        ):
            return self._state_watch.held_position(position)
        return self._state_watch.held_position(position, sequence_id + position.slot)


async def resolve_read_range(
    context: LogContext,
    state_watch: StateWatch,
    start: ReadStart,
    to: DLSN | Literal["end"] | None = None,
) -> ReadRange:
    """Find the start and the end of a read.

    Raises:
        LogDeleted, LogRecreated, LogTruncated: The start is no longer in the log.
    """
    metadata, ledgers, state = context.metadata, context.ledgers, state_watch.state
    earliest = state.earliest
    end = await last_readable(metadata, state_watch, ledgers) if to == "end" else to
    match start:
        case Position() | DLSN():
            read_range = await _resolve_start(context, state_watch, start)
        case TxidStart(txid):
            # Records written from now on can have lower transaction IDs, so `from_txid` excludes those.
            dlsn = await find_txid(metadata, state_watch, ledgers, txid)
            read_range = ReadRange(dlsn, from_txid=txid)
        case TimeStart(time_ms):
            dlsn = await find_time(metadata, state_watch, ledgers, time_ms)
            read_range = ReadRange(dlsn, from_time_ms=time_ms)
        case "latest":
            last = await last_readable(metadata, state_watch, ledgers)
            read_range = ReadRange(
                earliest if last is None else DLSN(last.segment, last.entry + 1, 0)
            )
        case "earliest":
            first = Position(state_watch.incarnation, earliest, state.truncated_sequence_id)
            read_range = ReadRange(earliest, first)
    is_empty = (to == "end" and end is None) or (end is not None and read_range.start > end)
    return replace(read_range, last_dlsn=end, is_empty=is_empty)


async def _resolve_start(
    context: LogContext, state_watch: StateWatch, start: Position | DLSN
) -> ReadRange:
    """Find the present place of the records from a position or DLSN on. Raises as `resolve_read_range`."""
    metadata, state = context.metadata, state_watch.state
    if isinstance(start, Position):
        held_position = HeldPosition.of(start)
        if start.incarnation != state_watch.incarnation:
            raise await explain_deleted(metadata, context.namespace, state.name, held_position)
    else:
        # The log's first DLSN has no special meaning. "From the beginning" is not a position.
        held_position = await held_position_at(metadata, context.ledgers, state, start)
    resolution = resolve_position(held_position, LogLookup.of(state))
    if resolution.outcome is not PositionOutcome.CONTINUE:
        message = resolution.describe(state.name, held_position)
        raise resolution.error_with_message(f'{message}. Use at="earliest" to start there.')
    assert resolution.position is not None, "it has a position"
    if isinstance(start, DLSN):
        return ReadRange(resolution.position)
    # The resolved DLSN can be another name of the same position.
    return ReadRange(
        resolution.position, Position(start.incarnation, resolution.position, start.sequence_id)
    )


async def open_fetcher(
    context: LogContext,
    state_watch: StateWatch,
    start: ReadStart,
    to: DLSN | Literal["end"] | None = None,
    *,
    skip: bool = False,
    on_skipped: Callable[[Skipped], object] | None = None,
) -> Fetcher:
    """Return the fetcher of a reader. The caller runs it. Raises as `resolve_read_range`."""
    queue = EntryQueue(
        state_watch.state.name,
        state_watch.incarnation,
        await resolve_read_range(context, state_watch, start, to),
        options=context.options,
        meters=context.meters,
        skips=SkipRecorder() if skip else None,
    )
    return Fetcher(context, state_watch, queue, on_skipped=on_skipped)
