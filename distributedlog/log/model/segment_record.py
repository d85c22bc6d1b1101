"""The segments of a log: what is known of each, when one ends (pure).

A segment is one ledger. While it is in progress its record holds only where it lies; the transaction that
closes it fills in the rest, and writes where the next one's sequence ids, bytes and log time begin.

Log time never goes back: an entry's is the greater of its own stamp and its segment's floor.
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
"""1: without what is after `SegmentRecord.last_slot`; 2: one field after it, the txid of all its records."""
FORMAT_SHARED = 4
"""Of a segment that shares its ledger with others: one more field, `SegmentRecord.base_bytes`. Who does not
know that would read its neighbours' entries as its own."""
UNKNOWN = -1
FORMAT_1_FIELDS, LAST_FORMAT_FIELDS, SHARED_FIELDS = 14, 20, 21
_TYPES = [int] * 5 + [bool] + [int] * 15
"""Of the fields of a `SegmentRecord`, in order."""
_TXIDS = slice(7, 9)
"""Where its first and last txid are among them."""
_MIN_FIELDS = {
    1: FORMAT_1_FIELDS + 1,
    2: FORMAT_1_FIELDS + 2,
    FORMAT: LAST_FORMAT_FIELDS + 1,
    FORMAT_SHARED: SHARED_FIELDS + 1,
}

END_FORMAT = 2
"""1: without time and order."""


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
    bytes_before: int = UNKNOWN
    """Entry bytes of the log before it; -1: the segment before it is in progress, or it is not known."""
    time_floor_ms: int = 0
    """No entry of it counts as written before this: the log's time when it was opened or linked."""
    last_time_ms: int = 0
    """Log time at its end, also where it holds no record; 0: not known, in formats 1 and 2."""
    txid_base: int = UNKNOWN
    """Of its first record, where txids were given when it was linked; else -1."""
    txid_rule: int = TXIDS_IN_ENTRIES
    """Whether they are in its entries, or all the base, or the base and the record's index in the segment."""
    base_entry: int = 0
    """Its entry 0 is this one of its ledger. Other than 0 only in a ledger that holds several segments."""
    base_bytes: int = UNKNOWN
    """Entry bytes of the ledger before it, where the ledger holds several segments (`segment_merge.py`); else
    -1."""
    unknown_fields: tuple[Any, ...] = ()
    """Fields of a newer program, as they were read."""

    @property
    def shares_ledger(self) -> bool:
        """Does its ledger hold other segments too? Then it goes with the last of them."""
        return self.base_bytes >= 0

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

    @property
    def end_time_ms(self) -> int:
        """The log time at the end of a closed segment; of an old format about that."""
        return self.last_time_ms or self.closed_ms

    @property
    def totals(self) -> ClosedSegmentTotals:
        """What it adds to the log's state when it is closed."""
        return ClosedSegmentTotals(
            self.records,
            self.size_bytes,
            self.last_txid if self.records else UNKNOWN,
            self.last_time_ms,
            self.last_dlsn,
        )

    def origin(self, entry: int, header: EntryHeader) -> Origin:
        """Of the records of one of its entries."""
        return header.origin(
            self.segment,
            entry,
            self.start_sequence_id,
            txid_base=self.txid_base,
            txid_rule=self.txid_rule,
            time_floor_ms=self.time_floor_ms,
        )

    def max_txid_of(self, header: EntryHeader) -> int:
        """Return the greatest of its txids up to one of its entries."""
        return header.max_txid_in(self.txid_base, self.txid_rule)

    def time_of(self, header: EntryHeader) -> int:
        """The log time of one of its entries."""
        return max(header.written_ms, self.time_floor_ms)

    def with_start(self, state: LogState) -> "SegmentRecord":
        """``state``: when the segment before it is closed. Now it is known what comes before it."""
        return replace(
            self,
            start_sequence_id=state.next_sequence_id,
            bytes_before=state.bytes_total,
            time_floor_ms=max(self.time_floor_ms, state.time_ms),
        )

    def with_end(self, end: "SegmentEnd", state: LogState, *, closed_ms: int) -> "SegmentRecord":
        """The record of the closed segment; ``state``: with all segments before it closed, itself not."""
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
        """As a packed list with a format number."""
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
        """Raises `CorruptData`, or `UnsupportedFormat` for what a newer version wrote."""
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
        # Not by a form: a log may have a hundred thousand of these.
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
                f"rule {record.txid_rule}: this program does not read that"
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
    """Whether a segment's record stores true or false as a txid (`bool_to_int_txid`). Raises as its
    decoding."""
    _, fields = format_and_fields(value, _MIN_FIELDS, "a segment's record")
    return bool in map(type, fields[_TXIDS])


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
    last_time_ms: int = 0
    """The stamp of its last entry; 0: not known, or it holds none."""
    is_unordered: bool = False
    """Do its txids go back somewhere? As its writer counted: recovery does not look."""
    stores_max_txid: bool = False
    """Is its last txid the greatest of them, and do its entries store the greatest so far? Older programs
    store the last record's."""
    has_producer_snapshot: bool = False
    """Does its last entry name a snapshot of the log's producers? Not encoded: who closes a segment knows."""

    @property
    def needs_txids(self) -> bool:
        """Is its records' txid given when it is linked?"""
        return self.records > 0 and self.first_txid < 0

    def with_txids(self, base: int, txid_rule: int) -> "SegmentEnd":
        """They have these: ``base`` all of them, or one more each (``rule``, as in a `SegmentRecord`)."""
        assert self.needs_txids, "records that have txids keep them"
        last = base + self.records - 1 if txid_rule == TXIDS_INDEXED else base
        return replace(self, first_txid=base, last_txid=last)

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number: a ledger's own account, kept in its record."""
        return pack([END_FORMAT, *astuple(self)[:9], *([True] if self.stores_max_txid else ())])

    @classmethod
    def decode(cls, value: Buffer) -> "SegmentEnd":
        """Raises `CorruptData`, or `UnsupportedFormat` for what a newer version wrote."""
        written_in, fields = format_and_fields(value, {1: 8, END_FORMAT: 10}, "a segment's end")
        fields = fields[:7] + (fields[7:10] if written_in == END_FORMAT else [0, False])
        fields += [False] * (10 - len(fields))
        fields[3:5] = map(bool_to_int_txid, fields[3:5])  # first and last txid
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
    """Why the segment in progress should end now, in words; "" when it should not.

    ``user_bytes``: of ``bytes_written``, what is of records: without any it does not end for its age.
    """
    if ledger_needs_roll:
        return "a better ensemble than the ledger's is there"
    if bytes_written >= bytes_max:
        return f"it holds {bytes_written} bytes"
    if age_s >= age_max_s and user_bytes > 0:
        return f"it is {age_s:.0f} s old"
    return ""


