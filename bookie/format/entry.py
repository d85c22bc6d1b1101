"""The entry record: one layout for an entry on the wire, in the journal and in replies (pure).

The fields::

    | xxh3_64 u64 | length u32 | payload length u32 | version u16 | flags u16 | reserved u32 |
    | ledger u64 | entry u64 | ledger length so far u64 | LAC i64 | payload ... | zeros to 8 |

Integers are little-endian, and the header has 56 bytes. The digest is first, so that it covers one contiguous
view: bytes [8:length], including the padding. ``length`` is that of the whole record. The record contains no
operation, because the frame around it does. So its bytes never change on the way from the writer to the last
replica (H2), even if the record is sent again.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.host import Buffer

HEADER = struct.Struct("<QIIHHIQQQq")
HEADER_BYTES = HEADER.size
DIGEST_BYTES = 8
ALIGN = 8
VERSION = 1
ENTRY_ID_MAX = (1 << 62) - 1
"""Entry IDs count from 0 and fit an i64, in which -1 means none."""

_DIGEST = struct.Struct("<Q")
_PADDING = tuple(bytes(size) for size in range(ALIGN))

_pack, _pack_digest, _digest_of = HEADER.pack, _DIGEST.pack_into, xxhash.xxh3_64_intdigest

assert HEADER_BYTES == 56
assert HEADER_BYTES % ALIGN == 0


@dataclass(slots=True)
class EntryRecord:
    """One verified record. ``payload`` and ``record`` are views that keep the underlying memory alive."""

    ledger: int
    entry: int
    length_so_far: int
    """Payload bytes of the ledger up to and including this entry."""
    lac: int
    """The LAC of the writer when it created this entry. It is below ``entry``; -1 means none."""
    payload: memoryview
    record: memoryview
    """The complete record, which is sent on unchanged."""


def record_bytes(payload_bytes: int) -> int:
    """Return the length of a record with a payload of this length."""
    return (HEADER_BYTES + payload_bytes + ALIGN - 1) // ALIGN * ALIGN


def encode(
    ledger: int,
    entry: int,
    length_so_far: int,
    lac: int,
    buffers: Sequence[Buffer],
    payload_bytes: int,
) -> bytearray:
    """Encode the record of an entry, whose payload is the concatenation of ``buffers``."""
    assert lac < entry, "an entry is not confirmed before it is sent"
    # As `record_bytes`, without the call, because this runs for each entry.
    padding = _PADDING[-payload_bytes % ALIGN]  # the header's length is a multiple of `ALIGN`
    length = HEADER_BYTES + payload_bytes + len(padding)
    header = _pack(0, length, payload_bytes, VERSION, 0, 0, ledger, entry, length_so_far, lac)
    record = bytearray().join((header, *buffers, padding))
    assert len(record) == length, "payload_bytes is the length of the buffers"
    _pack_digest(record, 0, _digest_of(memoryview(record)[DIGEST_BYTES:]))
    return record


def verify_record(view: Buffer) -> None:
    """Raise `CorruptData` unless ``view`` is exactly one valid record."""
    record = next(records(view), None)
    if record is None or len(record.record) != len(view):
        raise CorruptData(f"{len(view)} bytes that are not one entry record")


def records(view: Buffer) -> Iterator[EntryRecord]:
    """Yield the contiguous records in ``view``, each after its verification.

    Raises:
        CorruptData: A record is truncated, or its digest does not match.
        UnsupportedFormat: A valid record has a newer version.
    """
    view = memoryview(view)
    end = len(view)
    position = 0
    while position < end:
        if end - position < HEADER_BYTES:
            raise CorruptData(f"{end - position} bytes after the last entry record")
        digest, length, payload_bytes, version, _, _, ledger, entry, length_so_far, lac = (
            HEADER.unpack_from(view, position)
        )
        record_end = position + length
        # As `record_bytes`, without the call.
        if (
            record_end > end
            or length != (HEADER_BYTES + payload_bytes + ALIGN - 1) // ALIGN * ALIGN
        ):
            raise CorruptData(
                f"ledger {ledger} entry {entry}: a record of {length} bytes with {payload_bytes} of payload"
                f" in {end - position} bytes"
            )
        if xxhash.xxh3_64_intdigest(view[position + DIGEST_BYTES : record_end]) != digest:
            raise CorruptData(f"ledger {ledger} entry {entry}: the digest does not match")
        if version != VERSION:
            raise UnsupportedFormat(
                f"ledger {ledger} entry {entry}: record version {version} is not supported, only {VERSION}"
            )
        if entry > ENTRY_ID_MAX or not -1 <= lac < entry:
            raise CorruptData(
                f"ledger {ledger} entry {entry}: its LAC {lac} is not below the entry ID"
            )
        start = position + HEADER_BYTES
        payload = view[start : start + payload_bytes]
        yield EntryRecord(ledger, entry, length_so_far, lac, payload, view[position:record_end])
        position = record_end
