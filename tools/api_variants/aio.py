# The hand-written part of distributedlog/aio.py: tools/generate_api_variants.py adds the other calls.
"""The asyncio face: the same calls as `distributedlog`, for an asyncio event loop.

    async with open_namespace(uri) as namespace:
        async with namespace.open_log("orders").open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))

The trio client runs in one background thread a namespace. A record costs an append to a buffer; a wait that
cannot be answered at once costs a hop to that thread and back. Cancelling a wait withdraws no write (G7).
The end of a namespace is waited for even if its task is cancelled again. Signal handlers, logging handlers
and the end of the program: see `distributedlog.blocking`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

import trio

from distributedlog import open_namespace as open_trio_namespace
from distributedlog.log.byte_stream import ByteReader as TrioByteReader
from distributedlog.log.byte_stream import ByteWriter as TrioByteWriter
from distributedlog.log.consumers.subscription import Subscription as TrioSubscription
from distributedlog.log.consumers.work_queue import ITEM_BYTES
from distributedlog.log.consumers.work_queue import WorkClaim as TrioWorkClaim
from distributedlog.log.consumers.work_queue import WorkQueue as TrioWorkQueue
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import TXID_MAX, Columns, LogRecord, split_columns
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
    LocalClusterInfo,
    ReadCursor,
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

__all__ = [
    "DLSN", "ByteReader", "ByteWriter", "Log", "LogReader", "LogRecord", "LogWatch", "LogWriter",
    "MultiReader", "Namespace", "PendingBulk", "PendingWrite", "Positions", "RangeReader",
    "SegmentWatch", "SegmentWriter", "Subscription", "WorkClaim", "WorkQueue", "local_cluster",
    "open_namespace",
]  # fmt: skip

C = TypeVar("C", bound=Closeable)
P = ParamSpec("P")
T = TypeVar("T")


async def run(
    background: Background, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs
) -> T:
    """Run a call in the trio loop; cancelled here, it is cancelled there."""
    outcome: CrossThreadFuture[T] = CrossThreadFuture()
    scope = trio.CancelScope()
    try:
        background.begin(outcome, scope, partial(call, *args, **options))
        return await outcome_of(background, outcome)
    except BaseException:
        background.cancel(scope)
        raise


async def outcome_of(_: Background, outcome: CrossThreadFuture[T]) -> T:
    """Wait for what the trio loop gives."""
    await future_of(outcome)
    return outcome.result()


def future_of(outcome: CrossThreadFuture[T]) -> "asyncio.Future[None]":
    """Return a future of this event loop that is set when there is an outcome."""
    event_loop = asyncio.get_running_loop()
    asyncio_future = event_loop.create_future()

    def take() -> None:
        if not asyncio_future.done():
            asyncio_future.set_result(None)

    def tell() -> None:
        with suppress(RuntimeError):  # the event loop has ended: nobody waits
            event_loop.call_soon_threadsafe(take)

    outcome.add_done_callback(tell)
    return asyncio_future


async def wait_shielded(future: "asyncio.Future[Any]", wait_s: float) -> None:
    """Wait until it is done. Cancelled, wait for ``wait_s`` at most, and raise the cancellation then.

    anyio cancels a task in each iteration of the event loop until the task leaves its scope. A cleanup that
    must end before that is awaited with this function.
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
    """What ``open_it`` opens in the trio loop, wrapped; cancelled wherever, it is given up there."""
    handover = pending_open(background, wrap, open_it)
    try:
        return await outcome_of(background, handover.start())
    except BaseException:
        handover.abandon()
        raise


class _Closable(Closeable):
    """``async with`` closes it. On an exception it is given up: waited for 2 s at most, it goes on."""

    async def aclose(self) -> object:
        """Close it."""
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
                given_up = outcome_of(self._background, self._abandon())
                await asyncio.wait_for(given_up, ABANDON_TIMEOUT_S)


async def wait_outcome(
    buffer: WriteBuffer,
    add_callback: Callable[[Callable[[], object]], object],
    remove_callback: Callable[[Callable[[], object]], object],
) -> None:
    """Wait until an outcome is known; whoever stops waiting is forgotten."""
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
    """A record that was taken: ``await`` gives its DLSN once it is durable, or raises (G2, G7)."""

    __slots__ = ("_chunk", "_slot")

    def __init__(self, chunk: Chunk, slot: int) -> None:
        self._chunk = chunk
        self._slot = slot

    def done(self) -> bool:
        """Is the outcome known?"""
        return self._chunk.is_done(self._slot)

    def result(self) -> DLSN:
        """The DLSN. Raises the write's error, or `InvalidRequest` while the outcome is not known."""
        if not self._chunk.is_done(self._slot):
            raise InvalidRequest("the write is not done yet: await it")
        return self._chunk.result(self._slot)

    def __await__(self) -> Generator[Any, Any, DLSN]:
        chunk, slot = self._chunk, self._slot
        if not chunk.is_done(slot):
            when_done, forget = (
                partial(chunk.add_done_callback, slot),
                partial(chunk.remove_done_callback, slot),
            )
            yield from wait_outcome(chunk.buffer, when_done, forget).__await__()
        return chunk.result(slot)

    def __repr__(self) -> str:
        return f"PendingWrite({outcome_text(self)})"


