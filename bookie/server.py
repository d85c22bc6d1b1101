"""Serve a store to connections, with one session per connection and no task per request.

In one event-loop iteration, fences and control requests are handled first, on arrival, then adds, on arrival.
One task then serves reads, with a byte limit per iteration. The store's reader tasks read from the device the
data that is not in memory.

Waiting requests are limited. If the journal buffer is full, the connection keeps its adds and receives no
further frames. Reads of a peer that does not receive its replies wait until it does.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import islice

import trio

from ..runtime.interfaces.errors import DistributedLogError
from ..runtime.interfaces.host import Listener
from ..runtime.net.rpc import Endpoint
from .ledgers.ledger_existence import FAILURE_UNIT as LOOK_UPS
from .ledgers.ledger_existence import LedgerExistence, QueryLedgerStatuses
from .session.bookie_authorizer import BookieAuthorizer
from .session.bookie_session import BookieSession
from .session.read_scheduler import ReadScheduler
from .store.bookie_store import BookieStore

CHECKED_LEDGERS_MAX = 500
CHECK_GATHER_S = 0.5
"""New ledgers of logs that open at the same time are checked in one query. No request waits for
the result."""
CHECK_RETRY_S = 1.0

FindMissingLedgers = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Return those of the ascending ledger IDs that do not exist in the metadata."""


async def serve_bookie_protocol(
    endpoint: Endpoint,
    listeners: Mapping[str, Listener],
    store: BookieStore,
    *,
    authorizer: BookieAuthorizer | None = None,
    missing_ledgers: FindMissingLedgers | None = None,
    ledger_statuses: QueryLedgerStatuses | None = None,
    is_registered: Callable[[], bool] = lambda: True,
    node_info: Callable[[], Mapping[str, object]] = dict,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the store to connections until cancelled.

    Args:
        endpoint: The endpoint that accepts the connections.
        listeners: The open listeners, by name.
        store: The store, which the caller runs.
        authorizer: Authorizes requests. By default, only the stored keys of ledgers are checked.
        missing_ledgers: A linearizable query of the metadata. A ledger that an add creates here and that does
            not exist in the metadata is removed again (H21). By default, there is no such check.
        ledger_statuses: A linearizable query of the statuses of ledgers, made before an add creates a ledger
            whose tombstone may have been removed (H89). By default, there is no such query.
        is_registered: Whether the bookie is registered in the metadata now.
        node_info: Returns more values of the node for `Op.INFO`.
        task_status: Reports that serving starts.
    """
    async with trio.open_nursery() as nursery:
        read_scheduler = ReadScheduler(store.options, nursery)
        active_authorizer = authorizer or BookieAuthorizer(0.0, lambda: 0.0)

        def info() -> dict[str, object]:
            return {
                **store.info(),
                **active_authorizer.info(),
                **node_info(),
                "registered": is_registered(),
                "outgoing_bytes": read_scheduler.outgoing_bytes,
                **endpoint.info(),
            }

        keep_running = store.failures.keep_running
        nursery.start_soon(keep_running, "serving reads", read_scheduler.run)
        if missing_ledgers is not None:
            ledger_checks = NewLedgerCheck(store, missing_ledgers)
            nursery.start_soon(keep_running, "the check of new ledgers", ledger_checks.run)
        if ledger_statuses is not None:
            existence = LedgerExistence(ledger_statuses, store.failures)
            store.add_handler.set_lookup(existence.lookup)
            nursery.start_soon(keep_running, LOOK_UPS, existence.run)
        task_status.started()
        await endpoint.serve(
            listeners,
            lambda link: BookieSession(store, read_scheduler, active_authorizer, link, info),
        )


class NewLedgerCheck:
    """Query whether each ledger that an add created here exists, and remove it otherwise (H21).

    The queue has no limit, so every ledger is checked. The store has each of these ledgers in memory anyway,
    and an item of the queue is much smaller.
    """

    def __init__(self, store: BookieStore, missing_ledgers: FindMissingLedgers) -> None:
        self._store = store
        self._missing_ledgers = missing_ledgers
        self._unchecked: dict[int, None] = {}
        """The IDs of ledgers to check, in the order of their creation here."""
        self._wake = trio.Event()
        store.add_handler.subscribe(self._on_ledger_created)

    def _on_ledger_created(self, ledger_id: int) -> None:
        self._unchecked[ledger_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Check new ledgers until cancelled."""
        while True:
            if not self._unchecked:
                self._wake = trio.Event()
                await self._wake.wait()
            if len(self._unchecked) < CHECKED_LEDGERS_MAX:  # wait for more of them
                await trio.sleep(CHECK_GATHER_S)
            ledger_ids = sorted(islice(self._unchecked, CHECKED_LEDGERS_MAX))
            try:
                missing = await self._missing_ledgers(ledger_ids)
            except DistributedLogError:
                await trio.sleep(CHECK_RETRY_S)  # an error does not prove absence
                continue
            # Before the removals: an add may create one of these ledgers again, which is then checked again.
            for ledger_id in ledger_ids:
                del self._unchecked[ledger_id]
            for ledger_id in missing:
                unit = f"the removal of ledger {ledger_id}, which does not exist"
                with self._store.failures.attempt(unit) as attempt:
                    await self._store.delete_ledger(ledger_id)
                if attempt.failed:
                    self._unchecked[ledger_id] = None
                    await trio.sleep(self._store.failures.retry_delay_s(unit))
