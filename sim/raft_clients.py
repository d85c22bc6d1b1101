"""The clients of a Raft world: commands and reads, asked of whoever believes to lead."""

from typing import TYPE_CHECKING

from .raft_node import RaftNode

if TYPE_CHECKING:
    from .raft_world import RaftWorld


class RaftClients:
    """All clients of one world."""

    def __init__(self, world: "RaftWorld") -> None:
        self.world = world
        self.commands = 0
        self.requests = 0
        self.read_after_heal = False

    def ask(self) -> None:
        """Clients ask whoever believes to lead, as a client with an old address would."""
        for node_id in self.world.ids:
            node = self.world.nodes[node_id]
            if not self.world.leads(node):
                continue
            self.requests += 1
            self.world.oracles.on_read_asked(self.requests)
            self.world.to_node(node, node.life, self._serve, self.requests)
        rate = 8.0 if self.world.healed else self.world.faults.propose_rate
        self.world.at(self.world.now + self.world.rng.expovariate(rate), self.ask)

    def _serve(self, node: RaftNode, request_id: int) -> None:
        """A client's read and its commands reach a node; a paused one finds them when it wakes."""
        core = node.core
        assert core is not None
        for _ in range(self.world.rng.choice((1, 1, 3))):
            self.commands += 1
            core.propose(self.commands.to_bytes(8, "big"))
        if not core.read_index(request_id):
            del self.world.oracles.reads_asked[request_id]
        self.world.turn(node)
