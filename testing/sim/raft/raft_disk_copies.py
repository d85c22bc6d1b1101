"""Raft worlds in which a node starts from an older copy of its directory without detecting it (H107).

Committed entries that are only on the replaced disk are lost with it. Therefore a copy is restored only if a
majority of the other nodes has all committed entries and no leader is paused. Term and vote are kept. The
worlds check that no leader counts earlier acknowledgements of the node: with five nodes, an entry that three
of them acknowledged is then on two disks.
``python -m distributedlog.testing.sim.raft.raft_disk_copies --seeds 20000`` runs many seeds.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

from ....metadata.raft.leader_state import LeaderState
from ....metadata.raft.quorum import majority
from ....metadata.raft.raft_messages import AppendReply, Entry
from ....metadata.raft.ready import Diverged
from .raft_disk import RaftDisk
from .raft_faults import Faults
from .raft_injected_bugs import led_by
from .raft_node import RaftNode
from .raft_world import RaftWorld, run_seeds


class CopiedWorld(RaftWorld):
    """A world of five nodes, with restored disk copies as an additional fault."""

    def __init__(self, seed: int, *, white_box: bool = True) -> None:
        rng = random.Random(seed ^ 0xC09)
        faults = Faults.random_mix(rng)
        faults.kinds = tuple(kind for kind in faults.kinds if kind not in ("wipe", "members"))
        if faults.delay_s > 0.1:  # as in `CorruptionWorld`
            faults.propose_rate = 4.0
        super().__init__(seed, nodes=5, faults=faults, white_box=white_box)
        self.disk_copies: dict[str, RaftDisk] = {}
        """The last copy of the disk of each node."""
        self.restored_nodes: set[str] = set()
        """Nodes that ever started from a copy."""
        self.restore_count = 0
        self.schedule(rng.uniform(0.3, 0.6), self.copy_or_restore)

    def runs_on_disk_copy(self, node: RaftNode) -> bool:
        """Return whether this node ever started from a copy."""
        return node.node_id in self.restored_nodes

    def copy_or_restore(self) -> None:
        """Copy the disk of a random node, or restore its last copy."""
        if self.is_healed:
            return
        self.schedule(self.now + self.rng.expovariate(8.0), self.copy_or_restore)
        node = self.nodes[self.rng.choice(self.ids)]
        disk_copy = self.disk_copies.get(node.node_id)
        if disk_copy is None or self.rng.random() < 0.4:
            self.disk_copies[node.node_id] = replace(node.disk, entries=list(node.disk.entries))
        elif disk_copy.last_index < node.disk.last_index and self._may_restore(node):
            self._restore_copy(node, disk_copy)

    def _restore_copy(self, node: RaftNode, copy: RaftDisk) -> None:
        self.restore_count += 1
        self.restored_nodes.add(node.node_id)
        self.crash(node)
        disk = node.disk
        disk.entries = list(copy.entries)
        disk.base_index, disk.base_term = copy.base_index, copy.base_term
        disk.snapshot, disk.configuration = copy.snapshot, copy.configuration
        disk.committed = copy.committed
        for peer in self.nodes.values():
            if peer is not node:  # its connections end before new ones start
                self.deliver_call(peer, peer.life, self._close_connection, node.node_id)

    def _close_connection(self, peer: RaftNode, node_id: str) -> None:
        self.closed(peer.node_id, node_id)

    def _may_restore(self, node: RaftNode) -> bool:
        """Return whether enough other nodes have all entries that any node may consider committed."""
        others = [other for other in self.nodes.values() if other is not node]
        if any(self.is_leader(other) and other.paused_since >= 0 for other in others):
            return False
        cores = [other.core for other in self.nodes.values() if other.core is not None]
        for core in cores:
            term = core.log.term_at(core.commit)
            holders = sum(other.disk.has(core.commit, term or 0) for other in others)
            if holders < majority(len(self.nodes)):
                return False
        last_committed = self.oracles.last_committed
        term = self.oracles.committed[last_committed][0] if last_committed else 0
        return sum(other.disk.has(last_committed, term) for other in others) >= majority(
            len(self.nodes)
        )


class OlderMajorityWorld(RaftWorld):
    """The leader of three nodes is down, and the two others start from older copies of their disks.

    Raft does not cover this case: the two elect a leader without some committed entries. The node that has
    these entries may end, and must not delete them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed, nodes=3, faults=replace(Faults.random_mix(random.Random(seed)), kinds=())
        )
        self.away_node: RaftNode | None = None
        self.divergence: Diverged | None = None
        self.away_last_index = 0
        """The last entry of the log of the node that is away."""
        self.lost_entries: list[Entry] = []
        """Committed entries that the two others no longer have."""

    def runs_on_disk_copy(self, node: RaftNode) -> bool:
        """Return whether this node is one of the two others."""
        return self.away_node is not None and node is not self.away_node

    def on_diverged(self, node: RaftNode, divergence: Diverged) -> None:
        """End the node, as the product does."""
        assert node is self.away_node, f"{node} has no entries that the others lost"
        self.divergence = divergence
        node.gone = True
        self.crash(node)

    @property
    def is_overtaken(self) -> bool:
        """Whether a snapshot of the others ends after the node's log.

        The node then cannot compare entries.
        """
        return self.away_node is not None and self.away_node.disk.base_index > self.away_last_index

    @property
    def deleted_entries(self) -> list[Entry]:
        """The lost entries that the returning node has deleted."""
        assert self.away_node is not None, "no node is away"
        disk = self.away_node.disk
        return [entry for entry in self.lost_entries if not disk.has(entry.index, entry.term)]

    def run(self) -> None:
        """Run commands, copy the disks, run more commands, start the copies, and finally the other node."""
        for node in self.nodes.values():
            self.start(node)
        self.schedule(0.3, self.clients.send_requests)
        self.run_until(self.rng.uniform(3.0, 5.0))
        copies = {
            node.node_id: replace(node.disk, entries=list(node.disk.entries))
            for node in self.nodes.values()
        }
        self.run_until(self.now + self.rng.uniform(0.5, 3.0))
        if (core := self.leader()) is None:
            return  # no leader at this time
        self.away_node = away = self.nodes[core.node_id]
        others = [node for node in self.nodes.values() if node is not away]
        for node in self.nodes.values():
            node.gone = True
            self.crash(node)
        self.run_until(self.now + 10.0)  # messages in flight are lost
        elected = max(
            (copies[node.node_id] for node in others),
            key=lambda index: (index.last_term, index.last_index),
        )
        kept_index, self.away_last_index = elected.last_index, away.disk.last_index
        self.lost_entries = [
            entry
            for entry in away.disk.entries
            if entry.index <= away.disk.committed and not elected.has(entry.index, entry.term)
        ]
        for node in others:
            node.gone = False
            self._restore_copy(node, copies[node.node_id])
        committed = self.oracles.committed
        self._forget_commits(
            max(
                index
                for index in (0, *committed)
                if not index or elected.has(index, committed[index][0])
            )
        )
        if not self.run_until(
            self.now + 20.0, lambda: self.oracles.last_committed > kept_index + 2
        ):
            self.away_node = None  # otherwise it would be elected
            return
        away.gone = False
        self.start(away)
        self.run_until(self.now + self.rng.uniform(5.0, 10.0))

    def _restore_copy(self, node: RaftNode, copy: RaftDisk) -> None:
        disk = node.disk
        disk.entries, disk.committed = list(copy.entries), copy.committed
        disk.base_index, disk.base_term = copy.base_index, copy.base_term
        disk.snapshot, disk.configuration = copy.snapshot, copy.configuration
        self.start(node)

    def _forget_commits(self, kept_index: int) -> None:
        """Forget commits after an index, because later ones may differ from them."""
        oracles = self.oracles
        for by_index in (oracles.committed, oracles.committed_in, oracles.chains):
            for index in [later_index for later_index in by_index if later_index > kept_index]:
                del by_index[index]
        oracles.last_committed = min(oracles.last_committed, kept_index)
        oracles.pending_reads.clear()


# --- injected bugs ------------------------------------------------------------------------------


class CountsAsBefore(LeaderState):
    """Still counts what a node acknowledged before its connection broke."""

    def advance_commit(self) -> bool:
        """Count all acknowledged entries."""
        for progress in self.peers.values():
            progress.quorum_match = progress.match
        return super().advance_commit()


class CountsLateAnswers(LeaderState):
    """Accepts answers from before the connection broke as answers of the present process."""

    def on_append_reply(self, message: AppendReply, now: float) -> bool:
        """Count an answer of any number."""
        self.peers[message.sender].acks_count_from = 0
        return super().on_append_reply(message, now)


class CountsAsBeforeWorld(CopiedWorld):
    """A world with `CountsAsBefore` leaders."""

    core_class = led_by(CountsAsBefore)


class CountsLateAnswersWorld(CopiedWorld):
    """A world with `CountsLateAnswers` leaders."""

    core_class = led_by(CountsLateAnswers)


def main(arguments: Sequence[str]) -> int:
    """Run seeds and print the one that failed."""
    count = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else 1000
    failure = run_seeds(range(count), CopiedWorld)
    print(
        f"{count} seeds: {'none failed' if failure is None else f'seed {failure[0]}: {failure[1]}'}"
    )
    return failure is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
