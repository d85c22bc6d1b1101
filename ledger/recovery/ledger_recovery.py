"""Finding a ledger's end when its writer is gone: fence, read, write back, close (pure).

    fence      all bookies of the last fragment; go on when every write set is covered (inv. 14)
    read       from the highest LAC on, from the ensemble as it was at the start (inv. 15), all bookies at
               once, in ranges; every read fences as well (D1)
    write back what any one bookie has, verbatim, in order, to the ack quorum of an ensemble that changes
               here only (inv. 17, 18); the records keep the LAC they were made with, so nothing beyond
               the starting LAC is published (D18)
    close      one compare-and-set from IN_RECOVERY, with the remembered fragments; the loser adopts (inv. 19)

What the answers prove is in `quorum_coverage.py`. When all have answered and an entry is proved neither to be
there nor to be absent, the recovery gives up and nothing was decided: unknown never truncates (inv. 16, H9).
Source: docs/internals/invariants.md, recovery.
"""

import enum
from collections.abc import Sequence

from ...runtime.interfaces.errors import DistributedLogError, NoSuchLedger, RecoveryIncomplete
from ..model.ledger_metadata import (
    NO_ENTRY,
    Fragment,
    LedgerMetadata,
    LedgerState,
    append_or_replace_fragment,
)
from ..model.missing_range import merge_ranges
from ..write.ensemble_change import ChooseBookies
from ..write.pending_adds import PendingAdds, SlotStream
from .quorum_coverage import QuorumCoverage, describe_error
from .recovery_actions import (
    CloseLedger,
    FenceBookie,
    FoundEntry,
    OpenRecoveryStream,
    RecoveryAction,
    SendEntries,
)


