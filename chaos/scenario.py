"""Scenario files: TOML into frozen values, every mistake named with its place.

The same file is played on processes and on containers. docs/chaos.md describes the format for its users;
the tables here are what is accepted.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from ..runtime.errors import InvalidRequest
from .adapter import Capability

Range = tuple[float, float]
"""Drawn evenly from here to there; one number stands for both."""
PACKAGED = Path(__file__).parent / "scenarios"

ONE_NODE = ("bookie", "metadata", "node", "leader", "follower")
MANY_NODES = ("bookies", "quorum", "all")
HOWS = ("flip", "tear", "cut", "remove")
DIRECTIONS = ("both", "in", "out")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, with its bounds."""

    kind: str
    target: str = "node"
    """`ONE_NODE`: one drawn; `MANY_NODES`: all of them at once; else the name of a node or a client kind."""
    hold_s: Range = (1.0, 4.0)
    """How long it lasts; of a kill or a power cut how long the node stays down."""
    delay_s: float = 0.1
    """slow-link"""
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


@dataclass(frozen=True, slots=True)
class Kind:
    """What a fault kind is, and what it needs of the place."""

    about: str
    needs: Capability
    options: tuple[str, ...] = ()
    clients: bool = False
    """Its target is a kind of client, not a node."""
    destroys: bool = False
    """Destroys synced data: only ever of one bookie and one metadata node, the rotten ones."""


KINDS: dict[str, Kind] = {
    "kill": Kind("kill -9, start again", Capability.KILL),
    "restart": Kind("stop cleanly, start again", Capability.KILL),
    "pause": Kind("SIGSTOP for a while", Capability.PAUSE),
    "partition": Kind("cut a node off, silently", Capability.NETWORK, ("direction",)),
    "slow-link": Kind(
        "delay and throttle a node's links", Capability.SLOW_LINK, ("delay_s", "bytes_per_s")
    ),
    "power-cut": Kind("lose what was not synced, start again", Capability.POWER),
    "disk-full": Kind("leave almost no space", Capability.DISK_FULL, ("leave_kb",)),
    "sync-errors": Kind("writes fail at the device, fsync tells", Capability.SYNC_ERRORS),
    "damage": Kind(
        "change bytes of a killed node's files, start it again",
        Capability.DATA,
        ("how", "files", "amount"),
        destroys=True,
    ),
    "clock": Kind("move a node's wall clock", Capability.CLOCK, ("offset_s",)),
    "files-limit": Kind("bound a node's file descriptors", Capability.FILES_LIMIT, ("limit",)),
    "kill-client": Kind("kill -9 of a client, start it again", Capability.KILL, clients=True),
    "pause-client": Kind("SIGSTOP of a client for a while", Capability.PAUSE, clients=True),
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
    "tail": "follows the log, goes on behind an error where it was",
    "catch-up": "reads the whole log from its beginning, again and again",
    "many-logs": "writes to many small logs in turn",
    "registers": "reads and conditionally changes keys of the metadata quorum",
    "truncate": "gives up, now and then, what was written before the last time",
}


@dataclass(frozen=True, slots=True)
class Client:
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
    """catch-up, truncate: between two; duel: how long one keeps the log."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the scenario is played on."""

    bookies: int = 4
    metadata_nodes: int = 3
    disk_mb: int = 256
    """Of a node, where the faults need a file system of its own."""
    own_disks: bool = False
    """File systems of their own also where no fault needs them."""
    store: Mapping[str, Any] = field(default_factory=dict)
    """Options of the bookies' stores."""
    log: Mapping[str, Any] = field(default_factory=dict)
    """Options of the clients' logs."""


