"""The blocking flavour of writing a log; see `blocking.py`."""

from collections.abc import Sequence
from types import TracebackType

import trio

from .bridge import Chunk, Owned, WriteBuffer
from .log.dlsn import DLSN
from .log.record import LogRecord
from .runtime.background import Background, Outcome
from .runtime.errors import RequestTimeout


class PendingWrite:
    """A record that was taken. Waiting for it may be given up; the write goes on (G7)."""

    __slots__ = ("_background", "_chunk", "_slot")

    def __init__(self, background: Background, chunk: Chunk, slot: int) -> None:
        self._background = background
        self._chunk = chunk
        self._slot = slot

    def done(self) -> bool:
        """Is the outcome known?"""
        return self._chunk.done(self._slot)

    def result(self, timeout_s: float | None = None) -> DLSN:
        """Wait until it is durable; its DLSN. Raises the write's error.

        Raises `RequestTimeout` when ``timeout_s`` is over: the record may still be written.
        """
        if self._chunk.done(self._slot):
            return self._chunk.result(self._slot)
        outcome: Outcome[DLSN] = Outcome()
        scope = trio.CancelScope()
        try:
            self._background.begin(outcome, scope, self._chunk.wait, self._slot)
            return outcome.wait(timeout_s)
        except TimeoutError:
            raise RequestTimeout(
                f"the write is not durable after {timeout_s} s; it may still become so"
            ) from None
        finally:
            if not outcome.done:
                self._background.cancel(scope)


class LogWriter(Owned):
    """The one writer of a log; see `distributedlog.LogWriter`. Any number of threads may write."""

    def __init__(self, background: Background, buffer: WriteBuffer) -> None:
        super().__init__(background, f'the writer of log "{buffer.name}"', buffer.abort)
        self._buffer = buffer
        self._append = buffer.append

    def write(self, record: LogRecord) -> PendingWrite:
        """Buffer one record. Waits only while the buffer is full.

        Raises `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest` (the writer goes on),
        `AlreadyClosed`, or the first error of this writer, for good.
        """
        if self._buffer.full:
            self._background.run(self._buffer.room)
        chunk, slot = self._append(record)
        return PendingWrite(self._background, chunk, slot)

    def write_bulk(self, records: Sequence[LogRecord]) -> list[DLSN]:
        """Write many records, in order; their DLSNs when all are durable. Raises the first error;
        records behind one that is refused are not written."""
        return [pending.result() for pending in [self.write(record) for record in records]]

    def flush(self) -> None:
        """Send what is buffered; waits for nothing but room."""
        self._background.run(self._buffer.flush)

    def commit(self) -> DLSN | None:
        """Wait until all written before is durable and readable; the last DLSN, None for no record."""
        return self._background.run(self._buffer.commit)

    @property
    def last_txid(self) -> int:
        """The txid of the newest record that the writer has taken; -1 in an empty log."""
        return self._buffer.writer.last_txid

    def close(self) -> None:
        """Commit, complete the segment, give the lock back. Idempotent."""
        self._background.run(self._buffer.aclose)
        self._ended()

    def mark_end_of_stream(self) -> None:
        """As `close`, and the log ends here for good: it takes no more records."""
        self._background.run(self._buffer.mark_end_of_stream)
        self._ended()

    def truncate(self, dlsn: DLSN) -> DLSN:
        """Give up all records before ``dlsn``; see `distributedlog.Log.truncate`. The writer goes on."""
        return self._background.run(self._buffer.writer.truncate, dlsn)

    def abort(self) -> None:
        """Send nothing more; what is not durable yet is unknown. The segment awaits recovery."""
        self._background.run(self._buffer.abort)
        self._ended()

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
