# The hand-written part of distributedlog/blocking.py: tools/generate_api_variants.py adds the other calls.
"""The blocking API: the calls of `distributedlog` without ``await``, for plain threads.

    with open_namespace(uri) as namespace, namespace.open_log("orders").open_writer() as writer:
        dlsn = writer.write(LogRecord(txid=1, payload=b"first"))       # durable
        pending = writer.submit(LogRecord(txid=2, payload=b"second"))  # accepted
        dlsn = pending.result()                                        # durable

The trio client runs in one background thread per namespace. `LogWriter.submit` appends the record to a
buffer, and waits only while the buffer is full. `PendingWrite.result` and `LogWriter.commit` wait for
durability.

Several threads may use an object concurrently. Only one thread at a time may use a reader. A second call that
must wait raises `InvalidRequest`. Opening a namespace sets the interpreter's switch interval to at most
0.5 ms for the whole process (H27). After ``fork()`` the child must open its own namespace.

Signal handlers and finalizers (``__del__``) may call this API:

- If they interrupt a call of the same namespace while it only waits, their call works.
- If they interrupt a step that must end first, or run in the background thread, their call raises
  `InvalidRequest` and has no effect.
- In another thread their call waits as any other.

Logging handlers may call this API and wait. A separate thread handles the log lines of the background thread.

Close writers before the program ends. Otherwise the exit waits for submitted records for at most 5 s, and
prints the number of records that are not known to be durable. The end of a namespace waits as long for its
open writers, and logs that number. ``os._exit`` and a fatal signal end the program without any wait. Child
processes of `multiprocessing` end with ``os._exit``, so close writers in them.
"""

import io
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar

from distributedlog import open_namespace as open_trio_namespace
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import KeyedRecord, LogRecord
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
    log_lost_records,
    pending_open,
)
from distributedlog.write_buffer import (
    WAITED_WRITES_PER_S_MAX,
    WriteBuffer,
)

if TYPE_CHECKING:  # a client loads no nodes
    from _typeshed import ReadableBuffer, WriteableBuffer
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
T = TypeVar("T")

log = get_logger("distributedlog.blocking")


def outcome_of(background: Background, outcome: CrossThreadFuture[T]) -> T:
    """Wait for an outcome. Return its value or raise its error."""
    return background.wait(outcome)


def opened(
    background: Background, wrap: Callable[[Background, T], C], open_it: Callable[[], Awaitable[T]]
) -> C:
    """Open an object in the background thread and return it, wrapped.

    If the wait is interrupted, the background thread closes the object.
    """
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
    """Wait until a write has an outcome. A wait that ends early removes its callback.

    Raises `RequestTimeout` after ``timeout_s`` (None: no limit).
    """
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
    """An object that its ``with`` block closes.

    If an exception ends the block, the object is abandoned. The block waits for its cleanup for at most 2 s.
    The cleanup then continues in the background thread.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(TimeoutError, DistributedLogError):
                self._background.wait(self._abandon(), ABANDON_TIMEOUT_S)


class PendingWrite:
    """A submitted record. `result` returns the DLSN when the record is durable, or raises the error (G2, G7).

    It has the calls of `concurrent.futures.Future`. It is not a subclass, because each future has a lock.
    `future` returns a real one.
    """

    __slots__ = ("_chunk", "_slot")

    def result(self, timeout_s: float | None = None, **wrong: Never) -> DLSN:
        """Wait until the record is durable and return its DLSN. Raise the write's error.

        Raises `RequestTimeout` after ``timeout_s`` (None: no limit). The record may be written later.
        """
        if timeout_s is not None:
            check_wait(timeout_s, "timeout_s")
        if wrong:
            raise _unexpected_argument(wrong)
        chunk, slot = self._chunk, self._slot
        if not chunk.is_done(slot):
            add_callback = partial(chunk.add_done_callback, slot)
            remove_callback = partial(chunk.remove_done_callback, slot)
            wait_outcome(chunk.buffer, add_callback, remove_callback, timeout_s)
        return chunk.result(slot)

    def exception(
        self, timeout_s: float | None = None, **wrong: Never
    ) -> DistributedLogError | None:
        """Wait as `result`, and return the write's error or None. Raise `RequestTimeout` as `result`."""
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
        """Whether the outcome is still unknown."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False: a submitted record cannot be withdrawn (G7)."""
        return False

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def add_done_callback(self, call: Callable[["PendingWrite"], object]) -> None:
        """Call a function with this object when the outcome is known.

        If it is known already, the call is made here. Otherwise a thread of the namespace makes the calls, in
        order. Exceptions of the function are logged.
        """
        chunk, slot = self._chunk, self._slot
        if chunk.is_done(slot):
            _run_callback(call, self)
        else:
            chunk.add_done_callback(
                slot, partial(chunk.buffer.call_in_thread, partial(_run_callback, call, self))
            )
            chunk.buffer.wake_loop()

    def future(self) -> "Future[DLSN]":
        """Return a running `concurrent.futures.Future`, for `wait` and `as_completed` of that module."""
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
    """Return the error that Python raises, with a hint for ``timeout``, the name in `concurrent.futures`."""
    name = next(iter(wrong))
    hint = ": the limit is timeout_s, in seconds" if name == "timeout" else ""
    return TypeError(f"unexpected keyword argument {name!r}{hint}")