class RecoveryPhase(enum.Enum):
    """Where a recovery stands."""

    FENCING = "fencing"
    READING = "reading"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class LedgerRecovery:
    """One attempt to recover one ledger. Every input returns what is to be done now."""

    def __init__(self, metadata: LedgerMetadata, choose: ChooseBookies) -> None:
        assert metadata.state is LedgerState.IN_RECOVERY, "recovery begins with IN_RECOVERY stored"
        self.metadata = metadata
        """The frozen copy: reads go to its last fragment whatever happens meanwhile."""
        self.phase = RecoveryPhase.FENCING
        self.error: DistributedLogError | None = None
        self.result: LedgerMetadata | None = None
        self.start_lac = NO_ENTRY
        """The highest LAC found, at least the entry before the last fragment (D2)."""
        self.last_entry: int | None = None
        """The last entry, once the absence of the next is proved."""
        self.ensembles: tuple[Fragment, ...] = metadata.ensembles
        """With the changes made here, which only the closing write makes visible."""
        self._choose = choose
        self._striping = metadata.striping
        self._frozen_fragment = metadata.last_fragment
        self.pending_adds = self._pending_adds_after(self._frozen_fragment.first_entry - 1)
        """What is written back; begins anew after ``start`` once that is known."""
        self._coverage = QuorumCoverage(self._striping, self._frozen_fragment.bookies)
        self._fence_lacs: dict[int, int] = {}
        self._fence_errors: dict[int, str] = {}
        self._length: int | None = None
        self._length_entry = NO_ENTRY - 1  # the entry that said so
        self._length_requests: dict[int, str] = {}
        self._length_errors: list[str] = []
        self._streams_open = False
        self._failed_bookies: list[str] = []  # bookies that failed a write here

    # --- fencing ----------------------------------------------------------------------------------

    def begin(self) -> list[RecoveryAction]:
        """What to do first."""
        return [
            FenceBookie(slot, bookie) for slot, bookie in enumerate(self._frozen_fragment.bookies)
        ]

    def on_fenced(self, slot: int, lac: int, proves_absence: bool) -> list[RecoveryAction]:
        """The ledger is durably fenced at this slot's bookie, which has seen ``lac``.

        ``known`` is False when the bookie says that it may have lost what it held (limbo).
        """
        if self.phase is not RecoveryPhase.FENCING:
            return []
        if not proves_absence:
            return self.on_fence_failed(slot, RecoveryIncomplete("fenced, but in limbo"))
        self._fence_lacs[slot] = lac
        if not self._striping.covered(self._fence_lacs):
            return self._checked([])
        first = self._frozen_fragment.first_entry
        self.start_lac = max(*self._fence_lacs.values(), first - 1)
        self.phase = RecoveryPhase.READING
        self.pending_adds = self._pending_adds_after(self.start_lac)
        actions: list[RecoveryAction] = []
        if self.start_lac == NO_ENTRY:
            self._record_length(NO_ENTRY, 0)
        elif self.start_lac < first:
            actions += self._request_length()
        # The entry at the LAC is read for the ledger's length; its absence decides nothing.
        self._coverage.begin(max(self.start_lac, first), self.start_lac + 1)
        return self._checked(actions + self._advance())

    def _pending_adds_after(self, lac: int) -> PendingAdds:
        frozen = self._frozen_fragment
        return PendingAdds(self._striping, frozen.bookies, lac=lac, epoch=frozen.epoch)

    def on_fence_failed(self, slot: int, error: DistributedLogError) -> list[RecoveryAction]:
        """No fence at this bookie: unknown."""
        if self.phase is not RecoveryPhase.FENCING:
            return []
        self._fence_errors[slot] = describe_error(error)
        possible = set(range(len(self._frozen_fragment.bookies))) - set(self._fence_errors)
        if not self._striping.covered(possible):
            self._fail_incomplete("the fence does not cover every write set")
        return self._checked([])

    @property
    def unfenced_bookies(self) -> set[str]:
        """Bookies of the frozen ensemble at which the fence failed."""
        return {self._frozen_fragment.bookies[slot] for slot in self._fence_errors}

    # --- reading ----------------------------------------------------------------------------------

    def on_read(
        self,
        request: int,
        complete_to: int,
        proves_absence: bool,
        entries: Sequence[FoundEntry],
        *,
        damaged: bool = False,
    ) -> list[RecoveryAction]:
        """A reply. ``found`` ascends; ``damaged``: the record after it did not fit its digest.

        Raises nothing: what a bookie says wrongly counts as unknown.
        """
        if request in self._length_requests:
            return self._on_length(request, entries)
        if self.phase is not RecoveryPhase.READING:
            return []
        accepted = self._coverage.on_read(
            request, complete_to, proves_absence, entries, damaged=damaged
        )
        if accepted is None:
            return []
        for entry in accepted:
            if entry.entry == self.start_lac:
                self._record_length(entry.entry, entry.length_so_far)
        return self._checked(self._advance())

    def on_read_failed(self, request: int, error: DistributedLogError) -> list[RecoveryAction]:
        """No answer: unknown. Damage of one entry at the bookie leaves the others askable."""
        if request in self._length_requests:
            self._length_errors.append(
                f"{self._length_requests.pop(request)}: {describe_error(error)}"
            )
            return self._checked(self._advance())
        if self.phase is not RecoveryPhase.READING or not self._coverage.on_read_failed(
            request, error
        ):
            return []
        return self._checked(self._advance())

    def _decide_entries(self) -> list[RecoveryAction]:
        """Decide entries in order, as far as the answers reach."""
        actions: list[RecoveryAction] = []
        last_before = self.pending_adds.last_entry
        while self.last_entry is None and self.error is None:
            entry = self._coverage.next_entry
            found_entry = self._coverage.copy_of_next()
            if found_entry is not None:  # inv. 17: one valid copy keeps it
                actions += self._write_back(found_entry)
                continue
            is_absent = self._coverage.absence(entry)
            if is_absent is None:
                break
            if is_absent:
                self.last_entry = entry - 1
                self._coverage.discard_found()
            else:
                self._fail_incomplete(
                    f"nobody has entry {entry}, and too few know that it is absent"
                )
        if self.pending_adds.last_entry > last_before:
            actions.append(SendEntries(self.pending_adds.last_entry))
        return actions

    # --- the ledger's length ----------------------------------------------------------------------

    def _request_length(self) -> list[RecoveryAction]:
        """The last fragment may be empty: the length then stands in an entry of the one before."""
        actions: list[RecoveryAction] = []
        fragment = self.metadata.fragment_of(self.start_lac)
        for slot in self._striping.write_set(self.start_lac):
            read = self._coverage.read(
                fragment.bookies[slot], self.start_lac, self.start_lac, fence=False
            )
            self._length_requests[read.request_id] = read.bookie
            actions.append(read)
        return actions

    def _on_length(self, request: int, entries: Sequence[FoundEntry]) -> list[RecoveryAction]:
        bookie = self._length_requests.pop(request)
        if entries and entries[0].entry == self.start_lac:
            self._record_length(self.start_lac, entries[0].length_so_far)
        else:
            self._length_errors.append(f"{bookie}: has no valid copy")
        return self._checked(self._advance())

    def _record_length(self, entry: int, length: int) -> None:
        """The highest entry decides: write-backs may be further than a late answer."""
        if entry >= self._length_entry:
            self._length_entry, self._length = entry, length

    # --- writing back -----------------------------------------------------------------------------

    def _write_back(self, found_entry: FoundEntry) -> list[RecoveryAction]:
        pending_adds = self.pending_adds
        actions: list[RecoveryAction] = []
        if not self._streams_open:
            self._streams_open = True
            actions += [
                OpenRecoveryStream(slot, slot_state.bookie)
                for slot, slot_state in enumerate(pending_adds.slots)
            ]
        entry = pending_adds.add(found_entry.record)
        assert entry == found_entry.entry == self._coverage.next_entry, (
            "recovery keeps entries in order, without a gap"
        )
        self._record_length(found_entry.entry, found_entry.length_so_far)
        self._coverage.advance()
        return actions

    def on_acked(self, stream: SlotStream, count: int) -> list[RecoveryAction]:
        """The first ``count`` records of a write-back stream are durable. Raises `ProtocolError`."""
        if self.phase is not RecoveryPhase.READING:
            return []
        self.pending_adds.on_acked(stream, count)
        return self._checked(self._advance())

    def on_write_failed(
        self, slot: int, bookie: str, error: DistributedLogError
    ) -> list[RecoveryAction]:
        """A bookie failed a write-back: replaced in the local ensemble only (inv. 18)."""
        pending_adds = self.pending_adds
        if self.phase is not RecoveryPhase.READING:
            return []
        if pending_adds.slots[slot].bookie != bookie or pending_adds.slots[slot].detached:
            return []  # late news
        self._failed_bookies.append(bookie)
        kept_bookies = {
            n: slot_state.bookie for n, slot_state in enumerate(pending_adds.slots) if n != slot
        }
        replacements = dict(self._choose([slot], kept_bookies, self._failed_bookies))
        actions: list[RecoveryAction] = []
        if replacements:
            first = pending_adds.begin_change()
            bookies = [
                replacements.get(n, slot_state.bookie)
                for n, slot_state in enumerate(pending_adds.slots)
            ]
            self.ensembles = append_or_replace_fragment(self.ensembles, first, bookies)
            pending_adds.end_change(replacements, self.ensembles[-1].epoch)
            actions += [
                OpenRecoveryStream(n, slot_state) for n, slot_state in sorted(replacements.items())
            ]
        else:
            attached = {
                n
                for n, slot_state in enumerate(pending_adds.slots)
                if not slot_state.detached and n != slot
            }
            if self._striping.keeps_ack_quorums(attached):
                pending_adds.detach(slot)
            else:
                self._fail_incomplete(
                    f"no bookie to write back to in place of {bookie}: {describe_error(error)}"
                )
        return self._checked(actions + self._advance())

    # --- closing ----------------------------------------------------------------------------------

    def _advance(self) -> list[RecoveryAction]:
        """Decide, ask for more, close: whatever can be done now."""
        if self.phase is not RecoveryPhase.READING or self.error is not None:
            return []
        actions = self._decide_entries()
        if self.error is not None:
            return []
        pending_adds = self.pending_adds
        if (
            self.last_entry is None or self._length is None
        ):  # at the end only the length is still wanted
            last_to_read = None if self.last_entry is None else self.start_lac
            actions += self._coverage.next_reads(last_to_read, pending_adds.in_flight_bytes)
        if self.last_entry is None or pending_adds.lac < self.last_entry:
            return actions
        if self._length is None:
            if not self._length_requests and not self._coverage.has_pending_reads:
                reason = "; ".join(self._length_errors) or self.describe_responses()
                self._fail_incomplete(
                    f"entry {self.start_lac} is confirmed, and no copy can be read ({reason})"
                )
            return actions
        self.phase = RecoveryPhase.CLOSING
        return [*actions, self._close(self.metadata)]

    def _close(self, stored: LedgerMetadata) -> CloseLedger:
        assert self.last_entry is not None
        assert self.pending_adds.lac == self.last_entry, (
            "inv. 17: what is kept is written back before the close"
        )
        assert self._length is not None, "the length is known before the close"
        closed = stored.close_by_recovery(self.last_entry, self._length, self.ensembles)
        return CloseLedger(
            closed, merge_ranges(self.pending_adds.all_missing_ranges(self.last_entry + 1))
        )

    def on_closed(self, metadata: LedgerMetadata) -> list[RecoveryAction]:
        """The store took the close."""
        assert self.phase is RecoveryPhase.CLOSING, "closed when asked to"
        self.phase, self.result = RecoveryPhase.DONE, metadata
        return self._checked([])

    def on_close_conflict(self, current: LedgerMetadata | None) -> list[RecoveryAction]:
        """The store holds something else: adopt a winner, or propose again (inv. 19)."""
        if self.phase is not RecoveryPhase.CLOSING:
            return []
        if current is None or current.state is LedgerState.DELETING:
            self._fail(NoSuchLedger(f"ledger {self.metadata.ledger_id} was deleted"))
        elif current.closed:
            self.phase, self.result = RecoveryPhase.DONE, current
        elif (
            current.state is LedgerState.IN_RECOVERY
            and current.ensembles == self.metadata.ensembles
        ):
            return self._checked([self._close(current)])
        else:  # never overwritten: entries may be where nobody looked
            self._fail_incomplete("the ledger's ensembles changed during the recovery")
        return self._checked([])

    def abandon(self, reason: str) -> list[RecoveryAction]:
        """The driver's deadline passed; nothing was decided."""
        if self.phase not in (RecoveryPhase.DONE, RecoveryPhase.FAILED):
            self._fail_incomplete(reason)
        return self._checked([])

    # --- giving up --------------------------------------------------------------------------------

    def describe_responses(self) -> str:
        """What each bookie of the frozen ensemble said, for messages."""
        descriptions = []
        fence_covers = self._striping.covered(self._fence_lacs)
        for slot, source in enumerate(self._coverage.replicas):
            fence = self._fence_errors.get(slot, "did not answer the fence")
            if slot in self._fence_lacs:
                fence = "fenced"
            read = f", {source.last_answer}" if fence_covers else ""
            descriptions.append(f"{source.bookie}: {fence}{read}")
        return "; ".join(descriptions)

    def _fail_incomplete(self, reason: str) -> None:
        self._fail(
            RecoveryIncomplete(
                f"ledger {self.metadata.ledger_id}: {reason} ({self.describe_responses()}); nothing was "
                "decided"
            )
        )

    def _fail(self, error: DistributedLogError) -> None:
        self.error, self.phase = error, RecoveryPhase.FAILED

    # --- invariants -------------------------------------------------------------------------------

    def _checked(self, actions: list[RecoveryAction]) -> list[RecoveryAction]:
        self._check_invariants()
        return actions

    def _check_invariants(self) -> None:
        if self.phase in (RecoveryPhase.READING, RecoveryPhase.CLOSING):
            pending_adds = self.pending_adds
            assert self._striping.covered(self._fence_lacs), "inv. 14: the fence covers"
            assert self.start_lac >= self._frozen_fragment.first_entry - 1, (
                "D2: not below the last fragment"
            )
            assert pending_adds.last_entry == self._coverage.next_entry - 1, (
                "what is kept is written back, in order"
            )
            kept_count = len(self.metadata.ensembles) - 1
            assert self.ensembles[:kept_count] == self.metadata.ensembles[:kept_count], (
                "inv. 21: others stay"
            )
            assert (
                tuple(s.bookie for s in self._coverage.replicas) == self._frozen_fragment.bookies
            ), "inv. 15: read from the frozen ensemble"
            assert self.last_entry is None or pending_adds.lac <= self.last_entry, (
                "nothing after the end is kept"
            )
