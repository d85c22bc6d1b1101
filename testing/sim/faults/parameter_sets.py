"""Smaller bounds for a run, so that what happens once a day in reality happens in half a minute.

Snapshots of the metadata state, followers that need one, watches older than the kept history,
request ids that are forgotten: none of them is met with production's bounds. All nodes of a run get
the same ones, as all nodes of a cluster run one version.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from ....cluster.gc import retention
from ....metadata.declarations.options import RaftOptions
from ....metadata.replica import replica
from ....metadata.state.kv_state import KeyValueState


@dataclass(frozen=True, slots=True)
class TuningOverrides:
    """Production's, where nothing is said."""

    snapshot_entries: int = replica.SNAPSHOT_ENTRIES
    """Commands between two snapshots of the metadata state."""
    history_bytes: int = 8 * 1024 * 1024
    """Changes kept for watches."""
    lag_entries_max: int = 10_000
    """A follower that is further behind gets a snapshot."""
    retention_rescan_s: float = retention.RESCAN_S
    """Between two reads of all settings by the bookie that is elected for retention."""


def draw_bounds(rng: Random) -> TuningOverrides:
    """Production's in half of the seeds."""
    if rng.random() < 0.5:
        return TuningOverrides()
    return TuningOverrides(
        snapshot_entries=rng.choice((20, 100)),
        history_bytes=rng.choice((2_000, 20_000)),
        lag_entries_max=rng.choice((5, 50)),
    )


@contextmanager
def bounded(overrides: TuningOverrides) -> Iterator[None]:
    """Run with these bounds."""
    defaults: dict[str, Any] = KeyValueState.__init__.__kwdefaults__  # type: ignore[assignment]
    raft_init: Any = RaftOptions.__init__
    values_before = (
        replica.SNAPSHOT_ENTRIES,
        dict(defaults),
        raft_init.__defaults__,
        retention.RESCAN_S,
    )
    assert RaftOptions.__dataclass_fields__.keys() >= {"lag_entries_max"}, "the option has moved"
    position = [*RaftOptions.__dataclass_fields__].index("lag_entries_max")
    replica.SNAPSHOT_ENTRIES = overrides.snapshot_entries
    retention.RESCAN_S = overrides.retention_rescan_s
    defaults["history_bytes_max"] = overrides.history_bytes
    values = list(raft_init.__defaults__)
    values[position] = overrides.lag_entries_max
    raft_init.__defaults__ = tuple(values)
    try:
        yield
    finally:
        replica.SNAPSHOT_ENTRIES = values_before[0]
        defaults.update(values_before[1])
        raft_init.__defaults__ = values_before[2]
        retention.RESCAN_S = values_before[3]
