"""The tables of docs/spark.md, generated: ``python -m distributedlog.spark.doc_tables docs/spark.md``.

Those of the options, and what becomes of a query whose log was truncated, deleted or made again.
"""

import sys
from dataclasses import Field
from typing import Any

from ..log.format.dlsn import DLSN
from ..log.model.deleted_log import DeletedLog
from ..log.model.log_state import LogEnd
from ..log.model.position_outcome import CurrentLog, HeldPosition, LogLookup, PositionOutcome
from ..runtime.declarations.options import Columns, table, with_tables
from .options.options import SinkOptions, SourceOptions
from .read.data_loss_policy import Do, Rules, SourceDecision, decide

TABLES: dict[str, type[Any]] = {"source": SourceOptions, "sink": SinkOptions}


def _kafka(one: Field[Any]) -> str:
    said: str = one.metadata["kafka"]
    return said if " " in said or said == "–" else f"`{said}`"


COLUMNS: Columns = {
    "option": lambda one: f"`{one.metadata['name']}`",
    "default": lambda one: one.metadata["shown"],
    "meaning": lambda one: one.metadata["reason"],
    "Kafka's": _kafka,
}


OLD, NEW = f"{7:016x}", f"{8:016x}"
HELD = HeldPosition(DLSN(1, 9, 0), OLD, 900)
AGAIN = CurrentLog(NEW, DLSN(1, 0, 0), 0, DLSN(1, 5, 0))


def _gone(log_id: int, records: int, *, exact: bool = True) -> DeletedLog:
    return DeletedLog(log_id, LogEnd(DLSN(2, 0, 0), records, exact), 0, 0)


def _there(first: int) -> LogLookup:
    """The log itself, truncated to this entry, of a hundred records each."""
    return LogLookup(CurrentLog(OLD, DLSN(1, first, 0), 100 * first, DLSN(1, 20, 0)))


CASES: list[tuple[str, LogLookup]] = [
    ("the log, its first position at or before the query's", _there(2)),
    ("the log, truncated beyond the query's position: 300 records between", _there(12)),
    ("the log was deleted, all of it had been read", LogLookup(None, [_gone(7, 900)])),
    ("the log was deleted, it held 500 more", LogLookup(None, [_gone(7, 1400)])),
    (
        "deleted while its bookies were away, or so long ago that its end is forgotten",
        LogLookup(None, [_gone(7, 900, exact=False)]),
    ),
    ("the log is being deleted at this moment", LogLookup(None, [], deleting=True)),
    (
        "deleted, all of it had been read; another log has its name now",
        LogLookup(AGAIN, [_gone(7, 900)]),
    ),
    ("deleted with 500 unread; another log has its name now", LogLookup(AGAIN, [_gone(7, 1400)])),
    (
        "another log has its name now, one between the two came and went with 40 records",
        LogLookup(AGAIN, [_gone(7, 900), _gone(9, 40)]),
    ),
]
"""What can be found of a log up to record 900 of which a query has read."""


def outcomes() -> str:
    """What `decide` makes of each case, as Markdown."""
    lines = [
        "| found | `failOnDataLoss=true` | `failOnDataLoss=false` |",
        "| --- | --- | --- |",
    ]
    for words, found in CASES:
        cells = [
            _both(decide("a", HELD, found, Rules(fail, named=True)),
                  decide("a", HELD, found, Rules(fail, named=False)))
            for fail in (True, False)
        ]  # fmt: skip
        lines.append(f"| {words} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _both(named: SourceDecision, by_pattern: SourceDecision) -> str:
    mine, other = _outcome(named), _outcome(by_pattern)
    if mine == other:
        return mine
    return f"{mine}; of a `logPattern`: {other}"


def _outcome(decision: SourceDecision) -> str:
    lost = "" if decision.lost == 0 else f", {decision.lost or 'not known how many'} records lost"
    if decision.error is not None:
        return f"`{type(decision.error).__name__}`{lost}: the query ends"
    if decision.do is Do.KEEP:
        said = "its position stays, a next log of the name is looked for"
        if decision.met is PositionOutcome.DELETING:
            said = "its position stays, it is looked at again with the next trigger"
    elif decision.do is Do.LEAVE:
        said = "its position is dropped"
    elif decision.at == AGAIN.first and decision.met in (
        PositionOutcome.DELETED,
        PositionOutcome.RENAMED,
    ):
        said = "the new log is read by `newLogs`, from its beginning by default"
    else:
        said = (
            "goes on" if decision.at == HELD.dlsn else "goes on at the first position that is left"
        )
    return said + (f" (a warning{lost})" if decision.warning else "")


def renewed(text: str) -> str:
    """A document with the tables between its marks made anew."""
    made = {f"options: {name}": table(options, COLUMNS) for name, options in TABLES.items()}
    return with_tables(text, {**made, "outcomes": outcomes()})


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(renewed(before))
