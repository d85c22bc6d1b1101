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
from ..format.record import Columns, decode, decode_header
from ..interfaces.error_boundary import error_boundary
from ..model.deleted_log_lookup import explain_deleted, look_up
from ..model.log_keys import incarnation_id, incarnation_text, segment_key, state_key
from ..model.log_state import LogState
from ..model.position_outcome import HeldPosition, LogLookup, PositionOutcome, resolve_position
from ..model.segment_ranges import WHOLE, SegmentRange
from ..model.segment_record import SegmentRecord
from ..services.log_context import LogContext
from .entry_queue import StarvationDetector

PART_BYTES = 8 * 1024 * 1024
PARTS_AT_ONCE = 3
SMALL_AT_ONCE = 16
"""Of parts that are small, and so cost more waiting than reading: thousands of logs of a few records."""

log = get_logger("distributedlog.log")

OnLoss = Callable[[LogTruncated | LogNotFound], None]
OnReady = Callable[[], None]


@dataclass(slots=True)
class RangePart:
    """A part of a range, as far as it has been fetched and not taken."""

    range: SegmentRange
    at: int
    """The next entry to fetch."""
    ready: deque[Columns] = field(default_factory=deque)
    done: bool = False
    error: DistributedLogError | None = None
    """Why the rest of it does not come; known after what is ready."""

    next_id: int | None = None
    """The sequence id of the record that comes next; None: whatever comes is the first."""

    def held(self, slot: int) -> HeldPosition:
        """The next position to fetch, in this slot of the next entry."""
        one, before = self.range, self.next_id
        if before is None and self.at == 0:
            before = one.start_sequence_id
        sequence_id = None if before is None else before + slot
        return HeldPosition(DLSN(one.segment, self.at, slot), one.incarnation, sequence_id)

    def fail(self, error: DistributedLogError) -> None:
        """Nothing more of it comes."""
        self.error = error

    def cut_off(self) -> list[SegmentRange]:
        """What is further away than a part's bytes is not this part's any more."""
        one, left = self.range, self.range.last_entry + 1 - self.at
        entries = PART_BYTES * one.entries // max(one.size_bytes, 1)
        if not 0 < entries < left * 2 // 3:
            return []
        self.range, rest = one.cut(self.at - one.first_entry + entries)
        return [rest]

    def go_on_at(self, entry: int) -> None:
        """What is before it has been truncated."""
        if entry != self.at:
            self.at, self.next_id = entry, None

    def decoded(self, entry: int, payload: memoryview) -> Columns | None:
        """The records of the next entry that are asked for; None for none. Raises `CorruptData`."""
        one = self.range
        header = decode_header(payload)
        if header.control:
            return None
        sequence_id = one.start_sequence_id + header.records_before
        if self.next_id is not None and sequence_id != self.next_id:
            raise CorruptData(
                f'log "{one.log}" entry {one.segment}.{entry}: its first record has sequence id '
                f"{sequence_id}, and {self.next_id} should come next"
            )
        columns = decode(payload, header, one.origin(entry, header), one.log)
        self.next_id = sequence_id + header.count
        start, stop = 0, columns.count
        if entry == one.first_entry:
            start = min(one.first_slot, stop)
        if entry == one.last_entry and one.stop_slot != WHOLE:
            stop = min(stop, one.stop_slot)
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
        several: bool = False,
    ) -> None:
        """``on_ready`` is called whenever `take` may give something, or its end: it must not raise.

        ``several``: from several bookies at once from the beginning.
        """
        self._context = context
        self._options = context.options
        self._on_loss = on_loss
        self._on_ready = on_ready
        self._several = several
        self._parts = [
            RangePart(part, part.first_entry)
            for one in ranges
            for part in (_cut(one) if several else (one,) if one.entries > 0 else ())
        ]
        self._next = 0
        """The next part to be fetched."""
        self._turn = 0
        """The part from which entries are taken."""
        self._held_bytes = 0
        self._nursery: trio.Nursery | None = None
        """While `run` runs."""
        self._scope = trio.CancelScope()
        self._filled = trio.Event()
        self._taken = trio.Event()
        self._over: DistributedLogError | None = None
        """Why nothing can be taken any more."""
        self._found: dict[str, LogLookup] = {}
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
        self._held_bytes -= columns.held_bytes
        self._taken.set()
        return columns

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """As `read_columns`, then further entries that are here, up to ``bytes_max``; [] at the end.

        Raises: LogTruncated, LogDeleted, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        AlreadyClosed.
        """
        check_whole("bytes_max", bytes_max, 1)
        return [one for _, some in await self.read_by_log(bytes_max=bytes_max) for one in some]

    async def read_by_log(self, *, bytes_max: int) -> list[tuple[str, list[Columns]]]:
        """As `read_columns_many`, each log's entries beside its name."""
        await self._wait_ready()
        return self.take(bytes_max=bytes_max) or []

    def take(self, *, bytes_max: int) -> list[tuple[str, list[Columns]]] | None:
        """As `read_by_log`, but what is here now: [] for nothing yet, None after the last one."""
        part = self._ready()
        if part is None:
            self._check_over()
            return None if self._turn == len(self._parts) else []
        found: list[tuple[str, list[Columns]]] = []
        left = bytes_max
        while part is not None and left > 0:
            some = []
            while part.ready and left > 0:
                columns = part.ready.popleft()
                some.append(columns)
                left -= columns.payload_bytes
                self._held_bytes -= columns.held_bytes
            self._taken.set()
            found.append((part.range.log, some))
            part = self._ready()
        return found

    def read_from_several(self) -> None:
        """From here on, several bookies at once: the caller waits for one. Idempotent.

        Only while `run` runs.
        """
        if self._several or self._nursery is None or any(part.error for part in self._parts):
            return
        self._several = True
        rest = [part.range for part in self._parts[self._next :]]
        if self._next:
            rest[:0] = self._parts[self._next - 1].cut_off()
        self._parts[self._next :] = [
            RangePart(part, part.first_entry) for one in rest for part in _cut(one)
        ]
        wanted = _at_once(self._parts[self._next :], several=True)
        # Those that are at work go on with what is new.
        for _ in range(wanted - len(self._nursery.child_tasks)):
            self._nursery.start_soon(self._work)

    @property
    def next(self) -> SegmentRange | None:
        """The range, or the part of one, whose turn it is; None at the end."""
        return self._parts[self._turn].range if self._turn < len(self._parts) else None

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
        while (part := self._ready()) is None:
            self._check_over()
            if self._turn == len(self._parts):
                return None
            if self._filled.is_set():
                self._filled = trio.Event()
            began = trio.current_time()
            await self._filled.wait()
            now = trio.current_time()
            self._waited_s += now - began
            if not self._several and self._starvation.is_seen(self._waited_s, now):
                self.read_from_several()
        return part

    def _check_over(self) -> None:
        """Nothing is ready. Raises where nothing will be."""
        if self._over is None and self._turn < len(self._parts):
            self._over = self._parts[self._turn].error
            if self._over is not None:
                self._scope.cancel()
        if self._over is not None:
            raise self._over.again()

    def _ready(self) -> RangePart | None:
        """The part whose turn it is, if an entry of it is here."""
        while self._turn < len(self._parts):
            part = self._parts[self._turn]
            if part.ready:
                return part
            if not part.done:
                return None
            self._turn += 1
            self._taken.set()  # the next one may be waiting for its turn
        return None

    # --- the fetching tasks -----------------------------------------------------------------------

    async def check(self) -> None:
        """Before `run`: is each range there? Raises `LogNotFound`, `LogTruncated`."""
        for one in self._parts:
            await self._still_there(one, one.range.first_slot)

    async def run(self) -> None:
        """Fetch all ranges ahead of the caller. A task of the namespace."""
        fetched = False
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    for _ in range(_at_once(self._parts, several=self._several)):
                        nursery.start_soon(self._work)
                fetched = True
        finally:
            self._nursery = None
            if not fetched:
                self._end(self._closed("the namespace was closed"))

    async def _work(self) -> None:
        while self._next < len(self._parts):
            number = self._next
            self._next += 1
            part = self._parts[number]
            with error_boundary(f'a reader of ranges of log "{part.range.log}"', part.fail):
                await self._fetch(number, part)
                part.done = True
            if part.error is not None:
                self._next = len(self._parts)  # nothing after it will be taken
            if number == self._turn:
                self._tell()

    async def _fetch(self, number: int, part: RangePart) -> None:
        one = part.range  # but for where it lies, and how much of it there is
        trouble_since: float | None = None
        before = -1
        backoff = Backoff()
        while part.at <= part.range.last_entry:
            try:
                part.go_on_at(await self._still_there(part))
                if part.at <= part.range.last_entry:
                    await self._fetch_from(number, part)
            except (NoSuchLedger, NoSuchEntry) as error:
                self._found.pop(one.incarnation, None)
                at = await self._still_there(part)
                if at == part.at and not await self._moved(part):
                    raise error  # the log says it is there: a loss, not a truncation (H30)
                part.go_on_at(at)
            except DistributedLogError as error:
                now = trio.current_time()
                if part.at != before or trouble_since is None:
                    before, trouble_since = part.at, now
                    backoff.reset()
                if not error.retryable or now - trouble_since > self._options.read_retry_s:
                    raise
                log.info('log "%s" %d.%d: %s; tried again', one.log, one.segment, part.at, error)
                await trio.sleep(backoff.next_s())

    async def _fetch_from(self, number: int, part: RangePart) -> None:
        one, base = part.range, part.range.base_entry
        # A part of a ledger is another bookie's, whoever reads it, than the part before it.
        turn = one.first_entry // one.entries
        ledger = await self._context.ledgers.open(one.ledger_id, turn=turn)
        # What was compressed may be any number of times as long as what was read.
        most = self._options.read_ahead_bytes + self._options.read_bytes
        try:
            if not ledger.closed:
                ledger.note_lac(base + one.last_entry)  # the planner saw that it can be read (H24)
            while part.at <= part.range.last_entry:
                found = await ledger.read(
                    base + part.at, base + part.range.last_entry, bytes_max=self._options.read_bytes
                )
                for entry in found:
                    if self._held_bytes > most:
                        if number == self._turn:
                            self._tell()
                        await self._wait_room(number, part)
                    if part.at > part.range.last_entry:
                        break  # it was cut off meanwhile
                    columns = part.decoded(entry.entry - base, entry.payload)
                    part.at = entry.entry - base + 1
                    if columns is not None:
                        part.ready.append(columns)
                        self._held_bytes += columns.held_bytes
                if part.ready and number == self._turn:
                    self._tell()
                await self._wait_room(number, part)
        finally:
            ledger.close()

    def _tell(self) -> None:
        """Something of the part whose turn it is, or its end, is here."""
        self._filled.set()
        if self._on_ready is not None:
            self._on_ready()

    async def _wait_room(self, number: int, part: RangePart) -> None:
        while self._held_bytes > self._options.read_ahead_bytes and (
            part.ready or number != self._turn
        ):
            if self._taken.is_set():
                self._taken = trio.Event()
            await self._taken.wait()

    async def _still_there(self, part: RangePart, slot: int | None = None) -> int:
        """The entry to read on from: the part's next one, or what is left after a truncation.

        Without ``slot`` an entry is there as long as a part of it is. Raises `LogTruncated` or `LogNotFound`
        unless it may be left out.
        """
        one = part.range
        found = self._found.get(one.incarnation)
        if found is None:
            found = self._found[one.incarnation] = await self._look(one)
        held = part.held(slot or 0)
        verdict = resolve_position(held, found)
        if slot is None and verdict.at is not None and verdict.at[:2] == held.dlsn[:2]:
            return part.at
        if verdict.met is not PositionOutcome.GO_ON:
            self._lose(verdict.error(one.log, held))
        if verdict.at is None or verdict.at.segment != one.segment:
            return one.last_entry + 1
        return verdict.at.entry

    async def _moved(self, part: RangePart) -> bool:
        """Does its segment lie in another ledger by now, since it was merged? Then it is read there."""
        one = part.range
        found = await self._context.metadata.get(
            segment_key(incarnation_id(one.incarnation), one.segment)
        )
        if found is None:
            return False
        record = SegmentRecord.decode(found.value)
        if record.ledger_id == one.ledger_id:
            return False
        part.range = replace(one, ledger_id=record.ledger_id, base_entry=record.base_entry)
        return True

    async def _look(self, one: SegmentRange) -> LogLookup:
        context, log_id = self._context, incarnation_id(one.incarnation)
        found = await context.metadata.get(state_key(log_id))
        if found is not None:
            state = LogState.decode(found.value)
            if state.end is None:  # all that it has is there
                return LogLookup.of(state)
        return await look_up(context.metadata, context.namespace, one.log, log_id)

    def _lose(self, error: DistributedLogError) -> None:
        assert isinstance(error, LogTruncated | LogNotFound), "nothing else becomes of a log"
        if self._on_loss is None:
            raise error
        self._on_loss(error)

    # --- the end ----------------------------------------------------------------------------------

    def _close(self) -> None:
        self._scope.cancel()
        self._end(self._closed("this reader is closed"))
        for part in self._parts:
            part.ready.clear()

    def _end(self, error: DistributedLogError) -> None:
        if self._over is None:
            self._over = error
            self._tell()

    def _closed(self, why: str) -> AlreadyClosed:
        one = self.next
        return AlreadyClosed(f"ranges: {why}" if one is None else f'log "{one.log}": {why}')


