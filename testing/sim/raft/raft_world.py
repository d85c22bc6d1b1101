"""Whole Raft clusters on one event heap: cores, disks and a faulty network, without trio and mostly
unencoded.

One `RaftWorld` is one seed. It chooses a random mix of faults: crashes at any step of the driver, lost,
duplicated and reordered messages, one-way cuts, pauses, slow and stalled disks, snapshots, wiped and replaced
nodes, and membership changes. It injects them into real cores, under the oracles of
testing/sim/raft/raft_oracles.py. Then it ends all faults and requires that the cluster, with all its members,
serves again within `LIVENESS_S`. State machine, network, clients, operator and nemesis are separate classes.

Source: docs/internals/testing.md.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ....metadata.declarations.options import RaftOptions
from ....metadata.model.configuration import UNKNOWN_CONFIGURATION, Configuration, Member
from ....metadata.raft.quorum import majority
from ....metadata.raft.raft import DurableState, Raft
from ....metadata.raft.raft_messages import Entry, Message, decode, encode
from ....metadata.raft.ready import Diverged, RaftRole, Ready
from ....runtime.interfaces.errors import DistributedLogError, InvalidRequest, NotReady
from .raft_disk import StoredSnapshot
from .raft_faults import Faults, drawn_options
from .raft_node import NEVER, Crashed, RaftNode
from .raft_oracles import Broken, RaftOracles

LIVENESS_S = 6.0
"""Virtual seconds after the faults within which a cluster must serve writes and reads everywhere."""
MESSAGES_MAX = 60_000
"""Limit of messages per world, because a message storm does not slow a clock that jumps (H43 f)."""
CHECK_INTERVAL_S = 0.15
"""Interval between two checks of the operator."""
VOTERS_MAX = 5


class RaftWorld:
    """One seed.

    `run` returns if the cluster serves in the end, and otherwise raises `Broken` or an assertion.
    """

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
        self.faults = faults or Faults.random_mix(self.rng)
        self.options = options or drawn_options(self.rng, self.faults)
        self.ids = [f"n{place}" for place in range(count)]
        self.initial_configuration = Configuration.from_ids(self.ids)
        self.nodes = {
            node_id: RaftNode(node_id, self.initial_configuration) for node_id in self.ids
        }
        self.oracles = RaftOracles(
            {node_id: node.disk for node_id, node in self.nodes.items()}, white_box=white_box
        )
        self.machine = self.state_machine()
        self.nemesis = RaftNemesis(self)
        self.network = RaftNetwork(self)
        self.clients = RaftClients(self)
        self.operator = RaftOperator(self)
        self.now = 0.0
        self.is_healed = False
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    def state_machine(self) -> "WorldStateMachine":
        """Return the state machines of the nodes. Other worlds override this."""
        return ChainMachine(self)

    # --- time -------------------------------------------------------------------------------------

    def schedule(self, time: float, call: Callable[..., None], *args: object) -> None:
        """Schedule a call at a time. Calls at equal times run in the order in which they were scheduled."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, call, args))

    def run_until(self, end: float, is_done: Callable[[], bool] | None = None) -> bool:
        """Run events up to ``end``. Return True as soon as ``is_done`` does."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, what, args = heapq.heappop(heap)
            what(*args)
            if is_done is not None and is_done():
                return True
        self.now = end
        return False

    def run(self) -> None:
        """Inject faults, end them, and check that the cluster serves."""
        for node_id in self.ids:
            self.start(self.nodes[node_id])
        self.schedule(0.3, self.clients.send_requests)
        self.schedule(0.3, self.operator.check)
        if self.faults.kinds:
            self.schedule(self.rng.uniform(0.2, 1.0), self.nemesis.inject_fault)
        self.run_until(self.faults.chaos_s)
        self.heal()
        target = self.clients.command_count
        if not self.run_until(self.now + LIVENESS_S, lambda: self._is_serving(target)):
            raise Broken(f"liveness: not serving {LIVENESS_S} s after healing ({self.describe()})")

    def describe(self) -> str:
        """Return each node's role and progress, for the message of a failure."""
        return "; ".join(str(node) for node in self.nodes.values())

    def _is_serving(self, target: int) -> bool:
        last, leader = self.oracles.last_committed, self.leader()
        return (
            leader is not None
            and self.clients.command_count > target + 3
            and self.oracles.last_command > target
            and self.oracles.answered_reads > 0
            and self.clients.has_read_after_heal
            and self.operator.is_done(leader.configuration)
            and all(self.nodes[peer].restored == last for peer in leader.configuration.voters)
        )

    def leader(self) -> Raft | None:
        """Return the leader of the latest term, of all nodes that consider themselves leader."""
        leaders = [n.core for n in self.nodes.values() if n.core is not None and self.is_leader(n)]
        return max(leaders, key=lambda core: core.term, default=None)

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, node_id: str) -> None:
        """Start an empty node, which waits to be added as a member."""
        node = self.nodes[node_id] = RaftNode(node_id, UNKNOWN_CONFIGURATION)
        self.oracles.disks[node_id] = node.disk
        self.ids.append(node_id)
        self.start(node)

    def start(self, node: RaftNode) -> None:
        """Start a node from its disk."""
        if node.core is not None or node.gone:
            return
        disk = node.disk
        node.life += 1
        node.core = self.core_class(
            node.node_id,
            DurableState(
                disk.log(),
                disk.hard_state,
                applied=disk.snapshot.index,
                recovery_floor=disk.recovery_floor,
                commit_index=disk.committed,
            ),
            options=self.options,
            random=self.rng.random,
            now=self.now,
        )
        self.machine.restore(node, disk.snapshot)
        node.queue = []
        node.inbox = []
        node.paused_since = -1.0
        node.stalled_until = self.now
        node.syncing = 0
        node.timer_at = float("inf")
        node.seen_commit = node.seen_term = 0
        steps = 0 if self.is_healed else self.faults.crash_within_steps
        node.crash_in = self.rng.randrange(1, steps * 10) if steps else NEVER
        self.process_ready(node)

    def crash(self, node: RaftNode) -> None:
        """Cut the power of a node. Of the pending writes a random part is durable, in order."""
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
        for peer in self.ids:  # some peers see the connection break, others only silence
            if peer != node.node_id and self.rng.random() < 0.7:
                self.schedule(self.now + self.network.delay_s(), self.closed, peer, node.node_id)
        if not node.gone:
            self.schedule(self.now + self.rng.uniform(0.001, 1.0), self.start, node)

    def closed(self, node_id: str, peer: str) -> None:
        """Notify a node that its connection to a peer has ended."""
        node = self.nodes[node_id]
        if node.core is not None and node.paused_since < 0:
            node.core.on_connection_closed(peer, self.now)
            self.process_ready(node)

    def crash_point(self, node: RaftNode) -> None:
        """Count a step at which the power may fail."""
        node.crash_in -= 1
        if node.crash_in <= 0:
            self.crash(node)
            raise Crashed

    def process_ready(self, node: RaftNode) -> None:
        """Process all pending `Ready` values, as metadata/replica/replica.py does after every input."""
        core = node.core
        if core is None:
            return
        try:
            while core.has_ready:
                self.crash_point(node)
                self.execute_ready(node, core, core.ready())
        except Crashed:
            return
        if core.diverged is not None:
            self.on_diverged(node, core.diverged)
            return
        if (
            core.recovery_floor is not None
            and not node.disk.has_lost_data
            and not self.runs_on_disk_copy(node)
        ):
            raise Broken(
                f"M4 ack: {node} lacks entries that it acknowledged to a leader, {core.recovery_floor}"
            )
        if core.role is RaftRole.LEADER:
            if core.term != node.seen_term:
                node.seen_term, node.seen_commit = core.term, core.commit
                self.oracles.on_leader(node.node_id, core)
            if core.commit > node.seen_commit:
                node.seen_commit = core.commit
                self.oracles.on_leader_commit(core)
        if core.deadline < node.timer_at:
            node.timer_at = core.deadline
            self.schedule(core.deadline, self._timer, node, node.life, core.deadline)

    def runs_on_disk_copy(self, node: RaftNode) -> bool:
        """Return whether a node runs on an older copy of its disk without detecting it.

        Other worlds override this.
        """
        return False

    def on_diverged(self, node: RaftNode, divergence: Diverged) -> None:
        """Fail, because a leader would replace committed entries.

        Worlds in which a majority loses data override this.
        """
        raise Broken(f"M2: {node} must end ({divergence})")

    def execute_ready(self, node: RaftNode, core: Raft, ready: Ready) -> None:
        """Execute a `Ready` in the required order."""
        for receiver, message in ready.send_now:
            self.crash_point(node)
            self.network.send(node, receiver, message)
        for snapshot_request in ready.send_snapshots:
            self.network.send_snapshot(node, snapshot_request.peer)
        if ready.needs_persist or ready.send_after_persist:
            node.queue.append(ready)
            self._begin_sync(node)
        if ready.snapshot is not None:
            incoming = node.disk.incoming[ready.snapshot.index]
            self.oracles.on_restored(node.node_id, node.restored, incoming.index, incoming.chain)
            self.machine.restore(node, incoming)
            core.on_applied(incoming.index)
        for entry in ready.committed:
            self.crash_point(node)
            self.machine.apply(node, entry, core.term)
        if ready.committed:
            core.on_applied(node.restored)
            self._maybe_compact(node, core)
        for request_id, index in ready.reads:
            self.oracles.on_read_answer(node.node_id, request_id, index)
            self.clients.has_read_after_heal = self.is_healed
        for request_id in ready.reads_lost:
            del self.oracles.pending_reads[request_id]

    def steps_of(self, node: RaftNode, ready: Ready) -> Iterator[None]:
        """Yield between the steps that make a `Ready` durable. Injected bugs override this."""
        return node.disk.steps(ready)

    def _begin_sync(self, node: RaftNode) -> None:
        """Start a sync of all values that are queued now. Later ones wait for the next sync (H10)."""
        if node.syncing or not node.queue:
            return
        node.syncing = len(node.queue)
        base_s = min(0.002, self.faults.sync_s) if self.is_healed else self.faults.sync_s
        has_writes = any(ready.needs_persist for ready in node.queue)
        sync_s = self.rng.uniform(0.5, 1.5) * base_s if has_writes else 0.0
        end = max(node.stalled_until, self.now) + sync_s
        self.schedule(end, self.deliver_call, node, node.life, self.on_sync_end)

    def on_sync_end(self, node: RaftNode) -> None:
        """End a sync. Only now the messages that depend on it may leave."""
        core = node.core
        assert core is not None
        count, node.syncing = node.syncing, 0
        try:
            for _ in range(count):
                ready = node.queue[0]
                for _ in self.steps_of(node, ready):
                    pass
                node.queue.pop(0)
                self.crash_point(node)
                for to, message in ready.send_after_persist:
                    self.network.send(node, to, message)
                    self.crash_point(node)
                core.on_persisted(ready.ready_number, self.now)
                if core.recovery_floor is None:
                    node.disk.recovery_floor = None
        except Crashed:
            return
        self._begin_sync(node)
        self.process_ready(node)

    def _maybe_compact(self, node: RaftNode, core: Raft) -> None:
        limit = self.faults.compact_after
        busy = any(ready.snapshot is not None for ready in node.queue)
        if not limit or busy or core.applied - core.log.base_index <= limit:
            return
        term = core.log.term_at(core.applied)
        assert term is not None
        members = core.log.configuration_at(core.applied)
        if members == UNKNOWN_CONFIGURATION:
            return  # a new node that has not received its configuration yet
        node.disk.snapshot = StoredSnapshot(
            core.applied, term, node.chain, members, self.machine.snapshot_of(node)
        )
        self.crash_point(node)
        keep = self.rng.randrange(limit)
        node.disk.compact(core.compact(max(core.log.base_index, core.applied - keep)))

    def _timer(self, node: RaftNode, life: int, when: float) -> None:
        if node.life != life or node.core is None or when != node.timer_at:
            return
        if node.core.deadline > self.now:
            node.timer_at = node.core.deadline
            self.schedule(node.timer_at, self._timer, node, life, node.timer_at)
            return
        node.timer_at = float("inf")
        self.deliver_call(node, life, self.on_time)

    def on_time(self, node: RaftNode) -> None:
        """Let a node process its timers."""
        assert node.core is not None
        node.core.on_time(self.now)
        self.process_ready(node)

    def deliver_call(
        self, node: RaftNode, life: int, call: Callable[..., None], *args: object
    ) -> None:
        """Call a node now, or when its pause ends."""
        if node.life != life or node.core is None:
            return
        if node.paused_since >= 0:
            node.inbox.append((call, args))
        else:
            call(node, *args)

    # --- faults -----------------------------------------------------------------------------------

    def is_leader(self, node: RaftNode) -> bool:
        """Return whether a node considers itself leader."""
        return node.core is not None and node.core.role is RaftRole.LEADER

    def wipe(self, node: RaftNode) -> None:
        """Empty a node's directory. A new empty node with another ID replaces it (H5)."""
        node.gone = True
        self.crash(node)
        self.schedule(self.now + self.rng.uniform(0.1, 1.0), self.operator.replace, node)

    def change_random_member(self) -> None:
        """Add or remove a random member."""
        self.operator.change()

    def heal(self) -> None:
        """End all faults and start all nodes."""
        self.is_healed = True
        self.network.cut_pairs = set()
        for node in self.nodes.values():
            node.crash_in = NEVER
            node.stalled_until = self.now
            self.nemesis.resume(node, node.life)
            self.start(node)


