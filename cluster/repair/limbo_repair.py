"""Take a bookie's ledgers out of the limbo state after their copies are complete and verified.

In the limbo state, a bookie never answers that it lacks an entry, because it may have lost it (inv. 22). The
record of a closed ledger lists the entries that the bookie should hold. When all of them are there, read back
and verified, no true answer of this bookie can truncate anything. The limbo state then ends durably. The
fence stays.

A ledger that is not closed stays in the limbo state, because only its bookies can prove where it ends.
"""

import trio

from ...bookie.integrity.corruption_tracker import CorruptionTracker
from ...bookie.integrity.limbo import LimboLedgers
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_ids import next_ledger
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.missing_range import MissingRange
from ...ledger.model.stored_ledger import UnreadableRecords
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..declarations.events import LIMBO_HEALED
from .copier import BookieConnections, Copier, ranges_to_hold
from .replication_worker import EVERY_S, PAGE

EVERY_MAX_S = 20.0
"""Longest pause between two passes without progress; it limits how long a newly closed ledger waits."""

UNIT = "the work on limbo"

log = get_logger("distributedlog.cluster.repair.limbo_repair")


class LimboRepair:
    """Takes one bookie's ledgers out of the limbo state automatically."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        copier: Copier,
        limbo: LimboLedgers,
        corruption: CorruptionTracker,
        bookie_id: str,
        repair_lock: trio.Lock,
        failures: WorkFailures | None = None,
    ) -> None:
        """Create the repair; ``repair_lock`` is shared by all repairs of this bookie's data."""
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._copier = copier
        self._limbo = limbo
        self._corruption = corruption
        self._repair_lock = repair_lock
        self._bookie_id = bookie_id
        self.repaired_ledgers = 0
        """Since the start."""
        self._blocked_work = BlockedWorkLog(log, "ledgers remain in the limbo state")
        self._unreadable = UnreadableRecords()

    async def run(self) -> None:
        """Run until cancelled: often while there is progress, otherwise every 20 s."""
        backoff = Backoff(EVERY_S, EVERY_MAX_S)
        while True:
            await trio.sleep(max(backoff.next_s(), self._failures.retry_delay_s(UNIT)))
            if not self._limbo.any_limbo:
                continue
            repaired_before = self.repaired_ledgers
            try:
                with self._failures.attempt(UNIT):
                    await self.run_pass()
            except DistributedLogError as error:
                log.warning(
                    "the limbo state of this bookie remains: %s: %s", type(error).__name__, error
                )
            if self.repaired_ledgers > repaired_before:
                backoff.reset()

    async def run_pass(self) -> bool:
        """Try to repair each ledger of this bookie that is in limbo, and return whether none is left.

        When none is left, the limbo state ends also for ledgers that do not exist yet.

        Raises:
            CorruptData: The next ledger ID is unreadable, so ledgers newer than the loss cannot be
                identified. The limbo state stays.
        """
        remaining = 0
        async for item in Scan(
            self._metadata, keys.bookie_ledgers_prefix(self._bookie_id), limit=PAGE
        ):
            try:
                ledger_id = keys.ledger_id_of(item.key)
            except CorruptData as error:
                self._unreadable.log_once(item.key, error)
                continue
            if not self._limbo.is_in_limbo(ledger_id):
                continue
            unit = f"lifting the limbo of ledger {ledger_id}"
            is_repaired = False
            try:
                if not self._failures.is_waiting(unit):
                    with self._failures.attempt(unit):
                        async with self._repair_lock:
                            is_repaired = await self.repair_ledger(ledger_id)
                if is_repaired:
                    continue
            except DistributedLogError as error:
                self._blocked_work.record(type(error).__name__, f"ledger {ledger_id}: {error}")
            remaining += 1
        self._blocked_work.end_pass()
        if remaining:
            return False
        if self._limbo.includes_all:
            # For ledgers below this ID, the metadata store is asked from now on, because fences and
            # tombstones were lost.
            await self._limbo.lower_bound(await next_ledger(self._metadata))
        # A ledger that lists this bookie only later lost nothing here. Any earlier entry or fence of it
        # reached this bookie as a member of its ensemble, so the index that was just read would list it.
        await self._limbo.lower_bound(0)
        return True

    async def repair_ledger(self, ledger_id: int) -> bool:
        """Copy and verify one ledger's entries, and end its limbo state.

        Returns:
            False if the ledger is not closed, this bookie has no connection to itself, or an entry cannot be
            read back.

        Raises:
            ConnectionLost: No bookie could provide a copy of an entry.
        """
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return False
        ledger = LedgerMetadata.decode(item.key, item.value)
        own_connection = self._pool.get(self._bookie_id)
        if not ledger.closed or own_connection is None:
            return False
        ranges = ranges_to_hold(ledger, MissingRange(self._bookie_id, 0, None))
        copied = await self._copier.copy(ledger, ranges, self._bookie_id, own_connection)
        damaged = await self._copier.verify(ledger, ranges, own_connection)
        if damaged is not None:
            example = f"ledger {ledger_id} entry {damaged.first}"
            self._blocked_work.record("an entry cannot be read back here", example)
            self._corruption.record(ledger_id, damaged.first, damaged.last)
            return False
        await self._limbo.lift_limbo(ledger_id, ledger.key)
        self.repaired_ledgers += 1
        text = "ledger %d left the limbo state: %d entries were copied"
        LIMBO_HEALED.emit(log, text, ledger_id, copied, ledger=ledger_id, entries=copied)
        return True
