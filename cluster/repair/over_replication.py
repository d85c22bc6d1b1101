"""Delete over-replicated copies of returned bookies and of abandoned moves.

A bookie that returns after its replacement still has its copies. Each bookie checks its own ledgers. It
deletes a copy only if two passes, an hour apart by its own clock, had the same result:

- The bookie had the ledger before the first pass.
- The ledger's record was closed, had the same revision, and listed this bookie in no fragment.
- No move of the ledger to this bookie was in progress.
- No entry was added to the copy in between.
- Every bookie in the record answers, lists all its entries, is not in the limbo state, and has no corrupt
  entries.

If entries of a ledger were declared lost, no copy is deleted, because it may be the last one. A copy whose
record does not exist is deleted like that of a deleted ledger. The absence of a key is never derived from a
listing (inv. 27): each record is read separately.

If a move that stalled for so long changes the record after the copy was deleted, it finds a stub in the limbo
state, which denies no entry. The next pass finds the record that lists this bookie again, and the stub is
repaired like any ledger in limbo.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from ...bookie.format import journal_format as jb
from ...bookie.integrity.replica_removal import ReplicaRemoval
from ...bookie.ledgers.ledger_table import LedgerTable
from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_ids import decode_next_ledger
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.stored_ledger import UnreadableRecords
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.gc_hold import RESTORES, hold_reason
from .copier import BookieConnections, lacking_ranges, list_held_entries
from .replication_worker import PAGE

APART_S = 3600.0
"""Between the two passes."""

UNIT = "the check for over-replicated copies"

log = get_logger("distributedlog.cluster.repair.over_replication")


@dataclass(frozen=True, slots=True)
class SurplusCopy:
    """A copy that no record lists, as found by a pass."""

    found_at: float
    """When the first pass with this result found it, by the monotonic clock."""
    mod_revision: int
    """Of the ledger's record; 0 if there was none."""
    highest_entry: int
    """The highest entry of the copy."""
    restores: bytes


