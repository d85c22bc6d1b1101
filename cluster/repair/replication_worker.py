"""Fills noted holes: what the notes ``under/<ledger>`` name is copied to the bookies that lack it.

One bookie repairs, the holder of a key under its registration's lease; two at once would only do the same
work twice. Level-triggered: on every change of a note or of the registered bookies, and on a timer.
A note is removed by compare-and-set only when every copy it asked for is durable. One that cannot be worked
off rests, longer each time, until its bookies come or go: a thousand of them cost few reads and few lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import missing_range as notes
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import MissingRange
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.reconcile_loop import reconcile_on_change
from ..declarations.events import COPIED
from .auditor_election import AuditorElection
from .copier import BookieConnections, Copier, ranges_to_hold

EVERY_S = 5.0
REST_S_MAX = 60.0
PAGE = 100

log = get_logger("distributedlog.cluster.repair.replication_worker")


@dataclass(frozen=True, slots=True)
class _PostponedRepair:
    """A note that could not be worked off: until something it hangs on changes, or for some time."""

    mod_revision: int
    away_bookies: frozenset[str]
    """Its bookies that are not connected."""
    backoff: Backoff
    retry_at: float
    causes: list[tuple[str, str]]
    """Cause and example, as `BlockedWorkLog.record` takes them."""


class ReplicationWorker:
    """Fills holes while this bookie is the elected one."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        election: AuditorElection,
        copier: Copier,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._postponed: dict[bytes, _PostponedRepair] = {}
        """By the key of the note."""
        self._blocked_work = BlockedWorkLog(log, "holes wait for their copies")
        self.remaining = 0
        """Notes that are there, as far as is known."""
        self.blocked_records = 0
        """Of those, how many had to wait in the last pass."""

    async def run(self) -> None:
        """Look at the notes again and again, and work when elected; until cancelled."""
        prefixes = (keys.MISSING_RANGES_PREFIX, keys.BOOKIE_PREFIX)
        await reconcile_on_change(
            self._metadata,
            prefixes,
            self._run_pass_if_elected,
            every_s=EVERY_S,
            failures=self._failures,
            unit="repair of missing entries",
        )

    async def _run_pass_if_elected(self) -> None:
        if await self._election.is_elected():
            await self.run_pass()
        else:
            self._postponed.clear()
            self.remaining = self.blocked_records = 0

    async def run_pass(self) -> None:
        """Try every note once; one that nothing can have changed for only after a rest."""
        postponed_before, self._postponed = self._postponed, {}
        # Counted first: a pass over many may last for hours.
        self.remaining = 0
        async for _ in Scan(self._metadata, keys.MISSING_RANGES_PREFIX, limit=PAGE):
            self.remaining += 1
        async for record in Scan(self._metadata, keys.MISSING_RANGES_PREFIX, limit=PAGE):
            postponed = await self._try_repair(record, postponed_before.get(record.key))
            if postponed is None:
                self.remaining = max(0, self.remaining - 1)
            else:
                self._postponed[record.key] = postponed
                for cause, example in postponed.causes:
                    self._blocked_work.record(cause, example)
        self.remaining = self.blocked_records = len(self._postponed)
        self._blocked_work.end_pass()

    async def _try_repair(
        self, record: KeyValue, postponed: _PostponedRepair | None
    ) -> _PostponedRepair | None:
        """Fill a note, if it is not at rest; return its next rest, None where nothing waits any more."""
        away_bookies: frozenset[str] = frozenset()
        causes = [("an unexpected exception", f"{record.key!r}")]
        bookies: set[str] | None = None
        try:
            with self._failures.attempt(f"the missing entries of {record.key!r}"):
                bookies = {missing.bookie for missing in notes.decode_missing_ranges(record.value)}
            away_bookies = frozenset(
                bookie for bookie in bookies or () if self._pool.get(bookie) is None
            )
            if postponed is not None and (postponed.mod_revision, postponed.away_bookies) != (
                record.mod_revision,
                away_bookies,
            ):
                postponed = None
            if postponed is not None and trio.current_time() < postponed.retry_at:
                return postponed
            if bookies is not None:
                with self._failures.attempt(f"the repair of {record.key!r}"):
                    causes = await self._repair(record)
        except DistributedLogError as error:
            causes = [(type(error).__name__, f"{record.key!r}: {error}")]
        if not causes:
            return None
        backoff = Backoff(EVERY_S, REST_S_MAX) if postponed is None else postponed.backoff
        retry_at = trio.current_time() + backoff.next_s()
        return _PostponedRepair(record.mod_revision, away_bookies, backoff, retry_at, causes)

    async def repair(self, record: KeyValue) -> bool:
        """Copy what one note names; True when the note is gone. False: something must wait."""
        return not await self._repair(record)

    async def _repair(self, record: KeyValue) -> list[tuple[str, str]]:
        """Copy what one note names; return what must wait, and why."""
        ledger_id = keys.ledger_id_of(record.key)
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return await self._update_record(record, ())
        ledger = LedgerMetadata.decode(item.key, item.value)
        if ledger.state is LedgerState.DELETING:
            return await self._update_record(record, ())
        if ledger.state is not LedgerState.CLOSED:
            # Its writer, or whoever recovers it, closes it first.
            return [("the ledger is open", f"ledger {ledger_id}")]
        remaining: list[MissingRange] = []
        causes: list[tuple[str, str]] = []
        for missing in notes.merge_ranges(notes.decode_missing_ranges(record.value)):
            try:
                await self._copy_missing(ledger, missing)
            except DistributedLogError as error:
                cause = f"for bookie {missing.bookie}: {type(error).__name__}"
                causes.append((cause, f"ledger {ledger_id}: {error}"))
                remaining.append(missing)
        return causes + await self._update_record(record, remaining)

    async def _copy_missing(self, ledger: LedgerMetadata, missing: MissingRange) -> None:
        ranges = ranges_to_hold(ledger, missing)
        if not ranges:
            return  # also where another bookie has taken its place
        target = self._pool.get(missing.bookie)
        if target is None:
            raise ConnectionLost(f"bookie {missing.bookie} is not connected")
        copied_entries = await self._copier.copy(ledger, ranges, missing.bookie, target)
        if copied_entries:
            COPIED.emit(
                log,
                "ledger %d: copied %d entries to bookie %s",
                ledger.ledger_id,
                copied_entries,
                missing.bookie,
                bookie=missing.bookie,
                ledger=ledger.ledger_id,
                entries=copied_entries,
            )

    async def _update_record(
        self, record: KeyValue, remaining: Sequence[MissingRange]
    ) -> list[tuple[str, str]]:
        """Write what is left of a note, if nobody has written it since; else it is looked at again."""
        if remaining and tuple(remaining) == notes.merge_ranges(
            notes.decode_missing_ranges(record.value)
        ):
            return []
        change = (
            Put(record.key, notes.encode_missing_ranges(remaining))
            if remaining
            else Delete(record.key)
        )
        unchanged = Compare.mod_revision(record.key, record.mod_revision)
        reply = await self._metadata.transact(Transaction((unchanged,), (change,)))
        return [] if reply.succeeded else [("the note has changed", f"{record.key!r}")]
