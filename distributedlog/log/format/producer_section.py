"""Producer state in the entries of a log: section 1, if the log has producers (pure).

    format u16 | flags u16 | frames u32 | snapshot entry i64 | log clock ms u64 | next number u64     32 bytes
    frames:    number u64 | first sequence u64 | first slot u32 | records u32                         24 each
    flag 1, a snapshot, of a control entry:  producers u32 | reserved u32, then each
               number u64 | next sequence u64 | last ms u64 | name bytes u16 | kept u16 | reserved u32
               | name, padded to 8 | kept × (sequence u64 | segment i64 | entry i64 | slot u32 | records u32)
    flag 4, openings, of a control entry:    openings u32 | reserved u32, then each
               number u64 | number of the producer that it evicts u64, 0: none | name bytes u16
               | reserved, 6 bytes | name, padded to 8

Numbers are little-endian. ``snapshot entry`` is the newest snapshot of the entry's own segment, which may be
the entry itself. The range of a frame is in the same entry as its records, so the two cannot disagree. A
snapshot contains the producer state of all entries before it, so a program that reads the log can start with
it.
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
    FrameSpan,
    Producer,
    ProducerOpening,
    ProducerTable,
    StoredFrame,
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
    """The producer state in one entry."""

    snapshot_entry: int
    """The newest snapshot of the segment, or -1 if it has none yet."""
    clock_ms: int
    next_number: int
    spans: tuple[FrameSpan, ...] = ()
    openings: tuple[ProducerOpening, ...] = ()
    table: ProducerTable | None = None
    """Only in a snapshot: the producer table after all entries before it."""


def encode_section(
    snapshot_entry: int,
    clock_ms: int,
    next_number: int,
    *,
    spans: Iterable[FrameSpan] = (),
    openings: Iterable[ProducerOpening] = (),
    table: ProducerTable | None = None,
) -> bytes:
    """Return the producer section of one entry.

    ``openings`` and ``table`` are only for control entries, and only one of them may be given.

    Args:
        snapshot_entry: The newest snapshot of the segment, or -1.
        clock_ms: The clock of the log, as `ProducerTable.clock_ms`.
        next_number: The number of the next opening.
        spans: The frames in the entry, ordered by slot.
        openings: The producers that this entry opens.
        table: The content of a snapshot.
    """
    parts = [b"", *[_SPAN.pack(*span) for span in spans]]
    span_count, flags = len(parts) - 1, 0
    if table is not None:
        flags = FLAG_SNAPSHOT
        parts.append(_COUNT.pack(len(table.rows), 0))
        for row in table.rows.values():
            name = row.name.encode()
            parts.append(
                _ROW.pack(
                    row.number,
                    row.next_sequence,
                    row.last_ms,
                    len(name),
                    len(row.stored_frames),
                    0,
                )
                + _pad_to_8(name)
            )
            parts += [
                _KEPT.pack(
                    stored_frame.sequence,
                    stored_frame.segment,
                    stored_frame.entry,
                    stored_frame.slot,
                    stored_frame.records,
                )
                for stored_frame in row.stored_frames
            ]
    elif openings:
        flags = FLAG_OPENS
        opening_list = tuple(openings)
        parts.append(_COUNT.pack(len(opening_list), 0))
        for stored_frame in opening_list:
            name = stored_frame.name.encode()
            parts.append(
                _OPEN.pack(stored_frame.number, stored_frame.evicted_number, len(name))
                + _pad_to_8(name)
            )
    parts[0] = _HEAD.pack(FORMAT, flags, span_count, snapshot_entry, clock_ms, next_number)
    return b"".join(parts)


def _pad_to_8(name: bytes) -> bytes:
    return name + bytes(-len(name) % 8)


def read_producer_section(entry: int, payload: Buffer) -> ProducerSection | None:
    """Return the producer section of an entry, or None if it has none.

    Args:
        entry: The entry ID.
        payload: The entry.
    Raises:
        CorruptData: The section is invalid or does not match the entry.
        UnsupportedFormat: A newer version wrote the section.
    """
    header = decode_header(payload)
    section_bytes = find_section(payload, header, SECTION_PRODUCERS)
    if section_bytes is None:
        return None
    section = decode_section(section_bytes)
    if section.snapshot_entry > entry or (section.table is not None) != (
        section.snapshot_entry == entry
    ):
        raise CorruptData(
            f"entry {entry} has an impossible snapshot entry {section.snapshot_entry}"
        )
    records = 0 if header.is_control else header.count
    end = 0
    for span in section.spans:
        if span.slot < end:
            raise CorruptData(f"entry {entry} has frames of producers that overlap: {span}")
        end = span.slot + span.records
    if end > records:
        raise CorruptData(f"entry {entry} has {records} records, and frames up to slot {end}")
    if (section.openings or section.table is not None) and not header.is_control:
        raise CorruptData(f"entry {entry} holds records, and openings or a snapshot of producers")
    return section


def decode_section(section: Buffer) -> ProducerSection:
    """Decode the producer section of an entry.

    Raises:
        CorruptData: The section is invalid.
        UnsupportedFormat: A newer version wrote the section.
    """
    reader = _SectionReader(memoryview(section))
    written_in, flags, span_count, snapshot_entry, clock_ms, next_number = reader.read(_HEAD)
    if written_in != FORMAT or flags not in (0, FLAG_SNAPSHOT, FLAG_OPENS):
        raise UnsupportedFormat(
            f"producer section of format {written_in}, flags {flags:#06x}: this program reads format {FORMAT}"
        )
    if snapshot_entry < -1 or next_number < 1:
        raise CorruptData(
            f"producer section with snapshot entry {snapshot_entry}, next number {next_number}"
        )
    spans = tuple(FrameSpan(*span_fields) for span_fields in reader.read_many(_SPAN, span_count))
    if any(span.producer_number >= next_number or not span.records for span in spans):
        raise CorruptData(f"frames of unknown producers, or without records: {spans}")
    openings: tuple[ProducerOpening, ...] = ()
    table = None
    if flags == FLAG_SNAPSHOT:
        table = _decode_table(reader, clock_ms, next_number)
    elif flags == FLAG_OPENS:
        openings = _decode_openings(reader, next_number)
    reader.check_end()
    return ProducerSection(snapshot_entry, clock_ms, next_number, spans, openings, table)


def _decode_openings(reader: "_SectionReader", next_number: int) -> tuple[ProducerOpening, ...]:
    openings = []
    for _ in range(reader.read(_COUNT)[0]):
        number, evicted_number, name_bytes = reader.read(_OPEN)
        if not (0 < number < next_number and evicted_number < next_number):
            raise CorruptData(
                f"opened producer {number}, evicted {evicted_number}, next number {next_number}"
            )
        openings.append(ProducerOpening(number, reader.read_name(name_bytes), evicted_number))
    return tuple(openings)


def _decode_table(reader: "_SectionReader", clock_ms: int, next_number: int) -> ProducerTable:
    producer_count = reader.read(_COUNT)[0]
    if producer_count > PRODUCERS_MAX:
        raise CorruptData(
            f"a snapshot of {producer_count} producers; the maximum is {PRODUCERS_MAX}"
        )
    rows = []
    for _ in range(producer_count):
        number, next_sequence, last_ms, name_bytes, kept_count, _ = reader.read(_ROW)
        if kept_count > FRAMES_KEPT:
            raise CorruptData(
                f"producer {number} has {kept_count} frames; the maximum is {FRAMES_KEPT}"
            )
        row = Producer(number, reader.read_name(name_bytes), next_sequence, last_ms)
        for sequence, segment, entry, slot, records in reader.read_many(_KEPT, kept_count):
            row.stored_frames.append(StoredFrame(sequence, records, segment, entry, slot))
        _check_adjacent(row)
        rows.append(row)
    return ProducerTable(rows, next_number=next_number, clock_ms=clock_ms)


def _check_adjacent(row: Producer) -> None:
    """Check that the stored frames have no gap, in sequence and in the log, up to the next sequence."""
    ends = [*[kept_frame.sequence for kept_frame in row.stored_frames][1:], row.next_sequence]
    positions = [kept_frame.first for kept_frame in row.stored_frames]
    if (
        row.number < 1
        or any(
            kept_frame.sequence + kept_frame.records != end
            for kept_frame, end in zip(row.stored_frames, ends, strict=bool(row.stored_frames))
        )
        or any(
            kept_frame.segment < 1 or kept_frame.entry < 0 or kept_frame.records < 1
            for kept_frame in row.stored_frames
        )
        or sorted(set(positions)) != positions
    ):
        raise CorruptData(f"producer {row.number} has frames that do not follow each other")


class _SectionReader:
    """Reads a section from front to end. Raises `CorruptData` if the section is too short."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._offset = 0

    def _advance(self, size: int) -> int:
        start, self._offset = self._offset, self._offset + size
        if self._offset > len(self._view):
            raise CorruptData(
                f"producer section of {len(self._view)} bytes, at least {self._offset} expected"
            )
        return start

    def read(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack_from(self._view, self._advance(form.size))

    def read_many(self, form: struct.Struct, item_count: int) -> Iterable[tuple[int, ...]]:
        start = self._advance(form.size * item_count)
        return form.iter_unpack(self._view[start : self._offset])

    def read_name(self, size: int) -> str:
        start = self._advance(size + -size % 8)
        if not 0 < size <= NAME_BYTES_MAX:
            raise CorruptData(f"a producer's name of {size} bytes")
        try:
            return str(self._view[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptData(f"a producer's name is not text: {error}") from None

    def check_end(self) -> None:
        if self._offset != len(self._view):
            raise CorruptData(
                f"producer section of {len(self._view)} bytes, {self._offset} expected"
            )
