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
class LossRules:
    """The options that have a say."""

    fail_on_data_loss: bool = True
    new_logs: str = "earliest"
    is_named: bool = True
    """By ``log`` or ``logs``; False: it matches ``logPattern``."""
    is_selected: bool = True
    """False: the options name other logs now."""


class LogAction(Enum):
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

    action: LogAction
    start: DLSN | None = None
    lost_records: int | None = 0
    """Records that were acknowledged and will never be read; None: not known how many, if any."""
    warning: str = ""
    """A text for people, or ""."""
    is_loss_allowed: bool = False
    """Records are lost, and `failOnDataLoss` is false: the warning is about that."""
    outcome: PositionOutcome | None = None
    """The state of the log that was read before, None if no log was or it is not among the options."""
    error: DistributedLogError | None = field(default=None, compare=False)


def decide(
    name: str, position: HeldPosition | None, lookup: LogLookup, rules: LossRules
) -> SourceDecision:
    """What to do about one log. ``held``: None for one that the checkpoint does not know."""
    if position is None:
        return _begin_new_log(lookup.current_log, rules)
    if not rules.is_selected:
        return SourceDecision(
            LogAction.LEAVE,
            warning=f'log "{name}" of the checkpoint is not among the options: its position is dropped',
        )
    resolution, current = resolve_position(position, lookup), lookup.current_log
    if resolution.outcome is PositionOutcome.CONTINUE:
        return SourceDecision(LogAction.READ, resolution.position, outcome=resolution.outcome)
    if resolution.outcome is PositionOutcome.TRUNCATED:
        return _decide_truncated(resolution.describe(name, position), resolution, rules)
    if resolution.outcome is PositionOutcome.DELETING:
        return SourceDecision(
            LogAction.KEEP, warning=resolution.describe(name, position), outcome=resolution.outcome
        )
    if resolution.outcome is PositionOutcome.RENAMED and current is None:
        text = resolution.describe(name, position)
        return SourceDecision(
            LogAction.KEEP,
            warning=f"{text}: nothing more is read from it, its position is kept",
            outcome=resolution.outcome,
        )
    resolution = replace(
        resolution, lost=_lost_records(resolution, position, lookup.deleted_logs, rules)
    )
    text, lost_records = resolution.describe(name, position), resolution.lost
    if lost_records != 0 and rules.fail_on_data_loss:
        error = resolution.error_with_message(
            f'{text}; "failOnDataLoss"=false goes on without them'
        )
        return SourceDecision(
            LogAction.FAIL, None, lost_records, outcome=resolution.outcome, error=error
        )
    if current is None and rules.is_named:
        # Of what is named, nothing may come and go unseen: the next log of the name is met from here.
        return SourceDecision(
            LogAction.KEEP, None, lost_records, text, lost_records != 0, resolution.outcome
        )
    begin_decision = _begin_new_log(current, rules)
    if begin_decision.action is LogAction.READ:
        text += f"; the new log is read from {begin_decision.start} on"
    return SourceDecision(
        begin_decision.action,
        begin_decision.start,
        lost_records,
        text,
        lost_records != 0,
        resolution.outcome,
    )


def _decide_truncated(
    text: str, resolution: PositionResolution, rules: LossRules
) -> SourceDecision:
    """Return the decision for a position that is before the truncation point."""
    if rules.fail_on_data_loss:
        error = resolution.error_with_message(f'{text}; "failOnDataLoss"=false goes on from there')
        return SourceDecision(
            LogAction.FAIL, None, resolution.lost, outcome=resolution.outcome, error=error
        )
    return SourceDecision(
        LogAction.READ, resolution.position, resolution.lost, text, True, resolution.outcome
    )


def _lost_records(
    resolution: PositionResolution,
    position: HeldPosition,
    deleted_logs: Sequence[DeletedLog],
    rules: LossRules,
) -> int | None:
    """Records of the log that is held, and of those that came and went after it, that were never read."""
    lost_records = resolution.lost
    index = next(
        (n for n, one in enumerate(deleted_logs) if one.incarnation == position.incarnation),
        len(deleted_logs),
    )
    deleted_between = deleted_logs[index + 1 :] if rules.new_logs == "earliest" else ()
    for one in deleted_between:
        if lost_records is None or not one.end.is_exact:
            return None
        lost_records += max(0, one.end.sequence_id - one.first_sequence_id)
    return lost_records


def _begin_new_log(current: CurrentLog | None, rules: LossRules) -> SourceDecision:
    """A log that was not read before, by ``newLogs``."""
    if current is None or rules.new_logs == "ignore":
        return SourceDecision(LogAction.LEAVE)
    return SourceDecision(
        LogAction.READ, current.first_dlsn if rules.new_logs == "earliest" else current.end
    )
