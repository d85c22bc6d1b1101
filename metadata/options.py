"""What a metadata node is told; the Raft core's times and bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..runtime.host import Address


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times in seconds, sizes in bytes."""

    heartbeat_s: float = 0.1
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    closed_jitter_s: float = 0.03
    """After the leader's connection closed: up to this long until the pre-vote."""
    append_bytes_max: int = 1 << 20
    """Entries in one message (at least one entry, whatever its size)."""
    in_flight_bytes_max: int = 4 << 20
    """Sent to one peer ahead of its answers."""
    command_bytes_max: int = 1_500_000
    """One command; below the bound of a control message."""
    uncommitted_bytes_max: int = 16 << 20
    """Proposals that wait for a quorum; above it they are refused."""
    apply_bytes_max: int = 4 << 20
    """Committed entries in one Ready (at least one entry)."""
    lag_entries_max: int = 10_000
    """So far behind a living peer may be and still be fed from the log, whatever is compacted."""


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """What one node is told."""

    name: str
    peers: Mapping[str, Address]
    """Every node of the quorum by name, this one included; the same list for all."""
    advertised: Mapping[str, Address] = field(default_factory=dict)
    """Our own addresses by listener name, for clients; default: the one in ``peers``."""
    raft: RaftOptions = field(default_factory=RaftOptions)
