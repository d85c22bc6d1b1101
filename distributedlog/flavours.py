"""What the blocking and the asyncio flavour share: a trio run in a thread, and buffers between.

A record costs its caller an append to a chunk, under a mutex; the first one of a burst wakes the loop once.
One task there, the feed, hands whole chunks to the real writer. What is buffered is bounded in bytes: above
it the caller waits. Nothing here knows how a caller waits: that is `blocking.py` and `aio.py`.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

from .log.admission import admit
from .log.batch import PendingBulk, again
from .log.dlsn import DLSN
from .log.handle import Log
from .log.namespace import Namespace
from .log.opening import Closable, Opening
from .log.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, TXID_MAX, Columns, LogRecord
from .log.writer import LogWriter
from .runtime.background import Background, Mutex
from .runtime.errors import AlreadyClosed, DistributedLogError

BUFFER_BYTES_MAX = 4 * 1024 * 1024
"""Between the caller and the writer, beside the writer's own bound."""

T = TypeVar("T")
C = TypeVar("C", bound=Closable)


class Chunk:
    """Records on their way to the loop, and their outcome there. Filled under the feed's mutex."""

    __slots__ = ("bulk", "bytes", "error", "payloads", "taken", "txids")

    def __init__(self) -> None:
        self.txids: list[int] = []
        self.payloads: list[bytes] = []
        self.bytes = 0
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
            raise again(self.error)
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
        self.txids, self.payloads = [], []
        if self.taken is not None:
            self.taken.set()


class Feed:
    """The buffer before one writer. `append` from any thread; all else in the loop."""

    def __init__(self, writer: LogWriter, background: Background, name: str, ordered: bool) -> None:
        self.writer = writer
        self.full = False
        """The caller should wait with `room` before it appends more."""
        self._background = background
        self._name = name
        self._ordered = ordered
        self._floor = max(0, writer.last_txid) if ordered else 0
        self._mutex = Mutex()
        self._chunk = Chunk()
        self._buffered_bytes = 0
        self._closed = False
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._room = trio.Event()

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
                payload = admit(txid, payload, self._floor, self._name)
            if self._closed or self.writer.over is not None:
                self._raise_if_over()
            if self._ordered:
                self._floor = txid
            chunk = self._chunk
            txids = chunk.txids
            slot = len(txids)
            txids.append(txid)
            chunk.payloads.append(payload)
            chunk.bytes += len(payload) + RECORD_COLUMN_BYTES
            if chunk.bytes + self._buffered_bytes > BUFFER_BYTES_MAX:
                self.full = True
        if not slot:
            self._background.post(self._on_append)
        return chunk, slot

    async def run(self) -> None:
        """Hand chunks to the writer, in order, until cancelled. A task of the namespace."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            with self._mutex:
                chunk, self._chunk = self._chunk, Chunk()
                self._buffered_bytes = chunk.bytes
            try:
                if chunk.txids:
                    chunk.bulk = await self.writer.submit_columns(chunk.txids, chunk.payloads)
            except DistributedLogError as error:
                chunk.error = error
            finally:
                if chunk.bulk is None and chunk.error is None:
                    chunk.error = AlreadyClosed(f'log "{self._name}": the namespace was closed')
                chunk.settle()
            with self._mutex:
                self._buffered_bytes = 0
                self.full = False
                empty = not self._chunk.txids
            self._room.set()
            self._room = trio.Event()
            if empty:
                self._idle.set()
            else:
                self._wake.set()

    async def room(self) -> None:
        """Until the buffer is below its bound."""
        while self.full and self.writer.over is None:
            await self._room.wait()

    async def commit(self) -> DLSN | None:
        """As `LogWriter.commit`, for all that was appended before."""
        await self._drained()
        return await self.writer.commit()

    async def flush(self) -> None:
        """As `LogWriter.flush`; waits for the writer's room."""
        await self._drained()
        await self.writer.flush()

    async def close(self) -> None:
        """As `LogWriter.aclose`, for all that was appended before."""
        if not self._close():
            await self._drained()
        await self.writer.aclose()

    async def end(self) -> None:
        """As `LogWriter.mark_end_of_stream`, for all that was appended before."""
        if not self._close():
            await self._drained()
        await self.writer.mark_end_of_stream()

    async def abort(self) -> None:
        """As `LogWriter.abort`."""
        self._close()
        await self.writer.abort()

    def _close(self) -> bool:
        with self._mutex:
            before, self._closed = self._closed, True
        return before

    async def _drained(self) -> None:
        with self._mutex:
            waiting = bool(self._chunk.txids)
        if waiting:
            self._on_append()
        await self._idle.wait()

    def _on_append(self) -> None:
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def _raise_if_over(self) -> None:
        over = self.writer.over
        if over is not None:
            raise again(over)
        raise AlreadyClosed(f'log "{self._name}": this writer is closed')


