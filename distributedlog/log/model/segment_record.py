"""The records of a log's segments, and the conditions for ending one (pure).

A segment is stored in one ledger. While it is in progress, its record only names that ledger. The transaction
that closes it stores the other fields, and the sequence ID, size and log time with which the next segment
starts.

Log time never decreases. The log time of an entry is its time stamp, or the lower limit of its segment if
that is greater.
"""

import struct
from dataclasses import astuple, dataclass, replace
from typing import Any

from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import NUMBER_MAX, verify_round_trip
from ..format.dlsn import DLSN
from ..format.record import (
    TXIDS_CONSTANT,
    TXIDS_IN_ENTRIES,
    TXIDS_INDEXED,
    EntryHeader,
    Origin,
    decode_header,
    find_section,
    with_section,
)
from .log_state import ClosedSegmentTotals, LogState, bool_to_int_txid, format_and_fields

FORMAT = 3
"""Format 1 ends with `SegmentRecord.last_slot`. Format 2 has one more field, the common txid of all its
records."""
FORMAT_SHARED = 4
"""The format of a segment that shares its ledger with others. It has one more field,
`SegmentRecord.base_bytes`.

A program without support for it would read the entries of other segments as entries of this one.
"""
UNKNOWN = -1
FORMAT_1_FIELDS, LAST_FORMAT_FIELDS, SHARED_FIELDS = 14, 20, 21
_TYPES = [int] * 5 + [bool] + [int] * 15
"""The types of the fields of a `SegmentRecord`, in order."""
_TXIDS = slice(7, 9)
"""The positions of the first and last txid in the list of fields."""
_MIN_FIELDS = {
    1: FORMAT_1_FIELDS + 1,
    2: FORMAT_1_FIELDS + 2,
    FORMAT: LAST_FORMAT_FIELDS + 1,
    FORMAT_SHARED: SHARED_FIELDS + 1,
}

