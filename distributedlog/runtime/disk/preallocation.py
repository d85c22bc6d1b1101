"""Write zeros ahead of the end of a journal or Raft log at low rates, which speeds up single commits.

Preallocated space is marked as unwritten. A commit into it makes the file system write its own journal too,
as a commit that extends the file does. Space that was written once, with zeros, needs only the flush of the
device: 0.29 instead of 0.40 ms per record with three bookies on one file system.

At full speed, this would double the written bytes. So only commits of a few pages cause it, and only if few
longer ones are between them. A worker writes the zeros in steps with a pause between them.

Data is never overwritten (H16). A commit reserves its range before it writes. Steps begin after all reserved
ranges, and a commit that overlaps a running step waits for the end of the step.
"""

from collections.abc import Awaitable, Callable

import trio

COMMIT_BYTES_MAX = 16 * 1024
"""A longer block is not a single record, and causes no zeros."""
SHORT_BLOCK_CREDIT = 4
"""A short block offsets this many times its bytes in long blocks. With more long blocks, zeros would be used
up unnecessarily."""
STEP_BYTES = 256 * 1024
PAUSE_S = 0.01


class Preallocation:
    """The zeros of one file at a time.

    Args:
        window_bytes: How far to write zeros ahead; 0 disables it.
        phase: Any number. Steps end at offsets that depend on it, so that bookies do not all write zeros at
            the same record.
    """

    def __init__(self, window_bytes: int, phase: int) -> None:
        self._window_bytes = window_bytes
        self._phase = phase // 4096 * 4096 % STEP_BYTES
        self._write: Callable[[int, int], Awaitable[None]] | None = None
        self._limit = 0
        self._written_to = 0  # nothing below is zeroed any more
        self._zeroed_to = 0
        self._long_block_bytes = 0
        """Bytes of long blocks that short ones have not offset yet; at most two windows."""
        self._zeroing_range = (0, 0)  # the running step
        self._step_done = trio.Event()
        self._wanted_event = trio.Event()
        self.steps = 0

    def start_file(self, write_zeros: Callable[[int, int], Awaitable[None]], limit: int) -> None:
        """Start a new file.

        Args:
            write_zeros: Writes zeros into the file (`File.write_zeros`).
            limit: No zeros are written at or after this offset.
        """
        assert self._zeroing_range == (0, 0), "the previous file was finished"
        self._write, self._limit = write_zeros, limit
        self._written_to = self._zeroed_to = 0

    async def finish_file(self) -> None:
        """Stop writing zeros before the file is sealed, and wait for the end of a running step."""
        self._write = None
        while self._zeroing_range != (0, 0):
            await self._step_done.wait()

    def reserve(self, offset: int, end: int) -> bool:
        """Reserve a range that is about to be written.

        Returns:
            False if a part of it is being zeroed; then call `wait_reserved`.
        """
        if end > self._written_to:
            self._written_to = end
        start, stop = self._zeroing_range
        return end <= start or stop <= offset

    async def wait_reserved(self, offset: int, end: int) -> None:
        """Wait until no part of a reserved range is being zeroed."""
        while not self.reserve(offset, end):
            await self._step_done.wait()

    def record_commit(self, length: int) -> None:
        """Record a written block. A short block requests zeros, unless long blocks prevail."""
        if length > COMMIT_BYTES_MAX:
            self._long_block_bytes = min(self._long_block_bytes + length, 2 * self._window_bytes)
            return
        self._long_block_bytes = max(0, self._long_block_bytes - SHORT_BLOCK_CREDIT * length)
        mostly_short = self._long_block_bytes < self._window_bytes
        if mostly_short and self._zeroed_to - self._written_to < self._window_bytes:
            self._wanted_event.set()

    async def run(self) -> None:
        """Write requested zeros until cancelled. Raises errors that end the node (`DiskFailed`)."""
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
