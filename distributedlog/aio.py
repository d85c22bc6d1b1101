"""The asyncio face: the same calls as `distributedlog`, for an asyncio event loop.

    async with open_namespace(uri) as namespace:
        async with namespace.open_log("orders").open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))

The trio client runs in one background thread a namespace. A record costs an append to a buffer; a wait that
cannot be answered at once costs a hop to that thread and back. Cancelling a wait withdraws no write (G7).
The end of a namespace is waited for even if its task is cancelled again. Signal handlers, logging handlers
and the end of the program: see `distributedlog.blocking`.

What stands in a class after the line "made" is made from the trio class, and most of `blocking.py` from what
is here, by ``python -m tools.generate_api_variants``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

import trio

from . import open_namespace as open_trio_namespace
from .log.byte_stream import ByteReader as TrioByteReader
from .log.byte_stream import ByteWriter as TrioByteWriter
from .log.consumers.subscription import Subscription as TrioSubscription
from .log.consumers.work_queue import CLAIM_S, ITEM_BYTES, TRIES_MAX
from .log.consumers.work_queue import WorkClaim as TrioWorkClaim
from .log.consumers.work_queue import WorkQueue as TrioWorkQueue
from .log.consumers.work_state import WorkState
from .log.format.dlsn import DLSN
from .log.format.record import TXID_MAX, Columns, LogRecord, split_columns
from .log.interfaces.open_call import Opening
from .log.log import DESCRIBED_SEGMENTS_MAX, LINK_WAIT_S, STAGED_MAX_AGE_S, LogDescription
from .log.log import Log as TrioLog
from .log.model.position import Position
from .log.model.segment_ranges import LogSnapshot, SegmentRange, SegmentToken
from .log.model.segment_record import SegmentRecord
from .log.model.stored_settings import StoredSettings
from .log.namespace import MULTI_READ_BYTES, LogPage
from .log.namespace import Namespace as TrioNamespace
from .log.read.log_reader import Idle, reader_text
from .log.read.log_reader import LogReader as TrioReader
from .log.read.multi_reader import Item
from .log.read.multi_reader import MultiReader as TrioMultiReader
from .log.read.range_reader import RangeReader as TrioRangeReader
from .log.read.segment_watch import SegmentChange
from .log.read.segment_watch import SegmentWatch as TrioSegmentWatch
from .log.read.skipped_entries import Skipped, Skips
from .log.segments.app_versions import AppVersion, LinkContent
from .log.segments.external_segment_writer import ENTRY_BYTES
from .log.segments.external_segment_writer import SegmentWriter as TrioSegmentWriter
from .log.segments.segment_link import LinkResult
from .log.services.log_metrics import NamespaceMetrics, Registry
from .log.services.log_watch import LogChange
from .log.services.log_watch import LogWatch as TrioLogWatch
from .log.services.named_positions import Positions as TrioPositions
from .log.write.entry_batch import outcome_text
from .log.write.producer_state_manager import OpenedProducer
from .runtime.declarations.options import check_wait, check_whole
from .runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
)
from .runtime.interfaces.host import Buffer
from .runtime.schedule.background_loop import EXIT_S_MAX, Background, CrossThreadFuture
from .thread_bridge import (
    ABANDON_TIMEOUT_S,
    READER_IN_USE_TEXT,
    BackgroundContext,
    Closeable,
    Inbox,
    LocalClusterInfo,
    ReadCursor,
    beside_loop,
    log_lost_records,
    pending_claim,
    pending_open,
)
from .write_buffer import BufferedBulk, ByteWriterHandle, Chunk, WriteBuffer, open_buffer

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
        """Take one record; waits for room only. ``await`` what it returns for the DLSN.

        Raises `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest`, `TooBusy` (the writer goes on),
        `AlreadyClosed`, or the first error of this writer, for good.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        taken = self._append(record)
        if taken is None:
            taken = await run(self._background, self._buffer.append_when_capacity, record)
        chunk, slot = taken
        return PendingWrite(chunk, slot)

    async def write(self, record: LogRecord | Buffer, *, expect: DLSN | None = None) -> DLSN:
        """Write one record; returns when it is durable (G2). Raises as `submit`, and `WriteFailed`.

        ``expect``: only directly after the record there; see `distributedlog.LogWriter.write`.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies, PositionConflict.
        """
        if expect is not None:
            return await run(self._background, self._buffer.write_after, expect, record)
        return await (await self.submit(record))

    async def submit_bulk(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        """Take many records, in order; waits for room only. ``await`` what it returns for the DLSNs.

        Raises only what closes or fails the writer; what is wrong with a record is its own outcome, and
        those after it are not taken. Where ``at_limit`` refuses, all from there on are `TooBusy`.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await self.submit_columns(*split_columns(records))

    async def submit_columns(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> PendingBulk:
        """As `submit_bulk`, from a list of txids and one of payloads; None for txids: the log fills them in.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
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
        """Take records as the columns of one entry, as Arrow lays them out; see `distributedlog.LogWriter`.

        A hop to the loop: hand over whole entries, of some 256 KiB. All of them are taken, or none. Raises
        `InvalidRequest`, `RecordTooLarge`, `TransactionIdOutOfOrder`, `AlreadyClosed`, or the first error.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        taken = await run(self._background, self._buffer.submit_packed, txids, offsets, payloads)
        return PendingBulk(taken)

    async def submit_set(self, records: Sequence[LogRecord | Buffer]) -> PendingBulk:
        """Take records that belong together, all or none; see `distributedlog.LogWriter`. A hop to the loop.

        They are next to each other in one entry and have one txid. Raises `RecordTooLarge`,
        `TransactionIdOutOfOrder`, `InvalidRequest`, `TooBusy`, `AlreadyClosed`, or the first error.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        return PendingBulk(await run(self._background, self._buffer.submit_set, records))

    async def write_set(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """As `submit_set`; returns their DLSNs when all are durable.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies.
        """
        return await (await self.submit_set(records))

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        """Write many records; returns their DLSNs when all are durable. Raises the first error.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed,
        WriteCancelled, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await (await self.submit_bulk(records))

    @property
    def txid_rule(self) -> str:
        """As `distributedlog.LogWriter.txid_rule`."""
        return self._buffer.writer.txid_rule

    @property
    def position(self) -> Position:
        """After the last record that is acknowledged: ``open_reader(position=…)`` goes on there."""
        return self._buffer.writer.position

    @property
    def over_rate(self) -> int:
        """As `distributedlog.LogWriter.over_rate`."""
        return self._buffer.writer.over_rate

    @property
    def last_txid(self) -> int:
        """The txid of the newest record that the writer has taken; -1 in an empty log."""
        return self._buffer.writer.last_txid

    @property
    def producer(self) -> OpenedProducer | None:
        """As `distributedlog.LogWriter.producer`."""
        return self._buffer.writer.producer

    async def flush(self) -> None:
        """Send what is buffered; waits for nothing but room.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await run(self._background, self._buffer.flush)

    async def truncate(self, dlsn: DLSN) -> DLSN:
        """Give up all records before ``dlsn``; see `distributedlog.Log.truncate`. The writer goes on.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._buffer.writer.truncate, dlsn)

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def write_frame(
        self, sequence: int, records: Sequence[LogRecord | Buffer], *, expect: DLSN | None = None
    ) -> list[DLSN]:
        """Write a frame: records of the writer's producer, stored at most once.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies, QuorumUnreachable, PositionConflict.
        """
        return await run(
            self._background, self._buffer.write_frame, sequence, records, expect=expect
        )

    async def commit(self) -> DLSN | None:
        """Wait until all records written before are durable and readable.

        Raises: RequestTimeout, AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return await run(self._background, self._buffer.commit)

    async def aclose(self) -> None:
        """Commit, close the segment and release the lock. Idempotent after success or failure.

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await run(self._background, self._buffer.aclose)
        self._ended()

    async def mark_end_of_stream(self) -> None:
        """Close the writer, as `aclose`, and seal the log: it accepts no more records, and readers end.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await run(self._background, self._buffer.mark_end_of_stream)
        self._ended()

    async def abort(self) -> None:
        """Stop sending. Writes that are not durable have an unknown outcome (G7).

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._buffer.abort)
        self._ended()


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
        """Where a reader goes on after the last record that was given: ``open_reader(position=…)``."""
        return self._cursor.position

    async def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        """The next record; None when ``wait_s`` is over (None: no limit), or at the end that ``to`` set.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, InvalidRequest, AlreadyClosed.
        """
        if wait_s is not None:
            check_wait(wait_s)
        record = self._cursor.next_record()
        while record is None and await run(self._background, self._cursor.fetch, wait_s):
            record = self._cursor.next_record()
        return record

    async def read_set(self, wait_s: float | None = None) -> list[LogRecord]:
        """The next record and those of its set; a record of no set is alone. [] as `read_next`'s None.

        Raises: EndOfStream, LogTruncated, LogNotFound, CorruptData, ReaderIdle, InvalidRequest,
        AlreadyClosed.
        """
        first = await self.read_next(wait_s)
        return [] if first is None else [first, *self._cursor.take_rest_of_set(first)]

    async def read_bulk(self, number: int, wait_s: float | None = None) -> list[LogRecord]:
        """Up to ``number`` records: waits for the first, then takes what comes until ``wait_s`` after
        the call (None: what is here; 0: does not wait for the first either).

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, AlreadyClosed,
        InvalidRequest.
        """
        check_whole("number", number, 1)
        check_wait(wait_s)
        here = len(self._cursor)
        if here < number and (wait_s or not here):
            await run(self._background, self._cursor.fetch_records, number, wait_s)
        return self._cursor.take_records(number)

    async def read_columns(self, wait_s: float | None = None) -> Columns | None:
        """The rest of the entry at hand, or the next one, as columns. None as `read_next`.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        columns = self._cursor.take_columns()
        while columns is None and await run(self._background, self._cursor.fetch, wait_s):
            columns = self._cursor.take_columns()
        return columns

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
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

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    @property
    def skipped(self) -> Skips:
        """The entries that ``broken="skip"`` has skipped so far. See `distributedlog.LogReader.skipped`."""
        return self._reader.skipped

    async def idle(self) -> Idle:
        """Return for how long no entry has arrived, and for how long no bookie has answered.

        Raises: AlreadyClosed.
        """
        return await run(self._background, self._reader.idle)


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

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ID of the ledger that is written."""
        return self._writer.ledger_id

    @property
    def size_bytes(self) -> int:
        """The entry bytes so far, including buffered records."""
        return self._writer.size_bytes

    @property
    def records(self) -> int:
        """The number of records accepted so far."""
        return self._writer.records

    async def write(self, record: LogRecord | Buffer) -> None:
        """Accept one record, waiting only for free space in the send window.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        await run(self._background, self._writer.write, record)

    async def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> None:
        """Accept records in order, waiting only for free space in the send window.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        await run(self._background, self._writer.write_bulk, records)

    async def write_columns(self, txids: Sequence[int] | None, payloads: Sequence[bytes]) -> None:
        """Accept records as `write_bulk`, from a list of transaction IDs and one of payloads.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        await run(self._background, self._writer.write_columns, txids, payloads)

    async def write_packed(self, txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> None:
        """Write one entry from columns in Arrow's layout, without work per record.

        Raises: RecordTooLarge, InvalidRequest, AlreadyClosed, WriteFailed.
        """
        await run(self._background, self._writer.write_packed, txids, offsets, payloads)

    async def flush(self) -> None:
        """Send the buffered records, waiting only for free space in the send window.

        Raises: AlreadyClosed, WriteFailed.
        """
        await run(self._background, self._writer.flush)

    async def aclose(self) -> SegmentToken:
        """Wait until all records are durable, and close the ledger. Idempotent.

        Raises: WriteFailed, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        found = await run(self._background, self._writer.aclose)
        self._ended()
        return found

    async def abort(self) -> None:
        """Stop sending, and delete the ledger if the metadata quorum answers. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._writer.abort)
        self._ended()


class RangeReader(_Closable):
    """Gives the user records of some ranges, entry by entry; see `distributedlog.RangeReader`."""

    def __init__(self, background: Background, reader: TrioRangeReader) -> None:
        super().__init__(background, "a reader of ranges", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Columns] = Inbox()

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """The next entry and those that are here after it, up to ``bytes_max``; [] at the end.

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

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._reader.aclose)
        self._ended()


class MultiReader(_Closable):
    """Gives entries of several logs, and what became of the logs; see `distributedlog.MultiReader`."""

    def __init__(self, background: Background, reader: TrioMultiReader) -> None:
        super().__init__(background, "a reader of several logs", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Item] = Inbox()
        self._positions: dict[str, Position] = {}

    async def next(self, wait_s: float | None = None) -> Item | None:
        """The next entry or event; None when ``wait_s`` is over (None: no limit; 0: takes only what is here),
        or when nothing more will come of any log.

        Raises: InvalidRequest, AlreadyClosed.
        """
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
        """Where each log goes on after what was given of it: ``open_reader(positions=…)``."""
        return dict(self._positions)

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._reader.aclose)
        self._ended()


class LogWatch(_Closable):
    """The logs of a namespace, then their changes; see `distributedlog.LogWatch`."""

    def __init__(self, background: Background, watch: TrioLogWatch) -> None:
        super().__init__(background, "a watch of logs", watch.aclose)
        self._watch = watch
        self._inbox: Inbox[LogChange] = Inbox()

    async def logs(self) -> dict[str, str]:
        """Name to incarnation: as listed at first, and as the changes that were taken made it."""

        async def call() -> dict[str, str]:
            return self._watch.logs

        return await run(self._background, call)

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        """The next change; None when ``wait_s`` is over (None: no limit; 0: takes only what is here).

        Raises: QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        await run(self._background, self._inbox.fill_one, partial(self._watch.next, wait_s))
        found = self._inbox.pop_all()
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[LogChange]:
        while (change := await self.next()) is not None:
            yield change

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def aclose(self) -> None:
        """Stop the watch. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._watch.aclose)
        self._ended()


class SegmentWatch(_Closable):
    """The changes of a log's segments; see `distributedlog.SegmentWatch`."""

    def __init__(self, background: Background, watch: TrioSegmentWatch) -> None:
        super().__init__(background, f'a watch of segments of log "{watch.name}"', watch.aclose)
        self.name = watch.name
        self._watch = watch
        self._inbox: Inbox[SegmentChange] = Inbox()

    async def next(self, wait_s: float | None = None) -> SegmentChange | None:
        """The next change; None when ``wait_s`` is over (None: no limit; 0: takes only what is here), or
        after the end of a sealed log was told.

        Raises: LogDeleted, QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        await run(self._background, self._inbox.fill_one, partial(self._watch.next, wait_s))
        found = self._inbox.pop_all()
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[SegmentChange]:
        while (change := await self.next()) is not None:
            yield change

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def aclose(self) -> None:
        """Stop watching. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._watch.aclose)
        self._ended()


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
        """Everything before ``position`` was handled (None: what the reader has given). It never goes back.

        Raises: SubscriptionLost, InvalidRequest, LogRecreated, QuorumUnreachable, AlreadyClosed.
        """
        if position is None:
            position = self.reader.position
        await run(self._background, self._subscription.commit_at, position, now)

    async def aclose(self) -> None:
        """Write what was committed, and let the next holder in. Idempotent.

        Raises: SubscriptionLost, QuorumUnreachable, AlreadyClosed.
        """
        if self._is_open:
            try:
                await run(self._background, self._subscription.aclose)
            finally:
                self._ended()

    def _ended(self) -> None:
        super()._ended()
        self.reader._cursor.close()
        self.reader._ended()

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    @property
    def committed(self) -> DLSN:
        """The position as last written."""
        return self._subscription.committed

    async def abort(self) -> None:
        """Close the subscription as `aclose`, for at most 2 s and without an error. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._subscription.abort)
        self._ended()


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

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    def open_reader(self, *, rest: bool = False) -> Opening[RangeReader]:
        """Open a reader of the item's records, entry by entry as columns. The item can have no record.

        Raises: LogNotFound, LogTruncated, CorruptData, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        opening = self._claim.open_reader(rest=rest)
        return Opening(lambda: opened(self._background, RangeReader, opening.open))

    async def done(self) -> None:
        """Record that the item is handled, for good. See `distributedlog.WorkClaim.done`.

        Raises: ClaimLost, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await run(self._background, self._claim.done)

    async def give_back(self, delay_s: float = 0.0) -> None:
        """Return the item without handling it, so that another worker can claim it.

        Raises: ClaimLost, LogNotFound, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await run(self._background, self._claim.give_back, delay_s)

    async def extend(self) -> None:
        """Restart the time limit ``claim_s`` of this claim. `ClaimLost` is raised if it has expired.

        Raises: ClaimLost, AlreadyClosed.
        """
        await run(self._background, self._claim.extend)


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
        """The next stretch, of about ``bytes_max``; None when ``wait_s`` is over (None: no limit; 0: what is
        here), or when a sealed log was handled to its end.

        Raises: LogNotFound, InvalidRequest, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
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

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def state(self) -> WorkState:
        """Return the state of the queue: its floor, its claims and its dead-lettered items.

        Raises: LogNotFound, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._queue.state)

    async def retry(self, number: int) -> None:
        """Let a dead-lettered item be claimed again. See `distributedlog.WorkQueue.retry`.

        Raises: InvalidRequest, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await run(self._background, self._queue.retry, number)

    async def drop(self, number: int) -> None:
        """Drop a dead-lettered item, so that it is never handled. See `distributedlog.WorkQueue.drop`.

        Raises: InvalidRequest, LogNotFound, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await run(self._background, self._queue.drop, number)

    async def aclose(self) -> None:
        """Return the claims of this process that are not done. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            await run(self._background, self._queue.aclose)
        self._ended()


class Positions:
    """The positions of one log; see `distributedlog.log.services.named_positions.Positions`."""

    def __init__(self, background: Background, positions: TrioPositions) -> None:
        background.register_user(self)
        self._background = background
        self._positions = positions

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    async def get(self, name: str) -> DLSN | None:
        """Return the position at which a subscriber continues, or None if it has none.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._positions.get, name)

    async def proven(self, name: str) -> Position | None:
        """Return a subscriber's position with its proof, or None. See `distributedlog.Positions.proven`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._positions.proven, name)

    async def advance(self, name: str, to: Position | DLSN, *, hold: bool = False) -> DLSN:
        """Create a position or move it forwards. See `distributedlog.Positions.advance`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._positions.advance, name, to, hold=hold)

    async def list(self) -> dict[str, DLSN]:
        """Return all positions by name, in the order of names.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._positions.list)

    async def holds(self) -> dict[str, float]:
        """Return the positions that hold records, and their age. See `distributedlog.Positions.holds`.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._positions.holds)

    async def holders(self) -> dict[str, str]:
        """Return the current subscribers (`Log.subscribe`): the name of each position and of its process.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._positions.holders)

    async def delete(self, name: str) -> bool:
        """Delete a position, and return whether it existed.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._positions.delete, name)


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
        """The log's one writer; ``async with`` or ``await`` it. See `distributedlog.Log.open_writer`.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, EndOfStream, RecoveryIncomplete,
        NotEnoughBookies, InvalidRequest, UnsupportedFormat, QuorumUnreachable, OutcomeUnknown, AlreadyClosed,
        TooBusy.
        """
        opening = self._log.open_writer(
            takeover=takeover, wait_s=wait_s, lock=lock, producer=producer
        )
        open_it = partial(open_buffer, self._background, self._namespace, self._log, opening)
        return Opening(lambda: opened(self._background, LogWriter, open_it))

    @property
    def positions(self) -> Positions:
        """Where subscribers of this log go on, by name."""
        return Positions(self._background, self._log.positions)

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    def open_reader(
        self,
        *,
        position: Position | None = None,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        since: datetime | int | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: DLSN | Literal["end"] | None = None,
        broken: Literal["raise", "skip"] = "raise",
        on_skipped: Callable[[Skipped], object] | None = None,
        idle_error_s: float | None = None,
    ) -> Opening[LogReader]:
        """Open a reader, by default at the earliest record. See `distributedlog.Log.open_reader`.

        Raises: LogTruncated, LogNotFound, LogDeleted, LogRecreated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        opening = self._log.open_reader(
            position=position,
            dlsn=dlsn,
            txid=txid,
            since=since,
            at=at,
            to=to,
            broken=broken,
            on_skipped=beside_loop(self._background, on_skipped),
            idle_error_s=idle_error_s,
        )
        return Opening(lambda: opened(self._background, LogReader, opening.open))

    def open_byte_writer(
        self, *, takeover: bool = False, wait_s: float | None = None
    ) -> Opening[ByteWriter]:
        """Open a writer that appends bytes to a byte stream. See `distributedlog.Log.open_byte_writer`.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, EndOfStream, RecoveryIncomplete,
        NotEnoughBookies, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        opening = self._log.open_byte_writer(takeover=takeover, wait_s=wait_s)
        return Opening(lambda: opened(self._background, ByteWriter, opening.open))

    def open_byte_reader(self, *, offset: int = 0, follow: bool = False) -> Opening[ByteReader]:
        """Open a reader for the bytes of a byte stream. See `distributedlog.Log.open_byte_reader`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        opening = self._log.open_byte_reader(offset=offset, follow=follow)
        return Opening(lambda: opened(self._background, ByteReader, opening.open))

    async def last_dlsn(self) -> DLSN:
        """Return the position of the last readable record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._log.last_dlsn)

    async def first_record(self) -> LogRecord:
        """Return the first available record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, QuorumUnreachable,
        AlreadyClosed.
        """
        return await run(self._background, self._log.first_record)

    async def last_record(self) -> LogRecord:
        """Return the last readable record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, QuorumUnreachable,
        AlreadyClosed.
        """
        return await run(self._background, self._log.last_record)

    async def count(self, from_: DLSN | None = None, to: DLSN | None = None) -> int:
        """Return the number of readable records between two positions. See `distributedlog.Log.count`.

        Raises: LogNotFound, LogRecreated, LogTruncated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._log.count, from_, to)

    async def describe(self, *, segments_max: int = DESCRIBED_SEGMENTS_MAX) -> LogDescription:
        """Describe the log: state, ends, counts, owner and segments. See `distributedlog.Log.describe`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        return await run(self._background, self._log.describe, segments_max=segments_max)

    async def segments(self, *, first: int = 1, limit: int = 1000) -> list[SegmentRecord]:
        """Return segments of the log, ascending. See `distributedlog.Log.segments`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._log.segments, first=first, limit=limit)

    async def truncate(
        self,
        dlsn: DLSN | None = None,
        *,
        txid: int | None = None,
        before: datetime | int | None = None,
    ) -> DLSN:
        """Delete all records before a position or time. See `distributedlog.Log.truncate`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._log.truncate, dlsn, txid=txid, before=before)

    async def settings(self) -> StoredSettings:
        """Return the stored settings of the log, and the metadata of its user.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._log.settings)

    async def set(
        self, settings: Mapping[str, Any], *, metadata: Mapping[str, bytes | None] | None = None
    ) -> StoredSettings:
        """Store settings of the log, and metadata of its user. See `distributedlog.Log.set`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, CorruptData, UnsupportedFormat, QuorumUnreachable,
        AlreadyClosed.
        """
        return await run(self._background, self._log.set, settings, metadata=metadata)

    async def seal(self, *, takeover: bool = False, wait_s: float | None = None) -> bool:
        """Seal the log, so that it accepts no more records. See `distributedlog.Log.seal`.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, RecoveryIncomplete, QuorumUnreachable,
        OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        return await run(self._background, self._log.seal, takeover=takeover, wait_s=wait_s)

    async def find(
        self,
        *,
        txid: int | None = None,
        since: datetime | int | None = None,
        wall_ms: int | None = None,
    ) -> DLSN:
        """Return the position of the first record from a txid or time on. See `distributedlog.Log.find`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        return await run(self._background, self._log.find, txid=txid, since=since, wall_ms=wall_ms)

    async def compact(self) -> int:
        """Merge adjacent small closed segments into common ledgers. See `distributedlog.Log.compact`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, NotEnoughBookies, WriteFailed, CorruptData,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._log.compact)

    def subscribe(
        self,
        name: str,
        *,
        at: Literal["earliest", "latest"] = "earliest",
        hold: bool = False,
        takeover: bool = False,
        wait_s: float | None = None,
    ) -> Opening[Subscription]:
        """Read from a named position on, as its only subscriber. See `distributedlog.Log.subscribe`.

        Raises: OwnershipAcquireFailed, LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown,
        InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        opening = self._log.subscribe(name, at=at, hold=hold, takeover=takeover, wait_s=wait_s)
        return Opening(lambda: opened(self._background, Subscription, opening.open))

    def work_queue(
        self,
        name: str,
        *,
        at: Literal["earliest", "latest"] = "earliest",
        hold: bool = False,
        tries_max: int = TRIES_MAX,
        claim_s: float = CLAIM_S,
    ) -> Opening[WorkQueue]:
        """Process the log together with other workers. See `distributedlog.Log.work_queue`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        opening = self._log.work_queue(name, at=at, hold=hold, tries_max=tries_max, claim_s=claim_s)
        return Opening(lambda: opened(self._background, WorkQueue, opening.open))

    async def work_queues(self) -> dict[str, WorkState]:
        """Return the progress of each work queue of the log, by name.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._log.work_queues)

    async def delete_work_queue(self, name: str) -> bool:
        """Delete a work queue, and return whether it existed. See `distributedlog.Log.delete_work_queue`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._log.delete_work_queue, name)

    def watch_segments(self, *, first: int | None = None) -> Opening[SegmentWatch]:
        """Watch for opened, closed and truncated segments. See `distributedlog.Log.watch_segments`.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        opening = self._log.watch_segments(first=first)
        return Opening(lambda: opened(self._background, SegmentWatch, opening.open))

    async def snapshot(self, *, first: int = 1, limit: int | None = None) -> LogSnapshot:
        """Return the segments and ends of the log, for planning. See `distributedlog.Log.snapshot`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        return await run(self._background, self._log.snapshot, first=first, limit=limit)

    def open_ranges(self, ranges: Sequence[SegmentRange]) -> Opening[RangeReader]:
        """Read ranges of entries of a `snapshot`, in order. See `distributedlog.Log.open_ranges`.

        Raises: LogNotFound, LogDeleted, LogRecreated, LogTruncated, QuorumUnreachable, AlreadyClosed.
        """
        opening = self._log.open_ranges(ranges)
        return Opening(lambda: opened(self._background, RangeReader, opening.open))

    def open_segment_writer(
        self,
        *,
        app: str = "",
        version: int = 0,
        custom: Mapping[str, bytes] | None = None,
        entry_bytes: int = ENTRY_BYTES,
        digest: bool = False,
    ) -> Opening[SegmentWriter]:
        """Open a writer for a segment outside the log. See `distributedlog.Log.open_segment_writer`.

        Raises: LogNotFound, LogRecreated, EndOfStream, NotEnoughBookies, InvalidRequest, QuorumUnreachable,
        UnsupportedFormat, OutcomeUnknown, AlreadyClosed.
        """
        opening = self._log.open_segment_writer(
            app=app, version=version, custom=custom, entry_bytes=entry_bytes, digest=digest
        )
        return Opening(lambda: opened(self._background, SegmentWriter, opening.open))

    async def link_segments(
        self,
        segments: Sequence[SegmentToken],
        *,
        app: str = "",
        version: int = 0,
        identity: str = "",
        takeover: bool = False,
        wait_s: float = LINK_WAIT_S,
        truncate_before: bool = False,
        content: LinkContent | None = None,
    ) -> LinkResult:
        """Attach staged ledgers as the log's next segments (G8). See `distributedlog.Log.link_segments`.

        Raises: OwnershipAcquireFailed, LinkOutOfOrder, LinkMismatch, TransactionIdOutOfOrder, EndOfStream,
        LogNotFound, LogRecreated, NoSuchLedger, InvalidRequest, TransactionTooLarge, RecoveryIncomplete,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await run(
            self._background,
            self._log.link_segments,
            segments,
            app=app,
            version=version,
            identity=identity,
            takeover=takeover,
            wait_s=wait_s,
            truncate_before=truncate_before,
            content=content,
        )

    async def linked_version(self, app: str) -> AppVersion | None:
        """Return the last version that an application has linked. See `distributedlog.Log.linked_version`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._log.linked_version, app)

    async def discard_segments(self, segments: Sequence[SegmentToken]) -> list[SegmentToken]:
        """Delete segments that are not linked. See `distributedlog.Log.discard_segments`.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        return await run(self._background, self._log.discard_segments, segments)

    async def collect_unlinked(self, *, older_than_s: float = STAGED_MAX_AGE_S) -> int:
        """Delete staged segments that will never be linked. See `distributedlog.Log.collect_unlinked`.

        Raises: LogNotFound, LogRecreated, QuorumUnreachable, OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        return await run(self._background, self._log.collect_unlinked, older_than_s=older_than_s)


