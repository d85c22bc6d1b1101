"""Ids of new ledgers, taken in blocks from the metadata store: no two ledgers ever get the same (H40).

Ids tell old ledgers from new ones: below ``next/ledger`` of some moment are all that were there by then. So
a bookie that lost data bounds its limbo, and one that forgets tombstones its look-ups (H7, H89). Soon after
that moment new ones are to be above it: what is left of a block is given up.
"""

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import CorruptData, OutcomeUnknown
from . import ledger_keys as keys

ID_DIGITS_MAX = 18
BLOCK_LIFETIME_S = 60.0
"""A block, from when it was taken. By the process's own clock: nothing that is promised rests on it."""


def decode_next_ledger(value: bytes) -> int:
    """The value of ``next/ledger``. Raises `CorruptData`."""
    if not 0 < len(value) <= ID_DIGITS_MAX or value.strip(b"0123456789"):
        raise CorruptData(
            f"{keys.printable_key(keys.NEXT_LEDGER)} is no number: no ledger can be made"
        )
    return int(value)


async def next_ledger(store: Metadata) -> int:
    """The lowest id that was never given; 1 where none was. Raises `CorruptData`, `QuorumUnreachable`."""
    item = await store.get(keys.NEXT_LEDGER)
    return 1 if item is None else decode_next_ledger(item.value)


class LedgerIds:
    """The block of one process."""

    def __init__(self, store: Metadata) -> None:
        self._store = store
        self._remaining_ids: list[int] = []  # of the block we hold, next one last
        self._block_expires_at = 0.0
        self._lock = trio.Lock()

    async def next(self) -> int:
        """An id that nobody else has or had. Raises `QuorumUnreachable` where a new block is needed."""
        async with self._lock:
            if trio.current_time() >= self._block_expires_at:
                self.discard_block()
            while not self._remaining_ids:
                item = await self._store.get(keys.NEXT_LEDGER)
                first = 1 if item is None else decode_next_ledger(item.value)
                version = 0 if item is None else item.version
                end = first + keys.LEDGER_ID_BLOCK
                reservation = Transaction(
                    (Compare.version(keys.NEXT_LEDGER, version),),
                    (Put(keys.NEXT_LEDGER, b"%d" % end),),
                )
                try:
                    if (await self._store.transact(reservation)).succeeded:
                        self._remaining_ids = list(range(end - 1, first - 1, -1))
                        self._block_expires_at = trio.current_time() + BLOCK_LIFETIME_S
                except OutcomeUnknown:
                    continue  # maybe taken and lost: ids are not scarce
            return self._remaining_ids.pop()

    def discard_block(self) -> None:
        """Take a new block for the next id.

        A bookie that lost its disk cannot tell new ledgers from those it may have been told to fence: it
        refuses all below ``next/ledger`` as it then was, so also the rest of each block taken before (H7).
        Who was refused by too many waits no longer for that to be old.
        """
        self._remaining_ids.clear()
