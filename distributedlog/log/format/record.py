"""Records, and how they are packed into one entry, in columns (pure).

    magic u32 | version u16 | flags u16 | count u32 | payload bytes u32 | uncompressed size u32
    | section bytes u32 | first txid i64 | last txid i64 | records of the segment before u64
    | wall time ms i64 | greatest txid u64                                     64 bytes, little-endian
    sections:  kind u16 | flags u16 | length u32 | bytes, padded to 8          any number
    columns:   txids i64[count] | offsets i32[count + 1] | record flags u8[count], if any | payloads

The columns are Arrow's own layout of an int64 and a binary array, so a batch is a view and no copy.
They begin on a multiple of 8. A codec compresses the columns as a whole (`compression.py`); header and
sections stay readable.
A record has no time of its own, its entry has one, ``wall time``: when the entry was handed to its ledger
(`OpenSegment.send`, `SegmentWriter.flush`), in ms since 1970 by the clock of the writer's machine, never
below the entry before (`log_clock.py`). Who wants a record's own time puts it into the txid or the payload.
``greatest txid`` is the greatest of the segment up to this entry where that is not ``last txid``: 0 says
that it is. A search for a txid goes by it, so that it is right also where txids go back (decision 109).
``uncompressed size`` counts the columns alone. A control entry holds no user record and advances no
sequence id; an end-of-stream entry seals the log. A record's flag 0x01 says that the next slot belongs to the
same set (`LogWriter.submit_set`); who does not know sets reads its records one by one. With flag 0x0080 the
txids are zeros: they were given when the segment was linked, and its record in the metadata says them.
Unknown sections are skipped unless marked critical.
"""

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, count, repeat
from operator import sub
from struct import pack, pack_into, unpack_from
from typing import Any, cast

from ...runtime.declarations.options import quoted
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from ...runtime.interfaces.host import Buffer
from ..declarations.compression_codecs import CODEC_NAMES, COLUMN_BYTES_MAX, load_codec
from .dlsn import DLSN
from .log_clock import to_iso_time

assert sys.byteorder == "little", "columns are read in place, and they are little-endian"

HEADER = struct.Struct("<IHHIIIIqqQqQ")
HEADER_BYTES = 64
SECTION = struct.Struct("<HHI")
_SINGLE_RECORD = struct.Struct(HEADER.format + "qii")
"""Header and columns of one record."""
_pack_single_record = _SINGLE_RECORD.pack
_SINGLE_RECORD_COLUMN_BYTES = _SINGLE_RECORD.size - HEADER_BYTES
MAGIC = 0x45474C44  # "DLGE"
VERSION = 1

FLAGS_OFFSET = 6
"""Where the flags are in a header."""
SECTION_BYTES_OFFSET = 20
"""Where the bytes of the sections are."""
CODEC_MASK = 0x000F
"""0: none, 1: lz4, 2: zstd (`compression_codecs.py`)."""
FLAG_CONTROL = 0x0010
FLAG_RECORD_FLAGS = 0x0040
FLAG_TXID_AT_LINK = 0x0080
FLAGS_KNOWN = CODEC_MASK | FLAG_CONTROL | FLAG_RECORD_FLAGS | FLAG_TXID_AT_LINK
SECTION_CRITICAL = 0x0001

RECORD_MORE = 0x01
"""A record's flag: the next slot belongs to the same set. 0x02 is reserved, for a key and headers before the
payload (docs/decisions/0109); whoever meets a flag that he does not know must not take the payload for it."""
RECORD_FLAGS_KNOWN = RECORD_MORE

