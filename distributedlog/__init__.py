"""A replicated log service with its own replicated storage cluster, in pure Python.

This module is the API for trio. `distributedlog.blocking` and `distributedlog.aio` have the same calls for
threads and for asyncio.

    async with open_namespace("distributedlog://HOST:PORT/NAMESPACE") as namespace:
        async with namespace.open_log("orders").open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))
            pending = await writer.submit(LogRecord(txid=2, payload=b"second"))  # pipelined: await it later
        async with namespace.open_log("orders").open_reader(to="end") as reader:
            async for record in reader:
                print(record.dlsn, record.txid, record.payload)

Start with ``help(open_namespace)``. The main classes are:

- `Namespace`: create, list, rename, delete and watch logs.
- `Log`: open writers and readers, subscribe, share work in a queue, truncate, seal, search.
- `LogWriter` and `LogReader`.

``local_cluster()`` starts a complete cluster for experiments. Every error is a `DistributedLogError`. If
it is ``retryable``, the same call may succeed later. If it is not ``definite``, the outcome is unknown.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .runtime.interfaces.errors import (
    BY_CODE,
    AddressInUse,
    AddressUnavailable,
    AlreadyClosed,
    BookieReadOnly,
    CapabilityOutdated,
    ClaimLost,
    CommittedEntriesLost,
    Compacted,
    ConfirmationRequired,
    ConnectionLost,
    CorruptData,
    DataDirectoryInUse,
    DataDirectoryLost,
    DiskFailed,
    DiskFull,
    DistributedLogError,
    EndOfStream,
    EntriesLost,
    EntryConflict,
    ForeignData,
    InternalError,
    InvalidLogName,
    InvalidRequest,
    InvalidUri,
    LeaseExpired,
    LedgerClosed,
    LedgerFenced,
    LedgerStateUnknown,
    LinkMismatch,
    LinkOutOfOrder,
    LogDeleted,
    LogEmpty,
    LogExists,
    LogNotFound,
    LogRecreated,
    LogTruncated,
    MembersRefused,
    MetadataFull,
    Moved,
    NamespaceFull,
    NoSuchEntry,
    NoSuchLedger,
    NotAllowed,
    NotAuthenticated,
    NotEnoughBookies,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OverQuota,
    OwnershipAcquireFailed,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
    ProtocolError,
    QuorumUnreachable,
    ReaderIdle,
    RecordTooLarge,
    RecoveryIncomplete,
    RequestTimeout,
    SubscriptionLost,
    TooBusy,
    TransactionIdOutOfOrder,
    TransactionTooLarge,
    UnknownBookie,
    UnsupportedFormat,
    UnsupportedPlatform,
    UpgradeIncomplete,
    UpgradeNotFinalized,
    VersionConflict,
    WriteCancelled,
    WriteFailed,
    WriterFenced,
    WrongLedgerKey,
    WrongPeer,
)
from .uri import parse_uri

if TYPE_CHECKING:
    from .cluster.local.local_cluster import LocalCluster, LocalNode, local_cluster
    from .log.arrow.arrow_reader import ArrowReader
    from .log.byte_stream import ByteReader, ByteWriter
    from .log.consumers.subscription import Subscription
    from .log.consumers.work_queue import WorkClaim, WorkQueue
    from .log.consumers.work_state import WorkItem, WorkItemStatus, WorkState
    from .log.format.dlsn import DLSN
    from .log.format.record import Columns, KeyedRecord, LogRecord
    from .log.interfaces.open_call import Opening
    from .log.log import Log, LogDescription
    from .log.model.log_state import LogState
    from .log.model.position import Position
    from .log.model.segment_ranges import LogSnapshot, SegmentInfo, SegmentRange, SegmentToken
    from .log.model.segment_record import SegmentRecord
    from .log.model.stored_settings import StoredSettings
    from .log.namespace import LogPage, Namespace
    from .log.read.log_reader import Idle, LogReader
    from .log.read.multi_reader import LogBatch, LogEvent, MultiReader
    from .log.read.range_reader import RangeReader
    from .log.read.segment_watch import SegmentChange, SegmentWatch
    from .log.read.skipped_entries import Skipped, Skips
    from .log.segments.app_versions import AppVersion, LinkContent
    from .log.segments.external_segment_writer import SegmentWriter
    from .log.segments.segment_link import LinkResult
    from .log.services.log_metrics import NamespaceMetrics, Registry
    from .log.services.log_watch import LogChange, LogWatch
    from .log.services.named_positions import Positions
    from .log.write.entry_batch import PendingBulk, PendingWrite
    from .log.write.log_writer import LogWriter
    from .log.write.producer_state_manager import OpenedProducer
    from .runtime.interfaces.host import Host

_HOMES = {
    "LocalCluster": ".cluster.local.local_cluster",
    "LocalNode": ".cluster.local.local_cluster",
    "local_cluster": ".cluster.local.local_cluster",
    "AppVersion": ".log.segments.app_versions",
    "LinkContent": ".log.segments.app_versions",
    "PendingBulk": ".log.write.entry_batch",
    "PendingWrite": ".log.write.entry_batch",
    "ArrowReader": ".log.arrow.arrow_reader",
    "ByteReader": ".log.byte_stream",
    "ByteWriter": ".log.byte_stream",
    "DLSN": ".log.format.dlsn",
    "Log": ".log.log",
    "LogDescription": ".log.log",
    "LinkResult": ".log.segments.segment_link",
    "NamespaceMetrics": ".log.services.log_metrics",
    "LogBatch": ".log.read.multi_reader",
    "LogEvent": ".log.read.multi_reader",
    "MultiReader": ".log.read.multi_reader",
    "LogPage": ".log.namespace",
    "Namespace": ".log.namespace",
    "Opening": ".log.interfaces.open_call",
    "LogState": ".log.model.log_state",
    "Position": ".log.model.position",
    "Positions": ".log.services.named_positions",
    "OpenedProducer": ".log.write.producer_state_manager",
    "RangeReader": ".log.read.range_reader",
    "LogSnapshot": ".log.model.segment_ranges",
    "SegmentInfo": ".log.model.segment_ranges",
    "SegmentRange": ".log.model.segment_ranges",
    "SegmentToken": ".log.model.segment_ranges",
    "Idle": ".log.read.log_reader",
    "LogReader": ".log.read.log_reader",
    "Columns": ".log.format.record",
    "KeyedRecord": ".log.format.record",
    "LogRecord": ".log.format.record",
    "SegmentChange": ".log.read.segment_watch",
    "SegmentWatch": ".log.read.segment_watch",
    "SegmentWriter": ".log.segments.external_segment_writer",
    "SegmentRecord": ".log.model.segment_record",
    "StoredSettings": ".log.model.stored_settings",
    "Skipped": ".log.read.skipped_entries",
    "Skips": ".log.read.skipped_entries",
    "Subscription": ".log.consumers.subscription",
    "LogChange": ".log.services.log_watch",
    "LogWatch": ".log.services.log_watch",
    "WorkItem": ".log.consumers.work_state",
    "WorkItemStatus": ".log.consumers.work_state",
    "WorkState": ".log.consumers.work_state",
    "WorkClaim": ".log.consumers.work_queue",
    "WorkQueue": ".log.consumers.work_queue",
    "LogWriter": ".log.write.log_writer",
}
"""The modules of names that are imported on first use. `dlog --help` needs none of them, and a bookie
needs no log."""

# The names that users import. To add an error, add a class to distributedlog/runtime/interfaces/errors.py and
# its name here. To add another name, add it here, to the imports for type checkers, to `_HOMES`, and to a
# page of tools/api_pages.py. To add an option of a log, add a field to
# distributedlog/log/declarations/options.py. For a new method of a trio class,
# tools/generate_api_variants.py generates those of the other API variants.
__all__ = [
    "DLSN",
    "AddressInUse",
    "AddressUnavailable",
    "AlreadyClosed",
    "AppVersion",
    "ArrowReader",
    "BookieReadOnly",
    "ByteReader",
    "ByteWriter",
    "CapabilityOutdated",
    "ClaimLost",
    "Columns",
    "CommittedEntriesLost",
    "Compacted",
    "ConfirmationRequired",
    "ConnectionLost",
    "CorruptData",
    "DataDirectoryInUse",
    "DataDirectoryLost",
    "DiskFailed",
    "DiskFull",
    "DistributedLogError",
    "EndOfStream",
    "EntriesLost",
    "EntryConflict",
    "ForeignData",
    "Idle",
    "InternalError",
    "InvalidLogName",
    "InvalidRequest",
    "InvalidUri",
    "KeyedRecord",
    "LeaseExpired",
    "LedgerClosed",
    "LedgerFenced",
    "LedgerStateUnknown",
    "LinkContent",
    "LinkMismatch",
    "LinkOutOfOrder",
    "LinkResult",
    "LocalCluster",
    "LocalNode",
    "Log",
    "LogBatch",
    "LogChange",
    "LogDeleted",
    "LogDescription",
    "LogEmpty",
    "LogEvent",
    "LogExists",
    "LogNotFound",
    "LogPage",
    "LogReader",
    "LogRecord",
    "LogRecreated",
    "LogSnapshot",
    "LogState",
    "LogTruncated",
    "LogWatch",
    "LogWriter",
    "MembersRefused",
    "MetadataFull",
    "Moved",
    "MultiReader",
    "Namespace",
    "NamespaceFull",
    "NamespaceMetrics",
    "NoSuchEntry",
    "NoSuchLedger",
    "NotAllowed",
    "NotAuthenticated",
    "NotEnoughBookies",
    "NotLeader",
    "NotReady",
    "OpenedProducer",
    "Opening",
    "OutcomeUnknown",
    "OverQuota",
    "OwnershipAcquireFailed",
    "PendingBulk",
    "PendingWrite",
    "Position",
    "PositionConflict",
    "Positions",
    "ProducerFenced",
    "ProducerForgotten",
    "ProtocolError",
    "QuorumUnreachable",
    "RangeReader",
    "ReaderIdle",
    "RecordTooLarge",
    "RecoveryIncomplete",
    "RequestTimeout",
    "SegmentChange",
    "SegmentInfo",
    "SegmentRange",
    "SegmentRecord",
    "SegmentToken",
    "SegmentWatch",
    "SegmentWriter",
    "Skipped",
    "Skips",
    "StoredSettings",
    "Subscription",
    "SubscriptionLost",
    "TooBusy",
    "TransactionIdOutOfOrder",
    "TransactionTooLarge",
    "UnknownBookie",
    "UnsupportedFormat",
    "UnsupportedPlatform",
    "UpgradeIncomplete",
    "UpgradeNotFinalized",
    "VersionConflict",
    "WorkClaim",
    "WorkItem",
    "WorkItemStatus",
    "WorkQueue",
    "WorkState",
    "WriteCancelled",
    "WriteFailed",
    "WriterFenced",
    "WrongLedgerKey",
    "WrongPeer",
    "local_cluster",
    "open_namespace",
]

for _error in BY_CODE.values():
    # Tracebacks print the name that users import: distributedlog.LogNotFound. `inspect` then finds no source
    # of the class. Without this line number, Python 3.13 would return unrelated lines.
    _error.__module__ = __name__
    if "__firstlineno__" in vars(_error):
        type.__delattr__(_error, "__firstlineno__")
del _error


def open_namespace(
    uri: str,
    *,
    config: Mapping[str, Any] | None = None,
    metrics: "Registry | None" = None,
    host: "Host | None" = None,
) -> "AbstractAsyncContextManager[Namespace]":
    """Open the namespace of a URI.

    Use the result with ``async with``. Entering it contacts the metadata quorum, or a proxy. If there is no
    answer within ``metadata_timeout_s``, `QuorumUnreachable` is raised, which names the addresses. At the
    normal end of the body, the context waits up to 5 s until the records of writers that were left open are
    durable.

    Args:
        uri: ``distributedlog://HOST:PORT[,HOST:PORT…]/NAMESPACE`` with the addresses of metadata nodes, or
            ``distributedlog+proxy://…`` with the addresses of proxies.
        config: Values of options of the client, the ledgers and the logs, by name. They replace the defaults.
        metrics: A registry, such as `prometheus_client.REGISTRY`, that collects the metrics of this namespace
            until it is closed, under the label ``namespace``. `Namespace.metrics` has them in any case.
        host: The machine interface to use, for tests. None means this machine.
    Returns:
        An async context manager for the `Namespace`.
    Raises:
        InvalidUri: The URI is invalid.
    """
    parsed = parse_uri(uri)
    if parsed.is_proxied:
        from .connect import open_via_proxies

        return open_via_proxies(parsed, config, host, metrics)
    from .connect import open_direct

    return open_direct(parsed, config, host, metrics)


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import the module of a name on first use, so that a program loads only modules that it needs."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home, __name__), name)
        return found


def __dir__() -> list[str]:
    """Return the names for completion: those of `__all__`, whether loaded or not, and the modules."""
    return sorted({*globals(), *__all__})
