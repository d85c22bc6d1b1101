"""Whole Raft clusters on one heap: cores, disks and a bad network, without trio and without bytes.

One `RaftWorld` is one seed: it draws a mix of faults (crashes at any step of the driver, lost, doubled
and reordered messages, one-way cuts, pauses, slow and stalled disks, snapshots, wiped nodes that are
replaced, members that come and go), runs them against the real cores under the oracles of
sim/raft_oracles.py, then heals everything and demands that the cluster serves again within `LIVENESS_S`,
with all its members. Source: design, "The simulator"; H5, H25, H26, H39, H43.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence

from ..metadata.configuration import UNKNOWN, Configuration
from ..metadata.options import RaftOptions
from ..metadata.raft import Raft
from ..metadata.ready import Ready, Role
from ..runtime.errors import DistributedLogError
from .raft_clients import RaftClients
from .raft_disk import StoredSnapshot
from .raft_faults import Faults, Nemesis, drawn_options
from .raft_network import RaftNetwork
from .raft_node import NEVER, Crashed, RaftNode
from .raft_operator import RaftOperator
from .raft_oracles import Broken, Oracles

LIVENESS_S = 6.0
"""After healing, a cluster must have served writes and reads everywhere within this virtual time."""


class RaftWorld:
    """One seed. ``run`` returns when all was served, raises `Broken` or an assertion otherwise."""

    core_class: type[Raft] = Raft

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 0,
        faults: Faults | None = None,
        options: RaftOptions | None = None,
        white_box: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        count = nodes or self.rng.choice((3,) * 13 + (5,) * 5 + (4, 2, 1))
        self.faults = faults or Faults.drawn(self.rng)
        self.options = options or drawn_options(self.rng, self.faults)
        self.ids = [f"n{place}" for place in range(count)]
        self.founding = Configuration.of_ids(self.ids)
        self.nodes = {node_id: RaftNode(node_id, self.founding) for node_id in self.ids}
        self.oracles = Oracles(
            {node_id: node.disk for node_id, node in self.nodes.items()}, white_box=white_box
        )
        self.nemesis = Nemesis(self)
        self.network = RaftNetwork(self)
        self.clients = RaftClients(self)
        self.operator = RaftOperator(self)
        self.now = 0.0
        self.healed = False
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    # --- time -------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[..., None], *args: object) -> None:
        """Let ``what`` happen at ``when``; equal times happen in the order they were asked for."""
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, what, args))

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Run events up to ``end``; True as soon as ``done``."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, what, args = heapq.heappop(heap)
            what(*args)
            if done is not None and done():
                return True
        self.now = end
        return False

    def run(self) -> None:
        """Faults, then healing, then the demand that everything works."""
        for node_id in self.ids:
            self.start(self.nodes[node_id])
        self.at(0.3, self.clients.ask)
        self.at(0.3, self.operator.look)
        if self.faults.kinds:
            self.at(self.rng.uniform(0.2, 1.0), self.nemesis.strike)
        self.run_until(self.faults.chaos_s)
        self.heal()
        target = self.clients.commands
        if not self.run_until(self.now + LIVENESS_S, lambda: self._serves(target)):
            raise Broken(f"liveness: not serving {LIVENESS_S} s after healing: {self.describe()}")

    def describe(self) -> str:
        """Each node's role and marks, for a failure's message."""
        return "; ".join(str(node) for node in self.nodes.values())

    def _serves(self, target: int) -> bool:
        last, leader = self.oracles.committed_last, self.leader()
        return (
            leader is not None
            and self.clients.commands > target + 3
            and self.oracles.last_command > target
            and self.oracles.reads_answered > 0
            and self.clients.read_after_heal
            and self.operator.is_done(leader.configuration)
            and all(self.nodes[peer].restored == last for peer in leader.configuration.voters)
        )

    def leader(self) -> Raft | None:
        """The one of the latest term, of all that believe to lead."""
        leaders = [n.core for n in self.nodes.values() if n.core is not None and self.leads(n)]
        return max(leaders, key=lambda core: core.term, default=None)

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, node_id: str) -> None:
        """An empty node, which waits to be let in."""
        node = self.nodes[node_id] = RaftNode(node_id, UNKNOWN)
        self.oracles.disks[node_id] = node.disk
        self.ids.append(node_id)
        self.start(node)

    def start(self, node: RaftNode) -> None:
        """Start a node from what its disk has."""
        if node.core is not None or node.gone:
            return
        disk = node.disk
        node.life += 1
        node.core = self.core_class(
            node.node_id,
            disk.log(),
            disk.hard_state,
            options=self.options,
            draw=self.rng.random,
            now=self.now,
            applied=disk.snapshot.index,
        )
        node.chain, node.restored = disk.snapshot.chain, disk.snapshot.index
        node.queue = []
        node.inbox = []
        node.paused_since = -1.0
        node.stalled_until = self.now
        node.syncing = 0
        node.timer_at = float("inf")
        node.seen_commit = node.seen_term = 0
        steps = 0 if self.healed else self.faults.crash_within_steps
        node.crash_in = self.rng.randrange(1, steps * 10) if steps else NEVER
        self.turn(node)

    def crash(self, node: RaftNode) -> None:
        """Cut the power: of the writes under way a random part is durable, in order."""
        if node.core is None:
            return
        node.core = None
        node.life += 1
        queue, node.queue = node.queue, []
        share = self.rng.choice((0.0, 0.7, 0.95))
        for ready in queue:
            if self.rng.random() >= share:
                break
            if not all(self.rng.random() < share for _ in self.steps_of(node, ready)):
                break
        node.disk.incoming.clear()
        for peer in self.ids:  # some peers see the connection break, some see silence only
            if peer != node.node_id and self.rng.random() < 0.7:
                self.at(self.now + self.network.delay(), self.closed, peer, node.node_id)
        if not node.gone:
            self.at(self.now + self.rng.uniform(0.001, 1.0), self.start, node)

    def closed(self, node_id: str, peer: str) -> None:
        """A connection's end reaches a node."""
        node = self.nodes[node_id]
        if node.core is not None and node.paused_since < 0:
            node.core.on_connection_closed(peer, self.now)
            self.turn(node)

    def point(self, node: RaftNode) -> None:
        """A place where the power may fail."""
        node.crash_in -= 1
        if node.crash_in <= 0:
            self.crash(node)
            raise Crashed

    def turn(self, node: RaftNode) -> None:
        """The driver's turn: what metadata/replica.py does after every input."""
        core = node.core
        if core is None:
            return
        try:
            while core.has_ready:
                self.point(node)
                self.carry_out(node, core, core.ready())
        except Crashed:
            return
        if core.role is Role.LEADER:
            if core.term != node.seen_term:
                node.seen_term, node.seen_commit = core.term, core.commit
                self.oracles.on_leader(node.node_id, core)
            if core.commit > node.seen_commit:
                node.seen_commit = core.commit
                self.oracles.on_leader_commit(node.node_id, core)
        if core.deadline < node.timer_at:
            node.timer_at = core.deadline
            self.at(core.deadline, self._timer, node, node.life, core.deadline)

    def carry_out(self, node: RaftNode, core: Raft, ready: Ready) -> None:
        """Do what a Ready says, in the order it must be done."""
        for to, message in ready.send_now:
            self.point(node)
            self.network.post(node, to, message)
        for ask in ready.send_snapshots:
            self.network.send_snapshot(node, ask.peer)
        if ready.needs_persist or ready.send_after_persist:
            node.queue.append(ready)
            self._begin_sync(node)
        if ready.snapshot is not None:
            incoming = node.disk.incoming[ready.snapshot.index]
            self.oracles.on_restored(node.node_id, node.restored, incoming.index, incoming.chain)
            node.restored, node.chain = incoming.index, incoming.chain
            core.on_applied(incoming.index)
        for entry in ready.committed:
            self.point(node)
            node.chain = self.oracles.on_applied(
                node.node_id, entry, node.restored, node.chain, core.term
            )
            node.restored = entry.index
        if ready.committed:
            core.on_applied(node.restored)
            self._maybe_compact(node, core)
        for request_id, index in ready.reads:
            self.oracles.on_read_answered(node.node_id, request_id, index)
            self.clients.read_after_heal = self.healed
        for request_id in ready.reads_lost:
            del self.oracles.reads_asked[request_id]

    def steps_of(self, node: RaftNode, ready: Ready) -> Iterator[None]:
        """The steps of making a Ready durable (a seam for planted bugs)."""
        return node.disk.steps(ready)

    def _begin_sync(self, node: RaftNode) -> None:
        """One sync takes all that is queued when it begins, and nothing that comes later (H10)."""
        if node.syncing or not node.queue:
            return
        node.syncing = len(node.queue)
        scale = min(0.002, self.faults.sync_s) if self.healed else self.faults.sync_s
        writes = any(ready.needs_persist for ready in node.queue)
        sync_s = self.rng.uniform(0.5, 1.5) * scale if writes else 0.0
        end = max(node.stalled_until, self.now) + sync_s
        self.at(end, self.to_node, node, node.life, self.durable)

    def durable(self, node: RaftNode) -> None:
        """A sync ended: now, and only now, the promises of what it covers may leave."""
        core = node.core
        assert core is not None
        count, node.syncing = node.syncing, 0
        try:
            for _ in range(count):
                ready = node.queue[0]
                for _ in self.steps_of(node, ready):
                    pass
                node.queue.pop(0)
                self.point(node)
                for to, message in ready.send_after_persist:
                    self.network.post(node, to, message)
                    self.point(node)
                core.on_persisted(ready.number)
        except Crashed:
            return
        self._begin_sync(node)
        self.turn(node)

    def _maybe_compact(self, node: RaftNode, core: Raft) -> None:
        limit = self.faults.compact_after
        busy = any(ready.snapshot is not None for ready in node.queue)
        if not limit or busy or core.applied - core.log.base_index <= limit:
            return
        term = core.log.term_at(core.applied)
        assert term is not None
        members = core.log.configuration_at(core.applied)
        if members == UNKNOWN:
            return  # a node that is being let in, and has not read yet who its members are
        node.disk.snapshot = StoredSnapshot(core.applied, term, node.chain, members)
        self.point(node)
        keep = self.rng.randrange(limit)
        node.disk.compact(core.compact(max(core.log.base_index, core.applied - keep)))

    def _timer(self, node: RaftNode, life: int, when: float) -> None:
        if node.life != life or node.core is None or when != node.timer_at:
            return
        if node.core.deadline > self.now:
            node.timer_at = node.core.deadline
            self.at(node.timer_at, self._timer, node, life, node.timer_at)
            return
        node.timer_at = float("inf")
        self.to_node(node, life, self.on_time)

    def on_time(self, node: RaftNode) -> None:
        """A node looks at its clock."""
        assert node.core is not None
        node.core.on_time(self.now)
        self.turn(node)

    def to_node(self, node: RaftNode, life: int, what: Callable[..., None], *args: object) -> None:
        """Let a node do something, now or when it wakes."""
        if node.life != life or node.core is None:
            return
        if node.paused_since >= 0:
            node.inbox.append((what, args))
        else:
            what(node, *args)

    # --- faults -----------------------------------------------------------------------------------

    def leads(self, node: RaftNode) -> bool:
        """Whether a node believes to lead."""
        return node.core is not None and node.core.role is Role.LEADER

    def wipe(self, node: RaftNode) -> None:
        """The directory is emptied: what comes back is another node, which waits to be let in (H5)."""
        node.gone = True
        self.crash(node)
        self.at(self.now + self.rng.uniform(0.1, 1.0), self.operator.replace, node)

    def heal(self) -> None:
        """End all faults and start what is down."""
        self.healed = True
        self.network.cut = set()
        for node in self.nodes.values():
            node.crash_in = NEVER
            node.stalled_until = self.now
            self.nemesis.wake(node, node.life)
            self.start(node)


def run_seeds(
    seeds: Sequence[int], world_class: type[RaftWorld] = RaftWorld, *, white_box: bool = True
) -> tuple[int, str] | None:
    """Run seeds until one fails: (seed, what broke), or None."""
    for seed in seeds:
        try:
            world_class(seed, white_box=white_box).run()
        except (AssertionError, DistributedLogError) as error:
            return seed, str(error) or "an assertion of the core"
    return None
