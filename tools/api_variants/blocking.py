# The hand-written part of distributedlog/blocking.py: tools/generate_api_variants.py adds the other calls.
"""The blocking face: the same calls without ``await``, for plain threads.

    with open_namespace(uri) as namespace, namespace.open_log("orders").open_writer() as writer:
        dlsn = writer.write(LogRecord(txid=1, payload=b"first"))       # durable
        pending = writer.submit(LogRecord(txid=2, payload=b"second"))  # taken
        dlsn = pending.result()                                        # durable

The trio client runs in one background thread a namespace. `LogWriter.submit` only appends to a buffer; what
waits is `PendingWrite.result`, `LogWriter.commit`, and ``submit`` itself while the buffer is full. All
objects may be used by several threads; a reader by one at a time, a second call that waits raises
`InvalidRequest`. The interpreter's switch interval is set to 0.5 ms, for the whole process (H27). After
``fork()`` open anew.

Signal handlers and finalizers (``__del__``) may call. If they interrupt a step of a call of the same
namespace that must end first, or run in the background thread, their call raises `InvalidRequest` and does
nothing. While the interrupted call only waits, theirs works. In another thread they wait as any call does. A
logging handler may call, and wait: lines of the background thread are handled in a thread of their own.

Close writers. When a program ends without that, or after an exception, its exit waits for submitted records
for at most 5 s. It prints one line with the number that is not known to be durable. The end of a namespace
waits as long for the writers that are still open, and logs such a line. After ``os._exit`` or a deadly signal
nothing is waited for. Children of `multiprocessing` end by ``os._exit``: close writers there.
"""

import io
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Never, TypeVar

from distributedlog import open_namespace as open_trio_namespace
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.services.log_metrics import Registry
from distributedlog.runtime.declarations.options import check_wait
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    RequestTimeout,
)
from distributedlog.runtime.interfaces.host import Buffer
from distributedlog.runtime.interfaces.log_lines import get_logger
from distributedlog.runtime.schedule.background_loop import (
    EXIT_S_MAX,
    Background,
    CrossThreadFuture,
)
from distributedlog.thread_bridge import (
    ABANDON_TIMEOUT_S,
    READER_IN_USE_TEXT,
    Closeable,
    LocalClusterInfo,
    log_lost_records,
    pending_open,
)
from distributedlog.write_buffer import (
    WAITED_WRITES_PER_S_MAX,
    WriteBuffer,
)

__all__ = [
    "DLSN", "ByteReader", "ByteWriter", "Log", "LogReader", "LogRecord", "LogWatch", "LogWriter",
    "MultiReader", "Namespace", "PendingBulk", "PendingWrite", "Positions", "RangeReader",
    "SegmentWatch", "SegmentWriter", "Subscription", "WorkClaim", "WorkQueue", "local_cluster",
    "open_namespace",
]  # fmt: skip

C = TypeVar("C", bound=Closeable)
T = TypeVar("T")

log = get_logger("distributedlog.blocking")


def outcome_of(background: Background, outcome: CrossThreadFuture[T]) -> T:
    """Wait for what the loop gives."""
    return background.wait(outcome)


def opened(
    background: Background, wrap: Callable[[Background, T], C], open_it: Callable[[], Awaitable[T]]
) -> C:
    """What ``open_it`` opens in the loop, wrapped; interrupted wherever, it is given up there."""
    background.check_may_wait()
    handover = pending_open(background, wrap, open_it)
    try:
        return handover.start().wait()
    except BaseException:
        handover.abandon()
        raise


def wait_outcome(
    buffer: WriteBuffer,
    add_callback: Callable[[Callable[[], object]], object],
    remove_callback: Callable[[Callable[[], object]], object],
    timeout_s: float | None = None,
) -> None:
    """Wait until an outcome is known; whoever stops waiting is forgotten. Raises `RequestTimeout`."""
    outcome: CrossThreadFuture[None] = CrossThreadFuture()
    set_outcome = partial(outcome.set, None)
    buffer.check_may_wait()
    try:
        add_callback(set_outcome)
        buffer.fail_when_ended(outcome)
        outcome.wait(timeout_s)
    except TimeoutError:
        raise RequestTimeout(f"not durable after {timeout_s} s; it may still become so") from None
    finally:
        if not outcome.is_done:
            remove_callback(set_outcome)


