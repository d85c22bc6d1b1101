"""The metrics of the logs that a process writes and reads, and their export to a metrics registry."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary, WeakMethod

from ...runtime.declarations.meters import DurationHistogram, Metric, Sample, samples
from ..limits.memory_budget import MemoryBudget

if TYPE_CHECKING:  # imported at the first collection
    from prometheus_client import CollectorRegistry
Registry: TypeAlias = "CollectorRegistry"
"""The registry to which a collector is added. Any object with its methods ``register`` and ``unregister``
is suitable."""

METRICS = (
    Metric(
        "dlog_client_records_written_total", "counter", "records_written", "Acknowledged records."
    ),
    Metric(
        "dlog_client_bytes_written_total",
        "counter",
        "bytes_written",
        "Bytes of acknowledged records.",
    ),
    Metric(
        "dlog_client_entries_written_total",
        "counter",
        "entries_written",
        "Acknowledged entries.",
        "far fewer than records at high rates",
        "one per record: the program waits for each record alone",
    ),
    Metric(
        "dlog_client_write_seconds",
        "histogram",
        "write_seconds",
        "Time from send to acknowledgement of an entry, with failover. Sampled: one entry per "
        "round trip and log, 1 in 16 with 32 busy logs.",
        "a few times `dlog_bookie_journal_sync_seconds`",
        "slow bookies or a slow network; if all writes are late together, this process is "
        "overloaded",
    ),
    Metric(
        "dlog_client_records_read_total", "counter", "records_read", "Records delivered to readers."
    ),
    Metric(
        "dlog_client_bytes_read_total",
        "counter",
        "bytes_read",
        "Payload bytes of delivered records.",
    ),
    Metric(
        "dlog_client_entries_read_total", "counter", "entries_read", "Entries of delivered records."
    ),
    Metric("dlog_client_writers_total", "counter", "writers", "Writers opened."),
    Metric("dlog_client_readers_total", "counter", "readers", "Readers opened."),
    Metric(
        "dlog_client_writers_failed_total",
        "counter",
        "writers_failed",
        "Writers that ended with an error.",
        "0",
        "their first error states the cause; another writer took over if it is `WriterFenced`",
    ),
    Metric("dlog_client_rolls_total", "counter", "rolls", "Segments closed by size or age."),
    Metric(
        "dlog_client_ledgers_replaced_total",
        "counter",
        "ledgers_replaced",
        "Segments closed because their ledger failed.",
        "0",
        "bookies do not answer: `dlog status`",
    ),
    Metric(
        "dlog_client_held_bytes",
        "gauge",
        "held_bytes",
        "Bytes accepted from callers and not yet durable.",
        "well below `process_bytes_max`",
        "callers write faster than bookies store; they block or are rejected",
    ),
    Metric(
        "dlog_client_reader_lag_records",
        "gauge",
        "reader_lag_records",
        "Largest number of unread records of an open reader. Approximate in an open segment.",
        "near 0, or falling",
        "the program reads more slowly than writers write",
        is_maximum=True,
    ),
    Metric(
        "dlog_client_reader_lag_bytes",
        "gauge",
        "reader_lag_bytes",
        "Largest size of the unread records of an open reader. Those not fetched have the mean size.",
        is_maximum=True,
    ),
    Metric(
        "dlog_client_reader_lag_seconds",
        "gauge",
        "reader_lag_seconds",
        "Largest age of the oldest unread record of an open reader. Before its first one: since its opening.",
        "below the delay that the program tolerates",
        "the program, its network or the bookies are too slow",
        is_maximum=True,
    ),
)
"""In the order of docs/reference/metrics.md."""


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """Records that a reader has not returned, as far as their number is known to it."""

    records: int
    bytes: int
    since_ms: int
    """The log time of the first one, in milliseconds since 1970. 0 if it is not known."""


MeasureLag = Callable[[], Sequence[ReaderLag]]
"""Returns the lag of a reader in each of its logs. Any thread may call it."""


@dataclass(slots=True)
class LogMeters:
    """Counters of one namespace object since it was opened. Only its event loop changes them."""

    records_written: int = 0
    bytes_written: int = 0
    entries_written: int = 0
    records_read: int = 0
    bytes_read: int = 0
    entries_read: int = 0
    writers: int = 0
    readers: int = 0
    writers_failed: int = 0
    rolls: int = 0
    ledgers_replaced: int = 0
    write_seconds: DurationHistogram = field(default_factory=DurationHistogram)
    open_readers: set[WeakMethod[MeasureLag]] = field(default_factory=set)

    def add_reader(self, measure_lag: MeasureLag) -> None:
        """Include a reader in the lag until it is freed. It measures nothing after it has ended."""
        self.open_readers.add(WeakMethod(measure_lag, self.open_readers.discard))

    def reader_lags(self) -> list[ReaderLag]:
        """Return the lags of all readers. Any thread may call it."""
        lags: list[ReaderLag] = []
        for reader in self.open_readers.copy():
            measure_lag = reader()
            if measure_lag is not None:
                lags += measure_lag()
        return lags


class NamespaceMetrics:
    """The metrics of one namespace object. They may be read from any thread, also after it is closed."""

    def __init__(
        self,
        path: str,
        meters: LogMeters,
        memory_budget: MemoryBudget,
        clock_ms: Callable[[], int],
    ) -> None:
        self.path = path
        self._meters = meters
        self._memory_budget = memory_budget
        self._clock_ms = clock_ms

    def snapshot(self) -> dict[str, float]:
        """Return names and values, ``_count`` and ``_sum`` for a histogram. Reading resets nothing."""
        values: dict[str, float] = {}
        for sample in self.samples():
            name = sample.metric.name
            if sample.metric.kind == "histogram":
                values |= {f"{name}_count": sum(sample.counts), f"{name}_sum": sample.value}
            else:
                values[name] = sample.value
        return values

    def samples(self) -> list[Sample]:
        """Return the values with their metric descriptions."""
        meters = self._meters
        values_by_name: dict[str, Any] = {name: getattr(meters, name) for name in meters.__slots__}
        lags = meters.reader_lags()
        ages_ms = [self._clock_ms() - lag.since_ms for lag in lags if lag.since_ms]
        values_by_name |= {
            "write_seconds": meters.write_seconds.snapshot(),
            "held_bytes": self._memory_budget.granted_bytes,
            "reader_lag_records": max((lag.records for lag in lags), default=0),
            "reader_lag_bytes": max((lag.bytes for lag in lags), default=0),
            "reader_lag_seconds": max([0, *ages_ms]) / 1000,
        }
        return samples(METRICS, values_by_name)


class LogMetricsCollector:
    """The collector of all namespaces of one registry.

    The label ``namespace`` distinguishes them. Values of two objects with the same path are added.
    """

    def __init__(self) -> None:
        self.namespaces: list[NamespaceMetrics] = []

    def describe(self) -> Sequence[Any]:
        """Return nothing, so that a registry does not collect values at registration."""
        return ()

    def collect(self) -> Iterable[Any]:
        """Return metric families of `prometheus_client`, which is imported at the first call."""
        from ...runtime.declarations.metrics_text import metric_families

        values: dict[str, dict[str, Sample]] = {}
        for namespace in list(self.namespaces):
            path_samples = values.setdefault(namespace.path, {})
            for sample in namespace.samples():
                earlier = path_samples.get(sample.metric.name)
                path_samples[sample.metric.name] = sample if earlier is None else sample + earlier
        return metric_families(
            [({"namespace": path}, list(found.values())) for path, found in values.items()]
        )


_COLLECTORS: WeakKeyDictionary[Any, LogMetricsCollector] = WeakKeyDictionary()


def register(registry: Registry, metrics: NamespaceMetrics) -> None:
    """Add the metrics of a namespace to a registry, next to those of other namespaces."""
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = LogMetricsCollector()
        registry.register(collector)
        _COLLECTORS[registry] = collector
    collector.namespaces.append(metrics)


def unregister(registry: Registry, metrics: NamespaceMetrics) -> None:
    """Remove the metrics of a closed namespace from a registry."""
    collector = _COLLECTORS.get(registry)
    if collector is None or metrics not in collector.namespaces:
        return
    collector.namespaces.remove(metrics)
    if not collector.namespaces:
        del _COLLECTORS[registry]
        registry.unregister(collector)
