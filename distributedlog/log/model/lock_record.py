"""The value of a key that says who is there, under its process's lease (pure)."""

from dataclasses import dataclass

from ...metadata.model.interface import Metadata
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import check_stored, number, row, text, verify_round_trip
from .log_keys import lock_key
from .log_state import decode_fields

FORMAT = 1

_LOCK = row(text(64 * 1024), text(4096), number())
_PROXY = text(64)


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The value of ``log/<id>/lock``, and of subscribers' and workers' keys."""

    owner: str
    writer_id: str
    """Random, one a claim: for after an unknown outcome."""
    acquired_ms: int
    proxy: str = ""
    """The id of the write proxy that it is; "": it is none. Not in what older programs wrote."""

    @classmethod
    def create(cls, owner: str, random_bits: int, now_ms: int, proxy: str = "") -> "LockRecord":
        """Of a new claim by this process; ``chance`` are 64 bits that it has drawn."""
        return cls(owner, f"{random_bits:016x}", now_ms, proxy)

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As a packed list with a format number."""
        fields = [FORMAT, self.owner, self.writer_id, self.acquired_ms]
        return pack([*fields, self.proxy] if self.proxy else fields)

    @classmethod
    def decode(cls, value: bytes) -> "LockRecord":
        """Raises `CorruptData`, or `UnsupportedFormat`."""
        what = "a lock's record"
        fields = decode_fields(value, FORMAT, 4, what)
        proxy = check_stored(fields[3], _PROXY, what) if len(fields) > 3 else ""
        owner, writer_id, since_ms = check_stored(fields[:3], _LOCK, what)
        return cls(owner, writer_id, since_ms, proxy)


async def lock_owner(metadata: Metadata, log_id: int) -> str | None:
    """Return the name of the writer that has a log's lock, or None."""
    holder = await lock_holder(metadata, log_id)
    return None if holder is None else holder.owner


async def lock_holder(metadata: Metadata, log_id: int) -> LockRecord | None:
    """Return the record of a log's lock, or None."""
    stored = await metadata.get(lock_key(log_id))
    return None if stored is None else LockRecord.decode(stored.value)
