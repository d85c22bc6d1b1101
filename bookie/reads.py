"""Reading back: from the gather ring, from the page cache, or by a worker when the device must be asked.

A reply is memory of its own, filled within one synchronous call, so that no buffer, file or page is pinned
while a slow reader takes its time (H16). What is hot is read in one piece, as far as the reply may go: runs
that follow each other in the journal cost one system call and no copy in this process. What is cold is read
in stretches of a megabyte by a few tasks, a connection at a time, never on the loop (H37).
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..runtime.errors import CorruptData, DistributedLogError, TooBusy
from ..runtime.host import Buffer, Disk, File
from . import entry as entries
from .gather import GatherRing
from .index import Index
from .journal import file_name
from .ledgers import Ledger
from .options import BookieOptions
from .runs import Located

HOT_BYTES_MAX = 1024 * 1024
"""Read at once from the page cache for one reply."""
MARKS_MAX = 1024
"""Readers in sequence whose place within a run is known."""
NEAR_BYTES = 64 * 1024
"""A gap between two runs of a ledger that is cheaper to read than to step over."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a journal file, in memory of their own."""

    file_number: int
    offset: int
    data: Buffer

    def find(self, file_number: int, offset: int, length: int) -> memoryview | None:
        """A part of it, or None."""
        start = offset - self.offset
        if file_number != self.file_number or start < 0 or start + length > len(self.data):
            return None
        return memoryview(self.data)[start : start + length]


@dataclass(slots=True)
class Collected:
    """What a read found. ``complete_to``: all that is here of the asked ids up to it is in ``parts``."""

    parts: list[bytes | memoryview]
    complete_to: int
    size: int
    cold: Located | None = None
    """Where it stopped because the device must be asked."""


class JournalFiles:
    """Journal files open for reading, the last used ones kept."""

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._open: OrderedDict[int, File] = OrderedDict()

    def get(self, number: int) -> File | None:
        """The file if it is open."""
        file = self._open.get(number)
        if file is not None:
            self._open.move_to_end(number)
        return file

    async def open(self, number: int) -> File:
        """The file. Raises `CorruptData` where it is gone: the index named it."""
        file = self.get(number)
        if file is not None:
            return file
        try:
            opened = await self._disk.open(file_name(number))
        except FileNotFoundError:
            raise CorruptData(f"journal file {number} is gone") from None
        file = self._open.setdefault(number, opened)
        if file is not opened:  # another task was quicker
            opened.close()
        if len(self._open) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return file

    def forget(self, number: int) -> None:
        """The file is about to be deleted."""
        file = self._open.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popitem()[1].close()


class Reader:
    """Finds entry records by (ledger, entry) and copies them out."""

    def __init__(self, ring: GatherRing, files: JournalFiles, index: Index) -> None:
        self._ring = ring
        self._files = files
        self._index = index
        self._marks: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """(ledger, entry) -> (file, offset) where a reply ended within a run: the next one begins there."""

    def collect(
        self, ledger: Ledger, first: int, last: int, bytes_max: int, stretch: Stretch | None = None
    ) -> Collected:
        """Copy the durable records first..last (inclusive), at least one, at most ``bytes_max``.

        A longer first record comes alone. Absent ids are passed over; see `Collected` for what is
        complete (H9). Raises `CorruptData` where the journal does not hold what the index says.
        """
        found = Collected([], first - 1, 0)
        hot: Stretch | None = None
        hot_parts = 0
        """Where the parts of ``hot`` begin."""
        entry = first
        while entry <= last:
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
            if found.parts and left <= 0:
                break
            view = self._ring.find(run.file_number, run.offset, run.length)
            from_ring = view is not None
            if view is None and stretch is not None:
                view = stretch.find(run.file_number, run.offset, run.length)
            if view is None:
                view = hot.find(run.file_number, run.offset, run.length) if hot else None
                if view is None:
                    wanted = _worth_reading(run, hot, left)
                    _release_waste(found, hot, hot_parts)
                    hot, hot_parts = self._read_hot(run, wanted), len(found.parts)
                    view = hot.find(run.file_number, run.offset, run.length) if hot else None
            if view is None:
                found.cold = run
                break
            try:
                part, upto, end = _cut(view, ledger.id, run, entry, last, left, not found.parts)
            except CorruptData:
                self._marks.pop((ledger.id, entry), None)  # it may have been that which is wrong
                raise
            if upto < entry:
                break
            # The ring is written again; a stretch is not, but a small part must not pin much of it.
            small = 2 * len(part) < run.length
            found.parts.append(bytes(part) if from_ring or small else part)
            found.size += len(part)
            found.complete_to = upto
            if upto < run.last:
                self._mark(ledger, upto + 1, run.file_number, run.offset + end)
            if upto < min(run.last, last):
                break
            entry = upto + 1
        _release_waste(found, hot, hot_parts)
        _release_waste(found, stretch, 0)
        return found

    def _from_mark(self, ledger: Ledger, run: Located, entry: int) -> Located:
        """The run's part from ``entry`` on, where a reply ended just before it; else the run."""
        mark = self._marks.get((ledger.id, entry))
        if mark is None or mark[0] != run.file_number:
            return run
        skipped = mark[1] - run.offset
        if not 0 < skipped < run.length:
            return run
        count = run.count - (entry - run.first)
        return Located(entry, count, run.file_number, mark[1], run.length - skipped)

    def _mark(self, ledger: Ledger, entry: int, file_number: int, offset: int) -> None:
        """Whoever reads in sequence goes on at ``entry``: not from the run's beginning again."""
        self._marks[(ledger.id, entry)] = (file_number, offset)
        if len(self._marks) > MARKS_MAX:
            self._marks.popitem(last=False)

    def _read_hot(self, run: Located, wanted: int) -> Stretch | None:
        """The run and, as far as ``wanted`` bytes go, what lies behind it; None: ask the device."""
        file = self._files.get(run.file_number)
        if file is None:
            return None
        length = max(run.length, min(wanted, HOT_BYTES_MAX))
        data = file.read_hot(run.offset, length)
        if data is None and length > run.length:
            data = file.read_hot(run.offset, run.length)
        if data is None:
            return None
        if len(data) < run.length:
            raise CorruptData(f"journal file {run.file_number} ends before {run.offset}")
        return Stretch(run.file_number, run.offset, data)

    def view(self, run: Located, stretch: Stretch | None) -> memoryview | None:
        """The bytes of a run, to be used before the next ``await``; None: the device must be asked."""
        here = self._ring.find(run.file_number, run.offset, run.length)
        if here is None and stretch is not None:
            here = stretch.find(run.file_number, run.offset, run.length)
        if here is None:
            hot = self._read_hot(run, 0)
            here = hot.find(run.file_number, run.offset, run.length) if hot else None
        return here


