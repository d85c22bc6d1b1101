# The hand-written part of distributedlog/aio.py: tools/generate_api_variants.py adds the other calls.
"""The asyncio API: the calls of `distributedlog` for an asyncio event loop.

    async with open_namespace(uri) as namespace:
        async with namespace.open_log("orders").open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))

The trio client runs in one background thread per namespace. Submitting a record appends it to a buffer. A
call that cannot be answered at once switches to that thread and back. Cancelling a wait does not withdraw a
write (G7). The end of an ``async with`` block of a namespace waits for the client to end, even if the task is
cancelled again.

For signal handlers, logging handlers and the end of the program, see `distributedlog.blocking`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

import trio

from distributedlog import open_namespace as open_trio_namespace
from distributedlog.log.arrow.arrow_reader import BATCH_BYTES
from distributedlog.log.byte_stream import ByteReader as TrioByteReader
from distributedlog.log.byte_stream import ByteWriter as TrioByteWriter
from distributedlog.log.consumers.subscription import Subscription as TrioSubscription
from distributedlog.log.consumers.work_queue import ITEM_BYTES
from distributedlog.log.consumers.work_queue import WorkClaim as TrioWorkClaim
from distributedlog.log.consumers.work_queue import WorkQueue as TrioWorkQueue
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import (
    TXID_MAX,
    Columns,
    KeyedRecord,
    LogRecord,
    split_columns,
)
from distributedlog.log.interfaces.open_call import Opening
from distributedlog.log.log import Log as TrioLog
from distributedlog.log.model.position import Position
from distributedlog.log.model.segment_ranges import SegmentToken
from distributedlog.log.namespace import Namespace as TrioNamespace
from distributedlog.log.read.log_reader import LogReader as TrioReader
from distributedlog.log.read.log_reader import reader_text
from distributedlog.log.read.multi_reader import Item
from distributedlog.log.read.multi_reader import MultiReader as TrioMultiReader
from distributedlog.log.read.range_reader import RangeReader as TrioRangeReader
from distributedlog.log.read.segment_watch import SegmentChange
from distributedlog.log.read.segment_watch import SegmentWatch as TrioSegmentWatch
from distributedlog.log.segments.external_segment_writer import SegmentWriter as TrioSegmentWriter
from distributedlog.log.services.log_metrics import Registry
from distributedlog.log.services.log_watch import LogChange
from distributedlog.log.services.log_watch import LogWatch as TrioLogWatch
from distributedlog.log.services.named_positions import Positions as TrioPositions
from distributedlog.log.write.entry_batch import outcome_text
from distributedlog.log.write.producer_state_manager import OpenedProducer
from distributedlog.runtime.declarations.options import check_wait, check_whole
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
)
from distributedlog.runtime.interfaces.host import Buffer
from distributedlog.runtime.schedule.background_loop import (
    EXIT_S_MAX,
    Background,
    CrossThreadFuture,
)
from distributedlog.thread_bridge import (
    ABANDON_TIMEOUT_S,
    READER_IN_USE_TEXT,
    BackgroundContext,
    Closeable,
    Inbox,
    ReadCursor,
    RecordBatches,
    log_lost_records,
    pending_claim,
    pending_open,
)
from distributedlog.write_buffer import (
    BufferedBulk,
    ByteWriterHandle,
    Chunk,
    WriteBuffer,
    open_buffer,
)

if TYPE_CHECKING:  # a client loads no nodes
    from pyarrow import RecordBatchReader

    from distributedlog.cluster.local.fork_server import ForkServer
    from distributedlog.cluster.local.local_cluster import LocalCluster as TrioLocalCluster
    from distributedlog.cluster.local.local_cluster import LocalNode

__all__ = [
    "DLSN", "ByteReader", "ByteWriter", "KeyedRecord", "LocalCluster", "Log", "LogReader", "LogRecord",
    "LogWatch",
    "LogWriter", "MultiReader", "Namespace", "PendingBulk", "PendingWrite", "Positions", "RangeReader",
    "SegmentWatch", "SegmentWriter", "Subscription", "WorkClaim", "WorkQueue", "local_cluster",
    "open_namespace",
]  # fmt: skip

C = TypeVar("C", bound=Closeable)
P = ParamSpec("P")
T = TypeVar("T")


async def run(
    background: Background, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs
) -> T:
    """Run a call in the background thread and return its result. Cancelling this cancels the call."""
    outcome: CrossThreadFuture[T] = CrossThreadFuture()
    scope = trio.CancelScope()
    try:
        background.begin(outcome, scope, partial(call, *args, **options))
        return await outcome_of(background, outcome)
    except BaseException:
        background.cancel(scope)
        raise


async def outcome_of(_: Background, outcome: CrossThreadFuture[T]) -> T:
    """Wait for an outcome. Return its value or raise its error."""
    await future_of(outcome)
    return outcome.result()


def future_of(outcome: CrossThreadFuture[T]) -> "asyncio.Future[None]":
    """Return a future of this event loop that is done when the outcome is set."""
    event_loop = asyncio.get_running_loop()
    asyncio_future = event_loop.create_future()

    def set_done() -> None:
        if not asyncio_future.done():
            asyncio_future.set_result(None)

    def notify_event_loop() -> None:
        with suppress(RuntimeError):  # the event loop is closed: no task waits
            event_loop.call_soon_threadsafe(set_done)

    outcome.add_done_callback(notify_event_loop)
    return asyncio_future


async def wait_shielded(future: "asyncio.Future[Any]", wait_s: float) -> None:
    """Wait for a future. After a cancellation wait at most ``wait_s`` longer, then raise the cancellation.

    anyio cancels a task in each iteration of the event loop until the task leaves its scope. This function
    lets a cleanup end before that.
    """
    loop = asyncio.get_running_loop()
    deadline_s: float | None = None
    cancelled: asyncio.CancelledError | None = None
    while not future.done() and (deadline_s is None or loop.time() < deadline_s):
        try:
            await asyncio.wait(
                [future], timeout=None if deadline_s is None else deadline_s - loop.time()
            )
        except asyncio.CancelledError as error:
            cancelled, deadline_s = error, deadline_s or loop.time() + wait_s
    if cancelled is not None:
        raise cancelled


async def opened(
    background: Background, wrap: Callable[[Background, T], C], open_it: Callable[[], Awaitable[T]]
) -> C:
    """Open an object in the background thread and return it, wrapped.

    If the wait is cancelled, the background thread closes the object.
    """
    handover = pending_open(background, wrap, open_it)
    try:
        return await outcome_of(background, handover.start())
    except BaseException:
        handover.abandon()
        raise


class _Closable(Closeable):
    """An object that its ``async with`` block closes.

    If an exception ends the block, the object is abandoned. The block waits for its cleanup for at most 2 s.
    The cleanup then continues in the background thread.
    """

    async def aclose(self) -> object:
        """Close the object."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            with suppress(asyncio.TimeoutError, DistributedLogError):
                abandoned = outcome_of(self._background, self._abandon())
                await asyncio.wait_for(abandoned, ABANDON_TIMEOUT_S)


