"""A `Disk` on a directory of a real file system.

A name is durable when `create`, `rename` or `delete` returns, because the directory is synced. Blocking calls
run in worker threads: one for directory calls, two for cold reads, and syncs according to `sync_mode.py`.

Names are looked up in the opened directory, never by its path. If another file system is mounted over the
path, nothing in it is changed, and `check_directory` ends the node.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from ..interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DataDirectoryInUse,
    DataDirectoryLost,
    DistributedLogError,
    TooBusy,
)
from ..interfaces.host import File, OrderedMap
from ..primitives.buffer_pool import BufferPool
from ..process.fork_safety import close_descriptor, forked_message, watch_forks
from .deferred_removal import DeferredRemovals
from .directory_file import DirectoryFile, disk_error
from .lmdb_map import (
    delete_map,
    inode_of,
    is_in_place,
    is_open,
    open_map,
    probe_map,
    sync_directory,
)
from .memory_disk import DIRECT_ALIGN, aligned_memory, check_file_name
from .sync_mode import Syncer, SyncMode

DEVICE_READERS = 2
"""The number of concurrent cold reads per disk (H37)."""
CACHED_READ_BYTES = 2 * 1024 * 1024
CACHED_READ_BUFFERS = 4
"""Data from the page cache waits for sending in this many reused buffers; further buffers are new."""
MAP_SUFFIX = ".lmdb"
LOCK_NAME = "LOCK"

T = TypeVar("T")


class DirectoryDisk:
    """The files of one directory, which is created if it is missing.

    With ``sync_mode`` ``inline``, syncs run on the event loop, which is best if a sync takes less than half a
    millisecond. With ``thread``, they run in one thread per disk; see `choose_sync_mode`. ``direct_refused``
    is True once the file system has refused O_DIRECT. Direct files are then buffered.
    """

    def __init__(
        self, path: str | Path, *, sync: SyncMode = "thread", durability: str = "fdatasync"
    ) -> None:
        self.path = Path(path).absolute()
        self.durability = durability
        self.direct_refused = False
        self._syncer = Syncer(sync, f"sync {self.path}")
        self._direct_probed = False
        self._device_readers = trio.CapacityLimiter(DEVICE_READERS)
        self._memory = BufferPool(CACHED_READ_BYTES, CACHED_READ_BUFFERS)
        self._directory_worker = trio.CapacityLimiter(1)
        self._files: dict[DirectoryFile, None] = {}
        self._opening_inodes: list[int] = []
        """Inodes that the worker has opened and that are not in `_files` yet."""
        self._deferred_removals = DeferredRemovals(f"removals {self.path}")
        self._lock_fd: int | None = None
        self._closed_reason = ""
        _make_directory(self.path)
        # It stays open, so that a sync of the directory needs no free descriptor.
        self._directory_fd = _open_file(self.path, os.O_RDONLY | os.O_DIRECTORY)
        directory_stat = os.fstat(self._directory_fd)
        self._inode = (directory_stat.st_dev, directory_stat.st_ino)
        self._maps: dict[str, None] = {}
        """The names of the maps that were opened here."""
        self._unlinked_inodes: set[int] = set()
        """Inodes whose names were removed here while a file was being added to `_files`."""
        watch_forks(self)

    @property
    def sync_mode(self) -> SyncMode:
        """Where syncs run. It may be set before the disk is busy."""
        return self._syncer.mode

    @sync_mode.setter
    def sync_mode(self, mode: SyncMode) -> None:
        self._syncer.mode = mode

    def list(self) -> list[str]:
        """Return the names of the files, sorted, without maps, the lock and hidden files."""
        self._check_alive()
        try:
            names = [entry.name for entry in self._entries() if not entry.is_dir()]
        except OSError as error:
            raise disk_error(error, f"{self.path}: listing it") from error
        return sorted(name for name in names if name != LOCK_NAME and not name.startswith("."))

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        """Create a file; see `Disk.create`. Raises `FileExistsError`, `DiskFull`, `DiskFailed`."""
        check_file_name(name)
        return self._add_file(name, *await self._run_in_worker(self._create, name, size, direct))

    async def open(self, name: str) -> File:
        """Open an existing file, buffered.

        Raises:
            FileNotFoundError: It does not exist.
            DiskFailed: The system call failed.
            TooBusy: No descriptor is free. `create` also raises it.
        """
        check_file_name(name)
        return self._add_file(name, await self._run_in_worker(self._open, name), None)

    async def rename(self, old: str, new: str) -> None:
        """Rename a file and replace an existing one. Raises `FileNotFoundError`, `DiskFailed`."""
        await self._run_in_worker(self._rename, check_file_name(old), check_file_name(new))

    async def delete(self, *names: str) -> None:
        """Remove files; open files stay readable. Raises `FileNotFoundError`, `DiskFailed`.

        The space of large files that are not open is freed over minutes (`deferred_removal.py`).
        """
        await self._run_in_worker(self._delete, *map(check_file_name, names))

    async def open_map(self, name: str) -> OrderedMap:
        """Open an LMDB map in a separate directory, or create it. Raises `CorruptData`, `DiskFailed`.

        A map that this process has not opened yet is first read completely in a child process. A corrupt
        page, or one after the end of a truncated file, would end this process with a signal.
        """
        self._check_alive()
        path = self.path / (check_file_name(name) + MAP_SUFFIX)
        if not is_open(path) and not await probe_map(path):
            raise CorruptData(f"map {path}: reading it in a child process failed")
        self._check_alive()
        self._maps[path.name] = None
        return await open_map(path)

    async def delete_map(self, name: str) -> None:
        """Remove a map that is not open. A missing map is not an error."""
        self._check_alive()
        await delete_map(self.path / (check_file_name(name) + MAP_SUFFIX))

    def free_bytes(self) -> int:
        """Return the free space of the device for an unprivileged user."""
        self._check_alive()
        try:
            stat = os.fstatvfs(self._directory_fd)
        except OSError as error:
            raise disk_error(error, f"{self.path}: reading its free space") from error
        return stat.f_bavail * stat.f_frsize

    def set_min_free_bytes(self, size: int) -> None:
        """Free the space of deleted files at once while fewer than ``size`` bytes are free."""
        self._deferred_removals.min_free_bytes = size

    async def check_directory(self) -> None:
        """See `Disk.check_directory`. Takes some microseconds per file.

        It runs in a worker thread, because the device may not answer.
        """
        self._check_alive()
        files = [*self._files]  # before the names are read, which do not include later files
        maps = [self.path / name for name in self._maps]
        await trio.to_thread.run_sync(self._check_place, files, maps)

    def _check_place(self, files: Collection[DirectoryFile], maps: Collection[Path]) -> None:
        try:
            was_moved = inode_of(self.path) != self._inode
            lost_files = () if was_moved else self._missing_files(self._entries(), files)
            lost_maps = [path for path in maps if not is_in_place(path)]
        except OSError:
            return  # no descriptor or no permission: the files may well be in place
        if self._closed_reason:
            return
        if was_moved:
            raise DataDirectoryLost(
                f"{self.path}: the data directory was removed or moved, or a file system was mounted over it"
            )
        for path in (*(self.path / file.name for file in lost_files), *lost_maps):
            raise DataDirectoryLost(
                f"{path}: another program removed or moved it while it was in use"
            )

    def _missing_files(
        self, entries: Sequence[os.DirEntry[str]], files: Collection[DirectoryFile]
    ) -> Sequence[DirectoryFile]:
        """Return the open files without a name here, except those whose name this disk removed."""
        # A network file system keeps removed files that are open under a name that starts with a dot.
        visible_entries = [entry for entry in entries if not entry.name.startswith(".")]
        listed_inodes = {entry.inode() for entry in visible_entries}
        if any(file.inode not in listed_inodes for file in files if not file.was_unlinked):
            # Some file systems list other inode numbers than stat returns for the files.
            listed_inodes = set()
            for entry in visible_entries:
                with contextlib.suppress(FileNotFoundError):
                    listed_inodes.add(os.stat(entry.name, dir_fd=self._directory_fd).st_ino)
        return [file for file in files if file.inode not in listed_inodes and not file.was_unlinked]

    def _entries(self) -> Sequence[os.DirEntry[str]]:
        # A separate descriptor, because two readers of one descriptor would share its position.
        descriptor = os.open(
            ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory_fd
        )
        try:
            with os.scandir(descriptor) as entries:
                entry_list = [*entries]
                for entry in entry_list:
                    entry.is_dir()  # caches the result while the descriptor is open
                return entry_list
        finally:
            os.close(descriptor)

    def lock(self) -> None:
        """Lock this directory until `unlock` or the end of the process. Raises `DataDirectoryInUse`."""
        self._check_alive()
        if self._lock_fd is not None:
            raise DataDirectoryInUse(f"{self.path} is already in use by this process")
        descriptor = _open_file(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
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
        with contextlib.suppress(
            OSError
        ):  # the owner is informative only, and the disk may be full
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        self._lock_fd = descriptor

    def unlock(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def aligned_buffer(self, length: int) -> memoryview:
        """Return zeroed, page-aligned, writable memory."""
        return aligned_memory(length)

    async def close(self) -> None:
        """Close all files, end the sync thread, and release the lock. Idempotent."""
        for file in list(self._files):
            file.close()
        await self._syncer.close()
        self._deferred_removals.close()
        self.unlock()
        self._closed_reason = self._closed_reason or f"disk {self.path} is closed"
        async with self._directory_worker:  # a running call may still use the descriptor
            descriptor, self._directory_fd = self._directory_fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def on_forked(self) -> None:
        """Close the copies in a forked child; later calls raise an error that explains this (H15)."""
        self._closed_reason = forked_message(f"disk {self.path}")
        if self._lock_fd is not None:
            close_descriptor(self._lock_fd)  # the parent's copy keeps the lock
            self._lock_fd = None
        if self._directory_fd >= 0:
            close_descriptor(self._directory_fd)
            self._directory_fd = -1

    def _add_file(self, name: str, fd: int, direct_fd: int | None) -> DirectoryFile:
        file = DirectoryFile(
            self.path / name,
            fd,
            direct_fd,
            syncer=self._syncer,
            device_readers=self._device_readers,
            memory=self._memory,
            on_synced=self._deferred_removals.record_sync,
            on_closed=self._files.pop,
        )
        self._files[file] = None
        if (
            file.inode in self._unlinked_inodes
        ):  # in this order: the worker adds to `_unlinked_inodes`, then checks `_files`
            file.was_unlinked = True
        self._opening_inodes.remove(file.inode)  # not before it is in `_files`: see `_delete`
        if not self._opening_inodes:
            self._unlinked_inodes.clear()
        return file

    async def _run_in_worker(self, call: Callable[..., T], *args: object) -> T:
        self._check_alive()
        return await trio.to_thread.run_sync(call, *args, limiter=self._directory_worker)

    def _open(self, name: str) -> int:
        descriptor = self._open_in_directory(name, os.O_RDWR)
        self._opening_inodes.append(os.fstat(descriptor).st_ino)
        return descriptor

    def _create(self, name: str, size: int, direct: bool) -> tuple[int, int | None]:
        if direct and not self._direct_probed:
            self.direct_refused = not supports_direct_io(self.path)
            self._direct_probed = True
        path = self.path / name
        try:
            descriptor = self._open_in_directory(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:  # no file can be created in a removed directory
            raise DataDirectoryLost(f"{self.path}: it was removed while it was in use") from None
        direct_descriptor = None
        try:
            if size:
                os.posix_fallocate(descriptor, 0, size)
                os.fsync(descriptor)  # the first fdatasync then need not sync the new size
            if direct and not self.direct_refused:
                direct_descriptor = self._open_in_directory(name, os.O_RDWR | os.O_DIRECT)
            self._sync_names()
        except (OSError, DistributedLogError) as error:
            os.close(descriptor)
            if direct_descriptor is not None:
                os.close(direct_descriptor)
            with contextlib.suppress(OSError):  # already removed, or the disk accepts no changes
                os.unlink(name, dir_fd=self._directory_fd)  # an incomplete file must not be found
            if isinstance(error, DistributedLogError):
                raise
            raise disk_error(error, f"{path}: creating it with {size} bytes") from error
        self._opening_inodes.append(os.fstat(descriptor).st_ino)
        return descriptor, direct_descriptor

    def _rename(self, old: str, new: str) -> None:
        directory = self._directory_fd
        try:
            self._mark_unlinked(new)
            os.replace(old, new, src_dir_fd=directory, dst_dir_fd=directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, f"{self.path / old}: renaming it to {new}") from error
        self._sync_names()

    def _delete(self, *names: str) -> None:
        # In this order, so that a file which the event loop adds concurrently is in one of the two. No file
        # is opened or created before this call of the worker ends.
        in_use = {*self._opening_inodes, *(file.inode for file in list(self._files))}
        for name in names:
            try:
                self._mark_unlinked(name)
                self._deferred_removals.unlink(
                    name, directory=self._directory_fd, in_use_inodes=in_use
                )
            except FileNotFoundError:
                raise
            except OSError as error:
                raise disk_error(error, f"{self.path / name}: deleting it") from error
        self._sync_names()

    def _open_in_directory(self, name: str, flags: int) -> int:
        return _open_file(self.path / name, flags, self._directory_fd)

    def _mark_unlinked(self, name: str) -> None:
        """Mark an open file of this name, which is being removed here, as not lost (`check_directory`)."""
        with contextlib.suppress(FileNotFoundError):
            inode = os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False).st_ino
            if inode in self._opening_inodes:
                self._unlinked_inodes.add(inode)
            for file in list(self._files):
                if file.inode == inode:
                    file.was_unlinked = True

    def _sync_names(self) -> None:
        try:
            os.fsync(self._directory_fd)
        except OSError as error:
            raise disk_error(error, f"{self.path}: syncing the directory") from error

    def _check_alive(self) -> None:
        if self._closed_reason:
            raise AlreadyClosed(self._closed_reason)


def supports_direct_io(path: Path) -> bool:
    """Return whether the file system of a directory accepts writes with O_DIRECT."""
    probe = path / f".direct-probe-{os.getpid()}"
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, aligned_memory(DIRECT_ALIGN), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)  # a full disk has not refused O_DIRECT
    finally:
        with contextlib.suppress(OSError):  # the file may exist although the open was refused
            probe.unlink()
    return True


def _open_file(path: Path, flags: int, directory: int | None = None) -> int:
    """Open ``path``, or its last name relative to the descriptor ``directory``."""
    try:
        name = path if directory is None else path.name
        return os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # not a disk error
            raise TooBusy(f"{path}: too many open files; raise the limit (ulimit -n)") from error
        raise disk_error(error, f"{path}: opening it") from error


def _make_directory(path: Path) -> None:
    """Create a directory and its missing parents, and make all names durable."""
    if not path.is_dir():
        _make_directory(path.parent)
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise disk_error(error, f"{path}: creating the directory") from error
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    try:
        sync_directory(path)
    except OSError as error:
        raise disk_error(error, f"{path}: syncing the directory") from error
