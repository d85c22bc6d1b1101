"""Ledger records read and followed: one watch a ledger, however many readers it has in this process."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ...metadata.client.range_watch import follow_range
from ...metadata.model.interface import Metadata, WatchBatch
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..model.ledger_keys import ledger_key
from ..model.ledger_metadata import LedgerMetadata

RETRY_S = 0.5

log = get_logger("distributedlog.ledger")

OnRecord = Callable[[LedgerMetadata | None], None]
"""Gets the record as it is now; None: the ledger was deleted."""


@dataclass(slots=True)
class _Follower:
    scope: trio.CancelScope
    callbacks: list[OnRecord] = field(default_factory=list)


class LedgerWatch:
    """Reads records, and follows those that somebody holds open."""

    def __init__(self, metadata: Metadata, failures: WorkFailures) -> None:
        self._metadata = metadata
        self._failures = failures
        self._followers: dict[int, _Follower] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def get(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """The record and its version; None where there is none."""
        item = await self._metadata.get(ledger_key(ledger_id))
        return None if item is None else (LedgerMetadata.decode(item.key, item.value), item.version)

    def subscribe(self, ledger_id: int, callback: OnRecord) -> Callable[[], None]:
        """Tell ``callback`` the record as it is soon, and after each change; return how to stop that."""
        follower = self._followers.get(ledger_id)
        if follower is None:
            assert self._nursery is not None, "records are followed while `run` runs"
            follower = self._followers[ledger_id] = _Follower(trio.CancelScope())
            unit = f"the watch of ledger {ledger_id}"
            self._nursery.start_soon(
                self._failures.keep_running, unit, self._watch_ledger, ledger_id, follower
            )
        follower.callbacks.append(callback)

        def stop() -> None:
            if callback in follower.callbacks:
                follower.callbacks.remove(callback)
            if not follower.callbacks and self._followers.get(ledger_id) is follower:
                del self._followers[ledger_id]
                follower.scope.cancel()

        return stop

    async def _watch_ledger(self, ledger_id: int, follower: _Follower) -> None:
        key = ledger_key(ledger_id)

        async def load() -> int:
            page = await self._metadata.range(key, key + b"\0", limit=1)
            self._notify_readers(follower, key, page.items[0].value if page.items else None)
            return page.revision

        def apply(batch: WatchBatch) -> None:
            newest = batch.events[-1]
            value = newest.item.value if newest.kind == "put" else None
            self._notify_readers(follower, key, value)

        with follower.scope:
            await follow_range(
                self._metadata,
                key,
                key + b"\0",
                load=load,
                apply=apply,
                on_error=lambda error: log.info(
                    "the metadata of ledger %d cannot be read: %s", ledger_id, error
                ),
                retry_s=RETRY_S,
            )

    def _notify_readers(self, follower: _Follower, key: bytes, value: bytes | None) -> None:
        record = None if value is None else LedgerMetadata.decode(key, value)
        for callback in list(follower.callbacks):
            try:
                callback(record)
            except Exception:  # a rule that one reader breaks is not the others' end
                log.exception("%r: a reader broke a rule as it was told of the record", key)
