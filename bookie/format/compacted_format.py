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
from ...runtime.protocol.schema import fields, number, text, versioned
from . import journal_format as jb
from .extent_map import ExtentLocation
from .journal_format import FOOTER_RUNS_MAX, TRAILER_SPACE, ColdRow

COLD_HEAD, COLD_FOOTER, COLD_TRAILER = 16, 18, 19
FORMAT = 1
PREFIX = "cold-"
UNFINISHED = ".tmp"
"""Behind the name of one that is being written: a start removes it."""
DATA_OFFSET = blocks.ALIGN
"""Where the first record stands."""

_U64 = number(0, (1 << 64) - 1)
_HEAD = fields(bookie=text(), number=_U64)
_RUN = struct.Struct("<QQQIIQ")
RUN_BYTES = _RUN.size
_TRAILER = struct.Struct("<QQQQQ")

assert RUN_BYTES == 40


def cold_name(number: int) -> str:
    """The name of cold file ``number``: cold and journal files are counted together, from 1."""
    return f"{PREFIX}{number:012d}"


def cold_number(name: str) -> int | None:
    """The number in a cold file's name; None for a name that no bookie gives."""
    digits = name.removeprefix(PREFIX)
    if digits == name or len(digits) > 12 or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if 0 < number <= jb.FILE_NUMBER_MAX and cold_name(number) == name else None


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A cold file, as the heads of the journal and the index list it."""

    number: int
    length: int
    """Of the file, bytes, holes included."""
    data_end: int
    """Where its records end."""
    runs: int
    """How many its footer names."""

    @property
    def own_bytes(self) -> int:
        """What is no record: head, footer, trailer."""
        return self.length - (self.data_end - DATA_OFFSET)

    @property
    def row(self) -> ColdRow:
        """As it is stored in a list."""
        return self.number, self.length, self.data_end, self.runs


def encode_head(bookie_id: str, number: int) -> bytes:
    """A COLD_HEAD's payload."""
    return pack({"format": FORMAT, "bookie": bookie_id, "number": number})


def decode_head(payload: memoryview, what: str) -> tuple[str, int]:
    """Bookie and number of a COLD_HEAD. Raises `CorruptData`, `UnsupportedFormat`."""
    value = versioned(payload, FORMAT, _HEAD, what)
    return value["bookie"], value["number"]


@dataclass(frozen=True, slots=True)
class CompactedExtent:
    """A run as it stands in a footer."""

    ledger: int
    at: ExtentLocation
    digest: int
    """xxh3_64 of the bytes of all its records."""

    def encode(self) -> bytes:
        """40 bytes."""
        at = self.at
        return _RUN.pack(self.ledger, at.first, at.offset, at.length, at.count, self.digest)


def run_rows(payload: memoryview, what: str) -> Iterator[tuple[int, ...]]:
    """Those of a COLD_FOOTER's payload as they stand there: as a journal file's, and a digest.

    Raises `CorruptData`.
    """
    if len(payload) % RUN_BYTES:
        raise CorruptData(f"{what}: {len(payload)} bytes are not whole runs")
    return _RUN.iter_unpack(payload)


def unpack_runs(payload: memoryview, file_number: int, what: str) -> Iterator[CompactedExtent]:
    """The runs of a COLD_FOOTER's payload. Raises `CorruptData`."""
    for ledger, first, offset, length, count, digest in run_rows(payload, what):
        if not count or not length:
            raise CorruptData(f"{what}: a run of {count} entries in {length} bytes")
        yield CompactedExtent(
            ledger, ExtentLocation(first, count, file_number, offset, length), digest
        )


def footer_payload(runs: Sequence[CompactedExtent]) -> bytes:
    """The payload of a COLD_FOOTER block, of `FOOTER_RUNS_MAX` runs at most."""
    return b"".join(run.encode() for run in runs)


def footer_bytes(runs: int) -> int:
    """How long the blocks of a footer of so many runs are."""
    whole, rest = divmod(runs, FOOTER_RUNS_MAX)
    length = whole * blocks.padded(FOOTER_RUNS_MAX * RUN_BYTES)
    return length + (blocks.padded(rest * RUN_BYTES) if rest else 0)


@dataclass(frozen=True, slots=True)
class CompactedFileTrailer:
    """Where the footer of a cold file lies, and what it must say."""

    footer_offset: int
    footer_blocks: int
    data_end: int
    runs: int
    digest: int

    def encode(self) -> bytes:
        """As a block's payload."""
        return _TRAILER.pack(
            self.footer_offset, self.footer_blocks, self.data_end, self.runs, self.digest
        )

    @classmethod
    def decode(cls, payload: memoryview, what: str) -> "CompactedFileTrailer":
        """Raises `CorruptData`."""
        if len(payload) != _TRAILER.size:
            raise CorruptData(f"{what}: a trailer of {len(payload)} bytes")
        found = cls(*_TRAILER.unpack(payload))
        if (
            found.footer_offset % blocks.ALIGN
            or not DATA_OFFSET <= found.data_end <= found.footer_offset < 1 << 62
            or found.footer_blocks != -(-found.runs // FOOTER_RUNS_MAX)
        ):
            raise CorruptData(f"{what}: its trailer contradicts itself")
        return found


class Layout:
    """Where in a cold file each of some runs will lie, given sorted one after the other; and the file."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._offset = DATA_OFFSET
        self._joined = 0
        self._last: tuple[int, ExtentLocation] | None = None

    def place(self, ledger: int, run: ExtentLocation) -> ExtentLocation:
        """Of the next run."""
        place = ExtentLocation(run.first, run.count, self._number, self._offset, run.length)
        self._offset += run.length
        last = self._last
        whole = last[1].joined(place) if last is not None and last[0] == ledger else None
        self._joined += whole is None
        self._last = (ledger, whole or place)
        return place

    @property
    def file(self) -> CompactedFile:
        """What those that were placed make."""
        footer_offset = -(-self._offset // blocks.ALIGN) * blocks.ALIGN
        length = footer_offset + footer_bytes(self._joined) + TRAILER_SPACE
        return CompactedFile(self._number, length, self._offset, self._joined)
