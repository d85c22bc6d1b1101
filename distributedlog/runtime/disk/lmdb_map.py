"""An `OrderedMap` in LMDB (H38).

- All handles of a process share one environment per path. If a process opens it twice, LMDB loses its file
  locks.
- Reads copy their results within one synchronous call. A reader that is kept over an ``await`` pins pages
  forever.
- Every transaction is synced. Without syncs, 20 of 25 power cuts broke the map.
- The map size is 64 GiB from the start. The file is sparse, and resizing under open transactions is
  undefined.
- LMDB does not verify its pages. Before a map is opened, `probe_map` reads all of them in a child process,
  because a corrupt page may crash its reader. The users of a map add checksums to its values.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import lmdb
import trio

from ..interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DiskFailed,
    DiskFull,
    DistributedLogError,
)
from ..interfaces.host import Summary
from ..process.fork_safety import forked_message, watch_forks
from .memory_disk import KEY_BYTES_MAX

FILE_NAME = "data.mdb"
MAP_BYTES = 64 << 30
READERS_MAX = 16
DAMAGED = 65
"""The exit code of the child of `probe_map` for damage. Python itself never uses it."""
CRASHES_MAX = 2
"""A reader that crashed is started again. If both crash, the file is damaged."""
NO_SPACE_BYTES = 1 << 20
"""A failed call on a disk with less free space than this counts as a lack of space."""

_environments: dict[str, "_Environment"] = {}
"""By real path. The last handle to close closes the environment."""


class LmdbMap:
    """One handle on a map. See `OrderedMap`."""

    def __init__(self, environment: "_Environment") -> None:
        self._environment = environment
        self._closed_reason = ""

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        """Delete, then put, in one synced transaction, in a worker thread.

        A key in both is put, and the last put of a key counts. Transactions run one at a time and in order.
        Raises `DiskFull`, `DiskFailed`, `CorruptData`.
        """
        puts, deletes = list(puts), list(deletes)
        self._check_alive()
        environment = self._environment
        environment.users += 1  # closing it now would unmap the memory that the thread uses
        try:
            await trio.to_thread.run_sync(
                environment.apply, puts, deletes, summary, limiter=environment.writer
            )
        finally:
            environment.release()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None. All reads may raise `CorruptData`."""
        self._check_alive()
        if not 0 < len(key) <= KEY_BYTES_MAX:
            return None
        try:
            with self._environment.lmdb.begin() as reader:
                return reader.get(key)
        except lmdb.Error as error:
            raise self._environment.translate(error, "reading") from error

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key <= ``key``, or None."""
        self._check_alive()
        try:
            with self._environment.lmdb.begin() as reader, reader.cursor() as cursor:
                has_pair = cursor.set_range(key) if key else cursor.first()
                if not has_pair:
                    has_pair = cursor.last()  # all keys are smaller
                elif cursor.key() != key:
                    has_pair = cursor.prev()
                return cursor.item() if has_pair else None
        except lmdb.Error as error:
            raise self._environment.translate(error, "reading") from error

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` pairs with start <= key < end, in order."""
        self._check_alive()
        pairs: list[tuple[bytes, bytes]] = []
        try:
            with self._environment.lmdb.begin() as reader, reader.cursor() as cursor:
                has_more = cursor.set_range(start) if start else cursor.first()
                while has_more and len(pairs) < limit and cursor.key() < end:
                    pairs.append(cursor.item())
                    has_more = cursor.next()
        except lmdb.Error as error:
            raise self._environment.translate(error, "reading") from error
        return pairs

    def close(self) -> None:
        """Close this handle. Idempotent."""
        if not self._closed_reason:
            self._closed_reason = f"map {self._environment.path} is closed"
            self._environment.release()

    def _check_alive(self) -> None:
        if self._environment.closed_reason or self._closed_reason:
            raise AlreadyClosed(self._environment.closed_reason or self._closed_reason)