async def open_ranges(
    context: LogContext, name: str, log_id: int, ranges: Sequence[SegmentRange]
) -> RangeReader:
    """A reader of ranges of one log. Raises `LogRecreated`, `LogNotFound`, `LogTruncated`."""
    ours = incarnation_text(log_id)
    for one in ranges:
        if one.incarnation != ours:
            raise await explain_deleted(context.metadata, context.namespace, name, one.held)
    reader = RangeReader(context, [replace(one, log=name) for one in ranges])
    await reader.check()
    context.start(reader.run)
    return reader


def _cut(one: SegmentRange) -> Iterator[SegmentRange]:
    left = one
    while left.size_bytes > PART_BYTES * 3 // 2 and left.entries > 1:
        entries = max(1, PART_BYTES * left.entries // left.size_bytes)
        if entries >= left.entries:
            break
        head, left = left.cut(entries)
        yield head
    if left.entries > 0:
        yield left


def _at_once(parts: Sequence[RangePart], *, several: bool) -> int:
    """How many to fetch at a time: as many bytes as that are few of the usual size."""
    if not parts:
        return 0
    mean_bytes = sum(one.range.size_bytes for one in parts) // len(parts)
    wanted = PARTS_AT_ONCE * PART_BYTES // max(mean_bytes, 1)
    return min(max(wanted, PARTS_AT_ONCE if several else 1), SMALL_AT_ONCE, len(parts))
