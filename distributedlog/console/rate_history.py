"""Compute rates per second from increasing counters, and quantiles from histograms (pure).

Times are of the caller's monotonic clock, never wall time. If a counter decreases, the node has restarted.
Then there is no rate instead of a negative one (H263, H264).
"""

from collections import deque
from collections.abc import Mapping, Sequence

from ..runtime.declarations.meters import DURATION_BUCKETS_S

WINDOW_S = 30.0
"""Quantiles cover this many seconds."""
FORGET_S = 120.0
"""Sources that are not polled for this many seconds are forgotten."""
BETWEEN_SAMPLES_S = 0.1
"""Two samples that are closer than this, in seconds, count as one."""


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

        A rate is None if there is no previous sample or the source has restarted.
        """
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
        self._forget(now)
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