class _Environment:
    """The one LMDB environment of a path, and the number of its users (handles and running commits)."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.users = 0
        self.closed_reason = ""
        self.writer = trio.CapacityLimiter(1)
        is_new = not path.is_dir()
        try:
            if is_new:
                path.mkdir(mode=0o700)
            self.lmdb = lmdb.open(
                self.path,
                map_size=MAP_BYTES,
                max_readers=READERS_MAX,
                max_spare_txns=1,
                readahead=False,  # lookups are random; a map larger than memory would be read twice
                mode=0o600,
            )
            self.lmdb.reader_check()  # readers that died with their process pin pages
            self.inode = inode_of(path / FILE_NAME)
            if is_new:
                sync_directory(path)
                sync_directory(path.parent)
        except lmdb.Error as error:
            raise self.translate(error, "opening") from error
        except OSError as error:
            raise DiskFailed(f"map {self.path}: creating it: {error.strerror}") from error
        watch_forks(self)

    def apply(
        self, puts: list[tuple[bytes, bytes]], deletes: list[bytes], summary: Summary | None
    ) -> None:
        """Run one transaction in the worker; checking 50,000 keys would block the event loop for 5 ms."""
        for key in (*(key for key, _ in puts), *deletes):
            assert 0 < len(key) <= KEY_BYTES_MAX, f"a key of {len(key)} bytes"
        try:
            with self.lmdb.begin(write=True) as writer:
                if summary is not None:
                    # One short call per pair: `getmulti` keeps the interpreter's lock for all of them.
                    replaced = {key: writer.get(key) for key in deletes}
                    replaced |= {key: writer.get(key) for key, _ in puts}
                    puts.append(summary({k: v for k, v in replaced.items() if v is not None}))
                for key in deletes:
                    writer.delete(key)
                with writer.cursor() as cursor:
                    cursor.putmulti(puts)
        except lmdb.Error as error:
            raise self.translate(error, "committing") from error

    def translate(self, error: lmdb.Error, what: str) -> DistributedLogError:
        message = f"map {self.path}: {what}: {error}"
        if isinstance(error, lmdb.MapFullError) or (what != "reading" and self._no_space()):
            return DiskFull(message)
        if isinstance(error, _DAMAGE_ERRORS):
            return CorruptData(message)
        return DiskFailed(message)

    def _no_space(self) -> bool:
        """Return whether the disk is full.

        LMDB reports a write that a full disk cut short as an input/output error.
        """
        try:
            stat = os.statvfs(self.path)
        except OSError:
            return False
        return stat.f_bavail * stat.f_frsize < NO_SPACE_BYTES

    def release(self) -> None:
        self.users -= 1
        if not self.users and not self.closed_reason:
            self.closed_reason = f"map {self.path} is closed"
            del _environments[self.path]
            self.lmdb.close()

    def on_forked(self) -> None:
        """Never use the environment again in a forked child, and do not even free it (H15).

        If it were freed at the child's exit, it would release a reader's slot in the lock table that belongs
        to the parent. So it is kept, with its descriptors.
        """
        self.closed_reason = forked_message(f"map {self.path}")
        _environments.pop(self.path, None)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.lmdb))


_DAMAGE_ERRORS = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
)
"""The only errors that mean damage. All others have external causes: memory, reader slots, permissions."""
_DAMAGE_ERROR_NAMES = [lie.__name__ for lie in _DAMAGE_ERRORS]
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


async def open_map(path: Path) -> LmdbMap:
    """Open or create the map in the directory ``path``. Raises `CorruptData`, `DiskFailed`.

    Call `probe_map` first, as `DirectoryDisk` does.
    """
    await trio.lowlevel.checkpoint()
    path = _canonical(path)
    environment = _environments.get(str(path))
    if environment is None:
        environment = _environments[str(path)] = _Environment(path)
    environment.users += 1
    return LmdbMap(environment)


def is_open(path: Path) -> bool:
    """Return whether this process has opened the map in ``path``."""
    return str(_canonical(path)) in _environments


def is_in_place(path: Path) -> bool:
    """Return whether the map file that this process opened is still in ``path``; True if it opened none."""
    environment = _environments.get(str(_canonical(path)))
    return environment is None or environment.inode == inode_of(path / FILE_NAME)


def inode_of(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a name, or None if it does not exist. Raises `OSError`."""
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino


async def delete_map(path: Path) -> None:
    """Remove the map in ``path``, which is not open. A missing map is not an error."""
    path = _canonical(path)
    assert str(path) not in _environments, f"map {path} is deleted while it is open"
    await trio.to_thread.run_sync(_delete, path)


async def probe_map(path: Path) -> bool:
    """Return whether a child process could open a map, read all of it in order, and begin to write.

    False means damage: delete the map and rebuild it. A missing map is valid. The call takes about 0.4 s of
    CPU per million pairs. It has no time limit, since a slow device is not damage.

    Raises:
        DiskFailed: The child could not read for another reason, such as a limit of memory or a signal.
    """
    if not _has_file(path):
        await trio.lowlevel.checkpoint()
        return True
    for _ in range(CRASHES_MAX):
        try:
            process = await trio.run_process(
                [sys.executable, "-P", "-c", _PROBE, str(path), str(DAMAGED), *_DAMAGE_ERROR_NAMES],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
            )
        except OSError as error:
            raise _probe_failed_error(path, f"starting a process: {error.strerror}") from error
        if process.returncode == 0:
            return True
        if process.returncode == DAMAGED:
            return False
        if not (process.stdout and -process.returncode in _CRASH_SIGNALS):
            last = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise _probe_failed_error(path, last or f"its reader ended with {process.returncode}")
    return False


def _probe_failed_error(path: Path, reason: str) -> DiskFailed:
    return DiskFailed(f"map {path}: verifying it: {reason}. The map was not changed; start again")


_PROBE = """
import sys
from itertools import pairwise, starmap, takewhile
from operator import lt
import lmdb
path, damaged, *lies = sys.argv[1:]
print("reading", flush=True)  # a crash after this is caused by the pages
try:
    with lmdb.open(path, map_size=64 << 30, create=False) as environment:
        with environment.begin() as reader, reader.cursor() as cursor:
            # No Python code per pair: for two million pairs, it would add half a second to a bookie's start.
            # The first pair that is out of order ends the loop, so that cyclic pages are not read forever.
            in_order = sum(takewhile(bool, starmap(lt, pairwise(cursor))))
            if in_order != max(0, environment.stat()["entries"] - 1):
                sys.exit(int(damaged))  # pairs are missing, or out of order
        # The list of free pages is in separate pages, which only a writer reads. A writer that needs more
        # contiguous pages than there are reads all of it. The aborted transaction changes nothing.
        writer = environment.begin(write=True)
        writer.put(b"probe", bytes(4 << 20))
        writer.abort()
except tuple(getattr(lmdb, lie) for lie in lies):
    sys.exit(int(damaged))
"""


def _canonical(path: Path) -> Path:
    return path.resolve()


def _has_file(path: Path) -> bool:
    return (path / FILE_NAME).exists()


def _delete(path: Path) -> None:
    try:
        shutil.rmtree(path)
        sync_directory(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DiskFailed(f"map {path}: deleting it: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
