"""Decide how a query continues after a log was truncated, deleted or created again (pure).

As for every other reader, `distributedlog/log/model/position_outcome.py` determines the state of the log.
This module decides what a query does, by its options and by deleted logs of the same name, because a query
follows a name. The decision does not depend on whether the query was running at that time, on the call of
Spark that asked for it, or on whether the log was named or matched a pattern. The only exception is whether
the position of a deleted log is kept. Therefore one event has one outcome. `doc_tables.py` generates a table
in docs/reference/spark-options.md from this module.
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
    """The options that affect the decision."""

    fail_on_data_loss: bool = True
    new_logs: str = "earliest"
    is_named: bool = True
    """True if selected by ``log`` or ``logs``, False if by ``logPattern``."""
    is_selected: bool = True
    """False if the options no longer select this log."""


class LogAction(Enum):
    """The treatment of the log in the next offset."""

    READ = "read"
    """Read from a position on."""
    KEEP = "keep"
    """Keep the position. There is nothing to read."""
    LEAVE = "leave"
    """Omit the log from the offset."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class SourceDecision:
    """The action, its start position, and its warning or error."""

    action: LogAction
    start: DLSN | None = None
    lost_records: int | None = 0
    """Acknowledged records that will never be read; None if their number is unknown."""
    warning: str = ""
    """A text for people, or ""."""
    is_loss_allowed: bool = False
    """Records are lost, and `failOnDataLoss` is false. The warning describes the loss."""
    outcome: PositionOutcome | None = None
    """The state of the previously read log; None if there was none or the options do not select it."""
    error: DistributedLogError | None = field(default=None, compare=False)


def decide(
    name: str, position: HeldPosition | None, lookup: LogLookup, rules: LossRules
) -> SourceDecision:
    """Return the decision for one log. ``position`` is None if the checkpoint does not contain the log."""
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
            f'{text}; "failOnDataLoss"=false continues without them'
        )
        return SourceDecision(
            LogAction.FAIL, None, lost_records, outcome=resolution.outcome, error=error
        )
    if current is None and rules.is_named:
        # The next log of this name is compared with this position, so that no deletion stays unnoticed.
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
        error = resolution.error_with_message(
            f'{text}; "failOnDataLoss"=false continues from there'
        )
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
    """Return the unread records of the log at the position, and of later deleted logs of the same name."""
    lost_records = resolution.lost
    index = next(
        (
            n
            for n, deleted_log in enumerate(deleted_logs)
            if deleted_log.incarnation == position.incarnation
        ),
        len(deleted_logs),
    )
    deleted_between = deleted_logs[index + 1 :] if rules.new_logs == "earliest" else ()
    for deleted_log in deleted_between:
        if lost_records is None or not deleted_log.end.is_exact:
            return None
        lost_records += max(0, deleted_log.end.sequence_id - deleted_log.first_sequence_id)
    return lost_records


def _begin_new_log(current: CurrentLog | None, rules: LossRules) -> SourceDecision:
    """Return the decision for a log that was not read before, by ``newLogs``."""
    if current is None or rules.new_logs == "ignore":
        return SourceDecision(LogAction.LEAVE)
    return SourceDecision(
        LogAction.READ, current.first_dlsn if rules.new_logs == "earliest" else current.end
    )
