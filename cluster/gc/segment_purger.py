"""The purger: whole segments below a log's truncation point go, some time after the point has passed them.

Logs that were truncated have a key ``purge/<log>``. How long a segment has been below is counted by this
process alone, from when it first saw it: no wall clock can make it delete early (H18), and a purger that
starts anew begins to count again. Readers below the point have the grace to learn of it in peace.
"""

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...log.model.log_keys import PURGE_PREFIX, log_id_of, purge_key, state_key
from ...log.model.log_state import LogState
from ...log.segments.segment_purge import last_below, purge
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
    """Removes truncated segments while this bookie is the elected one."""

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
        self._seen: dict[int, list[tuple[int, float]]] = {}
        """Log to (last segment below the point, when that was first seen), ascending."""
        self._held_up = BlockedWorkLog(log, "truncated logs are not purged yet")
        self.purged_segments = 0
        """Since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        # By the clock and not at each change: logs may be truncated many times a second.
        every_s = max(EVERY_S_MIN, self._grace_s / 2)
        while True:
            try:
                with self._failures.contained(UNIT, every_s=every_s):
                    if await self._election.elected():
                        await self.work()
                    else:
                        self._seen.clear()
            except DistributedLogError as error:
                log.warning("%s: %s; trying again", type(error).__name__, error)
            await trio.sleep(self._failures.wait_s(UNIT, every_s))

    async def work(self) -> None:
        """Look at every truncated log once, remove what is due."""
        listed: dict[int, None] = {}
        async for item in Scan(self._metadata, PURGE_PREFIX, limit=PAGE):
            unit = f"the purge of {item.key!r}"
            try:
                listed[log_id_of(item.key)] = None
                if self._failures.rests(unit):
                    continue
                with self._failures.contained(unit):
                    await self._look_at(item)
            except DistributedLogError as error:
                self._held_up.note(type(error).__name__, f"{item.key!r}: {error}")
        self._held_up.end_pass()
        self._seen = {log_id: seen for log_id, seen in self._seen.items() if log_id in listed}

    async def _look_at(self, item: KeyValue) -> None:
        log_id = log_id_of(item.key)
        found = await self._metadata.get(state_key(log_id))
        if found is None:
            await self._metadata.transact(Transaction((), (Delete(item.key),)))
            return
        last = await last_below(self._metadata, LogState.decode(found.value))
        if not last:
            await self._nothing_left(item, found)
            return
        now = trio.current_time()
        seen = self._seen.setdefault(log_id, [])
        if not seen or seen[-1][0] < last:
            seen.append((last, now))
        due = max((number for number, since in seen if now - since >= self._grace_s), default=0)
        if not due:
            return
        removed = await purge(self._metadata, log_id, due, self.deletion_share)
        self._seen[log_id] = [one for one in seen if one[0] > due]
        if removed:
            self.purged_segments += removed
            log.info("log %016x: %d truncated segments removed", log_id, removed)

    async def _nothing_left(self, item: KeyValue, state: KeyValue) -> None:
        """The key has had its use, unless the log is truncated further at this moment.

        A point inside a segment in progress may be after all of it in the end: that one is kept in view.
        """
        log_state = LogState.decode(state.value)
        point = log_state.truncated_to
        if point.segment in log_state.in_progress and (point.entry or point.slot):
            return
        await self._metadata.transact(
            Transaction(
                (
                    Compare.version(item.key, item.version),
                    Compare.version(state.key, state.version),
                ),
                (Delete(purge_key(log_id_of(item.key))),),
            )
        )

    async def deletion_share(self, ledger_id: int) -> Transaction:
        """The share that turns a ledger to DELETING, whoever it belongs to; empty where it is gone."""
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None:
            return Transaction()
        record = LedgerMetadata.decode(found.key, found.value)
        if record.state is LedgerState.DELETING:
            return Transaction()
        return transactions.deletion_ops(record, found.version)
