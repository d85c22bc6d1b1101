"""The settings of a metadata node, and the times and limits of the Raft core.

Only tests and the simulator change the Raft options. Operators do not set them, so the user documentation
does not list them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...runtime.declarations.options import MIB, check, option
from ...runtime.declarations.versions import VERSION
from ...runtime.interfaces.host import Address


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times and limits of the Raft core. All nodes of a quorum use the same values."""

    heartbeat_s: float = option(0.1, "s", "interval between two heartbeats of a leader")
    election_min_s: float = option(
        0.5, "s", "a follower without a heartbeat starts an election after this time"
    )
    election_max_s: float = option(
        1.0,
        "s",
        "upper limit of the random election timeout, so that nodes do not start elections together",
    )
    closed_jitter_s: float = option(
        0.03,
        "s",
        "maximum random delay from the loss of the connection to the leader to the pre-vote",
    )
    commit_lag_s: float = option(
        0.005,
        "s",
        "followers receive a commit index with the next append, or after this time (0: "
        "immediately)",
        at_least=0,
    )
    append_bytes_max: int = option(
        MIB, "bytes", "entries in one message; at least one entry of any size"
    )
    in_flight_bytes_max: int = option(
        4 * MIB, "bytes", "entries sent to one peer and not yet acknowledged"
    )
    command_bytes_max: int = option(
        1_500_000, "bytes", "size of one command; below the limit of a control message"
    )
    uncommitted_bytes_max: int = option(
        16 * MIB, "bytes", "proposals that wait for a quorum; further proposals are rejected"
    )
    apply_bytes_max: int = option(
        4 * MIB, "bytes", "committed entries that are applied in one step; at least one entry"
    )
    lag_entries_max: int = option(
        10_000,
        "entries",
        "a live peer behind by up to this number receives the log, in spite of compaction",
        at_least=0,
    )
    lag_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "likewise, in bytes of entries; a peer that lags further receives a snapshot",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """The configuration of one node."""

    name: str
    peers: Mapping[str, Address]
    """Every node of the quorum by name, including this one. All nodes have the same list."""
    advertised: Mapping[str, Address] = field(default_factory=dict)
    """The node's own addresses for clients, by listener name. Default: its address in ``peers``."""
    raft: RaftOptions = field(default_factory=RaftOptions)
    version: str = VERSION
    """The version that the node states."""
