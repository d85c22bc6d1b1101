"""Allocate IDs of new ledgers in blocks from the metadata store, so that no ID is used twice (H40).

IDs distinguish old ledgers from new ones. All ledgers that exist at some time have IDs below the value of
``next/ledger`` at that time. A bookie that lost data limits its limbo state by this value. A bookie that
removes tombstones limits its lookups by it (H7, H89). Ledgers that are created soon afterwards must have
IDs above the value. A block therefore expires, and its remaining IDs are discarded.
"""

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import CorruptData, OutcomeUnknown
from . import ledger_keys as keys

ID_DIGITS_MAX = 18
BLOCK_LIFETIME_S = 60.0
"""Lifetime of a block from its allocation, by the process's own clock. No guarantee depends on it."""


def decode_next_ledger(value: bytes) -> int:
    """Decode the value of ``next/ledger``.

    Raises:
        CorruptData: The value is not a number.
    """
    if not 0 < len(value) <= ID_DIGITS_MAX or value.strip(b"0123456789"):
        raise CorruptData(
            f"{keys.printable_key(keys.NEXT_LEDGER)} is not a number, so no ledger can be created"
        )
    return int(value)


async def next_ledger(store: Metadata) -> int:
    """Return the lowest ID that was never allocated; 1 if none was.

    Raises:
        CorruptData: The stored value is invalid.
        QuorumUnreachable: The metadata quorum did not answer.
    """
    item = await store.get(keys.NEXT_LEDGER)
    return 1 if item is None else decode_next_ledger(item.value)


class LedgerIds:
    """The block of IDs of one process."""

    def __init__(self, store: Metadata) -> None:
        self._store = store
        self._remaining_ids: list[int] = []  # of the current block; the next one is last
        self._block_expires_at = 0.0
        self._lock = trio.Lock()

    async def next(self) -> int:
        """Return an ID that no other ledger has or had.

        Raises:
            CorruptData: The stored value is invalid.
            QuorumUnreachable: A new block is required and the metadata quorum did not answer.
        """
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
                    continue  # the block may be allocated and lost, but IDs are not scarce
            return self._remaining_ids.pop()

    def discard_block(self) -> None:
        """Discard the current block, so that the next ID is from a new one.

        A bookie that lost its disk cannot distinguish new ledgers from those that it may have been asked to
        fence. It rejects all IDs below ``next/ledger`` as of that time, including the rest of each older
        block (H7). After such rejections, the next ledger must not wait until the block expires.
        """
        self._remaining_ids.clear()
