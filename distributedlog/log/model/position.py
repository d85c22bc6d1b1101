"""Position: where a reader continues, together with a proof that all records before it exist (pure).

A DLSN is an address, which any program can construct. A `Position` is issued by a reader, a snapshot or a
named position, so all records before it exist and are confirmed (H141). It also identifies the incarnation of
the log, and the number of records that a truncation removed can be computed from it. One place in a log can
have several DLSNs, for example after the last slot of an entry and at the first slot of the next. It has only
one sequence ID.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import total_ordering
from typing import Any, Literal

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import InvalidRequest
from ..format.dlsn import DLSN, check_dlsn
from ..format.log_clock import to_epoch_ms
from ..format.record import check_txid

_TEXT = re.compile(r"([0-9a-f]{16})/([0-9.]{5,34})/([0-9]{1,19})")


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """The position of the next record in one incarnation of a log.

    As text: ``9f3a0b6c12d4e5f7/1.12.4/4711``. Positions of one incarnation are ordered. Comparing the order
    of positions of different incarnations raises `InvalidRequest`.
    """

    incarnation: str
    """The incarnation of the log, 16 hex digits, as `LogSnapshot.incarnation`."""
    dlsn: DLSN
    """The DLSN of the next record, or where it will be. No record is between the last delivered one and this
    DLSN."""
    sequence_id: int
    """The sequence ID of the next record, which is the number of records that the log ever had before it."""

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.dlsn}/{self.sequence_id}"

    def __lt__(self, other: "Position") -> bool:
        if self.incarnation != other.incarnation:
            raise InvalidRequest(
                f"{self} and {other} are positions of different logs and have no order"
            )
        return (self.sequence_id, self.dlsn) < (other.sequence_id, other.dlsn)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for ``json.dumps``."""
        return {
            "incarnation": self.incarnation,
            "dlsn": str(self.dlsn),
            "sequence_id": self.sequence_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Position":
        """Return the position in a result of `to_json`.

        Raises:
            InvalidRequest: The value is not a position.
        """
        try:
            text = "{incarnation}/{dlsn}/{sequence_id}".format_map(value)
        except (KeyError, TypeError, ValueError):
            raise InvalidRequest(f"not a position: {str(value)[:120]}") from None
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Return the position in a result of ``str(position)``.

        Raises:
            InvalidRequest: The text is not a position.
        """
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidRequest(
                f"not a position: {str(text)[:80]!r}; the format is INCARNATION/DLSN/SEQUENCE_ID, such as "
                "9f3a0b6c12d4e5f7/1.12.4/4711"
            )
        return cls(match[1], DLSN.parse(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class TxidStart:
    """Start at the first record whose transaction ID is at least this one."""

    txid: int


@dataclass(frozen=True, slots=True)
class TimeStart:
    """Start at the first record whose log time is at least this one."""

    time_ms: int


ReadStart = Position | DLSN | TxidStart | TimeStart | Literal["earliest", "latest"]
"""Where a reader starts: after a position, at a DLSN, at a txid or time, or at an end of the log."""


def check_read_start(
    position: object, dlsn: object, txid: object, since: datetime | int | None, at: object
) -> ReadStart:
    """Return the start that the caller of `Log.open_reader` specified.

    Raises:
        InvalidRequest: More than one start is given, or one has the wrong type.
    """
    if sum(given is not None for given in (position, dlsn, txid, since)) > 1:
        raise InvalidRequest(
            "a reader starts at a position, a dlsn, a txid or a time; give only one of them"
        )
    since_ms = None if since is None else to_epoch_ms(since, "since")
    if not (position is None or isinstance(position, Position)):
        raise InvalidRequest(
            f"position must be a Position, not {quoted(position)}; use dlsn= for a DLSN"
        )
    if at not in ("earliest", "latest"):
        raise InvalidRequest(f'at must be "earliest" or "latest", not {quoted(at)}')
    if position is not None:
        return position
    if dlsn is not None:
        return check_dlsn(dlsn)
    if txid is not None:
        return TxidStart(check_txid(txid))
    if since_ms is not None:
        return TimeStart(since_ms)
    return "latest" if at == "latest" else "earliest"