def _run_callback(callback: Callable[[PendingWrite], object], pending: PendingWrite) -> None:
    try:
        callback(pending)
    except Exception:
        log.exception("a callback of %r failed", pending)


class PendingBulk(Sequence[PendingWrite]):
    """The pending writes of the records of one call. See `distributedlog.PendingBulk`."""

    __slots__ = ("_bulk",)

    def result(self, timeout_s: float | None = None, **wrong: Never) -> list[DLSN]:
        """Wait until all records are durable and return their DLSNs. Raise the first error.

        Raises `RequestTimeout` after ``timeout_s`` (None: no limit). The records may be written later.
        """
        self.wait(timeout_s, **wrong)
        return self._bulk.writer_bulk().result()

    def wait(self, timeout_s: float | None = None, **wrong: Never) -> None:
        """Wait until all outcomes are known, without raising the error of a write.

        Raises `RequestTimeout` after ``timeout_s`` (None: no limit).
        """
        check_wait(timeout_s, "timeout_s")
        if wrong:
            raise _unexpected_argument(wrong)
        bulk = self._bulk
        if not bulk.is_done():
            wait_outcome(bulk.buffer, bulk.add_done_callback, bulk.remove_done_callback, timeout_s)

    def outcomes(
        self, timeout_s: float | None = None, **wrong: Never
    ) -> list[DLSN | DistributedLogError]:
        """Wait until all outcomes are known. Return one per record: its DLSN or its error.

        Raises `RequestTimeout` after ``timeout_s`` (None: no limit).
        """
        self.wait(timeout_s, **wrong)
        return self._bulk.writer_bulk().known_outcomes()


