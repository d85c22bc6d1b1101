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
from ..declarations.compression_codecs import COLUMN_BYTES_MAX, NAMES, codec
from .dlsn import DLSN
from .log_clock import iso_of

assert sys.byteorder == "little", "columns are read in place, and they are little-endian"

HEADER = struct.Struct("<IHHIIIIqqQqQ")
HEADER_BYTES = 64
SECTION = struct.Struct("<HHI")
_LONE = struct.Struct(HEADER.format + "qii")
"""Header and columns of one record."""
_pack_lone = _LONE.pack
_LONE_COLUMN_BYTES = _LONE.size - HEADER_BYTES
MAGIC = 0x45474C44  # "DLGE"
VERSION = 1

FLAGS_AT = 6
"""Where the flags are in a header."""
SECTION_BYTES_AT = 20
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
TXIDS_OWN, TXIDS_SAME, TXIDS_INDEX = range(3)
"""A segment's txids: in its entries; all of them its base; the base and the record's index in it."""
SHOWN_BYTES = 32
"""Of a payload in an error or a log line; never the whole."""
RECORD_COLUMN_BYTES = 12
"""What a record costs in an entry beside its payload: its txid and its offset."""
EVEN_RECORDS_MIN, EVEN_RECORDS_MAX = 8, 16 * 1024 - 1
"""In an entry of so many it is looked whether all payloads are as long: they take fewer steps then."""
LANES_MIN = 64
"""A column of so many numbers is compared as one (`ascends`); a shorter one as a list."""
UNPACKED_AT_ONCE = 64
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
        return self._read_from().time_ms

    @property
    def written_ms(self) -> int:
        """The clock of its writer's machine then, ms since 1970. Raises `InvalidRequest` as `dlsn` does."""
        return self._read_from().written_ms

    @property
    def more(self) -> bool:
        """Does the next record belong to the same set? False of one that was not read."""
        origin = self.origin
        return bool(
            origin is not None
            and origin.flags is not None
            and origin.flags[self.slot] & RECORD_MORE
        )

    def _read_from(self) -> Origin:
        if self.origin is None:
            raise InvalidRequest(f"{self!r} was not read from a log: it has no time")
        return self.origin

    def __repr__(self) -> str:
        where = "" if self.origin is None else f"{self.dlsn}, "
        txid = "" if self.txid is None else f"txid={self.txid}, "
        time = "" if self.origin is None else f"time={iso_of(self.time_ms)}, "
        if not isinstance(self.payload, bytes | bytearray | memoryview):
            return f"LogRecord({where}{txid}payload={self.payload!r:.{SHOWN_BYTES}})"
        size = len(self.payload)
        shown = repr(bytes(self.payload[:SHOWN_BYTES])) + ("…" if size > SHOWN_BYTES else "")
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


