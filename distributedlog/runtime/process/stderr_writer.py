"""Write to standard error in a thread, without blocking the event loop.

Standard error may be a pipe that is not read, a stopped terminal, or a file on an unresponsive disk. A direct
write then blocks forever, and with it the event loop, heartbeats and commits (H266). Data that does not fit
into the queue is dropped and counted.
"""

import atexit
import io
import os
import select
import sys
import threading
from collections import deque

from .fork_safety import watch_forks

QUEUE_BYTES_MAX = 1 << 20
DRAIN_TIMEOUT_S = 1.0
"""How long an ending process waits until its output is written."""


class NonBlockingOutput(io.RawIOBase):
    """A descriptor that a separate thread writes to. The first write starts the thread."""

    def __init__(self, descriptor: int) -> None:
        self.dropped_writes = 0
        """Dropped writes that no log line has reported yet (`offer`)."""
        self._descriptor = descriptor
        self._reset()

    def _reset(self) -> None:
        # The lock is reentrant, because a garbage collection within a locked section may log.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        """Bytes in the queue and in the current write."""
        self._thread: threading.Thread | None = None
        watch_forks(self)

    def on_forked(self) -> None:
        """Discard the queue and the thread in a forked child; the parent writes its data."""
        self._reset()

    def offer(self, data: bytes, *, reported_drops: int = 0) -> bool:
        """Queue data if there is space; never waits.

        Args:
            data: The bytes to write.
            reported_drops: How many of `dropped_writes` this line reports.

        Returns:
            Whether the data was queued.
        """
        with self._changed:
            if self._queued_bytes + len(data) > QUEUE_BYTES_MAX:
                self.dropped_writes += 1
                return False
            self.dropped_writes -= reported_drops
            self._queue.append(data)
            self._queued_bytes += len(data)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="stderr", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can start now; the next line tries again
                    return True
                self._thread = thread
            self._changed.notify_all()
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until all data is written; return False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                data = self._queue.popleft()
            written = _write_all(self._descriptor, data)
            with self._changed:
                self._queued_bytes -= len(data)
                self.dropped_writes += not written
                self._changed.notify_all()

    # --- interface of a file, for print ------------------------------------------------------------

    def write(self, data: object) -> int:
        """Queue all of the data, or drop it."""
        content = bytes(data)  # type: ignore[call-overload]
        self.offer(content)
        return len(content)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that the thread writes to."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> bool:
    """Write all data, without a time limit. Return False if the descriptor can never accept it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # the inherited descriptor is non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return False
    return True


_kept_files: list[object] = []
"""Files that must stay open. Otherwise, the next opened file could get descriptor 2, and the output for it.
"""


def make_stderr_non_blocking() -> NonBlockingOutput:
    """Replace ``sys.stderr`` of this process by an output that does not block, and return it."""
    if sys.__stderr__ is None and not _kept_files:
        _kept_files.append(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    _kept_files.append(sys.stderr)
    out = NonBlockingOutput(2)
    sys.stderr = io.TextIOWrapper(
        out,
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=False,
        write_through=True,
    )
    if len(_kept_files) == 1:
        atexit.register(drain_stderr)
    return out


def drain_stderr() -> None:
    """Wait up to `DRAIN_TIMEOUT_S` until queued output is written.

    Call it before the process ends without running exit handlers.
    """
    out = getattr(sys.stderr, "buffer", None)
    if isinstance(out, NonBlockingOutput):
        out.drain(DRAIN_TIMEOUT_S)
