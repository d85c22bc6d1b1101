"""Logs as Spark tables and streams: ``spark.read.format("distributedlog")`` and its way back.

Importing this loads neither pyspark nor the servers; the names below come on first use.

    data_source.py                       what Spark makes first, for every read and write
        options/options.py, options/option_values.py, options/option_rules.py   what can be set, and where a
        new option goes read/table_schema.py                       the columns, and expressions over them

Reading, on the driver and then in its tasks:

    read/batch_reader.py, options/filter_pushdown.py, read/scan_planner.py  a batch: filters become bounds,
    ranges become tasks read/source_logs.py, read/offsets.py      which logs there are, how far they go; how
    far each has been read read/stream_reader.py, read/stream_progress.py   a query: its micro-batches, and
    their limits read/data_loss_policy.py                    what becomes of it when a log is truncated,
    deleted or made again read/task_entries.py, read/arrow_batches.py     a task: entries as they come, and as
    Arrow batches

Writing:

    sink/spark_sink.py                         checks before any task; links what the tasks wrote, once
    sink/sink_task.py, sink/sink_columns.py   rows become segments; Arrow's columns become entries

What both need, and what users call:

    client/spark_client.py, client/retry.py          one client a worker process; waiting while the cluster is
    away client/worker_heap.py                         what the collections of Spark's processes need not look
    at client/delegation_token.py                      what the driver lends its executors, who have no
    credentials monitor/consumer_lag.py                       how far a query, a subscriber, or positions are
    behind monitor/query_metrics.py                what queries do, for a registry of Prometheus
    client/spark_errors.py                 errors in one line, rebuilt; warnings without configured logging
    session_settings.py                     a session, and its settings; this package as a zip
    archive/                        a log, or its past, as Parquet
    doc_tables.py                   the tables of docs/reference/spark-options.md
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .archive.cold_tier import append_history, history_manifest, read_with_history
    from .client.spark_errors import cause, plain_errors
    from .data_source import DistributedLogSource
    from .monitor.consumer_lag import Lag, lag
    from .monitor.query_metrics import query_listener
    from .read.batch_reader import positions
    from .read.table_schema import dlsn_text
    from .session_settings import package_zip, recommended_conf, session

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
    "DistributedLogSource": "data_source",
    "append_history": "archive.cold_tier",
    "cause": "client.spark_errors",
    "dlsn_text": "read.table_schema",
    "history_manifest": "archive.cold_tier",
    "Lag": "monitor.consumer_lag",
    "lag": "monitor.consumer_lag",
    "package_zip": "session_settings",
    "plain_errors": "client.spark_errors",
    "positions": "read.batch_reader",
    "query_listener": "monitor.query_metrics",
    "read_with_history": "archive.cold_tier",
    "recommended_conf": "session_settings",
    "session": "session_settings",
}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
