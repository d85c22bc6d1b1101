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
from ..format.record import EntryHeader, decode, decode_header
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
from .position_search import find_time, find_txid, held_at, last_readable
from .range_reader import RangeReader
from .segment_reader import open_segment
from .skipped_entries import SkipNotes, Skipped
from .state_watch import StateWatch

SKIP_LINE_S = 10.0
"""A reader that passes over entries says so in one line in this time; `LogReader.skipped` has all."""

FAR_BYTES = 32 * 1024 * 1024
"""A reader that is further behind reads from several bookies at once."""
FAR_HELD_BYTES = 8 * 1024 * 1024
"""Then fetched and not yet in its turn, beside ``read_ahead_bytes`` that are."""
SEGMENTS_AT_ONCE = 64

TakeStored = Callable[[SegmentRecord, SegmentEntry, EntryHeader], None]
"""Takes an entry as it is stored; not a control entry."""

log = get_logger("distributedlog.log")


class Fetcher:
    """Fetches the entries of a log from the bookies, in a task (`run`), for one reader."""

    def __init__(
        self,
        context: LogContext,
        follower: StateWatch,
        out: EntryQueue,
        *,
        on_skipped: Callable[[Skipped], object] | None = None,
        take_stored: TakeStored | None = None,
    ) -> None:
        """``take_stored`` gets the entries as they are stored; then nothing comes into ``out``."""
        self.out = out
        """Where they go, and where they begin and end."""
        self._name = out.name
        self._heard_at = out.entry_at
        self._ledger: SegmentEntryReader | None = None
        self._on_skipped = on_skipped
        self._take_stored = take_stored
        self._ledgers = context.ledgers
        self._options = context.options
        self._follower = follower
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._waiting = trio.CancelScope()
        """Around a wait for the end of the segment at hand."""
        self._next: NextSegment | None = None
        """After the segment at hand, while that is in progress; or the segment that was entered by it."""
        self._entered: SegmentRecord | None = None
        """Of the segment that was entered before the log said where it begins."""
        self._proven = None if out.position is None else out.start
        self._at_segment, self._at_entry = out.start.segment, out.start.entry
        self._trouble_since: float | None = None
        self._context = context
        self._far = False
        """Is so much ahead that several bookies are read at once?"""
        self._starvation = StarvationDetector()
        """Since when it is looked what one bookie is good for; None: it is not."""
        self._plainly = 0
        """The segment that is read from one bookie, for reading it from several failed."""
        self._skip_told_at = -float("inf")
        self._lies_in = 0
        """The ledger where the segment at hand was looked for."""
        out.connect_source(heard=self._last_heard, stop=self._scope.cancel)

    def _last_heard(self) -> float:
        """When a bookie last answered for this log, or the reader was opened."""
        return max(self._heard_at, -1.0 if self._ledger is None else self._ledger.heard_at)

    def prove(self, dlsn: DLSN) -> None:
        """Somebody was given everything before this position: so it is confirmed (H24)."""
        if self._proven is None or self._proven < dlsn:
            self._proven = dlsn
            if self._ledger is not None:
                self._note_proven(self._ledger)
                self._waiting.cancel()

    def _note_proven(self, ledger: SegmentEntryReader) -> None:
        """A DLSN where the caller began proves nothing: anybody writes one down. What bookies say is
        confirmed, or a closed end, is all that is read (G5); a position says what was given (H141)."""
        proven = self._proven
        if proven is not None and proven.segment == self._at_segment and not ledger.closed:
            ledger.note_lac(proven.entry - (proven.slot == 0))

    async def run(self) -> None:
        """Fetch until the end, an error, or the reader is closed. A task of the namespace."""
        try:
            with self._scope, error_boundary(f'a reader of log "{self._name}"', self.out.end):
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._follower.run)
                    await self._fetch()
                    nursery.cancel_scope.cancel()
        finally:
            if self._next is not None:
                self._next.close()
            if not self.out.ended:
                self.out.end(AlreadyClosed(f'log "{self._name}": the namespace was closed'))

    async def _fetch(self) -> None:
        backoff = Backoff()
        while not self.out.ended:
            before = (self._at_segment, self._at_entry)
            try:
                try:
                    if self._far:
                        await self._catch_up()
                    else:
                        await self._read_segment()
                except (NoSuchLedger, NoSuchEntry, LogTruncated, LogDeleted) as error:
                    await self._meet(error)
                continue
            except DistributedLogError as error:
                if not error.retryable:
                    self.out.end(error)
                    return
                if (self._at_segment, self._at_entry) != before or self._trouble_since is None:
                    self._trouble_since = trio.current_time()
                    backoff.reset()
                elif trio.current_time() - self._trouble_since > self._options.read_retry_s:
                    self.out.end(error)
                    return
            await trio.sleep(backoff.next_s())

    async def _read_segment(self) -> None:
        """From the position at hand to the end of its segment; then the position is the next one's start."""
        number = self._at_segment
        if self._next is not None:
            (record, ledger), self._next = self._next.take(), None
            self._entered, self._lies_in = record, record.ledger_id
        else:
            found = await self._find_segment(number)
            if found is None:
                self.out.sealed = True
                self.out.end()
                return
            record = found
            self._lies_in = record.ledger_id
            ledger = await open_segment(self._ledgers, record)
        if self.out.next_id is None and self._at_entry == 0:
            self.out.next_id = record.start_sequence_id
        elif self.out.next_id is None and record.closed and self._at_entry > record.last_user_entry:
            self.out.next_id = record.end_sequence_id
        self._ledger = ledger
        following = self._open_ahead(record, ledger)
        try:
            await self._drain(record, ledger, following)
            if not (self.out.ended or self._far) and self._ended_before(following):
                following, self._next = None, following
        finally:
            self._heard_at, self._ledger = self._last_heard(), None
            ledger.close()
            if following is not None:
                following.close()
        if self.out.ended or self._far:
            return
        if self._next is None:
            if self.out.skips is not None and self.out.skips.pending:
                end = (await self._follower.segment(number)).end_sequence_id
                self._after_skip(DLSN(number + 1, 0, 0), end)
            if self.out.to is not None and self.out.to.segment <= number:
                self.out.end()
                return
            # The ledger may be closed a moment before the log says so, and the log says what follows.
            await self._follower.until(lambda state: state.open_from > number)
        self._at_segment, self._at_entry = number + 1, 0

    async def _find_segment(self, number: int) -> SegmentRecord | None:
        """A segment's record, numbered, once that can be had; None: the log is sealed before it."""
        self.out.at_tail = number > self._follower.state.last_segment
        state = await self._follower.until(
            lambda state: number <= state.last_segment or state.sealed
        )
        if number > state.last_segment:
            return None
        record = await self._follower.segment(number)
        if record.start_sequence_id == UNKNOWN:
            entered = self._entered
            if entered is not None and entered.segment == number:
                return entered
            # Opened in a roll whose older segment is not closed yet, and that one has not been read
            # here: wait until it is, as everybody who comes from there does (H11).
            await self._follower.until(lambda state: state.open_from >= number)
            record = await self._follower.segment(number)
        return record

    def _open_ahead(self, record: SegmentRecord, ledger: SegmentEntryReader) -> NextSegment | None:
        """Have the segment after this one opened while this one is in progress, if it may be wanted."""
        if ledger.closed or (self.out.to is not None and self.out.to.segment <= record.segment):
            return None

        def on_begun(begin: SegmentBegin) -> None:
            ledger.note_lac(begin.last_entry)
            self._waiting.cancel()

        following = NextSegment(
            record,
            self._follower,
            self._ledgers,
            wait_s=LONG_POLL_S,
            on_begun=on_begun,
        )
        assert self._nursery is not None, "segments are read by `run`"
        self._nursery.start_soon(following.run)
        return following

    def _ended_before(self, following: NextSegment | None) -> bool:
        """Does the next segment prove that all of the one at hand has been had?"""
        return (
            following is not None
            and not (self.out.skips is not None and self.out.skips.pending)
            and following.ends_before(self._at_entry, self.out.next_id)
        )

    async def _drain(
        self, record: SegmentRecord, ledger: SegmentEntryReader, following: NextSegment | None
    ) -> None:
        """Deliver the segment from the position at hand until all of it is, and it is closed or has ended."""
        number = record.segment

        def take(entries: Sequence[SegmentEntry]) -> int:
            return self._take_tail(record, entries)

        self._note_proven(ledger)
        while not self.out.ended:
            closed, lac = ledger.closed, ledger.lac
            self.out.at_tail = self._at_entry > lac
            if not self.out.at_tail:
                # Only here: a reader that has had everything before the point has lost nothing.
                self._follower.check_position(number, self._at_entry)
                try:
                    found = await ledger.read(self._at_entry, lac, bytes_max=self.out.read_bytes)
                except (CorruptData, NoSuchEntry) as error:
                    if self.out.skips is None or not closed:
                        raise
                    await self._skip(record, ledger, error)
                    continue
                self._trouble_since = None
                self._heard_at = self.out.entry_at = trio.current_time()
                # What was compressed may be any number of times as long as what was read.
                most = self.out.bytes_max + self.out.read_bytes
                for entry in found:
                    if self.out.bytes > most:
                        await self.out.wait_taken()
                    self._deliver(record, entry)
                self._at_entry = found[-1].entry + 1
                self._far = self._is_far(record, found, ledger.lac)
                if self._far:
                    return
                await self.out.wait_taken()
            elif closed or self._ended_before(following):
                return
            else:
                wait_s = LONG_POLL_S
                with trio.CancelScope() as self._waiting:
                    await ledger.wait(self._at_entry - 1, wait_s=wait_s, take=take)
                self._trouble_since = None

    def _is_far(self, record: SegmentRecord, found: Sequence[SegmentEntry], lac: int) -> bool:
        """Does it pay to read what is after what was found from several bookies?

        There must be much, and the reader must have waited for the one it has. Not where entries may be
        passed over, or where a few bytes are to be held, or where entries are wanted as they are stored.
        """
        if self.out.skips is not None or self._plainly == record.segment or self.out.ended:
            return False
        if self._take_stored is not None or not self.out.whole:
            return False
        last, total = found[-1], self._follower.state.bytes_total
        if self.out.to is not None and self.out.to.segment == record.segment:
            lac, total = min(lac, self.out.to.entry), -1
        left = (lac - last.entry) * last.length_so_far // (last.entry + 1)
        if record.closed and min(total, record.bytes_before) >= 0:
            left += max(0, total - record.bytes_before - record.size_bytes)
        if left <= FAR_BYTES:
            self._starvation.forget()
            return False
        return self._starvation.is_seen(
            self.out.starved_s, self.out.entry_at
        )  # it has just been set

    async def _catch_up(self) -> None:
        """Read what is far before the end from several bookies at once, in order (`range_reader.py`).

        What fails there is tried in the plain way, which knows what to say of it.
        """
        self._far = False
        follower, context = self._follower, self._context
        await follower.load()
        follower.check_position(self._at_segment, self._at_entry)
        snapshot = await take_snapshot(
            context.metadata,
            self._ledgers,
            follower,
            first=self._at_segment,
            limit=SEGMENTS_AT_ONCE,
        )
        ranges = []
        for one in snapshot.segments:
            first = self._at_entry if one.segment == self._at_segment else one.first_entry
            last = one.last_entry
            if self.out.to is not None and one.segment >= self.out.to.segment:
                last = min(last, self.out.to.entry) if one.segment == self.out.to.segment else -1
            if first <= last:
                ranges.append(replace(one.range(first, last), first_slot=0))
        options = replace(self._options, read_ahead_bytes=FAR_HELD_BYTES)
        reader = RangeReader(replace(context, options=options), ranges, several=True)
        failed: DistributedLogError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            try:
                while not self.out.ended and (
                    found := await reader.read_columns_many(bytes_max=self.out.read_bytes)
                ):
                    self._trouble_since = None
                    self._heard_at = self.out.entry_at = trio.current_time()
                    for columns in found:
                        place = columns.origin
                        follower.check_position(place.segment, place.entry)
                        if not self.out.ended:
                            self.out.give(columns)
                        self._at_segment, self._at_entry = place.segment, place.entry + 1
                    await self.out.wait_taken()
            except DistributedLogError as error:
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            log.info('log "%s" is read from one bookie: %s', self._name, failed)
            self._plainly = self._at_segment

    def _take_tail(self, record: SegmentRecord, entries: Sequence[SegmentEntry]) -> int:
        """Deliver what comes at the end of the log, without a turn of the fetching task.

        What cannot be delivered is left to that task, which reads it anew and says what is wrong.
        """
        before = self._at_entry
        self.out.entry_at = trio.current_time()
        try:
            for entry in entries:
                if self.out.bytes > self.out.bytes_max:
                    break
                self._follower.check_position(record.segment, self._at_entry)
                self._deliver(record, entry)
                self._at_entry = entry.entry + 1
        except DistributedLogError:
            pass
        except Exception as error:  # this is a call of a connection that other logs share
            self.out.end(to_internal_error(f'a reader of log "{self._name}"', error))
        return 0 if self.out.ended else self._at_entry - before

    def _deliver(self, record: SegmentRecord, entry: SegmentEntry) -> None:
        """Decode one entry and give it to whoever it is for."""
        if self.out.ended:
            return
        header = decode_header(entry.payload)
        number = record.segment
        sequence_id = record.start_sequence_id + header.records_before
        if self.out.skips is not None and self.out.skips.pending:
            self._after_skip(DLSN(number, entry.entry, 0), sequence_id)
        if header.control:
            return
        if self._take_stored is not None:
            self.out.count(DLSN(number, entry.entry, 0), sequence_id, header.count)
            self._take_stored(record, entry, header)
            return
        origin = record.origin(entry.entry, header)
        self.out.give(decode(entry.payload, header, origin, self._name))

    async def _skip(
        self, record: SegmentRecord, ledger: SegmentEntryReader, error: DistributedLogError
    ) -> None:
        """Pass over the entry at hand, which the replicas did not give, if they certainly cannot."""
        assert self.out.skips is not None
        number, entry = record.segment, self._at_entry
        why = await ledger.why_unreadable(entry)
        if not why:  # somebody who is away may have it
            raise LedgerStateUnknown(f"{error}; not all replicas deny it") from error
        self._follower.check_position(number, entry)
        self.out.skips.on_broken(DLSN(number, entry, 0), why)
        now = trio.current_time()
        if now >= self._skip_told_at + SKIP_LINE_S:  # a whole disk may be gone: not a line an entry
            self._skip_told_at = now
            log.warning(
                'log "%s" entry %d.%d is passed over, %d of this reader so far: %s',
                self._name,
                number,
                entry,
                self.out.skips.entries,
                why,
            )
        self._at_entry = entry + 1
        if self.out.to is not None and (number, entry) >= self.out.to[:2]:
            self._after_skip(DLSN(number, entry + 1, 0), None)
            self.out.end()

    def _after_skip(self, at: DLSN, sequence_id: int | None) -> None:
        """What was passed over ends here; the record that comes next has this sequence id."""
        assert self.out.skips is not None
        records = None
        if sequence_id is not None and self.out.next_id is not None:
            records = sequence_id - self.out.next_id
            if records < 0:
                raise CorruptData(
                    f'log "{self._name}" entry {at.segment}.{at.entry}: its first record has sequence id '
                    f"{sequence_id}, and {self.out.next_id} were given or passed over before it"
                )
        self.out.next_id = sequence_id
        skipped = self.out.skips.on_next(at, records)
        if self._on_skipped is not None:
            try:
                self._on_skipped(skipped)
            except (
                Exception
            ):  # its own affair: this may be a call of a connection that others share
                log.exception('log "%s": on_skipped raised', self._name)

    async def _meet(self, error: DistributedLogError) -> None:
        """Something is not there: end by what has become of the log (H30), or go on where that does.

        A reader that stands after a segment's last record loses nothing with it (G6).
        """
        held = self._held()
        verdict = await self._follower.meet(held)
        if verdict.met is not PositionOutcome.GO_ON:
            self.out.end(verdict.error(self._name, held))
            return
        assert verdict.at is not None, "it says where"
        if verdict.at == held.dlsn:
            # The log says that it is there: merged into another ledger since it was opened, or a loss, or
            # that a deletion has begun, and all is there yet.
            moved = (await self._follower.segment(held.dlsn.segment)).ledger_id != self._lies_in
            if not moved and not isinstance(error, LogDeleted):
                self.out.end(error)
        elif self.out.to is not None and self.out.to < verdict.at:
            self.out.end()
        else:
            self._at_segment, self._at_entry, _ = verdict.at

    def _held(self) -> HeldPosition:
        """What comes next."""
        at = DLSN(self._at_segment, self._at_entry, 0)
        if at[:2] == self.out.start[:2]:
            at = self.out.start
        known = self.out.next_id
        if known is None or (self.out.skips is not None and self.out.skips.pending):
            return self._follower.held(at)
        return self._follower.held(at, known + at.slot)


