"""Compare the latency of honest writers with and without an adversary: at most three times as long (T5).

    python -m distributedlog.testing.sim.workloads.writer_progress [SEEDS]       one row per seed and
    adversary

A seed runs without random faults, first without adversaries, then with each of them. The compared value is
the time from the submission of a record to its acknowledgement, in virtual time. It includes the effects of
an adversary on connection slots, scheduling, quotas, syncs and bandwidth, but not on CPU time.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...verify.history.run_history import Outcome
from .authorized_world import EVE, EX, GREEDY, GUEST, STRANGER, THIEF, AuthorizedRun

NAMES = {
    EX: "ex-writer",
    EVE: "squatter",
    THIEF: "stolen bookie",
    GUEST: "ended tokens",
    STRANGER: "strangers",
    GREEDY: "greedy user",
}
TIMES = 3.0
LEAST = 0.5
"""Minimum share of acknowledged records, compared with a run without the adversary."""
FLOOR_S = 0.02
"""A p99 below this limit is accepted, whatever the ratio: one late frame causes it."""
CALM_S = 6.0


@dataclass(frozen=True, slots=True)
class WriterProgress:
    """Acknowledged records and latency of honest writers in one run."""

    acked: int
    p99_s: float
    failures: tuple[BaseException, ...] = ()

    def why_worse(self, baseline: "WriterProgress") -> str:
        """Return how much this run is worse than permitted, or ""."""
        if self.p99_s > max(FLOOR_S, TIMES * baseline.p99_s):
            return f"T5: p99 {self.p99_s * 1000:.1f} ms, without adversary {baseline.p99_s * 1000:.1f} ms"
        if self.acked < LEAST * baseline.acked:
            return f"T5: {self.acked} records acknowledged, without adversary {baseline.acked}"
        return ""


def progress_beside(seed: int, adversaries: Sequence[str]) -> WriterProgress:
    """Run a seed without random faults, with these adversaries, and return the writers' progress."""
    run = AuthorizedRun(seed, chaos_s=CALM_S, only_adversaries=adversaries)
    run.rates = replace(
        run.rates,
        burst_s=0.03,
        burst_records_max=3,
        takeover_chance=0.02,
        session_records_max=600,
        long_burst_chance=0.0,
    )
    result = run.run()
    latencies_s = sorted(
        append.ended_at - append.begun_at
        for history in run.histories.values()
        for append in history.attempts
        if append.outcome is Outcome.OK
    )
    p99_s = latencies_s[len(latencies_s) * 99 // 100] if latencies_s else float("inf")
    return WriterProgress(len(latencies_s), p99_s, tuple(result.failures))


def compare(seed: int, names: Sequence[str]) -> dict[str, tuple[WriterProgress, str]]:
    """Compare the writers' progress with each adversary to that without one.

    Returns:
        The progress and the problem ("" if none) by adversary. The key "" is the run without adversaries.
    """
    baseline = progress_beside(seed, ())
    results = {"": (baseline, str(baseline.failures[0]) if baseline.failures else "")}
    for name in names:
        progress = progress_beside(seed, (name,))
        problem = str(progress.failures[0]) if progress.failures else progress.why_worse(baseline)
        results[name] = (progress, problem)
    return results


def main(arguments: Sequence[str]) -> int:
    """Print one row per run. Return 1 if one is worse than permitted, otherwise 0."""
    logging.disable(logging.CRITICAL)
    worse_count = 0
    for seed in range(int(arguments[0]) if arguments else 3):
        for name, (progress, problem) in compare(seed, [*NAMES]).items():
            worse_count += bool(problem)
            summary = f"{progress.acked} records, p99 {progress.p99_s * 1000:.1f} ms"
            print(f"{seed} | {NAMES.get(name, 'none')} | {summary} | {problem}", flush=True)
    return 1 if worse_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
