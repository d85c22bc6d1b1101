"""Whether a bookie takes new entries: decided here alone, from facts, each of which has a name (pure, H28).

A bookie that is read-only serves reads, fences and deletions, and recovery adds as long as there is room.
The texts hold no numbers that move: they are in the registration, which is told again when it changed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..runtime.errors import BookieReadOnly, DistributedLogError, TooBusy
from ..runtime.log_lines import get_logger
from .events import READ_ONLY, WRITABLE

MIB = 1024 * 1024
NO_LACK = frozenset({"asked", "suspect"})
"""Reasons to be read-only that no room ends."""
INDEX_FREE_BYTES_MIN = 64 * MIB
"""At most: below it, or below ``free_bytes_min`` where that is less, a checkpoint may find no room."""
CHECKPOINTS_BEHIND_MAX = 16
"""Runs in memory, in checkpoints' worth of them: beyond that the index cannot follow."""


@dataclass(frozen=True, slots=True)
class Facts:
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


log = get_logger("distributedlog.bookie.space")


class Space:
    """The room of one bookie: is it read-only, and why.

    Its parts tell what they have met; ``measure`` gives the facts that are not told, and is asked at each
    `look`.
    """

    def __init__(self, bookie_id: str, measure: Callable[[], Facts]) -> None:
        self.bookie_id = bookie_id
        self.read_only = False
        """No normal adds."""
        self.reasons: dict[str, str] = {}
        """Why, by name."""
        self.on_change: Callable[[], None] | None = None
        """Called when `read_only` has changed."""
        self.short = False
        """No normal adds for want of room: whatever gives some back goes at full speed."""
        self.index_is_behind = False
        """No adds at all: too much of the index waits in memory."""
        self.asked = False
        """Set by the operator: `read_only` stays on whatever the space."""
        self.suspect = False
        """Set when the device failed to read too often (`bookie/rot.py`); until the next start."""
        self.no_next_file = False
        self.checkpoint_failed = False
        self._measure = measure

    def note_next_file(self, *, missing: bool) -> None:
        """The journal found no room for another file, or room again."""
        if self.no_next_file != missing:
            self.no_next_file = missing
            self.look()

    def look(self) -> None:
        """Is there room for normal adds? Fences and recovery adds go on without."""
        facts = replace(
            self._measure(),
            no_next_file=self.no_next_file,
            checkpoint_failed=self.checkpoint_failed,
            asked=self.asked,
            suspect=self.suspect,
        )
        reasons = read_only_reasons(facts)
        before = self.reasons
        if new := [text for name, text in reasons.items() if name not in before]:
            why = "; ".join(new)
            READ_ONLY.say(log, "bookie %s: %s", self.bookie_id, why, bookie=self.bookie_id, why=why)
        elif before and not reasons:
            WRITABLE.say(
                log, "bookie %s takes new entries again", self.bookie_id, bookie=self.bookie_id
            )
        self.reasons = reasons
        changed, self.read_only = self.read_only != bool(reasons), bool(reasons)
        self.short = bool(reasons.keys() - NO_LACK)
        self.index_is_behind = index_is_behind(facts)
        if changed and self.on_change is not None:
            self.on_change()

    def refusal(self, *, recovery: bool) -> DistributedLogError | None:
        """Why no add is taken now, or none that is not a recovery's; None: they are."""
        if self.read_only and not recovery:
            why = "; ".join(self.reasons.values())
            return BookieReadOnly(f"bookie {self.bookie_id} takes no new entries: {why}")
        if self.index_is_behind:
            return TooBusy(
                f"bookie {self.bookie_id}: its index cannot follow, its disk may be full"
            )
        return None


def read_only_reasons(facts: Facts) -> dict[str, str]:
    """Why this bookie takes no new entries, by name; empty: it does."""
    found: dict[str, str] = {}
    if facts.journal_free_bytes < facts.free_bytes_min:
        found["journal space"] = (
            f"read-only: less than {facts.free_bytes_min // MIB} MiB are free on the journal's disk"
        )
    if facts.no_next_file:
        found["journal file"] = (
            "read-only: there is no room for another journal file on the journal's disk"
        )
    index_free_min = min(facts.free_bytes_min, INDEX_FREE_BYTES_MIN)
    if facts.index_free_bytes < index_free_min:
        found["index space"] = (
            f"read-only: less than {index_free_min // MIB} MiB are free on the index's disk"
        )
    if facts.checkpoint_failed:
        found["checkpoint"] = "read-only: the index's disk had no room for the last checkpoint"
    if index_is_behind(facts):
        found["index memory"] = (
            f"read-only: more than {_runs_max(facts)} runs wait in memory for the index's disk"
        )
    for role in facts.reserves_missing:
        found[f"{role} reserve"] = (
            f"read-only: the {role}'s disk has no room for the reserve that fences and deletions need"
        )
    if facts.asked:
        found["asked"] = "read-only: it is to leave, or was told so"
    if facts.suspect:
        found["suspect"] = (
            "read-only: its disk gives read errors again and again; nothing is healed onto it:"
            ' "dlog decommission" it'
        )
    return found


def index_is_behind(facts: Facts) -> bool:
    """Is there too much in memory for any add, also of a recovery?"""
    return facts.runs_in_memory > _runs_max(facts)


def _runs_max(facts: Facts) -> int:
    return CHECKPOINTS_BEHIND_MAX * facts.checkpoint_runs