async def opened(opening: Opening[C]) -> C:
    """In the loop: what an opening gives."""
    return await opening


async def open_feed(
    background: Background, namespace: Namespace, log: Log, opening: Opening[LogWriter]
) -> Feed:
    """In the loop: the writer that an opening gives, with its feed, which runs as long as the namespace."""
    writer = await opening
    feed = Feed(writer, background, log.name, log.options.max_txid_check)
    namespace.start(feed.run)
    return feed


class Held(Generic[T]):
    """An async context manager that is entered, held and left by one task of a background loop."""

    def __init__(self, background: Background, manager: AbstractAsyncContextManager[T]) -> None:
        self.entered: Future[T] = Future()
        self._background = background
        self._manager = manager
        self._leave: trio.Event
        self._failure: BaseException | None = None
        self.left = background.submit(self._hold)
        """Done when the manager was left; has what it raised."""
        self.left.add_done_callback(self._on_left)

    async def _hold(self) -> None:
        self._leave = trio.Event()
        async with self._manager as value:
            self.entered.set_result(value)
            await self._leave.wait()

    def leave(self) -> "Future[None]":
        """Ask for the end; what is returned is done when it is reached."""
        if self.entered.done() and not self.left.done():
            self._background.post(lambda: self._leave.set())
        return self.left

    def _on_left(self, left: "Future[None]") -> None:
        if not self.entered.done():
            error = None if left.cancelled() else left.exception()
            self.entered.set_exception(error or AlreadyClosed("closed while it was being opened"))


class Cursor:
    """The entries that a caller has fetched, and where it is in them; nothing once it is closed."""

    __slots__ = ("_at", "_closed", "_columns", "_records", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Columns] = []  # the next one last
        self._columns: Columns | None = None
        self._records: list[LogRecord] = []
        self._at = 0
        self._closed = False

    def close(self) -> bool:
        """Forget what is here; False where that was done before."""
        before, self._closed = self._closed, True
        self._waiting, self._records, self._at = [], [], 0
        return not before

    def check_open(self) -> None:
        """Raise `AlreadyClosed` behind `close`."""
        if self._closed:
            raise AlreadyClosed("this reader is closed")

    def fill(self, columns: list[Columns]) -> None:
        """Entries behind all that are here."""
        self._waiting = columns[::-1] + self._waiting

    def __bool__(self) -> bool:
        return self._at < len(self._records) or bool(self._waiting)

    def next(self) -> LogRecord | None:
        """The next record, or None when more must be fetched."""
        at = self._at
        if at < len(self._records):
            self._at = at + 1
            return self._records[at]
        if not self._waiting:
            return None
        self._columns = self._waiting.pop()
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
                self._columns = self._waiting.pop()
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
        return self._waiting.pop() if self._waiting else None

    def __iter__(self) -> Iterator[LogRecord]:
        while (record := self.next()) is not None:
            yield record