class _Closable(Closeable):
    """``with`` closes it. On an exception it is given up: waited for 2 s at most, it goes on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(TimeoutError, DistributedLogError):
                self._background.wait(self._abandon(), ABANDON_TIMEOUT_S)


class PendingWrite:
    """A record that was taken: `result` gives its DLSN once it is durable, or raises (G2, G7).

    It has the calls of a `concurrent.futures.Future`, and is none: no lock before one is asked for.
    """

    __slots__ = ("_chunk", "_slot")

    def result(self, timeout_s: float | None = None, **wrong: Never) -> DLSN:
        """Wait until it is durable; its DLSN. Raises the write's error.

        Raises `RequestTimeout` when ``timeout_s`` is over: the record may still be written.
        """
        if timeout_s is not None:
            check_wait(timeout_s, "timeout_s")
        if wrong:
            raise _unexpected_argument(wrong)
        chunk, slot = self._chunk, self._slot
        if not chunk.is_done(slot):
            when_done, forget = (
                partial(chunk.add_done_callback, slot),
                partial(chunk.remove_done_callback, slot),
            )
            wait_outcome(chunk.buffer, when_done, forget, timeout_s)
        return chunk.result(slot)

    def exception(
        self, timeout_s: float | None = None, **wrong: Never
    ) -> DistributedLogError | None:
        """As `result`, but gives the write's error, or None. Raises `RequestTimeout`."""
        check_wait(timeout_s, "timeout_s")
        if wrong:
            raise _unexpected_argument(wrong)
        try:
            self.result(timeout_s)
        except DistributedLogError as error:
            if not self.done():
                raise
            return error
        return None

    def running(self) -> bool:
        """Is the outcome not known yet?"""
        return not self.done()

    def cancel(self) -> bool:
        """False, always: what was taken is written (G7)."""
        return False

    def cancelled(self) -> bool:
        """False, always."""
        return False

    def add_done_callback(self, call: Callable[["PendingWrite"], object]) -> None:
        """Have it called with this object once the outcome is known: here where it is, else in a thread of
        the namespace's, in order. What it raises is logged."""
        chunk, slot = self._chunk, self._slot
        if chunk.is_done(slot):
            _run_callback(call, self)
        else:
            chunk.add_done_callback(
                slot, partial(chunk.buffer.call_in_thread, partial(_run_callback, call, self))
            )
            chunk.buffer.wake_loop()

    def future(self) -> "Future[DLSN]":
        """A `concurrent.futures.Future` in state RUNNING, for `wait` and `as_completed` of that module."""
        future: Future[DLSN] = Future()
        future.set_running_or_notify_cancel()

        def settle(pending: PendingWrite) -> None:
            error = pending.exception()
            if error is None:
                future.set_result(pending.result())
            else:
                future.set_exception(error)

        self.add_done_callback(settle)
        return future


def _unexpected_argument(wrong: Mapping[str, object]) -> TypeError:
    """As Python has it, with the one spelling of a time limit: that of `concurrent.futures` has no unit."""
    name = next(iter(wrong))
    hint = ": the limit is timeout_s, in seconds" if name == "timeout" else ""
    return TypeError(f"unexpected keyword argument {name!r}{hint}")


def _run_callback(callback: Callable[[PendingWrite], object], pending: PendingWrite) -> None:
    try:
        callback(pending)
    except Exception:
        log.exception("a callback of %r failed", pending)


class PendingBulk(Sequence[PendingWrite]):
    """Records that were handed over in one call; see `distributedlog.log.write.entry_batch.PendingBulk`."""

    __slots__ = ("_bulk",)

    def result(self, timeout_s: float | None = None, **wrong: Never) -> list[DLSN]:
        """Wait until all are durable; their DLSNs. Raises the first error.

        Raises `RequestTimeout` when ``timeout_s`` is over: the records may still be written.
        """
        self.wait(timeout_s, **wrong)
        return self._bulk.writer_bulk().result()

    def wait(self, timeout_s: float | None = None, **wrong: Never) -> None:
        """Until `done`. Raises `RequestTimeout` when ``timeout_s`` is over, and nothing else."""
        check_wait(timeout_s, "timeout_s")
        if wrong:
            raise _unexpected_argument(wrong)
        bulk = self._bulk
        if not bulk.is_done():
            wait_outcome(bulk.buffer, bulk.add_done_callback, bulk.remove_done_callback, timeout_s)

    def outcomes(
        self, timeout_s: float | None = None, **wrong: Never
    ) -> list[DLSN | DistributedLogError]:
        """One a record, when all are known. Raises `RequestTimeout` when ``timeout_s`` is over."""
        self.wait(timeout_s, **wrong)
        return self._bulk.writer_bulk().known_outcomes()


