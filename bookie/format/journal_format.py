"""The contents of journal blocks (pure).

Around each is a header of `distributedlog/runtime/disk/checksummed_blocks.py`::

    COMMIT   entry records | control records | control bytes u32 | "CMIT" u32
    HEAD     msgpack map with bookie, previous file and existing files; then `state_blocks` COMMIT blocks
    FOOTER   extents of the file, 32 bytes each (only in a sealed file)
    TRAILER  in the last 4 KiB of a sealed file: the location of the footer

    control record, 48 bytes: kind u32 | flags u32 | subject u64 | a i64 | b i64 | key 16s

        STATE              ledger | flags: fenced 1, limbo 2, deleted 4, dropped 8 | a: LAC | key: all of it
        SKIP               sequences a to b do not count: copied to later blocks (H4), or lost
        LIMBO_BELOW        unknown ledgers with a lower ID are in limbo state
        FILE_REMOVED       the journal or compacted file of that number was deleted
        COMPACTED_ADDED    a compacted file exists: number | flags: extents | a: length | b: end of records
        MUST_VERIFY_BELOW  unknown ledgers with a lower ID are looked up in the metadata before an add

Every file begins with the states of all ledgers, or names a state snapshot that has them
(`ledger_state_snapshot.py`). Files from the position of this snapshot on are not deleted. So the deletion of
a file never loses a fence, key, tombstone or limbo state.

The file JOURNAL has a msgpack map and its checksum: the bookie's ID, and the seed of all blocks' digests.

A file is sealed after the HEAD and the states of the next file are durable, and with later sequences. So a
FOOTER proves that a next file exists, and the loss of that file is detected.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from ...runtime.interfaces.errors import CorruptData
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    decode_versioned,
    fields,
    flag,
    number,
    optional,
    row,
    rows,
    text,
)
from . import entry as entries

COMMIT, HEAD, FOOTER, TRAILER = 1, 2, 3, 4
FORMAT = 4
"""The format of a HEAD, or of a position of the index, that names a state snapshot. Format 3 may list
compacted files, and format 2 may contain the bound for removed tombstones."""
FORMAT_WITHOUT_SNAPSHOT, FORMAT_WITHOUT_COMPACTED = 3, 2

FENCED, LIMBO, DELETED, DROPPED = 1, 2, 4, 8
"""Flags of a ledger's state. DROPPED is set together with FENCED and LIMBO, for older versions that ignore
it."""
STATE, SKIP, LIMBO_BELOW, FILE_REMOVED, COMPACTED_ADDED, MUST_VERIFY_BELOW = 1, 2, 3, 4, 5, 6
"""Kinds of control records."""

FILE_PREFIX = "journal-"
IDENTITY_FILE_NAME = "JOURNAL"
IDENTITY_FORMAT = 1
FILES_MAX = 64 * 1024
FILE_NUMBER_MAX = 2**31 - 1
"""No bookie creates this many files. A file with a higher number is not a bookie's."""
CompactedFileRow = tuple[int, int, int, int]
"""A compacted file in a list: number, length, end of its records, extents."""
_U64_MAX = (1 << 64) - 1
_U64 = number(0, _U64_MAX)
_IDENTITY_FIELDS = fields(bookie=text(), seed=_U64, started=flag)
COMPACTED_FILE_ROWS = rows(row(_U64, _U64, _U64, number(0, (1 << 32) - 1)), FILES_MAX)
SNAPSHOT_ROW = row(_U64, _U64, _U64, _U64)
_HEAD_FIELDS = fields(
    {
        "sealing_blocks": (number(), 0),
        "gone_below": (_U64, 0),
        "cold": (COMPACTED_FILE_ROWS, ()),
        "base": (optional(SNAPSHOT_ROW), None),
    },
    bookie=text(),
    start=_U64,
    predecessor=_U64,
    predecessor_end=_U64,
    limbo_below=_U64,
    files=rows(row(_U64, _U64, _U64), FILES_MAX),
    state_blocks=number(),
)
_CONTROL = struct.Struct("<IIQqq16s")
CONTROL_BYTES = _CONTROL.size
_COMMIT_END = struct.Struct("<I4s")
COMMIT_END_BYTES = _COMMIT_END.size
_END_MARK = b"CMIT"
_EXTENT_ROW = struct.Struct("<QQQII")
EXTENT_ROW_BYTES = _EXTENT_ROW.size
_TRAILER = struct.Struct("<QQQQ")
TRAILER_SPACE = 4096
FOOTER_EXTENTS_MAX = 16 * 1024
"""Extents of one footer block: 512 KiB."""

