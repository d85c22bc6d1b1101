"""Delete whole segments before a log's truncation point, some time after the point has passed them.

Truncated logs have a key ``purge/<log>``. This process measures how long a segment has been before the point,
starting when it first observes it. So a wrong wall clock cannot cause an early deletion (H18), and a purger
that restarts begins to measure again. The delay lets readers before the point receive the truncation first.
"""

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import PURGE_PREFIX, parse_purge_key, purge_key, state_key
from ...log.model.log_state import LogState
from ...log.segments.segment_purge import last_purgeable_segment, purge
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Transaction
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.gc_hold import ElectionStatus

PAGE = 500
EVERY_S_MIN = 1.0
UNIT = "purging of truncated segments"

log = get_logger("distributedlog.cluster.gc.segment_purger")


class SegmentPurger:
    """Deletes truncated segments while this bookie is elected."""

    def __init__(
        self,
        metadata: Metadata,
        election: ElectionStatus,
        *,
        grace_s: float,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._election = election
        self._grace_s = grace_s
        self._truncated_since: dict[int, list[tuple[int, float]]] = {}
        """By log: (last segment before the point, when that was first observed), in ascending order."""
        self._blocked_work = BlockedWorkLog(log, "truncated logs are not purged yet")
        self.purged_segments = 0
        """Since the start."""

    async def run(self) -> None:
        """Delete segments until cancelled."""
        # Runs on a timer, not on each change, because logs may be truncated many times per second.
        every_s = max(EVERY_S_MIN, self._grace_s / 2)
        while True:
            try:
                with self._failures.attempt(UNIT, every_s=every_s):
                    if await self._election.is_elected():
                        await self.run_pass()
                    else:
                        self._truncated_since.clear()
            except DistributedLogError as error:
                log.warning("%s: %s; trying again", type(error).__name__, error)
            await trio.sleep(self._failures.next_try_s(UNIT, every_s))

    async def run_pass(self) -> None:
        """Check every truncated log once, and delete the segments that are due."""
        truncated_logs: dict[int, None] = {}
        async for item in Scan(self._metadata, PURGE_PREFIX, limit=PAGE):
            unit = f"the purge of {item.key!r}"
            try:
                truncated_logs[parse_purge_key(item.key)] = None
                if self._failures.is_waiting(unit):
                    continue
                with self._failures.attempt(unit):
                    await self._check_log(item)
            except DistributedLogError as error:
                self._blocked_work.record(type(error).__name__, f"{item.key!r}: {error}")
        self._blocked_work.end_pass()
        self._truncated_since = {
            log_id: truncations
            for log_id, truncations in self._truncated_since.items()
            if log_id in truncated_logs
        }

    async def _check_log(self, item: KeyValue) -> None:
        log_id = parse_purge_key(item.key)
        state_item = await self._metadata.get(state_key(log_id))
        if state_item is None:
            await self._metadata.transact(Transaction((), (Delete(item.key),)))
            return
        last = await last_purgeable_segment(self._metadata, LogState.decode(state_item.value))
        if not last:
            await self._remove_purge_key(item, state_item)
            return
        now = trio.current_time()
        truncations = self._truncated_since.setdefault(log_id, [])
        if not truncations or truncations[-1][0] < last:
            truncations.append((last, now))
        last_due = max(
            (number for number, since in truncations if now - since >= self._grace_s), default=0
        )
        if not last_due:
            return
        removed = await purge(self._metadata, log_id, last_due, self.deletion_ops_of)
        self._truncated_since[log_id] = [
            truncation for truncation in truncations if truncation[0] > last_due
        ]
        if removed:
            self.purged_segments += removed
            log.info("log %016x: %d truncated segments removed", log_id, removed)

    async def _remove_purge_key(self, item: KeyValue, state_item: KeyValue) -> None:
        """Delete the purge key of a log, unless the log is truncated further at this moment.

        The key stays if the point is inside a segment in progress: that segment may end before the point.
        """
        log_state = LogState.decode(state_item.value)
        truncated_to = log_state.truncated_to
        if truncated_to.segment in log_state.in_progress and (
            truncated_to.entry or truncated_to.slot
        ):
            return
        await self._metadata.transact(
            Transaction(
                (
                    Compare.version(item.key, item.version),
                    Compare.version(state_item.key, state_item.version),
                ),
                (Delete(purge_key(parse_purge_key(item.key))),),
            )
        )

    async def deletion_ops_of(self, ledger_id: int) -> Transaction:
        """Return the operations that mark a ledger as DELETING; none if it does not exist."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return Transaction()
        record = LedgerMetadata.decode(item.key, item.value)
        if record.state is LedgerState.DELETING:
            return Transaction()
        return transactions.deletion_ops(record, item.version)
