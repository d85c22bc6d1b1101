"""The blocking flavour: the same calls without ``await``, for plain threads.

    with open_namespace(uri) as namespace, namespace.open_log("orders").open_writer() as writer:
        pending = writer.write(LogRecord(txid=1, payload=b"first"))  # buffered
        dlsn = pending.result()                                     # durable

The trio client runs in one background thread a namespace. `LogWriter.write` only appends to a buffer; what
waits is `PendingWrite.result`, `LogWriter.commit`, and ``write`` itself while the buffer is full. All
objects may be used by several threads; a reader by one at a time. The interpreter's switch interval is set
to 0.5 ms, for the whole process (H27). After ``fork()`` open anew (H15).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from . import open_namespace as open_trio_namespace
from .blocking_log import LogCalls, LogWatch, RangeReader, SegmentWriter
from .blocking_segments import opened
from .blocking_writer import LogWriter, PendingWrite
from .bridge import Cursor, Held, Owned, open_buffer
from .log.dlsn import DLSN
from .log.handle import Log as TrioLog
from .log.handle import LogDescription
from .log.namespace import Namespace as TrioNamespace
from .log.reader import LogReader as TrioReader
from .log.record import Columns, LogRecord
from .runtime.background import Background
from .runtime.errors import EndOfStream, InvalidRequest

__all__ = [
    "DLSN",
    "Log",
    "LogReader",
    "LogRecord",
    "LogWatch",
    "LogWriter",
    "Namespace",
    "PendingWrite",
    "RangeReader",
    "SegmentWriter",
    "local_cluster",
    "open_namespace",
]

T = TypeVar("T")


class LogReader(Owned):
    """Reads one log; see `distributedlog.LogReader`. Entries are fetched, not single records."""

    def __init__(self, background: Background, reader: TrioReader, name: str) -> None:
        super().__init__(background, f'a reader of log "{name}"', reader.aclose)
        self._reader = reader
        self._cursor = Cursor(reader)

    def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        """The next record; None when ``wait_s`` is over (None: no limit), or at the end that ``to`` set."""
        record = self._cursor.next()
        if record is None and self._fetch(wait_s):
            record = self._cursor.next()
        return record

    def read_bulk(self, number: int, wait_s: float | None = None) -> list[LogRecord]:
        """Up to ``number`` records: waits for the first, then takes what comes until ``wait_s`` after
        the call (None: what is here; 0: does not wait for the first either)."""
        if number < 1:
            raise InvalidRequest(f"read_bulk wants at least one record, not {number}")
        here = len(self._cursor)
        if here < number and (wait_s or not here):
            self._cursor.check_open()
            self._background.run(self._cursor.gather, number, wait_s)
        return self._cursor.take(number)

    def read_columns(self, wait_s: float | None = None) -> Columns | None:
        """The rest of the entry at hand, or the next one, as columns. None as `read_next`."""
        columns = self._cursor.columns()
        if columns is None and self._fetch(wait_s):
            columns = self._cursor.columns()
        return columns

    def close(self) -> None:
        """Stop fetching. Idempotent."""
        self._cursor.close()
        if self._open:
            self._background.run(self._reader.aclose)
            self._ended()

    def __iter__(self) -> Iterator[LogRecord]:
        return self

    def __next__(self) -> LogRecord:
        record = self._cursor.next()
        if record is None:
            try:
                record = self.read_next()
            except EndOfStream:
                record = None
            if record is None:
                raise StopIteration
        return record

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetch(self, wait_s: float | None) -> bool:
        self._cursor.check_open()
        self._background.run(self._cursor.fetch, wait_s)
        return len(self._cursor) > 0


class Log(LogCalls):
    """Names a log; see `distributedlog.Log`."""

    def __init__(self, background: Background, namespace: TrioNamespace, log: TrioLog) -> None:
        super().__init__(background, log)
        self._namespace = namespace
        self.name = log.name

    def open_writer(self, *, takeover: bool = False, wait_s: float | None = None) -> LogWriter:
        """The log's one writer, open; use it in a ``with``. See `distributedlog.Log.open_writer`."""
        opening = self._log.open_writer(takeover=takeover, wait_s=wait_s)
        background = self._background

        async def open_it() -> LogWriter:
            buffer = await open_buffer(background, self._namespace, self._log, opening)
            return LogWriter(background, buffer)

        return opened(background, open_it)

    def open_reader(
        self,
        *,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: DLSN | Literal["end"] | None = None,
    ) -> LogReader:
        """A reader, open; use it in a ``with``. See `distributedlog.Log.open_reader`."""
        opening = self._log.open_reader(dlsn=dlsn, txid=txid, at=at, to=to)

        async def open_it() -> LogReader:
            return LogReader(self._background, await opening, self.name)

        return opened(self._background, open_it)

    def last_dlsn(self) -> DLSN:
        """The position of the last readable record. Raises `LogEmpty`, `LogNotFound`."""
        return self._background.run(self._log.last_dlsn)

    def describe(self) -> LogDescription:
        """Segments, counts, owner. Raises `LogNotFound`."""
        return self._background.run(self._log.describe)


