"""Samples as text that Prometheus reads; the library `prometheus_client` prints it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ..runtime.meters import SECONDS, Sample

KIND = CONTENT_TYPE_LATEST
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def families(found: Sequence[Sample], labels: Mapping[str, str] | None = None) -> list[Family]:
    """A family a name, with ``labels`` on each of its samples."""
    labels = labels or {}
    made: dict[str, Family] = {}
    for sample in found:
        metric = sample.metric
        name, value = metric.label
        here = {**labels, name: value} if name else labels
        family = made.get(metric.name)
        if metric.kind == "histogram":
            if not isinstance(family, HistogramMetricFamily):
                family = HistogramMetricFamily(metric.name, metric.help, labels=list(here))
            buckets, total = [], 0
            for bound, count in zip((*SECONDS, "+Inf"), sample.counts, strict=True):
                total += count
                buckets.append((str(bound), total))
            family.add_metric(list(here.values()), buckets, sample.value)
        elif metric.kind == "counter":
            if not isinstance(family, CounterMetricFamily):
                family = CounterMetricFamily(metric.name, metric.help, labels=list(here))
            family.add_metric(list(here.values()), sample.value)
        else:
            if not isinstance(family, GaugeMetricFamily):
                family = GaugeMetricFamily(metric.name, metric.help, labels=list(here))
            family.add_metric(list(here.values()), sample.value)
        made[metric.name] = family
    return list(made.values())


def text_of(found: Sequence[Sample], node: Mapping[str, str]) -> bytes:
    """All of a node, as text: who it is, its samples, and what the system says of its process."""
    info = GaugeMetricFamily("dlog_node_info", "Who this is.", labels=list(node))
    info.add_metric(list(node.values()), 1)

    class Registry:
        def collect(self) -> Iterable[Any]:
            yield info
            yield from families(found)
            yield from PROCESS_COLLECTOR.collect()

    return generate_latest(Registry())
