"""Read and watch ledger records, with one watch per ledger for all its readers in this process."""

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
"""Receives the current record; None if the ledger was deleted."""


@dataclass(slots=True)
class _Follower:
    scope: trio.CancelScope
    callbacks: list[OnRecord] = field(default_factory=list)


class LedgerWatch:
    """Reads ledger records, and watches those that have subscribers."""

    def __init__(self, metadata: Metadata, failures: WorkFailures) -> None:
        self._metadata = metadata
        self._failures = failures
        self._followers: dict[int, _Follower] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the watches until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def get(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """Return the record and its version; None if there is no record."""
        item = await self._metadata.get(ledger_key(ledger_id))
        return None if item is None else (LedgerMetadata.decode(item.key, item.value), item.version)

    def subscribe(self, ledger_id: int, callback: OnRecord) -> Callable[[], None]:
        """Call ``callback`` with the current record and after each change.

        Returns:
            A function that stops this.
        """
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
            except Exception:  # an invariant violation of one reader must not end the others
                log.exception("%r: a reader violated an invariant when it received the record", key)
