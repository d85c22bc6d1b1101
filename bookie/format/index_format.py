"""The bytes of keys and values in the ordered map of the index (pure).

Keys and values::

    "r" ledger u64 | first entry u64   ->  file u64 | offset u64 | length u32 | count u32 | xxh3_64
    "s" ledger u64                     ->  flags u32 | lac i64 | key 16s | xxh3_64
    "m"                                ->  msgpack of `IndexCheckpoint` | xxh3_64
    "x" ledger u64                     ->  first u64 | last u64 | xxh3_64      some of them are corrupt
    "y"                                ->  msgpack of `ScrubProgress` | xxh3_64

The keys are big-endian, so that the extents of a ledger are sorted. The digests cover key and value.

A page write that the device confirmed and lost leaves older pairs, each of which matches its digest. So the
position contains the sum of the digests of all other pairs, modulo 2^64. Each transaction updates it, and a
start compares it with the pairs that it reads. Every pair, also of newer versions, therefore ends in its
digest.
"""

import struct
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress, repeat
from operator import add
from typing import Any

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
from .extent_map import ExtentColumns, ExtentLocation
from .journal_format import (
    COMPACTED_FILE_ROWS,
    DELETED,
    DROPPED,
    FORMAT,
    LIMBO,
    SNAPSHOT_ROW,
    CompactedFileRow,
    StateSnapshotRef,
    newer_fields,
)

EXTENT_KEY = struct.Struct(">cQQ")
STATE_KEY = struct.Struct(">cQ")
EXTENT_VALUE = struct.Struct("<QQII")
STATE_VALUE = struct.Struct("<Iq16s")
CORRUPTION_KEY = struct.Struct(">cQ")
CORRUPTION_VALUE = struct.Struct("<QQ")
SCRUB_FORMAT = 1
SCRUB_KEY = b"y"
EXTRA_KEYS = (b"x", b"z")
"""The key range (start, end) of small values other than extents and states."""
_DIGEST = struct.Struct("<Q")
DIGESTS_MODULUS = 1 << 64
META_KEY = b"m"
FILES_MAX = 64 * 1024
_U64 = number(0, (1 << 64) - 1)
_TOTALS_FIELDS = fields(
    {"digests": (optional(_U64), None)},
    known=_U64,
    limbo=_U64,
    tombstones=_U64,
    runs=_U64,
    files=rows(row(_U64, _U64, _U64), 2 * FILES_MAX),
)
_CHECKPOINT_FIELDS = fields(
    {
        "last": (number(-1), -1),
        "gone_below": (_U64, 0),
        "cold": (COMPACTED_FILE_ROWS, ()),
        "base": (optional(SNAPSHOT_ROW), None),
        "totals": (optional(_TOTALS_FIELDS), None),
    },
    bookie=text(),
    seed=_U64,
    sequence=_U64,
    file=_U64,
    offset=_U64,
    first=_U64,
    start=_U64,
    limbo_below=_U64,
    next_file=_U64,
    files=rows(row(_U64, _U64, _U64), FILES_MAX),
)


_SCRUB_FIELDS = fields(
    ledger=_U64,
    entry=_U64,
    under_way=flag,
    rest_s=number(),
    read_bytes=_U64,
    found=_U64,
    passes=_U64,
)


def is_repairable_limbo(flags: int) -> bool:
    """Whether a ledger with these flags needs repair. A stub of a dropped copy does not."""
    return flags & (LIMBO | DROPPED | DELETED) == LIMBO


class IndexDamaged(CorruptData):
    """The index is damaged or inconsistent, and must be rebuilt."""


