"""What fetches for a reader: the entries from a position on, segment by segment, into its `EntryQueue`.

One task owns where the fetching is; it never leaves a segment before that one is drained, and closed or
proved to have ended there (H11).
What is fetched and not taken is bounded in bytes. What ends it (truncation, deletion, data that cannot be
read) is known after everything that came before.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from .entry_queue import EntryQueue, ReadRange, StarvationDetector
from .log_snapshot import take_snapshot
from .next_segment import NextSegment
from .position_search import find_time, find_txid, held_position_at, last_readable
from .range_reader import RangeReader
from .segment_reader import open_segment
from .skipped_entries import Skipped, SkipRecorder
from .state_watch import StateWatch

SKIP_LOG_INTERVAL_S = 10.0
"""A reader that passes over entries says so in one line in this time; `LogReader.skipped` has all."""

PARALLEL_READ_MIN_BYTES = 32 * 1024 * 1024
"""A reader that is further behind reads from several bookies at once."""
PARALLEL_READ_AHEAD_BYTES = 8 * 1024 * 1024
"""Then fetched and not yet in its turn, beside ``read_ahead_bytes`` that are."""
PARALLEL_READ_SEGMENTS = 64

OnStoredEntry = Callable[[SegmentRecord, SegmentEntry, EntryHeader], None]
"""Takes an entry as it is stored; not a control entry."""

log = get_logger("distributedlog.log")


class Fetcher:
    """Fetches the entries of a log from the bookies, in a task (`run`), for one reader."""

    def __init__(
        self,
        context: LogContext,
        state_watch: StateWatch,
        queue: EntryQueue,
        *,
        on_skipped: Callable[[Skipped], object] | None = None,
        on_stored_entry: OnStoredEntry | None = None,
    ) -> None:
        """``take_stored`` gets the entries as they are stored; then nothing comes into ``out``."""
        self.queue = queue
        """Where they go, and where they begin and end."""
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
        """Around a wait for the end of the segment at hand."""
        self._next_segment: NextSegment | None = None
        """After the segment at hand, while that is in progress; or the segment that was entered by it."""
        self._entered_record: SegmentRecord | None = None
        """Of the segment that was entered before the log said where it begins."""
        self._proven_before = None if queue.position is None else queue.start
        self._segment_number, self._next_entry = queue.start.segment, queue.start.entry
        self._failing_since: float | None = None
        self._context = context
        self._parallel_read = False
        """Is so much ahead that several bookies are read at once?"""
        self._starvation = StarvationDetector()
        """Since when it is looked what one bookie is good for; None: it is not."""
        self._sequential_segment = 0
        """The segment that is read from one bookie, for reading it from several failed."""
        self._skip_logged_at = -float("inf")
        self._segment_ledger_id = 0
        """The ledger where the segment at hand was looked for."""
        queue.connect_source(last_response=self._latest_response_at, stop=self._scope.cancel)

    def _latest_response_at(self) -> float:
        """When a bookie last answered for this log, or the reader was opened."""
        return max(
            self._last_response_at, -1.0 if self._ledger is None else self._ledger.last_response_at
        )

    def mark_readable_before(self, dlsn: DLSN) -> None:
        """Somebody was given everything before this position: so it is confirmed (H24)."""
        if self._proven_before is None or self._proven_before < dlsn:
            self._proven_before = dlsn
            if self._ledger is not None:
                self._record_proven_lac(self._ledger)
                self._tail_wait_scope.cancel()

    def _record_proven_lac(self, ledger: SegmentEntryReader) -> None:
        """A DLSN where the caller began proves nothing: anybody writes one down. What bookies say is
        confirmed, or a closed end, is all that is read (G5); a position says what was given (H141)."""
        proven_before = self._proven_before
        if (
            proven_before is not None
            and proven_before.segment == self._segment_number
            and not ledger.closed
        ):
            ledger.record_lac(proven_before.entry - (proven_before.slot == 0))

    async def run(self) -> None:
        """Fetch until the end, an error, or the reader is closed. A task of the namespace."""
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
        """From the position at hand to the end of its segment; then the position is the next one's start."""
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
            self._segment_ledger_id = record.ledger_id
            ledger = await open_segment(self._ledgers, record)
        if self.queue.next_sequence_id is None and self._next_entry == 0:
            self.queue.next_sequence_id = record.start_sequence_id
        elif (
            self.queue.next_sequence_id is None
            and record.closed
            and self._next_entry > record.last_user_entry
        ):
            self.queue.next_sequence_id = record.end_sequence_id
        self._ledger = ledger
        next_segment = self._open_ahead(record, ledger)
        try:
            await self._drain(record, ledger, next_segment)
            if not (self.queue.ended or self._parallel_read) and self._proves_drained(next_segment):
                next_segment, self._next_segment = None, next_segment
        finally:
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
            # The ledger may be closed a moment before the log says so, and the log says what follows.
            await self._state_watch.wait_until(lambda state: state.first_open_segment > number)
        self._segment_number, self._next_entry = number + 1, 0

    async def _find_segment(self, number: int) -> SegmentRecord | None:
        """A segment's record, numbered, once that can be had; None: the log is sealed before it."""
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
            # Opened in a roll whose older segment is not closed yet, and that one has not been read
            # here: wait until it is, as everybody who comes from there does (H11).
            await self._state_watch.wait_until(lambda state: state.first_open_segment >= number)
            record = await self._state_watch.segment(number)
        return record

    def _open_ahead(self, record: SegmentRecord, ledger: SegmentEntryReader) -> NextSegment | None:
        """Have the segment after this one opened while this one is in progress, if it may be wanted."""
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
            on_begin_known=on_begun,
        )
        assert self._nursery is not None, "segments are read by `run`"
        self._nursery.start_soon(next_segment.run)
        return next_segment

    def _proves_drained(self, next_segment: NextSegment | None) -> bool:
        """Does the next segment prove that all of the one at hand has been had?"""
        return (
            next_segment is not None
            and not (self.queue.skips is not None and self.queue.skips.has_open_range)
            and next_segment.proves_read_before(self._next_entry, self.queue.next_sequence_id)
        )

    async def _drain(
        self, record: SegmentRecord, ledger: SegmentEntryReader, next_segment: NextSegment | None
    ) -> None:
        """Deliver the segment from the position at hand until all of it is, and it is closed or has ended."""
        number = record.segment

        def take(entries: Sequence[SegmentEntry]) -> int:
            return self._deliver_tail(record, entries)

        self._record_proven_lac(ledger)
        while not self.queue.ended:
            closed, lac = ledger.closed, ledger.lac
            self.queue.is_at_tail = self._next_entry > lac
            if not self.queue.is_at_tail:
                # Only here: a reader that has had everything before the point has lost nothing.
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
                # What was compressed may be any number of times as long as what was read.
                queue_bytes_max = self.queue.bytes_max + self.queue.read_bytes
                for entry in read_entries:
                    if self.queue.buffered_bytes > queue_bytes_max:
                        await self.queue.wait_capacity()
                    self._deliver(record, entry)
                self._next_entry = read_entries[-1].entry + 1
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
                self._failing_since = None

    def _should_read_parallel(
        self, record: SegmentRecord, entries: Sequence[SegmentEntry], lac: int
    ) -> bool:
        """Does it pay to read what is after what was found from several bookies?

        There must be much, and the reader must have waited for the one it has. Not where entries may be
        passed over, or where a few bytes are to be held, or where entries are wanted as they are stored.
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
        )  # it has just been set

    async def _read_parallel(self) -> None:
        """Read what is far before the end from several bookies at once, in order (`range_reader.py`).

        What fails there is tried in the plain way, which knows what to say of it.
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
                    await self.queue.wait_capacity()
            except DistributedLogError as error:
                parallel_error = error
            nursery.cancel_scope.cancel()
        if parallel_error is not None:
            log.info('log "%s" is read from one bookie: %s', self._name, parallel_error)
            self._sequential_segment = self._segment_number

    def _deliver_tail(self, record: SegmentRecord, entries: Sequence[SegmentEntry]) -> int:
        """Deliver what comes at the end of the log, without a turn of the fetching task.

        What cannot be delivered is left to that task, which reads it anew and says what is wrong.
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
        """Decode one entry and give it to whoever it is for."""
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

    async def _skip_entry(
        self, record: SegmentRecord, ledger: SegmentEntryReader, error: DistributedLogError
    ) -> None:
        """Pass over the entry at hand, which the replicas did not give, if they certainly cannot."""
        assert self.queue.skips is not None
        number, entry = record.segment, self._next_entry
        reason = await ledger.why_unreadable(entry)
        if not reason:  # somebody who is away may have it
            raise LedgerStateUnknown(f"{error}; not all replicas deny it") from error
        self._state_watch.check_position(number, entry)
        self.queue.skips.add_entry(DLSN(number, entry, 0), reason)
        now = trio.current_time()
        if (
            now >= self._skip_logged_at + SKIP_LOG_INTERVAL_S
        ):  # a whole disk may be gone: not a line an entry
            self._skip_logged_at = now
            log.warning(
                'log "%s" entry %d.%d is passed over, %d of this reader so far: %s',
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
        """What was passed over ends here; the record that comes next has this sequence id."""
        assert self.queue.skips is not None
        records = None
        if sequence_id is not None and self.queue.next_sequence_id is not None:
            records = sequence_id - self.queue.next_sequence_id
            if records < 0:
                raise CorruptData(
                    f'log "{self._name}" entry {position.segment}.{position.entry}: its first record has '
                    "sequence id "
                    f"{sequence_id}, and {self.queue.next_sequence_id} were given or passed over before it"
                )
        self.queue.next_sequence_id = sequence_id
        skipped = self.queue.skips.end_range(position, records)
        if self._on_skipped is not None:
            try:
                self._on_skipped(skipped)
            except (
                Exception
            ):  # its own affair: this may be a call of a connection that others share
                log.exception('log "%s": on_skipped raised', self._name)

    async def _resolve_position(self, error: DistributedLogError) -> None:
        """Something is not there: end by what has become of the log (H30), or go on where that does.

        A reader that stands after a segment's last record loses nothing with it (G6).
        """
        held_position = self._held_position()
        resolution = await self._state_watch.resolve_position(held_position)
        if resolution.outcome is not PositionOutcome.CONTINUE:
            self.queue.end(resolution.error(self._name, held_position))
            return
        assert resolution.position is not None, "it says where"
        if resolution.position == held_position.dlsn:
            # The log says that it is there: merged into another ledger since it was opened, or a loss, or
            # that a deletion has begun, and all is there yet.
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
        """What comes next."""
        position = DLSN(self._segment_number, self._next_entry, 0)
        if position[:2] == self.queue.start[:2]:
            position = self.queue.start
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
    """Find where to begin and end. Raises `LogDeleted`, `LogRecreated`, `LogTruncated`."""
    metadata, ledgers, state = context.metadata, context.ledgers, state_watch.state
    earliest = state.earliest
    end = await last_readable(metadata, state_watch, ledgers) if to == "end" else to
    match start:
        case Position() | DLSN():
            read_range = await _resolve_start(context, state_watch, start)
        case TxidStart(txid):
            # What is written from here on may have lower ones, where it is not there yet: `from_txid`.
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
    """Find where the records from a position or DLSN on are now. Raises as `resolve_read_range`."""
    metadata, state = context.metadata, state_watch.state
    if isinstance(start, Position):
        held_position = HeldPosition.of(start)
        if start.incarnation != state_watch.incarnation:
            raise await explain_deleted(metadata, context.namespace, state.name, held_position)
    else:
        # The log's first position is one like any other: "from the beginning" is no position.
        held_position = await held_position_at(metadata, context.ledgers, state, start)
    resolution = resolve_position(held_position, LogLookup.of(state))
    if resolution.outcome is not PositionOutcome.CONTINUE:
        message = resolution.describe(state.name, held_position)
        raise resolution.error_with_message(f'{message}; at="earliest" begins there')
    assert resolution.position is not None, "it says where"
    if isinstance(start, DLSN):
        return ReadRange(resolution.position)
    # Perhaps the same place by another name.
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
    """What fetches for a reader; run it. Raises as `resolve_read_range`."""
    queue = EntryQueue(
        state_watch.state.name,
        state_watch.incarnation,
        await resolve_read_range(context, state_watch, start, to),
        options=context.options,
        meters=context.meters,
        skips=SkipRecorder() if skip else None,
    )
    return Fetcher(context, state_watch, queue, on_skipped=on_skipped)