class PendingBulk(Sequence[PendingWrite]):
    """Records that were handed over in one call; see `distributedlog.log.write.entry_batch.PendingBulk`."""

    __slots__ = ("_bulk",)

    def __init__(self, bulk: BufferedBulk) -> None:
        self._bulk = bulk

    def done(self) -> bool:
        """Are all outcomes known?"""
        return self._bulk.is_done()

    def result(self) -> list[DLSN]:
        """The DLSNs. Raises the first error, or `InvalidRequest` while an outcome is not known."""
        if not self._bulk.is_done():
            raise InvalidRequest("the writes are not done yet: await them")
        return self._bulk.writer_bulk().result()

    async def wait(self) -> None:
        """Until `done`; raises nothing."""
        bulk = self._bulk
        if not bulk.is_done():
            await wait_outcome(bulk.buffer, bulk.add_done_callback, bulk.remove_done_callback)

    async def outcomes(self) -> list[DLSN | DistributedLogError]:
        """One a record, when all are known."""
        await self.wait()
        return self._bulk.writer_bulk().known_outcomes()

    def __await__(self) -> Generator[Any, Any, list[DLSN]]:
        yield from self.wait().__await__()
        return self.result()

    def __len__(self) -> int:
        return self._bulk.length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return PendingWrite(*self._bulk.locate(index))

    def __repr__(self) -> str:
        return f"PendingBulk({len(self)} records, {outcome_text(self)})"


class LogWriter(_Closable):
    """The one writer of a log; see `distributedlog.LogWriter`."""

    def __init__(self, background: Background, buffer: WriteBuffer) -> None:
        what = f'the writer of log "{buffer.name}"'
        super().__init__(background, what, buffer.abort, buffer.drop)
        self._buffer = buffer
        self._append = buffer.append

    def __repr__(self) -> str:
        return repr(self._buffer.writer)

    async def submit(self, record: LogRecord | Buffer) -> PendingWrite:
        taken = self._append(record)
        if taken is None:
            taken = await run(self._background, self._buffer.append_when_capacity, record)
        chunk, slot = taken
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
        bulk, taken = self._buffer.validate_many(txids, payloads)
        at = 0
        while at < taken.record_count:
            stop = self._buffer.append_many(bulk, taken, at)
            if stop == at:
                taken.copy_records()
                room = self._buffer.append_many_when_capacity
                stop = await run(self._background, room, bulk, taken, at)
            at = stop
        return PendingBulk(bulk)

    async def submit_packed(
        self, txids: Buffer | None, offsets: Buffer, payloads: Buffer
    ) -> PendingBulk:
        taken = await run(self._background, self._buffer.submit_packed, txids, offsets, payloads)
        return PendingBulk(taken)

    async def submit_set(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        return PendingBulk(await run(self._background, self._buffer.submit_set, records))

    async def write_set(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        return await (await self.submit_set(records))

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        return await (await self.submit_bulk(records))

    @property
    def txid_rule(self) -> str:
        return self._buffer.writer.txid_rule

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
    """Appends bytes to a log; see `distributedlog.ByteWriter`. Each call is a hop to the loop."""

    def __init__(self, background: Background, writer: TrioByteWriter) -> None:
        self._handle = taken = ByteWriterHandle(writer, background)
        super().__init__(background, repr(writer), taken.abort, taken.drop)
        self._writer = writer

    def __repr__(self) -> str:
        return repr(self._writer)

    async def write(self, data: Buffer) -> int:
        """Take bytes; waits for room only. How many were taken: all, but where ``at_limit`` refuses the rest.

        Raises: TooBusy, AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await run(self._background, self._writer.write, bytes(data))

    async def flush(self) -> int:
        """Wait until all that was taken is durable and readable; the offset after it.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await run(self._background, self._writer.flush)

    async def tell(self) -> int:
        """The offset up to which all is durable.

        Raises: AlreadyClosed.
        """
        return await run(self._background, self._writer.tell)

    async def aclose(self) -> None:
        """As `flush`, then complete the segment and give the lock back. Idempotent.

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await run(self._background, self._handle.aclose)
        self._ended()

    async def abort(self) -> None:
        """Send nothing more; what is not durable yet is unknown (G7).

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._handle.abort)
        self._ended()


class ByteReader(_Closable):
    """Reads a log as bytes; see `distributedlog.ByteReader`."""

    def __init__(self, background: Background, reader: TrioByteReader) -> None:
        super().__init__(background, repr(reader), reader.aclose)
        self._reader = reader
        self._offset = reader.offset
        """After what the caller was given: a call that was given up may have read further."""

    def __repr__(self) -> str:
        return repr(self._reader)

    async def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, at least one; -1: all up to the end. ``b""`` at the end.

        Raises: LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        offset = self._offset
        found = await run(self._background, self._reader.read_from, offset, size)
        if self._offset != offset:
            raise InvalidRequest(READER_IN_USE_TEXT)
        self._offset += len(found)
        return found

    async def tell(self) -> int:
        """The offset of the next byte that is read.

        Raises: AlreadyClosed.
        """
        await run(self._background, self._reader.tell)
        return self._offset

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset, from the beginning (0), from here (1), or from the end of what is readable (2).

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
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._reader.aclose)
        self._ended()


