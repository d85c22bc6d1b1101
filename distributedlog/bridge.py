"""Between a trio run in a thread and its callers outside: what the blocking and asyncio faces share.

A record costs its caller an append to a chunk, under a mutex; the first one of a burst wakes the loop once.
One task there, of the `WriteBuffer`, hands whole chunks to the real writer. What is buffered is bounded in
bytes: above it the caller waits. Nothing here knows how a caller waits: that is `blocking.py` and `aio.py`.
"""

import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import trio

from .log.admission import admit
from .log.batch import PendingBulk
from .log.containment import contained
from .log.dlsn import DLSN
from .log.handle import Log
from .log.namespace import Namespace
from .log.opening import Opening
from .log.reader import LogReader
from .log.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, TXID_MAX, Columns, LogRecord
from .log.writer import LogWriter
from .runtime.background import Background, Handover, Mutex, Promise
from .runtime.errors import AlreadyClosed, DistributedLogError, WriteFailed
from .runtime.forked import watch_forks

BUFFER_BYTES_MAX = 4 * 1024 * 1024
"""Between the caller and the writer, beside the writer's own bound."""

T = TypeVar("T")
C = TypeVar("C", bound="Owned")


class Owned:
    """What a face opened. Dropped without being closed, it is given up by the loop.

    So no interrupt between ``open_writer()`` and the caller's name for it leaves a log locked.
    """

    def __init__(
        self, background: Background, what: str, give_up: Callable[[], Awaitable[object]]
    ) -> None:
        self._background = background
        self._give_up = give_up
        """In the loop."""
        self._on_dropped = weakref.finalize(self, _dropped, background, what, give_up)
        self._on_dropped.atexit = False

    @property
    def _open(self) -> bool:
        """Is there something to close?"""
        return self._on_dropped.alive

    def _ended(self) -> None:
        """It was closed: nothing is left to give up."""
        self._on_dropped.detach()


def _dropped(background: Background, what: str, give_up: Callable[[], Awaitable[object]]) -> None:
    try:
        background.post(lambda: background.spawn(give_up))
    except AlreadyClosed:
        return  # it ended with its namespace
    warnings.warn(f"{what} was dropped unclosed; it is given up", ResourceWarning, stacklevel=2)


def hand_over(
    background: Background, wrap: Callable[[Background, T], C], open_it: Callable[[], Awaitable[T]]
) -> Handover[C]:
    """What ``open_it`` will open in the loop, wrapped, on its way to a caller."""

    async def open_and_wrap() -> C:
        return wrap(background, await open_it())

    async def give_up(owned: C) -> None:
        owned._ended()
        await owned._give_up()

    return Handover(background, open_and_wrap, give_up)


class Chunk:
    """Records on their way to the loop, and their outcome there. Filled under the buffer's mutex."""

    __slots__ = ("bulk", "error", "left_bytes", "posted", "records", "taken")

    def __init__(self, left_bytes: int) -> None:
        self.records: list[Any] = []
        """Txid, payload, txid, payload, ... Two at a time, so that an interrupt leaves a record whole, or
        out."""
        self.left_bytes = left_bytes
        """How much more may be buffered; below 0 the caller waits."""
        self.posted = False
        """The loop was told that there is something, or will be."""
        self.bulk: PendingBulk | None = None
        """Set when the writer has taken it."""
        self.error: DistributedLogError | None = None
        """Set when the writer refused it whole."""
        self.taken: trio.Event | None = None

    def done(self, slot: int) -> bool:
        """Is a record's outcome known? From any thread."""
        if self.bulk is None:
            return self.error is not None
        return bool(self.bulk[slot].done())

    def result(self, slot: int) -> DLSN:
        """The DLSN of a record whose outcome is known, or its error raised. From any thread."""
        if self.bulk is None:
            assert self.error is not None, "asked only when the outcome is known"
            raise self.error.again()
        dlsn: DLSN = self.bulk[slot].result()
        return dlsn

    async def wait(self, slot: int) -> DLSN:
        """In the loop: until the outcome is known."""
        while self.bulk is None and self.error is None:
            if self.taken is None:
                self.taken = trio.Event()
            await self.taken.wait()
        if self.bulk is not None:
            await self.bulk[slot]
        return self.result(slot)

    def settle(self) -> None:
        """In the loop: taken or refused."""
        self.records = []
        if self.taken is not None:
            self.taken.set()


