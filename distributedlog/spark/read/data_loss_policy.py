"""What a query does about a log that it was reading and that was truncated, deleted, or made again (pure).

What has become of the log says `distributedlog/log/model/position_outcome.py`, as to every other reader; here
it is decided what a query makes of it: by its options, and by the logs of the same name that came and went
meanwhile, for a query follows a name. It knows neither whether the query was running meanwhile, nor which
question of Spark's asks, nor whether the log was named or matched a pattern (but for what is kept of a log
that is gone): so one event has one outcome. `doc_tables.py` generates a table
in docs/reference/spark-options.md from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ...log.format.dlsn import DLSN
from ...log.model.deleted_log import DeletedLog
from ...log.model.position_outcome import (
    CurrentLog,
    HeldPosition,
    LogLookup,
    PositionOutcome,
    PositionResolution,
    resolve_position,
)
from ...runtime.interfaces.errors import DistributedLogError


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that have a say."""

    fail_on_data_loss: bool = True
    new_logs: str = "earliest"
    named: bool = True
    """By ``log`` or ``logs``; False: it matches ``logPattern``."""
    wanted: bool = True
    """False: the options name other logs now."""


class Do(Enum):
    """What becomes of the log in the next offset."""

    READ = "read"
    """From a position on."""
    KEEP = "keep"
    """Its position stays as it is, there is nothing to read."""
    LEAVE = "leave"
    """It is not in the offset (any more)."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class SourceDecision:
    """What to do, from where, and what is said."""

    do: Do
    at: DLSN | None = None
    lost: int | None = 0
    """Records that were acknowledged and will never be read; None: not known how many, if any."""
    warning: str = ""
    """A text for people, or ""."""
    loss_allowed: bool = False
    """Records are lost, and `failOnDataLoss` is false: the warning is about that."""
    met: PositionOutcome | None = None
    """The state of the log that was read before, None if no log was or it is not among the options."""
    error: DistributedLogError | None = field(default=None, compare=False)


def decide(name: str, held: HeldPosition | None, found: LogLookup, rules: Rules) -> SourceDecision:
    """What to do about one log. ``held``: None for one that the checkpoint does not know."""
    if held is None:
        return _begin(found.there, rules)
    if not rules.wanted:
        return SourceDecision(
            Do.LEAVE,
            warning=f'log "{name}" of the checkpoint is not among the options: its position is dropped',
        )
    verdict, there = resolve_position(held, found), found.there
    if verdict.met is PositionOutcome.GO_ON:
        return SourceDecision(Do.READ, verdict.at, met=verdict.met)
    if verdict.met is PositionOutcome.TRUNCATED:
        said = verdict.told(name, held)
        if rules.fail_on_data_loss:
            error = verdict.error_of(f'{said}; "failOnDataLoss"=false goes on from there')
            return SourceDecision(Do.FAIL, None, verdict.lost, met=verdict.met, error=error)
        return SourceDecision(Do.READ, verdict.at, verdict.lost, said, True, verdict.met)
    if verdict.met is PositionOutcome.DELETING:
        return SourceDecision(Do.KEEP, warning=verdict.told(name, held), met=verdict.met)
    if verdict.met is PositionOutcome.RENAMED and there is None:
        said = verdict.told(name, held)
        return SourceDecision(
            Do.KEEP,
            warning=f"{said}: nothing more is read from it, its position is kept",
            met=verdict.met,
        )
    verdict = replace(verdict, lost=_lost(verdict, held, found.gone, rules))
    said, lost = verdict.told(name, held), verdict.lost
    if lost != 0 and rules.fail_on_data_loss:
        error = verdict.error_of(f'{said}; "failOnDataLoss"=false goes on without them')
        return SourceDecision(Do.FAIL, None, lost, met=verdict.met, error=error)
    if there is None and rules.named:
        # Of what is named, nothing may come and go unseen: the next log of the name is met from here.
        return SourceDecision(Do.KEEP, None, lost, said, lost != 0, verdict.met)
    then = _begin(there, rules)
    if then.do is Do.READ:
        said += f"; the new log is read from {then.at} on"
    return SourceDecision(then.do, then.at, lost, said, lost != 0, verdict.met)


def _lost(
    verdict: PositionResolution, held: HeldPosition, gone: Sequence[DeletedLog], rules: Rules
) -> int | None:
    """Records of the log that is held, and of those that came and went after it, that were never read."""
    lost = verdict.lost
    at = next((n for n, one in enumerate(gone) if one.identity == held.identity), len(gone))
    between = gone[at + 1 :] if rules.new_logs == "earliest" else ()
    for one in between:
        if lost is None or not one.end.exact:
            return None
        lost += max(0, one.end.sequence_id - one.first_sequence_id)
    return lost


def _begin(there: CurrentLog | None, rules: Rules) -> SourceDecision:
    """A log that was not read before, by ``newLogs``."""
    if there is None or rules.new_logs == "ignore":
        return SourceDecision(Do.LEAVE)
    return SourceDecision(Do.READ, there.first if rules.new_logs == "earliest" else there.end)
