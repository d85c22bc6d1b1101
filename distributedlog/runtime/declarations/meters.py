"""What is counted, in one table a part: what a number is called, what it means, what to do about it (pure).

A part counts into plain integers of its own; a row says which of them, under which name, it is outside: in
``/metrics``, in docs/reference/metrics.md, and in registered collectors. Nothing is counted twice for it.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import add
from typing import Any, Literal

DURATION_BUCKETS_S = tuple(50e-6 * 2**n for n in range(20))
"""Upper bounds of durations, the same everywhere, so that nodes can be added up: 50 µs to 26 s."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of a part's table."""

    name: str
    """``dlog_<part>_<what>_<unit>``; a counter ends in ``_total``."""
    kind: Literal["counter", "gauge", "histogram"]
    key: str
    """Of the number among those that the part says of itself (`Op.INFO`)."""
    help: str
    normal: str = ""
    """What it shows when all is well."""
    remedy: str = ""
    """What to do otherwise."""
    label: tuple[str, str] = ("", "")
    """Name and value, where several rows share a name."""
    scale: float = 1.0
    """The number is multiplied with it: names have seconds and bytes."""


class DurationHistogram:
    """A histogram: how often, and how long in sum. One writer; who reads it copies it first."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """So many of this size, in the unit of the bounds."""
        self.counts[bisect_left(DURATION_BUCKETS_S, value)] += count
        self.total += value * count

    def snapshot(self) -> dict[str, Any]:
        """For `Op.INFO`."""
        return {"counts": list(self.counts), "total": self.total}


@dataclass(frozen=True, slots=True)
class Sample:
    """A row and what it shows now."""

    metric: Metric
    value: float = 0.0
    counts: tuple[int, ...] = ()
    """Of a histogram: a bucket each; ``value`` is the sum then."""

    def __add__(self, other: "Sample") -> "Sample":
        """Of the same metric, elsewhere."""
        counts = tuple(map(add, self.counts, other.counts))
        return Sample(self.metric, self.value + other.value, counts)


def samples(table: Sequence[Metric], values: Mapping[str, Any]) -> list[Sample]:
    """The rows whose number was said; what is no number is left out: a peer may be of another version."""
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
