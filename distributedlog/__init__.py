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

from .runtime.errors import (
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
    from .cluster.local import local_cluster
    from .log.app_versions import AppVersion, LinkContent
    from .log.batch import PendingBulk, PendingWrite
    from .log.byte_stream import ByteReader, ByteWriter
    from .log.dlsn import DLSN
    from .log.handle import Log, LogDescription
    from .log.link import LinkResult
    from .log.metrics import NamespaceMetrics, Registry
    from .log.multi_reader import LogBatch, LogEvent, MultiReader
    from .log.namespace import LogPage, Namespace
    from .log.opening import Opening
    from .log.position import Position
    from .log.positions import Positions
    from .log.producing import OpenedProducer
    from .log.range_reader import RangeReader
    from .log.ranges import LogSnapshot, SegmentInfo, SegmentRange, SegmentToken
    from .log.reader import Idle, LogReader
    from .log.record import Columns, LogRecord
    from .log.segment_watch import SegmentChange, SegmentWatch
    from .log.segment_writer import SegmentWriter
    from .log.segments import SegmentRecord
    from .log.settings import StoredSettings
    from .log.skips import Skipped, Skips
    from .log.subscription import Subscription
    from .log.watch import LogChange, LogWatch
    from .log.work import WorkState
    from .log.work_queue import WorkClaim, WorkQueue
    from .log.writer import LogWriter
    from .runtime.host import Host

_HOMES = {
    "local_cluster": ".cluster.local",
    "AppVersion": ".log.app_versions",
    "LinkContent": ".log.app_versions",
    "PendingBulk": ".log.batch",
    "PendingWrite": ".log.batch",
    "ByteReader": ".log.byte_stream",
    "ByteWriter": ".log.byte_stream",
    "DLSN": ".log.dlsn",
    "Log": ".log.handle",
    "LogDescription": ".log.handle",
    "LinkResult": ".log.link",
    "NamespaceMetrics": ".log.metrics",
    "LogBatch": ".log.multi_reader",
    "LogEvent": ".log.multi_reader",
    "MultiReader": ".log.multi_reader",
    "LogPage": ".log.namespace",
    "Namespace": ".log.namespace",
    "Opening": ".log.opening",
    "Position": ".log.position",
    "Positions": ".log.positions",
    "OpenedProducer": ".log.producing",
    "RangeReader": ".log.range_reader",
    "LogSnapshot": ".log.ranges",
    "SegmentInfo": ".log.ranges",
    "SegmentRange": ".log.ranges",
    "SegmentToken": ".log.ranges",
    "Idle": ".log.reader",
    "LogReader": ".log.reader",
    "Columns": ".log.record",
    "LogRecord": ".log.record",
    "SegmentChange": ".log.segment_watch",
    "SegmentWatch": ".log.segment_watch",
    "SegmentWriter": ".log.segment_writer",
    "SegmentRecord": ".log.segments",
    "StoredSettings": ".log.settings",
    "Skipped": ".log.skips",
    "Skips": ".log.skips",
    "Subscription": ".log.subscription",
    "LogChange": ".log.watch",
    "LogWatch": ".log.watch",
    "WorkState": ".log.work",
    "WorkClaim": ".log.work_queue",
    "WorkQueue": ".log.work_queue",
    "LogWriter": ".log.writer",
}
"""Where what is loaded on first use is defined: `dlog --help` needs none of it, a bookie no log."""

# What users import. A new error of theirs is a class in runtime/errors.py and a name here; any other name
# stands here, among the imports for types and in `_HOMES`. A new option of a log is a field in
# log/options.py; a new call of a trio class is made in the other faces by faces.py.
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
    if parsed.proxied:
        from .direct import open_through

        return open_through(parsed, config, host, metrics)
    from .direct import open_direct

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
