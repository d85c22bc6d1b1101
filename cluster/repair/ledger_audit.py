"""Audit slowly whether every bookie holds the entries that the records of closed ledgers assign to it.

A writer that dies before its first record of missing entries is stored leaves a closed ledger with fewer
copies than its record requires (H22b). Each bookie lists the ranges that it holds from its index, without
reading entries. Entries that it should hold and does not list are added to the ledger's record of missing
ranges, and `replication_worker.py` copies them. A bookie that does not answer is skipped, because its entries
are not known.
"""

from itertools import islice

import trio

from ...bookie.client.bookie_client import EntryList
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ...ledger.model.missing_range import (
    MissingRange,
    decode_missing_ranges,
    encode_missing_ranges,
    merge_ranges,
)
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.events import AUDIT_FOUND
from .auditor_election import RepairLeaderElection
from .copier import BookieConnections, lacking_ranges, list_end, list_held_entries
from .replication_worker import PAGE

LEDGER_PAUSE_S = 0.01
"""Pause between two ledgers: at most 100 ledgers per second are audited."""
MISSING_RANGES_MAX = 100
"""Ranges of one bookie that are recorded one by one. More are recorded as one range that covers them."""

UNIT = "the audit of entries"

log = get_logger("distributedlog.cluster.repair.ledger_audit")


class LedgerAudit:
    """Compares entry lists with all ledgers' records while this bookie is the repair leader."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        election: RepairLeaderElection,
        *,
        every_s: float,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._every_s = every_s
        self.recorded_ledgers = 0
        """Ledgers for which this audit recorded missing ranges since the start."""

    async def run(self) -> None:
        """Audit all ledgers, pause, and repeat until cancelled."""
        while True:
            await trio.sleep(self._failures.next_try_s(UNIT, self._every_s))
            try:
                with self._failures.attempt(UNIT, every_s=self._every_s):
                    if await self._election.is_elected():
                        await self.audit_all()
            except DistributedLogError as error:
                log.warning("the audit ended early: %s: %s", type(error).__name__, error)

    async def audit_all(self) -> None:
        """Audit all ledgers once; stop early if another bookie becomes the repair leader."""
        audited = 0
        async for item in Scan(self._metadata, keys.LEDGER_PREFIX, limit=PAGE):
            try:
                unit = f"the audit of {item.key!r}"
                with self._failures.attempt(unit, every_s=self._every_s):
                    await self.audit_ledger(item)
            except DistributedLogError as error:
                log.info("%s was not audited: %s", keys.printable_key(item.key), error)
            await trio.sleep(LEDGER_PAUSE_S)
            audited += 1
            if audited % PAGE == 0 and not await self._election.is_elected():
                return

    async def audit_ledger(self, item: KeyValue) -> tuple[MissingRange, ...]:
        """Audit one ledger.

        Args:
            item: The ledger's record, as read from the store.

        Returns:
            The missing ranges by its bookies' lists. They were recorded, unless a record changed during the
            audit.
        """
        ledger = LedgerMetadata.decode(item.key, item.value)
        if not ledger.closed or ledger.last_entry == NO_ENTRY:
            return ()
        missing: list[MissingRange] = []
        for bookie in ledger.bookies():
            target = self._pool.get(bookie)
            if target is None:
                continue
            try:
                held_entries = await list_held_entries(ledger, target)
            except DistributedLogError as error:
                log.info(
                    "ledger %d: bookie %s did not list its entries: %s",
                    ledger.ledger_id,
                    bookie,
                    error,
                )
                continue
            missing += _missing_ranges(ledger, bookie, held_entries)
        missing_ranges = merge_ranges(missing)
        if missing_ranges:
            await self._record_missing(item, ledger, missing_ranges)
        return missing_ranges

    async def _record_missing(
        self, item: KeyValue, ledger: LedgerMetadata, missing_ranges: tuple[MissingRange, ...]
    ) -> None:
        """Add missing ranges to those recorded, if no record changed since it was read."""
        key = keys.missing_ranges_key(ledger.ledger_id)
        before = await self._metadata.get(key)
        recorded = () if before is None else decode_missing_ranges(before.value)
        after = merge_ranges((*recorded, *missing_ranges))
        if after == merge_ranges(recorded):
            return
        unchanged = (
            Compare.mod_revision(item.key, item.mod_revision),
            Compare.mod_revision(key, 0 if before is None else before.mod_revision),
        )
        put = Put(key, encode_missing_ranges(after))
        if (await self._metadata.transact(Transaction(unchanged, (put,)))).succeeded:
            self.recorded_ledgers += 1
            bookies = ", ".join(sorted({missing.bookie for missing in missing_ranges}))
            AUDIT_FOUND.emit(
                log,
                "ledger %d: the audit found missing entries on %s",
                ledger.ledger_id,
                bookies,
                ledger=ledger.ledger_id,
                bookies=bookies,
            )


def _missing_ranges(
    ledger: LedgerMetadata, bookie: str, held_entries: EntryList
) -> list[MissingRange]:
    missing = list(islice(lacking_ranges(ledger, bookie, held_entries), MISSING_RANGES_MAX + 1))
    if len(missing) > MISSING_RANGES_MAX:
        assert ledger.last_entry is not None, "only closed ledgers are audited"
        return [
            MissingRange(bookie, missing[0].first, list_end(held_entries) or ledger.last_entry + 1)
        ]
    return [
        MissingRange(bookie, entry_range.first, entry_range.last + 1) for entry_range in missing
    ]
