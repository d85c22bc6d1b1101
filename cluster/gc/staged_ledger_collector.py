"""The collector: segments that were written beside a log and that nobody has linked, all logs in turn (H13).

Gone at once is what its application has passed; the rest when it has been seen unlinked for `unlinked_s` by
this process's own time. Who links such a segment later is told that it is gone, and writes it again.
"""

from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.stored_ledger import StoredLedger, Unreadable
from ...log.model.log_keys import UNLINKED_PREFIX, ids_of_unlinked, txn_key
from ...log.segments.app_versions import AppVersion
from ...log.segments.staged_ledgers import StagedLedger, delete_staged
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import CorruptData, NoSuchLedger, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.gc_hold import ElectionStatus
from ..coordination.reconcile_loop import reconcile_periodically

PAGE = 500
EVERY_S = 300.0

log = get_logger("distributedlog.cluster.gc.staged_ledger_collector")


@dataclass(frozen=True, slots=True)
class LedgerRecordSource:
    """Ledgers' records straight from the store."""

    metadata: Metadata

    async def find(self, ledger_id: int) -> StoredLedger:
        """Raises `NoSuchLedger`, also for one that is being deleted."""
        found = await self.metadata.get(keys.ledger_key(ledger_id))
        record = None if found is None else LedgerMetadata.decode(found.key, found.value)
        if found is None or record is None or record.state is LedgerState.DELETING:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return StoredLedger(record, found.version)


class StagedLedgerCollector:
    """Deletes unlinked segments while this bookie is the elected one."""

    def __init__(
        self,
        metadata: Metadata,
        election: ElectionStatus,
        *,
        unlinked_s: float,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._election = election
        self._unlinked_s = unlinked_s
        self._seen: dict[bytes, float] = {}
        self._unreadable = Unreadable()
        self.collected_ledgers = 0
        """Since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        await reconcile_periodically(
            self._election,
            self.work,
            lambda: self._seen.clear(),
            every_s=min(EVERY_S, self._unlinked_s / 2),
            said_by=log,
            failures=self._failures,
            unit="collection of unlinked segments",
        )

    async def work(self) -> None:
        """Look at every unlinked segment once."""
        now, seen = trio.current_time(), {}
        async for item in Scan(self._metadata, UNLINKED_PREFIX, limit=PAGE):
            since = self._seen.get(item.key, now)
            unit = f"the collection of {item.key!r}"
            if self._failures.rests(unit):
                seen[item.key] = since
                continue
            try:
                with self._failures.contained(unit, every_s=EVERY_S) as attempt:
                    if now - since >= self._unlinked_s or await self._passed(item):
                        await self._delete(item)
                    else:
                        seen[item.key] = since
                if attempt.failed:
                    seen[item.key] = since
            except (CorruptData, UnsupportedFormat) as error:
                self._unreadable.note(item.key, error)
        self._seen = seen

    async def _passed(self, item: KeyValue) -> bool:
        """Has its application linked this version, or a later one?"""
        unlinked = StagedLedger.decode(item.value)
        if not unlinked.app:
            return False
        note = await self._metadata.get(txn_key(ids_of_unlinked(item.key)[0], unlinked.app))
        return note is not None and AppVersion.decode(note.value).version >= unlinked.version

    async def _delete(self, item: KeyValue) -> None:
        log_id, ledger_id = ids_of_unlinked(item.key)
        if await delete_staged(
            self._metadata, LedgerRecordSource(self._metadata), log_id, ledger_id
        ):
            self.collected_ledgers += 1
            log.info("log %016x: unlinked ledger %d deleted", log_id, ledger_id)
