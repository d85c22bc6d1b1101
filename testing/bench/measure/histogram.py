"""Measurements of a run: latencies in a histogram, and the records of each second.

Latency buckets are 1.6 % wide. Their number is at most a few thousand, independent of the number of values.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

EVERY_S = 1.0
"""Interval of the rates of `per_second`."""
_BITS = 6
_STEPS = 1 << _BITS


class Histogram:
    """Counts durations in units of 0.1 microseconds. Percentiles are at most 1.6 % too high."""

    def __init__(self) -> None:
        self.count = 0
        self.max_s = 0.0
        self._counts: dict[int, int] = {}

    def add(self, duration_s: float, count: int = 1) -> None:
        """Count ``count`` durations of ``duration_s``. A negative duration counts as zero."""
        units = max(0, int(duration_s * 1e7))
        shift = max(0, units.bit_length() - _BITS - 1)
        key = (shift << _BITS) + (units >> shift)
        self._counts[key] = self._counts.get(key, 0) + count
        self.count += count
        if duration_s > self.max_s:
            self.max_s = duration_s

    def percentile_s(self, percent: float) -> float:
        """Return the duration that ``percent`` of the values do not exceed, or 0.0 if there are none."""
        rank = self.count * percent / 100
        counted = 0
        for key in sorted(self._counts):
            counted += self._counts[key]
            if counted >= rank:
                return min(_upper(key) / 1e7, self.max_s)
        return self.max_s

    def summary_ms(self) -> dict[str, float]:
        """Return p50, p99, p999 and the maximum in milliseconds, by the keys of ``latency_ms``."""
        percentiles_s = {name: self.percentile_s(p) for name, p in _SUMMARY}
        return {
            **{label: round(value_s * 1e3, 4) for label, value_s in percentiles_s.items()},
            "max": round(self.max_s * 1e3, 4),
        }

    def curve_ms(self) -> list[list[float]]:
        """Return chart points (percent, milliseconds), denser at high percentiles; [] without values."""
        if not self.count:
            return []
        return [[percent, round(self.percentile_s(percent) * 1e3, 4)] for percent in _CURVE]

    def as_pairs(self) -> list[list[int]]:
        """Return the buckets for transfer between processes; `from_pairs` reads them."""
        return [[key, self._counts[key]] for key in sorted(self._counts)]

    @classmethod
    def from_pairs(cls, pairs: Sequence[Sequence[int]], max_s: float) -> "Histogram":
        """Return the histogram from the result of `as_pairs`."""
        histogram = cls()
        histogram._counts = {key: count for key, count in pairs}
        histogram.count = sum(histogram._counts.values())
        histogram.max_s = max_s
        return histogram


_CURVE = (
    *(
        round(100 - left * 10.0**-power, 6)
        for power in range(-1, 4)
        for left in (10, 8, 6, 5, 4, 3, 2, 1.5)
    ),
    99.999,
    100.0,
)
_SUMMARY = (("p50", 50.0), ("p99", 99.0), ("p999", 99.9))


def _upper(key: int) -> int:
    """Return the greatest value, in units, of bucket ``key``."""
    if key < 2 * _STEPS:
        return key
    shift = (key >> _BITS) - 1
    return (((key & (_STEPS - 1)) + _STEPS + 1) << shift) - 1


@asynccontextmanager
async def per_second(namespace: Any, counter: str) -> AsyncIterator[list[float]]:
    """Yield a list that receives the rate of each second of the `with` block; the last interval is shorter.

    Args:
        counter: A metric of `NamespaceMetrics`.
    """
    rates: list[float] = []
    last_at = begun_at = trio.current_time()
    count = namespace.metrics.snapshot()[counter]

    def sample() -> None:
        nonlocal last_at, count
        now, new_count = trio.current_time(), namespace.metrics.snapshot()[counter]
        # A late sample has the mean rate of all seconds that it covers.
        seconds = max(1, round((now - last_at) / EVERY_S))
        rates.extend([(new_count - count) / max(now - last_at, 1e-9)] * seconds)
        last_at, count = now, new_count

    async def run() -> None:
        while True:
            await trio.sleep_until(begun_at + EVERY_S * (len(rates) + 1))
            sample()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield rates
        finally:
            nursery.cancel_scope.cancel()
            if (
                trio.current_time() - last_at > EVERY_S / 10
            ):  # shorter intervals have no useful rate
                sample()
