"""Choose where the syncs of a disk run: on the event loop, or in a separate thread.

A sync on the event loop costs only its own time, which is best if it is short, but a slow device would stall
every connection. The thread costs one more wakeup of the loop, through an eventfd, of 0.04 to 0.08 ms. So the
disk is measured at start (`choose_sync_mode`), and the result stays visible.
"""

import errno
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

import trio

from ..interfaces.errors import AlreadyClosed, DiskFailed
from ..process.fork_safety import close_descriptor, forked_message, watch_forks

SyncMode = Literal["inline", "thread"]

PROBES = 20
PROBE_BYTES = 4096
INLINE_P50_S_MAX = 0.0005
INLINE_SLOWEST_S_MAX = 0.010
"""A single stall of this length in twenty syncs selects the thread."""


@dataclass(frozen=True, slots=True)
class SyncMeasurement:
    """The durations of small writes with fdatasync on a disk, in seconds."""

    p50_s: float
    slowest_s: float

    @property
    def mode(self) -> SyncMode:
        """Where this disk's syncs should run."""
        fast = self.p50_s < INLINE_P50_S_MAX and self.slowest_s < INLINE_SLOWEST_S_MAX
        return "inline" if fast else "thread"


async def choose_sync_mode(path: Path) -> SyncMeasurement:
    """Measure twenty synced writes of 4 KiB in the directory ``path``. Raises `DiskFailed`.

    Call it at start, before the disk is busy, and set ``disk.sync_mode`` to the ``mode`` of the result. A
    full disk is not measured and gets the mode ``thread``.
    """
    return await trio.to_thread.run_sync(_measure, path)


class Syncer:
    """Run the blocking syncs of a disk one after another, according to ``mode``.

    The thread is a daemon thread. The first call that needs it starts it.
    """

    def __init__(self, mode: SyncMode, name: str) -> None:
        self.mode: SyncMode = mode
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle_events: list[int] = []
        self._closed_reason = ""
        watch_forks(self)

    async def run(self, call: Callable[[], None]) -> None:
        """Run a call; return or raise as it does. It can be cancelled only before the call begins.

        The caller's buffers are in use until this method returns. On the event loop, no other task runs
        between the sync and the return, so the waiting request is answered at once.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed_reason:
            raise AlreadyClosed(self._closed_reason)
        if self.mode == "inline":
            call()
        else:
            await self._run_in_thread(call)

    async def close(self) -> None:
        """End the thread after its pending calls. Idempotent."""
        await trio.lowlevel.checkpoint()
        if self._closed_reason:
            return
        self._closed_reason = f"{self._name} is closed"
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            await trio.to_thread.run_sync(thread.join)
        while self._idle_events:
            os.close(self._idle_events.pop())

    def on_forked(self) -> None:
        """Mark the syncer of a forked child as unusable, and close its copies of the eventfds (H15)."""
        self._closed_reason = forked_message(self._name)
        self._thread = None
        while self._idle_events:
            close_descriptor(self._idle_events.pop())

    async def _run_in_thread(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name=self._name, daemon=True
            )
            self._thread.start()
        event = self._idle_events.pop() if self._idle_events else _new_event()
        job = _Job(call, event)
        self._jobs.put(job)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(event)
        os.eventfd_read(event)
        if self._closed_reason:
            os.close(event)
        else:
            self._idle_events.append(event)
        if job.error is not None:
            raise job.error


class _Job:
    __slots__ = ("call", "error", "event")

    def __init__(self, call: Callable[[], None], event: int) -> None:
        self.call = call
        self.event = event
        self.error: BaseException | None = None


def _new_event() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def _work(jobs: "SimpleQueue[_Job | None]") -> None:
    while (sync_job := jobs.get()) is not None:
        try:
            sync_job.call()
        except BaseException as error:  # raised in the waiting task
            sync_job.error = error
        os.eventfd_write(sync_job.event, 1)
        del sync_job  # keep no buffer alive while idle


def _measure(path: Path) -> SyncMeasurement:
    probe_path = path / f".sync-probe-{os.getpid()}"
    try:
        probe = os.open(probe_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(probe_path)
            os.posix_fallocate(probe, 0, PROBES * PROBE_BYTES)
            os.fsync(probe)
            times_s = []
            for count in range(PROBES):
                started = time.perf_counter()
                os.pwrite(probe, bytes(PROBE_BYTES), count * PROBE_BYTES)
                os.fdatasync(probe)
                times_s.append(time.perf_counter() - started)
        finally:
            os.close(probe)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return SyncMeasurement(
                math.inf, math.inf
            )  # a full disk cannot be measured, but the node may start
        raise DiskFailed(f"{path}: measuring its syncs: {error.strerror}") from error
    return SyncMeasurement(sorted(times_s)[PROBES // 2], max(times_s))
