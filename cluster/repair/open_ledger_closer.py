"""Close ledgers without a writer that are open on bookies that are away or leaving.

Failed writers left these ledgers open, and only closed ledgers can be copied. Closing takes over the log, so
its epoch protects it (`distributedlog/log/takeover/orphaned_segment.py`). A log is taken over only if two
observations 15 s apart found no lock holder, and no entry was added or confirmed in between. In addition,
this process must have reached the metadata store at each check in between.

A running writer rolls to other bookies automatically (`LedgerWriter.should_close_early`). A ledger that no
log refers to holds no acknowledged data, and stays open.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.stored_ledger import UnreadableRecords
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from .lost_bookies import BookieLiveness, run_concurrently
from .replication_worker import EVERY_S

TASKS = 16
REST_FACTOR = 4
"""The pause after a pass, in multiples of the pass's duration."""

log = get_logger("distributedlog.cluster.repair.open_ledger_closer")


@dataclass(frozen=True, slots=True)
class OrphanCloser:
    """Observes and closes logs without a writer (`distributedlog/log/takeover/orphaned_segment.py`).

    It needs clients of all bookies.
    """

    observe: Callable[[int], Awaitable[object | None]]
    """Returns the state of a log without lock holder, for a comparison. None for other or closed logs."""
    close_unchanged: Callable[[int, object], Awaitable[bool]]
    """Closes the log if its state is unchanged, and returns whether it did."""
    between_observations_s: float


OpenCloser = Callable[[], AbstractAsyncContextManager[OrphanCloser]]
"""Opens an `OrphanCloser` with its clients for the time of its use."""


@dataclass(frozen=True, slots=True)
class _FirstObservation:
    observation: object
    observed_at: float


class OpenLedgerCloser:
    """Closes open ledgers without a writer. Only the repair leader has observations of absent bookies."""

    def __init__(
        self,
        metadata: Metadata,
        liveness: BookieLiveness,
        open_closer: OpenCloser,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._liveness = liveness
        self._open_closer = open_closer
        self._first_observations: dict[int, _FirstObservation] = {}
        """The state of each log, by its ID, at the first of two observations."""
        self._seen_gaps = -1
        """The number of observation gaps when the first observations were made."""
        self._closed_ledgers: set[int] = set()
        """Ledgers that need no further check while a bookie is away."""
        self._blocked_work = BlockedWorkLog(
            log, "logs without a writer remain open on lost bookies"
        )
        self._unreadable = UnreadableRecords()
        self.closed_logs = 0
        """Since the start."""

    async def run(self) -> None:
        """Close logs until cancelled."""
        while True:
            if await self._find_or_reset():
                async with self._open_closer() as closer:
                    # The pause does not count the listing in `find_open_logs`. With a million ledgers on lost
                    # bookies, the store is listed nearly all the time.
                    while log_ids := await self._find_or_reset():
                        started_at = trio.current_time()
                        await self.run_pass(closer, log_ids)
                        await trio.sleep(
                            max(EVERY_S, REST_FACTOR * (trio.current_time() - started_at))
                        )
            await trio.sleep(EVERY_S)

    async def _find_or_reset(self) -> set[int]:
        """Return the logs to check; none if the store is unavailable.

        Then all observations start again (H96).
        """
        try:
            return await self.find_open_logs()
        except DistributedLogError as error:
            log.info("open ledgers on lost bookies could not be listed: %s", error)
            self._first_observations.clear()
            return set()

    async def find_open_logs(self) -> set[int]:
        """Return the logs with open ledgers on bookies that are away or leaving."""
        bookies = self._liveness.presumed_lost
        if not bookies:
            self._closed_ledgers.clear()
        remaining: dict[int, None] = {}
        for bookie in bookies:
            async for item in Scan(self._metadata, keys.bookie_ledgers_prefix(bookie)):
                try:
                    ledger_id = keys.ledger_id_of(item.key)
                except CorruptData as error:
                    self._unreadable.log_once(item.key, error)
                    continue
                if ledger_id not in self._closed_ledgers:
                    remaining[ledger_id] = None
        log_ids: set[int] = set()

        async def check() -> None:
            while remaining:
                ledger_id, _ = remaining.popitem()  # the newest first: those are open
                log_id = None
                try:
                    with self._failures.attempt(f"the check whether ledger {ledger_id} is open"):
                        log_id = await self._log_of_open_ledger(ledger_id)
                except (CorruptData, UnsupportedFormat) as error:
                    self._unreadable.log_once(keys.ledger_key(ledger_id), error)
                    continue
                if log_id is not None:
                    log_ids.add(log_id)

        await run_concurrently(TASKS, check)
        # A log must be listed at every check between two observations. Otherwise, its writer may have held
        # the lock.
        self._first_observations = {
            log_id: observation
            for log_id, observation in self._first_observations.items()
            if log_id in log_ids
        }
        return log_ids

    async def _log_of_open_ledger(self, ledger_id: int) -> int | None:
        """Return the log in which the ledger is open; None if it is closed, deleted or belongs to no log."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return None
        ledger = LedgerMetadata.decode(item.key, item.value)
        if ledger.state not in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            self._closed_ledgers.add(ledger_id)
            return None
        return None if ledger.owner is None else ledger.owner[0]

    async def run_pass(self, closer: OrphanCloser, log_ids: set[int]) -> None:
        """Check each log once: record its first observation, or close it if it is unchanged since that."""
        if self._seen_gaps != self._liveness.observation_gaps:
            self._seen_gaps = self._liveness.observation_gaps
            self._first_observations.clear()
        remaining = deque(sorted(log_ids))

        async def check() -> None:
            while remaining:
                log_id = remaining.popleft()
                unit = f"closing what is open of log {log_id:016x}"
                if self._failures.is_waiting(unit):
                    continue
                cause = "an unexpected exception"
                try:
                    with self._failures.attempt(unit) as attempt:
                        await self._observe_or_close(closer, log_id)
                    if not attempt.failed:
                        continue
                    example = unit
                except DistributedLogError as error:
                    cause, example = type(error).__name__, f"log {log_id:016x}: {error}"
                self._first_observations.pop(log_id, None)
                self._blocked_work.record(cause, example)

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(check)
        self._blocked_work.end_pass()

    async def _observe_or_close(self, closer: OrphanCloser, log_id: int) -> None:
        first, now, gaps = (
            self._first_observations.get(log_id),
            trio.current_time(),
            self._liveness.observation_gaps,
        )
        if gaps != self._seen_gaps:
            return  # a gap in this pass: locks may have expired that their holders take again
        if first is None:
            observation = await closer.observe(log_id)
            if observation is not None and gaps == self._liveness.observation_gaps:
                self._first_observations[log_id] = _FirstObservation(
                    observation, trio.current_time()
                )
        elif now - first.observed_at >= closer.between_observations_s:
            del self._first_observations[
                log_id
            ]  # whatever the result, another attempt needs two observations
            if await closer.close_unchanged(log_id, first.observation):
                self.closed_logs += 1
