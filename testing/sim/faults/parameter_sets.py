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


def draw_bounds(chance: Random) -> TuningOverrides:
    """Production's in half of the seeds."""
    if chance.random() < 0.5:
        return TuningOverrides()
    return TuningOverrides(
        snapshot_entries=chance.choice((20, 100)),
        history_bytes=chance.choice((2_000, 20_000)),
        lag_entries_max=chance.choice((5, 50)),
    )


@contextmanager
def bounded(bounds: TuningOverrides) -> Iterator[None]:
    """Run with these bounds."""
    defaults: dict[str, Any] = KeyValueState.__init__.__kwdefaults__  # type: ignore[assignment]
    raft: Any = RaftOptions.__init__
    before = replica.SNAPSHOT_ENTRIES, dict(defaults), raft.__defaults__, retention.RESCAN_S
    assert RaftOptions.__dataclass_fields__.keys() >= {"lag_entries_max"}, "the option has moved"
    place = [*RaftOptions.__dataclass_fields__].index("lag_entries_max")
    replica.SNAPSHOT_ENTRIES = bounds.snapshot_entries
    retention.RESCAN_S = bounds.retention_rescan_s
    defaults["history_bytes_max"] = bounds.history_bytes
    values = list(raft.__defaults__)
    values[place] = bounds.lag_entries_max
    raft.__defaults__ = tuple(values)
    try:
        yield
    finally:
        replica.SNAPSHOT_ENTRIES = before[0]
        defaults.update(before[1])
        raft.__defaults__ = before[2]
        retention.RESCAN_S = before[3]
