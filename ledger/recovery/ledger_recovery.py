"""Find the end of a ledger after its writer failed: fence, read, write back, close (pure).

- **Fence** all bookies of the last fragment. Continue when every write set is covered (inv. 14).
- **Read** from the highest LAC, from the ensemble as stored at the start (inv. 15), from all bookies
  concurrently, in ranges. Every read fences, too (D1).
- **Write back** each entry that at least one bookie has, unchanged and in order, to the ack quorum of an
  ensemble that changes only here (inv. 17, 18). The records keep their original LAC, so no LAC above the
  starting one is published (D18).
- **Close** with one compare-and-set from IN_RECOVERY, with the ensembles of the recovery. If another
  recovery was faster, adopt its result (inv. 19).

`quorum_coverage.py` defines what the answers prove. If all bookies have answered and an entry is neither
present nor proved absent, the recovery fails and decides nothing. An unknown entry never truncates a ledger
(inv. 16, H9). Source: docs/internals/invariants.md, recovery.
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
    """The phases of a recovery."""

    FENCING = "fencing"
    READING = "reading"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class LedgerRecovery:
    """One attempt to recover one ledger. Every method for an input returns the next actions."""

    def __init__(self, metadata: LedgerMetadata, choose: ChooseBookies) -> None:
        assert metadata.state is LedgerState.IN_RECOVERY, "recovery begins with IN_RECOVERY stored"
        self.metadata = metadata
        """The record at the start. Reads use its last fragment, even if the stored record changes."""
        self.phase = RecoveryPhase.FENCING
        self.error: DistributedLogError | None = None
        self.result: LedgerMetadata | None = None
        self.start_lac = NO_ENTRY
        """The highest LAC found, at least the entry before the last fragment (D2)."""
        self.last_entry: int | None = None
        """The last entry, set when the absence of the next one is proved."""
        self.ensembles: tuple[Fragment, ...] = metadata.ensembles
        """The ensembles, including changes of this recovery, which only the closing transaction publishes."""
        self._choose = choose
        self._striping = metadata.striping
        self._starting_fragment = metadata.last_fragment
        self.pending_adds = self._pending_adds_after(self._starting_fragment.first_entry - 1)
        """The entries to write back. It is created again when the starting LAC is determined."""
        self._coverage = QuorumCoverage(self._striping, self._starting_fragment.bookies)
        self._fence_lacs: dict[int, int] = {}
        self._fence_errors: dict[int, str] = {}
        self._length: int | None = None
        self._length_entry = NO_ENTRY - 1  # the entry that the length is from
        self._length_requests: dict[int, str] = {}
        self._length_errors: list[str] = []
        self._streams_open = False
        self._failed_bookies: list[str] = []  # bookies that failed a write in this recovery

    # --- fencing ----------------------------------------------------------------------------------

    def begin(self) -> list[RecoveryAction]:
        """Return the first actions."""
        return [
            FenceBookie(slot, bookie) for slot, bookie in enumerate(self._starting_fragment.bookies)
        ]

    def on_fenced(self, slot: int, lac: int, proves_absence: bool) -> list[RecoveryAction]:
        """Process the answer that a slot's bookie has durably fenced the ledger.

        Args:
            slot: The slot.
            lac: The highest LAC that the bookie has seen.
            proves_absence: False if the bookie is in the limbo state: it may have lost entries.
        """
        if self.phase is not RecoveryPhase.FENCING:
            return []
        if not proves_absence:
            return self.on_fence_failed(slot, RecoveryIncomplete("fenced, but in the limbo state"))
        self._fence_lacs[slot] = lac
        if not self._striping.covered(self._fence_lacs):
            return self._checked([])
        first = self._starting_fragment.first_entry
        self.start_lac = max(*self._fence_lacs.values(), first - 1)
        self.phase = RecoveryPhase.READING
        self.pending_adds = self._pending_adds_after(self.start_lac)
        actions: list[RecoveryAction] = []
        if self.start_lac == NO_ENTRY:
            self._record_length(NO_ENTRY, 0)
        elif self.start_lac < first:
            actions += self._request_length()
        # The entry at the LAC is read for the ledger's length. Its absence decides nothing.
        self._coverage.begin(max(self.start_lac, first), self.start_lac + 1)
        return self._checked(actions + self._advance())

    def _pending_adds_after(self, lac: int) -> PendingAdds:
        starting_fragment = self._starting_fragment
        return PendingAdds(
            self._striping, starting_fragment.bookies, lac=lac, epoch=starting_fragment.epoch
        )

    def on_fence_failed(self, slot: int, error: DistributedLogError) -> list[RecoveryAction]:
        """Process a failed fence. The state of this bookie is unknown."""
        if self.phase is not RecoveryPhase.FENCING:
            return []
        self._fence_errors[slot] = describe_error(error)
        possible = set(range(len(self._starting_fragment.bookies))) - set(self._fence_errors)
        if not self._striping.covered(possible):
            self._fail_incomplete("the fence does not cover every write set")
        return self._checked([])

    @property
    def unfenced_bookies(self) -> set[str]:
        """Bookies of the starting ensemble at which the fence failed."""
        return {self._starting_fragment.bookies[slot] for slot in self._fence_errors}

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
        """Process the reply to a read.

        Args:
            request: The ID of the request.
            complete_to: The last entry for which the reply is complete.
            proves_absence: Whether the bookie proves the absence of entries that it did not return.
            entries: The returned entries, ascending.
            damaged: Whether the digest of the record after ``entries`` did not match.
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
        """Process a failed read: the state is unknown.

        If one entry is damaged at the bookie, others are still read.
        """
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
        """Decide entries in order, as far as the answers allow."""
        actions: list[RecoveryAction] = []
        last_before = self.pending_adds.last_entry
        while self.last_entry is None and self.error is None:
            entry = self._coverage.next_entry
            found_entry = self._coverage.copy_of_next()
            if found_entry is not None:  # inv. 17: one valid copy keeps the entry
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
                    f"no bookie has entry {entry}, and too few bookies prove that it is absent"
                )
        if self.pending_adds.last_entry > last_before:
            actions.append(SendEntries(self.pending_adds.last_entry))
        return actions

    # --- the ledger's length ----------------------------------------------------------------------

    def _request_length(self) -> list[RecoveryAction]:
        """Request the entry at the starting LAC.

        If the last fragment is empty, an entry of an earlier one has the ledger's length.
        """
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
        """Record the length of the highest entry, because a late answer may be for an earlier one."""
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
            "recovery writes back entries in order, without a gap"
        )
        self._record_length(found_entry.entry, found_entry.length_so_far)
        self._coverage.advance()
        return actions

    def on_acked(self, stream: SlotStream, count: int) -> list[RecoveryAction]:
        """Process the acknowledgement of the first ``count`` records of a write-back stream.

        Raises:
            ProtocolError: The count is invalid.
        """
        if self.phase is not RecoveryPhase.READING:
            return []
        self.pending_adds.on_acked(stream, count)
        return self._checked(self._advance())

    def on_write_failed(
        self, slot: int, bookie: str, error: DistributedLogError
    ) -> list[RecoveryAction]:
        """Process a failed write-back. The bookie is replaced in the local ensemble only (inv. 18)."""
        pending_adds = self.pending_adds
        if self.phase is not RecoveryPhase.READING:
            return []
        if pending_adds.slots[slot].bookie != bookie or pending_adds.slots[slot].detached:
            return []  # a late report
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
                    f"no bookie can replace {bookie} for write-back: {describe_error(error)}"
                )
        return self._checked(actions + self._advance())

    # --- closing ----------------------------------------------------------------------------------

    def _advance(self) -> list[RecoveryAction]:
        """Decide entries, request more reads, or close, as far as possible now."""
        if self.phase is not RecoveryPhase.READING or self.error is not None:
            return []
        actions = self._decide_entries()
        if self.error is not None:
            return []
        pending_adds = self.pending_adds
        if self.last_entry is None or self._length is None:  # at the end only the length is missing
            last_to_read = None if self.last_entry is None else self.start_lac
            actions += self._coverage.next_reads(last_to_read, pending_adds.in_flight_bytes)
        if self.last_entry is None or pending_adds.lac < self.last_entry:
            return actions
        if self._length is None:
            if not self._length_requests and not self._coverage.has_pending_reads:
                reason = "; ".join(self._length_errors) or self.describe_responses()
                self._fail_incomplete(
                    f"entry {self.start_lac} is confirmed, but no copy is readable ({reason})"
                )
            return actions
        self.phase = RecoveryPhase.CLOSING
        return [*actions, self._close(self.metadata)]

    def _close(self, stored: LedgerMetadata) -> CloseLedger:
        assert self.last_entry is not None
        assert self.pending_adds.lac == self.last_entry, (
            "inv. 17: kept entries are written back before the close"
        )
        assert self._length is not None, "the length is set before the close"
        closed = stored.close_by_recovery(self.last_entry, self._length, self.ensembles)
        return CloseLedger(
            closed, merge_ranges(self.pending_adds.all_missing_ranges(self.last_entry + 1))
        )

    def on_closed(self, metadata: LedgerMetadata) -> list[RecoveryAction]:
        """Process the success of the close."""
        assert self.phase is RecoveryPhase.CLOSING, "a close was requested"
        self.phase, self.result = RecoveryPhase.DONE, metadata
        return self._checked([])

    def on_close_conflict(self, current: LedgerMetadata | None) -> list[RecoveryAction]:
        """Process a failed compare-and-set: adopt the result of another recovery, or retry (inv. 19)."""
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
        else:  # never overwrite: entries may be on bookies that were not read
            self._fail_incomplete("the ledger's ensembles changed during the recovery")
        return self._checked([])

    def abandon(self, reason: str) -> list[RecoveryAction]:
        """Fail without a decision, because the driver cannot continue."""
        if self.phase not in (RecoveryPhase.DONE, RecoveryPhase.FAILED):
            self._fail_incomplete(reason)
        return self._checked([])

    # --- giving up --------------------------------------------------------------------------------

    def describe_responses(self) -> str:
        """Return the answers of all bookies of the starting ensemble, for messages."""
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
                f"ledger {self.metadata.ledger_id}: {reason} ({self.describe_responses()}); "
                "nothing was decided"
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
            assert self.start_lac >= self._starting_fragment.first_entry - 1, (
                "D2: not below the last fragment"
            )
            assert pending_adds.last_entry == self._coverage.next_entry - 1, (
                "kept entries are written back in order"
            )
            kept_count = len(self.metadata.ensembles) - 1
            assert self.ensembles[:kept_count] == self.metadata.ensembles[:kept_count], (
                "inv. 21: earlier fragments stay"
            )
            assert (
                tuple(s.bookie for s in self._coverage.replicas) == self._starting_fragment.bookies
            ), "inv. 15: reads use the starting ensemble"
            assert self.last_entry is None or pending_adds.lac <= self.last_entry, (
                "no entry after the end is kept"
            )
