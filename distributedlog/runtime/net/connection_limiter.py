"""Who has a place among the connections of a server, and who gives his up: arithmetic, no waiting.

A descriptor is a place. Places are kept apart, so that no kind of peer can lock out another one:

- strangers, who have not said yet who they are: when all are taken the address that has most gives up its
  oldest. Whoever speaks at once is through before that; whoever is silent makes room. Those that have begun
  a handshake have a place in its turn: where all of that address have, its newest goes, and comes again. In
  the other order none of a crowd would wait for as long as its turn takes (H224). Who had its turn and does
  not answer is as one who is silent: else a byte would be a place.
- nodes of this cluster, and the questions of this machine about its own health: places that others do not
  get. They may take others' besides.
- all others: three quarters of them an address at most; when there are none, a connection that has been
  silent for longer than a client of ours ever is gives way, else the newcomer is told to come again.
"""

from dataclasses import dataclass, field

from ..interfaces.errors import TooBusy
from ..protocol.handshake import Hello
from .link import Link
from .rejection_log import host_of

HEALTH = "health"
"""The kind in the HELLO of one who asks after this node's health from its own machine."""
NODE_KINDS = ("metadata", "bookie", "write-proxy", "read-proxy")
UNAUTHENTICATED_MAX = 256
"""In the turn of the handshakes that is two and a half seconds, and a dial is given up after almost five."""
NODES_MAX = 64
CONNECTIONS_PER_NODE_MAX = 8
HEALTH_MAX = 4
IDLE_S_MIN = 8.0
"""A client of ours pings after two seconds of silence, and gives its link up after six."""


@dataclass(slots=True)
class ConnectionLimiter:
    """Of one server with ``connections_max`` descriptors for its peers."""

    connections_max: int
    unauthenticated: dict[Link, str] = field(default_factory=dict)
    """Link to host; the oldest first, as in all of these."""
    nodes: dict[Link, str] = field(default_factory=dict)
    """Link to node id."""
    health: dict[Link, str] = field(default_factory=dict)
    others: dict[Link, str] = field(default_factory=dict)

    @property
    def unauthenticated_max(self) -> int:
        """How many may be there that have not said who they are."""
        return max(1, min(UNAUTHENTICATED_MAX, self.connections_max // 6))

    @property
    def nodes_max(self) -> int:
        """How many places are kept for nodes."""
        return min(NODES_MAX, self.connections_max // 8)

    @property
    def others_max(self) -> int:
        """How many places there are for everybody."""
        reserved = self.unauthenticated_max + self.nodes_max + HEALTH_MAX
        return max(1, self.connections_max - reserved)

    @property
    def per_host_max(self) -> int:
        """How many of those one address may have."""
        return max(1, self.others_max * 3 // 4)

    def admit(self, link: Link) -> Link | None:
        """A connection has come; the one that gives way to it, if there must be one."""
        self.unauthenticated[link] = host_of(link.peer_address)
        if len(self.unauthenticated) <= self.unauthenticated_max:
            return None
        hosts = list(self.unauthenticated.values())
        busiest_host = max(dict.fromkeys(hosts), key=hosts.count)
        host_links = [other for other, host in self.unauthenticated.items() if host == busiest_host]
        return self._evict(
            next((candidate for candidate in host_links if not candidate.has_begun), host_links[-1])
        )

    def classify(
        self, link: Link, hello: Hello, *, is_node: bool, is_local: bool, now: float
    ) -> Link | None:
        """A stranger has said who it is; the one that gives way to it. Raises `TooBusy`.

        ``node``: as far as can be told it is a node of this cluster. ``local``: it is on this machine.
        """
        self.unauthenticated.pop(link, None)
        host = host_of(link.peer_address)
        if hello.kind == HEALTH and is_local:
            self.health[link] = host
            return self._evict(next(iter(self.health))) if len(self.health) > HEALTH_MAX else None
        if (
            is_node
            and len(self.nodes) < self.nodes_max
            and list(self.nodes.values()).count(hello.node_id) < CONNECTIONS_PER_NODE_MAX
        ):
            self.nodes[link] = hello.node_id
            return None
        host_connections = list(self.others.values()).count(host)
        host_is_full = host_connections >= self.per_host_max
        if len(self.others) >= self.others_max or host_is_full:
            candidates = [
                candidate
                for candidate, other_host in self.others.items()
                if other_host == host or not host_is_full
            ]
            idlest = min(candidates, key=lambda candidate: candidate.received_at)
            if now - idlest.received_at < IDLE_S_MIN:
                raise TooBusy(
                    f"{len(self.others)} connections are open here, {host_connections} of them from {host};"
                    f" allowed are {self.others_max}, and {self.per_host_max} from one address"
                )
            self.others[link] = host
            return self._evict(idlest)
        self.others[link] = host
        return None

    def _evict(self, link: Link) -> Link:
        self.release(link)
        return link

    def release(self, link: Link) -> None:
        """A connection has ended."""
        for links in (self.unauthenticated, self.nodes, self.health, self.others):
            links.pop(link, None)
