"""What exists only while a node leads (pure): replication, commit, read rounds, handing over.

A new object each term, so that nothing of an earlier leadership can leak into a later one. It writes
to the node's log marks and outbox; roles and terms are the core's (metadata/raft/raft.py).

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
"""What is counted of each voter: an index, a round, a time."""


class LeaderState:
    """One term's leadership of ``node_id``. It replicates to all other members; voters count."""

    def __init__(
        self,
        node_id: str,
        term: int,
        configuration: Configuration,
        marks: LogWatermarks,
        outbox: ReadyBuilder,
        options: RaftOptions,
        now: float,
    ) -> None:
        self.node_id = node_id
        self.term = term
        self.peers: dict[str, Progress] = {}
        self.reads = ReadIndexQueue()
        self.round = 0  # of heartbeats; the last one begun
        self.appends = 0  # how many were sent: the number of the last one
        self.heir = ""  # leadership is being handed to it
        self.wants_flush = True
        self.heartbeat_at = now
        self.tell_at = inf
        """When the peers are told of a commit that no append carried."""
        self._append_before: AppendRequest | None = None
        self._counts = True  # a leader that has removed itself leads on, but does not count
        self._other_voters: list[str] = []
        self._learners: tuple[str, ...] = ()
        self._commit_before = 0  # at the last heartbeat
        self._marks = marks
        self._log = marks.log
        self._outbox = outbox
        self._options = options
        self.uncommitted_bytes = 0
        """The bytes of commands that were proposed and are not committed."""
        self._heir_told = False
        self._heir_until = 0.0
        self._heir_again_at = 0.0
        self._set_members(configuration, now)
        # Reads wait until the no-op is committed (thesis 6.4); it also commits what earlier terms left.
        self.noop_index = self._log.last_index + 1
        self._append(b"")

    # --- commands ---------------------------------------------------------------------------------

    def propose(self, command: bytes) -> int | None:
        """Append a command; see `Raft.propose`."""
        if self.heir:
            return None
        options = self._options
        assert not is_configuration(command), "see change_members"
        if not 0 < len(command) <= options.command_bytes_max:
            raise InvalidRequest(
                f"a command of {len(command)} bytes, allowed are 1 to {options.command_bytes_max}"
            )
        if self.uncommitted_bytes + len(command) > options.uncommitted_bytes_max:
            raise TooBusy(f"{self.uncommitted_bytes} bytes wait for a quorum of the metadata nodes")
        return self._append(command)

    def _append(self, command: bytes) -> int:
        index = self._log.last_index + 1
        self._log.append((Entry(index, self.term, command),))
        self.uncommitted_bytes += len(command)
        self.wants_flush = True
        return index

    # --- members ----------------------------------------------------------------------------------

    def change_members(self, configuration: Configuration) -> int | None:
        """Append a configuration; see `Raft.change_members`, which then makes it count."""
        if self.heir:
            return None
        if not self._may_change_members():
            raise NotReady(
                f"the members as of entry {self._log.configuration_index} or this leader's first entry"
                f" {self.noop_index} are not committed yet ({self._marks.commit}): one change at a time"
            )
        if not configuration.follows(self._log.configuration):
            raise InvalidRequest("members change by one voter at a time, and one must be left")
        return self._append(configuration.encode())

    def _may_change_members(self) -> bool:
        """One change at a time, and none on top of what an earlier leader may have left uncommitted.

        Else two leaders could each build on a change of their own that the other does not know of, and
        find majorities that share nobody (the correction of thesis 4.1, see `raft.py`).
        """
        return self._marks.commit >= max(self._log.configuration_index, self.noop_index)

    def on_members(self, configuration: Configuration, now: float) -> None:
        """Another configuration is in the log: it counts."""
        self._set_members(configuration, now)
        self.advance_commit()  # one voter less may be what was waited for
        self._confirm_reads()
        self.wants_flush = True

    def _set_members(self, configuration: Configuration, now: float) -> None:
        self._counts = self.node_id in configuration.voters
        self._other_voters = [voter for voter in configuration.voters if voter != self.node_id]
        self._learners = configuration.learners
        next_index = self._log.last_index + 1
        self.peers = {
            peer: self.peers.get(peer) or Progress(next_index, now)
            for peer in configuration.others(self.node_id)
        }

    def _of_voters(self, own: Number, of: Callable[[Progress], Number]) -> list[Number]:
        """One value a voter; the leader's own if it is one."""
        values = [own] if self._counts else []
        values.extend(of(self.peers[voter]) for voter in self._other_voters)
        return values

    def voters_heard(self, now: float) -> tuple[str, ...]:
        """Return the voters heard within an election timeout, this node included if it is one."""
        since = now - self._options.election_max_s
        heard = [v for v in self._other_voters if self._is_alive(self.peers[v], since)]
        return (self.node_id, *heard) if self._counts else tuple(heard)

    def learners_caught_up(self, now: float) -> tuple[str, ...]:
        """Return the learners that have what was committed a heartbeat ago."""
        since = now - self._options.election_max_s
        return tuple(
            learner
            for learner in self._learners
            if self._is_alive(self.peers[learner], since)
            and self.peers[learner].counted >= max(self._commit_before, self.noop_index)
        )

    def _is_alive(self, progress: Progress, since: float) -> bool:
        return progress.answered and progress.heard_at > since

    def resign(self) -> None:
        """This node is no voter any more, and that is committed: tell it, and let the best one follow."""
        self.flush()
        heir = self._best_heir(-inf)
        if heir:
            self._outbox.send(heir, TimeoutNow(self.term, self.node_id))

    # --- signs of life and reads ------------------------------------------------------------------

    def has_quorum(self, now: float) -> bool:
        """Whether a majority was heard within the last election timeout (thesis 6.2)."""
        heard_at = self._of_voters(now, lambda progress: progress.heard_at)
        return reached_by_majority(heard_at) > now - self._options.election_max_s

    def shift(self, lateness_s: float, now: float) -> None:
        """The node itself did not run for that long: it is not the peers who were silent (H25)."""
        for progress in self.peers.values():
            progress.heard_at = min(now, progress.heard_at + lateness_s)
        self._heir_until += lateness_s

    def begin_round(self) -> None:
        """Send a heartbeat to all: a sign of life, and the question whether this node still leads."""
        self.round += 1
        if self._marks.commit >= self.noop_index:
            self.reads.on_round_begun(self.round, self._marks.commit)
        for peer, progress in self.peers.items():
            progress.commit_told = min(progress.match, self._marks.commit)
            beat = Heartbeat(self.term, self.node_id, progress.commit_told, self.round)
            self._outbox.send(peer, beat)
        self._confirm_reads()

    def on_heartbeat_reply(self, message: HeartbeatReply, now: float) -> None:
        """A peer followed this node in a round."""
        if message.round > self.round:
            raise ProtocolError(f"{message.sender} answers round {message.round}, never begun")
        progress = self.peers[message.sender]
        progress.on_heard(now)
        progress.on_heartbeat_answered(self._log.last_index, now, self._options.heartbeat_s / 2)
        progress.round = max(progress.round, message.round)
        self._confirm_reads()
        self.wants_flush = True

    def _confirm_reads(self) -> None:
        self._outbox.reads.extend(self.reads.on_round_confirmed(self._confirmed_round()))

    def _confirmed_round(self) -> int:
        """The latest round that a majority answered."""
        return reached_by_majority(self._of_voters(self.round, lambda progress: progress.round))

    # --- replication ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what there is to send: a read round, appends, news of commits."""
        self.wants_flush = False
        self._append_before = None  # a later sending has a number of its own
        if self.reads.wants_round and self._marks.commit >= self.noop_index:
            self.begin_round()
        for peer, progress in self.peers.items():
            self._replicate(peer, progress)

    def _replicate(self, peer: str, progress: Progress) -> None:
        if progress.pace is ProgressState.SNAPSHOT:
            return
        if progress.next <= self._log.base_index:
            if progress.answered and not progress.probe_sent:  # else it may be dead, or just failed
                progress.on_snapshot_needed()
                self._outbox.send_snapshots.append(SendSnapshot(peer, self._log.base_index))
            return
        if progress.pace is ProgressState.PROBE:
            if not progress.probe_sent:
                progress.probe_sent = True
                self._send_append(peer, progress)
                progress.probe_number = self._number_sent()
            return
        bytes_max = self._options.in_flight_bytes_max
        while progress.next <= self._log.last_index and progress.has_room(bytes_max):
            entries = self._send_append(peer, progress)
            progress.on_sent(entries[-1].index, sum(len(entry.data) for entry in entries))
            progress.nudge = False
        if progress.nudge:
            progress.nudge = False
            self._send_append(peer, progress, empty=True)
        if not self._options.commit_lag_s:
            self._tell_commit(peer, progress)

    def plan_telling(self, now: float) -> None:
        """Something was committed: have the peers told, unless appends carry it before that is due.

        A busy leader's next append comes sooner, and two messages a change were a tenth of its cost.
        """
        if self._options.commit_lag_s:
            self.tell_at = min(self.tell_at, now + self._options.commit_lag_s)

    def tell_commits(self) -> None:
        """Tell the peers of commits that no append has carried."""
        self.tell_at = inf
        for peer, progress in self.peers.items():
            if progress.pace is ProgressState.REPLICATE:
                self._tell_commit(peer, progress)

    def _tell_commit(self, peer: str, progress: Progress) -> None:
        commit = min(progress.match, self._marks.commit)
        if commit > progress.commit_told:
            progress.commit_told = commit
            self._outbox.send(peer, Heartbeat(self.term, self.node_id, commit, 0))

    def _send_append(self, peer: str, progress: Progress, empty: bool = False) -> tuple[Entry, ...]:
        log, commit = self._log, self._marks.commit
        prev_index = progress.next - 1
        before = self._append_before
        if (
            before is not None
            and before.prev_index == prev_index
            and before.commit == commit
            and prev_index + len(before.entries) == log.last_index
            and bool(before.entries) != empty
        ):
            self._send_to(peer, progress, before)  # the very message: it is encoded once
            return before.entries
        prev_term = log.term_at(prev_index)
        assert prev_term is not None, f"entry {prev_index} is compacted"
        entries: tuple[Entry, ...] = ()
        if not empty and prev_index < log.last_index:
            entries = log.slice(
                progress.next, log.last_index, bytes_max=self._options.append_bytes_max
            )
        self.appends += 1
        append = AppendRequest(
            self.term, self.node_id, prev_index, prev_term, commit, entries, self.appends
        )
        self._append_before = append
        self._send_to(peer, progress, append)
        return entries

    def _number_sent(self) -> int:
        """Of the append that was sent last."""
        return self._append_before.number if self._append_before is not None else self.appends

    def _send_to(self, peer: str, progress: Progress, append: AppendRequest) -> None:
        self._outbox.send(peer, append)
        last = append.prev_index + len(append.entries)
        progress.commit_told = min(append.commit, max(progress.match, last))

    def on_append_reply(self, message: AppendReply, now: float) -> bool:
        """A peer took entries durably, or refused them; True if somebody is to learn of a commit by it."""
        log = self._log
        progress = self.peers[message.sender]
        if message.index > log.last_index:
            raise ProtocolError(
                f"{message.sender} {'acknowledges' if message.accepted else 'refuses'} entry"
                f" {message.index}, the log ends at {log.last_index}"
            )
        progress.on_heard(now)
        self.wants_flush = True
        if not message.accepted:
            next_index = log.next_after_hint(message.index, message.hint_index, message.hint_term)
            progress.on_refused(message.number, message.index, next_index, self.appends)
            return False
        if not progress.on_accepted(message.index, message.number, log.base_index):
            return False
        commits = self.advance_commit()
        self._tell_heir()
        return commits or min(progress.match, self._marks.commit) > progress.commit_told

    def advance_commit(self) -> bool:
        """Commit what a majority has durably; the leader's disk counts like any other. True: news."""
        durable = self._marks.durable_index
        index = reached_by_majority(self._of_voters(durable, lambda progress: progress.counted))
        if index <= self._marks.commit or not self._may_commit(index):
            return False
        for place in range(max(self._marks.commit + 1, self.noop_index), index + 1):
            self.uncommitted_bytes -= len(self._log.entry(place).data)
        self._marks.commit_to(index)
        self.wants_flush = True
        return True

    def _may_commit(self, index: int) -> bool:
        """Only entries of the own term are committed by counting (paper 5.4.2, figure 8)."""
        return self._log.term_at(index) == self.term

    # --- snapshots --------------------------------------------------------------------------------

    def compaction_limit(self, up_to: int) -> int:
        """How far of ``up_to`` the log may be forgotten: not what a living peer still needs (H39)."""
        options = self._options
        fed_from = self._log.last_bytes(
            up_to, bytes_max=options.lag_bytes_max, entries_max=options.lag_entries_max
        )
        claims = [progress.needs_after(up_to, fed_from) for progress in self.peers.values()]
        return min([up_to, *(claim for claim in claims if claim is not None)])

    def on_snapshot_sent(self, peer: str, index: int, delivered: bool) -> None:
        """The driver's sending of a snapshot ended."""
        if peer in self.peers:
            self.peers[peer].on_snapshot_ended(index, delivered, self._log.last_index)
            self.wants_flush = True

    # --- handing over -----------------------------------------------------------------------------

    def hand_over(self, now: float, to: str = "") -> bool:
        """Begin to hand over (thesis 3.10); False if it is under way or nobody can take it."""
        options = self._options
        heir = to or self._best_heir(now - options.election_min_s)
        if self.heir or heir not in self._other_voters:
            return False
        self.heir, self._heir_told = heir, False
        self._heir_until = now + options.election_min_s
        self._heir_again_at = self._heir_until + options.election_max_s
        self._tell_heir()
        self.wants_flush = True
        return True

    def on_time(self, now: float, disk_stalled: bool) -> None:
        """What a leader looks at with each heartbeat: silent peers, a handing over that failed."""
        for progress in self.peers.values():
            if progress.heard_at <= now - self._options.election_max_s:
                progress.on_silent()
        self._commit_before = self._marks.commit
        if self.heir and now >= self._heir_until:
            self.heir = ""  # it did not happen: serve on
        if disk_stalled and now >= self._heir_again_at:  # with pauses, in which it serves
            self.hand_over(now)

    def _best_heir(self, silent_since: float) -> str:
        """The voter heard after ``silent_since`` whose log is the longest; "" if none."""
        best, match = "", -1
        for voter in self._other_voters:
            progress = self.peers[voter]
            if progress.answered and progress.heard_at > silent_since and progress.match > match:
                best, match = voter, progress.match
        return best

    def _tell_heir(self) -> None:
        if not self.heir or self._heir_told:
            return
        if self.peers[self.heir].match == self._log.last_index:
            self._heir_told = True
            self._outbox.send(self.heir, TimeoutNow(self.term, self.node_id))


