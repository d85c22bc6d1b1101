"""What the ordered map of the index holds, byte by byte (pure).

    "r" ledger u64 | first entry u64   ->  file u64 | offset u64 | length u32 | count u32 | xxh3_64
    "s" ledger u64                     ->  flags u32 | lac i64 | key 16s | xxh3_64
    "m"                                ->  msgpack of `Saved` | xxh3_64

Keys are big-endian, so that a ledger's runs lie in order. The digests cover key and value.
"""

import struct
from dataclasses import dataclass, field

import xxhash

from ..runtime.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ..runtime.frames import pack, unpack
from .runs import Located

FORMAT = 1

RUN_KEY = struct.Struct(">cQQ")
STATE_KEY = struct.Struct(">cQ")
RUN = struct.Struct("<QQII")
STATE = struct.Struct("<Iq16s")
_DIGEST = struct.Struct("<Q")
META_KEY = b"m"


class IndexDamaged(CorruptData):
    """A value of the index does not fit its checksum: it must be built again."""


@dataclass(slots=True)
class Saved:
    """What the map holds beside runs and states: how far it reaches into the journal."""

    bookie_id: str
    seed: int
    sequence: int
    """The first block that is not in the map."""
    file_number: int
    """Where that block begins or would begin."""
    offset: int
    first_sequence: int
    """Of that file's first block."""
    start_count: int
    limbo_below: int
    next_file: int
    """No file of this number or above has been used."""
    files: list[tuple[int, int, int]] = field(default_factory=list)
    """Sealed journal files that are there: number, first and last sequence."""
    last_offset: int = -1
    """Where the last block that is in the map begins, in the position's file; -1: not known."""

    def encode(self) -> bytes:
        """As msgpack."""
        return pack(
            {
                "format": FORMAT,
                "bookie": self.bookie_id,
                "seed": self.seed,
                "sequence": self.sequence,
                "file": self.file_number,
                "offset": self.offset,
                "first": self.first_sequence,
                "start": self.start_count,
                "limbo_below": self.limbo_below,
                "next_file": self.next_file,
                "files": [list(file) for file in self.files],
                "last": self.last_offset,
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> "Saved":
        """Raises `IndexDamaged`, `UnsupportedFormat`."""
        try:
            found = unpack(value, "the index's position")
            if found["format"] != FORMAT:
                raise UnsupportedFormat(f"index format {found['format']}, known is {FORMAT}")
            return cls(
                str(found["bookie"]),
                int(found["seed"]),
                int(found["sequence"]),
                int(found["file"]),
                int(found["offset"]),
                int(found["first"]),
                int(found["start"]),
                int(found["limbo_below"]),
                int(found["next_file"]),
                [(int(a), int(b), int(c)) for a, b, c in found["files"]],
                int(found.get("last", -1)),
            )
        except UnsupportedFormat:
            raise
        except (DistributedLogError, KeyError, TypeError, ValueError) as error:
            raise IndexDamaged(f"the index's position cannot be read ({error})") from None


def ledger_end(ledger_id: int) -> bytes:
    """The first key behind a ledger's runs."""
    return RUN_KEY.pack(b"r", ledger_id, 0xFFFF_FFFF_FFFF_FFFF)


def sealed(key: bytes, value: bytes) -> bytes:
    """A value as it is stored, its digest behind it."""
    return value + _DIGEST.pack(xxhash.xxh3_64_intdigest(key + value))


def checked(key: bytes, stored: bytes, size: int = -1) -> bytes:
    """The value of a sealed one, of ``size`` bytes if that is given. Raises `IndexDamaged`."""
    value = stored[: -_DIGEST.size]
    if (
        len(stored) < _DIGEST.size
        or (size >= 0 and len(value) != size)
        or sealed(key, value) != stored
    ):
        raise IndexDamaged(f"index key {key.hex()}: its value does not fit its checksum")
    return value


def located(key: bytes, stored: bytes) -> Located:
    """A run from its key and value. Raises `IndexDamaged`."""
    file_number, offset, length, count = RUN.unpack(checked(key, stored, RUN.size))
    return Located(RUN_KEY.unpack(key)[2], count, file_number, offset, length)
