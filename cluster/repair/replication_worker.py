"""Copy recorded missing entries, the keys ``under/<ledger>``, to the bookies that lack them.

Only the repair leader runs this. Two leaders at once would only do the same work twice. The worker runs on
every change of a record or of the registered bookies, and periodically. It deletes a record by
compare-and-set, and only when all its copies are durable.

A record that cannot be repaired is postponed, longer each time, until one of its bookies connects or
disconnects. So a thousand such records cause few reads and few log lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import (
    MissingRange,
    decode_missing_ranges,
    encode_missing_ranges,
    merge_ranges,
)
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
from .auditor_election import RepairLeaderElection
from .copier import BookieConnections, Copier, ranges_to_hold

EVERY_S = 5.0
REST_S_MAX = 60.0
PAGE = 100

log = get_logger("distributedlog.cluster.repair.replication_worker")


@dataclass(frozen=True, slots=True)
class _PostponedRepair:
    """A record whose repair failed.

    It is retried when the record or its connected bookies change, or after a time.
    """

    mod_revision: int
    away_bookies: frozenset[str]
    """Its bookies that are not connected."""
    backoff: Backoff
    retry_at: float
    causes: list[tuple[str, str]]
    """Cause and example, as in `BlockedWorkLog.record`."""


class ReplicationWorker:
    """Copies missing entries while this bookie is the repair leader."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        election: RepairLeaderElection,
        copier: Copier,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._postponed: dict[bytes, _PostponedRepair] = {}
        """By the key of the record."""
        self._blocked_work = BlockedWorkLog(log, "ledgers with missing entries wait for copies")
        self.remaining = 0
        """The number of records that remain, as of the present or last pass."""
        self.blocked_records = 0
        """The number of records that were postponed in the last pass."""

    async def run(self) -> None:
        """Repair when a record or registration changes and every 5 s, while elected; until cancelled."""
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
        """Try every record once. A postponed record without a change is skipped until its time."""
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
        """Repair a record unless it is postponed; return its next postponement, or None if it is done."""
        away_bookies: frozenset[str] = frozenset()
        causes = [("an unexpected exception", f"{record.key!r}")]
        bookies: set[str] | None = None
        try:
            with self._failures.attempt(f"the missing entries of {record.key!r}"):
                bookies = {missing.bookie for missing in decode_missing_ranges(record.value)}
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
        """Copy the entries of one record, and return whether the record is done."""
        return not await self._repair(record)

    async def _repair(self, record: KeyValue) -> list[tuple[str, str]]:
        """Copy the entries of one record, and return (cause, example) for each problem."""
        ledger_id = keys.ledger_id_of(record.key)
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return await self._update_record(record, ())
        ledger = LedgerMetadata.decode(item.key, item.value)
        if ledger.state is LedgerState.DELETING:
            return await self._update_record(record, ())
        if ledger.state is not LedgerState.CLOSED:
            # Its writer, or the client that recovers it, closes it first.
            return [("the ledger is open", f"ledger {ledger_id}")]
        remaining: list[MissingRange] = []
        causes: list[tuple[str, str]] = []
        for missing in merge_ranges(decode_missing_ranges(record.value)):
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
            return  # also if another bookie has replaced it
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
        """Store the remaining ranges of a record, unless it changed since it was read.

        Then the next pass reads it.
        """
        if remaining and tuple(remaining) == merge_ranges(decode_missing_ranges(record.value)):
            return []
        change = (
            Put(record.key, encode_missing_ranges(remaining)) if remaining else Delete(record.key)
        )
        unchanged = Compare.mod_revision(record.key, record.mod_revision)
        reply = await self._metadata.transact(Transaction((unchanged,), (change,)))
        return [] if reply.succeeded else [("the record has changed", f"{record.key!r}")]
