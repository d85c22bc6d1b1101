"""The random mix of faults of a Raft world."""

import random
from dataclasses import dataclass

from ....metadata.declarations.options import RaftOptions


@dataclass(slots=True)
class Faults:
    """The mix of one seed. Rates are per virtual second of the whole cluster."""

    delay_s: float = 0.002
    loss: float = 0.0
    duplicated: float = 0.0
    sync_s: float = 0.001
    fault_rate: float = 2.0
    kinds: tuple[str, ...] = ("crash", "cut", "pause", "stall")
    crash_within_steps: int = 0
    propose_rate: float = 12.0
    compact_after: int = 0
    late_hint: bool = True
    framed: bool = False
    chaos_s: float = 2.5

    @classmethod
    def random_mix(cls, rng: random.Random) -> "Faults":
        """Return a random mix. Each seed has its own, so that rare combinations occur (swarm testing)."""
        kinds = tuple(
            kind
            for kind, share in (
                ("crash", 0.7),
                ("cut", 0.6),
                ("isolate", 0.5),
                ("pause", 0.4),
                ("stall", 0.3),
                ("transfer", 0.2),
                ("wipe", 0.2),
                ("members", 0.25),
            )
            if rng.random() < share
        )
        return cls(
            delay_s=rng.choice((0.001, 0.003, 0.03, 0.2)),
            loss=rng.choice((0.0, 0.0, 0.05, 0.3)),
            duplicated=rng.choice((0.0, 0.0, 0.1)),
            sync_s=rng.choice((0.0005, 0.002, 0.02, 0.15)),
            fault_rate=rng.choice((1.0, 3.0, 6.0)),
            kinds=kinds,
            crash_within_steps=rng.choice((0, 0, 30, 150)),
            propose_rate=rng.choice((4.0, 12.0, 24.0)),
            compact_after=rng.choice((0, 3, 12)),
            late_hint=rng.random() < 0.7,
            framed=rng.random() < 0.05,
            chaos_s=rng.choice((1.5, 2.5, 4.0)),
        )


def drawn_options(rng: random.Random, faults: Faults) -> RaftOptions:
    """Return options with small limits, so that runs reach them, and often short elections for many terms."""
    time_factor = rng.choice((1.0, 1.0, 1.0, 0.3))
    faults.chaos_s *= 0.4 + 0.6 * time_factor
    return RaftOptions(
        heartbeat_s=0.1 * time_factor,
        election_min_s=0.5 * time_factor,
        election_max_s=1.0 * time_factor,
        in_flight_bytes_max=rng.choice((64, 1 << 20)),
        append_bytes_max=rng.choice((8, 40, 1 << 20)),
        lag_entries_max=rng.choice((0, 0, 6)),
    )
