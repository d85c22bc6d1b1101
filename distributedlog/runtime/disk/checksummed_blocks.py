"""Checksummed blocks in append-only files; each is valid at its own file offset only (pure).

The format is::

    | xxh3_64 u64 | magic u32 | version u16 | kind u16 | padded length u32 | payload length u32 |
    | start count u32 | note u32 | sequence u64 | durable_to u64 | file number u64 | payload ... | zeros |

Numbers are little-endian. The header has 56 bytes, and blocks are padded to 4 KiB. The digest covers the rest
of the header and the payload, not the padding. Its seed is specific to the disk and mixed with file number
and offset. So a copy of a block at any other place, or inside a user's payload, is not a valid block.

The store that writes a block defines the meaning of its note. The value 0 means none, and programs that do
not use notes ignore them.

Blocks are numbered from 1 in one sequence over all files of a store. ``durable_to`` is the highest sequence
number that was known to be synced when the block was written, or 0. It distinguishes a torn tail from a lost
block (H3, `classify_tail`). Nothing is written after a replayed tail. Each start opens a new file, whose
first block names its predecessor and the end of that file. Blocks after that end are not passed to
`classify_tail`.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from ..interfaces.errors import UnsupportedFormat

HEADER = struct.Struct("<QIHHIIIIQQQ")
HEADER_BYTES = HEADER.size
ALIGN = 4096
MAGIC = 0x4B424C44  # "DLBK"
VERSION = 1
BLOCK_BYTES_MAX = 16 * 1024 * 1024
"""The padded length of the longest block. It limits the memory of a scan in pieces."""

_DIGEST = struct.Struct("<Q")
_U64 = 0xFFFF_FFFF_FFFF_FFFF

assert HEADER_BYTES == 56


@dataclass(slots=True)
class Block:
    """One valid block. ``offset`` is that in the file; ``payload`` is a view of the scanned data."""

    kind: int
    start_count: int
    sequence: int
    durable_to: int
    file_number: int
    offset: int
    payload: memoryview
    padded_length: int
    note: int = 0
    """A number whose meaning the store defines; 0 means none."""


@dataclass(frozen=True, slots=True)
class BlockScanResult:
    """The state of a store after a scan; see `classify_tail`."""

    tail_from: int
    """Blocks from this sequence number on are ignored, even valid ones, because they were never acknowledged.
    """
    lost_ranges: list[tuple[int, int]]
    """Ranges of sequence numbers that were durable and are lost (both ends inclusive, ascending)."""
    durable_to: int
    """The highest sequence number that is known to have been synced."""


def padded_length(payload_bytes: int) -> int:
    """Return the length on disk, in bytes, of a block with a payload of this size."""
    return (HEADER_BYTES + payload_bytes + ALIGN - 1) // ALIGN * ALIGN


def write_header(
    buffer: bytearray | memoryview,
    offset: int,
    *,
    kind: int,
    payload_bytes: int,
    start_count: int,
    sequence: int,
    durable_to: int,
    file_number: int,
    file_offset: int,
    seed: int,
    note: int = 0,
) -> int:
    """Complete the block whose payload is at ``buffer[offset + 56:]``, and return its padded length.

    Writes the header and zeroes the padding, so a reused buffer need not be cleared. ``file_offset`` is the
    block's offset in its file, a multiple of 4096.
    """
    length = padded_length(payload_bytes)
    assert length <= BLOCK_BYTES_MAX, f"a block of {length} bytes, allowed are {BLOCK_BYTES_MAX}"
    assert file_offset % ALIGN == 0, "blocks start on 4 KiB"
    assert 0 <= durable_to < sequence, "a block is not synced when it is written"
    HEADER.pack_into(
        buffer,
        offset,
        0,
        MAGIC,
        VERSION,
        kind,
        length,
        payload_bytes,
        start_count,
        note,
        sequence,
        durable_to,
        file_number,
    )
    end = offset + HEADER_BYTES + payload_bytes
    with memoryview(buffer) as view:
        view[end : offset + length] = bytes(offset + length - end)
        digest = xxhash.xxh3_64_intdigest(
            view[offset + _DIGEST.size : end], _block_seed(seed, file_number, file_offset)
        )
    _DIGEST.pack_into(buffer, offset, digest)
    return length


def block_at(
    file_number: int, data: memoryview, seed: int, index: int, file_offset: int
) -> Block | None:
    """Return the valid block at ``data[index:]``, which has ``file_offset`` in its file, or None.

    Raises `UnsupportedFormat` for a valid block of an unknown version.
    """
    if len(data) - index < HEADER_BYTES:
        return None
    header = HEADER.unpack_from(data, index)
    digest, magic, version, kind, length, payload_bytes, start_count, note = header[:8]
    sequence, durable_to, number = header[8:]
    if magic != MAGIC or number != file_number or payload_bytes > BLOCK_BYTES_MAX:
        return None  # checked before hashing, since an invalid part may contain any number
    if length != padded_length(payload_bytes) or index + length > len(data):
        return None
    end = index + HEADER_BYTES + payload_bytes
    if digest != xxhash.xxh3_64_intdigest(
        data[index + _DIGEST.size : end], _block_seed(seed, file_number, file_offset)
    ):
        return None
    if version != VERSION:
        raise UnsupportedFormat(
            f"file {file_number} offset {file_offset}: block version {version}, only {VERSION} is supported"
        )
    payload = data[index + HEADER_BYTES : end]
    return Block(
        kind, start_count, sequence, durable_to, file_number, file_offset, payload, length, note
    )


def scan(
    file_number: int, data: memoryview, seed: int, start_offset: int = 0, *, after: int = 0
) -> Iterator[Block]:
    """Yield the valid blocks of ``data``, which starts at ``start_offset`` (aligned) of the file.

    Invalid parts are skipped in steps of 4 KiB. Only strictly increasing sequence numbers above ``after`` are
    yielded. Raises `UnsupportedFormat`.
    """
    assert start_offset % ALIGN == 0, "blocks start on 4 KiB"
    index = 0
    while index < len(data):
        block = block_at(file_number, data, seed, index, start_offset + index)
        if block is None:
            index += ALIGN
            continue
        index += block.padded_length
        if block.sequence > after:
            after = block.sequence
            yield block


def scannable_bytes(file_number: int, data: memoryview, seed: int, start_offset: int = 0) -> int:
    """Return how many bytes of a piece that does not end its file to pass to `scan`.

    Continue reading from there. The result is less than ``len(data)`` only if the last block seems to
    continue after the piece. For a piece of `BLOCK_BYTES_MAX` or more, it is above 0.
    """
    index = 0
    while index < len(data):
        block = block_at(file_number, data, seed, index, start_offset + index)
        if block is None and index + announced_length(file_number, data, index) > len(data):
            return index
        index += ALIGN if block is None else block.padded_length
    return len(data)


def classify_tail(
    blocks_meta: Iterable[tuple[int, int]],
    *,
    from_sequence: int,
    min_durable_to: int,
    known_gaps: Iterable[tuple[int, int]] = (),
) -> BlockScanResult:
    """Distinguish a torn tail from corruption by gaps in the sequence, never by bytes (H3).

    All sequence numbers from ``from_sequence`` on were written. Let D be the highest one known to be synced.
    A missing number above D starts the tail; a missing number up to D was lost.

    Args:
        blocks_meta: (sequence, durable_to) of every valid block, in any order.
        from_sequence: The first sequence number of interest.
        min_durable_to: A sequence number known to be synced from another source (a checkpoint).
        known_gaps: Ranges of sequence numbers that are not required (both ends inclusive).
    """
    durable_to = min_durable_to
    spans: list[tuple[int, int]] = []
    for sequence, block_durable_to in blocks_meta:
        durable_to = max(durable_to, block_durable_to)
        spans.append((sequence, sequence))
    spans += (
        (max(first, from_sequence), last) for first, last in known_gaps if last >= from_sequence
    )
    lost_ranges: list[tuple[int, int]] = []
    expected = from_sequence
    for first, last in sorted(spans):
        if first > expected:
            if expected <= durable_to:
                lost_ranges.append((expected, min(first - 1, durable_to)))
            if first - 1 > durable_to:
                return BlockScanResult(max(expected, durable_to + 1), lost_ranges, durable_to)
        expected = max(expected, last + 1)
    if expected <= durable_to:  # the newest durable blocks are lost, and none follows them
        lost_ranges.append((expected, durable_to))
    return BlockScanResult(max(expected, durable_to + 1), lost_ranges, durable_to)


def announced_length(file_number: int, data: memoryview, index: int) -> int:
    """Return the padded length in a plausible header at ``data[index:]``, or 4 KiB without one."""
    if len(data) - index < HEADER_BYTES:
        return ALIGN
    _, magic, _, _, length, payload_bytes, _, _, _, _, number = HEADER.unpack_from(data, index)
    if magic != MAGIC or number != file_number or payload_bytes > BLOCK_BYTES_MAX:
        return ALIGN
    return int(length) if length == padded_length(payload_bytes) <= BLOCK_BYTES_MAX else ALIGN


def _block_seed(seed: int, file_number: int, file_offset: int) -> int:
    return (seed ^ _mix(_mix(file_number) ^ file_offset)) & _U64


def _mix(value: int) -> int:
    """Apply the finalizer of SplitMix64: a bijection of 64-bit values that spreads every bit."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & _U64
    value = ((value ^ value >> 30) * 0xBF58_476D_1CE4_E5B9) & _U64
    value = ((value ^ value >> 27) * 0x94D0_49BB_1331_11EB) & _U64
    return value ^ value >> 31