async def wait_outcome(
    buffer: WriteBuffer,
    add_callback: Callable[[Callable[[], object]], object],
    remove_callback: Callable[[Callable[[], object]], object],
) -> None:
    """Wait until a write has an outcome. A cancelled wait removes its callback."""
    outcome: CrossThreadFuture[None] = CrossThreadFuture()
    set_outcome = partial(outcome.set, None)
    try:
        add_callback(set_outcome)
        buffer.fail_when_ended(outcome)
        await future_of(outcome)
        outcome.result()
    finally:
        if not outcome.is_done:
            remove_callback(set_outcome)


class PendingWrite:
    """A submitted record. Await it to get the DLSN when the record is durable, or the error (G2, G7)."""

    __slots__ = ("_chunk", "_slot")

    def __init__(self, chunk: Chunk, slot: int) -> None:
        self._chunk = chunk
        self._slot = slot

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._chunk.is_done(self._slot)

    def result(self) -> DLSN:
        """Return the DLSN. Raise the write's error, or `InvalidRequest` while the outcome is unknown."""
        if not self._chunk.is_done(self._slot):
            raise InvalidRequest("the write is not done yet: await it")
        return self._chunk.result(self._slot)

    def __await__(self) -> Generator[Any, Any, DLSN]:
        chunk, slot = self._chunk, self._slot
        if not chunk.is_done(slot):
            add_callback = partial(chunk.add_done_callback, slot)
            remove_callback = partial(chunk.remove_done_callback, slot)
            yield from wait_outcome(chunk.buffer, add_callback, remove_callback).__await__()
        return chunk.result(slot)

    def __repr__(self) -> str:
        return f"PendingWrite({outcome_text(self)})"


