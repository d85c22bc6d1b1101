"""What streaming queries over logs do, counted for a registry of Prometheus in the driver's process.

    spark.streams.addListener(query_listener(prometheus_client.REGISTRY))

From Spark's own progress of each micro-batch: nothing is asked of the cluster, nothing is counted in tasks.
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
    """One query's, since this process knows it."""

    batches: int = 0
    records: int = 0
    batch_seconds: DurationHistogram = field(default_factory=DurationHistogram)
    behind_records: int | None = None
    """None: an end is not known."""

    def count_batch(self, progress: Mapping[str, Any]) -> bool:
        """Count one micro-batch's progress (Spark's, as JSON); False: it reads no log of ours."""
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
        """With what each of them means."""
        values: dict[str, Any] = {
            "batches": self.batches,
            "records": self.records,
            "batch_seconds": self.batch_seconds.snapshot(),
            "behind_records": self.behind_records,
        }
        return samples(METRICS, values)


def _offset(text: Any) -> Offset | None:
    """None: of another source."""
    try:
        return Offset.from_json(json.loads(text) if isinstance(text, str) else text)
    except (DistributedLogError, ValueError):
        return None


def _behind_records(source: Mapping[str, Any]) -> int | None:
    """Records between where a batch ended and where its logs did; None: not known."""
    read_offset, latest_offset = (
        _offset(source.get("endOffset")),
        _offset(source.get("latestOffset")),
    )
    if read_offset is None or latest_offset is None:
        return None
    total = 0
    for name, identity in latest_offset.ids.items():
        if read_offset.ids.get(name) not in (None, identity):
            return None  # it was made anew: how much of the old one is left nobody says
        end_sequence_id = latest_offset.sequence_ids.get(name)
        read_sequence_id = read_offset.sequence_ids.get(name) if name in read_offset.ids else 0
        if end_sequence_id is None or read_sequence_id is None:
            return None
        total += max(0, end_sequence_id - read_sequence_id)
    return total


class QueryCollector:
    """All queries of a process, by name (without one: by id), for a registry; goes by events of Spark."""

    def __init__(self) -> None:
        self._meters: dict[str, tuple[str, QueryMeters]] = {}
        """By the run's id: the label, and what it has counted."""

    def record_progress(self, progress_json: Mapping[str, Any]) -> None:
        """Of a query that has ended a micro-batch."""
        run, label = (
            str(progress_json.get("runId")),
            str(progress_json.get("name") or progress_json.get("id")),
        )
        _, meters = self._meters.get(run, (label, QueryMeters()))
        if meters.count_batch(progress_json):
            # One query starts again under another run: its counters begin at 0, as a process' do.
            for other in [
                key for key, (of, _) in self._meters.items() if of == label and key != run
            ]:
                del self._meters[other]
            self._meters[run] = (label, meters)

    def remove_query(self, run: str) -> None:
        """A query is over: it has no samples any more."""
        self._meters.pop(run, None)

    def describe(self) -> Iterable[Any]:
        """Nothing: a registry need not ask for numbers to know what this is."""
        return ()

    def collect(self) -> Iterable[Any]:
        """Metric families of `prometheus_client`, which is imported here first."""
        from ...runtime.declarations.metrics_text import metric_families

        found = list(self._meters.values())
        return metric_families([({"query": label}, meters.samples()) for label, meters in found])


def query_listener(registry: Registry) -> "StreamingQueryListener":
    """What ``spark.streams.addListener`` takes; ``registry`` collects what queries do from then on.

    Metrics with the label ``query``, its name or id; of queries that read logs, in this process alone.
    ``listener.queries`` is the collector, for ``registry.unregister``.
    """
    from pyspark.sql.streaming import StreamingQueryListener

    class QueryListener(StreamingQueryListener):
        queries = QueryCollector()

        def onQueryStarted(self, event: Any) -> None:
            """Its first progress says what it reads."""

        def onQueryProgress(self, event: Any) -> None:
            self.queries.record_progress(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:
            """Nothing new."""

        def onQueryTerminated(self, event: Any) -> None:
            self.queries.remove_query(str(event.runId))

    listener = QueryListener()
    registry.register(listener.queries)
    return listener
