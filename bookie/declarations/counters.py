"""Counters of a bookie: each is in its answer to `Op.INFO`, beside the gauges of `BookieStore.info`."""

from dataclasses import dataclass, field

from ...runtime.declarations.health_conditions import NodeConditions
from ...runtime.schedule.work_failures import WorkFailures


@dataclass(slots=True)
class Stats:
    """Counters since the start; sizes in bytes."""

    adds: int = 0
    """ADD frames."""
    entries: int = 0
    """Entries gathered."""
    duplicates: int = 0
    """Entries that were here already, with the same bytes."""
    refusals: int = 0
    """Add streams refused."""
    bytes: int = 0
    """Of entry records gathered."""
    payload_bytes: int = 0
    reads: int = 0
    reads_cold: int = 0
    """Reads that had to ask the device."""
    read_bytes: int = 0
    damaged_reads: int = 0
    """Reads that met damage: a file that is gone or unreadable, bytes that are not what was written."""
    deferred_bytes: int = 0
    """Of adds that were received and are not taken yet: their connections keep them."""
    waits: int = 0
    fences: int = 0
    checkpoints: int = 0
    files_removed: int = 0
    files_compacted: int = 0
    """Cold files made."""
    moved_bytes: int = 0
    """Of records that were copied into them."""
    punched_bytes: int = 0
    """Given back by the page, in cold files."""
    corrupt_ranges: int = 0
    """Ranges of blocks that a start found lost."""
    loop_lag_max_ms: float = 0.0
    """The latest a timer of this bookie fired, in the last minute."""


@dataclass(frozen=True, slots=True)
class BookieHealth:
    """Counters and conditions of a bookie, shared by its parts."""

    failures: WorkFailures
    """Of the background work of its node."""
    stats: Stats = field(default_factory=Stats)
    conditions: NodeConditions = field(default_factory=NodeConditions)
    """Those that `BookieStore.health_conditions` does not compute itself."""

    def __post_init__(self) -> None:
        """Report failed background work among the conditions."""
        self.conditions.add_check(self.failures.conditions)