class WorldStateMachine(Protocol):
    """The state machines of all nodes of a world."""

    def propose(self, node: RaftNode, core: Raft, command: int) -> None:
        """Propose a client's command, given by its number, at a node that considers itself leader."""
        ...

    def apply(self, node: RaftNode, entry: Entry, term: int) -> None:
        """Apply the next entry."""
        ...

    def snapshot_of(self, node: RaftNode) -> tuple[bytes, ...]:
        """Return the content of a snapshot in addition to the digest chain."""
        ...

    def can_read(self, node: RaftNode, snapshot: StoredSnapshot) -> bool:
        """Return whether a node can read a snapshot."""
        ...

    def restore(self, node: RaftNode, snapshot: StoredSnapshot) -> None:
        """Replace the state by a snapshot."""
        ...


class ChainMachine:
    """Keeps only a chained digest of the applied commands per node."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world

    def propose(self, node: RaftNode, core: Raft, command: int) -> None:
        """Propose the command's number as 8 bytes."""
        core.propose(command.to_bytes(8, "big"))

    def apply(self, node: RaftNode, entry: Entry, term: int) -> None:
        """Check the entry with the oracles and add it to the chain."""
        oracles = self.world.oracles
        node.chain = oracles.on_applied(node.node_id, entry, node.restored, node.chain, term)
        node.restored = entry.index

    def snapshot_of(self, node: RaftNode) -> tuple[bytes, ...]:
        """Return no additional content."""
        return ()

    def can_read(self, node: RaftNode, snapshot: StoredSnapshot) -> bool:
        """Return True."""
        return True

    def restore(self, node: RaftNode, snapshot: StoredSnapshot) -> None:
        """Restore chain and index."""
        node.chain, node.restored = snapshot.chain, snapshot.index


