"""Which files of a bookie are worth rewriting, and of which pages may be given back (pure).

A byte is rewritten only with a file of which at least `DEAD_SHARE` is dead, or that is small: so what lives
long is written twice, not again and again. In a cold file whole ledgers lie together: what is deleted there
is given back by the page, without any rewriting, and counts as dead no more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DEAD_SHARE = 0.15
"""Of what a file takes, what is its own aside: live records take at most 1 / 0.85 of their bytes."""
DEAD_SHARE_DISK_LOW = 0.05
"""Where the disk is nearly full."""
COMPACTED_DEAD_BYTES_MIN = 64 * 1024
"""Less is what borders of ledgers leave in pages that are half dead: a file would be rewritten for ever."""
SMALL_BYTES = 1024 * 1024
SHORT_OUTPUT_S = 60.0
SHORT_OUTPUT_BYTES = 8 * 1024 * 1024
"""Of one cold file in the first minute after a start: two seconds' work at the slowest."""
PUNCH_DEAD_DIVISOR = 16
"""Pages are looked for where a 16th of the file has died since the last look."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A sealed file of a bookie whose records are all in the index's map. Sizes are bytes."""

    number: int
    allocated_bytes: int
    """Of the device."""
    overhead_bytes: int
    """What is no reason to rewrite it: head, footer and trailer of a cold file, which another one has too;
    of a journal file all that is no entry, for the first minutes."""
    live_bytes: int
    is_compacted: bool

    @property
    def dead_bytes(self) -> int:
        """What rewriting it would give back."""
        return max(0, self.allocated_bytes - self.overhead_bytes - self.live_bytes)

    def is_mostly_dead(self, dead_fraction_min: float) -> bool:
        """Is so much of it dead that it is worth being rewritten?"""
        if self.is_compacted and self.dead_bytes < COMPACTED_DEAD_BYTES_MIN:
            return False
        return self.dead_bytes >= dead_fraction_min * (self.dead_bytes + self.live_bytes)


def files_to_compact(
    files: Iterable[FileFacts], *, live_bytes_max: int, small_bytes: int, disk_is_low: bool
) -> list[int]:
    """The files whose live records are moved next, those that give most for their bytes first.

    Together they hold about ``live_bytes_max``, or one of them holds more. Wholly dead ones are none of
    this: they are removed as they are.
    """
    dead_fraction_min = DEAD_SHARE_DISK_LOW if disk_is_low else DEAD_SHARE
    live_files = [file for file in files if file.live_bytes]
    candidates = [
        file
        for file in live_files
        if file.is_mostly_dead(dead_fraction_min)
        or (not file.is_compacted and file.allocated_bytes < small_bytes)
    ]
    if (
        candidates
    ):  # what few bytes there are in small cold files goes along: else there were ever more files
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
    """The cold files in which pages may be given back.

    ``live_before``: what was live at the last look, by number; at the beginning all records.
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
    """Of one cold file, by what is live in all: 64 MiB, more where that would make very many.

    Where journal files are small, as on a small disk, no more than four of the smallest. ``up_s``: since the
    start, of which the first minute makes short ones: a file that a kill cuts short is begun anew.
    """
    mib = 1024 * 1024
    size = max(min(64 * mib, 4 * first_file_bytes), min(live_bytes // 32, 256 * mib))
    return size if uptime_s >= SHORT_OUTPUT_S else min(size, SHORT_OUTPUT_BYTES)