def _worth_reading(run: Located, before: Stretch | None, left: int) -> int:
    """How much to read from a run on: of a bookie's many ledgers the next run may lie far behind."""
    if 8 * run.length >= left:
        return left
    if before is None or before.file_number != run.file_number:
        return run.length
    gap = run.offset - before.offset - len(before.data)
    return min(left, 4 * len(before.data)) if -run.length < gap <= NEAR_BYTES else run.length


def _release_waste(found: Collected, stretch: Stretch | None, start: int) -> None:
    """Small parts must not pin a long stretch: what waits to be sent is bounded by its own bytes (H16)."""
    if stretch is None:
        return
    parts = found.parts
    if 2 * sum(len(part) for part in parts[start:]) < len(stretch.data):
        parts[start:] = [bytes(part) for part in parts[start:]]


def find_record(view: memoryview | bytes, ledger_id: int, run: Located, entry: int) -> memoryview:
    """The record of ``entry`` in a run's bytes, unverified. Raises `CorruptData`."""
    return _cut(memoryview(view), ledger_id, run, entry, entry, 0, True)[0]


def _cut(
    view: memoryview | bytes,
    ledger_id: int,
    run: Located,
    first: int,
    last: int,
    bytes_max: int,
    at_least_one: bool,
) -> tuple[memoryview, int, int]:
    """The records first..last of a run as far as they fit, the last id that did, where it ends.

    Digests are for the reader to check; ids and lengths must fit here, or nothing is believed.
    """
    view = memoryview(view)
    _check_header(view, 0, ledger_id, run.first)
    if first == run.first and run.last <= last and run.length <= bytes_max:
        return view, run.last, len(view)
    position, start, end = 0, 0, 0
    upto = first - 1
    for entry in range(run.first, min(run.last, last) + 1):
        length = _check_header(view, position, ledger_id, entry)
        if entry == first:
            start = end = position
        position += length
        if entry >= first:
            if position - start > bytes_max and not (at_least_one and entry == first):
                break
            end, upto = position, entry
    return view[start:end], upto, end


def _check_header(view: memoryview, position: int, ledger_id: int, entry: int) -> int:
    """The length of the record that must stand there. Raises `CorruptData`."""
    if len(view) - position >= entries.HEADER_BYTES:
        _, length, payload_bytes, _, _, _, ledger, number, _, _ = entries.HEADER.unpack_from(
            view, position
        )
        if (
            ledger == ledger_id
            and number == entry
            and length == entries.record_bytes(payload_bytes)
            and position + length <= len(view)
        ):
            return int(length)
    raise CorruptData(f"ledger {ledger_id} entry {entry}: the journal holds something else there")


OnStretch = Callable[[Stretch | DistributedLogError], None]


@dataclass(slots=True)
class _Order:
    file_number: int
    offset: int
    length: int
    done: OnStretch


class ColdReader:
    """Reads stretches from the device, a few at a time, the connections in turn."""

    def __init__(self, files: JournalFiles, options: BookieOptions) -> None:
        self._files = files
        self._options = options
        self._orders: OrderedDict[object, deque[_Order]] = OrderedDict()
        self._wake = trio.Event()
        self.stretches = 0

    def submit(
        self, owner: object, file_number: int, offset: int, length: int, done: OnStretch
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
        """Read until cancelled. What `DiskFailed` raises ends the node."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._options.cold_readers):
                nursery.start_soon(self._read)

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
            try:
                file = await self._files.open(order.file_number)
                data = await file.read_cold(order.offset, order.length)
            except CorruptData as error:
                order.done(error)
                continue
            self.stretches += 1
            order.done(Stretch(order.file_number, order.offset, data))
