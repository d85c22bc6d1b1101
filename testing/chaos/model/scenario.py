"""What a scenario says, as frozen values: clients, faults, loops, bounds.

The same scenario runs on processes and on containers. docs/operate/chaos.md describes the file,
and scenario_file.py reads it. The tables here define the accepted values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .adapter import STORING, Capability, NodeRole

Range = tuple[float, float]
"""Drawn evenly from here to there; one number stands for both."""

ONE_NODE = (*(role.value for role in NodeRole), "node", "leader", "follower")
MANY_NODES = ("bookies", "quorum", "all")
HOWS = ("flip", "tear", "cut", "remove")
DIRECTIONS = ("both", "in", "out")
CERTIFICATE_DAYS = 365


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, with its bounds."""

    kind: str
    target: str = "node"
    """`ONE_NODE`: one drawn; `MANY_NODES`: all of them at once; else the name of a node or a client kind."""
    hold_s: Range = (1.0, 4.0)
    """How long it lasts; of a kill or a power cut how long the node stays down."""
    delay_s: float = 0.1
    """slow-link; slow-disk"""
    bytes_per_s: float = 0.0
    """slow-link; 0: no bound"""
    direction: str = "both"
    """partition: what the target hears (in), says (out), or both"""
    leave_kb: int = 64
    """disk-full"""
    how: str = "flip"
    """damage: flip bits, tear (overwrite a stretch), cut (shorten the file), remove (the file)"""
    files: str = "**/*"
    """damage: which files of the data directory"""
    amount: int = 8
    """damage: bits to flip, or bytes to tear or cut; of all files together"""
    offset_s: Range = (-3600.0, 3600.0)
    """clock"""
    limit: int = 64
    """files-limit: descriptors"""
    per_s: float = 50.0
    """strangers: connections a second"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """settings: what it is started with beside its own"""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """What a fault kind is, and what it needs of the place."""

    about: str
    capability: Capability
    options: tuple[str, ...] = ()
    targets_clients: bool = False
    """Its target is a kind of client, not a node."""
    destroys_data: bool = False
    """Destroys synced data: only ever of one bookie and one metadata node, the rotten ones."""
    roles: tuple[NodeRole, ...] = tuple(NodeRole)
    """Whom it can meet."""


KINDS: dict[str, FaultKind] = {
    "kill": FaultKind("kill -9, start again", Capability.KILL),
    "restart": FaultKind("stop cleanly, start again", Capability.KILL),
    "pause": FaultKind("SIGSTOP for a while", Capability.PAUSE),
    "partition": FaultKind("cut a node off, silently", Capability.NETWORK, ("direction",)),
    "slow-link": FaultKind(
        "delay and throttle a node's links", Capability.SLOW_LINK, ("delay_s", "bytes_per_s")
    ),
    "power-cut": FaultKind(
        "lose what was not synced, start again", Capability.POWER, roles=STORING
    ),
    "disk-full": FaultKind(
        "leave almost no space", Capability.DISK_FULL, ("leave_kb",), roles=STORING
    ),
    "sync-errors": FaultKind(
        "writes fail at the device, fsync tells", Capability.SYNC_ERRORS, roles=STORING
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
        "a bit of the same bytes flips on all bookies: more than is promised to be survived",
        Capability.DATA,
        ("files",),
        roles=(NodeRole.BOOKIE,),
    ),
    "clock": FaultKind("move a node's wall clock", Capability.CLOCK, ("offset_s",)),
    "files-limit": FaultKind("bound a node's file descriptors", Capability.FILES_LIMIT, ("limit",)),
    "strangers": FaultKind(
        "somebody who speaks something else knocks at a node's port",
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
        "a bit flips in what a metadata node keeps in memory; later it is started again",
        Capability.MEMORY,
        roles=(NodeRole.METADATA,),
    ),
    "run-client": FaultKind(
        "a client that waits works for a while", Capability.KILL, targets_clients=True
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
    """One source of faults, independent of the others: pause, draw one, play it, again."""

    name: str
    faults: tuple[Fault, ...]
    pause_s: Range = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault at its time."""

    at_s: float
    fault: Fault


