"""Select the files to compact, and the compacted files in which to free pages (pure).

A live byte is copied only if its file is small, or if at least `DEAD_SHARE` of the file is dead. So
long-lived records are written twice, not again and again. A compacted file is sorted by ledger. Its dead
records are contiguous, so their pages can be freed without copying. Freed pages no longer count as dead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DEAD_SHARE = 0.15
"""A file is compacted if this share of its bytes, without its overhead, is dead. Live records thus occupy at
most 1 / 0.85 of their size."""
DEAD_SHARE_DISK_LOW = 0.05
"""Used in place of `DEAD_SHARE` when the disk is nearly full."""
COMPACTED_DEAD_BYTES_MIN = 64 * 1024
"""A compacted file with fewer dead bytes is not rewritten. Partly dead pages at the borders between ledgers
always leave some dead bytes, so the file would be rewritten forever."""
SMALL_BYTES = 1024 * 1024
SHORT_OUTPUT_S = 60.0
SHORT_OUTPUT_BYTES = 8 * 1024 * 1024
"""Maximum size of a compacted file in the first minute after a start: two seconds of work at the
lowest rate."""
PUNCH_DEAD_DIVISOR = 16
"""A file is checked for pages to free when a 16th of it has died since the last check."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A sealed file of a bookie whose extents are all in the index's map. Sizes are in bytes."""

    number: int
    allocated_bytes: int
    """The bytes that the file occupies on the device."""
    overhead_bytes: int
    """Bytes that are not a reason to rewrite the file. In a compacted file these are the head, footer and
    trailer, which its replacement needs as well. In a journal file these are, for the first ten minutes, all
    bytes that are not entries."""
    live_bytes: int
    is_compacted: bool

    @property
    def dead_bytes(self) -> int:
        """The bytes that rewriting the file would free."""
        return max(0, self.allocated_bytes - self.overhead_bytes - self.live_bytes)

    def is_mostly_dead(self, dead_fraction_min: float) -> bool:
        """Whether the dead share of the file is large enough to rewrite it."""
        if self.is_compacted and self.dead_bytes < COMPACTED_DEAD_BYTES_MIN:
            return False
        return self.dead_bytes >= dead_fraction_min * (self.dead_bytes + self.live_bytes)


def files_to_compact(
    files: Iterable[FileFacts], *, live_bytes_max: int, small_bytes: int, disk_is_low: bool
) -> list[int]:
    """Return the numbers of the files whose live records are moved next.

    Files that free the most bytes per copied byte come first. Files without live records are not included,
    because they are removed without copying.

    Args:
        files: All sealed files that the index covers.
        live_bytes_max: Limit of the live bytes of all returned files. The first file may exceed it.
        small_bytes: Journal files below this size are compacted even if they are not mostly dead.
        disk_is_low: Whether to use the lower threshold `DEAD_SHARE_DISK_LOW`.
    """
    dead_fraction_min = DEAD_SHARE_DISK_LOW if disk_is_low else DEAD_SHARE
    live_files = [file for file in files if file.live_bytes]
    candidates = [
        file
        for file in live_files
        if file.is_mostly_dead(dead_fraction_min)
        or (not file.is_compacted and file.allocated_bytes < small_bytes)
    ]
    if candidates:
        # Small compacted files are included, so that their number does not grow without limit.
        numbers = {file.number for file in candidates}
        candidates += [
            file
            for file in live_files
            if file.is_compacted and file.live_bytes < small_bytes and file.number not in numbers
        ]
    candidates.sort(key=lambda file: (-file.dead_bytes / (file.live_bytes + 1), file.number))
    chosen: list[int] = []
    size_bytes = 0
    for file in candidates:
        if chosen and size_bytes + file.live_bytes > live_bytes_max:
            break
        chosen.append(file.number)
        size_bytes += file.live_bytes
    return chosen


def files_to_punch(files: Iterable[FileFacts], live_bytes_before: Mapping[int, int]) -> list[int]:
    """Return the numbers of the compacted files in which pages may be freed.

    ``live_bytes_before`` has the live bytes of each file at its last check. Before the first check, these are
    the bytes of all its records.
    """
    return [
        file.number
        for file in files
        if file.is_compacted
        and file.live_bytes
        and (live_bytes_before[file.number] - file.live_bytes) * PUNCH_DEAD_DIVISOR
        >= max(COMPACTED_DEAD_BYTES_MIN, live_bytes_before[file.number])
    ]


def output_bytes_max(live_bytes: int, first_file_bytes: int, uptime_s: float) -> int:
    """Return the maximum size of one compacted file.

    The size is 64 MiB. On a small disk with smaller journal files, it is that of four of the smallest one. It
    is up to 256 MiB for a bookie with many live bytes, to limit the number of files. In the first minute
    after a start it is at most 8 MiB, because a compacted file that a kill interrupts is started again from
    scratch.

    Args:
        live_bytes: The live bytes of all files.
        first_file_bytes: The size of the smallest journal file.
        uptime_s: The seconds since the start.
    """
    mib = 1024 * 1024
    size = max(min(64 * mib, 4 * first_file_bytes), min(live_bytes // 32, 256 * mib))
    return size if uptime_s >= SHORT_OUTPUT_S else min(size, SHORT_OUTPUT_BYTES)
