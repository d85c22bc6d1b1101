"""The network of a Raft world: messages and snapshots that are lost, doubled, late, or cut off."""

from typing import TYPE_CHECKING

from ..metadata.messages import Message, decode, encode
from .raft_disk import StoredSnapshot
from .raft_node import RaftNode
from .raft_oracles import Broken

if TYPE_CHECKING:
    from .raft_world import RaftWorld

MESSAGES_MAX = 60_000
"""In one world: its clock jumps, so that a storm of messages would not show as slowness (H43 f)."""


class RaftNetwork:
    """Between all nodes of one world. ``cut``: the pairs (from, to) that nothing passes."""

    def __init__(self, world: "RaftWorld") -> None:
        self.world = world
        self.cut: set[tuple[str, str]] = set()
        self.messages = 0

    def post(self, node: RaftNode, to: str, message: Message) -> None:
        """Send a message: it may be lost, doubled, late."""
        self.world.oracles.on_sent(node.node_id, to, message)
        self.messages += 1
        if self.messages > MESSAGES_MAX:
            raise Broken(
                f"storm: {MESSAGES_MAX} messages by {self.world.now:.1f} s, the last: {message}"
            )
        faults = self.world.faults
        if (node.node_id, to) in self.cut:
            return
        if not self.world.healed:
            if faults.loss and self.world.rng.random() < faults.loss:
                return
            if faults.doubled and self.world.rng.random() < faults.doubled:
                self.world.at(self.world.now + self.delay() * 3, self.deliver, to, message)
        if faults.framed:
            message = decode(encode(message))  # type: ignore[assignment]
        self.world.at(self.world.now + self.delay(), self.deliver, to, message)

    def delay(self) -> float:
        """How long something takes on its way."""
        scale = 0.002 if self.world.healed else self.world.faults.delay_s
        return scale * (0.2 + self.world.rng.random())

    def deliver(self, to: str, message: Message) -> None:
        """A message reaches a node."""
        node = self.world.nodes[to]
        core = node.core
        if core is None:
            return
        if node.paused_since >= 0:
            node.inbox.append((self._take, (message,)))
            return
        core.on_message(message, self.world.now)
        self.world.turn(node)

    def _take(self, node: RaftNode, message: Message) -> None:
        self.deliver(node.node_id, message)

    def send_snapshot(self, node: RaftNode, peer: str) -> None:
        """Send what a node has as its newest snapshot."""
        assert node.core is not None
        snapshot = node.disk.snapshot
        took = self.world.now + self.delay() * 5
        self.world.at(took, self._snapshot_arrives, node, node.life, node.core.term, peer, snapshot)

    def _snapshot_arrives(
        self, node: RaftNode, life: int, term: int, to: str, snapshot: StoredSnapshot
    ) -> None:
        receiver = self.world.nodes[to]
        core = receiver.core
        lost = (node.node_id, to) in self.cut or (
            not self.world.healed and self.world.rng.random() < 0.2
        )
        delivered = core is not None and receiver.paused_since < 0 and not lost
        if delivered and core is not None:
            receiver.disk.incoming[snapshot.index] = snapshot
            core.on_snapshot_received(term, node.node_id, snapshot.mark, self.world.now)
            self.world.turn(receiver)
        self.world.at(
            self.world.now + self.delay(),
            self.world.to_node,
            node,
            life,
            self._snapshot_ended,
            to,
            snapshot.index,
            delivered,
        )

    def _snapshot_ended(self, node: RaftNode, to: str, index: int, delivered: bool) -> None:
        assert node.core is not None
        node.core.on_snapshot_sent(to, index, delivered, self.world.now)
        self.world.turn(node)
