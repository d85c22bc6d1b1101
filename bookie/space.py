"""Whether a bookie takes new entries: a function of facts, each of which has a name (pure, H28).

A bookie that is read-only serves reads, fences and deletions, and recovery adds as long as there is room.
The texts hold no numbers that move: they are in the registration, which is told again when it changed.
"""

from dataclasses import dataclass

MIB = 1024 * 1024
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
    no_next_file: bool
    """There is no room for another journal file."""
    reserves_missing: tuple[str, ...]
    """Disks, by role, whose reserve was given up."""
    checkpoint_failed: bool
    """The last one found no room on the index's disk."""
    runs_in_memory: int
    checkpoint_runs: int
    asked: bool
    """By the operator, or it is to leave."""


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
    return found


def index_is_behind(facts: Facts) -> bool:
    """Is there too much in memory for any add, also of a recovery?"""
    return facts.runs_in_memory > _runs_max(facts)


def _runs_max(facts: Facts) -> int:
    return CHECKPOINTS_BEHIND_MAX * facts.checkpoint_runs
