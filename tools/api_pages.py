"""The pages of the Python API reference: the names on each page, and the names that users do not need.

`tools/generate_api_reference.py` writes the pages. Each exported name is on one page. Only the calls of `Log`
and `Namespace` are on several, by task. The generator reports a name without a page.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ApiPage:
    """A page of docs/reference/api."""

    name: str
    """The file name, without suffix."""
    title: str
    purpose: str
    """The first paragraph: contents and audience."""
    guides: str
    """Links to the pages that explain the task."""
    names: tuple[str, ...]
    """Exported names in order. Words after `Log` and `Namespace` are the calls that this page has."""


ERRORS_PAGE = "errors"

PAGES = (
    ApiPage(
        "connect",
        "Connect API",
        "This page lists the calls that connect to a cluster, start a local one and open a log. It is for "
        "developers.",
        "[First program](../../start/first-program.md), [URIs](../uri.md), [options](../options.md)",
        (
            "open_namespace",
            "Namespace open_log metrics",
            "Log name",
            "Opening",
            "NamespaceMetrics",
            "local_cluster",
            "LocalCluster",
            "LocalNode",
        ),
    ),
    ApiPage(
        "write",
        "Write API",
        "This page lists the calls that append records to a log. It is for developers.",
        "[Write records](../../guides/write.md), [exactly once](../../guides/exactly-once.md)",
        (
            "Log open_writer",
            "LogRecord",
            "KeyedRecord",
            "LogWriter",
            "PendingWrite",
            "PendingBulk",
            "OpenedProducer",
            "Log open_byte_writer",
            "ByteWriter",
        ),
    ),
    ApiPage(
        "read",
        "Read API",
        "This page lists the calls that read one log or several logs. It is for developers.",
        "[Read records](../../guides/read.md), [more log features](../../guides/more-log-features.md), "
        "[DuckDB, polars and pandas](../../guides/arrow.md)",
        (
            "Log open_reader first_record last_record last_dlsn count find",
            "LogReader",
            "Columns",
            "Idle",
            "Skips",
            "Skipped",
            "Namespace open_reader",
            "MultiReader",
            "LogBatch",
            "LogEvent",
            "Log open_byte_reader",
            "ByteReader",
            "Log to_arrow",
            "ArrowReader",
        ),
    ),
    ApiPage(
        "positions",
        "Positions API",
        "This page lists the calls for positions in a log, and for programs that share its reading. It is "
        "for developers.",
        "[Positions](../../concepts/positions.md), "
        "[subscriptions and work queues](../../guides/subscriptions-and-queues.md)",
        (
            "DLSN",
            "Position",
            "Log positions",
            "Positions",
            "Log subscribe",
            "Subscription",
            "Log work_queue work_queues delete_work_queue",
            "WorkQueue",
            "WorkClaim",
            "WorkState",
            "WorkItem",
            "WorkItemStatus",
        ),
    ),
    ApiPage(
        "segments",
        "Segments API",
        "This page lists the calls that read, write and attach whole segments of a log. It is for developers "
        "of batch jobs and connectors.",
        "[Batch segments](../../guides/batch-segments.md)",
        (
            "Log snapshot open_ranges",
            "LogSnapshot",
            "SegmentInfo",
            "SegmentRange",
            "RangeReader",
            "Log watch_segments",
            "SegmentWatch",
            "SegmentChange",
            "Log open_segment_writer link_segments linked_version discard_segments collect_unlinked",
            "SegmentWriter",
            "SegmentToken",
            "LinkContent",
            "LinkResult",
            "AppVersion",
        ),
    ),
    ApiPage(
        "administer",
        "Administration API",
        "This page lists the calls that create, list, describe, truncate and delete logs. It is for "
        "developers and operators who write scripts.",
        "[Retention](../../guides/retention.md), [options](../options.md), "
        "[command line](../command-line.md)",
        (
            "Namespace create_log log_exists logs log_page rename_log delete_log settings set watch_logs",
            "LogPage",
            "LogWatch",
            "LogChange",
            "Log describe segments truncate seal settings set merge_segments",
            "LogDescription",
            "SegmentRecord",
            "LogState",
            "StoredSettings",
        ),
    ),
)

CONSTRUCTORS = {
    "DLSN": "DLSN(segment: int, entry: int, slot: int)",
    "LinkContent": "LinkContent(records: int, digest: int)",
    "LogRecord": 'LogRecord(txid: int = ..., payload: bytes = b"")',
    "KeyedRecord": 'KeyedRecord(txid: int = ..., payload: bytes = b"", key: bytes | None = None, headers=())',
    "Position": "Position(incarnation: str, dlsn: DLSN, sequence_id: int)",
}
"""Classes that users construct. Calls return the objects of all others."""

INTERNAL_PARAMETERS = {"forks", "host"}
"""Parameters for tests and for other parts of the package."""

INTERNAL = re.compile(
    r"""encode|decode|unknown_fields|with(out)?_\w+     # stored values and their changes
    |ArrowReader\.(fetch|build)
    |\w+\.origin|Columns\.flags|LogRecord\.slot          # how a record is stored in its entry
    |(Keyed|Log)Record\.content
    |LocalCluster\.(children|kill|ready)                # only of the trio API, for tests
    |LogState\.(epoch|incarnation|writer_id|end|writer_format|producer_snapshot_segment|txid_policy|txid_rule
        |first_open_segment|had_unordered_txids|has_producers|is_txid_searchable|log_id)
    |NamespaceMetrics\.samples
    |Opening\.(open|send|throw|close)                   # those of a coroutine
    |PendingBulk\.(accepted_count|add_\w+|when_done|locate|known_outcomes|not_durable)
    |PendingWrite\.of
    |SegmentRange\.(held_position|sub_range)
    |SegmentRecord\.(totals|max_txid_of|time_of|txid_base|txid_rule|base_entry|base_bytes)
    |Segment(Info|Range)\.(txid_base|txid_rule|time_floor_ms|base_entry)
    |StoredSettings\.(check|select)
    |Log\.options
    """,
    re.VERBOSE,
)
"""Public names of exported classes that users do not need: other modules of the package use them."""

ATTRIBUTE_TYPES = {
    "end": "DLSN",
    "first": "DLSN",
    "incarnation": "str",
    "log": "str",
    "name": "str",
    "number": "int",
    "path": "str",
    "reader": "LogReader",
    "tries": "int",
}
"""Types of attributes that a constructor sets without an annotation."""

TYPE_ALIASES = {
    "Buffer": "bytes | bytearray | memoryview",
    "Headers": "tuple[tuple[bytes, bytes], ...]",
    "Item": "LogBatch | LogEvent",
    "Registry": "CollectorRegistry",
}
"""Names in signatures that users cannot import, with their meaning."""
