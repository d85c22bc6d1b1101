"""Drop copies of ledgers that no ledger record assigns to this bookie, and keep a fenced stub.

A stub is the state of a ledger with the flags fenced, limbo and dropped, and without entries. It refuses adds
of former writers, gives no negative answers, and accepts recovery adds, because the bookie may store the
ledger again. A recovery's add stream removes the dropped flag. The ledger is then in normal limbo state, and
is repaired.
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
        """Return the last entry of a copy that may be dropped; -1 if there is no such copy.

        A ledger with an add stream is not dropped, nor one in limbo state, because it is being copied here.
        The entries of a stub, which remain after a kill or on a full disk, may be dropped.
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
        return -1 if ledger.limbo and not self.is_stub(ledger_id) else ledger.last_added_entry

    def is_stub(self, ledger_id: int) -> bool:
        """Whether the ledger is a stub."""
        flags = self._ledgers.flags_of(ledger_id)
        return flags is not None and flags & (jb.DROPPED | jb.DELETED) == jb.DROPPED

    async def remove_replica(self, ledger_id: int) -> bool:
        """Drop the copy of a ledger; return False if it is in use.

        Call this only after proof that the copy is not needed (H93).

        Raises:
            DiskFull: The state is a stub's, and a later call drops the entries.
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
        """Put a stub into normal limbo state, durably, because its record assigns it to this bookie again."""
        ledger = self._ledgers.get_or_make(ledger_id)
        self._ledgers.set_flags(ledger, ledger.flags & ~jb.DROPPED)
        durable = trio.Event()
        self._group_commit.write_state(ledger, durable.set)
        await durable.wait()