class OverReplication:
    """Deletes the over-replicated copies of one bookie."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        ledgers: LedgerTable,
        replica_removal: ReplicaRemoval,
        delete: Callable[[int], Awaitable[None]],
        bookie_id: str,
        *,
        every_s: float,
        failures: WorkFailures | None = None,
    ) -> None:
        """Create the check; ``delete`` removes a ledger as if it had been deleted."""
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._ledgers = ledgers
        self._replica_removal = replica_removal
        self._delete = delete
        self._bookie_id = bookie_id
        self._every_s = every_s
        self._surplus: dict[int, SurplusCopy] = {}
        self._unreadable = UnreadableRecords()
        self.dropped_copies = 0
        """Since the start."""

    async def run(self) -> None:
        """Check all ledgers and pause, until cancelled.

        After a pass with findings, the pause is at most an hour.
        """
        while True:
            rest_s = min(self._every_s, APART_S) if self._surplus else self._every_s
            await trio.sleep(self._failures.next_try_s(UNIT, rest_s))
            try:
                with self._failures.attempt(UNIT, every_s=self._every_s):
                    await self.check_all()
            except DistributedLogError as error:
                log.info("the check for over-replicated copies failed: %s", error)

    async def check_all(self) -> None:
        """Check all ledgers of this bookie once, page by page."""
        surplus_before, self._surplus = self._surplus, {}
        async for page in self._ledgers.state_pages():
            # The page is read before the records, so a ledger that is created in between is not in it.
            ledger_ids = [state.ledger_id for state in page if not state.flags & jb.DELETED]
            if not ledger_ids:
                continue
            named_ledgers = await self._ledgers_naming_us(ledger_ids[0], ledger_ids[-1])
            for ledger_id in ledger_ids:
                if ledger_id in named_ledgers:
                    if self._replica_removal.is_stub(ledger_id):
                        await self._replica_removal.restore_to_limbo(ledger_id)
                    continue
                unit = f"the check of ledger {ledger_id} for over-replication"
                try:
                    with self._failures.attempt(unit, every_s=self._every_s):
                        await self._check_ledger(ledger_id, surplus_before.get(ledger_id))
                except CorruptData as error:
                    self._unreadable.log_once(keys.ledger_key(ledger_id), error)

    async def _ledgers_naming_us(self, first: int, last: int) -> set[int]:
        """Return the ledgers with IDs from ``first`` to ``last``, inclusive, that list this bookie."""
        start = keys.bookie_ledger_key(self._bookie_id, first)
        end = keys.bookie_ledger_key(self._bookie_id, last) + b"\0"
        ledger_ids: set[int] = set()
        async for item in Scan(self._metadata, start, end, limit=PAGE):
            try:
                ledger_ids.add(keys.ledger_id_of(item.key))
            except CorruptData as error:
                self._unreadable.log_once(item.key, error)
        return ledger_ids

    async def _check_ledger(self, ledger_id: int, surplus_before: SurplusCopy | None) -> None:
        highest_entry = self._replica_removal.removable_last_entry(ledger_id)
        is_dropped = self._replica_removal.is_stub(ledger_id)
        if highest_entry < 0 and not is_dropped:
            return
        surplus = await self.find_surplus(ledger_id, highest_entry)
        if surplus is None:
            return
        if surplus_before is None or (
            surplus_before.mod_revision,
            surplus_before.highest_entry,
            surplus_before.restores,
        ) != (
            surplus.mod_revision,
            surplus.highest_entry,
            surplus.restores,
        ):
            self._surplus[ledger_id] = surplus
        elif surplus.found_at - surplus_before.found_at < APART_S:
            self._surplus[ledger_id] = surplus_before
        elif self._replica_removal.removable_last_entry(ledger_id) != highest_entry:
            return  # entries are being added to it
        elif surplus.mod_revision == 0:
            await self._delete(ledger_id)
            log.warning("ledger %d does not exist: its copy on this bookie was deleted", ledger_id)
        elif await self._replica_removal.remove_replica(ledger_id):
            self.dropped_copies += 1
            log.warning(
                "ledger %d is stored on other bookies: the copy here was deleted", ledger_id
            )

    async def find_surplus(self, ledger_id: int, highest_entry: int) -> SurplusCopy | None:
        """Return the copy if it is over-replicated now, or None.

        Each check is a separate linearizable read.
        """
        next_ledger = await self._metadata.get(keys.NEXT_LEDGER)
        async for item in Scan(self._metadata, keys.moves_to_prefix(self._bookie_id), limit=PAGE):
            if item.key.endswith(keys.ledger_key(ledger_id).removeprefix(keys.LEDGER_PREFIX)):
                return None
        stored = await self._metadata.get(keys.ledger_key(ledger_id))  # read after the moves
        revision = 0
        if stored is not None:
            ledger = LedgerMetadata.decode(stored.key, stored.value)
            if not ledger.closed or ledger.lost or self._bookie_id in ledger.bookies():
                return None
            if highest_entry < 0 or not await self._is_stored_elsewhere(ledger):
                return None
            revision = stored.mod_revision
        elif next_ledger is None or ledger_id >= decode_next_ledger(next_ledger.value):
            return (
                None  # the ID is not assigned yet: this is not the metadata store that assigned it
            )
        # Last: after a restore of the metadata, deletions are on hold, and earlier answers prove nothing.
        restores = await self._metadata.get(RESTORES)
        if await hold_reason(self._metadata):
            return None
        value = b"" if restores is None else bytes(restores.value)
        return SurplusCopy(trio.current_time(), revision, highest_entry, value)

    async def _is_stored_elsewhere(self, ledger: LedgerMetadata) -> bool:
        """Whether each bookie of the record has all its entries.

        A bookie that cannot be asked counts as lacking some.
        """
        for bookie in ledger.bookies():
            registered = await self._metadata.get(keys.bookie_key(bookie))
            client = self._pool.get(bookie)
            if registered is None or client is None:
                return False
            if any(
                BookieRegistration.decode(registered.key, registered.value).corruption_counts[:2]
            ):
                return False  # this may be the good copy
            try:
                held_entries = await list_held_entries(ledger, client)
            except DistributedLogError:
                return False
            if not held_entries.proves_absence or lacking_ranges(ledger, bookie, held_entries):
                return False
        return True