class PendingBulk(Sequence[PendingWrite]):
    """The pending writes of the records of one call. See `distributedlog.PendingBulk`."""

    __slots__ = ("_bulk",)

    def __init__(self, bulk: BufferedBulk) -> None:
        self._bulk = bulk

    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._bulk.is_done()

    def result(self) -> list[DLSN]:
        """Return the DLSNs. Raise the first error, or `InvalidRequest` while an outcome is unknown."""
        if not self._bulk.is_done():
            raise InvalidRequest("the writes are not done yet: await them")
        return self._bulk.writer_bulk().result()

    async def wait(self) -> None:
        """Wait until all outcomes are known, without raising the error of a write."""
        bulk = self._bulk
        if not bulk.is_done():
            await wait_outcome(bulk.buffer, bulk.add_done_callback, bulk.remove_done_callback)

    async def outcomes(self) -> list[DLSN | DistributedLogError]:
        """Wait until all outcomes are known. Return one per record: its DLSN or its error."""
        await self.wait()
        return self._bulk.writer_bulk().known_outcomes()

    def __await__(self) -> Generator[Any, Any, list[DLSN]]:
        yield from self.wait().__await__()
        return self.result()

    def __len__(self) -> int:
        return self._bulk.length

    @overload
    def __getitem__(self, index: int) -> PendingWrite: ...

    @overload
    def __getitem__(self, index: slice) -> list[PendingWrite]: ...

    def __getitem__(self, index: int | slice) -> PendingWrite | list[PendingWrite]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return PendingWrite(*self._bulk.locate(index))

    def __repr__(self) -> str:
        return f"PendingBulk({len(self)} records, {outcome_text(self)})"


