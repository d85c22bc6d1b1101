"""What the Raft core wants done (pure), and in which order the driver must do it.

The driver's contract, all of it:

1. After every input (or a few inputs taken together) call ``raft.ready()`` while ``raft.has_ready``.
2. ``send_now`` goes out at once; it never waits for a disk (heartbeats, a leader's appends, pre-votes).
3. Readys with ``needs_persist`` or ``send_after_persist`` go through ONE first-in-first-out queue. Its
   writer makes durable, in this order: ``hard_state``; ``snapshot`` (the log becomes empty after it);
   ``truncate_from`` (drop that index and all after it); ``append``. With whatever it writes goes ``commit``,
   which needs no write of its own. A crash after any prefix of these
   steps is safe; any other order is not. Several Readys may share one sync.
4. Only when that Ready and all before it are durable: send ``send_after_persist`` (votes, acks of
   entries, requests for votes), then call ``raft.on_persisted(ready.number, now)``. A later number covers
   all earlier ones. Sending one of these first is how two leaders get elected and acked writes lost.
5. ``snapshot``: restore the state machine from the snapshot file before anything later is applied,
   then ``raft.on_applied(snapshot.index)``.
   ``committed``: apply in order, each once; then ``raft.on_applied(index)``. All of it is durable here
   already, so that a snapshot taken from the state machine never runs ahead of the log.
6. ``reads``: (request id, index): answer once the state machine has applied ``index``.
   ``reads_lost``: leadership ended first; the client asks elsewhere.
7. ``send_snapshots``: send your newest durable snapshot (``index`` or later) to that peer, in chunks,
   then call ``raft.on_snapshot_sent(peer, index, delivered)``, whatever came of it and within a
   deadline: until then nothing is sent to that peer and the log is not compacted.
8. An entry that `configuration.is_configuration` says is one is no command: it is applied as an empty one.
   Who the members are, the core says at any time (``raft.log.configuration``): it sends only to those.
9. A proposal at (index, term) has happened when ``committed`` brings that index with that term; if it
   brings another term, or a snapshot skips it, it was lost or is unknown.

After a crash: `Raft` from its `DurableState` (hard state, log, commit, own snapshot), nothing else. A
received snapshot file whose Ready was not made durable does not count.
"""

from dataclasses import dataclass, field
from enum import Enum

from ..model.configuration import UNKNOWN_CONFIGURATION, Configuration
from .raft_messages import Entry, Message


class RaftRole(Enum):
    """What a node is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class HardState:
    """What must survive a crash beside the log: ``vote`` is a node id, "" if none in ``term``."""

    term: int = 0
    vote: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last entry that a snapshot stands for; ``configuration``: the members as of that entry."""

    index: int
    term: int
    configuration: Configuration = field(default=UNKNOWN_CONFIGURATION, compare=False)


@dataclass(frozen=True, slots=True)
class Diverged:
    """A leader would replace an entry that this node knows to be committed: the node must end.

    A majority of the voters has lost that entry, so it runs on older copies of its disks. No rule of Raft
    covers that: an operator decides which disks count.
    """

    leader_id: str
    term: int
    """The leader's."""
    index: int
    """The first entry that it would replace, of those that it sent."""
    commit: int
    """The last entry that is known to be committed here."""


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """``peer`` lacks entries that are compacted: send it a snapshot that ends at ``index`` or later."""

    peer: str
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """One turn's work. The module says what must come before what."""

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
    """The leader of ``term`` as far as known, "" if not; may be this node."""
    leader_changed: bool
    """``role``, ``term`` or ``leader_id`` differ from the Ready before."""
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
