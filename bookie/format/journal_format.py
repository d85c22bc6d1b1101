"""What the blocks of a journal hold (pure). Around each is a header of
`distributedlog/runtime/disk/checksummed_blocks.py`.

    COMMIT   entry records | control records | control bytes u32 | "CMIT" u32
    HEAD     msgpack map: what the file is, what came before it, which files are there; then `state_blocks`
             COMMIT blocks
    FOOTER   runs of the file, 32 bytes each (a sealed file only)
    TRAILER  in the last 4 KiB of a sealed file: where the footer is

    control record, 48 bytes: kind u32 | flags u32 | subject u64 | a i64 | b i64 | key 16s

        STATE         ledger | flags: fenced 1, limbo 2, deleted 4, dropped 8 | a: LAC | key, all of it
        SKIP          sequences a to b do not count: copied after them (H4), or written off
        LIMBO_BELOW   ledgers with a lower id that are not known here: nothing is known of them
        FILE_REMOVED  the journal or cold file of that number was deleted
        COLD_ADDED    number | flags: runs | a: length | b: end of the records    a cold file is there
        GONE_BELOW    ledgers with a lower id that are not known here: the metadata is asked before an add

Every file begins with the state of all ledgers, or names the base that has them (`ledger_state_snapshot.py`),
from whose position on no file is deleted: so whatever is, no fence, key, tombstone or limbo is lost with it.

The file JOURNAL has a msgpack map and its checksum: the bookie's ID, and the seed of all blocks' digests.

A file is sealed after the next one's HEAD and states are durable, and with sequences after theirs: so a
FOOTER proves that there is a next file, and where that one was lost it is missed.
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
"""Of a HEAD that names a base; 3 of those that list cold files, 2 of those that say where tombstones end."""
FORMAT_WITHOUT_SNAPSHOT, FORMAT_WITHOUT_COMPACTED = 3, 2

FENCED, LIMBO, DELETED, DROPPED = 1, 2, 4, 8
"""Flags of a ledger's state. DROPPED comes with the first two, for programs that do not know it."""
STATE, SKIP, LIMBO_BELOW, FILE_REMOVED, COMPACTED_ADDED, MUST_VERIFY_BELOW = 1, 2, 3, 4, 5, 6
"""Kinds of control records."""

FILE_PREFIX = "journal-"
IDENTITY_FILE_NAME = "JOURNAL"
IDENTITY_FORMAT = 1
FILES_MAX = 64 * 1024
FILE_NUMBER_MAX = 2**31 - 1
"""No bookie makes so many files: such a name is somebody else's."""
CompactedFileRow = tuple[int, int, int, int]
"""A cold file in a list: number, length, end of its records, runs."""
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
"""Runs of one footer block: 512 KiB."""

assert CONTROL_BYTES == 48
assert EXTENT_ROW_BYTES == 32


@dataclass(slots=True)
class JournalExtent:
    """Records of consecutive ids of one ledger that lie back to back in a journal file."""

    ledger: int
    first_entry: int
    entry_count: int
    offset: int
    """Of the first record, in the file."""
    length: int
    """Bytes of all of them."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """One control record; what the fields mean depends on ``kind``."""

    kind: int
    flags: int
    subject: int
    a: int
    b: int
    key: bytes


@dataclass(frozen=True, slots=True)
class StateSnapshotRef:
    """A file that has the states of all ledgers."""

    file_number: int
    next_sequence: int
    """The sequence of the first block whose states are not in it."""
    state_count: int
    digest: int

    def pack(self) -> list[int]:
        """As it stands in a head, and in the index's position."""
        return [self.file_number, self.next_sequence, self.state_count, self.digest]


@dataclass(frozen=True, slots=True)
class Head:
    """The first block of a file."""

    bookie_id: str
    start_count: int
    predecessor_file: int
    """Number of the file before; 0: none."""
    predecessor_end: int
    """Where it ends, bytes: what lies after it is not part of the journal (H4)."""
    limbo_below: int
    sealed_files: tuple[tuple[int, int, int], ...]
    """The sealed files before this one that are still there: number, first and last sequence."""
    state_blocks: int
    """How many COMMIT blocks follow that hold the state of all ledgers, or of some beside a base."""
    sealing_blocks: int = 0
    """How many sequences after those belong to what seals the file before: its FOOTERs and TRAILER."""
    must_verify_below: int = 0
    compacted_files: tuple[CompactedFileRow, ...] = ()
    """The cold files that are there."""
    state_snapshot: StateSnapshotRef | None = None
    """What has the states of all ledgers as of its position."""

    def encode(self) -> bytes:
        """As a block's payload."""
        newer_fields: dict[str, object] = {}
        if self.must_verify_below:
            # An older program knows tombstones alone: it must not go on without those that have ended.
            newer_fields |= {
                "format": FORMAT_WITHOUT_COMPACTED,
                "gone_below": self.must_verify_below,
            }
        if self.compacted_files:
            newer_fields |= {
                "format": FORMAT_WITHOUT_SNAPSHOT,
                "cold": [list(file) for file in self.compacted_files],
            }
        if self.state_snapshot is not None:
            newer_fields |= {"format": FORMAT, "base": self.state_snapshot.pack()}
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
                **newer_fields,
            }
        )

    @classmethod
    def decode(cls, payload: memoryview, name: str) -> "Head":
        """Raises `CorruptData`, `UnsupportedFormat`."""
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


# --- commits --------------------------------------------------------------------------------------


def state_record(ledger: int, flags: int, lac: int, key: bytes) -> bytes:
    """The whole state of a ledger: the last one written counts."""
    return _CONTROL.pack(STATE, flags, ledger, lac, 0, key)


