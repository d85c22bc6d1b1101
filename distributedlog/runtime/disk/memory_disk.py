"""A `Disk` in memory, for tests and for clusters that store nothing.

It behaves as a disk does (order, sizes, errors, locks), except that nothing outlives the process. It does not
simulate power cuts; the simulator's disk does.
"""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import trio

from ..interfaces.errors import AlreadyClosed, DataDirectoryInUse, DiskFailed, DiskFull
from ..interfaces.host import Buffer, File, OrderedMap, Summary

DIRECT_ALIGN = 4096
"""The alignment in bytes of offsets, sizes and memory for direct files."""
KEY_BYTES_MAX = 511
"""The limit of LMDB, which applies to every `OrderedMap`. Keys are never empty."""
FREE_BYTES_UNBOUNDED = 1 << 40


def check_file_name(name: str) -> str:
    """Assert that a name is flat and printable, and return it."""
    assert name, "a file without a name"
    assert name.isprintable(), f"{name!r}: a name with unprintable characters"
    assert "/" not in name, f"{name!r}: a name with a path separator"
    assert not name.startswith((".", "LOCK")), f"{name!r}: a name that is reserved for the disk"
    return name


class MemoryDisk:
    """A disk whose files are bytearrays. ``bytes_max`` limits the sum of their sizes (None: no limit).

    A node that is started again with the same object finds its data.
    """

    durability = "memory"

    def __init__(self, *, bytes_max: int | None = None) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._files: dict[str, _Content] = {}
        self._maps: dict[str, _Pairs] = {}
        self._open_maps: dict[str, list[MemoryMap]] = {}
        self._locked = False

    def list(self) -> list[str]:
        """Return the names of the files, sorted."""
        return sorted(self._files)

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Create a file; see `Disk.create`. A direct file asserts that writes are aligned."""
        check_file_name(name)
        await trio.lowlevel.checkpoint()
        if name in self._files:
            raise FileExistsError(f"{name} exists already")
        content = _Content(self)
        content.resize(size, name)
        self._files[name] = content
        return MemoryFile(name, content, direct=direct)

    async def open(self, name: str) -> File:
        """Open an existing file. Raises `FileNotFoundError`."""
        await trio.lowlevel.checkpoint()
        return MemoryFile(name, self._content(name), direct=False)

    async def rename(self, old: str, new: str) -> None:
        """Rename a file and replace an existing one. Raises `FileNotFoundError`."""
        check_file_name(new)
        await trio.lowlevel.checkpoint()
        content = self._content(old)
        if old != new:
            del self._files[old]
            replaced = self._files.get(new)
            self._files[new] = content
            if replaced is not None:
                replaced.unlink()

    async def delete(self, *names: str) -> None:
        """Remove files; open files stay readable. Raises `FileNotFoundError`."""
        await trio.lowlevel.checkpoint()
        for name in names:
            content = self._content(name)
            del self._files[name]
            content.unlink()

    async def open_map(self, name: str) -> OrderedMap:
        """Open or create an ordered map. Handles with one name share one map."""
        check_file_name(name)
        await trio.lowlevel.checkpoint()
        handle = MemoryMap(name, self._maps.setdefault(name, _Pairs()))
        self._open_maps.setdefault(name, []).append(handle)
        return handle

    async def delete_map(self, name: str) -> None:
        """Remove an ordered map that is not open. A missing map is not an error."""
        await trio.lowlevel.checkpoint()
        open_here = [handle for handle in self._open_maps.get(name, []) if not handle.closed]
        assert not open_here, f"map {name} is deleted while it is open"
        self._open_maps.pop(name, None)
        self._maps.pop(name, None)

    def free_bytes(self) -> int:
        """Return the free space below ``bytes_max``, or a terabyte without a limit."""
        if self.bytes_max is None:
            return FREE_BYTES_UNBOUNDED
        return max(0, self.bytes_max - self.used_bytes)

    def set_min_free_bytes(self, size: int) -> None:
        """Do nothing, because the space of deleted files is always free at once."""

    async def check_directory(self) -> None:
        """Do nothing, because only this process has access."""
        await trio.lowlevel.checkpoint()

    def lock(self) -> None:
        """Lock this disk for one node. Raises `DataDirectoryInUse`."""
        if self._locked:
            raise DataDirectoryInUse("this memory disk is in use by another node")
        self._locked = True

    def unlock(self) -> None:
        """Release the lock. Idempotent."""
        self._locked = False

    def aligned_buffer(self, length: int) -> memoryview:
        """Return zeroed, page-aligned, writable memory."""
        return aligned_memory(length)

    async def close(self) -> None:
        """Do nothing; the counterpart of `DirectoryDisk.close`."""
        await trio.lowlevel.checkpoint()

    def _content(self, name: str) -> "_Content":
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(f"no file {name}") from None


class MemoryFile:
    """A file of a `MemoryDisk`."""

    def __init__(self, name: str, content: "_Content", *, direct: bool) -> None:
        self.name = name
        self._content = content
        self._direct = direct
        self._write_error: DiskFailed | None = None
        self._closed = False

    def size(self) -> int:
        """Return the size in bytes, including preallocated space."""
        self._check_open()
        return self._content.size

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write; see `File.write_at`. Once the disk is full, this file always raises `DiskFull`."""
        self._check_open()
        if self._write_error is not None:
            raise self._write_error.again()
        length = sum(len(buffer) for buffer in buffers)
        if self._direct:
            assert offset % DIRECT_ALIGN == 0, "a direct file takes aligned offsets"
            assert length % DIRECT_ALIGN == 0, "a direct file takes aligned sizes"
        try:
            self._content.write(offset, buffers, length, self.name)
        except DiskFull as error:
            self._write_error = error
            raise

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then run a checkpoint, as if there had been a sync."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.write_at(offset, (buffer,))
        await trio.lowlevel.cancel_shielded_checkpoint()

    @property
    def syncs_inline(self) -> bool:
        """Always True, because there is no sync."""
        return True

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        """Write as `write_at` does."""
        self.write_at(offset, (buffer,))

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write zeros after a checkpoint."""
        await trio.lowlevel.checkpoint()
        self.write_at(offset, (bytes(length),))

    async def write_in_worker(self, offset: int, buffer: Buffer) -> None:
        """Write as `write_synced` does."""
        await self.write_synced(offset, buffer)

    async def sync(self) -> None:
        """Run a checkpoint, and raise the error of an earlier failed write again."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        if self._write_error is not None:
            raise self._write_error.again()

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes, or fewer at the end."""
        self._check_open()
        return self._content.read(offset, length)

    def read_if_cached(self, offset: int, length: int) -> bytes | None:
        """Read as `read_at` does, since memory is always cached."""
        return self.read_at(offset, length)

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        """Read as `read_at` does, after a checkpoint."""
        await trio.lowlevel.checkpoint()
        return self.read_at(offset, length)

    async def read_in_worker_unbuffered(self, offset: int, length: int) -> bytes:
        """Read as `read_in_worker` does."""
        return await self.read_in_worker(offset, length)

    def truncate(self, size: int) -> None:
        """Set the size. Raises `DiskFull`."""
        self._check_open()
        if self._write_error is not None:
            raise self._write_error.again()
        self._content.resize(size, self.name)

    async def punch_hole(self, offset: int, length: int) -> bool:
        """Zero whole pages, which then no longer count as used space."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._content.punch(offset, length)
        return True

    def allocated_bytes(self) -> int:
        """Return the size in whole pages without punched ones."""
        self._check_open()
        return self._content.allocated_bytes

    def close(self) -> None:
        """Close. Idempotent."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"file {self.name} is closed")


class MemoryMap:
    """An `OrderedMap` in memory; all handles with one name share the same pairs."""

    def __init__(self, name: str, pairs: "_Pairs") -> None:
        self.name = name
        self.closed = False
        self._pairs = pairs

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        """Delete, then put. A key in both is put, and the last put of a key counts."""
        puts, deletes = list(puts), list(deletes)
        for key in (*(key for key, _ in puts), *deletes):
            assert 0 < len(key) <= KEY_BYTES_MAX, f"a key of {len(key)} bytes"
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._pairs.apply(puts, deletes, summary)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        self._check_open()
        return self._pairs.values.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key <= ``key``, or None."""
        self._check_open()
        keys, values = self._pairs.keys, self._pairs.values
        position = bisect_right(keys, key)
        return (keys[position - 1], values[keys[position - 1]]) if position else None

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` pairs with start <= key < end, in order."""
        self._check_open()
        keys, values = self._pairs.keys, self._pairs.values
        first = bisect_left(keys, start)
        last = min(bisect_left(keys, end), first + limit)
        return [(key, values[key]) for key in keys[first:last]]

    def close(self) -> None:
        """Close. Idempotent."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise AlreadyClosed(f"map {self.name} is closed")


class _Pairs:
    """The content of a map: a dict, and its keys in order."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def apply(
        self,
        puts: list[tuple[bytes, bytes]],
        deletes: list[bytes],
        summary: Summary | None = None,
    ) -> None:
        if summary is not None:
            puts = [*puts, summary(replaced_pairs(self.values, puts, deletes))]
        for key in deletes:
            if self.values.pop(key, None) is not None:
                del self.keys[bisect_left(self.keys, key)]
        count_before = len(self.values)
        added = [key for key, _ in puts if key not in self.values]
        self.values.update((bytes(key), bytes(value)) for key, value in puts)
        if len(self.values) > count_before:
            self.keys += dict.fromkeys(added)
            self.keys.sort()  # nearly linear, since it mostly merges two sorted sequences


class _Content:
    """The bytes of a file, which exist after its name is removed while the file is open.

    ``data`` ends at the end of the last write. The bytes from there to ``size`` are zeros, so preallocated
    space uses no memory.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self.data = bytearray()
        self.size = 0
        self.punched_pages: set[int] = set()
        """The numbers of punched pages, which use no space."""
        self._disk: MemoryDisk | None = disk

    def write(self, offset: int, buffers: Sequence[Buffer], length: int, name: str) -> None:
        if offset + length > self.size:
            self.resize(offset + length, name)
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))  # a hole reads as zeros
        if self.punched_pages:
            self._allocate(set(pages_touched(offset, length)))
        for buffer in buffers:
            self.data[offset : offset + len(buffer)] = buffer
            offset += len(buffer)

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        with memoryview(self.data) as view:
            content = bytes(view[offset:end])
        return content + bytes(max(0, end - offset - len(content)))

    def resize(self, size: int, name: str) -> None:
        disk = self._disk
        if disk is not None:
            if size - self.size > disk.free_bytes():
                raise DiskFull(
                    f"{name}: no space for {size - self.size} more bytes, {disk.free_bytes()} are free"
                )
            disk.used_bytes += size - self.size
        del self.data[size:]
        self.size = size
        self._allocate({page for page in self.punched_pages if (page + 1) * DIRECT_ALIGN > size})

    @property
    def allocated_bytes(self) -> int:
        return -(-self.size // DIRECT_ALIGN) * DIRECT_ALIGN - DIRECT_ALIGN * len(self.punched_pages)

    def punch(self, offset: int, length: int) -> None:
        new_pages = set(pages_within(offset, min(length, self.size - offset))) - self.punched_pages
        self.punched_pages |= new_pages
        if self._disk is not None:
            self._disk.used_bytes -= DIRECT_ALIGN * len(new_pages)
        for page in new_pages:
            page_bytes = len(self.data[page * DIRECT_ALIGN : (page + 1) * DIRECT_ALIGN])
            self.data[page * DIRECT_ALIGN : page * DIRECT_ALIGN + page_bytes] = bytes(page_bytes)

    def _allocate(self, pages: set[int]) -> None:
        filled = pages & self.punched_pages
        self.punched_pages -= filled
        if self._disk is not None:
            self._disk.used_bytes += DIRECT_ALIGN * len(filled)

    def unlink(self) -> None:
        """Count the space as free at once, even if open handles still use it."""
        if self._disk is not None:
            self._disk.used_bytes -= self.size - DIRECT_ALIGN * len(self.punched_pages)
            self._disk = None


def replaced_pairs(
    values: Mapping[bytes, bytes], puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Return the pairs of a map that a transaction replaces or deletes."""
    keys = dict.fromkeys((*deletes, *(key for key, _ in puts)))
    return {key: values[key] for key in keys if key in values}


def pages_within(offset: int, length: int) -> range:
    """Return the numbers of the pages that are completely within a range of bytes."""
    return range(-(-offset // DIRECT_ALIGN), (offset + length) // DIRECT_ALIGN)


def pages_touched(offset: int, length: int) -> range:
    """Return the numbers of the pages that overlap a range of bytes."""
    return range(offset // DIRECT_ALIGN, -(-(offset + length) // DIRECT_ALIGN))


def aligned_memory(length: int) -> memoryview:
    """Return zeroed, page-aligned, writable memory of ``length`` bytes, which lives as long as its views."""
    return memoryview(mmap.mmap(-1, max(length, 1)))[:length]
