"""Records, and their layout in an entry, in columns (pure).

    magic u32 | version u16 | flags u16 | count u32 | payload bytes u32 | uncompressed size u32
    | section bytes u32 | first txid i64 | last txid i64 | records of the segment before u64
    | wall time ms i64 | greatest txid u64                                     64 bytes, little-endian
    sections:  kind u16 | flags u16 | length u32 | bytes, padded to 8          any number
    columns:   txids i64[count] | offsets i32[count + 1] | record flags u8[count], if any | payloads
               | keys, if any | headers, if any                               (`record_headers.py`)

The columns have the layout of an int64 and a binary array in Arrow, so a batch is a view without a copy. They
begin on a multiple of 8. A codec compresses the columns as a whole (`compression.py`). Header and sections
stay readable.

Fields of the header:

- ``wall time``: the time of the entry, since records have no time of their own. It is the clock of the
  writer's machine, in ms since 1970, when the entry was given to its ledger (`OpenSegment.send`,
  `SegmentWriter.flush`). It is never below the previous entry (`log_clock.py`). An application that needs a
  time per record puts it into the txid or the payload.
- ``greatest txid``: the greatest txid of the segment up to this entry, or 0 if that is ``last txid``.
  Searches by txid use it, so they are right also if txids decrease (decision 109).
- ``uncompressed size``: the size of the columns alone.

A control entry holds no user record and advances no sequence ID. An end-of-stream entry seals the log. A
record's flag 0x01 means that the next slot belongs to the same record set (`LogWriter.submit_set`). Readers
without support for record sets read its records one by one. With the header flag 0x0080 the txids in the
entry are zeros, because they were assigned when the segment was linked. The segment's metadata record has
them. Readers skip unknown sections unless they are marked critical.
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
from .record_headers import (
    FLAGS_KEYED,
    Headers,
    KeyedContent,
    decode_keyed,
    encode_keyed,
    least_keyed_bytes,
    memory_bytes,
)

assert sys.byteorder == "little", "columns are read in place, and they are little-endian"

HEADER = struct.Struct("<IHHIIIIqqQqQ")
HEADER_BYTES = 64
SECTION = struct.Struct("<HHI")
_SINGLE_RECORD = struct.Struct(HEADER.format + "qii")
"""Header and columns of an entry with one record."""
_pack_single_record = _SINGLE_RECORD.pack
_SINGLE_RECORD_COLUMN_BYTES = _SINGLE_RECORD.size - HEADER_BYTES
MAGIC = 0x45474C44  # "DLGE"
VERSION = 1

FLAGS_OFFSET = 6
"""Offset of the flags in a header."""
COLUMN_BYTES_OFFSET = 16
"""Offset of the uncompressed size in a header."""
SECTION_BYTES_OFFSET = 20
"""Offset of the section size in a header."""
CODEC_MASK = 0x000F
"""The codec: 0 none, 1 lz4, 2 zstd (`compression_codecs.py`)."""
FLAG_CONTROL = 0x0010
FLAG_RECORD_FLAGS = 0x0040
FLAG_TXID_AT_LINK = 0x0080
FLAGS_KNOWN = CODEC_MASK | FLAG_CONTROL | FLAG_RECORD_FLAGS | FLAG_TXID_AT_LINK | FLAGS_KEYED
SECTION_CRITICAL = 0x0001

RECORD_MORE = 0x01
"""A record's flag: the next slot belongs to the same record set.

