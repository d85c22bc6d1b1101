"""The watermarks of one node's log (pure): appended, being written, durable, committed, handed out, applied.

The order of the watermarks is enforced here. If a tail of the log was replaced while its write was in
progress, the end of that write must not count the tail as durable.
"""

from collections import deque
from collections.abc import Sequence

from .raft_log import RaftLog
from .raft_messages import Entry
from .ready import Snapshot


class LogWatermarks:
    """The log and its watermarks. ``applied`` is the index of the restored state machine at a start."""

    def __init__(self, log: RaftLog, applied: int) -> None:
        self.log = log
        self.commit = applied
        self.applied = applied
        self.durable_index = log.last_index
        self._handed_out = applied  # committed entries up to here were handed out
        self._unstable_from = log.last_index + 1  # the write of these was not requested yet
        self._truncate_from: int | None = None
        self._snapshot: Snapshot | None = None
        self._pending_writes: deque[list[int]] = (
            deque()
        )  # [number, last index] of Readys that are not durable yet

    # --- changes of the log -----------------------------------------------------------------------

    def append_from_leader(self, prev_index: int, entries: Sequence[Entry]) -> int:
        """Add a leader's entries after ``prev_index``, which matches.

        Return the last index that equals the leader's.

        Entries that exist already are kept, because an old message must not remove later entries (paper,
        figure 2).
        """
        conflict = self.log.first_conflict(entries)
        if conflict:
            if conflict <= self.log.last_index:
                self.truncate(conflict)
            self.log.append(entries[conflict - prev_index - 1 :])
        return prev_index + len(entries)

    def truncate(self, from_index: int) -> None:
        """Remove a tail that another leader wrote and that is not committed."""
        assert from_index > self.commit, f"entry {from_index} is committed ({self.commit})"
        self.log.truncate(from_index)
        if from_index < self._unstable_from:
            self._truncate_from = min(self._truncate_from or from_index, from_index)
            self._unstable_from = from_index
        self.durable_index = min(self.durable_index, from_index - 1)
        for write in self._pending_writes:
            write[1] = min(write[1], from_index - 1)

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Reset the log after a snapshot. This is durable when the next Ready is durable."""
        self.log.reset(snapshot.index, snapshot.term, snapshot.configuration)
        self._snapshot = snapshot
        self._truncate_from = None
        self._unstable_from = snapshot.index + 1
        self.durable_index = 0
        for write in self._pending_writes:
            write[1] = 0
        self.commit = self._handed_out = snapshot.index

    def commit_to(self, index: int) -> None:
        """Set the commit index to at least ``index``."""
        assert index <= self.log.last_index, f"commit {index}, last {self.log.last_index}"
        self.commit = max(self.commit, index)

    # --- disk and state machine -------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether there are entries to write or to hand out."""
        return (
            self._unstable_from <= self.log.last_index
            or self._handed_out < min(self.commit, self.durable_index)
            or self._truncate_from is not None
            or self._snapshot is not None
        )

    def next_write(self, number: int) -> tuple[Snapshot | None, int | None, tuple[Entry, ...]]:
        """Return the snapshot, truncation and entries that Ready ``number`` must make durable."""
        last = self.log.last_index
        write = (self._snapshot, self._truncate_from, self.log.entries_from(self._unstable_from))
        if write != (None, None, ()):
            self._pending_writes.append([number, last])
        self._unstable_from = last + 1
        self._truncate_from = None
        self._snapshot = None
        return write

    def next_committed(self, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries to apply: committed, durable here, and not handed out before."""
        last_index = min(self.commit, self.durable_index)
        if self._handed_out >= last_index:
            return ()
        entries = self.log.slice(self._handed_out + 1, last_index, bytes_max=bytes_max)
        self._handed_out = entries[-1].index
        return entries

    def on_persisted(self, number: int) -> None:
        """Record that the writes of all Readys up to ``number`` are durable."""
        while self._pending_writes and self._pending_writes[0][0] <= number:
            self.durable_index = max(self.durable_index, self._pending_writes.popleft()[1])

    def on_applied(self, index: int) -> None:
        """Record that the state machine has applied all entries up to ``index``."""
        assert index <= self._handed_out, f"applied {index}, handed out {self._handed_out}"
        self.applied = max(self.applied, index)

    def check_invariants(self) -> None:
        """Check that the watermarks are in order."""
        last = self.log.last_index
        assert self.log.base_index <= self._handed_out <= self.commit <= last, (
            "the order of the marks"
        )
        assert self.applied <= self._handed_out
        assert self.durable_index <= last
        assert self._unstable_from <= last + 1
