"""A namespace whose logs are reached through proxies. It has the same classes, which send calls to proxies.

Operations that require the storage itself, such as linking segments, are rejected with a message about
direct access. `UnavailableThroughProxies` replaces the metadata and ledger clients of a direct namespace.
"""

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from random import Random
from typing import Any, Literal, NoReturn

import trio

from ...log.declarations.options import LogOptions
from ...log.format.dlsn import DLSN, check_dlsn
from ...log.format.log_clock import to_epoch_ms
from ...log.interfaces.log_names import check_log_name, check_new_log_name
from ...log.interfaces.open_call import Opening
from ...log.limits.memory_budget import PROCESS_BYTES_MAX
from ...log.log import DESCRIBED_SEGMENTS_MAX, Log, LogDescription
from ...log.model.log_state import LogState
from ...log.model.position import ReadStart
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import (
    QUORUMS,
    STORED_ONLY,
    StoredSettings,
    reject_stored_only,
    validate_settings,
)
from ...log.model.txid_policy import stored_policy
from ...log.namespace import LOGS_PER_PAGE_MAX, LogPage, Namespace
from ...log.read.log_reader import LogReader
from ...log.read.skipped_entries import Skipped
from ...log.write.log_writer import LogWriter
from ...log.write.producer_state_manager import check_producer_name
from ...runtime.declarations.options import (
    check_seconds,
    check_wait,
    check_whole,
    quoted,
    with_overrides,
)
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    ProtocolError,
)
from ...runtime.protocol.schema import SchemaError, blob, flag, number, optional, row, rows, text
from ..protocol.proxy_messages import SEGMENTS_MAX, WAIT_MAX_S, LogCall
from ..protocol.read_messages import Subscribe
from .entry_source import ReadLinks, open_proxied_reader
from .producer_sink import ProducerSink
from .proxy_client import ProxyClient

_POSITION = row(number(1), number(), number())
_PAGE = row(rows(text(1024), 10_000), rows(text(16), 10_000), optional(text(1024)))
_SETTINGS = row(blob(64 * 1024), number())
_DESCRIPTION = row(
    blob(64 * 1024),
    rows(blob(64 * 1024), 1000),
    text(4096),
    optional(_POSITION),
    optional(_POSITION),
    number(),
    number(),
)


class UnavailableThroughProxies:
    """Replaces the metadata and ledgers of a direct namespace. Any use raises `InvalidRequest`.

    ``client`` receives the batches of writers, instead of ledgers.
    """

    def __init__(self, client: ProxyClient | None = None) -> None:
        if client is not None:
            self.defer_sends, self.send_deferred = client.defer_sends, client.send_deferred

    def __getattr__(self, name: str) -> NoReturn:
        raise _direct_access_error()


def _direct_access_error() -> InvalidRequest:
    return InvalidRequest(
        "this operation requires direct access: distributedlog:// with the metadata nodes' addresses "
        "reaches the same logs"
    )


