"""What one node is told at its start: frozen values, the same for processes, `dlog local` and sim."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..runtime.host import Address
from .config import overlay
from .copying import RATE_BYTES_PER_S

BOOKIE_LEASE_S = 6.0
"""A bookie that has said nothing for so long is taken for dead; a third of it is the renewal's step."""


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
    lease_s: float = BOOKIE_LEASE_S
    metadata_timeout_s: float = 30.0
    """How long a start waits for the quorum before it gives up, in seconds."""
    repair: bool = True
    """May this bookie be the one that fills holes of closed ledgers?"""
    lost_after_s: float = 300.0
    """What lay on a bookie that has been away for so long is stored elsewhere."""
    audit_every_s: float = 3600.0
    """Between two looks for copies that are missing and that nobody noted."""
    repair_bytes_per_s: int = RATE_BYTES_PER_S
    """Copied by this bookie, at most."""
    unlinked_s: float = 24 * 3600.0
    """A segment that was written beside its log and not linked for so long is deleted."""
    purge_grace_s: float = 60.0
    """A segment's bytes go this long after a truncation has passed all of it."""
    store: Mapping[str, Any] = field(default_factory=dict)
    """Options of bookie/options.py that differ from their defaults."""


@dataclass(frozen=True, slots=True)
class NodeReady:
    """What a node says when it serves."""

    name: str
    kind: str
    """``metadata`` or ``bookie``."""
    node_id: str
    address: Address
    """Of its first listener, with the port that was given for port 0."""


def to_json(config: MetadataNodeConfig | BookieNodeConfig) -> dict[str, Any]:
    """For a child process."""
    kind = "metadata" if isinstance(config, MetadataNodeConfig) else "bookie"
    return {"kind": kind, **asdict(config)}


def from_json(value: Mapping[str, Any]) -> MetadataNodeConfig | BookieNodeConfig:
    """The other way round. Raises `InvalidRequest`."""
    rest = {key: item for key, item in value.items() if key != "kind"}
    for key in ("voters", "listen", "advertise"):
        if key in rest:
            rest[key] = {name: (place[0], int(place[1])) for name, place in rest[key].items()}
    if value["kind"] == "metadata":
        return overlay(MetadataNodeConfig, ("the node's start", rest))
    rest["metadata"] = tuple((place[0], int(place[1])) for place in rest["metadata"])
    return overlay(BookieNodeConfig, ("the node's start", rest))