class RaftNetwork:
    """The network of all nodes, which loses, duplicates, delays and blocks messages and snapshots."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.cut_pairs: set[tuple[str, str]] = set()
        """The blocked directions as pairs (from, to)."""
        self.message_count = 0

    def send(self, node: RaftNode, receiver: str, message: Message) -> None:
        """Send a message, which may be lost, duplicated or late."""
        self.world.oracles.on_sent(node.node_id, receiver, message)
        self.message_count += 1
        if self.message_count > MESSAGES_MAX:
            raise Broken(
                f"storm: {MESSAGES_MAX} messages by {self.world.now:.1f} s, the last is {message}"
            )
        faults = self.world.faults
        if (node.node_id, receiver) in self.cut_pairs:
            return
        if not self.world.is_healed:
            if faults.loss and self.world.rng.random() < faults.loss:
                return
            if faults.duplicated and self.world.rng.random() < faults.duplicated:
                self.world.schedule(
                    self.world.now + self.delay_s() * 3, self.deliver, receiver, message
                )
        if faults.framed:
            message = decode(encode(message))  # type: ignore[assignment]
        self.world.schedule(self.world.now + self.delay_s(), self.deliver, receiver, message)

    def delay_s(self) -> float:
        """Return the travel time of a message in seconds."""
        scale = 0.002 if self.world.is_healed else self.world.faults.delay_s
        return scale * (0.2 + self.world.rng.random())

    def deliver(self, receiver: str, message: Message) -> None:
        """Deliver a message to a node."""
        node = self.world.nodes[receiver]
        core = node.core
        if core is None:
            return
        if node.paused_since >= 0:
            node.inbox.append((self._deliver_to, (message,)))
            return
        core.on_message(message, self.world.now)
        self.world.process_ready(node)

    def _deliver_to(self, node: RaftNode, message: Message) -> None:
        self.deliver(node.node_id, message)

    def send_snapshot(self, node: RaftNode, peer: str) -> None:
        """Send the newest snapshot of a node."""
        assert node.core is not None
        snapshot = node.disk.snapshot
        arrival = self.world.now + self.delay_s() * 5
        self.world.schedule(
            arrival, self._snapshot_arrives, node, node.life, node.core.term, peer, snapshot
        )

    def _snapshot_arrives(
        self, node: RaftNode, life: int, term: int, to: str, snapshot: StoredSnapshot
    ) -> None:
        receiver = self.world.nodes[to]
        core = receiver.core
        is_lost = (node.node_id, to) in self.cut_pairs or (
            not self.world.is_healed and self.world.rng.random() < 0.2
        )
        is_delivered = core is not None and receiver.paused_since < 0 and not is_lost
        is_delivered = is_delivered and self.world.machine.can_read(receiver, snapshot)
        if is_delivered and core is not None:
            receiver.disk.incoming[snapshot.index] = snapshot
            core.on_snapshot_received(term, node.node_id, snapshot.core_snapshot, self.world.now)
            self.world.process_ready(receiver)
        self.world.schedule(
            self.world.now + self.delay_s(),
            self.world.deliver_call,
            node,
            life,
            self._snapshot_ended,
            to,
            snapshot.index,
            is_delivered,
        )

    def _snapshot_ended(self, node: RaftNode, to: str, index: int, delivered: bool) -> None:
        assert node.core is not None
        node.core.on_snapshot_sent(to, index, delivered)
        self.world.process_ready(node)


class RaftClients:
    """All clients. They send commands and reads to each node that considers itself leader."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.command_count = 0
        self.request_count = 0
        self.has_read_after_heal = False

    def send_requests(self) -> None:
        """Send requests to all nodes that consider themselves leader, as clients with old addresses do."""
        for node_id in self.world.ids:
            node = self.world.nodes[node_id]
            if not self.world.is_leader(node):
                continue
            self.request_count += 1
            self.world.oracles.on_read_request(self.request_count)
            self.world.deliver_call(node, node.life, self._handle_at_node, self.request_count)
        rate = 8.0 if self.world.is_healed else self.world.faults.propose_rate
        self.world.schedule(self.world.now + self.world.rng.expovariate(rate), self.send_requests)

    def _handle_at_node(self, node: RaftNode, request_id: int) -> None:
        """Process a client's read and commands at a node, after its pause if it is paused."""
        core = node.core
        assert core is not None
        for _ in range(self.world.rng.choice((1, 1, 3))):
            self.command_count += 1
            self.world.machine.propose(node, core, self.command_count)
        if not core.read_index(request_id):
            del self.world.oracles.pending_reads[request_id]
        self.world.process_ready(node)


