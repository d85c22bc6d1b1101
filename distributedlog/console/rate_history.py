"""Compute rates per second from increasing counters, and keep those of the last hour for charts (pure).

Times are those of a `SampleClock`, never wall time. If a counter decreases, the node has restarted. Then
there is no rate instead of a negative one (H263, H264).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from ..runtime.declarations.meters import DURATION_BUCKETS_S

WINDOW_S = 30.0
"""Quantiles cover this many seconds."""
FORGET_S = 120.0
"""Sources that are not polled for this many seconds are forgotten."""
BETWEEN_SAMPLES_S = 0.1
"""Two samples that are closer than this, in seconds, count as one."""

SERIES = ("records_s", "entries_s", "in_bytes_s", "out_bytes_s", "sync_p99_s", "uncounted")
"""The figures in the charts. Each is the mean of its interval, except those in `MAXIMA`.

``uncounted`` is the number of registered bookies that the other figures do not contain.
"""
MAXIMA = frozenset({"sync_p99_s", "uncounted"})
RESOLUTIONS = ((1.0, 300), (10.0, 360))
"""Length of an interval in seconds, and the number of intervals: five minutes, and an hour."""
SAMPLE_S_MAX = 15.0
"""A sample that covers more seconds is a gap, because its mean would hide what happened."""
SUSPENSION_S_MIN = 1.0
"""If the wall clock advances this much more than the monotonic clock, in seconds, the latter was stopped."""


class SampleClock:
    """Monotonic time that includes the time in which the machine was suspended.

    The monotonic clock stops while the machine is suspended, and the counters of other machines do not.
    Without this time, rates would be too high, and older points would be shown too late, joined to new ones.
    If the wall clock is set forward by hand, this is also treated as a suspension. If it is set back, nothing
    changes.
    """

    def __init__(self) -> None:
        self._suspended_s = 0.0
        self._last: tuple[float, float] | None = None

    def time_s(self, now: float, wall_s: float) -> float:
        """Return the time in seconds. ``now`` is the time of the monotonic clock."""
        if self._last is not None:
            skipped_s = (wall_s - self._last[1]) - (now - self._last[0])
            if skipped_s >= SUSPENSION_S_MIN:
                self._suspended_s += skipped_s
        self._last = now, wall_s
        return now + self._suspended_s


class RateHistory:
    """The samples of each source, by any key."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[float, dict[str, float]]] = {}
        self._rates: dict[str, dict[str, float | None]] = {}
        self._buckets: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def rates(
        self, key: str, now: float, counters: Mapping[str, float]
    ) -> Mapping[str, float | None]:
        """Return the rates per second since the previous sample.

        A rate is None if there is no previous sample, or only one before `FORGET_S`, or if the source has
        restarted.
        """
        self._forget(now)
        previous = self._samples.get(key)
        if previous is not None and now - previous[0] < BETWEEN_SAMPLES_S:
            return self._rates[key]
        rates: dict[str, float | None] = dict.fromkeys(counters)
        if previous is not None and not any(
            value < previous[1].get(name, value) for name, value in counters.items()
        ):
            for name, value in counters.items():
                if name in previous[1]:
                    rates[name] = (value - previous[1][name]) / (now - previous[0])
        self._samples[key], self._rates[key] = (now, dict(counters)), rates
        return rates

    def quantile(
        self, key: str, now: float, counts: Sequence[int], fraction: float
    ) -> float | None:
        """Return an upper limit, in seconds, of a fraction (0 to 1) of the durations within `WINDOW_S`.

        It is the limit of a histogram bucket, so it can be twice too long. It is None if there were no
        durations.
        """
        samples = self._buckets.setdefault(key, deque())
        if samples and any(new < old for new, old in zip(counts, samples[-1][1], strict=True)):
            samples.clear()
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()
        samples.append((now, tuple(counts)))
        new_counts = [new - old for new, old in zip(counts, samples[0][1], strict=True)]
        count_wanted = fraction * sum(new_counts)
        if count_wanted <= 0:
            return None
        count_below = 0
        bounds: tuple[float, ...] = (*DURATION_BUCKETS_S, DURATION_BUCKETS_S[-1] * 2)
        for bound, count in zip(bounds, new_counts, strict=True):
            count_below += count
            if count_below >= count_wanted:
                return bound
        raise AssertionError("all durations are below the last limit")

    def _forget(self, now: float) -> None:
        for key in [
            key for key, (sampled_at, _) in self._samples.items() if now - sampled_at > FORGET_S
        ]:
            del self._samples[key], self._rates[key]
        for key in [
            key
            for key, bucket_samples in self._buckets.items()
            if now - bucket_samples[-1][0] > FORGET_S
        ]:
            del self._buckets[key]


