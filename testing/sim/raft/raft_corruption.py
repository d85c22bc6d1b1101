"""Worlds whose disks rot: a part of what was durable is gone, and the node knows what it promised (H106).

An entry that all who had it have lost is lost: so two rot at one time only where somebody whole has all
that they ever had, and none rots while a wiped one is not replaced yet. What is asked is that nothing
committed is ever replaced, and that all of them are whole again without an operator.
``python -m distributedlog.testing.sim.raft.raft_corruption --seeds 20000`` runs many.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....metadata.model.configuration import UNKNOWN, Configuration
from ....metadata.peers.hard_state_recovery import VoterReport, joined, recovered_hard_state
from ....metadata.raft.raft import DurableState, Raft
from ....metadata.raft.ready import HardState
from ....metadata.raft.recovered_hard_state import RaftEntryId, RecoveredHardState
from .raft_disk import StoredSnapshot
from .raft_faults import Faults
from .raft_node import RaftNode
from .raft_world import RaftWorld, run_seeds

ASK_AGAIN_S = 0.1
ANSWER_S = 0.1
"""Within this all have answered who will."""
Said = dict[str, VoterReport]


class RottingWorld(RaftWorld):
    """A world of three or five, with one fault more."""

    def __init__(self, seed: int, *, white_box: bool = True, **_: object) -> None:
        rng = random.Random(seed ^ 0x507)
        faults = Faults.drawn(rng)
        faults.kinds = faults.kinds or ("crash",)
        if faults.delay_s > 0.1:
            # Many appends under way that overtake each other are sent anew by the thousand, rot or not:
            # no connection does that to them, and it would look like a loop.
            faults.propose_rate = 4.0
        super().__init__(seed, nodes=rng.choice((3, 3, 5)), faults=faults, white_box=white_box)
        self.rotten = self.forgotten = self.pairs = 0
        self._asking: set[str] = set()
        self.at(rng.uniform(0.5, 1.0), self.rot)

    # --- what is lost -----------------------------------------------------------------------------

    def rot(self) -> None:
        """Power goes off somewhere, and what was durable there is less when it comes back."""
        if self.healed:
            return
        self.at(self.now + self.rng.expovariate(3.0), self.rot)
        node = self.nodes[self.rng.choice(self.ids)]
        if node.gone or not self._may_do_with_less():
            return
        self.crash(node)
        disk = node.disk
        last = RaftEntryId(disk.last_term, disk.last_index)
        ghost = last if disk.ghost is None else max(last, disk.ghost)
        others = [one for one in self.nodes.values() if one is not node and one.disk.is_haunted]
        if others and not self._may_be_rotten_too(node, ghost, others):
            return
        disk.ghost = ghost
        self.rotten += 1
        self.pairs += bool(others)
        if self.rng.random() < 0.3:  # the snapshot that the log begins after
            disk.snapshot, disk.configuration = StoredSnapshot(), self._founding_of(node)
            disk.base_index = disk.base_term = 0
            disk.entries.clear()
        else:
            del disk.entries[self.rng.randrange(len(disk.entries) + 1) :]
            if disk.snapshot.index > disk.last_index:
                disk.base_index, disk.base_term = disk.snapshot.index, disk.snapshot.term
                disk.configuration = disk.snapshot.configuration
                disk.entries.clear()
        if self.rng.random() < 0.3 and not any(one.disk.forgot for one in others):
            disk.hard_state, disk.forgot = HardState(), True  # the ghost is the oracles' now
            self.forgotten += 1

    def wipe(self, node: RaftNode) -> None:
        """Not while somebody has less than it ever had: its word may need all others."""
        if not self.is_haunted:
            super().wipe(node)

    def change_members(self) -> None:
        """Not then either: of two voters each is needed, and what a rotten one had."""
        if not self.is_haunted:
            super().change_members()

    @property
    def is_haunted(self) -> bool:
        """Whether somebody has less than it ever had."""
        return any(one.disk.is_haunted for one in self.nodes.values())

    def _may_do_with_less(self) -> bool:
        """Whether all voters are there, by whatever log, and two of them are a majority with a third."""
        logs = (o.disk.log() if o.core is None else o.core.log for o in self.nodes.values())
        known = [log.configuration.voters for log in logs if log.configuration.voters]
        return all(
            len(voters) > 2 and not any(self.nodes[voter].gone for voter in voters)
            for voters in known
        )

    def _may_be_rotten_too(
        self, node: RaftNode, ghost: RaftEntryId, others: list[RaftNode]
    ) -> bool:
        """Whether somebody whole, who always was a member, has all that they ever had."""
        if len(self.nodes) > len(self.founding.voters) or "members" in self.faults.kinds:
            return False
        whole = [one for one in self.nodes.values() if one is not node and one not in others]
        ghosts = [one.disk.ghost for one in others if one.disk.ghost is not None]
        newest = max([ghost, *ghosts])
        has_all = any(RaftEntryId(w.disk.last_term, w.disk.last_index) >= newest for w in whole)
        return has_all and len(others) + 1 <= len(self.nodes) - 1

    def _founding_of(self, node: RaftNode) -> Configuration:
        return self.founding if node.node_id in self.founding.voters else UNKNOWN

    # --- who has forgotten its word asks all others --------------------------------------------------

    def start(self, node: RaftNode) -> None:
        """One that has forgotten asks first, as `recalling.ask_for_statements` does."""
        if not node.disk.forgot or node.core is not None or node.gone:
            super().start(node)
        elif node.node_id not in self._asking:
            self._asking.add(node.node_id)
            lives = {other.node_id: other.life for other in self.nodes.values()}
            self._ask(node, lives, self._on_asked)

    def _ask(
        self,
        node: RaftNode,
        lives: dict[str, int],
        then: Callable[[RaftNode, dict[str, int], Said], None],
    ) -> None:
        said: Said = {}
        for other in self.nodes.values():
            if other is not node:
                self.at(self.now + self.rng.uniform(0, ANSWER_S), self._answer, other, lives, said)
        self.at(self.now + ANSWER_S, then, node, lives, said)

    def _answer(self, other: RaftNode, lives: dict[str, int], said: Said) -> None:
        lives_on = lives.get(other.node_id) == other.life  # the connection ends with it
        if other.core is not None and other.paused_since < 0 and lives_on:
            said[other.node_id] = statement_of(other.core)

    def _on_asked(self, node: RaftNode, lives: dict[str, int], said: Said) -> None:
        word = recovered_hard_state(node.node_id, said)
        if isinstance(word, str):
            self._ask_later(node)
            return

        def on_asked_again(node: RaftNode, lives: dict[str, int], said: Said) -> None:
            both = joined(word, recovered_hard_state(node.node_id, said))
            if isinstance(both, str):
                self._ask_later(node)
            else:
                self._remember(node, both)

        self._ask(node, lives, on_asked_again)

    def _ask_later(self, node: RaftNode) -> None:
        self._asking.discard(node.node_id)
        self.at(self.now + ASK_AGAIN_S, self.start, node)

    def _remember(self, node: RaftNode, word: RecoveredHardState) -> None:
        self._asking.discard(node.node_id)
        if node.disk.forgot and not node.gone:
            node.disk.hard_state, node.disk.ghost = word.hard_state, word.last
            node.disk.forgot = False
            self.start(node)


def statement_of(core: Raft) -> VoterReport:
    """What a voter says to one that has forgotten."""
    last = RaftEntryId(core.log.last_term, core.log.last_index)
    last = last if core.ghost is None else max(last, core.ghost)
    return VoterReport(core.node_id, core.term, last, core.configuration)


class TrustsWhatIsLeft(Raft):
    """Votes by what its damaged disk still has (planted: H106)."""

    def __init__(self, node_id: str, durable: DurableState, **named: Any) -> None:
        super().__init__(node_id, replace(durable, ghost=None), **named)


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
