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
    incarnation: str
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

    incarnation: str
    first_dlsn: DLSN
    """The first position that is left."""
    first_sequence_id: int
    end: DLSN | None = None
    """After all that can be read; None: nobody asked."""
    truncation_point: DLSN | None = None
    """Where it was truncated: at or before `first`, with no record between. None: at `first`."""

    @classmethod
    def of(cls, state: LogState, end: DLSN | None = None) -> "CurrentLog":
        """As its state says."""
        incarnation = incarnation_text(state.log_id)
        return cls(
            incarnation,
            state.earliest,
            state.truncated_sequence_id,
            end,
            truncation_point=state.truncated_to,
        )


@dataclass(frozen=True, slots=True)
class LogLookup:
    """What the store says of a name, and of the log that is held."""

    current_log: CurrentLog | None = None
    deleted_logs: Sequence[DeletedLog] = ()
    """The logs of this name that were deleted, as far as they are remembered, in that order."""
    is_being_deleted: bool = False
    """The log that is held is being deleted, and where it ends is not noted yet."""
    current_name: str = ""
    """What the log that is held is called now; "": it is gone."""
    successor: str = ""
    """Which log has the name now, where no more than that is known of it."""

    @classmethod
    def of(cls, state: LogState) -> "LogLookup":
        """Of the log that is held. Until its end is noted, all that a deleted log had is there."""
        if state.end is None:
            return cls(CurrentLog.of(state))
        return cls(deleted_logs=(DeletedLog.of(state, 0),))


class PositionOutcome(Enum):
    """What is met."""

    CONTINUE = "go on"
    TRUNCATED = "truncated"
    DELETING = "deleting"
    """Whether all of it was had is not known yet."""
    DELETED = "deleted"
    RENAMED = "renamed"
    """It is there, under another name."""


@dataclass(frozen=True, slots=True)
class PositionResolution:
    """What has become of the log, and of the records from the held position on."""

    outcome: PositionOutcome
    position: DLSN | None = None
    """Where it goes on, perhaps the same place by another name; truncated: the first position left."""
    lost: int | None = 0
    """Records that were there and will never be read; None: not known how many, if any."""
    end: LogEnd | None = None
    """Of a deleted log, if anybody remembers."""
    successor: str = ""
    """The log that has the name now."""
    current_name: str = ""

    def describe(self, name: str, held_position: HeldPosition) -> str:
        """In words."""
        text = f'log "{name}" '
        if self.outcome is PositionOutcome.TRUNCATED:
            lost_text = (
                "its records up to there are lost" if self.lost is None else records_lost(self.lost)
            )
            return (
                f"{text}was truncated: wanted {held_position.dlsn}, its first position is "
                f"{self.position}, {lost_text}"
            )
        if self.outcome is PositionOutcome.DELETING:
            return f"{text}is being deleted: whether all of it was read is not known yet"
        text += f'is called "{self.current_name}" now' if self.current_name else "was deleted"
        if self.current_name and not self.successor:
            return text
        text += " and made again" if self.successor else ""
        if self.lost == 0:
            return f"{text}; all of it had been read"
        if self.lost is None:
            return (
                f"{text}: read up to {held_position.dlsn}; whether that was all of it is not known"
            )
        return f"{text}: read up to {held_position.dlsn}, {records_lost(self.lost)}"

    def error(self, name: str, held_position: HeldPosition) -> DistributedLogError:
        """For whoever cannot go on."""
        assert self.outcome is not PositionOutcome.CONTINUE, "nothing is wrong"
        return self.error_with_message(self.describe(name, held_position))

    def error_with_message(self, message: str) -> DistributedLogError:
        """As `error`, in other words."""
        if self.outcome is PositionOutcome.TRUNCATED:
            return LogTruncated(message, LogTruncated.packed(str(self.position), self.lost))
        end = "" if self.end is None else str(self.end.dlsn)
        is_exact = self.end is not None and self.end.is_exact
        detail = LogDeleted.packed(end, self.lost, is_exact)
        if self.successor:
            return LogRecreated(message, detail)
        return LogNotFound(message) if self.current_name else LogDeleted(message, detail)


def resolve_position(held_position: HeldPosition, lookup: LogLookup) -> PositionResolution:
    """What has become of the log of this position."""
    current_log = lookup.current_log
    if current_log is not None and current_log.incarnation == held_position.incarnation:
        return _resolve_in_log(held_position, current_log)
    if lookup.is_being_deleted:
        return PositionResolution(PositionOutcome.DELETING, lost=None)
    successor = lookup.successor if current_log is None else current_log.incarnation
    if lookup.current_name:
        return PositionResolution(
            PositionOutcome.RENAMED,
            lost=None,
            successor=successor,
            current_name=lookup.current_name,
        )
    for deleted_log in lookup.deleted_logs:
        if deleted_log.incarnation == held_position.incarnation:
            return PositionResolution(
                PositionOutcome.DELETED,
                None,
                _records_left(held_position, deleted_log),
                deleted_log.end,
                successor,
            )
    return PositionResolution(PositionOutcome.DELETED, lost=None, successor=successor)


def _resolve_in_log(held_position: HeldPosition, current_log: CurrentLog) -> PositionResolution:
    """The same log: is the position still there?"""
    first = current_log.first_dlsn
    if held_position.dlsn >= (current_log.truncation_point or first):
        return PositionResolution(PositionOutcome.CONTINUE, max(held_position.dlsn, first))
    lost = (
        None
        if held_position.sequence_id is None
        else max(0, current_log.first_sequence_id - held_position.sequence_id)
    )
    if lost == 0 or current_log.first_sequence_id == 0:
        return PositionResolution(
            PositionOutcome.CONTINUE, first
        )  # nothing but control records, or empty segments
    return PositionResolution(PositionOutcome.TRUNCATED, first, lost)


def _records_left(held_position: HeldPosition, deleted_log: DeletedLog) -> int | None:
    """How much of a deleted log lies after a position."""
    if not deleted_log.end.is_exact:
        return None
    if held_position.sequence_id is not None:
        return max(0, deleted_log.end.sequence_id - held_position.sequence_id)
    return 0 if held_position.dlsn >= deleted_log.end.dlsn else None


def records_lost(number: int) -> str:
    """For people."""
    return f"{number} record{' is' if number == 1 else 's are'} lost"
