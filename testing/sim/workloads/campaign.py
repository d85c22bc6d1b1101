"""Run many seeds, some per process, and add up their results."""

import argparse
import faulthandler
import logging
import subprocess
import time
import traceback
from collections import Counter
from pathlib import Path

from ..world.scheduler import BusyLoop, Deadlock, OutOfTime
from .authorized_world import AuthorizedRun
from .exactly_once import OnceRun
from .pipeline import PipelineRun
from .proxy_world import ProxiedRun
from .seed import CHAOS_S, LogRun, Result, SeedRun

WORKLOADS: dict[str, type[SeedRun]] = {
    "log": LogRun,
    "pipeline": PipelineRun,
    "once": OnceRun,
    "proxied": ProxiedRun,
    "trusted": AuthorizedRun,
}
AT = "at "
"""Prefix of the counters of targeted faults (`targeted_faults.py`)."""
CHUNK_SEEDS = 25
"""Limit of seeds per process."""
SEED_REAL_S_MAX = 600.0
"""Limit of real time per seed. A longer seed is stuck in a loop without an await: its stacks are printed and
the process exits.

A seed needs about 3 s of CPU time, and a busy machine may provide a tenth of a core.
"""


def run_chunk(options: argparse.Namespace, seeds: range) -> "CampaignTotals":
    """Run some seeds. Many seeds need several processes, because CPython keeps some memory of each seed."""
    logging.getLogger("distributedlog").setLevel(
        logging.INFO if options.keep_trace else logging.CRITICAL
    )
    chaos_s = CHAOS_S if options.minutes is None else options.minutes * 60
    totals = CampaignTotals()
    began = time.process_time()
    for seed in seeds:
        faulthandler.dump_traceback_later(SEED_REAL_S_MAX * max(1, chaos_s / CHAOS_S), exit=True)
        run = WORKLOADS[options.workload](seed, chaos_s=chaos_s, keep_trace=options.keep_trace)
        if options.mixed:
            run.mix_versions()
        result = run.run()
        faulthandler.cancel_dump_traceback_later()
        totals.add(result)
        if options.keep_trace:
            print("\n".join(result.trace or []))
        if options.hash or options.seed is not None:
            print(f"seed {seed}: trace {result.trace_hash}")
        if result.failed:
            print(describe_failure(result, chaos_s, options.workload), flush=True)
            if options.stop_first:
                break
    totals.used_s = time.process_time() - began
    return totals


class CampaignTotals:
    """Sums over many seeds."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed: list[int] = []
        self.virtual_s = 0.0
        self.confirmed = 0
        self.acked = 0
        self.read = 0
        self.registers = 0
        self.messages = 0
        self.restarts = 0
        self.unknowns = 0
        self.faults: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.used_s = 0.0

    def add(self, result: Result) -> None:
        """Add the result of a seed."""
        self.seeds += 1
        if result.failed:
            self.failed.append(result.seed)
        self.virtual_s += result.virtual_s
        self.confirmed += result.confirmed_entries
        self.registers += result.register_calls
        self.messages += result.messages
        self.restarts += result.restarts
        self.unknowns += result.limbo_answers
        self.faults += result.faults
        self.heard += result.trigger_counts
        self.acked += sum(report.acked for report in result.reports)
        self.read += sum(report.read for report in result.reports)

    def add_totals(self, other: "CampaignTotals") -> None:
        """Add the sums of other seeds."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def describe(self) -> str:
        """Return the sums as a few lines of text."""
        used_s = self.used_s
        kinds = sorted(self.faults.items())
        faults = ", ".join(f"{kind} {count}" for kind, count in kinds if not kind.startswith(AT))
        triggers = ", ".join(
            f"{kind} {self.faults[AT + kind]} of {count}"
            for kind, count in sorted(self.heard.items())
        )
        return (
            f"{self.seeds} seeds, {len(self.failed)} failed {self.failed or ''}\n"
            f"{self.virtual_s:.0f} virtual s in {used_s:.1f} CPU s"
            f" ({used_s / max(1, self.seeds):.2f} per seed)\n"
            f"{self.confirmed} entries acknowledged, {self.acked} records acknowledged,"
            f" {self.read} read, {self.registers} register calls, {self.messages} messages,"
            f" {self.unknowns} answers in limbo\n"
            f"{sum(self.faults.values())} faults: {faults}; {self.restarts} restarts by the supervisor\n"
            f"targeted faults: {triggers}"
        )


def describe_failure(result: Result, chaos_s: float, workload: str = "log") -> str:
    """Return the seed, the commit, the failures and the command that replays them."""
    command = f"python -m distributedlog.testing.sim --seed {result.seed}"
    if chaos_s != CHAOS_S:
        command += f" --minutes {chaos_s / 60:g}"
    if workload != "log":
        command += f" --workload {workload}"
    if result.mixed:
        command += " --mixed"
    lines = [f"FAILURE seed {result.seed} commit {commit()} at t={result.virtual_s:.3f}"]
    for failure in result.failures[:3]:
        if isinstance(failure, (Deadlock, OutOfTime, BusyLoop)):
            lines.append(f"  {type(failure).__name__}: {failure}")
        else:
            text = "".join(traceback.format_exception(failure, limit=-6))
            lines += ["  " + line for line in text.rstrip().split("\n")]
    lines.append(f"  replay: {command} --keep-trace")
    return "\n".join(lines)


def commit() -> str:
    """Return the present commit, with ``+`` if the tree has changes."""
    try:
        completed = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=Path(__file__).resolve().parent.parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except OSError:
        return "unknown"
    return completed.stdout.strip() or "unknown"