class ProxiedLog(Log):
    """A log behind proxies, with the calls of `Log`."""

    def __init__(
        self, namespace: "ProxiedNamespace", name: str, options: LogOptions, incarnation: str | None
    ) -> None:
        super().__init__(
            namespace.context,
            name,
            resolve_name=namespace.resolve_name,
            create=namespace.create_or_find,
            incarnation=incarnation,
        )
        self.options = options
        self._namespace = namespace

    def open_writer(
        self,
        *,
        takeover: bool = False,
        wait_s: float | None = None,
        lock: bool = True,
        producer: str | Literal[True] | None = None,
    ) -> Opening[LogWriter]:
        """Open a writer. Other producers can write the log concurrently. See `Log.open_writer`.

        The proxies decide about ``takeover`` and ``lock``. ``wait_s`` applies to a log that a direct writer
        has. With ``producer``, the writer continues after any failure of the log's owner, and each record
        is stored once.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, EndOfStream, NotEnoughBookies,
        InvalidRequest, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        if takeover or not lock:
            raise InvalidRequest(
                "a log behind proxies is owned by a proxy and cannot be taken over"
            )
        random_name = f"{self._namespace.context.random.getrandbits(128):032x}"
        name = random_name if producer is True else producer
        if name is not None:
            check_producer_name(name)
        check_wait(wait_s)
        return Opening(lambda: self._open_producer(wait_s, name or ""))

    async def _open_producer(self, wait_s: float | None, producer: str) -> LogWriter:
        namespace, options = self._namespace, self.options
        sink = ProducerSink(
            namespace.client,
            namespace.path,
            self.name,
            incarnation=self.incarnation or "",
            create=options.create_if_missing and self.incarnation is None,
            reopen_timeout_s=options.recover_timeout_s,
            producer=producer,
        )
        wait_s = options.recover_timeout_s if wait_s is None else wait_s
        state = await sink.open(trio.current_time() + wait_s)
        try:
            ownership: Any = StreamOwnership(state)
            writer = LogWriter(namespace.context, ownership, sink.bind)
            if sink.opened_producer is not None:
                writer.sequenced_writer.set_default_producer(sink.opened_producer)
            namespace.start(writer.run)
        except BaseException:
            sink.abort()
            raise
        return writer

    async def _open_reader(
        self,
        start: ReadStart,
        to: DLSN | Literal["end"] | None,
        *,
        skip: bool,
        on_skipped: Callable[[Skipped], object] | None,
        idle_error_s: float | None,
    ) -> LogReader:
        namespace = self._namespace
        if skip:
            raise InvalidRequest(
                "skipping entries requires direct access: distributedlog:// with the metadata nodes' "
                "addresses reaches the same logs"
            )
        request = Subscribe(
            namespace.path,
            self.name,
            incarnation=self.incarnation or "",
            to=to if isinstance(to, DLSN) else None,
            to_end=to == "end",
        ).starting_at(start)
        return await open_proxied_reader(
            namespace.read_links,
            request,
            options=self.options,
            meters=namespace.context.meters,
            proxy_offset=namespace.context.random.getrandbits(32),
            start=namespace.start,
            idle_error_s=idle_error_s,
        )

    async def describe(self, *, segments_max: int = DESCRIBED_SEGMENTS_MAX) -> LogDescription:
        """Return the state, ends, counts, owner and newest segments of the log.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, InvalidRequest,
        AlreadyClosed.
        """
        check_whole("segments_max", segments_max, 1, SEGMENTS_MAX)
        state, segments, owner, first, last, records, size_bytes = await self._call(
            "describe", segments_max, form=_DESCRIPTION
        )
        try:
            decoded_state = LogState.decode(state)
            decoded_segments = tuple(map(SegmentRecord.decode, segments))
        except CorruptData as error:
            raise ProtocolError(f"invalid description of log {self.name}: {error}") from None
        return LogDescription(
            self.name,
            decoded_state,
            decoded_segments,
            owner,
            None if first is None else DLSN(*first),
            None if last is None else DLSN(*last),
            records,
            size_bytes,
        )

    async def last_dlsn(self) -> DLSN:
        """Return the position of the last readable record.

        Raises: LogEmpty, LogNotFound, LogRecreated, LedgerStateUnknown, QuorumUnreachable, AlreadyClosed.
        """
        last = (await self.describe(segments_max=1)).last_dlsn
        if last is None:
            raise self._log_empty_error()
        return last

    async def truncate(
        self,
        dlsn: DLSN | None = None,
        *,
        txid: int | None = None,
        before: datetime | int | None = None,
    ) -> DLSN:
        """Truncate all records before a position, a transaction ID or a time. See `Log.truncate`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        OutcomeUnknown, AlreadyClosed.
        """
        if dlsn is not None:
            check_dlsn(dlsn)
        before_ms = None if before is None else to_epoch_ms(before, "before")
        dlsn_list = None if dlsn is None else list(dlsn)
        return DLSN(*await self._call("truncate", dlsn_list, txid, before_ms, form=_POSITION))

    async def settings(self) -> StoredSettings:
        """Return the log's stored options, and the user's metadata.

        Raises: LogNotFound, LogRecreated, CorruptData, UnsupportedFormat, QuorumUnreachable, AlreadyClosed.
        """
        return StoredSettings.decode(*await self._call("settings", form=_SETTINGS))

    async def set(
        self,
        settings: Mapping[str, Any],
        *,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> StoredSettings:
        """Store options of the log, for all clients that open it, and user metadata. See `Log.set`.

        Raises: LogNotFound, LogRecreated, InvalidRequest, CorruptData, UnsupportedFormat,
        QuorumUnreachable, AlreadyClosed.
        """
        arguments = [validate_settings(settings), dict(metadata or {})]
        return StoredSettings.decode(*await self._call("set", *arguments, form=_SETTINGS))

    async def seal(self, *, takeover: bool = False, wait_s: float | None = None) -> bool:
        """Seal the log, which ends it for good. Rejected while producers write it. See `Log.seal`.

        Raises: OwnershipAcquireFailed, LogNotFound, LogRecreated, RecoveryIncomplete, QuorumUnreachable,
        OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s, most_s=WAIT_MAX_S)
        ownership_wait_s = math.inf if wait_s is None else wait_s
        return bool(
            await self._call("seal", takeover, wait_s, form=flag, ownership_wait_s=ownership_wait_s)
        )

    async def find(
        self,
        *,
        txid: int | None = None,
        since: datetime | int | None = None,
        wall_ms: int | None = None,
    ) -> DLSN:
        """Return the position of the first record with at least this transaction ID or log time.

        See `Log.find`.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        since = since if since is not None else wall_ms
        since_ms = None if since is None else to_epoch_ms(since, "since")
        return DLSN(*await self._call("find", txid, since_ms, form=_POSITION))

    async def count(self, from_: DLSN | None = None, to: DLSN | None = None) -> int:
        """Return the number of records between two positions, excluding ``to``. See `Log.count`.

        Raises: LogNotFound, LogRecreated, LogTruncated, LedgerStateUnknown, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        dlsn_lists = [None if dlsn is None else list(dlsn) for dlsn in (from_, to)]
        return int(await self._call("count", *dlsn_lists, form=number()))

    async def _call(
        self,
        call: str,
        *arguments: Any,
        form: Callable[[Any], Any],
        ownership_wait_s: float = math.inf,
    ) -> Any:
        return await self._namespace.make_call(
            call,
            self.name,
            *arguments,
            form=form,
            incarnation=self.incarnation or "",
            ownership_wait_s=ownership_wait_s,
        )


