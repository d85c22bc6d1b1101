"""Which ledgers are in limbo here, and how they get out (inv. 22, H7).

A bookie that lost data cannot tell what it had: ledgers that it knows are marked, unknown ones below a
bound are taken for marked. The bound falls to the cluster's next ledger id; a mark is lifted when somebody
who knows the ledger's end has seen that all of it is here.
"""

import trio

from ...runtime.declarations.health_conditions import Code, HealthCondition, RepairCount, condition
from ...runtime.interfaces.errors import NoSuchLedger, TooBusy
from ..format import journal_format as jb
from ..ledgers.ledger_table import LIMBO_ALL, LedgerTable
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock

EARLIER_LOSS = "an earlier start found data lost, see the log of that start"


class LimboLedgers:
    """The limbo of one bookie. ``lost``: what its start missed, in words; empty: nothing."""

    def __init__(self, ledgers: LedgerTable, group_commit: GroupCommit, loss_reason: str) -> None:
        self._ledgers = ledgers
        self._group_commit = group_commit
        self._loss_reason = loss_reason
        self._recovered = RepairCount()
        """Ledgers that are out of it, and its end."""

    @property
    def any_limbo(self) -> bool:
        """May a ledger, known or not, be in limbo here?"""
        return self.includes_unknown or self._ledgers.limbo_count > 0

    @property
    def includes_unknown(self) -> bool:
        """Are ledgers that are not known here in limbo? Nobody can count those."""
        return self._ledgers.limbo_below > 0

    @property
    def includes_all(self) -> bool:
        """Is it all ledgers? Then nobody has known the next ledger's id since the loss (`lower_bound`)."""
        return self._ledgers.limbo_below == LIMBO_ALL

    @property
    def known_bound(self) -> int:
        """Ledgers with a lower id may be in limbo, those from it on are not; 0: none is, or nobody knows."""
        return 0 if self.includes_all else self._ledgers.limbo_below

    @property
    def cause(self) -> str:
        """Why ledgers are in limbo here, or were, for people."""
        return self._loss_reason or EARLIER_LOSS

    def condition(self) -> HealthCondition | None:
        """Return a condition while ledgers are in limbo here, and for an hour after that has ended."""
        if self.any_limbo:
            bound = -1 if self.includes_all else self._ledgers.limbo_below
            ledgers = self._ledgers.limbo_count
            return condition(Code.LIMBO, ledgers=ledgers, below=bound, cause=self.cause)
        if self._recovered.is_reported(trio.current_time()):
            return condition(Code.LIMBO_ENDED, cause=self.cause)
        return None

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Is this one?"""
        flags = self._ledgers.flags_of(ledger_id)
        if flags is None:
            return ledger_id < self._ledgers.limbo_below
        return flags & (jb.LIMBO | jb.DELETED) == jb.LIMBO

    async def lower_bound(self, below: int) -> None:
        """Ledgers with ids from ``known_bound`` on were created after this bookie lost data: they are sound.

        To be called with the cluster's next ledger id, after a start that found a loss. Durable.
        """
        previous_bound = self._ledgers.limbo_below
        if below >= previous_bound:
            return
        if previous_bound < LIMBO_ALL:
            # What else was lost are tombstones, and fences of copies that had moved away.
            await self.require_lookup_below(previous_bound)
        durable = trio.Event()
        self._ledgers.limbo_below = below

        def write(block: CommitBlock) -> None:
            block.control_records.append(jb.limbo_below_record(below))
            block.after_sync.append(durable.set)

        self._group_commit.request_block(write)
        await durable.wait()
        if not below:
            self._recovered.add(trio.current_time())

    async def require_lookup_below(self, below: int) -> None:
        """An add that would make a ledger with a lower id known waits until the metadata was asked (H89).

        Durable when it returns, and in force. The bound never moves back.
        """
        if below <= self._ledgers.must_verify_below:
            return
        durable = trio.Event()

        def write(block: CommitBlock) -> None:
            block.control_records.append(jb.must_verify_below_record(below))
            block.after_sync.append(durable.set)

        self._group_commit.request_block(write)
        await durable.wait()
        self._ledgers.must_verify_below = max(self._ledgers.must_verify_below, below)

    async def lift_limbo(self, ledger_id: int, key: bytes) -> None:
        """Take the mark off, durably. The fence stays: nobody knows whether one was lost.

        Call when the ledger is closed, and all that its record wants here was read back and is sound: then
        no entry that this bookie denies was ever acknowledged by it; or when it is in limbo for what was just
        dropped (`corruption_tracker.py`), and that is here again. Raises `NoSuchLedger`, `WrongLedgerKey`,
        `TooBusy` where its copy here is being dropped, or was: what was read back may be gone.
        """
        ledger = self._ledgers.get_or_make(ledger_id)
        ledger.learn_key(key)
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        if ledger.removing or ledger.flags & jb.DROPPED:
            raise TooBusy(f"ledger {ledger_id}: the copy that was here has been dropped")
        self._ledgers.set_flags(ledger, (ledger.flags & ~jb.LIMBO) | jb.FENCED)
        durable = trio.Event()
        self._group_commit.write_state(ledger, durable.set)
        await durable.wait()
        ledger.fence_durable = True
