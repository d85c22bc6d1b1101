"""The states of all ledgers in one file, so that journal files need not begin with all of them (H88).

The file of number 7, as of a position of the index::

    states-000000000007     STATE control records, 48 bytes each, by ledger ID

The head of a journal file names a snapshot by number, count and digest. Such a file begins without states;
only the first file of a start has those that the snapshot lacks. The journal from the snapshot's position on
is kept, even if it has no live records. The index has all states as well, so a snapshot is read only if the
index is lost. Only the one in the newest head is used. If it cannot be read, no older one replaces it,
because that could lack fences.
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
"""With fewer bytes of states (21,845 ledgers), each journal file begins with all of them."""
INTERVAL_BYTES_MIN = 256 * 1024 * 1024
"""The minimum number of bytes written to the journal between two snapshots."""
RECORDS_PER_CHUNK = 20_000
"""The records that are written or read at once: almost one MiB."""

log = get_logger("distributedlog.bookie.storage.ledger_state_snapshot")


def snapshot_file_name(number: int) -> str:
    """Return the name of a snapshot file. Numbers count from 1."""
    return f"{FILE_PREFIX}{number:012d}"


def snapshot_file_numbers(disk: Disk) -> list[int]:
    """Return the numbers of the files with the name of a snapshot, ascending."""
    names = (name.removeprefix(FILE_PREFIX) for name in disk.list() if name.startswith(FILE_PREFIX))
    return [int(digits) for digits in names if len(digits) == 12 and digits.isdecimal()]


async def write_snapshot(
    disk: Disk, number: int, position: int, seed: int, states: AsyncIterator[bytes]
) -> jb.StateSnapshotRef:
    """Write a snapshot of STATE records, which are given by ledger ID, and verify it by a read.

    Args:
        position: The sequence of the first block whose states are not in the snapshot.
    Raises:
        DiskFull: There is no space for the file.
        DiskFailed: The file could not be written.
        CorruptData: The file reads back differently.
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
    """Return the STATE records in chunks.

    Raises:
        CorruptData: The file is missing or damaged, so none of its records can be used.
    """
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
            raise CorruptData(f"{name} does not match its digest")
    finally:
        file.close()


async def snapshot_exists(disk: Disk, snapshot: jb.StateSnapshotRef) -> bool:
    """Whether the file exists in its full length. Its content was verified when it was written."""
    try:
        file = await disk.open(snapshot_file_name(snapshot.file_number))
    except (FileNotFoundError, DiskFailed):
        return False
    try:
        return file.size() == snapshot.state_count * jb.CONTROL_BYTES
    finally:
        file.close()


class LedgerStateSnapshots:
    """Decides when the snapshots of one bookie are written and removed."""

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
        """`JournalCounters.device_bytes` at the last snapshot, or 0 at the start."""

    @property
    def is_due(self) -> bool:
        """Whether the heads should not repeat the many states, and the last snapshot is old.

        It is old if eight times its size was written since. After the loss of the index, a start must read
        that much.
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
        if self._space.read_only:  # dead files may be kept only because of the last snapshot
            return written_bytes >= STATE_BYTES_MIN
        return written_bytes >= max(INTERVAL_BYTES_MIN, 8 * snapshot.state_count * jb.CONTROL_BYTES)

    async def write_next(self, position: int) -> None:
        """Write a snapshot of the index's map, which has all states before ``position``.

        The caller prevents changes of the map. The next file's head names the snapshot. If there is no space,
        or if it reads back differently, it is dropped: heads continue to name the previous one, and a later
        one is tried.

        Raises:
            DiskFailed: The disk failed.
            IndexDamaged: The index is damaged.
        """
        written = self._journal.counters.device_bytes
        number = max((0, *snapshot_file_numbers(self._disk))) + 1
        try:
            self._journal.state_snapshot = await write_snapshot(
                self._disk, number, position, self._journal.seed, self._index.state_records()
            )
        except IndexDamaged:
            raise  # not a fault of the snapshot: the node ends, and rebuilds the index
        except (CorruptData, DiskFull, TooBusy) as error:
            log.warning("no new snapshot of the ledger states was written: %s", error)
            if snapshot_file_name(number) in self._disk.list():
                await self._disk.delete(snapshot_file_name(number))
        self._device_bytes_at_last = written

    async def remove_old(self) -> None:
        """Remove snapshots that are older than the one in the current durable head."""
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
