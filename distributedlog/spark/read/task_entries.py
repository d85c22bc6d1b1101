"""Pass the entries of a task's ranges to its thread, while the event loop fetches more.

The fetching is done by `distributedlog/log/read/range_reader.py`. The loop passes a few pieces ahead, in the
call that decoded them. The thread waits for an event-loop iteration only if the loop was paused. It waits at
most ``timeout_s`` without progress.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from queue import Empty, SimpleQueue

from ...log.format.record import Columns
from ...log.model.segment_ranges import SegmentRange
from ...log.read.entry_queue import StarvationDetector
from ...log.read.range_reader import RangeReader
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    LogNotFound,
    LogTruncated,
    RequestTimeout,
)
from ..client.spark_client import SparkClient

PIECE_BYTES = 2 * 1024 * 1024
"""Bytes of entries that are passed from the loop to the thread at once."""
PIECES_AHEAD = 4
PIECES_TO_WAKE = 2
"""A paused loop is woken when at most this number of pieces is left, not for each piece."""
READ_AHEAD_BYTES = 2 * 1024 * 1024
"""Bytes in addition to the pieces. Together they hardly exceed the receive buffers that a process reuses
(`frame_reader.LARGE_BUFFERS`). Further memory would be newly allocated, zeroed and not in the CPU cache.
"""
READ_BYTES = 2 * 1024 * 1024
"""Bytes of one request, the largest reply of a bookie. Half of a reply's cost does not depend on its size."""

log = logging.getLogger("distributedlog.spark")


class TaskEntries:
    """The entries of ranges, in order, for the task's thread. Iterate over `by_log` once, then `close` it."""

    def __init__(
        self,
        spark_client: SparkClient,
        ranges: Sequence[SegmentRange],
        *,
        timeout_s: float,
        fail_on_data_loss: bool,
    ) -> None:
        context = spark_client.namespace.context
        options = replace(
            context.options,
            read_ahead_bytes=READ_AHEAD_BYTES,
            read_bytes=READ_BYTES,
            read_retry_s=timeout_s,
        )
        self._spark_client = spark_client
        self._timeout_s = timeout_s
        self._reader = RangeReader(
            replace(context, options=options),
            ranges,
            on_loss=_refuse_loss if fail_on_data_loss else _warn_of_loss,
            on_ready=self._send_ready_pieces,
        )
        self._pieces: SimpleQueue[list[tuple[str, list[Columns]]]] = SimpleQueue()
        """An empty piece is the end, or `_error`."""
        self._error: BaseException | None = None
        self._pieces_sent = 0
        """Counted by the loop; `_pieces_taken` by the thread."""
        self._pieces_taken = 0
        self._is_paused = False
        """Whether the loop is paused and must be woken."""
        self._is_over = False
        self._starvation = StarvationDetector()
        self._waited_s = 0.0
        self._running: list[Future[None]] = []

    def by_log(self) -> Iterator[tuple[str, Iterator[Columns]]]:
        """Yield (log, its entries) in the order of the ranges. Consume each log before the next one."""
        for name, pieces in groupby(self._take_pieces(), itemgetter(0)):
            yield name, chain.from_iterable(map(itemgetter(1), pieces))

    def close(self) -> None:
        """Stop fetching, also if Spark ends early (LIMIT). Idempotent."""
        if self._running:
            self._spark_client.users -= 1
        while self._running:
            self._running.pop().cancel()

    def _take_pieces(self) -> Iterator[tuple[str, list[Columns]]]:
        self._spark_client.users += 1
        running = self._spark_client.background.submit(self._reader.run)
        self._running = [running]
        running.add_done_callback(self._on_fetched)
        while piece := self._next_piece():
            yield from piece
        if self._error is not None:
            raise self._error

    def _next_piece(self) -> list[tuple[str, list[Columns]]]:
        started_at = time.monotonic()
        try:
            piece = self._pieces.get(timeout=self._timeout_s)
        except Empty:
            waiting_range = self._reader.current_range
            assert waiting_range is not None, "a wait is never at the end"
            raise RequestTimeout(
                f'log "{waiting_range.log}": no entries arrived from {waiting_range.start} on for '
                f"{self._timeout_s:g} s (option "
                '"readTimeout")'
            ) from None
        self._pieces_taken += 1
        if self._is_paused and self._pieces_sent - self._pieces_taken <= PIECES_TO_WAKE:
            self._is_paused = False
            self._spark_client.background.post(self._send_ready_pieces)
        now = time.monotonic()
        self._waited_s += now - started_at
        if self._starvation.is_starved(self._waited_s, now):
            self._spark_client.background.post(self._reader.start_parallel_read)
        return piece

    def _send_ready_pieces(self) -> None:
        """Pass ready pieces to the thread. Called in the loop if entries are ready or the queue has space."""
        try:
            while not self._is_over:
                if self._pieces_sent - self._pieces_taken >= PIECES_AHEAD:
                    self._is_paused = True
                    # The thread may have taken the last pieces just before, and would not wake the loop.
                    if self._pieces_sent - self._pieces_taken > PIECES_TO_WAKE:
                        return
                piece = self._reader.read_ready(bytes_max=PIECE_BYTES)
                if piece is None:
                    self._end(None)
                elif not piece:
                    return
                else:
                    self._pieces_sent += 1
                    self._pieces.put(piece)
        except DistributedLogError as error:
            self._end(error)

    def _on_fetched(self, running: "Future[None]") -> None:
        """Pass the remaining pieces after all entries were fetched, or the error."""
        error = AlreadyClosed("the task was closed") if running.cancelled() else running.exception()
        if error is None:
            self._send_ready_pieces()
        else:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._is_over, self._error = True, error
        self._pieces.put([])


def _refuse_loss(error: LogTruncated | LogNotFound) -> None:
    raise error.again(f'{error}; "failOnDataLoss"=false continues with the remaining records')


def _warn_of_loss(error: LogTruncated | LogNotFound) -> None:
    log.warning("%s; failOnDataLoss=false: its records are skipped", error)
