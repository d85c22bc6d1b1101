"""Known Raft bugs that are injected to test the simulator and the directed tests.

A `InjectedBug` is a core class that breaks one rule, or a world whose driver breaks one. The product's code
does not contain them. `seeds_until_found` returns how many seeds the world needs to find one. For bugs that
random seeds miss, tests/metadata has a directed scenario that must find them. ``python -m
distributedlog.testing.sim.raft.raft_injected_bugs`` prints the table.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ....metadata.raft.leader_state import LeaderState, Number
from ....metadata.raft.progress import Progress
from ....metadata.raft.raft import Raft
from ....metadata.raft.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    Message,
    Vote,
    VoteReply,
)
from ....metadata.raft.ready import HardState, Ready, Snapshot
from .raft_node import RaftNode
from .raft_world import RaftWorld, run_seeds

# --- elections, the log, commits and reads ---------------------------------------------------------


class VotesTwice(Raft):
    """Votes for each candidate, even twice in a term (paper 5.2)."""

    def _may_vote_for(self, candidate: str) -> bool:
        self.vote = ""
        return True


class VotesForOlderLog(Raft):
    """Does not compare logs before voting (paper 5.4.1)."""

    def _is_up_to_date(self, last_index: int, last_term: int) -> bool:
        return True


class ComparesLengthOnly(Raft):
    """Considers the longer log newer, even with an older last term (paper 5.4.1)."""

    def _is_up_to_date(self, last_index: int, last_term: int) -> bool:
        return last_index >= self.log.last_index


class CommitsOldTerms(LeaderState):
    """Counts copies of entries of earlier terms (paper 5.4.2, figure 8)."""

    def _may_commit(self, index: int) -> bool:
        return True


class AcksFromMemory(Raft):
    """A follower acknowledges entries before they are durable."""

    def _accept(self, leader_id: str, index: int, number: int) -> None:
        self._send(leader_id, AppendReply(self.term, self.node_id, True, index, 0, 0, number))


class VotesFromMemory(Raft):
    """Sends a vote before it is durable (M4)."""

    def _send(self, to: str, message: Message, after_persist: bool = False) -> None:
        if isinstance(message, VoteReply | Vote):
            self._ready_builder.send_now.append((to, message))
        else:
            super()._send(to, message, after_persist)


class CountsOwnUnsynced(LeaderState):
    """The leader counts its own entries before they are durable."""

    def advance_commit(self) -> bool:
        """Pretend that all own entries are durable."""
        marks = self._watermarks
        durable, marks.durable_index = marks.durable_index, self._log.last_index
        news = super().advance_commit()
        marks.durable_index = durable
        return news


class HalfIsEnough(LeaderState):
    """Commits with one node less than a majority."""

    def advance_commit(self) -> bool:
        """Use the wrong one of the sorted indexes."""
        matches = sorted(
            [self._watermarks.durable_index, *(p.quorum_match for p in self.peers.values())]
        )
        index = matches[min(len(matches) // 2 + 1, len(matches) - 1)]
        if index > self._watermarks.commit and self._may_commit(index):
            self._watermarks.commit_to(index)
            return True
        return False


class CountsAnswersOfOldTerms(Raft):
    """Accepts answers to an earlier leadership of the node as answers to this one."""

    def _leader_state_for(self, term: int, now: float) -> LeaderState | None:
        return super()._leader_state_for(self.term if term < self.term else term, now)


class ReadsWithoutRound(LeaderState):
    """A leader serves reads from memory without a round of heartbeats (H26)."""

    def _confirmed_round(self) -> int:
        return self.round


class ReadsByLease(LeaderState):
    """A leader trusts its clock after recent contact with a quorum. A pause stops that clock (H26)."""

    def _confirmed_round(self) -> int:
        heard_at = sorted(progress.last_contact for progress in self.peers.values())
        now = heard_at[-1] if heard_at else 0.0
        quorum_at = sorted([now, *heard_at])[len(heard_at) // 2]
        recent = quorum_at > now - self._options.election_min_s
        return self.round if recent else super()._confirmed_round()


class ReadsBeforeNoop(LeaderState):
    """A new leader serves reads before its no-op proves what its predecessors committed (thesis 6.4)."""

    def start_heartbeat_round(self) -> None:
        """Do not wait for the no-op."""
        self.noop_index = min(self.noop_index, self._watermarks.commit)
        super().start_heartbeat_round()


class ReadsJoinOldRound(Raft):
    """A read joins a heartbeat round that began before the read."""

    def read_index(self, request_id: int) -> bool:
        """Add the read to the last round begun."""
        taken = super().read_index(request_id)
        if taken and self._leader_state is not None:
            reads: Any = self._leader_state.read_index_queue
            if reads._asked:
                reads._asked[-1][2].append(reads._waiting.pop())
        return taken


class HeartbeatCommitsAll(Raft):
    """A follower commits all its entries at each heartbeat, even unverified ones."""

    def _on_heartbeat(self, message: Heartbeat, now: float) -> None:
        super()._on_heartbeat(message, now)
        if message.term == self.term and self.log.last_index > self.commit:
            self.watermarks.commit_to(self.log.last_index)


class CommitsBeyondMessage(Raft):
    """A follower applies the leader's commit index to entries that the append did not verify (figure 2)."""

    def _on_append(self, message: AppendRequest, now: float) -> None:
        super()._on_append(message, now)
        if message.term == self.term:
            self.watermarks.commit_to(min(message.commit, self.log.last_index))


