"""The durable state of one simulated metadata node, as a crash leaves it.

The parts of a `Ready` become durable in the order that metadata/raft/ready.py requires. A crash may occur
after each of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ....metadata.model.configuration import UNKNOWN_CONFIGURATION, Configuration
from ....metadata.raft.raft_log import RaftLog
from ....metadata.raft.raft_messages import Entry
from ....metadata.raft.ready import HardState, Ready, Snapshot
from ....metadata.raft.recovered_hard_state import RaftEntryId


@dataclass(slots=True)
class StoredSnapshot:
    """The state of a state machine at (``index``, ``term``): a chained digest of all its commands."""

    index: int = 0
    term: int = 0
    chain: int = 0
    configuration: Configuration = UNKNOWN_CONFIGURATION
    content: tuple[bytes, ...] = ()
    """The chunks of a state machine that has more than the digest."""

    @property
    def core_snapshot(self) -> Snapshot:
        """The part of the snapshot that the core receives."""
        return Snapshot(self.index, self.term, self.configuration)


@dataclass(slots=True)
class RaftDisk:
    """Hard state, log and snapshot, as found after a crash. ``configuration`` is that at ``base_index``."""

    configuration: Configuration = UNKNOWN_CONFIGURATION
    hard_state: HardState = field(default_factory=HardState)
    base_index: int = 0
    base_term: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshot: StoredSnapshot = field(default_factory=StoredSnapshot)
    incoming: dict[int, StoredSnapshot] = field(default_factory=dict)
    recovery_floor: RaftEntryId | None = None
    """The recovery floor: the last entry that the node ever had, if corruption has left less
    (metadata/raft/recovered_hard_state.py)."""
    lost_hard_state: bool = False
    """Whether the hard state is lost."""
    committed: int = 0
    """The last entry stored as committed. After corruption the log may end before it."""

    @property
    def has_lost_data(self) -> bool:
        """Whether there is less durable data than there ever was."""
        return self.lost_hard_state or self.recovery_floor is not None

    @property
    def last_term(self) -> int:
        """The term of the last durable entry."""
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def last_index(self) -> int:
        """The index of the last durable entry."""
        return self.base_index + len(self.entries)

    def has(self, index: int, term: int) -> bool:
        """Return whether entry (``index``, ``term``) is durable here, in the log or in a snapshot."""
        if index <= self.base_index or (
            self.recovery_floor is not None and (term, index) <= self.recovery_floor
        ):
            return True  # or below the floor: this node votes for no candidate that lacks it
        position = index - self.base_index - 1
        return position < len(self.entries) and self.entries[position].term == term

    def log(self) -> RaftLog:
        """Return the log that a restart finds."""
        return RaftLog(self.base_index, self.base_term, self.entries, self.configuration)

    def save(self, ready: Ready) -> None:
        """Make a `Ready` durable completely."""
        for _ in self.steps(ready):
            pass

    def steps(self, ready: Ready) -> Iterator[None]:
        """Make a `Ready` durable, and yield between any two steps."""
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
            yield
        if ready.snapshot is not None:
            self.snapshot = self.incoming[ready.snapshot.index]
            self.base_index, self.base_term = ready.snapshot.index, ready.snapshot.term
            self.configuration = ready.snapshot.configuration
            self.entries.clear()
            yield
        if ready.truncate_from is not None:
            del self.entries[ready.truncate_from - self.base_index - 1 :]
            yield
        for entry in ready.append:
            assert entry.index == self.last_index + 1, "the disk's log would have a gap"
            self.entries.append(entry)
            yield
        if ready.needs_persist:
            self.committed = max(self.committed, min(ready.commit, self.last_index))

    def compact(self, up_to: int) -> None:
        """Drop the entries up to ``up_to``, which the snapshot covers."""
        if up_to <= self.base_index:
            return
        assert up_to <= self.snapshot.index
        self.configuration = self.log().configuration_at(up_to)
        self.base_term = self.entries[up_to - self.base_index - 1].term
        del self.entries[: up_to - self.base_index]
        self.base_index = up_to
