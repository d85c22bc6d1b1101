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
from ..model.ledger_metadata import NO_ENTRY, Fragment, LedgerMetadata, LedgerState, change_last
from ..model.missing_range import merged
from ..write.ensemble_change import Choose
from ..write.pending_adds import PendingAdds, SlotStream
from .quorum_coverage import QuorumCoverage, describe_error
from .recovery_actions import Action, Close, Fence, FoundEntry, OpenRecoveryStream, Send


class Phase(enum.Enum):
    """Where a recovery stands."""

    FENCING = "fencing"
    READING = "reading"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class Recovery:
    """One attempt to recover one ledger. Every input returns what is to be done now."""

    def __init__(self, metadata: LedgerMetadata, choose: Choose) -> None:
        assert metadata.state is LedgerState.IN_RECOVERY, "recovery begins with IN_RECOVERY stored"
        self.metadata = metadata
        """The frozen copy: reads go to its last fragment whatever happens meanwhile."""
        self.phase = Phase.FENCING
        self.error: DistributedLogError | None = None
        self.result: LedgerMetadata | None = None
        self.start = NO_ENTRY
        """The highest LAC found, at least the entry before the last fragment (D2)."""
        self.end: int | None = None
        """The last entry, once the absence of the next is proved."""
        self.ensembles: tuple[Fragment, ...] = metadata.ensembles
        """With the changes made here, which only the closing write makes visible."""
        self._choose = choose
        self._striping = metadata.striping
        self._frozen = metadata.last_fragment
        self.window = self._window_after(self._frozen.first_entry - 1)
        """What is written back; begins anew after ``start`` once that is known."""
        self._evidence = QuorumCoverage(self._striping, self._frozen.bookies)
        self._fence_lacs: dict[int, int] = {}
        self._fence_errors: dict[int, str] = {}
        self._length: int | None = None
        self._length_at = NO_ENTRY - 1  # the entry that said so
        self._length_requests: dict[int, str] = {}
        self._length_errors: list[str] = []
        self._streams_open = False
        self._bad: list[str] = []  # bookies that failed a write here

    # --- fencing ----------------------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """What to do first."""
        return [Fence(slot, bookie) for slot, bookie in enumerate(self._frozen.bookies)]

    def on_fenced(self, slot: int, lac: int, known: bool) -> list[Action]:
        """The ledger is durably fenced at this slot's bookie, which has seen ``lac``.

        ``known`` is False when the bookie says that it may have lost what it held (limbo).
        """
        if self.phase is not Phase.FENCING:
            return []
        if not known:
            return self.on_fence_failed(slot, RecoveryIncomplete("fenced, but in limbo"))
        self._fence_lacs[slot] = lac
        if not self._striping.covered(self._fence_lacs):
            return self._end_input([])
        first = self._frozen.first_entry
        self.start = max(*self._fence_lacs.values(), first - 1)
        self.phase = Phase.READING
        self.window = self._window_after(self.start)
        actions: list[Action] = []
        if self.start == NO_ENTRY:
            self._note_length(NO_ENTRY, 0)
        elif self.start < first:
            actions += self._ask_length()
        # The entry at the LAC is read for the ledger's length; its absence decides nothing.
        self._evidence.begin(max(self.start, first), self.start + 1)
        return self._end_input(actions + self._progress())

    def _window_after(self, lac: int) -> PendingAdds:
        frozen = self._frozen
        return PendingAdds(self._striping, frozen.bookies, lac=lac, epoch=frozen.epoch)

    def on_fence_failed(self, slot: int, error: DistributedLogError) -> list[Action]:
        """No fence at this bookie: unknown."""
        if self.phase is not Phase.FENCING:
            return []
        self._fence_errors[slot] = describe_error(error)
        possible = set(range(len(self._frozen.bookies))) - set(self._fence_errors)
        if not self._striping.covered(possible):
            self._give_up("the fence does not cover every write set")
        return self._end_input([])

    @property
    def unfenced(self) -> set[str]:
        """Bookies of the frozen ensemble at which the fence failed."""
        return {self._frozen.bookies[slot] for slot in self._fence_errors}

    # --- reading ----------------------------------------------------------------------------------

    def on_read(
        self,
        request: int,
        complete_to: int,
        known: bool,
        found: Sequence[FoundEntry],
        *,
        damaged: bool = False,
    ) -> list[Action]:
        """A reply. ``found`` ascends; ``damaged``: the record after it did not fit its digest.

        Raises nothing: what a bookie says wrongly counts as unknown.
        """
        if request in self._length_requests:
            return self._on_length(request, found)
        if self.phase is not Phase.READING:
            return []
        taken = self._evidence.on_read(request, complete_to, known, found, damaged=damaged)
        if taken is None:
            return []
        for one in taken:
            if one.entry == self.start:
                self._note_length(one.entry, one.length_so_far)
        return self._end_input(self._progress())

    def on_read_failed(self, request: int, error: DistributedLogError) -> list[Action]:
        """No answer: unknown. Damage of one entry at the bookie leaves the others askable."""
        if request in self._length_requests:
            self._length_errors.append(
                f"{self._length_requests.pop(request)}: {describe_error(error)}"
            )
            return self._end_input(self._progress())
        if self.phase is not Phase.READING or not self._evidence.on_read_failed(request, error):
            return []
        return self._end_input(self._progress())

    def _decide(self) -> list[Action]:
        """Decide entries in order, as far as the answers reach."""
        actions: list[Action] = []
        before = self.window.last
        while self.end is None and self.error is None:
            entry = self._evidence.next
            found = self._evidence.found()
            if found is not None:  # inv. 17: one valid copy keeps it
                actions += self._write_back(found)
                continue
            verdict = self._evidence.absence(entry)
            if verdict is None:
                break
            if verdict:
                self.end = entry - 1
                self._evidence.forget()
            else:
                self._give_up(f"nobody has entry {entry}, and too few know that it is absent")
        if self.window.last > before:
            actions.append(Send(self.window.last))
        return actions

    # --- the ledger's length ----------------------------------------------------------------------

    def _ask_length(self) -> list[Action]:
        """The last fragment may be empty: the length then stands in an entry of the one before."""
        actions: list[Action] = []
        fragment = self.metadata.fragment_of(self.start)
        for slot in self._striping.write_set(self.start):
            read = self._evidence.read(fragment.bookies[slot], self.start, self.start, fence=False)
            self._length_requests[read.request] = read.bookie
            actions.append(read)
        return actions

    def _on_length(self, request: int, found: Sequence[FoundEntry]) -> list[Action]:
        bookie = self._length_requests.pop(request)
        if found and found[0].entry == self.start:
            self._note_length(self.start, found[0].length_so_far)
        else:
            self._length_errors.append(f"{bookie}: has no valid copy")
        return self._end_input(self._progress())

    def _note_length(self, entry: int, length: int) -> None:
        """The highest entry decides: write-backs may be further than a late answer."""
        if entry >= self._length_at:
            self._length_at, self._length = entry, length

    # --- writing back -----------------------------------------------------------------------------

    def _write_back(self, found: FoundEntry) -> list[Action]:
        window = self.window
        actions: list[Action] = []
        if not self._streams_open:
            self._streams_open = True
            actions += [
                OpenRecoveryStream(slot, one.bookie) for slot, one in enumerate(window.slots)
            ]
        pushed = window.push(found.record)
        assert pushed == found.entry == self._evidence.next, (
            "recovery keeps entries in order, without a gap"
        )
        self._note_length(found.entry, found.length_so_far)
        self._evidence.take()
        return actions

    def on_acked(self, stream: SlotStream, count: int) -> list[Action]:
        """The first ``count`` records of a write-back stream are durable. Raises `ProtocolError`."""
        if self.phase is not Phase.READING:
            return []
        self.window.on_acked(stream, count)
        return self._end_input(self._progress())

    def on_write_failed(self, slot: int, bookie: str, error: DistributedLogError) -> list[Action]:
        """A bookie failed a write-back: replaced in the local ensemble only (inv. 18)."""
        window = self.window
        if self.phase is not Phase.READING:
            return []
        if window.slots[slot].bookie != bookie or window.slots[slot].detached:
            return []  # late news
        self._bad.append(bookie)
        kept = {n: one.bookie for n, one in enumerate(window.slots) if n != slot}
        replaced = dict(self._choose([slot], kept, self._bad))
        actions: list[Action] = []
        if replaced:
            first = window.begin_change()
            bookies = [replaced.get(n, one.bookie) for n, one in enumerate(window.slots)]
            self.ensembles = change_last(self.ensembles, first, bookies)
            window.end_change(replaced, self.ensembles[-1].epoch)
            actions += [OpenRecoveryStream(n, one) for n, one in sorted(replaced.items())]
        else:
            attached = {n for n, one in enumerate(window.slots) if not one.detached and n != slot}
            if self._striping.ackable(attached):
                window.detach(slot)
            else:
                self._give_up(
                    f"no bookie to write back to in place of {bookie}: {describe_error(error)}"
                )
        return self._end_input(actions + self._progress())

    # --- closing ----------------------------------------------------------------------------------

    def _progress(self) -> list[Action]:
        """Decide, ask for more, close: whatever can be done now."""
        if self.phase is not Phase.READING or self.error is not None:
            return []
        actions = self._decide()
        if self.error is not None:
            return []
        window = self.window
        if self.end is None or self._length is None:  # at the end only the length is still wanted
            last_wanted = None if self.end is None else self.start
            actions += self._evidence.ask(last_wanted, window.in_flight_bytes)
        if self.end is None or window.lac < self.end:
            return actions
        if self._length is None:
            if not self._length_requests and not self._evidence.waiting:
                why = "; ".join(self._length_errors) or self.answers()
                self._give_up(f"entry {self.start} is confirmed, and no copy can be read ({why})")
            return actions
        self.phase = Phase.CLOSING
        return [*actions, self._close(self.metadata)]

    def _close(self, stored: LedgerMetadata) -> Close:
        assert self.end is not None
        assert self.window.lac == self.end, "inv. 17: what is kept is written back before the close"
        assert self._length is not None, "the length is known before the close"
        closed = stored.close_by_recovery(self.end, self._length, self.ensembles)
        return Close(closed, merged(self.window.all_holes(self.end + 1)))

    def on_closed(self, metadata: LedgerMetadata) -> list[Action]:
        """The store took the close."""
        assert self.phase is Phase.CLOSING, "closed when asked to"
        self.phase, self.result = Phase.DONE, metadata
        return self._end_input([])

    def on_close_conflict(self, current: LedgerMetadata | None) -> list[Action]:
        """The store holds something else: adopt a winner, or propose again (inv. 19)."""
        if self.phase is not Phase.CLOSING:
            return []
        if current is None or current.state is LedgerState.DELETING:
            self._fail(NoSuchLedger(f"ledger {self.metadata.ledger_id} was deleted"))
        elif current.closed:
            self.phase, self.result = Phase.DONE, current
        elif (
            current.state is LedgerState.IN_RECOVERY
            and current.ensembles == self.metadata.ensembles
        ):
            return self._end_input([self._close(current)])
        else:  # never overwritten: entries may be where nobody looked
            self._give_up("the ledger's ensembles changed during the recovery")
        return self._end_input([])

    def abandon(self, why: str) -> list[Action]:
        """The driver's deadline passed; nothing was decided."""
        if self.phase not in (Phase.DONE, Phase.FAILED):
            self._give_up(why)
        return self._end_input([])

    # --- giving up --------------------------------------------------------------------------------

    def answers(self) -> str:
        """What each bookie of the frozen ensemble said, for messages."""
        answers = []
        reading = self._striping.covered(self._fence_lacs)
        for slot, source in enumerate(self._evidence.sources):
            fence = self._fence_errors.get(slot, "did not answer the fence")
            if slot in self._fence_lacs:
                fence = "fenced"
            read = f", {source.last_answer}" if reading else ""
            answers.append(f"{source.bookie}: {fence}{read}")
        return "; ".join(answers)

    def _give_up(self, why: str) -> None:
        self._fail(
            RecoveryIncomplete(
                f"ledger {self.metadata.ledger_id}: {why} ({self.answers()}); nothing was decided"
            )
        )

    def _fail(self, error: DistributedLogError) -> None:
        self.error, self.phase = error, Phase.FAILED

    # --- invariants -------------------------------------------------------------------------------

    def _end_input(self, actions: list[Action]) -> list[Action]:
        self._check()
        return actions

    def _check(self) -> None:
        if self.phase in (Phase.READING, Phase.CLOSING):
            window = self.window
            assert self._striping.covered(self._fence_lacs), "inv. 14: the fence covers"
            assert self.start >= self._frozen.first_entry - 1, "D2: not below the last fragment"
            assert window.last == self._evidence.next - 1, "what is kept is written back, in order"
            kept = len(self.metadata.ensembles) - 1
            assert self.ensembles[:kept] == self.metadata.ensembles[:kept], "inv. 21: others stay"
            assert tuple(s.bookie for s in self._evidence.sources) == self._frozen.bookies, (
                "inv. 15: read from the frozen ensemble"
            )
            assert self.end is None or window.lac <= self.end, "nothing after the end is kept"
