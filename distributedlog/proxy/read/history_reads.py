"""Serve subscribers that are below the ring with ranges from bookies, several in parallel.

Equal ranges are read once. The read entries do not enter the ring, so a reader of old history does not
displace the newest entries of other readers (H190). A subscriber that has reached the ring moves to its
feed. If an entry is missing, the outcome is the same as for a direct reader, by the log's present state
(`log/read/state_watch.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from ...log.format.dlsn import DLSN
from ...log.format.record import decode_header
from ...log.interfaces.error_boundary import error_boundary
from ...log.interfaces.segment_store import SegmentEntry, SegmentEntryReader
from ...log.model.position_outcome import PositionOutcome
from ...log.model.segment_record import UNKNOWN, SegmentRecord
from ...log.read.segment_reader import open_segment
from ...runtime.interfaces.errors import (
    DistributedLogError,
    LedgerStateUnknown,
    LogDeleted,
    LogTruncated,
    NoSuchEntry,
    NoSuchLedger,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.net.link import Link
from ...runtime.schedule.work_failures import WorkFailures
from ..protocol.read_messages import HEAD_BYTES, SegmentHead
from ..session.fair_queue import FairQueue
from .entry_ring import EntryPosition, RingSpan
from .tail_feed import FRAME_BYTES, Subscriber, TailFeed

PARALLEL_READS = 8
"""Ranges that are read in parallel, by all logs in turns. One log has at most half of them, so that an
unresponsive one does not block all."""
RANGE_BYTES = 1024 * 1024
RANGE_CACHE_S = 1.0
"""How long a range is cached for other subscribers."""
RANGE_CACHE_BYTES_MAX = 64 * 1024 * 1024
OPEN_READERS_MAX = 16
"""Ledgers that stay open between two ranges, with requests in flight for the next one."""
ROLL_WAIT_S = 5.0
"""How long to wait for the log's state to show the end of a segment that the feed has left."""
TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class _OpenReader:
    """A segment that stays open between two ranges."""

    ledger: SegmentEntryReader
    record: SegmentRecord
    parked_at: float


@dataclass(eq=False, slots=True)
class _CachedRange:
    """The entries from one position, in frames. They may still be loading."""

    loaded: trio.Event = field(default_factory=trio.Event)
    spans: dict[EntryPosition, RingSpan] = field(default_factory=dict)
    """By their first position."""
    next_position: EntryPosition = (0, 0)
    size: int = 0
    used_at: float = 0.0
    error: DistributedLogError | None = None


