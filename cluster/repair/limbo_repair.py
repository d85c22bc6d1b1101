"""A bookie that lost something heals itself: what its limbo hides is copied, verified, and the mark lifted.

In limbo a bookie denies nothing, for it may have held it (inv. 22). For a closed ledger the record says
what it should hold: when that is all there, read back and verified, no true answer of this bookie can
truncate anything, and the mark goes, durably. The fence stays. A ledger that is not closed stays in limbo:
only its bookies know how far it goes.
"""

import trio

from ...bookie.integrity.corruption_tracker import CorruptionTracker
from ...bookie.integrity.limbo import Limbo
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_ids import next_ledger
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.missing_range import MissingRange
from ...ledger.model.stored_ledger import Unreadable
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..declarations.events import LIMBO_HEALED
from .copier import Connections, Copier, wanted
from .replication_worker import EVERY_S, PAGE

EVERY_MAX_S = 20.0
"""Between two tries while nothing gets better: open ledgers are closed when they are."""

UNIT = "the work on limbo"

log = get_logger("distributedlog.cluster.repair.limbo_repair")


class LimboRepair:
    """Heals one bookie, by itself."""

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
        self._turn = turn
        self._bookie_id = bookie_id
        self.healed = 0
        """Ledgers since the start."""
        self._held_up = BlockedWorkLog(log, "ledgers stay in limbo for now")
        self._unreadable = Unreadable()

    async def run(self) -> None:
        """Until cancelled: often while something gets better, else seldom."""
        backoff = Backoff(EVERY_S, EVERY_MAX_S)
        while True:
            await trio.sleep(max(backoff.next_s(), self._failures.rest_s(UNIT)))
            if not self._limbo.any_limbo:
                continue
            before = self.healed
            try:
                with self._failures.contained(UNIT):
                    await self.work()
            except DistributedLogError as error:
                log.warning("limbo stays for now: %s: %s", type(error).__name__, error)
            if self.healed > before:
                backoff.reset()

    async def work(self) -> bool:
        """Try each ledger that should be here and is in limbo; True when none of them is any more.

        Raises `CorruptData` where nobody can say which ledgers are newer than the loss: limbo stays.
        """
        left = 0
        async for item in Scan(self._metadata, keys.on_prefix(self._bookie_id), limit=PAGE):
            try:
                ledger_id = keys.ledger_id_of(item.key)
            except CorruptData as error:
                self._unreadable.note(item.key, error)
                continue
            if not self._limbo.in_limbo(ledger_id):
                continue
            unit = f"lifting the limbo of ledger {ledger_id}"
            healed = False
            try:
                if not self._failures.rests(unit):
                    with self._failures.contained(unit):
                        async with self._turn:
                            healed = await self.heal(ledger_id)
                if healed:
                    continue
            except DistributedLogError as error:
                self._held_up.note(type(error).__name__, f"ledger {ledger_id}: {error}")
            left += 1
        self._held_up.end_pass()
        if left:
            return False
        if self._limbo.boundless:
            # Below it the metadata is asked from now on: of fences and tombstones that were lost.
            await self._limbo.confine(await next_ledger(self._metadata))
        # A ledger that names this bookie only from now on lost nothing here: whatever it was told before
        # it was told as one of the ledger's ensemble, and would stand in the index that was just read.
        await self._limbo.confine(0)
        return True

    async def heal(self, ledger_id: int) -> bool:
        """Copy, verify, lift. False: the ledger is not closed, or something of it cannot be had now."""
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None:
            return False
        ledger = LedgerMetadata.decode(found.key, found.value)
        own = self._pool.get(self._bookie_id)
        if not ledger.closed or own is None:
            return False
        stretches = wanted(ledger, MissingRange(self._bookie_id, 0, None))
        copied = await self._copier.copy(ledger, stretches, self._bookie_id, own)
        damaged = await self._copier.verify(ledger, stretches, own)
        if damaged is not None:
            example = f"ledger {ledger_id} entry {damaged.first}"
            self._held_up.note("an entry cannot be read back here", example)
            self._rot.note(ledger_id, damaged.first, damaged.last)
            return False
        await self._limbo.lift_limbo(ledger_id, ledger.key)
        self.healed += 1
        text = "ledger %d is out of limbo: %d entries were copied"
        LIMBO_HEALED.say(log, text, ledger_id, copied, ledger=ledger_id, entries=copied)
        return True