def skip_record(first: int, last: int) -> bytes:
    """Sequences ``first`` to ``last`` (inclusive) do not count."""
    return _CONTROL.pack(SKIP, 0, 0, first, last, b"")


def limbo_below_record(bound: int) -> bytes:
    """Unknown ledgers below ``bound`` are in limbo."""
    return _CONTROL.pack(LIMBO_BELOW, 0, bound, 0, 0, b"")


def must_verify_below_record(bound: int) -> bytes:
    """Of unknown ledgers below ``bound`` the metadata is asked before an add is taken."""
    return _CONTROL.pack(MUST_VERIFY_BELOW, 0, bound, 0, 0, b"")


def file_removed_record(number: int) -> bytes:
    """The file is about to be deleted: nothing in it is needed."""
    return _CONTROL.pack(FILE_REMOVED, 0, number, 0, 0, b"")


def compacted_added_record(file: CompactedFileRow) -> bytes:
    """The cold file is there, whole and synced; something may point to it from now on."""
    number, length, data_end, extent_count = file
    return _CONTROL.pack(COMPACTED_ADDED, extent_count, number, length, data_end, b"")


def commit_end(control_bytes: int) -> bytes:
    """What ends a COMMIT payload."""
    return _COMMIT_END.pack(control_bytes, _END_MARK)


def split_commit(payload: memoryview, what: str) -> tuple[memoryview, list[ControlRecord]]:
    """The entry records and the control records of a COMMIT payload. Raises `CorruptData`."""
    end = len(payload) - COMMIT_END_BYTES
    if end < 0:
        raise CorruptData(f"{what}: a commit of {len(payload)} bytes")
    control_bytes, mark = _COMMIT_END.unpack_from(payload, end)
    start = end - control_bytes
    if mark != _END_MARK or start < 0 or control_bytes % CONTROL_BYTES:
        raise CorruptData(f"{what}: a commit with {control_bytes} bytes of control records")
    return payload[:start], decode_controls(payload[start:end])


def decode_controls(records: memoryview) -> list[ControlRecord]:
    """Control records that lie back to back. Raises `CorruptData`."""
    if len(records) % CONTROL_BYTES:
        raise CorruptData(f"{len(records)} bytes are not whole control records")
    return [ControlRecord(*values) for values in _CONTROL.iter_unpack(records)]


def extents_of(
    records: memoryview, offset: int, what: str
) -> tuple[list[JournalExtent], dict[int, int]]:
    """The runs of records that lie back to back at ``offset`` of a file, and each ledger's highest LAC.

    Digests are not looked at: the block around was verified. Raises `CorruptData` where lengths do not
    add up.
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
"""A run does not grow beyond this, so that finding an entry inside stays cheap."""


# --- footers --------------------------------------------------------------------------------------


pack_extent_row = _EXTENT_ROW.pack
"""A `JournalExtent` as it stands in a footer, of ledger, first, offset, length, count: without a call in
Python, for it is made of each entry of a thousand busy logs."""


def iter_extent_rows(payload: memoryview, what: str) -> Iterator[tuple[int, ...]]:
    """Those of a FOOTER payload as they stand there: ledger, first, offset, length, count.

    Raises `CorruptData`.
    """
    if len(payload) % EXTENT_ROW_BYTES:
        raise CorruptData(f"{what}: {len(payload)} bytes are not whole runs")
    return _EXTENT_ROW.iter_unpack(payload)


def unpack_extents(payload: memoryview, what: str) -> Iterator[JournalExtent]:
    """The runs of a FOOTER payload. Raises `CorruptData`."""
    for ledger, first, offset, length, count in iter_extent_rows(payload, what):
        yield JournalExtent(ledger, first, count, offset, length)


@dataclass(frozen=True, slots=True)
class Trailer:
    """Where a sealed file's footer lies, and which sequences the file holds, footer included."""

    footer_offset: int
    footer_blocks: int
    first_sequence: int
    last_sequence: int
    """Of the last block before the trailer, whose own sequence is one more."""

    def encode(self) -> bytes:
        """As a block's payload."""
        return _TRAILER.pack(
            self.footer_offset, self.footer_blocks, self.first_sequence, self.last_sequence
        )

    @classmethod
    def decode(cls, payload: memoryview, what: str) -> "Trailer":
        """Raises `CorruptData`."""
        if len(payload) != _TRAILER.size:
            raise CorruptData(f"{what}: a trailer of {len(payload)} bytes")
        return cls(*_TRAILER.unpack(payload))


def file_name(number: int) -> str:
    """The name of journal file ``number``, which counts from 1."""
    return f"{FILE_PREFIX}{number:012d}"


def file_number(name: str) -> int | None:
    """The number in a journal file's name; None for a name that no bookie gives."""
    digits = name.removeprefix(FILE_PREFIX)
    if digits == name or len(digits) > 12 or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if 0 < number <= FILE_NUMBER_MAX and file_name(number) == name else None


def state_payloads(states: Sequence[bytes], bytes_max: int) -> list[bytes]:
    """State records as payloads of COMMIT blocks of at most about ``bytes_max``."""
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
    """Of the digests of all blocks, so that no other process can make a valid block (H4)."""
    has_served: bool

    def encode(self) -> bytes:
        """As the file's content, with a checksum after."""
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
    """None for a damaged file. Raises `UnsupportedFormat`, `CorruptData` where only the checksum is sound."""
    body = data[:-8]
    if xxhash.xxh3_64_digest(body) != data[-8:]:
        return None
    value = decode_versioned(body, IDENTITY_FORMAT, _IDENTITY_FIELDS, IDENTITY_FILE_NAME)
    return JournalIdentity(value["bookie"], value["seed"], value["started"])
