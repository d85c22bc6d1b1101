"""Metrics of a part in one table: name, meaning, normal value and remedy (pure).

A part counts in plain integers. A row of its table maps one of them to a metric name. This name is used in
``/metrics``, in docs/reference/metrics.md, and in registered collectors, so nothing is counted twice.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import add
from typing import Any, Literal

DURATION_BUCKETS_S = tuple(50e-6 * 2**n for n in range(20))
"""Upper bounds of the buckets for durations, from 50 µs to 26 s. They are the same in all parts, so that
nodes can be added up."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a part's table."""

    name: str
    """``dlog_<part>_<what>_<unit>``; a counter ends in ``_total``."""
    kind: Literal["counter", "gauge", "histogram"]
    key: str
    """The key of the number among the values that the part reports (`Op.INFO`)."""
    help: str
    normal: str = ""
    """The normal value."""
    remedy: str = ""
    """The action to take for other values."""
    label: tuple[str, str] = ("", "")
    """Name and value of a label, if several rows have the same name."""
    scale: float = 1.0
    """A factor, because metrics use seconds and bytes."""
    is_maximum: bool = False
    """Whether the value of several nodes is the largest one, not the sum."""


class DurationHistogram:
    """A histogram of durations with their sum. It has one writer; readers copy it first."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count ``count`` durations of this length, in seconds."""
        self.counts[bisect_left(DURATION_BUCKETS_S, value)] += count
        self.total += value * count

    def snapshot(self) -> dict[str, Any]:
        """Return a copy for `Op.INFO`."""
        return {"counts": list(self.counts), "total": self.total}


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of the table with its present value."""

    metric: Metric
    value: float = 0.0
    counts: tuple[int, ...] = ()
    """The counts per bucket of a histogram, whose ``value`` is the sum."""

    def __add__(self, other: "Sample") -> "Sample":
        """Add the sample of the same metric from another node."""
        if self.metric.is_maximum:
            return max(self, other, key=lambda sample: sample.value)
        counts = tuple(map(add, self.counts, other.counts))
        return Sample(self.metric, self.value + other.value, counts)


def samples(table: Sequence[Metric], values: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of the rows that have a value.

    Values of a wrong type are omitted, because a peer may have another version.
    """
    metric_samples = []
    for metric in table:
        value = values.get(metric.key)
        if metric.kind == "histogram":
            counts = value.get("counts") if isinstance(value, dict) else None
            total = value.get("total") if isinstance(value, dict) else None
            if (
                isinstance(counts, list)
                and len(counts) == len(DURATION_BUCKETS_S) + 1
                and all(
                    isinstance(bucket_count, int) and bucket_count >= 0 for bucket_count in counts
                )
                and isinstance(total, int | float)
                and isfinite(total)
            ):
                metric_samples.append(Sample(metric, float(total), tuple(counts)))
        elif isinstance(value, int | float) and isfinite(value):
            metric_samples.append(Sample(metric, float(value) * metric.scale))
    return metric_samples
