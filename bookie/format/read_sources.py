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

NEAR_BYTES = 64 * 1024
"""A gap between two runs of a ledger that is cheaper to read than to step over."""


@dataclass(frozen=True, slots=True)
class LoadedExtent:
    """Bytes of a journal file, in memory of their own."""

    file_number: int
    offset: int
    data: Buffer

    def find(self, file_number: int, offset: int, length: int) -> memoryview | None:
        """A part of it, or None."""
        found = self.beginning(file_number, offset, length)
        return found if len(found) == length else None

    def beginning(self, file_number: int, offset: int, length: int) -> memoryview:
        """As much of a part as it has from the part's first byte on; perhaps nothing."""
        start = offset - self.offset
        if file_number != self.file_number or start < 0:
            return memoryview(b"")
        return memoryview(self.data)[start : start + length]


@dataclass(slots=True)
class ReadSource:
    """An extent, and which parts of a reply are views of it."""

    extent: LoadedExtent
    parts: list[int] = field(default_factory=list)
    used_bytes: int = 0

    def note(self, part: int, size: int) -> None:
        """The reply's part of this number is so many bytes of it."""
        self.parts.append(part)
        self.used_bytes += size

    def release_waste(self, parts: list[bytes | memoryview]) -> None:
        """Small parts must not pin a long extent: what waits to be sent is bounded by its bytes (H16)."""
        if 2 * self.used_bytes < len(self.extent.data):
            for part in self.parts:
                parts[part] = bytes(parts[part])


ReadHot = Callable[[ExtentLocation, int, int], LoadedExtent | None]
"""Reads needed bytes of a run, better wanted ones; None: the device must be asked."""


class ReadSources:
    """The extents of one reply, whose parts grow beside them."""

    def __init__(
        self, read_hot: ReadHot, parts: list[bytes | memoryview], extent: LoadedExtent | None
    ) -> None:
        self._read_hot = read_hot
        self._parts = parts
        self._cold = None if extent is None else ReadSource(extent)
        self._hot: ReadSource | None = None

    def find(
        self, run: ExtentLocation, enough: int, needed: int, wanted: int
    ) -> tuple[ReadSource, memoryview] | None:
        """The first ``needed`` bytes of the run, and of what they are a view; None: ask the device.

        Where so many as are ``enough`` have been read, it is those: what lies between two runs makes the end
        of the second one come after what was read of both, and its beginning is not read again for that.
        Where they must be read, so many as ``wanted`` are.
        """
        for source in (self._cold, self._hot):
            if source is not None:
                here = source.extent.beginning(run.file_number, run.offset, needed)
                if len(here) >= enough:
                    return source, here
        before = self._hot
        self._release(before)
        self._hot = None
        worth = _worth_reading(run, None if before is None else before.extent, wanted)
        extent = self._read_hot(run, needed, worth)
        if extent is None:
            return None
        self._hot = ReadSource(extent)
        view = extent.find(run.file_number, run.offset, needed)
        assert view is not None, "it is what was read"
        return self._hot, view

    def release_waste(self) -> None:
        """The reply is complete."""
        self._release(self._cold)
        self._release(self._hot)

    def _release(self, source: ReadSource | None) -> None:
        if source is not None:
            source.release_waste(self._parts)


def wanted_bytes(run: ExtentLocation, first: int, last: int, left: int) -> int:
    """How much to look at from a run's beginning on for the records first..last, as far as they may go.

    By the mean of the run's records: if they turn out longer, what follows is read after it. May be more
    than the run: then what lies after it is wanted too.
    """
    if first > run.first:
        return max(run.length, left)  # where it begins is only found by going through all before it
    asked = run.length * (last - first + 1) // run.count
    return min(asked + asked // 16, left) + HEADER_BYTES


def _worth_reading(run: ExtentLocation, before: LoadedExtent | None, wanted: int) -> int:
    """How much to read from a run on: of a bookie's many ledgers the next run may lie far away."""
    if 8 * run.length >= wanted:
        return wanted
    if before is None or before.file_number != run.file_number:
        return run.length
    gap = run.offset - before.offset - len(before.data)
    return min(wanted, 4 * len(before.data)) if -run.length < gap <= NEAR_BYTES else run.length
