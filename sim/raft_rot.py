"""A Raft world whose disks rot: a node loses a part of its log, or its word with it, and comes back (H106).

One node at a time has less than it ever had: an entry that all who had it have lost is lost. What is asked is
that nothing committed is ever replaced, and that all of them are whole again without an operator.
``python -m distributedlog.sim.raft_rot --seeds 20000`` runs many.
"""

import random
import sys
from collections.abc import Sequence

from ..metadata.ghost import Place
from ..metadata.raft import Raft
from ..metadata.ready import HardState
from ..metadata.recalling import Statement, recalled
from .raft_disk import StoredSnapshot
from .raft_faults import Faults
from .raft_node import RaftNode
from .raft_world import RaftWorld, run_seeds

ASK_AGAIN_S = 0.1


class RottingWorld(RaftWorld):
    """A world of three or five, with one fault more."""

    def __init__(self, seed: int, *, white_box: bool = True, **_: object) -> None:
        rng = random.Random(seed ^ 0x507)
        faults = Faults.drawn(rng)
        faults.kinds = tuple(kind for kind in faults.kinds if kind not in ("wipe", "members"))
        faults.kinds = faults.kinds or ("crash",)
        if faults.delay_s > 0.1:
            # Many appends under way that overtake each other are sent anew by the thousand, rot or not:
            # no connection does that to them, and it would look like a loop.
            faults.propose_rate = 4.0
        super().__init__(seed, nodes=rng.choice((3, 3, 5)), faults=faults, white_box=white_box)
        self.rotten = 0
        self.forgotten = 0
        self.at(rng.uniform(0.5, 1.0), self.rot)

    def rot(self) -> None:
        """Power goes off somewhere, and what was durable there is less when it comes back."""
        if self.healed:
            return
        self.at(self.now + self.rng.expovariate(3.0), self.rot)
        node = self.nodes[self.rng.choice(self.ids)]
        if any(one.disk.is_haunted for one in self.nodes.values() if one is not node):
            return
        self.crash(node)
        disk = node.disk
        last = Place(disk.last_term, disk.last_index)
        disk.ghost = last if disk.ghost is None else max(last, disk.ghost)
        self.rotten += 1
        if self.rng.random() < 0.3:  # the snapshot that the log begins after
            disk.snapshot, disk.configuration = StoredSnapshot(), self.founding
            disk.base_index = disk.base_term = 0
            disk.entries.clear()
        else:
            del disk.entries[self.rng.randrange(len(disk.entries) + 1) :]
            if disk.snapshot.index > disk.last_index:
                disk.base_index, disk.base_term = disk.snapshot.index, disk.snapshot.term
                disk.configuration = disk.snapshot.configuration
                disk.entries.clear()
        if self.rng.random() < 0.3:
            disk.hard_state, disk.forgot = HardState(), True  # the ghost is the oracles' now
            self.forgotten += 1

    def start(self, node: RaftNode) -> None:
        """One that has forgotten its word first asks all others for it."""
        if node.disk.forgot and node.core is None:
            word = recalled(node.node_id, self._said(node))
            if isinstance(word, str):
                self.at(self.now + ASK_AGAIN_S, self.start, node)
                return
            node.disk.hard_state, node.disk.ghost = word.hard_state, word.last
            node.disk.forgot = False
        super().start(node)

    def _said(self, node: RaftNode) -> dict[str, Statement]:
        return {
            other.node_id: statement_of(other.core)
            for other in self.nodes.values()
            if other.core is not None and other.paused_since < 0 and other is not node
        }


def statement_of(core: Raft) -> Statement:
    """What a voter says to one that has forgotten."""
    last = Place(core.log.last_term, core.log.last_index)
    last = last if core.ghost is None else max(last, core.ghost)
    return Statement(core.node_id, core.term, last, core.configuration)


class TrustsWhatIsLeft(Raft):
    """Votes by what its damaged disk still has (planted: H106)."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **{**named, "ghost": None})  # type: ignore[arg-type]


class TrustingWorld(RottingWorld):
    """Of such nodes."""

    core_class = TrustsWhatIsLeft


class RemembersNothing(RottingWorld):
    """Who has forgotten its word goes on as if it had never given any (planted: H106)."""

    def start(self, node: RaftNode) -> None:
        """It asks nobody."""
        if node.disk.forgot:
            node.disk.forgot, node.disk.ghost = False, None
        super().start(node)


def main(arguments: Sequence[str]) -> int:
    """Run seeds, and say which one failed."""
    count = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else 1000
    failed = run_seeds(range(count), RottingWorld)
    print(f"{count} seeds: {'none failed' if failed is None else f'seed {failed[0]}: {failed[1]}'}")
    return failed is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
