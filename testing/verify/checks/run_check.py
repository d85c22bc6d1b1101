"""Compute the result of a whole run from its recorded observations only, at its end or years later.

- OK: no guarantee was violated, under sufficient load and faults.
- FAIL: a guarantee was violated, a node terminated unexpectedly, or the cluster did not recover after the
  faults.
- VOID: no guarantee was violated, but load or faults were too small for a result.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..history.observations import Piece, PipelineObservations
from ..report.availability import AFTER_S, TimeLine, time_line
from .authorization_check import RightsVerdict, check_rights
from .history_check import Violation
from .linearizability import SearchTooWide, check_linearizable
from .log_check import LogVerdict, check_log_observations
from .register_check import check_registers

OK, FAIL, VOID = "OK", "FAIL", "VOID"
FINISH = "finish"
"""The client that reads every log at the end."""


@dataclass(slots=True)
class RunResult:
    """The result of a run."""

    verdict: str = OK
    reasons: list[str] = field(default_factory=list)
    """The reasons for a result other than OK, the most severe first."""
    logs: list[LogVerdict] = field(default_factory=list)
    register_calls: int = 0
    rights: RightsVerdict = field(default_factory=lambda: RightsVerdict([]))
    acked: int = 0
    """Acknowledged records, including those outside the time of the load."""
    lost: int = 0
    time_line: TimeLine = field(default_factory=lambda: TimeLine(0.0, 0.0))
    gap_s: float = 0.0
    gap_at_s: float = 0.0
    """In seconds from the start of the load."""
    gaps_s: dict[int, float] = field(default_factory=dict)
    """By the number of the fault."""
    remarks: list[str] = field(default_factory=list)

    @property
    def acked_per_s(self) -> float:
        """The mean rate during the load."""
        seconds = self.time_line.ended_at - self.time_line.begun_at
        return sum(self.time_line.acked) / seconds if seconds > 0 else 0.0

    def totals(self) -> dict[str, Any]:
        """Return the sums over all logs."""
        names = ("records", "acked", "lost", "unknown", "refused", "sessions", "readings", "read")
        return {name: sum(getattr(log, name) for log in self.logs) for name in names}


def check_run(observations: PipelineObservations) -> RunResult:
    """Check a run by its observations.

    Args:
        observations: The observations of clients and of the runner, whose ``run`` has times, limits and
            failures.
    """
    result = RunResult()
    run = observations.run
    failures = [str(reason) for reason in run.get("failures", [])]
    if "ended_at" not in run:
        failures.append("the run was aborted: its observations have no end")
    _check_logs(observations, result, failures)
    _check_registers(observations, result, failures)
    result.rights = check_rights(observations)
    failures += result.rights.violations
    begun_at = float(run.get("begun_at", 0.0))
    result.time_line = time_line(observations, begun_at, float(run.get("ended_at", begun_at)))
    gap_begin, result.gap_s = result.time_line.longest_gap()
    result.gap_at_s = gap_begin - begun_at
    for fault in observations.faults:
        window = (fault.begun_at, fault.ended_at + AFTER_S)
        result.gaps_s[fault.number] = result.time_line.longest_gap(*window)[1]
    bounds = run.get("bounds", {})
    gap_limit_s = float(bounds.get("gap_max_s", 0.0))
    if gap_limit_s and result.gap_s > gap_limit_s:
        failures.append(
            f"availability: {result.gap_s:.1f} s without an acknowledged write, from"
            f" {result.gap_at_s:.1f} s on; the limit is {gap_limit_s:g} s"
        )
    voids = _voids(result, observations, bounds)
    result.reasons = [*failures, *voids]
    result.verdict = FAIL if failures else VOID if voids else OK
    return result


def _check_logs(
    observations: PipelineObservations, run_result: RunResult, failures: list[str]
) -> None:
    for name in sorted(observations.logs):
        log = observations.logs[name]
        final: list[Piece] | None = None
        for reading in log.readings:
            if reading.who == FINISH and reading.is_complete:
                final = reading.pieces
        if final is None:
            if log.sessions:
                failures.append(f"log {name}: no client read it completely after the faults")
                run_result.acked += sum(acked.count for acked in log.acked)
            continue
        log_verdict = check_log_observations(log, final)
        run_result.logs.append(log_verdict)
        run_result.acked += log_verdict.acked
        run_result.lost += log_verdict.lost
        failures += [f"log {name}: {text}" for text in log_verdict.violations]
        hidden_count = log_verdict.violations_count - len(log_verdict.violations)
        if hidden_count:
            failures.append(f"log {name}: and {hidden_count} more violations")


def _check_registers(
    observations: PipelineObservations, run_result: RunResult, failures: list[str]
) -> None:
    checks: tuple[Callable[[Any], int], ...] = (check_registers, check_linearizable)
    for check in checks:
        try:
            run_result.register_calls = check(observations.registers)
        except Violation as violation:
            failures.append(str(violation))
        except SearchTooWide as too_wide:
            run_result.remarks.append(f"registers: the search was abandoned: {too_wide}")


def _voids(
    run_result: RunResult, observations: PipelineObservations, bounds: dict[str, Any]
) -> list[str]:
    voids = []
    if run_result.acked < bounds.get("acked_min", 0):
        voids.append(
            f"{run_result.acked:,} acknowledged records, the minimum is {bounds['acked_min']:,}"
        )
    if run_result.acked_per_s < bounds.get("acked_per_s_min", 0.0):
        voids.append(
            f"{run_result.acked_per_s:.0f} acknowledged records/s, the minimum is "
            f"{bounds['acked_per_s_min']:g}"
        )
    if len(observations.faults) < bounds.get("faults_min", 0):
        voids.append(f"{len(observations.faults)} faults, the minimum is {bounds['faults_min']}")
    rights, rounds_min = run_result.rights, bounds.get("rounds_min", 0)
    if rights.rounds < rounds_min:
        voids.append(
            f"authorization was set to required and back {rights.rounds} times of {rounds_min}"
        )
    if rounds_min and not (rights.refused and rights.let_in):
        voids.append(
            f"unauthorized clients were refused {rights.refused} times and admitted {rights.let_in} times:"
            " neither may be 0"
        )
    return voids


def to_json(run_result: RunResult, observations: PipelineObservations) -> dict[str, Any]:
    """Return the result as JSON values."""
    begun_at = run_result.time_line.begun_at
    return {
        "verdict": run_result.verdict,
        "reasons": run_result.reasons,
        "remarks": run_result.remarks,
        **run_result.totals(),
        "register_calls": run_result.register_calls,
        "rights": {
            "rounds": run_result.rights.rounds,
            "refused": run_result.rights.refused,
            "let_in": run_result.rights.let_in,
        },
        "load_s": round(run_result.time_line.ended_at - begun_at, 3),
        "acked_per_s": round(run_result.acked_per_s, 1),
        "gap_s": round(run_result.gap_s, 3),
        "gap_at_s": round(run_result.gap_at_s, 3),
        "latency_ms": run_result.time_line.load_percentiles_ms,
        "faults": [
            {
                "number": fault.number,
                "kind": fault.kind,
                "targets": fault.targets,
                "at_s": round(fault.begun_at - begun_at, 3),
                "seconds": round(
                    min(fault.ended_at, run_result.time_line.ended_at + 600) - fault.begun_at, 3
                ),
                "words": fault.text,
                "end_words": fault.end_text,
                "gap_s": round(run_result.gaps_s.get(fault.number, 0.0), 3),
            }
            for fault in observations.faults
        ],
        "logs": [asdict(log) for log in run_result.logs],
        "clients": observations.clients,
        "time_line": {
            "acked": run_result.time_line.acked,
            "p50_ms": run_result.time_line.p50_ms,
            "p99_ms": run_result.time_line.p99_ms,
            "max_ms": run_result.time_line.max_ms,
        },
    }
