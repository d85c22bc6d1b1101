"""State that exists only while a node leads (pure): replication, commit, read rounds, leadership transfer.

Each term has a new object, so that nothing of an earlier leadership can leak into a later one. It changes
the watermarks of the log and adds messages to the ready builder. The core (metadata/raft/raft.py) controls
roles and terms.

Source: Raft paper 5.3, 5.4.2, 7; thesis 3.10, 4, 6.2, 6.4, 10.2.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TypeVar

from ...runtime.interfaces.errors import InvalidRequest, NotReady, ProtocolError, TooBusy
from ..declarations.options import RaftOptions
from ..model.configuration import Configuration, is_configuration
from .log_watermarks import LogWatermarks
from .progress import Progress, ProgressState
from .quorum import reached_by_majority
from .raft_messages import AppendReply, AppendRequest, Entry, Heartbeat, HeartbeatReply, TimeoutNow
from .ready import SendSnapshot
from .ready_builder import ReadyBuilder

Number = TypeVar("Number", int, float)
"""A value that is counted over the voters: an index, a round, or a time."""


class LeaderState:
    """The leadership of ``node_id`` in one term.

    It replicates to all other members, and counts the voters.
    """

    def __init__(
        self,
        node_id: str,
        term: int,
        configuration: Configuration,
        watermarks: LogWatermarks,
        ready_builder: ReadyBuilder,
        options: RaftOptions,
        now: float,
    ) -> None:
        self.node_id = node_id
        self.term = term
        self.peers: dict[str, Progress] = {}
        self.read_index_queue = ReadIndexQueue()
        self.round = 0  # number of the last heartbeat round
        self.append_count = 0  # number of appends sent, and the number of the last one
        self.transferee = ""  # the target of a leadership transfer
        self.needs_flush = True
        self.heartbeat_at = now
        self.commit_broadcast_at = inf
        """Time at which the peers receive a commit index that no append carried."""
        self._last_append: AppendRequest | None = None
        self._counts = True  # a leader that removed itself still leads, but does not count
        self._other_voters: list[str] = []
        self._learners: tuple[str, ...] = ()
        self._commit_at_heartbeat = 0  # commit index at the last heartbeat
        self._watermarks = watermarks
        self._log = watermarks.log
        self._ready_builder = ready_builder
        self._options = options
        self.uncommitted_bytes = 0
        """Size of the commands that are proposed and not committed."""
        self._transferee_notified = False
        self._transfer_deadline = 0.0
        self._next_transfer_at = 0.0
        self._set_members(configuration, now)
        # Reads wait until the no-op is committed (thesis 6.4). It also commits the entries of earlier
        # terms.
        self.noop_index = self._log.last_index + 1
        self._append(b"")

    # --- commands ---------------------------------------------------------------------------------

    def propose(self, command: bytes) -> int | None:
        """Append a command, see `Raft.propose`."""
        if self.transferee:
            return None
        options = self._options
        assert not is_configuration(command), "see change_members"
        if not 0 < len(command) <= options.command_bytes_max:
            raise InvalidRequest(
                f"a command of {len(command)} bytes, allowed are 1 to {options.command_bytes_max}"
            )
        if self.uncommitted_bytes + len(command) > options.uncommitted_bytes_max:
            raise TooBusy(
                f"{self.uncommitted_bytes} bytes of proposals wait for a quorum of the metadata nodes"
            )
        return self._append(command)

    def _append(self, command: bytes) -> int:
        index = self._log.last_index + 1
        self._log.append((Entry(index, self.term, command),))
        self.uncommitted_bytes += len(command)
        self.needs_flush = True
        return index

    # --- members ----------------------------------------------------------------------------------

    def change_members(self, configuration: Configuration) -> int | None:
        """Append a configuration, see `Raft.change_members`, which then applies it."""
        if self.transferee:
            return None
        if not self._may_change_members():
            raise NotReady(
                f"the members as of entry {self._log.configuration_index} or this leader's first entry"
                f" {self.noop_index} are not committed yet ({self._watermarks.commit}): one change at a time"
            )
        if not configuration.can_follow(self._log.configuration):
            raise InvalidRequest(
                "a change may add or remove only one voter, and one voter must remain"
            )
        return self._append(configuration.encode())

    def _may_change_members(self) -> bool:
        """Whether a change of the members may be appended now.

        Only one change is allowed at a time, and only after an entry of this term is committed. Otherwise
        two leaders could each append a change that the other one lacks, and get majorities without a common
        node (the correction of thesis 4.1, see `raft.py`).
        """
        return self._watermarks.commit >= max(self._log.configuration_index, self.noop_index)

    def on_members(self, configuration: Configuration, now: float) -> None:
        """Apply a configuration that was added to the log."""
        self._set_members(configuration, now)
        self.advance_commit()  # one voter less may complete a majority
        self._confirm_reads()
        self.needs_flush = True

    def _set_members(self, configuration: Configuration, now: float) -> None:
        self._counts = self.node_id in configuration.voters
        self._other_voters = [voter for voter in configuration.voters if voter != self.node_id]
        self._learners = configuration.learners
        next_index = self._log.last_index + 1
        self.peers = {
            peer: self.peers.get(peer) or Progress(next_index, now)
            for peer in configuration.others(self.node_id)
        }

    def _voter_values(
        self, own_value: Number, value_of: Callable[[Progress], Number]
    ) -> list[Number]:
        """Return one value per voter, including the leader's own if it is a voter."""
        values = [own_value] if self._counts else []
        values.extend(value_of(self.peers[voter]) for voter in self._other_voters)
        return values

    def active_voters(self, now: float) -> tuple[str, ...]:
        """Return the voters that answered within an election timeout, including this node if it is one."""
        since = now - self._options.election_max_s
        active = [v for v in self._other_voters if self._is_active(self.peers[v], since)]
        return (self.node_id, *active) if self._counts else tuple(active)

    def caught_up_learners(self, now: float) -> tuple[str, ...]:
        """Return the learners that have everything that was committed at the last heartbeat."""
        since = now - self._options.election_max_s
        return tuple(
            learner
            for learner in self._learners
            if self._is_active(self.peers[learner], since)
            and self.peers[learner].quorum_match >= max(self._commit_at_heartbeat, self.noop_index)
        )

    def _is_active(self, progress: Progress, since: float) -> bool:
        return progress.is_responsive and progress.last_contact > since

    def transfer_and_resign(self) -> None:
        """Send the commit of this node's removal, and ask the best voter to campaign.

        Called when the removal of this node is committed.
        """
        self.flush()
        transferee = self._best_transferee(-inf)
        if transferee:
            self._ready_builder.send(transferee, TimeoutNow(self.term, self.node_id))

    # --- heartbeats and reads ---------------------------------------------------------------------

    def has_quorum(self, now: float) -> bool:
        """Whether a majority answered within the last election timeout (thesis 6.2)."""
        heard_at = self._voter_values(now, lambda progress: progress.last_contact)
        return reached_by_majority(heard_at) > now - self._options.election_max_s

    def extend_deadlines(self, lateness_s: float, now: float) -> None:
        """Extend all deadlines after a stall of this node.

        During the stall, it could not process answers, so the silence of peers proves nothing (H25).
        """
        for progress in self.peers.values():
            progress.last_contact = min(now, progress.last_contact + lateness_s)
        self._transfer_deadline += lateness_s

    def start_heartbeat_round(self) -> None:
        """Send a heartbeat to all peers. The answers show that they are alive and follow this node."""
        self.round += 1
        if self._watermarks.commit >= self.noop_index:
            self.read_index_queue.on_round_begun(self.round, self._watermarks.commit)
        for peer, progress in self.peers.items():
            progress.commit_sent = min(progress.match, self._watermarks.commit)
            heartbeat = Heartbeat(self.term, self.node_id, progress.commit_sent, self.round)
            self._ready_builder.send(peer, heartbeat)
        self._confirm_reads()

    def on_heartbeat_reply(self, message: HeartbeatReply, now: float) -> None:
        """Process the reply of a peer that followed this node in a round."""
        if message.round > self.round:
            raise ProtocolError(
                f"{message.sender} answers round {message.round}, which was not started"
            )
        progress = self.peers[message.sender]
        progress.on_heard(now)
        progress.on_heartbeat_answered(self._log.last_index, now, self._options.heartbeat_s / 2)
        progress.round = max(progress.round, message.round)
        self._confirm_reads()
        self.needs_flush = True

    def _confirm_reads(self) -> None:
        self._ready_builder.reads.extend(
            self.read_index_queue.on_round_confirmed(self._confirmed_round())
        )

    def _confirmed_round(self) -> int:
        return reached_by_majority(self._voter_values(self.round, lambda progress: progress.round))

    # --- replication ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send pending messages: a read round, appends, and commit indexes."""
        self.needs_flush = False
        self._last_append = None  # A later append has a different number.
        if self.read_index_queue.needs_round and self._watermarks.commit >= self.noop_index:
            self.start_heartbeat_round()
        for peer, progress in self.peers.items():
            self._replicate(peer, progress)

    def _replicate(self, peer: str, progress: Progress) -> None:
        if progress.state is ProgressState.SNAPSHOT:
            return
        if progress.next_index <= self._log.base_index:
            if (
                progress.is_responsive and not progress.probe_sent
            ):  # otherwise it may be dead, or an attempt just failed
                progress.on_snapshot_needed()
                self._ready_builder.send_snapshots.append(SendSnapshot(peer, self._log.base_index))
            return
        if progress.state is ProgressState.PROBE:
            if not progress.probe_sent:
                progress.probe_sent = True
                self._send_append(peer, progress)
                progress.probe_number = self._last_append_number()
            return
        bytes_max = self._options.in_flight_bytes_max
        while progress.next_index <= self._log.last_index and progress.has_capacity(bytes_max):
            entries = self._send_append(peer, progress)
            progress.on_sent(entries[-1].index, sum(len(entry.data) for entry in entries))
            progress.resend_probe = False
        if progress.resend_probe:
            progress.resend_probe = False
            self._send_append(peer, progress, empty=True)
        if not self._options.commit_lag_s:
            self._send_commit(peer, progress)

    def schedule_commit_broadcast(self, now: float) -> None:
        """Schedule a message with the commit index for peers that receive no append before it is due.

        On a busy leader, an append follows sooner. Two messages per change were a tenth of its cost.
        """
        if self._options.commit_lag_s:
            self.commit_broadcast_at = min(
                self.commit_broadcast_at, now + self._options.commit_lag_s
            )

    def broadcast_commit(self) -> None:
        """Send the commit index to peers that did not receive it with an append."""
        self.commit_broadcast_at = inf
        for peer, progress in self.peers.items():
            if progress.state is ProgressState.REPLICATE:
                self._send_commit(peer, progress)

    def _send_commit(self, peer: str, progress: Progress) -> None:
        commit = min(progress.match, self._watermarks.commit)
        if commit > progress.commit_sent:
            progress.commit_sent = commit
            self._ready_builder.send(peer, Heartbeat(self.term, self.node_id, commit, 0))

    def _send_append(self, peer: str, progress: Progress, empty: bool = False) -> tuple[Entry, ...]:
        log, commit = self._log, self._watermarks.commit
        prev_index = progress.next_index - 1
        last_append = self._last_append
        if (
            last_append is not None
            and last_append.prev_index == prev_index
            and last_append.commit == commit
            and prev_index + len(last_append.entries) == log.last_index
            and bool(last_append.entries) != empty
        ):
            # the same object, so that it is encoded once
            self._send_to(peer, progress, last_append)
            return last_append.entries
        prev_term = log.term_at(prev_index)
        assert prev_term is not None, f"entry {prev_index} is compacted"
        entries: tuple[Entry, ...] = ()
        if not empty and prev_index < log.last_index:
            entries = log.slice(
                progress.next_index, log.last_index, bytes_max=self._options.append_bytes_max
            )
        self.append_count += 1
        append = AppendRequest(
            self.term, self.node_id, prev_index, prev_term, commit, entries, self.append_count
        )
        self._last_append = append
        self._send_to(peer, progress, append)
        return entries

    def _last_append_number(self) -> int:
        return self._last_append.number if self._last_append is not None else self.append_count

    def _send_to(self, peer: str, progress: Progress, append: AppendRequest) -> None:
        self._ready_builder.send(peer, append)
        last = append.prev_index + len(append.entries)
        progress.commit_sent = min(append.commit, max(progress.match, last))

    def on_append_reply(self, message: AppendReply, now: float) -> bool:
        """Process the reply to an append. Return whether peers should receive a commit index."""
        log = self._log
        progress = self.peers[message.sender]
        if message.index > log.last_index:
            raise ProtocolError(
                f"{message.sender} {'acknowledges' if message.accepted else 'refuses'} entry"
                f" {message.index}, the log ends at {log.last_index}"
            )
        progress.on_heard(now)
        self.needs_flush = True
        if not message.accepted:
            next_index = log.next_after_hint(message.index, message.hint_index, message.hint_term)
            progress.on_refused(message.number, message.index, next_index, self.append_count)
            return False
        if not progress.on_accepted(message.index, message.number, log.base_index):
            return False
        commits = self.advance_commit()
        self._notify_transferee()
        return commits or min(progress.match, self._watermarks.commit) > progress.commit_sent

    def advance_commit(self) -> bool:
        """Commit the entries that a majority stores durably. Return whether the commit index changed.

        The leader's own disk counts like any other.
        """
        durable = self._watermarks.durable_index
        index = reached_by_majority(
            self._voter_values(durable, lambda progress: progress.quorum_match)
        )
        if index <= self._watermarks.commit or not self._may_commit(index):
            return False
        for entry_index in range(max(self._watermarks.commit + 1, self.noop_index), index + 1):
            self.uncommitted_bytes -= len(self._log.entry(entry_index).data)
        self._watermarks.commit_to(index)
        self.needs_flush = True
        return True

    def _may_commit(self, index: int) -> bool:
        """Whether an entry may be committed by counting.

        Only those of the own term may (paper 5.4.2, figure 8).
        """
        return self._log.term_at(index) == self.term

    # --- snapshots --------------------------------------------------------------------------------

    def compaction_limit(self, up_to: int) -> int:
        """Return how far up to ``up_to`` the log may be compacted.

        Entries that an active peer needs are kept (H39).
        """
        options = self._options
        fully_fed_from = self._log.index_before_last_bytes(
            up_to, bytes_max=options.lag_bytes_max, entries_max=options.lag_entries_max
        )
        limits = [
            progress.compaction_limit(up_to, fully_fed_from) for progress in self.peers.values()
        ]
        return min([up_to, *(limit for limit in limits if limit is not None)])

    def on_snapshot_sent(self, peer: str, index: int, delivered: bool) -> None:
        """Process the end of sending a snapshot."""
        if peer in self.peers:
            self.peers[peer].on_snapshot_ended(index, delivered, self._log.last_index)
            self.needs_flush = True

    # --- leadership transfer ----------------------------------------------------------------------

    def transfer_leadership(self, now: float, to: str = "") -> bool:
        """Start a leadership transfer (thesis 3.10).

        Return False if one is in progress or no voter can take over.
        """
        options = self._options
        transferee = to or self._best_transferee(now - options.election_min_s)
        if self.transferee or transferee not in self._other_voters:
            return False
        self.transferee, self._transferee_notified = transferee, False
        self._transfer_deadline = now + options.election_min_s
        self._next_transfer_at = self._transfer_deadline + options.election_max_s
        self._notify_transferee()
        self.needs_flush = True
        return True

    def on_time(self, now: float, disk_stalled: bool) -> None:
        """Check for silent peers and failed transfers, with each heartbeat."""
        for progress in self.peers.values():
            if progress.last_contact <= now - self._options.election_max_s:
                progress.on_silent()
        self._commit_at_heartbeat = self._watermarks.commit
        if self.transferee and now >= self._transfer_deadline:
            self.transferee = ""  # The transfer failed, so continue as leader.
        # with pauses, in which this node serves clients
        if disk_stalled and now >= self._next_transfer_at:
            self.transfer_leadership(now)

    def _best_transferee(self, silent_since: float) -> str:
        """Return the voter with the longest log, or "" if none answered after ``silent_since``."""
        best, match = "", -1
        for voter in self._other_voters:
            progress = self.peers[voter]
            if (
                progress.is_responsive
                and progress.last_contact > silent_since
                and progress.match > match
            ):
                best, match = voter, progress.match
        return best

    def _notify_transferee(self) -> None:
        if not self.transferee or self._transferee_notified:
            return
        if self.peers[self.transferee].match == self._log.last_index:
            self._transferee_notified = True
            self._ready_builder.send(self.transferee, TimeoutNow(self.term, self.node_id))