RECORD_BYTES_MAX = 1024 * 1024 - 8 * 1024
"""A record's payload, bytes (DistributedLog's persistent size)."""
TXID_MAX = 2**63 - 2
"""2**63 - 1 is upstream's txid of the end of a stream."""
TXIDS_IN_ENTRIES, TXIDS_CONSTANT, TXIDS_INDEXED = range(3)
"""A segment's txids: in its entries; all of them its base; the base and the record's index in it."""
PREVIEW_BYTES = 32
"""Of a payload in an error or a log line; never the whole."""
RECORD_COLUMN_BYTES = 12
"""What a record costs in an entry beside its payload: its txid and its offset."""
UNIFORM_RECORDS_MIN, UNIFORM_RECORDS_MAX = 8, 16 * 1024 - 1
"""In an entry of so many it is looked whether all payloads are as long: they take fewer steps then."""
BULK_COMPARE_MIN = 64
"""A column of so many numbers is compared as one (`is_ascending`); a shorter one as a list."""
UNPACK_BATCH = 64
"""Payloads of one length, by one call: of each length there are so many formats at most."""

assert HEADER.size == HEADER_BYTES


@dataclass(slots=True)
class Origin:
    """Where the records of one entry come from; shared by all of them."""

    segment: int
    entry: int
    sequence_id: int
    """Of the record in slot 0."""
    txid: int = -1
    """Of the record in slot 0, where txids were given at the link; -1: they are in the entry."""
    txid_step: int = 0
    """Then: how much greater each next one's is, 0 or 1."""
    time_ms: int = 0
    """Log time."""
    written_ms: int = 0
    """The writer's stamp."""
    flags: bytes | None = None
    """A byte a record of the entry, by slot; None: none has any."""


@dataclass(slots=True, repr=False, eq=False)
class LogRecord:
    """A record: ``LogRecord(txid, payload)`` to write; one that was read also knows its place and time.

    ``txid`` is the application's, 0 to 2**63 - 2. If it is omitted, ``LogRecord(payload=…)``, the log fills
    it in. ``payload`` is ``bytes`` of at most 1,040,384 (``bytearray`` and ``memoryview`` are copied).
    Two are equal whose txids and payloads are, whether they were read or not. Unfrozen, and without a
    position object of its own, since one is made a record.
    """

    txid: int = None  # type: ignore[assignment]  # never in one that was read
    payload: bytes = b""
    # No fields: what is written has no place, and each field is a tenth of what a record costs.
    origin = cast("Origin | None", None)
    slot = -1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogRecord):
            return NotImplemented
        return (self.txid, self.payload) == (other.txid, other.payload)

    @property
    def dlsn(self) -> DLSN:
        """The position it was read at. Raises `InvalidRequest` on a record that was not read."""
        origin = self.origin
        if origin is None:
            raise InvalidRequest(f"{self!r} was not read from a log: it has no position")
        return DLSN(origin.segment, origin.entry, self.slot)

    @property
    def sequence_id(self) -> int:
        """Its number in the log, from 0, without gaps. Raises `InvalidRequest` as `dlsn` does."""
        if self.origin is None:
            raise InvalidRequest(f"{self!r} was not read from a log: it has no sequence id")
        return self.origin.sequence_id + self.slot

    @property
    def time_ms(self) -> int:
        """Log time, ms since 1970: when its entry was written, or linked; it never goes back in a log.

        Raises `InvalidRequest` as `dlsn` does.
        """
        return self._require_origin().time_ms

    @property
    def written_ms(self) -> int:
        """The clock of its writer's machine then, ms since 1970. Raises `InvalidRequest` as `dlsn` does."""
        return self._require_origin().written_ms

    @property
    def more(self) -> bool:
        """Does the next record belong to the same set? False of one that was not read."""
        origin = self.origin
        return bool(
            origin is not None
            and origin.flags is not None
            and origin.flags[self.slot] & RECORD_MORE
        )

    def _require_origin(self) -> Origin:
        if self.origin is None:
            raise InvalidRequest(f"{self!r} was not read from a log: it has no time")
        return self.origin

    def __repr__(self) -> str:
        where = "" if self.origin is None else f"{self.dlsn}, "
        txid = "" if self.txid is None else f"txid={self.txid}, "
        time = "" if self.origin is None else f"time={to_iso_time(self.time_ms)}, "
        if not isinstance(self.payload, bytes | bytearray | memoryview):
            return f"LogRecord({where}{txid}payload={self.payload!r:.{PREVIEW_BYTES}})"
        size = len(self.payload)
        shown = repr(bytes(self.payload[:PREVIEW_BYTES])) + ("…" if size > PREVIEW_BYTES else "")
        return f"LogRecord({where}{txid}{time}{size} B {shown})"


