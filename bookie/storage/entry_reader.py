"""Read entries from the journal buffer, from the page cache, or from the device in a worker.

The parts of a reply have their own memory, which is filled within one synchronous call. So a slow reader
keeps no buffer, file or page in use (H16). Cached data is read in one piece, as far as the reply may extend.
Extents that are contiguous in the journal cost one system call, and no copy in this process. Other data is
read from the device about a megabyte at a time, by a few tasks outside the event loop, one connection after
the other.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import CorruptData, DiskFailed, DistributedLogError, TooBusy
from ...runtime.interfaces.host import Disk, File
from ...runtime.schedule.work_failures import WorkFailures
from ..declarations.options import BookieOptions
from ..format.extent_map import ExtentLocation
from ..format.read_sources import LoadedExtent, ReadSource, ReadSources, bytes_to_read
from ..format.record_slices import RecordSlice, slice_extent
from ..ledgers.ledger_table import Ledger
from .index import Index
from .journal_buffer import JournalBuffer

CACHED_READ_BYTES_MAX = 2 * 1024 * 1024
"""The maximum size of one read from the page cache for a reply."""
EXTENTS_PER_REPLY_MAX = 256
"""The extents that are examined for one reply. Without a limit, 10,922 single-entry extents blocked the event
loop for 0.3 s."""
REMOVED_FILES_MAX = 4096
"""The number of removed files that are remembered. A read waits for the device for seconds at most."""
RESUME_OFFSETS_MAX = 1024
"""The number of sequential readers whose offset within an extent is remembered."""


@dataclass(slots=True)
class CollectedEntries:
    """The result of a read.

    ``parts`` has all requested entries up to ``complete_to`` that are stored here.
    """

    parts: list[bytes | memoryview]
    complete_to: int
    size_bytes: int
    device_extent: ExtentLocation | None = None
    """The extent at which the read stopped, because it must be read from the device."""
    extents_examined: int = 0


class FileRemoved(CorruptData):
    """The file was removed since the index was read.

    The index now has another location of its live records.
    """


class JournalFiles:
    """Journal and compacted files that are open for reading. The last used ones are kept open."""

    def __init__(self, disk: Disk, name_of: Callable[[int], str], open_max: int) -> None:
        self._disk = disk
        self._name_of = name_of
        self._open_max = open_max
        self._open_files: OrderedDict[int, File] = OrderedDict()
        self._removed_files: OrderedDict[int, None] = OrderedDict()
        """The last files that this process has removed."""

    def get(self, number: int) -> File | None:
        """Return the file if it is open, otherwise None."""
        file = self._open_files.get(number)
        if file is not None:
            self._open_files.move_to_end(number)
        return file

    async def open(self, number: int) -> File:
        """Return the file, and open it if necessary. The index refers to it.

        Raises:
            FileRemoved: This process has removed the file.
            CorruptData: The file is missing, or cannot be opened.
            TooBusy: No file descriptor is free.
        """
        file = self.get(number)
        if file is not None:
            return file
        try:
            opened = await self._disk.open(self._name_of(number))
        except FileNotFoundError:
            if number in self._removed_files:
                raise FileRemoved(f"file {number} was removed") from None
            raise CorruptData(f"{self._name_of(number)} is missing") from None
        except DiskFailed as error:  # nothing was written, so only this file is affected
            raise CorruptData(f"{self._name_of(number)} cannot be opened: {error}") from error
        file = self._open_files.setdefault(number, opened)
        if file is not opened:  # another task has opened the file first
            opened.close()
        if len(self._open_files) > self._open_max:
            _, oldest = self._open_files.popitem(last=False)
            oldest.close()
        return file

    def mark_removed(self, number: int) -> None:
        """Close a file that is about to be deleted."""
        self._removed_files[number] = None
        if len(self._removed_files) > REMOVED_FILES_MAX:
            self._removed_files.popitem(last=False)
        file = self._open_files.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files."""
        while self._open_files:
            self._open_files.popitem()[1].close()


