"""Position: where a reader goes on, as a value that proves what it says (pure).

A DLSN is an address, which anybody writes down. A `Position` is given by a reader, a snapshot or a named
position to whoever had everything before it: so what is before it is confirmed (H141), another log of the
same name is told apart, and what a truncation took has a number. One place may have several DLSNs (after the
last slot of an entry, the first of the next); its sequence id is one.
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
    """The next record of a log of one incarnation. As text: ``9f3a0b6c12d4e5f7/1.12.4/4711``."""

    incarnation: str
    """16 hex digits, as `LogSnapshot.incarnation`."""
    dlsn: DLSN
    """Of the next record, or where it will be: no record lies between the last one that was had and this."""
    sequence_id: int
    """Of the next record: how many records the log ever had before it."""

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.dlsn}/{self.sequence_id}"

    def __lt__(self, other: "Position") -> bool:
        if self.incarnation != other.incarnation:
            raise InvalidRequest(
                f"{self} and {other} are positions of different logs: neither is first"
            )
        return (self.sequence_id, self.dlsn) < (other.sequence_id, other.dlsn)

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``."""
        return {
            "incarnation": self.incarnation,
            "dlsn": str(self.dlsn),
            "sequence_id": self.sequence_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Position":
        """The other way round. Raises `InvalidRequest`."""
        try:
            text = "{incarnation}/{dlsn}/{sequence_id}".format_map(value)
        except (KeyError, TypeError, ValueError):
            raise InvalidRequest(f"not a position: {str(value)[:120]}") from None
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> "Position":
        """What ``str`` gives. Raises `InvalidRequest`."""
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidRequest(
                f"not a position: {str(text)[:80]!r}; it is written INCARNATION/DLSN/SEQUENCE_ID, such as "
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
    """Return the one start that the caller of `Log.open_reader` gave. Raises `InvalidRequest`."""
    if sum(given is not None for given in (position, dlsn, txid, since)) > 1:
        raise InvalidRequest(
            "a reader begins at a position, a dlsn, a txid or a time: give one of them"
        )
    since_ms = None if since is None else to_epoch_ms(since, "since")
    if not (position is None or isinstance(position, Position)):
        raise InvalidRequest(
            f"a position is a Position, not {quoted(position)}; pass a DLSN as dlsn="
        )
    if at not in ("earliest", "latest"):
        raise InvalidRequest(f'a reader begins at "earliest" or "latest", not at {quoted(at)}')
    if position is not None:
        return position
    if dlsn is not None:
        return check_dlsn(dlsn)
    if txid is not None:
        return TxidStart(check_txid(txid))
    if since_ms is not None:
        return TimeStart(since_ms)
    return "latest" if at == "latest" else "earliest"