@dataclass(slots=True, repr=False, eq=False)
class ReadRecord(LogRecord):
    """A record that was read; to its reader a `LogRecord`."""

    origin: Origin | None = None
    slot: int = -1


def txid_and_payload(record: Any) -> tuple[Any, Any]:
    """Of a record as callers may write it: a `LogRecord`, or a payload alone. Nothing is checked here."""
    if isinstance(record, LogRecord):
        return record.txid, record.payload
    return None, record


def check_txid(value: object) -> int:
    """Return the value if it is an int. Raises `InvalidRequest`."""
    if type(value) is not int:
        raise InvalidRequest(f"a txid is an int, not {quoted(value)}")
    return value


def split_columns(records: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The txids and the payloads of records as callers may write them."""
    try:
        return [record.txid for record in records], [record.payload for record in records]
    except AttributeError:  # a payload alone is among them
        pairs = [txid_and_payload(record) for record in records]
        return [txid for txid, _ in pairs], [payload for _, payload in pairs]


def build_entry(
    txids: Sequence[int],
    payloads: Sequence[Buffer],
    *,
    records_before: int,
    written_ms: int,
    flags: int = 0,
    record_flags: Buffer | None = None,
    sections: Sequence[tuple[int, int, Buffer]] = (),
    sizes: list[int] | None = None,
    max_txid: int = 0,
) -> tuple[list[Buffer], int]:
    """The buffers of one entry and their length in bytes, for one join by whoever sends it.

    ``max_txid``: the greatest of the segment up to this entry, if it is not the last record's; else 0.

    ``records_before`` counts the user records of the segment before this entry. ``sections`` are
    (kind, flags, bytes). ``sizes``: of the payloads, bytes; fewer say nothing. At least one record,
    all within their limits: the writer has checked them. Some 5 ns a record where all payloads are as long,
    else 20, and 10 more where they must be counted here.
    """
    record_count = len(txids)
    assert record_count == len(payloads) > 0, (
        "an entry holds a payload for each txid, and at least one"
    )
    if sizes is None or len(sizes) < record_count:
        sizes = list(map(len, payloads))
    offsets, payload_bytes = _offsets_of(sizes)
    column_bytes = 12 * record_count + 4 + payload_bytes
    if record_flags is not None:
        assert len(record_flags) == record_count
        flags |= FLAG_RECORD_FLAGS
        column_bytes += record_count
    packed_sections = b"".join(_encode_section(*section) for section in sections)
    header = HEADER.pack(
        MAGIC, VERSION, flags, record_count, payload_bytes, column_bytes, len(packed_sections),
        txids[0], txids[-1], records_before, written_ms, max_txid,
    )  # fmt: skip
    buffers: list[Buffer] = [header, packed_sections, pack(f"<{record_count}q", *txids), offsets]
    if record_flags is not None:
        buffers.append(record_flags)
    buffers.extend(payloads)
    return buffers, HEADER_BYTES + len(packed_sections) + column_bytes


def _offsets_of(sizes: list[int]) -> tuple[Buffer, int]:
    """The offsets of payloads of these sizes, as an entry has them, and their end."""
    record_count, size = len(sizes), sizes[0]
    if (
        UNIFORM_RECORDS_MIN <= record_count <= UNIFORM_RECORDS_MAX
        and size
        and sizes.count(size) == record_count
    ):
        return memoryview(_uniform_offsets(size, 1 << record_count.bit_length()))[
            : 4 * (record_count + 1)
        ], (size * record_count)
    ends = list(accumulate(sizes, initial=0))
    return pack(f"<{record_count + 1}i", *ends), ends[-1]


def build_single_record_entry(
    txid: int, payload: Buffer, records_before: int, written_ms: int, max_txid: int = 0
) -> tuple[list[Buffer], int]:
    """As `build_entry`, of one record with nothing beside it: each entry of a thousand busy logs is one."""
    size = len(payload)
    column_bytes = _SINGLE_RECORD_COLUMN_BYTES + size
    head = _pack_single_record(
        MAGIC, VERSION, 0, 1, size, column_bytes, 0, txid, txid, records_before, written_ms, max_txid,
        txid, 0, size,
    )  # fmt: skip
    return [head, payload], HEADER_BYTES + column_bytes


def _encode_section(kind: int, flags: int, data: Buffer) -> bytes:
    return SECTION.pack(kind, flags, len(data)) + data + bytes(-len(data) % 8)


def with_section(
    buffers: list[Buffer], length: int, kind: int, data: Buffer
) -> tuple[list[Buffer], int]:
    """An entry as `build_entry` makes it, not compressed, and its length: with one more section. One copy."""
    entry = memoryview(b"".join(buffers))
    section = _encode_section(kind, 0, data)
    head = bytearray(entry[:HEADER_BYTES])
    (section_bytes,) = unpack_from("<I", head, SECTION_BYTES_OFFSET)
    pack_into("<I", head, SECTION_BYTES_OFFSET, section_bytes + len(section))
    return [head, section, entry[HEADER_BYTES:]], length + len(section)


def find_section(entry: Buffer, header: "EntryHeader", kind: int) -> memoryview | None:
    """The bytes of the first section of a kind that an entry has; None: there is none that is whole."""
    view = memoryview(entry)
    offset, end = HEADER_BYTES, HEADER_BYTES + header.section_bytes
    while offset + SECTION.size <= end:
        section_kind, _, length = SECTION.unpack_from(view, offset)
        offset += SECTION.size
        if offset + length > end:
            return None
        if section_kind == kind:
            return view[offset : offset + length]
        offset += length + -length % 8
    return None


@dataclass(slots=True)
class EntryHeader:
    """What the first 64 bytes of an entry say. ``first_txid`` and ``last_txid``: by slot, not by size.

    All three txids are 0 in a segment whose txids were given when it was linked: ask `max_txid_in`.
    """

    flags: int
    count: int
    payload_bytes: int
    section_bytes: int
    first_txid: int
    last_txid: int
    records_before: int
    written_ms: int
    max_txid: int
    """The greatest of the segment up to this entry; the last one, if an older program wrote it."""

    @property
    def is_control(self) -> bool:
        """Does the entry hold no user record?"""
        return bool(self.flags & FLAG_CONTROL)

    def max_txid_in(self, base: int, txid_rule: int) -> int:
        """Return the greatest txid of the segment up to this entry.

        Args:
            base: The txid base in the segment's record.
            rule: The txid rule in the segment's record.
        """
        if txid_rule == TXIDS_IN_ENTRIES:
            return self.max_txid
        return base if txid_rule == TXIDS_CONSTANT else base + self.records_through - 1

    def origin(
        self,
        segment: int,
        entry: int,
        start_sequence_id: int,
        *,
        txid_base: int,
        txid_rule: int,
        time_floor_ms: int,
    ) -> Origin:
        """Of its records, given what the segment's record says."""
        preceding_records = self.records_before
        step = 1 if txid_rule == TXIDS_INDEXED else 0
        return Origin(
            segment,
            entry,
            start_sequence_id + preceding_records,
            txid_base + step * preceding_records,
            step,
            max(self.written_ms, time_floor_ms),
            self.written_ms,
        )

    @property
    def records_through(self) -> int:
        """The user records of the segment up to this entry, itself included."""
        return self.records_before + (0 if self.is_control else self.count)


@dataclass(slots=True)
class Columns:
    """The records of one entry as columns, every bound checked; views that pin the whole entry.

    Payload of slot k: ``payload[offsets[k]:offsets[k + 1]]``. ``first_slot`` records at the front and
    whatever is after ``count`` are not the caller's: the views are cut already.
    """

    origin: Origin
    first_slot: int
    """The slot of row 0 (a reader that starts or ends inside an entry sees a part of it)."""
    count: int
    txids: memoryview
    """i64[count]"""
    offsets: memoryview
    """i32[count + 1], into `payload`; the first is 0 unless the front was cut."""
    payload: memoryview
    """The payloads of the whole entry, back to back."""
    flags: memoryview | None
    """u8[count], or None when no record has flags."""
    wall_ms: int
    """The writer's stamp on the entry."""

    @property
    def time_ms(self) -> int:
        """The log time of all of them, ms since 1970; see `LogRecord.time_ms`."""
        return self.origin.time_ms

    @property
    def first_dlsn(self) -> DLSN:
        """The position of row 0."""
        return DLSN(self.origin.segment, self.origin.entry, self.first_slot)

    @property
    def first_sequence_id(self) -> int:
        """The sequence id of row 0; the next ones follow without gaps."""
        return self.origin.sequence_id + self.first_slot

    @property
    def payload_bytes(self) -> int:
        """The payload bytes of these rows."""
        return self.offsets[self.count] - self.offsets[0]

    @property
    def held_bytes(self) -> int:
        """What these rows take in memory, about: also records without payload do."""
        return self.offsets[self.count] - self.offsets[0] + RECORD_COLUMN_BYTES * self.count

    def cut(self, first_row: int, end_row: int) -> "Columns":
        """The rows from ``start`` up to ``stop`` (rows of this batch, from 0)."""
        return Columns(
            self.origin,
            self.first_slot + first_row,
            end_row - first_row,
            self.txids[first_row:end_row],
            self.offsets[first_row : end_row + 1],
            self.payload,
            None if self.flags is None else self.flags[first_row:end_row],
            self.wall_ms,
        )

    def tuples(self) -> list[tuple[int, bytes]]:
        """(txid, payload) a record; the payloads are copies and pin nothing."""
        return list(zip(self.txids.tolist(), self._payloads(), strict=True))

    def records(self) -> list[LogRecord]:
        """`LogRecord` objects; the payloads are copies and pin nothing (H17)."""
        return list(
            map(
                ReadRecord,
                self.txids.tolist(),
                self._payloads(),
                repeat(self.origin),
                count(self.first_slot),
            )
        )

    def _payloads(self) -> Iterable[bytes]:
        """A copy of each payload, in order: 50 ns a record of 1 KB where all are as long, else 95."""
        if self.count == 1:
            return (bytes(self.payload[self.offsets[0] : self.offsets[1]]),)
        size = uniform_payload_bytes(self.offsets, self.count)
        if not size:
            ends = self.offsets.tolist()
            return map(BytesIO(self.payload[ends[0] : ends[-1]]).read, map(sub, ends[1:], ends))
        payloads: list[bytes] = []
        for first in range(0, self.count, UNPACK_BATCH):
            batch_count = min(UNPACK_BATCH, self.count - first)
            payloads += _payload_unpacker(size, batch_count)(self.payload, first * size)
        return payloads


def uniform_payload_bytes(offsets: memoryview, record_count: int) -> int:
    """The length of each payload where all are as long, not empty, and the first begins at 0; else 0.

    ``offsets``: i32[number + 1], of which the last one is where the payloads end, and the others are
    whatever they are. They are compared as bytes, without an object an offset.
    """
    if not UNIFORM_RECORDS_MIN <= record_count <= UNIFORM_RECORDS_MAX:
        return 0
    size, remainder = divmod(offsets[record_count], record_count)
    if remainder or size < 1:
        return 0
    return size if _uniform_offsets(size, 1 << record_count.bit_length()).startswith(offsets) else 0


@lru_cache(maxsize=16)
def _uniform_offsets(size: int, record_count: int) -> bytes:
    """The offsets of so many payloads and their end, each of ``size`` bytes; 64 KiB at most."""
    return array("i", range(0, size * record_count + 1, size)).tobytes()


@lru_cache(maxsize=2 * UNPACK_BATCH)
def _payload_unpacker(size: int, record_count: int) -> Callable[[Buffer, int], tuple[bytes, ...]]:
    """Copies so many payloads of ``size`` bytes out of a buffer, from a place in it on."""
    return struct.Struct(f"{size}s" * record_count).unpack_from


def is_ascending(column: memoryview) -> bool:
    """Is none of these numbers, int32 or int64 each and at least one, below 0 or below the one before it?

    Many are compared at once, as the lanes of one large number: where no lane has its sign bit, each one is
    set in the numbers from the second on, the numbers up to the last but one are subtracted, and no lane
    borrows from the next. The sign is still there where it was not needed: 5 ns an int32, 10 an int64.
    """
    if len(column) < BULK_COMPARE_MIN:
        values = column.tolist()
        return values[0] >= 0 and sorted(values) == values
    lanes, width = column.cast("B"), column.itemsize
    signs = _sign_bits(len(column) - 1, width)
    earlier_values = int.from_bytes(lanes[:-width], "little")
    later_values = int.from_bytes(lanes[width:], "little")
    return (
        not (earlier_values | later_values) & signs
        and ((later_values | signs) - earlier_values) & signs == signs
    )


@lru_cache(maxsize=8)
def _sign_bits(value_count: int, value_bytes: int) -> int:
    """So many numbers of so many bytes each, with nothing but their sign bits; as much memory as they."""
    return int.from_bytes((bytes(value_bytes - 1) + b"\x80") * value_count, "little")


def decode_header(entry: Buffer) -> EntryHeader:
    """The header, checked against the entry's length.

    Raises `CorruptData`, and `UnsupportedFormat` for what a newer version wrote.
    """
    size = len(entry)
    if size < HEADER_BYTES:
        raise CorruptData(f"a log entry of {size} bytes, its header alone has {HEADER_BYTES}")
    (
        magic, version, flags, record_count, payload_bytes, column_bytes, section_bytes,
        first_txid, last_txid, records_before, written_ms, max_txid,
    ) = HEADER.unpack_from(entry)  # fmt: skip
    if magic != MAGIC:
        raise CorruptData(f"not a log entry: it begins with {bytes(entry[:4]).hex()}")
    if version != VERSION or flags & ~FLAGS_KNOWN:
        raise UnsupportedFormat(
            f"a log entry of version {version}, flags {flags:#06x}: this program reads version {VERSION}"
        )
    expected = (
        12 * record_count + 4 + payload_bytes + (record_count if flags & FLAG_RECORD_FLAGS else 0)
    )
    if record_count == 0 or section_bytes % 8 or column_bytes != expected:
        raise CorruptData(
            f"a log entry of {record_count} records, {payload_bytes} payload bytes: its columns would have "
            f"{expected} bytes, the header says {column_bytes} (sections: {section_bytes})"
        )
    if flags & CODEC_MASK:
        _check_compressed(flags & CODEC_MASK, column_bytes, size - HEADER_BYTES - section_bytes)
    elif HEADER_BYTES + section_bytes + column_bytes != size:
        raise CorruptData(
            f"a log entry of {size} bytes, by its header it has "
            f"{HEADER_BYTES + section_bytes + column_bytes}"
        )
    return EntryHeader(
        flags, record_count, payload_bytes, section_bytes, first_txid, last_txid, records_before, written_ms,
        max_txid or last_txid,
    )  # fmt: skip


def _check_compressed(codec_number: int, column_bytes: int, compressed_bytes: int) -> None:
    if codec_number >= len(CODEC_NAMES):
        raise UnsupportedFormat(
            f"a log entry of codec {codec_number}, known are {', '.join(CODEC_NAMES)}"
        )
    if column_bytes > COLUMN_BYTES_MAX or compressed_bytes < 1:
        raise CorruptData(
            f"a log entry of {compressed_bytes} compressed bytes, {column_bytes} decompressed; "
            f"allowed are 1 or more, and {COLUMN_BYTES_MAX}"
        )


def decode_columns(
    entry: Buffer, header: EntryHeader, origin: Origin, log_name: str = ""
) -> Columns:
    """The columns of an entry whose header was decoded; every bound is checked.

    What was compressed lies in a buffer of its own, and the entry is not pinned. ``log_name`` is for errors.
    Raises `CorruptData`, also where entry and segment do not agree who says the txids, and
    `UnsupportedFormat` for a critical section, or where the package of its codec is missing.
    """
    view = memoryview(entry)
    record_count = header.count
    position = HEADER_BYTES
    if header.section_bytes:
        position += header.section_bytes
        _check_sections(view[HEADER_BYTES:position])
    if header.flags & CODEC_MASK:
        view, position = _decompress_columns(view[position:], header, origin, log_name), 0
    txids = view[position : position + 8 * record_count].cast("q")
    position += 8 * record_count
    offsets = view[position : position + 4 * (record_count + 1)].cast("i")
    position += 4 * (record_count + 1)
    flags = None
    if header.flags & FLAG_RECORD_FLAGS:
        flags = view[position : position + record_count]
        position += record_count
        origin.flags = _check_record_flags(bytes(flags), origin)
    # Arrow trusts offsets; an unsorted one would read foreign memory.
    if offsets[record_count] != header.payload_bytes or not (
        uniform_payload_bytes(offsets, record_count) or (offsets[0] == 0 and is_ascending(offsets))
    ):
        raise CorruptData(
            f"log entry {origin.segment}.{origin.entry}: its offsets are not in order"
        )
    if txids[0] != header.first_txid or txids[record_count - 1] != header.last_txid:
        raise CorruptData(f"log entry {origin.segment}.{origin.entry}: txids and header differ")
    if header.flags & FLAG_CONTROL:
        return Columns(
            origin, 0, record_count, txids, offsets, view[position:], flags, header.written_ms
        )
    if bool(header.flags & FLAG_TXID_AT_LINK) != (origin.txid >= 0):
        raise CorruptData(
            f"log entry {origin.segment}.{origin.entry}: the txids are in "
            f"{'neither entry nor segment' if origin.txid < 0 else 'both entry and segment'}"
        )
    if origin.txid >= 0:
        first, step = origin.txid, origin.txid_step
        linked_txids = array("q", range(first, first + record_count) if step else [first])
        txids = memoryview(linked_txids if step else linked_txids * record_count)
    return Columns(
        origin, 0, record_count, txids, offsets, view[position:], flags, header.written_ms
    )


def _decompress_columns(
    data: memoryview, header: EntryHeader, origin: Origin, log_name: str
) -> memoryview:
    size = RECORD_COLUMN_BYTES * header.count + 4 + header.payload_bytes
    if header.flags & FLAG_RECORD_FLAGS:
        size += header.count
    description = f'log "{log_name}" entry {origin.segment}.{origin.entry}'
    return memoryview(load_codec(header.flags & CODEC_MASK, description).decompress(data, size))


def _check_record_flags(flags: bytes, origin: Origin) -> bytes:
    if max(flags) > RECORD_FLAGS_KNOWN:
        raise UnsupportedFormat(
            f"log entry {origin.segment}.{origin.entry} has records with flags {max(flags):#04x}, which are "
            "not known"
        )
    if flags[-1] & RECORD_MORE:
        raise CorruptData(f"log entry {origin.segment}.{origin.entry} ends within a set of records")
    return flags


def _check_sections(area: memoryview) -> None:
    position = 0
    while position < len(area):
        kind, flags, length = SECTION.unpack_from(area, position)
        position += SECTION.size + length + (-length % 8)
        if position > len(area):
            raise CorruptData(f"section {kind} of a log entry reaches beyond the section table")
        if flags & SECTION_CRITICAL:
            raise UnsupportedFormat(
                f"a log entry has the critical section {kind}, which is not known"
            )
