"""The small file beside a journal: whose it is, and the seed of its blocks' digests (pure)."""

from dataclasses import dataclass

import xxhash

from ..runtime.frames import pack
from ..runtime.schema import fields, flag, number, text, versioned

SEED_NAME = "JOURNAL"
FORMAT = 1
_SEED = fields(bookie=text(), seed=number(0, (1 << 64) - 1), started=flag)


@dataclass(frozen=True, slots=True)
class Seed:
    """The content of the file JOURNAL."""

    bookie_id: str
    seed: int
    """Of the digests of all blocks: nobody else can make a valid one (H4)."""
    started: bool

    def encode(self) -> bytes:
        """As the file's content, with a checksum after."""
        body = pack(
            {
                "format": FORMAT,
                "bookie": self.bookie_id,
                "seed": self.seed,
                "started": self.started,
            }
        )
        return body + xxhash.xxh3_64_digest(body)


def seed_of(data: bytes) -> Seed | None:
    """None for a damaged file. Raises `UnsupportedFormat`, `CorruptData` where only the checksum is sound."""
    body = data[:-8]
    if xxhash.xxh3_64_digest(body) != data[-8:]:
        return None
    value = versioned(body, FORMAT, _SEED, SEED_NAME)
    return Seed(value["bookie"], value["seed"], value["started"])
