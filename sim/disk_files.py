"""What a process holds of a simulated disk: a `DiskHandle` for one life, and its files.

Each life of a process works through a handle of its own, dead with it: later calls raise `HostDown`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from ..runtime.errors import AlreadyClosed, CorruptData, DataDirectoryInUse, DiskFailed, DiskFull
from ..runtime.host import Buffer, File, OrderedMap
from ..runtime.memory import DIRECT_ALIGN, aligned_memory, check_file_name
from .disk_map import SimMap, StoredMap

if TYPE_CHECKING:
    from .disk import SimDisk


class FileContent:
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
        """What a read finds: the cache's bytes, fewer at the end."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        with memoryview(self.cache) as view:
            found = bytes(view[offset:end])
        return found + bytes(end - offset - len(found))

    def write(self, offset: int, data: bytes) -> None:
        """Change the cache; the write waits for a sync."""
        put(self.cache, offset, data)
        self.size = max(self.size, offset + len(data))
        self.writes += 1
        self.pending.append((self.writes, offset, data))


def put(target: bytearray, offset: int, data: bytes) -> None:
    """Overwrite in place; a hole before the end reads as zeros."""
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class DiskHandle:
    """A `Disk` for one life of a process."""

    durability = "fdatasync"

    def __init__(self, disk: "SimDisk") -> None:
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
        content = FileContent()
        content.size = content.durable_size = size

        def add(files: dict[str, FileContent]) -> None:
            files[name] = content

        self.disk.begin("create", name)
        await self.disk.change_names(self.incarnation, add)
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

        def move(files: dict[str, FileContent]) -> None:
            if files.get(old) is content:
                del files[old]
            files[new] = content

        self.disk.begin("rename", new)
        await self.disk.change_names(self.incarnation, move)

    async def delete(self, *names: str) -> None:
        """Remove the names; durable when this returns. Open files stay readable."""
        await trio.lowlevel.checkpoint()
        for name in names:
            self._content(name)
            self.disk.begin("delete", name)

        def removal(name: str) -> Callable[[dict[str, FileContent]], None]:
            def remove(files: dict[str, FileContent]) -> None:
                files.pop(name, None)

            return remove

        await self.disk.change_names(self.incarnation, *map(removal, names))

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

    def _content(self, name: str) -> FileContent:
        self._check()
        try:
            return self.disk.files[name]
        except KeyError:
            raise FileNotFoundError(f"no file {name}") from None


class SimFile:
    """A `File` of a `DiskHandle`."""

    def __init__(
        self, handle: DiskHandle, name: str, content: FileContent, *, direct: bool
    ) -> None:
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

    async def write_zeros(self, offset: int, length: int) -> None:
        """As `write_synced`."""
        await self.write_synced(offset, bytes(length))

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
