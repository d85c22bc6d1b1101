"""The Raft core (pure): elections, replication, commit, read index, snapshots, handing over.

What the driver must do with a `Ready`, and in which order, is the contract in metadata/raft/ready.py.
Inputs, all synchronous; ``now`` is a monotonic time in seconds and may not go back:

    on_message(message, now)              a decoded message; its sender was checked by the connection
    on_time(now)                          at ``deadline``; calling earlier does nothing
    on_connection_closed(peer, now)       the connection to a peer ended: pre-vote at once if it led
    on_late(lateness_s, now)              the driver woke > 50 ms after ``deadline``, so it was not run:
                                          first deliver what lies in the sockets, then call this, then
                                          on_time
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
    on_persisted(number, now)             that Ready and all before it are durable
    on_applied(index)                     the state machine stands at ``index``
    compact(up_to) -> int                 a snapshot that ends at ``up_to`` or later is durable here:
                                          forget entries up to it; returns the new first index kept - 1
                                          (lower than asked while a peer gets a snapshot)
    on_snapshot_sent(peer, index, delivered)
                                          leader: sending ended. ``delivered``: the peer has all of it
                                          and has called its own on_snapshot_received
    on_snapshot_received(term, sender, snapshot, now)
                                          follower: the whole snapshot of that leader is a durable file
                                          here. If the next Ready carries ``snapshot``, install it; if
                                          not, it was stale or nonsense: drop the file. Raises nothing

Reading: ``role``, ``term``, ``vote``, ``leader_id``, ``leadership``, ``commit``, ``applied``, ``deadline``,
``log``; after `on_message` and `on_snapshot_received` also ``diverged``. If that is set, the driver ends the
node. The members are what the newest configuration in the log says: only voters count and campaign, learners
are replicated to (`configuration.py`). A node with ``may_vote=False`` never votes nor campaigns, whatever
it is asked and whatever the configuration says.

Voters are asked and counted by the candidate's own configuration. Who is asked for a vote does not consult
its own one: it may not know yet that it, or the candidate, has become a voter, and the new majority may
need it (thesis 4.1). What keeps a removed node, or one that was cut off, from disturbing is that nobody
helps to replace a leader that is alive (4.2.3), and that a candidate asks before it counts its term up (9.6).
Nor need a leader be of the members that this node knows of: it may have been let in by entries that this
node lacks, or this node may know of nobody yet (4.1).

What exists only while a node leads is in `leader_state.py`. The term and the vote leave here as
`Ready.hard_state`; `raft_storage.py` has them on disk before a vote is sent.

Source: docs/concepts/guarantees.md, M1 to M4; Raft paper (Ongaro, Ousterhout 2014) figure 2; thesis (2014)
3.10, 4, 6.4, 9.6, 10.2.1; for changes of members also the correction of single-server changes (Ongaro,
raft-dev, 10 July 2015): a leader first commits an entry of its own term.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from ...runtime.interfaces.errors import ProtocolError
from ..declarations.options import RaftOptions
from ..model.configuration import Configuration
from .leader_state import LeaderState
from .log_watermarks import LogWatermarks
from .quorum import VoteResult, tally
from .raft_log import RaftLog
from .raft_messages import (
    TERM_MAX,
    AppendReply,
    AppendRequest,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from .ready import Diverged, HardState, RaftRole, Ready, Snapshot
from .ready_builder import ReadyBuilder
from .recovered_hard_state import RaftEntryId

TERMS_AHEAD_MAX = 1_000_000
"""So far ahead of the own term a peer's may be. A term that is entered is never left: one forged message
with a high one would leave no term for the next election, on all nodes and for good."""
FIRST_ELECTION_TIMEOUT_FACTOR = 0.1
"""Of an election's time-outs, in term 0."""
NON_MEMBER_MESSAGES = PreVote | Vote | AppendRequest | Heartbeat | TimeoutNow
"""Taken also from nodes that are no members here: either side may lack an entry (thesis 4.1)."""


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state that a node starts or restarts from, as found on its disk."""

    log: RaftLog
    hard_state: HardState
    applied: int = 0
    """The index of the restored state machine, if its snapshot is newer than the log's beginning. Entries up
    to it are not handed out again."""
    recovery_floor: RaftEntryId | None = None
    """The last entry that this node ever had, if its disk has lost some (`recovered_hard_state.py`)."""
    commit_index: int = 0
    """The last entry that was stored as committed. The log may end before it, if the disk has lost some."""


class Raft:
    """One node's view of the replicated log. The module names its inputs; `ready` gives its outputs."""

    def __init__(
        self,
        node_id: str,
        durable: DurableState,
        *,
        options: RaftOptions,
        random: Callable[[], float],
        now: float,
        may_vote: bool = True,
    ) -> None:
        """``draw`` is in [0, 1). ``may_vote`` False: never, whatever the configuration says."""
        self.node_id = node_id
        self.options = options
        self.log = durable.log
        self.watermarks = LogWatermarks(self.log, max(durable.applied, self.log.base_index))
        self.role = RaftRole.FOLLOWER
        self.term, self.vote = durable.hard_state.term, durable.hard_state.vote
        self.leader_id = ""
        self.deadline = inf
        self.may_vote = may_vote
        self.recovery_floor = durable.recovery_floor
        """None once the log is no less than it ever was; set if a leader has this node's word for more."""
        self.is_state_valid = True
        """False: its state is not what most others have (`state_digest.py`); it stands for no election."""
        self.diverged: Diverged | None = None
        """Set once. Afterwards no input counts, there is no output, and the driver ends the node."""
        self.state_digest = 0, 0
        """What a follower says of its state: an index that was applied, and the digest after it."""
        self.configuration: Configuration
        """In effect: the newest one in the log."""
        self.voters: tuple[str, ...]
        self.peers: tuple[str, ...]
        """All other members, learners included."""
        self._stored_commit = durable.commit_index
        self._random = random
        self._disk_stalled = False
        self._last_leader_contact = -inf
        self._leader_claims_acked = RaftEntryId(0, 0)
        """What a leader said last that it has this node's word for, and its term."""
        self._verified_up_to = RaftEntryId(0, 0)
        """How far appends of that term's leader have shown the log to be its own."""
        self._grace_available = (
            True  # a late clock may still wait once for the leader's sign of life
        )
        self._votes: dict[str, bool] = {}
        self._leader_state: LeaderState | None = None
        self._ready_builder = ReadyBuilder()
        self._apply_configuration()
        self._clear_floor_if_caught_up()
        self._reset_election_timer(now)
        self._handlers = self._message_handlers()
        self._check_invariants()

    def _message_handlers(self) -> dict[type, Callable[..., None]]:
        """Return the method that handles each type of message."""
        return {
            PreVote: self._on_pre_vote,
            PreVoteReply: self._on_pre_vote_reply,
            Vote: self._on_vote,
            VoteReply: self._on_vote_reply,
            AppendRequest: self._on_append,
            AppendReply: self._on_append_reply,
            Heartbeat: self._on_heartbeat,
            HeartbeatReply: self._on_heartbeat_reply,
            TimeoutNow: self._on_timeout_now,
        }

    @property
    def commit(self) -> int:
        """The last entry known to be committed."""
        return self.watermarks.commit

    @property
    def applied(self) -> int:
        """The last entry that the driver said was applied."""
        return self.watermarks.applied

    @property
    def durable_index(self) -> int:
        """The last entry that is durable here."""
        return self.watermarks.durable_index

    @property
    def can_campaign(self) -> bool:
        """Whether this node may campaign: it is a voter, or its removal is not known to be committed.

        It may be the only one that has the entry which removes it: then nobody else can win (thesis 4.2.2).
        """
        committed_members = self.log.configuration_at(self.watermarks.commit)
        may_campaign = self.may_vote and self.term < TERM_MAX and len(self.voters) > 0
        is_intact = self.recovery_floor is None and self.is_state_valid
        return (
            is_intact
            and may_campaign
            and (self.node_id in self.voters or self.node_id in committed_members.voters)
        )

    def _is_implausible_term(self, term: int) -> bool:
        """Whether no honest peer can be in ``term``: terms move by elections, one at a time (H214).

        A node that has nothing yet takes any: the cluster that it is let into may be old.
        """
        return term > self.term + TERMS_AHEAD_MAX and self.log.last_index > 0

    # --- inputs -----------------------------------------------------------------------------------

    def on_message(self, message: Message, now: float) -> None:
        """Take one message. Raises `ProtocolError` about what no honest peer sends."""
        if message.sender == self.node_id or self.diverged is not None:
            return
        if message.sender not in self.peers and not isinstance(message, NON_MEMBER_MESSAGES):
            return  # it answers as a member that it is not, or not any more
        if self._is_implausible_term(message.term):
            raise ProtocolError(
                f"{message.sender} speaks in term {message.term}, this node is in {self.term}:"
                f" more than {TERMS_AHEAD_MAX} elections ahead"
            )
        self._handlers[type(message)](message, now)
        self._check_invariants()

    def on_time(self, now: float) -> None:
        """Do what is due at ``now``: a heartbeat, a campaign, a step down."""
        if now < self.deadline or self.diverged is not None:
            return
        leader_state = self._leader_state
        if leader_state is not None and now >= leader_state.heartbeat_at:
            self._on_leader_time(leader_state, now)
        elif leader_state is not None:
            leader_state.broadcast_commit()
            self.deadline = leader_state.heartbeat_at
        else:
            self._start_pre_vote(now)
        self._check_invariants()

    def on_connection_closed(self, peer: str, now: float) -> None:
        """The connection to ``peer`` ended; what was on it is lost."""
        if self._leader_state is not None:
            progress = self._leader_state.peers.get(peer)
            if progress is not None:
                progress.on_connection_lost(self._leader_state.append_count)
        elif peer == self.leader_id:
            self._last_leader_contact = -inf  # nothing binds this node to it any more
            if self.deadline < inf:
                self.deadline = min(
                    self.deadline, now + self._random() * self.options.closed_jitter_s
                )
        self._check_invariants()

    def on_late(self, lateness_s: float, now: float) -> None:
        """This node was not run for ``lateness_s``: silence in that time says nothing of the others."""
        if self._leader_state is not None:
            self._leader_state.extend_deadlines(lateness_s, now)
        else:
            self.deadline += lateness_s
            self._last_leader_contact = min(now, self._last_leader_contact + lateness_s)
            if self._grace_available and lateness_s > 0:
                # The lateness counts from the deadline: shifted by it alone, the deadline would be now,
                # and after a stall of the whole machine all would campaign at once. Once a timeout,
                # so that a node that is always late campaigns in the end.
                self._grace_available = False
                self.deadline = max(self.deadline, now + 2 * self.options.heartbeat_s)
        self._check_invariants()

    def on_disk_stalled(self, stalled: bool, now: float) -> None:
        """Own syncs hang (or do again): a leader hands over, others do not campaign (H25)."""
        self._disk_stalled = stalled
        if stalled and self._leader_state is not None:
            self.transfer_leadership(now)
        self._check_invariants()

    def propose(self, command: bytes) -> int | None:
        """Append a command; its index, or None if this node cannot. See the module for errors."""
        if self._leader_state is None:
            return None
        index = self._leader_state.propose(command)
        self._check_invariants()
        return index

    def read_index(self, request_id: int) -> bool:
        """Ask from which index on a read is linearizable; see `Ready.reads`."""
        if self._leader_state is None:
            return False
        self._leader_state.read_index_queue.add(request_id)
        self._leader_state.wants_flush = True
        self._check_invariants()
        return True

    def change_members(self, configuration: Configuration, now: float) -> int | None:
        """Propose other members; the entry's index, or None if this node cannot. See the module."""
        if self._leader_state is None:
            return None
        commit = self.commit
        index = self._leader_state.change_members(configuration)
        self._on_log_changed(now)
        if self.commit > commit:  # one voter less may be what was waited for
            self._schedule_commit_broadcast(self._leader_state, now)
        self._step_down_if_removed()
        self._check_invariants()
        return index

    @property
    def leader_state(self) -> LeaderState | None:
        """The leader's view of the others, to be read only; None if this node does not lead."""
        return self._leader_state

    def transfer_leadership(self, now: float, to: str = "") -> bool:
        """Let ``to`` (default: the best follower) take over; False if there is nobody to ask."""
        if self._leader_state is None:
            return False
        started = self._leader_state.transfer_leadership(now, to)
        self._check_invariants()
        return started

    def set_state_valid(self, is_valid: bool, now: float) -> None:
        """This node's state is found to be wrong: it leads no more; or it has another one, and may."""
        if is_valid == self.is_state_valid:
            return
        self.is_state_valid = is_valid
        if self._leader_state is not None:
            self._become_follower(self.term, "", now)
        else:
            self._reset_election_timer(now)
        self._check_invariants()

    def on_persisted(self, number: int, now: float) -> None:
        """The Readys up to ``number`` are durable."""
        self._ready_builder.on_persisted(number)
        self.watermarks.on_persisted(number)
        if self.recovery_floor is not None and self._clear_floor_if_caught_up():
            self._reset_election_timer(now)
        if self._leader_state is not None and self._leader_state.advance_commit():
            self._schedule_commit_broadcast(self._leader_state, now)
            self._step_down_if_removed()
        self._check_invariants()

    def on_applied(self, index: int) -> None:
        """The state machine has applied everything up to ``index``."""
        self.watermarks.on_applied(index)
        self._check_invariants()

    def compact(self, up_to: int) -> int:
        """Forget entries up to ``up_to`` (applied, and in a durable snapshot); returns the new base."""
        assert up_to <= self.applied, f"compact to {up_to}, applied {self.applied}"
        if self._leader_state is not None:
            up_to = self._leader_state.compaction_limit(up_to)
        self.log.compact(up_to)
        self._check_invariants()
        return self.log.base_index

    def on_snapshot_sent(self, peer: str, index: int, delivered: bool) -> None:
        """Sending a snapshot ended; see the module."""
        if self._leader_state is not None:
            self._leader_state.on_snapshot_sent(peer, index, delivered)
        self._check_invariants()

    def on_snapshot_received(self, term: int, sender: str, snapshot: Snapshot, now: float) -> None:
        """A leader's snapshot is a durable file here; see the module."""
        if term < self.term or self._has_rival(term, sender):
            return
        if not 0 < snapshot.term <= term or snapshot.index <= 0 or self._is_implausible_term(term):
            return  # no entry is newer than its leader, no leader so far ahead
        if self._replaces_committed(term, sender, (snapshot.index, snapshot.term)):
            return
        self._follow_leader(term, sender, now)
        if snapshot.index > self.commit:
            if self.log.term_at(snapshot.index) == snapshot.term:
                self.watermarks.commit_to(
                    snapshot.index
                )  # paper 7: the log covers it, keep the rest
            else:
                self.watermarks.install_snapshot(snapshot)
                self._on_log_changed(now)
        self._send(sender, AppendReply(self.term, self.node_id, True, self.commit, 0, 0), True)
        self._check_invariants()

    # --- output -----------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether `ready` has something to say."""
        state = (self.role, self.term, self.leader_id)
        if self.diverged is not None:
            return False
        flush = self._leader_state is not None and self._leader_state.wants_flush
        return flush or self.watermarks.has_work or self._ready_builder.has_work(state)

    def ready(self) -> Ready:
        """Everything to be done since the last call; metadata/raft/ready.py says in which order."""
        if self._leader_state is not None and self._leader_state.wants_flush:
            self._leader_state.flush()
        builder = self._ready_builder
        builder.ready_number += 1
        state = (self.role, self.term, self.leader_id)
        snapshot, truncate_from, append = self.watermarks.next_write(builder.ready_number)
        ready = Ready(
            builder.ready_number,
            builder.hard_state,
            snapshot,
            truncate_from,
            append,
            tuple(builder.send_now),
            tuple(builder.send_after_persist),
            self.watermarks.next_committed(self.options.apply_bytes_max),
            tuple(builder.reads),
            tuple(builder.reads_lost),
            tuple(builder.send_snapshots),
            self.role,
            self.term,
            self.leader_id,
            builder.has_changed(state),
            self.commit,
        )
        builder.clear_taken(state)
        self._check_invariants()
        return ready

    # --- members ----------------------------------------------------------------------------------

    def _apply_configuration(self) -> None:
        self.configuration = self.log.configuration
        self.voters = self.configuration.voters
        self.peers = self.configuration.others(self.node_id)

    def _on_log_changed(self, now: float) -> None:
        """Entries came or were cut off: a configuration counts from the moment it is in the log."""
        if self.log.configuration is self.configuration:
            return
        self._apply_configuration()
        if self._leader_state is not None:
            self._leader_state.on_members(self.configuration, now)
        else:
            self._reset_election_timer(now)

    # --- roles and terms --------------------------------------------------------------------------

    def _set_term(self, term: int, vote: str) -> None:
        assert term > self.term or (term == self.term and not self.vote), "a vote is never changed"
        assert term <= TERM_MAX, f"term {term} cannot be told to anybody"
        self.term, self.vote = term, vote
        self._ready_builder.hard_state = HardState(term, vote)

    def _reset_election_timer(self, now: float) -> None:
        """Draw the next time at which silence means that nobody leads.

        Each voter that is not the leader draws from its own part of the interval: the first of them does not
        collide with the second, and comes early, without a shorter timeout for anybody. In term 0 nobody has
        led, so that no silence is waited for: only until the others are up, which a lost pre-vote asks again.
        """
        options = self.options
        timeout_factor = 1.0 if self.term else FIRST_ELECTION_TIMEOUT_FACTOR
        timeout_min_s = options.election_min_s * timeout_factor
        interval_s = options.election_max_s * timeout_factor - timeout_min_s
        others = [voter for voter in self.voters if voter != self.leader_id]
        slot, slot_count = 0, 1
        if self.node_id in others:
            slot, slot_count = others.index(self.node_id), len(others)
        self.deadline = now + timeout_min_s + (slot + self._random()) / slot_count * interval_s
        self._grace_available = True
        if not self.can_campaign:
            self.deadline = inf

    def _become_follower(self, term: int, leader_id: str, now: float) -> None:
        if term > self.term:
            self._set_term(term, "")
        if self._leader_state is not None:
            self._ready_builder.reads_lost.extend(self._leader_state.read_index_queue.drop_all())
            self._leader_state = None
        if self.role is not RaftRole.FOLLOWER or leader_id != self.leader_id:
            self.role = RaftRole.FOLLOWER
            self.leader_id = leader_id
            self._votes = {}
        self._reset_election_timer(now)

    def _follow_leader(self, term: int, leader_id: str, now: float) -> None:
        """A leader of ``term`` (not below the own) showed itself."""
        if self._has_rival(term, leader_id):
            raise ProtocolError(
                f"two leaders in term {term}: {leader_id} and {self.leader_id or self.node_id}"
            )
        self._become_follower(term, leader_id, now)
        self._last_leader_contact = now

    def _has_rival(self, term: int, leader_id: str) -> bool:
        """Whether another leader of that very term is known: somebody broke M1, or lies."""
        return term == self.term and (
            self.role is RaftRole.LEADER or self.leader_id not in ("", leader_id)
        )

    def has_leader_contact(self, now: float) -> bool:
        """Whether this node leads with a quorum, or heard its leader within the longest timeout."""
        if self._leader_state is not None:
            return True
        return (
            bool(self.leader_id) and now < self._last_leader_contact + self.options.election_max_s
        )

    def _in_leader_lease(self, now: float) -> bool:
        """Whether a leader is alive as far as this node knows: then nobody is helped to replace it.

        Thesis 4.2.3 and 9.6: what keeps a node that was cut off from deposing a working leader.
        """
        if self._leader_state is not None:
            return True
        return (
            bool(self.leader_id) and now < self._last_leader_contact + self.options.election_min_s
        )

    # --- campaigns and votes ----------------------------------------------------------------------

    def _start_pre_vote(self, now: float) -> None:
        """Ask whether an election could be won before disturbing anybody (pre-vote)."""
        self._reset_election_timer(now)
        if self._disk_stalled or not self.can_campaign:
            return
        self.role, self.leader_id = RaftRole.PRE_CANDIDATE, ""
        self._votes = {self.node_id: True}
        if tally(self._votes, self.voters) is VoteResult.WON:
            self._campaign(now)
            return
        request = PreVote(self.term + 1, self.node_id, self.log.last_index, self.log.last_term)
        for peer in self._other_voters():
            self._send(peer, request)

    def _campaign(self, now: float, transfer: bool = False) -> None:
        self._set_term(self.term + 1, self.node_id)
        self._reset_election_timer(now)  # its votes take their time, in the first term as in any
        self.role, self.leader_id = RaftRole.CANDIDATE, ""
        self._votes = {self.node_id: True}
        if tally(self._votes, self.voters) is VoteResult.WON:
            self._become_leader(now)
            return
        request = Vote(self.term, self.node_id, self.log.last_index, self.log.last_term, transfer)
        for peer in self._other_voters():
            self._send(peer, request, True)

    def _other_voters(self) -> list[str]:
        return [voter for voter in self.voters if voter != self.node_id]

    def _on_pre_vote(self, message: PreVote, now: float) -> None:
        granted = (
            self.may_vote
            and not self._in_leader_lease(now)
            and (
                message.term > self.term
                or (message.term == self.term and self.vote in ("", message.sender))
            )
            and self._is_up_to_date(message.last_index, message.last_term)
        )
        term = message.term if granted else self.term
        self._send(message.sender, PreVoteReply(term, self.node_id, granted))

    def _on_pre_vote_reply(self, message: PreVoteReply, now: float) -> None:
        if not message.granted and message.term > self.term:
            self._become_follower(message.term, "", now)
            return
        if self.role is not RaftRole.PRE_CANDIDATE:
            return
        if message.granted and message.term != self.term + 1:
            return  # of an earlier question
        self._votes[message.sender] = message.granted
        result = tally(self._votes, self.voters)
        if result is VoteResult.WON:
            self._campaign(now)
        elif result is VoteResult.LOST:
            self._become_follower(self.term, "", now)

    def _on_vote(self, message: Vote, now: float) -> None:
        if message.term > self.term:
            if self._in_leader_lease(now) and not message.transfer:
                return  # thesis 4.2.3: neither the term nor the vote of a disturber is taken up
            self._become_follower(message.term, "", now)
        granted = (
            message.term == self.term
            and self.may_vote
            and self._may_vote_for(message.sender)
            and self._is_up_to_date(message.last_index, message.last_term)
        )
        if granted:
            if not self.vote:
                self._set_term(self.term, message.sender)
            self._reset_election_timer(now)
        self._send(message.sender, VoteReply(self.term, self.node_id, granted), True)

    def _may_vote_for(self, candidate: str) -> bool:
        """At most one vote a term (paper 5.2); asked again, the same answer again."""
        return self.vote == candidate or (not self.vote and not self.leader_id)

    def _is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate's log is at least as complete as the own (paper 5.4.1)."""
        covers_floor = self.recovery_floor is None or (last_term, last_index) >= self.recovery_floor
        return covers_floor and self.log.is_up_to_date(last_index, last_term)

    def _on_vote_reply(self, message: VoteReply, now: float) -> None:
        if message.term > self.term:
            self._become_follower(message.term, "", now)
            return
        if message.term < self.term or self.role is not RaftRole.CANDIDATE:
            return
        self._votes[message.sender] = message.granted
        result = tally(self._votes, self.voters)
        if result is VoteResult.WON:
            self._become_leader(now)
        elif result is VoteResult.LOST:
            self._become_follower(self.term, "", now)

    def _on_timeout_now(self, message: TimeoutNow, now: float) -> None:
        if message.term != self.term or message.sender != self.leader_id:
            return
        if self.can_campaign and not self._disk_stalled:
            self._campaign(now, transfer=True)

    def _become_leader(self, now: float) -> None:
        self.role, self.leader_id = RaftRole.LEADER, self.node_id
        self._votes = {}
        self._leader_state = self._new_leader_state(now)
        self._send_heartbeats(self._leader_state, now)

    def _new_leader_state(self, now: float) -> LeaderState:
        return LeaderState(
            self.node_id,
            self.term,
            self.configuration,
            self.watermarks,
            self._ready_builder,
            self.options,
            now,
        )

    def _send_heartbeats(self, leader_state: LeaderState, now: float) -> None:
        self.deadline = leader_state.heartbeat_at = now + self.options.heartbeat_s
        leader_state.commit_broadcast_at = inf
        leader_state.start_heartbeat_round()

    def _schedule_commit_broadcast(self, leader_state: LeaderState, now: float) -> None:
        leader_state.schedule_commit_broadcast(now)
        self.deadline = min(self.deadline, leader_state.commit_broadcast_at)

    # --- what a follower takes from its leader ----------------------------------------------------

    def _on_append(self, message: AppendRequest, now: float) -> None:
        if message.term < self.term:
            self._reject_stale_leader(message.sender)
            return
        if message.prev_index <= max(self.commit, self._stored_commit):
            previous_entry = message.prev_index, message.prev_term
            if self._replaces_committed(
                message.term, message.sender, previous_entry, message.entries
            ):
                return
        self._follow_leader(message.term, message.sender, now)
        if message.prev_index < self.commit:  # an old one, and committed entries are equal there
            # Only as far as the append: a leader that has forgotten entries may not have the rest.
            verified_index = message.prev_index + len(message.entries)
            self._accept(message.sender, min(self.commit, verified_index), message.number)
            return
        if self._verified_up_to.term != message.term:
            self._check_divergence(message, now)
        if self.log.term_at(message.prev_index) != message.prev_term:
            hint_index, hint_term = self.log.conflict_hint(message.prev_index)
            self._send(
                message.sender,
                AppendReply(
                    self.term,
                    self.node_id,
                    False,
                    message.prev_index,
                    hint_index,
                    hint_term,
                    message.number,
                ),
            )
            return
        last_index = self.watermarks.append_from_leader(message.prev_index, message.entries)
        self._verified_up_to = max(self._verified_up_to, RaftEntryId(message.term, last_index))
        self._on_log_changed(now)
        self.watermarks.commit_to(min(message.commit, last_index))
        self._accept(message.sender, last_index, message.number)

    def _replaces_committed(
        self,
        term: int,
        leader_id: str,
        previous_entry: tuple[int, int],
        entries: Sequence[Entry] = (),
    ) -> bool:
        """Whether ``before`` (index, term) or one of the entries after it is not what is committed here.

        An honest leader has all committed entries (M2), so a majority runs on older copies of its disks. To
        follow it would delete the last copy of acknowledged entries. The terms of compacted entries are not
        known, but terms never decrease along a log. Equal terms prove nothing: older copies may elect a
        leader in a term that had one already.
        """
        commit, log = max(self.commit, self._stored_commit), self.log
        sent_entries = ((entry.index, entry.term, entry.data) for entry in entries)
        for index, entry_term, data in ((*previous_entry, None), *sent_entries):
            is_later_term = index < log.base_index and entry_term > log.base_term
            if index <= commit and (is_later_term or log.conflicts_with(index, entry_term, data)):
                self.diverged, self.deadline = Diverged(leader_id, term, index, commit), inf
                return True
        return False

    def _accept(self, leader_id: str, index: int, number: int) -> None:
        self._send(
            leader_id,
            AppendReply(self.term, self.node_id, True, index, 0, 0, number, *self.state_digest),
            index > self.durable_index,
        )

    def _on_heartbeat(self, message: Heartbeat, now: float) -> None:
        if message.term < self.term:
            self._reject_stale_leader(message.sender)
            return
        self._follow_leader(message.term, message.sender, now)
        self._leader_claims_acked = RaftEntryId(message.term, message.commit)
        if message.commit > self.log.last_index:
            self._raise_floor(now)
        if self._verified_up_to.term == message.term:
            # No more than was shown in this life to fit: it goes by what was acknowledged here before, and an
            # older copy of this disk may end in entries that were replaced since (H107).
            self.watermarks.commit_to(
                min(message.commit, self._verified_up_to.log_index, self.log.last_index)
            )
        if message.round:
            self._send(message.sender, HeartbeatReply(self.term, self.node_id, message.round))

    def _check_divergence(self, append: AppendRequest, now: float) -> None:
        """Whether what is here differs from what the leader has this node's word for (H107)."""
        claimed_index = (
            self._leader_claims_acked.log_index
            if self._leader_claims_acked.term == append.term
            else 0
        )
        if self.log.term_at(append.prev_index) != append.prev_term:
            conflict_index = append.prev_index
        else:
            conflict_index = self.log.first_conflict(append.entries)
        if 0 < conflict_index <= claimed_index:
            self._raise_floor(now)

    def _raise_floor(self, now: float) -> None:
        """The leader has this node's word for more than is here: its disk is an older copy of itself, or lost
        its end. What else it promised is no newer than that leader's last commit told here (H107)."""
        if self.recovery_floor is None:
            self.recovery_floor = self._leader_claims_acked
            self._reset_election_timer(now)

    def _clear_floor_if_caught_up(self) -> bool:
        """Whether what is durable here is no less than all that ever was; then the ghost is gone."""
        index = self.durable_index
        term = self.log.term_at(index)
        if (
            self.recovery_floor is not None
            and term is not None
            and (term, index) >= self.recovery_floor
        ):
            self.recovery_floor = None
        return self.recovery_floor is None

    def _reject_stale_leader(self, sender: str) -> None:
        """Tell a leader of an earlier term that it is one; without this a node whose term ran ahead
        while it was cut off, and whom nobody votes for, would never be heard again."""
        self._send(sender, AppendReply(self.term, self.node_id, False, 0, 0, 0))

    # --- the leader's side: metadata/raft/leader_state.py -------------------------------------------------

    def _on_leader_time(self, leader_state: LeaderState, now: float) -> None:
        if leader_state.has_quorum(now):
            leader_state.on_time(now, self._disk_stalled)
            self._send_heartbeats(leader_state, now)
        else:  # thesis 6.2: its clients must not wait for it
            self._become_follower(self.term, "", now)

    def _on_append_reply(self, message: AppendReply, now: float) -> None:
        leader_state = self._leader_state_for(message.term, now)
        if leader_state is not None:
            if leader_state.on_append_reply(message, now):
                self._schedule_commit_broadcast(leader_state, now)
            self._step_down_if_removed()

    def _on_heartbeat_reply(self, message: HeartbeatReply, now: float) -> None:
        leader_state = self._leader_state_for(message.term, now)
        if leader_state is not None:
            leader_state.on_heartbeat_reply(message, now)

    def _leader_state_for(self, term: int, now: float) -> LeaderState | None:
        """The leadership that an answer of ``term`` belongs to, if any; a higher term ends it."""
        if term > self.term:
            self._become_follower(term, "", now)
        return self._leader_state if term == self.term else None

    def _step_down_if_removed(self) -> None:
        """A leader that removed itself leads until that is committed, and no longer (thesis 4.2.2)."""
        leader_state = self._leader_state
        is_removed = self.node_id not in self.voters
        if leader_state is not None and is_removed and self.commit >= self.log.configuration_index:
            leader_state.transfer_and_resign()
            # No deadline depends on the time: it never campaigns.
            self._become_follower(self.term, "", 0.0)

    def _send(self, to: str, message: Message, after_persist: bool = False) -> None:
        self._ready_builder.send(to, message, after_persist)

    # --- invariants -------------------------------------------------------------------------------

    def _check_invariants(self) -> None:
        """What holds between any two inputs."""
        self.watermarks.check_invariants()
        assert self.log.last_term <= self.term, "an entry of a term not entered"
        is_leader = self._leader_state is not None
        assert is_leader == (self.role is RaftRole.LEADER)
        assert not is_leader or (self.leader_id == self.node_id and self.vote == self.node_id)
