"""The bytes of producers: section 1 of each entry of a log that has any (pure).

    format u16 | flags u16 | frames u32 | snapshot entry i64 | log clock ms u64 | next number u64     32 bytes
    frames:    number u64 | first sequence u64 | first slot u32 | records u32                         24 each
    flag 1, a snapshot, of a control entry:  producers u32 | reserved u32, then each
               number u64 | next sequence u64 | last ms u64 | name bytes u16 | kept u16 | reserved u32
               | name, padded to 8 | kept × (sequence u64 | segment i64 | entry i64 | slot u32 | records u32)
    flag 4, openings, of a control entry:    openings u32 | reserved u32, then each
               number u64 | number that is forgotten for it u64, 0: none | name bytes u16 | reserved, 6 bytes
               | name, padded to 8

Little-endian. ``snapshot entry`` is the newest snapshot of the entry's own segment, perhaps the entry itself.
A frame's span is in the entry of its records: there is no second place that could be behind. A snapshot says
what all entries before it say, so that a reader of the log begins with one.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from .producer_table import (
    FRAMES_KEPT,
    NAME_BYTES_MAX,
    PRODUCERS_MAX,
    Kept,
    Open,
    Producer,
    ProducerTable,
    Span,
)
from .record import decode_header, find_section

SECTION_PRODUCERS = 1
FORMAT = 1
FLAG_SNAPSHOT = 1
FLAG_OPENS = 4
_HEAD = struct.Struct("<HHIqQQ")
_SPAN = struct.Struct("<QQII")
_COUNT = struct.Struct("<II")
_ROW = struct.Struct("<QQQHHI")
_KEPT = struct.Struct("<QqqII")
_OPEN = struct.Struct("<QQH6x")
SPAN_BYTES = _SPAN.size


@dataclass(frozen=True, slots=True)
class ProducerSection:
    """What an entry says of producers."""

    snapshot_entry: int
    """-1: its segment has none yet."""
    clock_ms: int
    next_number: int
    spans: tuple[Span, ...] = ()
    opens: tuple[Open, ...] = ()
    table: ProducerTable | None = None
    """Of a snapshot: as all entries before it left it."""


def encode(
    snapshot_entry: int,
    clock_ms: int,
    next_number: int,
    *,
    spans: Iterable[Span] = (),
    opens: Iterable[Open] = (),
    table: ProducerTable | None = None,
) -> bytes:
    """The section of one entry; ``spans`` by slot. Of ``opens`` and ``table`` one, of a control entry."""
    parts = [b"", *[_SPAN.pack(*span) for span in spans]]
    frames, flags = len(parts) - 1, 0
    if table is not None:
        flags = FLAG_SNAPSHOT
        parts.append(_COUNT.pack(len(table.rows), 0))
        for row in table.rows.values():
            name = row.name.encode()
            parts.append(
                _ROW.pack(row.number, row.next_sequence, row.last_ms, len(name), len(row.kept), 0)
                + _padded(name)
            )
            parts += [
                _KEPT.pack(one.sequence, one.segment, one.entry, one.slot, one.records)
                for one in row.kept
            ]
    elif opens:
        flags = FLAG_OPENS
        listed = tuple(opens)
        parts.append(_COUNT.pack(len(listed), 0))
        for one in listed:
            name = one.name.encode()
            parts.append(_OPEN.pack(one.number, one.forgets, len(name)) + _padded(name))
    parts[0] = _HEAD.pack(FORMAT, flags, frames, snapshot_entry, clock_ms, next_number)
    return b"".join(parts)


def _padded(name: bytes) -> bytes:
    return name + bytes(-len(name) % 8)


def notes_of(entry: int, payload: Buffer) -> ProducerSection | None:
    """What an entry of a log says of producers; None: it says nothing.

    Raises `CorruptData`, and `UnsupportedFormat` for what a newer version wrote.
    """
    header = decode_header(payload)
    found = find_section(payload, header, SECTION_PRODUCERS)
    if found is None:
        return None
    notes = decode(found)
    if notes.snapshot_entry > entry or (notes.table is not None) != (notes.snapshot_entry == entry):
        raise CorruptData(f"entry {entry} names the snapshot in entry {notes.snapshot_entry}")
    records = 0 if header.control else header.count
    end = 0
    for span in notes.spans:
        if span.slot < end:
            raise CorruptData(f"entry {entry} has frames of producers that overlap: {span}")
        end = span.slot + span.records
    if end > records:
        raise CorruptData(f"entry {entry} has {records} records, and frames up to slot {end}")
    if (notes.opens or notes.table is not None) and not header.control:
        raise CorruptData(f"entry {entry} holds records, and openings or a snapshot of producers")
    return notes


def decode(section: Buffer) -> ProducerSection:
    """A section. Raises `CorruptData`, and `UnsupportedFormat` for what a newer version wrote."""
    cut = _Cut(memoryview(section))
    written_in, flags, frames, snapshot_entry, clock_ms, next_number = cut.next(_HEAD)
    if written_in != FORMAT or flags not in (0, FLAG_SNAPSHOT, FLAG_OPENS):
        raise UnsupportedFormat(
            f"producers of format {written_in}, flags {flags:#06x}: this program reads format {FORMAT}"
        )
    if snapshot_entry < -1 or next_number < 1:
        raise CorruptData(
            f"producers whose snapshot is in entry {snapshot_entry}, the next one number {next_number}"
        )
    spans = tuple(Span(*one) for one in cut.many(_SPAN, frames))
    if any(span.number >= next_number or not span.records for span in spans):
        raise CorruptData(f"frames of producers that are not there, or without records: {spans}")
    opens: tuple[Open, ...] = ()
    table = None
    if flags == FLAG_SNAPSHOT:
        table = _table(cut, clock_ms, next_number)
    elif flags == FLAG_OPENS:
        opens = _opens(cut, next_number)
    cut.end()
    return ProducerSection(snapshot_entry, clock_ms, next_number, spans, opens, table)


def _opens(cut: "_Cut", next_number: int) -> tuple[Open, ...]:
    found = []
    for _ in range(cut.next(_COUNT)[0]):
        number, forgets, name_bytes = cut.next(_OPEN)
        if not (0 < number < next_number and forgets < next_number):
            raise CorruptData(f"producer {number} is opened for {forgets}, below {next_number}")
        found.append(Open(number, cut.name(name_bytes), forgets))
    return tuple(found)


def _table(cut: "_Cut", clock_ms: int, next_number: int) -> ProducerTable:
    number_of = cut.next(_COUNT)[0]
    if number_of > PRODUCERS_MAX:
        raise CorruptData(f"a snapshot of {number_of} producers; the most are {PRODUCERS_MAX}")
    rows = []
    for _ in range(number_of):
        number, next_sequence, last_ms, name_bytes, kept, _ = cut.next(_ROW)
        if kept > FRAMES_KEPT:
            raise CorruptData(f"producer {number} has {kept} frames; the most are {FRAMES_KEPT}")
        row = Producer(number, cut.name(name_bytes), next_sequence, last_ms)
        for sequence, segment, entry, slot, records in cut.many(_KEPT, kept):
            row.kept.append(Kept(sequence, records, segment, entry, slot))
        _check_kept(row)
        rows.append(row)
    return ProducerTable(rows, next_number=next_number, clock_ms=clock_ms)


def _check_kept(row: Producer) -> None:
    """They follow each other without gap, in their sequence and in the log, up to the next one."""
    ends = [*[one.sequence for one in row.kept][1:], row.next_sequence]
    places = [one.first for one in row.kept]
    if (
        row.number < 1
        or any(
            one.sequence + one.records != end
            for one, end in zip(row.kept, ends, strict=bool(row.kept))
        )
        or any(one.segment < 1 or one.entry < 0 or one.records < 1 for one in row.kept)
        or sorted(set(places)) != places
    ):
        raise CorruptData(f"producer {row.number} has frames that do not follow each other")


class _Cut:
    """Takes a section apart, from the front; raises `CorruptData` at its end."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def _take(self, size: int) -> int:
        at, self._at = self._at, self._at + size
        if self._at > len(self._view):
            raise CorruptData(
                f"producers in {len(self._view)} bytes, of which {self._at} are wanted"
            )
        return at

    def next(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack_from(self._view, self._take(form.size))

    def many(self, form: struct.Struct, number: int) -> Iterable[tuple[int, ...]]:
        at = self._take(form.size * number)
        return form.iter_unpack(self._view[at : self._at])

    def name(self, size: int) -> str:
        at = self._take(size + -size % 8)
        if not 0 < size <= NAME_BYTES_MAX:
            raise CorruptData(f"a producer's name of {size} bytes")
        try:
            return str(self._view[at : at + size], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptData(f"a producer's name is not text: {error}") from None

    def end(self) -> None:
        if self._at != len(self._view):
            raise CorruptData(
                f"producers in {len(self._view)} bytes, of which {self._at} are known"
            )
