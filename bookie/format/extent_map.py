"""The extents of one ledger in memory: disjoint ranges of consecutive entry IDs (H8).

The records of an extent are contiguous in one file. They are stored in columns rather than tuples, with 28
bytes per extent.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

MERGED_ENTRIES_MAX = 1_000
"""The maximum number of entries of a merged extent. To find an entry, all entries before it in its extent are
read."""
MERGED_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class ExtentLocation:
    """An extent and its location: ``offset`` and ``length`` in bytes, in file ``file_number``."""

    first: int
    count: int
    file_number: int
    offset: int
    length: int

    @property
    def last(self) -> int:
        """The last ID, inclusive."""
        return self.first + self.count - 1

    def merge_with(self, next_extent: "ExtentLocation") -> "ExtentLocation | None":
        """Merge this and the next extent; return None if they are not contiguous, or too long together."""
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
"""First IDs, counts, files, offsets and lengths of some extents."""


class ExtentMap:
    """Disjoint extents of one ledger, sorted by their first ID."""

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
        """The highest ID of all extents. There must be at least one."""
        return self._firsts[-1] + self._counts[-1] - 1

    def columns(self, start: int, stop: int) -> "ExtentColumns":
        """Return the columns of the extents ``start`` to before ``stop``, as in `ExtentLocation`."""
        return (
            self._firsts[start:stop],
            self._counts[start:stop],
            self._files[start:stop],
            self._offsets[start:stop],
            self._lengths[start:stop],
        )

    def bytes_by_file(self) -> dict[int, int]:
        """Return the bytes that the extents occupy in each file."""
        bytes_by_file: dict[int, int] = {}
        for number, length in zip(self._files, self._lengths, strict=True):
            bytes_by_file[number] = bytes_by_file.get(number, 0) + length
        return bytes_by_file

    def add(self, first: int, count: int, file_number: int, offset: int, length: int) -> None:
        """Add an extent that overlaps none of the present ones."""
        firsts = self._firsts
        if not firsts or first > firsts[-1]:
            assert not firsts or first >= firsts[-1] + self._counts[-1], "extents are disjoint"
            self.append(first, count, file_number, offset, length)
            return
        index = bisect_right(firsts, first)
        assert not index or firsts[index - 1] + self._counts[index - 1] <= first, (
            "extents are disjoint"
        )
        assert index == len(firsts) or first + count <= firsts[index], "extents are disjoint"
        firsts.insert(index, first)
        self._counts.insert(index, count)
        self._files.insert(index, file_number)
        self._offsets.insert(index, offset)
        self._lengths.insert(index, length)

    def append(self, first: int, count: int, file_number: int, offset: int, length: int) -> None:
        """Add an extent that follows all present ones."""
        self._firsts.append(first)
        self._counts.append(count)
        self._files.append(file_number)
        self._offsets.append(offset)
        self._lengths.append(length)

    def find(self, entry: int) -> ExtentLocation | None:
        """Return the extent that contains ``entry``, or None."""
        index = bisect_right(self._firsts, entry) - 1
        if index < 0 or entry >= self._firsts[index] + self._counts[index]:
            return None
        return self._extent_at(index)

    def find_next(self, entry: int) -> ExtentLocation | None:
        """Return the first extent that begins after ``entry``, or None."""
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
