"""The buffer between a caller outside of the trio run and the writer in it.

A record costs its caller an append to a chunk, under a mutex; the first one of a burst wakes the loop once.
One task there hands whole chunks to the writer. What is buffered is bounded in bytes: above that the caller
waits.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from .log.admission import admit
from .log.batch import PendingBulk
from .log.containment import contained
from .log.dlsn import DLSN
from .log.handle import Log
from .log.namespace import Namespace
from .log.opening import Opening
from .log.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, TXID_MAX, LogRecord
from .log.writer import LogWriter
from .runtime.background import Background, Mutex
from .runtime.errors import AlreadyClosed, DistributedLogError, WriteFailed
from .runtime.forked import watch_forks

BUFFER_BYTES_MAX = 4 * 1024 * 1024
"""Between the caller and the writer, beside the writer's own bound."""


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
