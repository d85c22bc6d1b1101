"""The small file beside a journal: whose it is, and the seed of its blocks' digests (pure)."""

from dataclasses import dataclass

import xxhash

from ..runtime.errors import UnsupportedFormat
from ..runtime.frames import pack, unpack

SEED_NAME = "JOURNAL"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Seed:
    """The content of the file JOURNAL."""

    bookie_id: str
    seed: int
    """Of the digests of all blocks: nobody else can make a valid one (H4)."""
    started: bool

    def encode(self) -> bytes:
        """As the file's content, with a checksum behind."""
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
    """None for a damaged file. Raises `UnsupportedFormat`."""
    body = data[:-8]
    if xxhash.xxh3_64_digest(body) != data[-8:]:
        return None
    value = unpack(body, SEED_NAME)
    if value["format"] != FORMAT:
        raise UnsupportedFormat(f"{SEED_NAME}: format {value['format']}, known is {FORMAT}")
    return Seed(str(value["bookie"]), int(value["seed"]), bool(value["started"]))
