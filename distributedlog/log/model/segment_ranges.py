"""What a planner knows of a log, and ships to whoever reads or writes a part of it elsewhere (pure).

All of it is numbers and text: it pickles, and `to_json` gives what ``json.dumps`` takes.
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
"""A range's ``stop_slot``: its last entry is read to the end."""


class _JsonSerializable:
    """A dataclass of numbers and text."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The other way round. Raises `InvalidRequest`."""
        try:
            return cls(**value)
        except TypeError as error:
            raise InvalidRequest(f"not a {cls.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class SegmentRange(_JsonSerializable):
    """Entries ``first_entry`` to ``last_entry`` of one segment, both included, that can be read now.

    Made by `SegmentInfo.range` and `ranges_between`; read by `Log.open_ranges`, in any process.
    """

    incarnation: str
    segment: int
    ledger_id: int
    """Where the segment lay when it was looked at, as `base_entry`. A hint: it may lie elsewhere now."""
    start_sequence_id: int
    """Of the segment."""
    first_entry: int
    last_entry: int
    txid_base: int = UNKNOWN
    """As in the segment's record; also the next two."""
    txid_rule: int = TXIDS_IN_ENTRIES
    time_floor_ms: int = 0
    first_slot: int = 0
    """Where it begins in its first entry."""
    stop_slot: int = WHOLE_ENTRY
    """Where it stops in its last entry, without that slot; -1: at its end."""
    size_bytes: int = 0
    """Of its entries, about; 0: not known."""
    log: str = ""
    """The log's name, for whoever reads ranges of several."""
    base_entry: int = 0
    """The entry of the ledger that is the segment's first."""

    @property
    def entries(self) -> int:
        """How many."""
        return self.last_entry - self.first_entry + 1

    @property
    def start(self) -> DLSN:
        """The first position."""
        return DLSN(self.segment, self.first_entry, self.first_slot)

    @property
    def held_position(self) -> HeldPosition:
        """Its first position, as somebody holds it."""
        is_segment_start = self.first_entry == 0
        sequence_id = self.start_sequence_id + self.first_slot if is_segment_start else None
        return HeldPosition(self.start, self.incarnation, sequence_id)

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

    def sub_range(self, first: int, last: int) -> "SegmentRange":
        """Only the entries ``first`` to ``last`` of it, which it has."""
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
        """The first ``entries`` entries, and the rest; there is a rest."""
        assert 0 < entries < self.entries
        middle = self.first_entry + entries
        head = self.sub_range(self.first_entry, middle - 1)
        rest = self.sub_range(middle, self.last_entry)
        return head, replace(rest, size_bytes=self.size_bytes - head.size_bytes)


@dataclass(frozen=True, slots=True)
class SegmentInfo(_JsonSerializable):
    """A segment as it was when the log was looked at. Counts are of user records."""

    incarnation: str
    segment: int
    ledger_id: int
    closed: bool
    first_entry: int
    """The first that is not truncated; its slots below ``first_slot`` are."""
    last_entry: int
    """The last that can be read: of the segment in progress its LAC; ``first_entry - 1`` for none."""
    records: int
    """Of the whole segment; of the one in progress up to ``last_entry``."""
    size_bytes: int
    """Entry bytes without replication, of the whole segment; of the one in progress up to ``last_entry``."""
    first_txid: int
    """-1: no record yet."""
    last_txid: int
    """The greatest of the log up to here; -1: no record yet."""
    start_sequence_id: int
    """The sequence id of the segment's first record, truncated or not."""
    created_ms: int
    closed_ms: int
    """Wall clock of who closed it; 0 while it is in progress."""
    txid_base: int = UNKNOWN
    """As in the segment's record; also the next two."""
    txid_rule: int = TXIDS_IN_ENTRIES
    time_floor_ms: int = 0
    first_slot: int = 0
    """The first of ``first_entry`` that is not truncated."""
    base_entry: int = 0
    """As in the segment's record."""

    @property
    def state(self) -> str:
        """``closed`` or ``open``."""
        return "closed" if self.closed else "open"

    @property
    def entries(self) -> int:
        """How many entries can be read."""
        return self.last_entry - self.first_entry + 1

    def range(self, first_entry: int | None = None, last_entry: int | None = None) -> SegmentRange:
        """Some of its entries, or all. Raises `InvalidRequest` for what is not there."""
        first = self.first_entry if first_entry is None else first_entry
        last = self.last_entry if last_entry is None else last_entry
        if not self.first_entry <= first <= last + 1 or last > self.last_entry:
            raise InvalidRequest(
                f"segment {self.segment}: entries {first} to {last}, readable are "
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
    """A log as it could be read at one moment: what is below ``end`` is there, and stays as it is (G5)."""

    name: str
    incarnation: str
    """16 hex digits; a log that is deleted and made again has another."""
    first_dlsn: DLSN
    """The first position that is not truncated; in an empty log where the first record will be."""
    first_sequence_id: int
    """The sequence id of the record there, or of the one that comes there."""
    end_dlsn: DLSN
    """The first position after everything that can be read: where a reader goes on."""
    end_sequence_id: int
    """How many records the log ever had up to there."""
    last_txid: int
    """The greatest up to there; -1: none yet."""
    sealed: bool
    owner: str
    """Whose lock lives: a writer; "" for nobody's."""
    segments: tuple[SegmentInfo, ...]
    """Those that have something to read, ascending; the one in progress also while it is empty."""
    next_segment: int | None = None
    """Where the next page of segments begins; None: these are the last ones."""

    @property
    def records(self) -> int:
        """How many can be read."""
        return self.end_sequence_id - self.first_sequence_id

    @property
    def position(self) -> Position:
        """The end: where a reader of what comes after this goes on."""
        return Position(self.incarnation, self.end_dlsn, self.end_sequence_id)

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``."""
        return {
            **asdict(self),
            "first_dlsn": str(self.first_dlsn),
            "end_dlsn": str(self.end_dlsn),
            "segments": [segment.to_json() for segment in self.segments],
        }


@dataclass(frozen=True, slots=True)
class SegmentToken(_JsonSerializable):
    """A ledger that was written for a log and is closed: what `Log.link_segments` takes.

    The link believes the ledger's own record and not this; here it is for planning.
    """

    incarnation: str
    """Of the log that it was made for."""
    ledger_id: int
    records: int
    size_bytes: int
    first_txid: int
    """-1: it holds no record, or its records' txid is given when it is linked."""
    last_txid: int
    last_entry: int
    last_slot: int
    digest: int | None = None
    """`LinkContent.digest` of its records, where its writer was asked for it; the link compares it, and
    believes it."""


def ranges_between(
    log: str, incarnation: str, segments: Iterable[SegmentRecord], start: DLSN, end: DLSN
) -> list[SegmentRange]:
    """What lies from ``start`` up to, and without, ``end``. ``segments`` ascend."""
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
