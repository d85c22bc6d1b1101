"""Assign connection slots of a server to classes of peers, and choose the connections to evict.

Each connection uses one descriptor, which is one slot. Each class of peers has its own slots, so that no
class can lock out another one. This module computes only; nothing in it waits.

- Unauthenticated peers, which have not sent their HELLO. If all these slots are in use, the address with most
  of them loses its oldest connection. A peer that sends its HELLO at once leaves this class before that.
- Unauthenticated peers in a TLS handshake. A connection that has begun a TLS handshake keeps its slot until
  its turn (`HandshakeLimiter`). If all connections of the address have begun one, the newest is evicted, and
  its client dials again. Evicting the oldest would mean that no client of a crowd waits long enough for its
  turn (H224). A peer that had its turn and does not answer counts as silent. Otherwise, one byte would
  reserve a slot.
- Nodes of this cluster, and health checks from this machine, have reserved slots. Further nodes use the slots
  of other peers.
- All other peers: one address can use three quarters of these slots. If the slots are full, a connection is
  evicted that has been silent for longer than a client of this system ever is. If there is none, the new peer
  is rejected with `TooBusy` and retries later.
"""

from dataclasses import dataclass, field

from ..interfaces.errors import TooBusy
from ..protocol.handshake import Hello
from .link import Link
from .rejection_log import host_of

HEALTH = "health"
"""The kind in the HELLO of a health check from the node's own machine."""
NODE_KINDS = ("metadata", "bookie", "write-proxy", "read-proxy")
UNAUTHENTICATED_MAX = 256
"""At `HANDSHAKES_PER_S`, these take about 2.5 s. A dial times out after almost 5 s."""
NODES_MAX = 64
CONNECTIONS_PER_NODE_MAX = 8
HEALTH_MAX = 4
IDLE_S_MIN = 8.0
"""Clients of this system send a ping after 2 s of silence, and close a silent link after 6 s."""


@dataclass(slots=True)
class ConnectionLimiter:
    """The connection slots of one server.

    ``connections_max`` is the number of descriptors for its peers.
    """

    connections_max: int
    unauthenticated: dict[Link, str] = field(default_factory=dict)
    """Link to host, the oldest first. All of these dictionaries have this order."""
    nodes: dict[Link, str] = field(default_factory=dict)
    """Link to node ID."""
    health: dict[Link, str] = field(default_factory=dict)
    others: dict[Link, str] = field(default_factory=dict)

    @property
    def unauthenticated_max(self) -> int:
        """The number of slots for unauthenticated peers."""
        return max(1, min(UNAUTHENTICATED_MAX, self.connections_max // 6))

    @property
    def nodes_max(self) -> int:
        """The number of slots that are reserved for nodes."""
        return min(NODES_MAX, self.connections_max // 8)

    @property
    def others_max(self) -> int:
        """The number of slots for all other peers."""
        reserved = self.unauthenticated_max + self.nodes_max + HEALTH_MAX
        return max(1, self.connections_max - reserved)

    @property
    def per_host_max(self) -> int:
        """The number of slots among `others_max` that one address can use."""
        return max(1, self.others_max * 3 // 4)

    def admit(self, link: Link) -> Link | None:
        """Give a new connection an unauthenticated slot.

        Returns:
            The link to evict, or None. The caller closes it.
        """
        self.unauthenticated[link] = host_of(link.peer_address)
        if len(self.unauthenticated) <= self.unauthenticated_max:
            return None
        hosts = list(self.unauthenticated.values())
        busiest_host = max(dict.fromkeys(hosts), key=hosts.count)
        host_links = [other for other, host in self.unauthenticated.items() if host == busiest_host]
        return self._evict(
            next(
                (candidate for candidate in host_links if not candidate.has_begun_handshake),
                host_links[-1],
            )
        )

    def classify(
        self, link: Link, hello: Hello, *, is_node: bool, is_local: bool, now: float
    ) -> Link | None:
        """Move a link to the class of its peer after the HELLO.

        Args:
            is_node: Whether the peer is a node of this cluster, as far as this can be determined now.
            is_local: Whether the peer is on this machine.

        Returns:
            The link to evict, or None. The caller closes it.

        Raises:
            TooBusy: All slots are in use, and no link in them has been silent for `IDLE_S_MIN`.
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
                    f" the limit is {self.others_max}, and {self.per_host_max} from one address"
                )
            self.others[link] = host
            return self._evict(idlest)
        self.others[link] = host
        return None

    def _evict(self, link: Link) -> Link:
        self.release(link)
        return link

    def release(self, link: Link) -> None:
        """Free the slot of a link that ended."""
        for links in (self.unauthenticated, self.nodes, self.health, self.others):
            links.pop(link, None)