class EntryReader:
    """Finds entry records by ledger and entry, and collects them for replies."""

    def __init__(self, buffer: JournalBuffer, files: JournalFiles, index: Index) -> None:
        self._buffer = buffer
        self._files = files
        self._index = index
        self._resume_offsets: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """(ledger, entry) -> (file, offset) at which a reply ended within an extent, and the next
        one begins."""

    def collect(
        self,
        ledger: Ledger,
        first: int,
        last: int,
        bytes_max: int,
        extent: LoadedExtent | None = None,
    ) -> CollectedEntries:
        """Collect the durable records ``first`` to ``last`` (inclusive) that need no read from the device.

        At most `EXTENTS_PER_REPLY_MAX` extents are examined. Entries that are not stored are skipped. See
        `CollectedEntries` for the entries that are complete (H9).

        Args:
            bytes_max: The maximum bytes of the records. A longer first record is returned alone.
            extent: Bytes that were read from the device before, or None.
        Raises:
            CorruptData: The journal has other records than the index, or a file is too short.
        """
        collected = CollectedEntries([], first - 1, 0)
        sources = ReadSources(self._read_cached, collected.parts, extent)
        entry = first
        while entry <= last and collected.extents_examined < EXTENTS_PER_REPLY_MAX:
            collected.extents_examined += 1
            location = self._index.find(ledger, entry)
            if location is None:
                next_location = self._index.find_next(ledger, entry)
                if next_location is None or next_location.first > last:
                    collected.complete_to = last
                    break
                location, entry = next_location, next_location.first
                collected.complete_to = entry - 1
            if entry > location.first:
                location = self._from_resume_offset(ledger, location, entry)
            bytes_left = bytes_max - collected.size_bytes
            # Estimated by the mean record size: do not read an extent of which no record is likely to fit.
            if collected.parts and location.length > bytes_left * location.count:
                break
            prefetch_bytes = bytes_to_read(location, entry, last, bytes_left)
            record_slice = self._append_slice(
                collected, sources, ledger, location, entry, last, bytes_left, prefetch_bytes
            )
            if record_slice is not None and record_slice.last_entry < entry:
                if collected.parts or not record_slice.is_truncated:
                    break
                # The first record is longer than the others of its extent: read the whole extent.
                record_slice = self._append_slice(
                    collected, sources, ledger, location, entry, last, bytes_left, location.length
                )
            if record_slice is None:
                collected.device_extent = location
                break
            if record_slice.last_entry < entry:
                break
            collected.complete_to = last_entry = record_slice.last_entry
            entry = last_entry + 1
            if last_entry < location.last:
                self._record_resume_offset(
                    ledger, entry, location.file_number, location.offset + record_slice.end_offset
                )
                if last_entry < last and not record_slice.is_truncated:
                    break
        sources.copy_small_parts()
        return collected

    def _append_slice(
        self,
        collected: CollectedEntries,
        sources: ReadSources,
        ledger: Ledger,
        extent: ExtentLocation,
        first: int,
        last: int,
        remaining_bytes: int,
        prefetch_bytes: int,
    ) -> RecordSlice | None:
        """Append records from the first ``prefetch_bytes`` of an extent; None if the device must be read."""
        at_least_one = not collected.parts
        source: ReadSource | None = None
        view = self._buffer.find_bytes(extent.file_number, extent.offset, extent.length)
        from_ring = view is not None
        if view is None:
            needed = min(prefetch_bytes, extent.length)
            enough = (
                needed if at_least_one or first > extent.first else extent.length // extent.count
            )
            loaded = sources.find_source(extent, min(enough, needed), needed, prefetch_bytes)
            if loaded is None:
                return None
            source, view = loaded
        try:
            record_slice = slice_extent(
                view, ledger.id, extent, first, last, remaining_bytes, at_least_one
            )
        except CorruptData:
            self._resume_offsets.pop((ledger.id, first), None)  # the offset may have been wrong
            raise
        if record_slice.last_entry >= first:
            if source is not None:
                source.record_part(len(collected.parts), len(record_slice.records))
            # The buffer ring will be overwritten, unlike loaded bytes.
            collected.parts.append(
                bytes(record_slice.records) if from_ring else record_slice.records
            )
            collected.size_bytes += len(record_slice.records)
        return record_slice

    def _from_resume_offset(
        self, ledger: Ledger, extent: ExtentLocation, entry: int
    ) -> ExtentLocation:
        """Return the part of the extent from ``entry`` on if its offset is known, otherwise the extent."""
        resume_point = self._resume_offsets.get((ledger.id, entry))
        if resume_point is None or resume_point[0] != extent.file_number:
            return extent
        skipped_bytes = resume_point[1] - extent.offset
        if not 0 < skipped_bytes < extent.length:
            return extent
        count = extent.count - (entry - extent.first)
        return ExtentLocation(
            entry, count, extent.file_number, resume_point[1], extent.length - skipped_bytes
        )

    def _record_resume_offset(
        self, ledger: Ledger, entry: int, file_number: int, offset: int
    ) -> None:
        """Remember the offset of ``entry``, at which a sequential reader continues."""
        self._resume_offsets[(ledger.id, entry)] = (file_number, offset)
        if len(self._resume_offsets) > RESUME_OFFSETS_MAX:
            self._resume_offsets.popitem(last=False)

    def _read_cached(
        self, extent: ExtentLocation, bytes_min: int, bytes_max: int
    ) -> LoadedExtent | None:
        """Read an extent from the page cache: at least ``bytes_min``, if possible ``bytes_max`` bytes.

        Returns:
            None if the device must be read.
        """
        file = self._files.get(extent.file_number)
        if file is None:
            return None
        length = max(bytes_min, min(bytes_max, CACHED_READ_BYTES_MAX))
        data = file.read_if_cached(extent.offset, length)
        if data is None and length > bytes_min:
            data = file.read_if_cached(extent.offset, bytes_min)
        if data is None:
            return None
        if len(data) < bytes_min:
            raise CorruptData(f"file {extent.file_number} ends before {extent.offset + bytes_min}")
        return LoadedExtent(extent.file_number, extent.offset, data)

    def loaded_view(
        self, location: ExtentLocation, extent: LoadedExtent | None
    ) -> memoryview | None:
        """Return the bytes of an extent, valid until the next ``await``; None if the device must be read."""
        view = self._buffer.find_bytes(location.file_number, location.offset, location.length)
        if view is None and extent is not None:
            view = extent.find_bytes(location.file_number, location.offset, location.length)
        if view is None:
            cached = self._read_cached(location, location.length, 0)
            view = (
                cached.find_bytes(location.file_number, location.offset, location.length)
                if cached
                else None
            )
        return view


