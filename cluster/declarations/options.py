"""The configuration of one node: frozen values, the same for processes, `dlog local` and the simulator."""

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
"""The copy rate of a repair: a tenth of the rate that one bookie accepts on two cores."""


@dataclass(frozen=True, slots=True)
class MetadataNodeConfig:
    """The configuration of a node of the metadata quorum."""

    name: str
    """Its key in ``voters``."""
    voters: Mapping[str, Address]
    """All nodes of the quorum, including this one. The list must be the same on all nodes."""
    listen: Mapping[str, Address] = field(default_factory=dict)
    """The addresses to listen on, by listener name.

    If empty, the node listens on its address in ``voters``.
    """
    advertise: Mapping[str, Address] = field(default_factory=dict)
    """The addresses that other nodes use, by listener name.

    The default is the address that the node listens on.
    """


@dataclass(frozen=True, slots=True)
class BookieNodeConfig:
    """The configuration of a bookie."""

    name: str
    """For people and logs. The ID is random, and is created with the data directory (H6)."""
    metadata: tuple[Address, ...]
    """Addresses of the metadata quorum. One address that answers is sufficient."""
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
    """Options of its store (`bookie/declarations/options.py`) that differ from their defaults."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ProxyNodeConfig:
    """The configuration of a proxy. It has no disk, and a random ID is generated at each start."""

    name: str
    """For people and logs."""
    kind: str
    """`WRITE_PROXY` or `READ_PROXY`."""
    metadata: tuple[Address, ...]
    """Addresses of the metadata quorum. One address that answers is sufficient."""
    listen: Mapping[str, Address] = field(default_factory=lambda: {"": ("127.0.0.1", 0)})
    advertise: Mapping[str, Address] = field(default_factory=dict)
    rack: str = ""
    metadata_timeout_s: float = option(
        30.0, "s", "a start without a metadata quorum times out after this time"
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that differ from their defaults.

    They are options of the proxy itself (`distributedlog/proxy/declarations/options.py`), of logs
    (`distributedlog/log/declarations/options.py`), and of ledgers (`ledger/declarations/options.py`).
    """

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class NodeReady:
    """The report of a node that serves."""

    name: str
    kind: str
    """``metadata``, ``bookie``, ``write-proxy`` or ``read-proxy``."""
    node_id: str
    address: Address
    """The address of its first listener, with the actual port if port 0 was requested."""

    def line(self, data: str | None) -> dict[str, Any]:
        """Return its ready line without the process ID; ``data`` is its directory."""
        return {
            "name": self.name,
            "kind": self.kind,
            "id": self.node_id,
            "address": format_address(self.address),
            "data": data,
        }


NodeConfig = MetadataNodeConfig | BookieNodeConfig | ProxyNodeConfig


def to_json(config: NodeConfig) -> dict[str, Any]:
    """Return a configuration as JSON values, for a child process."""
    if isinstance(config, ProxyNodeConfig):
        return asdict(config)
    kind = "metadata" if isinstance(config, MetadataNodeConfig) else "bookie"
    return {"kind": kind, **asdict(config)}


def from_json(value: Mapping[str, Any]) -> NodeConfig:
    """Return the configuration in JSON values from `to_json`.

    Raises:
        InvalidRequest: An option is unknown or its value is invalid.
    """
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