class LogWriter(_Closable):
    """The one writer of a log; see `distributedlog.LogWriter`. Any number of threads may write."""

    def write(self, record: LogRecord | Buffer, *, expect: DLSN | None = None) -> DLSN:
        """Write one record; returns when it is durable (G2). Raises as `submit`, and `WriteFailed`.

        Who writes more than 1,000 a second so is warned once: `submit` pipelines. ``expect``: only directly
        after the record there; see `distributedlog.LogWriter.write`.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, NotEnoughBookies, PositionConflict.
        """
        if expect is not None:
            return self._background.run(self._buffer.write_after, expect, record)
        self._background.check_may_wait()  # before the record is taken
        if self._buffer.waited_writes.record_write(time.monotonic()):
            warnings.warn(
                f'log "{self._buffer.name}": over {WAITED_WRITES_PER_S_MAX} calls of write a second, '
                "each of which "
                "waits until its record is durable; submit() pipelines",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.submit(record).result()

    def write_bulk(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        self._background.check_may_wait()
        return self.submit_bulk(records).result()

    def write_set(self, records: Sequence[LogRecord | Buffer]) -> list[DLSN]:
        return self.submit_set(records).result()


class ByteWriter(_Closable, io.RawIOBase):
    """Appends bytes to a log of ``txids="bytes"``, as a raw file for ``io.BufferedWriter`` and the like.

    `write` is a hop to the loop, and waits for room only; `flush` returns when all is durable and readable.
    """

    def __del__(self) -> None:
        """What is dropped is given up by the loop, and not waited for."""

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Take bytes; how many were taken: all, but where ``at_limit`` refuses the rest.

        Raises: TooBusy, AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        return self._background.run(self._writer.write, data)

    def flush(self) -> None:
        """Wait until all that was taken is durable and readable.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        if not self.closed:
            self._background.run(self._writer.flush)

    def close(self) -> None:
        """As `flush`, then complete the segment and give the lock back. Idempotent.

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        if not self.closed:
            try:
                self._background.run(self._handle.aclose)
            finally:
                self._gone()

    def abort(self) -> None:
        """Send nothing more; what is not durable yet is unknown (G7).

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            self._background.run(self._handle.abort)
        self._gone()

    def _gone(self) -> None:
        self.flush = lambda: None  # type: ignore[method-assign]  # which the next line calls
        io.RawIOBase.close(self)
        self._ended()


class ByteReader(_Closable, io.RawIOBase):
    """Reads a log of ``txids="bytes"``, as a raw file: for ``io.BufferedReader`` and what is above."""

    def __del__(self) -> None:
        """What is dropped is given up by the loop, and not waited for."""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Up to ``size`` bytes, at least one; -1: all up to the end. ``b""`` at the end.

        Raises: LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        wanted = -1 if size is None else size
        offset = self._offset
        found = self._background.run(self._reader.read_from, offset, wanted)
        if self._offset != offset:
            raise InvalidRequest(READER_IN_USE_TEXT)
        self._offset += len(found)
        return found

    def readall(self) -> bytes:
        """As `read` without a size."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """As `read`, into a buffer; how many bytes."""
        room = memoryview(buffer).cast("B")
        found = self.read(len(room))
        room[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # with its namespace
            self._background.run(self._reader.aclose)
        io.RawIOBase.close(self)
        self._ended()


class LogReader(_Closable):
    """Reads one log; see `distributedlog.LogReader`. Entries are fetched, not single records."""


class SegmentWriter(_Closable):
    """Writes one ledger for a log, then closes it; see `distributedlog.SegmentWriter`.

    Each call is a hop to the background thread: hand over whole entries (`write_packed`), or many records.
    """


class RangeReader(_Closable):
    """Gives the user records of some ranges, entry by entry; see `distributedlog.RangeReader`."""


class MultiReader(_Closable):
    """Gives entries of several logs, and what became of the logs; see `distributedlog.MultiReader`."""


class LogWatch(_Closable):
    """The logs of a namespace, then their changes; see `distributedlog.LogWatch`."""

    @property
    def logs(self) -> dict[str, str]:
        async def call() -> dict[str, str]:
            return self._watch.logs

        return self._background.run(call)


class SegmentWatch(_Closable):
    """The changes of a log's segments; see `distributedlog.SegmentWatch`."""


class Subscription(_Closable):
    """A log as one subscriber reads it; see `distributedlog.Subscription`."""


class WorkClaim:
    """A stretch of the log that is this process's to handle; see `distributedlog.WorkClaim`."""


class WorkQueue(_Closable):
    """A log as many workers handle it; see `distributedlog.WorkQueue`."""


class Positions:
    """The positions of one log; see `distributedlog.log.services.named_positions.Positions`."""


class Log:
    """Names a log; see `distributedlog.Log`."""


class Namespace:
    """The logs under one path; see `distributedlog.Namespace`. Made by `open_namespace`."""


class _Opened(Generic[T]):
    """A context manager over one that the background loop holds. Once only."""

    def __exit__(self, *_: object) -> None:
        assert self._context is not None
        background = self._background
        background.check_may_wait()  # else it would be left half closed
        try:
            with suppress(AlreadyClosed):
                background.settle(EXIT_S_MAX).wait()
            log_lost_records(background)
            outcome_of(background, self._context.request_exit())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._background.stop()


def open_namespace(
    uri: str, *, config: Mapping[str, Any] | None = None, metrics: "Registry | None" = None
) -> _Opened[Namespace]:
    """The namespace of a URI; use it in a ``with``. See `distributedlog.open_namespace`."""
    return _Opened(
        open_trio_namespace(uri, config=config, metrics=metrics), "distributedlog client", Namespace
    )


def local_cluster(*args: Any, **options: Any) -> _Opened[LocalClusterInfo]:
    """A whole cluster on this machine; use it in a ``with``. See `distributedlog.local_cluster`."""
    from distributedlog.cluster.local.local_cluster import local_cluster as trio_local_cluster

    return _Opened(trio_local_cluster(*args, **options), "distributedlog cluster", LocalClusterInfo)
