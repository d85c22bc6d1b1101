"""What to replace when bookies of a writer's ensemble fail (pure).

One change at a time; failures meanwhile fold into a next round. Metadata first: a round is proposed to the
store by compare-and-set, and only when the store has it may the window count acks on the new ensemble
(D4). A round is proposed again only while the ledger is open and its ensembles are as the writer knows
them; IN_RECOVERY means fenced, CLOSED means closed (inv. 6, 7, 10).

Where no bookie is to be had, a slot is detached while every write set keeps its ack quorum; below that
the slot stays starved: adds wait for it until they time out (H22).
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
"""(slots to fill, slots that stay with their bookies, bookies not to take) -> slot: bookie."""


@dataclass(frozen=True, slots=True)
class EnsembleChangeRound:
    """One round of an ensemble change."""

    first_entry: int
    replacements: Mapping[int, str]
    """Slot -> its new bookie."""
    newly_detached: tuple[int, ...]
    """Slots to go on without."""
    unreplaced: tuple[int, ...]
    """Slots that failed, with nobody to replace them and needed for an ack quorum."""
    proposed: LedgerMetadata | None
    """What to write at ``version``; None: nothing is replaced, nothing is written."""
    version: int


class EnsembleChange:
    """The failures of one writer's ensemble, and the change that is under way."""

    def __init__(self, metadata: LedgerMetadata, version: int) -> None:
        self.metadata = metadata
        """As the store holds it, as far as this writer knows."""
        self.version = version
        self.failed_slots: dict[int, str] = {}
        """Slot -> the bookie that failed in it; waits for a round."""
        self.pending_round: EnsembleChangeRound | None = None
        self._slots_in_round: set[int] = set()
        """Slots whose failure the round deals with; the others failed meanwhile."""
        self.change_count = 0
        """Rounds that wrote metadata; a ledger with many is better rolled (docs/internals/invariants.md)."""
        self._striping = metadata.striping

    def on_failure(self, slot: int, bookie: str) -> bool:
        """A bookie failed in a slot. False: it is in that slot no more, so nothing is to be done."""
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
        """Begin a round for all that failed so far; the window confirms nothing from here on.

        ``detached`` are the slots that go without already; ``excluded`` bookies are not chosen.
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
        # Going without one more slot is decided for each: the first may leave just enough.
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
        """The store took the round, or there was nothing to write."""
        committed = self.pending_round
        assert committed is not None, "a round ends that began"
        if committed.proposed is not None:
            self.metadata, self.version = committed.proposed, version
            self.change_count += 1
        # Who failed meanwhile in a slot that was replaced is gone already; the others go on.
        bookies = self.metadata.last_fragment.bookies
        # Whom the round left without a bookie waits for no other round, or rounds would never end.
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
        """The store refused, or its answer was lost, and holds ``current`` now.

        Return the round to propose again, or None when the store turns out to have taken it already
        (then `on_committed`). Raises `LedgerFenced`, `LedgerClosed`, `NoSuchLedger`: the writer ends.
        """
        pending = self.pending_round
        assert pending is not None, "a round is pending"
        assert pending.proposed is not None, "only what was proposed can conflict"
        error = writer_end_error(self.metadata.ledger_id, current)
        if error is not None:
            raise error
        assert current is not None
        if current.ensembles == pending.proposed.ensembles:
            return None
        if current.ensembles != self.metadata.ensembles:
            raise LedgerFenced(
                f"ledger {self.metadata.ledger_id}: somebody else changed the ensembles of this open ledger"
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
            assert bookies[slot] == bookie, "only who is in a slot fails in it"
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
    """Why a writer of this ledger must end, from what the store holds now; None: it is still open."""
    if current is None:
        return NoSuchLedger(f"ledger {ledger_id} was deleted")
    if current.state is LedgerState.OPEN:
        return None
    if current.state is LedgerState.IN_RECOVERY:
        return LedgerFenced(f"ledger {ledger_id} is being recovered by somebody else")
    if current.state is LedgerState.DELETING:
        return LedgerClosed(f"ledger {ledger_id} is being deleted")
    return LedgerClosed(f"ledger {ledger_id} was closed at entry {current.last_entry}")
