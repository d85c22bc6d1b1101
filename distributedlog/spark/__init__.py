"""Read and write logs as Spark tables and streams: ``spark.read.format("distributedlog")``.

The import of this package loads neither pyspark nor the servers. Its names are loaded on first use.

The data source:

    data_source.py              The object that Spark creates first, on the driver, for each read and write.
    options/options.py          The options of source and sink. A new option is a field here.
    options/option_values.py    Parse option values: sizes, durations, times, names, positions.
    options/option_rules.py     Reject conflicting options. Rules for a new option are here.
    read/table_schema.py        The columns of a log, and the user's schema as the projection.

Reads, planned on the driver:

    read/batch_reader.py        The batch reader on the driver, and the code of its tasks.
    read/stream_reader.py       The stream reader, one object for the whole life of a query.
    read/stream_progress.py     The start of a query, and the end and ranges of each micro-batch.
    options/filter_pushdown.py  Turn filters into limits of the ranges to read (pure).
    read/scan_planner.py        Share a micro-batch's limit among logs, pack ranges into tasks (pure).
    read/source_logs.py         The logs of a reader, with their first and last positions.
    read/offsets.py             The position of a query in each log, as checkpointed JSON (pure).
    read/data_loss_policy.py    Decide how a query continues after a log was truncated, deleted or created
                                again (pure).

Reads, in tasks:

    read/task_entries.py        The entries of a task's ranges, fetched in the background.
    ../log/arrow/               Entries as Arrow record batches.

Writes:

    sink/spark_sink.py          The sink on the driver: check before any task, then link the written segments
                                once.
    sink/sink_task.py           A task: write rows into segments, or append them through the log's writer.
    sink/sink_columns.py        Turn Arrow columns into entries.

Shared by reads and writes:

    client/spark_client.py      One client per worker process.
    client/retry.py             Retry while the metadata store or bookies are unavailable.
    client/worker_heap.py       Exclude loaded modules from garbage collection in Spark's worker processes.
    client/delegation_token.py  A restricted token that the driver passes to its executors, which have no
                                credentials.
    client/spark_errors.py      Restore errors that Spark returns as text; print warnings without configured
                                logging.

For users:

    monitor/consumer_lag.py     The lag of a query, a subscriber or a set of positions.
    monitor/query_metrics.py    Metrics of streaming queries for a Prometheus registry.
    session_settings.py         A session, its recommended settings, and this package as a zip.
    archive/                    A log, or its past, as Parquet.

For the documentation:

    doc_tables.py               Generate the tables of docs/reference/spark-options.md.
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
