"""Check that no authorized client was refused and no unauthorized one admitted, by the times of mode changes.

Between the request for another mode and its answer, either mode may apply, so attempts in this time prove
nothing. An unauthorized client must be refused as soon as mode ``required`` was confirmed, because every open
asks the metadata leader. In the other modes it must be admitted. An exception is the time `FORGET_S`, for
which a client caches an earlier refusal.
"""

from dataclasses import dataclass
from math import inf

from ..history.observations import DONE, REFUSED, PipelineObservations, UnauthorizedAttempt

REQUIRED = "required"
FORGET_S = 2.0
REFUSALS = ("NotAllowed", "NotAuthenticated", "WrongLedgerKey", "CapabilityOutdated")
"""Errors that an authorized client must never receive, in any mode and during any change of it."""
REASONS_MAX = 5


@dataclass(slots=True)
class RightsVerdict:
    """The observations of one sequence of authorization modes."""

    violations: list[str]
    rounds: int = 0
    """How often the mode returned from ``required`` to ``open``."""
    refused: int = 0
    """Attempts of unauthorized clients that were refused in mode ``required``."""
    let_in: int = 0
    """Attempts of unauthorized clients that succeeded in the other modes."""


def check_rights(observations: PipelineObservations) -> RightsVerdict:
    """Return the result of the check; an empty one if the mode never changed."""
    verdict = RightsVerdict([])
    if not observations.modes:
        return verdict
    mode_spans = _spans(observations)
    for attempt in observations.attempts:
        for mode, begun_at, ended_at in mode_spans:
            if begun_at <= attempt.begun_at and attempt.ended_at <= ended_at:
                _check_attempt(verdict, mode, attempt)
    was_required = False
    for change in observations.modes:
        verdict.rounds += change.mode == "open" and was_required
        was_required = change.mode == REQUIRED or (was_required and change.mode != "open")
    intruders = {attempt.who for attempt in observations.attempts}
    begun_at = float(observations.run.get("begun_at", 0.0))
    for who, when, text in _said(observations):
        if (
            who in observations.clients
            and who not in intruders
            and any(refusal in text for refusal in REFUSALS)
        ):
            verdict.violations.append(
                f"{who} is authorized, and was refused at {when - begun_at:.1f} s: {text}"
            )
    verdict.violations = _some(verdict.violations)
    return verdict


def _check_attempt(verdict: RightsVerdict, mode: str, attempt: UnauthorizedAttempt) -> None:
    description = (
        f"{attempt.who}, which is not authorized, tried to {attempt.what}, in mode {mode}, and"
    )
    if mode == REQUIRED:
        verdict.refused += attempt.outcome == REFUSED
        if attempt.outcome == DONE:
            verdict.violations.append(f"{description} succeeded")
    else:
        verdict.let_in += attempt.outcome == DONE
        if attempt.outcome == REFUSED:
            verdict.violations.append(
                f"{description} was refused, although this mode refuses nothing"
            )


def _spans(observations: PipelineObservations) -> list[tuple[str, float, float]]:
    """Return (mode, from, to): the times in which a mode certainly applied without cached refusals."""
    spans, mode, since = [], "open", -inf
    for change in observations.modes:
        spans.append((mode, since, change.asked_at))
        forget_s = FORGET_S if mode == REQUIRED and change.mode != REQUIRED else 0.0
        mode, since = change.mode, change.answered_at + forget_s
    return [*spans, (mode, since, inf)]


def _said(observations: PipelineObservations) -> list[tuple[str, float, str]]:
    """Return (client, time, text) of all errors."""
    errors = [(who, when, text) for when, who, text in observations.remarks]
    for log in observations.logs.values():
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
        *([f"rights: and {hidden_count} more violations"] if hidden_count > 0 else []),
    ]
