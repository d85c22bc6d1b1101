"""Whether a bookie takes new entries: decided here alone, from facts, each of which has a code (pure, H28).

A bookie that is read-only serves reads, fences and deletions, and recovery adds as long as there is room.
The conditions have no numbers that move: they are in the registration, which is sent again when it changed.
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
"""Conditions that free space does not end."""
INDEX_FREE_BYTES_MIN = 64 * MIB
"""At most: below it, or below ``free_bytes_min`` where that is less, a checkpoint may find no room."""
CHECKPOINTS_BEHIND_MAX = 16
"""Runs in memory, in checkpoints' worth of them: beyond that the index cannot follow."""


@dataclass(frozen=True, slots=True)
class DiskSpaceFacts:
    """What is known of a bookie's room."""

    journal_free_bytes: int
    index_free_bytes: int
    free_bytes_min: int
    reserves_missing: tuple[str, ...]
    """Disks, by role, whose reserve was given up."""
    runs_in_memory: int
    checkpoint_runs: int
    no_next_file: bool = False
    """There is no room for another journal file."""
    checkpoint_failed: bool = False
    """The last one found no room on the index's disk."""
    asked: bool = False
    """By the operator, or it is to leave."""
    suspect: bool = False
    """Its disk gives read errors, and not once."""


log = get_logger("distributedlog.bookie.disk.bookie_disk_space")


class BookieDiskSpace:
    """The room of one bookie: is it read-only, and why.

    Its parts tell what they have met; ``measure`` gives the facts that are not told, and is asked at each
    `check`.
    """

    def __init__(self, bookie_id: str, measure: Callable[[], DiskSpaceFacts]) -> None:
        self.bookie_id = bookie_id
        self.read_only = False
        """No normal adds."""
        self.conditions: tuple[HealthCondition, ...] = ()
        """Why."""
        self._listeners: list[Callable[[], None]] = []
        self.is_low = False
        """No normal adds for want of room: whatever gives some back goes at full speed."""
        self.index_is_behind = False
        """No adds at all: too much of the index waits in memory."""
        self.asked = False
        """Set by the operator: `read_only` stays on whatever the space."""
        self.suspect = False
        """Set when the device failed to read too often (`bookie/integrity/corruption_tracker.py`); until the
        next start."""
        self.no_next_file = False
        self.checkpoint_failed = False
        self._measure = measure

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` whenever `read_only` has changed."""
        self._listeners.append(on_change)

    def set_next_file_missing(self, *, missing: bool) -> None:
        """The journal found no room for another file, or room again."""
        if self.no_next_file != missing:
            self.no_next_file = missing
            self.check()

    def check(self) -> None:
        """Is there room for normal adds? Fences and recovery adds go on without."""
        facts = replace(
            self._measure(),
            no_next_file=self.no_next_file,
            checkpoint_failed=self.checkpoint_failed,
            asked=self.asked,
            suspect=self.suspect,
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
                log, "bookie %s takes new entries again", self.bookie_id, bookie=self.bookie_id
            )
        self.conditions = conditions
        changed, self.read_only = self.read_only != bool(conditions), bool(conditions)
        self.is_low = any(item.code not in _NON_SPACE_CODES for item in conditions)
        self.index_is_behind = index_is_behind(facts)
        if changed:
            for on_change in self._listeners:
                on_change()

    def refusal(self, *, recovery: bool) -> DistributedLogError | None:
        """Why no add is taken now, or none that is not a recovery's; None: they are."""
        if self.read_only and not recovery:
            reason = "; ".join(texts_of(self.conditions))
            return BookieReadOnly(f"bookie {self.bookie_id} takes no new entries: {reason}")
        if self.index_is_behind:
            return TooBusy(
                f"bookie {self.bookie_id}: its index cannot follow, its disk may be full"
            )
        return None


def read_only_conditions(facts: DiskSpaceFacts) -> tuple[HealthCondition, ...]:
    """Return why this bookie takes no new entries, empty if it takes them."""
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
    if facts.asked:
        conditions.append(condition(Code.READ_ONLY_REQUESTED))
    if facts.suspect:
        conditions.append(condition(Code.DISK_READ_ERRORS))
    return tuple(conditions)


def index_is_behind(facts: DiskSpaceFacts) -> bool:
    """Is there too much in memory for any add, also of a recovery?"""
    return facts.runs_in_memory > _extents_in_memory_max(facts)


def _extents_in_memory_max(facts: DiskSpaceFacts) -> int:
    return CHECKPOINTS_BEHIND_MAX * facts.checkpoint_runs
