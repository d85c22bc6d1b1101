"""A scenario as frozen values: clients, faults, loops and limits.

The same scenario runs on processes and on containers. docs/operate/chaos.md describes the file, and
scenario_file.py reads it. The tables here define the accepted values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .adapter import STORING, Capability, NodeRole

Range = tuple[float, float]
"""A range of uniformly distributed random values. In the file, one number stands for both limits."""

ONE_NODE = (*(role.value for role in NodeRole), "node", "leader", "follower")
MANY_NODES = ("bookies", "quorum", "all")
HOWS = ("flip", "tear", "cut", "remove")
DIRECTIONS = ("both", "in", "out")
CERTIFICATE_DAYS = 365


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, with its parameters."""

    kind: str
    target: str = "node"
    """A random node for `ONE_NODE`, all nodes at once for `MANY_NODES`, or a node or client kind by name."""
    hold_s: Range = (1.0, 4.0)
    """The duration of the fault. For a kill or a power failure, it is the time until the restart."""
    delay_s: float = 0.1
    """For slow-link and slow-disk."""
    bytes_per_s: float = 0.0
    """For slow-link; 0 for no limit."""
    direction: str = "both"
    """For partition: data to the target (in), from it (out), or both."""
    leave_kb: int = 64
    """For disk-full."""
    how: str = "flip"
    """For damage: flip bits, tear (overwrite a range), cut (shorten) or remove the file."""
    files: str = "**/*"
    """For damage: the files of the data directory."""
    amount: int = 8
    """For damage: the number of bits to flip, or of bytes to tear or cut, over all files."""
    offset_s: Range = (-3600.0, 3600.0)
    """For clock."""
    limit: int = 64
    """For files-limit: descriptors."""
    per_s: float = 50.0
    """For strangers: connections per second."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For settings: additional settings of the node."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """The description of a fault kind, and the capability that it requires."""

    about: str
    capability: Capability
    options: tuple[str, ...] = ()
    targets_clients: bool = False
    """The target is a kind of client, not a node."""
    destroys_data: bool = False
    """Destroys synced data. Only one bookie and one metadata node of a run are targets."""
    roles: tuple[NodeRole, ...] = tuple(NodeRole)
    """The possible roles of the target."""


KINDS: dict[str, FaultKind] = {
    "kill": FaultKind("kill -9, start again", Capability.KILL),
    "restart": FaultKind("stop cleanly, start again", Capability.KILL),
    "pause": FaultKind("SIGSTOP for a while", Capability.PAUSE),
    "partition": FaultKind("cut a node off, silently", Capability.NETWORK, ("direction",)),
    "slow-link": FaultKind(
        "delay and throttle a node's links", Capability.SLOW_LINK, ("delay_s", "bytes_per_s")
    ),
    "power-cut": FaultKind("lose unsynced data, start again", Capability.POWER, roles=STORING),
    "disk-full": FaultKind(
        "leave almost no space", Capability.DISK_FULL, ("leave_kb",), roles=STORING
    ),
    "sync-errors": FaultKind(
        "writes fail at the device, fsync reports it", Capability.SYNC_ERRORS, roles=STORING
    ),
    "slow-disk": FaultKind(
        "each write and sync waits", Capability.SLOW_DISK, ("delay_s",), roles=STORING
    ),
    "damage": FaultKind(
        "change bytes of a killed node's files, start it again",
        Capability.DATA,
        ("how", "files", "amount"),
        destroys_data=True,
        roles=STORING,
    ),
    "rot-everywhere": FaultKind(
        "a bit of the same bytes flips on all bookies, which exceeds the guarantees",
        Capability.DATA,
        ("files",),
        roles=(NodeRole.BOOKIE,),
    ),
    "clock": FaultKind("move a node's wall clock", Capability.CLOCK, ("offset_s",)),
    "files-limit": FaultKind("limit a node's file descriptors", Capability.FILES_LIMIT, ("limit",)),
    "strangers": FaultKind(
        "unauthenticated clients of another protocol connect to a node's port",
        Capability.STRANGERS,
        ("per_s",),
        roles=(*STORING, NodeRole.WRITE_PROXY, NodeRole.READ_PROXY),
    ),
    "settings": FaultKind(
        "stop cleanly, start with other settings; later with its own again",
        Capability.SETTINGS,
        ("settings",),
        roles=tuple(role for role in NodeRole if role is not NodeRole.METADATA),
    ),
    "wrong-memory": FaultKind(
        "a bit flips in the memory of a metadata node, which is later restarted",
        Capability.MEMORY,
        roles=(NodeRole.METADATA,),
    ),
    "run-client": FaultKind(
        "a waiting client works for a while", Capability.KILL, targets_clients=True
    ),
    "kill-client": FaultKind(
        "kill -9 of a client, start it again", Capability.KILL, targets_clients=True
    ),
    "pause-client": FaultKind(
        "SIGSTOP of a client for a while", Capability.PAUSE, targets_clients=True
    ),
}


@dataclass(frozen=True, slots=True)
class Loop:
    """One source of faults. It pauses, selects a random fault, runs it, and repeats."""

    name: str
    faults: tuple[Fault, ...]
    pause_s: Range = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault at a given time."""

    at_s: float
    fault: Fault


