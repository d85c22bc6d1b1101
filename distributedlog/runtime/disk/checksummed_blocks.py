"""Checksummed blocks in append-only files, each bound to its place (pure).

    | xxh3_64 u64 | magic u32 | version u16 | kind u16 | padded length u32 | payload length u32 |
    | start count u32 | note u32 | sequence u64 | durable_to u64 | file number u64 | payload ... | zeros |

Little-endian, header 56 bytes, padded to 4 KiB. The digest covers the rest of the header and the
payload, not the padding. Its seed is the disk's own, mixed with file number and offset: a true copy
of a block anywhere else, or stored by a user as a payload, is no block.

The note is the store's own: 0 is none, and programs that do not use it ignore it.

Blocks count from 1, one sequence over all files of a store. ``durable_to`` is the highest sequence
known synced when the block was written (0: none): by it a torn tail and a lost block are told apart
(H3, `classify_tail`). Nothing is ever written after a replayed tail: each start opens a new file, whose
first block names its predecessor and where that one ends; what lies after that end is not given
to `classify_tail`.
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
"""Padded length of the longest block; bounds what a scan in stretches must hold."""

_DIGEST = struct.Struct("<Q")
_U64 = 0xFFFF_FFFF_FFFF_FFFF

assert HEADER_BYTES == 56


@dataclass(slots=True)
class Block:
    """One valid block. ``offset`` is its place in the file; ``payload`` a view of the scanned data."""

    kind: int
    start_count: int
    sequence: int
    durable_to: int
    file_number: int
    offset: int
    payload: memoryview
    padded_length: int
    note: int = 0
    """A number to which the store that wrote the block gives a meaning; 0: none."""


@dataclass(frozen=True, slots=True)
class BlockScanResult:
    """What a store may believe after a scan; see `classify_tail`."""

    tail_from: int
    """Nothing from this sequence on counts, valid blocks included: it was never acknowledged."""
    corrupt: list[tuple[int, int]]
    """Ranges of sequences (both ends inclusive, ascending) that were durable and are gone."""
    durable_to: int
    """The highest sequence that is known to have been synced."""


def padded_length(payload_bytes: int) -> int:
    """The length on disk, bytes, of a block with such a payload."""
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
    """Seal the block whose payload lies at ``buffer[offset + 56:]``; return its padded length.

    Writes the header and zeroes the padding, so a gathering buffer may be used again uncleaned.
    ``file_offset`` is where the block will lie in its file, a multiple of 4096.
    """
    length = padded_length(payload_bytes)
    assert length <= BLOCK_BYTES_MAX, f"a block of {length} bytes, allowed are {BLOCK_BYTES_MAX}"
    assert file_offset % ALIGN == 0, "blocks start on 4 KiB"
    assert 0 <= durable_to < sequence, "a block cannot know itself synced"
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
    """The valid block at ``data[index:]``, which lies at ``file_offset`` of its file, or None.

    Raises `UnsupportedFormat` for a sound block of a version that is not known here.
    """
    if len(data) - index < HEADER_BYTES:
        return None
    header = HEADER.unpack_from(data, index)
    digest, magic, version, kind, length, payload_bytes, start_count, note = header[:8]
    sequence, durable_to, number = header[8:]
    if magic != MAGIC or number != file_number or payload_bytes > BLOCK_BYTES_MAX:
        return None  # checked before hashing: in a bad stretch any number may stand there
    if length != padded_length(payload_bytes) or index + length > len(data):
        return None
    end = index + HEADER_BYTES + payload_bytes
    if digest != xxhash.xxh3_64_intdigest(
        data[index + _DIGEST.size : end], _block_seed(seed, file_number, file_offset)
    ):
        return None
    if version != VERSION:
        raise UnsupportedFormat(
            f"file {file_number} offset {file_offset}: a block of version {version}, known is {VERSION}"
        )
    payload = data[index + HEADER_BYTES : end]
    return Block(
        kind, start_count, sequence, durable_to, file_number, file_offset, payload, length, note
    )


def scan(
    file_number: int, data: memoryview, seed: int, start_offset: int = 0, *, after: int = 0
) -> Iterator[Block]:
    """The valid blocks of ``data``, which begins at ``start_offset`` (aligned) of the file.

    Bad stretches are skipped in steps of 4 KiB. Only strictly increasing sequences above ``after``
    are yielded. Raises `UnsupportedFormat`.
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
    """How much of a stretch that does not end its file to give to `scan`; read on from there.

    Less than ``len(data)`` only where the last block seems to go on after the stretch. A stretch of
    `BLOCK_BYTES_MAX` or more always gets on: the answer is above 0.
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
    """Tell a torn tail from corruption, by gaps in the sequence and never by bytes (H3).

    ``blocks_meta`` holds (sequence, durable_to) of every valid block, in any order. All sequences from
    ``from_sequence`` on were written; ``durable_floor`` is known synced from elsewhere (a checkpoint).
    ``excused`` are ranges of sequences, both ends inclusive, that nobody misses.
    D, the highest known synced: a missing sequence above D starts the tail, one at or below D was lost.
    """
    durable_to = min_durable_to
    spans: list[tuple[int, int]] = []
    for sequence, block_durable_to in blocks_meta:
        durable_to = max(durable_to, block_durable_to)
        spans.append((sequence, sequence))
    spans += (
        (max(first, from_sequence), last) for first, last in known_gaps if last >= from_sequence
    )
    corrupt: list[tuple[int, int]] = []
    expected = from_sequence
    for first, last in sorted(spans):
        if first > expected:
            if expected <= durable_to:
                corrupt.append((expected, min(first - 1, durable_to)))
            if first - 1 > durable_to:
                return BlockScanResult(max(expected, durable_to + 1), corrupt, durable_to)
        expected = max(expected, last + 1)
    if expected <= durable_to:  # the newest durable blocks are gone, and nothing came after them
        corrupt.append((expected, durable_to))
    return BlockScanResult(max(expected, durable_to + 1), corrupt, durable_to)


def announced_length(file_number: int, data: memoryview, index: int) -> int:
    """The padded length that a plausible header at ``data[index:]`` announces; 4 KiB where there is none."""
    if len(data) - index < HEADER_BYTES:
        return ALIGN
    _, magic, _, _, length, payload_bytes, _, _, _, _, number = HEADER.unpack_from(data, index)
    if magic != MAGIC or number != file_number or payload_bytes > BLOCK_BYTES_MAX:
        return ALIGN
    return int(length) if length == padded_length(payload_bytes) <= BLOCK_BYTES_MAX else ALIGN


def _block_seed(seed: int, file_number: int, file_offset: int) -> int:
    return (seed ^ _mix(_mix(file_number) ^ file_offset)) & _U64


def _mix(value: int) -> int:
    """SplitMix64's finalizer: a bijection of 64-bit values that spreads every bit."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & _U64
    value = ((value ^ value >> 30) * 0xBF58_476D_1CE4_E5B9) & _U64
    value = ((value ^ value >> 27) * 0x94D0_49BB_1331_11EB) & _U64
    return value ^ value >> 31
