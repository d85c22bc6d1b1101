"""Copies too many: of a bookie that is back after it was replaced, of a move that was given up. They go.

Each bookie looks through its own ledgers. A copy goes only if two passes, an hour of its own time apart,
found the same: the ledger was known here before the first look, its record was closed and named this bookie
in no fragment, at the same revision; no move into this bookie was under way; nothing was added to it
meanwhile; and every bookie that the record names has what it should: it answers, lists it all, is not in
limbo, and knows of nothing that rotted. Of a ledger of which entries were declared lost none goes: it may be
the last. One of a record that is not there goes as a deleted ledger does. The absence of a key is never taken
from a listing (inv. 27): each record is read by itself.

A move that was stalled for so long, and swaps the record after the copy went, finds a stub, which denies
nothing; the next pass sees the record that names this bookie again, and the stub is healed as limbo is.
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
"""Between the two looks."""

UNIT = "the look for over-replicated copies"

log = get_logger("distributedlog.cluster.repair.over_replication")


@dataclass(frozen=True, slots=True)
class SurplusCopy:
    """A copy that no record names, as a pass found it."""

    found_at: float
    """Own time; of the first pass that found the same."""
    mod_revision: int
    """Of the ledger's record; 0: there was none."""
    highest_entry: int
    """The highest entry that was here."""
    restores: bytes


class OverReplication:
    """Drops the copies too many of one bookie."""

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
        """``delete``: as for a ledger that was deleted."""
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
        """Copies since the start."""

    async def run(self) -> None:
        """A pass, a rest, and so on; until cancelled. While something is seen the next comes in an hour."""
        while True:
            rest_s = min(self._every_s, APART_S) if self._surplus else self._every_s
            await trio.sleep(self._failures.next_try_s(UNIT, rest_s))
            try:
                with self._failures.attempt(UNIT, every_s=self._every_s):
                    await self.check_all()
            except DistributedLogError as error:
                log.info("copies too many are not looked for now: %s", error)

    async def check_all(self) -> None:
        """One pass over the ledgers that are here, some at a time."""
        surplus_before, self._surplus = self._surplus, {}
        async for page in self._ledgers.state_pages():
            # Known before anything of them is read: a ledger made meanwhile is none of them.
            ledger_ids = [state.ledger_id for state in page if not state.flags & jb.DELETED]
            if not ledger_ids:
                continue
            named_ledgers = await self._ledgers_naming_us(ledger_ids[0], ledger_ids[-1])
            for ledger_id in ledger_ids:
                if ledger_id in named_ledgers:
                    if self._replica_removal.is_fence_marker(ledger_id):
                        await self._replica_removal.restore_to_limbo(ledger_id)
                    continue
                unit = f"the look at ledger {ledger_id}, which is elsewhere"
                try:
                    with self._failures.attempt(unit, every_s=self._every_s):
                        await self._check_ledger(ledger_id, surplus_before.get(ledger_id))
                except CorruptData as error:
                    self._unreadable.log_once(keys.ledger_key(ledger_id), error)

    async def _ledgers_naming_us(self, first: int, last: int) -> set[int]:
        """The ledgers of these ids (inclusive) that name this bookie."""
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
        is_dropped = self._replica_removal.is_fence_marker(ledger_id)
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
            return  # somebody has begun to add to it
        elif surplus.mod_revision == 0:
            await self._delete(ledger_id)
            log.warning("ledger %d does not exist, and was here: deleted", ledger_id)
        elif await self._replica_removal.remove_replica(ledger_id):
            self.dropped_copies += 1
            log.warning("ledger %d is elsewhere now: its copy here went", ledger_id)

    async def find_surplus(self, ledger_id: int, highest_entry: int) -> SurplusCopy | None:
        """Is a copy that is here one too many, now? Each answer is a linearizable read of its own."""
        next_ledger = await self._metadata.get(keys.NEXT_LEDGER)
        async for item in Scan(self._metadata, keys.moves_to_prefix(self._bookie_id), limit=PAGE):
            if item.key.endswith(keys.ledger_key(ledger_id).removeprefix(keys.LEDGER_PREFIX)):
                return None
        stored = await self._metadata.get(keys.ledger_key(ledger_id))  # nothing of a move is older
        revision = 0
        if stored is not None:
            ledger = LedgerMetadata.decode(stored.key, stored.value)
            if not ledger.closed or ledger.lost or self._bookie_id in ledger.bookies():
                return None
            if highest_entry < 0 or not await self._is_stored_elsewhere(ledger):
                return None
            revision = stored.mod_revision
        elif next_ledger is None or ledger_id >= decode_next_ledger(next_ledger.value):
            return None  # an id that nobody may have yet: this metadata is not that which gave it
        # Last: metadata that was begun anew meanwhile is held, and what it answered proves nothing.
        restores = await self._metadata.get(RESTORES)
        if await hold_reason(self._metadata):
            return None
        value = b"" if restores is None else bytes(restores.value)
        return SurplusCopy(trio.current_time(), revision, highest_entry, value)

    async def _is_stored_elsewhere(self, ledger: LedgerMetadata) -> bool:
        """Has each bookie of the record what it should have? Who cannot be asked has not."""
        for bookie in ledger.bookies():
            registered = await self._metadata.get(keys.bookie_key(bookie))
            client = self._pool.get(bookie)
            if registered is None or client is None:
                return False
            if any(BookieRegistration.decode(registered.key, registered.value).rot[:2]):
                return False  # this may be the good copy
            try:
                held_entries = await list_held_entries(ledger, client)
            except DistributedLogError:
                return False
            if not held_entries.known or lacking_ranges(ledger, bookie, held_entries):
                return False
        return True
