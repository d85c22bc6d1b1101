"""A bookie that holds rotten entries heals itself: from others' copies, of ledgers that have no writer.

What may take a rotten entry's place is decided by the ledger's record as it is read *after* the rot was
noted (H91): only entries that the record says belong here, fetched from the bookies that it names, each
verified. A ledger has one writer, which gives an id to one record: so a sound record of an id that is not
after the end of a closed ledger is that entry. Entries of open ledgers wait: limbo would have their writers
leave this bookie. One whose recovery has begun does not: it writes back what it finds, and where all copies
must acknowledge it waits for this one. What it finds after the end is copied, too, and nobody asks for it.

First the copies are seen, then the rotten ones are dropped (in limbo), then the copies stored and read back:
what nobody else has is kept as it is, for a device may read better tomorrow.
"""

import trio

from ...bookie.client.bookie_client import BookieClient
from ...bookie.integrity.corruption_tracker import CorruptExtent, CorruptionTracker
from ...bookie.integrity.limbo import Limbo
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ...ledger.model.missing_range import MissingRange
from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import ConnectionLost, CorruptData, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..declarations.events import ROT_HEALED
from .copier import Connections, Copier, Missing, wanted
from .replication_worker import EVERY_S

EVERY_MAX_S = 300.0
"""Between two tries while nothing gets better."""
RUNS_AT_ONCE = 64
"""Of one ledger, dropped in one transaction of the index."""

log = get_logger("distributedlog.cluster.repair.corruption_repair")


class CorruptionRepair:
    """Heals one bookie's rot, by itself."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        copier: Copier,
        limbo: Limbo,
        rot: CorruptionTracker,
        bookie_id: str,
        turn: trio.Lock,
        failures: WorkFailures | None = None,
    ) -> None:
        """``turn``: of all that heals this bookie; one at a time decides what is sound."""
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._copier = copier
        self._limbo = limbo
        self._rot = rot
        self._bookie_id = bookie_id
        self._turn = turn
        self._held_up = BlockedWorkLog(log, "ledgers with rotten entries wait")

    async def run(self) -> None:
        """Until cancelled: at once when rot is noted, then often while something gets better."""
        backoff = Backoff(EVERY_S, EVERY_MAX_S)
        while True:
            wait_s = backoff.next_s() if self._rot.noted else EVERY_MAX_S
            with trio.move_on_after(wait_s) as waited:
                await self._rot.news.wait()
            if not waited.cancelled_caught:
                await trio.sleep(1.0)  # what is noted together is healed together
            self._rot.news = trio.Event()
            before = len(self._rot.noted)
            await self.work()
            if len(self._rot.noted) < before:
                backoff.reset()

    async def work(self) -> bool:
        """Try each ledger of which something is noted; True when none is left."""
        if self._rot.suspect:
            return not self._rot.noted
        for ledger_id in list(self._rot.noted):
            unit = f"the repair of corrupt entries of ledger {ledger_id}"
            if self._failures.rests(unit):
                continue
            try:
                with self._failures.contained(unit):
                    async with self._turn:
                        await self.heal(ledger_id)
            except DistributedLogError as error:
                self._held_up.note(type(error).__name__, f"ledger {ledger_id}: {error}")
        self._held_up.end_pass()
        return not self._rot.noted

    async def heal(self, ledger_id: int) -> bool:
        """Heal one ledger. False: it has a writer, or a copy of something cannot be had now."""
        noted = self._rot.noted.get(ledger_id)
        if noted is None:
            return True
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        ledger = None if found is None else LedgerMetadata.decode(found.key, found.value)
        if (
            ledger is None
            or ledger.state is LedgerState.DELETING
            or self._bookie_id not in ledger.bookies()
        ):
            self._rot.forget(ledger_id)  # nobody asks this bookie for it
            return True
        if ledger.state is LedgerState.OPEN:
            self._held_up.note("the ledger is open", f"ledger {ledger_id}")
            return False
        own = self._pool.get(self._bookie_id)
        if own is None:
            raise ConnectionLost(f"bookie {self._bookie_id} does not reach itself")
        rotten = await self._rot.look(ledger_id, *noted)
        healed, why = 0, ""
        for at in range(0, len(rotten), RUNS_AT_ONCE):
            entries, said = await self._heal_runs(ledger, rotten[at : at + RUNS_AT_ONCE], own)
            healed += entries
            why = why or said
        if healed:
            self._rot.healed_entries += healed
            text = "ledger %d: %d rotten entries were healed"
            ROT_HEALED.say(log, text, ledger_id, healed, ledger=ledger_id, entries=healed)
        if why:
            if all(self._pool.get(bookie) for bookie in ledger.bookies()):
                self._rot.stuck[ledger_id] = why  # all were asked
            self._held_up.note("no good copy of an entry now", why)
            return False
        if self._rot.noted.get(ledger_id) == noted:  # nothing was noted meanwhile
            self._rot.forget(ledger_id)
        return True

    async def _heal_runs(
        self, ledger: LedgerMetadata, runs: list[CorruptExtent], own: BookieClient
    ) -> tuple[int, str]:
        """Heal those of which all can be had; return how many entries, and what is said of the others."""
        ledger_id = ledger.ledger_id
        at_hand: list[CorruptExtent] = []
        why = ""
        for run in runs:
            try:
                for stretch in self._wanted(ledger, run):
                    await self._copier.obtainable(ledger, stretch, self._bookie_id)
                at_hand.append(run)
            except ConnectionLost as error:
                why = why or str(error)
        if not at_hand:
            return 0, why
        was_in_limbo = self._limbo.in_limbo(ledger_id)
        dropped = await self._rot.drop(ledger_id, ledger.key, at_hand)
        stretches = [stretch for run in dropped for stretch in self._wanted(ledger, run)]
        await self._copier.copy(ledger, stretches, self._bookie_id, own)
        damaged = await self._copier.verify(ledger, stretches, own)
        if (
            damaged is not None
        ):  # it stays in limbo, and is looked at as a whole (`limbo_repair.py`)
            raise CorruptData(
                f"ledger {ledger_id} entry {damaged.first}: its copy cannot be read back"
            )
        if not was_in_limbo:
            await self._limbo.lift_limbo(ledger_id, ledger.key)
        return sum(run.entries for run in dropped), why

    def _wanted(self, ledger: LedgerMetadata, run: CorruptExtent) -> list[Missing]:
        """What of a rotten run this bookie should hold; what is after the ledger's end nobody asks for."""
        return [
            stretch
            for first, last in run.rotten
            for stretch in wanted(ledger, MissingRange(self._bookie_id, first, last + 1))
        ]
