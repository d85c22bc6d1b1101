"""Samples as text that Prometheus reads; the library `prometheus_client` prints it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .meters import SECONDS, Sample

KIND = CONTENT_TYPE_LATEST
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FAMILIES: Mapping[str, type[Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
"""By a metric's kind."""


def families(groups: Sequence[tuple[Mapping[str, str], Sequence[Sample]]]) -> list[Family]:
    """A family a name; each group's labels are on its samples."""
    made: dict[str, Family] = {}
    for labels, found in groups:
        for sample in found:
            metric = sample.metric
            name, value = metric.label
            here = {**labels, name: value} if name else labels
            family = made.get(metric.name)
            if family is None:
                family = FAMILIES[metric.kind](metric.name, metric.help, labels=list(here))
                made[metric.name] = family
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(list(here.values()), _cumulative(sample.counts), sample.value)
            else:
                family.add_metric(list(here.values()), sample.value)
    return list(made.values())


def _cumulative(counts: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip((*map(str, SECONDS), "+Inf"), accumulate(counts), strict=True))


def text_of(found: Sequence[Sample], node: Mapping[str, str]) -> bytes:
    """All of a node, as text: who it is, its samples, and what the system says of its process."""
    info = GaugeMetricFamily("dlog_node_info", "Who this is.", labels=list(node))
    info.add_metric(list(node.values()), 1)

    class Registry:
        def collect(self) -> Iterable[Any]:
            yield info
            yield from families([({}, found)])
            yield from PROCESS_COLLECTOR.collect()

    return generate_latest(Registry())