@dataclass(frozen=True, slots=True)
class Bounds:
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
    may_stay_down: bool = False
    """A node whose data was damaged may refuse to start."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file."""

    name: str
    seconds: float
    clients: tuple[Client, ...]
    about: str = ""
    loops: tuple[Loop, ...] = ()
    moments: tuple[Moment, ...] = ()
    seed: int = 1
    settle_s: float = 60.0
    """So long after the last fault everything must work again."""
    cluster: Cluster = field(default_factory=Cluster)
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def faults(self) -> list[Fault]:
        """All that it may play."""
        return [fault for loop in self.loops for fault in loop.faults] + [
            moment.fault for moment in self.moments
        ]

    @property
    def needs(self) -> frozenset[Capability]:
        """What it asks of the place that it is played in."""
        return frozenset({KINDS[fault.kind].needs for fault in self.faults} | {Capability.KILL})

    @property
    def logs(self) -> list[str]:
        """The logs that clients write."""
        found: dict[str, None] = {}
        for client in self.clients:
            if client.kind in ("writer", "duel"):
                found[client.log] = None
            elif client.kind == "many-logs":
                found.update({f"{client.log}-{n}": None for n in range(client.logs)})
        return list(found)


def load(path: str) -> Scenario:
    """A scenario by its file, or by the name of a packaged one. Raises `InvalidRequest`."""
    file = Path(path)
    if not file.exists() and (PACKAGED / f"{path}.toml").exists():
        file = PACKAGED / f"{path}.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(packaged())
        raise InvalidRequest(
            f"scenario {path}: {error.strerror}; packaged scenarios are {known}"
        ) from None
    return parse(text, str(file), default_name=file.stem)


def packaged() -> list[str]:
    """The names of the scenarios that come with the package."""
    return sorted(file.stem for file in PACKAGED.glob("*.toml"))


