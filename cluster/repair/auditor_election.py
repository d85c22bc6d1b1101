"""Elect the repair leader: the one bookie that audits, repairs and maintains the cluster.

The leader holds a metadata key under the lease of its registration.
"""

from collections.abc import Callable
from contextlib import suppress

from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, Put, Transaction
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import REPAIRER

ELECTION_KEY = b"repair/leader"

log = get_logger("distributedlog.cluster.repair.replication_worker")


class RepairLeaderElection:
    """Whether this bookie is the repair leader.

    The election only avoids duplicate work: all changes are guarded by compare-and-set. The leader also runs
    other work that one bookie must do, such as retention and purging. A bookie with ``repairs=False`` is
    elected only while no registered bookie repairs. Otherwise, nothing would be repaired while it is the
    leader.
    """

    def __init__(
        self, metadata: Metadata, node_id: str, lease: Callable[[], int], *, repairs: bool = True
    ) -> None:
        self._metadata = metadata
        self._repairs = repairs
        self._value = node_id.encode()
        self._lease = lease
        """Returns the lease of this bookie's registration, which holds the key; 0 if there is none."""
        self.was_elected = False
        """The result of the last `is_elected`."""

    async def is_elected(self) -> bool:
        """Return whether this bookie holds the election key, and try to take the key if it is free.

        A change of the result is logged.
        """
        is_elected_now = await self._try_elect()
        if is_elected_now != self.was_elected:
            self.was_elected = is_elected_now
            does = (
                "repairs" if self._repairs else "cleans up, and repairs nothing (repair = false),"
            )
            text = f"{does} from now on" if is_elected_now else "no longer repairs"
            REPAIRER.emit(log, "this bookie %s", text, elected=is_elected_now)
        return is_elected_now

    async def _try_elect(self) -> bool:
        lease = self._lease()
        if not lease:
            return False
        holder = await self._metadata.get(ELECTION_KEY)
        is_ours = holder is not None and holder.value == self._value and holder.lease == lease
        if not self._repairs and await self._does_another_repair():
            if is_ours and holder is not None:
                unchanged = Compare.mod_revision(ELECTION_KEY, holder.mod_revision)
                await self._metadata.transact(Transaction((unchanged,), (Delete(ELECTION_KEY),)))
            return False
        if holder is not None and holder.lease:
            return is_ours
        # A key without a lease belongs to no bookie, and would never be deleted.
        revision = holder.mod_revision if holder is not None else 0
        acquire = Transaction(
            (Compare.mod_revision(ELECTION_KEY, revision),),
            (Put(ELECTION_KEY, self._value, lease),),
        )
        return (await self._metadata.transact(acquire)).succeeded

    async def _does_another_repair(self) -> bool:
        async for item in Scan(self._metadata, keys.BOOKIE_PREFIX):
            with suppress(CorruptData, UnsupportedFormat):  # `dlog status` lists the record
                if BookieRegistration.decode(item.key, item.value).copies_assigned_ledgers:
                    return True
        return False
