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
    Labels,
    RandomFraction,
    choose_replacements,
    placement_violations,
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
from .copier import BookieConnections, Copier, lacking_ranges, list_held_entries
from .decommission import fewest_sound_copies, shortages, why_open
from .lost_bookies import (
    CHECKS_AT_ONCE,
    LEDGERS_AT_ONCE,
    BookieLiveness,
    LostBookieRepair,
    RepairTargets,
    run_concurrently,
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


class ManualRepair:
    """Makes good what named ledgers lack."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        candidates: Callable[[], list[Candidate]],
        random: RandomFraction,
        *,
        bytes_per_s: int = RATE_BYTES_PER_S,
        policy: Callable[[], PlacementPolicy] = PlacementPolicy,
        labels: Callable[[str], Labels] = lambda bookie: {},
        move_apart: bool = False,
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._targets = RepairTargets(candidates, random, policy, labels)
        self._move_copies_apart = move_apart
        """Copies that stand together are moved as well."""
        self.copier = Copier(pool, bytes_per_s=bytes_per_s)
        never_elected = AuditorElection(
            metadata, "", lambda: 0
        )  # of what is used here nothing asks it
        self._lost_bookie_repair = LostBookieRepair(
            metadata,
            pool,
            never_elected,
            self.copier,
            self._targets,
            BookieLiveness(lost_after_s=0.0),
        )
        self._registered_bookies: set[str] = set()
        self.progress = RepairProgress()

    async def look(self, *, force: bool = False) -> None:
        """See who is there. Raises `ConfirmationRequired` if most bookies are away: it may be our network."""
        self._registered_bookies = {
            bookie async for bookie in _bookie_ids(self._metadata, keys.BOOKIE_PREFIX)
        }
        known_bookies = {bookie async for bookie in _bookie_ids(self._metadata, keys.COOKIE_PREFIX)}
        away_bookies = sorted(known_bookies - self._registered_bookies)
        if 2 * len(away_bookies) > len(known_bookies) and not force:
            raise ConfirmationRequired(
                f"{len(away_bookies)} of {len(known_bookies)} bookies are away "
                f"({', '.join(away_bookies)}): more likely the network"
                " than their disks, and all their data would be stored on the few that are left"
            )

    async def work(self, ledgers: Iterable[int]) -> RepairProgress:
        """One pass over these ledgers, what has the fewest copies first."""
        ledger_ids = list(dict.fromkeys(ledgers))
        self.progress = progress = RepairProgress(len(ledger_ids))
        queue = await self._order_by_urgency(ledger_ids)

        async def repair() -> None:
            while queue:
                ledger_id = queue.popleft()
                try:
                    problem = await self.repair_ledger(ledger_id)
                except DistributedLogError as error:
                    problem = f"{type(error).__name__}: {error}"
                if problem:
                    progress.left[ledger_id] = problem
                else:
                    progress.full += 1

        await run_concurrently(LEDGERS_AT_ONCE, repair)
        return progress

    async def _order_by_urgency(self, ledgers: list[int]) -> deque[int]:
        remaining, urgencies = deque(ledgers), []

        async def look() -> None:
            while remaining:
                ledger_id = remaining.popleft()
                urgencies.append((await self._urgency(ledger_id), ledger_id))

        await run_concurrently(CHECKS_AT_ONCE, look)
        return deque(ledger_id for _, ledger_id in sorted(urgencies))

    async def _urgency(self, ledger_id: int) -> tuple[int, int]:
        """Sound copies of the entry that has the fewest, and the ledger's size: in order of urgency."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        record = await self._metadata.get(keys.missing_ranges_key(ledger_id))
        with suppress(CorruptData, UnsupportedFormat):  # told when its turn comes
            if item is not None:
                ledger = LedgerMetadata.decode(item.key, item.value)
                if ledger.closed:
                    away_bookies = {
                        bookie
                        for bookie in ledger.bookies()
                        if bookie not in self._registered_bookies
                    }
                    missing_ranges = (
                        () if record is None else notes.decode_missing_ranges(record.value)
                    )
                    return fewest_sound_copies(
                        ledger, away_bookies, missing_ranges
                    ), ledger.length or 0
        return ledger_id + 1, 0

    async def repair_ledger(self, ledger_id: int) -> str:
        """Make one ledger's copies full; why some are missing still, "" for none."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        record = await self._metadata.get(keys.missing_ranges_key(ledger_id))
        if item is None:
            return ""
        ledger = LedgerMetadata.decode(item.key, item.value)
        if ledger.state is LedgerState.DELETING or ledger.last_entry == NO_ENTRY:
            return ""
        if not ledger.closed:
            return await why_open(self._metadata, ledger)
        problems: list[str] = []
        for bookie in ledger.bookies():
            try:
                problem = await self._repair_bookie(ledger, bookie)
            except DistributedLogError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                problems.append(f"bookie {bookie}: {problem}")
        if record is not None and not problems:
            # Read before the lists: what was noted since stays.
            unchanged = Compare.mod_revision(record.key, record.mod_revision)
            await self._metadata.transact(Transaction((unchanged,), (Delete(record.key),)))
        if self._move_copies_apart and not problems:
            await self._move_apart(ledger_id)
        return "; ".join(problems)

    async def _move_apart(self, ledger_id: int) -> None:
        """Move copies of a ledger, each of which is there, while that puts fewer of them together."""
        for _ in range(MOVES_MAX):
            item = await self._metadata.get(keys.ledger_key(ledger_id))
            if item is None:
                return
            ledger = LedgerMetadata.decode(item.key, item.value)
            if not ledger.closed:
                return
            current = self._count_together(ledger)
            if current == (0, 0):
                return
            by_bookie = {
                bookie: self._count_together(self._with_replacement(ledger, bookie))
                for bookie in ledger.bookies()
            }
            best = min(by_bookie, key=lambda bookie: by_bookie[bookie])
            if by_bookie[best] >= current or not await self._lost_bookie_repair.move_ledger(
                ledger_id, best
            ):
                return

    def _count_together(self, ledger: LedgerMetadata) -> tuple[int, int]:
        labels = {bookie: self._targets.labels(bookie) for bookie in ledger.bookies()}
        missing_domains = pairs = 0
        for index, fragment in enumerate(ledger.ensembles):
            if ledger.fragment_end(index) != fragment.first_entry:
                counts = placement_violations(
                    ledger.striping, fragment.bookies, labels, self._targets.policy()
                )
                missing_domains, pairs = missing_domains + counts[0], pairs + counts[1]
        return missing_domains, pairs

    def _with_replacement(self, ledger: LedgerMetadata, bookie: str) -> LedgerMetadata:
        """The record as it might be with others in a bookie's place; as it is where there are none."""
        changed = ledger
        for index, fragment in enumerate(ledger.ensembles):
            if bookie not in fragment.bookies:
                continue
            slot = fragment.bookies.index(bookie)
            kept_slots = {
                n: kept_bookie for n, kept_bookie in enumerate(fragment.bookies) if n != slot
            }
            replacements = choose_replacements(
                ledger.striping,
                kept_slots,
                [slot],
                self._targets.candidates(),
                self._targets.random,
                excluded=fragment.bookies,
                labels={
                    kept_bookie: self._targets.labels(kept_bookie)
                    for kept_bookie in kept_slots.values()
                },
                policy=self._targets.policy().as_preference(),
            )
            if slot not in replacements:
                return ledger
            changed = changed.with_bookie_replaced(index, slot, replacements[slot])
        return changed

    async def _repair_bookie(self, ledger: LedgerMetadata, bookie: str) -> str:
        """One bookie's share: "" when it is there, or stored elsewhere."""
        client = self._pool.get(bookie)
        if client is not None:
            return await self._copy_lacking(ledger, bookie, client)
        if bookie in self._registered_bookies:
            return "is registered, and cannot be reached from here"
        is_moved = await self._lost_bookie_repair.move_ledger(ledger.ledger_id, bookie)
        return "" if is_moved else "the ledger's record was changed meanwhile"

    async def _copy_lacking(self, ledger: LedgerMetadata, bookie: str, client: BookieClient) -> str:
        held_entries = await list_held_entries(ledger, client)
        is_list_cut = not held_entries.known and len(held_entries.ranges) >= LIST_RANGES_MAX
        if not held_entries.known and not is_list_cut:
            return "may have lost some of it (limbo), and heals itself"
        await self.copier.copy(ledger, lacking_ranges(ledger, bookie, held_entries), bookie, client)
        return "its list does not fit one answer: there is more to look at" if is_list_cut else ""


async def under_replicated_ledgers(metadata: Metadata) -> list[int]:
    """Those that miss copies as far as is known: noted, or on a bookie that is down."""
    return sorted({shortage.ledger async for shortage in shortages(metadata)})


async def ledgers_of_bookie(metadata: Metadata, bookie: str) -> list[int]:
    """Those whose records name a bookie."""
    return [
        ledger_id async for ledger_id in _ledger_ids(metadata, keys.bookie_ledgers_prefix(bookie))
    ]


async def all_ledgers(metadata: Metadata) -> list[int]:
    """Every one."""
    return [ledger_id async for ledger_id in _ledger_ids(metadata, keys.LEDGER_PREFIX)]


async def _ledger_ids(metadata: Metadata, prefix: bytes) -> AsyncIterator[int]:
    async for item in Scan(metadata, prefix):
        with suppress(CorruptData):  # `dlog status` names it
            yield keys.ledger_id_of(item.key)


async def _bookie_ids(metadata: Metadata, prefix: bytes) -> AsyncIterator[str]:
    async for item in Scan(metadata, prefix):
        with suppress(CorruptData):
            yield keys.bookie_id_of(item.key)