END_FORMAT = 2
"""Format 1 has neither the time nor the order of txids."""
_END_FIELDS_MIN = {1: 8, END_FORMAT: 10}
_END_TXIDS = slice(3, 5)


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment of a log, stored as the value of ``log/<id>/segment/<number>``.

    Counts and positions are of user records only.
    """

    segment: int
    ledger_id: int
    epoch: int
    """The epoch of the writer that opened it."""
    created_ms: int
    start_sequence_id: int = UNKNOWN
    """The sequence ID of its first record, or -1 until the previous segment is closed."""
    closed: bool = False
    closed_ms: int = 0
    first_txid: int = UNKNOWN
    last_txid: int = UNKNOWN
    """The greatest txid of the log up to its end, even if the segment has no record. -1 if the log has
    none yet."""
    records: int = 0
    size_bytes: int = 0
    """Entry bytes, without replication."""
    last_entry: int = UNKNOWN
    last_user_entry: int = UNKNOWN
    last_slot: int = UNKNOWN
    bytes_before: int = UNKNOWN
    """Entry bytes of the log before it. -1 if the previous segment is in progress, or if the number is not
    known."""
    time_floor_ms: int = 0
    """Lower limit of the log time of its entries: the log's time when it was opened or linked."""
    last_time_ms: int = 0
    """Log time at its end, even if it has no record. 0 if it is not known (formats 1 and 2)."""
    txid_base: int = UNKNOWN
    """The txid of its first record if txids were assigned when it was linked, otherwise -1."""
    txid_rule: int = TXIDS_IN_ENTRIES
    """Where its txids are: in its entries, all equal to the base, or the base plus the record's index in
    the segment."""
    base_entry: int = 0
    """The entry of its ledger that is its entry 0. Above 0 only in a ledger with several segments."""
    base_bytes: int = UNKNOWN
    """Entry bytes before it in its ledger, if the ledger has several segments (`segment_merge.py`),
    otherwise -1."""
    unknown_fields: tuple[Any, ...] = ()
    """Fields of a newer program, as they were read."""

    @property
    def shares_ledger(self) -> bool:
        """Whether its ledger contains other segments too. Such a ledger is deleted with the last of them."""
        return self.base_bytes >= 0

    @property
    def first_dlsn(self) -> DLSN:
        """Its first position."""
        return DLSN(self.segment, 0, 0)

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the last user record. None if it is empty, or still in progress."""
        if self.last_user_entry < 0:
            return None
        return DLSN(self.segment, self.last_user_entry, self.last_slot)

    @property
    def end_sequence_id(self) -> int:
        """The sequence ID of the first record after it."""
        return self.start_sequence_id + self.records

    @property
    def end_time_ms(self) -> int:
        """The log time at the end of a closed segment. Approximate in old formats."""
        return self.last_time_ms or self.closed_ms

    @property
    def totals(self) -> ClosedSegmentTotals:
        """The totals that its close adds to the log's state."""
        return ClosedSegmentTotals(
            self.records,
            self.size_bytes,
            self.last_txid if self.records else UNKNOWN,
            self.last_time_ms,
            self.last_dlsn,
        )

    def origin(self, entry: int, header: EntryHeader) -> Origin:
        """Return the origin of the records of one of its entries."""
        return header.origin(
            self.segment,
            entry,
            self.start_sequence_id,
            txid_base=self.txid_base,
            txid_rule=self.txid_rule,
            time_floor_ms=self.time_floor_ms,
        )

    def max_txid_of(self, header: EntryHeader) -> int:
        """Return the greatest txid of the segment up to one of its entries."""
        return header.max_txid_in(self.txid_base, self.txid_rule)

    def time_of(self, header: EntryHeader) -> int:
        """Return the log time of one of its entries."""
        return max(header.written_ms, self.time_floor_ms)

    def with_start(self, state: LogState) -> "SegmentRecord":
        """Return the record with its start, given the log's state after the close of the previous segment."""
        return replace(
            self,
            start_sequence_id=state.next_sequence_id,
            bytes_before=state.bytes_total,
            time_floor_ms=max(self.time_floor_ms, state.time_ms),
        )

    def with_end(self, end: "SegmentEnd", state: LogState, *, closed_ms: int) -> "SegmentRecord":
        """Return the record of the closed segment.

        Args:
            end: The end of the segment.
            state: The log's state, in which all segments before this one are closed, and this one is not.
            closed_ms: The wall clock.
        """
        assert not self.closed, "a segment is closed once"
        started = self.with_start(state)
        return replace(
            started,
            closed=True,
            closed_ms=closed_ms,
            first_txid=end.first_txid,
            last_txid=max(end.last_txid, state.last_txid),
            last_time_ms=max(end.last_time_ms, started.time_floor_ms),
            records=end.records,
            size_bytes=end.size_bytes,
            last_entry=end.last_entry,
            last_user_entry=end.last_user_entry,
            last_slot=end.last_slot,
        )

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the record as a packed list with a format number."""
        written_in, extra_fields = (
            (FORMAT_SHARED, [self.base_bytes]) if self.shares_ledger else (FORMAT, [])
        )
        return pack(
            [
                written_in,
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
                self.bytes_before,
                self.time_floor_ms,
                self.last_time_ms,
                self.txid_base,
                self.txid_rule,
                self.base_entry,
                *extra_fields,
                *self.unknown_fields,
            ]
        )

    @classmethod
    def decode(cls, value: Buffer) -> "SegmentRecord":
        """Decode the record.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote the value.
        """
        written_in, fields = format_and_fields(value, _MIN_FIELDS, "a segment's record")
        known_fields = [*fields[:LAST_FORMAT_FIELDS], UNKNOWN]
        if written_in == FORMAT_SHARED:
            known_fields = fields[:SHARED_FIELDS]
        if written_in < FORMAT:
            common_txid = fields[FORMAT_1_FIELDS] if written_in == 2 else UNKNOWN
            txid_rule = TXIDS_IN_ENTRIES if common_txid == UNKNOWN else TXIDS_CONSTANT
            known_fields = [
                *fields[:FORMAT_1_FIELDS],
                UNKNOWN,
                0,
                0,
                common_txid,
                txid_rule,
                0,
                UNKNOWN,
            ]
        # Checked without a schema, which is slower: a log may have a hundred thousand of these.
        if [*map(type, known_fields)] != _TYPES:
            known_fields[_TXIDS] = map(bool_to_int_txid, known_fields[_TXIDS])
        if (
            [*map(type, known_fields)] != _TYPES
            or min(known_fields) < -1
            or max(known_fields) > NUMBER_MAX
        ):
            raise CorruptData("a segment's record has a field that is not a number in range")
        known_count = {FORMAT: LAST_FORMAT_FIELDS, FORMAT_SHARED: SHARED_FIELDS}.get(
            written_in, len(fields)
        )
        known_fields.append(tuple(fields[known_count:]))
        record = cls(*known_fields)
        if (
            record.base_entry and not record.shares_ledger
        ) or not record.txid_rule <= TXIDS_INDEXED:
            raise UnsupportedFormat(
                f"segment {record.segment} begins at entry {record.base_entry} of its ledger, with txids by "
                f"rule {record.txid_rule}: this program does not support that"
            )
        if record.base_entry < 0 or (
            written_in == FORMAT_SHARED and not (record.shares_ledger and record.closed)
        ):
            raise CorruptData(
                f"segment {record.segment} shares a ledger, and is not closed or has no base"
            )
        if record.txid_rule < TXIDS_IN_ENTRIES or (record.txid_rule == TXIDS_IN_ENTRIES) != (
            record.txid_base < 0
        ):
            raise CorruptData(f"segment {record.segment} has txid base and no rule, or the reverse")
        return record


def stores_bool_txid(value: Buffer) -> bool:
    """Return whether the record of a segment stores true or false as a txid (see `bool_to_int_txid`).

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    _, fields = format_and_fields(value, _MIN_FIELDS, "a segment's record")
    return bool in map(type, fields[_TXIDS])


