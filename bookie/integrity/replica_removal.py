"""A copy that no record names any more goes; that this bookie was told to fence its ledger stays.

What is left is a stub: the ledger's state, fenced, in limbo and dropped, without an entry. It refuses what a
writer of then would add, denies nothing, and takes recovery adds: a ledger may come back. A recovery's
stream takes the mark off again, which leaves ordinary limbo, to be healed as such.
"""

import trio

from ..format import journal_format as jb
from ..gc.checkpointer import Checkpointer
from ..ledgers.ledger_table import LedgerTable
from ..storage.group_commit import GroupCommit


class ReplicaRemoval:
    """The dropped copies of one bookie."""

    def __init__(
        self, ledgers: LedgerTable, group_commit: GroupCommit, checkpointer: Checkpointer
    ) -> None:
        self._ledgers = ledgers
        self._group_commit = group_commit
        self._checkpointer = checkpointer

    def removable_last_entry(self, ledger_id: int) -> int:
        """The highest entry of a ledger that is here and could be dropped; -1 for none that is.

        Not while somebody adds to it, nor while it is in limbo: then it is being copied here. What a kill or
        a full disk left of a stub's entries could be.
        """
        ledger = self._ledgers.get(ledger_id)
        if (
            ledger is None
            or ledger.deleted
            or ledger.removing
            or ledger.stream_count
            or ledger.pending_extents
        ):
            return -1
        return (
            -1 if ledger.limbo and not self.is_fence_marker(ledger_id) else ledger.last_added_entry
        )

    def is_fence_marker(self, ledger_id: int) -> bool:
        """Is it a stub?"""
        flags = self._ledgers.flags_of(ledger_id)
        return flags is not None and flags & (jb.DROPPED | jb.DELETED) == jb.DROPPED

    async def remove_replica(self, ledger_id: int) -> bool:
        """Drop what is here of the ledger. Call on proof only (H93). False: it is in use now.

        Raises `DiskFull`: then its state is a stub's, its entries go with a later call.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or self.removable_last_entry(ledger_id) < 0:
            return False
        ledger.removing = True
        try:
            flags = ledger.flags | jb.FENCED | jb.LIMBO | jb.DROPPED
            self._ledgers.set_flags(ledger, flags)
            durable = trio.Event()
            self._group_commit.write_state(ledger, durable.set)
            await durable.wait()
            ledger.fence_durable = True
            await self._checkpointer.delete_extents(ledger)
        finally:
            ledger.removing = False
        return True

    async def restore_to_limbo(self, ledger_id: int) -> None:
        """Its record names this bookie again: it is in limbo, to be healed. Durable."""
        ledger = self._ledgers.get_or_make(ledger_id)
        self._ledgers.set_flags(ledger, ledger.flags & ~jb.DROPPED)
        durable = trio.Event()
        self._group_commit.write_state(ledger, durable.set)
        await durable.wait()
