"""Serves a store to connections: one session each, no task a request.

Within a turn of the loop fences and control come first, as they arrive; then adds, as they arrive; then
reads, by one task with a budget of bytes a turn; what is cold is read from the device by the store's own
readers. What waits is bounded: adds that find the ring full are kept by the connection, which is not read
on; reads of a peer that does not take its replies are parked until it does.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import trio

from ..runtime.errors import DistributedLogError
from ..runtime.host import Listener
from ..runtime.rpc import Endpoint
from .read_turns import ReadTurns
from .session import BookieSession
from .store import Store

CHECK_LEDGERS_MAX = 10_000
CHECK_RETRY_S = 1.0

LedgerExists = Callable[[int], Awaitable[bool]]


async def serve_bookie_protocol(
    endpoint: Endpoint,
    listeners: Mapping[str, Listener],
    store: Store,
    *,
    ledger_exists: LedgerExists | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, beside a running ``store``.

    ``ledger_exists`` is a linearizable look-up in the metadata: a ledger that an add makes known here and
    that does not exist there is removed again (H21).
    """
    async with trio.open_nursery() as nursery:
        turns = ReadTurns(store.options, nursery)

        def info() -> dict[str, object]:
            return {
                **store.info(),
                "outgoing_bytes": turns.outgoing_bytes,
                "refused": sum(endpoint.refusals.counts.values()),
            }

        nursery.start_soon(turns.run)
        if ledger_exists is not None:
            nursery.start_soon(LedgerChecks(store, ledger_exists).run)
        task_status.started()
        await endpoint.serve(listeners, lambda link: BookieSession(store, turns, link, info))


class LedgerChecks:
    """Asks for each ledger that an add made known here whether it exists, and removes what does not (H21)."""

    def __init__(self, store: Store, ledger_exists: LedgerExists) -> None:
        self._store = store
        self._ledger_exists = ledger_exists
        self._unchecked: deque[int] = deque(maxlen=CHECK_LEDGERS_MAX)
        self._wake = trio.Event()
        store.adds.on_ledger_created = self._on_ledger_created

    def _on_ledger_created(self, ledger_id: int) -> None:
        self._unchecked.append(ledger_id)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._unchecked:
                self._wake = trio.Event()
                await self._wake.wait()
            ledger_id = self._unchecked[0]
            try:
                exists = await self._ledger_exists(ledger_id)
            except DistributedLogError:
                await trio.sleep(CHECK_RETRY_S)  # unknown is never "no"
                continue
            self._unchecked.popleft()
            if not exists:
                await self._store.delete_ledger(ledger_id)