class LogReader(_Closable):
    """Reads one log; see `distributedlog.LogReader`. Entries are fetched, not single records."""

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
        here = len(self._cursor)
        if here < number and (wait_s or not here):
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
            with suppress(AlreadyClosed):  # with its namespace
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
    """Writes one ledger for a log, then closes it; see `distributedlog.SegmentWriter`.

    Each call is a hop to the background thread: hand over whole entries (`write_packed`), or many records.
    """

    def __init__(self, background: Background, writer: TrioSegmentWriter) -> None:
        super().__init__(background, f"the writer of ledger {writer.ledger_id}", writer.abort)
        self._writer = writer

    @property
    def token(self) -> SegmentToken | None:
        """Set by `aclose`."""
        return self._writer.token


class RangeReader(_Closable):
    """Gives the user records of some ranges, entry by entry; see `distributedlog.RangeReader`."""

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
        while found := await self.read_columns_many():
            for columns in found:
                yield columns


class MultiReader(_Closable):
    """Gives entries of several logs, and what became of the logs; see `distributedlog.MultiReader`."""

    def __init__(self, background: Background, reader: TrioMultiReader) -> None:
        super().__init__(background, "a reader of several logs", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Item] = Inbox()
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
    """The logs of a namespace, then their changes; see `distributedlog.LogWatch`."""

    def __init__(self, background: Background, watch: TrioLogWatch) -> None:
        super().__init__(background, "a watch of logs", watch.aclose)
        self._watch = watch
        self._inbox: Inbox[LogChange] = Inbox()

    async def logs(self) -> dict[str, str]:
        async def call() -> dict[str, str]:
            return self._watch.logs

        return await run(self._background, call)

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        await run(self._background, self._inbox.fill_one, partial(self._watch.next, wait_s))
        found = self._inbox.pop_all()
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[LogChange]:
        while (change := await self.next()) is not None:
            yield change


class SegmentWatch(_Closable):
    """The changes of a log's segments; see `distributedlog.SegmentWatch`."""

    def __init__(self, background: Background, watch: TrioSegmentWatch) -> None:
        super().__init__(background, f'a watch of segments of log "{watch.name}"', watch.aclose)
        self.name = watch.name
        self._watch = watch
        self._inbox: Inbox[SegmentChange] = Inbox()

    async def next(self, wait_s: float | None = None) -> SegmentChange | None:
        await run(self._background, self._inbox.fill_one, partial(self._watch.next, wait_s))
        found = self._inbox.pop_all()
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[SegmentChange]:
        while (change := await self.next()) is not None:
            yield change


class Subscription(_Closable):
    """A log as one subscriber reads it; see `distributedlog.Subscription`."""

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
    """A stretch of the log that is this process's to handle; see `distributedlog.WorkClaim`."""

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
    """A log as many workers handle it; see `distributedlog.WorkQueue`."""

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
            found = await outcome_of(self._background, handover.start())
            return None if found is None else WorkClaim(self._background, found)
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
    """The positions of one log; see `distributedlog.log.services.named_positions.Positions`."""

    def __init__(self, background: Background, positions: TrioPositions) -> None:
        background.register_user(self)
        self._background = background
        self._positions = positions


class Log:
    """Names a log; see `distributedlog.Log`."""

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

    @property
    def positions(self) -> Positions:
        return Positions(self._background, self._log.positions)


class Namespace:
    """The logs under one path; see `distributedlog.Namespace`. Made by `open_namespace`."""

    def __init__(self, background: Background, namespace: TrioNamespace) -> None:
        background.register_user(self)
        self._background = background
        self._namespace = namespace

    async def logs(self, prefix: str = "") -> AsyncIterator[str]:
        after: str | None = ""
        while after is not None:
            page = await run(self._background, self._namespace.log_page, prefix, after)
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
    """An async context manager over one that the background loop holds. Once only.

    It ends even if its task is cancelled again: ``__aexit__`` waits for the end for some seconds, and the
    background thread ends in any case.
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
        self._background.begin_stop()  # it ends, whether this waits or not
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
            raise InvalidRequest("it is entered once; open another one")
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
) -> _Opened[Namespace]:
    """The namespace of a URI; ``async with`` it. See `distributedlog.open_namespace`."""
    return _Opened(
        open_trio_namespace(uri, config=config, metrics=metrics), "distributedlog client", Namespace
    )


def local_cluster(*args: Any, **options: Any) -> _Opened[LocalClusterInfo]:
    """A whole cluster on this machine; ``async with`` it. See `distributedlog.local_cluster`."""
    from distributedlog.cluster.local.local_cluster import local_cluster as trio_local_cluster

    return _Opened(trio_local_cluster(*args, **options), "distributedlog cluster", LocalClusterInfo)
