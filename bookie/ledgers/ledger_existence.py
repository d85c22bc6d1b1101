"""Query the metadata about unknown ledgers before an add to them is accepted (H89).

Tombstones are removed after a time. If the ID of an unknown ledger is below a bound, this bookie cannot
decide whether the ledger was deleted, or was fenced and moved away. The metadata quorum can decide it,
because IDs are never used twice.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice

import trio

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures

LEDGERS_PER_LOOKUP = 500
LOOKUP_TIMEOUT_S = 5.0
"""After this time without an answer, the waiting adds are refused. Their writers retry."""

FAILURE_UNIT = "the lookup of ledgers before their first add"

log = get_logger("distributedlog.bookie.ledgers.ledger_existence")


class LedgerStatus(enum.Enum):
    """The status of a ledger's metadata record, as it concerns adds."""

    OPEN = enum.auto()
    ENDED = enum.auto()
    """The ledger is closed or in recovery. Its writer must receive this as an error."""
    DELETED = enum.auto()
    """The ledger has no record, or is being deleted."""


OnStatus = Callable[[LedgerStatus | None], None]
"""Receives the status, or None if the query failed."""
QueryLedgerStatuses = Callable[[Sequence[int]], Awaitable[Mapping[int, LedgerStatus]]]
"""Return the status of ledgers, given as ascending IDs, by a linearizable read. The result omits IDs with an
unknown status."""


class LedgerExistence:
    """Query the status of ledgers, one query at a time.

    IDs that arrive during a query are in the next one.
    """

    def __init__(self, query_statuses: QueryLedgerStatuses, failures: WorkFailures) -> None:
        self._query_statuses = query_statuses
        self._failures = failures
        self._waiting: dict[int, list[OnStatus]] = {}
        self._wake = trio.Event()

    def lookup(self, ledger_id: int, on_status: OnStatus) -> None:
        """Query the status of a ledger, and later call ``on_status`` with a status read after this call."""
        self._waiting.setdefault(ledger_id, []).append(on_status)
        self._wake.set()

    async def run(self) -> None:
        """Send queries until cancelled."""
        while True:
            if not self._waiting:
                self._wake = trio.Event()
                await self._wake.wait()
            ledger_ids = sorted(islice(self._waiting, LEDGERS_PER_LOOKUP))
            # Later lookups of these IDs need another query, because this one may read older states.
            callbacks = {ledger_id: self._waiting.pop(ledger_id) for ledger_id in ledger_ids}
            statuses: Mapping[int, LedgerStatus] = {}
            try:
                with trio.move_on_after(LOOKUP_TIMEOUT_S), self._failures.attempt(FAILURE_UNIT):
                    statuses = await self._query_statuses(ledger_ids)
            except DistributedLogError as error:
                log.warning("%d ledgers could not be looked up: %s", len(ledger_ids), error)
            for ledger_id, ledger_callbacks in callbacks.items():
                for on_status in ledger_callbacks:
                    with self._failures.attempt(f"an add to ledger {ledger_id} that waited"):
                        on_status(statuses.get(ledger_id))
