"""All ledgers' states in one file, so that not every journal file begins with them (H88).

    states-000000000007     STATE control records, 48 bytes each, by ledger id; as of a position of the index

A journal file's head names one such *base*, by number, count and digest: then it begins with no states, and
the journal from the base's position on is kept, whatever is dead in it. The index has the states as well: a
base is read where that is lost. Only the one that the newest head names counts; one that cannot be read
claims nothing: an older one would have forgotten fences.
"""

from collections.abc import AsyncIterator

import xxhash

from ...runtime.interfaces.errors import CorruptData, DiskFailed, DiskFull, TooBusy
from ...runtime.interfaces.host import Disk
from ...runtime.interfaces.log_lines import get_logger
from ..disk.bookie_disk_space import BookieDiskSpace
from ..format import journal_format as jb
from ..format.index_format import IndexDamaged
from ..ledgers.ledger_table import LedgerTable
from .index import Index
from .journal import Journal

FILE_PREFIX = "states-"
STATE_BYTES_MIN = 1024 * 1024
"""Fewer states than this, 21,845 ledgers, stand in each journal file's head."""
INTERVAL_BYTES_MIN = 256 * 1024 * 1024
"""Written between two bases, at least."""
RECORDS_PER_CHUNK = 20_000
"""Nearly a MiB: written, and read, at a time."""

log = get_logger("distributedlog.bookie.storage.ledger_state_snapshot")


def snapshot_file_name(number: int) -> str:
    """The name of base ``number``, which counts from 1."""
    return f"{FILE_PREFIX}{number:012d}"


def snapshot_file_numbers(disk: Disk) -> list[int]:
    """Of the files that may be bases, ascending."""
    names = (name.removeprefix(FILE_PREFIX) for name in disk.list() if name.startswith(FILE_PREFIX))
    return [int(digits) for digits in names if len(digits) == 12 and digits.isdecimal()]


async def write_snapshot(
    disk: Disk, number: int, position: int, seed: int, states: AsyncIterator[bytes]
) -> jb.StateSnapshotRef:
    """Write a base of these STATE records, which come by ledger id, and read it back.

    Raises `DiskFull`, `DiskFailed`, `CorruptData` where it reads back otherwise; then nothing names it.
    """
    file = await disk.create(snapshot_file_name(number))
    try:
        digest = xxhash.xxh3_64(seed=seed)
        count = 0
        chunk: list[bytes] = []

        def put() -> None:
            nonlocal count
            data = b"".join(chunk)
            file.write_at(count * jb.CONTROL_BYTES, (data,))
            digest.update(data)
            count += len(chunk)
            chunk.clear()

        async for state in states:
            chunk.append(state)
            if len(chunk) == RECORDS_PER_CHUNK:
                put()
        put()
        await file.sync()
    finally:
        file.close()
    snapshot = jb.StateSnapshotRef(number, position, count, digest.intdigest())
    async for _ in _read_chunks(disk, snapshot, seed):
        pass
    return snapshot


async def read_snapshot(disk: Disk, snapshot: jb.StateSnapshotRef, seed: int) -> list[bytes]:
    """Its STATE records, some in each. Raises `CorruptData`: all of it is sound, or nothing counts."""
    return [chunk async for chunk in _read_chunks(disk, snapshot, seed)]


async def _read_chunks(
    disk: Disk, snapshot: jb.StateSnapshotRef, seed: int
) -> AsyncIterator[bytes]:
    name = snapshot_file_name(snapshot.file_number)
    try:
        file = await disk.open(name)
    except (FileNotFoundError, DiskFailed) as error:
        raise CorruptData(f"{name} cannot be opened: {error}") from error
    try:
        if file.size() != snapshot.state_count * jb.CONTROL_BYTES:
            raise CorruptData(
                f"{name} has {file.size()} bytes and should hold {snapshot.state_count} states"
            )
        digest = xxhash.xxh3_64(seed=seed)
        for first in range(0, snapshot.state_count, RECORDS_PER_CHUNK):
            count = min(RECORDS_PER_CHUNK, snapshot.state_count - first)
            data = await file.read_in_worker(first * jb.CONTROL_BYTES, count * jb.CONTROL_BYTES)
            digest.update(data)
            yield data
        if digest.intdigest() != snapshot.digest:
            raise CorruptData(f"{name} does not fit its digest")
    finally:
        file.close()


async def snapshot_exists(disk: Disk, snapshot: jb.StateSnapshotRef) -> bool:
    """Is there a file of its length? It was read when it was made, and is read where it is needed."""
    try:
        file = await disk.open(snapshot_file_name(snapshot.file_number))
    except (FileNotFoundError, DiskFailed):
        return False
    try:
        return file.size() == snapshot.state_count * jb.CONTROL_BYTES
    finally:
        file.close()


class LedgerStateSnapshots:
    """The bases of one bookie: when a new one is made, and which ones go."""

    def __init__(
        self,
        disk: Disk,
        journal: Journal,
        index: Index,
        ledgers: LedgerTable,
        space: BookieDiskSpace,
    ) -> None:
        self._disk = disk
        self._journal = journal
        self._index = index
        self._ledgers = ledgers
        self._space = space
        self._device_bytes_at_last = 0
        """`JournalCounters.device_bytes` when the last one was made, or this start began."""

    @property
    def is_due(self) -> bool:
        """Are there so many states that heads should not repeat them, and is the last base old?

        Old: eight times its bytes were written since, which a lost index makes the next start read.
        """
        states = self._ledgers.known_count + self._ledgers.tombstone_count
        if states * jb.CONTROL_BYTES < STATE_BYTES_MIN:
            return False
        snapshot, written_bytes = (
            self._journal.state_snapshot,
            self._journal.counters.device_bytes - self._device_bytes_at_last,
        )
        if snapshot is None:
            return True
        if self._space.read_only:  # files that hold nothing else may wait for it
            return written_bytes >= STATE_BYTES_MIN
        return written_bytes >= max(INTERVAL_BYTES_MIN, 8 * snapshot.state_count * jb.CONTROL_BYTES)

    async def write_next(self, position: int) -> None:
        """Write one of what the index's map has: all before ``position``. Nobody changes the map meanwhile.

        The next file's head names it. One that finds no room, or does not read back, is given up: heads go
        on as before, and a later one is tried. Raises `DiskFailed`, `IndexDamaged`.
        """
        written = self._journal.counters.device_bytes
        number = max((0, *snapshot_file_numbers(self._disk))) + 1
        try:
            self._journal.state_snapshot = await write_snapshot(
                self._disk, number, position, self._journal.seed, self._index.state_records()
            )
        except IndexDamaged:
            raise  # it has nothing to do with the base: the node ends, and builds the index again
        except (CorruptData, DiskFull, TooBusy) as error:
            log.warning("the states of all ledgers are not written anew: %s", error)
            if snapshot_file_name(number) in self._disk.list():
                await self._disk.delete(snapshot_file_name(number))
        self._device_bytes_at_last = written

    async def remove_old(self) -> None:
        """A head that is durable names a newer one: the older ones go."""
        named_snapshot = self._journal.head_snapshot
        if named_snapshot is None:
            return
        old = [
            number
            for number in snapshot_file_numbers(self._disk)
            if number < named_snapshot.file_number
        ]
        if old:
            await self._disk.delete(*map(snapshot_file_name, old))