def columns_of(records: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The txids and the payloads of records as callers may write them."""
    try:
        return [one.txid for one in records], [one.payload for one in records]
    except AttributeError:  # a payload alone is among them
        pairs = [txid_and_payload(one) for one in records]
        return [txid for txid, _ in pairs], [payload for _, payload in pairs]


def build(
    txids: Sequence[int],
    payloads: Sequence[Buffer],
    *,
    records_before: int,
    wall_ms: int,
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
    number = len(txids)
    assert number == len(payloads) > 0, "an entry holds a payload for each txid, and at least one"
    if sizes is None or len(sizes) < number:
        sizes = list(map(len, payloads))
    offsets, payload_bytes = _offsets_of(sizes)
    column_bytes = 12 * number + 4 + payload_bytes
    if record_flags is not None:
        assert len(record_flags) == number
        flags |= FLAG_RECORD_FLAGS
        column_bytes += number
    packed_sections = b"".join(_section(*section) for section in sections)
    header = HEADER.pack(
        MAGIC, VERSION, flags, number, payload_bytes, column_bytes, len(packed_sections),
        txids[0], txids[-1], records_before, wall_ms, max_txid,
    )  # fmt: skip
    buffers: list[Buffer] = [header, packed_sections, pack(f"<{number}q", *txids), offsets]
    if record_flags is not None:
        buffers.append(record_flags)
    buffers.extend(payloads)
    return buffers, HEADER_BYTES + len(packed_sections) + column_bytes


def _offsets_of(sizes: list[int]) -> tuple[Buffer, int]:
    """The offsets of payloads of these sizes, as an entry has them, and their end."""
    number, size = len(sizes), sizes[0]
    if EVEN_RECORDS_MIN <= number <= EVEN_RECORDS_MAX and size and sizes.count(size) == number:
        return memoryview(_even_offsets(size, 1 << number.bit_length()))[: 4 * (number + 1)], (
            size * number
        )
    ends = list(accumulate(sizes, initial=0))
    return pack(f"<{number + 1}i", *ends), ends[-1]


def build_lone(
    txid: int, payload: Buffer, records_before: int, wall_ms: int, max_txid: int = 0
) -> tuple[list[Buffer], int]:
    """As `build`, of one record with nothing beside it: each entry of a thousand busy logs is one."""
    size = len(payload)
    column_bytes = _LONE_COLUMN_BYTES + size
    head = _pack_lone(
        MAGIC, VERSION, 0, 1, size, column_bytes, 0, txid, txid, records_before, wall_ms, max_txid,
        txid, 0, size,
    )  # fmt: skip
    return [head, payload], HEADER_BYTES + column_bytes


def _section(kind: int, flags: int, data: Buffer) -> bytes:
    return SECTION.pack(kind, flags, len(data)) + data + bytes(-len(data) % 8)


def with_section(
    buffers: list[Buffer], length: int, kind: int, data: Buffer
) -> tuple[list[Buffer], int]:
    """An entry as `build` makes it, not compressed, and its length: with one more section. One copy."""
    entry = memoryview(b"".join(buffers))
    section = _section(kind, 0, data)
    head = bytearray(entry[:HEADER_BYTES])
    (before,) = unpack_from("<I", head, SECTION_BYTES_AT)
    pack_into("<I", head, SECTION_BYTES_AT, before + len(section))
    return [head, section, entry[HEADER_BYTES:]], length + len(section)


def find_section(entry: Buffer, header: "EntryHeader", kind: int) -> memoryview | None:
    """The bytes of the first section of a kind that an entry has; None: there is none that is whole."""
    view = memoryview(entry)
    at, end = HEADER_BYTES, HEADER_BYTES + header.section_bytes
    while at + SECTION.size <= end:
        found, _, length = SECTION.unpack_from(view, at)
        at += SECTION.size
        if at + length > end:
            return None
        if found == kind:
            return view[at : at + length]
        at += length + -length % 8
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
    wall_ms: int
    max_txid: int
    """The greatest of the segment up to this entry; the last one, if an older program wrote it."""

    @property
    def control(self) -> bool:
        """Does the entry hold no user record?"""
        return bool(self.flags & FLAG_CONTROL)

    def max_txid_in(self, base: int, rule: int) -> int:
        """Return the greatest txid of the segment up to this entry.

        Args:
            base: The txid base in the segment's record.
            rule: The txid rule in the segment's record.
        """
        if rule == TXIDS_OWN:
            return self.max_txid
        return base if rule == TXIDS_SAME else base + self.records_through - 1

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
        before = self.records_before
        step = 1 if txid_rule == TXIDS_INDEX else 0
        return Origin(
            segment,
            entry,
            start_sequence_id + before,
            txid_base + step * before,
            step,
            max(self.wall_ms, time_floor_ms),
            self.wall_ms,
        )

    @property
    def records_through(self) -> int:
        """The user records of the segment up to this entry, itself included."""
        return self.records_before + (0 if self.control else self.count)


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

    def cut(self, start: int, stop: int) -> "Columns":
        """The rows from ``start`` up to ``stop`` (rows of this batch, from 0)."""
        return Columns(
            self.origin,
            self.first_slot + start,
            stop - start,
            self.txids[start:stop],
            self.offsets[start : stop + 1],
            self.payload,
            None if self.flags is None else self.flags[start:stop],
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
        size = even_bytes(self.offsets, self.count)
        if not size:
            ends = self.offsets.tolist()
            return map(BytesIO(self.payload[ends[0] : ends[-1]]).read, map(sub, ends[1:], ends))
        found: list[bytes] = []
        for first in range(0, self.count, UNPACKED_AT_ONCE):
            number = min(UNPACKED_AT_ONCE, self.count - first)
            found += _unpack_of(size, number)(self.payload, first * size)
        return found


def even_bytes(offsets: memoryview, number: int) -> int:
    """The length of each payload where all are as long, not empty, and the first begins at 0; else 0.

    ``offsets``: i32[number + 1], of which the last one is where the payloads end, and the others are
    whatever they are. They are compared as bytes, without an object an offset.
    """
    if not EVEN_RECORDS_MIN <= number <= EVEN_RECORDS_MAX:
        return 0
    size, rest = divmod(offsets[number], number)
    if rest or size < 1:
        return 0
    return size if _even_offsets(size, 1 << number.bit_length()).startswith(offsets) else 0


@lru_cache(maxsize=16)
def _even_offsets(size: int, number: int) -> bytes:
    """The offsets of so many payloads and their end, each of ``size`` bytes; 64 KiB at most."""
    return array("i", range(0, size * number + 1, size)).tobytes()


@lru_cache(maxsize=2 * UNPACKED_AT_ONCE)
def _unpack_of(size: int, number: int) -> Callable[[Buffer, int], tuple[bytes, ...]]:
    """Copies so many payloads of ``size`` bytes out of a buffer, from a place in it on."""
    return struct.Struct(f"{size}s" * number).unpack_from


def ascends(column: memoryview) -> bool:
    """Is none of these numbers, int32 or int64 each and at least one, below 0 or below the one before it?

    Many are compared at once, as the lanes of one large number: where no lane has its sign bit, each one is
    set in the numbers from the second on, the numbers up to the last but one are subtracted, and no lane
    borrows from the next. The sign is still there where it was not needed: 5 ns an int32, 10 an int64.
    """
    if len(column) < LANES_MIN:
        listed = column.tolist()
        return listed[0] >= 0 and sorted(listed) == listed
    lanes, width = column.cast("B"), column.itemsize
    signs = _signs(len(column) - 1, width)
    before = int.from_bytes(lanes[:-width], "little")
    after = int.from_bytes(lanes[width:], "little")
    return not (before | after) & signs and ((after | signs) - before) & signs == signs


@lru_cache(maxsize=8)
def _signs(number: int, width: int) -> int:
    """So many numbers of so many bytes each, with nothing but their sign bits; as much memory as they."""
    return int.from_bytes((bytes(width - 1) + b"\x80") * number, "little")


def decode_header(entry: Buffer) -> EntryHeader:
    """The header, checked against the entry's length.

    Raises `CorruptData`, and `UnsupportedFormat` for what a newer version wrote.
    """
    size = len(entry)
    if size < HEADER_BYTES:
        raise CorruptData(f"a log entry of {size} bytes, its header alone has {HEADER_BYTES}")
    (
        magic, version, flags, number, payload_bytes, column_bytes, section_bytes,
        first_txid, last_txid, records_before, wall_ms, max_txid,
    ) = HEADER.unpack_from(entry)  # fmt: skip
    if magic != MAGIC:
        raise CorruptData(f"not a log entry: it begins with {bytes(entry[:4]).hex()}")
    if version != VERSION or flags & ~FLAGS_KNOWN:
        raise UnsupportedFormat(
            f"a log entry of version {version}, flags {flags:#06x}: this program reads version {VERSION}"
        )
    expected = 12 * number + 4 + payload_bytes + (number if flags & FLAG_RECORD_FLAGS else 0)
    if number == 0 or section_bytes % 8 or column_bytes != expected:
        raise CorruptData(
            f"a log entry of {number} records, {payload_bytes} payload bytes: its columns would have "
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
        flags, number, payload_bytes, section_bytes, first_txid, last_txid, records_before, wall_ms,
        max_txid or last_txid,
    )  # fmt: skip


def _check_compressed(number: int, column_bytes: int, compressed_bytes: int) -> None:
    if number >= len(NAMES):
        raise UnsupportedFormat(f"a log entry of codec {number}, known are {', '.join(NAMES)}")
    if column_bytes > COLUMN_BYTES_MAX or compressed_bytes < 1:
        raise CorruptData(
            f"a log entry of {compressed_bytes} compressed bytes, {column_bytes} decompressed; "
            f"allowed are 1 or more, and {COLUMN_BYTES_MAX}"
        )


def decode(entry: Buffer, header: EntryHeader, origin: Origin, log_name: str = "") -> Columns:
    """The columns of an entry whose header was decoded; every bound is checked.

    What was compressed lies in a buffer of its own, and the entry is not pinned. ``log_name`` is for errors.
    Raises `CorruptData`, also where entry and segment do not agree who says the txids, and
    `UnsupportedFormat` for a critical section, or where the package of its codec is missing.
    """
    view = memoryview(entry)
    number = header.count
    at = HEADER_BYTES
    if header.section_bytes:
        at += header.section_bytes
        _check_sections(view[HEADER_BYTES:at])
    if header.flags & CODEC_MASK:
        view, at = _decompressed(view[at:], header, origin, log_name), 0
    txids = view[at : at + 8 * number].cast("q")
    at += 8 * number
    offsets = view[at : at + 4 * (number + 1)].cast("i")
    at += 4 * (number + 1)
    flags = None
    if header.flags & FLAG_RECORD_FLAGS:
        flags = view[at : at + number]
        at += number
        origin.flags = _checked_flags(bytes(flags), origin)
    # Arrow trusts offsets; an unsorted one would read foreign memory.
    if offsets[number] != header.payload_bytes or not (
        even_bytes(offsets, number) or (offsets[0] == 0 and ascends(offsets))
    ):
        raise CorruptData(
            f"log entry {origin.segment}.{origin.entry}: its offsets are not in order"
        )
    if txids[0] != header.first_txid or txids[number - 1] != header.last_txid:
        raise CorruptData(f"log entry {origin.segment}.{origin.entry}: txids and header differ")
    if header.flags & FLAG_CONTROL:
        return Columns(origin, 0, number, txids, offsets, view[at:], flags, header.wall_ms)
    if bool(header.flags & FLAG_TXID_AT_LINK) != (origin.txid >= 0):
        raise CorruptData(
            f"log entry {origin.segment}.{origin.entry}: the txids are in "
            f"{'neither entry nor segment' if origin.txid < 0 else 'both entry and segment'}"
        )
    if origin.txid >= 0:
        first, step = origin.txid, origin.txid_step
        given = array("q", range(first, first + number) if step else [first])
        txids = memoryview(given if step else given * number)
    return Columns(origin, 0, number, txids, offsets, view[at:], flags, header.wall_ms)


def _decompressed(
    data: memoryview, header: EntryHeader, origin: Origin, log_name: str
) -> memoryview:
    size = RECORD_COLUMN_BYTES * header.count + 4 + header.payload_bytes
    if header.flags & FLAG_RECORD_FLAGS:
        size += header.count
    whose = f'log "{log_name}" entry {origin.segment}.{origin.entry}'
    return memoryview(codec(header.flags & CODEC_MASK, whose).decompress(data, size))


def _checked_flags(flags: bytes, origin: Origin) -> bytes:
    if max(flags) > RECORD_FLAGS_KNOWN:
        raise UnsupportedFormat(
            f"log entry {origin.segment}.{origin.entry} has records with flags {max(flags):#04x}, which are "
            "not known"
        )
    if flags[-1] & RECORD_MORE:
        raise CorruptData(f"log entry {origin.segment}.{origin.entry} ends within a set of records")
    return flags


def _check_sections(area: memoryview) -> None:
    at = 0
    while at < len(area):
        kind, flags, length = SECTION.unpack_from(area, at)
        at += SECTION.size + length + (-length % 8)
        if at > len(area):
            raise CorruptData(f"section {kind} of a log entry reaches beyond the section table")
        if flags & SECTION_CRITICAL:
            raise UnsupportedFormat(
                f"a log entry has the critical section {kind}, which is not known"
            )