def end_stores_bool_txid(value: Buffer) -> bool:
    """Return whether a segment's end stores true or false as a txid (see `bool_to_int_txid`).

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    _, fields = format_and_fields(value, _END_FIELDS_MIN, "a segment's end")
    return bool in map(type, fields[_END_TXIDS])


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The end of a segment, as its writer counted it or a recovery read it.

    If it has records and its txids are -1, the txids are assigned when it is linked.
    """

    last_entry: int
    size_bytes: int
    records: int
    first_txid: int
    last_txid: int
    last_user_entry: int
    last_slot: int
    last_time_ms: int = 0
    """The time stamp of its last entry, or 0 if it is not known or there is none."""
    is_unordered: bool = False
    """Whether a txid is lower than an earlier one, as counted by the writer. A recovery does not check it."""
    stores_max_txid: bool = False
    """Whether its last txid is the greatest one, and its entries store the greatest txid so far. Older
    programs store the txid of the last record."""
    has_producer_snapshot: bool = False
    """Whether its last entry refers to a snapshot of the log's producers. Not encoded, because only the
    closing client needs it."""

    @property
    def needs_txids(self) -> bool:
        """Whether the txids of its records are assigned when it is linked."""
        return self.records > 0 and self.first_txid < 0

    def with_txids(self, base: int, txid_rule: int) -> "SegmentEnd":
        """Return the end with assigned txids.

        Args:
            base: The txid of the first record.
            txid_rule: As in a `SegmentRecord`.
        """
        assert self.needs_txids, "records that have txids keep them"
        last = base + self.records - 1 if txid_rule == TXIDS_INDEXED else base
        return replace(self, first_txid=base, last_txid=last)

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the end as a packed list with a format number, which is stored in the ledger's metadata."""
        return pack([END_FORMAT, *astuple(self)[:9], *([True] if self.stores_max_txid else ())])

    @classmethod
    def decode(cls, value: Buffer) -> "SegmentEnd":
        """Decode the end.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote the value.
        """
        written_in, fields = format_and_fields(value, _END_FIELDS_MIN, "a segment's end")
        fields = fields[:7] + (fields[7:10] if written_in == END_FORMAT else [0, False])
        fields += [False] * (10 - len(fields))
        fields[_END_TXIDS] = map(bool_to_int_txid, fields[_END_TXIDS])
        if (
            [*map(type, fields)] != [int] * 8 + [bool] * 2
            or min(fields) < -1
            or max(fields) > NUMBER_MAX
        ):
            raise CorruptData("a segment's end has a field that is not a number in range")
        return cls(*fields)


EMPTY_END = SegmentEnd(UNKNOWN, 0, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


def roll_reason(
    *,
    bytes_written: int,
    bytes_max: float,
    user_bytes: int,
    age_s: float,
    age_max_s: float,
    ledger_needs_roll: bool,
) -> str:
    """Return the reason to end the segment in progress now, or "" if there is none.

    Args:
        bytes_written: The size of the segment.
        bytes_max: The maximum size.
        user_bytes: The part of ``bytes_written`` that is for records. If it is 0, the segment does not end by
            age.
        age_s: The age of the segment.
        age_max_s: The maximum age.
        ledger_needs_roll: Whether the ledger's writer recommends a new ledger.
    """
    if ledger_needs_roll:
        return "a better ensemble than the ledger's is available"
    if bytes_written >= bytes_max:
        return f"it holds {bytes_written} bytes"
    if age_s >= age_max_s and user_bytes > 0:
        return f"it is {age_s:.0f} s old"
    return ""


# A writer starts a segment when all entries of the previous one are acknowledged, and never writes to that
# one again (H11). Its end is therefore final long before the log's metadata contains it (inv. 3, inv. 20).
# The first entry of the new segment contains that end in section 5, little-endian. If it is absent, readers
# wait for the close.
#     last entry of the previous segment i64 (-1: none) | sequence ID of the first record here i64
SECTION_BEGIN = 5
_BEGIN = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class SegmentBegin:
    """The start of a segment: the end of the previous one."""

    last_entry: int
    """The last entry of the previous segment, including control entries, or -1 if it has none."""
    sequence_id: int
    """The sequence ID of the first record of this segment."""

    def add_to_entry(self, buffers: list[Buffer], length: int) -> tuple[list[Buffer], int]:
        """Return an entry of `build_entry`, and its length in bytes, with this section added."""
        packed = _BEGIN.pack(self.last_entry, self.sequence_id)
        return with_section(buffers, length, SECTION_BEGIN, packed)


def segment_begin(entry: Buffer) -> SegmentBegin | None:
    """Return the start that the first entry of a segment contains, or None.

    Raises:
        CorruptData: The section is invalid.
        UnsupportedFormat: A newer version wrote the entry.
    """
    section = find_section(entry, decode_header(entry), SECTION_BEGIN)
    if section is None:
        return None
    if len(section) < _BEGIN.size:
        raise CorruptData(
            f"the start section of a segment's first entry has only {len(section)} bytes"
        )
    begin = SegmentBegin(*_BEGIN.unpack_from(section))
    if begin.last_entry < -1 or begin.sequence_id < 0:
        raise CorruptData(f"a segment has an impossible start: {begin}")
    return begin
