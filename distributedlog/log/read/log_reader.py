"""LogReader: records in order from a position, across segments, then new records when they are readable.

A source reads ahead (`fetcher.py`, into an `entry_queue.py`). The reader takes entries from the queue and
returns their records. The error that ends a reader is raised after all records before it, and again at each
further call.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from types import TracebackType
from weakref import WeakMethod

import trio

from ...runtime.declarations.options import check_wait, check_whole
from ...runtime.interfaces.errors import DistributedLogError, EndOfStream, ReaderIdle
from ..format.dlsn import DLSN
from ..format.record import Columns, LogRecord
from ..model.position import Position
from ..services.log_metrics import ReaderLag
from .entry_queue import EntryQueue
from .skipped_entries import Skips

BYTES_PER_TURN = 1024 * 1024
"""The bytes that are taken without waiting before other tasks run: as many as one reply has."""
ENTRY_OVERHEAD_BYTES = 16 * 1024
"""The bytes that an entry counts in addition to its payload, because taking it costs about as much as
reading them."""


@dataclass(frozen=True, slots=True)
class Idle:
    """How long a reader has received nothing. Returned by `LogReader.idle`."""

    since_response_s: float
    """Seconds since any bookie answered for the log. Large if bookies are unreachable."""
    idle_s: float
    """Seconds since the last entry arrived, control entries included. Large if no client writes. For a
    reader that has just read old records it counts from that time, because only the reader's own clock is
    used. `LogRecord.time_ms` has the time when the last record was written."""


class LogReader:
    """Reads one log. `Log.open_reader` creates it. Only one task may use it at a time."""

    def __init__(self, queue: EntryQueue, idle_error_s: float | None = None) -> None:
        self.name = queue.name
        self.incarnation = queue.incarnation
        """The incarnation of the log with this name, 16 hex digits."""
        self._queue = queue
        self._idle_error_s = idle_error_s
        self._idle_raised_at = -float("inf")
        self._columns: Columns | None = None
        self._turn_bytes = 0
        self._records: Iterator[LogRecord] = iter(())
        self._buffered: WeakMethod[Callable[[], Sequence[Columns]]] | None = None
        queue.meters.add_reader(self._lag)

    def __repr__(self) -> str:
        return reader_text(self.name, self.position, self._queue.error)

    # --- for the caller ---------------------------------------------------------------------------

    async def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        """Return the next record, waiting for it if necessary.

        At the end of a sealed log it raises `EndOfStream`, unless the reader has ended at its ``to``. After
        any error except `ReaderIdle` and `InvalidRequest` the reader has ended, and each further call raises
        the error again.

        Args:
            wait_s: The longest wait in seconds. None for no limit, 0 to return only a record that is already
                fetched.
        Returns:
            The record. None after ``wait_s``, or after the last record of a reader that was opened with
            ``to``.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, InvalidRequest, AlreadyClosed.
        """
        if wait_s is not None:
            check_wait(wait_s)
        for record in self._records:
            return record
        if not await self._advance(wait_s):
            self._raise_if_sealed()
            return None
        return next(self._records)

    async def read_set(self, wait_s: float | None = None) -> list[LogRecord]:
        """Return the next record and the other records of its set (`LogWriter.submit_set`).

        A record that is in no set is returned alone. If the reader starts or ends within a set, only its part
        of the set is returned.

        Args:
            wait_s: As for `read_next`.
        Returns:
            The records. An empty list where `read_next` returns None.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, InvalidRequest, AlreadyClosed.
        """
        first = await self.read_next(wait_s)
        set_records = [] if first is None else [first]
        while set_records and set_records[-1].more:  # a set is in one entry: the rest is here
            record = next(self._records, None)
            if record is None:
                break
            set_records.append(record)
        return set_records

    async def read_bulk(self, number: int, wait_s: float | None = None) -> list[LogRecord]:
        """Return up to ``number`` records, waiting for the first one.

        An error is raised only by a call that has no record to return.

        Args:
            number: The largest number of records, at least 1.
            wait_s: After the first record, wait for more until this many seconds after the call. None to
                return the fetched records without a further wait. 0 to wait for no record at all.
        Returns:
            The records. Fewer or none at the end of a reader that was opened with ``to``.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, AlreadyClosed, InvalidRequest.
        """
        check_whole("number", number, 1)
        check_wait(wait_s)
        deadline = trio.current_time() + (wait_s or 0.0)
        taken_entries: list[Columns] = []
        buffered_count = length_hint(self._records)
        if buffered_count and buffered_count < number:
            assert self._columns is not None
            taken_entries.append(
                self._columns.cut(self._columns.count - buffered_count, self._columns.count)
            )
        records = list(islice(self._records, number))
        if not records:
            if not await self._advance(0 if wait_s == 0 else None, as_records=False):
                self._raise_if_sealed()
                return []
            taken_entries.append(self._add_records(records, number))
        while len(records) < number:
            remaining_s = deadline - trio.current_time() if wait_s else 0.0
            if remaining_s <= 0 and not self._queue.entries:
                break  # all fetched entries were taken, and nothing is to be waited for
            try:
                if not await self._advance(max(0.0, remaining_s), as_records=False):
                    break
            except DistributedLogError:
                break  # the error is permanent, and the next call raises it
            except BaseException:  # cancelled: the next call returns these records
                self._queue.return_entries(taken_entries)
                self._columns, self._records = taken_entries[0].cut(0, 0), iter(())
                raise
            taken_entries.append(self._add_records(records, number - len(records)))
        return records

    def _add_records(self, result: list[LogRecord], number: int) -> Columns:
        """Add up to ``number`` records of the entry that was just taken. The others are kept."""
        columns = self._columns
        assert columns is not None, "an entry was taken"
        records = columns.records()
        if len(records) > number:
            self._records = iter(records)
            result += islice(self._records, number)
        else:  # avoids one iterator step per record
            self._records = iter(())
            result += records
        return columns

    async def read_columns(self, wait_s: float | None = None) -> Columns | None:
        """Return the rest of the present entry, or the next one, as columns: memoryviews that Arrow can wrap.

        The columns keep their whole entry in memory.

        Args:
            wait_s: As for `read_next`.
        Returns:
            The columns. None where `read_next` returns None.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        buffered_count = length_hint(self._records)
        if buffered_count:
            assert self._columns is not None
            columns = self._columns.cut(self._columns.count - buffered_count, self._columns.count)
            self._records = iter(())
            return columns
        if not await self._advance(wait_s, as_records=False):
            self._raise_if_sealed()
            return None
        return self._columns

    async def read_columns_many(
        self, wait_s: float | None = None, *, bytes_max: int = 1024 * 1024
    ) -> list[Columns]:
        """Return an entry as `read_columns`, and all further fetched entries up to about ``bytes_max``.

        Only in this API. The blocking and asyncio readers are built on it.

        Args:
            wait_s: As for `read_next`.
            bytes_max: The payload bytes after which no further entry is added.
        Returns:
            The entries. An empty list where `read_columns` returns None.
        """
        check_whole("bytes_max", bytes_max, 1)
        first = await self.read_columns(wait_s)
        batches = [] if first is None else [first]
        bytes_left = bytes_max
        queue = self._queue
        while queue.entries and batches:
            bytes_left -= batches[-1].payload_bytes
            if bytes_left <= 0:
                break
            batches.append(self._take_entry())
        return batches

    def count_buffered(self, buffered: Callable[[], Sequence[Columns]]) -> None:
        """Include entries in the lag that were returned to another API variant, but not to the program.

        Args:
            buffered: A method that returns these entries, in order. Any thread may call it. Its object can be
                freed before this reader, which keeps no reference to it.
        """
        self._buffered = WeakMethod(buffered)

    def __aiter__(self) -> "LogReader":
        return self

    async def __anext__(self) -> LogRecord:
        for record in self._records:
            return record
        if not await self._advance(None):
            raise StopAsyncIteration
        return next(self._records)

    @property
    def position(self) -> Position | None:
        """The position after the last returned record. ``open_reader(position=…)`` continues there.

        None for a reader that was opened at a DLSN, a transaction ID or the latest record, until it has
        returned a record.
        """
        columns = self._columns
        if columns is None:
            return self._queue.position
        buffered_count = length_hint(self._records)
        return position_after(self.incarnation, columns, columns.count - buffered_count)

    @property
    def skipped(self) -> Skips:
        """The entries that ``broken="skip"`` has skipped so far.

        Fetching is some MiB ahead of the returned records.
        """
        skip_log = self._queue.skips
        return Skips() if skip_log is None else skip_log.to_value()

    async def idle(self) -> Idle:
        """Return for how long no entry has arrived, and for how long no bookie has answered.

        Raises: AlreadyClosed.
        """
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        return Idle(now - self._queue.last_response_at, now - self._queue.last_entry_at)

    @property
    def ended(self) -> bool:
        """Whether all records up to ``to``, or up to the end of a sealed log, were returned."""
        return self._queue.ended and not self._queue.entries and not length_hint(self._records)

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        self._close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "LogReader":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close()  # also when the next line is cancelled
        await trio.lowlevel.checkpoint()

    def _close(self) -> None:
        self._queue.close()
        buffered_count = length_hint(self._records)
        if (
            buffered_count and self._columns is not None
        ):  # records that were not returned are after `position`
            self._columns = self._columns.cut(0, self._columns.count - buffered_count)
        self._records = iter(())

    async def _advance(self, wait_s: float | None, *, as_records: bool = True) -> bool:
        """Take the next entry from the queue. Return False if the wait or the log has ended."""
        queue = self._queue
        if not queue.entries:
            self._turn_bytes = 0
            if self._idle_error_s is not None and wait_s != 0:
                await self._wait_active(wait_s, self._idle_error_s)
            elif wait_s is None:
                await queue.wait_filled()
            else:
                with trio.move_on_after(wait_s):
                    await queue.wait_filled()
            if not queue.entries:
                if queue.error is not None:
                    raise queue.error.again()
                return False
        elif self._turn_bytes >= BYTES_PER_TURN:
            await trio.lowlevel.checkpoint()  # even a caller that never waits lets others run
            self._turn_bytes = 0
        columns = self._take_entry()
        if as_records:
            self._records = iter(columns.records())
        return True

    async def _wait_active(self, wait_s: float | None, limit_s: float) -> None:
        """Wait until an entry is queued, or ``wait_s`` has passed.

        Raises:
            ReaderIdle: No entry arrived for ``limit_s``.
        """
        queue = self._queue
        deadline = trio.current_time() + (float("inf") if wait_s is None else wait_s)
        while True:
            # A caller that retries at once after the error waits again, so its loop is not a busy one.
            idle_at = max(queue.last_entry_at, self._idle_raised_at) + limit_s
            with trio.move_on_at(min(deadline, idle_at)):
                return await queue.wait_filled()
            if queue.last_entry_at + limit_s > idle_at:
                continue  # a control entry came
            if deadline < idle_at:
                return
            now = self._idle_raised_at = trio.current_time()
            raise ReaderIdle(
                f'log "{self.name}": no entry arrived for {now - queue.last_entry_at:.1f} s. A bookie last '
                f"answered {now - queue.last_response_at:.1f} s ago."
            )

    def _take_entry(self) -> Columns:
        columns = self._columns = self._queue.pop_entry()
        size, meters = columns.payload_bytes, self._queue.meters
        self._turn_bytes += size + ENTRY_OVERHEAD_BYTES
        meters.entries_read += 1
        meters.records_read += columns.count
        meters.bytes_read += size
        return columns

    def _lag(self) -> list[ReaderLag]:
        """Return the lag for metrics. Any thread may call it."""
        buffered = None if self._buffered is None else self._buffered()
        unreturned = () if buffered is None else buffered()
        columns = self._columns
        count = 0 if columns is None else min(length_hint(self._records), columns.count)
        if columns is not None and count:
            unreturned = [columns.cut(columns.count - count, columns.count)]
        return self._queue.lag(unreturned)

    def _raise_if_sealed(self) -> None:
        if self._queue.sealed and self.ended:
            raise EndOfStream(f'log "{self.name}": end of the sealed log')


def reader_text(name: str, position: Position | None, error: DistributedLogError | None) -> str:
    """Return the ``repr`` of a reader."""
    position_text = "before its first record" if position is None else f"at {position.dlsn}"
    error_text = "" if error is None else f", {type(error).__name__}: {error}"
    return f'LogReader("{name}", {position_text}{error_text})'


def position_after(incarnation: str, columns: Columns, row_count: int) -> Position:
    """Return the position after the first ``row_count`` rows of these columns."""
    origin, slot = columns.origin, columns.first_slot + row_count
    return Position(
        incarnation, DLSN(origin.segment, origin.entry, slot), origin.sequence_id + slot
    )