class RaftOperator:
    """Replaces wiped nodes, and adds and removes others.

    The operator sends its changes to each node that considers itself leader, even an outdated one. It repeats
    its checks, as an operator (or `metadata/peers/membership_changes.py`) does. It never proposes a
    configuration without an available majority.
    """

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.replacement_of: dict[str, str] = {}
        """Maps the ID of a wiped node to that of its replacement."""
        self._added_count = 0

    # --- actions ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Propose the next necessary change at each node that considers itself leader."""
        world = self.world
        for node in list(world.nodes.values()):
            core = node.core
            if core is None or not world.is_leader(node) or node.paused_since >= 0:
                continue
            next_configuration = self._next_configuration(core)
            if next_configuration is not None:
                self._propose(node, core, next_configuration)
        world.schedule(world.now + CHECK_INTERVAL_S, self.check)

    def replace(self, node: RaftNode) -> None:
        """Start an empty replacement of a wiped node, with a new ID."""
        self._added_count += 1
        self.replacement_of[node.node_id] = f"{node.node_id.partition('.')[0]}.{self._added_count}"
        self.world.add_node(self.replacement_of[node.node_id])

    def change(self) -> None:
        """Propose a new or a removed member at each node that considers itself leader."""
        world = self.world
        for node in [node for node in world.nodes.values() if world.is_leader(node)]:
            core = node.core
            if core is None or node.paused_since >= 0:
                continue
            if world.rng.random() < 0.5 and len(core.configuration.members) < VOTERS_MAX:
                self._added_count += 1
                world.add_node(f"x.{self._added_count}")
                new_member = Member(f"x.{self._added_count}", "x", "", False)
                self._propose(node, core, core.configuration.with_member(new_member))
            elif core.voters:
                removed = world.rng.choice(core.voters)
                self._propose(node, core, core.configuration.without(removed))

    def _next_configuration(self, core: Raft) -> Configuration | None:
        current, leadership = core.configuration, core.leader_state
        caught_up = leadership.caught_up_learners(self.world.now) if leadership is not None else ()
        for old_member in current.members:
            if (
                not self.world.nodes[old_member.node_id].gone
                or old_member.node_id not in self.replacement_of
            ):
                continue
            new_id = self._newest(old_member.node_id)
            if current.member(new_id) is None:
                return current.with_member(Member(new_id, new_id.partition(".")[0], "", False))
            if not old_member.votes or new_id in caught_up:
                return current.without(old_member.node_id)
        for learner in caught_up:
            return current.with_promoted(learner)
        return None

    def _newest(self, node_id: str) -> str:
        while node_id in self.replacement_of:
            node_id = self.replacement_of[node_id]
        return node_id

    def _propose(self, node: RaftNode, core: Raft, wanted: Configuration) -> None:
        if not self.has_majority(wanted):
            return
        try:
            core.change_members(wanted, self.world.now)
        except (NotReady, InvalidRequest):
            return
        self.world.process_ready(node)

    # --- limits -----------------------------------------------------------------------------------

    def has_majority(self, configuration: Configuration, without_node: str = "") -> bool:
        """Return whether a majority of these voters is available without the node ``without_node``."""
        voters = configuration.voters
        remaining = [v for v in voters if v != without_node and not self.world.nodes[v].gone]
        return bool(voters) and len(remaining) >= majority(len(voters))

    def keeps_majority_without(self, node_id: str) -> bool:
        """Return whether each possible configuration keeps an available majority without this node."""
        committed = self.world.oracles.last_committed
        for node in self.world.nodes.values():
            log = node.disk.log() if node.core is None else node.core.log
            if node.gone or log.last_index < committed:
                continue
            first = max(
                index for index, _ in log.configurations if index <= max(committed, log.base_index)
            )
            for index, configuration in log.configurations:
                if index >= first and not self.has_majority(configuration, node_id):
                    return False
        return True

    def is_done(self, configuration: Configuration) -> bool:
        """Return whether no member waits to be added or replaced."""
        return (
            not configuration.learners
            and self.has_majority(configuration)
            and not any(self.world.nodes[voter].gone for voter in configuration.voters)
        )


