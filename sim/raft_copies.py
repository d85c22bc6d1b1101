"""Worlds where a node is started from an older copy of its directory, and does not know it (H107).

What was committed and is nowhere but on the copy's disk is lost with it: so one is put back only where a
majority of the others has all that is committed, while no leader stands still, and its term and vote
stay. What is asked is that nobody counts it as before: of five, an entry that three acknowledged is on
two disks then. ``python -m distributedlog.sim.raft_copies --seeds 20000`` runs many.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

from ..metadata.leadership import Leadership
from ..metadata.messages import AppendReply
from ..metadata.quorum import majority
from .raft_disk import RaftDisk
from .raft_faults import Faults
from .raft_node import RaftNode
from .raft_planted import led_by
from .raft_world import RaftWorld, run_seeds


class CopiedWorld(RaftWorld):
    """A world of five, with one fault more."""

    def __init__(self, seed: int, *, white_box: bool = True) -> None:
        rng = random.Random(seed ^ 0xC09)
        faults = Faults.drawn(rng)
        faults.kinds = tuple(kind for kind in faults.kinds if kind not in ("wipe", "members"))
        if faults.delay_s > 0.1:  # as in `RottingWorld`
            faults.propose_rate = 4.0
        super().__init__(seed, nodes=5, faults=faults, white_box=white_box)
        self.kept: dict[str, RaftDisk] = {}
        """Copies that somebody has made."""
        self.copies: set[str] = set()
        """Who was ever started from one."""
        self.put_back = 0
        self.at(rng.uniform(0.3, 0.6), self.copy)

    def is_copy(self, node: RaftNode) -> bool:
        """It may have been."""
        return node.node_id in self.copies

    def copy(self) -> None:
        """Somebody copies a node's disk, or puts a copy back."""
        if self.healed:
            return
        self.at(self.now + self.rng.expovariate(8.0), self.copy)
        node = self.nodes[self.rng.choice(self.ids)]
        kept = self.kept.get(node.node_id)
        if kept is None or self.rng.random() < 0.4:
            self.kept[node.node_id] = replace(node.disk, entries=list(node.disk.entries))
        elif kept.last_index < node.disk.last_index and self._may_forget(node):
            self._put_back(node, kept)

    def _put_back(self, node: RaftNode, kept: RaftDisk) -> None:
        self.put_back += 1
        self.copies.add(node.node_id)
        self.crash(node)
        disk = node.disk
        disk.entries = list(kept.entries)
        disk.base_index, disk.base_term = kept.base_index, kept.base_term
        disk.snapshot, disk.configuration = kept.snapshot, kept.configuration
        for peer in self.nodes.values():
            if peer is not node:  # its connections are gone before there are others
                self.to_node(peer, peer.life, self._on_gone, node.node_id)

    def _on_gone(self, peer: RaftNode, gone: str) -> None:
        self.closed(peer.node_id, gone)

    def _may_forget(self, node: RaftNode) -> bool:
        """Whether enough others have all that anybody may take for committed."""
        others = [other for other in self.nodes.values() if other is not node]
        if any(self.leads(other) and other.paused_since >= 0 for other in others):
            return False
        cores = [other.core for other in self.nodes.values() if other.core is not None]
        for core in cores:
            term = core.log.term_at(core.commit)
            holders = sum(other.disk.has(core.commit, term or 0) for other in others)
            if holders < majority(len(self.nodes)):
                return False
        last = self.oracles.committed_last
        term = self.oracles.committed[last][0] if last else 0
        return sum(other.disk.has(last, term) for other in others) >= majority(len(self.nodes))


# --- planted ------------------------------------------------------------------------------------


class CountsAsBefore(Leadership):
    """What a node acknowledged before its connection broke counts on."""

    def advance_commit(self) -> bool:
        """By what it is told."""
        for progress in self.peers.values():
            progress.counted = progress.match
        return super().advance_commit()


class CountsLateAnswers(Leadership):
    """Takes answers from before the connection broke for answers of who is there now."""

    def on_append_reply(self, message: AppendReply, now: float) -> bool:
        """Whatever its number."""
        self.peers[message.sender].counts_from = 0
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
    failed = run_seeds(range(count), CopiedWorld)
    print(f"{count} seeds: {'none failed' if failed is None else f'seed {failed[0]}: {failed[1]}'}")
    return failed is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
