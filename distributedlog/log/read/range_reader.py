"""Reading ranges that a planner chose, in any process: entries as columns, fetched ahead, from several places
at once where one is not enough.

No search and no following: where the entries lie is in the range. Small ranges are fetched a few at a time,
a large one alone: to begin with a ledger costs as much as some replies. While the caller waits nearly all the
time, what is left is cut into parts of some MiB, and a few of them are fetched at a time, from bookies of
their own. What is fetched and not taken is bounded in bytes, but the part whose turn it is always gets on. A
log's state is read once at the beginning and again on any miss, so that a log which was deleted or truncated
meanwhile says so (H30); until a miss, what is there is given.
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
"""Of parts that are small, and so cost more waiting than reading: thousands of logs of a few records."""

log = get_logger("distributedlog.log")

OnLoss = Callable[[LogTruncated | LogNotFound], None]
OnReady = Callable[[], None]


@dataclass(slots=True)
class RangePart:
    """A part of a range, as far as it has been fetched and not taken."""

    segment_range: SegmentRange
    next_entry: int
    """The next entry to fetch."""
    ready: deque[Columns] = field(default_factory=deque)
    is_fetched: bool = False
    error: DistributedLogError | None = None
    """Why the rest of it does not come; known after what is ready."""

    next_sequence_id: int | None = None
    """The sequence id of the record that comes next; None: whatever comes is the first."""

    def next_position(self, slot: int) -> HeldPosition:
        """The next position to fetch, in this slot of the next entry."""
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
        """Nothing more of it comes."""
        self.error = error

    def split_off_rest(self) -> list[SegmentRange]:
        """What is further away than a part's bytes is not this part's any more."""
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
        """What is before it has been truncated."""
        if entry != self.next_entry:
            self.next_entry, self.next_sequence_id = entry, None

    def decode_next(self, entry: int, payload: memoryview) -> Columns | None:
        """The records of the next entry that are asked for; None for none. Raises `CorruptData`."""
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
    """Gives the user records of some ranges, entry by entry, in the order of the ranges.

    Made by `Log.open_ranges`; for one task at a time. Columns pin their whole entry (H17). The ranges may be
    of several logs. ``on_loss`` is told what was truncated or deleted since the ranges were planned: what it
    returns from is left out. Without it that ends the reader.
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
        """``on_ready`` is called whenever `read_ready` may give something, or its end: it must not raise.

        ``several``: from several bookies at once from the beginning.
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
        """The next part to be fetched."""
        self._current_index = 0
        """The part from which entries are taken."""
        self._buffered_bytes = 0
        self._nursery: trio.Nursery | None = None
        """While `run` runs."""
        self._scope = trio.CancelScope()
        self._ready_event = trio.Event()
        self._consumed_event = trio.Event()
        self._end_error: DistributedLogError | None = None
        """Why nothing can be taken any more."""
        self._lookups: dict[str, LogLookup] = {}
        """Of each incarnation, as it was looked at last."""
        self._starvation = StarvationDetector()
        self._waited_s = 0.0

    # --- for the caller ---------------------------------------------------------------------------

    async def read_columns(self) -> Columns | None:
        """The records of the next entry; None after the last one.

        Raises `LogTruncated` (naming the first position that is left), `LogDeleted`, `CorruptData`, or what
        kept the entries from being read for ``read_retry_s``; after an error the reader is over.
        """
        part = await self._wait_ready()
        if part is None:
            return None
        columns = part.ready.popleft()
        self._buffered_bytes -= columns.held_bytes
        self._consumed_event.set()
        return columns

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """As `read_columns`, then further entries that are here, up to ``bytes_max``; [] at the end.

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
        """As `read_columns_many`, each log's entries beside its name."""
        await self._wait_ready()
        return self.read_ready(bytes_max=bytes_max) or []

    def read_ready(self, *, bytes_max: int) -> list[tuple[str, list[Columns]]] | None:
        """As `read_by_log`, but what is here now: [] for nothing yet, None after the last one."""
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
        """From here on, several bookies at once: the caller waits for one. Idempotent.

        Only while `run` runs.
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
        # Those that are at work go on with what is new.
        for _ in range(task_count - len(self._nursery.child_tasks)):
            self._nursery.start_soon(self._fetch_parts)

    @property
    def current_range(self) -> SegmentRange | None:
        """The range, or the part of one, whose turn it is; None at the end."""
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
        """The part whose turn it is, when an entry of it is here; None after the last one."""
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
        """Nothing is ready. Raises where nothing will be."""
        if self._end_error is None and self._current_index < len(self._parts):
            self._end_error = self._parts[self._current_index].error
            if self._end_error is not None:
                self._scope.cancel()
        if self._end_error is not None:
            raise self._end_error.again()

    def _ready_part(self) -> RangePart | None:
        """The part whose turn it is, if an entry of it is here."""
        while self._current_index < len(self._parts):
            part = self._parts[self._current_index]
            if part.ready:
                return part
            if not part.is_fetched:
                return None
            self._current_index += 1
            self._consumed_event.set()  # the next one may be waiting for its turn
        return None

    # --- the fetching tasks -----------------------------------------------------------------------

    async def check(self) -> None:
        """Before `run`: is each range there? Raises `LogNotFound`, `LogTruncated`."""
        for part in self._parts:
            await self._resume_entry(part, part.segment_range.first_slot)

    async def run(self) -> None:
        """Fetch all ranges ahead of the caller. A task of the namespace."""
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
                self._next_to_fetch = len(self._parts)  # nothing after it will be taken
            if number == self._current_index:
                self._notify_ready()

    async def _fetch(self, number: int, part: RangePart) -> None:
        segment_range = part.segment_range  # but for where it lies, and how much of it there is
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
                    raise error  # the log says it is there: a loss, not a truncation (H30)
                part.resume_at(next_entry)
            except DistributedLogError as error:
                now = trio.current_time()
                if part.next_entry != failed_entry or failing_since is None:
                    failed_entry, failing_since = part.next_entry, now
                    backoff.reset()
                if not error.retryable or now - failing_since > self._options.read_retry_s:
                    raise
                log.info(
                    'log "%s" %d.%d: %s; tried again',
                    segment_range.log,
                    segment_range.segment,
                    part.next_entry,
                    error,
                )
                await trio.sleep(backoff.next_s())

    async def _fetch_from(self, number: int, part: RangePart) -> None:
        segment_range, base = part.segment_range, part.segment_range.base_entry
        # A part of a ledger is another bookie's, whoever reads it, than the part before it.
        replica_turn = segment_range.first_entry // segment_range.entries
        ledger = await self._context.ledgers.open(segment_range.ledger_id, turn=replica_turn)
        # What was compressed may be any number of times as long as what was read.
        buffer_bytes_max = self._options.read_ahead_bytes + self._options.read_bytes
        try:
            if not ledger.closed:
                ledger.record_lac(
                    base + segment_range.last_entry
                )  # the planner saw that it can be read (H24)
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
                        break  # it was cut off meanwhile
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
        """Something of the part whose turn it is, or its end, is here."""
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
        """The entry to read on from: the part's next one, or what is left after a truncation.

        Without ``slot`` an entry is there as long as a part of it is. Raises `LogTruncated` or `LogNotFound`
        unless it may be left out.
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
        """Does its segment lie in another ledger by now, since it was merged? Then it is read there."""
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
            if state.end is None:  # all that it has is there
                return LogLookup.of(state)
        return await look_up(context.metadata, context.namespace, segment_range.log, log_id)

    def _report_loss(self, error: DistributedLogError) -> None:
        assert isinstance(error, LogTruncated | LogNotFound), "nothing else becomes of a log"
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
    """A reader of ranges of one log. Raises `LogRecreated`, `LogNotFound`, `LogTruncated`."""
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
    """How many to fetch at a time: as many bytes as that are few of the usual size."""
    if not parts:
        return 0
    mean_bytes = sum(part.segment_range.size_bytes for part in parts) // len(parts)
    part_count = PARALLEL_PARTS * PART_BYTES // max(mean_bytes, 1)
    return min(
        max(part_count, PARALLEL_PARTS if parallel else 1), PARALLEL_SMALL_PARTS_MAX, len(parts)
    )
