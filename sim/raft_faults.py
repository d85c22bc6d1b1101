"""The faults of a Raft world: which mix a seed draws, and how each is done to it."""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..metadata.options import RaftOptions
from .raft_node import RaftNode

if TYPE_CHECKING:
    from .raft_world import RaftWorld


@dataclass(slots=True)
class Faults:
    """One seed's mix; rates are per virtual second of the whole cluster."""

    delay_s: float = 0.002
    loss: float = 0.0
    doubled: float = 0.0
    sync_s: float = 0.001
    fault_rate: float = 2.0
    kinds: tuple[str, ...] = ("crash", "cut", "pause", "stall")
    crash_within_steps: int = 0
    propose_rate: float = 12.0
    compact_after: int = 0
    late_hint: bool = True
    framed: bool = False
    chaos_s: float = 2.5

    @classmethod
    def drawn(cls, rng: random.Random) -> "Faults":
        """Swarm testing: every seed has its own mix, so that rare mixes happen."""
        kinds = tuple(
            kind
            for kind, share in (
                ("crash", 0.7),
                ("cut", 0.6),
                ("isolate", 0.5),
                ("pause", 0.4),
                ("stall", 0.3),
                ("transfer", 0.2),
                ("wipe", 0.2),
                ("members", 0.25),
            )
            if rng.random() < share
        )
        return cls(
            delay_s=rng.choice((0.001, 0.003, 0.03, 0.2)),
            loss=rng.choice((0.0, 0.0, 0.05, 0.3)),
            doubled=rng.choice((0.0, 0.0, 0.1)),
            sync_s=rng.choice((0.0005, 0.002, 0.02, 0.15)),
            fault_rate=rng.choice((1.0, 3.0, 6.0)),
            kinds=kinds,
            crash_within_steps=rng.choice((0, 0, 30, 150)),
            propose_rate=rng.choice((4.0, 12.0, 24.0)),
            compact_after=rng.choice((0, 3, 12)),
            late_hint=rng.random() < 0.7,
            framed=rng.random() < 0.05,
            chaos_s=rng.choice((1.5, 2.5, 4.0)),
        )


def drawn_options(rng: random.Random, faults: Faults) -> RaftOptions:
    """Small bounds, so that they are met; often hasty elections, so that many terms pass."""
    haste = rng.choice((1.0, 1.0, 1.0, 0.3))
    faults.chaos_s *= 0.4 + 0.6 * haste
    return RaftOptions(
        heartbeat_s=0.1 * haste,
        election_min_s=0.5 * haste,
        election_max_s=1.0 * haste,
        in_flight_bytes_max=rng.choice((64, 1 << 20)),
        append_bytes_max=rng.choice((8, 40, 1 << 20)),
        lag_entries_max=rng.choice((0, 0, 6)),
    )


class Nemesis:
    """Does one fault after another to a world until it is healed."""

    def __init__(self, world: "RaftWorld") -> None:
        self.world = world

    def strike(self) -> None:
        """One fault, and the next one later."""
        world = self.world
        if world.healed:
            return
        rng = world.rng
        kind = rng.choice(world.faults.kinds)
        node = world.nodes[rng.choice(world.ids)]
        leaders = [other for other in world.nodes.values() if world.leads(other)]
        if leaders and rng.random() < 0.4:
            node = rng.choice(leaders)
        until = world.now + rng.choice((0.05, 0.4, 1.5)) * (0.5 + rng.random())
        if kind == "crash":
            world.crash(node)
        elif kind == "cut":
            pairs = [(a, b) for a in world.ids for b in world.ids if a != b]
            world.network.cut = {pair for pair in pairs if rng.random() < 0.35}
            world.at(until, self.join)
        elif kind == "isolate":
            alone = rng.choice(leaders or [node]).node_id
            way = rng.choice(("in", "out", "both"))
            world.network.cut = {(alone, b) for b in world.ids if b != alone and way != "in"}
            world.network.cut |= {(a, alone) for a in world.ids if a != alone and way != "out"}
            world.at(until, self.join)
        elif kind == "pause" and node.core is not None and node.paused_since < 0:
            node.paused_since = world.now
            world.at(until, self.wake, node, node.life)
        elif kind == "stall" and node.core is not None:
            node.stalled_until = until
            world.at(world.now + 0.2, self.stall_noticed, node, node.life)
        elif kind == "transfer" and node.core is not None and node.paused_since < 0:
            node.core.transfer_leadership(world.now)
            world.turn(node)
        elif kind == "wipe" and not node.gone and world.operator.may_lose(node.node_id):
            world.wipe(node)
        elif kind == "members":
            world.operator.change()
        world.at(world.now + rng.expovariate(world.faults.fault_rate), self.strike)

    def join(self) -> None:
        """All links work again."""
        self.world.network.cut = set()

    def wake(self, node: RaftNode, life: int) -> None:
        """A paused node goes on; what came meanwhile lies in its sockets."""
        world = self.world
        if node.life != life or node.core is None or node.paused_since < 0:
            return
        # What a driver can know: how long after its deadline it woke, not how long it stood still.
        lateness_s = world.now - max(node.paused_since, node.core.deadline)
        node.paused_since = -1.0
        inbox, node.inbox = node.inbox, []
        if world.faults.late_hint:  # drain the sockets, then shift, then look at the clock (H25)
            inbox.sort(key=lambda item: item[0] == world.on_time)
        for what, args in inbox:
            if node.core is None or node.life != life:
                return
            if world.faults.late_hint and what == world.on_time and lateness_s > 0.05:
                node.core.on_late(lateness_s, world.now)
            what(node, *args)

    def stall_noticed(self, node: RaftNode, life: int) -> None:
        """The driver sees that its sync hangs, or that it ended."""
        world = self.world
        if node.life != life or node.core is None:
            return
        if node.paused_since >= 0:  # it will see that when it runs again
            world.at(world.now + 0.1, self.stall_noticed, node, life)
            return
        stalled = node.stalled_until > world.now
        node.core.on_disk_stalled(stalled, world.now)
        if stalled:
            world.at(node.stalled_until, self.stall_noticed, node, life)
        world.turn(node)
