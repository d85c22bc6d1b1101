"""Raft worlds whose disks lose durable data, and the nodes detect it (H106).

An entry is lost if all nodes that had it lose it. Therefore two nodes are corrupt at one time only if an
intact node has all entries that both ever had, and no node becomes corrupt until each wiped one is replaced.
The worlds check that no committed entry is ever replaced, and that all nodes become intact without an
operator. ``python -m distributedlog.testing.sim.raft.raft_corruption --seeds 20000`` runs many seeds.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....metadata.model.configuration import UNKNOWN_CONFIGURATION, Configuration
from ....metadata.peers.hard_state_recovery import (
    VoterReport,
    merge_recovered,
    recovered_hard_state,
)
from ....metadata.raft.raft import DurableState, Raft
from ....metadata.raft.ready import HardState
from ....metadata.raft.recovered_hard_state import RaftEntryId, RecoveredHardState
from .raft_disk import StoredSnapshot
from .raft_faults import Faults
from .raft_node import RaftNode
from .raft_world import RaftWorld, run_seeds

ASK_AGAIN_S = 0.1
ANSWER_S = 0.1
"""All reports that arrive at all arrive within this time."""
VoterReports = dict[str, VoterReport]


class CorruptionWorld(RaftWorld):
    """A world of three or five nodes, with corruption as an additional fault."""

    def __init__(self, seed: int, *, white_box: bool = True, **_: object) -> None:
        rng = random.Random(seed ^ 0x507)
        faults = Faults.random_mix(rng)
        faults.kinds = faults.kinds or ("crash",)
        if faults.delay_s > 0.1:
            # Pending appends that overtake each other are resent by the thousand, with or without corruption.
            # A connection does not reorder them, and it would look like a loop.
            faults.propose_rate = 4.0
        super().__init__(seed, nodes=rng.choice((3, 3, 5)), faults=faults, white_box=white_box)
        self.corruptions = self.lost_hard_states = self.double_corruptions = 0
        self._asking: set[str] = set()
        self.schedule(rng.uniform(0.5, 1.0), self.corrupt_node)

    # --- lost data --------------------------------------------------------------------------------

    def corrupt_node(self) -> None:
        """Crash a random node and remove a part of its durable data."""
        if self.is_healed:
            return
        self.schedule(self.now + self.rng.expovariate(3.0), self.corrupt_node)
        node = self.nodes[self.rng.choice(self.ids)]
        if node.gone or not self._may_lose_data():
            return
        self.crash(node)
        disk = node.disk
        last = RaftEntryId(disk.last_term, disk.last_index)
        recovery_floor = last if disk.recovery_floor is None else max(last, disk.recovery_floor)
        corrupt_nodes = [
            other for other in self.nodes.values() if other is not node and other.disk.has_lost_data
        ]
        if corrupt_nodes and not self._may_corrupt_too(node, recovery_floor, corrupt_nodes):
            return
        disk.recovery_floor = recovery_floor
        self.corruptions += 1
        self.double_corruptions += bool(corrupt_nodes)
        if self.rng.random() < 0.3:  # the snapshot on which the log is based
            disk.snapshot, disk.configuration = (
                StoredSnapshot(),
                self._bootstrap_configuration(node),
            )
            disk.base_index = disk.base_term = 0
            disk.entries.clear()
        else:
            del disk.entries[self.rng.randrange(len(disk.entries) + 1) :]
            if disk.snapshot.index > disk.last_index:
                disk.base_index, disk.base_term = disk.snapshot.index, disk.snapshot.term
                disk.configuration = disk.snapshot.configuration
                disk.entries.clear()
        if self.rng.random() < 0.3 and not any(
            other.disk.lost_hard_state for other in corrupt_nodes
        ):
            disk.hard_state, disk.lost_hard_state = (
                HardState(),
                True,
            )  # only the oracles use the floor now
            self.lost_hard_states += 1

    def wipe(self, node: RaftNode) -> None:
        """Wipe a node, unless some node has lost data: its recovery may need all others."""
        if not self.has_lost_data:
            super().wipe(node)

    def change_random_member(self) -> None:
        """Change a member, unless some node has lost data: of two voters, its recovery would need both."""
        if not self.has_lost_data:
            super().change_random_member()

    @property
    def has_lost_data(self) -> bool:
        """Whether some node has less than it ever had."""
        return any(node.disk.has_lost_data for node in self.nodes.values())

    def _may_lose_data(self) -> bool:
        """Return whether every known configuration has at least three voters, all of them present."""
        logs = (
            node.disk.log() if node.core is None else node.core.log for node in self.nodes.values()
        )
        known = [log.configuration.voters for log in logs if log.configuration.voters]
        return all(
            len(voters) > 2 and not any(self.nodes[voter].gone for voter in voters)
            for voters in known
        )

    def _may_corrupt_too(
        self, node: RaftNode, recovery_floor: RaftEntryId, corrupt_nodes: list[RaftNode]
    ) -> bool:
        """Return whether members are constant and an intact node has all entries of the corrupt ones."""
        if (
            len(self.nodes) > len(self.initial_configuration.voters)
            or "members" in self.faults.kinds
        ):
            return False
        intact_nodes = [
            other
            for other in self.nodes.values()
            if other is not node and other not in corrupt_nodes
        ]
        floors = [
            other.disk.recovery_floor
            for other in corrupt_nodes
            if other.disk.recovery_floor is not None
        ]
        newest = max([recovery_floor, *floors])
        has_all = any(
            RaftEntryId(intact.disk.last_term, intact.disk.last_index) >= newest
            for intact in intact_nodes
        )
        return has_all and len(corrupt_nodes) + 1 <= len(self.nodes) - 1

    def _bootstrap_configuration(self, node: RaftNode) -> Configuration:
        return (
            self.initial_configuration
            if node.node_id in self.initial_configuration.voters
            else UNKNOWN_CONFIGURATION
        )

    # --- a node without hard state queries all others ------------------------------------------------

    def start(self, node: RaftNode) -> None:
        """Start a node.

        Without its hard state it first queries the others, as `request_voter_reports` does.
        """
        if not node.disk.lost_hard_state or node.core is not None or node.gone:
            super().start(node)
        elif node.node_id not in self._asking:
            self._asking.add(node.node_id)
            lives = {other.node_id: other.life for other in self.nodes.values()}
            self._collect_reports(node, lives, self._on_reports)

    def _collect_reports(
        self,
        node: RaftNode,
        lives: dict[str, int],
        on_reports: Callable[[RaftNode, dict[str, int], VoterReports], None],
    ) -> None:
        reports: VoterReports = {}
        for other in self.nodes.values():
            if other is not node:
                self.schedule(
                    self.now + self.rng.uniform(0, ANSWER_S), self._answer, other, lives, reports
                )
        self.schedule(self.now + ANSWER_S, on_reports, node, lives, reports)

    def _answer(self, other: RaftNode, lives: dict[str, int], reports: VoterReports) -> None:
        is_connected = lives.get(other.node_id) == other.life  # a restart ends the connection
        if other.core is not None and other.paused_since < 0 and is_connected:
            reports[other.node_id] = voter_report_of(other.core)

    def _on_reports(self, node: RaftNode, lives: dict[str, int], reports: VoterReports) -> None:
        recovered = recovered_hard_state(node.node_id, reports)
        if isinstance(recovered, str):
            self._retry_later(node)
            return

        def on_asked_again(
            node: RaftNode, lives: dict[str, int], second_reports: VoterReports
        ) -> None:
            joined_state = merge_recovered(
                recovered, recovered_hard_state(node.node_id, second_reports)
            )
            if isinstance(joined_state, str):
                self._retry_later(node)
            else:
                self._restore_hard_state(node, joined_state)

        self._collect_reports(node, lives, on_asked_again)

    def _retry_later(self, node: RaftNode) -> None:
        self._asking.discard(node.node_id)
        self.schedule(self.now + ASK_AGAIN_S, self.start, node)

    def _restore_hard_state(self, node: RaftNode, recovered: RecoveredHardState) -> None:
        self._asking.discard(node.node_id)
        if node.disk.lost_hard_state and not node.gone:
            node.disk.hard_state, node.disk.recovery_floor = recovered.hard_state, recovered.last
            node.disk.lost_hard_state = False
            self.start(node)


def voter_report_of(core: Raft) -> VoterReport:
    """Return the report of a voter to a node without hard state."""
    last = RaftEntryId(core.log.last_term, core.log.last_index)
    last = last if core.recovery_floor is None else max(last, core.recovery_floor)
    return VoterReport(core.node_id, core.term, last, core.configuration)


class VotesByDamagedLog(Raft):
    """Votes according to the remaining data of its damaged disk (injected bug, H106)."""

    def __init__(self, node_id: str, durable: DurableState, **named: Any) -> None:
        super().__init__(node_id, replace(durable, recovery_floor=None), **named)


class TrustingWorld(CorruptionWorld):
    """A world of `VotesByDamagedLog` nodes."""

    core_class = VotesByDamagedLog


class VotesWithoutHardState(CorruptionWorld):
    """A node without hard state continues as if it had never voted (injected bug, H106)."""

    def start(self, node: RaftNode) -> None:
        """Start without querying the others."""
        if node.disk.lost_hard_state:
            node.disk.lost_hard_state, node.disk.recovery_floor = False, None
        super().start(node)


def main(arguments: Sequence[str]) -> int:
    """Run seeds and print the one that failed."""
    count = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else 1000
    failure = run_seeds(range(count), CorruptionWorld)
    print(
        f"{count} seeds: {'none failed' if failure is None else f'seed {failure[0]}: {failure[1]}'}"
    )
    return failure is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
