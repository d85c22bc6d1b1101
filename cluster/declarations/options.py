"""What one node is told at its start: frozen values, the same for processes, `dlog local` and sim."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...log.declarations.options import LEASE_S_MAX, LEASE_S_MIN
from ...runtime.declarations.options import check, option
from ...runtime.interfaces.host import Address
from .config import format_address, overlay

WRITE_PROXY, READ_PROXY = "write-proxy", "read-proxy"
PROXIES = (WRITE_PROXY, READ_PROXY)
RATE_BYTES_PER_S = 32 * 1024 * 1024
"""Of copies that a repair makes: a tenth of what one bookie accepts on two cores."""


@dataclass(frozen=True, slots=True)
class MetadataNodeConfig:
    """A node of the metadata quorum."""

    name: str
    """Its own place in ``voters``."""
    voters: Mapping[str, Address]
    """Every node of the quorum, this one included; all nodes must be given the same."""
    listen: Mapping[str, Address] = field(default_factory=dict)
    """Listener name to address; empty: listen where ``voters`` says that we are."""
    advertise: Mapping[str, Address] = field(default_factory=dict)
    """Listener name to the address that others should use; default: the one listened on."""


@dataclass(frozen=True, slots=True)
class BookieNodeConfig:
    """A bookie."""

    name: str
    """For people and logs; the id is random and made with the data directory (H6)."""
    metadata: tuple[Address, ...]
    """Where the metadata quorum is; one address that answers is enough."""
    listen: Mapping[str, Address] = field(default_factory=lambda: {"": ("127.0.0.1", 0)})
    advertise: Mapping[str, Address] = field(default_factory=dict)
    rack: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = option(
        6.0,
        "s",
        "a bookie that is silent for this time is considered failed; it renews the lease three "
        "times per period",
        at_least=LEASE_S_MIN,
        at_most=LEASE_S_MAX,
    )
    metadata_timeout_s: float = option(
        30.0, "s", "a start without a metadata quorum times out after this time"
    )
    repair: bool = option(True, "", "whether this bookie can become the repair leader")
    lost_after_s: float = option(
        300.0,
        "s",
        "the data of a bookie that is unavailable for this time is copied to other bookies",
        at_least=0,
    )
    urgent_after_s: float = option(
        15.0,
        "s",
        "a ledger with one copy left is copied if a bookie is unavailable for this time",
        at_least=0,
    )
    audit_every_s: float = option(
        3600.0, "s", "interval between two checks for unrecorded missing copies"
    )
    surplus_every_s: float = option(
        6 * 3600.0,
        "s",
        "interval between two checks for local copies that no ledger record lists",
        at_least=1,
    )
    repair_bytes_per_s: int = option(
        RATE_BYTES_PER_S, "bytes", "bytes per second that this bookie copies"
    )
    unlinked_s: float = option(
        24 * 3600.0, "s", "a staged ledger that is not linked within this time is deleted"
    )
    purge_grace_s: float = option(
        60.0,
        "s",
        "delay from the truncation of a whole segment to the deletion of its data",
        at_least=0,
    )
    store: Mapping[str, Any] = field(default_factory=dict)
    """Options of its store (bookie/declarations/options.py) that differ from their defaults."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ProxyNodeConfig:
    """A proxy. It has no disk: its id is drawn at each start."""

    name: str
    """For people and logs."""
    kind: str
    """`WRITE_PROXY` or `READ_PROXY`."""
    metadata: tuple[Address, ...]
    """Where the metadata quorum is; one address that answers is enough."""
    listen: Mapping[str, Address] = field(default_factory=lambda: {"": ("127.0.0.1", 0)})
    advertise: Mapping[str, Address] = field(default_factory=dict)
    rack: str = ""
    metadata_timeout_s: float = option(
        30.0, "s", "a start without a metadata quorum times out after this time"
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the proxy itself (distributedlog/proxy/declarations/options.py), of the logs
    (distributedlog/log/declarations/options.py) and of their ledgers
    (ledger/declarations/options.py), that differ from their defaults."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class NodeReady:
    """What a node says when it serves."""

    name: str
    kind: str
    """``metadata``, ``bookie``, ``write-proxy`` or ``read-proxy``."""
    node_id: str
    address: Address
    """Of its first listener, with the port that was given for port 0."""

    def line(self, data: str | None) -> dict[str, Any]:
        """Its ready line, but for the pid. ``data``: its directory."""
        return {
            "name": self.name,
            "kind": self.kind,
            "id": self.node_id,
            "address": format_address(self.address),
            "data": data,
        }


NodeConfig = MetadataNodeConfig | BookieNodeConfig | ProxyNodeConfig


def to_json(config: NodeConfig) -> dict[str, Any]:
    """For a child process."""
    if isinstance(config, ProxyNodeConfig):
        return asdict(config)
    kind = "metadata" if isinstance(config, MetadataNodeConfig) else "bookie"
    return {"kind": kind, **asdict(config)}


def from_json(value: Mapping[str, Any]) -> NodeConfig:
    """The other way round. Raises `InvalidRequest`."""
    values = {key: item for key, item in value.items() if key != "kind"}
    for key in ("voters", "listen", "advertise"):
        if key in values:
            values[key] = {
                name: (host_port[0], int(host_port[1])) for name, host_port in values[key].items()
            }
    if value["kind"] == "metadata":
        return overlay(MetadataNodeConfig, ("the node's start", values))
    values["metadata"] = tuple(
        (host_port[0], int(host_port[1])) for host_port in values["metadata"]
    )
    if value["kind"] in PROXIES:
        return overlay(ProxyNodeConfig, ("the node's start", {**values, "kind": value["kind"]}))
    return overlay(BookieNodeConfig, ("the node's start", values))
