"""Adapt the rate of background work to the latency of writers (pure).

It is used by the compaction of a bookie, which records the latency of commits, and by the removal of large
files, which records the latency of syncs on their disk.

A round takes 10 s. Its first second has no background work, and its commits are the baseline (H100: no
baseline is measured during work). Much slower commits in the rest of the round halve the rate, and equally
fast ones raise it. A lower limit keeps a noisy neighbor from stopping the work.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

MIB = 1024 * 1024
BASELINE_S = 1.0
WORK_S = 9.0
RATE_MIN = 8 * MIB
"""Bytes per second, reads and writes together."""
RATE_MAX = 256 * MIB
RATE_STEP = 4 * MIB
BASELINE_COMMITS_MIN = 10
"""Fewer commits per second are not measured, because there is almost no writer."""
BASELINE_ROUNDS = 6
SLOWER_FACTOR, FASTER_FACTOR = 1.7, 1.3
LATENCY_SLACK_S = 0.001
LOAD_CHANGE_FACTOR = 2.0


class Pacer:
    """The rate of background work, computed from the latency of commits."""

    def __init__(self) -> None:
        self.rate: float = RATE_MIN
        """Bytes per second."""
        self._baselines: deque[float] = deque(maxlen=BASELINE_ROUNDS)
        """The 99th percentiles of the last seconds without background work."""
        self._commits_per_s = 0.0
        """The rate of commits in the last second without background work."""

    @property
    def baseline_s(self) -> float | None:
        """The p99 latency of commits without background work in seconds, or None without writers."""
        return median(self._baselines) if self._baselines else None

    def record_baseline_round(self, latencies: Sequence[float]) -> None:
        """Record a second without background work.

        ``latencies`` are those of its commits, in seconds.
        """
        if len(latencies) < BASELINE_COMMITS_MIN:
            self._baselines.clear()
            return
        commits_per_s = len(latencies) / BASELINE_S
        if (
            not self._commits_per_s / LOAD_CHANGE_FACTOR
            <= commits_per_s
            <= self._commits_per_s * LOAD_CHANGE_FACTOR
        ):
            self._baselines.clear()  # the baseline is that of another load
        self._commits_per_s = commits_per_s
        self._baselines.append(p99(latencies))

    def record_work_round(self, latencies: Sequence[float]) -> None:
        """Adapt the rate after a round of background work.

        ``latencies`` are those of its commits, in seconds.
        """
        baseline = self.baseline_s
        if baseline is None and len(latencies) < BASELINE_COMMITS_MIN:
            self.rate = min(RATE_MAX, self.rate * 2)
        elif baseline is None:
            return  # these writers started during the work, and have no baseline
        elif len(latencies) < BASELINE_COMMITS_MIN:
            return
        elif p99(latencies) > SLOWER_FACTOR * baseline + LATENCY_SLACK_S:
            self.rate = max(RATE_MIN, self.rate / 2)
        elif p99(latencies) < FASTER_FACTOR * baseline + LATENCY_SLACK_S:
            self.rate = min(RATE_MAX, self.rate + RATE_STEP)


class BackgroundRate:
    """The rounds of one background task, which calls `pause_s` before each step.

    Other threads may only call `record_latency`.
    """

    def __init__(self) -> None:
        self.pacer = Pacer()
        self._latencies: list[float] = []
        self._quiet_until: float | None = None
        self._round_ends: float | None = None

    def record_latency(self, latency_s: float) -> None:
        """Record the latency of a sync or commit in seconds."""
        self._latencies.append(latency_s)

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next call. If it is 0, do the next step at `Pacer.rate`."""
        if self._quiet_until is None:
            if self._round_ends is not None and now < self._round_ends:
                return 0.0
            latencies, self._latencies = self._latencies, []
            if self._round_ends is not None:
                self.pacer.record_work_round(latencies)
            self._quiet_until = now + BASELINE_S
        if now < self._quiet_until:
            return self._quiet_until - now
        latencies, self._latencies = self._latencies, []
        self.pacer.record_baseline_round(latencies)
        self._quiet_until, self._round_ends = None, now + WORK_S
        return 0.0

    def end_work(self) -> None:
        """Record the end of the work. Later work starts with a second for the baseline."""
        self._latencies, self._quiet_until, self._round_ends = [], None, None


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile of at least one value."""
    return sorted(values)[(len(values) * 99 - 1) // 100]
