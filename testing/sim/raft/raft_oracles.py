"""The rules of a Raft world, checked from outside at each step.

A broken rule raises `Broken` with the name of the rule. White-box rules inspect the simulated disks when a
message leaves a node, and name the node that broke a promise. Black-box rules use only what clients can
observe, and name the effect. Source: docs/concepts/guarantees.md, M1 to M5.
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
    """A rule was broken. The text begins with its name."""


class RaftOracles:
    """Records all promises in one world, and checks each event against them."""

    def __init__(self, disks: dict[str, RaftDisk], *, white_box: bool) -> None:
        self.disks = disks
        self.white_box = white_box
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.committed_in: dict[
            int, int
        ] = {}  # index to a term that is not before the committing one
        self.last_committed = 0
        self.last_command = 0
        self.chains: dict[int, int] = {0: 0}
        self.votes: dict[tuple[int, str], str] = {}
        self.pending_reads: dict[int, int] = {}
        self.answered_reads = 0

    def on_sent(self, node_id: str, to: str, message: Message) -> None:
        """Check that the promises of a message are durable when it leaves ``node_id`` (M4)."""
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
        """Check a new leader: it is the only one of its term and has all committed entries (M1)."""
        if self.leaders.setdefault(core.term, node_id) != node_id:
            raise Broken(
                f"M1 two leaders in term {core.term}: {self.leaders[core.term]}, {node_id}"
            )
        last = self.last_committed
        while last and self.committed_in[last] >= core.term:
            last -= 1  # perhaps committed by a later leader, because this one was paused
        if not self.white_box or last <= core.log.base_index:
            return
        if core.log.term_at(last) != self.committed[last][0]:
            raise Broken(f"leader completeness: {node_id} leads {core.term} without entry {last}")

    def on_leader_commit(self, core: Raft) -> None:
        """Check that a majority of the voters' disks has an entry that the leader considers committed."""
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
        """Check that an entry is applied in order and with the same result on all nodes.

        Args:
            previous_index: The entry before it.
            chain: The digest of the state before it.
            term: The term of the node.
        Returns:
            The digest of the state after it.
        """
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
        """Check a state that is replaced by a snapshot."""
        if index < previous_index:
            raise Broken(f"M3 applied: {node_id} returns from {previous_index} to {index}")
        if self.chains.get(index) != chain:
            raise Broken(f"M2 snapshot: {node_id} restores another state at {index}")

    def on_read_request(self, request_id: int) -> None:
        """Record a linearizable read. It must include everything that any node has applied by now."""
        self.pending_reads[request_id] = self.last_committed

    def on_read_answer(self, node_id: str, request_id: int, index: int) -> None:
        """Check the index from which a read may be served (M5)."""
        index_min = self.pending_reads.pop(request_id)
        self.answered_reads += 1
        if index < index_min:
            raise Broken(
                f"M5 stale read at {node_id}: from {index}, {index_min} was answered before"
            )
