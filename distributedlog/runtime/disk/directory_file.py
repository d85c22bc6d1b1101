"""A file of a real file system; see `directory_disk.py` for the directory around it.

- Direct files (O_DIRECT) have two descriptors: writes go past the page cache, reads through it (the
  kernel drops the cached pages that a direct write covers). Measured for fallocated fresh files, against
  buffered writes: 2.5 times the rate, a tenth of the p99.
- After a failed write or sync a file stays failed: the kernel marks lost pages clean, so that the next
  sync would succeed over data that never reached the device.
- One sync of a descriptor at a time: the kernel tells a descriptor of lost pages once, so that of two
  syncs at once one would hear of them, and the other succeed.
"""

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from ..interfaces.errors import AlreadyClosed, CorruptData, DiskFailed, DiskFull, TooBusy
from ..interfaces.host import Buffer
from ..primitives.buffer_pool import BufferPool
from ..process.fork_safety import close_descriptor, forked_message, watch_forks
from .memory_disk import DIRECT_ALIGN, aligned_memory
from .sync_mode import Syncer

BUFFERS_MAX = 1024
"""Linux' IOV_MAX: how many buffers one write takes."""

READ_AHEAD_BYTES = 8 * 1024 * 1024
"""Asked of the device after a cold read that follows another one: catch-up runs at its rate."""

PUNCH_HOLE, KEEP_SIZE = 2, 1
"""Flags of fallocate(2)."""
SECTOR_BYTES = 512
"""What ``st_blocks`` counts."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

_ZEROS = aligned_memory(1024 * 1024).toreadonly()
"""Pages that are never written are one page of zeros of the kernel's, and cost nothing."""