class ProxiedNamespace(Namespace):
    """The logs under one path, behind proxies, with the calls of `Namespace`."""

    def __init__(
        self,
        path: str,
        client: ProxyClient,
        *,
        nursery: trio.Nursery,
        random: Random,
        wall_ms: Callable[[], int],
        owner: str,
        options: LogOptions,
        process_bytes_max: int = PROCESS_BYTES_MAX,
    ) -> None:
        unavailable: Any = UnavailableThroughProxies()
        ledgers: Any = UnavailableThroughProxies(client)
        super().__init__(
            path,
            metadata=unavailable,
            ledgers=ledgers,
            nursery=nursery,
            random=random,
            wall_ms=wall_ms,
            owner=owner,
            options=options,
            process_bytes_max=process_bytes_max,
        )
        self.client = client
        self.read_links = ReadLinks(client.endpoint, nursery, client.read_proxies)
        """Connections for readers."""

    async def create_log(
        self,
        name: str,
        *,
        durability: Literal["standard", "all"] = "standard",
        config: Mapping[str, Any] | None = None,
        metadata: Mapping[str, bytes] | None = None,
        txids: Literal["auto", "strict", "count", "ms", "bytes", "given"] = "auto",
    ) -> None:
        """Create an empty log in one transaction. See `Namespace.create_log`.

        Raises: LogExists, InvalidLogName, InvalidRequest, QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        if durability not in ("standard", "all"):
            raise InvalidRequest(f'durability is "standard" or "all", not {quoted(durability)}')
        StoredSettings().with_changes(config or {}, metadata or {})
        arguments = [
            durability,
            validate_settings(config or {}),
            dict(metadata or {}),
            stored_policy(txids),
        ]
        await self.make_call("create", check_new_log_name(name), *arguments, form=_decode_none)

    async def rename_log(self, old: str, new: str) -> None:
        """Rename a log in one transaction. See `Namespace.rename_log`.

        Raises: LogNotFound, LogExists, OwnershipAcquireFailed, InvalidLogName, InvalidRequest,
        QuorumUnreachable, OutcomeUnknown, AlreadyClosed.
        """
        await self.make_call(
            "rename",
            check_log_name(old),
            check_new_log_name(new),
            form=_decode_none,
            ownership_wait_s=0.0,
        )

    async def log_exists(self, name: str) -> bool:
        """Whether a log of this name exists.

        Raises: InvalidLogName, QuorumUnreachable, AlreadyClosed.
        """
        return bool(await self.make_call("exists", check_log_name(name), form=flag))

    async def log_page(self, prefix: str = "", after: str = "", limit: int = 1000) -> LogPage:
        """Return up to ``limit`` (1 to 10,000) logs with names that start with ``prefix``, after ``after``.

        Raises: InvalidRequest, QuorumUnreachable, AlreadyClosed.
        """
        check_whole("limit", limit, 1, LOGS_PER_PAGE_MAX)
        return LogPage(*await self.make_call("page", "", prefix, after, limit, form=_PAGE))

    def open_reader(self, **_: Any) -> NoReturn:
        """Refuse to read several logs as one stream, which requires direct access.

        Raises: InvalidRequest, AlreadyClosed.
        """
        self._check_open()
        raise _direct_access_error()

    async def delete_log(self, name: str, *, wait_s: float = 0.0) -> None:
        """Delete a log with all its records. Rejected while producers write it. See `Namespace.delete_log`.

        Raises: LogNotFound, OwnershipAcquireFailed, RecoveryIncomplete, InvalidLogName, QuorumUnreachable,
        OutcomeUnknown, InvalidRequest, AlreadyClosed.
        """
        check_seconds("wait_s", wait_s, most_s=WAIT_MAX_S)
        await self.make_call(
            "delete", check_log_name(name), wait_s, form=_decode_none, ownership_wait_s=wait_s
        )

    def open_log(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        incarnation: str | None = None,
    ) -> ProxiedLog:
        """Return a log by name, without a check that it exists. See `Namespace.open_log`.

        Raises: InvalidLogName, InvalidRequest, AlreadyClosed.
        """
        self._check_open()
        reject_stored_only(config, (*STORED_ONLY, *QUORUMS))
        return ProxiedLog(
            self, check_log_name(name), with_overrides(self.context.options, config), incarnation
        )

    async def make_call(
        self,
        call: str,
        log: str,
        *arguments: Any,
        form: Callable[[Any], Any],
        incarnation: str = "",
        ownership_wait_s: float = math.inf,
    ) -> Any:
        """Have a proxy execute a call and return the decoded result.

        Args:
            call: The name of the call.
            log: The name of the log.
            arguments: The arguments of the call.
            form: Decodes the result.
            incarnation: The incarnation of the log, if it must be this one.
            ownership_wait_s: How long to repeat the call while the log has a writer.

        Raises:
            ProtocolError: The result has another form.
            DistributedLogError: The call failed.
        """
        self._check_open()
        return await self.client.call(
            LogCall(self.path, call, log, incarnation, arguments),
            form,
            ownership_wait_s=ownership_wait_s,
        )


def _decode_none(value: Any) -> None:
    if value is not None:
        raise SchemaError("a value instead of none")


class StreamOwnership:
    """Replaces the `LogLock` of a writer behind proxies. It has the log's state, and nothing to release."""

    def __init__(self, state: LogState) -> None:
        self.state = state

    @property
    def writer_state(self) -> "StreamOwnership":
        """The state of the log, which is this object."""
        return self

    @property
    def log_id(self) -> int:
        """The log's ID."""
        return self.state.log_id

    @property
    def metadata(self) -> Any:
        """Metadata are unavailable."""
        return UnavailableThroughProxies()

    async def change(
        self, apply: Callable[[LogState], LogState], *, is_done: Callable[[LogState], bool]
    ) -> None:
        """Change the local state. The proxy changes the log's state when the first frame arrives."""
        await trio.lowlevel.checkpoint()
        if not is_done(self.state):  # another task was faster
            self.state = apply(self.state)

    def set_on_lost(self, on_lost: Callable[[DistributedLogError], None]) -> None:
        """Do nothing: a lost stream is opened again."""

    async def release(self) -> None:
        """Do nothing: the sink closes the stream."""
        await trio.lowlevel.checkpoint()
