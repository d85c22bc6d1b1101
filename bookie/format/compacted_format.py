"""The layout of compacted files: live records from other files, sorted by ledger and entry (pure).

The parts of a file::

    COMPACTED_HEAD      a block of 4 KiB: msgpack map with the bookie and the file's number
    records             back to back as in the journal, each with its own digest; no blocks around them
    COMPACTED_FOOTER    blocks of extents, 40 bytes each: as in the journal's FOOTER | 8 unused bytes
    COMPACTED_TRAILER   in the last 4 KiB: footer offset u64 | footer blocks u64 | end of the records u64 |
                        extents u64 | xxh3_64 of all extent rows of the footers

Head, footers and trailer are blocks with a header of `distributedlog/runtime/disk/checksummed_blocks.py`.
Their sequences count from 1 in each file. A complete compacted file is never written again. Pages without a
live record are freed. They then read as zeros, and the footer still lists their extents.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_versioned, fields, number, text
from . import journal_format as jb
from .extent_map import ExtentLocation
from .journal_format import FOOTER_EXTENTS_MAX, TRAILER_SPACE, CompactedFileRow, JournalExtent

COMPACTED_HEAD, COMPACTED_FOOTER, COMPACTED_TRAILER = 16, 18, 19
FORMAT = 1
FILE_PREFIX = "cold-"
UNFINISHED_SUFFIX = ".tmp"
"""Follows the name of an unfinished file, which a start removes."""
DATA_OFFSET = blocks.ALIGN
"""The offset of the first record."""

_U64 = number(0, (1 << 64) - 1)
_HEAD = fields(bookie=text(), number=_U64)
_EXTENT_ROW = struct.Struct("<QQQII8x")
"""Version 0.1 wrote the xxh3_64 of the extent's bytes last. No version reads it: each record has a digest."""
EXTENT_ROW_BYTES = _EXTENT_ROW.size
_TRAILER = struct.Struct("<QQQQQ")

assert EXTENT_ROW_BYTES == 40


def compacted_file_name(number: int) -> str:
    """Return the name of a compacted file.

    Compacted and journal files share one sequence of numbers, from 1.
    """
    return f"{FILE_PREFIX}{number:012d}"


def compacted_file_number(name: str) -> int | None:
    """Return the number in a compacted file's name; None for a name that no bookie assigns."""
    digits = name.removeprefix(FILE_PREFIX)
    if digits == name or len(digits) > 12 or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return (
        number if 0 < number <= jb.FILE_NUMBER_MAX and compacted_file_name(number) == name else None
    )


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A compacted file, as the index and the heads of journal files list it."""

    number: int
    length: int
    """The size of the file in bytes, including freed pages."""
    data_end: int
    """The offset of the end of its records."""
    extent_count: int
    """The number of extents in its footer."""

    @property
    def overhead_bytes(self) -> int:
        """The bytes of head, footer and trailer."""
        return self.length - (self.data_end - DATA_OFFSET)

    @property
    def row(self) -> CompactedFileRow:
        """The file as a row of a stored list."""
        return self.number, self.length, self.data_end, self.extent_count


def encode_head(bookie_id: str, number: int) -> bytes:
    """Return the payload of a COMPACTED_HEAD block."""
    return pack({"format": FORMAT, "bookie": bookie_id, "number": number})


def decode_head(payload: memoryview, what: str) -> tuple[str, int]:
    """Return bookie and number from a COMPACTED_HEAD's payload. Raises `CorruptData`, `UnsupportedFormat`."""
    value = decode_versioned(payload, FORMAT, _HEAD, what)
    return value["bookie"], value["number"]


def iter_extent_rows(payload: memoryview, what: str) -> Iterator[tuple[int, ...]]:
    """Iterate over the rows of a COMPACTED_FOOTER's payload: as in a journal file.

    Raises:
        CorruptData: The payload does not consist of complete rows.
    """
    if len(payload) % EXTENT_ROW_BYTES:
        raise CorruptData(f"{what}: {len(payload)} bytes are not complete rows")
    return _EXTENT_ROW.iter_unpack(payload)


def unpack_extents(payload: memoryview, what: str) -> Iterator[JournalExtent]:
    """Yield the extents of a COMPACTED_FOOTER's payload. Raises `CorruptData`."""
    for ledger, first, offset, length, count in iter_extent_rows(payload, what):
        if not count or not length:
            raise CorruptData(f"{what}: an extent of {count} entries in {length} bytes")
        yield JournalExtent(ledger, first, count, offset, length)


def footer_payload(extents: Iterable[JournalExtent]) -> bytes:
    """Return the payload of a COMPACTED_FOOTER block, of at most `FOOTER_EXTENTS_MAX` extents."""
    return b"".join(
        _EXTENT_ROW.pack(
            extent.ledger, extent.first_entry, extent.offset, extent.length, extent.entry_count
        )
        for extent in extents
    )


def footer_bytes(extent_count: int) -> int:
    """Return the length in bytes of a footer for this number of extents."""
    full_blocks, remaining_extents = divmod(extent_count, FOOTER_EXTENTS_MAX)
    length = full_blocks * blocks.padded_length(FOOTER_EXTENTS_MAX * EXTENT_ROW_BYTES)
    return length + (
        blocks.padded_length(remaining_extents * EXTENT_ROW_BYTES) if remaining_extents else 0
    )


@dataclass(frozen=True, slots=True)
class CompactedFileTrailer:
    """The location of the footer in a compacted file, and the values with which it must agree."""

    footer_offset: int
    footer_blocks: int
    data_end: int
    extent_count: int
    digest: int

    def encode(self) -> bytes:
        """Return the payload of the trailer block."""
        return _TRAILER.pack(
            self.footer_offset, self.footer_blocks, self.data_end, self.extent_count, self.digest
        )

    @classmethod
    def decode(cls, payload: memoryview, what: str) -> "CompactedFileTrailer":
        """Decode the payload of a trailer block. Raises `CorruptData`."""
        if len(payload) != _TRAILER.size:
            raise CorruptData(f"{what}: a trailer of {len(payload)} bytes")
        trailer = cls(*_TRAILER.unpack(payload))
        if (
            trailer.footer_offset % blocks.ALIGN
            or not DATA_OFFSET <= trailer.data_end <= trailer.footer_offset < 1 << 62
            or trailer.footer_blocks != -(-trailer.extent_count // FOOTER_EXTENTS_MAX)
        ):
            raise CorruptData(f"{what}: its trailer is inconsistent")
        return trailer


class CompactedFileLayout:
    """Assign offsets in a new compacted file to extents, which are given in sorted order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._offset = DATA_OFFSET
        self._extent_count = 0
        self._last_extent: tuple[int, ExtentLocation] | None = None

    def place(self, ledger: int, extent: ExtentLocation) -> ExtentLocation:
        """Return the location of the next extent in the file."""
        target = ExtentLocation(
            extent.first, extent.count, self._number, self._offset, extent.length
        )
        self._offset += extent.length
        previous = self._last_extent
        merged = (
            previous[1].merge_with(target)
            if previous is not None and previous[0] == ledger
            else None
        )
        self._extent_count += merged is None
        self._last_extent = (ledger, merged or target)
        return target

    @property
    def file(self) -> CompactedFile:
        """The file that results from the extents so far."""
        footer_offset = -(-self._offset // blocks.ALIGN) * blocks.ALIGN
        length = footer_offset + footer_bytes(self._extent_count) + TRAILER_SPACE
        return CompactedFile(self._number, length, self._offset, self._extent_count)
