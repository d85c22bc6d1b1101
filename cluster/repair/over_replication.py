"""Copies too many: of a bookie that is back after it was replaced, of a move that was given up. They go.

Each bookie looks through its own ledgers. A copy goes only if two passes, an hour of its own time apart,
found the same: the ledger was known here before the first look, its record was closed and named this bookie
in no fragment, at the same revision; no move into this bookie was under way; nothing was added to it
meanwhile; and every bookie that the record names has what it should: it answers, lists it all, is not in
limbo, and knows of nothing that rotted. Of a ledger of which entries were declared lost none goes: it may be
the last. One of a record that is not there goes as a deleted ledger does. The absence of a key is never taken
from a listing (inv. 27): each record is read by itself.

A move that was stalled for so long, and swaps the record after the copy went, finds a stub, which denies
nothing; the next pass sees the record that names this bookie again, and the stub is healed as limbo is.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from ...bookie.format import journal_format as jb
from ...bookie.integrity.replica_removal import ReplicaRemoval
from ...bookie.ledgers.ledger_table import LedgerTable
from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_ids import next_of
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.stored_ledger import Unreadable
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.gc_hold import RESTORES, why_held
from .copier import Connections, lacking, list_held
from .replication_worker import PAGE

APART_S = 3600.0
"""Between the two looks."""

UNIT = "the look for over-replicated copies"

log = get_logger("distributedlog.cluster.repair.over_replication")


@dataclass(frozen=True, slots=True)
class Seen:
    """A copy that no record names, as a pass found it."""

    at: float
    """Own time; of the first pass that found the same."""
    mod_revision: int
    """Of the ledger's record; 0: there was none."""
    top: int
    """The highest entry that was here."""
    restores: bytes


class OverReplication:
    """Drops the copies too many of one bookie."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        ledgers: LedgerTable,
        dropping: ReplicaRemoval,
        delete: Callable[[int], Awaitable[None]],
        bookie_id: str,
        *,
        every_s: float,
        failures: WorkFailures | None = None,
    ) -> None:
        """``delete``: as for a ledger that was deleted."""
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._ledgers = ledgers
        self._dropping = dropping
        self._delete = delete
        self._bookie_id = bookie_id
        self._every_s = every_s
        self._seen: dict[int, Seen] = {}
        self._unreadable = Unreadable()
        self.dropped = 0
        """Copies since the start."""

    async def run(self) -> None:
        """A pass, a rest, and so on; until cancelled. While something is seen the next comes in an hour."""
        while True:
            rest_s = min(self._every_s, APART_S) if self._seen else self._every_s
            await trio.sleep(self._failures.wait_s(UNIT, rest_s))
            try:
                with self._failures.contained(UNIT, every_s=self._every_s):
                    await self.look_at_all()
            except DistributedLogError as error:
                log.info("copies too many are not looked for now: %s", error)

    async def look_at_all(self) -> None:
        """One pass over the ledgers that are here, some at a time."""
        before, self._seen = self._seen, {}
        async for page in self._ledgers.states():
            # Known before anything of them is read: a ledger made meanwhile is none of them.
            known = [state.ledger_id for state in page if not state.flags & jb.DELETED]
            if not known:
                continue
            named = await self._named(known[0], known[-1])
            for ledger_id in known:
                if ledger_id in named:
                    if self._dropping.dropped(ledger_id):
                        await self._dropping.take_back(ledger_id)
                    continue
                unit = f"the look at ledger {ledger_id}, which is elsewhere"
                try:
                    with self._failures.contained(unit, every_s=self._every_s):
                        await self._look_at(ledger_id, before.get(ledger_id))
                except CorruptData as error:
                    self._unreadable.note(keys.ledger_key(ledger_id), error)

    async def _named(self, first: int, last: int) -> set[int]:
        """The ledgers of these ids (inclusive) that name this bookie."""
        start = keys.on_key(self._bookie_id, first)
        end = keys.on_key(self._bookie_id, last) + b"\0"
        named: set[int] = set()
        async for item in Scan(self._metadata, start, end, limit=PAGE):
            try:
                named.add(keys.ledger_id_of(item.key))
            except CorruptData as error:
                self._unreadable.note(item.key, error)
        return named

    async def _look_at(self, ledger_id: int, before: Seen | None) -> None:
        top = self._dropping.held(ledger_id)
        stub = self._dropping.dropped(ledger_id)
        if top < 0 and not stub:
            return
        seen = await self.surplus(ledger_id, top)
        if seen is None:
            return
        if before is None or (before.mod_revision, before.top, before.restores) != (
            seen.mod_revision,
            seen.top,
            seen.restores,
        ):
            self._seen[ledger_id] = seen
        elif seen.at - before.at < APART_S:
            self._seen[ledger_id] = before
        elif self._dropping.held(ledger_id) != top:
            return  # somebody has begun to add to it
        elif seen.mod_revision == 0:
            await self._delete(ledger_id)
            log.warning("ledger %d does not exist, and was here: deleted", ledger_id)
        elif await self._dropping.drop(ledger_id):
            self.dropped += 1
            log.warning("ledger %d is elsewhere now: its copy here went", ledger_id)

    async def surplus(self, ledger_id: int, top: int) -> Seen | None:
        """Is a copy that is here one too many, now? Each answer is a linearizable read of its own."""
        following = await self._metadata.get(keys.NEXT_LEDGER)
        async for item in Scan(self._metadata, keys.moves_to_prefix(self._bookie_id), limit=PAGE):
            if item.key.endswith(keys.ledger_key(ledger_id).removeprefix(keys.LEDGER_PREFIX)):
                return None
        found = await self._metadata.get(keys.ledger_key(ledger_id))  # nothing of a move is older
        revision = 0
        if found is not None:
            ledger = LedgerMetadata.decode(found.key, found.value)
            if not ledger.closed or ledger.lost or self._bookie_id in ledger.bookies():
                return None
            if top < 0 or not await self._all_is_elsewhere(ledger):
                return None
            revision = found.mod_revision
        elif following is None or ledger_id >= next_of(following.value):
            return None  # an id that nobody may have yet: this metadata is not that which gave it
        # Last: metadata that was begun anew meanwhile is held, and what it answered proves nothing.
        restores = await self._metadata.get(RESTORES)
        if await why_held(self._metadata):
            return None
        value = b"" if restores is None else bytes(restores.value)
        return Seen(trio.current_time(), revision, top, value)

    async def _all_is_elsewhere(self, ledger: LedgerMetadata) -> bool:
        """Has each bookie of the record what it should have? Who cannot be asked has not."""
        for bookie in ledger.bookies():
            registered = await self._metadata.get(keys.bookie_key(bookie))
            client = self._pool.get(bookie)
            if registered is None or client is None:
                return False
            if any(BookieRegistration.decode(registered.key, registered.value).rot[:2]):
                return False  # this may be the good copy
            try:
                held = await list_held(ledger, client)
            except DistributedLogError:
                return False
            if not held.known or lacking(ledger, bookie, held):
                return False
        return True
