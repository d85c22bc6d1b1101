"""Counters and health conditions of a bookie.

The answer to `Op.INFO` has all counters, and the gauges of `BookieStore.info`.
"""

from dataclasses import dataclass, field

from ...runtime.declarations.health_conditions import NodeConditions
from ...runtime.schedule.work_failures import WorkFailures


@dataclass(slots=True)
class Stats:
    """Counters since the start; sizes in bytes."""

    adds: int = 0
    """ADD frames."""
    entries: int = 0
    """Entries that were put into the journal buffer."""
    duplicates: int = 0
    """Added entries that were already stored with the same bytes."""
    refusals: int = 0
    """Refused add streams."""
    bytes: int = 0
    """Bytes of entry records that were put into the journal buffer."""
    payload_bytes: int = 0
    reads: int = 0
    reads_cold: int = 0
    """Reads that needed the device."""
    read_bytes: int = 0
    damaged_reads: int = 0
    """Reads that failed because a file was missing, unreadable or corrupt."""
    deferred_bytes: int = 0
    """Bytes of adds that were received and are not accepted yet. Their connections keep them."""
    waits: int = 0
    fences: int = 0
    checkpoints: int = 0
    files_removed: int = 0
    files_compacted: int = 0
    moved_bytes: int = 0
    """Bytes of records that were copied into compacted files."""
    punched_bytes: int = 0
    """Bytes that were freed by page in compacted files."""
    corrupt_ranges: int = 0
    """Ranges of blocks that a start found missing."""
    loop_lag_max_ms: float = 0.0
    """The maximum delay of a timer in the last minute."""


@dataclass(frozen=True, slots=True)
class BookieHealth:
    """Counters and conditions of a bookie, shared by its parts."""

    failures: WorkFailures
    """Failures of the background work of the node."""
    stats: Stats = field(default_factory=Stats)
    conditions: NodeConditions = field(default_factory=NodeConditions)
    """The conditions that `BookieStore.health_conditions` does not compute itself."""

    def __post_init__(self) -> None:
        """Report failed background work among the conditions."""
        self.conditions.add_check(self.failures.conditions)
