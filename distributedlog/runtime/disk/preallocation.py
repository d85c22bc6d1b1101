"""Zeros ahead of the end of a journal or log, at low rates: a lone commit's sync is a third cheaper on them.

Preallocated space is marked as unwritten, so a commit into it makes the file system write its own journal
too, as one that makes its file longer does. Space that was written once, with zeros, needs the device's
flush only: measured with three bookies on one file system 0.29 against 0.40 ms a record. At full speed it
would be twice the bytes, so only commits of a few pages ask for it, while few others come between them, and
it is done in steps with a pause between, in a worker.

A byte that holds data is never overwritten (H16): what a commit is about to write is taken first, steps
begin after all that was taken, and a commit that runs into a step waits for its end.
"""

from collections.abc import Awaitable, Callable

import trio

COMMIT_BYTES_MAX = 16 * 1024
"""A longer block is no lone record's: it asks for nothing."""
SHORT_BLOCK_CREDIT = 4
"""A lone block makes up for so many times its bytes in long ones: more of these use up zeros unasked."""
STEP_BYTES = 256 * 1024
PAUSE_S = 0.01


class Preallocation:
    """The zeros of one file at a time. ``window_bytes``: how far ahead, 0: not at all; ``phase``: any number.

    Steps end at offsets that differ by ``phase``, so that bookies do not all do it at the same record.
    """

    def __init__(self, window_bytes: int, phase: int) -> None:
        self._window_bytes = window_bytes
        self._phase = phase // 4096 * 4096 % STEP_BYTES
        self._write: Callable[[int, int], Awaitable[None]] | None = None
        self._limit = 0
        self._written_to = 0  # nothing below is zeroed from now on
        self._zeroed_to = 0
        self._long_block_bytes = 0
        """Bytes of long blocks that no lone ones have made up for; two windows at most."""
        self._zeroing_range = (0, 0)  # what is being zeroed
        self._step_done = trio.Event()
        self._wanted_event = trio.Event()
        self.steps = 0

    def start_file(self, write_zeros: Callable[[int, int], Awaitable[None]], limit: int) -> None:
        """A new file, whose zeros are so written (`File.write_zeros`); none at or after ``limit``."""
        assert self._zeroing_range == (0, 0), "the file before was left"
        self._write, self._limit = write_zeros, limit
        self._written_to = self._zeroed_to = 0

    async def finish_file(self) -> None:
        """The file is about to be sealed: return when nothing of it is being zeroed, nor will be."""
        self._write = None
        while self._zeroing_range != (0, 0):
            await self._step_done.wait()

    def reserve(self, offset: int, end: int) -> bool:
        """These bytes are about to be written. False: a part is being zeroed, wait for `free`."""
        if end > self._written_to:
            self._written_to = end
        start, stop = self._zeroing_range
        return end <= start or stop <= offset

    async def wait_reserved(self, offset: int, end: int) -> None:
        """Return when none of these bytes, which are taken, is being zeroed."""
        while not self.reserve(offset, end):
            await self._step_done.wait()

    def record_commit(self, length: int) -> None:
        """A block of that length was written: a short one asks for zeros, but not among long ones."""
        if length > COMMIT_BYTES_MAX:
            self._long_block_bytes = min(self._long_block_bytes + length, 2 * self._window_bytes)
            return
        self._long_block_bytes = max(0, self._long_block_bytes - SHORT_BLOCK_CREDIT * length)
        mostly_short = self._long_block_bytes < self._window_bytes
        if mostly_short and self._zeroed_to - self._written_to < self._window_bytes:
            self._wanted_event.set()

    async def run(self) -> None:
        """Zero what is asked for, until cancelled. Raises what ends the node (`DiskFailed`)."""
        while True:
            await self._wanted_event.wait()
            self._wanted_event = trio.Event()
            write = self._write
            start = max(self._zeroed_to, self._written_to)
            stop = min(start + STEP_BYTES - (start - self._phase) % STEP_BYTES, self._limit)
            if write is None or stop <= start:
                continue
            self._zeroing_range = (start, stop)
            try:
                await write(start, stop - start)
            finally:
                self._zeroing_range = (0, 0)
                self._step_done.set()
                self._step_done = trio.Event()
            self._zeroed_to = stop
            self.steps += 1
            await trio.sleep(PAUSE_S)