# A writer enters a segment when all of the one before it is acknowledged, and never writes there again (H11).
# So the end of that one is final long before the log's metadata have it (inv. 3, inv. 20). The first entry of
# the segment states that end in section 5, little-endian. Readers without it wait for the close.
#     last entry of the segment before i64 (-1: none) | sequence id of the first record here i64
SECTION_BEGIN = 5
_BEGIN = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class SegmentBegin:
    """Where a segment begins: after this entry of the one before it."""

    last_entry: int
    """The last one of the segment before, a control entry too; -1: it has none."""
    sequence_id: int
    """Of the first record of this segment."""

    def add_to_entry(self, buffers: list[Buffer], length: int) -> tuple[list[Buffer], int]:
        """An entry as `record.build` makes it, and its length in bytes: with this in it."""
        packed = _BEGIN.pack(self.last_entry, self.sequence_id)
        return with_section(buffers, length, SECTION_BEGIN, packed)


def segment_begin(entry: Buffer) -> SegmentBegin | None:
    """What the first entry of a segment says; None: nothing. Raises `CorruptData`, `UnsupportedFormat`."""
    section = find_section(entry, decode_header(entry), SECTION_BEGIN)
    if section is None:
        return None
    if len(section) < _BEGIN.size:
        raise CorruptData(f"a segment's first entry says in {len(section)} bytes where it begins")
    begin = SegmentBegin(*_BEGIN.unpack_from(section))
    if begin.last_entry < -1 or begin.sequence_id < 0:
        raise CorruptData(f"a segment begins where none can: {begin}")
    return begin
