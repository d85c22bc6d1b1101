"""Delete staged segments: those that were written separately and never linked to their log (H13).

A segment is deleted at once if its application has linked the same or a later version. Any other segment is
deleted after this process has observed it for `unlinked_s` without a link. A later attempt to link it fails
with an error, and the application writes it again.
"""

from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.stored_ledger import StoredLedger, UnreadableRecords
from ...log.model.log_keys import STAGED_PREFIX, app_version_key, parse_staged_key
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
    """Reads the records of ledgers from the metadata store."""

    metadata: Metadata

    async def find(self, ledger_id: int) -> StoredLedger:
        """Return a ledger's record and version.

        Raises:
            NoSuchLedger: The ledger does not exist, or is being deleted.
        """
        item = await self.metadata.get(keys.ledger_key(ledger_id))
        record = None if item is None else LedgerMetadata.decode(item.key, item.value)
        if item is None or record is None or record.state is LedgerState.DELETING:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return StoredLedger(record, item.version)


class StagedLedgerCollector:
    """Deletes unlinked segments while this bookie is elected."""

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
        self._staged_since: dict[bytes, float] = {}
        self._unreadable = UnreadableRecords()
        self.collected_ledgers = 0
        """Since the start."""

    async def run(self) -> None:
        """Delete segments until cancelled."""
        await reconcile_periodically(
            self._election,
            self.run_pass,
            lambda: self._staged_since.clear(),
            every_s=min(EVERY_S, self._unlinked_s / 2),
            logger=log,
            failures=self._failures,
            unit="collection of unlinked segments",
        )

    async def run_pass(self) -> None:
        """Check every unlinked segment once."""
        now, staged_since = trio.current_time(), {}
        async for item in Scan(self._metadata, STAGED_PREFIX, limit=PAGE):
            since = self._staged_since.get(item.key, now)
            unit = f"the collection of {item.key!r}"
            if self._failures.is_waiting(unit):
                staged_since[item.key] = since
                continue
            try:
                with self._failures.attempt(unit, every_s=EVERY_S) as attempt:
                    if now - since >= self._unlinked_s or await self._is_superseded(item):
                        await self._delete(item)
                    else:
                        staged_since[item.key] = since
                if attempt.failed:
                    staged_since[item.key] = since
            except (CorruptData, UnsupportedFormat) as error:
                self._unreadable.log_once(item.key, error)
        self._staged_since = staged_since

    async def _is_superseded(self, item: KeyValue) -> bool:
        """Whether the application of a segment has linked its version or a later one."""
        staged = StagedLedger.decode(item.value)
        if not staged.app:
            return False
        version_item = await self._metadata.get(
            app_version_key(parse_staged_key(item.key)[0], staged.app)
        )
        return (
            version_item is not None
            and AppVersion.decode(version_item.value).version >= staged.version
        )

    async def _delete(self, item: KeyValue) -> None:
        log_id, ledger_id = parse_staged_key(item.key)
        if await delete_staged(
            self._metadata, LedgerRecordSource(self._metadata), log_id, ledger_id
        ):
            self.collected_ledgers += 1
            log.info("log %016x: unlinked ledger %d deleted", log_id, ledger_id)
