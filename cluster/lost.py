"""What lay on bookies that are gone for good, or are to leave, is stored elsewhere.

A bookie is *lost* when it has not been registered for ``lost_after_s`` on end, as far as this process has
seen: the time begins anew with a new repairer and after each moment without a quorum (H19), so that nothing
is copied because metadata was away. A bookie that comes back in time cancels it. A bookie that somebody
decommissions (`leaving/<bookie>`), and one whose cookie is gone, are lost at once.

For each closed ledger: first the copies, durable on the new bookie, then the swap in the ledger's record
by compare-and-set, mirrored in the reverse index (inv. 27, 28). The swap fails when the new bookie was
started again meanwhile: what it held is then looked at anew. Open ledgers are their writers'.
Upstream: `lostBookieRecoveryDelay`, 0 s by default, with the delay reset by each audit.
"""

import logging
from collections.abc import Callable

import trio

from ..ledger import keys, transactions
from ..ledger.metadata import LedgerMetadata
from ..ledger.placement import Candidate, Draw, choose_replacements
from ..ledger.unreadable import Unreadable
from ..metadata.interface import Metadata, Scan
from ..metadata.transaction import Compare, Delete, Transaction
from ..runtime.errors import CorruptData, DistributedLogError, NotEnoughBookies
from .copying import Connections, Copier, held_by_slot
from .deletion import Deletion
from .held_up import HeldUp
from .leaving import named
from .repair import EVERY_S, PAGE, Election

STALE_S = 4 * EVERY_S
"""Longer between two looks: nobody can say what was registered meanwhile."""

log = logging.getLogger("distributedlog.cluster.lost")


class Absences:
    """For how long each bookie has been away, as seen without a gap (pure but for its caller's clock)."""

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._gone_since: dict[str, float] = {}
        self._seen_at = float("-inf")
        self.lost: dict[str, str] = {}
        """Bookie to why it counts as lost."""

    def forget(self) -> None:
        """Nothing is known any more: not elected, or no quorum answered."""
        self._gone_since.clear()
        self._seen_at = float("-inf")
        self.lost = {}

    def see(
        self,
        now: float,
        *,
        named: list[str],
        registered: set[str],
        cookies: set[str],
        leaving: set[str],
    ) -> None:
        """One look. ``named`` are the bookies of all ensembles."""
        if now - self._seen_at > STALE_S:
            self.forget()
        self._seen_at = now
        self.lost = {}
        for bookie in sorted({*named, *leaving}):
            if bookie in registered:
                self._gone_since.pop(bookie, None)
            else:
                self._gone_since.setdefault(bookie, now)
            if bookie in leaving:
                self.lost[bookie] = "is to leave"
            elif bookie in registered:
                continue
            elif bookie not in cookies:
                self.lost[bookie] = "was decommissioned"
            elif now - self._gone_since[bookie] >= self._lost_after_s:
                self.lost[bookie] = f"has been away for {self._lost_after_s:g} s"