@dataclass(slots=True)
class IndexTotals:
    """Totals of the map's contents."""

    known_count: int = 0
    limbo_count: int = 0
    tombstone_count: int = 0
    """States of deleted ledgers. `LedgerTable` counts all three in the same way."""
    extent_count: int = 0
    live_bytes: dict[int, int] = field(default_factory=dict)
    """Live bytes by file."""
    file_ends: dict[int, int] = field(default_factory=dict)
    """The minimum length of each of these files: the end of the last record that is indexed, or was."""
    digest_sum: int | None = 0
    """The sum of the digests of all pairs. None: an older version, which does not maintain it, wrote last."""

    def copy(self) -> "IndexTotals":
        """Return a copy, for changes that are not yet stored."""
        live = {number: length for number, length in self.live_bytes.items() if length}
        ends = {number: self.file_ends.get(number, 0) for number in live}
        return IndexTotals(
            self.known_count,
            self.limbo_count,
            self.tombstone_count,
            self.extent_count,
            live,
            ends,
            self.digest_sum,
        )

    def count_state(self, flags: int) -> None:
        """Count a state with these flags."""
        if flags & DELETED:
            self.tombstone_count += 1
            return
        self.known_count += 1
        self.limbo_count += is_repairable_limbo(flags)

    def add_extent(self, extent: ExtentLocation) -> None:
        """Count an extent that is added to the map."""
        number, end = extent.file_number, extent.offset + extent.length
        self.extent_count += 1
        self.live_bytes[number] = self.live_bytes.get(number, 0) + extent.length
        if end > self.file_ends.get(number, 0):
            self.file_ends[number] = end

    def add_extents(self, columns: ExtentColumns) -> dict[int, int]:
        """Count extents that are added to the map; return their bytes by file."""
        _, _, files, offsets, lengths = columns
        self.extent_count += len(files)
        added_bytes_by_file: dict[int, int] = {}
        for file in set(files):  # usually one
            is_in_file = [file_number == file for file_number in files]
            added_bytes_by_file[file] = sum(compress(lengths, is_in_file))
            end = max(compress(map(add, offsets, lengths), is_in_file))
            self.live_bytes[file] = self.live_bytes.get(file, 0) + added_bytes_by_file[file]
            if end > self.file_ends.get(file, 0):
                self.file_ends[file] = end
        return added_bytes_by_file

    def subtract_extent(self, extent: ExtentLocation) -> None:
        """Subtract an extent that is removed from the map."""
        self.extent_count -= 1
        self.live_bytes[extent.file_number] = (
            self.live_bytes.get(extent.file_number, 0) - extent.length
        )

    def pack(self) -> dict[str, object]:
        """Return the totals for `IndexCheckpoint.encode`."""
        files = [
            [number, length, self.file_ends.get(number, 0)]
            for number, length in sorted(self.live_bytes.items())
            if length
        ]
        return {
            "known": self.known_count,
            "limbo": self.limbo_count,
            "tombstones": self.tombstone_count,
            "runs": self.extent_count,
            "files": files,
            "digests": self.digest_sum,
        }


