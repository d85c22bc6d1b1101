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
        disk.committed = kept.committed
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


class OlderMajorityWorld(RaftWorld):
    """Of three nodes the leader is away, and the two others are started on older copies of their disks.

    Raft does not cover this: they lead without entries that were committed. The node that has them may end,
    and must not delete them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, nodes=3, faults=replace(Faults.drawn(random.Random(seed)), kinds=()))
        self.away: RaftNode | None = None
        self.found: Diverged | None = None
        self.had = 0
        """The last entry of its log."""
        self.lost: list[Entry] = []
        """Committed entries that the two others do not have any more."""

    def is_copy(self, node: RaftNode) -> bool:
        """The two others."""
        return self.away is not None and node is not self.away

    def on_diverged(self, node: RaftNode, found: Diverged) -> None:
        """It ends."""
        assert node is self.away, f"{node} has nothing that others lost"
        self.found = found
        node.gone = True
        self.crash(node)

    @property
    def is_overtaken(self) -> bool:
        """A snapshot of the others ends after all that it had: it cannot compare entries, and takes it."""
        return self.away is not None and self.away.disk.base_index > self.had

    @property
    def deleted(self) -> list[Entry]:
        """Lost entries that the node that was away has deleted."""
        assert self.away is not None, "there is one"
        disk = self.away.disk
        return [entry for entry in self.lost if not disk.has(entry.index, entry.term)]

    def run(self) -> None:
        """Commands, copies, more commands; then the copies, then the node that was away."""
        for node in self.nodes.values():
            self.start(node)
        self.at(0.3, self.clients.ask)
        self.run_until(self.rng.uniform(3.0, 5.0))
        copies = {
            node.node_id: replace(node.disk, entries=list(node.disk.entries))
            for node in self.nodes.values()
        }
        self.run_until(self.now + self.rng.uniform(0.5, 3.0))
        if (core := self.leader()) is None:
            return  # between two leaders
        self.away = away = self.nodes[core.node_id]
        others = [node for node in self.nodes.values() if node is not away]
        for node in self.nodes.values():
            node.gone = True
            self.crash(node)
        self.run_until(self.now + 10.0)  # messages in flight are lost
        elected = max(
            (copies[node.node_id] for node in others),
            key=lambda one: (one.last_term, one.last_index),
        )
        kept, self.had = elected.last_index, away.disk.last_index
        self.lost = [
            entry
            for entry in away.disk.entries
            if entry.index <= away.disk.committed and not elected.has(entry.index, entry.term)
        ]
        for node in others:
            node.gone = False
            self._put_back(node, copies[node.node_id])
        known = self.oracles.committed
        self._forget(max(one for one in (0, *known) if not one or elected.has(one, known[one][0])))
        if not self.run_until(self.now + 20.0, lambda: self.oracles.committed_last > kept + 2):
            self.away = None  # it would be elected
            return
        away.gone = False
        self.start(away)
        self.run_until(self.now + self.rng.uniform(5.0, 10.0))

    def _put_back(self, node: RaftNode, kept: RaftDisk) -> None:
        disk = node.disk
        disk.entries, disk.committed = list(kept.entries), kept.committed
        disk.base_index, disk.base_term = kept.base_index, kept.base_term
        disk.snapshot, disk.configuration = kept.snapshot, kept.configuration
        self.start(node)

    def _forget(self, kept: int) -> None:
        """Later commits may differ from the earlier ones."""
        oracles = self.oracles
        for of in (oracles.committed, oracles.committed_in, oracles.chains):
            for index in [one for one in of if one > kept]:
                del of[index]
        oracles.committed_last = min(oracles.committed_last, kept)
        oracles.reads_asked.clear()


# --- planted ------------------------------------------------------------------------------------


class CountsAsBefore(LeaderState):
    """What a node acknowledged before its connection broke counts on."""

    def advance_commit(self) -> bool:
        """By what it is told."""
        for progress in self.peers.values():
            progress.counted = progress.match
        return super().advance_commit()


class CountsLateAnswers(LeaderState):
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
