"""The segments of a log: what is known of each, when one ends (pure).

A segment is one ledger. While it is in progress its record holds only where it lies; the transaction that
closes it fills in the rest, and writes the start sequence id of the next one.
"""

from dataclasses import astuple, dataclass, replace

from ..runtime.errors import CorruptData
from ..runtime.frames import pack
from ..runtime.host import Buffer
from ..runtime.schema import NUMBER_MAX
from .dlsn import DLSN
from .state import decode_fields

FORMAT = 1
FORMAT_GIVEN = 2
"""Of a segment whose txid was given when it was linked: who does not know of that must not read it."""
UNKNOWN = -1
_TYPES = [int] * 5 + [bool] + [int] * 9
"""Of the fields of a `SegmentRecord`, in order; the last one is not always there."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The value of ``log/<id>/segment/<number>``. Counts and positions are of user records only."""

    segment: int
    ledger_id: int
    epoch: int
    """Of the writer that opened it."""
    created_ms: int
    start_sequence_id: int = UNKNOWN
    """The sequence id of its first record; -1 until the segment before it is closed."""
    closed: bool = False
    closed_ms: int = 0
    first_txid: int = UNKNOWN
    last_txid: int = UNKNOWN
    """The greatest up to its end, also where it holds no record itself; -1: the log has none yet."""
    records: int = 0
    size_bytes: int = 0
    """Entry bytes, without replication."""
    last_entry: int = UNKNOWN
    last_user_entry: int = UNKNOWN
    last_slot: int = UNKNOWN
    given_txid: int = UNKNOWN
    """Of all its records, given when it was linked; -1: they have their own."""

    @property
    def first_dlsn(self) -> DLSN:
        """The first position in it."""
        return DLSN(self.segment, 0, 0)

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last user record; None: empty, or still in progress."""
        if self.last_user_entry < 0:
            return None
        return DLSN(self.segment, self.last_user_entry, self.last_slot)

    @property
    def end_sequence_id(self) -> int:
        """Of the first record after it."""
        return self.start_sequence_id + self.records

    def numbered(self, start_sequence_id: int) -> "SegmentRecord":
        """The segment before it is closed: now it is known where its sequence ids begin."""
        return replace(self, start_sequence_id=start_sequence_id)

    def with_end(
        self, end: "SegmentEnd", *, start_sequence_id: int, last_txid: int, closed_ms: int
    ) -> "SegmentRecord":
        """The record of the closed segment; ``last_txid`` is the log's greatest up to its end."""
        assert not self.closed, "a segment is closed once"
        return replace(
            self,
            start_sequence_id=start_sequence_id,
            closed=True,
            closed_ms=closed_ms,
            first_txid=end.first_txid,
            last_txid=last_txid,
            records=end.records,
            size_bytes=end.size_bytes,
            last_entry=end.last_entry,
            last_user_entry=end.last_user_entry,
            last_slot=end.last_slot,
        )

    def encode(self) -> bytes:
        """As a packed list with a format number."""
        given = self.given_txid >= 0
        return pack(
            [
                FORMAT_GIVEN if given else FORMAT,
                self.segment,
                self.ledger_id,
                self.epoch,
                self.created_ms,
                self.start_sequence_id,
                self.closed,
                self.closed_ms,
                self.first_txid,
                self.last_txid,
                self.records,
                self.size_bytes,
                self.last_entry,
                self.last_user_entry,
                self.last_slot,
                *([self.given_txid] if given else []),
            ]
        )

    @classmethod
    def decode(cls, value: Buffer) -> "SegmentRecord":
        """Raises `CorruptData`, or `UnsupportedFormat` for what a newer version wrote."""
        fields = decode_fields(value, FORMAT_GIVEN, 15, "a segment's record")[:15]
        # Not by a form: a log may have a hundred thousand of these.
        if (
            [*map(type, fields)] != _TYPES[: len(fields)]
            or min(fields) < -1
            or max(fields) > NUMBER_MAX
        ):
            raise CorruptData("a segment's record has a field that is not a number in range")
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What the one who closes a segment knows about it: its writer by counting, recovery by reading.

    With records and without txids (-1): they are given when it is linked.
    """

    last_entry: int
    size_bytes: int
    records: int
    first_txid: int
    last_txid: int
    last_user_entry: int
    last_slot: int

    @property
    def wants_txid(self) -> bool:
        """Is its records' txid given when it is linked?"""
        return self.records > 0 and self.first_txid < 0

    def with_txid(self, txid: int) -> "SegmentEnd":
        """All its records have this one."""
        assert self.wants_txid, "records that have txids keep them"
        return replace(self, first_txid=txid, last_txid=txid)

    def encode(self) -> bytes:
        """As a packed list with a format number: a ledger's own account, kept in its record."""
        return pack([FORMAT, *astuple(self)])

    @classmethod
    def decode(cls, value: Buffer) -> "SegmentEnd":
        """Raises `CorruptData`, or `UnsupportedFormat` for what a newer version wrote."""
        fields = decode_fields(value, FORMAT, 8, "a segment's end")[:7]
        if not all(type(field) is int and -1 <= field <= NUMBER_MAX for field in fields):
            raise CorruptData("a segment's end has a field that is not a number in range")
        return cls(*fields)


EMPTY_END = SegmentEnd(UNKNOWN, 0, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


def why_roll(
    *,
    bytes_written: int,
    bytes_max: int,
    age_s: float,
    age_max_s: float,
    ledger_wants: bool,
) -> str:
    """Why the segment in progress should end now, in words; "" when it should not."""
    if ledger_wants:
        return "a better ensemble than the ledger's is there"
    if bytes_written >= bytes_max:
        return f"it holds {bytes_written} bytes"
    if age_s >= age_max_s and bytes_written > 0:
        return f"it is {age_s:.0f} s old"
    return ""
