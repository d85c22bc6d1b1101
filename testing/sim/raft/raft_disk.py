"""The durable state of one simulated metadata node: what a crash leaves behind.

A `Ready` is made durable step by step in the order that metadata/raft/ready.py demands; a crash may come
after any step.
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
    """A state machine's state up to (``index``, ``term``): a chain value over all its commands."""

    index: int = 0
    term: int = 0
    chain: int = 0
    configuration: Configuration = UNKNOWN_CONFIGURATION
    content: tuple[bytes, ...] = ()
    """The chunks of a state machine that has more than the chain."""

    @property
    def core_snapshot(self) -> Snapshot:
        """What the core is told of it."""
        return Snapshot(self.index, self.term, self.configuration)


@dataclass(slots=True)
class RaftDisk:
    """Hard state, log and snapshot, as found after a crash. ``configuration``: that at ``base_index``."""

    configuration: Configuration = UNKNOWN_CONFIGURATION
    hard_state: HardState = field(default_factory=HardState)
    base_index: int = 0
    base_term: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshot: StoredSnapshot = field(default_factory=StoredSnapshot)
    incoming: dict[int, StoredSnapshot] = field(default_factory=dict)
    ghost: RaftEntryId | None = None
    """The last entry that there ever was, where rot has left less (metadata/raft/recovered_hard_state.py)."""
    forgot: bool = False
    """It does not know what it has promised."""
    committed: int = 0
    """The last entry that was stored as committed; the log may end before it, if rot has left less."""

    @property
    def is_haunted(self) -> bool:
        """Whether there is less than there ever was."""
        return self.forgot or self.ghost is not None

    @property
    def last_term(self) -> int:
        """The term of the last durable entry."""
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def last_index(self) -> int:
        """The last durable entry."""
        return self.base_index + len(self.entries)

    def has(self, index: int, term: int) -> bool:
        """Whether entry (``index``, ``term``) is durable here, itself or inside a snapshot."""
        if index <= self.base_index or (self.ghost is not None and (term, index) <= self.ghost):
            return True  # or promised: who lacks it is not elected with this node's vote
        position = index - self.base_index - 1
        return position < len(self.entries) and self.entries[position].term == term

    def log(self) -> RaftLog:
        """The log as a restart finds it."""
        return RaftLog(self.base_index, self.base_term, self.entries, self.configuration)

    def save(self, ready: Ready) -> None:
        """Make all of a Ready durable."""
        for _ in self.steps(ready):
            pass

    def steps(self, ready: Ready) -> Iterator[None]:
        """Make a Ready durable; yields between any two steps."""
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
        """Drop entries up to ``up_to``, which the snapshot stands for."""
        if up_to <= self.base_index:
            return
        assert up_to <= self.snapshot.index
        self.configuration = self.log().configuration_at(up_to)
        self.base_term = self.entries[up_to - self.base_index - 1].term
        del self.entries[: up_to - self.base_index]
        self.base_index = up_to