class ReadIndexQueue:
    """The reads in one leader's term that wait until a quorum confirms that the node still leads.

    Rounds have the numbers of the heartbeats. A round confirms only reads that arrived before it started,
    so there are no lease reads (H26). The driver chooses request IDs that are unique among the waiting
    reads. Source: thesis 6.4.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._asked: deque[tuple[int, int, list[int]]] = deque()  # (round, read index, requests)

    @property
    def needs_round(self) -> bool:
        """Whether reads wait and no round with reads is in progress."""
        return bool(self._waiting) and not self._asked

    def add(self, request_id: int) -> None:
        """Add a read to the next round."""
        self._waiting.append(request_id)

    def on_round_begun(self, number: int, commit: int) -> None:
        """Start a round with all waiting reads. Their read index is ``commit``."""
        if self._waiting:
            self._asked.append((number, commit, self._waiting))
            self._waiting = []

    def on_round_confirmed(self, number: int) -> list[tuple[int, int]]:
        """Return the reads that are confirmed, because a quorum answered this or later rounds.

        Returns:
            Pairs of request ID and read index.
        """
        confirmed: list[tuple[int, int]] = []
        while self._asked and self._asked[0][0] <= number:
            _, index, requests = self._asked.popleft()
            confirmed.extend((request, index) for request in requests)
        return confirmed

    def drop_all(self) -> list[int]:
        """Drop all reads after the end of the leadership, and return their request IDs."""
        lost_requests = [
            request for _, _, requests in self._asked for request in requests
        ] + self._waiting
        self._asked.clear()
        self._waiting = []
        return lost_requests
