"""Bugs that are injected into the ledger cores. The seeds of `ledger_world` must find each of them.

A bug is one replaced function for the length of a `with` block. `DIRECTED_ONLY` lists bugs that no practical
number of seeds finds; the named test has the order of events for them. Codes in parentheses name the origin:
D1 … are bugs of BookKeeper's history, H1 … are hazards of this design, inv. is an invariant.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....ledger.model.ledger_metadata import LedgerMetadata
from ....ledger.model.striping import Striping
from ....ledger.recovery.ledger_recovery import LedgerRecovery
from ....ledger.recovery.quorum_coverage import QuorumCoverage
from ....ledger.recovery.recovery_actions import ReadReplica, RecoveryAction
from ....ledger.write.ensemble_change import EnsembleChangeRound
from ....ledger.write.pending_adds import PendingAdds, Slot, SlotStream
from ..world.bug_injection import Patch, patched
from .ledger_actors import SimWriter
from .ledger_model import header_of
from .ledger_network import SimStore
from .ledger_recoverer import SimRecoverer
from .ledger_world import FAULTS, WorldOptions, run_seed


def _silence(self: QuorumCoverage, entry: int) -> bool | None:
    """Count a bookie that does not answer as one without the entry."""
    negatives, has_pending = 0, False
    for slot in self._striping.write_set(entry):
        source = self.replicas[slot]
        if entry < source.next_unanswered or source.failure is not None:
            negatives += 1
        else:
            has_pending = True
    if negatives >= self._striping.absent_quorum:
        return True
    return None if has_pending else False


_read = QuorumCoverage.read


def _read_without_fence(
    self: QuorumCoverage, bookie: str, first: int, last: int, *, fence: bool
) -> ReadReplica:
    return _read(self, bookie, first, last, fence=False)


_committed = SimWriter._committed


def _ack_first(self: SimWriter, round_: EnsembleChangeRound) -> None:
    """Switch to the new ensemble and count its acks before the store has the change."""
    proposed = round_.proposed
    assert proposed is not None
    self.store.cas(round_.version, proposed, lambda *_: None)
    _committed(self, round_.version + 1)


def _late_acks(self: PendingAdds, stream: SlotStream, count: int) -> int:
    slot = self.slots[stream.slot]
    through = self.striping.nth_held(stream.slot, stream.first_entry, count - 1)
    slot.acked_through = max(slot.acked_through, min(through, self.last_entry))
    stream.acked_count = max(count, stream.acked_count)
    return self._confirm()


def _cumulative_ids(self: PendingAdds, stream: SlotStream, count: int) -> int:
    """Count an ack as "all entries up to this ID" for the bookie, in whichever slot it is now."""
    through = min(
        self.striping.nth_held(stream.slot, stream.first_entry, count - 1), self.last_entry
    )
    for slot in self.slots:
        if slot.bookie == stream.bookie and not slot.detached:
            slot.acked_through = max(slot.acked_through, through)
    stream.acked_count = max(count, stream.acked_count)
    return self._confirm()


def _no_unset(self: PendingAdds, replaced: Mapping[int, str], epoch: int) -> int:
    for number, bookie in replaced.items():
        self.slots[number] = Slot(bookie, self.slots[number].acked_through)
    self._attached_slots = [slot for slot in self.slots if not slot.detached]
    self.epoch, self.ensemble_changing = epoch, False
    return self._confirm()


def _confirm_while_changing(self: PendingAdds) -> int:
    lac_before = self.lac
    self.lac = self._highest_confirmable()
    if self.lac > lac_before:
        self.lac_bytes = self._cumulative_bytes[self.lac - self._first_kept_entry]
    return self.lac - lac_before


def _blind_close(self: SimStore, version: int, new: LedgerMetadata) -> bool:
    return _apply(self, self.version if new.closed else version, new)


_apply = SimStore._apply
_on_read = LedgerRecovery.on_read
_on_fenced = LedgerRecovery.on_fenced
_act = SimRecoverer._act


def _ignore_complete_to(
    self: LedgerRecovery, request: int, complete_to: int, *rest: Any, **damaged: Any
) -> list[RecoveryAction]:
    requests = self._coverage._pending_reads
    last = requests[request][1].last if request in requests else complete_to
    return _on_read(self, request, last, *rest, **damaged)


def _ignore_limbo(
    self: LedgerRecovery, request: int, complete_to: int, known: bool, *rest: Any, **damaged: Any
) -> list[RecoveryAction]:
    return _on_read(self, request, complete_to, True, *rest, **damaged)


def _damage_is_absence(self: LedgerRecovery, *answer: Any, **damaged: Any) -> list[RecoveryAction]:
    return _on_read(self, *answer)


def _start_anywhere(
    self: LedgerRecovery, slot: int, lac: int, proves_absence: bool
) -> list[RecoveryAction]:
    """Trust the last fragment's bookies about the LAC, even if they have not received an entry yet."""
    starting_fragment = self._starting_fragment
    self._starting_fragment = replace(starting_fragment, first_entry=0)
    try:
        return _on_fenced(self, slot, lac, proves_absence)
    finally:
        self._starting_fragment = starting_fragment


