"""The actions that the Raft core requires (pure), and the order in which the driver must execute them.

The contract of the driver:

1. After every input (or a few inputs together), call ``raft.ready()`` while ``raft.has_ready``.

2. Send ``send_now`` immediately. It never waits for a disk (heartbeats, a leader's appends, pre-votes).

3. Put Readys with ``needs_persist`` or ``send_after_persist`` into ONE first-in-first-out queue. Its writer
makes durable, in this order, ``hard_state``, ``snapshot`` (the log is empty after it), ``truncate_from``
(remove that index and all later ones) and ``append``. ``commit`` is written together with them, and needs
no separate write. A crash after any prefix of these steps is safe, but any other order is not. Several
Readys may share one sync.

4. Only when that Ready and all earlier ones are durable, send ``send_after_persist`` (votes,
acknowledgements of entries, requests for votes). Then call ``raft.on_persisted(ready.number, now)``. A
later number covers all earlier ones. If these messages are sent earlier, two leaders may be elected, and
acknowledged writes may be lost.

5. If ``snapshot`` is set, restore the state machine from the snapshot file before later entries are
applied. Then call ``raft.on_applied(snapshot.index)``. Apply ``committed`` in order, each entry once. Then
call ``raft.on_applied(index)``. These entries are already durable here, so a snapshot of the state machine
is never ahead of the log.

6. ``reads`` has pairs of request ID and index. Answer a read when the state machine has applied its index.
The reads in ``reads_lost`` failed because the leadership ended, and the client tries another node.

7. For each of ``send_snapshots``, send the newest durable snapshot (``index`` or later) to that peer in
chunks. Then call ``raft.on_snapshot_sent(peer, index, delivered)``, whatever the outcome, and within a
deadline. Until then, nothing is sent to that peer and the log is not compacted.

8. Apply an entry as an empty command if `configuration.is_configuration` returns True for it. The members
are in ``raft.log.configuration`` at any time, and the core sends messages only to them.

9. A proposal at (index, term) was executed when ``committed`` contains that index with that term. If it
contains another term, the proposal was lost. If a snapshot skips the index, the outcome is unknown.

After a crash, create `Raft` only from its `DurableState` (hard state, log, commit, own snapshot). A
received snapshot file whose Ready was not made durable does not count.
"""

from dataclasses import dataclass, field
from enum import Enum

from ..model.configuration import UNKNOWN_CONFIGURATION, Configuration
from .raft_messages import Entry, Message


class RaftRole(Enum):
    """The role of a node in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class HardState:
    """The state besides the log that must survive a crash.

    ``vote`` is a node ID, or "" if none in ``term``.
    """

    term: int = 0
    vote: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last entry in a snapshot. ``configuration`` has the members as of that entry."""

    index: int
    term: int
    configuration: Configuration = field(default=UNKNOWN_CONFIGURATION, compare=False)


@dataclass(frozen=True, slots=True)
class Diverged:
    """A conflict of a leader's log with an entry that is committed here. The node must end.

    A majority of the voters has lost that entry, so it runs on older copies of its disks. No rule of Raft
    covers this case, so an operator decides which disks count.
    """

    leader_id: str
    term: int
    """The term of the leader."""
    index: int
    """The first committed entry that the leader's message would replace."""
    commit: int
    """The last entry that is known to be committed here."""


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """A request to send a snapshot to ``peer``, which lacks compacted entries.

    The snapshot must end at ``index`` or later.
    """

    peer: str
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The actions since the previous Ready. The module defines their order."""

    ready_number: int
    hard_state: HardState | None
    snapshot: Snapshot | None
    truncate_from: int | None
    append: tuple[Entry, ...]
    send_now: tuple[tuple[str, Message], ...]
    send_after_persist: tuple[tuple[str, Message], ...]
    committed: tuple[Entry, ...]
    reads: tuple[tuple[int, int], ...]
    reads_lost: tuple[int, ...]
    send_snapshots: tuple[SendSnapshot, ...]
    role: RaftRole
    term: int
    leader_id: str
    """The leader of ``term``, which may be this node, or "" if it is unknown."""
    leader_changed: bool
    """Whether ``role``, ``term`` or ``leader_id`` differ from the previous Ready."""
    commit: int = 0
    """The last entry that is known to be committed."""

    @property
    def needs_persist(self) -> bool:
        """Whether there is something to make durable."""
        return bool(
            self.hard_state is not None
            or self.append
            or self.truncate_from is not None
            or self.snapshot is not None
        )
