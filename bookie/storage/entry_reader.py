"""Reading back: from the gather ring, from the page cache, or by a worker when the device must be asked.

A reply is memory of its own, filled within one synchronous call, so that no buffer, file or page is pinned
while a slow reader takes its time (H16). What is hot is read in one piece, as far as the reply may go: runs
that follow each other in the journal cost one system call and no copy in this process. What is cold is read
in extents of a megabyte by a few tasks, a connection at a time, never on the loop.
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
from ..format.read_sources import LoadedExtent, ReadSource, ReadSources, wanted_bytes
from ..format.record_slices import RecordSlice, cut
from ..ledgers.ledger_table import Ledger
from .index import Index
from .journal_buffer import JournalBuffer

HOT_BYTES_MAX = 2 * 1024 * 1024
"""Read at once from the page cache for one reply."""
RUNS_MAX = 256
"""Looked at for one reply: 10,922 of one record each held the loop for 0.3 s."""
REMOVED_MAX = 4096
"""Files; a read waits for the device for seconds at most."""
MARKS_MAX = 1024
"""Readers in sequence whose place within a run is known."""


@dataclass(slots=True)
class Collected:
    """What a read found. ``complete_to``: all that is here of the asked ids up to it is in ``parts``."""

    parts: list[bytes | memoryview]
    complete_to: int
    size: int
    cold: ExtentLocation | None = None
    """Where it stopped because the device must be asked."""
    runs: int = 0
    """How many it looked at."""


class FileRemoved(CorruptData):
    """The file was removed since it was looked for: what is live lies elsewhere, says the index."""


class JournalFiles:
    """Journal and cold files open for reading, the last used ones kept."""

    def __init__(self, disk: Disk, name_of: Callable[[int], str], open_max: int) -> None:
        self._disk = disk
        self._name_of = name_of
        self._open_max = open_max
        self._open: OrderedDict[int, File] = OrderedDict()
        self._removed: OrderedDict[int, None] = OrderedDict()
        """Of the files that this process has removed, the last ones."""

    def get(self, number: int) -> File | None:
        """The file if it is open."""
        file = self._open.get(number)
        if file is not None:
            self._open.move_to_end(number)
        return file

    async def open(self, number: int) -> File:
        """The file. Raises `CorruptData` where it is gone or cannot be opened: the index named it.

        `FileRemoved` where it was given up here, `TooBusy` for a lack of descriptors.
        """
        file = self.get(number)
        if file is not None:
            return file
        try:
            opened = await self._disk.open(self._name_of(number))
        except FileNotFoundError:
            if number in self._removed:
                raise FileRemoved(f"file {number} was removed") from None
            raise CorruptData(f"{self._name_of(number)} is gone") from None
        except DiskFailed as error:  # nothing was written: what is wrong is this one file
            raise CorruptData(f"{self._name_of(number)} cannot be opened: {error}") from error
        file = self._open.setdefault(number, opened)
        if file is not opened:  # another task was quicker
            opened.close()
        if len(self._open) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return file

    def forget(self, number: int) -> None:
        """The file is about to be deleted."""
        self._removed[number] = None
        if len(self._removed) > REMOVED_MAX:
            self._removed.popitem(last=False)
        file = self._open.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()


class EntryReader:
    """Finds entry records by (ledger, entry) and copies them out."""

    def __init__(self, ring: JournalBuffer, files: JournalFiles, index: Index) -> None:
        self._ring = ring
        self._files = files
        self._index = index
        self._marks: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """(ledger, entry) -> (file, offset) where a reply ended within a run: the next one begins there."""

    def collect(
        self,
        ledger: Ledger,
        first: int,
        last: int,
        bytes_max: int,
        extent: LoadedExtent | None = None,
    ) -> Collected:
        """Copy the durable records first..last (inclusive), at least one, at most ``bytes_max``.

        A longer first record comes alone; at most `RUNS_MAX` runs are looked at. Absent ids are passed
        over; see `Collected` for what is complete (H9). Raises `CorruptData` where the journal does not hold
        what the index says.
        """
        found = Collected([], first - 1, 0)
        sources = ReadSources(self._read_hot, found.parts, extent)
        entry = first
        while entry <= last and found.runs < RUNS_MAX:
            found.runs += 1
            run = self._index.find(ledger, entry)
            if run is None:
                following = self._index.following(ledger, entry)
                if following is None or following.first > last:
                    found.complete_to = last
                    break
                run, entry = following, following.first
                found.complete_to = entry - 1
            if entry > run.first:
                run = self._from_mark(ledger, run, entry)
            left = bytes_max - found.size
            # The mean of its records: one that might still fit is not worth reading what does not.
            if found.parts and run.length > left * run.count:
                break
            wanted = wanted_bytes(run, entry, last, left)
            taken = self._take(found, sources, ledger, run, entry, last, left, wanted)
            if taken is not None and taken.upto < entry and taken.short and not found.parts:
                # The first one is longer than the others of its run: whatever it takes.
                taken = self._take(found, sources, ledger, run, entry, last, left, run.length)
            if taken is None:
                found.cold = run
                break
            if taken.upto < entry:
                break
            found.complete_to = upto = taken.upto
            entry = upto + 1
            if upto < run.last:
                self._mark(ledger, entry, run.file_number, run.offset + taken.end)
                if upto < last and not taken.short:
                    break
        sources.release_waste()
        return found

    def _take(
        self,
        found: Collected,
        sources: ReadSources,
        ledger: Ledger,
        run: ExtentLocation,
        first: int,
        last: int,
        left: int,
        wanted: int,
    ) -> RecordSlice | None:
        """Append records of a run from its first ``wanted`` bytes; None where the device must be asked."""
        at_least_one = not found.parts
        source: ReadSource | None = None
        view = self._ring.find(run.file_number, run.offset, run.length)
        from_ring = view is not None
        if view is None:
            needed = min(wanted, run.length)
            enough = needed if at_least_one or first > run.first else run.length // run.count
            read = sources.find(run, min(enough, needed), needed, wanted)
            if read is None:
                return None
            source, view = read
        try:
            taken = cut(view, ledger.id, run, first, last, left, at_least_one)
        except CorruptData:
            self._marks.pop((ledger.id, first), None)  # it may have been that which is wrong
            raise
        if taken.upto >= first:
            if source is not None:
                source.note(len(found.parts), len(taken.part))
            # The ring is written again, an extent is not.
            found.parts.append(bytes(taken.part) if from_ring else taken.part)
            found.size += len(taken.part)
        return taken

    def _from_mark(self, ledger: Ledger, run: ExtentLocation, entry: int) -> ExtentLocation:
        """The run's part from ``entry`` on, where a reply ended just before it; else the run."""
        mark = self._marks.get((ledger.id, entry))
        if mark is None or mark[0] != run.file_number:
            return run
        skipped = mark[1] - run.offset
        if not 0 < skipped < run.length:
            return run
        count = run.count - (entry - run.first)
        return ExtentLocation(entry, count, run.file_number, mark[1], run.length - skipped)

    def _mark(self, ledger: Ledger, entry: int, file_number: int, offset: int) -> None:
        """Whoever reads in sequence goes on at ``entry``: not from the run's beginning again."""
        self._marks[(ledger.id, entry)] = (file_number, offset)
        if len(self._marks) > MARKS_MAX:
            self._marks.popitem(last=False)

    def _read_hot(self, run: ExtentLocation, needed: int, wanted: int) -> LoadedExtent | None:
        """``needed`` bytes of the run and, as far as ``wanted`` goes, more; None: ask the device."""
        file = self._files.get(run.file_number)
        if file is None:
            return None
        length = max(needed, min(wanted, HOT_BYTES_MAX))
        data = file.read_hot(run.offset, length)
        if data is None and length > needed:
            data = file.read_hot(run.offset, needed)
        if data is None:
            return None
        if len(data) < needed:
            raise CorruptData(f"file {run.file_number} ends before {run.offset + needed}")
        return LoadedExtent(run.file_number, run.offset, data)

    def view(self, run: ExtentLocation, extent: LoadedExtent | None) -> memoryview | None:
        """The bytes of a run, to be used before the next ``await``; None: the device must be asked."""
        here = self._ring.find(run.file_number, run.offset, run.length)
        if here is None and extent is not None:
            here = extent.find(run.file_number, run.offset, run.length)
        if here is None:
            hot = self._read_hot(run, run.length, 0)
            here = hot.find(run.file_number, run.offset, run.length) if hot else None
        return here


