"""LogReader: records in order from a position, across segments, then as they are written.

A source reads ahead (`fetcher.py`, into an `entry_queue.py`); here the caller takes entries from the queue,
and records from them. What ends a reader is raised after everything that came before it, and again at each
further call.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from types import TracebackType

import trio

from ...runtime.declarations.options import check_wait, check_whole
from ...runtime.interfaces.errors import DistributedLogError, EndOfStream, ReaderIdle
from ..format.dlsn import DLSN
from ..format.record import Columns, LogRecord
from ..model.position import Position
from .entry_queue import EntryQueue
from .skipped_entries import Skips

BYTES_PER_TURN = 1024 * 1024
"""What is taken without waiting before others get a turn of the loop: as much as one reply brings."""
ENTRY_OVERHEAD_BYTES = 16 * 1024
"""What an entry counts beside its payload: taking it costs about as much as reading so many bytes."""


@dataclass(frozen=True, slots=True)
class Idle:
    """How long a reader has had no news."""

    heard_s: float
    """Since any bookie answered for the log: large where bookies are away."""
    idle_s: float
    """Since the last entry came here, a control entry too: large where nobody writes. A reader that has just
    read history counts from there on, for by its own clock alone it knows how long; `LogRecord.time_ms` says
    when the last record was written."""


class LogReader:
    """Reads one log. Made by `Log.open_reader`; for one task at a time."""

    def __init__(self, queue: EntryQueue, idle_error_s: float | None = None) -> None:
        self.name = queue.name
        self.incarnation = queue.incarnation
        """Which log of this name it is."""
        self._queue = queue
        self._idle_error_s = idle_error_s
        self._idle_raised_at = -float("inf")
        self._columns: Columns | None = None
        self._turn_bytes = 0
        self._records: Iterator[LogRecord] = iter(())

    def __repr__(self) -> str:
        return reader_text(self.name, self.position, self._queue.error)

    # --- for the caller ---------------------------------------------------------------------------

    async def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        """The next record; None when ``wait_s`` is over (None: no limit; 0: takes only what is here),
        or at the end that ``to`` set.

        Raises `EndOfStream` at the end of a sealed log, `LogTruncated`, `LogDeleted`, `CorruptData`;
        after an error the reader is over.

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
        """The next record and those of its set (`LogWriter.submit_set`); a record of no set is alone.

        [] where `read_next` gives None, and errors as that. Where the reader begins or ends within a set, it
        is what the reader has of it.

        Raises: EndOfStream, LogTruncated, LogNotFound, CorruptData, ReaderIdle, InvalidRequest,
        AlreadyClosed.
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
        """Up to ``number`` records: waits for the first one, then takes what comes until ``wait_s`` after
        the call (None: what is here; 0: does not wait for the first either).

        Fewer, also none, at the end that ``to`` set. Raises as `read_next`, and only when it has no record.

        Raises: EndOfStream, LogTruncated, LogDeleted, CorruptData, ReaderIdle, AlreadyClosed,
        InvalidRequest.
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
                break  # what is here was taken: nothing is waited for, no error is met
            try:
                if not await self._advance(max(0.0, remaining_s), as_records=False):
                    break
            except DistributedLogError:
                break  # it sticks, and is the next call's
            except BaseException:  # cancelled: the next call has what this one gives nobody
                self._queue.return_entries(taken_entries)
                self._columns, self._records = taken_entries[0].cut(0, 0), iter(())
                raise
            taken_entries.append(self._add_records(records, number - len(records)))
        return records

    def _add_records(self, result: list[LogRecord], number: int) -> Columns:
        """Add up to ``number`` records of the entry that has just been taken; the others are kept."""
        columns = self._columns
        assert columns is not None, "an entry was taken"
        records = columns.records()
        if len(records) > number:
            self._records = iter(records)
            result += islice(self._records, number)
        else:  # without an iterator's step a record
            self._records = iter(())
            result += records
        return columns

    async def read_columns(self, wait_s: float | None = None) -> Columns | None:
        """The rest of the entry at hand, or the next one, as columns: memoryviews that Arrow wraps.

        They pin their whole entry. None and errors as `read_next`.

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
        """As `read_columns`, then all further entries that are here, up to about ``bytes_max``.

        [] for its None. Only in this API: the blocking and asyncio readers are built on it.
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
        """Where a reader goes on after the last record that was given: ``open_reader(position=…)``.

        None for one that was opened at a dlsn, a txid or the latest, until it has given a record.
        """
        columns = self._columns
        if columns is None:
            return self._queue.position
        buffered_count = length_hint(self._records)
        return position_after(self.incarnation, columns, columns.count - buffered_count)

    @property
    def skipped(self) -> Skips:
        """What ``broken="skip"`` has passed over so far, some MiB ahead of what was given."""
        skip_log = self._queue.skips
        return Skips() if skip_log is None else skip_log.to_value()

    async def idle(self) -> Idle:
        """For how long nothing has come, and for how long nobody has answered.

        Raises: AlreadyClosed.
        """
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        return Idle(now - self._queue.last_response_at, now - self._queue.last_entry_at)

    @property
    def ended(self) -> bool:
        """Has everything up to ``to``, or up to the end of a sealed log, been taken?"""
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
        ):  # what nobody was given is after `position`
            self._columns = self._columns.cut(0, self._columns.count - buffered_count)
        self._records = iter(())

    async def _advance(self, wait_s: float | None, *, as_records: bool = True) -> bool:
        """Take the next entry from the queue; False when the wait is over or the end is reached."""
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
            await trio.lowlevel.checkpoint()  # a caller that never waits starves nobody
            self._turn_bytes = 0
        columns = self._take_entry()
        if as_records:
            self._records = iter(columns.records())
        return True

    async def _wait_active(self, wait_s: float | None, limit_s: float) -> None:
        """Until something is here, or ``wait_s`` is over. Raises `ReaderIdle`."""
        queue = self._queue
        deadline = trio.current_time() + (float("inf") if wait_s is None else wait_s)
        while True:
            # Who tries again at once after the error waits again: no loop of his is a busy one.
            idle_at = max(queue.last_entry_at, self._idle_raised_at) + limit_s
            with trio.move_on_at(min(deadline, idle_at)):
                return await queue.wait_filled()
            if queue.last_entry_at + limit_s > idle_at:
                continue  # a control entry came
            if deadline < idle_at:
                return
            now = self._idle_raised_at = trio.current_time()
            raise ReaderIdle(
                f'log "{self.name}": no entry came for {now - queue.last_entry_at:.1f} s; a bookie answered '
                f"{now - queue.last_response_at:.1f} s ago"
            )

    def _take_entry(self) -> Columns:
        columns = self._columns = self._queue.pop_entry()
        size, meters = columns.payload_bytes, self._queue.meters
        self._turn_bytes += size + ENTRY_OVERHEAD_BYTES
        meters.entries_read += 1
        meters.records_read += columns.count
        meters.bytes_read += size
        return columns

    def _raise_if_sealed(self) -> None:
        if self._queue.sealed and self.ended:
            raise EndOfStream(f'log "{self.name}" is sealed, and this was its end')


def reader_text(name: str, position: Position | None, error: DistributedLogError | None) -> str:
    """A reader as its ``repr`` shows it."""
    position_text = "before its first record" if position is None else f"at {position.dlsn}"
    error_text = "" if error is None else f", {type(error).__name__}: {error}"
    return f'LogReader("{name}", {position_text}{error_text})'


def position_after(incarnation: str, columns: Columns, row_count: int) -> Position:
    """Where a reader goes on that was given the first ``rows`` rows of these columns."""
    origin, slot = columns.origin, columns.first_slot + row_count
    return Position(
        incarnation, DLSN(origin.segment, origin.entry, slot), origin.sequence_id + slot
    )
