"""Large files that are removed give their room back in slices.

If a file system discards freed space at once (mounted with ``discard``), removing one file of 256 MiB delays
all other writes by 40 ms, and a log of 5 GB is sixty such files on three bookies. So a file is cut from its
end, half a MiB at a time. It loses its name at once, and a descriptor keeps it until it is freed.

With the next commit of its journal, some seconds later, the file system discards all slices since the last
one. So each slice is synced: the commit that a writer's sync waits for has one slice at most. The rate is
adapted to the latency of this disk's syncs, as the rate of compaction is to that of commits
(`background_rate.py`).
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
from ..process.descriptor_limit import first_kept, limit
from ..process.fork_safety import close_descriptor, watch_forks

SLICED_FROM_BYTES = 8 * 1024 * 1024
"""A smaller file is removed at once."""
SLICE_BYTES = 512 * 1024
DRAIN_S = 600.0
"""The rate is at least high enough to free all waiting bytes in this time."""
PAUSE_S_MAX = 0.1
"""Between two looks at whether there is a hurry."""
FREE_SPACE_DIVISOR = 8
"""Slices are paced while at most this part (one in eight) of the free space waits."""
WAITING_FILES_MAX = 256
DESCRIPTORS_DIVISOR = 16
"""At most this many files, and this part of all descriptors, wait. Other files are removed at once."""


class DeferredRemovals:
    """The large files of one directory that have lost their names. From any thread.

    One thread, which lives while there is something; the system does the rest at once when the process ends.
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
        """While less is free, there are no pauses."""
        self._rate = BackgroundRate()
        self._closed_event = threading.Event()
        """It is closed: nothing waits any more."""
        watch_forks(self)

    def unlink(
        self, path: Path | str, *, directory: int | None = None, in_use_inodes: Collection[int] = ()
    ) -> None:
        """Remove the name in the directory of that descriptor, and free the file soon after.

        A file that has another name keeps its bytes, and one of the inodes ``in_use`` until it is closed.
        Raises `OSError` as `os.unlink`.
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
        """A sync of another file of the disk took so long."""
        if self._thread is not None:
            self._rate.record_latency(sync_s)

    def close(self) -> None:
        """End all pauses: the thread frees the waiting files at once. Idempotent."""
        with self._lock:
            self._closed = True
        self._closed_event.set()

    def on_forked(self) -> None:
        """The thread did not come along, and the parent cuts what it has removed (H15)."""
        self._lock = threading.Lock()  # the thread may have held it
        self._closed_event = threading.Event()
        self._thread, self._closed = None, True
        while self._waiting:
            close_descriptor(self._waiting.popleft()[0])

    def _open_if_large(
        self, path: Path | str, directory: int | None, in_use_inodes: Collection[int]
    ) -> int | None:
        """A descriptor of a large file. None for a small one, or without a free descriptor."""
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
                and descriptor < first_kept()
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
            with contextlib.suppress(OSError):  # then it is freed by closing its descriptor
                self._free_in_slices(descriptor, size)
            with self._lock:
                self._waiting.popleft()
                self._waiting_bytes -= size
            _close(descriptor)

    def _free_in_slices(self, descriptor: int, size: int) -> None:
        """Cut the file to nothing, in slices, unless there is a hurry."""
        if os.fstat(descriptor).st_nlink:
            return  # it has another name, and all its bytes are somebody's
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
    with contextlib.suppress(OSError):  # it is closed anyway
        os.close(descriptor)
