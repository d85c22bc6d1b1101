"""The ledgers in limbo state, in which entries may be missing, and the end of this state (inv. 22, H7).

A bookie that lost data cannot list the lost entries and fences. It marks all known ledgers, and treats
unknown ledgers below a bound as marked. For these, it never answers that an entry does not exist. The bound
is lowered to the cluster's next ledger ID. A mark is removed after a repair has verified that the bookie has
all entries of a ledger whose end is known.
"""

import trio

from ...runtime.declarations.health_conditions import Code, HealthCondition, RepairCount, condition
from ...runtime.interfaces.errors import NoSuchLedger, TooBusy
from ..format import journal_format as jb
from ..ledgers.ledger_table import LIMBO_ALL, LedgerTable
from ..storage.group_commit import GroupCommit
from ..storage.journal_buffer import CommitBlock

EARLIER_LOSS = "an earlier start found that data was lost, see the log of that start"


class LimboLedgers:
    """The limbo state of one bookie's ledgers."""

    def __init__(self, ledgers: LedgerTable, group_commit: GroupCommit, loss_reason: str) -> None:
        """Create the state.

        ``loss_reason`` is a text about the data that is missing at this start, or empty.
        """
        self._ledgers = ledgers
        self._group_commit = group_commit
        self._loss_reason = loss_reason
        self._recovered = RepairCount()
        """Ledgers whose limbo state ended, and the end of the bound."""

    @property
    def any_limbo(self) -> bool:
        """Whether any ledger, known or not, may be in limbo state."""
        return self.includes_unknown or self._ledgers.limbo_count > 0

    @property
    def includes_unknown(self) -> bool:
        """Whether unknown ledgers are in limbo state. Their number is not known."""
        return self._ledgers.limbo_below > 0

    @property
    def includes_all(self) -> bool:
        """Whether all unknown ledgers are in limbo state.

        This is so until `lower_bound` sets the first bound after a loss.
        """
        return self._ledgers.limbo_below == LIMBO_ALL

    @property
    def limbo_bound(self) -> int:
        """The ID below which unknown ledgers are in limbo state; 0 for none, or without a bound yet."""
        return 0 if self.includes_all else self._ledgers.limbo_below

    @property
    def cause(self) -> str:
        """A text about the loss that led to the limbo state."""
        return self._loss_reason or EARLIER_LOSS

    def condition(self) -> HealthCondition | None:
        """Return a condition while ledgers are in limbo state, and for an hour after its end."""
        if self.any_limbo:
            bound = -1 if self.includes_all else self._ledgers.limbo_below
            ledgers = self._ledgers.limbo_count
            return condition(Code.LIMBO, ledgers=ledgers, below=bound, cause=self.cause)
        if self._recovered.is_reported(trio.current_time()):
            return condition(Code.LIMBO_ENDED, cause=self.cause)
        return None

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Whether this ledger is in limbo state."""
        flags = self._ledgers.flags_of(ledger_id)
        if flags is None:
            return ledger_id < self._ledgers.limbo_below
        return flags & (jb.LIMBO | jb.DELETED) == jb.LIMBO

    async def lower_bound(self, below: int) -> None:
        """End the limbo state of unknown ledgers with IDs from ``below`` on. Durable when it returns.

        Call this with the cluster's next ledger ID after a start that found a loss. Ledgers from this ID on
        were created after the loss, so nothing of them was lost.
        """
        previous_bound = self._ledgers.limbo_below
        if below >= previous_bound:
            return
        if previous_bound < LIMBO_ALL:
            # Tombstones, and fences of copies that were moved away, may have been lost as well.
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
        """Look up unknown ledgers with a lower ID in the metadata before an add makes them known (H89).

        In effect and durable when it returns. The bound never decreases.
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
        """End the limbo state of a ledger durably. The fence stays, because one may have been lost.

        There are two cases in which a caller may do this. Either the ledger is closed, and all entries that
        its record assigns to this bookie were read back here and are valid. The bookie then has acknowledged
        no entry that it lacks. Or the ledger is in limbo state because corrupt entries were dropped
        (`corruption_tracker.py`), and these are stored again.

        Raises:
            NoSuchLedger: The ledger was deleted.
            WrongLedgerKey: The ledger has another key.
            TooBusy: Its copy is being dropped, or was, so the entries that were read back may be missing.
        """
        ledger = self._ledgers.get_or_make(ledger_id)
        ledger.set_key_if_unknown(key)
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        if ledger.removing or ledger.flags & jb.DROPPED:
            raise TooBusy(f"ledger {ledger_id}: the copy that was here has been dropped")
        self._ledgers.set_flags(ledger, (ledger.flags & ~jb.LIMBO) | jb.FENCED)
        durable = trio.Event()
        self._group_commit.write_state(ledger, durable.set)
        await durable.wait()
        ledger.fence_durable = True
