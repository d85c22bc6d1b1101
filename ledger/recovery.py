"""Finding a ledger's end when its writer is gone: fence, read, write back, close (pure).

    fence      all bookies of the last fragment; go on when every write set is covered (inv. 14)
    read       from the highest LAC on, from the ensemble as it was at the start (inv. 15), all bookies at
               once, in ranges; every read fences as well (D1)
    write back what any one bookie has, verbatim, in order, to the ack quorum of an ensemble that changes
               here only (inv. 17, 18); the records keep the LAC they were made with, so nothing beyond
               the starting LAC is published (D18)
    close      one compare-and-set from IN_RECOVERY, with the remembered fragments; the loser adopts (inv. 19)

An entry is absent when Qw-Qa+1 bookies of its write set say so in so many words. Errors, silence, damage,
limbo, and ids beyond a reply's ``complete_to`` are unknown, and unknown never truncates (inv. 16, H9):
when all have answered and neither is proved, the recovery gives up and nothing was decided.
Source: bookkeeper.md 2.8.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..runtime.errors import (
    CorruptData,
    DistributedLogError,
    NoSuchLedger,
    RecoveryIncomplete,
)
from ..runtime.host import Buffer
from .add_window import AddWindow, Stream
from .ensemble_change import Choose
from .holes import Hole, merged
from .metadata import NO_ENTRY, Fragment, LedgerMetadata, LedgerState, change_last
from .striping import Striping

READ_IDS = 4096
"""Entries asked for in one read; the reply's bytes are bounded besides."""
READ_BYTES = 1024 * 1024
HELD_BYTES_MAX = 32 * 1024 * 1024
"""Records read and not yet written back; above this no more are asked for."""
DAMAGED_MAX = 1000
"""A bookie with more damaged entries than this is asked no more."""


class Phase(enum.Enum):
    """Where a recovery stands."""

    FENCING = "fencing"
    READING = "reading"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


# --- what the driver must do --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask this bookie to fence the ledger; answer with `on_fenced` or `on_fence_failed`."""

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for a range; answer with `on_read` or `on_read_failed`."""

    request: int
    bookie: str
    first: int
    last: int
    bytes_max: int
    fence: bool


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open a recovery add stream for this slot, beginning with what the window says is unsent to it.
    Report `on_acked` and `on_write_failed`.
    """

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class Send:
    """The window has new entries, up to ``through``: send them on every open stream that holds them."""

    through: int


@dataclass(frozen=True, slots=True)
class Close:
    """Write this record, if the store's is still the version read; answer with `on_closed` or
    `on_close_conflict`.
    """

    metadata: LedgerMetadata
    holes: tuple[Hole, ...]


Action = Fence | Read | OpenStream | Send | Close


@dataclass(frozen=True, slots=True)
class Found:
    """One digest-valid record of a read reply."""

    entry: int
    length_so_far: int
    payload_bytes: int
    record: Buffer


