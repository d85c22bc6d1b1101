"""Honest writers beside any one adversary (T5): they wait for no more than three times as long as without.

    python -m distributedlog.testing.sim.workloads.writer_progress [SEEDS]       a row a seed and adversary

A seed runs calm, with nothing that goes wrong by itself, first without anybody who means harm, then beside
each of them. What is compared is the time from a record's hand-over to its acknowledgement, in virtual time:
what an adversary costs in places, turns, quotas, syncs and bandwidth, and not what he costs in CPU.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...verify.history.run_history import Outcome
from .authorized_world import EVE, EX, GREEDY, GUEST, STRANGER, THIEF, TrustedRun

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
"""Of the records that are acknowledged without him."""
FLOOR_S = 0.02
"""Shorter than this nobody complains of, whatever it is a multiple of: one late frame makes it."""
CALM_S = 6.0


@dataclass(frozen=True, slots=True)
class WriterProgress:
    """Of honest writers in one run."""

    acked: int
    p99_s: float
    failures: tuple[BaseException, ...] = ()

    def why_worse(self, baseline: "WriterProgress") -> str:
        """What is worse here than the bound allows; ""."""
        if self.p99_s > max(FLOOR_S, TIMES * baseline.p99_s):
            return f"T5: p99 {self.p99_s * 1000:.1f} ms, without {baseline.p99_s * 1000:.1f} ms"
        if self.acked < LEAST * baseline.acked:
            return f"T5: {self.acked} records acknowledged, without {baseline.acked}"
        return ""


def progress_beside(seed: int, adversaries: Sequence[str]) -> WriterProgress:
    """Of honest writers in a calm run of that seed, beside these."""
    run = TrustedRun(seed, chaos_s=CALM_S, only_adversaries=adversaries)
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
    """What came of the writers beside each of these, and what is wrong with that; "": beside nobody."""
    baseline = progress_beside(seed, ())
    results = {"": (baseline, str(baseline.failures[0]) if baseline.failures else "")}
    for name in names:
        progress = progress_beside(seed, (name,))
        problem = str(progress.failures[0]) if progress.failures else progress.why_worse(baseline)
        results[name] = (progress, problem)
    return results


def main(arguments: Sequence[str]) -> int:
    """Print the rows; 1 where one is worse than it may be."""
    logging.disable(logging.CRITICAL)
    worse_count = 0
    for seed in range(int(arguments[0]) if arguments else 3):
        for name, (progress, problem) in compare(seed, [*NAMES]).items():
            worse_count += bool(problem)
            summary = f"{progress.acked} records, p99 {progress.p99_s * 1000:.1f} ms"
            print(f"{seed} | {NAMES.get(name, 'nobody')} | {summary} | {problem}", flush=True)
    return 1 if worse_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
