"""Decide whether a bookie accepts new entries, from facts; each reason has a code (pure, H28).

A read-only bookie serves reads, fences and deletions, and recovery adds as long as there is space. The
conditions contain no changing numbers, because they are part of the registration, which is sent again
whenever they change.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...runtime.declarations.condition_texts import texts_of
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.interfaces.errors import BookieReadOnly, DistributedLogError, TooBusy
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import READ_ONLY, WRITABLE

MIB = 1024 * 1024
_NON_SPACE_CODES = frozenset({Code.READ_ONLY_REQUESTED, Code.DISK_READ_ERRORS})
"""Conditions that do not end when space is freed."""
INDEX_FREE_BYTES_MIN = 64 * MIB
"""With less free space on the index disk, or less than ``free_bytes_min`` if that is lower, a checkpoint may
fail."""
CHECKPOINTS_BEHIND_MAX = 16
"""The maximum number of extents in memory, as a multiple of ``checkpoint_runs``. With more of them, the index
is too slow."""


@dataclass(frozen=True, slots=True)
class DiskSpaceFacts:
    """The facts that decide whether a bookie is read-only."""

    journal_free_bytes: int
    index_free_bytes: int
    free_bytes_min: int
    reserves_missing: tuple[str, ...]
    """The roles of disks whose reserve was freed."""
    extents_in_memory: int
    checkpoint_runs: int
    no_next_file: bool = False
    """There is no space for another journal file."""
    checkpoint_failed: bool = False
    """The last checkpoint found no space on the index disk."""
    requested_read_only: bool = False
    """An operator requested read-only, or the bookie is being decommissioned."""
    has_read_errors: bool = False
    """The disk had repeated read errors."""


log = get_logger("distributedlog.bookie.disk.bookie_disk_space")


class BookieDiskSpace:
    """Decides whether one bookie is read-only, and why.

    Other parts of the bookie set some facts here. At each `check`, ``measure`` returns the others.
    """

    def __init__(self, bookie_id: str, measure: Callable[[], DiskSpaceFacts]) -> None:
        self.bookie_id = bookie_id
        self.read_only = False
        """Whether normal adds are refused."""
        self.conditions: tuple[HealthCondition, ...] = ()
        """The reasons."""
        self._listeners: list[Callable[[], None]] = []
        self.is_low = False
        """Normal adds are refused for lack of space. Work that frees space then runs at full speed."""
        self.index_is_behind = False
        """All adds are refused, because too many extents wait in memory for a checkpoint."""
        self.requested_read_only = False
        """Set by an operator. `read_only` then stays set regardless of free space."""
        self.has_read_errors = False
        """Set until the next start after too many read errors of the device
        (`bookie/integrity/corruption_tracker.py`)."""
        self.no_next_file = False
        self.checkpoint_failed = False
        self._measure = measure

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` whenever `read_only` has changed."""
        self._listeners.append(on_change)

    def set_next_file_missing(self, *, missing: bool) -> None:
        """Record whether the journal lacks space for another file."""
        if self.no_next_file != missing:
            self.no_next_file = missing
            self.check()

    def check(self) -> None:
        """Decide again whether normal adds are accepted, and report a change."""
        facts = replace(
            self._measure(),
            no_next_file=self.no_next_file,
            checkpoint_failed=self.checkpoint_failed,
            requested_read_only=self.requested_read_only,
            has_read_errors=self.has_read_errors,
        )
        conditions = read_only_conditions(facts)
        conditions_before = self.conditions
        if new_conditions := [item for item in conditions if item not in conditions_before]:
            reason = "; ".join(texts_of(new_conditions))
            READ_ONLY.emit(
                log, "bookie %s: %s", self.bookie_id, reason, bookie=self.bookie_id, why=reason
            )
        elif conditions_before and not conditions:
            WRITABLE.emit(
                log, "bookie %s accepts new entries again", self.bookie_id, bookie=self.bookie_id
            )
        self.conditions = conditions
        changed, self.read_only = self.read_only != bool(conditions), bool(conditions)
        self.is_low = any(item.code not in _NON_SPACE_CODES for item in conditions)
        self.index_is_behind = index_is_behind(facts)
        if changed:
            for on_change in self._listeners:
                on_change()

    def refusal(self, *, recovery: bool) -> DistributedLogError | None:
        """Return the error for an add now, or None if it is accepted.

        ``recovery`` is whether a recovery or a repair adds.
        """
        if self.read_only and not recovery:
            reason = "; ".join(texts_of(self.conditions))
            return BookieReadOnly(f"bookie {self.bookie_id} accepts no new entries: {reason}")
        if self.index_is_behind:
            return TooBusy(
                f"bookie {self.bookie_id}: its index is behind, and its disk may be full"
            )
        return None


def read_only_conditions(facts: DiskSpaceFacts) -> tuple[HealthCondition, ...]:
    """Return the reasons why this bookie is read-only; empty if it accepts new entries."""
    conditions: list[HealthCondition] = []
    if facts.journal_free_bytes < facts.free_bytes_min:
        conditions.append(condition(Code.JOURNAL_DISK_LOW, free_bytes_min=facts.free_bytes_min))
    if facts.no_next_file:
        conditions.append(condition(Code.JOURNAL_FILE_NO_SPACE))
    index_free_min = min(facts.free_bytes_min, INDEX_FREE_BYTES_MIN)
    if facts.index_free_bytes < index_free_min:
        conditions.append(condition(Code.INDEX_DISK_LOW, free_bytes_min=index_free_min))
    if facts.checkpoint_failed:
        conditions.append(condition(Code.CHECKPOINT_NO_SPACE))
    if index_is_behind(facts):
        conditions.append(
            condition(Code.INDEX_MEMORY_FULL, extents_max=_extents_in_memory_max(facts))
        )
    conditions += [condition(Code.RESERVE_MISSING, disk=role) for role in facts.reserves_missing]
    if facts.requested_read_only:
        conditions.append(condition(Code.READ_ONLY_REQUESTED))
    if facts.has_read_errors:
        conditions.append(condition(Code.DISK_READ_ERRORS))
    return tuple(conditions)


def index_is_behind(facts: DiskSpaceFacts) -> bool:
    """Whether too many extents are in memory for any add, including recovery adds."""
    return facts.extents_in_memory > _extents_in_memory_max(facts)


def _extents_in_memory_max(facts: DiskSpaceFacts) -> int:
    return CHECKPOINTS_BEHIND_MAX * facts.checkpoint_runs
