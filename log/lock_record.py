"""The value of a key that says who is there, under its process's lease (pure)."""

from dataclasses import dataclass

from ..runtime.frames import pack
from ..runtime.schema import fit, number, row, text
from .state import decode_fields

FORMAT = 1

_LOCK = row(text(64 * 1024), text(4096), number())


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The value of ``log/<id>/lock``, and of subscribers' and workers' keys."""

    owner: str
    writer_id: str
    """Random, one a claim: for after an unknown outcome."""
    since_ms: int

    @classmethod
    def drawn(cls, owner: str, chance: int, now_ms: int) -> "LockRecord":
        """Of a new claim by this process; ``chance`` are 64 bits that it has drawn."""
        return cls(owner, f"{chance:016x}", now_ms)

    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack([FORMAT, self.owner, self.writer_id, self.since_ms])

    @classmethod
    def decode(cls, value: bytes) -> "LockRecord":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        fields = decode_fields(value, FORMAT, 4, "a lock's record")[:3]
        return cls(*fit(fields, _LOCK, "a lock's record"))
