"""Repair named ledgers at once, on an operator's request: `dlog repair`.

Automatic repair waits until a bookie has been away for minutes, or for the hourly audit. This repair checks
each named ledger against its record immediately. Entries that a connected bookie does not list are copied to
it. Entries on an unregistered bookie are stored on other bookies. The same guards as in automatic repair
apply (`lost_bookies.py`), so both can run at the same time. If it is interrupted, the finished repairs
remain.

For each ledger that is not repaired, the result states the reason.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from ...bookie.client.bookie_client import BookieClient
from ...bookie.session.session_reads import LIST_RANGES_MAX
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from ...ledger.model.missing_range import decode_missing_ranges
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
from .auditor_election import RepairLeaderElection
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
"""Copies of one ledger that are moved for better placement. Each move must improve the placement."""


@dataclass(slots=True)
class RepairProgress:
    """The progress of a repair."""

    ledgers: int = 0
    """The number of ledgers to check."""
    full: int = 0
    """The number of checked ledgers of which all copies exist."""
    left: dict[int, str] = field(default_factory=dict)
    """The checked ledgers that lack copies, with the reason."""


class ManualRepair:
    """Copies or moves the missing entries of named ledgers."""

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
        """Whether copies that share a failure domain are moved as well."""
        self.copier = Copier(pool, bytes_per_s=bytes_per_s)
        never_elected = RepairLeaderElection(
            metadata, "", lambda: 0
        )  # no code that is used here checks the election
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

    async def load_bookies(self, *, force: bool = False) -> None:
        """Load the registered bookies.

        Args:
            force: Continue although most bookies are away.

        Raises:
            ConfirmationRequired: More than half of the bookies are away, so the network may be the cause.
        """
        self._registered_bookies = {
            bookie async for bookie in _bookie_ids(self._metadata, keys.BOOKIE_PREFIX)
        }
        known_bookies = {bookie async for bookie in _bookie_ids(self._metadata, keys.COOKIE_PREFIX)}
        away_bookies = sorted(known_bookies - self._registered_bookies)
        if 2 * len(away_bookies) > len(known_bookies) and not force:
            raise ConfirmationRequired(
                f"{len(away_bookies)} of {len(known_bookies)} bookies are away "
                f"({', '.join(away_bookies)}): this is more likely a network"
                " failure than lost disks, and all their data would be copied to the remaining bookies"
            )

    async def work(self, ledgers: Iterable[int]) -> RepairProgress:
        """Repair some ledgers once, those with the fewest copies first, and return the progress."""
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

        async def check() -> None:
            while remaining:
                ledger_id = remaining.popleft()
                urgencies.append((await self._urgency(ledger_id), ledger_id))

        await run_concurrently(CHECKS_AT_ONCE, check)
        return deque(ledger_id for _, ledger_id in sorted(urgencies))

    async def _urgency(self, ledger_id: int) -> tuple[int, int]:
        """Return a sort key: the lowest number of intact copies of an entry, then the ledger's size."""
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        record = await self._metadata.get(keys.missing_ranges_key(ledger_id))
        with suppress(CorruptData, UnsupportedFormat):  # reported when it is repaired
            if item is not None:
                ledger = LedgerMetadata.decode(item.key, item.value)
                if ledger.closed:
                    away_bookies = {
                        bookie
                        for bookie in ledger.bookies()
                        if bookie not in self._registered_bookies
                    }
                    missing_ranges = () if record is None else decode_missing_ranges(record.value)
                    return fewest_sound_copies(
                        ledger, away_bookies, missing_ranges
                    ), ledger.length or 0
        return ledger_id + 1, 0

    async def repair_ledger(self, ledger_id: int) -> str:
        """Repair one ledger, and return why it still lacks copies; "" if it lacks none."""
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
            # The record was read before the lists: ranges that were recorded since then stay.
            unchanged = Compare.mod_revision(record.key, record.mod_revision)
            await self._metadata.transact(Transaction((unchanged,), (Delete(record.key),)))
        if self._move_copies_apart and not problems:
            await self._move_apart(ledger_id)
        return "; ".join(problems)

    async def _move_apart(self, ledger_id: int) -> None:
        """Move copies of a complete ledger while a move improves its placement."""
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
        """Return the record with another bookie in place of one; unchanged if no bookie can replace it."""
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
        """Copy or move one bookie's entries of a ledger; return the problem, or ""."""
        client = self._pool.get(bookie)
        if client is not None:
            return await self._copy_lacking(ledger, bookie, client)
        if bookie in self._registered_bookies:
            return "is registered, but cannot be reached from here"
        is_moved = await self._lost_bookie_repair.move_ledger(ledger.ledger_id, bookie)
        return "" if is_moved else "the ledger's record changed during the repair"

    async def _copy_lacking(self, ledger: LedgerMetadata, bookie: str, client: BookieClient) -> str:
        held_entries = await list_held_entries(ledger, client)
        is_list_cut = (
            not held_entries.proves_absence and len(held_entries.ranges) >= LIST_RANGES_MAX
        )
        if not held_entries.proves_absence and not is_list_cut:
            return "may have lost some of it (limbo state), and repairs itself"
        await self.copier.copy(ledger, lacking_ranges(ledger, bookie, held_entries), bookie, client)
        return (
            "its entry list is longer than one answer: run the repair again" if is_list_cut else ""
        )


async def under_replicated_ledgers(metadata: Metadata) -> list[int]:
    """Return the ledgers with recorded missing entries or with copies on an unregistered bookie."""
    return sorted({shortage.ledger async for shortage in shortages(metadata)})


async def ledgers_of_bookie(metadata: Metadata, bookie: str) -> list[int]:
    """Return the ledgers whose records list a bookie."""
    return [
        ledger_id async for ledger_id in _ledger_ids(metadata, keys.bookie_ledgers_prefix(bookie))
    ]


async def all_ledgers(metadata: Metadata) -> list[int]:
    """Return all ledgers."""
    return [ledger_id async for ledger_id in _ledger_ids(metadata, keys.LEDGER_PREFIX)]


async def _ledger_ids(metadata: Metadata, prefix: bytes) -> AsyncIterator[int]:
    async for item in Scan(metadata, prefix):
        with suppress(CorruptData):  # `dlog status` lists the record
            yield keys.ledger_id_of(item.key)


async def _bookie_ids(metadata: Metadata, prefix: bytes) -> AsyncIterator[str]:
    async for item in Scan(metadata, prefix):
        with suppress(CorruptData):
            yield keys.bookie_id_of(item.key)