CLIENT_KINDS = {
    "writer": "writes at a rate; takes the log over again when its writer ends",
    "duel": "several of them: each takes the log over for a while, until the next one does",
    "tail": "tails the log, and continues at its position after an error",
    "catch-up": "reads the whole log from its beginning, repeatedly",
    "many-logs": "writes to many small logs in turn",
    "registers": "reads and conditionally changes keys of the metadata quorum",
    "truncate": "truncates the log from time to time to its previous end",
    "stranger": "is not authorized, and tries to read and to write",
    "poster": "posts records to the gateways, and repeats each request until it is answered",
}
THROUGH_PROXIES = ("writer", "many-logs", "tail", "catch-up")
"""Clients that may use proxies. They must not require a log with one writer at a time."""


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """Processes that use the cluster."""

    kind: str
    count: int = 1
    """The number of processes."""
    log: str = "story"
    rate: float = 1000.0
    """Records/s of a process, or calls/s on registers."""
    payload_bytes: int = 100
    logs: int = 50
    """For many-logs: the number of logs."""
    keys: int = 4
    """For registers: the number of keys."""
    pause_s: Range = (5.0, 15.0)
    """For catch-up, truncate, stranger: the pause between two operations. For duel: the time of ownership."""
    through: str = ""
    """``proxies``, or empty for direct access to the nodes."""
    waits: bool = False
    """Whether it works only while a fault ``run-client`` lasts."""


