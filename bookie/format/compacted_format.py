"""What a cold file holds (pure): live records that were moved out of other files, sorted by ledger and entry.

    COLD_HEAD      a block of 4 KiB: msgpack map, whose file it is
    records        back to back as in the journal, each with its own digest; no blocks around them
    COLD_FOOTER    blocks of runs, 40 bytes each: a run as in the journal's FOOTER | xxh3_64 of its bytes
    COLD_TRAILER   in the last 4 KiB: footer offset u64 | footer blocks u64 | end of the records u64 |
                   runs u64 | xxh3_64 of all runs as they stand in the footers

Around head, footers and trailer is a header of `distributedlog/runtime/disk/checksummed_blocks.py`; sequences
count from 1 in each file. Nothing is ever written into a cold file that has its name. Pages in which nothing
is live are given back: they read as zeros, and the footer goes on naming what was there.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.interfaces.errors import CorruptData
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_versioned, fields, number, text
from . import journal_format as jb
from .extent_map import ExtentLocation
from .journal_format import FOOTER_EXTENTS_MAX, TRAILER_SPACE, CompactedFileRow

COMPACTED_HEAD, COMPACTED_FOOTER, COMPACTED_TRAILER = 16, 18, 19
FORMAT = 1
FILE_PREFIX = "cold-"
UNFINISHED_SUFFIX = ".tmp"
"""Behind the name of one that is being written: a start removes it."""
DATA_OFFSET = blocks.ALIGN
"""Where the first record stands."""

_U64 = number(0, (1 << 64) - 1)
_HEAD = fields(bookie=text(), number=_U64)
_EXTENT_ROW = struct.Struct("<QQQIIQ")
EXTENT_ROW_BYTES = _EXTENT_ROW.size
_TRAILER = struct.Struct("<QQQQQ")

assert EXTENT_ROW_BYTES == 40


def compacted_file_name(number: int) -> str:
    """The name of cold file ``number``: cold and journal files are counted together, from 1."""
    return f"{FILE_PREFIX}{number:012d}"


def compacted_file_number(name: str) -> int | None:
    """The number in a cold file's name; None for a name that no bookie gives."""
    digits = name.removeprefix(FILE_PREFIX)
    if digits == name or len(digits) > 12 or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return (
        number if 0 < number <= jb.FILE_NUMBER_MAX and compacted_file_name(number) == name else None
    )


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A cold file, as the heads of the journal and the index list it."""

    number: int
    length: int
    """Of the file, bytes, holes included."""
    data_end: int
    """Where its records end."""
    extent_count: int
    """How many its footer names."""

    @property
    def overhead_bytes(self) -> int:
        """What is no record: head, footer, trailer."""
        return self.length - (self.data_end - DATA_OFFSET)

    @property
    def row(self) -> CompactedFileRow:
        """As it is stored in a list."""
        return self.number, self.length, self.data_end, self.extent_count


def encode_head(bookie_id: str, number: int) -> bytes:
    """A COLD_HEAD's payload."""
    return pack({"format": FORMAT, "bookie": bookie_id, "number": number})


def decode_head(payload: memoryview, what: str) -> tuple[str, int]:
    """Bookie and number of a COLD_HEAD. Raises `CorruptData`, `UnsupportedFormat`."""
    value = decode_versioned(payload, FORMAT, _HEAD, what)
    return value["bookie"], value["number"]


@dataclass(frozen=True, slots=True)
class CompactedExtent:
    """A run as it stands in a footer."""

    ledger: int
    location: ExtentLocation
    digest: int
    """xxh3_64 of the bytes of all its records."""

    def encode(self) -> bytes:
        """40 bytes."""
        location = self.location
        return _EXTENT_ROW.pack(
            self.ledger,
            location.first,
            location.offset,
            location.length,
            location.count,
            self.digest,
        )


def iter_extent_rows(payload: memoryview, what: str) -> Iterator[tuple[int, ...]]:
    """Those of a COLD_FOOTER's payload as they stand there: as a journal file's, and a digest.

    Raises `CorruptData`.
    """
    if len(payload) % EXTENT_ROW_BYTES:
        raise CorruptData(f"{what}: {len(payload)} bytes are not whole runs")
    return _EXTENT_ROW.iter_unpack(payload)


def unpack_extents(payload: memoryview, file_number: int, what: str) -> Iterator[CompactedExtent]:
    """The runs of a COLD_FOOTER's payload. Raises `CorruptData`."""
    for ledger, first, offset, length, count, digest in iter_extent_rows(payload, what):
        if not count or not length:
            raise CorruptData(f"{what}: a run of {count} entries in {length} bytes")
        yield CompactedExtent(
            ledger, ExtentLocation(first, count, file_number, offset, length), digest
        )


def footer_payload(extents: Sequence[CompactedExtent]) -> bytes:
    """The payload of a COLD_FOOTER block, of `FOOTER_EXTENTS_MAX` runs at most."""
    return b"".join(extent.encode() for extent in extents)


def footer_bytes(extent_count: int) -> int:
    """How long the blocks of a footer of so many runs are."""
    full_blocks, remaining_extents = divmod(extent_count, FOOTER_EXTENTS_MAX)
    length = full_blocks * blocks.padded_length(FOOTER_EXTENTS_MAX * EXTENT_ROW_BYTES)
    return length + (
        blocks.padded_length(remaining_extents * EXTENT_ROW_BYTES) if remaining_extents else 0
    )


@dataclass(frozen=True, slots=True)
class CompactedFileTrailer:
    """Where the footer of a cold file lies, and what it must say."""

    footer_offset: int
    footer_blocks: int
    data_end: int
    extent_count: int
    digest: int

    def encode(self) -> bytes:
        """As a block's payload."""
        return _TRAILER.pack(
            self.footer_offset, self.footer_blocks, self.data_end, self.extent_count, self.digest
        )

    @classmethod
    def decode(cls, payload: memoryview, what: str) -> "CompactedFileTrailer":
        """Raises `CorruptData`."""
        if len(payload) != _TRAILER.size:
            raise CorruptData(f"{what}: a trailer of {len(payload)} bytes")
        trailer = cls(*_TRAILER.unpack(payload))
        if (
            trailer.footer_offset % blocks.ALIGN
            or not DATA_OFFSET <= trailer.data_end <= trailer.footer_offset < 1 << 62
            or trailer.footer_blocks != -(-trailer.extent_count // FOOTER_EXTENTS_MAX)
        ):
            raise CorruptData(f"{what}: its trailer contradicts itself")
        return trailer


class CompactedFileLayout:
    """Where in a cold file each of some runs will lie, given sorted one after the other; and the file."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._offset = DATA_OFFSET
        self._extent_count = 0
        self._last_extent: tuple[int, ExtentLocation] | None = None

    def place(self, ledger: int, extent: ExtentLocation) -> ExtentLocation:
        """Of the next run."""
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
        """What those that were placed make."""
        footer_offset = -(-self._offset // blocks.ALIGN) * blocks.ALIGN
        length = footer_offset + footer_bytes(self._extent_count) + TRAILER_SPACE
        return CompactedFile(self._number, length, self._offset, self._extent_count)