class LogWriter(_Closable):
    """The only writer of a log. See `distributedlog.LogWriter`."""

    def __init__(self, background: Background, buffer: WriteBuffer) -> None:
        description = f'the writer of log "{buffer.name}"'
        super().__init__(background, description, buffer.abort, buffer.drop)
        self._buffer = buffer
        self._append = buffer.append

    def __repr__(self) -> str:
        return repr(self._buffer.writer)

    async def submit(self, record: LogRecord | Buffer) -> PendingWrite:
        location = self._append(record)
        if location is None:  # the buffer is full
            location = await run(self._background, self._buffer.append_when_capacity, record)
        chunk, slot = location
        return PendingWrite(chunk, slot)

    async def write(self, record: LogRecord | Buffer, *, expect: DLSN | None = None) -> DLSN:
        if expect is not None:
            return await run(self._background, self._buffer.write_after, expect, record)
        return await (await self.submit(record))

    async def submit_bulk(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        return await self.submit_columns(*split_columns(records))

    async def submit_columns(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> PendingBulk:
        bulk, accepted = self._buffer.validate_many(txids, payloads)
        start = 0
        while start < accepted.record_count:
            stop = self._buffer.append_many(bulk, accepted, start)
            if stop == start:
                accepted.copy_lists()
                append_later = self._buffer.append_many_when_capacity
                stop = await run(self._background, append_later, bulk, accepted, start)
            start = stop
        return PendingBulk(bulk)

    async def submit_packed(
        self,
        txids: Buffer | None,
        offsets: Buffer,
        payloads: Buffer,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> PendingBulk:
        submit = partial(self._buffer.submit_packed, keys=keys, headers=headers)
        bulk = await run(self._background, submit, txids, offsets, payloads)
        return PendingBulk(bulk)

    async def submit_set(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        return PendingBulk(await run(self._background, self._buffer.submit_set, records))

    async def write_set(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        return await (await self.submit_set(records))

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        return await (await self.submit_bulk(records))

    @property
    def txid_policy(self) -> str:
        return self._buffer.writer.txid_policy

    @property
    def position(self) -> Position:
        return self._buffer.writer.position

    @property
    def over_rate(self) -> int:
        return self._buffer.writer.over_rate

    @property
    def last_txid(self) -> int:
        return self._buffer.writer.last_txid

    @property
    def producer(self) -> OpenedProducer | None:
        return self._buffer.writer.producer

    async def flush(self) -> None:
        await run(self._background, self._buffer.flush)

    async def truncate(self, dlsn: DLSN) -> DLSN:
        return await run(self._background, self._buffer.writer.truncate, dlsn)


class ByteWriter(_Closable):
    """Appends bytes to a log. See `distributedlog.ByteWriter`.

    Each call switches to the background thread.
    """

    def __init__(self, background: Background, writer: TrioByteWriter) -> None:
        self._handle = handle = ByteWriterHandle(writer, background)
        super().__init__(background, repr(writer), handle.abort, handle.drop)
        self._writer = writer

    def __repr__(self) -> str:
        return repr(self._writer)

    async def write(self, data: Buffer) -> int:
        """Append bytes, waiting only for free space in the buffer. Return the number of accepted bytes.

        Fewer than all are accepted only if a limit is reached and ``at_limit`` is "reject".

        Raises: TooBusy, AlreadyClosed, WriterFenced, WriteFailed.
        """
        return await run(self._background, self._writer.write, bytes(data))

    async def flush(self) -> int:
        """Wait until all accepted bytes are durable and readable. Return the offset after them.

        Raises: AlreadyClosed, WriterFenced, WriteFailed.
        """
        return await run(self._background, self._writer.flush)

    async def tell(self) -> int:
        """Return the offset up to which all bytes are durable.

        Raises: AlreadyClosed.
        """
        return await run(self._background, self._writer.tell)

    async def aclose(self) -> None:
        """Flush, close the segment and release the lock. Idempotent.

        Raises: WriterFenced, WriteFailed.
        """
        await run(self._background, self._handle.aclose)
        self._ended()

    async def abort(self) -> None:
        """Stop sending. Bytes that are not durable have an unknown outcome (G7).

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # closed with its namespace
            await run(self._background, self._handle.abort)
        self._ended()


class ByteReader(_Closable):
    """Reads a log as bytes. See `distributedlog.ByteReader`."""

    def __init__(self, background: Background, reader: TrioByteReader) -> None:
        super().__init__(background, repr(reader), reader.aclose)
        self._reader = reader
        self._offset = reader.offset
        """The offset after the bytes that the caller received. A cancelled call may have read further."""

    def __repr__(self) -> str:
        return repr(self._reader)

    async def read(self, size: int = -1) -> bytes:
        """Return 1 to ``size`` bytes, or all bytes up to the end if it is -1. Return ``b""`` at the end.

        Raises: LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        offset = self._offset
        data = await run(self._background, self._reader.read_from, offset, size)
        if self._offset != offset:
            raise InvalidRequest(READER_IN_USE_TEXT)
        self._offset += len(data)
        return data

    async def tell(self) -> int:
        """Return the offset of the next byte to read.

        Raises: AlreadyClosed.
        """
        await run(self._background, self._reader.tell)
        return self._offset

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset from the start (0), from the present offset (1) or from the readable end (2).

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        check_whole("offset", offset, -TXID_MAX, TXID_MAX)
        if whence == 1:
            offset, whence = self._offset + offset, 0
        self._offset = await run(self._background, self._reader.seek, offset, whence)
        return self._offset

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # closed with its namespace
            await run(self._background, self._reader.aclose)
        self._ended()


class LogReader(_Closable):
    """Reads one log. The background thread fetches whole entries. See `distributedlog.LogReader`."""

    def __init__(self, background: Background, reader: TrioReader) -> None:
        self._reader = reader
        self.incarnation = reader.incarnation
        self._cursor = ReadCursor(background, reader)
        super().__init__(background, f'a reader of log "{reader.name}"', self._cursor.aclose)

    def __repr__(self) -> str:
        return reader_text(self._reader.name, self.position, None)

    @property
    def position(self) -> Position | None:
        return self._cursor.position

    async def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        if wait_s is not None:
            check_wait(wait_s)
        record = self._cursor.next_record()
        while record is None and await run(self._background, self._cursor.fetch, wait_s):
            record = self._cursor.next_record()
        return record

    async def read_set(self, wait_s: float | None = None) -> list[LogRecord]:
        first = await self.read_next(wait_s)
        return [] if first is None else [first, *self._cursor.take_rest_of_set(first)]

    async def read_bulk(self, number: int, wait_s: float | None = None) -> list[LogRecord]:
        check_whole("number", number, 1)
        check_wait(wait_s)
        fetched_count = len(self._cursor)
        if fetched_count < number and (wait_s or not fetched_count):
            await run(self._background, self._cursor.fetch_records, number, wait_s)
        return self._cursor.take_records(number)

    async def read_columns(self, wait_s: float | None = None) -> Columns | None:
        check_wait(wait_s)
        columns = self._cursor.take_columns()
        while columns is None and await run(self._background, self._cursor.fetch, wait_s):
            columns = self._cursor.take_columns()
        return columns

    async def aclose(self) -> None:
        self._cursor.close()
        if self._is_open:
            with suppress(AlreadyClosed):  # closed with its namespace
                await run(self._background, self._reader.aclose)
            self._ended()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogRecord:
        record = self._cursor.next_record()
        if record is None:
            with suppress(EndOfStream):
                record = await self.read_next()
            if record is None:
                raise StopAsyncIteration
        return record


class SegmentWriter(_Closable):
    """Writes one staged ledger for a log, then closes it. See `distributedlog.SegmentWriter`.

    Each call switches to the background thread. Pass whole entries (`write_packed`) or many records per call.
    """

    def __init__(self, background: Background, writer: TrioSegmentWriter) -> None:
        super().__init__(background, f"the writer of ledger {writer.ledger_id}", writer.abort)
        self._writer = writer

    @property
    def token(self) -> SegmentToken | None:
        """The token of the closed ledger. None before `aclose`."""
        return self._writer.token


class RangeReader(_Closable):
    """Delivers the user records of ranges, entry by entry. See `distributedlog.RangeReader`."""

    def __init__(self, background: Background, reader: TrioRangeReader) -> None:
        super().__init__(background, "a reader of ranges", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Columns] = Inbox()

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """Return the next entry and the fetched ones after it, up to ``bytes_max``. Empty at the end.

        Raises: LogTruncated, LogDeleted, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        AlreadyClosed.
        """
        fetch = partial(self._reader.read_columns_many, bytes_max=bytes_max)
        await run(self._background, self._inbox.fill, fetch)
        return self._inbox.pop_all()

    async def __aiter__(self) -> AsyncIterator[Columns]:
        while batch := await self.read_columns_many():
            for columns in batch:
                yield columns


class MultiReader(_Closable):
    """Delivers entries of several logs, and changes of the logs. See `distributedlog.MultiReader`."""

    def __init__(self, background: Background, reader: TrioMultiReader) -> None:
        super().__init__(background, "a reader of several logs", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Item] = Inbox()
        reader.count_buffered(self._inbox.to_list)
        self._positions: dict[str, Position] = {}

    async def next(self, wait_s: float | None = None) -> Item | None:
        items = self._inbox.items
        if not self._is_open:
            items.clear()
        if not items:
            fetch = partial(self._reader.next_many, wait_s)
            await run(self._background, self._inbox.fill, fetch)
        try:
            item = items.popleft()
        except IndexError:
            return None
        if item.position is not None:
            self._positions[item.log] = item.position
        return item

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (item := await self.next()) is not None:
            yield item

    @property
    def positions(self) -> dict[str, Position]:
        return dict(self._positions)


class LogWatch(_Closable):
    """The logs of a namespace, then their changes. See `distributedlog.LogWatch`."""

    def __init__(self, background: Background, watch: TrioLogWatch) -> None:
        super().__init__(background, "a watch of logs", watch.aclose)
        self._watch = watch
        self._inbox: Inbox[LogChange] = Inbox()

    async def logs(self) -> dict[str, str]:
        async def get_logs() -> dict[str, str]:
            return self._watch.logs

        return await run(self._background, get_logs)

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        await run(self._background, self._inbox.fill_one, partial(self._watch.next, wait_s))
        changes = self._inbox.pop_all()
        return changes[0] if changes else None

    async def __aiter__(self) -> AsyncIterator[LogChange]:
        while (change := await self.next()) is not None:
            yield change


class SegmentWatch(_Closable):
    """The changes of a log's segments, in order. See `distributedlog.SegmentWatch`."""

    def __init__(self, background: Background, watch: TrioSegmentWatch) -> None:
        super().__init__(background, f'a watch of segments of log "{watch.name}"', watch.aclose)
        self.name = watch.name
        self._watch = watch
        self._inbox: Inbox[SegmentChange] = Inbox()

    async def next(self, wait_s: float | None = None) -> SegmentChange | None:
        await run(self._background, self._inbox.fill_one, partial(self._watch.next, wait_s))
        changes = self._inbox.pop_all()
        return changes[0] if changes else None

    async def __aiter__(self) -> AsyncIterator[SegmentChange]:
        while (change := await self.next()) is not None:
            yield change


class Subscription(_Closable):
    """A log as one subscriber reads it. See `distributedlog.Subscription`."""

    def __init__(self, background: Background, subscription: TrioSubscription) -> None:
        super().__init__(background, f'subscription "{subscription.name}"', subscription.abort)
        self.name = subscription.name
        self._subscription = subscription
        self.reader = LogReader(background, subscription.reader)

    def __repr__(self) -> str:
        return f'Subscription("{self.name}", {self.reader!r})'

    async def commit(self, position: Position | None = None, *, now: bool = False) -> None:
        if position is None:
            position = self.reader.position
        await run(self._background, self._subscription.commit_at, position, now)

    async def aclose(self) -> None:
        if self._is_open:
            try:
                await run(self._background, self._subscription.aclose)
            finally:
                self._ended()

    def _ended(self) -> None:
        super()._ended()
        self.reader._cursor.close()
        self.reader._ended()


class WorkClaim:
    """An item of the log that this process has claimed. See `distributedlog.WorkClaim`."""

    def __init__(self, background: Background, claim: TrioWorkClaim) -> None:
        self.number, self.first, self.end = claim.number, claim.first, claim.end
        self.tries = claim.tries
        self._background = background
        self._claim = claim

    def __repr__(self) -> str:
        return repr(self._claim)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await run(self._background, self._claim.exit_block, kind is not None)


class WorkQueue(_Closable):
    """A log that several workers handle. See `distributedlog.WorkQueue`."""

    def __init__(self, background: Background, queue: TrioWorkQueue) -> None:
        super().__init__(background, f'work queue "{queue.name}"', queue.aclose)
        self.name = queue.name
        self.log = queue.log
        self._queue = queue

    def __repr__(self) -> str:
        return repr(self._queue)

    async def claim(
        self, *, bytes_max: int = ITEM_BYTES, wait_s: float | None = None
    ) -> WorkClaim | None:
        call = partial(self._queue.claim, bytes_max=bytes_max, wait_s=wait_s)
        handover = pending_claim(self._background, call)
        try:
            claim = await outcome_of(self._background, handover.start())
            return None if claim is None else WorkClaim(self._background, claim)
        except BaseException:
            handover.abandon()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkClaim:
        claim = await self.claim()
        if claim is None:
            raise StopAsyncIteration
        return claim


class Positions:
    """The named positions of one log. See `distributedlog.Positions`."""

    def __init__(self, background: Background, positions: TrioPositions) -> None:
        background.register_user(self)
        self._background = background
        self._positions = positions


class Log:
    """A log of a namespace, by name. See `distributedlog.Log`."""

    def __init__(self, background: Background, namespace: TrioNamespace, log: TrioLog) -> None:
        background.register_user(self)
        self._background = background
        self._namespace = namespace
        self._log = log
        self.name = log.name

    def __repr__(self) -> str:
        return repr(self._log)

    def open_writer(
        self,
        *,
        takeover: bool = False,
        wait_s: float | None = None,
        lock: bool = True,
        producer: str | Literal[True] | None = None,
    ) -> Opening[LogWriter]:
        opening = self._log.open_writer(
            takeover=takeover, wait_s=wait_s, lock=lock, producer=producer
        )
        open_it = partial(open_buffer, self._background, self._namespace, self._log, opening)
        return Opening(lambda: opened(self._background, LogWriter, open_it))

    async def to_arrow(
        self,
        *,
        position: Position | None = None,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        since: datetime | int | None = None,
        to: DLSN | Literal["end"] = "end",
        columns: Sequence[str] | None = None,
        batch_bytes_max: int = BATCH_BYTES,
    ) -> "RecordBatchReader":
        """Return the log as a ``pyarrow.RecordBatchReader``, from a start up to the present end.

        DuckDB, polars and pandas read it. Any thread may pull batches, and waits for them. The errors of
        `open_reader` are raised by the pull that encounters them. Closing the reader has no effect. Fetching
        ends after the last batch, when the reader is dropped, or with the namespace. See
        `distributedlog.Log.to_arrow`.

        Raises: LogTruncated, LogNotFound, LogDeleted, LogRecreated, LedgerStateUnknown, InvalidRequest,
        UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        opening = self._log.to_arrow(
            position=position,
            dlsn=dlsn,
            txid=txid,
            since=since,
            to=to,
            columns=columns,
            batch_bytes_max=batch_bytes_max,
        )
        batches = await opened(self._background, RecordBatches, opening.open)
        return batches.to_reader()

    @property
    def positions(self) -> Positions:
        return Positions(self._background, self._log.positions)


class Namespace:
    """The logs under one path. `open_namespace` creates it. See `distributedlog.Namespace`."""

    def __init__(self, background: Background, namespace: TrioNamespace) -> None:
        background.register_user(self)
        self._background = background
        self._namespace = namespace

    async def logs(self, prefix: str = "") -> AsyncIterator[str]:
        after: str | None = ""
        while after is not None:
            page = await self.log_page(prefix, after)
            for name in page.names:
                yield name
            after = page.next

    def open_log(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        incarnation: str | None = None,
    ) -> Log:
        log = self._namespace.open_log(name, config=config, incarnation=incarnation)
        return Log(self._background, self._namespace, log)


class _Opened(Generic[T]):
    """An async context manager over one that is entered in the background thread. Use it only once.

    ``__aexit__`` waits for the end for some seconds, even if its task is cancelled again. The background
    thread ends in any case.
    """

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._context is not None
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        settled = self._background.settle(ABANDON_TIMEOUT_S if cancelled else EXIT_S_MAX)
        try:
            await wait_shielded(future_of(settled), ABANDON_TIMEOUT_S)
        finally:
            log_lost_records(self._background)
            try:
                await wait_shielded(future_of(self._context.request_exit()), ABANDON_TIMEOUT_S)
            finally:
                await self._stop()
        self._context.request_exit().result()

    async def _stop(self) -> None:
        self._background.begin_stop()  # the thread ends even if this task stops waiting
        loop = asyncio.get_running_loop()
        stopped = loop.run_in_executor(None, self._background.stop)
        await wait_shielded(stopped, EXIT_S_MAX)
        if stopped.done():
            stopped.result()

    def __init__(
        self,
        manager: AbstractAsyncContextManager[Any],
        name: str,
        wrap: Callable[[Background, Any], T],
    ) -> None:
        self._manager = manager
        self._wrap = wrap
        self._background = Background(name, quick_switches=True)
        self._background.register_user(self)
        self._context: BackgroundContext[Any] | None = None

    async def __aenter__(self) -> T:
        if self._context is not None:
            raise InvalidRequest("a context manager can be entered only once. Create another one.")
        try:
            self._background.start()
            self._context = BackgroundContext(self._background, self._manager)
            entered = await outcome_of(self._background, self._context.enter_outcome)
            return self._wrap(self._background, entered)
        except BaseException:
            await self._stop()
            raise


def open_namespace(
    uri: str, *, config: Mapping[str, Any] | None = None, metrics: "Registry | None" = None
) -> AbstractAsyncContextManager[Namespace]:
    """Open the namespace of a URI with ``async with``. See `distributedlog.open_namespace`."""
    return _Opened(
        open_trio_namespace(uri, config=config, metrics=metrics), "distributedlog client", Namespace
    )


class LocalCluster:
    """A running cluster, with its address and nodes."""

    def __init__(self, background: Background, cluster: "TrioLocalCluster") -> None:
        background.register_user(self)
        self.uri: str = cluster.uri
        self.proxied_uri: str = cluster.proxied_uri
        self.data: str | None = cluster.data
        self.nodes: list[LocalNode] = cluster.nodes


def local_cluster(
    data: str | Path | None = None,
    bookies: int = 3,
    metadata_nodes: int = 3,
    *,
    memory: bool = False,
    in_process: bool = False,
    port: int = 0,
    processes: bool = False,
    restart: bool = False,
    log_level: str = "WARNING",
    on_death: Callable[[str, str], None] | None = None,
    separate_nodes: Sequence[str] = (),
    forks: "ForkServer | None" = None,
    write_proxies: int = 0,
    read_proxies: int = 0,
) -> AbstractAsyncContextManager[LocalCluster]:
    """Run a cluster on this machine with ``async with``. See `distributedlog.local_cluster`."""
    from distributedlog.cluster.local.local_cluster import local_cluster as trio_local_cluster

    cluster = trio_local_cluster(
        data,
        bookies,
        metadata_nodes,
        memory=memory,
        in_process=in_process,
        port=port,
        processes=processes,
        restart=restart,
        log_level=log_level,
        on_death=on_death,
        separate_nodes=separate_nodes,
        forks=forks,
        write_proxies=write_proxies,
        read_proxies=read_proxies,
    )
    return _Opened(cluster, "distributedlog cluster", LocalCluster)