WRITERS = ("writer", "duel", "poster", "many-logs")
"""Clients whose acknowledged records count."""
ROLES = {
    "writer": "owner",
    "duel": "owner",
    "many-logs": "owner",
    "truncate": "owner",
    "finish": "owner",
    "tail": "reader",
    "catch-up": "reader",
    "stranger": "",
}
"""The roles of the clients in mode ``required``.

Clients of registers cannot run then, because no user may have these keys.
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """Changes of the authorization mode from open to report, required, report and open, in rounds.

    No node is restarted for a change.
    """

    hold_s: Range = (4.0, 8.0)
    """How long each mode lasts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of the scenario."""

    bookies: int = 4
    metadata_nodes: int = 3
    disk_mb: int = 256
    """The disk of a node, if the faults require separate file systems."""
    store: Mapping[str, Any] = field(default_factory=dict)
    """Options of the bookies' stores."""
    log: Mapping[str, Any] = field(default_factory=dict)
    """Options of the clients' logs."""
    write_proxies: int = 0
    read_proxies: int = 0
    gateways: int = 0
    """Gateways use the proxies, if there are write proxies."""
    gateway: Mapping[str, Any] = field(default_factory=dict)
    """Options of the gateways."""
    certificate_days: int = 0
    """The validity of the certificates of nodes and clients; 0 for no certificates."""

    @property
    def counts(self) -> dict[NodeRole, int]:
        """The number of nodes of each role."""
        return {
            NodeRole.METADATA: self.metadata_nodes,
            NodeRole.BOOKIE: self.bookies,
            NodeRole.WRITE_PROXY: self.write_proxies,
            NodeRole.READ_PROXY: self.read_proxies,
            NodeRole.GATEWAY: self.gateways,
        }

    @property
    def names(self) -> dict[str, NodeRole]:
        """The names of the nodes with every adapter, and their roles."""
        return {
            f"{role.value}{number + 1}": role
            for role, count in self.counts.items()
            for number in range(count)
        }

    @property
    def capabilities_by_feature(self) -> dict[str, Capability]:
        """The capabilities that the cluster requires, by the name of the feature."""
        features = {
            "proxies": (self.write_proxies + self.read_proxies, Capability.PROXIES),
            "gateways": (self.gateways, Capability.GATEWAYS),
            "certificates": (self.certificate_days, Capability.CERTIFICATES),
        }
        return {name: capability for name, (count, capability) in features.items() if count}


@dataclass(frozen=True, slots=True)
class AcceptanceLimits:
    """Limits for the result of a run."""

    acked_min: int = 1000
    """Fewer acknowledged records: VOID."""
    acked_per_s_min: float = 100.0
    """A lower mean rate: VOID (the limit of etcd)."""
    faults_min: int = 1
    """Fewer faults: VOID."""
    gap_max_s: float = 0.0
    """A longer time without an acknowledged write: FAIL. With 0 it is only reported."""
    bookies_down_max: int = 1
    """Bookies that are down at once, except by faults on all of them.

    Up to ack quorum - 1, writes continue.
    """
    metadata_down_max: int = 1
    rounds_min: int = 0
    """For ``[walk]``. Fewer changes to required and back, or no attempts without authorization: VOID."""
    may_stay_down: bool = False
    """A node with damaged data may refuse to start."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file."""

    name: str
    seconds: float
    clients: tuple[ClientSpec, ...]
    about: str = ""
    loops: tuple[Loop, ...] = ()
    moments: tuple[Moment, ...] = ()
    seed: int = 1
    settle_s: float = 60.0
    """Within this time after the last fault, everything must work again."""
    cluster: Cluster = field(default_factory=Cluster)
    walk: Walk | None = None
    """Nodes and clients have certificates, and the authorization mode changes."""
    bounds: AcceptanceLimits = field(default_factory=AcceptanceLimits)

    @property
    def faults(self) -> list[Fault]:
        """All faults of the scenario."""
        return [fault for loop in self.loops for fault in loop.faults] + [
            moment.fault for moment in self.moments
        ]

    @property
    def capabilities_by_name(self) -> dict[str, Capability]:
        """The capabilities that the scenario requires, by the names of faults and features."""
        faults = {fault.kind: KINDS[fault.kind].capability for fault in self.faults}
        walk = {} if self.walk is None else {"walk": Capability.CERTIFICATES}
        return {**dict(sorted(faults.items())), **self.cluster.capabilities_by_feature, **walk}

    @property
    def certificate_days(self) -> int:
        """The validity of certificates in days; 0 for no certificates."""
        return self.cluster.certificate_days or (0 if self.walk is None else CERTIFICATE_DAYS)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities without names."""
        return frozenset({*self.capabilities_by_name.values(), Capability.KILL})

    @property
    def logs(self) -> list[str]:
        """The logs that clients write."""
        log_names: dict[str, None] = {}
        for client in self.clients:
            if client.kind == "many-logs":
                log_names.update({f"{client.log}-{n}": None for n in range(client.logs)})
            elif client.kind in WRITERS:
                log_names[client.log] = None
        return list(log_names)
