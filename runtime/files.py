"""A `Disk` on a directory of a real file system.

- A name is durable when `create`, `rename` or `delete` returns: the directory is synced.
- Direct files (O_DIRECT) have two descriptors: writes go past the page cache, reads through it (the
  kernel drops the cached pages that a direct write covers). Measured for fallocated fresh files, against
  buffered writes: 2.5 times the rate, a tenth of the p99.
- After a failed write or sync a file stays failed: the kernel marks lost pages clean, so that the next
  sync would succeed over data that never reached the device.
"""

import errno
import fcntl
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from .errors import AlreadyClosed, CorruptData, DataDirectoryInUse, DiskFailed, DiskFull
from .forked import close_descriptor, forked_message, watch_forks
from .host import Buffer, File, OrderedMap
from .lmdb_map import delete_map, open_map, sync_directory
from .memory import DIRECT_ALIGN, aligned_memory, check_file_name
from .sync_mode import SyncMode, SyncThread

BUFFERS_MAX = 1024
"""Linux' IOV_MAX: how many buffers one write takes."""
COLD_READERS = 2
"""How many cold reads a disk does at once (H37)."""
MAP_SUFFIX = ".lmdb"
LOCK_NAME = "LOCK"

T = TypeVar("T")


class DirectoryDisk:
    """The files of one directory, made where it is missing.

    ``sync_mode``: ``inline`` syncs on the loop (best where a sync takes less than half a millisecond),
    ``thread`` in one thread a disk; see `choose_sync_mode`. ``direct_refused`` is set once
    the file system has refused O_DIRECT: direct files are buffered then.
    """

    def __init__(
        self, path: str | Path, *, sync: SyncMode = "thread", durability: str = "fdatasync"
    ) -> None:
        self.path = Path(path).absolute()
        self.sync_mode: SyncMode = sync
        self.durability = durability
        self.direct_refused = False
        self.sync_thread = SyncThread(f"sync {self.path}")
        self._direct_probed = False
        self._cold_readers = trio.CapacityLimiter(COLD_READERS)
        self._directory_worker = trio.CapacityLimiter(1)
        self._files: weakref.WeakSet[DirectoryFile] = weakref.WeakSet()
        self._lock_fd: int | None = None
        self._dead = ""
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            _sync_directory(self.path.parent)
        watch_forks(self)

    def list(self) -> list[str]:
        """The names of the files here, sorted; maps, the lock and names with a dot in front are not."""
        self._check_alive()
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
        return sorted(name for name in names if name != LOCK_NAME and not name.startswith("."))

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Make a new file; see `Disk.create`. Raises `FileExistsError`, `DiskFull`, `DiskFailed`."""
        check_file_name(name)
        descriptor, direct_descriptor = await self._in_worker(self._create, name, size, direct)
        return DirectoryFile(self, name, descriptor, direct_descriptor)

    async def open(self, name: str) -> File:
        """Open an existing file, buffered. Raises `FileNotFoundError`, `DiskFailed`."""
        path = self.path / check_file_name(name)
        return DirectoryFile(self, name, await self._in_worker(_open, path, os.O_RDWR), None)

    async def rename(self, old: str, new: str) -> None:
        """Rename over whatever is there. Raises `FileNotFoundError`, `DiskFailed`."""
        await self._in_worker(self._rename, check_file_name(old), check_file_name(new))

    async def delete(self, name: str) -> None:
        """Remove the name; open files stay readable. Raises `FileNotFoundError`, `DiskFailed`."""
        await self._in_worker(self._delete, check_file_name(name))

    async def open_map(self, name: str) -> OrderedMap:
        """Open or make an LMDB map in a directory of its own. Raises `CorruptData`, `DiskFailed`."""
        self._check_alive()
        return await open_map(self.path / (check_file_name(name) + MAP_SUFFIX))

    async def delete_map(self, name: str) -> None:
        """Remove a map that is not open. No error where there is none."""
        self._check_alive()
        await delete_map(self.path / (check_file_name(name) + MAP_SUFFIX))

    def free_bytes(self) -> int:
        """Space left on the device for an ordinary user."""
        self._check_alive()
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def lock(self) -> None:
        """Take this directory, until `unlock` or the end of the process. Raises `DataDirectoryInUse`."""
        self._check_alive()
        if self._lock_fd is not None:
            raise DataDirectoryInUse(f"{self.path} is in use by this very process")
        descriptor = _open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise DataDirectoryInUse(
                f"{self.path} is in use by another process ({holder or 'unknown'})"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise disk_error(error, f"{self.path}: locking it") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        self._lock_fd = descriptor

    def unlock(self) -> None:
        """Give it back. Idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def aligned_buffer(self, length: int) -> memoryview:
        """Zeroed, page-aligned, writable memory."""
        return aligned_memory(length)

    async def close(self) -> None:
        """Close all files, end the sync thread, give the directory back. Idempotent."""
        for file in list(self._files):
            file.close()
        await self.sync_thread.close()
        self.unlock()
        self._dead = self._dead or f"disk {self.path} is closed"

    def on_forked(self) -> None:
        """In a forked child: let go of the lock's descriptor, say so from now on (H15)."""
        self._dead = forked_message(f"disk {self.path}")
        if self._lock_fd is not None:
            close_descriptor(self._lock_fd)  # the parent's copy still holds the lock
            self._lock_fd = None

    def remember(self, file: "DirectoryFile") -> None:
        """Files call this when they are opened, to be closed with the disk."""
        self._files.add(file)

    async def in_cold_reader(self, call: Callable[[], T]) -> T:
        """Run a blocking read in one of the workers for cold data."""
        return await trio.to_thread.run_sync(call, limiter=self._cold_readers)

    async def _in_worker(self, call: Callable[..., T], *args: object) -> T:
        self._check_alive()
        return await trio.to_thread.run_sync(call, *args, limiter=self._directory_worker)

    def _create(self, name: str, size: int, direct: bool) -> tuple[int, int | None]:
        if direct and not self._direct_probed:
            self.direct_refused = not takes_direct(self.path)
            self._direct_probed = True
        path = self.path / name
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if size:
                os.posix_fallocate(descriptor, 0, size)
                os.fsync(descriptor)  # the size is no news any more to the first fdatasync
            direct_descriptor = None
            if direct and not self.direct_refused:
                direct_descriptor = _open(path, os.O_RDWR | os.O_DIRECT)
            _sync_directory(self.path)
        except (OSError, DiskFailed) as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)  # what is half-made must not be found
            if isinstance(error, DiskFailed):
                raise
            raise disk_error(error, f"{path}: making it with {size} bytes") from error
        return descriptor, direct_descriptor

    def _rename(self, old: str, new: str) -> None:
        try:
            os.replace(self.path / old, self.path / new)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, f"{self.path / old}: renaming it to {new}") from error
        _sync_directory(self.path)

    def _delete(self, name: str) -> None:
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, f"{self.path / name}: deleting it") from error
        _sync_directory(self.path)

    def _check_alive(self) -> None:
        if self._dead:
            raise AlreadyClosed(self._dead)