class SkipsPrevCheck(Raft):
    """Appends without comparing the preceding entry (paper 5.3)."""

    def _on_append(self, message: AppendRequest, now: float) -> None:
        if self.commit <= message.prev_index <= self.log.last_index:
            term = self.log.term_at(message.prev_index) or 0
            message = replace(message, prev_term=term)
        super()._on_append(message, now)


class TruncatesAlways(Raft):
    """Drops all entries after ``prev_index`` even if they are equal: an old append removes newer ones."""

    def _on_append(self, message: AppendRequest, now: float) -> None:
        fits = self.log.term_at(message.prev_index) == message.prev_term
        taken = message.term >= self.term and fits and self.commit <= message.prev_index
        if taken and message.entries and self.log.last_index > message.prev_index:
            self.watermarks.truncate(message.prev_index + 1)
        super()._on_append(message, now)


class TruncatesCommitted(Raft):
    """Drops entries without a check whether they are committed, and accepts any ``prev_index``."""

    def _on_append(self, message: AppendRequest, now: float) -> None:
        if message.term >= self.term and self.log.base_index <= message.prev_index < self.commit:
            self.watermarks.commit = message.prev_index
        super()._on_append(message, now)


class RestartsAtEachRefusal(LeaderState):
    """After one lost append a follower rejects all later ones, and each rejection resends all of them."""

    def on_append_reply(self, message: AppendReply, now: float) -> bool:
        """Forget which appends belong to the newest attempt."""
        self.peers[message.sender].refusals_count_from = 0
        return super().on_append_reply(message, now)


class InstallsOlderSnapshot(Raft):
    """Installs any snapshot, even one older than its own state."""

    def on_snapshot_received(self, term: int, sender: str, snapshot: Snapshot, now: float) -> None:
        """Install the snapshot without a comparison."""
        if term >= self.term and self._leader_state is None:
            self._follow_leader(term, sender, now)
            self.watermarks.install_snapshot(snapshot)
            self._send(sender, AppendReply(self.term, self.node_id, True, self.commit, 0, 0), True)


# --- changes of the members ------------------------------------------------------------------------


class ChangesMembersTooEarly(LeaderState):
    """A new leader changes members before an entry of its term is committed (the correction of 2015)."""

    def _may_change_members(self) -> bool:
        return self._watermarks.commit >= min(self._log.configuration_index, self.noop_index)


