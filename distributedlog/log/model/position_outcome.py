"""What a held position meets: its log goes on, was truncated, deleted, or made again (pure).

One function, `resolve_position`, of what somebody holds and what is found; nothing else decides. A reader
that has fallen behind, one that is opened, ranges in another process, several logs as one and Spark's queries
ask it, so one event has one outcome, and the same number of lost records (H154).

Where nobody answers there is nothing to decide: that is an error of the store, which is asked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ...runtime.interfaces.errors import (
    DistributedLogError,
    LogDeleted,
    LogNotFound,
    LogRecreated,
    LogTruncated,
)
from ..format.dlsn import DLSN
from .deleted_log import DeletedLog
from .log_keys import incarnation_text
from .log_state import LogEnd, LogState
from .position import Position


@dataclass(frozen=True, slots=True)
class HeldPosition:
    """Of one log: the next position to read."""

    dlsn: DLSN
    identity: str
    """Of the log's incarnation, 16 hex digits."""
    sequence_id: int | None
    """Of the record there; None where it was not known."""

    @classmethod
    def of(cls, position: Position) -> "HeldPosition":
        """One that was proved."""
        return cls(position.dlsn, position.incarnation, position.sequence_id)


@dataclass(frozen=True, slots=True)
class CurrentLog:
    """The log of a name that is there now."""

    identity: str
    first: DLSN
    """The first position that is left."""
    first_sequence_id: int
    end: DLSN | None = None
    """After all that can be read; None: nobody asked."""
    point: DLSN | None = None
    """Where it was truncated: at or before `first`, with no record between. None: at `first`."""

    @classmethod
    def of(cls, state: LogState, end: DLSN | None = None) -> "CurrentLog":
        """As its state says."""
        identity = incarnation_text(state.log_id)
        return cls(
            identity, state.earliest, state.truncated_sequence_id, end, point=state.truncated_to
        )


@dataclass(frozen=True, slots=True)
class LogLookup:
    """What the store says of a name, and of the log that is held."""

    there: CurrentLog | None = None
    gone: Sequence[DeletedLog] = ()
    """The logs of this name that were deleted, as far as they are remembered, in that order."""
    deleting: bool = False
    """The log that is held is being deleted, and where it ends is not noted yet."""
    renamed: str = ""
    """What the log that is held is called now; "": it is gone."""
    successor: str = ""
    """Which log has the name now, where no more than that is known of it."""

    @classmethod
    def of(cls, state: LogState) -> "LogLookup":
        """Of the log that is held. Until its end is noted, all that a deleted log had is there."""
        if state.end is None:
            return cls(CurrentLog.of(state))
        return cls(gone=(DeletedLog.of(state, 0),))


class PositionOutcome(Enum):
    """What is met."""

    GO_ON = "go on"
    TRUNCATED = "truncated"
    DELETING = "deleting"
    """Whether all of it was had is not known yet."""
    DELETED = "deleted"
    RENAMED = "renamed"
    """It is there, under another name."""


@dataclass(frozen=True, slots=True)
class PositionResolution:
    """What has become of the log, and of the records from the held position on."""

    met: PositionOutcome
    at: DLSN | None = None
    """Where it goes on, perhaps the same place by another name; truncated: the first position left."""
    lost: int | None = 0
    """Records that were there and will never be read; None: not known how many, if any."""
    end: LogEnd | None = None
    """Of a deleted log, if anybody remembers."""
    successor: str = ""
    """The log that has the name now."""
    renamed: str = ""

    def told(self, name: str, held: HeldPosition) -> str:
        """In words."""
        what = f'log "{name}" '
        if self.met is PositionOutcome.TRUNCATED:
            lost = (
                "its records up to there are lost" if self.lost is None else records_lost(self.lost)
            )
            return (
                f"{what}was truncated: wanted {held.dlsn}, its first position is {self.at}, {lost}"
            )
        if self.met is PositionOutcome.DELETING:
            return f"{what}is being deleted: whether all of it was read is not known yet"
        what += f'is called "{self.renamed}" now' if self.renamed else "was deleted"
        if self.renamed and not self.successor:
            return what
        what += " and made again" if self.successor else ""
        if self.lost == 0:
            return f"{what}; all of it had been read"
        if self.lost is None:
            return f"{what}: read up to {held.dlsn}; whether that was all of it is not known"
        return f"{what}: read up to {held.dlsn}, {records_lost(self.lost)}"

    def error(self, name: str, held: HeldPosition) -> DistributedLogError:
        """For whoever cannot go on."""
        assert self.met is not PositionOutcome.GO_ON, "nothing is wrong"
        return self.error_of(self.told(name, held))

    def error_of(self, message: str) -> DistributedLogError:
        """As `error`, in other words."""
        if self.met is PositionOutcome.TRUNCATED:
            return LogTruncated(message, LogTruncated.packed(str(self.at), self.lost))
        end = "" if self.end is None else str(self.end.dlsn)
        exact = self.end is not None and self.end.exact
        detail = LogDeleted.packed(end, self.lost, exact)
        if self.successor:
            return LogRecreated(message, detail)
        return LogNotFound(message) if self.renamed else LogDeleted(message, detail)


def resolve_position(held: HeldPosition, found: LogLookup) -> PositionResolution:
    """What has become of the log of this position."""
    there = found.there
    if there is not None and there.identity == held.identity:
        return _go_on(held, there)
    if found.deleting:
        return PositionResolution(PositionOutcome.DELETING, lost=None)
    successor = found.successor if there is None else there.identity
    if found.renamed:
        return PositionResolution(
            PositionOutcome.RENAMED, lost=None, successor=successor, renamed=found.renamed
        )
    for one in found.gone:
        if one.identity == held.identity:
            return PositionResolution(
                PositionOutcome.DELETED, None, _left(held, one), one.end, successor
            )
    return PositionResolution(PositionOutcome.DELETED, lost=None, successor=successor)


def _go_on(held: HeldPosition, there: CurrentLog) -> PositionResolution:
    """The same log: is the position still there?"""
    first = there.first
    if held.dlsn >= (there.point or first):
        return PositionResolution(PositionOutcome.GO_ON, max(held.dlsn, first))
    lost = None if held.sequence_id is None else max(0, there.first_sequence_id - held.sequence_id)
    if lost == 0 or there.first_sequence_id == 0:
        return PositionResolution(
            PositionOutcome.GO_ON, first
        )  # nothing but control records, or empty segments
    return PositionResolution(PositionOutcome.TRUNCATED, first, lost)


def _left(held: HeldPosition, one: DeletedLog) -> int | None:
    """How much of a deleted log lies after a position."""
    if not one.end.exact:
        return None
    if held.sequence_id is not None:
        return max(0, one.end.sequence_id - held.sequence_id)
    return 0 if held.dlsn >= one.end.dlsn else None


def records_lost(number: int) -> str:
    """For people."""
    return f"{number} record{' is' if number == 1 else 's are'} lost"
