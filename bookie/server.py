"""Serves a store to connections: one session each, no task a request.

Within a turn of the loop fences and control come first, as they arrive; then adds, as they arrive; then
reads, by one task with a budget of bytes a turn; what is cold is read from the device by the store's own
readers. What waits is bounded: adds that find the ring full are kept by the connection, which is not read
on; reads of a peer that does not take its replies are parked until it does.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import islice

import trio

from ..runtime.interfaces.errors import DistributedLogError
from ..runtime.interfaces.host import Listener
from ..runtime.net.rpc import Endpoint
from .ledgers.ledger_existence import UNIT as LOOK_UPS
from .ledgers.ledger_existence import LedgerExistence, Standings
from .session.bookie_authorizer import BookieAuthorizer
from .session.bookie_session import BookieSession
from .session.read_scheduler import ReadScheduler
from .store.bookie_store import BookieStore

CHECK_AT_ONCE = 500
CHECK_GATHER_S = 0.5
"""What logs that open together make known is asked for together; nobody waits for the answer."""
CHECK_RETRY_S = 1.0

MissingLedgers = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Which of these ids, ascending, name no ledger."""


async def serve_bookie_protocol(
    endpoint: Endpoint,
    listeners: Mapping[str, Listener],
    store: BookieStore,
    *,
    gate: BookieAuthorizer | None = None,
    missing_ledgers: MissingLedgers | None = None,
    standings: Standings | None = None,
    registered: Callable[[], bool] = lambda: True,
    also: Callable[[], Mapping[str, object]] = dict,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, beside a running ``store``.

    ``registered``: is it known to the metadata now? ``gate``: who may do what; by default nobody is asked.
    ``also``: what the node says of itself beside the bookie, for `Op.INFO`.

    ``missing_ledgers`` is a linearizable look-up in the metadata: a ledger that an add makes known here and
    that does not exist there is removed again (H21). So is ``standings``, asked before an add makes a ledger
    known whose tombstone may have ended (H89).
    """
    async with trio.open_nursery() as nursery:
        turns = ReadScheduler(store.options, nursery)
        checks = gate or BookieAuthorizer(0.0, lambda: 0.0)

        def info() -> dict[str, object]:
            return {
                **store.info(),
                **checks.info(),
                **also(),
                "registered": registered(),
                "outgoing_bytes": turns.outgoing_bytes,
                **endpoint.info(),
            }

        keep = store.failures.keep
        nursery.start_soon(keep, "the turns of reads", turns.run)
        if missing_ledgers is not None:
            ledger_checks = LedgerChecks(store, missing_ledgers)
            nursery.start_soon(keep, "the check of new ledgers", ledger_checks.run)
        if standings is not None:
            look_ups = LedgerExistence(standings, store.failures)
            store.adds.use_look_up(look_ups.look_up)
            nursery.start_soon(keep, LOOK_UPS, look_ups.run)
        task_status.started()
        await endpoint.serve(
            listeners, lambda link: BookieSession(store, turns, checks, link, info)
        )


class LedgerChecks:
    """Asks for each ledger that an add made known here whether it exists, and removes what does not (H21).

    None is dropped unasked, however many wait: each is a ledger that the store holds in memory anyway, and
    its place here takes a fraction of that.
    """

    def __init__(self, store: BookieStore, missing_ledgers: MissingLedgers) -> None:
        self._store = store
        self._missing_ledgers = missing_ledgers
        self._unchecked: dict[int, None] = {}
        """In the order they became known."""
        self._wake = trio.Event()
        store.adds.subscribe(self._on_ledger_created)

    def _on_ledger_created(self, ledger_id: int) -> None:
        self._unchecked[ledger_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._unchecked:
                self._wake = trio.Event()
                await self._wake.wait()
            if len(self._unchecked) < CHECK_AT_ONCE:
                await trio.sleep(CHECK_GATHER_S)
            asked = sorted(islice(self._unchecked, CHECK_AT_ONCE))
            try:
                missing = await self._missing_ledgers(asked)
            except DistributedLogError:
                await trio.sleep(CHECK_RETRY_S)  # unknown is never "no"
                continue
            for ledger_id in asked:
                del self._unchecked[ledger_id]
            for ledger_id in missing:
                unit = f"the removal of ledger {ledger_id}, which does not exist"
                with self._store.failures.contained(unit) as attempt:
                    await self._store.delete_ledger(ledger_id)
                if attempt.failed:
                    self._unchecked[ledger_id] = None
                    await trio.sleep(self._store.failures.rest_s(unit))
