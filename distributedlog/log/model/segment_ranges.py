"""Descriptions of segments and ranges, which a planner sends to the processes that read or write them (pure).

All fields are numbers and text. The objects can be pickled, and `to_json` returns values for ``json.dumps``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ...runtime.interfaces.errors import InvalidRequest
from ..format.dlsn import DLSN
from ..format.record import TXIDS_IN_ENTRIES, EntryHeader, Origin
from .position import Position
from .position_outcome import HeldPosition
from .segment_record import UNKNOWN, SegmentRecord

WHOLE_ENTRY = -1
"""A range's ``stop_slot`` if its last entry is read to the end."""


class _JsonSerializable:
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for ``json.dumps``."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the object in a result of `to_json`.

        Raises:
            InvalidRequest: The dictionary has other fields.
        """
        try:
            return cls(**value)
        except TypeError as error:
            raise InvalidRequest(f"not a {cls.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class SegmentRange(_JsonSerializable):
    """A readable range of one segment: entries ``first_entry`` to ``last_entry``, both included.

    `SegmentInfo.range` and `ranges_between` create ranges. `Log.open_ranges` reads them, in any process.
    """

    incarnation: str
    segment: int
    ledger_id: int
    """The ledger of the segment when the range was created, and ``base_entry`` its start there. Both are
    hints, because the segment may have been moved to another ledger since."""
    start_sequence_id: int
    """The sequence ID of the segment's first record."""
    first_entry: int
    last_entry: int
    txid_base: int = UNKNOWN
    """As in the segment's record. This also applies to the next two fields."""
    txid_rule: int = TXIDS_IN_ENTRIES
    time_floor_ms: int = 0
    first_slot: int = 0
    """The first slot in the first entry."""
    stop_slot: int = WHOLE_ENTRY
    """The slot in the last entry before which the range ends. -1 means the end of the entry."""
    size_bytes: int = 0
    """The approximate size of its entries, or 0 if it is not known."""
    log: str = ""
    """The log's name, for programs that read ranges of several logs."""
    base_entry: int = 0
    """The entry of the ledger that is entry 0 of the segment."""

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.last_entry - self.first_entry + 1

    @property
    def start(self) -> DLSN:
        """The first position."""
        return DLSN(self.segment, self.first_entry, self.first_slot)

    @property
    def held_position(self) -> HeldPosition:
        """Its first position, as a held position."""
        is_segment_start = self.first_entry == 0
        sequence_id = self.start_sequence_id + self.first_slot if is_segment_start else None
        return HeldPosition(self.start, self.incarnation, sequence_id)

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

    def sub_range(self, first: int, last: int) -> "SegmentRange":
        """Return the part with the entries ``first`` to ``last``, which must be in the range."""
        assert self.first_entry <= first <= last <= self.last_entry
        return replace(
            self,
            first_entry=first,
            last_entry=last,
            size_bytes=self.size_bytes * (last - first + 1) // self.entries,
            first_slot=self.first_slot if first == self.first_entry else 0,
            stop_slot=self.stop_slot if last == self.last_entry else WHOLE_ENTRY,
        )

    def split(self, entries: int) -> "tuple[SegmentRange, SegmentRange]":
        """Return the first ``entries`` entries and the rest. The rest must not be empty."""
        assert 0 < entries < self.entries
        middle = self.first_entry + entries
        head = self.sub_range(self.first_entry, middle - 1)
        rest = self.sub_range(middle, self.last_entry)
        return head, replace(rest, size_bytes=self.size_bytes - head.size_bytes)


