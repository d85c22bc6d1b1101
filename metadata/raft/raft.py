"""The Raft core (pure): elections, replication, commit, read index, snapshots, leadership transfer.

`Ready` and the order in which the driver executes it are described in metadata/raft/ready.py. All inputs
are synchronous. ``now`` is a monotonic time in seconds and must not decrease.

Time, messages and connections:

- ``on_message(message, now)``: Process a decoded message. The connection has verified its sender.
- ``on_time(now)``: Called at ``deadline``. An earlier call does nothing.
- ``on_connection_closed(peer, now)``: The connection to a peer closed. If that peer led, start a pre-vote
  soon.
- ``on_late(lateness_s, now)``: The driver woke up more than 50 ms after ``deadline``, so it did not run.
  First deliver the messages in the sockets, then call this, then `on_time`.
- ``on_disk_stalled(stalled, now)``: True if a sync takes more than 1 s. The node then does not campaign,
  and a leader transfers the leadership. False when syncs work again.

Requests:

- ``propose(command)``: Return the index, or None if this node is not the leader or transfers the
  leadership. Several proposals before one `ready` call share an append. The entry has the term
  ``raft.term`` of that moment. It raises `TooBusy` (the command was not added) or `InvalidRequest` (it is
  empty or too large).
- ``read_index(request_id)``: Return False if this node is not the leader. Otherwise the ID appears in
  exactly one Ready, in ``reads`` or ``reads_lost``.
- ``change_members(configuration, now)``: Propose members with one voter more or less, or with other
  learners. Return None as for `propose`. They apply immediately, and the leader may change. It raises
  `NotReady` (an earlier change, or the first entry of this term, is not committed) or `InvalidRequest`
  (more than one voter).
- ``transfer_leadership(now, to="")``: Ask the peer, or the best one, to become leader.

Disk, state machine and snapshots:

- ``on_persisted(number, now)``: That Ready and all earlier ones are durable.
- ``on_applied(index)``: The state machine has applied all entries up to ``index``.
- ``compact(up_to)``: A snapshot that ends at ``up_to`` or later is durable here, so discard entries up to
  it. Return the index before the first remaining entry. It is lower than ``up_to`` while a peer receives a
  snapshot.
- ``on_snapshot_sent(peer, index, delivered)``: On a leader, the sending of a snapshot ended. If
  ``delivered``, the peer has all of it and has called its `on_snapshot_received`.
- ``on_snapshot_received(term, sender, snapshot, now)``: On a follower, the complete snapshot of that leader
  is a durable file. If the next Ready has ``snapshot``, install it. Otherwise it was outdated or invalid,
  so delete the file. Raises nothing.

The driver may read ``role``, ``term``, ``vote``, ``leader_id``, ``leader_state``, ``commit``, ``applied``,
``deadline`` and ``log``. After `on_message` and `on_snapshot_received` it reads ``diverged``. If that is
set, the driver ends the node.

The members are those of the newest configuration in the log (`configuration.py`). Only voters are counted
and campaign, and learners receive the log. A node with ``may_vote=False`` never votes or campaigns.

A candidate requests and counts votes by its own configuration. A node that receives the request does not
check its own configuration, because it may not have received the entry that made it or the candidate a
voter. The new majority may need its vote (thesis 4.1). Two rules keep a removed or disconnected node from
disturbing the quorum. No node helps to replace a leader that is alive (4.2.3), and a candidate holds a
pre-vote before it increases its term (9.6). Also a leader need not be among the known members: entries that
this node lacks may have added it (4.1).

State that exists only while a node leads is in `leader_state.py`. Term and vote are passed to the driver in
`Ready.hard_state`, and `raft_storage.py` makes them durable before a vote is sent.

Source: docs/concepts/guarantees.md, M1 to M4. Raft paper (Ongaro, Ousterhout 2014) figure 2. Thesis (2014)
3.10, 4, 6.4, 9.6, 10.2.1. For changes of members, also the correction of single-server changes (Ongaro,
raft-dev, 10 July 2015): a leader first commits an entry of the present term.
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
"""Maximum distance of a peer's term from the own term.

