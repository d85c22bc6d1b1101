"""Logs as Spark tables and streams: ``spark.read.format("distributedlog")`` and its way back.

Importing this loads neither pyspark nor the servers; the names below come on first use.

    source.py                       what Spark makes first, for every read and write
        options.py, option_values.py, option_rules.py   what can be set, and where a new option goes
        schema.py                       the columns, and expressions over them

Reading, on the driver and then in its tasks:

    read.py, narrowing.py, planning.py  a batch: filters become bounds, ranges become tasks
    source_logs.py, offsets.py      which logs there are, how far they go; how far each has been read
    stream.py, stream_progress.py   a query: its micro-batches, and their limits
    lifecycle.py                    what becomes of it when a log is truncated, deleted or made again
    task_entries.py, batches.py     a task: entries as they come, and as Arrow batches

Writing:

    sink.py                         checks before any task; links what the tasks wrote, once
    sink_task.py, sink_columns.py   rows become segments; Arrow's columns become entries

What both need, and what users call:

    client.py, patience.py          one client a worker process; waiting while the cluster is away
    heap.py                         what the collections of Spark's processes need not look at
    lending.py                      what the driver lends its executors, who have no credentials
    behind.py                       how far a query, a subscriber, or positions are behind
    query_metrics.py                what queries do, for a registry of Prometheus
    spark_errors.py                 errors in one line, rebuilt; warnings without configured logging
    settings.py                     a session, and its settings; this package as a zip
    archive/                        a log, or its past, as Parquet
    doc_tables.py                   the tables of docs/spark.md
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .archive.history import append_history, history_manifest, read_with_history
    from .behind import Lag, lag
    from .query_metrics import query_listener
    from .read import positions
    from .schema import dlsn_text
    from .settings import package_zip, recommended_conf, session
    from .source import DistributedLogSource
    from .spark_errors import cause, plain_errors

__all__ = [
    "DistributedLogSource",
    "Lag",
    "append_history",
    "cause",
    "dlsn_text",
    "history_manifest",
    "lag",
    "package_zip",
    "plain_errors",
    "positions",
    "query_listener",
    "read_with_history",
    "recommended_conf",
    "session",
]

_WHERE = {
    "DistributedLogSource": "source",
    "append_history": "archive.history",
    "cause": "spark_errors",
    "dlsn_text": "schema",
    "history_manifest": "archive.history",
    "Lag": "behind",
    "lag": "behind",
    "package_zip": "settings",
    "plain_errors": "spark_errors",
    "positions": "read",
    "query_listener": "query_metrics",
    "read_with_history": "archive.history",
    "recommended_conf": "settings",
    "session": "settings",
}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