@dataclass(frozen=True, slots=True)
class SegmentInfo(_JsonSerializable):
    """A segment at the time of the snapshot. Counts are of user records."""

    incarnation: str
    segment: int
    ledger_id: int
    closed: bool
    first_entry: int
    """The first entry that is not truncated. Its slots below ``first_slot`` are truncated."""
    last_entry: int
    """The last readable entry, which is the LAC if the segment is in progress. ``first_entry - 1`` if
    there is none."""
    records: int
    """The number of records in the whole segment, or up to ``last_entry`` if it is in progress."""
    size_bytes: int
    """Entry bytes of the whole segment without replication, or up to ``last_entry`` if it is in progress."""
    first_txid: int
    """The txid of its first record, or -1 if it has none."""
    last_txid: int
    """The greatest txid of the log up to the end of this segment, or -1 if there is no record yet."""
    start_sequence_id: int
    """The sequence ID of the segment's first record, even if that is truncated."""
    created_ms: int
    closed_ms: int
    """The wall clock of the client that closed it, or 0 while it is in progress."""
    txid_base: int = UNKNOWN
    """As in the segment's record. This also applies to the next two fields."""
    txid_rule: int = TXIDS_IN_ENTRIES
    time_floor_ms: int = 0
    first_slot: int = 0
    """The first slot of ``first_entry`` that is not truncated."""
    base_entry: int = 0
    """As in the segment's record."""

    @property
    def state(self) -> str:
        """``closed`` or ``open``."""
        return "closed" if self.closed else "open"

    @property
    def entries(self) -> int:
        """The number of readable entries."""
        return self.last_entry - self.first_entry + 1

    def range(self, first_entry: int | None = None, last_entry: int | None = None) -> SegmentRange:
        """Return a range of its entries. By default, all readable ones.

        Args:
            first_entry: The first entry of the range.
            last_entry: The last entry of the range.
        Raises:
            InvalidRequest: The range contains entries that are not readable.
        """
        first = self.first_entry if first_entry is None else first_entry
        last = self.last_entry if last_entry is None else last_entry
        if not self.first_entry <= first <= last + 1 or last > self.last_entry:
            raise InvalidRequest(
                f"segment {self.segment}: entries {first} to {last} requested; readable are "
                f"{self.first_entry} to {self.last_entry}"
            )
        return SegmentRange(
            self.incarnation, self.segment, self.ledger_id, self.start_sequence_id, first, last,
            self.txid_base, self.txid_rule, self.time_floor_ms,
            self.first_slot if first == self.first_entry else 0,
            size_bytes=self.size_bytes * (last - first + 1) // max(1, self.last_entry + 1),
            base_entry=self.base_entry,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The readable part of a log at one moment.

    The records below ``end_dlsn`` exist and do not change (G5).
    """

    name: str
    incarnation: str
    """16 hex digits. A log that is deleted and created again has another incarnation."""
    first_dlsn: DLSN
    """The first position that is not truncated. In an empty log, the position of the first record to come."""
    first_sequence_id: int
    """The sequence ID of the record there, or of the first record to come."""
    end_dlsn: DLSN
    """The first position after all readable records, where a reader continues."""
    end_sequence_id: int
    """The number of records that the log ever had up to ``end_dlsn``."""
    last_txid: int
    """The greatest txid up to ``end_dlsn``, or -1 if there is no record yet."""
    sealed: bool
    owner: str
    """The name of the writer that has the log's lock, or "" if no writer has it."""
    segments: tuple[SegmentInfo, ...]
    """The segments with readable records, ascending. The segment in progress is included even if it is
    empty."""
    next_segment: int | None = None
    """The first segment of the next page, or None if this is the last page."""

    @property
    def records(self) -> int:
        """The number of readable records."""
        return self.end_sequence_id - self.first_sequence_id

    @property
    def position(self) -> Position:
        """The position of the end, where a reader of later records starts."""
        return Position(self.incarnation, self.end_dlsn, self.end_sequence_id)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for ``json.dumps``."""
        return {
            **asdict(self),
            "first_dlsn": str(self.first_dlsn),
            "end_dlsn": str(self.end_dlsn),
            "segments": [segment.to_json() for segment in self.segments],
        }


@dataclass(frozen=True, slots=True)
class SegmentToken(_JsonSerializable):
    """A closed staged ledger of a log, as an argument for `Log.link_segments`.

    The fields are for planning. The link uses the stored record of the ledger instead.
    """

    incarnation: str
    """The incarnation of the log for which the ledger was created."""
    ledger_id: int
    records: int
    size_bytes: int
    first_txid: int
    """-1 if it has no record, or if its records get their txids when it is linked."""
    last_txid: int
    last_entry: int
    last_slot: int
    digest: int | None = None
    """`LinkContent.digest` of its records, if its writer was asked to compute it. The link compares it,
    and trusts it."""


def ranges_between(
    log: str, incarnation: str, segments: Iterable[SegmentRecord], start: DLSN, end: DLSN
) -> list[SegmentRange]:
    """Return the ranges from ``start`` up to, but not including, ``end``.

    Args:
        log: The log's name.
        incarnation: The log's incarnation.
        segments: Records of its segments, ascending.
        start: The first position.
        end: The position after the last one.
    """
    ranges = []
    for segment in segments:
        if segment.segment < start.segment or segment.segment > end.segment:
            continue
        first, first_slot, last, stop_slot = 0, 0, segment.last_entry, WHOLE_ENTRY
        if segment.segment == start.segment:
            first, first_slot = start.entry, start.slot
        if segment.segment == end.segment and end.entry <= last:
            last, stop_slot = (end.entry, end.slot) if end.slot else (end.entry - 1, WHOLE_ENTRY)
        if first > last or (first == last and stop_slot != WHOLE_ENTRY and first_slot >= stop_slot):
            continue
        size = int((last - first + 1) * max(1.0, segment.size_bytes / (segment.last_entry + 1)))
        ranges.append(
            SegmentRange(
                incarnation, segment.segment, segment.ledger_id, segment.start_sequence_id, first, last,
                segment.txid_base, segment.txid_rule, segment.time_floor_ms, first_slot, stop_slot, size, log,
                segment.base_entry,
            )
        )  # fmt: skip
    return ranges
