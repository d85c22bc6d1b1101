"""Generate the tables of docs/reference/spark-options.md.

    python -m distributedlog.spark.doc_tables docs/reference/spark-options.md

These are the options, and the outcomes for a query whose log was truncated, deleted or created again.
"""

import sys
from dataclasses import Field
from typing import Any

from ..log.format.dlsn import DLSN
from ..log.model.deleted_log import DeletedLog
from ..log.model.log_state import LogEnd
from ..log.model.position_outcome import CurrentLog, HeldPosition, LogLookup, PositionOutcome
from ..runtime.declarations.options import Columns, markdown_table, replace_tables
from .options.options import SinkOptions, SourceOptions
from .read.data_loss_policy import LogAction, LossRules, SourceDecision, decide

TABLES: dict[str, type[Any]] = {"source": SourceOptions, "sink": SinkOptions}


def _kafka(option_field: Field[Any]) -> str:
    kafka_option: str = option_field.metadata["kafka"]
    return kafka_option if " " in kafka_option or kafka_option == "–" else f"`{kafka_option}`"


COLUMNS: Columns = {
    "option": lambda one: f"`{one.metadata['name']}`",
    "default": lambda one: one.metadata["shown"],
    "meaning": lambda one: one.metadata["reason"],
    "Kafka's": _kafka,
}


OLD, NEW = f"{7:016x}", f"{8:016x}"
HELD = HeldPosition(DLSN(1, 9, 0), OLD, 900)
AGAIN = CurrentLog(NEW, DLSN(1, 0, 0), 0, DLSN(1, 5, 0))


def _deleted_log(log_id: int, records: int, *, exact: bool = True) -> DeletedLog:
    return DeletedLog(log_id, LogEnd(DLSN(2, 0, 0), records, exact), 0, 0)


def _existing_log(first: int) -> LogLookup:
    """Return the result for an existing log that is truncated to this entry; entries have 100 records."""
    return LogLookup(CurrentLog(OLD, DLSN(1, first, 0), 100 * first, DLSN(1, 20, 0)))


CASES: list[tuple[str, LogLookup]] = [
    ("The log exists; nothing that is unread was truncated.", _existing_log(2)),
    (
        "The log was truncated past the query's position, with 300 records between.",
        _existing_log(12),
    ),
    ("The log was deleted after all records were read.", LogLookup(None, [_deleted_log(7, 900)])),
    ("The log was deleted with 500 unread records.", LogLookup(None, [_deleted_log(7, 1400)])),
    (
        "The log was deleted and its end is unknown.",
        LogLookup(None, [_deleted_log(7, 900, exact=False)]),
    ),
    ("The log is being deleted.", LogLookup(None, [], is_being_deleted=True)),
    (
        "Deleted after all records were read. A new log has the name.",
        LogLookup(AGAIN, [_deleted_log(7, 900)]),
    ),
    (
        "Deleted with 500 unread records. A new log has the name.",
        LogLookup(AGAIN, [_deleted_log(7, 1400)]),
    ),
    (
        "A new log has the name. A log in between was deleted with 40 records.",
        LogLookup(AGAIN, [_deleted_log(7, 900), _deleted_log(9, 40)]),
    ),
]
"""The lookup results for a log of which a query has read 900 records."""


def outcomes() -> str:
    """Return a Markdown table with the decision for each case."""
    lines = [
        "| state of the log | `failOnDataLoss=true` | `failOnDataLoss=false` |",
        "| --- | --- | --- |",
    ]
    for situation, decision_case in CASES:
        cells = [
            _outcomes(decide("a", HELD, decision_case, LossRules(fail, is_named=True)),
                  decide("a", HELD, decision_case, LossRules(fail, is_named=False)))
            for fail in (True, False)
        ]  # fmt: skip
        lines.append(f"| {situation} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _outcomes(named: SourceDecision, by_pattern: SourceDecision) -> str:
    named_outcome, pattern_outcome = _outcome(named), _outcome(by_pattern)
    if named_outcome == pattern_outcome:
        return named_outcome
    return f"{named_outcome}, or with `logPattern` {pattern_outcome}"


def _outcome(decision: SourceDecision) -> str:
    lost_text = (
        ""
        if decision.lost_records == 0
        else f", {decision.lost_records or 'unknown number of'} records lost"
    )
    if decision.error is not None:
        return f"`{type(decision.error).__name__}`{lost_text}"
    if decision.action is LogAction.KEEP:
        outcome_text = "keeps the position"
        if decision.outcome is PositionOutcome.DELETING:
            outcome_text = "keeps the position until the next trigger"
    elif decision.action is LogAction.LEAVE:
        outcome_text = "drops the position"
    elif decision.start == AGAIN.first_dlsn and decision.outcome in (
        PositionOutcome.DELETED,
        PositionOutcome.RENAMED,
    ):
        outcome_text = "reads the new log"
    else:
        outcome_text = (
            "continues"
            if decision.start == HELD.dlsn
            else "continues at the first remaining record"
        )
    return outcome_text + (f" (warning{lost_text})" if decision.warning else "")


def with_generated_tables(text: str) -> str:
    """Return the document with its generated tables replaced.

    Args:
        text: Markdown with marks around each table.
    """
    made = {
        f"options: {name}": markdown_table(options, COLUMNS) for name, options in TABLES.items()
    }
    return replace_tables(text, {**made, "outcomes": outcomes()})


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(with_generated_tables(before))