@dataclass(slots=True)
class IndexCheckpoint:
    """The position of a checkpoint in the journal, and other state that the map stores with it."""

    bookie_id: str
    seed: int
    first_unindexed_sequence: int
    """The first block that is not in the map."""
    file_number: int
    """The file in which that block begins or would begin, at `offset`."""
    offset: int
    first_sequence: int
    """The sequence of the first block in that file."""
    start_count: int
    limbo_below: int
    next_file_number: int
    """No file of this number or above has been used."""
    sealed_files: list[tuple[int, int, int]] = field(default_factory=list)
    """Existing sealed journal files: number, first and last sequence."""
    last_block_offset: int = -1
    """The offset of the last block that is in the map, in the file of the position; -1 if it is unknown."""
    must_verify_below: int = 0
    """An unknown ledger with a lower ID is looked up in the metadata before an add; see `LedgerTable`."""
    compacted_files: list[CompactedFileRow] = field(default_factory=list)
    state_snapshot: StateSnapshotRef | None = None
    """The newest state snapshot. A head need not name it yet."""
    totals: IndexTotals | None = None
    """None if an older version, which omits them, wrote the position."""

    def encode(self) -> bytes:
        """Return the position as msgpack."""
        totals = {} if self.totals is None else {"totals": self.totals.pack()}
        return pack(
            {
                "format": 1,
                "bookie": self.bookie_id,
                "seed": self.seed,
                "sequence": self.first_unindexed_sequence,
                "file": self.file_number,
                "offset": self.offset,
                "first": self.first_sequence,
                "start": self.start_count,
                "limbo_below": self.limbo_below,
                "next_file": self.next_file_number,
                "files": [list(file) for file in self.sealed_files],
                "last": self.last_block_offset,
                **totals,
                **newer_fields(self.must_verify_below, self.compacted_files, self.state_snapshot),
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> "IndexCheckpoint":
        """Decode a position. Raises `IndexDamaged`, `UnsupportedFormat`."""
        try:
            values = decode_versioned(value, FORMAT, _CHECKPOINT_FIELDS, "the index's position")
        except CorruptData as error:
            raise IndexDamaged(str(error)) from None
        return cls(
            values["bookie"],
            values["seed"],
            values["sequence"],
            values["file"],
            values["offset"],
            values["first"],
            values["start"],
            values["limbo_below"],
            values["next_file"],
            list(values["files"]),
            values["last"],
            values["gone_below"],
            list(values["cold"]),
            None if values["base"] is None else StateSnapshotRef(*values["base"]),
            None if values["totals"] is None else _decode_totals(values["totals"]),
        )


def _decode_totals(values: dict[str, Any]) -> IndexTotals:
    return IndexTotals(
        values["known"],
        values["limbo"],
        values["tombstones"],
        values["runs"],
        {number: length for number, length, _ in values["files"]},
        {number: end for number, _, end in values["files"]},
        values["digests"],
    )


@dataclass(slots=True)
class ScrubProgress:
    """The progress of a scrub through the extents of the map."""

    ledger: int = 0
    entry: int = 0
    """The next extent is the first one that begins at or after this entry of the ledger."""
    under_way: bool = False
    rest_s: int = 0
    """Seconds of running time until the next pass begins. During a pass, this is the time to the one after
    it."""
    read_bytes: int = 0
    """Bytes that this pass has read, or the last one."""
    found: int = 0
    """Corrupt entries that this pass has found, or the last one."""
    passes: int = 0
    """Completed passes."""

    def encode(self) -> bytes:
        """Return the progress as msgpack."""
        return pack({"format": SCRUB_FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, value: bytes) -> "ScrubProgress":
        """Decode the progress. Raises `CorruptData`, `UnsupportedFormat`."""
        return cls(**decode_versioned(value, SCRUB_FORMAT, _SCRUB_FIELDS, "the scrub's place"))


def extents_end_key(ledger_id: int) -> bytes:
    """Return the first key after the extents of a ledger."""
    return EXTENT_KEY.pack(b"r", ledger_id, 0xFFFF_FFFF_FFFF_FFFF)


def with_digest(key: bytes, value: bytes) -> bytes:
    """Return the stored form of a value, which ends in its digest."""
    return value + _DIGEST.pack(xxhash.xxh3_64_intdigest(key + value))


def extent_pairs(ledger_id: int, columns: ExtentColumns) -> list[tuple[bytes, bytes]]:
    """Return keys and stored values of extents of a ledger.

    Works on columns, without a Python call per extent: with a thousand busy logs, a checkpoint has fifty
    thousand.
    """
    firsts, counts, files, offsets, lengths = columns
    keys = list(map(EXTENT_KEY.pack, repeat(b"r"), repeat(ledger_id), firsts))
    values = list(map(EXTENT_VALUE.pack, files, offsets, lengths, counts))
    digests = map(_DIGEST.pack, map(xxhash.xxh3_64_intdigest, map(add, keys, values)))
    return list(zip(keys, map(add, values, digests), strict=True))


def verified_value(key: bytes, stored_value: bytes, size: int = -1) -> bytes:
    """Return a stored value without its digest.

    Args:
        stored_value: The value and its digest.
        size: The expected size of the value; -1 for any.
    Raises:
        IndexDamaged: The digest or the size does not match.
    """
    value = stored_value[: -_DIGEST.size]
    if (
        len(stored_value) < _DIGEST.size
        or (size >= 0 and len(value) != size)
        or with_digest(key, value) != stored_value
    ):
        raise IndexDamaged(f"index key {key.hex()}: its value does not match its checksum")
    return value


def sum_of_digests(values: Collection[bytes]) -> int:
    """Return the sum of the digests at the end of these values."""
    tails = b"".join([value[-_DIGEST.size :] for value in values])
    return sum(struct.unpack(f"<{len(values)}Q", tails))


def verify_and_sum_digests(pairs: Sequence[tuple[bytes, bytes]]) -> int:
    """Verify these pairs and return the sum of their digests. Raises `IndexDamaged`.

    Works on columns, without a Python call per pair, because a start reads all pairs.
    """
    if not pairs:
        return 0
    keys, stored = zip(*pairs, strict=True)
    values = [value[: -_DIGEST.size] for value in stored]
    digests = list(map(xxhash.xxh3_64_intdigest, map(add, keys, values)))
    if list(map(add, values, map(_DIGEST.pack, digests))) != list(stored):
        for key, value in pairs:  # one by one, to name the damaged one
            verified_value(key, value)
    return sum(digests)


def decode_extent(key: bytes, stored_value: bytes) -> ExtentLocation:
    """Decode an extent from its key and stored value. Raises `IndexDamaged`."""
    if len(key) != EXTENT_KEY.size:
        raise IndexDamaged(f"index key {key.hex():.80}: it is not the key of an extent")
    file_number, offset, length, count = EXTENT_VALUE.unpack(
        verified_value(key, stored_value, EXTENT_VALUE.size)
    )
    return ExtentLocation(EXTENT_KEY.unpack(key)[2], count, file_number, offset, length)


def file_number_of(stored_value: bytes) -> int:
    """Return the file number in an extent's stored value without verification, to skip other files."""
    return int.from_bytes(stored_value[:8], "little")


def flags_of(stored_value: bytes) -> int:
    """Return the flags in a state's stored value without verification, to skip states with other flags."""
    return int.from_bytes(stored_value[:4], "little")


def decode_corruption_records(extra_values: dict[bytes, bytes]) -> dict[int, tuple[int, int]]:
    """Return the corruption records among the extra values, as ledger to first and last entry.

    Malformed ones are skipped.
    """
    return {
        CORRUPTION_KEY.unpack(key)[1]: CORRUPTION_VALUE.unpack(value)
        for key, value in extra_values.items()
        if key[:1] == b"x"
        and len(key) == CORRUPTION_KEY.size
        and len(value) == CORRUPTION_VALUE.size
    }


def decode_state(key: bytes, stored_value: bytes) -> tuple[int, int, int, bytes]:
    """Decode a ledger's ID, flags, LAC and key from its key and stored value. Raises `IndexDamaged`."""
    if len(key) != STATE_KEY.size:
        raise IndexDamaged(f"index key {key.hex():.80}: it is not the key of a ledger")
    flags, lac, ledger_key = STATE_VALUE.unpack(verified_value(key, stored_value, STATE_VALUE.size))
    return STATE_KEY.unpack(key)[1], flags, lac, ledger_key
