"""Copies brought back because somebody asks for it now: `dlog repair`.

What repairs by itself waits: for a bookie to be away for minutes, for an audit each hour, for its turn. Here
ledgers are named, and all that their records want is looked at and made good at once: what a live bookie does
not list is copied to it, what lies on one that is not registered is stored elsewhere. It is guarded as the
other repair is (`lost_bookies.py`), so both may work at one time; ended in the middle it leaves what it has
done. What it cannot do is told for each ledger, in words.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from ...bookie.client.bookie_client import BookieClient
from ...bookie.session.session_reads import LIST_RANGES_MAX
from ...ledger.model import ledger_keys as keys
from ...ledger.model import missing_range as notes
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from ...ledger.placement.ensemble_placement import (
    Candidate,
    Draw,
    Labels,
    choose_replacements,
    together,
)
from ...ledger.placement.placement_policy import PlacementPolicy
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, Transaction
from ...runtime.interfaces.errors import (
    ConfirmationRequired,
    CorruptData,
    DistributedLogError,
    UnsupportedFormat,
)
from ..declarations.options import RATE_BYTES_PER_S
from .auditor_election import AuditorElection
from .copier import Connections, Copier, lacking, list_held
from .decommission import shortages, sound_copies, waits_open
from .lost_bookies import (
    LEDGERS_AT_ONCE,
    LOOKS_AT_ONCE,
    BookieLiveness,
    LostBookieRepair,
    RepairTargets,
    at_once,
)

MOVES_MAX = 32
"""Of one ledger's copies, to put them apart; each has to make it better."""


@dataclass(slots=True)
class RepairProgress:
    """How far a repair has come."""

    ledgers: int = 0
    """To be looked at."""
    full: int = 0
    """Of those: all copies are there."""
    left: dict[int, str] = field(default_factory=dict)
    """Ledger to what it waits for, of those that were looked at and are not full."""


