"""The asyncio flavour of writing a log; see `aio.py`."""

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

from .aio_segments import run
from .bridge import Chunk, Owned, WriteBuffer
from .log.dlsn import DLSN
from .log.record import LogRecord
from .runtime.background import Background
from .runtime.errors import InvalidRequest


class PendingWrite:
    """A record that was taken: ``await`` gives its DLSN once it is durable, or raises (G2, G7)."""

    __slots__ = ("_background", "_chunk", "_slot")

    def __init__(self, background: Background, chunk: Chunk, slot: int) -> None:
        self._background = background
        self._chunk = chunk
        self._slot = slot

    def done(self) -> bool:
        """Is the outcome known?"""
        return self._chunk.done(self._slot)

    def result(self) -> DLSN:
        """The DLSN. Raises the write's error, or `InvalidRequest` while the outcome is not known."""
        if not self._chunk.done(self._slot):
            raise InvalidRequest("the write is not done yet: await it")
        return self._chunk.result(self._slot)

    def __await__(self) -> Generator[Any, Any, DLSN]:
        if self._chunk.done(self._slot):
            return self._chunk.result(self._slot)
        return (yield from run(self._background, self._chunk.wait, self._slot).__await__())


class LogWriter(Owned):
    """The one writer of a log; see `distributedlog.LogWriter`."""

    def __init__(self, background: Background, buffer: WriteBuffer) -> None:
        super().__init__(background, f'the writer of log "{buffer.name}"', buffer.abort)
        self._buffer = buffer
        self._append = buffer.append

    async def submit(self, record: LogRecord) -> PendingWrite:
        """Buffer one record; waits only while the buffer is full. ``await`` what it returns.

        Raises `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest` (the writer goes on),
        `AlreadyClosed`, or the first error of this writer, for good.
        """
        if self._buffer.full:
            await run(self._background, self._buffer.room)
        chunk, slot = self._append(record)
        return PendingWrite(self._background, chunk, slot)

    async def write(self, record: LogRecord) -> DLSN:
        """Write one record; returns when it is durable (G2)."""
        return await (await self.submit(record))

    async def write_bulk(self, records: Sequence[LogRecord]) -> list[DLSN]:
        """Write many records, in order; their DLSNs when all are durable. Raises the first error;
        records behind one that is refused are not written."""
        pending = [await self.submit(record) for record in records]
        if pending:
            await pending[-1]
        return [await write for write in pending]

    async def flush(self) -> None:
        """Send what is buffered; waits for nothing but room."""
        await run(self._background, self._buffer.flush)

    async def commit(self) -> DLSN | None:
        """Wait until all written before is durable and readable; the last DLSN, None for no record."""
        return await run(self._background, self._buffer.commit)

    @property
    def last_txid(self) -> int:
        """The txid of the newest record that the writer has taken; -1 in an empty log."""
        return self._buffer.writer.last_txid

    async def aclose(self) -> None:
        """Commit, complete the segment, give the lock back. Idempotent."""
        await run(self._background, self._buffer.aclose)
        self._ended()

    async def mark_end_of_stream(self) -> None:
        """As `aclose`, and the log ends here for good: it takes no more records."""
        await run(self._background, self._buffer.mark_end_of_stream)
        self._ended()

    async def truncate(self, dlsn: DLSN) -> DLSN:
        """Give up all records before ``dlsn``; see `distributedlog.Log.truncate`. The writer goes on."""
        return await run(self._background, self._buffer.writer.truncate, dlsn)

    async def abort(self) -> None:
        """Send nothing more; what is not durable yet is unknown. The segment awaits recovery."""
        await run(self._background, self._buffer.abort)
        self._ended()

    async def __aenter__(self) -> "LogWriter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()
