"""Decide the outcome of a held position: its log continues, was truncated, deleted or created again (pure).

A held position is one that a client stored or keeps in memory. Only the function `resolve_position` decides,
from the position and the state in the metadata store. It serves readers that have fallen behind, readers that
are opened, ranges in other processes, several logs that are read as one, and Spark queries. So one event has
the same outcome and the same number of lost records for all of them (H154).

If the metadata store does not answer, nothing is decided. That is an error of the store, and the request is
repeated.
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
    """The next position to read in one log."""

    dlsn: DLSN
    incarnation: str
    """The incarnation of the log, 16 hex digits."""
    sequence_id: int | None
    """The sequence ID of the record there, or None if it is not known."""

    @classmethod
    def of(cls, position: Position) -> "HeldPosition":
        """Return the held position for a proven `Position`."""
        return cls(position.dlsn, position.incarnation, position.sequence_id)


@dataclass(frozen=True, slots=True)
class CurrentLog:
    """The existing log of a name."""

    incarnation: str
    first_dlsn: DLSN
    """The first available position."""
    first_sequence_id: int
    end: DLSN | None = None
    """The position after all readable records, or None if it was not requested."""
    truncation_point: DLSN | None = None
    """The truncation point. It is at or before ``first_dlsn``, with no record between. None means at
    ``first_dlsn``."""

    @classmethod
    def of(cls, state: LogState, end: DLSN | None = None) -> "CurrentLog":
        """Return the log that a state describes."""
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
    """The information in the metadata store about a name and about the log of a held position."""

    current_log: CurrentLog | None = None
    deleted_logs: Sequence[DeletedLog] = ()
    """The deleted logs of this name that are still recorded, the last deleted last."""
    is_being_deleted: bool = False
    """Whether the log of the position is being deleted and its end is not stored yet."""
    current_name: str = ""
    """The present name of the log of the position, or "" if the log was deleted."""
    successor: str = ""
    """The incarnation of the log that has the name now, if ``current_log`` is not given."""

    @classmethod
    def of(cls, state: LogState) -> "LogLookup":
        """Return the information in the state of the held log.

        Until the end of a log that is being deleted is stored, all its records are available.
        """
        if state.end is None:
            return cls(CurrentLog.of(state))
        return cls(deleted_logs=(DeletedLog.of(state, 0),))


class PositionOutcome(Enum):
    """The outcome for a held position."""

    CONTINUE = "go on"
    TRUNCATED = "truncated"
    DELETING = "deleting"
    """It is not known yet whether all records were read."""
    DELETED = "deleted"
    RENAMED = "renamed"
    """The log exists under another name."""


@dataclass(frozen=True, slots=True)
class PositionResolution:
    """The outcome for a log and for its records from the held position on."""

    outcome: PositionOutcome
    position: DLSN | None = None
    """Where reading continues, possibly another DLSN of the same place. After a truncation, the first
    available position."""
    lost: int | None = 0
    """The number of records that existed and can never be read, or None if it is not known."""
    end: LogEnd | None = None
    """The end of a deleted log, if it is still recorded."""
    successor: str = ""
    """The incarnation of the log that has the name now."""
    current_name: str = ""

    def describe(self, name: str, held_position: HeldPosition) -> str:
        """Return the outcome as a sentence."""
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
        text += " and created again" if self.successor else ""
        if self.lost == 0:
            return f"{text}; all of it had been read"
        if self.lost is None:
            return (
                f"{text}: read up to {held_position.dlsn}; whether that was all of it is not known"
            )
        return f"{text}: read up to {held_position.dlsn}, {records_lost(self.lost)}"

    def error(self, name: str, held_position: HeldPosition) -> DistributedLogError:
        """Return the error for a reader that cannot continue."""
        assert self.outcome is not PositionOutcome.CONTINUE, "nothing is wrong"
        return self.error_with_message(self.describe(name, held_position))

    def error_with_message(self, message: str) -> DistributedLogError:
        """Return the same error as `error`, with another message."""
        if self.outcome is PositionOutcome.TRUNCATED:
            return LogTruncated(message, LogTruncated.encode_detail(str(self.position), self.lost))
        end = "" if self.end is None else str(self.end.dlsn)
        is_exact = self.end is not None and self.end.is_exact
        detail = LogDeleted.encode_detail(end, self.lost, is_exact)
        if self.successor:
            return LogRecreated(message, detail)
        return LogNotFound(message) if self.current_name else LogDeleted(message, detail)


def resolve_position(held_position: HeldPosition, lookup: LogLookup) -> PositionResolution:
    """Decide the outcome of a held position."""
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
        )  # only control records, or empty segments, were truncated
    return PositionResolution(PositionOutcome.TRUNCATED, first, lost)


def _records_left(held_position: HeldPosition, deleted_log: DeletedLog) -> int | None:
    """Return the number of records of a deleted log after a position, or None if it is not known."""
    if not deleted_log.end.is_exact:
        return None
    if held_position.sequence_id is not None:
        return max(0, deleted_log.end.sequence_id - held_position.sequence_id)
    return 0 if held_position.dlsn >= deleted_log.end.dlsn else None


def records_lost(number: int) -> str:
    """Return a phrase with the number of lost records, such as "3 records are lost"."""
    return f"{number} record{' is' if number == 1 else 's are'} lost"