A reader that encounters an unknown flag must not return the payload.
"""
RECORD_FLAGS_KNOWN = RECORD_MORE

RECORD_BYTES_MAX = 1024 * 1024 - 8 * 1024
"""Maximum payload of a record in bytes (DistributedLog's persistent size)."""
TXID_MAX = 2**63 - 2
"""Greatest transaction ID. In the original DistributedLog, 2**63 - 1 marks the end of a stream."""
TXIDS_IN_ENTRIES, TXIDS_CONSTANT, TXIDS_INDEXED = range(3)
"""Txid rules of a segment. A txid is stored in the entry, equals the segment's base, or is the base plus the
record's index in the segment."""
PREVIEW_BYTES = 32
"""Maximum number of payload bytes in an error or a log line."""
RECORD_COLUMN_BYTES = 12
"""Size of a record in an entry in addition to its payload: its txid and its offset."""
UNIFORM_RECORDS_MIN, UNIFORM_RECORDS_MAX = 8, 16 * 1024 - 1
"""An entry with a record count in this range is checked for payloads of equal length, which cost less."""
BULK_COMPARE_MIN = 64
"""Columns with at least this number of integers are compared as one large number (`is_ascending`), shorter
ones as a list."""
UNPACK_BATCH = 64
"""Number of payloads of equal length per unpack call. It limits the number of `struct` formats per length."""

assert HEADER.size == HEADER_BYTES


@dataclass(slots=True)
class Origin:
    """The position and times of one entry, shared by all its records."""

    segment: int
    entry: int
    sequence_id: int
    """The sequence ID of the record in slot 0."""
    txid: int = -1
    """The txid of the record in slot 0 if txids were assigned when the segment was linked. -1 means that they
    are in the entry."""
    txid_step: int = 0
    """If ``txid`` is set, the difference between the txids of consecutive records, 0 or 1."""
    time_ms: int = 0
    """The log time, in ms since 1970."""
    written_ms: int = 0
    """The writer's time stamp, in ms since 1970."""
    flags: bytes | None = None
    """One byte per record of the entry, by slot, or None if no record has flags."""


@dataclass(slots=True, repr=False, eq=False)
class LogRecord:
    """A record of a log.

    Create one with ``LogRecord(txid, payload)`` to write it, or a `KeyedRecord` to write a key or headers.
    Records that a reader returns also have a position and a time.

    Two records are equal if their txids, payloads, keys and headers are equal, whether they were read or not.

    Args:
        txid: The transaction ID, 0 to 2**63 - 2. If it is omitted, as in ``LogRecord(payload=…)``, the log
            assigns it.
        payload: ``bytes`` of at most 1,040,384 bytes. A ``bytearray`` or ``memoryview`` is copied when it is
            written.
    """

    txid: int = None  # type: ignore[assignment]  # never in one that was read
    payload: bytes = b""
    # Not dataclass fields: a record to be written has neither, and a field adds a tenth to a record's cost.
    origin = cast("Origin | None", None)
    slot = -1
    key = cast("bytes | None", None)
    """The key, or None. Only a `KeyedRecord` can have one."""
    headers = cast("Headers", ())
    """Pairs of a name and a value, in their order. Only a `KeyedRecord` can have any."""
    content = cast("Any", None)
    """The payload, or the `KeyedContent` of a record with a key or headers, for writers.

    It is another name of the slot of ``payload``, so a record without them costs nothing.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogRecord):
            return NotImplemented
        return (self.txid, self.payload, self.key, self.headers) == (
            other.txid,
            other.payload,
            other.key,
            other.headers,
        )

    @property
    def dlsn(self) -> DLSN:
        """The position of the record.

        Raises:
            InvalidRequest: The record was not read from a log.
        """
        origin = self.origin
        if origin is None:
            raise InvalidRequest(f"{self!r} was not read from a log: it has no position")
        return DLSN(origin.segment, origin.entry, self.slot)

    @property
    def sequence_id(self) -> int:
        """The number of the record in the log, counted from 0 without gaps.

        Raises:
            InvalidRequest: The record was not read from a log.
        """
        if self.origin is None:
            raise InvalidRequest(f"{self!r} was not read from a log: it has no sequence ID")
        return self.origin.sequence_id + self.slot

    @property
    def time_ms(self) -> int:
        """The log time of the record, in ms since 1970: when its entry was written or linked.

        It never decreases within a log.

        Raises:
            InvalidRequest: The record was not read from a log.
        """
        return self._require_origin().time_ms

    @property
    def written_ms(self) -> int:
        """The clock of the writer's machine when the entry was written, in ms since 1970.

        Unlike `time_ms`, it can decrease from one segment to the next.

        Raises:
            InvalidRequest: The record was not read from a log.
        """
        return self._require_origin().written_ms

    @property
    def more(self) -> bool:
        """Whether the next record belongs to the same record set.

        False if the record was not read from a log.
        """
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
        key = "" if self.key is None else f"key={self.key!r:.{PREVIEW_BYTES}}, "
        headers = f"{len(self.headers)} headers, " if self.headers else ""
        return f"LogRecord({where}{txid}{time}{key}{headers}{size} B {shown})"


LogRecord.content = LogRecord.__dict__["payload"]


@dataclass(slots=True, repr=False, eq=False)
class KeyedRecord(LogRecord):
    """A record with a key, with headers, or with both. It is accepted wherever a `LogRecord` is.

    They are stored and returned unchanged, and the log uses them for nothing. The option ``record_headers``
    of a log or namespace can refuse them. So does a cluster whose upgrade from version 0.1 is not finalized.

    Args:
        txid: As for `LogRecord`.
        payload: As for `LogRecord`. Payload, key and headers have at most 1,040,384 bytes in sum, counting 5
            more, and 8 more per header.
        key: At most 64 KiB, or None. An empty key differs from None.
        headers: At most 64 pairs of a name and a value, both ``bytes``. Their order is kept, and names may
            repeat.
    """

    key: bytes | None = None
    headers: Any = ()
    """As `LogRecord.headers`. A list becomes a tuple."""

    def __post_init__(self) -> None:
        if self.headers is None or type(self.headers) is list:
            self.headers = tuple(self.headers or ())

    @property
    def content(self) -> Any:
        """The unchecked `KeyedContent` of the record, or its payload if it has neither key nor headers."""
        if self.key is None and not self.headers:
            return self.payload
        return KeyedContent(self.payload, self.key, self.headers)


@dataclass(slots=True, repr=False, eq=False)
class ReadRecord(LogRecord):
    """A record that was read. Users see a `LogRecord`."""

    origin: Origin | None = None
    slot: int = -1


@dataclass(slots=True, repr=False, eq=False)
class ReadKeyedRecord(KeyedRecord):
    """A record with a key or headers that was read. Users see a `KeyedRecord`."""

    origin: Origin | None = None
    slot: int = -1


def txid_and_content(record: Any) -> tuple[Any, Any]:
    """Return txid and content of a `LogRecord`, or None and the payload if ``record`` is a payload.

    Check neither.
    """
    if isinstance(record, LogRecord):
        return record.txid, record.content
    return None, record


def check_txid(value: object) -> int:
    """Return the value if it is an int.

    Raises:
        InvalidRequest: The value is of another type.
    """
    if type(value) is not int:
        raise InvalidRequest(f"a txid must be an int, not {quoted(value)}")
    return value


def split_columns(records: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the txids and the contents of records, each of which is a `LogRecord` or a payload.

    The content is the payload, or a `KeyedContent` for a record with a key or headers.
    """
    try:
        return [record.txid for record in records], [record.content for record in records]
    except AttributeError:  # at least one is a payload
        pairs = [txid_and_content(record) for record in records]
        return [txid for txid, _ in pairs], [content for _, content in pairs]


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
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
) -> tuple[list[Buffer], int]:
    """Return the buffers of one entry and their length in bytes. The sender joins the buffers.

    The writer has checked the limits of all values. The cost is about 5 ns per record if all payloads have
    the same length, otherwise 20 ns, and 10 ns more if ``sizes`` is incomplete.

    Args:
        txids: At least one.
        payloads: As many as txids.
        records_before: The number of user records of the segment before this entry.
        written_ms: The writer's time stamp, in ms since 1970.
        flags: Flags for the header.
        record_flags: One byte per record, or None.
        sections: Tuples of kind, flags and bytes.
        sizes: The sizes of the payloads in bytes. A shorter list is ignored.
        max_txid: The greatest txid of the segment up to this entry if it is not that of the last record,
            otherwise 0.
        keys: One per record, None for a record without. None if no record has a key.
        headers: One tuple per record. None if no record has headers.
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
    keyed_columns = b""
    if keys is not None or headers is not None:
        keyed_flags, keyed_columns = encode_keyed(keys, headers)
        flags |= keyed_flags
        column_bytes += len(keyed_columns)
    packed_sections = b"".join(_encode_section(*section) for section in sections)
    header = HEADER.pack(
        MAGIC, VERSION, flags, record_count, payload_bytes, column_bytes, len(packed_sections),
        txids[0], txids[-1], records_before, written_ms, max_txid,
    )  # fmt: skip
    buffers: list[Buffer] = [header, packed_sections, pack(f"<{record_count}q", *txids), offsets]
    if record_flags is not None:
        buffers.append(record_flags)
    buffers.extend(payloads)
    if keyed_columns:
        buffers.append(keyed_columns)
    return buffers, HEADER_BYTES + len(packed_sections) + column_bytes


def _offsets_of(sizes: list[int]) -> tuple[Buffer, int]:
    """Return the offset column for payloads of these sizes, and the end of the last payload."""
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
    """Build an entry of one record without sections or flags, as `build_entry` does.

    This faster path matters for a thousand logs with one record per entry.
    """
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
    """Return an uncompressed entry of `build_entry`, and its length in bytes, with one section more.

    The entry is copied once.
    """
    entry = memoryview(b"".join(buffers))
    section = _encode_section(kind, 0, data)
    head = bytearray(entry[:HEADER_BYTES])
    (section_bytes,) = unpack_from("<I", head, SECTION_BYTES_OFFSET)
    pack_into("<I", head, SECTION_BYTES_OFFSET, section_bytes + len(section))
    return [head, section, entry[HEADER_BYTES:]], length + len(section)


def find_section(entry: Buffer, header: "EntryHeader", kind: int) -> memoryview | None:
    """Return the bytes of the first section of a kind, or None if there is no complete one."""
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
    """The first 64 bytes of an entry, decoded.

    ``first_txid`` and ``last_txid`` are the txids of the first and the last slot, not the least and the
    greatest. All three txids are 0 in a segment whose txids were assigned when it was linked; use
    `max_txid_in`.
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
    """The greatest txid of the segment up to this entry, or the last txid if an older program wrote the
    entry."""

    @property
    def is_control(self) -> bool:
        """Whether the entry holds no user record."""
        return bool(self.flags & FLAG_CONTROL)

    def max_txid_in(self, txid_base: int, txid_rule: int) -> int:
        """Return the greatest txid of the segment up to this entry.

        Args:
            txid_base: The txid base in the segment's record.
            txid_rule: The txid rule in the segment's record.
        """
        if txid_rule == TXIDS_IN_ENTRIES:
            return self.max_txid
        return txid_base if txid_rule == TXIDS_CONSTANT else txid_base + self.records_through - 1

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
        """Return the origin of the entry's records.

        Args:
            segment: The segment number.
            entry: The entry ID.
            start_sequence_id: The sequence ID of the segment's first record.
            txid_base: The txid base in the segment's record, or -1.
            txid_rule: The txid rule in the segment's record.
            time_floor_ms: The lower limit of log time in the segment's record.
        """
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
        """The number of user records of the segment up to and including this entry."""
        return self.records_before + (0 if self.is_control else self.count)