assert CONTROL_BYTES == 48
assert EXTENT_ROW_BYTES == 32


@dataclass(slots=True)
class JournalExtent:
    """Records of consecutive IDs of one ledger that are contiguous in one file."""

    ledger: int
    first_entry: int
    entry_count: int
    offset: int
    """The offset of the first record in the file."""
    length: int


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """One control record. The meaning of the fields depends on ``kind``."""

    kind: int
    flags: int
    subject: int
    a: int
    b: int
    key: bytes


@dataclass(frozen=True, slots=True)
class StateSnapshotRef:
    """A reference to a file with the states of all ledgers."""

    file_number: int
    next_sequence: int
    """The sequence of the first block whose states are not in the file."""
    state_count: int
    digest: int

    def pack(self) -> list[int]:
        """Return the row for a head and for the position of the index."""
        return [self.file_number, self.next_sequence, self.state_count, self.digest]


@dataclass(frozen=True, slots=True)
class Head:
    """The first block of a file."""

    bookie_id: str
    start_count: int
    predecessor_file: int
    """The number of the previous file; 0 if there is none."""
    predecessor_end: int
    """The end of the previous file in bytes. Bytes after it are not part of the journal (H4)."""
    limbo_below: int
    sealed_files: tuple[tuple[int, int, int], ...]
    """The existing sealed files before this one: number, first and last sequence."""
    state_blocks: int
    """The number of COMMIT blocks that follow. They have the states of all ledgers, or those newer than the
    snapshot."""
    sealing_blocks: int = 0
    """The number of sequences after those blocks that seal the previous file: its FOOTERs and its TRAILER."""
    must_verify_below: int = 0
    compacted_files: tuple[CompactedFileRow, ...] = ()
    state_snapshot: StateSnapshotRef | None = None
    """The file with the states of all ledgers as of its position."""

    def encode(self) -> bytes:
        """Return the payload of the block."""
        return pack(
            {
                "format": 1,
                "bookie": self.bookie_id,
                "start": self.start_count,
                "predecessor": self.predecessor_file,
                "predecessor_end": self.predecessor_end,
                "limbo_below": self.limbo_below,
                "files": [list(file) for file in self.sealed_files],
                "state_blocks": self.state_blocks,
                "sealing_blocks": self.sealing_blocks,
                **newer_fields(self.must_verify_below, self.compacted_files, self.state_snapshot),
            }
        )

    @classmethod
    def decode(cls, payload: memoryview, name: str) -> "Head":
        """Decode a payload. Raises `CorruptData`, `UnsupportedFormat`."""
        value = decode_versioned(payload, FORMAT, _HEAD_FIELDS, f"the head of {name}")
        return cls(
            value["bookie"],
            value["start"],
            value["predecessor"],
            value["predecessor_end"],
            value["limbo_below"],
            value["files"],
            value["state_blocks"],
            value["sealing_blocks"],
            value["gone_below"],
            tuple(value["cold"]),
            None if value["base"] is None else StateSnapshotRef(*value["base"]),
        )


def newer_fields(
    must_verify_below: int,
    compacted_files: Sequence[CompactedFileRow],
    state_snapshot: StateSnapshotRef | None,
) -> dict[str, object]:
    """Return the fields that later formats added to a HEAD and to the position of the index.

    They have the lowest format that has them. Without them the dict is empty, and the format stays 1.
    """
    fields: dict[str, object] = {}
    if must_verify_below:
        # An older version relies on tombstones alone, and must not start without the removed ones.
        fields |= {"format": FORMAT_WITHOUT_COMPACTED, "gone_below": must_verify_below}
    if compacted_files:
        fields |= {
            "format": FORMAT_WITHOUT_SNAPSHOT,
            "cold": [list(file) for file in compacted_files],
        }
    if state_snapshot is not None:
        fields |= {"format": FORMAT, "base": state_snapshot.pack()}
    return fields


