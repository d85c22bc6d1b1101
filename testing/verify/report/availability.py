"""The availability of a run for its writers: acknowledged records per second, latency, and gaps.

A gap is a time without any acknowledged record, from one acknowledgement to the next. The gap of a fault is
the longest one that overlaps the time from its start to `AFTER_S` after its end.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..history.observations import PipelineObservations

AFTER_S = 5.0
STEP_S = 1.0


@dataclass(slots=True)
class TimeLine:
    """Values per second of the load, from its start on. Index n is the time from n to n + 1 s."""

    begun_at: float
    ended_at: float
    acked: list[int] = field(default_factory=list)
    """Records acknowledged in each second."""
    p50_ms: list[float | None] = field(default_factory=list)
    """From submission to acknowledgement; None if nothing was acknowledged."""
    p99_ms: list[float | None] = field(default_factory=list)
    max_ms: list[float | None] = field(default_factory=list)
    load_percentiles_ms: dict[str, float] = field(default_factory=dict)
    """Percentiles over the whole load."""
    ack_times: list[float] = field(default_factory=list)
    """The times of all acknowledgements, in order."""

    def longest_gap(
        self, begin: float | None = None, end: float | None = None
    ) -> tuple[float, float]:
        """Return start and length in seconds of the longest gap in a window, by default the whole load.

        A gap counts if it overlaps the window.
        """
        window_begin = max(self.begun_at, begin if begin is not None else self.begun_at)
        window_end = min(self.ended_at, end if end is not None else self.ended_at)
        first = max(0, bisect_left(self.ack_times, window_begin) - 1)
        last = min(len(self.ack_times), bisect_left(self.ack_times, window_end) + 1)
        inside = self.ack_times[first:last]
        edges = [self.begun_at, *inside] if first == 0 else inside
        if last == len(self.ack_times):
            edges = [*edges, self.ended_at]
        longest = (window_begin, 0.0)
        for earlier, later in pairwise(edges):
            if later - earlier > longest[1] and later >= window_begin and earlier <= window_end:
                longest = (earlier, later - earlier)
        return longest


def time_line(observations: PipelineObservations, begun_at: float, ended_at: float) -> TimeLine:
    """Return the acknowledgements of all logs between two times."""
    result = TimeLine(begun_at, ended_at)
    steps = max(1, int((ended_at - begun_at) / STEP_S + 0.999))
    by_step: list[list[tuple[float, int]]] = [[] for _ in range(steps)]
    for log in observations.logs.values():
        for acked in log.acked:
            if begun_at <= acked.ended_at < ended_at:
                step = by_step[min(steps - 1, int((acked.ended_at - begun_at) / STEP_S))]
                step.append(((acked.ended_at - acked.begun_at) * 1e3, acked.count))
                result.ack_times.append(acked.ended_at)
    result.ack_times.sort()
    for step in by_step:
        step.sort()
        result.acked.append(sum(count for _, count in step))
        result.p50_ms.append(percentile(step, 0.5))
        result.p99_ms.append(percentile(step, 0.99))
        result.max_ms.append(percentile(step, 1.0))
    all_latencies = sorted(latency for step in by_step for latency in step)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        latency_ms = percentile(all_latencies, share)
        if latency_ms is not None:
            result.load_percentiles_ms[name] = latency_ms
    return result


def percentile(sorted_counts: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return a percentile of sorted (value, number of occurrences); None if there are none."""
    total = sum(count for _, count in sorted_counts)
    remaining = share * total
    for value, count in sorted_counts:
        remaining -= count
        if remaining <= 0:
            return round(value, 2)
    return round(sorted_counts[-1][0], 2) if sorted_counts else None
