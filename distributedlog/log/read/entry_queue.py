"""What was fetched and not yet taken: the entries between a reader and its source.

A source fills it (`fetcher.py` from the bookies; a subscription at a read proxy) and `LogReader` takes from
it. Here entries are cut to what the reader asked for, their sequence ids are checked to have no gap, and what
ends the reader is kept until everything before it was taken. It is bounded in bytes: a source waits while it
is full.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import AlreadyClosed, CorruptData, DistributedLogError
from ..declarations.options import LogOptions
from ..format.dlsn import DLSN
from ..format.record import Columns
from ..model.position import Position
from ..services.log_metrics import LogMeters
from .skipped_entries import SkipRecorder


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The records of an open log that a reader is given."""

    start: DLSN
    """No record before it is given."""
    position: Position | None = None
    """The start with its sequence id, if that is known before anything is read."""
    from_txid: int | None = None
    """The first record that is given has at least this txid."""
    from_time_ms: int | None = None
    """The first record that is given has at least this log time."""
    last_dlsn: DLSN | None = None
    """The last record that is given; None: there is no end."""
    is_empty: bool = False
    """No record is between start and end."""


class EntryQueue:
    """Decoded entries, cut to what was asked for, in order. One source fills it, one task takes from it."""

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
        """``on_news`` is called when an entry comes, or the end is reached; see also `subscribe`."""
        self.name = name
        self.incarnation = incarnation
        """Which log of this name it is."""
        start, position = read_range.start, read_range.position
        self.start, self.position, self.last_dlsn = start, position, read_range.last_dlsn
        self.entries: deque[Columns] = deque()
        self.buffered_bytes = 0
        self.ended = read_range.is_empty
        """Nothing more will come."""
        self.sealed = False
        """It ended because the log does."""
        self.error: DistributedLogError | None = None
        """It ended because of this, after what is here."""
        self.last_entry_at = trio.current_time()
        """When an entry came last, a control entry too, or the reader was opened, or had no room."""
        self.is_at_tail = False
        """Has all that is there been fetched, as far as it is known here?"""
        self.next_sequence_id = None if position is None else position.sequence_id - start.slot
        """The sequence id of the record that comes next; None: whatever comes is the first."""
        self.skips = skips
        """What was passed over; None: nothing may be."""
        self.waited_s = 0.0
        """For how long the reader has waited here."""
        self.bytes_max = options.read_ahead_bytes
        """Above it a source waits."""
        self.read_bytes = options.read_bytes
        """Of one request of the source."""
        self.meters = meters
        self.meters.readers += 1
        self._options = options
        # Both are compared until the first record that is wanted is found.
        self._from_txid, self._from_time_ms = read_range.from_txid, read_range.from_time_ms
        self._on_activity = on_activity
        self._last_response: Callable[[], float] | None = None
        self._stop_source: Callable[[], object] | None = None
        self._on_capacity: Callable[[], object] | None = None
        self._filled_event = trio.Event()
        self._consumed_event = trio.Event()

    def subscribe(self, on_activity: Callable[[], object]) -> None:
        """Have ``on_news`` called when an entry comes, or the end is reached."""
        self._on_activity = on_activity

    def connect_source(
        self,
        *,
        last_response: Callable[[], float],
        stop: Callable[[], object],
        on_capacity: Callable[[], object] | None = None,
    ) -> None:
        """Connect the source that fills it.

        Args:
            heard: Returns when a server last answered for this log.
            stop: Called at each `close` and `fail`: no more entries are wanted.
            on_room: Called at each `pop_entry` after which at least half of the capacity is free.
        """
        self._last_response, self._stop_source, self._on_capacity = last_response, stop, on_capacity

    # --- for the reader ---------------------------------------------------------------------------

    async def wait_filled(self) -> None:
        """Until there is something here, or nothing more will come. Yields at least once."""
        if self.entries or self.ended:
            await trio.lowlevel.checkpoint()
        while not self.entries and not self.ended:
            if self._filled_event.is_set():
                self._filled_event = trio.Event()
            wait_started = trio.current_time()
            await self._filled_event.wait()
            self.waited_s += trio.current_time() - wait_started

    def pop_entry(self) -> Columns:
        """The next entry; there is one."""
        columns = self.entries.popleft()
        bytes_before = self.buffered_bytes
        self.buffered_bytes = bytes_before - columns.held_bytes
        if 2 * self.buffered_bytes <= self.bytes_max:
            if 2 * bytes_before > self.bytes_max:
                self._consumed_event.set()  # not for each entry: the source's task would wake for nothing
            if self._on_capacity is not None:
                self._on_capacity()
        return columns

    def limit_bytes(self, limit_bytes: int) -> None:
        """What is fetched and not taken, and what is on its way, are as many bytes each, or an entry."""
        options = self._options
        self.bytes_max = min(limit_bytes, options.read_ahead_bytes)
        self.read_bytes = max(1, min(limit_bytes, options.read_bytes))
        self._consumed_event.set()

    @property
    def has_full_capacity(self) -> bool:
        """May it hold as much as its reader was opened with?"""
        return self.bytes_max >= self._options.read_ahead_bytes

    def return_entries(self, returned: Sequence[Columns]) -> None:
        """Entries that were taken, and not used."""
        if not isinstance(self.error, AlreadyClosed):
            self.entries.extendleft(reversed(returned))
            self.buffered_bytes += sum(columns.held_bytes for columns in returned)
            self._filled_event.set()

    @property
    def last_response_at(self) -> float:
        """When a server last answered for this log, or the reader was opened."""
        return self.last_entry_at if self._last_response is None else self._last_response()

    def close(self) -> None:
        """Nothing more is wanted; forget what is here. Idempotent."""
        self._stop(AlreadyClosed(f'log "{self.name}": this reader is closed'))

    def fail(self, error: DistributedLogError) -> None:
        """It is not the caller's any more: nothing that is here is given."""
        self._stop(error)

    def _stop(self, error: DistributedLogError) -> None:
        if self._stop_source is not None:
            self._stop_source()
        self.end(error)
        self.entries.clear()
        self.buffered_bytes = 0

    # --- for the source ---------------------------------------------------------------------------

    def check_sequence(self, position: DLSN, sequence_id: int, records: int) -> None:
        """An entry of so many records came. Raises `CorruptData` where it is not the one that comes next."""
        if self.next_sequence_id is not None and sequence_id != self.next_sequence_id:
            raise CorruptData(
                f'log "{self.name}" entry {position.segment}.{position.entry}: its first record has '
                "sequence id "
                f"{sequence_id}, and {self.next_sequence_id} should come next"
            )
        self.next_sequence_id = sequence_id + records

    def add_entry(self, columns: Columns) -> None:
        """Cut an entry's records to what the reader asked for, and keep them for it. Raises as
        `check_sequence`."""
        origin = columns.origin
        entry_address = (origin.segment, origin.entry)
        start, stop = 0, columns.count
        if origin.sequence_id != self.next_sequence_id and self.next_sequence_id is not None:
            self.check_sequence(DLSN(*entry_address, 0), origin.sequence_id, stop)
        self.next_sequence_id = origin.sequence_id + stop
        if entry_address == self.start[:2]:
            start = min(self.start.slot, stop)
        if self._from_txid is not None:
            while start < stop and columns.txids[start] < self._from_txid:
                start += 1
            if start < stop:
                self._from_txid = None  # found; the records after it are all wanted
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
                self._filled_event.set()  # nobody waits while there are some
            self.entries.append(columns)
            self.buffered_bytes += columns.held_bytes
            if self._on_activity is not None:
                self._on_activity()
        if is_last:
            self.end()

    async def wait_capacity(self) -> None:
        """While it is full."""
        while self.buffered_bytes > self.bytes_max and not self.ended:
            if self._consumed_event.is_set():
                self._consumed_event = trio.Event()
            await self._consumed_event.wait()
            self.last_entry_at = (
                trio.current_time()
            )  # the source waited for its reader, not for entries

    def end(self, error: DistributedLogError | None = None) -> None:
        """Nothing more will come; ``error`` is raised after what is here."""
        self.ended = True
        if self.error is None:
            self.error = error
        self._filled_event.set()
        self._consumed_event.set()
        if self._on_activity is not None:
            self._on_activity()


# On one machine more bookies add no capacity, and each costs more: a record of its ledger, and buffers that
# no cache has. So several are asked only by a reader that waits nearly all the time.

STARVATION_WINDOW_S = 0.5
"""For so long it is looked what one source is good for,"""
STARVED_FRACTION = 0.9
"""and this share of it was waited: who decodes most of the time needs no other."""


class StarvationDetector:
    """Of one that takes. It counts how long it waited, by a clock of its own."""

    def __init__(self) -> None:
        self._window_start: float | None = None
        self._waited_at_start_s = 0.0

    def is_starved(self, waited_s: float, now: float) -> bool:
        """Did it wait nearly all of the time that it was looked at? Asked whenever it was given something.

        ``waited_s``: since its beginning, in all.
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
        """Look anew."""
        self._window_start = None
