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
from .log_check import LogVerdict, check_log_notes
from .register_check import check_registers

OK, FAIL, VOID = "OK", "FAIL", "VOID"
FINISH = "finish"
"""The client that reads every log at the end."""


@dataclass(slots=True)
class Judgement:
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


def judge(notes: PipelineObservations) -> Judgement:
    """Check a run by its observations.

    Args:
        notes: The observations of clients and of the runner, whose ``run`` has times, limits and failures.
    """
    verdict = Judgement()
    run = notes.run
    failures = [str(reason) for reason in run.get("failures", [])]
    if "ended_at" not in run:
        failures.append("the run was aborted: its observations have no end")
    _judge_logs(notes, verdict, failures)
    _judge_registers(notes, verdict, failures)
    verdict.rights = check_rights(notes)
    failures += verdict.rights.violations
    begun_at = float(run.get("begun_at", 0.0))
    verdict.time_line = time_line(notes, begun_at, float(run.get("ended_at", begun_at)))
    gap_begin, verdict.gap_s = verdict.time_line.longest_gap()
    verdict.gap_at_s = gap_begin - begun_at
    for fault in notes.faults:
        window = (fault.begun_at, fault.ended_at + AFTER_S)
        verdict.gaps_s[fault.number] = verdict.time_line.longest_gap(*window)[1]
    bounds = run.get("bounds", {})
    gap_limit_s = float(bounds.get("gap_max_s", 0.0))
    if gap_limit_s and verdict.gap_s > gap_limit_s:
        failures.append(
            f"availability: {verdict.gap_s:.1f} s without an acknowledged write, from"
            f" {verdict.gap_at_s:.1f} s on; the limit is {gap_limit_s:g} s"
        )
    voids = _voids(verdict, notes, bounds)
    verdict.reasons = [*failures, *voids]
    verdict.verdict = FAIL if failures else VOID if voids else OK
    return verdict


def _judge_logs(notes: PipelineObservations, run_verdict: Judgement, failures: list[str]) -> None:
    for name in sorted(notes.logs):
        log = notes.logs[name]
        final: list[Piece] | None = None
        for reading in log.readings:
            if reading.who == FINISH and reading.is_complete:
                final = reading.pieces
        if final is None:
            if log.sessions:
                failures.append(f"log {name}: no client read it completely after the faults")
                run_verdict.acked += sum(acked.count for acked in log.acked)
            continue
        verdict = check_log_notes(log, final)
        run_verdict.logs.append(verdict)
        run_verdict.acked += verdict.acked
        run_verdict.lost += verdict.lost
        failures += [f"log {name}: {text}" for text in verdict.violations]
        hidden_count = verdict.violations_count - len(verdict.violations)
        if hidden_count:
            failures.append(f"log {name}: and {hidden_count} more violations")


def _judge_registers(
    notes: PipelineObservations, run_verdict: Judgement, failures: list[str]
) -> None:
    checks: tuple[Callable[[Any], int], ...] = (check_registers, check_linearizable)
    for check in checks:
        try:
            run_verdict.register_calls = check(notes.registers)
        except Violation as violation:
            failures.append(str(violation))
        except SearchTooWide as too_wide:
            run_verdict.remarks.append(f"registers: the search was abandoned: {too_wide}")


def _voids(
    run_verdict: Judgement, notes: PipelineObservations, bounds: dict[str, Any]
) -> list[str]:
    voids = []
    if run_verdict.acked < bounds.get("acked_min", 0):
        voids.append(
            f"{run_verdict.acked:,} acknowledged records, the minimum is {bounds['acked_min']:,}"
        )
    if run_verdict.acked_per_s < bounds.get("acked_per_s_min", 0.0):
        voids.append(
            f"{run_verdict.acked_per_s:.0f} acknowledged records/s, the minimum is "
            f"{bounds['acked_per_s_min']:g}"
        )
    if len(notes.faults) < bounds.get("faults_min", 0):
        voids.append(f"{len(notes.faults)} faults, the minimum is {bounds['faults_min']}")
    rights, rounds_min = run_verdict.rights, bounds.get("rounds_min", 0)
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


def to_json(run_verdict: Judgement, notes: PipelineObservations) -> dict[str, Any]:
    """Return the result as JSON values."""
    begun_at = run_verdict.time_line.begun_at
    return {
        "verdict": run_verdict.verdict,
        "reasons": run_verdict.reasons,
        "remarks": run_verdict.remarks,
        **run_verdict.totals(),
        "register_calls": run_verdict.register_calls,
        "rights": {
            "rounds": run_verdict.rights.rounds,
            "refused": run_verdict.rights.refused,
            "let_in": run_verdict.rights.let_in,
        },
        "load_s": round(run_verdict.time_line.ended_at - begun_at, 3),
        "acked_per_s": round(run_verdict.acked_per_s, 1),
        "gap_s": round(run_verdict.gap_s, 3),
        "gap_at_s": round(run_verdict.gap_at_s, 3),
        "latency_ms": run_verdict.time_line.load_percentiles_ms,
        "faults": [
            {
                "number": fault.number,
                "kind": fault.kind,
                "targets": fault.targets,
                "at_s": round(fault.begun_at - begun_at, 3),
                "seconds": round(
                    min(fault.ended_at, run_verdict.time_line.ended_at + 600) - fault.begun_at, 3
                ),
                "words": fault.text,
                "end_words": fault.end_text,
                "gap_s": round(run_verdict.gaps_s.get(fault.number, 0.0), 3),
            }
            for fault in notes.faults
        ],
        "logs": [asdict(log) for log in run_verdict.logs],
        "clients": notes.clients,
        "time_line": {
            "acked": run_verdict.time_line.acked,
            "p50_ms": run_verdict.time_line.p50_ms,
            "p99_ms": run_verdict.time_line.p99_ms,
            "max_ms": run_verdict.time_line.max_ms,
        },
    }
