"""The asyncio flavour: the same calls as `distributedlog`, for an asyncio event loop.

    async with open_namespace(uri) as namespace:
        async with namespace.open_log("orders").open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))

The trio client runs in one background thread a namespace. A record costs an append to a buffer; a wait that
cannot be answered at once costs a hop to that thread and back. Cancelling a wait withdraws no write (G7).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from . import open_namespace as open_trio_namespace
from .aio_log import LogCalls, LogWatch, RangeReader, SegmentWriter
from .aio_segments import opened, outcome_of, run
from .aio_writer import LogWriter, PendingWrite
from .bridge import Cursor, Held, Owned, open_buffer
from .log.dlsn import DLSN
from .log.handle import Log as TrioLog
from .log.handle import LogDescription
from .log.namespace import Namespace as TrioNamespace
from .log.opening import Opening
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

    async def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        """The next record; None when ``wait_s`` is over (None: no limit), or at the end that ``to`` set."""
        record = self._cursor.next()
        if record is None and await self._fetch(wait_s):
            record = self._cursor.next()
        return record

    async def read_bulk(self, number: int, wait_s: float | None = None) -> list[LogRecord]:
        """Up to ``number`` records: waits for the first, then takes what comes until ``wait_s`` after
        the call (None: what is here; 0: does not wait for the first either)."""
        if number < 1:
            raise InvalidRequest(f"read_bulk wants at least one record, not {number}")
        here = len(self._cursor)
        if here < number and (wait_s or not here):
            self._cursor.check_open()
            await run(self._background, self._cursor.gather, number, wait_s)
        return self._cursor.take(number)

    async def read_columns(self, wait_s: float | None = None) -> Columns | None:
        """The rest of the entry at hand, or the next one, as columns. None as `read_next`."""
        columns = self._cursor.columns()
        if columns is None and await self._fetch(wait_s):
            columns = self._cursor.columns()
        return columns

    async def aclose(self) -> None:
        """Stop fetching. Idempotent."""
        self._cursor.close()
        if self._open:
            await run(self._background, self._reader.aclose)
            self._ended()

    def __aiter__(self) -> "LogReader":
        return self

    async def __anext__(self) -> LogRecord:
        record = self._cursor.next()
        if record is None:
            try:
                record = await self.read_next()
            except EndOfStream:
                record = None
            if record is None:
                raise StopAsyncIteration
        return record

    async def __aenter__(self) -> "LogReader":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _fetch(self, wait_s: float | None) -> bool:
        self._cursor.check_open()
        await run(self._background, self._cursor.fetch, wait_s)
        return len(self._cursor) > 0


class Log(LogCalls):
    """Names a log; see `distributedlog.Log`."""

    def __init__(self, background: Background, namespace: TrioNamespace, log: TrioLog) -> None:
        super().__init__(background, log)
        self._namespace = namespace
        self.name = log.name

    def open_writer(
        self, *, takeover: bool = False, wait_s: float | None = None
    ) -> Opening[LogWriter]:
        """The log's one writer; ``async with`` or ``await`` it. See `distributedlog.Log.open_writer`."""
        opening = self._log.open_writer(takeover=takeover, wait_s=wait_s)

        async def open_it() -> LogWriter:
            background = self._background
            buffer = await open_buffer(background, self._namespace, self._log, opening)
            return LogWriter(background, buffer)

        return Opening(lambda: opened(self._background, open_it))

    def open_reader(
        self,
        *,
        dlsn: DLSN | None = None,
        txid: int | None = None,
        at: Literal["earliest", "latest"] = "earliest",
        to: DLSN | Literal["end"] | None = None,
    ) -> Opening[LogReader]:
        """A reader; ``async with`` or ``await`` it. See `distributedlog.Log.open_reader`."""
        opening = self._log.open_reader(dlsn=dlsn, txid=txid, at=at, to=to)

        async def open_it() -> LogReader:
            return LogReader(self._background, await opening, self.name)

        return Opening(lambda: opened(self._background, open_it))

    async def last_dlsn(self) -> DLSN:
        """The position of the last readable record. Raises `LogEmpty`, `LogNotFound`."""
        return await run(self._background, self._log.last_dlsn)

    async def describe(self) -> LogDescription:
        """Segments, counts, owner. Raises `LogNotFound`."""
        return await run(self._background, self._log.describe)


