"""A file of a real file system; see `directory_disk.py` for its directory.

- Direct files (O_DIRECT) have two descriptors. Writes bypass the page cache, and reads use it; the kernel
  drops cached pages that a direct write covers. For new preallocated files, direct writes have 2.5 times the
  rate of buffered ones and a tenth of their p99 latency.
- After a failed write or sync, a file stays failed. The kernel marks lost pages as clean, so the next sync
  would succeed although the data never reached the device.
- A descriptor has one sync at a time. The kernel reports lost pages only once per descriptor, so one of two
  concurrent syncs would fail and the other succeed.
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
"""IOV_MAX of Linux, the number of buffers in one write."""

READ_AHEAD_BYTES = 8 * 1024 * 1024
"""Read ahead on the device after a sequential cold read. Catch-up reads run at this rate."""

PUNCH_HOLE, KEEP_SIZE = 2, 1
"""Flags of fallocate(2)."""
SECTOR_BYTES = 512
"""The unit of ``st_blocks``."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

_ZEROS = aligned_memory(1024 * 1024).toreadonly()
"""Pages that were never written are one shared page of zeros in the kernel, and use no memory."""


class DirectoryFile:
    """An open file. ``direct_fd`` is a second descriptor for writes that bypass the page cache, or None."""

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
        """``on_synced`` receives the duration of each sync in seconds, from any thread.

        ``on_closed`` is called when no call uses the file any more.
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
        """Calls in other threads. Until they end, the descriptor is not closed, so its number cannot be
        reused."""
        self._next_sequential = -1
        self.inode = os.fstat(fd).st_ino
        """The identity of the file, independent of its name, also after `close`."""
        self.was_unlinked = False
        """Whether its disk has removed its name, or is about to. Its absence in the directory is then no
        loss."""
        watch_forks(self)

    def size(self) -> int:
        """Return the size in bytes, including preallocated space."""
        self._check_alive()
        return os.fstat(self._fd).st_size

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write without making the data durable. A direct file requires aligned memory and size."""
        self._check_alive()
        self._write(offset, buffers)

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        """Write, then fdatasync, with at most one thread hop. See `File.write_synced`."""
        self._check_alive()

        def write_and_sync() -> None:
            self._write(offset, (buffer,))
            self._sync()

        await self._run_in_syncer(write_and_sync)

    @property
    def syncs_inline(self) -> bool:
        """Whether this disk syncs on the event loop."""
        return self._syncer.mode == "inline"

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        """Write, then fdatasync, on the event loop. See `File.write_synced_now`."""
        self._check_alive()
        self._write(offset, (buffer,))
        self._sync()

    async def write_zeros(self, offset: int, length: int) -> None:
        """Write zeros and sync them in a worker thread, in any sync mode. See `File.write_zeros`."""
        self._check_alive()
        assert length <= len(_ZEROS), "at most 1 MiB"
        await self._write_and_sync_in_worker(offset, _ZEROS[:length])

    async def write_in_worker(self, offset: int, buffer: Buffer) -> None:
        """Write and sync in a worker thread, in any sync mode. See `File.write_in_worker`."""
        self._check_alive()
        await self._write_and_sync_in_worker(offset, buffer)

    async def _write_and_sync_in_worker(self, offset: int, buffer: Buffer) -> None:
        def write_and_sync() -> None:
            self._write(offset, (buffer,))
            if self._direct_fd is None:
                self._sync()
            else:  # this descriptor reports the errors of these writes, for which no commit waits
                self._fdatasync(self._direct_fd)

        self._users += 1
        try:
            await trio.to_thread.run_sync(write_and_sync)
        finally:
            self._release()

    async def sync(self) -> None:
        """Run fdatasync: data written before the call began is durable. Raises `DiskFailed`."""
        self._check_alive()
        await self._run_in_syncer(self._sync)

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes. Raises `CorruptData` if the device cannot read them."""
        self._check_alive()
        return self._read(offset, length)

    def read_if_cached(self, offset: int, length: int) -> Buffer | None:
        """Read as `read_at` does, or return None if that would block on the device."""
        self._check_alive()
        buffer = self._memory.acquire(length)
        try:
            count = os.preadv(self._fd, (buffer,), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # file systems in memory, which do not block
                return self._read(offset, length)
            raise self._read_error(error, offset, length) from error
        if count < length and offset + count < os.fstat(self._fd).st_size:
            return None  # only the beginning is in the page cache
        return buffer[:count]

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        """Read in one of the disk's two worker threads. Sequential reads cause read-ahead."""
        self._check_alive()
        # Data that was read ahead is in the page cache and skips this method, so the next call of a
        # sequential reader has an offset that is further on.
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
        """Read in a worker thread without read-ahead. See `File.read_in_worker_unbuffered`."""
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
        """Set the size. Raises `DiskFailed`, `DiskFull`."""
        self._check_alive()
        self._check_not_failed()
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._fail(error, f"truncating to {size} bytes") from error

    async def punch_hole(self, offset: int, length: int) -> bool:
        """Free whole pages, in a worker thread; False if it is not supported. Raises `DiskFailed`."""
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
            what = f"freeing {end - start} bytes at {start}"
            raise self._fail(OSError(number, os.strerror(number)), what)

        self._users += 1
        try:
            return await trio.to_thread.run_sync(punch)
        finally:
            self._release()

    def allocated_bytes(self) -> int:
        """Return the space that the file uses on the device, from ``st_blocks``."""
        self._check_alive()
        return os.fstat(self._fd).st_blocks * SECTOR_BYTES

    def close(self) -> None:
        """Close when the last call in another thread has ended. Idempotent."""
        if self._closed_reason:
            return
        self._closed_reason = f"file {self._path} is closed"
        self._users += 1
        self._release()

    def on_forked(self) -> None:
        """Close the copies of the descriptors in a forked child (H15)."""
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
        """Write all buffers, in a worker thread or on the event loop.

        The call blocks. `write_at`, `write_synced_now` and an inline syncer run it on the event loop. After
        an error, all later writes and syncs of the file fail.
        """
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
                    return  # everything was written at once, as in most cases
                position += count
                _drop_written(remaining, count)
        except OSError as error:
            raise self._fail(error, f"write of {length} bytes at {offset}") from error

    def _sync(self) -> None:
        """Make the writes durable, in any thread. Only one thread at a time syncs the file."""
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
        """Return the error of a failed call, after which the file stays failed.

        The kernel may have dropped the data, so that a repeated sync would succeed without it.
        """
        self._disk_error = disk_error(error, f"{self._path}: {action}")
        return self._disk_error

    def _read_error(self, error: OSError, offset: int, length: int) -> CorruptData | TooBusy:
        # A lack of memory is not corruption, which would cause a repair of valid bytes.
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
    """Return the error for a failed call; ``what`` names the file and the call."""
    cls = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskFailed
    return cls(f"{what} failed: {error.strerror} (errno {error.errno})")


def _drop_written(buffers: list[Buffer], count: int) -> None:
    """Remove the first ``count`` bytes from the buffers, in place."""
    written_buffers = 0
    while written_buffers < len(buffers) and count >= len(buffers[written_buffers]):
        count -= len(buffers[written_buffers])
        written_buffers += 1
    del buffers[:written_buffers]
    if count:
        buffers[0] = memoryview(buffers[0])[count:]
