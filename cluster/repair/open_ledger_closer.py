"""What dead writers left open on bookies that are away, or are to leave, is closed: then it can be copied.

The log's epoch protects (`distributedlog/log/takeover/orphaned_segment.py`): a log is claimed only if nobody
held its lock and none of its entries came or were confirmed between two looks 15 s apart, and no look of this
process at the store failed in between. Living writers roll off such bookies by themselves
(`LedgerWriter.unwanted`). What no log refers to is nobody's acknowledged data: it stays as it is.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.stored_ledger import Unreadable
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from .lost_bookies import BookieLiveness, at_once
from .replication_worker import EVERY_S

AT_ONCE = 16
REST = 4
"""Times as long as a pass took nothing is looked at."""

log = get_logger("distributedlog.cluster.repair.open_ledger_closer")


@dataclass(frozen=True, slots=True)
class Closer:
    """What logs are closed with (`distributedlog/log/takeover/orphaned_segment.py`): clients of all
    bookies."""

    look_at: Callable[[int], Awaitable[object | None]]
    """A log that nobody holds, as it is now, to compare another look with; None: it is held, or closed."""
    close_unmoved: Callable[[int, object], Awaitable[bool]]
    """Closes it, if it is as at that look; was it?"""
    looks_apart_s: float


Opening = Callable[[], AbstractAsyncContextManager[Closer]]
"""Opens what that takes, for as long as it is needed."""


@dataclass(frozen=True, slots=True)
class _Seen:
    look: object
    at: float


class OpenLedgerCloser:
    """Closes what nobody writes any more. What is away is known to the elected repairer alone."""

    def __init__(
        self,
        metadata: Metadata,
        absences: BookieLiveness,
        opening: Opening,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._absences = absences
        self._opening = opening
        self._seen: dict[int, _Seen] = {}
        """By log id: how it was at the first of two looks."""
        self._seen_since = -1
        """Which gap in what is known of bookies."""
        self._closed: set[int] = set()
        """Ledgers that need not be looked at again while somebody is away."""
        self._held_up = BlockedWorkLog(log, "logs that nobody writes stay open on lost bookies")
        self._unreadable = Unreadable()
        self.closed_logs = 0
        """Since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if await self._wanted():
                async with self._opening() as closer:
                    # The pause does not count the listing in `_wanted`. With a million ledgers on lost
                    # bookies, the store is listed nearly all the time.
                    while wanted := await self._wanted():
                        began = trio.current_time()
                        await self.work(closer, wanted)
                        await trio.sleep(max(EVERY_S, REST * (trio.current_time() - began)))
            await trio.sleep(EVERY_S)

    async def _wanted(self) -> set[int]:
        """The logs to look at; none where the store cannot be asked: then all looks begin anew (H96)."""
        try:
            return await self.find()
        except DistributedLogError as error:
            log.info("what is open on bookies that are away is not known now: %s", error)
            self._seen.clear()
            return set()

    async def find(self) -> set[int]:
        """The logs with open ledgers on bookies that are known to be away, or to leave."""
        bookies = self._absences.given_up
        if not bookies:
            self._closed.clear()
        left: dict[int, None] = {}
        for bookie in bookies:
            async for item in Scan(self._metadata, keys.on_prefix(bookie)):
                try:
                    ledger_id = keys.ledger_id_of(item.key)
                except CorruptData as error:
                    self._unreadable.note(item.key, error)
                    continue
                if ledger_id not in self._closed:
                    left[ledger_id] = None
        found: set[int] = set()

        async def some() -> None:
            while left:
                ledger_id, _ = left.popitem()  # the newest first: those are open
                log_id = None
                try:
                    with self._failures.contained(f"the look at ledger {ledger_id}, is it open"):
                        log_id = await self._open_in(ledger_id)
                except (CorruptData, UnsupportedFormat) as error:
                    self._unreadable.note(keys.ledger_key(ledger_id), error)
                    continue
                if log_id is not None:
                    found.add(log_id)

        await at_once(AT_ONCE, some)
        # Between two looks a log is wanted all the time: else its writer may have held its lock meanwhile.
        self._seen = {log_id: seen for log_id, seen in self._seen.items() if log_id in found}
        return found

    async def _open_in(self, ledger_id: int) -> int | None:
        """The log in which the ledger is open; None where it is closed, gone or no log's."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return None
        ledger = LedgerMetadata.decode(item.key, item.value)
        if ledger.state not in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            self._closed.add(ledger_id)
            return None
        return None if ledger.owner is None else ledger.owner[0]

    async def work(self, closer: Closer, wanted: set[int]) -> None:
        """Look at each of these logs once; close those that are as they were."""
        if self._seen_since != self._absences.gaps:
            self._seen_since = self._absences.gaps
            self._seen.clear()
        left = deque(sorted(wanted))

        async def some() -> None:
            while left:
                log_id = left.popleft()
                unit = f"closing what is open of log {log_id:016x}"
                if self._failures.rests(unit):
                    continue
                why = "an unexpected exception"
                try:
                    with self._failures.contained(unit) as attempt:
                        await self._look_at(closer, log_id)
                    if not attempt.failed:
                        continue
                    example = unit
                except DistributedLogError as error:
                    why, example = type(error).__name__, f"log {log_id:016x}: {error}"
                self._seen.pop(log_id, None)
                self._held_up.note(why, example)

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(some)
        self._held_up.end_pass()

    async def _look_at(self, closer: Closer, log_id: int) -> None:
        seen, now, gaps = self._seen.get(log_id), trio.current_time(), self._absences.gaps
        if gaps != self._seen_since:
            return  # since this pass began: locks may have lapsed that their holders take again
        if seen is None:
            look = await closer.look_at(log_id)
            if look is not None and gaps == self._absences.gaps:
                self._seen[log_id] = _Seen(look, trio.current_time())
        elif now - seen.at >= closer.looks_apart_s:
            del self._seen[log_id]  # whatever comes of it, two looks are needed for another try
            if await closer.close_unmoved(log_id, seen.look):
                self.closed_logs += 1