class DirectoryFile:
    """A file of a `DirectoryDisk`. A direct one has a second descriptor, for writes."""

    def __init__(
        self, disk: DirectoryDisk, name: str, descriptor: int, direct_descriptor: int | None
    ) -> None:
        self.name = name
        self._disk = disk
        self._path = disk.path / name
        self._fd = descriptor
        self._direct_fd = direct_descriptor
        self._dead = ""
        self._failed: DiskFailed | None = None
        self._users = 0
        """Calls in other threads: the descriptor's number must not be given to another file meanwhile."""
        self._next_cold = -1
        disk.remember(self)
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

        await self._durably(write_and_sync)

    async def sync(self) -> None:
        """fdatasync: what was written before the call began is durable. Raises `DiskFailed`."""
        self._check_alive()
        await self._durably(self._sync)

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes. Raises `CorruptData` where the device cannot read them."""
        self._check_alive()
        return self._read(offset, length)

    def read_hot(self, offset: int, length: int) -> bytes | None:
        """As `read_at`, or None where that would wait for the device."""
        self._check_alive()
        buffer = bytearray(length)
        try:
            count = os.preadv(self._fd, (buffer,), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # file systems in memory: never cold
                return self._read(offset, length)
            raise self._unreadable(error, offset, length) from error
        if count < length and offset + count < os.fstat(self._fd).st_size:
            return None  # only its beginning is hot
        del buffer[count:]
        return bytes(buffer)

    async def read_cold(self, offset: int, length: int) -> bytes:
        """As `read_at`, in one of the disk's two workers. Reads in sequence are read ahead."""
        self._check_alive()
        in_sequence = offset == self._next_cold
        self._next_cold = offset + length

        def read() -> bytes:
            if in_sequence:
                os.posix_fadvise(self._fd, offset + length, length, os.POSIX_FADV_WILLNEED)
            return self._read(offset, length)

        self._users += 1
        try:
            return await self._disk.in_cold_reader(read)
        finally:
            self._release()

    def truncate(self, size: int) -> None:
        """Cut or extend. Raises `DiskFailed`, `DiskFull`."""
        self._check_alive()
        self._check_sound()
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._fail(error, f"truncating to {size} bytes") from error

    def close(self) -> None:
        """Close, when the last call in another thread is through. Idempotent."""
        if self._dead:
            return
        self._dead = f"file {self._path} is closed"
        self._users += 1
        self._release()

    def on_forked(self) -> None:
        """In a forked child: close the copies of the descriptors (H15)."""
        for descriptor in self._take_descriptors():
            close_descriptor(descriptor)
        self._dead = forked_message(f"file {self._path}")

    async def _durably(self, call: Callable[[], None]) -> None:
        self._users += 1
        try:
            if self._disk.sync_mode == "thread":
                await self._disk.sync_thread.run(call)
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
                call()
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._release()

    def _write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check_sound()
        descriptor = self._fd if self._direct_fd is None else self._direct_fd
        length = sum(map(len, buffers))
        if self._direct_fd is not None:
            assert offset % DIRECT_ALIGN == 0, "a direct file takes aligned offsets"
            assert length % DIRECT_ALIGN == 0, "a direct file takes aligned sizes"
        at, left = offset, list(buffers)
        try:
            while left:
                count = os.pwritev(descriptor, left[:BUFFERS_MAX], at)
                at += count
                _drop(left, count)
        except OSError as error:
            raise self._fail(error, f"write of {length} bytes at {offset}") from error

    def _sync(self) -> None:
        self._check_sound()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._fail(error, "fdatasync") from error

    def _read(self, offset: int, length: int) -> bytes:
        found = b""
        try:
            while len(found) < length and (
                more := os.pread(self._fd, length - len(found), offset + len(found))
            ):
                found = found + more if found else more
        except OSError as error:
            raise self._unreadable(error, offset, length) from error
        return found

    def _fail(self, error: OSError, what: str) -> DiskFailed:
        self._failed = disk_error(error, f"{self._path}: {what}")
        return self._failed

    def _unreadable(self, error: OSError, offset: int, length: int) -> CorruptData:
        return CorruptData(
            f"{self._path}: read of {length} bytes at {offset}: {error.strerror} (errno {error.errno})"
        )

    def _check_alive(self) -> None:
        if self._dead:
            raise AlreadyClosed(self._dead)

    def _check_sound(self) -> None:
        if self._failed is not None:
            raise type(self._failed)(f"{self._failed} (earlier; the file stays failed)")

    def _release(self) -> None:
        self._users -= 1
        if self._dead and not self._users:
            for descriptor in self._take_descriptors():
                os.close(descriptor)

    def _take_descriptors(self) -> list[int]:
        taken = [fd for fd in (self._fd, self._direct_fd) if fd is not None and fd >= 0]
        self._fd = -1
        self._direct_fd = None
        return taken


def disk_error(error: OSError, what: str) -> DiskFailed:
    """The error for a call that failed; ``what`` names the file and the call."""
    cls = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskFailed
    return cls(f"{what} failed: {error.strerror} (errno {error.errno})")


def takes_direct(path: Path) -> bool:
    """Whether the file system of the directory ``path`` takes writes with O_DIRECT."""
    probe = path / f".direct-probe-{os.getpid()}"
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    try:
        os.pwrite(descriptor, aligned_memory(DIRECT_ALIGN), 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise disk_error(error, f"{path}: opening it") from error


def _sync_directory(path: Path) -> None:
    try:
        sync_directory(path)
    except OSError as error:
        raise disk_error(error, f"{path}: syncing the directory") from error


def _drop(buffers: list[Buffer], count: int) -> None:
    """Take the first ``count`` bytes off, in place."""
    whole = 0
    while whole < len(buffers) and count >= len(buffers[whole]):
        count -= len(buffers[whole])
        whole += 1
    del buffers[:whole]
    if count:
        buffers[0] = memoryview(buffers[0])[count:]
