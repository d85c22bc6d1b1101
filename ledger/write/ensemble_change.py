"""Decide which bookies to replace when bookies of a writer's ensemble fail (pure).

There is one change at a time; later failures are handled in the next round. Metadata is changed first: a
round is proposed to the store by compare-and-set. Only after the store accepts it, acknowledgements count
for the new ensemble (D4).

A round is proposed again only if the ledger is open and its ensembles are those that the writer stored. In
IN_RECOVERY, the writer has been fenced. In CLOSED, the ledger is closed (inv. 6, 7, 10).

If no replacement is available, a slot is detached if every write set keeps its ack quorum. Otherwise the
slot remains, and adds wait for it until they time out (H22).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from ...runtime.interfaces.errors import (
    DistributedLogError,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
)
from ..model.ledger_metadata import LedgerMetadata, LedgerState

ChooseBookies = Callable[[list[int], dict[int, str], list[str]], Mapping[int, str]]
"""(slots to fill, other slots with their bookies, excluded bookies) -> new bookie by slot."""


@dataclass(frozen=True, slots=True)
class EnsembleChangeRound:
    """One round of an ensemble change."""

    first_entry: int
    replacements: Mapping[int, str]
    """New bookie by slot."""
    newly_detached: tuple[int, ...]
    """Slots to continue without."""
    unreplaced: tuple[int, ...]
    """Failed slots that have no replacement and are required for an ack quorum."""
    proposed: LedgerMetadata | None
    """The record to store at ``version``; None if no bookie is replaced."""
    version: int


class EnsembleChange:
    """The failures in one writer's ensemble, and the pending change."""

    def __init__(self, metadata: LedgerMetadata, version: int) -> None:
        self.metadata = metadata
        """The ledger's record, as this writer last stored or read it."""
        self.version = version
        self.failed_slots: dict[int, str] = {}
        """Slots that wait for a round, with the bookies that failed in them."""
        self.pending_round: EnsembleChangeRound | None = None
        self._slots_in_round: set[int] = set()
        """Slots whose failure the pending round handles. The others failed later."""
        self.change_count = 0
        """The number of rounds that changed metadata. After many, rolling is better
        (docs/internals/invariants.md)."""
        self._striping = metadata.striping

    def on_failure(self, slot: int, bookie: str) -> bool:
        """Record the failure of a bookie in a slot. Return False if another bookie is in the slot now."""
        if self.metadata.last_fragment.bookies[slot] != bookie:
            return False
        self.failed_slots[slot] = bookie
        self._slots_in_round.discard(slot)
        self._check_invariants()
        return True

    def start_round(
        self,
        lac: int,
        detached_slots: Collection[int],
        choose: ChooseBookies,
        *,
        excluded: Collection[str] = (),
    ) -> EnsembleChangeRound:
        """Start a round for all failures so far. The caller confirms no entry until it is decided.

        Args:
            lac: The LAC.
            detached_slots: Slots that are already detached.
            choose: Chooses the replacements.
            excluded: Bookies that must not be chosen.
        """
        assert self.pending_round is None, "inv. 7: one ensemble change at a time"
        bookies = self.metadata.last_fragment.bookies
        slots_to_fill = sorted(self.failed_slots)
        self._slots_in_round = set(slots_to_fill)
        kept_bookies = {n: bookie for n, bookie in enumerate(bookies) if n not in self.failed_slots}
        excluded_bookies = sorted({*self.failed_slots.values(), *excluded})
        replacements = (
            dict(choose(slots_to_fill, kept_bookies, excluded_bookies)) if slots_to_fill else {}
        )
        assert set(replacements) <= set(slots_to_fill), "only failed slots change"
        attached = {
            n for n in range(len(bookies)) if n not in detached_slots and n not in self.failed_slots
        }
        attached |= set(replacements)
        unfilled = [n for n in slots_to_fill if n not in replacements]
        newly_detached: list[int] = []
        unreplaced: list[int] = []
        # Decide for each slot separately: without the first one, the others may be required.
        candidates = attached | {n for n in unfilled if n not in detached_slots}
        for n in unfilled:
            if n in detached_slots:
                continue
            if self._striping.keeps_ack_quorums(candidates - {n}):
                candidates.discard(n)
                newly_detached.append(n)
            else:
                unreplaced.append(n)
        proposed: LedgerMetadata | None = None
        if replacements:
            new_bookies = [replacements.get(n, bookie) for n, bookie in enumerate(bookies)]
            proposed = self.metadata.with_fragment(lac + 1, new_bookies)
        self.pending_round = EnsembleChangeRound(
            lac + 1, replacements, tuple(newly_detached), tuple(unreplaced), proposed, self.version
        )
        self._check_invariants()
        return self.pending_round

    def on_committed(self, version: int) -> EnsembleChangeRound:
        """Complete the pending round after the store accepted it, or if nothing had to be stored."""
        committed = self.pending_round
        assert committed is not None, "a round is pending"
        if committed.proposed is not None:
            self.metadata, self.version = committed.proposed, version
            self.change_count += 1
        # Later failures in replaced slots are obsolete; the other ones remain.
        bookies = self.metadata.last_fragment.bookies
        # Slots that the round left without a bookie do not start another round, or rounds would never end.
        self.failed_slots = {
            n: b
            for n, b in self.failed_slots.items()
            if bookies[n] == b and n not in self._slots_in_round
        }
        self._slots_in_round = set()
        self.pending_round = None
        self._check_invariants()
        return committed

    def on_conflict(
        self, current: LedgerMetadata | None, version: int
    ) -> EnsembleChangeRound | None:
        """Process a rejected proposal or an unknown outcome. The store now has ``current``.

        Returns:
            The round to propose again, or None if the store has already accepted it (then call
            `on_committed`).

        Raises:
            LedgerFenced: Another client recovers or changed the ledger, so the writer must end.
            LedgerClosed: The ledger is closed or being deleted.
            NoSuchLedger: The ledger was deleted.
        """
        pending = self.pending_round
        assert pending is not None, "a round is pending"
        assert pending.proposed is not None, "only a proposed record can conflict"
        error = writer_end_error(self.metadata.ledger_id, current)
        if error is not None:
            raise error
        assert current is not None
        if current.ensembles == pending.proposed.ensembles:
            return None
        if current.ensembles != self.metadata.ensembles:
            raise LedgerFenced(
                f"ledger {self.metadata.ledger_id}: another client changed the ensembles of this open ledger"
            )
        self.metadata, self.version = current, version
        bookies = pending.proposed.last_fragment.bookies
        self.pending_round = replace(
            pending, proposed=current.with_fragment(pending.first_entry, bookies), version=version
        )
        self._check_invariants()
        return self.pending_round

    def _check_invariants(self) -> None:
        bookies = self.metadata.last_fragment.bookies
        assert self.metadata.state is LedgerState.OPEN, (
            "inv. 10: a writer changes open ledgers only"
        )
        for slot, bookie in self.failed_slots.items():
            assert bookies[slot] == bookie, "a failed bookie is in its slot"
        if self.pending_round is not None and self.pending_round.proposed is not None:
            proposed = self.pending_round.proposed.last_fragment
            assert proposed.first_entry == self.pending_round.first_entry, (
                "inv. 6: the fragment is at LAC + 1"
            )
            assert all(
                proposed.bookies[n] == b
                for n, b in enumerate(bookies)
                if n not in self.pending_round.replacements
            ), "only failed slots change"


def writer_end_error(ledger_id: int, current: LedgerMetadata | None) -> DistributedLogError | None:
    """Return why a writer of this ledger must end, given the stored record; None if the ledger is open."""
    if current is None:
        return NoSuchLedger(f"ledger {ledger_id} was deleted")
    if current.state is LedgerState.OPEN:
        return None
    if current.state is LedgerState.IN_RECOVERY:
        return LedgerFenced(f"ledger {ledger_id} is being recovered by another client")
    if current.state is LedgerState.DELETING:
        return LedgerClosed(f"ledger {ledger_id} is being deleted")
    return LedgerClosed(f"ledger {ledger_id} was closed at entry {current.last_entry}")