CLIENT_KINDS = {
    "writer": "writes at a rate; opens the log anew, taking it over, when its writer ends",
    "duel": "several of them: each takes the log over for a while, and loses it to the next",
    "tail": "follows the log, goes on where it was after an error",
    "catch-up": "reads the whole log from its beginning, again and again",
    "many-logs": "writes to many small logs in turn",
    "registers": "reads and conditionally changes keys of the metadata quorum",
    "truncate": "gives up, now and then, what was written before the last time",
    "stranger": "has no right, and tries to read and to write",
    "poster": "posts records to the gateways, each again until it is answered",
}
THROUGH_PROXIES = ("writer", "many-logs", "tail", "catch-up")
"""Clients that may go through proxies; of a log that has one writer at a time, as they judge it."""


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """Processes that use the cluster."""

    kind: str
    count: int = 1
    """Processes."""
    log: str = "story"
    rate: float = 1000.0
    """Records/s of a process, or calls/s of registers."""
    payload_bytes: int = 100
    logs: int = 50
    """many-logs: how many."""
    keys: int = 4
    """registers: how many."""
    pause_s: Range = (5.0, 15.0)
    """catch-up, truncate, stranger: between two; duel: how long one keeps the log."""
    through: str = ""
    """``proxies``, or nothing: the nodes themselves."""
    waits: bool = False
    """It works while a fault ``run-client`` lasts, and else not."""


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
"""Of the clients, where rights are judged. Those of registers are keys that nobody may have then."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Rights go from open to report, required, report and open again, round after round, with no start."""

    hold_s: Range = (4.0, 8.0)
    """How long each of them lasts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the scenario is played on."""

    bookies: int = 4
    metadata_nodes: int = 3
    disk_mb: int = 256
    """Of a node, where the faults need a file system of its own."""
    store: Mapping[str, Any] = field(default_factory=dict)
    """Options of the bookies' stores."""
    log: Mapping[str, Any] = field(default_factory=dict)
    """Options of the clients' logs."""
    write_proxies: int = 0
    read_proxies: int = 0
    gateways: int = 0
    """Over the proxies, where there are write proxies."""
    gateway: Mapping[str, Any] = field(default_factory=dict)
    """Options of the gateways."""
    certificate_days: int = 0
    """Nodes and clients show certificates that are good for so long; 0: nobody has one."""

    @property
    def counts(self) -> dict[NodeRole, int]:
        """How many nodes of each kind."""
        return {
            NodeRole.METADATA: self.metadata_nodes,
            NodeRole.BOOKIE: self.bookies,
            NodeRole.WRITE_PROXY: self.write_proxies,
            NodeRole.READ_PROXY: self.read_proxies,
            NodeRole.GATEWAY: self.gateways,
        }

    @property
    def names(self) -> dict[str, NodeRole]:
        """Of the nodes, as every adapter names them."""
        return {
            f"{role.value}{number + 1}": role
            for role, count in self.counts.items()
            for number in range(count)
        }

    @property
    def capabilities_by_feature(self) -> dict[str, Capability]:
        """What it asks of the place, by what it is called."""
        features = {
            "proxies": (self.write_proxies + self.read_proxies, Capability.PROXIES),
            "gateways": (self.gateways, Capability.GATEWAYS),
            "certificates": (self.certificate_days, Capability.CERTIFICATES),
        }
        return {name: capability for name, (count, capability) in features.items() if count}


@dataclass(frozen=True, slots=True)
class AcceptanceLimits:
    """What makes a run count, and what it must keep."""

    acked_min: int = 1000
    """Fewer acknowledged records: VOID."""
    acked_per_s_min: float = 100.0
    """A lower mean rate: VOID (etcd's bound)."""
    faults_min: int = 1
    """Fewer faults: VOID."""
    gap_max_s: float = 0.0
    """A longer time without an acknowledged write: FAIL. 0: reported only."""
    bookies_down_max: int = 1
    """At once, but for faults on all of them: ack quorum - 1 keeps the promise of writing on."""
    metadata_down_max: int = 1
    rounds_min: int = 0
    """With ``[walk]``: rights went to required and back fewer times, or nobody was tried: VOID."""
    may_stay_down: bool = False
    """A node whose data was damaged may refuse to start."""


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
    """So long after the last fault everything must work again."""
    cluster: Cluster = field(default_factory=Cluster)
    walk: Walk | None = None
    """Nodes and clients have certificates, and rights are judged now and then."""
    bounds: AcceptanceLimits = field(default_factory=AcceptanceLimits)

    @property
    def faults(self) -> list[Fault]:
        """All that it may play."""
        return [fault for loop in self.loops for fault in loop.faults] + [
            moment.fault for moment in self.moments
        ]

    @property
    def capabilities_by_name(self) -> dict[str, Capability]:
        """What it asks of the place that it is played in, by the names of faults and of nodes."""
        faults = {fault.kind: KINDS[fault.kind].capability for fault in self.faults}
        walk = {} if self.walk is None else {"walk": Capability.CERTIFICATES}
        return {**dict(sorted(faults.items())), **self.cluster.capabilities_by_feature, **walk}

    @property
    def certificate_days(self) -> int:
        """How long certificates are good; 0: nobody has one."""
        return self.cluster.certificate_days or (0 if self.walk is None else CERTIFICATE_DAYS)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The same without names."""
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
