"""Free large removed files in slices.

If a file system discards freed space at once (mounted with ``discard``), removing one file of 256 MiB delays
all other writes by 40 ms. A log of 5 GB has sixty such files on three bookies. So a file is truncated from
its end, half a MiB at a time. Its name is removed at once, and an open descriptor keeps the file until all of
it is freed.

With the next commit of its journal, some seconds later, the file system discards all slices since the
previous one. So each slice is synced. The file system's commit that a writer's sync waits for then has one
slice at most. The rate is adapted to the latency of this disk's syncs, as the rate of compaction is to that
of commits (`background_rate.py`).
"""

import contextlib
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path

from ..primitives.background_rate import BackgroundRate
from ..process.descriptor_limit import first_reserved, limit
from ..process.fork_safety import close_descriptor, watch_forks

SLICED_FROM_BYTES = 8 * 1024 * 1024
"""A smaller file is removed at once."""
SLICE_BYTES = 512 * 1024
DRAIN_S = 600.0
"""The rate is at least high enough to free all waiting bytes in this time."""
PAUSE_S_MAX = 0.1
"""The longest time between two checks whether the files must be freed at once."""
FREE_SPACE_DIVISOR = 8
"""Slices are paced while the waiting files use at most this fraction (one eighth) of the free space."""
WAITING_FILES_MAX = 256
DESCRIPTORS_DIVISOR = 16
"""At most this many files, and this fraction of all descriptors, wait. Further files are removed at once."""


class DeferredRemovals:
    """The large files of one directory whose names were removed. From any thread.

    One thread runs while there are waiting files. If the process ends, the system frees the rest at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, int]] = deque()
        """Descriptor and size of each, in bytes."""
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self.min_free_bytes = 0
        """Files are freed without pauses while less than this is free."""
        self._rate = BackgroundRate()
        self._closed_event = threading.Event()
        """Set when this object is closed, which ends all pauses."""
        watch_forks(self)

    def unlink(
        self, path: Path | str, *, directory: int | None = None, in_use_inodes: Collection[int] = ()
    ) -> None:
        """Remove a name in a directory, and free the file soon afterwards.

        A file with another name keeps its bytes. A file with one of ``in_use_inodes`` keeps them until it is
        closed. Raises `OSError` as `os.unlink` does.
        """
        descriptor = self._open_if_large(path, directory, in_use_inodes)
        try:
            os.unlink(path, dir_fd=directory)
        except OSError:
            if descriptor is not None:
                _close(descriptor)
            raise
        if descriptor is not None:
            self._free_later(descriptor)

    def record_sync(self, sync_s: float) -> None:
        """Record the duration of a sync of another file on the disk."""
        if self._thread is not None:
            self._rate.record_latency(sync_s)

    def close(self) -> None:
        """End all pauses: the thread frees the waiting files at once. Idempotent."""
        with self._lock:
            self._closed = True
        self._closed_event.set()

    def on_forked(self) -> None:
        """Close the copies in a forked child; the parent's thread truncates the files (H15)."""
        self._lock = threading.Lock()  # the thread may have held it
        self._closed_event = threading.Event()
        self._thread, self._closed = None, True
        while self._waiting:
            close_descriptor(self._waiting.popleft()[0])

    def _open_if_large(
        self, path: Path | str, directory: int | None, in_use_inodes: Collection[int]
    ) -> int | None:
        """Return a descriptor of a large file; None for a small one, or without a free descriptor."""
        waiting_max = min(WAITING_FILES_MAX, limit() // DESCRIPTORS_DIVISOR)
        if self._closed or len(self._waiting) >= waiting_max:
            return None
        descriptor = -1
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, dir_fd=directory)
            file_status = os.fstat(descriptor)
            if (
                stat.S_ISREG(file_status.st_mode)
                and file_status.st_size >= SLICED_FROM_BYTES
                and file_status.st_ino not in in_use_inodes
                and descriptor < first_reserved()
            ):
                return descriptor
        if descriptor >= 0:
            _close(descriptor)
        return None

    def _free_later(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started: it is freed at once
                    _close(descriptor)
                    return
                self._thread = thread
            self._waiting.append((descriptor, size))
            self._waiting_bytes += size

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._rate.end_work()
                    return
                descriptor, size = self._waiting[0]
            with contextlib.suppress(OSError):  # closing its descriptor then frees it
                self._free_in_slices(descriptor, size)
            with self._lock:
                self._waiting.popleft()
                self._waiting_bytes -= size
            _close(descriptor)

    def _free_in_slices(self, descriptor: int, size: int) -> None:
        """Truncate the file to nothing in slices, unless it must be freed at once."""
        if os.fstat(descriptor).st_nlink:
            return  # it has another name, and keeps all its bytes
        while size > 0 and not self._must_hurry(descriptor):
            if quiet_s := self._rate.pause_s(time.monotonic()):
                self._closed_event.wait(min(quiet_s, PAUSE_S_MAX))
                continue
            size = max(0, size - SLICE_BYTES)
            os.ftruncate(descriptor, size)
            os.fsync(
                descriptor
            )  # otherwise the next commit of the file system discards seconds of slices
            rate = max(self._rate.pacer.rate, self._waiting_bytes / DRAIN_S)
            self._closed_event.wait(min(SLICE_BYTES / rate, PAUSE_S_MAX))

    def _must_hurry(self, descriptor: int) -> bool:
        filesystem_status = os.fstatvfs(descriptor)
        min_free_bytes = max(self._waiting_bytes * FREE_SPACE_DIVISOR, self.min_free_bytes)
        return (
            self._closed or filesystem_status.f_bavail * filesystem_status.f_frsize < min_free_bytes
        )


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the descriptor is closed in any case
        os.close(descriptor)