class LostBookies:
    """Moves closed ledgers off lost bookies while this bookie is the elected repairer."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        election: Election,
        copier: Copier,
        candidates: Callable[[], list[Candidate]],
        draw: Draw,
        *,
        lost_after_s: float,
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._candidates = candidates
        """Who may be chosen for a slot now."""
        self._draw = draw
        self._racks: dict[str, str] = {}
        self.absences = Absences(lost_after_s)
        self._held_up = HeldUp(log, "closed ledgers stay on lost bookies")
        self._unreadable = Unreadable()
        self.moved = 0
        """Ledgers taken off lost bookies since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._observe)
            nursery.start_soon(self._work)

    async def _observe(self) -> None:
        while True:
            try:
                if await self._election.elected():
                    await self.look()
                else:
                    self.absences.forget()
            except DistributedLogError as error:
                log.info("who is away is not known now: %s", error)
                self.absences.forget()
            await trio.sleep(EVERY_S)

    async def look(self) -> None:
        """See who is there."""
        names = [bookie async for bookie in named(self._metadata)]
        cookies = await self._ids(keys.COOKIE_PREFIX)
        leaving = await self._ids(keys.LEAVING_PREFIX)
        registered = await self._ids(keys.BOOKIE_PREFIX)  # last: who just came back is seen
        before = self.absences.lost
        self.absences.see(
            trio.current_time(),
            named=names,
            registered=registered,
            cookies=cookies,
            leaving=leaving,
        )
        for bookie, why in self.absences.lost.items():
            if bookie not in before:
                log.warning("bookie %s %s: its closed ledgers are stored elsewhere", bookie, why)

    async def _ids(self, prefix: bytes) -> set[str]:
        items = [item async for item in Scan(self._metadata, prefix)]
        found = self._unreadable.readable(items, lambda item: keys.bookie_id_of(item.key))
        return {bookie for _, bookie in found}

    async def _work(self) -> None:
        while True:
            for bookie in list(self.absences.lost):
                try:
                    await self.empty(bookie)
                except DistributedLogError as error:
                    self._held_up.note(f"on bookie {bookie}: {type(error).__name__}", str(error))
            self._held_up.end_pass()
            await trio.sleep(EVERY_S)

    async def empty(self, bookie: str) -> bool:
        """Move what can be moved off one lost bookie; True when no ensemble names it any more."""
        left = 0
        async for item in Scan(self._metadata, keys.on_prefix(bookie), limit=PAGE):
            if bookie not in self.absences.lost:
                return False  # it is back, or we are not the repairer any more
            try:
                ledger_id = keys.ledger_id_of(item.key)
            except CorruptData as error:
                self._unreadable.note(item.key, error)
                continue
            try:
                if await self.move(ledger_id, bookie):
                    continue
            except DistributedLogError as error:
                cause = f"on bookie {bookie}: {type(error).__name__}"
                self._held_up.note(cause, f"ledger {ledger_id}: {error}")
            left += 1
        if left:
            return False
        await self._bid_farewell(bookie)
        return True

    async def move(self, ledger_id: int, bookie: str) -> bool:
        """Store one ledger's entries of ``bookie`` elsewhere. False: it is not closed, or changed meanwhile.

        Raises `NotEnoughBookies`, and what a copy raises.
        """
        record = keys.ledger_key(ledger_id)
        found = await self._metadata.get(record)
        if (
            found is None
            or bookie not in (ledger := LedgerMetadata.decode(found.key, found.value)).bookies()
        ):
            same = Compare.version(record, 0 if found is None else found.version)
            stale = Transaction((same,), (Delete(keys.on_key(bookie, ledger_id)),))
            return (await self._metadata.transact(stale)).succeeded
        if not ledger.closed:
            return False
        changed = ledger
        guards: dict[str, Compare] = {}
        for index, fragment in enumerate(ledger.ensembles):
            if bookie not in fragment.bookies:
                continue
            slot = fragment.bookies.index(bookie)
            chosen = self._choose(changed, index, slot, list(guards))
            cookie = await self._metadata.get(keys.cookie_key(chosen))
            target = self._pool.get(chosen)
            if cookie is None or target is None:
                return False  # it has gone just now
            # Each start counts its cookie up: a bookie that was started again holds what it holds.
            guards.setdefault(
                chosen, Compare.mod_revision(keys.cookie_key(chosen), cookie.mod_revision)
            )
            await self._copier.copy(ledger, held_by_slot(ledger, index, slot), chosen, target)
            changed = changed.with_bookie_replaced(index, slot, chosen)
        swap = transactions.change_share(ledger, changed, found.version)
        reply = await self._metadata.transact(swap + Transaction(tuple(guards.values())))
        if reply.succeeded:
            self.moved += 1
            log.info("ledger %d: %s took the place of bookie %s", ledger_id, list(guards), bookie)
        return reply.succeeded

    def _choose(self, ledger: LedgerMetadata, index: int, slot: int, before: list[str]) -> str:
        """Who takes the slot: one that took another slot of this ledger, where that can be."""
        fragment = ledger.ensembles[index]
        here = set(fragment.bookies)
        for one in before:
            if one not in here:
                return one
        candidates = [one for one in self._candidates() if one.id not in self.absences.lost]
        self._racks.update({one.id: one.rack for one in candidates})
        striping = ledger.striping
        kept = {n: b for n, b in enumerate(fragment.bookies) if n != slot}
        chosen = choose_replacements(
            striping, kept, [slot], candidates, self._draw, excluded=here, racks=self._racks
        )
        if slot not in chosen:
            raise NotEnoughBookies(
                f"ledger {ledger.ledger_id}: nobody can take the place of {fragment.bookies[slot]}:"
                f" live are {sorted(one.id for one in candidates)}, in the ensemble {sorted(here)}"
            )
        return chosen[slot]

    async def _bid_farewell(self, bookie: str) -> None:
        """A drained bookie that is to leave and does not run is forgotten: its id is never used again."""
        if await self._metadata.get(keys.leaving_key(bookie)) is None:
            return
        if await self._metadata.get(keys.bookie_key(bookie)) is not None:
            return  # it runs, drained; whoever runs it stops it
        await Deletion(self._metadata, bookie, _nothing).work()
        last = Transaction(
            (Compare.exists(keys.leaving_key(bookie)), Compare.version(keys.bookie_key(bookie), 0)),
            (
                Delete(keys.cookie_key(bookie)),
                Delete(keys.seen_key(bookie)),
                Delete(keys.leaving_key(bookie)),
            ),
        )
        if (await self._metadata.transact(last)).succeeded:
            log.warning("bookie %s was decommissioned", bookie)


async def _nothing(ledger_id: int) -> None:
    """What a bookie that is gone still has to delete went with it."""
