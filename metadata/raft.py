"""The Raft core (pure): elections, replication, commit, read index, snapshots, handing over.

What the driver must do with a `Ready`, and in which order, is the contract in metadata/ready.py.
Inputs, all synchronous; ``now`` is a monotonic time in seconds and may not go back:

    on_message(message, now)              a decoded message; its sender was checked by the connection
    on_time(now)                          at ``deadline``; calling earlier does nothing
    on_connection_closed(peer, now)       the connection to a peer ended: pre-vote at once if it led
    on_late(lateness_s, now)              the driver woke > 50 ms after ``deadline``, so it was not run:
                                          first deliver what lies in the sockets, then call this, then
                                          on_time (H25)
    on_disk_stalled(stalled, now)         own syncs hang (one takes > 1 s): do not campaign; hand
                                          leadership over. False when they work again
    propose(command) -> index | None      None: not the leader, or handing over. Several proposals
                                          before one ready() travel in one append. May raise `TooBusy`
                                          (nothing taken) or `InvalidRequest` (empty, too large).
                                          The entry's term is ``raft.term`` at that moment.
    read_index(request_id) -> bool        False: not the leader, nothing taken. Else the id appears in
                                          exactly one Ready, in ``reads`` or in ``reads_lost``
    change_members(configuration, now) -> index | None
                                          propose other members: one voter more or less, or learners.
                                          None: not the leader, or handing over. They count from now
                                          on; who is the leader may change by it. Raises `NotReady`
                                          (another change is not committed yet, or nothing of this
                                          leader's term) or `InvalidRequest` (more than one voter)
    transfer_leadership(now, to="")       ask the peer (or the best one) to take over
    on_persisted(number)                  that Ready and all before it are durable
    on_applied(index)                     the state machine stands at ``index``
    compact(up_to) -> int                 a snapshot that ends at ``up_to`` or later is durable here:
                                          forget entries up to it; returns the new first index kept - 1
                                          (lower than asked while a peer gets a snapshot, H39)
    on_snapshot_sent(peer, index, delivered, now)
                                          leader: sending ended. ``delivered``: the peer has all of it
                                          and has called its own on_snapshot_received
    on_snapshot_received(term, sender, snapshot, now)
                                          follower: the whole snapshot of that leader is a durable file
                                          here. If the next Ready carries ``snapshot``, install it; if
                                          not, it was stale or nonsense: drop the file. Raises nothing

Reading: ``role``, ``term``, ``vote``, ``leader_id``, ``commit``, ``applied``, ``deadline``, ``log``.
The members are what the newest configuration in the log says: only voters count and campaign, learners
are replicated to (`configuration.py`). A node with ``may_vote=False`` never votes nor campaigns, whatever
it is asked and whatever the configuration says.

The code is in four layers: `roles.py`, `elections.py`, `following.py`, and here.

Source: docs/guarantees.md M1..M4; Raft paper (Ongaro, Ousterhout 2014) figure 2; thesis (Ongaro 2014)
3.10, 4, 6.4, 9.6, 10.2.1; for changes of members also the correction of single-server changes (Ongaro,
raft-dev, 10 July 2015): a leader first commits an entry of its own term. Hazards H5, H19, H25, H26, H39.
"""

from collections.abc import Callable
from math import inf

from ..runtime.errors import ProtocolError
from .configuration import Configuration
from .following import Following
from .leadership import Leadership
from .messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from .options import RaftOptions as RaftOptions
from .raft_log import RaftLog
from .ready import HardState, Ready, Role, Snapshot
from .roles import TERM_LEAD_MAX

FROM_ANYBODY = PreVote | Vote | Append | Heartbeat | TimeoutNow
"""Taken also from nodes that are no members here: either side may lack an entry (thesis 4.1)."""


