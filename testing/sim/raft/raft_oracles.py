"""What must hold in a world of Raft nodes, checked from outside at every step.

Each broken rule raises `Broken` with the rule's name. White-box rules look at the simulated disks at the
very moment a promise leaves a node; black-box rules see only what clients could. Source:
docs/concepts/guarantees.md, M1 to M5. The first name the node that broke a promise, the second its effect.
"""

from ....metadata.model.configuration import is_configuration
from ....metadata.raft.quorum import majority
from ....metadata.raft.raft import Raft
from ....metadata.raft.raft_messages import (
    AppendReply,
    Entry,
    Message,
    PreVote,
    PreVoteReply,
    Vote,
    VoteReply,
)
from ....metadata.raft.ready import HardState
from .raft_disk import RaftDisk


class Broken(AssertionError):
    """A rule was broken; the text begins with its name."""


class RaftOracles:
    """The memory of all that was promised in one world."""

    def __init__(self, disks: dict[str, RaftDisk], *, white_box: bool) -> None:
        self.disks = disks
        self.white_box = white_box
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.committed_in: dict[
            int, int
        ] = {}  # index: a term at or after the one that committed it
        self.last_committed = 0
        self.last_command = 0
        self.chains: dict[int, int] = {0: 0}
        self.votes: dict[tuple[int, str], str] = {}
        self.pending_reads: dict[int, int] = {}
        self.answered_reads = 0

    def on_sent(self, node_id: str, to: str, message: Message) -> None:
        """A message leaves ``node_id``: what it promises must be durable (M4)."""
        kind = type(message)
        hard_state = self.disks[node_id].hard_state
        if kind is Vote:
            self._check_vote(message.term, node_id, node_id, hard_state)
        elif isinstance(message, VoteReply) and message.granted:
            self._check_vote(message.term, node_id, to, hard_state)
        if not self.white_box or kind is PreVote or kind is PreVoteReply:
            return
        if message.term > hard_state.term:
            raise Broken(f"M4 term: {node_id} sends {message}, durable is {hard_state}")
        if (
            isinstance(message, AppendReply)
            and message.accepted
            and message.index > self.disks[node_id].last_index
        ):
            raise Broken(f"M4 ack: {message}, durable are {self.disks[node_id].last_index}")

    def _check_vote(self, term: int, voter: str, candidate: str, hard_state: HardState) -> None:
        if not self.white_box:
            return
        if self.votes.setdefault((term, voter), candidate) != candidate:
            raise Broken(f"M4 two votes of {voter} in term {term}")
        if hard_state.term < term or (hard_state.term == term and hard_state.vote != candidate):
            raise Broken(f"M4 vote of {voter} for {candidate} in {term}, durable is {hard_state}")

    def on_leader(self, node_id: str, core: Raft) -> None:
        """A node leads a term it did not lead before (M1, leader completeness)."""
        if self.leaders.setdefault(core.term, node_id) != node_id:
            raise Broken(
                f"M1 two leaders in term {core.term}: {self.leaders[core.term]}, {node_id}"
            )
        last = self.last_committed
        while last and self.committed_in[last] >= core.term:
            last -= 1  # committed by a later leader, perhaps: this one woke up late
        if not self.white_box or last <= core.log.base_index:
            return
        if core.log.term_at(last) != self.committed[last][0]:
            raise Broken(f"leader completeness: {node_id} leads {core.term} without entry {last}")

    def on_leader_commit(self, core: Raft) -> None:
        """A leader counts an entry as committed: a majority of the voters' disks must have it."""
        if not self.white_box:
            return
        index, term = core.commit, core.log.term_at(core.commit)
        assert term is not None
        holders = sum(self.disks[voter].has(index, term) for voter in core.voters)
        if holders < majority(len(core.voters)):
            raise Broken(
                f"commit: entry {index} of term {term} is durable on {holders} of {core.voters} only"
            )

    def on_applied(
        self, node_id: str, entry: Entry, previous_index: int, chain: int, term: int
    ) -> int:
        """A node applies an entry to a state ``chain`` at ``before``; returns the state after it."""
        if entry.index != previous_index + 1:
            raise Broken(f"M3 applied: {node_id} applies {entry.index} after {previous_index}")
        committed = self.committed.setdefault(entry.index, (entry.term, entry.data))
        if committed != (entry.term, entry.data):
            raise Broken(f"M2 two commands at {entry.index}: {committed}, {entry}")
        if entry.index > self.last_committed:
            self.last_committed = entry.index
            self.committed_in[entry.index] = term
        number = int.from_bytes(entry.data, "big")
        if not is_configuration(entry.data):
            self.last_command = max(self.last_command, number)
        next_chain = (chain * 1_000_003 + number + entry.term) % (1 << 61)
        if self.chains.setdefault(entry.index, next_chain) != next_chain:
            raise Broken(f"M2 two states at {entry.index}")
        return next_chain

    def on_restored(self, node_id: str, previous_index: int, index: int, chain: int) -> None:
        """A node's state machine is replaced by a snapshot."""
        if index < previous_index:
            raise Broken(f"M3 applied: {node_id} goes back from {previous_index} to {index}")
        if self.chains.get(index) != chain:
            raise Broken(f"M2 snapshot: {node_id} restores another state at {index}")

    def on_read_request(self, request_id: int) -> None:
        """A client asks for a linearizable read; all that was applied anywhere may be known to it."""
        self.pending_reads[request_id] = self.last_committed

    def on_read_answer(self, node_id: str, request_id: int, index: int) -> None:
        """A read may be served from ``index`` on (M5)."""
        index_min = self.pending_reads.pop(request_id)
        self.answered_reads += 1
        if index < index_min:
            raise Broken(
                f"M5 stale read at {node_id}: from {index}, {index_min} was answered before"
            )
