"""The rate of background work, adapted to the latency of writers (pure).

Used by the compaction of a bookie, which notes how long commits take, and by the removal of large files,
which notes how long syncs of their disk take.

A round has 10 s. Its first second has no background work, and the commits in it are the baseline (H100: no
baseline is learned during work). Much slower commits in the rest of the round halve the rate, and equally
fast ones raise it. A lower limit keeps a noisy neighbor from stopping the work.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

MIB = 1024 * 1024
QUIET_S = 1.0
WORK_S = 9.0
RATE_MIN = 8 * MIB
"""Bytes read and written a second."""
RATE_MAX = 256 * MIB
RATE_STEP = 4 * MIB
COMMITS_MIN = 10
"""Of fewer in a second nothing is learnt: hardly anybody writes."""
ROUNDS = 6
TOO_LONG, SHORT_ENOUGH = 1.7, 1.3
SLACK_S = 0.001
LOAD_CHANGED = 2.0


class Pacer:
    """The rate of one bookie's work in the background, from how long commits take."""

    def __init__(self) -> None:
        self.rate: float = RATE_MIN
        """Bytes a second."""
        self._quiet: deque[float] = deque(maxlen=ROUNDS)
        """The 99th percentiles of the last seconds without work."""
        self._load = 0.0
        """Commits a second, then."""

    @property
    def baseline_s(self) -> float | None:
        """The p99 latency of commits without background work, or None without writers."""
        return median(self._quiet) if self._quiet else None

    def on_quiet(self, commits: Sequence[float]) -> None:
        """A second without work has ended. ``commits``: their latencies, in seconds."""
        if len(commits) < COMMITS_MIN:
            self._quiet.clear()
            return
        load = len(commits) / QUIET_S
        if not self._load / LOAD_CHANGED <= load <= self._load * LOAD_CHANGED:
            self._quiet.clear()  # the baseline is that of another load
        self._load = load
        self._quiet.append(p99(commits))

    def on_work(self, commits: Sequence[float]) -> None:
        """A round of work has ended. ``commits``: their latencies, in seconds."""
        baseline = self.baseline_s
        if baseline is None and len(commits) < COMMITS_MIN:
            self.rate = min(RATE_MAX, self.rate * 2)
        elif baseline is None:
            return  # these writers began during the work, and have no baseline
        elif len(commits) < COMMITS_MIN:
            return
        elif p99(commits) > TOO_LONG * baseline + SLACK_S:
            self.rate = max(RATE_MIN, self.rate / 2)
        elif p99(commits) < SHORT_ENOUGH * baseline + SLACK_S:
            self.rate = min(RATE_MAX, self.rate + RATE_STEP)


class BackgroundRate:
    """The rounds of one piece of work, for a caller that asks before each step of it.

    Of another thread than the one that asks only `note` may be called.
    """

    def __init__(self) -> None:
        self.pacer = Pacer()
        self._times: list[float] = []
        self._quiet_until: float | None = None
        self._round_ends: float | None = None

    def note(self, took_s: float) -> None:
        """A sync or commit took so long."""
        self._times.append(took_s)

    def quiet_s(self, now: float) -> float:
        """How long to wait before the next call. If it is 0, do the next step at `Pacer.rate`."""
        if self._quiet_until is None:
            if self._round_ends is not None and now < self._round_ends:
                return 0.0
            times, self._times = self._times, []
            if self._round_ends is not None:
                self.pacer.on_work(times)
            self._quiet_until = now + QUIET_S
        if now < self._quiet_until:
            return self._quiet_until - now
        times, self._times = self._times, []
        self.pacer.on_quiet(times)
        self._quiet_until, self._round_ends = None, now + WORK_S
        return 0.0

    def rest(self) -> None:
        """The work is done. Later work begins with a quiet second."""
        self._times, self._quiet_until, self._round_ends = [], None, None


def p99(values: Sequence[float]) -> float:
    """The 99th percentile of some values, at least one."""
    return sorted(values)[(len(values) * 99 - 1) // 100]
