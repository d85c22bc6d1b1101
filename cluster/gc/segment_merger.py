"""Merge small segments of logs into shared ledgers on one elected bookie, and delete the replaced ledgers.

In each pass, the logs with the setting ``merging`` are read again from the settings of logs and namespaces.
Each of them gets at most one merge per pass, when `SEGMENTS_MIN` small segments are adjacent before the
newest ones (`distributedlog/log/segments/segment_merge.py`). The replaced ledgers are deleted after this
process has observed them as replaced for `REPLACED_S`. Readers and query plans can use the old ledgers for
this time. A reader that takes longer looks up its segments again.

Merging does not pause during repair. No seed of the simulator and no test on Spark uses it.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import trio

from ...log.model.log_keys import REPLACED_PREFIX, decode_log_id, name_key
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
REPLACED_S = 3600.0
SEGMENTS_MIN = 32
"""Fewer segments wait for more, because merged segments are not merged again."""
NEWEST_KEPT = 8
SPANS_PER_RETENTION = 8
"""Limits how far apart merged segments were closed, as a part of ``retention_s``.

A shared ledger is deleted with its last segment.
"""
PAGE = 500

log = get_logger("distributedlog.cluster.gc.segment_merger")


class Merge(Protocol):
    """Merges segments of one log: `merge_segments` with its context."""

    def __call__(
        self,
        log_id: int,
        *,
        newest_kept: int,
        segments_min: int,
        span_ms: int | None,
        merges_max: int,
    ) -> Awaitable[int]:
        """Merge, and return the number of merged segments."""
        ...


OpenMerger = Callable[[], AbstractAsyncContextManager[Merge]]
"""Opens a `Merge` with its clients for the time of its use."""


class SegmentMerger:
    """Merges small segments and deletes replaced ledgers, while this bookie is elected."""

    def __init__(
        self,
        metadata: Metadata,
        election: ElectionStatus,
        deletion_ops: DeletionOps,
        *,
        open_merger: OpenMerger,
        replaced_s: float = REPLACED_S,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._election = election
        self._deletion_ops = deletion_ops
        self._open_merger = open_merger
        self._replaced_s = replaced_s
        self._replaced_since: dict[bytes, float] = {}
        """When a ledger was first observed as replaced, by the monotonic clock."""
        self._blocked_work = BlockedWorkLog(log, "logs or ledgers are skipped by merging")
        self.merged_segments = 0
        """Since the start."""
        self.deleted_ledgers = 0
        """Ledgers that merges had replaced; since the start."""

    async def run(self) -> None:
        """Merge and delete until cancelled."""
        await reconcile_periodically(
            self._election,
            self.run_pass,
            lambda: self._replaced_since.clear(),
            every_s=EVERY_S,
            logger=log,
            failures=self._failures,
            unit="merging of segments",
        )

    async def run_pass(self) -> None:
        """Delete the replaced ledgers that are due, and merge each log once."""
        await self._delete_replaced()
        log_spans = await self._logs_to_merge()
        if log_spans:
            async with self._open_merger() as merge:
                for log_id, span_ms in log_spans.items():
                    await self._merge(merge, log_id, span_ms)
        self._blocked_work.end_pass()

    async def _merge(self, merge: Merge, log_id: int, span_ms: int | None) -> None:
        unit = f"the merging of log {log_id:016x}"
        if self._failures.is_waiting(unit):
            return
        try:
            with self._failures.attempt(unit):
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
        ) as error:  # unavailable bookies, a corrupt copy: nothing was changed
            self._blocked_work.record(type(error).__name__, f"log {log_id:016x}: {error}")

    # --- which logs -------------------------------------------------------------------------------

    async def _logs_to_merge(self) -> dict[int, int | None]:
        """Return the logs with merging, and the longest time between the closing of merged segments in ms."""
        own_settings: dict[int, StoredSettings | None] = {}
        async for item in Scan(self._metadata, CONF_PREFIX, limit=PAGE):
            with suppress(CorruptData):
                own_settings[decode_log_id(item.key.removeprefix(CONF_PREFIX))] = (
                    self._decode_settings(item)
                )
        log_spans: dict[int, int | None] = {}
        for log_id, log_settings in own_settings.items():
            with self._failures.attempt(_settings_unit(log_id)):
                _add_if_merging(log_spans, log_id, StoredSettings(), log_settings)
        async for item in Scan(self._metadata, BIND_PREFIX, limit=PAGE):
            namespace_settings = self._decode_settings(item)
            if namespace_settings is None:
                continue
            start = name_key(item.key.removeprefix(BIND_PREFIX).decode(errors="replace"), "")
            async for name_item in Scan(self._metadata, start, limit=PAGE):
                with suppress(CorruptData):
                    log_id = decode_log_id(name_item.value)
                    with self._failures.attempt(_settings_unit(log_id)):
                        _add_if_merging(
                            log_spans,
                            log_id,
                            namespace_settings,
                            own_settings.get(log_id, StoredSettings()),
                        )
        return log_spans

    def _decode_settings(self, item: KeyValue) -> StoredSettings | None:
        """Return the settings; None if they are unreadable, so that nothing is merged by them."""
        try:
            with self._failures.attempt(f"the settings {item.key!r}"):
                return StoredSettings.decode(item.value)
        except (CorruptData, UnsupportedFormat) as error:
            self._blocked_work.record(type(error).__name__, f"{item.key!r}: {error}")
        return None

    # --- replaced ledgers -------------------------------------------------------------------------

    async def _delete_replaced(self) -> None:
        now, replaced_since = trio.current_time(), {}
        async for item in Scan(self._metadata, REPLACED_PREFIX, limit=PAGE):
            since = self._replaced_since.get(item.key, now)
            if now - since < self._replaced_s:
                replaced_since[item.key] = since
                continue
            unit = f"the deletion of a merged ledger, {item.key!r}"
            if self._failures.is_waiting(unit):
                replaced_since[item.key] = since
                continue
            try:
                with self._failures.attempt(unit) as attempt:
                    if await delete_replaced(
                        self._metadata,
                        LedgerRecordSource(self._metadata),
                        self._deletion_ops,
                        item,
                    ):
                        self.deleted_ledgers += 1
                if attempt.failed:
                    replaced_since[item.key] = since
            except (CorruptData, UnsupportedFormat) as error:
                self._blocked_work.record(type(error).__name__, f"{item.key!r}: {error}")
        self._replaced_since = replaced_since


def _settings_unit(log_id: int) -> str:
    return f"the merging settings of log {log_id:016x}"


def _add_if_merging(
    log_spans: dict[int, int | None],
    log_id: int,
    namespace_settings: StoredSettings,
    log_settings: StoredSettings | None,
) -> None:
    if log_settings is None or not merging_of(namespace_settings, log_settings).merging:
        log_spans.pop(log_id, None)
        return
    retention = retention_of(namespace_settings, log_settings)
    log_spans[log_id] = (
        retention.retention_ms // SPANS_PER_RETENTION if retention.retention_s else None
    )
