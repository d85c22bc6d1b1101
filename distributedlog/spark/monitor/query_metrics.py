"""Count the work of streaming queries over logs for a Prometheus registry in the driver's process.

    spark.streams.addListener(query_listener(prometheus_client.REGISTRY))

The figures come from Spark's own progress of each micro-batch. They need no requests to the cluster and no
work in tasks.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...log.services.log_metrics import Registry
from ...runtime.declarations.meters import DurationHistogram, Metric, Sample, samples
from ...runtime.interfaces.errors import DistributedLogError
from ..read.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQueryListener

METRICS = (
    Metric(
        "dlog_spark_batches_total",
        "counter",
        "batches",
        "Completed micro-batches since the start.",
    ),
    Metric(
        "dlog_spark_records_total",
        "counter",
        "records",
        "Log records read by completed micro-batches.",
    ),
    Metric(
        "dlog_spark_batch_seconds",
        "histogram",
        "batch_seconds",
        "Time from the trigger of a micro-batch to its end.",
        "below the trigger interval",
        "add executors, or reduce the batch size with `maxRecordsPerTrigger`",
    ),
    Metric(
        "dlog_spark_behind_records",
        "gauge",
        "behind_records",
        "Records between the end of the last batch and the ends of the logs at that time.",
        "near 0, or falling",
        "the query is slower than the writers; `distributedlog.spark.lag` shows the lag per log",
    ),
)
"""In the order of docs/reference/metrics.md."""


@dataclass(slots=True)
class QueryMeters:
    """The counters of one query, since this process observes it."""

    batches: int = 0
    records: int = 0
    batch_seconds: DurationHistogram = field(default_factory=DurationHistogram)
    behind_records: int | None = None
    """None if the end of a log is unknown."""

    def count_batch(self, progress: Mapping[str, Any]) -> bool:
        """Count the progress of one micro-batch (JSON of Spark). Return False if the query reads no logs."""
        own_sources = [
            source
            for source in progress.get("sources") or ()
            if _offset(source.get("endOffset")) is not None
        ]
        if not own_sources:
            return False
        records = sum(max(0, int(source.get("numInputRows") or 0)) for source in own_sources)
        duration_ms = (progress.get("durationMs") or {}).get("triggerExecution", 0)
        self.batches += 1
        self.records += records
        self.batch_seconds.observe(max(0.0, float(duration_ms) / 1000))
        behind_by_source = [_behind_records(source) for source in own_sources]
        self.behind_records = (
            None
            if any(source is None for source in behind_by_source)
            else sum(filter(None, behind_by_source))
        )
        return True

    def samples(self) -> list[Sample]:
        """Return the samples with their metrics."""
        values: dict[str, Any] = {
            "batches": self.batches,
            "records": self.records,
            "batch_seconds": self.batch_seconds.snapshot(),
            "behind_records": self.behind_records,
        }
        return samples(METRICS, values)


def _offset(text: Any) -> Offset | None:
    """Return the offset, or None for a source of another format."""
    try:
        return Offset.from_json(json.loads(text) if isinstance(text, str) else text)
    except (DistributedLogError, ValueError):
        return None


def _behind_records(source: Mapping[str, Any]) -> int | None:
    """Return the records between the end of a batch and the ends of its logs, or None if unknown."""
    read_offset, latest_offset = (
        _offset(source.get("endOffset")),
        _offset(source.get("latestOffset")),
    )
    if read_offset is None or latest_offset is None:
        return None
    total = 0
    for name, identity in latest_offset.ids.items():
        if read_offset.ids.get(name) not in (None, identity):
            return None  # the log was created again: the rest of the old log is unknown
        end_sequence_id = latest_offset.sequence_ids.get(name)
        read_sequence_id = read_offset.sequence_ids.get(name) if name in read_offset.ids else 0
        if end_sequence_id is None or read_sequence_id is None:
            return None
        total += max(0, end_sequence_id - read_sequence_id)
    return total


class QueryCollector:
    """The metrics of all queries of a process, by name or ID, for a registry. Spark's events update it."""

    def __init__(self) -> None:
        self._meters: dict[str, tuple[str, QueryMeters]] = {}
        """Run ID to the label and the counters."""

    def record_progress(self, progress_json: Mapping[str, Any]) -> None:
        """Count a finished micro-batch."""
        run, label = (
            str(progress_json.get("runId")),
            str(progress_json.get("name") or progress_json.get("id")),
        )
        _, meters = self._meters.get(run, (label, QueryMeters()))
        if meters.count_batch(progress_json):
            # A restarted query has a new run ID. Its counters start at 0, as after a process start.
            for other in [
                key for key, (of, _) in self._meters.items() if of == label and key != run
            ]:
                del self._meters[other]
            self._meters[run] = (label, meters)

    def remove_query(self, run: str) -> None:
        """Remove the samples of a query that has ended."""
        self._meters.pop(run, None)

    def describe(self) -> Iterable[Any]:
        """Return nothing, so that a registry does not collect at registration."""
        return ()

    def collect(self) -> Iterable[Any]:
        """Return metric families of `prometheus_client`, which is imported only here."""
        from ...runtime.declarations.metrics_text import metric_families

        found = list(self._meters.values())
        return metric_families([({"query": label}, meters.samples()) for label, meters in found])


def query_listener(registry: Registry) -> "StreamingQueryListener":
    """Return a listener for ``spark.streams.addListener`` that counts queries for a registry.

    The metrics have the label ``query``, its name or ID. They cover queries that read logs, in this process
    only. ``listener.queries`` is the collector, for ``registry.unregister``.
    """
    from pyspark.sql.streaming import StreamingQueryListener

    class QueryListener(StreamingQueryListener):
        queries = QueryCollector()

        def onQueryStarted(self, event: Any) -> None:
            """The sources of the query are known only from its first progress."""

        def onQueryProgress(self, event: Any) -> None:
            self.queries.record_progress(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:
            """There is nothing to count."""

        def onQueryTerminated(self, event: Any) -> None:
            self.queries.remove_query(str(event.runId))

    listener = QueryListener()
    registry.register(listener.queries)
    return listener
