"""Decide from the bookies' answers whether entries of a fragment are present, absent or unknown (pure).

All slots are read concurrently, in ranges, with one range in flight per slot. One valid copy proves an
entry (inv. 17). An entry is absent if Qw-Qa+1 bookies of its write set explicitly report that.

Everything else is unknown: errors, missing answers, damage, IDs beyond a reply's ``complete_to``, and
answers in the limbo state, in which a bookie may have lost entries. Unknown entries never truncate a ledger
(inv. 16, H9). Source: docs/internals/invariants.md, recovery.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...runtime.interfaces.errors import CorruptData, DistributedLogError, RecoveryIncomplete
from ..model.striping import Striping
from .recovery_actions import FoundEntry, ReadReplica

ENTRIES_PER_READ = 4096
"""The maximum entries in one read. The reply's bytes are limited, too."""
READ_BYTES = 1024 * 1024
BUFFERED_BYTES_MAX = 32 * 1024 * 1024
"""The maximum bytes of records that are read and not written back. Above it, no more are requested."""
DAMAGED_ENTRIES_MAX = 1000
"""A bookie with more damaged entries is not read any further."""


@dataclass(slots=True)
class ReplicaResponses:
    """The answers of one slot of the starting ensemble."""

    bookie: str
    next_unanswered: int = 0
    """All lower entries of the slot, from the start of the reading, are answered."""
    pending_request: int | None = None
    """The ID of the request in flight."""
    damaged_entries: set[int] = field(default_factory=set)
    """Entries that are damaged at this bookie. They count as neither present nor absent."""
    in_limbo: bool = False
    """Whether the bookie reported that it may have lost entries."""
    damaged_count: int = 0
    retried_entry: int = -1
    failure: DistributedLogError | None = None
    """If set, the bookie is not read any further."""
    last_answer: str = "no read was sent"


class QuorumCoverage:
    """The answers of one fragment's slots, and the entries that are found and not yet processed."""

    def __init__(self, striping: Striping, bookies: Sequence[str]) -> None:
        self.replicas = [ReplicaResponses(bookie) for bookie in bookies]
        self.next_entry = 0
        """The first entry that is not decided."""
        self.buffered_bytes = 0
        """Bytes of the records that are found and not processed."""
        self._striping = striping
        self._found_entries: dict[int, FoundEntry] = {}
        self._pending_reads: dict[int, tuple[int, ReadReplica]] = {}  # request -> (slot, read)
        self._last_request = 0

    def begin(self, first: int, decide_from: int) -> None:
        """Start to read from entry ``first`` and to decide from entry ``decide_from``."""
        self.next_entry = decide_from
        for replica in self.replicas:
            replica.next_unanswered = first

    # --- asking -----------------------------------------------------------------------------------

    @property
    def has_pending_reads(self) -> bool:
        """Whether a read is in flight."""
        return any(replica.pending_request is not None for replica in self.replicas)

    def next_reads(self, last_to_read: int | None, in_flight_bytes: int) -> list[ReadReplica]:
        """Return one range read for each slot that has none in flight and is not far ahead.

        Args:
            last_to_read: The last entry to request; None if the end is not determined.
            in_flight_bytes: Bytes of processed records that are not durable yet.
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
        """Return a read with a new request ID.

        The caller tracks a read that it creates outside `next_reads`.
        """
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
        """Process a reply as in `LedgerRecovery.on_read`.

        Returns:
            Its valid records, or None for an unknown request.
        """
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
        replica.last_answer = "answered" + (" in the limbo state" if replica.in_limbo else "")
        if damaged:
            self._on_damage(replica)
        elif complete_to < read.first:
            # Neither a record nor a proof of absence for the first requested ID: no progress is possible.
            replica.failure = RecoveryIncomplete(f"cannot prove whether it has entry {read.first}")
        return accepted

    def on_read_failed(self, request: int, error: DistributedLogError) -> bool:
        """Process a failed read: the state is unknown. If one entry is damaged, others are still read.

        Returns:
            Whether the request was pending.
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
        """Retry once (H16). Then this entry is unknown here, and reading continues after it."""
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
        """Return a valid copy of the next undecided entry, if a bookie has sent one."""
        return self._found_entries.get(self.next_entry)

    def advance(self) -> None:
        """Continue with the next entry, after the caller has processed the result of `copy_of_next`."""
        entry = self._found_entries.pop(self.next_entry)
        self.buffered_bytes -= len(entry.record)
        for replica in self.replicas:
            replica.damaged_entries.discard(self.next_entry)
        self.next_entry += 1

    def discard_found(self) -> None:
        """Discard entries after the end. Entries after a gap were never acknowledged."""
        self._found_entries.clear()
        self.buffered_bytes = 0

    def absence(self, entry: int) -> bool | None:
        """Return whether the absence of ``entry`` is proved.

        Returns:
            True if it is proved, False if it cannot be proved any more, None if answers are missing.
        """
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
    """Return the error's type and text, for the list of answers."""
    return f"{type(error).__name__} {error}".strip()
