"""The bridge between a trio event loop in a thread and its callers, for the blocking and asyncio APIs.

This module does not depend on how a caller waits, which `blocking.py` and `aio.py` define. Writes use
`write_buffer.py`.
"""

import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from .log.arrow.arrow_reader import ArrowReader
from .log.consumers.work_queue import WorkClaim
from .log.format.record import Columns, LogRecord
from .log.model.position import Position
from .log.read.log_reader import LogReader, position_after
from .runtime.interfaces.errors import AlreadyClosed, DistributedLogError, InvalidRequest
from .runtime.interfaces.log_lines import get_logger
from .runtime.schedule.background_loop import (
    INTERRUPTING_TEXT,
    Background,
    CrossThreadFuture,
    Mutex,
    PendingOpen,
    has_interrupted,
    lost_records_text,
    uninterrupted,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader

T = TypeVar("T")
C = TypeVar("C", bound="Closeable")

log = get_logger("distributedlog.client")

CANCELLED_CALL_WAIT_S = 0.1
"""How long a call of a reader waits for the end of another call that was cancelled."""
READER_IN_USE_TEXT = (
    "another call of this reader is waiting: one thread or task at a time may use it"
)
ABANDON_TIMEOUT_S = 2.0
"""How long a block that ends by an exception waits until the objects that it opened are abandoned."""


class Closeable:
    """An object of the blocking or asyncio API. If it is dropped unclosed, the event loop abandons it.

    Therefore an interrupt between ``open_writer()`` and the assignment of its result leaves no log locked.
    """

    def __init__(
        self,
        background: Background,
        what: str,
        abandon: Callable[[], Awaitable[object]],
        drop: Callable[[], Awaitable[object]] | None = None,
        *,
        warns: bool = True,
    ) -> None:
        """Create the object.

        Args:
            background: The event loop thread.
            what: The object, for warnings.
            abandon: Ends the object, in the event loop.
            drop: Called in the event loop instead of ``abandon`` if the object was dropped unclosed.
            warns: Warn if the object is dropped unclosed.
        """
        self._background = background
        self._abandon_in_loop = abandon
        """Called in the event loop."""
        self._drop_ref = background.close_on_drop(self, drop or abandon)
        self._finalizer = weakref.finalize(
            self, _abandon_dropped, background, what if warns else "", self._drop_ref
        )
        self._finalizer.atexit = False

    @property
    def _is_open(self) -> bool:
        """Whether the object must still be closed."""
        return self._finalizer.alive

    def _abandon(self) -> CrossThreadFuture[object]:
        """Abandon the object in the event loop, even if the waiting caller is interrupted.

        The result is set when this has ended.
        """
        outcome: CrossThreadFuture[object] = CrossThreadFuture()
        try:
            self._background.begin(outcome, trio.CancelScope(), self._abandon_in_loop)
        except AlreadyClosed:  # it was closed with its namespace
            outcome.set(None)
        self._ended()
        return outcome

    def _ended(self) -> None:
        self._finalizer.detach()
        self._background.unregister(self._drop_ref)


def _abandon_dropped(
    background: Background, description: str, drop_ref: "weakref.ref[object]"
) -> None:
    try:
        background.post(lambda: background.close_dropped(drop_ref))
    except AlreadyClosed:
        return  # it was closed with its namespace
    if description:
        background.warn(f"{description} was dropped unclosed; it is abandoned", stacklevel=3)


def pending_open(
    background: Background, wrap: Callable[[Background, T], C], open_it: Callable[[], Awaitable[T]]
) -> PendingOpen[C]:
    """Return the pending opening of an object in the event loop, which is wrapped for a caller."""

    async def open_and_wrap() -> C:
        return wrap(background, await open_it())

    async def give_up(opened_object: C) -> None:
        opened_object._ended()
        await opened_object._abandon_in_loop()

    return PendingOpen(background, open_and_wrap, give_up)


def pending_claim(
    background: Background, claim: Callable[[], Awaitable[WorkClaim | None]]
) -> PendingOpen[WorkClaim | None]:
    """Return the pending claim of a range of a work queue for a caller."""

    async def give_up(work_claim: WorkClaim | None) -> None:
        if work_claim is not None:
            work_claim.return_undelivered()

    return PendingOpen(background, claim, give_up)


def beside_loop(
    background: Background, call: Callable[[T], object] | None
) -> Callable[[T], object] | None:
    """Wrap user code so that a separate thread calls it, not the event loop."""
    return None if call is None else lambda value: background.call_in_thread(partial(call, value))


def log_lost_records(background: Background) -> None:
    """Log the records that are lost because a namespace was closed before its writers."""
    if lost_by_log := background.not_durable():
        log.warning(
            "%s; their writers were not closed before their namespace",
            lost_records_text(lost_by_log),
        )


class BackgroundContext(Generic[T]):
    """An async context manager that one task of the event loop thread enters, holds and exits."""

    def __init__(self, background: Background, manager: AbstractAsyncContextManager[T]) -> None:
        self.enter_outcome: CrossThreadFuture[T] = CrossThreadFuture()
        self._background = background
        self._manager = manager
        self._exit_event = trio.Event()
        self.exit_outcome: CrossThreadFuture[None] = CrossThreadFuture()
        """Set after the manager was exited, with the exception that it raised."""
        self.exit_outcome.add_done_callback(self._on_exited)
        background.begin(self.exit_outcome, trio.CancelScope(), self._run)

    async def _run(self) -> None:
        async with self._manager as value:
            self.enter_outcome.set(value)
            await self._exit_event.wait()

    def request_exit(self) -> CrossThreadFuture[None]:
        """Request the exit. The result is set when the manager was exited."""
        if self.enter_outcome.is_done and not self.exit_outcome.is_done:
            self._background.post(self._exit_event.set)
        return self.exit_outcome

    def _on_exited(self) -> None:
        try:
            self.exit_outcome.result()
            self.enter_outcome.fail(AlreadyClosed("closed while it was being opened"))
        except BaseException as error:
            self.enter_outcome.fail(error)


class Inbox(Generic[T]):
    """Items that the event loop has fetched for a caller.

    If a wait is cancelled, its items are kept for the next call. `fill` runs in the event loop, and the
    caller's thread reads ``items``. If two calls wait at the same time, one is refused, because each would
    receive an arbitrary part of the items.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._fill_lock = trio.Lock()

    async def fill(self, fetch: Callable[[], Awaitable[Iterable[T]]]) -> bool:
        """Wait until there is an item, or ``fetch`` returns none. Return whether there is an item."""
        await self._acquire()
        try:
            if not self.items:
                self.items.extend(await fetch())
            return bool(self.items)
        finally:
            self._fill_lock.release()

    async def fill_one(self, fetch: Callable[[], Awaitable[T | None]]) -> bool:
        """Wait as `fill` does, with a ``fetch`` that returns one item or None."""

        async def fetch_one() -> list[T]:
            item = await fetch()
            return [] if item is None else [item]

        return await self.fill(fetch_one)

    async def fill_until(
        self, enough: Callable[[], bool], fetch: Callable[[], Awaitable[bool]]
    ) -> None:
        """Repeat ``fetch``, which adds items, until there are enough or it returns False."""
        await self._acquire()
        try:
            while not enough() and await fetch():
                pass
        finally:
            self._fill_lock.release()

    async def _acquire(self) -> None:
        try:
            self._fill_lock.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(CANCELLED_CALL_WAIT_S):  # a cancelled call may still be ending
                await self._fill_lock.acquire()
                return
            raise InvalidRequest(READER_IN_USE_TEXT) from None

    def to_list(self) -> list[T]:
        """Return the available items without removing them. Any thread may call it."""
        return list(self.items)

    def pop_all(self) -> list[T]:
        """Remove and return all available items."""
        popped: list[T] = []
        with suppress(IndexError):
            while True:
                popped.append(self.items.popleft())
        return popped


class ReadCursor:
    """The entries that were fetched for a caller, and the caller's place in them. Empty after it is closed.

    `next_record` makes no call between reading the index and storing the next one, so the interpreter does
    not switch threads or handle signals there. If threads use a reader at the same time, each record is
    delivered once, until one of them is refused (`Inbox`). An interrupt loses no record.
    """

    __slots__ = (
        "__weakref__",
        "_background",
        "_closed",
        "_columns",
        "_fetched",
        "_inbox",
        "_may_be_in_step",
        "_mutex",
        "_reader",
        "_record_index",
        "_records",
        "_start_position",
    )

    def __init__(self, background: Background, reader: LogReader) -> None:
        self._background = background
        self._reader = reader
        self._mutex = Mutex()
        self._may_be_in_step = False
        """Whether a thread may be inside a step, or was interrupted in one.

        It stays True if a step raised an error. This is harmless: if it is True, `_check_reentry` inspects
        the stack of the thread (`has_interrupted`), and only that decides.
        """
        self._start_position = reader.position
        self._inbox: Inbox[Columns] = Inbox()
        self._fetched = self._inbox.items
        self._columns: Columns | None = None
        self._records: list[LogRecord] = []
        self._record_index = 0
        self._closed = False
        reader.count_buffered(self._unread)

    # --- in the loop ------------------------------------------------------------------------------

    async def fetch(self, wait_s: float | None) -> bool:
        """Fetch entries with `LogReader.read_columns_many`, unless some are available.

        Return whether some are.
        """
        self._check_open()
        return await self._inbox.fill(lambda: self._reader.read_columns_many(wait_s))

    async def fetch_records(self, count: int, wait_s: float | None) -> None:
        """Wait as `LogReader.read_bulk` does, until ``count`` records are available."""
        self._check_open()
        deadline_s = trio.current_time() + (wait_s or 0.0)

        async def more() -> bool:
            fetched_count = len(self)
            patience: float | None = max(0.0, deadline_s - trio.current_time())
            if not fetched_count and wait_s != 0:
                patience = None
            try:
                found = await self._reader.read_columns_many(patience)
            except DistributedLogError:
                if fetched_count:
                    return False  # the next call raises the same error again
                raise
            self._fetched.extend(found)
            return bool(found)

        await self._inbox.fill_until(lambda: len(self) >= count, more)

    async def aclose(self) -> None:
        """Stop the reader and drop the fetched entries."""
        self.close()
        await self._reader.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("this reader is closed")

    # --- for the caller ---------------------------------------------------------------------------

    def _unread(self) -> list[Columns]:
        """Return the entries that the caller has not received, and the rest of the current one."""
        fetched, columns = self._inbox.to_list(), self._columns
        rest = len(self._records) - self._record_index
        if columns is None or not 0 < rest <= columns.count:
            return fetched
        return [columns.cut(columns.count - rest, columns.count), *fetched]

    def close(self) -> None:
        """Drop the fetched entries."""
        self._start_position = self.position
        self._closed = True
        self._fetched.clear()
        self._columns, self._records, self._record_index = None, [], 0

    def __len__(self) -> int:
        """Return the number of available records."""
        unread = len(self._records) - self._record_index
        return unread + sum([columns.count for columns in list(self._fetched)])

    @property
    def position(self) -> Position | None:
        """The position as `LogReader.position`, after the records that the caller has received."""
        columns = self._columns
        if columns is None:
            return self._start_position
        unread = len(self._records) - self._record_index
        return position_after(self._reader.incarnation, columns, columns.count - unread)

    def next_record(self) -> LogRecord | None:
        """Return the next record, or None if more must be fetched."""
        records, index = self._records, self._record_index
        try:
            record = records[index]
        except IndexError:
            return self.next_record() if self._next_entry() else None
        self._record_index = index + 1
        return record

    @uninterrupted
    def _next_entry(self) -> bool:
        """Move to the next entry if all records of this one were read. Return False if there is none."""
        with self._mutex:
            self._check_reentry()
            has_records = self._record_index < len(
                self._records
            )  # another thread may have moved it
            if not has_records and self._fetched:
                columns = self._fetched[0]
                records = columns.records()
                self._columns, self._records, self._record_index = columns, records, 0
                del self._fetched[0]
                has_records = True
            self._may_be_in_step = False
        return has_records

    def _check_reentry(self) -> None:
        if self._may_be_in_step and has_interrupted(self._background, depth=1):
            raise InvalidRequest(
                f"a reader: {INTERRUPTING_TEXT}; nothing was read. Set a flag or use another thread"
            )
        self._may_be_in_step = True

    def take_rest_of_set(self, first: LogRecord) -> list[LogRecord]:
        """Return the other records of the record set that starts with a result of `next_record`."""
        record_set = [first]
        while record_set[-1].more and self._record_index < len(self._records):
            record_set.append(self._records[self._record_index])
            self._record_index += 1
        return record_set[1:]

    def take_records(self, count: int) -> list[LogRecord]:
        """Return up to ``count`` available records."""
        records_taken: list[LogRecord] = []
        while len(records_taken) < count:
            stop = min(self._record_index + count - len(records_taken), len(self._records))
            records, index = self._records, self._record_index
            if index < stop:
                records_slice = records[index:stop]
                self._record_index = stop
                records_taken += records_slice
            elif not self._next_entry():
                break
        return records_taken

    @uninterrupted
    def take_columns(self) -> Columns | None:
        """Return the rest of the current entry, or the next available entry."""
        with self._mutex:
            self._check_reentry()
            entry_columns, stop = self._columns, len(self._records)
            index, self._record_index = self._record_index, stop
            if index < stop:
                assert entry_columns is not None
                entry_columns = entry_columns.cut(index, stop)
            elif self._fetched:
                entry_columns = self._fetched[0]
                self._columns, self._records, self._record_index = entry_columns, [], 0
                del self._fetched[0]
            else:
                entry_columns = None
            self._may_be_in_step = False
        return entry_columns


class RecordBatches(Closeable):
    """The batches of an `ArrowReader` for a ``pyarrow.RecordBatchReader``, which any thread may pull.

    A pull blocks its thread, in both APIs, because pyarrow has no other form. Threads take turns. Closing a
    ``RecordBatchReader`` notifies nothing, so the fetch ends after the last batch, or soon after the object
    was dropped, without a warning. Until then at most ``read_ahead_bytes`` are held.

    A pull that is interrupted (Ctrl-C) loses no entry: the next one returns its batches.
    """

    def __init__(self, background: Background, reader: ArrowReader) -> None:
        super().__init__(background, "an Arrow reader", reader.aclose, warns=False)
        self._reader = reader
        self._turn = Mutex()
        self._inbox: Inbox[list[Columns]] = Inbox()
        self._batches: list[RecordBatch] = []
        self._batch_index = 0
        self._is_at_end = False

    def to_reader(self) -> "RecordBatchReader":
        """Return the reader that pulls from this object."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._reader.schema, self)

    def __iter__(self) -> "Iterator[RecordBatch]":
        return self

    def __next__(self) -> "RecordBatch":
        with self._turn:
            while self._batch_index == len(self._batches):
                if self._is_at_end:
                    raise StopIteration
                if self._background.run(self._inbox.fill_one, self._fetch):
                    self._build()
                else:
                    self._is_at_end = True
                    self._abandon()
            # No call is between these steps, so an interrupt cannot separate them.
            batch = self._batches[self._batch_index]
            self._batch_index += 1
        return batch

    async def _fetch(self) -> list[Columns] | None:
        return await self._reader.fetch() or None

    @uninterrupted
    def _build(self) -> None:
        batches = self._reader.build(self._inbox.items[0])
        self._batches, self._batch_index = batches, 0
        del self._inbox.items[0]