class RepairNow:
    """Makes good what named ledgers lack."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        candidates: Callable[[], list[Candidate]],
        draw: Draw,
        *,
        bytes_per_s: int = RATE_BYTES_PER_S,
        policy: Callable[[], PlacementPolicy] = PlacementPolicy,
        labels: Callable[[str], Labels] = lambda bookie: {},
        apart: bool = False,
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._targets = RepairTargets(candidates, draw, policy, labels)
        self._apart = apart
        """Copies that stand together are moved as well."""
        self.copier = Copier(pool, bytes_per_s=bytes_per_s)
        nobody = AuditorElection(metadata, "", lambda: 0)  # of what is used here nothing asks it
        self._lost = LostBookieRepair(
            metadata, pool, nobody, self.copier, self._targets, BookieLiveness(lost_after_s=0.0)
        )
        self._registered: set[str] = set()
        self.progress = RepairProgress()

    async def look(self, *, force: bool = False) -> None:
        """See who is there. Raises `ConfirmationRequired` if most bookies are away: it may be our network."""
        self._registered = {bookie async for bookie in _ids(self._metadata, keys.BOOKIE_PREFIX)}
        known = {bookie async for bookie in _ids(self._metadata, keys.COOKIE_PREFIX)}
        away = sorted(known - self._registered)
        if 2 * len(away) > len(known) and not force:
            raise ConfirmationRequired(
                f"{len(away)} of {len(known)} bookies are away ({', '.join(away)}): more likely the network"
                " than their disks, and all their data would be stored on the few that are left"
            )

    async def work(self, ledgers: Iterable[int]) -> RepairProgress:
        """One pass over these ledgers, what has the fewest copies first."""
        wanted = list(dict.fromkeys(ledgers))
        self.progress = progress = RepairProgress(len(wanted))
        todo = await self._ordered(wanted)

        async def repair() -> None:
            while todo:
                ledger_id = todo.popleft()
                try:
                    why = await self.repair(ledger_id)
                except DistributedLogError as error:
                    why = f"{type(error).__name__}: {error}"
                if why:
                    progress.left[ledger_id] = why
                else:
                    progress.full += 1

        await at_once(LEDGERS_AT_ONCE, repair)
        return progress

    async def _ordered(self, ledgers: list[int]) -> deque[int]:
        left, found = deque(ledgers), []

        async def look() -> None:
            while left:
                ledger_id = left.popleft()
                found.append((await self._danger(ledger_id), ledger_id))

        await at_once(LOOKS_AT_ONCE, look)
        return deque(ledger_id for _, ledger_id in sorted(found))

    async def _danger(self, ledger_id: int) -> tuple[int, int]:
        """Sound copies of the entry that has the fewest, and the ledger's size: in order of urgency."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        note = await self._metadata.get(keys.under_key(ledger_id))
        with suppress(CorruptData, UnsupportedFormat):  # told when its turn comes
            if item is not None:
                ledger = LedgerMetadata.decode(item.key, item.value)
                if ledger.closed:
                    away = {one for one in ledger.bookies() if one not in self._registered}
                    holes = () if note is None else notes.decode(note.value)
                    return sound_copies(ledger, away, holes), ledger.length or 0
        return ledger_id + 1, 0

    async def repair(self, ledger_id: int) -> str:
        """Make one ledger's copies full; why some are missing still, "" for none."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        note = await self._metadata.get(keys.under_key(ledger_id))
        if item is None:
            return ""
        ledger = LedgerMetadata.decode(item.key, item.value)
        if ledger.state is LedgerState.DELETING or ledger.last_entry == NO_ENTRY:
            return ""
        if not ledger.closed:
            return await waits_open(self._metadata, ledger)
        why: list[str] = []
        for bookie in ledger.bookies():
            try:
                said = await self._one(ledger, bookie)
            except DistributedLogError as error:
                said = f"{type(error).__name__}: {error}"
            if said:
                why.append(f"bookie {bookie}: {said}")
        if note is not None and not why:
            # Read before the lists: what was noted since stays.
            unchanged = Compare.mod_revision(note.key, note.mod_revision)
            await self._metadata.transact(Transaction((unchanged,), (Delete(note.key),)))
        if self._apart and not why:
            await self._move_apart(ledger_id)
        return "; ".join(why)

    async def _move_apart(self, ledger_id: int) -> None:
        """Move copies of a ledger, each of which is there, while that puts fewer of them together."""
        for _ in range(MOVES_MAX):
            item = await self._metadata.get(keys.ledger_key(ledger_id))
            if item is None:
                return
            ledger = LedgerMetadata.decode(item.key, item.value)
            if not ledger.closed:
                return
            now = self._together(ledger)
            if now == (0, 0):
                return
            tried = {
                bookie: self._together(self._without(ledger, bookie)) for bookie in ledger.bookies()
            }
            best = min(tried, key=lambda bookie: tried[bookie])
            if tried[best] >= now or not await self._lost.move(ledger_id, best):
                return

    def _together(self, ledger: LedgerMetadata) -> tuple[int, int]:
        labels = {bookie: self._targets.labels(bookie) for bookie in ledger.bookies()}
        short = pairs = 0
        for index, fragment in enumerate(ledger.ensembles):
            if ledger.fragment_end(index) != fragment.first_entry:
                found = together(ledger.striping, fragment.bookies, labels, self._targets.policy())
                short, pairs = short + found[0], pairs + found[1]
        return short, pairs

    def _without(self, ledger: LedgerMetadata, bookie: str) -> LedgerMetadata:
        """The record as it might be with others in a bookie's place; as it is where there are none."""
        changed = ledger
        for index, fragment in enumerate(ledger.ensembles):
            if bookie not in fragment.bookies:
                continue
            slot = fragment.bookies.index(bookie)
            kept = {n: one for n, one in enumerate(fragment.bookies) if n != slot}
            chosen = choose_replacements(
                ledger.striping,
                kept,
                [slot],
                self._targets.candidates(),
                self._targets.draw,
                excluded=fragment.bookies,
                labels={one: self._targets.labels(one) for one in kept.values()},
                policy=self._targets.policy().preferred(),
            )
            if slot not in chosen:
                return ledger
            changed = changed.with_bookie_replaced(index, slot, chosen[slot])
        return changed

    async def _one(self, ledger: LedgerMetadata, bookie: str) -> str:
        """One bookie's share: "" when it is there, or stored elsewhere."""
        client = self._pool.get(bookie)
        if client is not None:
            return await self._fill(ledger, bookie, client)
        if bookie in self._registered:
            return "is registered, and cannot be reached from here"
        moved = await self._lost.move(ledger.ledger_id, bookie)
        return "" if moved else "the ledger's record was changed meanwhile"

    async def _fill(self, ledger: LedgerMetadata, bookie: str, client: BookieClient) -> str:
        held = await list_held(ledger, client)
        cut = not held.known and len(held.ranges) >= LIST_RANGES_MAX
        if not held.known and not cut:
            return "may have lost some of it (limbo), and heals itself"
        await self.copier.copy(ledger, lacking(ledger, bookie, held), bookie, client)
        return "its list does not fit one answer: there is more to look at" if cut else ""


async def lacking_ledgers(metadata: Metadata) -> list[int]:
    """Those that miss copies as far as is known: noted, or on a bookie that is down."""
    return sorted({one.ledger async for one in shortages(metadata)})


async def ledgers_on(metadata: Metadata, bookie: str) -> list[int]:
    """Those whose records name a bookie."""
    return [one async for one in _ledger_ids(metadata, keys.on_prefix(bookie))]


async def all_ledgers(metadata: Metadata) -> list[int]:
    """Every one."""
    return [one async for one in _ledger_ids(metadata, keys.LEDGER_PREFIX)]


async def _ledger_ids(metadata: Metadata, prefix: bytes) -> AsyncIterator[int]:
    async for item in Scan(metadata, prefix):
        with suppress(CorruptData):  # `dlog status` names it
            yield keys.ledger_id_of(item.key)


async def _ids(metadata: Metadata, prefix: bytes) -> AsyncIterator[str]:
    async for item in Scan(metadata, prefix):
        with suppress(CorruptData):
            yield keys.bookie_id_of(item.key)