class ChangesMembersTwice(LeaderState):
    """A leader begins a second change before the first one is committed."""

    def _may_change_members(self) -> bool:
        return self._watermarks.commit >= self.noop_index


class CountsLearners(LeaderState):
    """Counts the entries of a learner for a commit, and its answers for a heartbeat round."""

    def _voter_values(
        self, own_value: Number, value_of: Callable[[Progress], Number]
    ) -> list[Number]:
        values = [own_value]
        values.extend(value_of(progress) for progress in self.peers.values())
        return values


class RemovedOnAppendGivesUp(Raft):
    """A voter whose removal is not committed yet no longer campaigns (thesis 4.2.2)."""

    @property
    def can_campaign(self) -> bool:
        """Whether the newest configuration has the node as a voter, without the committed one."""
        return self.may_vote and self.node_id in self.voters


class RemovedLeaderStays(Raft):
    """A leader that removed itself remains leader after the change is committed."""

    def _step_down_if_removed(self) -> None:
        return


# --- failure detection -----------------------------------------------------------------------------


class NoPreVote(Raft):
    """Campaigns without a pre-vote, so that a node that was cut off deposes a working leader (thesis 9.6)."""

    def _start_pre_vote(self, now: float) -> None:
        if not self._disk_stalled:
            self._campaign(now)
        else:
            super()._start_pre_vote(now)


class HelpsDisturbers(Raft):
    """Grants votes and pre-votes although its leader is alive (thesis 4.2.3)."""

    def _in_leader_lease(self, now: float) -> bool:
        return False


class NoCheckQuorum(LeaderState):
    """A leader remains leader without any answer (thesis 6.2)."""

    def has_quorum(self, now: float) -> bool:
        """Return True."""
        return True


class IgnoresOldLeader(Raft):
    """Does not answer a leader of an earlier term, so that a node with a later term is excluded for ever."""

    def _reject_stale_leader(self, sender: str) -> None:
        return


class IgnoresLateness(Raft):
    """Mistakes its own pause for silence of all others (H25)."""

    def on_late(self, lateness_s: float, now: float) -> None:
        """Do nothing."""
        return


# --- the driver and the operator -------------------------------------------------------------------


class ForgetsVote(RaftWorld):
    """Stores a new term without the vote in it."""

    def steps_of(self, node: RaftNode, ready: Ready) -> Iterator[None]:
        """Write the hard state without its vote."""
        if ready.hard_state is not None:
            ready = replace(ready, hard_state=HardState(ready.hard_state.term, ""))
        return super().steps_of(node, ready)


class ForgetsTerm(RaftWorld):
    """Does not store a new term without a vote."""

    def steps_of(self, node: RaftNode, ready: Ready) -> Iterator[None]:
        """Omit a hard state without a vote."""
        if ready.hard_state is not None and not ready.hard_state.vote:
            ready = replace(ready, hard_state=None)
        return super().steps_of(node, ready)


class SendsBeforeSync(RaftWorld):
    """Sends all messages at once and syncs later."""

    def execute_ready(self, node: RaftNode, core: Raft, ready: Ready) -> None:
        """Send the messages before the sync."""
        for to, message in ready.send_after_persist:
            self.network.send(node, to, message)
        super().execute_ready(node, core, replace(ready, send_after_persist=()))


class EmptiedDiskVotes(RaftWorld):
    """A node with an emptied directory returns under its name as a full voter (H5)."""

    def wipe(self, node: RaftNode) -> None:
        """Empty the disk, so that the restart after the crash finds it empty."""
        self.crash(node)
        new_disk = type(node.disk)()
        node.disk.hard_state = new_disk.hard_state
        node.disk.entries = new_disk.entries
        node.disk.base_index = node.disk.base_term = 0
        node.disk.configuration = self.initial_configuration
        node.disk.snapshot = new_disk.snapshot
        self.faults.kinds = tuple(kind for kind in self.faults.kinds if kind != "wipe") or ("cut",)


