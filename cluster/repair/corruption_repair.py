"""Repair this bookie's corrupt entries from the copies of other bookies.

The replacement of a corrupt entry follows the ledger's record, which is read *after* the corruption was
recorded (H91). Only entries that the record places on this bookie are copied. They are read from the bookies
that the record lists, and each one is verified. A ledger has one writer, which uses each entry ID for one
record. So an intact record with an ID up to the end of a closed ledger is the right entry.

Corrupt entries of open ledgers wait: the limbo state would make the writers replace this bookie. Entries of a
ledger in recovery are repaired. Recovery writes back the entries that it finds, and with an ack quorum of all
bookies it waits for this one. Entries after the end that recovery finds may be copied too; no reader requests
them.

The repair first checks that the copies are readable. Then it drops the corrupt entries, which puts the ledger
into the limbo state, stores the copies and reads them back. A corrupt entry without another copy is kept,
because the disk may return intact bytes in a later read.
"""

import trio

from ...bookie.client.bookie_client import BookieClient
from ...bookie.integrity.corruption_tracker import CorruptExtent, CorruptionTracker
from ...bookie.integrity.limbo import LimboLedgers
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import MissingRange
from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import ConnectionLost, CorruptData, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..declarations.events import CORRUPTION_REPAIRED
from .copier import BookieConnections, Copier, EntryRange, ranges_to_hold
from .replication_worker import EVERY_S

EVERY_MAX_S = 300.0
"""Longest pause between two passes without progress."""
EXTENTS_AT_ONCE = 64
"""Extents of one ledger that one transaction of the index drops."""

log = get_logger("distributedlog.cluster.repair.corruption_repair")


class CorruptionRepair:
    """Repairs the corrupt entries of one bookie automatically."""

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
        self._bookie_id = bookie_id
        self._repair_lock = repair_lock
        self._blocked_work = BlockedWorkLog(log, "ledgers with corrupt entries wait for repair")

    async def run(self) -> None:
        """Run until cancelled: soon after corruption is recorded, then often while there is progress."""
        backoff = Backoff(EVERY_S, EVERY_MAX_S)
        while True:
            wait_s = backoff.next_s() if self._corruption.corrupt_ranges else EVERY_MAX_S
            with trio.move_on_after(wait_s) as wait_scope:
                await self._corruption.corruption_recorded.wait()
            if not wait_scope.cancelled_caught:
                await trio.sleep(1.0)  # corruption that is found together is repaired together
            self._corruption.corruption_recorded = trio.Event()
            corrupt_before = len(self._corruption.corrupt_ranges)
            await self.run_pass()
            if len(self._corruption.corrupt_ranges) < corrupt_before:
                backoff.reset()

    async def run_pass(self) -> bool:
        """Try to repair each ledger with recorded corruption, and return whether none is left."""
        if self._corruption.has_read_errors:
            return not self._corruption.corrupt_ranges
        for ledger_id in list(self._corruption.corrupt_ranges):
            unit = f"the repair of corrupt entries of ledger {ledger_id}"
            if self._failures.is_waiting(unit):
                continue
            try:
                with self._failures.attempt(unit):
                    async with self._repair_lock:
                        await self.repair_ledger(ledger_id)
            except DistributedLogError as error:
                self._blocked_work.record(type(error).__name__, f"ledger {ledger_id}: {error}")
        self._blocked_work.end_pass()
        return not self._corruption.corrupt_ranges

    async def repair_ledger(self, ledger_id: int) -> bool:
        """Repair one ledger.

        Returns:
            False if the ledger is open, or an entry has no readable copy now.

        Raises:
            ConnectionLost: This bookie has no connection to itself.
            CorruptData: A copied entry could not be read back.
        """
        corrupt_range = self._corruption.corrupt_ranges.get(ledger_id)
        if corrupt_range is None:
            return True
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        ledger = None if item is None else LedgerMetadata.decode(item.key, item.value)
        if (
            ledger is None
            or ledger.state is LedgerState.DELETING
            or self._bookie_id not in ledger.bookies()
        ):
            self._corruption.clear(ledger_id)  # no client reads the ledger from this bookie
            return True
        if ledger.state is LedgerState.OPEN:
            self._blocked_work.record("the ledger is open", f"ledger {ledger_id}")
            return False
        own_connection = self._pool.get(self._bookie_id)
        if own_connection is None:
            raise ConnectionLost(f"bookie {self._bookie_id} has no connection to itself")
        corrupt_extents = await self._corruption.find_corrupt(ledger_id, *corrupt_range)
        repaired_entries, first_problem = 0, ""
        for index in range(0, len(corrupt_extents), EXTENTS_AT_ONCE):
            entries, problem = await self._repair_extents(
                ledger, corrupt_extents[index : index + EXTENTS_AT_ONCE], own_connection
            )
            repaired_entries += entries
            first_problem = first_problem or problem
        if repaired_entries:
            self._corruption.repaired_entries += repaired_entries
            text = "ledger %d: %d corrupt entries were repaired"
            CORRUPTION_REPAIRED.emit(
                log, text, ledger_id, repaired_entries, ledger=ledger_id, entries=repaired_entries
            )
        if first_problem:
            if all(self._pool.get(bookie) for bookie in ledger.bookies()):
                self._corruption.unrepairable[ledger_id] = (
                    first_problem  # all its bookies were asked
                )
            self._blocked_work.record("no intact copy of an entry is available now", first_problem)
            return False
        if (
            self._corruption.corrupt_ranges.get(ledger_id) == corrupt_range
        ):  # nothing was recorded during the repair
            self._corruption.clear(ledger_id)
        return True

    async def _repair_extents(
        self, ledger: LedgerMetadata, extents: list[CorruptExtent], own_connection: BookieClient
    ) -> tuple[int, str]:
        """Repair the extents of which all entries have another copy.

        Returns:
            The number of repaired entries, and the problem of the first extent that was left ("" if none
            was).
        """
        ledger_id = ledger.ledger_id
        readable_elsewhere: list[CorruptExtent] = []
        problem = ""
        for extent in extents:
            try:
                for entry_range in self._ranges_to_hold(ledger, extent):
                    await self._copier.check_readable(ledger, entry_range, self._bookie_id)
                readable_elsewhere.append(extent)
            except ConnectionLost as error:
                problem = problem or str(error)
        if not readable_elsewhere:
            return 0, problem
        was_in_limbo = self._limbo.is_in_limbo(ledger_id)
        dropped = await self._corruption.drop_corrupt(ledger_id, ledger.key, readable_elsewhere)
        ranges = [
            entry_range
            for extent in dropped
            for entry_range in self._ranges_to_hold(ledger, extent)
        ]
        await self._copier.copy(ledger, ranges, self._bookie_id, own_connection)
        damaged = await self._copier.verify(ledger, ranges, own_connection)
        if damaged is not None:  # it stays in limbo, and `limbo_repair.py` checks the whole ledger
            raise CorruptData(
                f"ledger {ledger_id} entry {damaged.first}: its copy cannot be read back"
            )
        if not was_in_limbo:
            await self._limbo.lift_limbo(ledger_id, ledger.key)
        return sum(extent.corrupt_entry_count for extent in dropped), problem

    def _ranges_to_hold(self, ledger: LedgerMetadata, extent: CorruptExtent) -> list[EntryRange]:
        """Return the corrupt entries that this bookie should hold.

        Entries after the ledger's end are excluded.
        """
        return [
            entry_range
            for first, last in extent.corrupt_ranges
            for entry_range in ranges_to_hold(
                ledger, MissingRange(self._bookie_id, first, last + 1)
            )
        ]
