"""The value of a key that names the current owner, under the lease of its process (pure)."""

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
    """The value of ``log/<id>/lock``, and of the keys of subscribers and workers."""

    owner: str
    writer_id: str
    """A random ID per claim. It identifies the claim after an unknown outcome."""
    acquired_ms: int
    proxy: str = ""
    """The ID of the owning write proxy, or "" if the owner is not a proxy. Older programs do not store it."""

    @classmethod
    def create(cls, owner: str, random_bits: int, now_ms: int, proxy: str = "") -> "LockRecord":
        """Return the record of a new claim of this process.

        Args:
            owner: The name of the owner, for people.
            random_bits: 64 random bits.
            now_ms: The wall clock.
            proxy: The ID of the write proxy, or "".
        """
        return cls(owner, f"{random_bits:016x}", now_ms, proxy)

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the record as a packed list with a format number."""
        fields = [FORMAT, self.owner, self.writer_id, self.acquired_ms]
        return pack([*fields, self.proxy] if self.proxy else fields)

    @classmethod
    def decode(cls, value: bytes) -> "LockRecord":
        """Decode the record.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: A newer version wrote the value.
        """
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
