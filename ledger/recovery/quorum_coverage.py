"""What the bookies of a fragment say of its entries, for a recovery: here, absent, or unknown (pure).

All slots are read at once, each in ranges, one range under way a slot. One valid copy proves an entry
(inv. 17). An entry is absent when Qw-Qa+1 bookies of its write set say so in so many words. Errors,
silence, damage, limbo, and ids beyond a reply's ``complete_to`` are unknown, and unknown never truncates
(inv. 16, H9). Source: docs/internals/invariants.md, recovery.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...runtime.interfaces.errors import CorruptData, DistributedLogError, RecoveryIncomplete
from ..model.striping import Striping
from .recovery_actions import FoundEntry, Read

READ_IDS = 4096
"""Entries asked for in one read; the reply's bytes are bounded besides."""
READ_BYTES = 1024 * 1024
HELD_BYTES_MAX = 32 * 1024 * 1024
"""Records read and not yet written back; above this no more are asked for."""
DAMAGED_MAX = 1000
"""A bookie with more damaged entries than this is asked no more."""


@dataclass(slots=True)
class ReplicaResponses:
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


class QuorumCoverage:
    """The answers of one fragment's slots, and the entries found and not yet taken."""

    def __init__(self, striping: Striping, bookies: Sequence[str]) -> None:
        self.sources = [ReplicaResponses(bookie) for bookie in bookies]
        self.next = 0
        """The first entry that is not decided."""
        self.found_bytes = 0
        """Records found and not taken."""
        self._striping = striping
        self._found: dict[int, FoundEntry] = {}
        self._requests: dict[int, tuple[int, Read]] = {}  # request -> (slot, read)
        self._last_request = 0

    def begin(self, first: int, next_: int) -> None:
        """Ask from ``first`` on, to decide from ``next_`` on."""
        self.next = next_
        for source in self.sources:
            source.answered_to = first

    # --- asking -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Is a read under way?"""
        return any(source.asked is not None for source in self.sources)

    def ask(self, last_wanted: int | None, in_flight_bytes: int) -> list[Read]:
        """One range read under way to each source that is not far ahead.

        ``last_wanted``: entries after it are not asked for any more; None: no end is known.
        ``in_flight_bytes``: records taken that are not durable yet.
        """
        reads: list[Read] = []
        held_bytes = self.found_bytes + in_flight_bytes
        for slot, source in enumerate(self.sources):
            if source.failed is not None or source.asked is not None:
                continue
            first = self._striping.next_held(slot, source.answered_to)
            if last_wanted is not None and first > last_wanted:
                continue
            if first > self.next and held_bytes >= HELD_BYTES_MAX:
                continue
            if first > self.next + READ_IDS:
                continue
            source.answered_to = first
            read = self.read(source.bookie, first, first + READ_IDS - 1, fence=True)
            source.asked = read.request
            source.last_answer = "did not answer a read"
            self._requests[read.request] = (slot, read)
            reads.append(read)
        return reads

    def read(self, bookie: str, first: int, last: int, *, fence: bool) -> Read:
        """A read with a number of its own; what is made here alone, its maker waits for."""
        self._last_request += 1
        return Read(self._last_request, bookie, first, last, READ_BYTES, fence)

    # --- answers ----------------------------------------------------------------------------------

    def on_read(
        self,
        request: int,
        complete_to: int,
        known: bool,
        found: Sequence[FoundEntry],
        *,
        damaged: bool = False,
    ) -> list[FoundEntry] | None:
        """A reply, see `Recovery.on_read`: the records of it that count, or None where nobody asked."""
        slot, read = self._requests.pop(request, (-1, None))
        if read is None:
            return None
        source = self.sources[slot]
        source.asked = None
        source.limbo = source.limbo or not known
        complete_to = min(complete_to, read.last)
        if damaged:
            complete_to = min(complete_to, found[-1].entry if found else read.first - 1)
        taken = [
            one
            for one in found
            if read.first <= one.entry <= complete_to and one.entry >= source.answered_to
        ]
        for one in taken:
            if one.entry >= self.next and one.entry not in self._found:
                self._found[one.entry] = one
                self.found_bytes += len(one.record)
        source.answered_to = max(source.answered_to, complete_to + 1)
        source.last_answer = "answered" + (" from limbo" if source.limbo else "")
        if damaged:
            self._on_damage(source)
        elif complete_to < read.first:
            # Neither a record nor a proof of absence for the first id asked: no progress is possible.
            source.failed = RecoveryIncomplete(f"cannot say whether it has entry {read.first}")
        return taken

    def on_read_failed(self, request: int, error: DistributedLogError) -> bool:
        """No answer: unknown. Damage of one entry at the bookie leaves the others askable.

        Returns whether anybody had asked.
        """
        slot, read = self._requests.pop(request, (-1, None))
        if read is None:
            return False
        source = self.sources[slot]
        source.asked = None
        source.last_answer = describe_error(error)
        if isinstance(error, CorruptData):
            self._on_damage(source)
        else:
            source.failed = error
        return True

    def _on_damage(self, source: ReplicaResponses) -> None:
        """Ask once more (H16); then this one entry is unknown here, and those after it are asked for."""
        source.last_answer = f"entry {source.answered_to} is damaged"
        if source.damaged_at != source.answered_to:
            source.damaged_at = source.answered_to
            return
        source.unknown.add(source.answered_to)
        source.answered_to += 1
        source.damaged += 1
        if source.damaged > DAMAGED_MAX:
            source.failed = CorruptData(f"more than {DAMAGED_MAX} damaged entries")

    # --- deciding ---------------------------------------------------------------------------------

    def found(self) -> FoundEntry | None:
        """A valid copy of the entry that is to be decided next, if anybody has sent one."""
        return self._found.get(self.next)

    def take(self) -> None:
        """What `found` returned is kept: the next entry is to be decided."""
        found = self._found.pop(self.next)
        self.found_bytes -= len(found.record)
        for source in self.sources:
            source.unknown.discard(self.next)
        self.next += 1

    def forget(self) -> None:
        """The end is found: what lies after a gap was never acked."""
        self._found.clear()
        self.found_bytes = 0

    def absence(self, entry: int) -> bool | None:
        """Is the absence of ``entry`` proved (True), not provable any more (False), or open (None)?"""
        negatives, waiting = 0, False
        for slot in self._striping.write_set(entry):
            source = self.sources[slot]
            if entry < source.answered_to:
                if entry not in source.unknown and not source.limbo:
                    negatives += 1
            elif source.failed is None:
                waiting = True
        if negatives >= self._striping.absent_quorum:
            return True
        return None if waiting else False


def describe_error(error: DistributedLogError) -> str:
    """An error, for the list of who said what."""
    return f"{type(error).__name__} {error}".strip()