class DirectoryFile:
    """An open file. ``direct_fd`` is a second descriptor, for writes past the page cache, or None."""

    def __init__(
        self,
        path: Path,
        fd: int,
        direct_fd: int | None,
        *,
        syncer: Syncer,
        device_readers: trio.CapacityLimiter,
        memory: BufferPool,
        on_synced: Callable[[float], None],
        on_closed: "Callable[[DirectoryFile], object]",
    ) -> None:
        """``on_synced`` gets how long each sync took, from any thread.

        ``on_closed`` is called once no call uses it any more.
        """
        self.name = path.name
        self._path = path
        self._fd = fd
        self._direct_fd = direct_fd
        self._syncer = syncer
        self._device_readers = device_readers
        self._memory = memory
        self._on_synced = on_synced
        self._on_closed = on_closed
        self._closed_reason = ""
        self._disk_error: DiskFailed | None = None
        self._sync_lock = threading.Lock()
        self._users = 0
        """Calls in other threads: the descriptor's number must not be given to another file meanwhile."""
        self._next_sequential = -1
        self.inode = os.fstat(fd).st_ino
        """What the file is, whatever it is called, and after `close` as well."""
        self.was_unlinked = False
        """Its disk has removed its name, or is about to: it is no loss that the directory lacks it."""
        watch_forks(self)

    def size(self) -> int:
        """The size in bytes, preallocated space included."""
        self._check_alive()
        return os.fstat(self._fd).st_size

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write, not durable before the next sync. A direct file wants aligned memory and size."""
        self._check_alive()
        self._write(offset, buffers)

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then fdatasync, in one hop at most. See `File.write_synced`."""
        self._check_alive()

        def write_and_sync() -> None:
            self._write(offset, (buffer,))
            self._sync()

        await self._run_in_syncer(write_and_sync)

    @property
    def syncs_inline(self) -> bool:
        """Does this disk sync on the loop?"""
        return self._syncer.mode == "inline"

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        """Write, then fdatasync, on the loop. See `File.write_synced_now`."""
        self._check_alive()
        self._write(offset, (buffer,))
        self._sync()

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write zeros and sync them in a worker, whatever the disk's mode. See `File.write_zeros`."""
        self._check_alive()
        assert length <= len(_ZEROS), "at most 1 MiB"
        await self._write_and_sync_in_worker(offset, _ZEROS[:length])

    async def write_in_worker(self, offset: int, buffer: Buffer) -> None:
        """Write and sync in a worker, whatever the disk's mode. See `File.write_in_worker`."""
        self._check_alive()
        await self._write_and_sync_in_worker(offset, buffer)

    async def _write_and_sync_in_worker(self, offset: int, buffer: Buffer) -> None:
        def write_and_sync() -> None:
            self._write(offset, (buffer,))
            if self._direct_fd is None:
                self._sync()
            else:  # told of its own pages by its own descriptor: no commit waits for these
                self._fdatasync(self._direct_fd)

        self._users += 1
        try:
            await trio.to_thread.run_sync(write_and_sync)
        finally:
            self._release()

    async def sync(self) -> None:
        """fdatasync: what was written before the call began is durable. Raises `DiskFailed`."""
        self._check_alive()
        await self._run_in_syncer(self._sync)

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes. Raises `CorruptData` where the device cannot read them."""
        self._check_alive()
        return self._read(offset, length)

    def read_if_cached(self, offset: int, length: int) -> Buffer | None:
        """As `read_at`, or None where that would wait for the device."""
        self._check_alive()
        buffer = self._memory.acquire(length)
        try:
            count = os.preadv(self._fd, (buffer,), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # file systems in memory: never cold
                return self._read(offset, length)
            raise self._read_error(error, offset, length) from error
        if count < length and offset + count < os.fstat(self._fd).st_size:
            return None  # only its beginning is hot
        return buffer[:count]

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        """As `read_at`, in one of the disk's two workers. Reads in sequence are read ahead."""
        self._check_alive()
        # What was read ahead is hot since, and was not asked for here: a reader in sequence comes back
        # that much further on.
        in_sequence = 0 <= offset - self._next_sequential <= READ_AHEAD_BYTES + length
        self._next_sequential = offset + length

        def read() -> bytes:
            if in_sequence:
                os.posix_fadvise(
                    self._fd, offset + length, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED
                )
            return self._read(offset, length)

        return await self._read_in_worker(read)

    async def read_in_worker_unbuffered(self, offset: int, length: int) -> bytes:
        """As `read_cold`; the kernel reads nothing ahead. See `File.read_in_worker_unbuffered`."""
        self._check_alive()

        def read() -> bytes:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
            try:
                return self._read(offset, length)
            finally:
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NORMAL)

        return await self._read_in_worker(read)

    async def _read_in_worker(self, read: Callable[[], bytes]) -> bytes:
        self._users += 1
        try:
            return await trio.to_thread.run_sync(read, limiter=self._device_readers)
        finally:
            self._release()

    def truncate(self, size: int) -> None:
        """Cut or extend. Raises `DiskFailed`, `DiskFull`."""
        self._check_alive()
        self._check_not_failed()
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._fail(error, f"truncating to {size} bytes") from error

    async def punch_hole(self, offset: int, length: int) -> bool:
        """Give back whole pages, in a worker; False where that cannot be. Raises `DiskFailed`."""
        self._check_alive()
        start = -(-offset // DIRECT_ALIGN) * DIRECT_ALIGN
        end = (offset + length) // DIRECT_ALIGN * DIRECT_ALIGN
        if end <= start:
            await trio.lowlevel.checkpoint()
            return True

        def punch() -> bool:
            self._check_not_failed()
            if not _libc.fallocate(self._fd, PUNCH_HOLE | KEEP_SIZE, start, end - start):
                return True
            number = ctypes.get_errno()
            if number in (errno.EOPNOTSUPP, errno.ENOSYS):
                return False
            what = f"giving back {end - start} bytes at {start}"
            raise self._fail(OSError(number, os.strerror(number)), what)

        self._users += 1
        try:
            return await trio.to_thread.run_sync(punch)
        finally:
            self._release()

    def allocated_bytes(self) -> int:
        """What the file takes of the device, by ``st_blocks``."""
        self._check_alive()
        return os.fstat(self._fd).st_blocks * SECTOR_BYTES

    def close(self) -> None:
        """Close, when the last call in another thread is through. Idempotent."""
        if self._closed_reason:
            return
        self._closed_reason = f"file {self._path} is closed"
        self._users += 1
        self._release()

    def on_forked(self) -> None:
        """In a forked child: close the copies of the descriptors (H15)."""
        for descriptor in self._take_descriptors():
            close_descriptor(descriptor)
        self._closed_reason = forked_message(f"file {self._path}")

    async def _run_in_syncer(self, call: Callable[[], None]) -> None:
        self._users += 1
        try:
            await self._syncer.run(call)
        finally:
            self._release()

    def _write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check_not_failed()
        descriptor = self._fd if self._direct_fd is None else self._direct_fd
        length = sum(map(len, buffers))
        if self._direct_fd is not None:
            assert offset % DIRECT_ALIGN == 0, "a direct file takes aligned offsets"
            assert length % DIRECT_ALIGN == 0, "a direct file takes aligned sizes"
        position, remaining = offset, list(buffers)
        try:
            while remaining:
                count = os.pwritev(descriptor, remaining[:BUFFERS_MAX], position)
                if position == offset and count == length:
                    return  # all of it at once, as nearly always
                position += count
                _drop_written(remaining, count)
        except OSError as error:
            raise self._fail(error, f"write of {length} bytes at {offset}") from error

    def _sync(self) -> None:
        with self._sync_lock:
            self._fdatasync(self._fd)

    def _fdatasync(self, descriptor: int) -> None:
        self._check_not_failed()
        started = time.monotonic()
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise self._fail(error, "fdatasync") from error
        self._on_synced(time.monotonic() - started)

    def _read(self, offset: int, length: int) -> bytes:
        content = b""
        try:
            while len(content) < length and (
                chunk := os.pread(self._fd, length - len(content), offset + len(content))
            ):
                content = content + chunk if content else chunk
        except OSError as error:
            raise self._read_error(error, offset, length) from error
        return content

    def _fail(self, error: OSError, action: str) -> DiskFailed:
        self._disk_error = disk_error(error, f"{self._path}: {action}")
        return self._disk_error

    def _read_error(self, error: OSError, offset: int, length: int) -> CorruptData | TooBusy:
        # A lack of memory is no corruption, which would cost a copy of sound bytes.
        cls = TooBusy if error.errno in (errno.ENOMEM, errno.ENOBUFS) else CorruptData
        return cls(
            f"{self._path}: read of {length} bytes at {offset}: {error.strerror} (errno {error.errno})"
        )

    def _check_alive(self) -> None:
        if self._closed_reason:
            raise AlreadyClosed(self._closed_reason)

    def _check_not_failed(self) -> None:
        if self._disk_error is not None:
            raise self._disk_error.again(f"{self._disk_error} (earlier; the file stays failed)")

    def _release(self) -> None:
        self._users -= 1
        if self._closed_reason and not self._users:
            self._on_closed(self)
            for descriptor in self._take_descriptors():
                os.close(descriptor)

    def _take_descriptors(self) -> list[int]:
        descriptors = [fd for fd in (self._fd, self._direct_fd) if fd is not None and fd >= 0]
        self._fd = -1
        self._direct_fd = None
        return descriptors


def disk_error(error: OSError, what: str) -> DiskFailed:
    """The error for a call that failed; ``what`` names the file and the call."""
    cls = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskFailed
    return cls(f"{what} failed: {error.strerror} (errno {error.errno})")


def _drop_written(buffers: list[Buffer], count: int) -> None:
    """Take the first ``count`` bytes off, in place."""
    written_buffers = 0
    while written_buffers < len(buffers) and count >= len(buffers[written_buffers]):
        count -= len(buffers[written_buffers])
        written_buffers += 1
    del buffers[:written_buffers]
    if count:
        buffers[0] = memoryview(buffers[0])[count:]