# --- commits --------------------------------------------------------------------------------------


def state_record(ledger: int, flags: int, lac: int, key: bytes) -> bytes:
    """Encode the complete state of a ledger. The last one that was written applies."""
    return _CONTROL.pack(STATE, flags, ledger, lac, 0, key)


def skip_record(first: int, last: int) -> bytes:
    """Encode that sequences ``first`` to ``last`` (inclusive) do not count."""
    return _CONTROL.pack(SKIP, 0, 0, first, last, b"")


def limbo_below_record(bound: int) -> bytes:
    """Encode that unknown ledgers below ``bound`` are in limbo state."""
    return _CONTROL.pack(LIMBO_BELOW, 0, bound, 0, 0, b"")


def must_verify_below_record(bound: int) -> bytes:
    """Encode that unknown ledgers below ``bound`` are looked up in the metadata before an add is accepted."""
    return _CONTROL.pack(MUST_VERIFY_BELOW, 0, bound, 0, 0, b"")


def file_removed_record(number: int) -> bytes:
    """Encode that a file is about to be deleted, because nothing in it is needed."""
    return _CONTROL.pack(FILE_REMOVED, 0, number, 0, 0, b"")


def compacted_added_record(file: CompactedFileRow) -> bytes:
    """Encode that a compacted file is complete and synced, so that the index may refer to it."""
    number, length, data_end, extent_count = file
    return _CONTROL.pack(COMPACTED_ADDED, extent_count, number, length, data_end, b"")


def commit_end(control_bytes: int) -> bytes:
    """Return the end of a COMMIT payload."""
    return _COMMIT_END.pack(control_bytes, _END_MARK)


def split_commit(payload: memoryview, what: str) -> tuple[memoryview, list[ControlRecord]]:
    """Return the entry records and the control records of a COMMIT payload. Raises `CorruptData`."""
    end = len(payload) - COMMIT_END_BYTES
    if end < 0:
        raise CorruptData(f"{what}: a commit of {len(payload)} bytes")
    control_bytes, mark = _COMMIT_END.unpack_from(payload, end)
    start = end - control_bytes
    if mark != _END_MARK or start < 0 or control_bytes % CONTROL_BYTES:
        raise CorruptData(f"{what}: a commit with {control_bytes} bytes of control records")
    return payload[:start], decode_controls(payload[start:end])


def decode_controls(records: memoryview) -> list[ControlRecord]:
    """Decode contiguous control records. Raises `CorruptData`."""
    if len(records) % CONTROL_BYTES:
        raise CorruptData(f"{len(records)} bytes are not complete control records")
    return [ControlRecord(*values) for values in _CONTROL.iter_unpack(records)]


def extents_of(
    records: memoryview, offset: int, what: str
) -> tuple[list[JournalExtent], dict[int, int]]:
    """Return the extents of contiguous records at ``offset`` of a file, and the highest LAC of each ledger.

    Digests are not checked, because the block around the records was verified.

    Raises:
        CorruptData: The lengths of the records are inconsistent.
    """
    extents: list[JournalExtent] = []
    lacs: dict[int, int] = {}
    extent: JournalExtent | None = None
    position, end = 0, len(records)
    while position < end:
        if end - position < entries.HEADER_BYTES:
            raise CorruptData(f"{what}: {end - position} bytes after the last record")
        _, length, _, _, _, _, ledger, entry, _, lac = entries.HEADER.unpack_from(records, position)
        if length < entries.HEADER_BYTES or position + length > end:
            raise CorruptData(f"{what}: a record of {length} bytes at {position}")
        if (
            extent is not None
            and extent.ledger == ledger
            and extent.first_entry + extent.entry_count == entry
            and extent.length < EXTENT_BYTES_MAX
        ):
            extent.entry_count += 1
            extent.length += length
        else:
            extent = JournalExtent(ledger, entry, 1, offset + position, length)
            extents.append(extent)
        if lac > lacs.get(ledger, -1):
            lacs[ledger] = lac
        position += length
    return extents, lacs


