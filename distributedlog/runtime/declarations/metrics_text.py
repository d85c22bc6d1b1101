"""Format samples as Prometheus text, with the library `prometheus_client`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .meters import DURATION_BUCKETS_S, Sample
from .versions import VERSION

TEXT_CONTENT_TYPE = CONTENT_TYPE_LATEST
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FAMILIES: Mapping[str, type[Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
"""Families by the kind of a metric."""


def metric_families(groups: Sequence[tuple[Mapping[str, str], Sequence[Sample]]]) -> list[Family]:
    """Return one family per name. The labels of each group are added to its samples."""
    families_by_name: dict[str, Family] = {}
    for labels, group_samples in groups:
        for sample in group_samples:
            metric = sample.metric
            label_name, label_value = metric.label
            sample_labels = {**labels, label_name: label_value} if label_name else labels
            family = families_by_name.get(metric.name)
            if family is None:
                family = FAMILIES[metric.kind](metric.name, metric.help, labels=list(sample_labels))
                families_by_name[metric.name] = family
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(
                    list(sample_labels.values()), _cumulative(sample.counts), sample.value
                )
            else:
                family.add_metric(list(sample_labels.values()), sample.value)
    return list(families_by_name.values())


def _cumulative(counts: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip((*map(str, DURATION_BUCKETS_S), "+Inf"), accumulate(counts), strict=True))


def metrics_text(node_samples: Sequence[Sample], node_labels: Mapping[str, str]) -> bytes:
    """Return the metrics of a node as text: its identity, its samples, and those of its process."""
    identity = {**node_labels, "version": VERSION}
    info = GaugeMetricFamily(
        "dlog_node_info", "The identity and the version of this node.", labels=list(identity)
    )
    info.add_metric(list(identity.values()), 1)

    class Registry:
        def collect(self) -> Iterable[Any]:
            yield info
            yield from metric_families([({}, node_samples)])
            yield from PROCESS_COLLECTOR.collect()

    return generate_latest(Registry())