class Namespace:
    """The logs under one path; see `distributedlog.Namespace`. Made by `open_namespace`."""

    def __init__(self, background: Background, namespace: TrioNamespace) -> None:
        self._background = background
        self._namespace = namespace

    async def create_log(
        self, name: str, *, durability: Literal["standard", "all"] = "standard"
    ) -> None:
        """Make an empty log. Raises `LogExists`, `InvalidLogName`."""
        await run(
            self._background, partial(self._namespace.create_log, name, durability=durability)
        )

    async def log_exists(self, name: str) -> bool:
        """Is there a log of this name, now?"""
        return await run(self._background, self._namespace.log_exists, name)

    async def logs(self, prefix: str = "") -> AsyncIterator[str]:
        """The names that begin with ``prefix``, in order."""

        async def call() -> list[str]:
            return [name async for name in self._namespace.logs(prefix)]

        for name in await run(self._background, call):
            yield name

    def watch_logs(self, prefix: str = "") -> Opening[LogWatch]:
        """Follow which logs there are; ``async with`` or ``await`` it.

        See `distributedlog.Namespace.watch_logs`; here ``logs`` is a call.
        """
        opening = self._namespace.watch_logs(prefix)

        async def open_it() -> LogWatch:
            return LogWatch(self._background, await opening)

        return Opening(lambda: opened(self._background, open_it))

    async def delete_log(self, name: str, *, wait_s: float = 0.0) -> None:
        """Delete a log with all its records. Raises `OwnershipAcquireFailed`, `LogNotFound`."""
        await run(self._background, partial(self._namespace.delete_log, name, wait_s=wait_s))

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
    """An async context manager over one that the background loop holds. Once only."""

    def __init__(
        self,
        manager: AbstractAsyncContextManager[Any],
        name: str,
        wrap: Callable[[Background, Any], T],
    ) -> None:
        self._manager = manager
        self._wrap = wrap
        self._background = Background(name, quick_switches=True)
        self._held: Held[Any] | None = None

    async def __aenter__(self) -> T:
        if self._held is not None:
            raise InvalidRequest("it is entered once; open another one")
        try:
            self._background.start()
            self._held = Held(self._background, self._manager)
            return self._wrap(self._background, await outcome_of(self._held.entered))
        except BaseException:
            await self._stop()
            raise

    async def __aexit__(self, *_: object) -> None:
        assert self._held is not None
        try:
            await outcome_of(self._held.leave())
        finally:
            await self._stop()

    async def _stop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._background.stop)


class LocalCluster:
    """A cluster on this machine: where it is, who its nodes are."""

    def __init__(self, background: Background, cluster: Any) -> None:
        self.uri: str = cluster.uri
        self.data: str | None = cluster.data
        self.nodes: list[Any] = cluster.nodes


def open_namespace(uri: str, *, config: Mapping[str, Any] | None = None) -> _Opened[Namespace]:
    """The namespace of a URI; ``async with`` it. See `distributedlog.open_namespace`."""
    return _Opened(open_trio_namespace(uri, config=config), "distributedlog client", Namespace)


def local_cluster(*args: Any, **options: Any) -> _Opened[LocalCluster]:
    """A whole cluster on this machine; ``async with`` it. See `distributedlog.local_cluster`."""
    from .cluster.local import local_cluster as trio_local_cluster

    return _Opened(trio_local_cluster(*args, **options), "distributedlog cluster", LocalCluster)