class RaftNemesis:
    """Injects one fault after another until the world is healed."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world

    def inject_fault(self) -> None:
        """Inject one fault and schedule the next one."""
        world = self.world
        if world.is_healed:
            return
        rng = world.rng
        kind = rng.choice(world.faults.kinds)
        node = world.nodes[rng.choice(world.ids)]
        leaders = [other for other in world.nodes.values() if world.is_leader(other)]
        if leaders and rng.random() < 0.4:
            node = rng.choice(leaders)
        until = world.now + rng.choice((0.05, 0.4, 1.5)) * (0.5 + rng.random())
        if kind == "crash":
            world.crash(node)
        elif kind == "cut":
            pairs = [(a, b) for a in world.ids for b in world.ids if a != b]
            world.network.cut_pairs = {pair for pair in pairs if rng.random() < 0.35}
            world.schedule(until, self.reconnect)
        elif kind == "isolate":
            isolated = rng.choice(leaders or [node]).node_id
            direction = rng.choice(("in", "out", "both"))
            world.network.cut_pairs = {
                (isolated, b) for b in world.ids if b != isolated and direction != "in"
            }
            world.network.cut_pairs |= {
                (a, isolated) for a in world.ids if a != isolated and direction != "out"
            }
            world.schedule(until, self.reconnect)
        elif kind == "pause" and node.core is not None and node.paused_since < 0:
            node.paused_since = world.now
            world.schedule(until, self.resume, node, node.life)
        elif kind == "stall" and node.core is not None:
            node.stalled_until = until
            world.schedule(world.now + 0.2, self.report_stall, node, node.life)
        elif kind == "transfer" and node.core is not None and node.paused_since < 0:
            node.core.transfer_leadership(world.now)
            world.process_ready(node)
        elif (
            kind == "wipe" and not node.gone and world.operator.keeps_majority_without(node.node_id)
        ):
            world.wipe(node)
        elif kind == "members":
            world.change_random_member()
        world.schedule(world.now + rng.expovariate(world.faults.fault_rate), self.inject_fault)

    def reconnect(self) -> None:
        """Open all directions again."""
        self.world.network.cut_pairs = set()

    def resume(self, node: RaftNode, life: int) -> None:
        """Resume a paused node, and process the messages that arrived during the pause."""
        world = self.world
        if node.life != life or node.core is None or node.paused_since < 0:
            return
        # A driver can measure how late it is after its deadline, but not how long it was paused.
        lateness_s = world.now - max(node.paused_since, node.core.deadline)
        node.paused_since = -1.0
        inbox, node.inbox = node.inbox, []
        if (
            world.faults.late_hint
        ):  # drain the sockets, then shift the deadlines, then check timers (H25)
            inbox.sort(key=lambda item: item[0] == world.on_time)
        for what, args in inbox:
            if node.core is None or node.life != life:
                return
            if world.faults.late_hint and what == world.on_time and lateness_s > 0.05:
                node.core.on_late(lateness_s, world.now)
            what(node, *args)

    def report_stall(self, node: RaftNode, life: int) -> None:
        """Report to the core that a sync takes too long, or that it has ended."""
        world = self.world
        if node.life != life or node.core is None:
            return
        if node.paused_since >= 0:  # checked again when it is resumed
            world.schedule(world.now + 0.1, self.report_stall, node, life)
            return
        stalled = node.stalled_until > world.now
        node.core.on_disk_stalled(stalled, world.now)
        if stalled:
            world.schedule(node.stalled_until, self.report_stall, node, life)
        world.process_ready(node)


def run_seeds(
    seeds: Sequence[int], world_class: type[RaftWorld] = RaftWorld, *, white_box: bool = True
) -> tuple[int, str] | None:
    """Run seeds until one fails. Return the seed and the broken rule, or None."""
    for seed in seeds:
        try:
            world_class(seed, white_box=white_box).run()
        except (AssertionError, DistributedLogError) as error:
            return seed, str(error) or "an assertion of the core"
    return None
