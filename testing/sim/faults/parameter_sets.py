"""Smaller limits for a run, so that events of a day in production occur within half a minute.

Examples are snapshots of the metadata state, followers that need one, watches that start before the kept
history, and forgotten request IDs. None of them occurs in a run with the limits of production. All nodes
of a run have the same limits, as all nodes of a cluster run one version.
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
from ..world.bug_injection import patched


@dataclass(frozen=True, slots=True)
class TuningOverrides:
    """The limits of a run. The defaults are those of production."""

    snapshot_entries: int = replica.SNAPSHOT_ENTRIES
    """Commands between two snapshots of the metadata state."""
    history_bytes: int = 8 * 1024 * 1024
    """Size of the changes that are kept for watches."""
    lag_entries_max: int = 10_000
    """A follower that is further behind receives a snapshot."""
    retention_rescan_s: float = retention.RESCAN_S
    """Seconds between two reads of all settings by the bookie that is elected for retention."""


def draw_overrides(rng: Random) -> TuningOverrides:
    """Return the limits of production in half of the seeds, and smaller ones in the others."""
    if rng.random() < 0.5:
        return TuningOverrides()
    return TuningOverrides(
        snapshot_entries=rng.choice((20, 100)),
        history_bytes=rng.choice((2_000, 20_000)),
        lag_entries_max=rng.choice((5, 50)),
    )


@contextmanager
def overridden(overrides: TuningOverrides) -> Iterator[None]:
    """Apply these limits within the `with` block."""
    raft = RaftOptions(lag_entries_max=overrides.lag_entries_max)
    with patched(
        [
            (replica, "SNAPSHOT_ENTRIES", overrides.snapshot_entries),
            (retention, "RESCAN_S", overrides.retention_rescan_s),
            (kv_state, "HISTORY_BYTES_MAX", overrides.history_bytes),
            (metadata_assembly, "MetadataOptions", partial(MetadataOptions, raft=raft)),
        ]
    ):
        yield