class ReadIndexQueue:
    """The reads of one leader's term that wait until a quorum confirms that it still leads.

    Rounds are the heartbeats' numbers. A round confirms only reads that were asked before it began: there are
    no lease reads (H26). Request IDs are the driver's, unique among the waiting reads. Source: thesis 6.4.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._asked: deque[tuple[int, int, list[int]]] = deque()  # (round, read index, requests)

    @property
    def wants_round(self) -> bool:
        """Whether reads wait and no round that would carry some is under way."""
        return bool(self._waiting) and not self._asked

    def ask(self, request_id: int) -> None:
        """A read was asked: it joins the next round."""
        self._waiting.append(request_id)

    def on_round_begun(self, number: int, commit: int) -> None:
        """A round begins: it carries all that wait; they will see at least ``commit``."""
        if self._waiting:
            self._asked.append((number, commit, self._waiting))
            self._waiting = []

    def on_round_confirmed(self, number: int) -> list[tuple[int, int]]:
        """A quorum answered ``number`` or later rounds: (request id, read index) of what that confirms."""
        confirmed: list[tuple[int, int]] = []
        while self._asked and self._asked[0][0] <= number:
            _, index, requests = self._asked.popleft()
            confirmed.extend((request, index) for request in requests)
        return confirmed

    def drop(self) -> list[int]:
        """Leadership ended: the requests that will not be confirmed."""
        lost = [request for _, _, requests in self._asked for request in requests] + self._waiting
        self._asked.clear()
        self._waiting = []
        return lost