OnExtent = Callable[[LoadedExtent | DistributedLogError], None]


@dataclass(slots=True)
class _DeviceRead:
    file_number: int
    offset: int
    length: int
    on_loaded: OnExtent


class DeviceReader:
    """Reads extents from the device, a few at a time, for all connections in turn."""

    def __init__(self, files: JournalFiles, options: BookieOptions, failures: WorkFailures) -> None:
        self._files = files
        self._failures = failures
        self._options = options
        self._reads_by_owner: OrderedDict[object, deque[_DeviceRead]] = OrderedDict()
        self._wake = trio.Event()
        self.extents_read = 0

    def submit(
        self, owner: object, file_number: int, offset: int, length: int, on_loaded: OnExtent
    ) -> None:
        """Read at least ``length`` bytes, and call ``on_loaded`` with them or with the error.

        ``on_loaded`` is never called before this returns. ``owner`` is the connection. After a read for one
        connection, the others follow first.

        Raises:
            TooBusy: Too many reads of this connection wait.
        """
        owner_reads = self._reads_by_owner.get(owner) or deque()
        if len(owner_reads) >= self._options.reads_waiting_max:
            raise TooBusy(f"{len(owner_reads)} reads from the device wait on this connection")
        length = max(length, self._options.cold_read_bytes)
        owner_reads.append(_DeviceRead(file_number, offset, length, on_loaded))
        self._reads_by_owner[owner] = owner_reads
        self._wake.set()

    def cancel(self, owner: object) -> None:
        """Drop the reads of a closed connection."""
        self._reads_by_owner.pop(owner, None)

    async def run(self) -> None:
        """Read until cancelled. An error of one file is reported to its readers only."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._options.cold_readers):
                nursery.start_soon(
                    self._failures.keep_running, "reads from the device", self._read_loop
                )

    async def _read_loop(self) -> None:
        while True:
            if not self._reads_by_owner:
                self._wake = trio.Event() if self._wake.is_set() else self._wake
                await self._wake.wait()
                continue
            owner, owner_reads = self._reads_by_owner.popitem(last=False)
            request = owner_reads.popleft()
            if owner_reads:
                self._reads_by_owner[owner] = owner_reads  # at the end, behind other connections
            result: LoadedExtent | DistributedLogError
            try:
                file = await self._files.open(request.file_number)
                data = await file.read_in_worker(request.offset, request.length)
                self.extents_read += 1
                result = LoadedExtent(request.file_number, request.offset, data)
            except FileRemoved:  # look it up again
                result = LoadedExtent(request.file_number, request.offset, b"")
            except (CorruptData, TooBusy) as error:
                result = error
            except DistributedLogError:
                raise
            except Exception as error:  # the waiting request gets an answer
                request.on_loaded(TooBusy(f"the read failed unexpectedly: {type(error).__name__}"))
                raise
            request.on_loaded(result)