EXTENT_BYTES_MAX = 1024 * 1024
"""An extent of this size is not extended, so that finding an entry in it stays cheap."""


# --- footers --------------------------------------------------------------------------------------


pack_extent_row = _EXTENT_ROW.pack
"""Encode ledger, first entry, offset, length and count as a row of a footer. This is a C function without a
Python call around it, because with a thousand busy logs it is called for each entry."""


def iter_extent_rows(payload: memoryview, what: str) -> Iterator[tuple[int, ...]]:
    """Iterate over the rows of a FOOTER payload: ledger, first entry, offset, length, count.

    Raises:
        CorruptData: The payload does not consist of complete rows.
    """
    if len(payload) % EXTENT_ROW_BYTES:
        raise CorruptData(f"{what}: {len(payload)} bytes are not complete rows")
    return _EXTENT_ROW.iter_unpack(payload)


def unpack_extents(payload: memoryview, what: str) -> Iterator[JournalExtent]:
    """Yield the extents of a FOOTER payload. Raises `CorruptData`."""
    for ledger, first, offset, length, count in iter_extent_rows(payload, what):
        yield JournalExtent(ledger, first, count, offset, length)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The location of a sealed file's footer, and the sequences of the file, including the footer."""

    footer_offset: int
    footer_blocks: int
    first_sequence: int
    last_sequence: int
    """The sequence of the last block before the trailer, whose own sequence is one more."""

    def encode(self) -> bytes:
        """Return the payload of the block."""
        return _TRAILER.pack(
            self.footer_offset, self.footer_blocks, self.first_sequence, self.last_sequence
        )

    @classmethod
    def decode(cls, payload: memoryview, what: str) -> "Trailer":
        """Decode a payload. Raises `CorruptData`."""
        if len(payload) != _TRAILER.size:
            raise CorruptData(f"{what}: a trailer of {len(payload)} bytes")
        return cls(*_TRAILER.unpack(payload))


def file_name(number: int) -> str:
    """Return the name of journal file ``number``, which counts from 1."""
    return f"{FILE_PREFIX}{number:012d}"


def file_number(name: str) -> int | None:
    """Return the number in a journal file's name; None for a name that no bookie assigns."""
    digits = name.removeprefix(FILE_PREFIX)
    if digits == name or len(digits) > 12 or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if 0 < number <= FILE_NUMBER_MAX and file_name(number) == name else None


def state_payloads(states: Sequence[bytes], bytes_max: int) -> list[bytes]:
    """Return state records as payloads of COMMIT blocks of at most about ``bytes_max`` each."""
    per_block = max(1, bytes_max // CONTROL_BYTES)
    return [
        b"".join((*chunk, commit_end(len(chunk) * CONTROL_BYTES)))
        for start in range(0, len(states), per_block)
        if (chunk := states[start : start + per_block])
    ]


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """The content of the file JOURNAL."""

    bookie_id: str
    seed: int
    """The seed of the digests of all blocks, so that no other process can make a valid block (H4)."""
    has_served: bool

    def encode(self) -> bytes:
        """Return the content of the file, which ends in a checksum."""
        body = pack(
            {
                "format": IDENTITY_FORMAT,
                "bookie": self.bookie_id,
                "seed": self.seed,
                "started": self.has_served,
            }
        )
        return body + xxhash.xxh3_64_digest(body)


def decode_identity(data: bytes) -> JournalIdentity | None:
    """Decode the file JOURNAL; return None if its checksum does not match.

    Raises:
        UnsupportedFormat: A newer version wrote the file.
        CorruptData: The checksum matches, but the content is invalid.
    """
    body = data[:-8]
    if xxhash.xxh3_64_digest(body) != data[-8:]:
        return None
    value = decode_versioned(body, IDENTITY_FORMAT, _IDENTITY_FIELDS, IDENTITY_FILE_NAME)
    return JournalIdentity(value["bookie"], value["seed"], value["started"])