class Raft(Following):
    """One node's view of the replicated log. The module names its inputs; `ready` gives its outputs."""

    def __init__(
        self,
        node_id: str,
        log: RaftLog,
        hard_state: HardState,
        *,
        options: RaftOptions,
        draw: Callable[[], float],
        now: float,
        may_vote: bool = True,
        applied: int = 0,
    ) -> None:
        """See `Roles`. The members are those that ``log`` names."""
        super().__init__(
            node_id,
            log,
            hard_state,
            options=options,
            draw=draw,
            now=now,
            may_vote=may_vote,
            applied=applied,
        )
        self._handlers: dict[type, Callable[..., None]] = {
            PreVote: self._on_pre_vote,
            PreVoteReply: self._on_pre_vote_reply,
            Vote: self._on_vote,
            VoteReply: self._on_vote_reply,
            Append: self._on_append,
            AppendReply: self._on_append_reply,
            Heartbeat: self._on_heartbeat,
            HeartbeatReply: self._on_heartbeat_reply,
            TimeoutNow: self._on_timeout_now,
        }
        self._check()

    # --- inputs -----------------------------------------------------------------------------------

    def on_message(self, message: Message, now: float) -> None:
        """Take one message. Raises `ProtocolError` or `CorruptData` about what no honest peer sends."""
        if message.sender == self.node_id:
            return
        if message.sender not in self.peers and not isinstance(message, FROM_ANYBODY):
            return  # it answers as a member that it is not, or not any more
        if self.is_out_of_reach(message.term):
            raise ProtocolError(
                f"{message.sender} speaks in term {message.term}, this node is in {self.term}:"
                f" more than {TERM_LEAD_MAX} elections ahead"
            )
        self._handlers[type(message)](message, now)
        self._check()

    def on_time(self, now: float) -> None:
        """Do what is due at ``now``: a heartbeat, a campaign, a step down."""
        if now < self.deadline:
            return
        if self._leadership is not None:
            self._on_leader_time(self._leadership, now)
        else:
            self._campaign_softly(now)
        self._check()

    def on_connection_closed(self, peer: str, now: float) -> None:
        """The connection to ``peer`` ended; what was on it is lost."""
        if self._leadership is not None:
            progress = self._leadership.peers.get(peer)
            if progress is not None:
                progress.on_lost()
        elif peer == self.leader_id:
            self._leader_heard_at = -inf  # nothing binds this node to it any more
            if self.deadline < inf:
                self.deadline = min(
                    self.deadline, now + self._draw() * self.options.closed_jitter_s
                )
        self._check()

    def on_late(self, lateness_s: float, now: float) -> None:
        """This node was not run for ``lateness_s``: silence in that time says nothing of the others."""
        if self._leadership is not None:
            self._leadership.shift(lateness_s, now)
        else:
            self.deadline += lateness_s
            self._leader_heard_at = min(now, self._leader_heard_at + lateness_s)
            if self._grace_left and lateness_s > 0:
                # The lateness counts from the deadline: shifted by it alone, the deadline would be now,
                # and after a stall of the whole machine all would campaign at once. Once a timeout,
                # so that a node that is always late campaigns in the end.
                self._grace_left = False
                self.deadline = max(self.deadline, now + 2 * self.options.heartbeat_s)
        self._check()

    def on_disk_stalled(self, stalled: bool, now: float) -> None:
        """Own syncs hang (or do again): a leader hands over, others do not campaign (H25)."""
        self._disk_stalled = stalled
        if stalled and self._leadership is not None:
            self.transfer_leadership(now)
        self._check()

    def propose(self, command: bytes) -> int | None:
        """Append a command; its index, or None if this node cannot. See the module for errors."""
        if self._leadership is None:
            return None
        index = self._leadership.propose(command)
        self._check()
        return index

    def read_index(self, request_id: int) -> bool:
        """Ask from which index on a read is linearizable; see `Ready.reads`."""
        if self._leadership is None:
            return False
        self._leadership.reads.ask(request_id)
        self._leadership.wants_flush = True
        self._check()
        return True

    def change_members(self, configuration: Configuration, now: float) -> int | None:
        """Propose other members; the entry's index, or None if this node cannot. See the module."""
        if self._leadership is None:
            return None
        index = self._leadership.change_members(configuration)
        self._on_log_changed(now)
        self._leave_if_removed()
        self._check()
        return index

    def voters_heard(self, now: float) -> tuple[str, ...]:
        """The leader's view: itself and the voters heard within an election timeout; () if not leader."""
        return self._leadership.voters_heard(now) if self._leadership is not None else ()

    def learners_caught_up(self, now: float) -> tuple[str, ...]:
        """The leader's view: learners that have what was committed a heartbeat ago; () if not leader."""
        return self._leadership.learners_caught_up(now) if self._leadership is not None else ()

    @property
    def uncommitted_bytes(self) -> int:
        """The leader's view: how much was proposed and is not committed; 0 if not leader."""
        return self._leadership.uncommitted_bytes if self._leadership is not None else 0

    def transfer_leadership(self, now: float, to: str = "") -> bool:
        """Let ``to`` (default: the best follower) take over; False if there is nobody to ask."""
        if self._leadership is None:
            return False
        begun = self._leadership.hand_over(now, to)
        self._check()
        return begun

    def on_persisted(self, number: int) -> None:
        """The Readys up to ``number`` are durable."""
        self._outbox.on_persisted(number)
        self.marks.on_persisted(number)
        if self._leadership is not None:
            self._leadership.advance_commit()
            self._leave_if_removed()
        self._check()

    def on_applied(self, index: int) -> None:
        """The state machine has applied everything up to ``index``."""
        self.marks.on_applied(index)
        self._check()

    def compact(self, up_to: int) -> int:
        """Forget entries up to ``up_to`` (applied, and in a durable snapshot); returns the new base."""
        assert up_to <= self.applied, f"compact to {up_to}, applied {self.applied}"
        if self._leadership is not None:
            up_to = self._leadership.compaction_limit(up_to)
        self.log.compact(up_to)
        self._check()
        return self.log.base_index

    def on_snapshot_sent(self, peer: str, index: int, delivered: bool, now: float) -> None:
        """Sending a snapshot ended; see the module."""
        if self._leadership is not None:
            self._leadership.on_snapshot_sent(peer, index, delivered)
        self._check()

    def on_snapshot_received(self, term: int, sender: str, snapshot: Snapshot, now: float) -> None:
        """A leader's snapshot is a durable file here; see the module."""
        self._on_snapshot_received(term, sender, snapshot, now)
        self._check()

    # --- output -----------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether `ready` has something to say."""
        state = (self.role, self.term, self.leader_id)
        flush = self._leadership is not None and self._leadership.wants_flush
        return flush or self.marks.has_work or self._outbox.has_work(state)

    def ready(self) -> Ready:
        """Everything to be done since the last call; metadata/ready.py says in which order."""
        if self._leadership is not None and self._leadership.wants_flush:
            self._leadership.flush()
        outbox = self._outbox
        outbox.number += 1
        state = (self.role, self.term, self.leader_id)
        snapshot, truncate_from, append = self.marks.take_write(outbox.number)
        ready = Ready(
            outbox.number,
            outbox.hard_state,
            snapshot,
            truncate_from,
            append,
            tuple(outbox.send_now),
            tuple(outbox.send_after_persist),
            self.marks.take_committed(self.options.apply_bytes_max),
            tuple(outbox.reads),
            tuple(outbox.reads_lost),
            tuple(outbox.send_snapshots),
            self.role,
            self.term,
            self.leader_id,
            outbox.is_news(state),
        )
        outbox.on_taken(state)
        self._check()
        return ready

    # --- the leader's side: metadata/leadership.py -------------------------------------------------

    def _on_leader_time(self, leadership: Leadership, now: float) -> None:
        if leadership.has_quorum(now):
            leadership.on_time(now, self._disk_stalled)
            self._heartbeat(leadership, now)
        else:  # thesis 6.2: its clients must not wait for it
            self._become_follower(self.term, "", now)

    def _on_append_reply(self, message: AppendReply, now: float) -> None:
        leadership = self._leadership_of(message.term, now)
        if leadership is not None:
            leadership.on_append_reply(message, now)
            self._leave_if_removed()

    def _on_heartbeat_reply(self, message: HeartbeatReply, now: float) -> None:
        leadership = self._leadership_of(message.term, now)
        if leadership is not None:
            leadership.on_heartbeat_reply(message, now)

    def _leadership_of(self, term: int, now: float) -> Leadership | None:
        """The leadership that an answer of ``term`` belongs to, if any; a higher term ends it."""
        if term > self.term:
            self._become_follower(term, "", now)
        return self._leadership if term == self.term else None

    def _leave_if_removed(self) -> None:
        """A leader that removed itself leads until that is committed, and no longer (thesis 4.2.2)."""
        leadership = self._leadership
        gone = self.node_id not in self.voters
        if leadership is not None and gone and self.commit >= self.log.configuration_index:
            leadership.resign()
            self._become_follower(
                self.term, "", 0.0
            )  # no deadline depends on it: it never campaigns

    # --- invariants -------------------------------------------------------------------------------

    def _check(self) -> None:
        """What holds between any two inputs."""
        self.marks.check()
        assert self.log.last_term <= self.term, "an entry of a term not entered"
        leads = self._leadership is not None
        assert leads == (self.role is Role.LEADER)
        assert not leads or (self.leader_id == self.node_id and self.vote == self.node_id)
