"""Read planned ranges of entries, in any process, as columns that are fetched ahead.

There is no search and no tailing, because each range has the location of its entries. Several small ranges
are fetched at a time, because opening a ledger costs as much as some replies. A large range is fetched alone.
If the caller waits nearly all the time, the rest is divided into parts of some MiB, and a few parts are
fetched at a time from different bookies.

The fetched entries are limited in bytes, but the part that is being delivered always makes progress. The
log's state is read at the start and again after a missing entry, so that a truncation or deletion is reported
(H30). Until then, all entries that exist are returned.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

import trio

from ...runtime.declarations.options import check_whole
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DistributedLogError,
    LogNotFound,
    LogTruncated,
    NoSuchEntry,
    NoSuchLedger,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ..format.dlsn import DLSN
from ..format.record import Columns, decode_columns, decode_header
from ..interfaces.error_boundary import error_boundary
from ..model.deleted_log_lookup import explain_deleted, look_up
from ..model.log_keys import incarnation_id, incarnation_text, segment_key, state_key
from ..model.log_state import LogState
from ..model.position_outcome import HeldPosition, LogLookup, PositionOutcome, resolve_position
from ..model.segment_ranges import WHOLE_ENTRY, SegmentRange
from ..model.segment_record import SegmentRecord
from ..services.log_context import LogContext
from .entry_queue import StarvationDetector

PART_BYTES = 8 * 1024 * 1024
PARALLEL_PARTS = 3
PARALLEL_SMALL_PARTS_MAX = 16
"""The maximum number of parts fetched at a time, if they are small and so cost more waiting than reading:
for example thousands of logs with a few records each."""

log = get_logger("distributedlog.log")

OnLoss = Callable[[LogTruncated | LogNotFound], None]
OnReady = Callable[[], None]


@dataclass(slots=True)
class RangePart:
    """A part of a range, with its fetched entries that were not taken yet."""

    segment_range: SegmentRange
    next_entry: int
    """The next entry to fetch."""
    ready: deque[Columns] = field(default_factory=deque)
    is_fetched: bool = False
    error: DistributedLogError | None = None
    """The error that prevents the fetch of the rest. It is raised after the fetched entries."""

    next_sequence_id: int | None = None
    """The sequence ID of the next record. None if the next entry is the first one, and is not checked."""

    def next_position(self, slot: int) -> HeldPosition:
        """Return the next position to fetch, at this slot of the next entry."""
        segment_range, sequence_id_before = self.segment_range, self.next_sequence_id
        if sequence_id_before is None and self.next_entry == 0:
            sequence_id_before = segment_range.start_sequence_id
        sequence_id = None if sequence_id_before is None else sequence_id_before + slot
        return HeldPosition(
            DLSN(segment_range.segment, self.next_entry, slot),
            segment_range.incarnation,
            sequence_id,
        )

    def fail(self, error: DistributedLogError) -> None:
        """End the part with an error."""
        self.error = error

    def split_off_rest(self) -> list[SegmentRange]:
        """Shorten the part to its next `PART_BYTES` bytes, and return the rest as ranges."""
        segment_range, entries_left = (
            self.segment_range,
            self.segment_range.last_entry + 1 - self.next_entry,
        )
        entries = PART_BYTES * segment_range.entries // max(segment_range.size_bytes, 1)
        if not 0 < entries < entries_left * 2 // 3:
            return []
        self.segment_range, rest = segment_range.split(
            self.next_entry - segment_range.first_entry + entries
        )
        return [rest]

    def resume_at(self, entry: int) -> None:
        """Continue at this entry, because the entries before it were truncated."""
        if entry != self.next_entry:
            self.next_entry, self.next_sequence_id = entry, None

    def decode_next(self, entry: int, payload: memoryview) -> Columns | None:
        """Return the requested records of the next entry. None if there are none.

        Raises:
            CorruptData: The entry is damaged, or its sequence ID is not the expected one.
        """
        segment_range = self.segment_range
        header = decode_header(payload)
        if header.is_control:
            return None
        sequence_id = segment_range.start_sequence_id + header.records_before
        if self.next_sequence_id is not None and sequence_id != self.next_sequence_id:
            raise CorruptData(
                f'log "{segment_range.log}" entry {segment_range.segment}.{entry}: its first record has '
                "sequence id "
                f"{sequence_id}, and {self.next_sequence_id} should come next"
            )
        columns = decode_columns(
            payload, header, segment_range.origin(entry, header), segment_range.log
        )
        self.next_sequence_id = sequence_id + header.count
        start, stop = 0, columns.count
        if entry == segment_range.first_entry:
            start = min(segment_range.first_slot, stop)
        if entry == segment_range.last_entry and segment_range.stop_slot != WHOLE_ENTRY:
            stop = min(stop, segment_range.stop_slot)
        if start >= stop:
            return None
        return columns if (start, stop) == (0, columns.count) else columns.cut(start, stop)


class RangeReader:
    """Delivers the user records of ranges, entry by entry, in the order of the ranges.

    `Log.open_ranges` creates it. Only one task may use it at a time. Columns keep their whole entry in memory
    (H17). The ranges can belong to several logs.
    """

    def __init__(
        self,
        context: LogContext,
        ranges: Sequence[SegmentRange],
        *,
        on_loss: OnLoss | None = None,
        on_ready: OnReady | None = None,
        parallel: bool = False,
    ) -> None:
        """Start at the first range.

        Args:
            on_loss: Called for each truncation or deletion since the ranges were planned. If it returns, the
                lost records are left out. By default, a loss ends the reader.
            on_ready: Called whenever `read_ready` may return entries or the end. It must not raise.
            parallel: Read from several bookies at once from the start.
        """
        self._context = context
        self._options = context.options
        self._on_loss = on_loss
        self._on_ready = on_ready
        self._parallel = parallel
        self._parts = [
            RangePart(part, part.first_entry)
            for segment_range in ranges
            for part in (
                _split_range(segment_range)
                if parallel
                else (segment_range,)
                if segment_range.entries > 0
                else ()
            )
        ]
        self._next_to_fetch = 0
        """The index of the next part to fetch."""
        self._current_index = 0
        """The index of the part from which entries are taken."""
        self._buffered_bytes = 0
        self._nursery: trio.Nursery | None = None
        """Set while `run` is active."""
        self._scope = trio.CancelScope()
        self._ready_event = trio.Event()
        self._consumed_event = trio.Event()
        self._end_error: DistributedLogError | None = None
        """The error of all further calls."""
        self._lookups: dict[str, LogLookup] = {}
        """The state of each incarnation when it was last read."""
        self._starvation = StarvationDetector()
        self._waited_s = 0.0

    # --- for the caller ---------------------------------------------------------------------------

    async def read_columns(self) -> Columns | None:
        """Return the records of the next entry, or None after the last one.

        Raises:
            LogTruncated: Entries were truncated. The error has the first position that remains.
            LogDeleted: The log was deleted.
            CorruptData: An entry is damaged.
            DistributedLogError: The entries could not be read for ``read_retry_s``, or an earlier error ended
                the reader.
        """
        part = await self._wait_ready()
        if part is None:
            return None
        columns = part.ready.popleft()
        self._buffered_bytes -= columns.held_bytes
        self._consumed_event.set()
        return columns

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """Return the next entry as `read_columns`, and further fetched entries, up to ``bytes_max``.

        Args:
            bytes_max: The payload bytes after which no further entry is added.
        Returns:
            The entries. An empty list after the last one.

        Raises: LogTruncated, LogDeleted, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        AlreadyClosed.
        """
        check_whole("bytes_max", bytes_max, 1)
        return [
            columns
            for _, log_columns in await self.read_by_log(bytes_max=bytes_max)
            for columns in log_columns
        ]

    async def read_by_log(self, *, bytes_max: int) -> list[tuple[str, list[Columns]]]:
        """Return entries as `read_columns_many`, grouped by log name."""
        await self._wait_ready()
        return self.read_ready(bytes_max=bytes_max) or []

    def read_ready(self, *, bytes_max: int) -> list[tuple[str, list[Columns]]] | None:
        """Return the fetched entries as `read_by_log`, without waiting.

        Returns:
            The entries by log name. An empty list if none is fetched, None after the last one.
        """
        part = self._ready_part()
        if part is None:
            self._raise_if_ended()
            return None if self._current_index == len(self._parts) else []
        batches: list[tuple[str, list[Columns]]] = []
        bytes_left = bytes_max
        while part is not None and bytes_left > 0:
            log_columns = []
            while part.ready and bytes_left > 0:
                columns = part.ready.popleft()
                log_columns.append(columns)
                bytes_left -= columns.payload_bytes
                self._buffered_bytes -= columns.held_bytes
            self._consumed_event.set()
            batches.append((part.segment_range.log, log_columns))
            part = self._ready_part()
        return batches

    def start_parallel_read(self) -> None:
        """Read from several bookies at once from now on, because the caller waits for one. Idempotent.

        Has no effect unless `run` is active.
        """
        if self._parallel or self._nursery is None or any(part.error for part in self._parts):
            return
        self._parallel = True
        unfetched = [part.segment_range for part in self._parts[self._next_to_fetch :]]
        if self._next_to_fetch:
            unfetched[:0] = self._parts[self._next_to_fetch - 1].split_off_rest()
        self._parts[self._next_to_fetch :] = [
            RangePart(part, part.first_entry)
            for segment_range in unfetched
            for part in _split_range(segment_range)
        ]
        task_count = _parallelism(self._parts[self._next_to_fetch :], parallel=True)
        # The running tasks continue with the new parts.
        for _ in range(task_count - len(self._nursery.child_tasks)):
            self._nursery.start_soon(self._fetch_parts)

    @property
    def current_range(self) -> SegmentRange | None:
        """The range that is being delivered, or its part. None at the end."""
        return (
            self._parts[self._current_index].segment_range
            if self._current_index < len(self._parts)
            else None
        )

    def __aiter__(self) -> "RangeReader":
        return self

    async def __anext__(self) -> Columns:
        columns = await self.read_columns()
        if columns is None:
            raise StopAsyncIteration
        return columns

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        self._close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "RangeReader":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close()

    async def _wait_ready(self) -> RangePart | None:
        """Wait until an entry of the present part is fetched, and return the part.

        None after the last one.
        """
        await trio.lowlevel.checkpoint()
        while (part := self._ready_part()) is None:
            self._raise_if_ended()
            if self._current_index == len(self._parts):
                return None
            if self._ready_event.is_set():
                self._ready_event = trio.Event()
            wait_started = trio.current_time()
            await self._ready_event.wait()
            now = trio.current_time()
            self._waited_s += now - wait_started
            if not self._parallel and self._starvation.is_starved(self._waited_s, now):
                self.start_parallel_read()
        return part

    def _raise_if_ended(self) -> None:
        if self._end_error is None and self._current_index < len(self._parts):
            self._end_error = self._parts[self._current_index].error
            if self._end_error is not None:
                self._scope.cancel()
        if self._end_error is not None:
            raise self._end_error.again()

    def _ready_part(self) -> RangePart | None:
        """Return the present part if it has a fetched entry."""
        while self._current_index < len(self._parts):
            part = self._parts[self._current_index]
            if part.ready:
                return part
            if not part.is_fetched:
                return None
            self._current_index += 1
            self._consumed_event.set()  # the fetch of the next part may wait for capacity
        return None

    # --- the fetching tasks -----------------------------------------------------------------------

    async def check(self) -> None:
        """Check before `run` that all ranges exist.

        Raises:
            LogNotFound, LogTruncated: A range was deleted, and ``on_loss`` is not given or raised.
        """
        for part in self._parts:
            await self._resume_entry(part, part.segment_range.first_slot)

    async def run(self) -> None:
        """Fetch all ranges ahead of the caller. Runs in a task of the namespace."""
        fetched = False
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    for _ in range(_parallelism(self._parts, parallel=self._parallel)):
                        nursery.start_soon(self._fetch_parts)
                fetched = True
        finally:
            self._nursery = None
            if not fetched:
                self._end_with(self._closed_error("the namespace was closed"))

    async def _fetch_parts(self) -> None:
        while self._next_to_fetch < len(self._parts):
            number = self._next_to_fetch
            self._next_to_fetch += 1
            part = self._parts[number]
            with error_boundary(f'a reader of ranges of log "{part.segment_range.log}"', part.fail):
                await self._fetch(number, part)
                part.is_fetched = True
            if part.error is not None:
                self._next_to_fetch = len(self._parts)  # no part after it will be delivered
            if number == self._current_index:
                self._notify_ready()

    async def _fetch(self, number: int, part: RangePart) -> None:
        segment_range = part.segment_range  # its location and its end may change below
        failing_since: float | None = None
        failed_entry = -1
        backoff = Backoff()
        while part.next_entry <= part.segment_range.last_entry:
            try:
                part.resume_at(await self._resume_entry(part))
                if part.next_entry <= part.segment_range.last_entry:
                    await self._fetch_from(number, part)
            except (NoSuchLedger, NoSuchEntry) as error:
                self._lookups.pop(segment_range.incarnation, None)
                next_entry = await self._resume_entry(part)
                if next_entry == part.next_entry and not await self._follow_merge(part):
                    raise error  # by the log's state the entry exists, so it is lost, not truncated (H30)
                part.resume_at(next_entry)
            except DistributedLogError as error:
                now = trio.current_time()
                if part.next_entry != failed_entry or failing_since is None:
                    failed_entry, failing_since = part.next_entry, now
                    backoff.reset()
                if not error.retryable or now - failing_since > self._options.read_retry_s:
                    raise
                log.info(
                    'retrying log "%s" %d.%d after an error: %s',
                    segment_range.log,
                    segment_range.segment,
                    part.next_entry,
                    error,
                )
                await trio.sleep(backoff.next_s())

    async def _fetch_from(self, number: int, part: RangePart) -> None:
        segment_range, base = part.segment_range, part.segment_range.base_entry
        # Each part of a ledger is read from another bookie than the part before it, in any process.
        replica_turn = segment_range.first_entry // segment_range.entries
        ledger = await self._context.ledgers.open(
            segment_range.ledger_id, replica_offset=replica_turn
        )
        # Decompressed entries can be many times as large as the read ones.
        buffer_bytes_max = self._options.read_ahead_bytes + self._options.read_bytes
        try:
            if not ledger.closed:
                ledger.record_lac(
                    base + segment_range.last_entry
                )  # the planner has seen that the range is readable (H24)
            while part.next_entry <= part.segment_range.last_entry:
                entries = await ledger.read(
                    base + part.next_entry,
                    base + part.segment_range.last_entry,
                    bytes_max=self._options.read_bytes,
                )
                for entry in entries:
                    if self._buffered_bytes > buffer_bytes_max:
                        if number == self._current_index:
                            self._notify_ready()
                        await self._wait_capacity(number, part)
                    if part.next_entry > part.segment_range.last_entry:
                        break  # the part was shortened during the wait
                    columns = part.decode_next(entry.entry - base, entry.payload)
                    part.next_entry = entry.entry - base + 1
                    if columns is not None:
                        part.ready.append(columns)
                        self._buffered_bytes += columns.held_bytes
                if part.ready and number == self._current_index:
                    self._notify_ready()
                await self._wait_capacity(number, part)
        finally:
            ledger.close()

    def _notify_ready(self) -> None:
        """Wake the caller: an entry of the present part, or its end, is available."""
        self._ready_event.set()
        if self._on_ready is not None:
            self._on_ready()

    async def _wait_capacity(self, number: int, part: RangePart) -> None:
        while self._buffered_bytes > self._options.read_ahead_bytes and (
            part.ready or number != self._current_index
        ):
            if self._consumed_event.is_set():
                self._consumed_event = trio.Event()
            await self._consumed_event.wait()

    async def _resume_entry(self, part: RangePart, slot: int | None = None) -> int:
        """Return the entry at which to continue: the part's next one, or the first one after a truncation.

        Without ``slot``, an entry counts as existing if some part of it is not truncated.

        Raises:
            LogTruncated, LogNotFound: Entries are lost, and ``on_loss`` is not given or raised.
        """
        segment_range = part.segment_range
        lookup = self._lookups.get(segment_range.incarnation)
        if lookup is None:
            lookup = self._lookups[segment_range.incarnation] = await self._look_up(segment_range)
        held_position = part.next_position(slot or 0)
        resolution = resolve_position(held_position, lookup)
        if (
            slot is None
            and resolution.position is not None
            and resolution.position[:2] == held_position.dlsn[:2]
        ):
            return part.next_entry
        if resolution.outcome is not PositionOutcome.CONTINUE:
            self._report_loss(resolution.error(segment_range.log, held_position))
        if resolution.position is None or resolution.position.segment != segment_range.segment:
            return segment_range.last_entry + 1
        return resolution.position.entry

    async def _follow_merge(self, part: RangePart) -> bool:
        """Return whether the segment was merged into another ledger. If so, the part is read there."""
        segment_range = part.segment_range
        stored = await self._context.metadata.get(
            segment_key(incarnation_id(segment_range.incarnation), segment_range.segment)
        )
        if stored is None:
            return False
        record = SegmentRecord.decode(stored.value)
        if record.ledger_id == segment_range.ledger_id:
            return False
        part.segment_range = replace(
            segment_range, ledger_id=record.ledger_id, base_entry=record.base_entry
        )
        return True

    async def _look_up(self, segment_range: SegmentRange) -> LogLookup:
        context, log_id = self._context, incarnation_id(segment_range.incarnation)
        stored = await context.metadata.get(state_key(log_id))
        if stored is not None:
            state = LogState.decode(stored.value)
            if state.end is None:  # no deletion has started, so all entries exist
                return LogLookup.of(state)
        return await look_up(context.metadata, context.namespace, segment_range.log, log_id)

    def _report_loss(self, error: DistributedLogError) -> None:
        assert isinstance(error, LogTruncated | LogNotFound), "a log is truncated or deleted"
        if self._on_loss is None:
            raise error
        self._on_loss(error)

    # --- the end ----------------------------------------------------------------------------------

    def _close(self) -> None:
        self._scope.cancel()
        self._end_with(self._closed_error("this reader is closed"))
        for part in self._parts:
            part.ready.clear()

    def _end_with(self, error: DistributedLogError) -> None:
        if self._end_error is None:
            self._end_error = error
            self._notify_ready()

    def _closed_error(self, reason: str) -> AlreadyClosed:
        segment_range = self.current_range
        return AlreadyClosed(
            f"ranges: {reason}" if segment_range is None else f'log "{segment_range.log}": {reason}'
        )


async def open_ranges(
    context: LogContext, name: str, log_id: int, ranges: Sequence[SegmentRange]
) -> RangeReader:
    """Open a reader of ranges of one log.

    Raises:
        LogRecreated: A range belongs to a deleted log of the same name.
        LogNotFound: The log was deleted.
        LogTruncated: A range starts before the truncation point.
    """
    incarnation = incarnation_text(log_id)
    for segment_range in ranges:
        if segment_range.incarnation != incarnation:
            raise await explain_deleted(
                context.metadata, context.namespace, name, segment_range.held_position
            )
    reader = RangeReader(context, [replace(segment_range, log=name) for segment_range in ranges])
    await reader.check()
    context.start(reader.run)
    return reader


def _split_range(segment_range: SegmentRange) -> Iterator[SegmentRange]:
    rest = segment_range
    while rest.size_bytes > PART_BYTES * 3 // 2 and rest.entries > 1:
        entries = max(1, PART_BYTES * rest.entries // rest.size_bytes)
        if entries >= rest.entries:
            break
        head, rest = rest.split(entries)
        yield head
    if rest.entries > 0:
        yield rest


def _parallelism(parts: Sequence[RangePart], *, parallel: bool) -> int:
    """Return how many parts to fetch at a time, so that small parts have as many bytes in sum as a few
    large ones."""
    if not parts:
        return 0
    mean_bytes = sum(part.segment_range.size_bytes for part in parts) // len(parts)
    part_count = PARALLEL_PARTS * PART_BYTES // max(mean_bytes, 1)
    return min(
        max(part_count, PARALLEL_PARTS if parallel else 1), PARALLEL_SMALL_PARTS_MAX, len(parts)
    )
