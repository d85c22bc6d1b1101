"""The verdict on a whole run, from its notes alone: the same at the end of the run and years later.

OK: every promise was kept under a load and faults that mean something. FAIL: a promise was broken, a node
ended by itself, or the cluster did not work again after the faults. VOID: nothing was broken, and too little
was tried for that to say anything.
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
    """What was judged, and the verdict."""

    verdict: str = OK
    reasons: list[str] = field(default_factory=list)
    """Why not OK, the gravest first."""
    logs: list[LogVerdict] = field(default_factory=list)
    register_calls: int = 0
    rights: RightsVerdict = field(default_factory=lambda: RightsVerdict([]))
    acked: int = 0
    """Records acknowledged, also outside the time of the load."""
    lost: int = 0
    line: TimeLine = field(default_factory=lambda: TimeLine(0.0, 0.0))
    gap_s: float = 0.0
    gap_at_s: float = 0.0
    """From the begin of the load."""
    gaps_s: dict[int, float] = field(default_factory=dict)
    """By the number of the fault."""
    remarks: list[str] = field(default_factory=list)

    @property
    def acked_per_s(self) -> float:
        """Over the time of the load."""
        seconds = self.line.ended_at - self.line.begun_at
        return sum(self.line.acked) / seconds if seconds > 0 else 0.0

    def totals(self) -> dict[str, Any]:
        """Sums over all logs."""
        names = ("records", "acked", "lost", "unknown", "refused", "sessions", "readings", "read")
        return {name: sum(getattr(log, name) for log in self.logs) for name in names}


def judge(notes: PipelineObservations) -> Judgement:
    """Judge a run by its notes, the runner's among them (``run``: times, bounds, what went wrong)."""
    found = Judgement()
    run = notes.run
    failures = [str(reason) for reason in run.get("failures", [])]
    if "ended_at" not in run:
        failures.append("the run was broken off: its notes have no end")
    _judge_logs(notes, found, failures)
    _judge_registers(notes, found, failures)
    found.rights = check_rights(notes)
    failures += found.rights.violations
    begun_at = float(run.get("begun_at", 0.0))
    found.line = time_line(notes, begun_at, float(run.get("ended_at", begun_at)))
    at, found.gap_s = found.line.longest_gap()
    found.gap_at_s = at - begun_at
    for fault in notes.faults:
        window = (fault.begun_at, fault.ended_at + AFTER_S)
        found.gaps_s[fault.number] = found.line.longest_gap(*window)[1]
    bounds = run.get("bounds", {})
    most = float(bounds.get("gap_max_s", 0.0))
    if most and found.gap_s > most:
        failures.append(
            f"availability: {found.gap_s:.1f} s without an acknowledged write, from"
            f" {found.gap_at_s:.1f} s on; the bound is {most:g} s"
        )
    voids = _voids(found, notes, bounds)
    found.reasons = [*failures, *voids]
    found.verdict = FAIL if failures else VOID if voids else OK
    return found


def _judge_logs(notes: PipelineObservations, found: Judgement, failures: list[str]) -> None:
    for name in sorted(notes.logs):
        log = notes.logs[name]
        final: list[Piece] | None = None
        for reading in log.readings:
            if reading.who == FINISH and reading.whole:
                final = reading.pieces
        if final is None:
            if log.sessions:
                failures.append(f"log {name}: nobody read it whole after the faults")
                found.acked += sum(acked.count for acked in log.acked)
            continue
        verdict = check_log_notes(log, final)
        found.logs.append(verdict)
        found.acked += verdict.acked
        found.lost += verdict.lost
        failures += [f"log {name}: {words}" for words in verdict.violations]
        more = verdict.violations_count - len(verdict.violations)
        if more:
            failures.append(f"log {name}: and {more} violations more")


def _judge_registers(notes: PipelineObservations, found: Judgement, failures: list[str]) -> None:
    checks: tuple[Callable[[Any], int], ...] = (check_registers, check_linearizable)
    for check in checks:
        try:
            found.register_calls = check(notes.registers)
        except Violation as violation:
            failures.append(str(violation))
        except SearchTooWide as wide:
            found.remarks.append(f"registers: the search was given up: {wide}")


def _voids(found: Judgement, notes: PipelineObservations, bounds: dict[str, Any]) -> list[str]:
    voids = []
    if found.acked < bounds.get("acked_min", 0):
        voids.append(f"{found.acked:,} acknowledged records, the bound is {bounds['acked_min']:,}")
    if found.acked_per_s < bounds.get("acked_per_s_min", 0.0):
        voids.append(
            f"{found.acked_per_s:.0f} acknowledged records/s, the bound is {bounds['acked_per_s_min']:g}"
        )
    if len(notes.faults) < bounds.get("faults_min", 0):
        voids.append(f"{len(notes.faults)} faults, the bound is {bounds['faults_min']}")
    rights, rounds_min = found.rights, bounds.get("rounds_min", 0)
    if rights.rounds < rounds_min:
        voids.append(f"rights went to required and back {rights.rounds} times of {rounds_min}")
    if rounds_min and not (rights.refused and rights.let_in):
        voids.append(
            f"who has no right was refused {rights.refused} times and let in {rights.let_in} times:"
            " neither may be 0"
        )
    return voids


def to_json(found: Judgement, notes: PipelineObservations) -> dict[str, Any]:
    """The verdict for machines."""
    begun_at = found.line.begun_at
    return {
        "verdict": found.verdict,
        "reasons": found.reasons,
        "remarks": found.remarks,
        **found.totals(),
        "register_calls": found.register_calls,
        "rights": {
            "rounds": found.rights.rounds,
            "refused": found.rights.refused,
            "let_in": found.rights.let_in,
        },
        "load_s": round(found.line.ended_at - begun_at, 3),
        "acked_per_s": round(found.acked_per_s, 1),
        "gap_s": round(found.gap_s, 3),
        "gap_at_s": round(found.gap_at_s, 3),
        "latency_ms": found.line.whole_ms,
        "faults": [
            {
                "number": fault.number,
                "kind": fault.kind,
                "targets": fault.targets,
                "at_s": round(fault.begun_at - begun_at, 3),
                "seconds": round(
                    min(fault.ended_at, found.line.ended_at + 600) - fault.begun_at, 3
                ),
                "words": fault.words,
                "end_words": fault.end_words,
                "gap_s": round(found.gaps_s.get(fault.number, 0.0), 3),
            }
            for fault in notes.faults
        ],
        "logs": [asdict(log) for log in found.logs],
        "clients": notes.clients,
        "time_line": {
            "acked": found.line.acked,
            "p50_ms": found.line.p50_ms,
            "p99_ms": found.line.p99_ms,
            "max_ms": found.line.max_ms,
        },
    }