def _write_back_to_one(
    self: LedgerRecovery, slot: int, lac: int, proves_absence: bool
) -> list[RecoveryAction]:
    actions = _on_fenced(self, slot, lac, proves_absence)
    self.pending_adds.striping = replace(self.pending_adds.striping, ack_quorum=1)
    return actions


def _commit_early(self: SimRecoverer, actions: list[RecoveryAction]) -> None:
    """Write each ensemble change of a recovery to the store at once."""
    recovery, store = self.recovery, self.store
    if (
        recovery is not None
        and recovery.ensembles != recovery.metadata.ensembles
        and store.value.state == "in_recovery"
    ):
        store.value = replace(store.value, ensembles=recovery.ensembles)
        recovery.metadata = store.value
        recovery._starting_fragment = store.value.last_fragment
        for slot, source in enumerate(recovery._coverage.replicas):
            source.bookie = recovery._starting_fragment.bookies[slot]
    _act(self, actions)


def _close_over_recovery(self: SimWriter) -> None:
    """Close as the writer even if a recovery has begun."""
    if self.error is None and self.change.pending_round is None:
        lac, store = self.window.lac, self.store
        length = header_of(self.oracles.records[lac]).length_so_far if lac >= 0 else 0
        store.cas(store.version, self.change.metadata.close_by_writer(lac, length), lambda *_: None)


def _any_answer(self: Striping) -> int:
    return 1


INJECTED_BUGS: dict[str, tuple[Patch, ...]] = {
    "recovery trusts silence": ((QuorumCoverage, "absence", _silence),),
    "recovery reads do not fence (D1)": ((QuorumCoverage, "read", _read_without_fence),),
    "ack before metadata (D4)": ((SimWriter, "_propose", _ack_first),),
    "late acks of a replaced bookie count (inv. 8)": ((PendingAdds, "on_acked", _late_acks),),
    "acks are cumulative by entry id (H1)": ((PendingAdds, "on_acked", _cumulative_ids),),
    "replaced slots keep their acks (D5)": ((PendingAdds, "end_change", _no_unset),),
    "acks complete while a change is undecided (inv. 7)": (
        (PendingAdds, "_confirm", _confirm_while_changing),
    ),
    "closing without compare-and-set (inv. 19)": ((SimStore, "_apply", _blind_close),),
    "complete_to is ignored (H9)": ((LedgerRecovery, "on_read", _ignore_complete_to),),
    "limbo counts as absence (inv. 22)": ((LedgerRecovery, "on_read", _ignore_limbo),),
    "damage counts as absence (inv. 16)": ((LedgerRecovery, "on_read", _damage_is_absence),),
    "recovery starts below the last fragment (D2)": (
        (LedgerRecovery, "on_fenced", _start_anywhere),
    ),
    "write-back to one bookie (inv. 17)": ((LedgerRecovery, "on_fenced", _write_back_to_one),),
    "recovery commits its changes early (D3)": ((SimRecoverer, "_act", _commit_early),),
    "the writer closes over a recovery (D18)": ((SimWriter, "_close", _close_over_recovery),),
    "one negative proves absence (inv. 16)": ((Striping, "absent_quorum", property(_any_answer)),),
}


FAULTS_FOR = {
    "acks complete while a change is undecided (inv. 7)": ("freeze", "freeze", "stop", "break"),
}
"""The faults for bugs that need certain ones: 10,000 seeds with all kinds do not find these bugs."""
DIRECTED_ONLY = ("acks are cumulative by entry id (H1)",)
"""Too rare for seeds. tests/ledger/write/test_pending_adds.py has the order of events."""


def seeds_until_found(name: str, seeds: range) -> int | None:
    """Return the first seed that finds the bug, or None."""
    options = WorldOptions(faults=FAULTS_FOR.get(name, tuple(FAULTS)))
    with patched(INJECTED_BUGS[name]):
        for seed in seeds:
            try:
                run_seed(seed, options)
            except AssertionError:
                return seed
    return None
