"""Smaller bounds for a run, so that what happens once a day in reality happens in half a minute.

Snapshots of the metadata state, followers that need one, watches older than the kept history,
request ids that are forgotten: none of them is met with production's bounds. All nodes of a run get
the same ones, as all nodes of a cluster run one version.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from ....cluster.gc import retention
from ....cluster.node import metadata_assembly
from ....metadata.declarations.options import MetadataOptions, RaftOptions
from ....metadata.replica import replica
from ....metadata.state import kv_state
from ..world.bug_injection import planted


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
    raft = RaftOptions(lag_entries_max=overrides.lag_entries_max)
    with planted(
        [
            (replica, "SNAPSHOT_ENTRIES", overrides.snapshot_entries),
            (retention, "RESCAN_S", overrides.retention_rescan_s),
            (kv_state, "HISTORY_BYTES_MAX", overrides.history_bytes),
            (metadata_assembly, "MetadataOptions", partial(MetadataOptions, raft=raft)),
        ]
    ):
        yield
