"""Hold deletions after the metadata was restored from a backup, with two keys (H104).

    cluster/restores   the number of restores: an older bookie's cookie is raised instead of refused
    gc/hold            the reason why nothing is deleted, until an operator runs `dlog metadata gc resume`

Data that the restored metadata lacks may have been written after the backup. During the hold, no bookie
removes a ledger, and no node truncates, collects, merges or purges. A bookie without a cookie is admitted.
"""

from typing import Protocol

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Delete, Put, Transaction
from ...runtime.interfaces.errors import CorruptData

RESTORES = b"cluster/restores"
HOLD = b"gc/hold"
RESUME = "dlog metadata gc resume"
"""The command by which an operator ends the hold."""
DIGITS_MAX = 9
REASON_BYTES_MAX = 500


class ElectionStatus(Protocol):
    """Whether this process is elected for a kind of work, as `RepairLeaderElection` reports it."""

    async def is_elected(self) -> bool:
        """Return whether this process is elected."""
        ...


class GcHold:
    """An election for work that deletes data: no process is elected during a hold."""

    def __init__(self, metadata: Metadata, election: ElectionStatus) -> None:
        self._metadata = metadata
        self._election = election

    async def is_elected(self) -> bool:
        """Return whether this process is elected and deletions are not on hold."""
        return await self._election.is_elected() and not await hold_reason(self._metadata)


async def hold_reason(metadata: Metadata) -> str:
    """Return the reason why deletions are on hold; "" if they are not."""
    item = await metadata.get(HOLD)
    return "" if item is None else decode_hold(item.value)


async def hold_deletions(metadata: Metadata, reason: str) -> None:
    """Hold all deletions. Deletions that have already started finish first."""
    await metadata.transact(Transaction((), (Put(HOLD, encode_hold(reason)),)))


async def resume_deletions(metadata: Metadata) -> None:
    """End the hold of deletions."""
    await metadata.transact(Transaction((), (Delete(HOLD),)))


async def count_restores(metadata: Metadata) -> int:
    """Return how often the metadata of this cluster was restored from a backup.

    Raises:
        CorruptData: The counter is unreadable.
    """
    item = await metadata.get(RESTORES)
    return 0 if item is None else decode_restores(item.value)


def encode_hold(reason: str) -> bytes:
    """Return the value of the key ``gc/hold``."""
    return reason.encode()[:REASON_BYTES_MAX]


def decode_hold(value: bytes) -> str:
    """Return the reason in a value of ``gc/hold``. Any value holds deletions, and none raises an error."""
    return value[:REASON_BYTES_MAX].decode(errors="replace") or "no reason was given"


def decode_restores(value: bytes) -> int:
    """Decode the value of ``cluster/restores``.

    Raises:
        CorruptData: The value is not a decimal number with at most `DIGITS_MAX` digits.
    """
    if not 0 < len(value) <= DIGITS_MAX or value.strip(b"0123456789"):
        raise CorruptData(f"{RESTORES.decode()} is not a number")
    return int(value)