@dataclass(slots=True)
class Columns:
    """The records of one entry as columns, with all bounds checked.

    The columns are views, which keep the whole entry in memory. The payload of row k is
    ``payload[offsets[k]:offsets[k + 1]]``. If a reader starts or ends inside the entry, the views contain
    only its part.
    """

    origin: Origin
    first_slot: int
    """The slot of row 0. It is above 0 if a reader starts inside the entry."""
    count: int
    txids: memoryview
    """i64[count]"""
    offsets: memoryview
    """i32[count + 1], into `payload`. The first is 0 unless the views start inside the entry."""
    payload: memoryview
    """The payloads of the whole entry, without gaps."""
    flags: memoryview | None
    """u8[count], or None if no record has flags."""
    written_ms: int
    """The writer's time stamp of the entry, in ms since 1970."""
    keys: list[bytes | None] | None = None
    """One key per row, or None for a row without. None if no record of the entry has a key."""
    headers: list[Headers] | None = None
    """One tuple of headers per row. None if no record of the entry has headers."""

    @property
    def time_ms(self) -> int:
        """The log time of all records, in ms since 1970 (see `LogRecord.time_ms`)."""
        return self.origin.time_ms

    @property
    def first_dlsn(self) -> DLSN:
        """The position of row 0."""
        return DLSN(self.origin.segment, self.origin.entry, self.first_slot)

    @property
    def first_sequence_id(self) -> int:
        """The sequence ID of row 0. The following rows count up without gaps."""
        return self.origin.sequence_id + self.first_slot

    @property
    def payload_bytes(self) -> int:
        """The size of the payloads of these rows in bytes."""
        return self.offsets[self.count] - self.offsets[0]

    @property
    def content_bytes(self) -> int:
        """The approximate memory use of the payloads, keys and headers of these rows in bytes."""
        return self.payload_bytes + memory_bytes(self.keys, self.headers)

    @property
    def held_bytes(self) -> int:
        """The approximate memory use of these rows in bytes. Records without payload count too."""
        size = self.offsets[self.count] - self.offsets[0] + RECORD_COLUMN_BYTES * self.count
        if self.keys is not None or self.headers is not None:
            size += memory_bytes(self.keys, self.headers)
        return size

    def cut(self, first_row: int, end_row: int) -> "Columns":
        """Return the rows from ``first_row`` up to, but not including, ``end_row``.

        Row 0 is the first of this batch.
        """
        return Columns(
            self.origin,
            self.first_slot + first_row,
            end_row - first_row,
            self.txids[first_row:end_row],
            self.offsets[first_row : end_row + 1],
            self.payload,
            None if self.flags is None else self.flags[first_row:end_row],
            self.written_ms,
            None if self.keys is None else self.keys[first_row:end_row],
            None if self.headers is None else self.headers[first_row:end_row],
        )

    def tuples(self) -> list[tuple[int, bytes]]:
        """Return a tuple (txid, payload) per record, without keys and headers.

        The payloads are copies, so the entry can be freed.
        """
        return list(zip(self.txids.tolist(), self._payloads(), strict=True))

    def records(self) -> list[LogRecord]:
        """Return the records as `LogRecord` objects.

        The payloads are copies, so the entry can be freed (H17).
        """
        if self.keys is not None or self.headers is not None:
            return self._keyed_records()
        return list(
            map(
                ReadRecord,
                self.txids.tolist(),
                self._payloads(),
                repeat(self.origin),
                count(self.first_slot),
            )
        )

    def _keyed_records(self) -> list[LogRecord]:
        keys, headers = self.keys or repeat(None), self.headers or repeat(())
        rows = zip(self.tuples(), keys, headers, count(self.first_slot), strict=False)
        return [
            ReadRecord(txid, payload, self.origin, slot)
            if key is None and not record_headers
            else ReadKeyedRecord(txid, payload, key, record_headers, self.origin, slot)
            for (txid, payload), key, record_headers, slot in rows
        ]

    def _payloads(self) -> Iterable[bytes]:
        """Return a copy of each payload, in order.

        This costs 50 ns per record of 1 KB if all have the same length, otherwise 95 ns.
        """
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
    """Return the common length of all payloads, or 0.

    It is 0 if lengths differ, if they are 0, or if the first payload does not start at 0. It is also 0 below
    `UNIFORM_RECORDS_MIN` and above `UNIFORM_RECORDS_MAX` records. The offsets are compared as bytes, without
    an object per offset.

    Args:
        offsets: i32[record_count + 1]. The last one is the end of the payloads; the others are unchecked.
        record_count: The number of payloads.
    """
    if not UNIFORM_RECORDS_MIN <= record_count <= UNIFORM_RECORDS_MAX:
        return 0
    size, remainder = divmod(offsets[record_count], record_count)
    if remainder or size < 1:
        return 0
    return size if _uniform_offsets(size, 1 << record_count.bit_length()).startswith(offsets) else 0


