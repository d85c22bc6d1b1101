"""What a cluster does otherwise whose metadata came from a save: two keys (H104).

    cluster/restores   how often that was done: a bookie's cookie of before is raised, not believed
    gc/hold            why nothing is deleted: until an operator has looked (`dlog metadata gc resume`)

What the metadata does not know of may be what was written after the save: while it is held, no bookie
removes a ledger, nobody truncates, collects, merges or purges, and a bookie that nobody knows is let in.
"""

from typing import Protocol

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Delete, Put, Transaction
from ...runtime.interfaces.errors import CorruptData

RESTORES = b"cluster/restores"
HOLD = b"gc/hold"
RESUME = "dlog metadata gc resume"
"""What an operator who has looked types."""
DIGITS_MAX = 9
REASON_BYTES_MAX = 500


class ElectionStatus(Protocol):
    """Who says whether this process is to work (`repair.Election`)."""

    async def is_elected(self) -> bool:
        """Is it?"""
        ...


class GcHold:
    """A turn at work that deletes: nobody's while it is held."""

    def __init__(self, metadata: Metadata, election: ElectionStatus) -> None:
        self._metadata = metadata
        self._election = election

    async def is_elected(self) -> bool:
        """See `ElectionStatus`."""
        return await self._election.is_elected() and not await hold_reason(self._metadata)


async def hold_reason(metadata: Metadata) -> str:
    """Why nothing is deleted now; "" where that is allowed."""
    item = await metadata.get(HOLD)
    return "" if item is None else decode_hold(item.value)


async def hold_deletions(metadata: Metadata, reason: str) -> None:
    """Have nothing deleted from now on. Who is just deleting ends that first."""
    await metadata.transact(Transaction((), (Put(HOLD, encode_hold(reason)),)))


async def resume_deletions(metadata: Metadata) -> None:
    """Deletions go on."""
    await metadata.transact(Transaction((), (Delete(HOLD),)))


async def count_restores(metadata: Metadata) -> int:
    """How often this cluster's metadata came from a save. Raises `CorruptData`."""
    item = await metadata.get(RESTORES)
    return 0 if item is None else decode_restores(item.value)


def encode_hold(reason: str) -> bytes:
    """As the key's value."""
    return reason.encode()[:REASON_BYTES_MAX]


def decode_hold(value: bytes) -> str:
    """Why, in words; held it is whatever the value. Never raises."""
    return value[:REASON_BYTES_MAX].decode(errors="replace") or "no reason was given"


def decode_restores(value: bytes) -> int:
    """The value of ``cluster/restores``. Raises `CorruptData`."""
    if not 0 < len(value) <= DIGITS_MAX or value.strip(b"0123456789"):
        raise CorruptData(f"{RESTORES.decode()} is no number")
    return int(value)