OnExtent = Callable[[LoadedExtent | DistributedLogError], None]


@dataclass(slots=True)
class _Order:
    file_number: int
    offset: int
    length: int
    done: OnExtent


class ColdReader:
    """Reads extents from the device, a few at a time, the connections in turn."""

    def __init__(self, files: JournalFiles, options: BookieOptions, failures: WorkFailures) -> None:
        self._files = files
        self._failures = failures
        self._options = options
        self._orders: OrderedDict[object, deque[_Order]] = OrderedDict()
        self._wake = trio.Event()
        self.extents = 0

    def submit(
        self, owner: object, file_number: int, offset: int, length: int, done: OnExtent
    ) -> None:
        """Read at least ``length`` bytes; ``done`` gets them, or the error. ``owner``: whose turn it is.

        Raises `TooBusy`. ``done`` is never called before this returns: who asks is in the middle of it.
        """
        orders = self._orders.get(owner) or deque()
        if len(orders) >= self._options.reads_waiting_max:
            raise TooBusy(f"{len(orders)} reads from the device wait on this connection")
        length = max(length, self._options.cold_read_bytes)
        orders.append(_Order(file_number, offset, length, done))
        self._orders[owner] = orders
        self._wake.set()

    def forget(self, owner: object) -> None:
        """The connection is gone."""
        self._orders.pop(owner, None)

    async def run(self) -> None:
        """Read until cancelled. What one file lacks is told to those who read in it."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._options.cold_readers):
                nursery.start_soon(self._failures.keep, "reads from the device", self._read)

    async def _read(self) -> None:
        while True:
            if not self._orders:
                self._wake = trio.Event() if self._wake.is_set() else self._wake
                await self._wake.wait()
                continue
            owner, orders = self._orders.popitem(last=False)
            order = orders.popleft()
            if orders:
                self._orders[owner] = orders  # to the end: the others come first
            answer: LoadedExtent | DistributedLogError
            try:
                file = await self._files.open(order.file_number)
                data = await file.read_cold(order.offset, order.length)
                self.extents += 1
                answer = LoadedExtent(order.file_number, order.offset, data)
            except FileRemoved:  # look it up again
                answer = LoadedExtent(order.file_number, order.offset, b"")
            except (CorruptData, TooBusy) as error:
                answer = error
            except DistributedLogError:
                raise
            except Exception as error:  # the waiting request gets an answer
                order.done(TooBusy(f"the read failed unexpectedly: {type(error).__name__}"))
                raise
            order.done(answer)
