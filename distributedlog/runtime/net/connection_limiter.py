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
STRANGERS_MAX = 256
"""In the turn of the handshakes that is two and a half seconds, and a dial is given up after almost five."""
NODES_MAX = 64
OF_ONE_NODE_MAX = 8
HEALTH_MAX = 4
SILENT_S = 8.0
"""A client of ours pings after two seconds of silence, and gives its link up after six."""


@dataclass(slots=True)
class ConnectionLimiter:
    """Of one server with ``connections_max`` descriptors for its peers."""

    connections_max: int
    strangers: dict[Link, str] = field(default_factory=dict)
    """Link to host; the oldest first, as in all of these."""
    nodes: dict[Link, str] = field(default_factory=dict)
    """Link to node id."""
    health: dict[Link, str] = field(default_factory=dict)
    others: dict[Link, str] = field(default_factory=dict)

    @property
    def strangers_max(self) -> int:
        """How many may be there that have not said who they are."""
        return max(1, min(STRANGERS_MAX, self.connections_max // 6))

    @property
    def nodes_max(self) -> int:
        """How many places are kept for nodes."""
        return min(NODES_MAX, self.connections_max // 8)

    @property
    def others_max(self) -> int:
        """How many places there are for everybody."""
        kept = self.strangers_max + self.nodes_max + HEALTH_MAX
        return max(1, self.connections_max - kept)

    @property
    def of_a_host_max(self) -> int:
        """How many of those one address may have."""
        return max(1, self.others_max * 3 // 4)

    def enter(self, link: Link) -> Link | None:
        """A connection has come; the one that gives way to it, if there must be one."""
        self.strangers[link] = host_of(link.peer_address)
        if len(self.strangers) <= self.strangers_max:
            return None
        hosts = list(self.strangers.values())
        most = max(dict.fromkeys(hosts), key=hosts.count)
        of_it = [other for other, host in self.strangers.items() if host == most]
        return self._out(next((each for each in of_it if not each.has_begun), of_it[-1]))

    def greet(
        self, link: Link, hello: Hello, *, node: bool, local: bool, now: float
    ) -> Link | None:
        """A stranger has said who it is; the one that gives way to it. Raises `TooBusy`.

        ``node``: as far as can be told it is a node of this cluster. ``local``: it is on this machine.
        """
        self.strangers.pop(link, None)
        host = host_of(link.peer_address)
        if hello.kind == HEALTH and local:
            self.health[link] = host
            return self._out(next(iter(self.health))) if len(self.health) > HEALTH_MAX else None
        if (
            node
            and len(self.nodes) < self.nodes_max
            and list(self.nodes.values()).count(hello.node_id) < OF_ONE_NODE_MAX
        ):
            self.nodes[link] = hello.node_id
            return None
        of_host = list(self.others.values()).count(host)
        crowded = of_host >= self.of_a_host_max
        if len(self.others) >= self.others_max or crowded:
            among = [each for each, its in self.others.items() if its == host or not crowded]
            silent = min(among, key=lambda each: each.received_at)
            if now - silent.received_at < SILENT_S:
                raise TooBusy(
                    f"{len(self.others)} connections are open here, {of_host} of them from {host};"
                    f" allowed are {self.others_max}, and {self.of_a_host_max} from one address"
                )
            self.others[link] = host
            return self._out(silent)
        self.others[link] = host
        return None

    def _out(self, link: Link) -> Link:
        self.leave(link)
        return link

    def leave(self, link: Link) -> None:
        """A connection has ended."""
        for kind in (self.strangers, self.nodes, self.health, self.others):
            kind.pop(link, None)
