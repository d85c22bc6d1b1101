"""What a query does about a log that it was reading and that was truncated, deleted, or made again (pure).

One function, `decide`, of what the checkpoint holds and what is found; nothing else decides. It knows neither
whether the query was running meanwhile, nor which question of Spark's asks, nor whether the log was named or
matched a pattern (but for what is kept of a log that is gone): so one event has one outcome. The table in
docs/spark.md is made of it (`doc_tables.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..log.dlsn import DLSN
from ..log.tombstone import Tombstone
from ..runtime.errors import DistributedLogError, LogNotFound, LogRecreated, LogTruncated


@dataclass(frozen=True, slots=True)
class HeldPosition:
    """Of one log, what an offset holds: the next position to read."""

    dlsn: DLSN
    identity: str
    sequence_id: int | None
    """Of the record there; None where it was not known."""


@dataclass(frozen=True, slots=True)
class There:
    """The log of this name that is there now."""

    identity: str
    first: DLSN
    """The first position that is left."""
    first_sequence_id: int
    end: DLSN


@dataclass(frozen=True, slots=True)
class FoundLog:
    """What the cluster says of a name."""

    there: There | None = None
    gone: Sequence[Tombstone] = ()
    """The logs of this name that were deleted, as far as they are remembered, in that order."""
    deleting: bool = False
    """The log that is held is being deleted, and where it ends is not noted yet."""
    renamed: str = ""
    """What the log that is held is called now; "": it is gone."""


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
class Decision:
    """What to do, from where, and what is said."""

    do: Do
    at: DLSN | None = None
    lost: int | None = 0
    """Records that were acknowledged and will never be read; None: not known how many, if any."""
    warning: str = ""
    error: DistributedLogError | None = field(default=None, compare=False)


def decide(name: str, held: HeldPosition | None, found: FoundLog, rules: Rules) -> Decision:
    """What to do about one log. ``held``: None for one that the checkpoint does not know."""
    if held is None:
        return _begin(found.there, rules)
    if not rules.wanted:
        return Decision(
            Do.LEAVE,
            warning=f'log "{name}" of the checkpoint is not among the options: its position is dropped',
        )
    there = found.there
    if there is not None and there.identity == held.identity:
        return _go_on(name, held, there, rules)
    if found.deleting:
        return Decision(
            Do.KEEP,
            warning=f'log "{name}" is being deleted: whether all of it was read is not known yet',
        )
    if found.renamed and there is None:
        return Decision(
            Do.KEEP,
            warning=f'log "{name}" is called "{found.renamed}" now: nothing more is read from it, its '
            "position is kept",
        )
    lost = lost_by_deletion(held, found.gone, rules)
    went = f'is called "{found.renamed}" now' if found.renamed else "was deleted"
    what = f'log "{name}" {went}' + ("" if there is None else " and made again")
    if lost == 0:
        said = f"{what}; all of it had been read"
    elif lost is None:
        said = f"{what}: read up to {held.dlsn}; whether that was all of it is not known"
    else:
        said = f"{what}: read up to {held.dlsn}, {_records(lost)}"
    if lost != 0 and rules.fail_on_data_loss:
        kind = LogNotFound if there is None else LogRecreated
        error = kind(f'{said}; "failOnDataLoss"=false goes on without them')
        return Decision(Do.FAIL, None, lost, error=error)
    if lost != 0:
        said += " (failOnDataLoss=false)"
    if there is None and rules.named:
        # Of what is named, nothing may come and go unseen: the next log of the name is met from here.
        return Decision(Do.KEEP, None, lost, said)
    then = _begin(there, rules)
    if then.do is Do.READ:
        said += f"; the new log is read from {then.at} on"
    return Decision(then.do, then.at, lost, said)


def lost_by_deletion(held: HeldPosition, gone: Sequence[Tombstone], rules: Rules) -> int | None:
    """Records of the log that is held, and of those that came and went after it, that were never read."""
    at = next((n for n, one in enumerate(gone) if one.identity == held.identity), None)
    if at is None:
        return None
    lost = _left(held, gone[at])
    between = gone[at + 1 :] if rules.new_logs == "earliest" else ()
    for one in between:
        if lost is None or not one.end.exact:
            return None
        lost += max(0, one.end.sequence_id - one.first_sequence_id)
    return lost


def _left(held: HeldPosition, one: Tombstone) -> int | None:
    """How much of a deleted log lies after a position."""
    if not one.end.exact:
        return None
    if held.sequence_id is not None:
        return max(0, one.end.sequence_id - held.sequence_id)
    return 0 if held.dlsn >= one.end.dlsn else None


def _go_on(name: str, held: HeldPosition, there: There, rules: Rules) -> Decision:
    """The same log: is the position still there?"""
    first = there.first
    if held.dlsn >= first:
        return Decision(Do.READ, held.dlsn)
    lost = None if held.sequence_id is None else max(0, there.first_sequence_id - held.sequence_id)
    if lost == 0 or there.first_sequence_id == 0:
        return Decision(Do.READ, first)  # nothing but control records, or an empty segment
    number = "its records up to there are lost" if lost is None else _records(lost)
    said = (
        f'log "{name}" was truncated: wanted {held.dlsn}, its first position is {first}, {number}'
    )
    if rules.fail_on_data_loss:
        error = LogTruncated(f'{said}; "failOnDataLoss"=false goes on from there', str(first))
        return Decision(Do.FAIL, None, lost, error=error)
    return Decision(Do.READ, first, lost, f"{said} (failOnDataLoss=false)")


def _begin(there: There | None, rules: Rules) -> Decision:
    """A log that was not read before, by ``newLogs``."""
    if there is None or rules.new_logs == "ignore":
        return Decision(Do.LEAVE)
    return Decision(Do.READ, there.first if rules.new_logs == "earliest" else there.end)


def _records(number: int) -> str:
    return f"{number} record{' is' if number == 1 else 's are'} lost"