class Namespace:
    """The logs under one path; see `distributedlog.Namespace`. Made by `open_namespace`."""

    def __init__(self, background: Background, namespace: TrioNamespace) -> None:
        self._background = background
        self._namespace = namespace

    def create_log(self, name: str, *, durability: Literal["standard", "all"] = "standard") -> None:
        """Make an empty log. Raises `LogExists`, `InvalidLogName`."""
        self._background.run(partial(self._namespace.create_log, name, durability=durability))

    def log_exists(self, name: str) -> bool:
        """Is there a log of this name, now?"""
        return self._background.run(self._namespace.log_exists, name)

    def logs(self, prefix: str = "") -> Iterator[str]:
        """The names that begin with ``prefix``, in order."""

        async def call() -> list[str]:
            return [name async for name in self._namespace.logs(prefix)]

        return iter(self._background.run(call))

    def watch_logs(self, prefix: str = "") -> LogWatch:
        """Follow which logs there are; use it in a ``with``. See `distributedlog.Namespace.watch_logs`."""
        opening = self._namespace.watch_logs(prefix)

        async def open_it() -> LogWatch:
            return LogWatch(self._background, await opening)

        return opened(self._background, open_it)

    def delete_log(self, name: str, *, wait_s: float = 0.0) -> None:
        """Delete a log with all its records. Raises `OwnershipAcquireFailed`, `LogNotFound`."""
        self._background.run(partial(self._namespace.delete_log, name, wait_s=wait_s))

    def open_log(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        incarnation: str | None = None,
    ) -> Log:
        """Name a log; never asks whether it exists. See `distributedlog.Namespace.open_log`."""
        log = self._namespace.open_log(name, config=config, incarnation=incarnation)
        return Log(self._background, self._namespace, log)


class _Opened(Generic[T]):
    """A context manager over one that the background loop holds. Once only."""

    def __init__(self, manager: AbstractAsyncContextManager[Any], name: str) -> None:
        self._manager = manager
        self._background = Background(name, quick_switches=True)
        self._held: Held[Any] | None = None

    def __enter__(self) -> T:
        if self._held is not None:
            raise InvalidRequest("it is entered once; open another one")
        try:
            self._background.start()
            self._held = Held(self._background, self._manager)
            return self._wrap(self._held.entered.wait())
        except BaseException:
            self._background.stop()
            raise

    def __exit__(self, *_: object) -> None:
        assert self._held is not None
        try:
            self._held.leave().wait()
        finally:
            self._background.stop()

    def _wrap(self, value: Any) -> T:
        raise NotImplementedError


class _OpenedNamespace(_Opened[Namespace]):
    def _wrap(self, value: Any) -> Namespace:
        return Namespace(self._background, value)


class LocalCluster:
    """A cluster on this machine: where it is, who its nodes are."""

    def __init__(self, background: Background, cluster: Any) -> None:
        self.uri: str = cluster.uri
        self.data: str | None = cluster.data
        self.nodes: list[Any] = cluster.nodes


class _OpenedCluster(_Opened[LocalCluster]):
    def _wrap(self, value: Any) -> LocalCluster:
        return LocalCluster(self._background, value)


def open_namespace(uri: str, *, config: Mapping[str, Any] | None = None) -> _OpenedNamespace:
    """The namespace of a URI; use it in a ``with``. See `distributedlog.open_namespace`."""
    return _OpenedNamespace(open_trio_namespace(uri, config=config), "distributedlog client")


def local_cluster(*args: Any, **options: Any) -> _OpenedCluster:
    """A whole cluster on this machine; use it in a ``with``. See `distributedlog.local_cluster`."""
    from .cluster.local import local_cluster as trio_local_cluster

    return _OpenedCluster(trio_local_cluster(*args, **options), "distributedlog cluster")
