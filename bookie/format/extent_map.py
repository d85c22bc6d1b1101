"""Runs of one ledger in columns: disjoint stretches of consecutive entry ids (H8).

A run is records that lie back to back in one journal file. Columns instead of tuples: 28 bytes a run.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

MERGED_ENTRIES_MAX = 1_000
"""Entries: whoever looks for one steps over all before it in its run."""
MERGED_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class ExtentLocation:
    """A run and where it lies. ``offset`` and ``length`` are bytes in file ``file_number``."""

    first: int
    count: int
    file_number: int
    offset: int
    length: int

    @property
    def last(self) -> int:
        """The last id, inclusive."""
        return self.first + self.count - 1

    def merge_with(self, next_extent: "ExtentLocation") -> "ExtentLocation | None":
        """One run of this and the next; None where they do not meet, or finding an entry would be slow."""
        if (
            next_extent.first != self.first + self.count
            or next_extent.file_number != self.file_number
            or next_extent.offset != self.offset + self.length
            or self.count + next_extent.count > MERGED_ENTRIES_MAX
            or self.length + next_extent.length > MERGED_BYTES_MAX
        ):
            return None
        count, length = self.count + next_extent.count, self.length + next_extent.length
        return ExtentLocation(self.first, count, self.file_number, self.offset, length)


ExtentColumns = tuple["array[int]", "array[int]", "array[int]", "array[int]", "array[int]"]
"""First ids, counts, files, offsets and lengths of some runs."""


class ExtentMap:
    """Disjoint runs of one ledger, in order of their first id."""

    __slots__ = ("_counts", "_files", "_firsts", "_lengths", "_offsets")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._counts = array("I")
        self._files = array("I")
        self._offsets = array("Q")
        self._lengths = array("I")

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[ExtentLocation]:
        return (self._extent_at(index) for index in range(len(self._firsts)))

    @property
    def last(self) -> int:
        """The last id of all, inclusive; there is at least one run."""
        return self._firsts[-1] + self._counts[-1] - 1

    def columns(self, start: int, stop: int) -> "ExtentColumns":
        """Of the runs from one index to before another, what `ExtentLocation` says of each, in its order."""
        return (
            self._firsts[start:stop],
            self._counts[start:stop],
            self._files[start:stop],
            self._offsets[start:stop],
            self._lengths[start:stop],
        )

    def bytes_by_file(self) -> dict[int, int]:
        """How many bytes of each file the runs take."""
        bytes_by_file: dict[int, int] = {}
        for number, length in zip(self._files, self._lengths, strict=True):
            bytes_by_file[number] = bytes_by_file.get(number, 0) + length
        return bytes_by_file

    def add(self, first: int, count: int, file_number: int, offset: int, length: int) -> None:
        """Add a run that overlaps none that is here."""
        firsts = self._firsts
        if not firsts or first > firsts[-1]:
            assert not firsts or first >= firsts[-1] + self._counts[-1], "runs are disjoint"
            self.append(first, count, file_number, offset, length)
            return
        index = bisect_right(firsts, first)
        assert not index or firsts[index - 1] + self._counts[index - 1] <= first, (
            "runs are disjoint"
        )
        assert index == len(firsts) or first + count <= firsts[index], "runs are disjoint"
        firsts.insert(index, first)
        self._counts.insert(index, count)
        self._files.insert(index, file_number)
        self._offsets.insert(index, offset)
        self._lengths.insert(index, length)

    def append(self, first: int, count: int, file_number: int, offset: int, length: int) -> None:
        """As `add`, where it is after all that are here."""
        self._firsts.append(first)
        self._counts.append(count)
        self._files.append(file_number)
        self._offsets.append(offset)
        self._lengths.append(length)

    def find(self, entry: int) -> ExtentLocation | None:
        """The run that holds ``entry``, or None."""
        index = bisect_right(self._firsts, entry) - 1
        if index < 0 or entry >= self._firsts[index] + self._counts[index]:
            return None
        return self._extent_at(index)

    def find_next(self, entry: int) -> ExtentLocation | None:
        """The first run that begins after ``entry``, or None."""
        index = bisect_right(self._firsts, entry)
        return self._extent_at(index) if index < len(self._firsts) else None

    def _extent_at(self, index: int) -> ExtentLocation:
        return ExtentLocation(
            self._firsts[index],
            self._counts[index],
            self._files[index],
            self._offsets[index],
            self._lengths[index],
        )
