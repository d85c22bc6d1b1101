"""The memory outside the journal buffer that a reply refers to: bytes from the device or the page cache.

A sequential reader requests about a megabyte of contiguous extents. They are read together, including any
gaps between them. The memory is kept until all parts of it have been sent. So parts that are much smaller
than the memory are copied (H16).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ...runtime.interfaces.host import Buffer
from .entry import HEADER_BYTES
from .extent_map import ExtentLocation

GAP_BYTES_MAX = 64 * 1024
"""Up to this length, reading a gap between two extents of a ledger is cheaper than skipping it."""


@dataclass(frozen=True, slots=True)
class LoadedExtent:
    """Bytes of a file that were read into memory."""

    file_number: int
    offset: int
    data: Buffer

    def find_bytes(self, file_number: int, offset: int, length: int) -> memoryview | None:
        """Return a range of the bytes, or None if it is not completely loaded."""
        prefix = self.find_prefix(file_number, offset, length)
        return prefix if len(prefix) == length else None

    def find_prefix(self, file_number: int, offset: int, length: int) -> memoryview:
        """Return the loaded part of a range from its first byte on, which may be empty."""
        start = offset - self.offset
        if file_number != self.file_number or start < 0:
            return memoryview(b"")
        return memoryview(self.data)[start : start + length]


@dataclass(slots=True)
class ReadSource:
    """Loaded bytes, and the parts of a reply that are views of them."""

    extent: LoadedExtent
    part_numbers: list[int] = field(default_factory=list)
    used_bytes: int = 0

    def record_part(self, part_number: int, size_bytes: int) -> None:
        """Record that this part of the reply is a view of the given size."""
        self.part_numbers.append(part_number)
        self.used_bytes += size_bytes

    def copy_small_parts(self, parts: list[bytes | memoryview]) -> None:
        """Copy the parts if they use less than half of the loaded bytes.

        Otherwise small parts would keep a large buffer in memory. The limit of waiting replies counts only
        their own bytes (H16).
        """
        if 2 * self.used_bytes < len(self.extent.data):
            for part_number in self.part_numbers:
                parts[part_number] = bytes(parts[part_number])


ReadCached = Callable[[ExtentLocation, int, int], LoadedExtent | None]
"""Read an extent from the page cache: at least the first number of bytes, if possible the second number.
Returns None if the device must be read."""


class ReadSources:
    """The loaded bytes that the parts of one reply refer to."""

    def __init__(
        self, read_cached: ReadCached, parts: list[bytes | memoryview], extent: LoadedExtent | None
    ) -> None:
        self._read_cached = read_cached
        self._parts = parts
        self._device_source = None if extent is None else ReadSource(extent)
        self._cache_source: ReadSource | None = None

    def find_source(
        self, location: ExtentLocation, bytes_enough: int, bytes_needed: int, bytes_wanted: int
    ) -> tuple[ReadSource, memoryview] | None:
        """Return a source and its bytes of the extent; None if the device must be read.

        If at least ``bytes_enough`` bytes were loaded before, these are returned. Because of gaps between
        extents, the end of the second extent may not be loaded with the first, and its beginning is not read
        again for that. Otherwise ``bytes_needed`` to ``bytes_wanted`` bytes are read from the page cache. The
        returned view has at most ``bytes_needed`` bytes.
        """
        for source in (self._device_source, self._cache_source):
            if source is not None:
                prefix = source.extent.find_prefix(
                    location.file_number, location.offset, bytes_needed
                )
                if len(prefix) >= bytes_enough:
                    return source, prefix
        previous_source = self._cache_source
        self._release(previous_source)
        self._cache_source = None
        bytes_max = _read_ahead_bytes(
            location, None if previous_source is None else previous_source.extent, bytes_wanted
        )
        extent = self._read_cached(location, bytes_needed, bytes_max)
        if extent is None:
            return None
        self._cache_source = ReadSource(extent)
        view = extent.find_bytes(location.file_number, location.offset, bytes_needed)
        assert view is not None, "the bytes were just read"
        return self._cache_source, view

    def copy_small_parts(self) -> None:
        """Copy small parts after the reply is complete."""
        self._release(self._device_source)
        self._release(self._cache_source)

    def _release(self, source: ReadSource | None) -> None:
        if source is not None:
            source.copy_small_parts(self._parts)


def bytes_to_read(extent: ExtentLocation, first: int, last: int, remaining_bytes: int) -> int:
    """Estimate how many bytes to read from the start of an extent for the records ``first`` to ``last``.

    The estimate uses the mean record size of the extent. If the records are longer, the rest is read later.
    The result can exceed the extent, if the following extents are needed as well. ``remaining_bytes`` is the
    space that is left in the reply.
    """
    if first > extent.first:
        # The offset of a record is found only by reading all records before it.
        return max(extent.length, remaining_bytes)
    estimated_bytes = extent.length * (last - first + 1) // extent.count
    return min(estimated_bytes + estimated_bytes // 16, remaining_bytes) + HEADER_BYTES


def _read_ahead_bytes(
    extent: ExtentLocation, previous: LoadedExtent | None, bytes_wanted: int
) -> int:
    """Return how many bytes to read from an extent on.

    In a journal with many ledgers, the next extent of a ledger may be far away.
    """
    if 8 * extent.length >= bytes_wanted:
        return bytes_wanted
    if previous is None or previous.file_number != extent.file_number:
        return extent.length
    gap = extent.offset - previous.offset - len(previous.data)
    return (
        min(bytes_wanted, 4 * len(previous.data))
        if -extent.length < gap <= GAP_BYTES_MAX
        else extent.length
    )
