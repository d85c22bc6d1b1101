"""The entries of a task's ranges, in its thread, while the loop fetches on (`log/range_reader.py`).

A few pieces are handed over before the thread asks for them: so it waits for no turn of the loop. Nothing
waits longer than ``timeout_s`` without progress.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from queue import Empty, SimpleQueue

import trio

from ..log.range_reader import RangeReader
from ..log.ranges import SegmentRange
from ..log.record import Columns
from ..runtime.errors import LogNotFound, LogTruncated, RequestTimeout
from .client import SparkClient

PIECE_BYTES = 2 * 1024 * 1024
"""Of entries that go from the loop to the thread at once."""
PIECES_AHEAD = 2
READ_AHEAD_BYTES = 6 * 1024 * 1024
"""Besides the pieces. All together hardly more than the buffers that a process receives into again and again
(`frame_reader.LARGE_BUFFERS`): beyond them each megabyte is fresh, zeroed and faulted in, and in no cache."""
READ_BYTES = 2 * 1024 * 1024
"""Of one request: what a bookie replies at once. Half of what a reply costs is the same whatever its size."""

log = logging.getLogger("distributedlog.spark")


class TaskEntries:
    """The entries of ranges, in order, for the task's thread. Take them `by_log`, once, then `close` it."""

    def __init__(
        self,
        held: SparkClient,
        ranges: Sequence[SegmentRange],
        *,
        timeout_s: float,
        fail_on_data_loss: bool,
    ) -> None:
        context = held.namespace.context
        options = replace(
            context.options,
            read_ahead_bytes=READ_AHEAD_BYTES,
            read_bytes=READ_BYTES,
            read_retry_s=timeout_s,
        )
        self._held = held
        self._timeout_s = timeout_s
        self._reader = RangeReader(
            replace(context, options=options),
            ranges,
            on_loss=_refuse_loss if fail_on_data_loss else _warn_of_loss,
        )
        self._pieces: SimpleQueue[list[tuple[str, list[Columns]]]] = SimpleQueue()
        """Empty ones: the end, or an error."""
        self._room = trio.Semaphore(PIECES_AHEAD)
        self._running: list[Future[None]] = []

    def by_log(self) -> Iterator[tuple[str, Iterator[Columns]]]:
        """(log, its entries) in the order of the ranges. Take all of a log's before the next log."""
        for name, some in groupby(self._taken(), itemgetter(0)):
            yield name, chain.from_iterable(map(itemgetter(1), some))

    def close(self) -> None:
        """Fetch nothing more, also when Spark left in the middle (LIMIT). Idempotent."""
        if self._running:
            self._held.users -= 1
        while self._running:
            self._running.pop().cancel()

    def _taken(self) -> Iterator[tuple[str, list[Columns]]]:
        background = self._held.background
        self._held.users += 1
        handing = background.submit(self._hand_over)
        self._running = [handing, background.submit(self._reader.run)]
        handing.add_done_callback(lambda _: self._pieces.put([]))
        while found := self._next():
            background.post(self._room.release)
            yield from found
        handing.result()

    def _next(self) -> list[tuple[str, list[Columns]]]:
        try:
            return self._pieces.get(timeout=self._timeout_s)
        except Empty:
            one = self._reader.next
            assert one is not None, "at the end nothing is waited for"
            raise RequestTimeout(
                f'log "{one.log}": nothing came from {one.start} on for {self._timeout_s:g} s (option '
                '"readTimeout")'
            ) from None

    async def _hand_over(self) -> None:
        """In the background loop."""
        found = await self._reader.read_by_log(bytes_max=PIECE_BYTES)
        while found:
            self._pieces.put(found)
            await self._room.acquire()
            found = await self._reader.read_by_log(bytes_max=PIECE_BYTES)


def _refuse_loss(error: LogTruncated | LogNotFound) -> None:
    raise error.again(f'{error}; "failOnDataLoss"=false goes on with what is left')


def _warn_of_loss(error: LogTruncated | LogNotFound) -> None:
    log.warning("%s; failOnDataLoss=false: its records are left out", error)