async def find_beginning(
    context: LogContext,
    follower: StateWatch,
    start: ReadStart,
    to: DLSN | Literal["end"] | None = None,
) -> ReadRange:
    """Find where to begin and end. Raises `LogDeleted`, `LogRecreated`, `LogTruncated`."""
    metadata, ledgers, state = context.metadata, context.ledgers, follower.state
    earliest = state.earliest
    end = await last_readable(metadata, follower, ledgers) if to == "end" else to
    match start:
        case Position() | DLSN():
            wanted = await _resolve_start(context, follower, start)
        case TxidStart(txid):
            # What is written from here on may have lower ones, where it is not there yet: `from_txid`.
            dlsn = await find_txid(metadata, follower, ledgers, txid)
            wanted = ReadRange(dlsn, from_txid=txid)
        case TimeStart(time_ms):
            dlsn = await find_time(metadata, follower, ledgers, time_ms)
            wanted = ReadRange(dlsn, from_time_ms=time_ms)
        case "latest":
            last = await last_readable(metadata, follower, ledgers)
            wanted = ReadRange(earliest if last is None else DLSN(last.segment, last.entry + 1, 0))
        case "earliest":
            first = Position(follower.incarnation, earliest, state.truncated_sequence_id)
            wanted = ReadRange(earliest, first)
    is_empty = (to == "end" and end is None) or (end is not None and wanted.start > end)
    return replace(wanted, to=end, is_empty=is_empty)


