"""A replicated log service on its own replicated storage cluster, in pure Python.

This is the trio face; `distributedlog.blocking` and `distributedlog.aio` are the same calls for plain
threads and for asyncio.

    async with open_namespace("distributedlog://HOST:PORT/NAMESPACE") as namespace:
        async with namespace.open_log("orders").open_writer() as writer:
            dlsn = await writer.write(LogRecord(txid=1, payload=b"first"))
            pending = await writer.submit(LogRecord(txid=2, payload=b"second"))  # pipelined: await it later
        async with namespace.open_log("orders").open_reader(to="end") as reader:
            async for record in reader:
                print(record.dlsn, record.txid, record.payload)

Begin with ``help(open_namespace)``, then `Namespace` (make, list, rename, delete, watch logs), `Log` (open a
writer or a reader, subscribe, share it as a work queue, truncate, seal, find, positions, segments),
`LogWriter`, `LogReader`. ``local_cluster()`` is a whole cluster to try them on. Every error is a
`DistributedLogError`, with ``code``, ``retryable`` and ``definite``.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .runtime.interfaces.errors import (
    AlreadyClosed,
    ClaimLost,
    CorruptData,
    DistributedLogError,
    EndOfStream,
    InternalError,
    InvalidLogName,
    InvalidRequest,
    InvalidUri,
    LedgerStateUnknown,
    LinkMismatch,
    LinkOutOfOrder,
    LogDeleted,
    LogEmpty,
    LogExists,
    LogNotFound,
    LogRecreated,
    LogTruncated,
    NoSuchLedger,
    NotEnoughBookies,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
    QuorumUnreachable,
    ReaderIdle,
    RecordTooLarge,
    RecoveryIncomplete,
    RequestTimeout,
    SubscriptionLost,
    TooBusy,
    TransactionIdOutOfOrder,
    TransactionTooLarge,
    UnsupportedFormat,
    WriteCancelled,
    WriteFailed,
    WriterFenced,
)
from .uri import parse_uri

if TYPE_CHECKING:
    from .cluster.local.local_cluster import local_cluster
    from .log.byte_stream import ByteReader, ByteWriter
    from .log.consumers.subscription import Subscription
    from .log.consumers.work_queue import WorkClaim, WorkQueue
    from .log.consumers.work_state import WorkState
    from .log.format.dlsn import DLSN
    from .log.format.record import Columns, LogRecord
    from .log.interfaces.open_call import Opening
    from .log.log import Log, LogDescription
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
    "local_cluster": ".cluster.local.local_cluster",
    "AppVersion": ".log.segments.app_versions",
    "LinkContent": ".log.segments.app_versions",
    "PendingBulk": ".log.write.entry_batch",
    "PendingWrite": ".log.write.entry_batch",
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
    "WorkState": ".log.consumers.work_state",
    "WorkClaim": ".log.consumers.work_queue",
    "WorkQueue": ".log.consumers.work_queue",
    "LogWriter": ".log.write.log_writer",
}
"""Where what is loaded on first use is defined: `dlog --help` needs none of it, a bookie no log."""

# What users import. A new error of theirs is a class in distributedlog/runtime/interfaces/errors.py and a
# name here; any other name stands here, among the imports for types and in `_HOMES`. A new option of a log is
# a field in distributedlog/log/declarations/options.py; a new call of a trio class is made in the other faces
# by generate_api_variants.py.
__all__ = [
    "DLSN",
    "AlreadyClosed",
    "AppVersion",
    "ByteReader",
    "ByteWriter",
    "ClaimLost",
    "Columns",
    "CorruptData",
    "DistributedLogError",
    "EndOfStream",
    "Idle",
    "InternalError",
    "InvalidLogName",
    "InvalidRequest",
    "InvalidUri",
    "LedgerStateUnknown",
    "LinkContent",
    "LinkMismatch",
    "LinkOutOfOrder",
    "LinkResult",
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
    "LogTruncated",
    "LogWatch",
    "LogWriter",
    "MultiReader",
    "Namespace",
    "NamespaceMetrics",
    "NoSuchLedger",
    "NotEnoughBookies",
    "OpenedProducer",
    "Opening",
    "OutcomeUnknown",
    "OwnershipAcquireFailed",
    "PendingBulk",
    "PendingWrite",
    "Position",
    "PositionConflict",
    "Positions",
    "ProducerFenced",
    "ProducerForgotten",
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
    "UnsupportedFormat",
    "WorkClaim",
    "WorkQueue",
    "WorkState",
    "WriteCancelled",
    "WriteFailed",
    "WriterFenced",
    "local_cluster",
    "open_namespace",
]


def open_namespace(
    uri: str,
    *,
    config: Mapping[str, Any] | None = None,
    metrics: "Registry | None" = None,
    host: "Host | None" = None,
) -> "AbstractAsyncContextManager[Namespace]":
    """The namespace of a URI; ``async with`` what this returns. Raises `InvalidUri` at once.

    Entering it contacts the metadata quorum and raises `QuorumUnreachable`, which names the addresses,
    after ``metadata_timeout_s``. ``config`` overlays the defaults of the log, the ledgers and the client,
    by option name. ``metrics`` is a registry, such as `prometheus_client.REGISTRY`, that collects what is
    counted here, under the label ``namespace``, until this is closed; without one `Namespace.metrics` has it.
    ``host`` is the machine to run on (default: this one).
    """
    parsed = parse_uri(uri)
    if parsed.is_proxied:
        from .connect import open_via_proxies

        return open_via_proxies(parsed, config, host, metrics)
    from .connect import open_direct

    return open_direct(parsed, config, host, metrics)


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Load a name's part when it is first asked for: a program pays for what it uses."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home, __name__), name)
        return found


def __dir__() -> list[str]:
    """What completion offers: the names of `__all__`, loaded or not, and the modules."""
    return sorted({*globals(), *__all__})