class HistoryReads:
    """Serves the subscribers whose position is below their log's ring, in turns."""

    def __init__(
        self, *, has_capacity: Callable[[Link], bool], to_blocked: Callable[[Subscriber], object]
    ) -> None:
        self.ranges_read = 0
        self.bytes_read = 0
        self._has_capacity = has_capacity
        self._to_blocked = to_blocked
        self._waiting: FairQueue[TailFeed, Subscriber] = FairQueue(PARALLEL_READS)
        self._idle_tasks = trio.lowlevel.ParkingLot()
        self._ranges: dict[tuple[TailFeed, EntryPosition], _CachedRange] = {}
        """By the first position of each of their frames."""
        self._cached: dict[_CachedRange, TailFeed] = {}
        """Loaded ranges, the least recently used first."""
        self._cached_bytes = 0
        self._open_readers: dict[tuple[TailFeed, EntryPosition], _OpenReader] = {}
        """By the position after the last read entry, the one parked longest first."""

    def add(self, subscriber: Subscriber) -> None:
        """Add a subscriber that is below the ring and may receive entries."""
        self._waiting.add(subscriber.feed, subscriber)
        self._idle_tasks.unpark()

    @property
    def waiting(self) -> int:
        """The number of waiting subscribers."""
        return len(self._waiting)

    async def run(self, failures: WorkFailures) -> None:
        """Read ranges until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(PARALLEL_READS):
                    nursery.start_soon(
                        failures.keep_running, "reads of older entries", self._run_reader
                    )
        finally:
            for reader in self._open_readers.values():
                reader.ledger.close()

    async def _run_reader(self) -> None:
        while True:
            feed_and_subscriber = self._waiting.acquire_next()
            if feed_and_subscriber is None:
                await self._idle_tasks.park()
                continue
            feed, subscriber = feed_and_subscriber
            try:
                with error_boundary(f'log "{feed.name}" at this proxy', subscriber.end):
                    await self._serve_one_range(subscriber)
            finally:
                self._waiting.release(feed)

    async def _serve_one_range(self, subscriber: Subscriber) -> None:
        """Send one range to a subscriber, which then waits for its next turn."""
        feed, cursor = subscriber.feed, subscriber.cursor
        if subscriber.is_over or cursor.next_position >= feed.ring.begin or cursor.credit <= 0:
            feed.attach(subscriber)
            return
        try:
            feed.state_watch.check_position(*cursor.next_position)
            cached_range = await self._get_range(feed, cursor.next_position)
        except (NoSuchLedger, NoSuchEntry, LogTruncated, LogDeleted) as error:
            await self._resolve_position(subscriber, error)
            return
        except DistributedLogError as error:
            subscriber.end(error)
            return
        while not subscriber.is_over:
            span = cached_range.spans.get(cursor.next_position)
            if span is None:
                if cursor.next_position < cached_range.next_position:
                    cursor.skip_to(cached_range.next_position)
                break
            if not self._has_capacity(subscriber.link):
                self._to_blocked(subscriber)
                return
            subscriber.send(span)
            if cursor.credit <= 0:
                break
        feed.attach(subscriber)

    async def _resolve_position(self, subscriber: Subscriber, error: DistributedLogError) -> None:
        """Decide how a subscriber continues after an entry was not found, by the log's state (H30).

        It ends with an error, skips a range that does not exist, or retries up to `TRIES_MAX` times.
        """
        feed, cursor = subscriber.feed, subscriber.cursor
        sequence_id = None if cursor.next_sequence_id < 0 else cursor.next_sequence_id
        held_position = feed.state_watch.held_position(DLSN(*cursor.next_position, 0), sequence_id)
        try:
            resolution = await feed.state_watch.resolve_position(held_position)
        except DistributedLogError as lookup_error:
            subscriber.end(lookup_error)
            return
        if resolution.outcome is not PositionOutcome.CONTINUE:
            subscriber.end(resolution.error(feed.name, held_position))
            return
        assert resolution.position is not None, "a continuation has a position"
        if resolution.position[:2] > cursor.next_position:
            cursor.skip_to(resolution.position[:2])
        else:  # merged into another ledger, or a loss
            subscriber.failed_tries += 1
            if subscriber.failed_tries >= TRIES_MAX:
                subscriber.end(error)
                return
        feed.attach(subscriber)

    # --- ranges -----------------------------------------------------------------------------------

    async def _get_range(self, feed: TailFeed, position: EntryPosition) -> _CachedRange:
        """Return the range that starts at this position and ends at the ring at the latest.

        Subscribers at the same position share one read: the first one reads, the others wait for it. A failed
        read raises its error for all of them. The next subscriber reads again.
        """
        key = (feed, position)
        cached_range = self._ranges.get(key)
        if cached_range is None:
            cached_range = self._ranges[key] = _CachedRange()
            try:
                await self._read_range(feed, position, cached_range)
            except DistributedLogError as error:
                cached_range.error = error
                raise
            finally:
                cached_range.loaded.set()
                # This key only marked the read in progress. `_cache` adds a key per frame of the range, so a
                # range without frames is not found again.
                if (
                    self._ranges.get(key) is cached_range
                ):  # otherwise another range with this position is or was cached
                    del self._ranges[key]
                self._cache(feed, cached_range)
        else:
            await cached_range.loaded.wait()
            if cached_range.error is not None:
                raise cached_range.error.again()
            if cached_range in self._cached:
                self._cache(feed, cached_range)
        return cached_range

    def _cache(self, feed: TailFeed, cached_range: _CachedRange) -> None:
        """Cache a range for later subscribers, or mark it as used."""
        if cached_range not in self._cached:
            self._cached_bytes += cached_range.size
            for position in cached_range.spans:
                self._ranges[feed, position] = cached_range
        self._cached.pop(cached_range, None)
        self._cached[cached_range] = feed
        cached_range.used_at = trio.current_time()
        self.sweep()

    def sweep(self) -> None:
        """Drop cached ranges and open ledgers that were not used recently."""
        now = trio.current_time()
        for cached_range, feed in list(self._cached.items()):
            if (
                self._cached_bytes <= RANGE_CACHE_BYTES_MAX
                and now - cached_range.used_at <= RANGE_CACHE_S
            ):
                break
            del self._cached[cached_range]
            self._cached_bytes -= cached_range.size
            for position in cached_range.spans:
                if self._ranges.get((feed, position)) is cached_range:
                    del self._ranges[feed, position]
        for key, reader in list(self._open_readers.items()):
            if (
                len(self._open_readers) <= OPEN_READERS_MAX
                and now - reader.parked_at <= RANGE_CACHE_S
            ):
                break
            del self._open_readers[key]
            reader.ledger.close()

    async def _read_range(
        self, feed: TailFeed, position: EntryPosition, cached_range: _CachedRange
    ) -> None:
        number, entry = position
        reader = self._open_readers.pop((feed, position), None)
        ledger = None if reader is None else reader.ledger
        try:
            record = await self._load_segment(feed, number, reader)
            last = record.last_entry
            if feed.ring.begin[0] == number:
                last = feed.ring.begin[1] - 1
            if entry > last:
                if ledger is not None:
                    ledger.close()
                cached_range.next_position = (number + 1, 0)
                return
            if ledger is None:
                ledger = await open_segment(feed.context.ledgers, record)
            if not ledger.closed:
                ledger.record_lac(last)  # the feed has already read everything before the ring
            entries = await ledger.read(entry, last, bytes_max=RANGE_BYTES)
        except BaseException:
            if ledger is not None:
                ledger.close()
            raise
        self.ranges_read += 1
        cached_range.next_position = (number, entries[-1].entry + 1)
        if record.closed and entries[-1].entry == record.last_entry:
            cached_range.next_position = (number + 1, 0)
            ledger.close()
        else:
            self._keep_reader(
                feed, cached_range.next_position, _OpenReader(ledger, record, trio.current_time())
            )
        self._add_spans(cached_range, position, record, entries)

    async def _load_segment(
        self, feed: TailFeed, number: int, reader: _OpenReader | None
    ) -> SegmentRecord:
        """Return a segment's record, and wait for its end if the feed has left the segment."""
        # A closed segment does not change. If it was merged, its ledger is deleted, and `_resolve_position`
        # handles that.
        if reader is not None and reader.record.closed:
            record = reader.record
        else:
            record = await feed.state_watch.segment(number)
        if record.start_sequence_id == UNKNOWN or (
            not record.closed and feed.ring.begin[0] > number
        ):
            # The feed has seen the next segment. The log's state shows the end a moment later.
            with trio.move_on_after(ROLL_WAIT_S) as wait_scope:
                await feed.state_watch.wait_until(lambda state: state.first_open_segment > number)
            if wait_scope.cancelled_caught:
                raise LedgerStateUnknown(
                    f'log "{feed.name}": the end of segment {number} is not determined yet'
                )
            record = await feed.state_watch.segment(number)
        return record

    def _add_spans(
        self,
        cached_range: _CachedRange,
        first_position: EntryPosition,
        record: SegmentRecord,
        entries: Sequence[SegmentEntry],
    ) -> None:
        """Add the entries of a segment, from ``first_position``, as frames of at most `FRAME_BYTES`."""
        head = SegmentHead.of(record)
        number, span_begin, size = first_position[0], first_position, HEAD_BYTES
        parts: list[Buffer] = [head.encode()]
        next_id = -1
        for entry in entries:
            self.bytes_read += len(entry.record)
            header = decode_header(entry.payload)
            if header.is_control:
                continue
            if len(parts) > 1 and size + len(entry.record) > FRAME_BYTES:
                next_position, last_position = (number, entry.entry), (number, entry.entry - 1)
                span_begin = self._add_span(
                    cached_range, span_begin, parts, next_id, last_position, next_position
                )
                parts, size = [head.encode()], HEAD_BYTES
            parts.append(entry.record)
            size += len(entry.record)
            next_id = head.start_sequence_id + header.records_through
        if len(parts) > 1:
            self._add_span(
                cached_range,
                span_begin,
                parts,
                next_id,
                (number, entries[-1].entry),
                cached_range.next_position,
            )

    def _add_span(
        self,
        cached_range: _CachedRange,
        span_begin: EntryPosition,
        parts: list[Buffer],
        next_id: int,
        last_position: EntryPosition,
        next_position: EntryPosition,
    ) -> EntryPosition:
        """Add a frame and return the position at which the next one begins."""
        body = b"".join(parts)
        cached_range.spans[span_begin] = RingSpan(body, next_position, next_id, last_position)
        cached_range.size += len(body)
        return next_position

    def _keep_reader(self, feed: TailFeed, position: EntryPosition, reader: _OpenReader) -> None:
        """Keep a segment open for the subscriber that continues at this position."""
        previous = self._open_readers.pop((feed, position), None)
        if previous is not None:
            previous.ledger.close()
        self._open_readers[feed, position] = reader
        self.sweep()
