"""The interfaces of a process to a simulated disk: `DiskHandle`, its files and its maps.

Each life of a process has its own handle. Calls after the end of the process raise `HostDown`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import trio

from ....runtime.disk.memory_disk import (
    DIRECT_ALIGN,
    KEY_BYTES_MAX,
    aligned_memory,
    check_file_name,
)
from ....runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DataDirectoryInUse,
    DiskFailed,
    DiskFull,
)
from ....runtime.interfaces.host import Buffer, File, OrderedMap, Summary
from .disk import FileContent, SimDisk, StoredMap

MAP_BYTES_MAX = 64 << 20


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
        """Return the file names, sorted."""
        self._check()
        return sorted(self.disk.files)

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Create a file; see `Disk.create`. Raises `FileExistsError` and `DiskFull`."""
        check_file_name(name)
        await trio.lowlevel.checkpoint()
        self._check()
        if name in self.disk.files:
            raise FileExistsError(f"{name} exists already")
        if size > self.free_bytes():
            raise DiskFull(f"{name}: no space for {size} bytes, {self.free_bytes()} are free")
        content = FileContent()
        content.size = content.durable_size = size

        def add(files: dict[str, FileContent]) -> None:
            files[name] = content

        self.disk.notify_change("create", name)
        await self.disk.change_names(self.incarnation, add)
        return SimFile(self, name, content, direct=direct)

    async def open(self, name: str) -> File:
        """Open an existing file. Raises `FileNotFoundError`."""
        await trio.lowlevel.checkpoint()
        return SimFile(self, name, self._content(name), direct=False)

    async def rename(self, old: str, new: str) -> None:
        """Rename a file and replace an existing one. The change is durable on return."""
        check_file_name(new)
        await trio.lowlevel.checkpoint()
        content = self._content(old)

        def move(files: dict[str, FileContent]) -> None:
            if files.get(old) is content:
                del files[old]
            files[new] = content

        self.disk.notify_change("rename", new)
        await self.disk.change_names(self.incarnation, move)

    async def delete(self, *names: str) -> None:
        """Remove the names, durably on return. Open files stay readable."""
        await trio.lowlevel.checkpoint()
        for name in names:
            self._content(name)
            self.disk.notify_change("delete", name)

        def removal(name: str) -> Callable[[dict[str, FileContent]], None]:
            def remove(files: dict[str, FileContent]) -> None:
                files.pop(name, None)

            return remove

        await self.disk.change_names(self.incarnation, *map(removal, names))

    async def open_map(self, name: str) -> OrderedMap:
        """Open or create an ordered map. Raises `CorruptData` if it is damaged."""
        check_file_name(name)
        await trio.lowlevel.checkpoint()
        self._check()
        stored = self.disk.maps.setdefault(name, StoredMap())
        if stored.is_damaged:
            raise CorruptData(f"map {name} of {self.disk.host.name} is damaged")
        handle = SimMap(self.disk, self.incarnation, name, stored)
        self._open_maps.setdefault(name, []).append(handle)
        return handle

    async def delete_map(self, name: str) -> None:
        """Remove a map that is not open. A missing map is no error."""
        await trio.lowlevel.checkpoint()
        self._check()
        open_here = [handle for handle in self._open_maps.get(name, []) if not handle.closed]
        assert not open_here, f"map {name} is deleted while it is open"
        self._open_maps.pop(name, None)
        self.disk.maps.pop(name, None)

    def free_bytes(self) -> int:
        """Return the free bytes below the quota."""
        self._check()
        return max(0, self.disk.faults.bytes_max - self.disk.used_bytes())

    def set_min_free_bytes(self, size: int) -> None:
        """Do nothing: deleted files free their space at once."""

    async def check_directory(self) -> None:
        """Do nothing: the directory cannot move while the machine runs."""
        await trio.lowlevel.checkpoint()

    def lock(self) -> None:
        """Lock this disk for this node. Raises `DataDirectoryInUse`."""
        self._check()
        if self.disk.lock_holder is not None:
            raise DataDirectoryInUse(f"the disk of {self.disk.host.name} is in use by another node")
        self.disk.lock_holder = self

    def unlock(self) -> None:
        """Release the lock. Idempotent."""
        if self.disk.lock_holder is self:
            self.disk.lock_holder = None

    def aligned_buffer(self, length: int) -> memoryview:
        """Return zeroed, page-aligned, writable memory."""
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
        self._failure: DiskFailed | None = None

    def _check(self) -> None:
        self._disk.host.check(self._handle.incarnation)
        if self._closed:
            raise AlreadyClosed(f"file {self.name} is closed")

    def size(self) -> int:
        """Return the size in bytes, including preallocated space."""
        self._check()
        return self._content.size

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write into the cache. Above the quota this write and all later ones raise `DiskFull`."""
        self._check()
        if self._failure is not None:
            raise self._failure
        data = b"".join(buffers)
        if self._direct:
            assert offset % DIRECT_ALIGN == 0, "a direct file takes aligned offsets"
            assert len(data) % DIRECT_ALIGN == 0, "a direct file takes aligned sizes"
        self._disk.step("write", len(data))
        grown = offset + len(data) - self._content.size
        if grown > 0 and grown > self._handle.free_bytes():
            self._disk.is_fault_injected = True
            self._failure = DiskFull(f"{self.name}: no space for {grown} more bytes")
            raise self._failure
        if data:
            self._content.write(offset, data)

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then sync all writes up to this one."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.write_at(offset, (buffer,))
        await self._sync()

    @property
    def syncs_inline(self) -> bool:
        """Whether syncs run on the event loop: as the seed chose, and not while the device stalls.

        A sync on the loop takes no virtual time, so it could not wait until the stall ends.
        """
        disk = self._disk
        return disk.faults.inline and disk.simulation.now >= disk.stalled_until

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        """Write and sync without virtual time."""
        self.write_at(offset, (buffer,))
        self._check()
        try:
            self._disk.sync_content_now(self.name, self._content)
        except DiskFailed as error:
            self._failure = error
            raise

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write zeros and sync them."""
        await self.write_synced(offset, bytes(length))

    async def write_in_worker(self, offset: int, buffer: Buffer) -> None:
        """Write and sync, the same as `write_synced`."""
        await self.write_synced(offset, buffer)

    async def sync(self) -> None:
        """Sync the file as fdatasync does."""
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._sync()

    async def _sync(self) -> None:
        self._check()
        if self._failure is not None:
            raise self._failure
        try:
            await self._disk.sync_content(self.name, self._content, self._handle.incarnation)
        except DiskFailed as error:
            # As in runtime/disk/directory_disk.py: a failed file stays failed for this process.
            self._failure = error
            raise

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes, fewer at the end of the file."""
        self._check()
        return self._content.read(offset, length)

    def read_if_cached(self, offset: int, length: int) -> bytes | None:
        """Read like `read_at`, or return None with probability ``cold_chance``, as if not cached."""
        self._check()
        cold = self._disk.faults.cold_chance
        if cold and self._disk.rng.random() < cold:
            return None
        return self._content.read(offset, length)

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        """Read like `read_at`, after the time that the device needs."""
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._disk.wait_for_device(self._handle.incarnation)
        return self._content.read(offset, length)

    async def read_in_worker_unbuffered(self, offset: int, length: int) -> bytes:
        """Read, the same as `read_in_worker`."""
        return await self.read_in_worker(offset, length)

    def truncate(self, size: int) -> None:
        """Shorten or extend the file, durably with the next sync."""
        self._check()
        if self._failure is not None:
            raise self._failure
        self._disk.step("truncate", size)
        content = self._content
        if size > content.size and size - content.size > self._handle.free_bytes():
            raise DiskFull(f"{self.name}: no space for {size - content.size} more bytes")
        if size < content.size:
            del content.cache[size:]
            content.pending = [
                (number, offset, data[: size - offset])
                for number, offset, data in content.pending
                if offset < size
            ]
        content.size = size

    async def punch_hole(self, offset: int, length: int) -> bool:
        """Zero whole pages of the range, durably with the next sync. Return True."""
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._disk.step("punch", length)
        self._content.punch(offset, length)
        await self._disk.wait_for_device(self._handle.incarnation)
        return True

    def allocated_bytes(self) -> int:
        """Return the size in whole pages, minus punched pages."""
        self._check()
        return -(-self._content.used_bytes // DIRECT_ALIGN) * DIRECT_ALIGN

    def close(self) -> None:
        """Close. Idempotent."""
        self._closed = True


class SimMap:
    """An `OrderedMap` for one life of a process; all handles of a name show the same pairs."""

    def __init__(self, disk: SimDisk, incarnation: int, name: str, stored: StoredMap) -> None:
        self.name = name
        self.closed = False
        self._disk = disk
        self._incarnation = incarnation
        self._stored = stored

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        """Apply changes in one synced transaction, all or nothing. Raises `DiskFull` and `DiskFailed`."""
        pairs = [(bytes(key), bytes(value)) for key, value in puts]
        deleted_keys = [bytes(key) for key in deletes]
        for key in (*(key for key, _ in pairs), *deleted_keys):
            assert 0 < len(key) <= KEY_BYTES_MAX, f"a key of {len(key)} bytes"
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        disk, stored = self._disk, self._stored
        disk.notify_change("map", self.name)
        disk.step("map", len(pairs))
        size = sum(len(key) + len(value) for key, value in pairs)
        if stored.bytes + size > MAP_BYTES_MAX or size > disk.faults.bytes_max - disk.used_bytes():
            disk.is_fault_injected = True
            raise DiskFull(f"map {self.name}: no space for {size} more bytes")
        transaction = (pairs, deleted_keys, summary)
        stored.committing.append(transaction)
        while stored.committing[0] is not transaction:  # one writer at a time, in order
            await disk.wait_for_device(self._incarnation)
        await disk.wait_for_device(self._incarnation)
        del stored.committing[0]
        if disk.faults.failing_syncs > 0:
            disk.faults.failing_syncs -= 1
            disk.is_fault_injected = True
            disk.simulation.record_event("EIO", disk.host.name, disk.name, self.name)
            raise DiskFailed(f"map {self.name}: input/output error during a commit (simulated)")
        stored.commit(*transaction)
        disk.step("map synced", len(pairs))

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        self._check()
        return self._stored.values.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key <= ``key``, or None."""
        self._check()
        keys, values = self._stored.keys, self._stored.values
        index = bisect_right(keys, key)
        return (keys[index - 1], values[keys[index - 1]]) if index else None

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` pairs with start <= key < end, in key order."""
        self._check()
        keys, values = self._stored.keys, self._stored.values
        first = bisect_left(keys, start)
        last = min(bisect_left(keys, end), first + limit)
        return [(key, values[key]) for key in keys[first:last]]

    def close(self) -> None:
        """Close. Idempotent."""
        self.closed = True

    def _check(self) -> None:
        self._disk.host.check(self._incarnation)
        if self.closed:
            raise AlreadyClosed(f"map {self.name} is closed")
