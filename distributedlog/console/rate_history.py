"""Numbers a second from counters that only grow, and quantiles from histograms (pure).

Durations are the caller's monotonic clock, never wall time. A counter that fell is a node that started again:
no rate then, not a negative one (H263, H264).
"""

from collections import deque
from collections.abc import Mapping, Sequence

from ..runtime.declarations.meters import SECONDS

WINDOW_S = 30.0
"""Quantiles are of what came in this time."""
FORGET_S = 120.0
"""What nobody looked at for so long is forgotten."""
APART_S = 0.1
"""Two looks that are nearer than this are one."""


class RateHistory:
    """What was seen of each source, by any key."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, dict[str, float]]] = {}
        self._rates: dict[str, dict[str, float | None]] = {}
        self._buckets: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def look(
        self, key: str, now: float, counters: Mapping[str, float]
    ) -> Mapping[str, float | None]:
        """A second since the look before; None: not known yet, or the source began anew."""
        before = self._seen.get(key)
        if before is not None and now - before[0] < APART_S:
            return self._rates[key]
        rates: dict[str, float | None] = dict.fromkeys(counters)
        if before is not None and not any(
            value < before[1].get(name, value) for name, value in counters.items()
        ):
            for name, value in counters.items():
                if name in before[1]:
                    rates[name] = (value - before[1][name]) / (now - before[0])
        self._forget(now)
        self._seen[key], self._rates[key] = (now, dict(counters)), rates
        return rates

    def quantile(self, key: str, now: float, counts: Sequence[int], part: float) -> float | None:
        """Seconds that ``part`` (0 to 1) of what came in `WINDOW_S` took at most; None: nothing came.

        The bound of a bucket, so up to twice too long.
        """
        seen = self._buckets.setdefault(key, deque())
        if seen and any(new < old for new, old in zip(counts, seen[-1][1], strict=True)):
            seen.clear()
        while len(seen) > 1 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        seen.append((now, tuple(counts)))
        came = [new - old for new, old in zip(counts, seen[0][1], strict=True)]
        wanted = part * sum(came)
        if wanted <= 0:
            return None
        reached = 0
        bounds: tuple[float, ...] = (*SECONDS, SECONDS[-1] * 2)
        for bound, count in zip(bounds, came, strict=True):
            reached += count
            if reached >= wanted:
                return bound
        raise AssertionError("all of them are below the last bound")

    def _forget(self, now: float) -> None:
        for key in [key for key, (at, _) in self._seen.items() if now - at > FORGET_S]:
            del self._seen[key], self._rates[key]
        for key in [key for key, seen in self._buckets.items() if now - seen[-1][0] > FORGET_S]:
            del self._buckets[key]
