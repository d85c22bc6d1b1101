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

PREFIX = "states-"
STATE_BYTES_MIN = 1024 * 1024
"""Fewer states than this, 21,845 ledgers, stand in each journal file's head."""
JOURNAL_BYTES_MIN = 256 * 1024 * 1024
"""Written between two bases, at least."""
RECORDS_AT_ONCE = 20_000
"""Nearly a MiB: written, and read, at a time."""

log = get_logger("distributedlog.bookie.storage.ledger_state_snapshot")


def base_name(number: int) -> str:
    """The name of base ``number``, which counts from 1."""
    return f"{PREFIX}{number:012d}"


def base_numbers(disk: Disk) -> list[int]:
    """Of the files that may be bases, ascending."""
    names = (name.removeprefix(PREFIX) for name in disk.list() if name.startswith(PREFIX))
    return [int(digits) for digits in names if len(digits) == 12 and digits.isdecimal()]


async def write_base(
    disk: Disk, number: int, position: int, seed: int, states: AsyncIterator[bytes]
) -> jb.Base:
    """Write a base of these STATE records, which come by ledger id, and read it back.

    Raises `DiskFull`, `DiskFailed`, `CorruptData` where it reads back otherwise; then nothing names it.
    """
    file = await disk.create(base_name(number))
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
            if len(chunk) == RECORDS_AT_ONCE:
                put()
        put()
        await file.sync()
    finally:
        file.close()
    base = jb.Base(number, position, count, digest.intdigest())
    async for _ in _chunks(disk, base, seed):
        pass
    return base


async def read_base(disk: Disk, base: jb.Base, seed: int) -> list[bytes]:
    """Its STATE records, some in each. Raises `CorruptData`: all of it is sound, or nothing counts."""
    return [chunk async for chunk in _chunks(disk, base, seed)]


async def _chunks(disk: Disk, base: jb.Base, seed: int) -> AsyncIterator[bytes]:
    name = base_name(base.number)
    try:
        file = await disk.open(name)
    except (FileNotFoundError, DiskFailed) as error:
        raise CorruptData(f"{name} cannot be opened: {error}") from error
    try:
        if file.size() != base.count * jb.CONTROL_BYTES:
            raise CorruptData(f"{name} has {file.size()} bytes and should hold {base.count} states")
        digest = xxhash.xxh3_64(seed=seed)
        for first in range(0, base.count, RECORDS_AT_ONCE):
            count = min(RECORDS_AT_ONCE, base.count - first)
            data = await file.read_cold(first * jb.CONTROL_BYTES, count * jb.CONTROL_BYTES)
            digest.update(data)
            yield data
        if digest.intdigest() != base.digest:
            raise CorruptData(f"{name} does not fit its digest")
    finally:
        file.close()


async def is_there(disk: Disk, base: jb.Base) -> bool:
    """Is there a file of its length? It was read when it was made, and is read where it is needed."""
    try:
        file = await disk.open(base_name(base.number))
    except (FileNotFoundError, DiskFailed):
        return False
    try:
        return file.size() == base.count * jb.CONTROL_BYTES
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
        self._made_at = 0
        """`JournalCounters.device_bytes` when the last one was made, or this start began."""

    @property
    def wanted(self) -> bool:
        """Are there so many states that heads should not repeat them, and is the last base old?

        Old: eight times its bytes were written since, which a lost index makes the next start read.
        """
        states = self._ledgers.known + self._ledgers.tombstones
        if states * jb.CONTROL_BYTES < STATE_BYTES_MIN:
            return False
        base, written = self._journal.base, self._journal.counters.device_bytes - self._made_at
        if base is None:
            return True
        if self._space.read_only:  # files that hold nothing else may wait for it
            return written >= STATE_BYTES_MIN
        return written >= max(JOURNAL_BYTES_MIN, 8 * base.count * jb.CONTROL_BYTES)

    async def make(self, position: int) -> None:
        """Write one of what the index's map has: all before ``position``. Nobody changes the map meanwhile.

        The next file's head names it. One that finds no room, or does not read back, is given up: heads go
        on as before, and a later one is tried. Raises `DiskFailed`, `IndexDamaged`.
        """
        written = self._journal.counters.device_bytes
        number = max((0, *base_numbers(self._disk))) + 1
        try:
            self._journal.base = await write_base(
                self._disk, number, position, self._journal.seed, self._index.states()
            )
        except IndexDamaged:
            raise  # it has nothing to do with the base: the node ends, and builds the index again
        except (CorruptData, DiskFull, TooBusy) as error:
            log.warning("the states of all ledgers are not written anew: %s", error)
            if base_name(number) in self._disk.list():
                await self._disk.delete(base_name(number))
        self._made_at = written

    async def remove_old(self) -> None:
        """A head that is durable names a newer one: the older ones go."""
        named = self._journal.named_base
        if named is None:
            return
        old = [number for number in base_numbers(self._disk) if number < named.number]
        if old:
            await self._disk.delete(*map(base_name, old))
