"""The settings of a metadata node; times and bounds of the Raft core.

Operators set none of the Raft options, so no page for users lists them: tests and the simulator do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...runtime.declarations.options import MIB, check, option
from ...runtime.interfaces.host import Address


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times and bounds of the Raft core. All nodes of a quorum have the same."""

    heartbeat_s: float = option(0.1, "s", "between two signs of life of a leader")
    election_min_s: float = option(
        0.5, "s", "a follower that hears no leader asks for votes after this"
    )
    election_max_s: float = option(
        1.0, "s", "or after up to this, by chance, that not all ask at once"
    )
    closed_jitter_s: float = option(
        0.03, "s", "after the leader's connection closed: up to this until the pre-vote"
    )
    commit_lag_s: float = option(
        0.005,
        "s",
        "followers learn of a commit with the next append, or after this; 0: at once",
        at_least=0,
    )
    append_bytes_max: int = option(
        MIB, "bytes", "entries in one message; at least one entry, whatever its size"
    )
    in_flight_bytes_max: int = option(4 * MIB, "bytes", "sent to one peer ahead of its answers")
    command_bytes_max: int = option(
        1_500_000, "bytes", "one command; below the bound of a control message"
    )
    uncommitted_bytes_max: int = option(
        16 * MIB, "bytes", "proposals that wait for a quorum; above it they are refused"
    )
    apply_bytes_max: int = option(
        4 * MIB, "bytes", "committed entries that are applied at once; at least one entry"
    )
    lag_entries_max: int = option(
        10_000,
        "entries",
        "so far a living peer may lag and still be fed from the log, whatever is compacted",
        at_least=0,
    )
    lag_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "and so many bytes of entries; what it lacks beyond comes as a snapshot",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """What one node is told."""

    name: str
    peers: Mapping[str, Address]
    """Every node of the quorum by name, this one included; the same list for all."""
    advertised: Mapping[str, Address] = field(default_factory=dict)
    """Our own addresses by listener name, for clients; default: the one in ``peers``."""
    raft: RaftOptions = field(default_factory=RaftOptions)
