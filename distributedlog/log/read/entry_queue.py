"""A bounded queue of fetched entries between a reader and its source.

A source fills it (`fetcher.py` from the bookies, or a subscription at a read proxy), and `LogReader` takes
entries from it. The queue cuts entries to the requested records and checks that sequence IDs have no gap. An
error that ends the reader is raised only after all entries before it. The queue is limited in bytes, and a
source waits while it is full.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import AlreadyClosed, CorruptData, DistributedLogError
from ..declarations.options import LogOptions
from ..format.dlsn import DLSN
from ..format.record import Columns
from ..model.position import Position
from ..services.log_metrics import LogMeters, ReaderLag
from .skipped_entries import SkipRecorder


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The records of an open log that a reader returns."""

    start: DLSN
    """No record before this position is returned."""
    position: Position | None = None
    """The start with its sequence ID, if it is known before anything is read."""
    from_txid: int | None = None
    """The first returned record has at least this transaction ID."""
    from_time_ms: int | None = None
    """The first returned record has at least this log time, in milliseconds since 1970."""
    last_dlsn: DLSN | None = None
    """The last record that is returned. None for no end."""
    is_empty: bool = False
    """Whether no record is between start and end."""


class EntryQueue:
    """Decoded entries in order, cut to the requested records.

    One source adds entries, one task takes them.
    """

    def __init__(
        self,
        name: str,
        incarnation: str,
        read_range: ReadRange,
        *,
        options: LogOptions,
        meters: LogMeters,
        skips: SkipRecorder | None = None,
        on_activity: Callable[[], object] | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            on_activity: Called when an entry was added or the end is reached. See also `subscribe`.
            skips: Records skipped entries. None if no entry can be skipped.
        """
        self.name = name
        self.incarnation = incarnation
        """The incarnation of the log with this name."""
        start, position = read_range.start, read_range.position
        self.start, self.position, self.last_dlsn = start, position, read_range.last_dlsn
        self.entries: deque[Columns] = deque()
        self.buffered_bytes = 0
        self.ended = read_range.is_empty
        """Whether no more entries will be added."""
        self.sealed = False
        """Whether the queue ended at the end of a sealed log."""
        self.error: DistributedLogError | None = None
        """The error that ended the queue. It is raised after the queued entries."""
        self._dropped = False
        """Whether the queued entries were dropped, because the reader does not return them."""
        self.last_entry_at = trio.current_time()
        """The time of the last entry, control entries included, or the time when the reader was opened or
        was last full."""
        self.last_time_ms = 0
        """The log time of the last decoded entry, in milliseconds since 1970. 0 before the first one."""
        self.is_at_tail = False
        """Whether all entries that are known here to exist were fetched."""
        sequence_id = None if position is None else position.sequence_id
        self.next_sequence_id = None if start.slot else sequence_id
        """The sequence ID of the first record of the next entry. None if it is not known."""
        self.start_sequence_id = sequence_id if start.slot else None
        """The sequence ID at a start within an entry, until the first entry arrives. The entry may have fewer
        records than the slot of the start, because a DLSN need not be that of a record."""
        self.skips = skips
        """The skipped entries. None if no entry can be skipped."""
        self.waited_s = 0.0
        """The total time for which the reader waited for entries, in seconds."""
        self.bytes_max = options.read_ahead_bytes
        """The source waits while more bytes than this are queued."""
        self.read_bytes = options.read_bytes
        """The size of one request of the source, in bytes."""
        self.meters = meters
        self.meters.readers += 1
        self._options = options
        # Both are compared until the first requested record is found.
        self._from_txid, self._from_time_ms = read_range.from_txid, read_range.from_time_ms
        self._on_activity = on_activity
        self._last_response: Callable[[], float] | None = None
        self._stop_source: Callable[[], object] | None = None
        self._on_capacity: Callable[[], object] | None = None
        self._unfetched: Callable[[], ReaderLag] | None = None
        self._filled_event = trio.Event()
        self._consumed_event = trio.Event()

    def subscribe(self, on_activity: Callable[[], object]) -> None:
        """Call ``on_activity`` when an entry was added or the end is reached."""
        self._on_activity = on_activity

    def connect_source(
        self,
        *,
        last_response: Callable[[], float],
        stop: Callable[[], object],
        on_capacity: Callable[[], object] | None = None,
        unfetched: Callable[[], ReaderLag] | None = None,
    ) -> None:
        """Connect the source that fills the queue.

        Args:
            last_response: Returns the time when a server last answered for this log. It distinguishes an idle
                log from unreachable servers (`last_response_at`).
            stop: Called at each `close` and `fail`, because no more entries are needed.
            on_capacity: Called after each `pop_entry` that leaves at least half of the capacity free.
            unfetched: Returns the records after the queued ones. Any thread may call it. None if the source
                has no information about them. The reader then has no lag in the metrics.
        """
        self._last_response, self._stop_source, self._on_capacity = last_response, stop, on_capacity
        self._unfetched = unfetched

    # --- for the reader ---------------------------------------------------------------------------

    async def wait_filled(self) -> None:
        """Wait until an entry is queued, or the end is reached. Yields at least once."""
        if self.entries or self.ended:
            await trio.lowlevel.checkpoint()
        while not self.entries and not self.ended:
            if self._filled_event.is_set():
                self._filled_event = trio.Event()
            wait_started = trio.current_time()
            await self._filled_event.wait()
            self.waited_s += trio.current_time() - wait_started

    def pop_entry(self) -> Columns:
        """Remove and return the next entry. The queue must not be empty."""
        columns = self.entries.popleft()
        bytes_before = self.buffered_bytes
        self.buffered_bytes = bytes_before - columns.held_bytes
        if 2 * self.buffered_bytes <= self.bytes_max:
            if 2 * bytes_before > self.bytes_max:
                self._consumed_event.set()  # only here, so that not each entry wakes the source's task
            if self._on_capacity is not None:
                self._on_capacity()
        return columns

    def limit_bytes(self, limit_bytes: int) -> None:
        """Limit the queued bytes, and the bytes of one request, to ``limit_bytes`` each, or to one entry."""
        options = self._options
        self.bytes_max = min(limit_bytes, options.read_ahead_bytes)
        self.read_bytes = max(1, min(limit_bytes, options.read_bytes))
        self._consumed_event.set()

    @property
    def has_full_capacity(self) -> bool:
        """Whether the queue can hold as many bytes as at the opening of the reader."""
        return self.bytes_max >= self._options.read_ahead_bytes

    def return_entries(self, returned: Sequence[Columns]) -> None:
        """Put entries back that were taken and not used."""
        if not isinstance(self.error, AlreadyClosed):
            self.entries.extendleft(reversed(returned))
            self.buffered_bytes += sum(columns.held_bytes for columns in returned)
            self._filled_event.set()

    def lag(self, unreturned: Sequence[Columns] = ()) -> list[ReaderLag]:
        """Return the lag of the reader. Any thread may call it.

        Args:
            unreturned: The entries that were taken and not returned to the program, and parts of entries, in
                order.
        Returns:
            One lag, or an empty list for a closed reader and for one that stops before the end of the log.
            If the source has no information about the end, the list is empty, because a sum of the queued
            entries would look as if the reader was near the end.
        """
        if self._unfetched is None or self.last_dlsn is not None:
            return []
        if self._dropped or isinstance(self.error, AlreadyClosed):
            return []
        unfetched = ReaderLag(0, 0, 0) if self.ended else self._unfetched()
        records, size = unfetched.records, self.buffered_bytes + unfetched.bytes
        size += sum(columns.held_bytes for columns in unreturned)
        since_ms = max(self.last_time_ms, unfetched.since_ms)
        first: Columns | None = None
        with suppress(IndexError):  # the reader's thread may take the entry at any time
            first = unreturned[0] if unreturned else self.entries[0]
        if first is not None:
            since_ms = first.time_ms
            records += max(0, (self.next_sequence_id or 0) - first.first_sequence_id)
        return [ReaderLag(records, size, since_ms) if records else ReaderLag(0, 0, 0)]

    @property
    def last_response_at(self) -> float:
        """The time when a server last answered for this log, or when the reader was opened."""
        return self.last_entry_at if self._last_response is None else self._last_response()

    def close(self) -> None:
        """Stop the source and drop the queued entries. Idempotent."""
        self._stop(AlreadyClosed(f'log "{self.name}": this reader is closed'))

    def fail(self, error: DistributedLogError) -> None:
        """End the queue with an error and drop the queued entries, so that the caller receives none of
        them."""
        self._stop(error)

    def _stop(self, error: DistributedLogError) -> None:
        if self._stop_source is not None:
            self._stop_source()
        self._dropped = True
        self.end(error)
        self.entries.clear()
        self.buffered_bytes = 0

    # --- for the source ---------------------------------------------------------------------------

    def check_sequence(self, position: DLSN, sequence_id: int, records: int) -> None:
        """Record the arrival of an entry with this number of records.

        Raises:
            CorruptData: The sequence ID is not the expected one.
        """
        if self.next_sequence_id is not None and sequence_id != self.next_sequence_id:
            raise CorruptData(
                f'log "{self.name}" entry {position.segment}.{position.entry}: its first record has '
                "sequence id "
                f"{sequence_id}, and {self.next_sequence_id} should come next"
            )
        self.next_sequence_id = sequence_id + records

    def add_entry(self, columns: Columns) -> None:
        """Cut an entry to the requested records and queue it.

        Raises:
            CorruptData: The sequence ID is not the expected one.
        """
        origin = columns.origin
        entry_address = (origin.segment, origin.entry)
        start, stop = 0, columns.count
        if self.start_sequence_id is not None:
            records_before = min(self.start.slot, stop) if entry_address == self.start[:2] else 0
            self.next_sequence_id = self.start_sequence_id - records_before
            self.start_sequence_id = None
        if origin.sequence_id != self.next_sequence_id and self.next_sequence_id is not None:
            self.check_sequence(DLSN(*entry_address, 0), origin.sequence_id, stop)
        self.next_sequence_id, self.last_time_ms = origin.sequence_id + stop, origin.time_ms
        if entry_address == self.start[:2]:
            start = min(self.start.slot, stop)
        if self._from_txid is not None:
            while start < stop and columns.txids[start] < self._from_txid:
                start += 1
            if start < stop:
                self._from_txid = None  # found, and all records after it are returned
        if self._from_time_ms is not None:
            if columns.time_ms < self._from_time_ms:
                start = stop
            else:
                self._from_time_ms = None
        is_last = False
        if self.last_dlsn is not None and entry_address >= self.last_dlsn[:2]:
            is_last = True
            stop = min(stop, self.last_dlsn.slot + 1) if entry_address == self.last_dlsn[:2] else 0
        if start < stop:
            if start or stop < columns.count:
                columns = columns.cut(start, stop)
            if not self.entries:
                self._filled_event.set()  # the reader only waits while the queue is empty
            self.entries.append(columns)
            self.buffered_bytes += columns.held_bytes
            if self._on_activity is not None:
                self._on_activity()
        if is_last:
            self.end()

    async def wait_capacity(self) -> None:
        """Wait while the queue is full."""
        while self.buffered_bytes > self.bytes_max and not self.ended:
            if self._consumed_event.is_set():
                self._consumed_event = trio.Event()
            await self._consumed_event.wait()
            self.last_entry_at = (
                trio.current_time()
            )  # the source waited for its reader, not for entries

    def end(self, error: DistributedLogError | None = None) -> None:
        """End the queue. ``error`` is raised after the queued entries. The first error is kept."""
        self.ended = True
        if self.error is None:
            self.error = error
        self._filled_event.set()
        self._consumed_event.set()
        if self._on_activity is not None:
            self._on_activity()


# On one machine more bookies add no capacity, and each one has a cost: a record of its ledger, and buffers
# that are in no cache. So only a reader that waits nearly all the time reads from several bookies.

STARVATION_WINDOW_S = 0.5
"""The time for which the throughput of one source is observed."""
STARVED_FRACTION = 0.9
"""The fraction of the window for which a starved reader waited. A reader that mostly decodes needs no
other source."""


class StarvationDetector:
    """Detects whether a reader waits for its source nearly all the time."""

    def __init__(self) -> None:
        self._window_start: float | None = None
        self._waited_at_start_s = 0.0

    def is_starved(self, waited_s: float, now: float) -> bool:
        """Return whether the reader waited nearly all of the observed time. Called whenever it received
        something.

        Args:
            waited_s: The total wait since its start, in seconds.
            now: The present time, in seconds.
        """
        window_start = self._window_start
        if window_start is None:
            self._window_start, self._waited_at_start_s = now, waited_s
            return False
        if now - window_start < STARVATION_WINDOW_S:
            return False
        self._window_start = None
        return waited_s - self._waited_at_start_s >= STARVED_FRACTION * (now - window_start)

    def reset(self) -> None:
        """Restart the observation."""
        self._window_start = None