class Namespace:
    """The logs under one path; see `distributedlog.Namespace`. Made by `open_namespace`."""

    def __init__(self, background: Background, namespace: TrioNamespace) -> None:
        background.register_user(self)
        self._background = background
        self._namespace = namespace

    async def logs(self, prefix: str = "") -> AsyncIterator[str]:
        """The names that begin with ``prefix``, in order (of their UTF-8 bytes), read page by page.

        Raises: QuorumUnreachable, AlreadyClosed.
        """
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
        """Name a log; never asks whether it exists. See `distributedlog.Namespace.open_log`.

        Raises: InvalidLogName, InvalidRequest, AlreadyClosed.
        """
        log = self._namespace.open_log(name, config=config, incarnation=incarnation)
        return Log(self._background, self._namespace, log)

    # --- made by tools/generate_api_variants.py from here on ---------------------------------------

    @property
    def metrics(self) -> NamespaceMetrics:
        """The metrics of this namespace object. Its ``snapshot()`` may be called from any thread."""
        return self._namespace.metrics

    async def create_log(
        self,
        name: str,
        *,
        durability: Literal["standard", "all"] = "standard",
        config: Mapping[str, Any] | None = None,
        metadata: Mapping[str, bytes] | None = None,
        txids: Literal["auto", "strict", "count", "ms", "bytes", "given"] = "auto",
    ) -> None:
        """Create an empty log, in one transaction. See `distributedlog.Namespace.create_log`.

        Raises: LogExists, InvalidLogName, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await run(
            self._background,
            self._namespace.create_log,
            name,
            durability=durability,
            config=config,
            metadata=metadata,
            txids=txids,
        )

    async def rename_log(self, old: str, new: str) -> None:
        """Rename a log, in one transaction. See `distributedlog.Namespace.rename_log`.

        Raises: LogNotFound, LogExists, OwnershipAcquireFailed, InvalidLogName, InvalidRequest,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await run(self._background, self._namespace.rename_log, old, new)

    async def log_exists(self, name: str) -> bool:
        """Return whether a log of this name exists now.

        Raises: InvalidLogName, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._namespace.log_exists, name)

    async def log_page(self, prefix: str = "", after: str = "", limit: int = 1000) -> LogPage:
        """Return a page of logs, in the order of their names. See `distributedlog.Namespace.log_page`.

        Raises: InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._namespace.log_page, prefix, after, limit)

    def watch_logs(self, prefix: str = "", *, keep: bool = True) -> Opening[LogWatch]:
        """Watch for created, renamed and deleted logs. See `distributedlog.Namespace.watch_logs`.

        Raises: QuorumUnreachable, AlreadyClosed.
        """
        opening = self._namespace.watch_logs(prefix, keep=keep)
        return Opening(lambda: opened(self._background, LogWatch, opening.open))

    def open_reader(
        self,
        *,
        logs: Sequence[str] | None = None,
        pattern: str | None = None,
        positions: Mapping[str, Position] | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: Literal["end"] | None = None,
        order: Literal["arrival", "time"] = "arrival",
        time_wait_s: float = 1.0,
        bytes_max: int = MULTI_READ_BYTES,
    ) -> Opening[MultiReader]:
        """Read several logs as one stream. See `distributedlog.Namespace.open_reader`.

        Raises: InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        opening = self._namespace.open_reader(
            logs=logs,
            pattern=pattern,
            positions=positions,
            at=at,
            to=to,
            order=order,
            time_wait_s=time_wait_s,
            bytes_max=bytes_max,
        )
        return Opening(lambda: opened(self._background, MultiReader, opening.open))

    async def delete_log(self, name: str, *, wait_s: float = 0.0) -> None:
        """Delete a log with all its records. See `distributedlog.Namespace.delete_log`.

        Raises: LogNotFound, OwnershipAcquireFailed, RecoveryIncomplete, InvalidLogName, QuorumUnreachable,
        OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        await run(self._background, self._namespace.delete_log, name, wait_s=wait_s)

    async def settings(self) -> StoredSettings:
        """Return the stored settings of the namespace, which apply to all logs without settings of their own.

        Raises: CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._namespace.settings)

    async def set(
        self, settings: Mapping[str, Any], *, metadata: Mapping[str, bytes | None] | None = None
    ) -> StoredSettings:
        """Set options for all logs of the namespace. See `distributedlog.Namespace.set`.

        Raises: InvalidRequest, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return await run(self._background, self._namespace.set, settings, metadata=metadata)


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
    from .cluster.local.local_cluster import local_cluster as trio_local_cluster

    return _Opened(trio_local_cluster(*args, **options), "distributedlog cluster", LocalClusterInfo)
