"""Was anybody refused who has the right, or let in who has none? By the times at which the mode was changed.

Between a question for another mode and its answer nobody knows which one counts: what lies there says
nothing. Who has no right must be refused as soon as ``required`` was answered, for whatever is opened asks
the leader; and must be let in where nothing is refused, but for `FORGET_S`, for which a client keeps what it
was told before.
"""

from dataclasses import dataclass
from math import inf

from ..history.observations import DONE, REFUSED, PipelineObservations, Try

REQUIRED = "required"
FORGET_S = 2.0
REFUSALS = ("NotAllowed", "NotAuthenticated", "WrongLedgerKey", "CapabilityOutdated")
"""What nobody may be told who has the right, in any mode and at any change of it."""
REASONS_MAX = 5


@dataclass(slots=True)
class RightsVerdict:
    """What was seen of one walk."""

    violations: list[str]
    rounds: int = 0
    """Times that it came back from ``required`` to ``open``."""
    refused: int = 0
    """Tries of who has no right that were refused where rights were required."""
    let_in: int = 0
    """Tries of the same that were done where they were not."""


def check_rights(notes: PipelineObservations) -> RightsVerdict:
    """The verdict; without any change of the mode an empty one."""
    verdict = RightsVerdict([])
    if not notes.modes:
        return verdict
    mode_spans = _spans(notes)
    for attempt in notes.attempts:
        for mode, begun_at, ended_at in mode_spans:
            if begun_at <= attempt.begun_at and attempt.ended_at <= ended_at:
                _judge_try(verdict, mode, attempt)
    was_required = False
    for change in notes.modes:
        verdict.rounds += change.mode == "open" and was_required
        was_required = change.mode == REQUIRED or (was_required and change.mode != "open")
    intruders = {attempt.who for attempt in notes.attempts}
    begun_at = float(notes.run.get("begun_at", 0.0))
    for who, when, text in _said(notes):
        if (
            who in notes.clients
            and who not in intruders
            and any(refusal in text for refusal in REFUSALS)
        ):
            verdict.violations.append(
                f"{who} has the right, and was refused at {when - begun_at:.1f} s: {text}"
            )
    verdict.violations = _some(verdict.violations)
    return verdict


def _judge_try(verdict: RightsVerdict, mode: str, attempt: Try) -> None:
    description = f"{attempt.who}, who has no right, tried to {attempt.what}, in mode {mode}, and"
    if mode == REQUIRED:
        verdict.refused += attempt.outcome == REFUSED
        if attempt.outcome == DONE:
            verdict.violations.append(f"{description} could")
    else:
        verdict.let_in += attempt.outcome == DONE
        if attempt.outcome == REFUSED:
            verdict.violations.append(f"{description} was refused, as nobody is")


def _spans(notes: PipelineObservations) -> list[tuple[str, float, float]]:
    """(mode, from, to): in each of them that one counted for sure, and nothing of before is remembered."""
    spans, mode, since = [], "open", -inf
    for change in notes.modes:
        spans.append((mode, since, change.asked_at))
        forget_s = FORGET_S if mode == REQUIRED and change.mode != REQUIRED else 0.0
        mode, since = change.mode, change.answered_at + forget_s
    return [*spans, (mode, since, inf)]


def _said(notes: PipelineObservations) -> list[tuple[str, float, str]]:
    """(who, when, words) of all that went wrong."""
    errors = [(who, when, text) for when, who, text in notes.remarks]
    for log in notes.logs.values():
        errors += [
            (failure.who, failure.ended_at, failure.error)
            for failure in log.sessions.values()
            if failure.error
        ]
        errors += [
            (log.sessions[failure.session].who, failure.ended_at, failure.error)
            for failure in log.failed
            if failure.session in log.sessions
        ]
    return sorted(errors, key=lambda failure: failure[1])


def _some(violations: list[str]) -> list[str]:
    hidden_count = len(violations) - REASONS_MAX
    return [
        *violations[:REASONS_MAX],
        *([f"rights: and {hidden_count} violations more"] if hidden_count > 0 else []),
    ]