# --- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InjectedBug:
    """One injected bug.

    ``directed`` names the scenario for a bug that breaks no rule that seeds can check.
    """

    name: str
    world: type[RaftWorld]
    directed: str = ""


def _in_core(core: type[Raft], directed: str = "") -> InjectedBug:
    world = type(f"{core.__name__}World", (RaftWorld,), {"core_class": core})
    return InjectedBug(core.__name__, world, directed)


def led_by(leadership: type[LeaderState]) -> type[Raft]:
    """Return a core class whose leader state is of this class."""

    class Led(Raft):
        def _new_leader_state(self, now: float) -> LeaderState:
            return leadership(
                self.node_id,
                self.term,
                self.configuration,
                self.watermarks,
                self._ready_builder,
                self.options,
                now,
            )

    Led.__name__ = leadership.__name__
    return Led


def _in_leadership(leadership: type[LeaderState], directed: str = "") -> InjectedBug:
    return _in_core(led_by(leadership), directed)


CUT_OFF = "a node that was cut off does not depose a working leader"

INJECTED_BUGS: tuple[InjectedBug, ...] = (
    *map(
        _in_core,
        (
            VotesTwice,
            VotesForOlderLog,
            ComparesLengthOnly,
            AcksFromMemory,
            VotesFromMemory,
            CountsAnswersOfOldTerms,
            ReadsJoinOldRound,
            HeartbeatCommitsAll,
            CommitsBeyondMessage,
            SkipsPrevCheck,
            TruncatesAlways,
            TruncatesCommitted,
            InstallsOlderSnapshot,
            IgnoresOldLeader,
            RemovedOnAppendGivesUp,
        ),
    ),
    *map(
        _in_leadership,
        (
            CountsOwnUnsynced,
            HalfIsEnough,
            ReadsWithoutRound,
            ReadsByLease,
            ReadsBeforeNoop,
            RestartsAtEachRefusal,
            ChangesMembersTwice,
            CountsLearners,
        ),
    ),
    *(
        InjectedBug(world.__name__, world)
        for world in (ForgetsVote, ForgetsTerm, SendsBeforeSync, EmptiedDiskVotes)
    ),
    _in_leadership(CommitsOldTerms, "figure 8 of the paper"),
    _in_leadership(ChangesMembersTooEarly, "two leaders change the members"),
    _in_core(RemovedLeaderStays, "a leader that removed itself steps down"),
    _in_core(NoPreVote, CUT_OFF),
    _in_core(HelpsDisturbers, CUT_OFF),
    _in_leadership(NoCheckQuorum, "a leader without a quorum steps down"),
    _in_core(IgnoresLateness, "a late node does not campaign against a living leader"),
)


def seeds_until_found(bug: InjectedBug, seeds: int, *, white_box: bool) -> tuple[int, str] | None:
    """Return the number of seeds (1 or more) that find a bug and the broken rule, or None if it survives."""
    failure = run_seeds(range(seeds), bug.world, white_box=white_box)
    return None if failure is None else (failure[0] + 1, failure[1])


def main(seeds: int) -> None:
    """Print the table of all injected bugs."""
    print(f"{'injected bug':26} {'white box':>9} {'black box':>9}  found by")
    for bug in INJECTED_BUGS:
        cells: list[str] = []
        found_by = f"directed: {bug.directed}" if bug.directed else ""
        for white_box in (True, False):
            failure = seeds_until_found(bug, 200 if bug.directed else seeds, white_box=white_box)
            cells.append("survives" if failure is None else str(failure[0]))
            found_by = found_by or (failure[1][:60] if failure else "")
        print(f"{bug.name:26} {cells[0]:>9} {cells[1]:>9}  {found_by}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