def parse(text: str, where: str, *, default_name: str = "unnamed") -> Scenario:
    """A scenario from its text. Raises `InvalidRequest` that names the place."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{where} is not TOML: {error}") from None
    value.setdefault("name", default_name)
    clients = _tables(value.pop("client", []), f"{where}: [[client]]")
    loops = _tables(value.pop("loop", []), f"{where}: [[loop]]")
    moments = _tables(value.pop("moment", []), f"{where}: [[moment]]")
    cluster = _build(Cluster, value.pop("cluster", {}), f"{where}: [cluster]")
    bounds = _build(Bounds, value.pop("bounds", {}), f"{where}: [bounds]")
    extra = {
        "clients": tuple(_client(one, at) for one, at in clients),
        "loops": tuple(_loop(one, at) for one, at in loops),
        "moments": tuple(_moment(one, at) for one, at in moments),
        "cluster": cluster,
        "bounds": bounds,
    }
    _check_cluster(cluster, where)
    scenario: Scenario = _build(Scenario, value, where, extra)
    if not scenario.clients:
        raise InvalidRequest(f"{where}: a scenario needs at least one [[client]]")
    if not scenario.logs:
        raise InvalidRequest(f"{where}: no client writes: there would be nothing to judge")
    if scenario.seconds <= 0:
        raise InvalidRequest(f"{where}: seconds is {scenario.seconds:g}, wanted is more than 0")
    for moment in scenario.moments:
        if moment.at_s >= scenario.seconds:
            raise InvalidRequest(
                f"{where}: [[moment]] at {moment.at_s:g} s, and the scenario ends at"
                f" {scenario.seconds:g} s"
            )
    kinds = {client.kind for client in scenario.clients}
    for fault in scenario.faults:
        if KINDS[fault.kind].clients and fault.target not in kinds:
            raise InvalidRequest(
                f"{where}: {fault.kind} of {fault.target!r}, and no [[client]] is of that kind"
            )
    return scenario


def _check_cluster(cluster: Cluster, where: str) -> None:
    if cluster.metadata_nodes not in (1, 3, 5):
        raise InvalidRequest(f"{where}: metadata_nodes is {cluster.metadata_nodes}, wanted 1, 3, 5")
    if not 1 <= cluster.bookies <= 20:
        raise InvalidRequest(f"{where}: bookies is {cluster.bookies}, wanted is 1 to 20")


def _client(value: Mapping[str, Any], where: str) -> Client:
    client: Client = _build(Client, value, where)
    _one_of(client.kind, CLIENT_KINDS, f"{where}: kind")
    if client.count < 1 or client.rate <= 0 or not 20 <= client.payload_bytes <= 1_000_000:
        raise InvalidRequest(
            f"{where}: count must be 1 or more, rate more than 0, payload_bytes 20 to 1,000,000"
        )
    return client


def _loop(value: Mapping[str, Any], where: str) -> Loop:
    rest = dict(value)
    faults = _tables(rest.pop("fault", []), f"{where} [[loop.fault]]")
    if not faults:
        raise InvalidRequest(f"{where}: a loop needs at least one [[loop.fault]]")
    loop: Loop = _build(Loop, rest, where, {"faults": tuple(_fault(one, at) for one, at in faults)})
    return loop


def _moment(value: Mapping[str, Any], where: str) -> Moment:
    rest = dict(value)
    if "at_s" not in rest:
        raise InvalidRequest(f"{where}: at_s is missing")
    at_s = _as(rest.pop("at_s"), float, f"{where}: at_s")
    return Moment(at_s, _fault(rest, where))


def _fault(value: Mapping[str, Any], where: str) -> Fault:
    fault: Fault = _build(Fault, value, where)
    _one_of(fault.kind, KINDS, f"{where}: kind")
    kind = KINDS[fault.kind]
    for key in value:
        if key not in ("kind", "target", "hold_s", *kind.options):
            known = ", ".join(("target", "hold_s", *kind.options))
            raise InvalidRequest(f"{where}: {fault.kind} has no {key}; known are {known}")
    _one_of(fault.direction, DIRECTIONS, f"{where}: direction")
    _one_of(fault.how, HOWS, f"{where}: how")
    if kind.clients:
        _one_of(fault.target, CLIENT_KINDS, f"{where}: target")
    if kind.destroys and fault.target not in ("bookie", "metadata"):
        raise InvalidRequest(
            f'{where}: {fault.kind} destroys data: its target is "bookie" or "metadata"'
            " (one of each, drawn once a run), so that a good copy stays"
        )
    return fault


def _tables(value: Any, where: str) -> list[tuple[Mapping[str, Any], str]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidRequest(f"{where} must be written with two brackets, a table each")
    return [(one, f"{where} {number}") for number, one in enumerate(value, 1)]


def _one_of(value: str, known: Any, where: str) -> None:
    if value not in known:
        raise InvalidRequest(f"{where} is {value!r}; known are {', '.join(known)}")


def _build(cls: Any, value: Any, where: str, extra: Mapping[str, Any] | None = None) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where} is {value!r}, wanted is a table")
    hints = get_type_hints(cls)
    known = {one.name: one for one in fields(cls)}
    found = dict(extra or {})
    for key, item in value.items():
        if key not in known or key in (extra or {}):
            names = ", ".join(name for name in known if name not in (extra or {}))
            raise InvalidRequest(f"{where}: there is no {key}; known are {names}")
        found[key] = _as(item, hints[key], f"{where}: {key}")
    for name, one in known.items():
        if name not in found and one.default is MISSING and one.default_factory is MISSING:
            raise InvalidRequest(f"{where}: {name} is missing")
    return cls(**found)


def _as(value: Any, kind: Any, where: str) -> Any:
    if kind == Range:
        pair = value if isinstance(value, list) else [value, value]
        if len(pair) != 2 or not all(_is_number(one) for one in pair) or pair[0] > pair[1]:
            raise InvalidRequest(f"{where} is {value!r}, wanted is a number, or [low, high]")
        return float(pair[0]), float(pair[1])
    if kind is float and _is_number(value):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind == Mapping[str, Any] and isinstance(value, dict):
        return value
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    raise InvalidRequest(f"{where} is {value!r}, wanted is {words.get(kind, 'a table')}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
