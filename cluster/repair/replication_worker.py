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
from .copier import Connections, Copier, wanted

EVERY_S = 5.0
REST_S_MAX = 60.0
PAGE = 100

log = get_logger("distributedlog.cluster.repair.replication_worker")


@dataclass(frozen=True, slots=True)
class _Rest:
    """A note that could not be worked off: until something it hangs on changes, or for some time."""

    mod_revision: int
    away: frozenset[str]
    """Its bookies that are not connected."""
    backoff: Backoff
    until: float
    why: list[tuple[str, str]]
    """Cause and example, as `BlockedWorkLog.note` takes them."""


class ReplicationWorker:
    """Fills holes while this bookie is the elected one."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        election: AuditorElection,
        copier: Copier,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._rests: dict[bytes, _Rest] = {}
        """By the key of the note."""
        self._held_up = BlockedWorkLog(log, "holes wait for their copies")
        self.left = 0
        """Notes that are there, as far as is known."""
        self.blocked = 0
        """Of those, how many had to wait in the last pass."""

    async def run(self) -> None:
        """Look at the notes again and again, and work when elected; until cancelled."""
        prefixes = (keys.UNDER_PREFIX, keys.BOOKIE_PREFIX)
        await reconcile_on_change(
            self._metadata,
            prefixes,
            self._work_if_elected,
            every_s=EVERY_S,
            failures=self._failures,
            unit="repair of missing entries",
        )

    async def _work_if_elected(self) -> None:
        if await self._election.elected():
            await self.work()
        else:
            self._rests.clear()
            self.left = self.blocked = 0

    async def work(self) -> None:
        """Try every note once; one that nothing can have changed for only after a rest."""
        rests, self._rests = self._rests, {}
        # Counted first: a pass over many may last for hours.
        self.left = 0
        async for _ in Scan(self._metadata, keys.UNDER_PREFIX, limit=PAGE):
            self.left += 1
        async for note in Scan(self._metadata, keys.UNDER_PREFIX, limit=PAGE):
            rest = await self._try(note, rests.get(note.key))
            if rest is None:
                self.left = max(0, self.left - 1)
            else:
                self._rests[note.key] = rest
                for cause, example in rest.why:
                    self._held_up.note(cause, example)
        self.left = self.blocked = len(self._rests)
        self._held_up.end_pass()

    async def _try(self, note: KeyValue, rest: _Rest | None) -> _Rest | None:
        """Fill a note, if it is not at rest; return its next rest, None where nothing waits any more."""
        away: frozenset[str] = frozenset()
        why = [("an unexpected exception", f"{note.key!r}")]
        bookies: set[str] | None = None
        try:
            with self._failures.contained(f"the missing entries of {note.key!r}"):
                bookies = {hole.bookie for hole in notes.decode(note.value)}
            away = frozenset(bookie for bookie in bookies or () if self._pool.get(bookie) is None)
            if rest is not None and (rest.mod_revision, rest.away) != (note.mod_revision, away):
                rest = None
            if rest is not None and trio.current_time() < rest.until:
                return rest
            if bookies is not None:
                with self._failures.contained(f"the repair of {note.key!r}"):
                    why = await self._fill(note)
        except DistributedLogError as error:
            why = [(type(error).__name__, f"{note.key!r}: {error}")]
        if not why:
            return None
        backoff = Backoff(EVERY_S, REST_S_MAX) if rest is None else rest.backoff
        until = trio.current_time() + backoff.next_s()
        return _Rest(note.mod_revision, away, backoff, until, why)

    async def fill(self, note: KeyValue) -> bool:
        """Copy what one note names; True when the note is gone. False: something must wait."""
        return not await self._fill(note)

    async def _fill(self, note: KeyValue) -> list[tuple[str, str]]:
        """Copy what one note names; return what must wait, and why."""
        ledger_id = keys.ledger_id_of(note.key)
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None:
            return await self._shorten(note, ())
        metadata = LedgerMetadata.decode(found.key, found.value)
        if metadata.state is LedgerState.DELETING:
            return await self._shorten(note, ())
        if metadata.state is not LedgerState.CLOSED:
            # Its writer, or whoever recovers it, closes it first.
            return [("the ledger is open", f"ledger {ledger_id}")]
        left: list[MissingRange] = []
        why: list[tuple[str, str]] = []
        for hole in notes.merged(notes.decode(note.value)):
            try:
                await self._fill_hole(metadata, hole)
            except DistributedLogError as error:
                cause = f"for bookie {hole.bookie}: {type(error).__name__}"
                why.append((cause, f"ledger {ledger_id}: {error}"))
                left.append(hole)
        return why + await self._shorten(note, left)

    async def _fill_hole(self, metadata: LedgerMetadata, hole: MissingRange) -> None:
        stretches = wanted(metadata, hole)
        if not stretches:
            return  # also where another bookie has taken its place
        target = self._pool.get(hole.bookie)
        if target is None:
            raise ConnectionLost(f"bookie {hole.bookie} is not connected")
        copied = await self._copier.copy(metadata, stretches, hole.bookie, target)
        if copied:
            COPIED.say(
                log,
                "ledger %d: copied %d entries to bookie %s",
                metadata.ledger_id,
                copied,
                hole.bookie,
                bookie=hole.bookie,
                ledger=metadata.ledger_id,
                entries=copied,
            )

    async def _shorten(self, note: KeyValue, left: Sequence[MissingRange]) -> list[tuple[str, str]]:
        """Write what is left of a note, if nobody has written it since; else it is looked at again."""
        if left and tuple(left) == notes.merged(notes.decode(note.value)):
            return []
        change = Put(note.key, notes.encode(left)) if left else Delete(note.key)
        unchanged = Compare.mod_revision(note.key, note.mod_revision)
        reply = await self._metadata.transact(Transaction((unchanged,), (change,)))
        return [] if reply.succeeded else [("the note has changed", f"{note.key!r}")]
