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
from .recovery_actions import FoundEntry, ReadReplica

ENTRIES_PER_READ = 4096
"""Entries asked for in one read; the reply's bytes are bounded besides."""
READ_BYTES = 1024 * 1024
BUFFERED_BYTES_MAX = 32 * 1024 * 1024
"""Records read and not yet written back; above this no more are asked for."""
DAMAGED_ENTRIES_MAX = 1000
"""A bookie with more damaged entries than this is asked no more."""


@dataclass(slots=True)
class ReplicaResponses:
    """One slot of the frozen ensemble, as a source of answers."""

    bookie: str
    next_unanswered: int = 0
    """All entries below that the slot holds are answered, from the start of the reading on."""
    pending_request: int | None = None
    """The request under way."""
    damaged_entries: set[int] = field(default_factory=set)
    """Answered with damage: neither yes nor no."""
    in_limbo: bool = False
    """Says itself that what it does not have it may have lost."""
    damaged_count: int = 0
    retried_entry: int = -1
    failure: DistributedLogError | None = None
    """Answers nothing more."""
    last_answer: str = "not asked"


class QuorumCoverage:
    """The answers of one fragment's slots, and the entries found and not yet taken."""

    def __init__(self, striping: Striping, bookies: Sequence[str]) -> None:
        self.replicas = [ReplicaResponses(bookie) for bookie in bookies]
        self.next_entry = 0
        """The first entry that is not decided."""
        self.buffered_bytes = 0
        """Records found and not taken."""
        self._striping = striping
        self._found_entries: dict[int, FoundEntry] = {}
        self._pending_reads: dict[int, tuple[int, ReadReplica]] = {}  # request -> (slot, read)
        self._last_request = 0

    def begin(self, first: int, decide_from: int) -> None:
        """Ask from ``first`` on, to decide from ``next_`` on."""
        self.next_entry = decide_from
        for replica in self.replicas:
            replica.next_unanswered = first

    # --- asking -----------------------------------------------------------------------------------

    @property
    def has_pending_reads(self) -> bool:
        """Is a read under way?"""
        return any(replica.pending_request is not None for replica in self.replicas)

    def next_reads(self, last_to_read: int | None, in_flight_bytes: int) -> list[ReadReplica]:
        """One range read under way to each source that is not far ahead.

        ``last_wanted``: entries after it are not asked for any more; None: no end is known.
        ``in_flight_bytes``: records taken that are not durable yet.
        """
        reads: list[ReadReplica] = []
        unwritten_bytes = self.buffered_bytes + in_flight_bytes
        for slot, replica in enumerate(self.replicas):
            if replica.failure is not None or replica.pending_request is not None:
                continue
            first = self._striping.next_held(slot, replica.next_unanswered)
            if last_to_read is not None and first > last_to_read:
                continue
            if first > self.next_entry and unwritten_bytes >= BUFFERED_BYTES_MAX:
                continue
            if first > self.next_entry + ENTRIES_PER_READ:
                continue
            replica.next_unanswered = first
            read = self.read(replica.bookie, first, first + ENTRIES_PER_READ - 1, fence=True)
            replica.pending_request = read.request_id
            replica.last_answer = "did not answer a read"
            self._pending_reads[read.request_id] = (slot, read)
            reads.append(read)
        return reads

    def read(self, bookie: str, first: int, last: int, *, fence: bool) -> ReadReplica:
        """A read with a number of its own; what is made here alone, its maker waits for."""
        self._last_request += 1
        return ReadReplica(self._last_request, bookie, first, last, READ_BYTES, fence)

    # --- answers ----------------------------------------------------------------------------------

    def on_read(
        self,
        request: int,
        complete_to: int,
        proves_absence: bool,
        entries: Sequence[FoundEntry],
        *,
        damaged: bool = False,
    ) -> list[FoundEntry] | None:
        """A reply, see `Recovery.on_read`: the records of it that count, or None where nobody asked."""
        slot, read = self._pending_reads.pop(request, (-1, None))
        if read is None:
            return None
        replica = self.replicas[slot]
        replica.pending_request = None
        replica.in_limbo = replica.in_limbo or not proves_absence
        complete_to = min(complete_to, read.last)
        if damaged:
            complete_to = min(complete_to, entries[-1].entry if entries else read.first - 1)
        accepted = [
            entry
            for entry in entries
            if read.first <= entry.entry <= complete_to and entry.entry >= replica.next_unanswered
        ]
        for entry in accepted:
            if entry.entry >= self.next_entry and entry.entry not in self._found_entries:
                self._found_entries[entry.entry] = entry
                self.buffered_bytes += len(entry.record)
        replica.next_unanswered = max(replica.next_unanswered, complete_to + 1)
        replica.last_answer = "answered" + (" from limbo" if replica.in_limbo else "")
        if damaged:
            self._on_damage(replica)
        elif complete_to < read.first:
            # Neither a record nor a proof of absence for the first id asked: no progress is possible.
            replica.failure = RecoveryIncomplete(f"cannot say whether it has entry {read.first}")
        return accepted

    def on_read_failed(self, request: int, error: DistributedLogError) -> bool:
        """No answer: unknown. Damage of one entry at the bookie leaves the others askable.

        Returns whether anybody had asked.
        """
        slot, read = self._pending_reads.pop(request, (-1, None))
        if read is None:
            return False
        replica = self.replicas[slot]
        replica.pending_request = None
        replica.last_answer = describe_error(error)
        if isinstance(error, CorruptData):
            self._on_damage(replica)
        else:
            replica.failure = error
        return True

    def _on_damage(self, replica: ReplicaResponses) -> None:
        """Ask once more (H16); then this one entry is unknown here, and those after it are asked for."""
        replica.last_answer = f"entry {replica.next_unanswered} is damaged"
        if replica.retried_entry != replica.next_unanswered:
            replica.retried_entry = replica.next_unanswered
            return
        replica.damaged_entries.add(replica.next_unanswered)
        replica.next_unanswered += 1
        replica.damaged_count += 1
        if replica.damaged_count > DAMAGED_ENTRIES_MAX:
            replica.failure = CorruptData(f"more than {DAMAGED_ENTRIES_MAX} damaged entries")

    # --- deciding ---------------------------------------------------------------------------------

    def copy_of_next(self) -> FoundEntry | None:
        """A valid copy of the entry that is to be decided next, if anybody has sent one."""
        return self._found_entries.get(self.next_entry)

    def advance(self) -> None:
        """What `copy_of_next` returned is kept: the next entry is to be decided."""
        entry = self._found_entries.pop(self.next_entry)
        self.buffered_bytes -= len(entry.record)
        for replica in self.replicas:
            replica.damaged_entries.discard(self.next_entry)
        self.next_entry += 1

    def discard_found(self) -> None:
        """The end is found: what lies after a gap was never acked."""
        self._found_entries.clear()
        self.buffered_bytes = 0

    def absence(self, entry: int) -> bool | None:
        """Is the absence of ``entry`` proved (True), not provable any more (False), or open (None)?"""
        negatives, waiting = 0, False
        for slot in self._striping.write_set(entry):
            replica = self.replicas[slot]
            if entry < replica.next_unanswered:
                if entry not in replica.damaged_entries and not replica.in_limbo:
                    negatives += 1
            elif replica.failure is None:
                waiting = True
        if negatives >= self._striping.absent_quorum:
            return True
        return None if waiting else False


def describe_error(error: DistributedLogError) -> str:
    """An error, for the list of who said what."""
    return f"{type(error).__name__} {error}".strip()
