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
        self, ledgers: LedgerTable, commits: GroupCommit, checkpointer: Checkpointer
    ) -> None:
        self._ledgers = ledgers
        self._commits = commits
        self._checkpointer = checkpointer

    def held(self, ledger_id: int) -> int:
        """The highest entry of a ledger that is here and could be dropped; -1 for none that is.

        Not while somebody adds to it, nor while it is in limbo: then it is being copied here. What a kill or
        a full disk left of a stub's entries could be.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.deleted or ledger.going or ledger.users or ledger.pending:
            return -1
        return -1 if ledger.limbo and not self.dropped(ledger_id) else ledger.top

    def dropped(self, ledger_id: int) -> bool:
        """Is it a stub?"""
        flags = self._ledgers.flags_of(ledger_id)
        return flags is not None and flags & (jb.DROPPED | jb.DELETED) == jb.DROPPED

    async def drop(self, ledger_id: int) -> bool:
        """Drop what is here of the ledger. Call on proof only (H93). False: it is in use now.

        Raises `DiskFull`: then its state is a stub's, its entries go with a later call.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or self.held(ledger_id) < 0:
            return False
        ledger.going = True
        try:
            flags = ledger.flags | jb.FENCED | jb.LIMBO | jb.DROPPED
            self._ledgers.mark(ledger, flags)
            durable = trio.Event()
            self._commits.write_state(ledger, durable.set)
            await durable.wait()
            ledger.fence_durable = True
            await self._checkpointer.delete_runs(ledger)
        finally:
            ledger.going = False
        return True

    async def take_back(self, ledger_id: int) -> None:
        """Its record names this bookie again: it is in limbo, to be healed. Durable."""
        ledger = self._ledgers.get_or_make(ledger_id)
        self._ledgers.mark(ledger, ledger.flags & ~jb.DROPPED)
        durable = trio.Event()
        self._commits.write_state(ledger, durable.set)
        await durable.wait()
