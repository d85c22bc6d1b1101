"""A simulated disk: what the process sees lies in a page cache above durable 512-byte sectors.

- A write changes the cache; a sync takes virtual time and makes durable what was written before it began,
  nothing that was written while it ran (H10).
- A power cut leaves, of each write not yet covered, a random subset of its sectors: lost, torn, reordered.
  A kill leaves the cache.
- A failed sync (EIO) marks its pages clean: the cache shows them, the next sync succeeds, and they are
  gone at the next power cut (fsyncgate). `read_at` may show the durable bytes instead once they are evicted.
- Names: create, rename and delete return when the directory is synced; until then a power cut may undo them.
- A map is one synced transaction an apply: LMDB's promise, and its faults (full, slow, damaged).

Each life of a process works through a `DiskHandle`, dead with it: later calls raise `HostDown`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from ..runtime.errors import AlreadyClosed, CorruptData, DataDirectoryInUse, DiskFailed, DiskFull
from ..runtime.host import Buffer, File, OrderedMap
from ..runtime.memory import DIRECT_ALIGN, aligned_memory, check_file_name
from .disk_map import SimMap, StoredMap
from .network import NetworkHost
from .scheduler import Simulation

SECTOR_BYTES = 512


@dataclass(slots=True)
class DiskFaults:
    """How one disk behaves; times in seconds, chances from 0 to 1, changed while the run goes on."""

    sync_s: tuple[float, float] = (0.0003, 0.003)
    slow_chance: float = 0.01
    slow_s: tuple[float, float] = (0.03, 0.3)
    survive_chance: float = 0.5
    """That an unsynced sector is durable after a power cut."""
    failing_syncs: int = 0
    """So many of the next syncs fail with EIO."""
    bytes_max: int = 1 << 34
    cold_chance: float = 0.1
    """That `read_hot` finds a stretch cold."""


class DiskWatcher(Protocol):
    """Told of every durable stretch: for oracles."""

    def on_durable(self, disk: "SimDisk", name: str, offset: int, data: bytes) -> None:
        """These bytes of file ``name`` have reached the platter."""
        ...


class _Content:
    """A file's bytes, which outlive its name: the cache, the durable ones, the writes between them."""

    __slots__ = (
        "cache",
        "durable",
        "durable_size",
        "failed",
        "pending",
        "size",
        "sized_by",
        "writes",
    )

    def __init__(self) -> None:
        self.cache = bytearray()
        self.durable = bytearray()
        self.size = 0
        self.durable_size = 0
        self.pending: list[tuple[int, int, bytes]] = []
        """(number, offset, data) of writes that no finished sync covers, ascending."""
        self.failed: list[tuple[int, int]] = []
        """(offset, length) of what looks written and is not: a sync failed over it."""
        self.writes = 0
        self.sized_by = 0
        """The number of the sync that made ``durable_size`` durable."""

    def show(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        with memoryview(self.cache) as view:
            found = bytes(view[offset:end])
        return found + bytes(end - offset - len(found))

    def write(self, offset: int, data: bytes) -> None:
        put(self.cache, offset, data)
        self.size = max(self.size, offset + len(data))
        self.writes += 1
        self.pending.append((self.writes, offset, data))


def put(target: bytearray, offset: int, data: bytes) -> None:
    """Overwrite in place; a hole before the end reads as zeros."""
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class SimDisk:
    """One device of one machine. `handle` gives what a process uses."""

    def __init__(
        self,
        simulation: Simulation,
        host: NetworkHost,
        name: str,
        faults: DiskFaults | None = None,
    ) -> None:
        self.simulation = simulation
        self.host = host
        self.name = name
        self.faults = faults or DiskFaults()
        self.chance = simulation.chance(f"disk/{host.name}/{name}")
        self.stalled_until = 0.0
        """No sync ends before this virtual time."""
        self.watchers: list[DiskWatcher] = []
        self.files: dict[str, _Content] = {}
        self.maps: dict[str, StoredMap] = {}
        self.durable_files: dict[str, _Content] = {}
        self.locked_by: DiskHandle | None = None
        self.blamed = False
        """A fault that may end its node was planted here: `DiskFailed` or `CorruptData` is explained."""
        self.syncs = 0
        self._newest: tuple[_Content | None, int, int] = (None, 0, 0)
        """The last stretch that a sync made durable."""
        self._steps = 0
        self._names_pending: list[tuple[int, Callable[[dict[str, _Content]], None]]] = []
        self._name_changes = 0

    def handle(self) -> "DiskHandle":
        """The disk as the present life of its machine's process sees it."""
        return DiskHandle(self)

    # --- faults -----------------------------------------------------------------------------------

    def on_power_cut(self) -> None:
        """What was not synced survives by chance, sector by sector; names likewise."""
        self.locked_by = None
        for _, change in self._names_pending:
            if self.chance.random() < 0.5:
                change(self.durable_files)
        self._names_pending.clear()
        lost = 0
        for content in self.durable_files.values():
            lost += self._cut(content)
        self.files = dict(self.durable_files)
        for kept in self.maps.values():
            kept.on_power_cut(self.chance)
        self.simulation.note("power-cut", self.host.name, self.name, "lost", lost)

    def _cut(self, content: _Content) -> int:
        lost = 0
        chance, survive = self.chance, self.faults.survive_chance
        if content.size != content.durable_size and chance.random() < 0.5:
            content.durable_size = content.size
        for _, offset, data in content.pending:
            for start in range(offset - offset % SECTOR_BYTES, offset + len(data), SECTOR_BYTES):
                low, high = max(start, offset), min(start + SECTOR_BYTES, offset + len(data))
                if chance.random() < survive:
                    put(content.durable, low, data[low - offset : high - offset])
                else:
                    lost += 1
        del content.durable[content.durable_size :]
        content.pending.clear()
        content.failed.clear()
        content.size = content.durable_size
        content.cache = bytearray(content.durable)
        return lost

    def on_kill(self) -> None:
        """The cache stays; pages over which a sync has failed may be dropped from it and read anew."""
        self.locked_by = None
        for content in self.files.values():
            for offset, length in content.failed:
                if self.chance.random() < 0.5:
                    old = bytes(content.durable[offset : offset + length])
                    put(content.cache, offset, old + bytes(length - len(old)))
            content.failed.clear()
        for kept in self.maps.values():
            kept.on_kill(self.chance)

    def rot(self) -> str:
        """Flip a bit, or spoil a sector, of what was written once; say where, or "" for nothing done.

        Spares what the very last sync wrote: nothing behind it says that it was synced, so its rot cannot
        be told from a torn tail by its own machine (reliability.md 4, lesson 5; H3 has the remedy, one
        more block 20 ms later).
        """
        names = [name for name, content in sorted(self.files.items()) if content.durable]
        if not names:
            return ""
        chance = self.chance
        name = chance.choice(names)
        durable = self.files[name].durable
        size = len(durable)
        # Often near the end: the newest is what recovery asks for.
        at = (
            chance.randrange(max(0, size - 20_000), size)
            if chance.random() < 0.5
            else chance.randrange(size)
        )
        if chance.random() < 0.5:
            end = at + 1
        else:
            at -= at % SECTOR_BYTES
            end = min(size, at + SECTOR_BYTES)
        content = self.files[name]
        newest, low, high = self._newest
        if content is newest and at < high and low < end:
            return ""
        self.blamed = True
        durable[at:end] = (
            chance.randbytes(end - at)
            if end - at > 1
            else bytes([durable[at] ^ 1 << chance.randrange(8)])
        )
        if not any(low < end and at < low + len(data) for _, low, data in content.pending):
            put(content.cache, at, bytes(durable[at:end]))
        self.simulation.note("rot", self.host.name, self.name, name, at, end - at)
        return f"{name} {at}"

    def damage_map(self) -> bool:
        """Damage the first map so that opening it sees it; False where there is none."""
        for name in sorted(self.maps):
            self.blamed = True
            self.maps[name].damaged = True
            self.simulation.note("map damaged", self.host.name, self.name, name)
            return True
        return False

    # --- what handles do --------------------------------------------------------------------------

    def step(self, what: str, number: int = 0) -> None:
        """A disk step: a crash point, and into the trace hash."""
        self.host.step(what)
        self._steps += 1
        self.simulation.mix(self._steps, number)

    def used_bytes(self) -> int:
        """The files' sizes in sum, maps not included."""
        return sum(content.size for content in self.files.values())

    async def wait(self, incarnation: int) -> None:
        """Let a sync's time pass; raises `HostDown` if the process ended meanwhile.

        Like a thread's work it cannot be cancelled, unless the process is gone.
        """
        faults, chance = self.faults, self.chance
        slow = faults.slow_chance and chance.random() < faults.slow_chance
        low, high = faults.slow_s if slow else faults.sync_s
        ends = max(self.simulation.now + chance.uniform(low, high), self.stalled_until)
        task = trio.lowlevel.current_task()
        done = False

        def finish() -> None:
            if not done:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal done
            if self.host.lives(incarnation):
                return trio.lowlevel.Abort.FAILED
            done = True
            return trio.lowlevel.Abort.SUCCEEDED

        self.simulation.at(ends, finish)
        await trio.lowlevel.wait_task_rescheduled(abort)
        done = True
        self.host.check(incarnation)

    async def sync_content(self, name: str, content: _Content, incarnation: int) -> None:
        """One fdatasync."""
        covered, size = content.writes, content.size
        self.step("sync", covered)
        self.syncs += 1
        number = self.syncs
        await self.wait(incarnation)
        fails = self.faults.failing_syncs > 0
        now_durable = [item for item in content.pending if item[0] <= covered]
        content.pending = [item for item in content.pending if item[0] > covered]
        if fails:
            self.faults.failing_syncs -= 1
            self.blamed = True
            self.simulation.note("EIO", self.host.name, self.name, name)
            content.failed += [(offset, len(data)) for _, offset, data in now_durable]
            raise DiskFailed(f"{name}: input/output error during a sync (simulated)")
        if number > content.sized_by:  # of two syncs at once the later begun knows the newer size
            content.sized_by = number
            content.durable_size = size
            del content.durable[size:]
        for _, offset, data in now_durable:
            put(content.durable, offset, data)
            self._newest = (content, offset, offset + len(data))
            for watcher in self.watchers:
                watcher.on_durable(self, name, offset, data)
        self.step("synced", len(now_durable))

    async def change_names(
        self, change: Callable[[dict[str, _Content]], None], incarnation: int
    ) -> None:
        """Change the directory now, durably when this returns."""
        change(self.files)
        self._name_changes += 1
        number = self._name_changes
        self._names_pending.append((number, change))
        self.step("directory", number)
        await self.wait(incarnation)
        for kept, pending in [item for item in self._names_pending if item[0] <= number]:
            pending(self.durable_files)  # the directory's journal keeps their order
            self._names_pending = [item for item in self._names_pending if item[0] != kept]


class DiskHandle:
    """A `Disk` for one life of a process."""

    durability = "fdatasync"

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.incarnation = disk.host.incarnation
        self._open_maps: dict[str, list[SimMap]] = {}

    def _check(self) -> None:
        self.disk.host.check(self.incarnation)

    def list(self) -> list[str]:
        """The names of the files here, sorted."""
        self._check()
        return sorted(self.disk.files)

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Make a new file. Raises `FileExistsError`, `DiskFull`."""
        check_file_name(name)
        await trio.lowlevel.checkpoint()
        self._check()
        if name in self.disk.files:
            raise FileExistsError(f"{name} is there already")
        if size > self.free_bytes():
            raise DiskFull(f"{name}: no room for {size} bytes, {self.free_bytes()} are free")
        content = _Content()
        content.size = content.durable_size = size

        def add(files: dict[str, _Content]) -> None:
            files[name] = content

        await self.disk.change_names(add, self.incarnation)
        return SimFile(self, name, content, direct=direct)

    async def open(self, name: str) -> File:
        """Open an existing file. Raises `FileNotFoundError`."""
        await trio.lowlevel.checkpoint()
        return SimFile(self, name, self._content(name), direct=False)

    async def rename(self, old: str, new: str) -> None:
        """Rename over whatever is there; durable when this returns."""
        check_file_name(new)
        await trio.lowlevel.checkpoint()
        content = self._content(old)

        def move(files: dict[str, _Content]) -> None:
            if files.get(old) is content:
                del files[old]
            files[new] = content

        await self.disk.change_names(move, self.incarnation)

    async def delete(self, name: str) -> None:
        """Remove the name; durable when this returns. Open files stay readable."""
        await trio.lowlevel.checkpoint()
        self._content(name)

        def remove(files: dict[str, _Content]) -> None:
            files.pop(name, None)

        await self.disk.change_names(remove, self.incarnation)

    async def open_map(self, name: str) -> OrderedMap:
        """Open or make an ordered map. Raises `CorruptData` where it is damaged."""
        check_file_name(name)
        await trio.lowlevel.checkpoint()
        self._check()
        stored = self.disk.maps.setdefault(name, StoredMap())
        if stored.damaged:
            raise CorruptData(f"map {name} of {self.disk.host.name} is damaged")
        handle = SimMap(self.disk, self.incarnation, name, stored)
        self._open_maps.setdefault(name, []).append(handle)
        return handle

    async def delete_map(self, name: str) -> None:
        """Remove a map that is not open. No error where there is none."""
        await trio.lowlevel.checkpoint()
        self._check()
        open_here = [handle for handle in self._open_maps.get(name, []) if not handle.closed]
        assert not open_here, f"map {name} is deleted while it is open"
        self._open_maps.pop(name, None)
        self.disk.maps.pop(name, None)

    def free_bytes(self) -> int:
        """Space left below the quota."""
        self._check()
        return max(0, self.disk.faults.bytes_max - self.disk.used_bytes())

    def lock(self) -> None:
        """Take this disk for this node. Raises `DataDirectoryInUse`."""
        self._check()
        if self.disk.locked_by is not None:
            raise DataDirectoryInUse(f"the disk of {self.disk.host.name} is in use by another node")
        self.disk.locked_by = self

    def unlock(self) -> None:
        """Give it back. Idempotent."""
        if self.disk.locked_by is self:
            self.disk.locked_by = None

    def aligned_buffer(self, length: int) -> memoryview:
        """Zeroed, page-aligned, writable memory."""
        return aligned_memory(length)

    def _content(self, name: str) -> _Content:
        self._check()
        try:
            return self.disk.files[name]
        except KeyError:
            raise FileNotFoundError(f"no file {name}") from None


class SimFile:
    """A `File` of a `DiskHandle`."""

    def __init__(self, handle: DiskHandle, name: str, content: _Content, *, direct: bool) -> None:
        self.name = name
        self._handle = handle
        self._disk = handle.disk
        self._content = content
        self._direct = direct
        self._closed = False
        self._failed: DiskFailed | None = None

    def _check(self) -> None:
        self._disk.host.check(self._handle.incarnation)
        if self._closed:
            raise AlreadyClosed(f"file {self.name} is closed")

    def size(self) -> int:
        """The size in bytes, preallocated space included."""
        self._check()
        return self._content.size

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write into the cache. Raises `DiskFull` above the quota, from then on always."""
        self._check()
        if self._failed is not None:
            raise self._failed
        data = b"".join(buffers)
        if self._direct:
            assert offset % DIRECT_ALIGN == 0, "a direct file takes aligned offsets"
            assert len(data) % DIRECT_ALIGN == 0, "a direct file takes aligned sizes"
        self._disk.step("write", len(data))
        grown = offset + len(data) - self._content.size
        if grown > 0 and grown > self._handle.free_bytes():
            self._disk.blamed = True
            self._failed = DiskFull(f"{self.name}: no room for {grown} bytes more")
            raise self._failed
        if data:
            self._content.write(offset, data)

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then sync what was written up to here."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.write_at(offset, (buffer,))
        await self._sync()

    async def sync(self) -> None:
        """fdatasync."""
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._sync()

    async def _sync(self) -> None:
        self._check()
        if self._failed is not None:
            raise self._failed
        try:
            await self._disk.sync_content(self.name, self._content, self._handle.incarnation)
        except DiskFailed as error:
            self._failed = error  # as runtime/files.py: a failed file stays failed in this process
            raise

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes, fewer at the end."""
        self._check()
        return self._content.show(offset, length)

    def read_hot(self, offset: int, length: int) -> bytes | None:
        """As `read_at`, or None: cold, by chance."""
        self._check()
        cold = self._disk.faults.cold_chance
        if cold and self._disk.chance.random() < cold:
            return None
        return self._content.show(offset, length)

    async def read_cold(self, offset: int, length: int) -> bytes:
        """As `read_at`, after the time the device needs."""
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._disk.wait(self._handle.incarnation)
        return self._content.show(offset, length)

    def truncate(self, size: int) -> None:
        """Cut or extend; durable with the next sync."""
        self._check()
        if self._failed is not None:
            raise self._failed
        self._disk.step("truncate", size)
        content = self._content
        if size > content.size and size - content.size > self._handle.free_bytes():
            raise DiskFull(f"{self.name}: no room for {size - content.size} bytes more")
        if size < content.size:
            del content.cache[size:]
            content.pending = [
                (number, offset, data[: size - offset])
                for number, offset, data in content.pending
                if offset < size
            ]
        content.size = size

    def close(self) -> None:
        """Close. Idempotent."""
        self._closed = True


def draw_disk_faults(chance: random.Random) -> DiskFaults:
    """A mix for the disks of one seed."""
    return DiskFaults(
        sync_s=chance.choice(((0.0003, 0.003), (0.0003, 0.003), (0.005, 0.04))),
        slow_chance=chance.choice((0.0, 0.01, 0.05)),
        slow_s=chance.choice(((0.03, 0.3), (0.2, 1.0))),
        survive_chance=chance.choice((0.0, 0.1, 0.5, 0.9)),
        cold_chance=chance.choice((0.0, 0.1, 0.5)),
    )
