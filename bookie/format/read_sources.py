"""Where a reply is read from beside the ring: what a worker read from the device, and the page cache.

A reader in sequence asks for a megabyte of runs that lie one after the other: they are read in one piece,
as far as they are wanted, whatever lies between. What they are read into lives as long as the parts of it
that were not sent yet, so parts that are much smaller are copied (H16).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ...runtime.interfaces.host import Buffer
from .entry import HEADER_BYTES
from .extent_map import ExtentLocation

GAP_BYTES_MAX = 64 * 1024
"""A gap between two runs of a ledger that is cheaper to read than to step over."""


@dataclass(frozen=True, slots=True)
class LoadedExtent:
    """Bytes of a journal file, in memory of their own."""

    file_number: int
    offset: int
    data: Buffer

    def find_bytes(self, file_number: int, offset: int, length: int) -> memoryview | None:
        """A part of it, or None."""
        prefix = self.find_prefix(file_number, offset, length)
        return prefix if len(prefix) == length else None

    def find_prefix(self, file_number: int, offset: int, length: int) -> memoryview:
        """As much of a part as it has from the part's first byte on; perhaps nothing."""
        start = offset - self.offset
        if file_number != self.file_number or start < 0:
            return memoryview(b"")
        return memoryview(self.data)[start : start + length]


@dataclass(slots=True)
class ReadSource:
    """An extent, and which parts of a reply are views of it."""

    extent: LoadedExtent
    part_numbers: list[int] = field(default_factory=list)
    used_bytes: int = 0

    def record_part(self, part_number: int, size_bytes: int) -> None:
        """The reply's part of this number is so many bytes of it."""
        self.part_numbers.append(part_number)
        self.used_bytes += size_bytes

    def copy_small_parts(self, parts: list[bytes | memoryview]) -> None:
        """Small parts must not pin a long extent: what waits to be sent is bounded by its bytes (H16)."""
        if 2 * self.used_bytes < len(self.extent.data):
            for part_number in self.part_numbers:
                parts[part_number] = bytes(parts[part_number])


ReadCached = Callable[[ExtentLocation, int, int], LoadedExtent | None]
"""Reads needed bytes of a run, better wanted ones; None: the device must be asked."""


class ReadSources:
    """The extents of one reply, whose parts grow beside them."""

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
        """The first ``needed`` bytes of the run, and of what they are a view; None: ask the device.

        Where so many as are ``enough`` have been read, it is those: what lies between two runs makes the end
        of the second one come after what was read of both, and its beginning is not read again for that.
        Where they must be read, so many as ``wanted`` are.
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
        assert view is not None, "it is what was read"
        return self._cache_source, view

    def copy_small_parts(self) -> None:
        """The reply is complete."""
        self._release(self._device_source)
        self._release(self._cache_source)

    def _release(self, source: ReadSource | None) -> None:
        if source is not None:
            source.copy_small_parts(self._parts)


def bytes_to_read(extent: ExtentLocation, first: int, last: int, remaining_bytes: int) -> int:
    """How much to look at from a run's beginning on for the records first..last, as far as they may go.

    By the mean of the run's records: if they turn out longer, what follows is read after it. May be more
    than the run: then what lies after it is wanted too.
    """
    if first > extent.first:
        return max(
            extent.length, remaining_bytes
        )  # where it begins is only found by going through all before it
    estimated_bytes = extent.length * (last - first + 1) // extent.count
    return min(estimated_bytes + estimated_bytes // 16, remaining_bytes) + HEADER_BYTES


def _read_ahead_bytes(
    extent: ExtentLocation, previous: LoadedExtent | None, bytes_wanted: int
) -> int:
    """How much to read from a run on: of a bookie's many ledgers the next run may lie far away."""
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
