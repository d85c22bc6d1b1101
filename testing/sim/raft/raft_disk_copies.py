"""Worlds where a node is started from an older copy of its directory, and does not know it (H107).

What was committed and is nowhere but on the copy's disk is lost with it: so one is put back only where a
majority of the others has all that is committed, while no leader stands still, and its term and vote
stay. What is asked is that nobody counts it as before: of five, an entry that three acknowledged is on
two disks then. ``python -m distributedlog.testing.sim.raft.raft_disk_copies --seeds 20000`` runs many.
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
    """A world of five, with one fault more."""

    def __init__(self, seed: int, *, white_box: bool = True) -> None:
        rng = random.Random(seed ^ 0xC09)
        faults = Faults.random_mix(rng)
        faults.kinds = tuple(kind for kind in faults.kinds if kind not in ("wipe", "members"))
        if faults.delay_s > 0.1:  # as in `RottingWorld`
            faults.propose_rate = 4.0
        super().__init__(seed, nodes=5, faults=faults, white_box=white_box)
        self.disk_copies: dict[str, RaftDisk] = {}
        """Copies that somebody has made."""
        self.restored_nodes: set[str] = set()
        """Who was ever started from one."""
        self.restore_count = 0
        self.schedule(rng.uniform(0.3, 0.6), self.copy_or_restore)

    def runs_on_disk_copy(self, node: RaftNode) -> bool:
        """It may have been."""
        return node.node_id in self.restored_nodes

    def copy_or_restore(self) -> None:
        """Somebody copies a node's disk, or puts a copy back."""
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
            if peer is not node:  # its connections are gone before there are others
                self.deliver_call(peer, peer.life, self._close_connection, node.node_id)

    def _close_connection(self, peer: RaftNode, node_id: str) -> None:
        self.closed(peer.node_id, node_id)

    def _may_restore(self, node: RaftNode) -> bool:
        """Whether enough others have all that anybody may take for committed."""
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
    """Of three nodes the leader is away, and the two others are started on older copies of their disks.

    Raft does not cover this: they lead without entries that were committed. The node that has them may end,
    and must not delete them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed, nodes=3, faults=replace(Faults.random_mix(random.Random(seed)), kinds=())
        )
        self.away_node: RaftNode | None = None
        self.divergence: Diverged | None = None
        self.away_last_index = 0
        """The last entry of its log."""
        self.lost_entries: list[Entry] = []
        """Committed entries that the two others do not have any more."""

    def runs_on_disk_copy(self, node: RaftNode) -> bool:
        """The two others."""
        return self.away_node is not None and node is not self.away_node

    def on_diverged(self, node: RaftNode, divergence: Diverged) -> None:
        """It ends."""
        assert node is self.away_node, f"{node} has nothing that others lost"
        self.divergence = divergence
        node.gone = True
        self.crash(node)

    @property
    def is_overtaken(self) -> bool:
        """A snapshot of the others ends after all that it had: it cannot compare entries, and takes it."""
        return self.away_node is not None and self.away_node.disk.base_index > self.away_last_index

    @property
    def deleted_entries(self) -> list[Entry]:
        """Lost entries that the node that was away has deleted."""
        assert self.away_node is not None, "there is one"
        disk = self.away_node.disk
        return [entry for entry in self.lost_entries if not disk.has(entry.index, entry.term)]

    def run(self) -> None:
        """Commands, copies, more commands; then the copies, then the node that was away."""
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
            return  # between two leaders
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
            self.away_node = None  # it would be elected
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
        """Later commits may differ from the earlier ones."""
        oracles = self.oracles
        for by_index in (oracles.committed, oracles.committed_in, oracles.chains):
            for index in [later_index for later_index in by_index if later_index > kept_index]:
                del by_index[index]
        oracles.last_committed = min(oracles.last_committed, kept_index)
        oracles.pending_reads.clear()


# --- planted ------------------------------------------------------------------------------------


class CountsAsBefore(LeaderState):
    """What a node acknowledged before its connection broke counts on."""

    def advance_commit(self) -> bool:
        """By what it is told."""
        for progress in self.peers.values():
            progress.quorum_match = progress.match
        return super().advance_commit()


class CountsLateAnswers(LeaderState):
    """Takes answers from before the connection broke for answers of who is there now."""

    def on_append_reply(self, message: AppendReply, now: float) -> bool:
        """Whatever its number."""
        self.peers[message.sender].acks_count_from = 0
        return super().on_append_reply(message, now)


class CountsAsBeforeWorld(CopiedWorld):
    """Led by such."""

    core_class = led_by(CountsAsBefore)


class CountsLateAnswersWorld(CopiedWorld):
    """Led by such."""

    core_class = led_by(CountsLateAnswers)


def main(arguments: Sequence[str]) -> int:
    """Run seeds, and say which one failed."""
    count = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else 1000
    failure = run_seeds(range(count), CopiedWorld)
    print(
        f"{count} seeds: {'none failed' if failure is None else f'seed {failure[0]}: {failure[1]}'}"
    )
    return failure is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
