"""Merging, at one elected bookie: small segments of logs that want it share a ledger; what that leaves goes.

Which logs have the switch ``merging`` is read anew each pass, from their settings and their namespace's.
Each of them gets one merge a pass at most, once `SEGMENTS_MIN` small segments lie side by side behind the
newest ones (`distributedlog/log/segments/segment_merge.py`). The ledgers that were left are deleted when they
have been seen so for `RETIRED_S` of this process's own time: readers and plans that know no better have so
long, and one that takes longer resolves its segments anew.

Merging does not pause during repair. No seed of the simulator and no test on Spark uses it.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import trio

from ...log.model.log_keys import RETIRED_PREFIX, decode_log_id, name_key
from ...log.model.stored_settings import (
    BIND_PREFIX,
    CONF_PREFIX,
    StoredSettings,
    merging_of,
    retention_of,
)
from ...log.segments.replaced_ledgers import DeletionOps, delete_replaced
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    LogNotFound,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.gc_hold import ElectionStatus
from ..coordination.reconcile_loop import reconcile_periodically
from .staged_ledger_collector import LedgerRecordSource

EVERY_S = 60.0
RETIRED_S = 3600.0
SEGMENTS_MIN = 32
"""Fewer are left until there are more: what is merged is not merged again."""
NEWEST_KEPT = 8
SPAN_SHARE = 8
"""Of a log's ``retention_s``: segments that share a ledger go with the last one of them."""
PAGE = 500

log = get_logger("distributedlog.cluster.gc.segment_merger")


class Merge(Protocol):
    """Merges segments of one log; how many were. `log.merge.compact` with its context."""

    def __call__(
        self,
        log_id: int,
        *,
        newest_kept: int,
        segments_min: int,
        span_ms: int | None,
        merges_max: int,
    ) -> Awaitable[int]:
        """See there."""
        ...


OpenMerging = Callable[[], AbstractAsyncContextManager[Merge]]
"""Opens what that takes, for as long as it is needed."""


class SegmentMerger:
    """Merges small segments, and deletes what merges have left, while this bookie is the elected one."""

    def __init__(
        self,
        metadata: Metadata,
        election: ElectionStatus,
        deletion_share: DeletionOps,
        *,
        opening: OpenMerging,
        retired_s: float = RETIRED_S,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._election = election
        self._deletion_share = deletion_share
        self._opening = opening
        self._retired_s = retired_s
        self._seen: dict[bytes, float] = {}
        """Since when a ledger was seen left, by our own time."""
        self._held_up = BlockedWorkLog(log, "logs or ledgers are passed over by merging")
        self.merged_segments = 0
        """Since the start."""
        self.deleted_ledgers = 0
        """That merges had left; since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        await reconcile_periodically(
            self._election,
            self.work,
            lambda: self._seen.clear(),
            every_s=EVERY_S,
            said_by=log,
            failures=self._failures,
            unit="merging of segments",
        )

    async def work(self) -> None:
        """One pass."""
        await self._delete_due()
        wanted = await self._wanted()
        if wanted:
            async with self._opening() as merge:
                for log_id, span_ms in wanted.items():
                    await self._merge(merge, log_id, span_ms)
        self._held_up.end_pass()

    async def _merge(self, merge: Merge, log_id: int, span_ms: int | None) -> None:
        unit = f"the merging of log {log_id:016x}"
        if self._failures.rests(unit):
            return
        try:
            with self._failures.contained(unit):
                self.merged_segments += await merge(
                    log_id,
                    newest_kept=NEWEST_KEPT,
                    segments_min=SEGMENTS_MIN,
                    span_ms=span_ms,
                    merges_max=1,
                )
        except LogNotFound:
            return
        except (
            DistributedLogError
        ) as error:  # bookies are away, a copy is rotten: nothing was changed
            self._held_up.note(type(error).__name__, f"log {log_id:016x}: {error}")

    # --- which logs -------------------------------------------------------------------------------

    async def _wanted(self) -> dict[int, int | None]:
        """The logs with the switch on, and how far apart members of theirs may have been closed, ms."""
        own: dict[int, StoredSettings | None] = {}
        async for item in Scan(self._metadata, CONF_PREFIX, limit=PAGE):
            with suppress(CorruptData):
                own[decode_log_id(item.key.removeprefix(CONF_PREFIX))] = self._decoded(item)
        wanted: dict[int, int | None] = {}
        for log_id, conf in own.items():
            with self._failures.contained(_settings_unit(log_id)):
                _want(wanted, log_id, StoredSettings(), conf)
        async for item in Scan(self._metadata, BIND_PREFIX, limit=PAGE):
            bind = self._decoded(item)
            if bind is None:
                continue
            start = name_key(item.key.removeprefix(BIND_PREFIX).decode(errors="replace"), "")
            async for name in Scan(self._metadata, start, limit=PAGE):
                with suppress(CorruptData):
                    log_id = decode_log_id(name.value)
                    with self._failures.contained(_settings_unit(log_id)):
                        _want(wanted, log_id, bind, own.get(log_id, StoredSettings()))
        return wanted

    def _decoded(self, item: KeyValue) -> StoredSettings | None:
        """None: it cannot be read, and nothing is done by it."""
        try:
            with self._failures.contained(f"the settings {item.key!r}"):
                return StoredSettings.decode(item.value)
        except (CorruptData, UnsupportedFormat) as error:
            self._held_up.note(type(error).__name__, f"{item.key!r}: {error}")
        return None

    # --- what merges have left --------------------------------------------------------------------

    async def _delete_due(self) -> None:
        now, seen = trio.current_time(), {}
        async for item in Scan(self._metadata, RETIRED_PREFIX, limit=PAGE):
            since = self._seen.get(item.key, now)
            if now - since < self._retired_s:
                seen[item.key] = since
                continue
            unit = f"the deletion of a merged ledger, {item.key!r}"
            if self._failures.rests(unit):
                seen[item.key] = since
                continue
            try:
                with self._failures.contained(unit) as attempt:
                    if await delete_replaced(
                        self._metadata,
                        LedgerRecordSource(self._metadata),
                        self._deletion_share,
                        item,
                    ):
                        self.deleted_ledgers += 1
                if attempt.failed:
                    seen[item.key] = since
            except (CorruptData, UnsupportedFormat) as error:
                self._held_up.note(type(error).__name__, f"{item.key!r}: {error}")
        self._seen = seen


def _settings_unit(log_id: int) -> str:
    return f"the merging settings of log {log_id:016x}"


def _want(
    wanted: dict[int, int | None], log_id: int, bind: StoredSettings, own: StoredSettings | None
) -> None:
    if own is None or not merging_of(bind, own).merging:
        wanted.pop(log_id, None)
        return
    rule = retention_of(bind, own)
    wanted[log_id] = rule.retention_ms // SPAN_SHARE if rule.retention_s else None
