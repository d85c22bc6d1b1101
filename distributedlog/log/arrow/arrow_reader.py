"""ArrowReader: a log as Arrow record batches, with bounded memory.

A `LogReader` fetches entries ahead, up to ``read_ahead_bytes``. The entries that it has become one batch, up
to ``batch_bytes_max``. In the trio API the task of the caller builds batches. In the others the thread that
pulls a batch builds it, while the event loop fetches more (`RecordBatches`).
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from ...runtime.interfaces.errors import EndOfStream, RequestTimeout
from ..format.record import Columns
from ..read.log_reader import LogReader
from .arrow_columns import Projection

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

FETCH_BYTES = 2 * 1024 * 1024
"""The payload bytes to take from the reader at once, if they are fetched. In the blocking and asyncio APIs
each time is a switch to another thread, which costs as much as building several batches."""
BATCH_BYTES = 256 * 1024
"""The default payload size of a batch. Entries of a busy writer have this size, and so are not copied. Larger
batches, made of copied entries, cost DuckDB a fifth more CPU."""


class ArrowReader:
    """Delivers a log as Arrow record batches, up to an end. `Log.to_arrow` creates it.

    Only one task may use it at a time. A batch may keep the memory of whole entries.
    """

    def __init__(
        self, reader: LogReader, projection: Projection, *, batch_bytes_max: int, wait_max_s: float
    ) -> None:
        """Start at the start of a reader, which is closed with this object.

        Args:
            reader: It must have an end.
            wait_max_s: The longest wait for an entry, in seconds. The reader itself reports an error earlier,
                unless it waits for an entry that bookies have confirmed before and no longer return.
        """
        from .arrow_batches import BatchBuilder

        self._reader = reader
        self._projection = projection
        self._builder = BatchBuilder(projection)
        self._batch_bytes_max = batch_bytes_max
        self._wait_max_s = wait_max_s
        self._batches: deque[RecordBatch] = deque()

    @property
    def schema(self) -> "Schema":
        """The schema of all batches."""
        return self._projection.arrow

    async def read_batch(self) -> "RecordBatch | None":
        """Return the next batch. None after the last one.

        Raises: LogTruncated, LogDeleted, LedgerStateUnknown, CorruptData, RequestTimeout, AlreadyClosed.
        """
        while not self._batches:
            entries = await self.fetch()
            if not entries:
                return None
            self._batches.extend(self.build(entries))
        return self._batches.popleft()

    async def fetch(self) -> list[Columns]:
        """Return the next entries, for `build`. An empty list after the last one."""
        with suppress(EndOfStream):
            entries = await self._reader.read_columns_many(
                self._wait_max_s, bytes_max=max(self._batch_bytes_max, FETCH_BYTES)
            )
            if not entries and not self._reader.ended:
                raise RequestTimeout(
                    f'log "{self._reader.name}": no entry arrived for {self._wait_max_s:g} s'
                )
            return entries
        return []

    def build(self, entries: Sequence[Columns]) -> "list[RecordBatch]":
        """Return the records of these entries as batches. In any thread, but only in one at a time."""
        from .arrow_batches import group_entries

        groups = [*group_entries(entries, self._batch_bytes_max)]
        return self._builder.batches(self._reader.name, groups)

    def __aiter__(self) -> "ArrowReader":
        return self

    async def __anext__(self) -> "RecordBatch":
        batch = await self.read_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        self._batches.clear()
        await self._reader.aclose()

    async def __aenter__(self) -> "ArrowReader":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._reader.__aexit__(kind, error, trace)