@lru_cache(maxsize=16)
def _uniform_offsets(size: int, record_count: int) -> bytes:
    """Return the offsets and the end of ``record_count`` payloads of ``size`` bytes each. At most 64 KiB."""
    return array("i", range(0, size * record_count + 1, size)).tobytes()


@lru_cache(maxsize=2 * UNPACK_BATCH)
def _payload_unpacker(size: int, record_count: int) -> Callable[[Buffer, int], tuple[bytes, ...]]:
    """Return a function that copies payloads of equal size out of a buffer at an offset."""
    return struct.Struct(f"{size}s" * record_count).unpack_from


def is_ascending(column: memoryview) -> bool:
    """Return whether integers, int32 or int64 and at least one, are 0 or above and never decrease.

    Many integers are compared at once, as the lanes of one large number. No lane may have its sign bit set.
    The sign bits are set in the integers from the second on, and the integers up to the last but one are
    subtracted. No lane borrows from the next, and a lane keeps its sign bit if its integer did not decrease.
    This costs 5 ns per int32 and 10 ns per int64.
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
    """Return integers of which only the sign bits are set, as one large number.

    It takes as much memory as they.
    """
    return int.from_bytes((bytes(value_bytes - 1) + b"\x80") * value_count, "little")


def decode_header(entry: Buffer) -> EntryHeader:
    """Decode the header of an entry and check it against the entry's length.

    Raises:
        CorruptData: The header is invalid or does not match the length.
        UnsupportedFormat: A newer version wrote the entry.
    """
    size = len(entry)
    if size < HEADER_BYTES:
        raise CorruptData(f"a log entry of {size} bytes; the header alone has {HEADER_BYTES}")
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
        _check_keyed(flags, record_count, section_bytes, column_bytes, expected)
    if flags & CODEC_MASK:
        _check_compressed(flags & CODEC_MASK, column_bytes, size - HEADER_BYTES - section_bytes)
    elif HEADER_BYTES + section_bytes + column_bytes != size:
        raise CorruptData(
            f"a log entry of {size} bytes; by the header it should have "
            f"{HEADER_BYTES + section_bytes + column_bytes}"
        )
    return EntryHeader(
        flags, record_count, payload_bytes, section_bytes, first_txid, last_txid, records_before, written_ms,
        max_txid or last_txid,
    )  # fmt: skip


def _check_keyed(
    flags: int, record_count: int, section_bytes: int, column_bytes: int, expected: int
) -> None:
    """Check the sizes of an entry whose columns are not exactly those without keys and headers."""
    if flags & FLAGS_KEYED:
        expected += least_keyed_bytes(flags, record_count)
    if (
        record_count == 0
        or section_bytes % 8
        or not flags & FLAGS_KEYED
        or flags & FLAG_CONTROL
        or column_bytes < expected
    ):
        raise CorruptData(
            f"a log entry of {record_count} records, flags {flags:#06x}: its columns should have "
            f"{expected} bytes, but have {column_bytes} by the header (sections: {section_bytes})"
        )


def _check_compressed(codec_number: int, column_bytes: int, compressed_bytes: int) -> None:
    if codec_number >= len(CODEC_NAMES):
        raise UnsupportedFormat(
            f"a log entry of codec {codec_number}; supported are {', '.join(CODEC_NAMES)}"
        )
    if column_bytes > COLUMN_BYTES_MAX or compressed_bytes < 1:
        raise CorruptData(
            f"a log entry of {compressed_bytes} compressed bytes, {column_bytes} decompressed; "
            f"the limits are at least 1 and at most {COLUMN_BYTES_MAX}"
        )


def decode_columns(
    entry: Buffer, header: EntryHeader, origin: Origin, log_name: str = ""
) -> Columns:
    """Decode the columns of an entry and check every bound.

    Decompressed columns are in a buffer of their own, so the entry can be freed.

    Args:
        entry: The entry.
        header: Its decoded header.
        origin: The origin of its records. Its ``flags`` are set.
        log_name: The name of the log, for errors.
    Raises:
        CorruptData: The columns are invalid, or entry and segment disagree on the source of the txids.
        UnsupportedFormat: The entry has an unknown critical section or record flag, or the package of its
            codec is missing.
    """
    view = memoryview(entry)
    record_count = header.count
    position = HEADER_BYTES
    if header.section_bytes:
        position += header.section_bytes
        _check_sections(view[HEADER_BYTES:position])
    if header.flags & CODEC_MASK:
        view, position = _decompress_columns(view, position, header, origin, log_name), 0
    txids = view[position : position + 8 * record_count].cast("q")
    position += 8 * record_count
    offsets = view[position : position + 4 * (record_count + 1)].cast("i")
    position += 4 * (record_count + 1)
    flags = None
    if header.flags & FLAG_RECORD_FLAGS:
        flags = view[position : position + record_count]
        position += record_count
        origin.flags = _check_record_flags(bytes(flags), origin)
    # Arrow does not check offsets: with an unsorted one it would read memory outside the buffer.
    if offsets[record_count] != header.payload_bytes or not (
        uniform_payload_bytes(offsets, record_count) or (offsets[0] == 0 and is_ascending(offsets))
    ):
        raise CorruptData(
            f"log entry {origin.segment}.{origin.entry}: its offsets are not in order"
        )
    payload, keys, headers = view[position:], None, None
    if header.flags & FLAGS_KEYED:
        payload = view[position : position + header.payload_bytes]
        keyed_columns = view[position + header.payload_bytes :]
        keys, headers = decode_keyed(keyed_columns, header.flags, record_count)
    if txids[0] != header.first_txid or txids[record_count - 1] != header.last_txid:
        raise CorruptData(
            f"log entry {origin.segment}.{origin.entry}: the txids differ from the header"
        )
    if header.flags & FLAG_CONTROL:
        return Columns(origin, 0, record_count, txids, offsets, payload, flags, header.written_ms)
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
        origin, 0, record_count, txids, offsets, payload, flags, header.written_ms, keys, headers
    )


def _decompress_columns(
    entry: memoryview, position: int, header: EntryHeader, origin: Origin, log_name: str
) -> memoryview:
    """Return the decompressed columns, which begin at ``position``. `decode_header` checked their size."""
    (size,) = unpack_from("<I", entry, COLUMN_BYTES_OFFSET)
    description = f'log "{log_name}" entry {origin.segment}.{origin.entry}'
    codec = load_codec(header.flags & CODEC_MASK, description)
    return memoryview(codec.decompress(entry[position:], size))


def _check_record_flags(flags: bytes, origin: Origin) -> bytes:
    if max(flags) > RECORD_FLAGS_KNOWN:
        raise UnsupportedFormat(
            f"log entry {origin.segment}.{origin.entry} has records with unknown flags {max(flags):#04x}"
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
            raise UnsupportedFormat(f"a log entry has the unknown critical section {kind}")