class WriteBuffer:
    """The buffer before one writer. `append` from any thread; all else in the loop.

    An interrupt (Ctrl-C) may come anywhere in `append`. The loop is told first, under the mutex that it
    needs to look: at worst it looks for nothing. A record that is in is one that the loop will see.
    """

    def __init__(self, writer: LogWriter, background: Background, name: str, ordered: bool) -> None:
        self.writer = writer
        self.name = name
        self.full = False
        """The caller should wait with `room` before it appends more."""
        self._background = background
        self._pipeline = writer.pipeline
        self._ordered = ordered
        self._floor = max(0, writer.last_txid) if ordered else 0
        self._mutex = Mutex()
        self._chunk = Chunk(BUFFER_BYTES_MAX)
        self._closed = False
        self._over = False
        """Nothing is handed over any more."""
        self._scope = trio.CancelScope()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._room = trio.Event()
        watch_forks(self)

    def append(self, record: LogRecord) -> tuple[Chunk, int]:
        """Take one record; its chunk and slot. Raises as `LogWriter.submit`."""
        txid = record.txid
        payload = record.payload
        with self._mutex:
            if (
                type(payload) is not bytes
                or type(txid) is not int
                or not self._floor <= txid <= TXID_MAX
                or len(payload) > RECORD_BYTES_MAX
            ):
                payload = admit(txid, payload, self._floor, self.name)
            if self._closed or self._pipeline.over is not None:
                self._raise_if_over()
            chunk = self._chunk
            if not chunk.posted:
                self._background.post(self._on_append)
                chunk.posted = True
            if self._ordered:
                self._floor = txid
            chunk.left_bytes -= len(payload) + RECORD_COLUMN_BYTES
            if chunk.left_bytes < 0:
                self.full = True
            records = chunk.records
            slot = len(records) >> 1
            records += (txid, payload)
        return chunk, slot

    async def run(self) -> None:
        """Hand chunks to the writer, in order, until it or the namespace ends. A task of the latter."""
        try:
            with self._scope, contained(f'the write buffer of log "{self.name}"', self.writer.fail):
                while True:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    await self._hand_over(self._swap())
        finally:
            self._close()
            self._over = True
            self._refuse(self._swap())
            self.full = False
            self._room.set()
            self._idle.set()  # who waits for what was appended is told by the writer why it ended

    async def _hand_over(self, chunk: Chunk) -> None:
        try:
            if chunk.records:
                txids, payloads = chunk.records[::2], chunk.records[1::2]
                chunk.bulk = await self.writer.submit_columns(txids, payloads)
        except DistributedLogError as error:
            chunk.error = error
        except BaseException:  # a part of it may be in
            chunk.error = WriteFailed(f'log "{self.name}": its writer ended; it may be stored')
            raise
        finally:
            self._refuse(chunk)
        with self._mutex:
            self._chunk.left_bytes += BUFFER_BYTES_MAX - chunk.left_bytes
            self.full = False
            empty = not self._chunk.records
        self._room.set()
        self._room = trio.Event()
        if empty:
            self._idle.set()
        else:
            self._wake.set()

    def _swap(self) -> Chunk:
        with self._mutex:
            chunk = self._chunk
            self._chunk = Chunk(chunk.left_bytes)
        return chunk

    def _refuse(self, chunk: Chunk) -> None:
        """Its outcome, unless the writer has taken it, or said why not."""
        if chunk.bulk is None and chunk.error is None:
            over = self.writer.over
            chunk.error = (
                AlreadyClosed(f'log "{self.name}": closed') if over is None else over.again()
            )
        chunk.settle()

    async def room(self) -> None:
        """Until the buffer is below its bound."""
        while self.full and self.writer.over is None:
            self._wake.set()
            await self._room.wait()

    async def commit(self) -> DLSN | None:
        """As `LogWriter.commit`, for all that was appended before."""
        await self._drained()
        return await self.writer.commit()

    async def flush(self) -> None:
        """As `LogWriter.flush`; waits for the writer's room."""
        await self._drained()
        await self.writer.flush()

    async def aclose(self) -> None:
        """As `LogWriter.aclose`, for all that was appended before."""
        await self._end(self.writer.aclose)

    async def mark_end_of_stream(self) -> None:
        """As `LogWriter.mark_end_of_stream`, for all that was appended before."""
        await self._end(self.writer.mark_end_of_stream)

    async def abort(self) -> None:
        """As `LogWriter.abort`."""
        self._close()
        try:
            await self.writer.abort()
        finally:
            self._scope.cancel()

    async def _end(self, end_it: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self._close():
                await self._drained()
            await end_it()
        except BaseException:
            await self.writer.abort()  # what was cancelled before it began to end, too
            raise
        finally:
            self._scope.cancel()

    def _close(self) -> bool:
        with self._mutex:
            before, self._closed = self._closed, True
        return before

    async def _drained(self) -> None:
        with self._mutex:
            waiting = bool(self._chunk.records)
        if waiting:
            self._on_append()
        await self._idle.wait()

    def _on_append(self) -> None:
        if self._over:
            return  # posted in the last moment, for what was refused, or by an interrupted call
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def _raise_if_over(self) -> None:
        over = self.writer.over
        if over is not None:
            raise over.again()
        self._background.check_running()
        raise AlreadyClosed(f'log "{self.name}": this writer is closed')

    def on_forked(self) -> None:
        """In a forked child: a thread of the parent may have held the mutex, and it is not here (H15)."""
        self._mutex = Mutex()
        self._closed = True


async def open_buffer(
    background: Background, namespace: Namespace, log: Log, opening: Opening[LogWriter]
) -> WriteBuffer:
    """In the loop: the writer that an opening gives, with its buffer, which runs as long as that."""
    writer = await opening
    try:
        buffer = WriteBuffer(writer, background, log.name, log.options.max_txid_check)
        namespace.start(buffer.run)
    except BaseException:
        await writer.abort()
        raise
    return buffer


async def listed(items: AsyncIterable[T]) -> list[T]:
    """In the loop: all of them."""
    return [item async for item in items]


class LocalCluster:
    """A cluster on this machine: where it is, who its nodes are."""

    def __init__(self, background: Background, cluster: Any) -> None:
        self.uri: str = cluster.uri
        self.data: str | None = cluster.data
        self.nodes: list[Any] = cluster.nodes


class HeldContext(Generic[T]):
    """An async context manager that is entered, held and left by one task of a background loop."""

    def __init__(self, background: Background, manager: AbstractAsyncContextManager[T]) -> None:
        self.entered: Promise[T] = Promise()
        self._background = background
        self._manager = manager
        self._leave: trio.Event
        self.left: Promise[None] = Promise()
        """Set when the manager was left; has what it raised."""
        self.left.when_done(self._on_left)
        background.begin(self.left, trio.CancelScope(), self._hold)

    async def _hold(self) -> None:
        self._leave = trio.Event()
        async with self._manager as value:
            self.entered.set(value)
            await self._leave.wait()

    def leave(self) -> Promise[None]:
        """Ask for the end; what is returned is set when it is reached."""
        if self.entered.done and not self.left.done:
            self._background.post(lambda: self._leave.set())
        return self.left

    def _on_left(self) -> None:
        try:
            self.left.result()
            self.entered.fail(AlreadyClosed("closed while it was being opened"))
        except BaseException as error:
            self.entered.fail(error)


class Inbox(Generic[T]):
    """What the loop has fetched for a caller; who gave up a wait finds at the next call what came of it.

    `fill` in the loop; ``items`` from the caller's thread while that does not run.
    """

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._filling = trio.Lock()  # a wait that was given up may be about to end

    async def fill(self, fetch: Callable[[], Awaitable[Iterable[T]]]) -> None:
        """Until there is something, or ``fetch`` gave nothing."""
        async with self._filling:
            if not self.items:
                self.items.extend(await fetch())

    async def fill_one(self, fetch: Callable[[], Awaitable[T | None]]) -> None:
        """As `fill`; ``fetch`` gives one, or None."""
        async with self._filling:
            if not self.items and (item := await fetch()) is not None:
                self.items.append(item)

    async def gather(
        self, enough: Callable[[], bool], fetch: Callable[[], Awaitable[bool]]
    ) -> None:
        """Go on until there is enough, or ``fetch``, which fills it, gave nothing."""
        async with self._filling:
            while not enough() and await fetch():
                pass

    def take(self) -> list[T]:
        """All that is here."""
        return [self.items.popleft() for _ in range(len(self.items))]


class Cursor:
    """The entries that were fetched for a caller, and where it is in them; nothing once it is closed."""

    __slots__ = ("_at", "_closed", "_columns", "_inbox", "_reader", "_records", "_waiting")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._inbox: Inbox[Columns] = Inbox()
        self._waiting = self._inbox.items
        self._columns: Columns | None = None
        self._records: list[LogRecord] = []
        self._at = 0
        self._closed = False

    # --- in the loop ------------------------------------------------------------------------------

    async def fetch(self, wait_s: float | None) -> None:
        """As `LogReader.read_columns_many`, into this; nothing where something is."""
        self._check_open()
        await self._inbox.fill(lambda: self._reader.read_columns_many(wait_s))

    async def gather(self, number: int, wait_s: float | None) -> None:
        """Wait as `LogReader.read_bulk` does, until ``number`` records are here."""
        self._check_open()
        deadline = trio.current_time() + (wait_s or 0.0)

        async def more() -> bool:
            here = len(self)
            patience: float | None = max(0.0, deadline - trio.current_time())
            if not here and wait_s != 0:
                patience = None
            try:
                found = await self._reader.read_columns_many(patience)
            except DistributedLogError:
                if here:
                    return False  # it sticks, and is the next call's
                raise
            self._waiting.extend(found)
            return bool(found)

        await self._inbox.gather(lambda: len(self) >= number, more)

    async def aclose(self) -> None:
        """Stop fetching, and forget what is here."""
        self.close()
        await self._reader.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("this reader is closed")

    # --- for the caller ---------------------------------------------------------------------------

    def close(self) -> None:
        """Forget what is here."""
        self._closed = True
        self._waiting.clear()
        self._records, self._at = [], 0

    def __len__(self) -> int:
        """How many records are here."""
        return len(self._records) - self._at + sum([one.count for one in self._waiting])

    def next(self) -> LogRecord | None:
        """The next record, or None when more must be fetched."""
        at = self._at
        if at < len(self._records):
            self._at = at + 1
            return self._records[at]
        if not self._waiting:
            return None
        self._columns = self._waiting.popleft()
        self._records = self._columns.records()
        self._at = 1
        return self._records[0]

    def take(self, number: int) -> list[LogRecord]:
        """Up to ``number`` records that are here."""
        found: list[LogRecord] = []
        while len(found) < number:
            if self._at == len(self._records):
                if not self._waiting:
                    break
                self._columns = self._waiting.popleft()
                self._records, self._at = self._columns.records(), 0
            part = self._records[self._at : self._at + number - len(found)]
            self._at += len(part)
            found += part
        return found

    def columns(self) -> Columns | None:
        """The rest of the entry at hand, or the next one that is here."""
        at, left = self._at, len(self._records) - self._at
        if left:
            assert self._columns is not None
            self._at = len(self._records)
            return self._columns.cut(at, at + left)
        return self._waiting.popleft() if self._waiting else None
