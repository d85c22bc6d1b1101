"""What the metadata says of ledgers that are not known here, asked before an add to them is taken (H89).

Tombstones end: of a ledger whose id is below a bound and that is not known here, nobody here can tell whether
it was deleted, or fenced and moved away. Ids are never used twice, so the metadata can.
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
"""Without an answer for so long the adds that wait are refused: their writers come again."""

FAILURE_UNIT = "the look-up of ledgers before their first add"

log = get_logger("distributedlog.bookie.ledgers.ledger_existence")


class LedgerStatus(enum.Enum):
    """What a ledger's record says, for who wants to add to it."""

    OPEN = enum.auto()
    ENDED = enum.auto()
    """It is being recovered, or closed: its writer must be told so."""
    DELETED = enum.auto()
    """There is none, or it is being deleted."""


OnStatus = Callable[[LedgerStatus | None], None]
"""None: nobody could tell."""
QueryLedgerStatuses = Callable[[Sequence[int]], Awaitable[Mapping[int, LedgerStatus]]]
"""Of each of these ids, ascending, by a linearizable read; those of whom nothing can be told are left out."""


class LedgerExistence:
    """One question at a time; what comes meanwhile is asked together, after it."""

    def __init__(self, query_statuses: QueryLedgerStatuses, failures: WorkFailures) -> None:
        self._query_statuses = query_statuses
        self._failures = failures
        self._waiting: dict[int, list[OnStatus]] = {}
        self._wake = trio.Event()

    def lookup(self, ledger_id: int, on_status: OnStatus) -> None:
        """Ask for it: ``answer`` is called later, with what the record said after this call."""
        self._waiting.setdefault(ledger_id, []).append(on_status)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._waiting:
                self._wake = trio.Event()
                await self._wake.wait()
            ledger_ids = sorted(islice(self._waiting, LEDGERS_PER_LOOKUP))
            # Whoever asks from now on gets an answer of its own: this one may be older than the question.
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