class LogWriter(_Closable):
    """The only writer of a log. Any number of threads may use it. See `distributedlog.LogWriter`."""

    def write(self, record: LogRecord | Buffer, *, expect: DLSN | None = None) -> DLSN:
        """Write one record and return its DLSN when it is durable (G2).

        A program that makes more than 1,000 such calls per second gets one warning, because `submit` does not
        wait for each record.

        Args:
            record: As for `submit`.
            expect: The DLSN of the log's last record. See `distributedlog.LogWriter.write`.

        Raises: RecordTooLarge, TransactionIdOutOfOrder, InvalidRequest, TooBusy, AlreadyClosed, WriterFenced,
        WriteFailed, PositionConflict.
        """
        if expect is not None:
            return self._background.run(self._buffer.write_after, expect, record)
        self._background.check_may_wait()  # before the record is accepted
        if self._buffer.waited_writes.record_write(time.monotonic()):
            warnings.warn(
                f'log "{self._buffer.name}": more than {WAITED_WRITES_PER_S_MAX} calls of write() per '
                "second, each waiting until its record is durable. Use submit() to write without this wait.",
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
    """Appends bytes to a log with ``txids="bytes"``, as a raw file that `io.BufferedWriter` can wrap.

    `write` switches to the background thread and waits only for free space. `flush` returns when all bytes
    are durable and readable.
    """

    def __del__(self) -> None:
        """Do nothing, unlike `io.IOBase`: the background thread cleans up a dropped object."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: "ReadableBuffer") -> int:
        """Append bytes and return the number of accepted bytes.

        Fewer than all are accepted only if a limit is reached and ``at_limit`` is "reject".

        Raises: TooBusy, AlreadyClosed, WriterFenced, WriteFailed.
        """
        return self._background.run(self._writer.write, memoryview(data))

    def flush(self) -> None:
        """Wait until all accepted bytes are durable and readable.

        Raises: AlreadyClosed, WriterFenced, WriteFailed.
        """
        if not self.closed:
            self._background.run(self._writer.flush)

    def close(self) -> None:
        """Flush, close the segment and release the lock. Idempotent.

        Raises: WriterFenced, WriteFailed.
        """
        if not self.closed:
            try:
                self._background.run(self._handle.aclose)
            finally:
                self._set_closed()

    def abort(self) -> None:
        """Stop sending. Bytes that are not durable have an unknown outcome (G7).

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # closed with its namespace
            self._background.run(self._handle.abort)
        self._set_closed()

    def _set_closed(self) -> None:
        self.flush = lambda: None  # type: ignore[method-assign]  # the next line calls it
        io.RawIOBase.close(self)
        self._ended()


class ByteReader(_Closable, io.RawIOBase):
    """Reads a log with ``txids="bytes"``, as a raw file that `io.BufferedReader` can wrap."""

    def __del__(self) -> None:
        """Do nothing, unlike `io.IOBase`: the background thread cleans up a dropped object."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return 1 to ``size`` bytes, or all bytes up to the end if it is -1. Return ``b""`` at the end.

        Raises: LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        size = -1 if size is None else size
        offset = self._offset
        data = self._background.run(self._reader.read_from, offset, size)
        if self._offset != offset:
            raise InvalidRequest(READER_IN_USE_TEXT)
        self._offset += len(data)
        return data

    def readall(self) -> bytes:
        """Return all bytes up to the end."""
        return self.read()

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read as `read`, into a buffer, and return the number of bytes."""
        target = memoryview(buffer).cast("B")
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        with suppress(AlreadyClosed):  # closed with its namespace
            self._background.run(self._reader.aclose)
        io.RawIOBase.close(self)
        self._ended()


class LogReader(_Closable):
    """Reads one log. The background thread fetches whole entries. See `distributedlog.LogReader`."""


class SegmentWriter(_Closable):
    """Writes one staged ledger for a log, then closes it. See `distributedlog.SegmentWriter`.

    Each call switches to the background thread. Pass whole entries (`write_packed`) or many records per call.
    """


class RangeReader(_Closable):
    """Delivers the user records of ranges, entry by entry. See `distributedlog.RangeReader`."""


class MultiReader(_Closable):
    """Delivers entries of several logs, and changes of the logs. See `distributedlog.MultiReader`."""


class LogWatch(_Closable):
    """The logs of a namespace, then their changes. See `distributedlog.LogWatch`."""

    @property
    def logs(self) -> dict[str, str]:
        async def get_logs() -> dict[str, str]:
            return self._watch.logs

        return self._background.run(get_logs)


class SegmentWatch(_Closable):
    """The changes of a log's segments, in order. See `distributedlog.SegmentWatch`."""


class Subscription(_Closable):
    """A log as one subscriber reads it. See `distributedlog.Subscription`."""


class WorkClaim:
    """An item of the log that this process has claimed. See `distributedlog.WorkClaim`."""


class WorkQueue(_Closable):
    """A log that several workers handle. See `distributedlog.WorkQueue`."""


class Positions:
    """The named positions of one log. See `distributedlog.Positions`."""


class Log:
    """A log of a namespace, by name. See `distributedlog.Log`."""


class Namespace:
    """The logs under one path. `open_namespace` creates it. See `distributedlog.Namespace`."""


class _Opened(Generic[T]):
    """A context manager over one that is entered in the background thread. Use it only once."""

    def __exit__(self, *_: object) -> None:
        assert self._context is not None
        background = self._background
        background.check_may_wait()  # otherwise an error would leave the namespace half closed
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
) -> AbstractContextManager[Namespace]:
    """Open the namespace of a URI with ``with``. See `distributedlog.open_namespace`."""
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
) -> AbstractContextManager[LocalCluster]:
    """Run a cluster on this machine with ``with``. See `distributedlog.local_cluster`."""
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