@dataclass(slots=True)
class _Interval:
    """The part of each figure that falls in one interval."""

    index: int
    """The interval begins at ``index`` times its length."""
    weights: dict[str, float] = field(default_factory=dict)
    """For how many seconds of the interval the figure is known."""
    values: dict[str, float] = field(default_factory=dict)
    """The sum of value times seconds, or the maximum for those in `MAXIMA`."""

    def add(self, values: Mapping[str, float], seconds: float) -> None:
        for name, value in values.items():
            self.weights[name] = self.weights.get(name, 0.0) + seconds
            old_value = self.values.get(name, 0.0)
            self.values[name] = (
                max(old_value, value) if name in MAXIMA else old_value + value * seconds
            )

    def figure(self, name: str) -> float | None:
        """Return a figure with five digits, or None if it is unknown."""
        value = self.values.get(name)
        if value is None:
            return None
        return float(f"{value if name in MAXIMA else value / self.weights[name]:.5g}")


class _Ring:
    """The newest intervals of one length. An interval without a sample is missing, so that it is a gap."""

    def __init__(self, step_s: float, length: int) -> None:
        self.step_s = step_s
        self._length = length
        self._intervals: deque[_Interval] = deque()
        self._end = -float("inf")

    def add(self, start: float, end: float, values: Mapping[str, float]) -> None:
        """Add a sample to each interval that it overlaps."""
        step_s = self.step_s
        self._end = max(self._end, end)
        for index in range(int(start // step_s), ceil(end / step_s)):
            overlap_s = min(end, (index + 1) * step_s) - max(start, index * step_s)
            if overlap_s > 0:
                self._interval(index).add(values, overlap_s)
        first_index = int(self._end // step_s) - self._length
        while self._intervals[0].index < first_index:
            self._intervals.popleft()

    def rows(self, newest: int | None) -> list[list[float | None]]:
        """Return the number of each complete interval with its figures, oldest first."""
        rows: list[list[float | None]] = [
            [interval.index, *(interval.figure(name) for name in SERIES)]
            for interval in list(self._intervals)[-(newest or self._length) - 2 :]
            if (interval.index + 1) * self.step_s <= self._end
        ]
        return rows[-(newest or self._length) :]

    def _interval(self, index: int) -> _Interval:
        intervals = self._intervals
        for interval in reversed(intervals):  # the last or the one before it
            if interval.index == index:
                return interval
            if interval.index < index:
                break
        if intervals and intervals[-1].index > index:
            return _Interval(index)  # it is older than the newest one and was a gap: it remains one
        intervals.append(_Interval(index))
        return intervals[-1]


class PointHistory:
    """The figures of the last hour in a fixed number of intervals (`RESOLUTIONS`).

    A rate is the mean between two samples. It therefore belongs to all intervals between the two.
    """

    def __init__(self) -> None:
        self._rings = [_Ring(step_s, length) for step_s, length in RESOLUTIONS]

    def add(self, start: float, end: float, values: Mapping[str, float | None]) -> None:
        """Add figures that are valid from ``start`` to ``end``. Figures of `SERIES` may be missing."""
        known_values = {name: value for name, value in values.items() if value is not None}
        if known_values and 0 < end - start <= SAMPLE_S_MAX:
            for ring in self._rings:
                ring.add(start, end, known_values)

    def points(self, now: float, now_ms: int, newest: int | None = None) -> list[dict[str, Any]]:
        """Return the intervals of each resolution, for a chart.

        Args:
            now: The present time of the clock of `add`.
            now_ms: The same as wall time, in milliseconds since 1970.
            newest: The number of intervals. None for all.
        Returns:
            For each resolution: ``step_ms``, the wall time ``base_ms`` at which interval 0 began, and
            ``rows``, each with the number of the interval and the figures of `SERIES`.
        """
        base_ms = round(now_ms - now * 1000)
        return [
            {
                "step_ms": round(ring.step_s * 1000),
                "base_ms": base_ms,
                "rows": ring.rows(newest),
            }
            for ring in self._rings
        ]