async def _resolve_start(
    context: LogContext, follower: StateWatch, start: Position | DLSN
) -> ReadRange:
    """Find where the records from a position or DLSN on are now. Raises as `find_beginning`."""
    metadata, state = context.metadata, follower.state
    if isinstance(start, Position):
        held = HeldPosition.of(start)
        if start.incarnation != follower.incarnation:
            raise await explain_deleted(metadata, context.namespace, state.name, held)
    else:
        # The log's first position is one like any other: "from the beginning" is no position.
        held = await held_at(metadata, context.ledgers, state, start)
    verdict = resolve_position(held, LogLookup.of(state))
    if verdict.met is not PositionOutcome.GO_ON:
        told = verdict.told(state.name, held)
        raise verdict.error_of(f'{told}; at="earliest" begins there')
    assert verdict.at is not None, "it says where"
    if isinstance(start, DLSN):
        return ReadRange(verdict.at)
    # Perhaps the same place by another name.
    return ReadRange(verdict.at, Position(start.incarnation, verdict.at, start.sequence_id))


async def open_fetcher(
    context: LogContext,
    follower: StateWatch,
    start: ReadStart,
    to: DLSN | Literal["end"] | None = None,
    *,
    skip: bool = False,
    on_skipped: Callable[[Skipped], object] | None = None,
) -> Fetcher:
    """What fetches for a reader; run it. Raises as `find_beginning`."""
    out = EntryQueue(
        follower.state.name,
        follower.incarnation,
        await find_beginning(context, follower, start, to),
        options=context.options,
        meters=context.meters,
        skips=SkipNotes() if skip else None,
    )
    return Fetcher(context, follower, out, on_skipped=on_skipped)