A term never decreases. A single forged message with the maximum term would leave no term for the next
election, on all nodes and permanently.
"""
FIRST_ELECTION_TIMEOUT_FACTOR = 0.1
"""Factor of the election timeout in term 0."""
NON_MEMBER_MESSAGES = PreVote | Vote | AppendRequest | Heartbeat | TimeoutNow
"""Messages that are also accepted from nodes that are not known as members.

Either side may lack an entry (thesis 4.1).
"""


@dataclass(frozen=True, slots=True)
class DurableState:
    """The state on disk from which a node starts or restarts."""

    log: RaftLog
    hard_state: HardState
    applied: int = 0
    """The index of the restored state machine, if its snapshot is newer than the beginning of the log.

    Entries up to it are not handed out again.
    """
    recovery_floor: RaftEntryId | None = None
    """The last entry that this node ever had, if its disk has lost some (`recovered_hard_state.py`)."""
    commit_index: int = 0
    """The last entry that was stored as committed. The log may end before it, if the disk has lost some."""


class Raft:
    """One node of the replicated log. The module lists its inputs, and `ready` returns its outputs."""

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
        """Create a node.

        Args:
            node_id: The ID of this node.
            durable: The state on its disk.
            options: Times and limits.
            random: Returns random numbers in [0, 1).
            now: The present time.
            may_vote: If False, the node never votes, whatever the configuration is.
        """
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
        """Set while the log lacks entries that this node has acknowledged, otherwise None.

        It is also set when a leader counts acknowledgements of this node for entries that it lacks.
        """
        self.is_state_valid = True
        """False if the state differs from the majority (`state_digest.py`).

        The node then does not campaign.
        """
        self.diverged: Diverged | None = None
        """Set once. Afterwards inputs are ignored, there is no output, and the driver ends the node."""
        self.state_digest = 0, 0
        """The digest that a follower reports: an applied index, and the digest of the state after it."""
        self.configuration: Configuration
        """The newest configuration in the log, which applies."""
        self.voters: tuple[str, ...]
        self.peers: tuple[str, ...]
        """All other members, including learners."""
        self._stored_commit = durable.commit_index
        self._random = random
        self._disk_stalled = False
        self._last_leader_contact = -inf
        self._leader_claims_acked = RaftEntryId(0, 0)
        """The last entry that the leader counts as acknowledged by this node, with the leader's term."""
        self._verified_up_to = RaftEntryId(0, 0)
        """The end of the log that appends of that term's leader have verified."""
        self._grace_available = True  # a late node may wait once more for a message of the leader
        self._votes: dict[str, bool] = {}
        self._leader_state: LeaderState | None = None
        self._ready_builder = ReadyBuilder()
        self._apply_configuration()
        self._clear_floor_if_caught_up()
        self._reset_election_timer(now)
        self._handlers = self._message_handlers()
        self._check_invariants()

    def _message_handlers(self) -> dict[type, Callable[..., None]]:
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
        """Return the last entry that is known to be committed."""
        return self.watermarks.commit

    @property
    def applied(self) -> int:
        """Return the last entry that the driver has reported as applied."""
        return self.watermarks.applied

    @property
    def durable_index(self) -> int:
        """Return the last entry that is durable here."""
        return self.watermarks.durable_index

    @property
    def can_campaign(self) -> bool:
        """Whether this node may campaign: it is a voter, or its removal is not known to be committed.

        It may be the only node with the entry that removes it. Then no other node can win (thesis 4.2.2).
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
        """Whether a correct peer cannot be in ``term``, because elections increase terms one by one (H214).

        A node with an empty log accepts any term, because it may be added to an old cluster.
        """
        return term > self.term + TERMS_AHEAD_MAX and self.log.last_index > 0

    # --- inputs -----------------------------------------------------------------------------------

    def on_message(self, message: Message, now: float) -> None:
        """Process a message. Raises `ProtocolError` for a message that no correct peer sends."""
        if message.sender == self.node_id or self.diverged is not None:
            return
        if message.sender not in self.peers and not isinstance(message, NON_MEMBER_MESSAGES):
            return  # a reply of a node that is not a member, or is no longer one
        if self._is_implausible_term(message.term):
            raise ProtocolError(
                f"{message.sender} sent term {message.term}, but this node is in term {self.term}:"
                f" more than {TERMS_AHEAD_MAX} elections ahead"
            )
        self._handlers[type(message)](message, now)
        self._check_invariants()

    def on_time(self, now: float) -> None:
        """Do what is due at ``now``: send a heartbeat, campaign, or step down."""
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
        """Process the end of the connection to ``peer``. Messages on it are lost."""
        if self._leader_state is not None:
            progress = self._leader_state.peers.get(peer)
            if progress is not None:
                progress.on_connection_lost(self._leader_state.append_count)
        elif peer == self.leader_id:
            self._last_leader_contact = -inf  # this node is no longer bound to that leader
            if self.deadline < inf:
                self.deadline = min(
                    self.deadline, now + self._random() * self.options.closed_jitter_s
                )
        self._check_invariants()

    def on_late(self, lateness_s: float, now: float) -> None:
        """Extend the timeouts after this node did not run for ``lateness_s``.

        Silence in that time proves nothing.
        """
        if self._leader_state is not None:
            self._leader_state.extend_deadlines(lateness_s, now)
        else:
            self.deadline += lateness_s
            self._last_leader_contact = min(now, self._last_leader_contact + lateness_s)
            if self._grace_available and lateness_s > 0:
                # The lateness counts from the deadline. If the deadline were only moved by it, it would be
                # now, and after a stall of the whole machine all nodes would campaign at once. Once per
                # timeout, so that a node that is always late campaigns eventually.
                self._grace_available = False
                self.deadline = max(self.deadline, now + 2 * self.options.heartbeat_s)
        self._check_invariants()

    def on_disk_stalled(self, stalled: bool, now: float) -> None:
        """Process the start or end of a disk stall. A stalled leader transfers the leadership (H25)."""
        self._disk_stalled = stalled
        if stalled and self._leader_state is not None:
            self.transfer_leadership(now)
        self._check_invariants()

    def propose(self, command: bytes) -> int | None:
        """Append a command. Return its index, or None if this node cannot. The module lists the errors."""
        if self._leader_state is None:
            return None
        index = self._leader_state.propose(command)
        self._check_invariants()
        return index

    def read_index(self, request_id: int) -> bool:
        """Request the index from which a read is linearizable, see `Ready.reads`."""
        if self._leader_state is None:
            return False
        self._leader_state.read_index_queue.add(request_id)
        self._leader_state.needs_flush = True
        self._check_invariants()
        return True

    def change_members(self, configuration: Configuration, now: float) -> int | None:
        """Propose other members.

        Return the index of the entry, or None if this node cannot. See the module.
        """
        if self._leader_state is None:
            return None
        commit = self.commit
        index = self._leader_state.change_members(configuration)
        self._on_log_changed(now)
        if self.commit > commit:  # one voter less may complete a majority
            self._schedule_commit_broadcast(self._leader_state, now)
        self._step_down_if_removed()
        self._check_invariants()
        return index

    @property
    def leader_state(self) -> LeaderState | None:
        """Return the leader's state, to be read only, or None if this node does not lead."""
        return self._leader_state

    def transfer_leadership(self, now: float, to: str = "") -> bool:
        """Let ``to`` (by default the best follower) become leader. Return False if no voter can."""
        if self._leader_state is None:
            return False
        started = self._leader_state.transfer_leadership(now, to)
        self._check_invariants()
        return started

    def set_state_valid(self, is_valid: bool, now: float) -> None:
        """Set whether this node's state equals that of the majority.

        A node with a different state steps down if it leads. It does not campaign (`can_campaign`) until it
        has installed the leader's snapshot.
        """
        if is_valid == self.is_state_valid:
            return
        self.is_state_valid = is_valid
        if self._leader_state is not None:
            self._become_follower(self.term, "", now)
        else:
            self._reset_election_timer(now)  # stops the timer, or starts it again
        self._check_invariants()

    def on_persisted(self, number: int, now: float) -> None:
        """Record that the Readys up to ``number`` are durable.

        On a leader, its own durable entries can complete a majority.
        """
        self._ready_builder.on_persisted(number)
        self.watermarks.on_persisted(number)
        if self.recovery_floor is not None and self._clear_floor_if_caught_up():
            self._reset_election_timer(now)  # starts the timer, which the floor had stopped
        if self._leader_state is not None and self._leader_state.advance_commit():
            self._schedule_commit_broadcast(self._leader_state, now)
            self._step_down_if_removed()
        self._check_invariants()

    def on_applied(self, index: int) -> None:
        """Record that the state machine has applied all entries up to ``index``."""
        self.watermarks.on_applied(index)
        self._check_invariants()

    def compact(self, up_to: int) -> int:
        """Discard entries up to ``up_to``, which are applied and in a durable snapshot.

        Return the new base.
        """
        assert up_to <= self.applied, f"compact to {up_to}, applied {self.applied}"
        if self._leader_state is not None:
            up_to = self._leader_state.compaction_limit(up_to)
        self.log.compact(up_to)
        self._check_invariants()
        return self.log.base_index

    def on_snapshot_sent(self, peer: str, index: int, delivered: bool) -> None:
        """Record the end of sending a snapshot, see the module."""
        if self._leader_state is not None:
            self._leader_state.on_snapshot_sent(peer, index, delivered)
        self._check_invariants()

    def on_snapshot_received(self, term: int, sender: str, snapshot: Snapshot, now: float) -> None:
        """Process a leader's snapshot that is a durable file here, see the module."""
        if term < self.term or self._has_rival(term, sender):
            return
        if not 0 < snapshot.term <= term or snapshot.index <= 0 or self._is_implausible_term(term):
            return  # No entry is newer than its leader's term, and no term is that far ahead.
        if self._replaces_committed(term, sender, (snapshot.index, snapshot.term)):
            return
        self._follow_leader(term, sender, now)
        if snapshot.index > self.commit:
            if self.log.term_at(snapshot.index) == snapshot.term:
                self.watermarks.commit_to(
                    snapshot.index
                )  # paper 7: the log contains this entry, so keep the rest
            else:
                self.watermarks.install_snapshot(snapshot)
                self._on_log_changed(now)
        self._send(sender, AppendReply(self.term, self.node_id, True, self.commit, 0, 0), True)
        self._check_invariants()

    # --- output -----------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        """Whether `ready` would return actions."""
        state = (self.role, self.term, self.leader_id)
        if self.diverged is not None:
            return False
        flush = self._leader_state is not None and self._leader_state.needs_flush
        return flush or self.watermarks.has_work or self._ready_builder.has_work(state)

    def ready(self) -> Ready:
        """Return all actions since the last call. metadata/raft/ready.py defines their order."""
        if self._leader_state is not None and self._leader_state.needs_flush:
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
        """Apply a configuration that was added to the log or removed from it. It applies immediately."""
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
        assert term <= TERM_MAX, f"term {term} is above the maximum"
        self.term, self.vote = term, vote
        self._ready_builder.hard_state = HardState(term, vote)

    def _reset_election_timer(self, now: float) -> None:
        """Select a random time after which silence means that there is no leader.

        If the node may not campaign (`can_campaign`), the timer is stopped. A change that lets it campaign
        must call this method, which starts the timer again.

        Each voter except the leader uses its own part of the interval. So the first of them starts early
        and does not collide with the second, without a shorter timeout for any node. In term 0 there was no
        leader to wait for, so the timeout only gives the other nodes time to start. A lost pre-vote is
        repeated.
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
        """Accept a leader of ``term``, which is not below the own term."""
        if self._has_rival(term, leader_id):
            raise ProtocolError(
                f"two leaders in term {term}: {leader_id} and {self.leader_id or self.node_id}"
            )
        self._become_follower(term, leader_id, now)
        self._last_leader_contact = now

    def _has_rival(self, term: int, leader_id: str) -> bool:
        """Whether another leader of the same term is known. Then a node violates M1 or is malicious."""
        return term == self.term and (
            self.role is RaftRole.LEADER or self.leader_id not in ("", leader_id)
        )

    def has_leader_contact(self, now: float) -> bool:
        """Whether this node leads, or received a message of its leader within the longest timeout."""
        if self._leader_state is not None:
            return True
        return (
            bool(self.leader_id) and now < self._last_leader_contact + self.options.election_max_s
        )

    def _in_leader_lease(self, now: float) -> bool:
        """Whether a leader is alive as far as this node can determine.

        Then the node does not help to replace it.

        Thesis 4.2.3 and 9.6: otherwise a node that was disconnected could depose a working leader.
        """
        if self._leader_state is not None:
            return True
        return (
            bool(self.leader_id) and now < self._last_leader_contact + self.options.election_min_s
        )

    # --- campaigns and votes ----------------------------------------------------------------------

    def _start_pre_vote(self, now: float) -> None:
        """Ask whether an election could be won before disturbing the quorum (pre-vote)."""
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
        self._reset_election_timer(now)  # votes need the full timeout, also in the first term
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
            return  # of an earlier pre-vote
        self._votes[message.sender] = message.granted
        result = tally(self._votes, self.voters)
        if result is VoteResult.WON:
            self._campaign(now)
        elif result is VoteResult.LOST:
            self._become_follower(self.term, "", now)

    def _on_vote(self, message: Vote, now: float) -> None:
        if message.term > self.term:
            if self._in_leader_lease(now) and not message.transfer:
                # thesis 4.2.3: accept neither the term nor the vote request of a disturbing node
                return
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
        """Whether the node may vote for a candidate: one vote per term (paper 5.2), which may be repeated."""
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

    # --- messages of the leader -------------------------------------------------------------------

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
        # an old message, and committed entries are equal there
        if message.prev_index < self.commit:
            # Only up to the end of the append, because a leader that has lost entries may lack the rest.
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
        """Whether an entry in a leader's message differs from an entry that is committed here.

        ``previous_entry`` (index, term) and ``entries`` are checked. A correct leader has all committed
        entries (M2). So a difference means that a majority runs on older copies of its disks. Following
        that leader would delete the last copy of acknowledged entries.

        The terms of compacted entries are unknown, but terms never decrease along a log. Equal terms prove
        nothing, because older copies may elect a second leader in the same term.
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
            # Only entries that were verified since the start. The leader's commit index is based on earlier
            # acknowledgements, and an older copy of this disk may end in entries that were replaced since
            # (H107).
            self.watermarks.commit_to(
                min(message.commit, self._verified_up_to.log_index, self.log.last_index)
            )
        if message.round:
            self._send(message.sender, HeartbeatReply(self.term, self.node_id, message.round))

    def _check_divergence(self, append: AppendRequest, now: float) -> None:
        """Set the recovery floor if the log differs from entries that this node has acknowledged (H107)."""
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
        """Set the recovery floor: the leader counts acknowledgements of this node for entries that it lacks.

        The disk is then an older copy, or has lost the end of the log. Other acknowledgements of this node
        are not newer than the last commit index that this leader has sent here (H107).
        """
        if self.recovery_floor is None:
            self.recovery_floor = self._leader_claims_acked
            self._reset_election_timer(now)

    def _clear_floor_if_caught_up(self) -> bool:
        """Remove the recovery floor if the durable log has reached it. Return whether there is none."""
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
        """Notify a leader of an earlier term.

        Otherwise a node whose term increased while it was disconnected, and which receives no votes, would
        never receive messages of a leader again.
        """
        self._send(sender, AppendReply(self.term, self.node_id, False, 0, 0, 0))

    # --- leader state: metadata/raft/leader_state.py ----------------------------------------------

    def _on_leader_time(self, leader_state: LeaderState, now: float) -> None:
        if leader_state.has_quorum(now):
            leader_state.on_time(now, self._disk_stalled)
            self._send_heartbeats(leader_state, now)
        else:  # thesis 6.2: its clients must not wait for this node
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
        """Return the leader's state if a reply of ``term`` belongs to it.

        A higher term ends the leadership.
        """
        if term > self.term:
            self._become_follower(term, "", now)
        return self._leader_state if term == self.term else None

    def _step_down_if_removed(self) -> None:
        """Step down when the removal of this leader is committed (thesis 4.2.2)."""
        leader_state = self._leader_state
        is_removed = self.node_id not in self.voters
        if leader_state is not None and is_removed and self.commit >= self.log.configuration_index:
            leader_state.transfer_and_resign()
            # No deadline depends on the time, because this node never campaigns.
            self._become_follower(self.term, "", 0.0)

    def _send(self, to: str, message: Message, after_persist: bool = False) -> None:
        self._ready_builder.send(to, message, after_persist)

    # --- invariants -------------------------------------------------------------------------------

    def _check_invariants(self) -> None:
        self.watermarks.check_invariants()
        assert self.log.last_term <= self.term, "an entry of a term not entered"
        is_leader = self._leader_state is not None
        assert is_leader == (self.role is RaftRole.LEADER)
        assert not is_leader or (self.leader_id == self.node_id and self.vote == self.node_id)
