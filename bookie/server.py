"""Serves a store to connections: one session each, no task a request.

Within a turn of the loop fences and control come first, as they arrive; then adds, as they arrive; then
reads, by one task with a budget of bytes a turn; what is cold is read from the device by the store's own
readers. What waits is bounded: adds that find the ring full are kept by the connection, which is not read
on; reads of a peer that does not take its replies are parked until it does.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import trio

from ..runtime.errors import (
    DistributedLogError,
)
from ..runtime.host import Listener
from ..runtime.refusals import Refusals
from ..runtime.rpc import Endpoint, Link
from .session import BookieSession
from .session_reads import READ_TURN_BYTES, SessionReads
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
    server = BookieServer(store, ledger_exists, endpoint.refusals)
    async with trio.open_nursery() as nursery:
        server.nursery = nursery
        nursery.start_soon(server.serve_reads)
        if ledger_exists is not None:
            nursery.start_soon(server.check_ledgers)
        task_status.started()
        await endpoint.serve(listeners, server.session)


class BookieServer:
    """What the sessions of a bookie share: the store, the queue of reads, budgets."""

    nursery: trio.Nursery

    def __init__(
        self, store: Store, ledger_exists: LedgerExists | None, refusals: Refusals | None = None
    ) -> None:
        self.store = store
        self._refusals = refusals if refusals is not None else Refusals()
        self.options = store.options
        self.deferred_bytes = 0
        self._replying: dict[SessionReads, None] = {}
        self._outgoing_sum = 0
        self._ready: deque[SessionReads] = deque()
        self._wake = trio.Event()
        self._ledger_exists = ledger_exists
        self._unchecked: deque[int] = deque(maxlen=CHECK_LEDGERS_MAX)
        self._check_wake = trio.Event()
        if ledger_exists is not None:
            store.on_ledger_created = self._on_ledger_created

    def session(self, link: Link) -> BookieSession:
        """A connection was let in."""
        return BookieSession(self, link)

    # --- credit -----------------------------------------------------------------------------------

    def note_reply(self, reads: SessionReads, size: int) -> None:
        """A reply of so many bytes was handed to the link."""
        self._replying[reads] = None
        self._outgoing_sum += size

    def has_credit(self, outgoing_bytes: int) -> bool:
        """May a connection with so much on its way out get another reply?

        The fuller all of them are together, the less each may have: who does not read cannot take the
        room of those who do.
        """
        free = self.options.outgoing_bytes_sum_max - self._outgoing_sum
        if not outgoing_bytes:
            return free > 0
        return outgoing_bytes < min(self.options.outgoing_bytes_max, free // 4)

    def _sum_outgoing(self) -> None:
        self._replying = {each: None for each in self._replying if each.outgoing_bytes}
        self._outgoing_sum = sum(each.outgoing_bytes for each in self._replying)

    def info(self) -> dict[str, object]:
        """The store's counters, and those of the connections."""
        self._sum_outgoing()
        return {
            **self.store.info(),
            "outgoing_bytes": self._outgoing_sum,
            "deferred_bytes": self.deferred_bytes,
            "refused": sum(self._refusals.counts.values()),
        }

    # --- reads ------------------------------------------------------------------------------------

    def ready(self, reads: SessionReads) -> None:
        """A connection has reads to serve."""
        if not reads.queued:
            reads.queued = True
            self._ready.append(reads)
            self._wake.set()

    async def serve_reads(self) -> None:
        """Serve reads, the connections in turn, with a budget of bytes for each turn of the loop."""
        while True:
            if not self._ready:
                self._wake = trio.Event()
                await self._wake.wait()
            budget = READ_TURN_BYTES
            self._sum_outgoing()
            while self._ready and budget > 0:
                reads = self._ready.popleft()
                reads.queued = False
                budget -= reads.serve_one()
                if reads.waiting and not reads.resting:
                    self.ready(reads)
            await trio.lowlevel.checkpoint()

    # --- ledgers that were made known by an add ---------------------------------------------------

    def _on_ledger_created(self, ledger_id: int) -> None:
        self._unchecked.append(ledger_id)
        self._check_wake.set()

    async def check_ledgers(self) -> None:
        """Ask for each new ledger whether it exists, and remove what does not (H21)."""
        assert self._ledger_exists is not None
        while True:
            if not self._unchecked:
                self._check_wake = trio.Event()
                await self._check_wake.wait()
            ledger_id = self._unchecked[0]
            try:
                exists = await self._ledger_exists(ledger_id)
            except DistributedLogError:
                await trio.sleep(CHECK_RETRY_S)  # unknown is never "no"
                continue
            self._unchecked.popleft()
            if not exists:
                await self.store.delete_ledger(ledger_id)
