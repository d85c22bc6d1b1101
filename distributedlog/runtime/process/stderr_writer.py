"""Stderr that nobody waits for: a thread writes it, and what does not fit its queue is left out and counted.

A pipe that is not read, a terminal that was stopped, a file on a disk that hangs: a write there waits for
ever, and with it the loop, heartbeats and commits included (H266).
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
"""A process that ends waits so long for what it has said to be taken."""


class NonBlockingOutput(io.RawIOBase):
    """A descriptor that is written by a thread of its own, which the first write starts."""

    def __init__(self, descriptor: int) -> None:
        self.dropped_writes = 0
        """Writes that nobody has taken, and that no line has told of (`offer`)."""
        self._descriptor = descriptor
        self._reset()

    def _reset(self) -> None:
        # Re-entrant: a collection that happens within may log.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        """Of what waits, and of what is being written."""
        self._thread: threading.Thread | None = None
        watch_forks(self)

    def on_forked(self) -> None:
        """In a forked child: what waits is the parent's to write, and so is its thread."""
        self._reset()

    def offer(self, data: bytes, *, reported_drops: int = 0) -> bool:
        """Have it written, if there is room; never waits. ``tells``: of `left_out`, what this line tells."""
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
                except RuntimeError:  # no thread to be had now: it waits, the next line tries again
                    return True
                self._thread = thread
            self._changed.notify_all()
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until all is written; False when that takes too long."""
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

    # --- as a file, for who prints ----------------------------------------------------------------

    def write(self, data: object) -> int:
        """Take all of it, or leave it out."""
        content = bytes(data)  # type: ignore[call-overload]
        self.offer(content)
        return len(content)

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Of what the thread writes to."""
        return self._descriptor

    def isatty(self) -> bool:
        """Is it a terminal?"""
        return os.isatty(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> bool:
    """Wait as long as it takes; False where nobody will ever read it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever gave it to us does not wait either
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return False
    return True


_kept_files: list[object] = []
"""Files that must stay open: the next one would get number 2, and what is meant for stderr."""


def make_stderr_non_blocking() -> NonBlockingOutput:
    """From now on whatever this process prints to ``sys.stderr`` goes there without waiting."""
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
    """What was said and not yet taken: wait for it, up to `DRAIN_TIMEOUT_S`. Before an end without one."""
    out = getattr(sys.stderr, "buffer", None)
    if isinstance(out, NonBlockingOutput):
        out.drain(DRAIN_TIMEOUT_S)