@dataclass(slots=True)
class _Source:
    """One slot of the frozen ensemble, as a source of answers."""

    bookie: str
    answered_to: int = 0
    """All entries below that the slot holds are answered, from the start of the reading on."""
    asked: int | None = None
    """The request under way."""
    unknown: set[int] = field(default_factory=set)
    """Answered with damage: neither yes nor no."""
    limbo: bool = False
    """Says itself that what it does not have it may have lost."""
    damaged: int = 0
    damaged_at: int = -1
    failed: DistributedLogError | None = None
    """Answers nothing more."""
    last_answer: str = "not asked"


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
        self.window: AddWindow | None = None
        self._choose = choose
        self._striping = Striping(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._frozen = metadata.last_fragment
        self._sources = [_Source(bookie) for bookie in self._frozen.bookies]
        self._fence_lacs: dict[int, int] = {}
        self._fence_errors: dict[int, str] = {}
        self._next = 0
        self._found: dict[int, Found] = {}
        self._found_bytes = 0
        self._length: int | None = None
        self._length_at = NO_ENTRY - 1  # the entry that said so
        self._requests: dict[int, tuple[int, Read]] = {}  # request -> (slot, read)
        self._length_requests: dict[int, str] = {}
        self._length_errors: list[str] = []
        self._last_request = 0
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
        self._next = self.start + 1
        self.window = AddWindow(
            self._striping, self._frozen.bookies, lac=self.start, epoch=self._frozen.epoch
        )
        actions: list[Action] = []
        if self.start == NO_ENTRY:
            self._note_length(NO_ENTRY, 0)
        elif self.start < first:
            actions += self._ask_length()
        for source in self._sources:
            # The entry at the LAC is read for the ledger's length; its absence decides nothing.
            source.answered_to = max(self.start, first)
        return self._end_input(actions + self._progress())

    def on_fence_failed(self, slot: int, error: DistributedLogError) -> list[Action]:
        """No fence at this bookie: unknown."""
        if self.phase is not Phase.FENCING:
            return []
        self._fence_errors[slot] = _said(error)
        possible = set(range(len(self._sources))) - set(self._fence_errors)
        if not self._striping.covered(possible):
            self._give_up("the fence does not cover every write set")
        return self._end_input([])

    # --- reading ----------------------------------------------------------------------------------

    def on_read(
        self,
        request: int,
        complete_to: int,
        known: bool,
        found: Sequence[Found],
        *,
        damaged: bool = False,
    ) -> list[Action]:
        """A reply. ``found`` ascends; ``damaged``: the record behind it did not fit its digest.

        Raises nothing: what a bookie says wrongly counts as unknown.
        """
        if request in self._length_requests:
            return self._on_length(request, found)
        slot, read = self._requests.pop(request, (-1, None))
        if read is None or self.phase is not Phase.READING:
            return []
        source = self._sources[slot]
        source.asked = None
        source.limbo = source.limbo or not known
        complete_to = min(complete_to, read.last)
        if damaged:
            complete_to = min(complete_to, found[-1].entry if found else read.first - 1)
        for one in found:
            if read.first <= one.entry <= complete_to and one.entry >= source.answered_to:
                self._take(one)
        source.answered_to = max(source.answered_to, complete_to + 1)
        source.last_answer = "answered" + (" from limbo" if source.limbo else "")
        if damaged:
            self._on_damage(source)
        elif complete_to < read.first:
            # Neither a record nor a proof of absence for the first id asked: no progress is possible.
            source.failed = RecoveryIncomplete(f"cannot say whether it has entry {read.first}")
        return self._end_input(self._progress())

    def on_read_failed(self, request: int, error: DistributedLogError) -> list[Action]:
        """No answer: unknown. Damage of one entry at the bookie leaves the others askable."""
        if request in self._length_requests:
            self._length_errors.append(f"{self._length_requests.pop(request)}: {_said(error)}")
            return self._end_input(self._progress())
        slot, read = self._requests.pop(request, (-1, None))
        if read is None or self.phase is not Phase.READING:
            return []
        source = self._sources[slot]
        source.asked = None
        source.last_answer = _said(error)
        if isinstance(error, CorruptData):
            self._on_damage(source)
        else:
            source.failed = error
        return self._end_input(self._progress())

    def _on_damage(self, source: _Source) -> None:
        """Ask once more (H16); then this one entry is unknown here, and those behind it are asked for."""
        source.last_answer = f"entry {source.answered_to} is damaged"
        if source.damaged_at != source.answered_to:
            source.damaged_at = source.answered_to
            return
        source.unknown.add(source.answered_to)
        source.answered_to += 1
        source.damaged += 1
        if source.damaged > DAMAGED_MAX:
            source.failed = CorruptData(f"more than {DAMAGED_MAX} damaged entries")

    def _take(self, found: Found) -> None:
        if found.entry == self.start:
            self._note_length(found.entry, found.length_so_far)
        if found.entry >= self._next and found.entry not in self._found:
            self._found[found.entry] = found
            self._found_bytes += len(found.record)

    def _decide(self) -> list[Action]:
        """Decide entries in order, as far as the answers reach."""
        assert self.window is not None
        actions: list[Action] = []
        before = self.window.last
        while self.end is None and self.error is None:
            entry = self._next
            found = self._found.get(entry)
            if found is not None:  # inv. 17: one valid copy keeps it
                actions += self._write_back(found)
                continue
            verdict = self._absence(entry)
            if verdict is None:
                break
            if verdict:
                self.end = entry - 1
                self._found.clear()  # what lies behind a gap was never acked
            else:
                self._give_up(f"nobody has entry {entry}, and too few know that it is absent")
        if self.window.last > before:
            actions.append(Send(self.window.last))
        return actions

    def _absence(self, entry: int) -> bool | None:
        """Is the absence of ``entry`` proved (True), not provable any more (False), or open (None)?"""
        negatives, waiting = 0, False
        for slot in self._striping.write_set(entry):
            source = self._sources[slot]
            if entry < source.answered_to:
                if entry not in source.unknown and not source.limbo:
                    negatives += 1
            elif source.failed is None:
                waiting = True
        if negatives >= self._striping.absent_quorum:
            return True
        return None if waiting else False

    def _ask(self) -> list[Action]:
        """One range read under way to each source that is not far ahead."""
        actions: list[Action] = []
        if self.end is not None and self._length is not None:
            return actions
        for slot, source in enumerate(self._sources):
            if source.failed is not None or source.asked is not None:
                continue
            first = self._striping.next_held(slot, source.answered_to)
            if self.end is not None and first > self.start:
                continue  # only the length is still wanted
            if first > self._next and self._held_bytes() >= HELD_BYTES_MAX:
                continue
            if first > self._next + READ_IDS:
                continue
            source.answered_to = first
            read = self._read(source.bookie, first, first + READ_IDS - 1, fence=True)
            source.asked = read.request
            source.last_answer = "did not answer a read"
            self._requests[read.request] = (slot, read)
            actions.append(read)
        return actions

    def _read(self, bookie: str, first: int, last: int, *, fence: bool) -> Read:
        self._last_request += 1
        return Read(self._last_request, bookie, first, last, READ_BYTES, fence)

    def _held_bytes(self) -> int:
        assert self.window is not None
        return self._found_bytes + self.window.in_flight_bytes

    # --- the ledger's length ----------------------------------------------------------------------

    def _ask_length(self) -> list[Action]:
        """The last fragment may be empty: the length then stands in an entry of the one before."""
        actions: list[Action] = []
        fragment = self.metadata.fragment_of(self.start)
        for slot in self._striping.write_set(self.start):
            read = self._read(fragment.bookies[slot], self.start, self.start, fence=False)
            self._length_requests[read.request] = read.bookie
            actions.append(read)
        return actions

    def _on_length(self, request: int, found: Sequence[Found]) -> list[Action]:
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

    def _write_back(self, found: Found) -> list[Action]:
        window = self.window
        assert window is not None
        actions: list[Action] = []
        if not self._streams_open:
            self._streams_open = True
            actions += [OpenStream(slot, one.bookie) for slot, one in enumerate(window.slots)]
        pushed = window.push(found.record)
        assert pushed == found.entry == self._next, "recovery keeps entries in order, without a gap"
        self._note_length(found.entry, found.length_so_far)
        del self._found[found.entry]
        self._found_bytes -= len(found.record)
        self._next += 1
        for source in self._sources:
            source.unknown.discard(found.entry)
        return actions

    def on_acked(self, stream: Stream, count: int) -> list[Action]:
        """The first ``count`` records of a write-back stream are durable. Raises `ProtocolError`."""
        if self.window is None or self.phase is not Phase.READING:
            return []
        self.window.on_acked(stream, count)
        return self._end_input(self._progress())

    def on_write_failed(self, slot: int, bookie: str, error: DistributedLogError) -> list[Action]:
        """A bookie failed a write-back: replaced in the local ensemble only (inv. 18)."""
        window = self.window
        if window is None or self.phase is not Phase.READING:
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
            actions += [OpenStream(n, one) for n, one in sorted(replaced.items())]
        else:
            attached = {n for n, one in enumerate(window.slots) if not one.detached and n != slot}
            if self._striping.ackable(attached):
                window.detach(slot)
            else:
                self._give_up(f"no bookie to write back to in place of {bookie}: {_said(error)}")
        return self._end_input(actions + self._progress())

    # --- closing ----------------------------------------------------------------------------------

    def _progress(self) -> list[Action]:
        """Decide, ask for more, close: whatever can be done now."""
        if self.phase is not Phase.READING or self.error is not None:
            return []
        actions = self._decide()
        if self.error is not None:
            return []
        actions += self._ask()
        window = self.window
        assert window is not None
        if self.end is None or window.lac < self.end:
            return actions
        if self._length is None:
            if not self._length_requests and not any(
                source.asked is not None for source in self._sources
            ):
                said = "; ".join(self._length_errors) or self.answers()
                self._give_up(f"entry {self.start} is confirmed, and no copy can be read ({said})")
            return actions
        self.phase = Phase.CLOSING
        return [*actions, self._close(self.metadata)]

    def _close(self, stored: LedgerMetadata) -> Close:
        assert self.end is not None
        assert self.window is not None
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
        said = []
        for slot, source in enumerate(self._sources):
            fence = self._fence_errors.get(slot, "did not answer the fence")
            if slot in self._fence_lacs:
                fence = "fenced"
            read = f", {source.last_answer}" if self.window is not None else ""
            said.append(f"{source.bookie}: {fence}{read}")
        return "; ".join(said)

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
            assert window is not None, "a window while reading"
            assert self._striping.covered(self._fence_lacs), "inv. 14: the fence covers"
            assert self.start >= self._frozen.first_entry - 1, "D2: not below the last fragment"
            assert window.last == self._next - 1, "what is kept is written back, in order"
            kept = len(self.metadata.ensembles) - 1
            assert self.ensembles[:kept] == self.metadata.ensembles[:kept], "inv. 21: others stay"
            assert tuple(s.bookie for s in self._sources) == self._frozen.bookies, (
                "inv. 15: read from the frozen ensemble"
            )
            assert self.end is None or window.lac <= self.end, "nothing behind the end is kept"


def _said(error: DistributedLogError) -> str:
    return f"{type(error).__name__} {error}".strip()
