"""LogReader: records in order from a position, across segments, then as they are written.

One task owns what is being fetched: it reads ahead, bounded in bytes, and never leaves a segment before
that one is closed and drained (H11). The caller takes decoded entries from its queue. What ends a reader
(truncation, deletion, data that cannot be read) is raised after everything that came before it.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import Literal

import trio

from ..metadata.interface import Metadata
from ..runtime.errors import (
    AlreadyClosed,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
    NoSuchEntry,
    NoSuchLedger,
)
from .batch import again
from .dlsn import DLSN
from .follower import StateFollower
from .ledgers import EntryRecord, LedgerReader, Ledgers
from .locate import first_with_txid, last_readable
from .options import LogOptions
from .record import Columns, LogRecord, Origin, decode, decode_header
from .segments import UNKNOWN

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0


class LogReader:
    """Reads one log. Made by `Log.open_reader`; for one task at a time."""

    def __init__(
        self,
        metadata: Metadata,
        ledgers: Ledgers,
        options: LogOptions,
        log_id: int,
        name: str,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._options = options
        self._name = name
        self._follower = StateFollower(metadata, log_id, name)
        self._scope = trio.CancelScope()
        self._start = DLSN.INITIAL
        self._from_txid: int | None = None
        self._to: DLSN | None = None
        # The fetching task's:
        self._at_segment = 1
        self._at_entry = 0
        self._proven = -1
        self._trouble_since: float | None = None
        # Between the fetching task and the caller:
        self._queue: deque[Columns] = deque()
        self._queue_bytes = 0
        self._filled = trio.Event()
        self._taken = trio.Event()
        self._ended = False
        self._sealed = False
        self._error: DistributedLogError | None = None
        # The caller's:
        self._columns: Columns | None = None
        self._records: Iterator[LogRecord] = iter(())

    # --- for the caller ---------------------------------------------------------------------------

    async def read_next(self, wait_s: float | None = None) -> LogRecord | None:
        """The next record; None when ``wait_s`` is over (None: no limit; 0: takes only what is here),
        or at the end that ``to`` set.

        Raises `EndOfStream` at the end of a sealed log, `LogTruncated`, `LogNotFound`, `CorruptData`;
        after an error the reader is over.
        """
        for record in self._records:
            return record
        if not await self._advance(wait_s):
            self._raise_if_sealed()
            return None
        return next(self._records)

    async def read_bulk(self, number: int, wait_s: float | None = None) -> list[LogRecord]:
        """Up to ``number`` records: waits for the first one, then takes what comes until ``wait_s`` after
        the call (None: what is here; 0: does not wait for the first either).

        Fewer, also none, at the end that ``to`` set. Raises as `read_next`, never behind records it has.
        """
        if number < 1:
            raise InvalidRequest(f"read_bulk wants at least one record, not {number}")
        deadline = trio.current_time() + (wait_s or 0.0)
        found = list(islice(self._records, number))
        if not found:
            if not await self._advance(0 if wait_s == 0 else None):
                self._raise_if_sealed()
                return []
            found = list(islice(self._records, number))
        while len(found) < number:
            left = deadline - trio.current_time() if wait_s else 0.0
            try:
                if not await self._advance(max(0.0, left)):
                    break
            except DistributedLogError:
                break  # it sticks, and is the next call's
            found += islice(self._records, number - len(found))
        return found

    async def read_columns(self, wait_s: float | None = None) -> Columns | None:
        """The rest of the entry at hand, or the next one, as columns: memoryviews that Arrow wraps.

        They pin their whole entry. None and errors as `read_next`.
        """
        left = length_hint(self._records)
        if left:
            assert self._columns is not None
            columns = self._columns.cut(self._columns.count - left, self._columns.count)
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

        [] for its None. For whoever pays for each call (the blocking and asyncio flavours).
        """
        first = await self.read_columns(wait_s)
        found = [] if first is None else [first]
        left = bytes_max
        while self._queue and found:
            left -= found[-1].payload_bytes
            if left <= 0:
                break
            found.append(self._take())
        return found

    def __aiter__(self) -> "LogReader":
        return self

    async def __anext__(self) -> LogRecord:
        for record in self._records:
            return record
        if not await self._advance(None):
            raise StopAsyncIteration
        return next(self._records)

    @property
    def ended(self) -> bool:
        """Has everything up to ``to``, or up to the end of a sealed log, been taken?"""
        return self._ended and not self._queue and not length_hint(self._records)

    async def aclose(self) -> None:
        """Stop fetching. Idempotent."""
        self._scope.cancel()
        self._end(AlreadyClosed(f'log "{self._name}": this reader is closed'))
        self._queue.clear()
        self._records = iter(())
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "LogReader":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._scope.cancel()
        await self.aclose()

    async def _advance(self, wait_s: float | None, *, as_records: bool = True) -> bool:
        """Take the next entry from the queue; False when the wait is over or the end is reached."""
        if not self._queue:
            if wait_s is None:
                await self._wait_filled()
            else:
                with trio.move_on_after(wait_s):
                    await self._wait_filled()
            if not self._queue:
                if self._error is not None:
                    raise again(self._error)
                return False
        else:
            await (
                trio.lowlevel.checkpoint()
            )  # once an entry: a caller that never waits starves nobody
        columns = self._take()
        if as_records:
            self._records = iter(columns.records())
        return True

    def _take(self) -> Columns:
        columns = self._columns = self._queue.popleft()
        self._queue_bytes -= columns.payload_bytes
        self._taken.set()
        return columns

    async def _wait_filled(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._queue and self._error is None and not self._ended:
            if self._filled.is_set():
                self._filled = trio.Event()
            await self._filled.wait()

    def _raise_if_sealed(self) -> None:
        if self._sealed and self.ended:
            raise EndOfStream(f'log "{self._name}" is sealed, and this was its end')

    # --- opening ----------------------------------------------------------------------------------

    async def open(
        self,
        dlsn: DLSN | None,
        txid: int | None,
        at: Literal["earliest", "latest"],
        to: DLSN | Literal["end"] | None,
    ) -> None:
        """Find where to begin and end. Raises `LogNotFound`, `LogTruncated`."""
        await self._follower.load()
        state = self._follower.state
        earliest = max(state.truncated_to, DLSN(state.first_segment, 0, 0))
        if to == "end":
            self._to = await last_readable(self._follower, self._ledgers)
            self._ended = self._to is None
        else:
            self._to = to
        if dlsn is not None:
            if dlsn < earliest and dlsn != DLSN.INITIAL:
                raise self._follower.truncated()
            self._start = max(dlsn, earliest)
        elif txid is not None:
            self._from_txid = txid
            self._start = max(
                earliest, await first_with_txid(self._metadata, self._follower, self._ledgers, txid)
            )
        elif at == "latest":
            last = await last_readable(self._follower, self._ledgers)
            self._start = earliest if last is None else DLSN(last.segment, last.entry + 1, 0)
        else:
            self._start = earliest
        if self._to is not None and self._start > self._to:
            self._ended = True
        self._at_segment, self._at_entry = self._start.segment, self._start.entry

    # --- the fetching task ------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until the end, an error, or the reader is closed. A task of the namespace."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follower.run)
                    await self._fetch()
                    nursery.cancel_scope.cancel()
        finally:
            if not self._ended:
                self._end(AlreadyClosed(f'log "{self._name}": the namespace was closed'))

    async def _fetch(self) -> None:
        # A position that was delivered proves that all before it is confirmed, whatever the bookies
        # remember of the LAC (H24).
        self._proven = self._at_entry if self._start.slot > 0 else self._at_entry - 1
        retry_s = RETRY_FIRST_S
        while not self._ended:
            before = (self._at_segment, self._at_entry)
            try:
                await self._read_segment()
                continue
            except (NoSuchLedger, NoSuchEntry) as error:
                self._end(await self._explained(error, self._at_segment))
                return
            except DistributedLogError as error:
                if not error.retryable:
                    self._end(error)
                    return
                if (self._at_segment, self._at_entry) != before or self._trouble_since is None:
                    self._trouble_since, retry_s = trio.current_time(), RETRY_FIRST_S
                elif trio.current_time() - self._trouble_since > self._options.read_retry_s:
                    self._end(error)
                    return
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _read_segment(self) -> None:
        """From the position at hand to the end of its segment; then the position is the next one's start."""
        number = self._at_segment
        state = await self._follower.until(
            lambda state: number <= state.last_segment or state.sealed
        )
        if number > state.last_segment:
            self._sealed = True
            self._end()
            return
        record = await self._follower.segment(number)
        if record.start_sequence_id == UNKNOWN:
            # Opened in a roll whose older segment is not closed yet, and that one has not been read
            # here: wait until it is, as everybody who comes from there does (H11).
            await self._follower.until(lambda state: state.open_from >= number)
            record = await self._follower.segment(number)
        ledger = await self._ledgers.open(record.ledger_id)
        try:
            await self._drain(number, record.start_sequence_id, ledger)
        finally:
            ledger.close()
        if self._ended:
            return
        if self._to is not None and self._to.segment <= number:
            self._end()
            return
        # The ledger may be closed a moment before the log says so, and only the log says what follows.
        await self._follower.until(lambda state: state.open_from > number)
        self._at_segment, self._at_entry, self._proven = number + 1, 0, -1

    async def _drain(self, number: int, start_sequence_id: int, ledger: LedgerReader) -> None:
        """Deliver the segment from the position at hand until it is closed and drained."""
        if not ledger.closed:
            ledger.note_lac(self._proven)
        while not self._ended:
            self._follower.check_position(number, self._at_entry)
            closed, lac = ledger.closed, ledger.lac
            if self._at_entry <= lac:
                found = await ledger.read(self._at_entry, lac, bytes_max=self._options.read_bytes)
                self._trouble_since = None
                for entry in found:
                    self._deliver(number, start_sequence_id, entry)
                self._at_entry = found[-1].entry + 1
                await self._wait_taken()
            elif closed:
                return
            else:
                await ledger.wait(self._at_entry - 1, wait_s=self._options.tail_wait_s)
                self._trouble_since = None

    def _deliver(self, number: int, start_sequence_id: int, entry: EntryRecord) -> None:
        """Decode one entry, cut it to what the caller asked for, put it into the queue."""
        if self._ended:
            return
        header = decode_header(entry.payload)
        if header.end_of_stream:
            self._sealed = True
            self._end()
            return
        if header.control:
            return
        origin = Origin(number, entry.entry, start_sequence_id + header.records_before)
        columns = decode(entry.payload, header, origin)
        start, stop = 0, columns.count
        if (number, entry.entry) == self._start[:2]:
            start = min(self._start.slot, stop)
        if self._from_txid is not None:
            while start < stop and columns.txids[start] < self._from_txid:
                start += 1
            if start < stop:
                self._from_txid = None  # found; the records behind it are all wanted
        last = False
        if self._to is not None and (number, entry.entry) >= self._to[:2]:
            last = True
            stop = min(stop, self._to.slot + 1) if (number, entry.entry) == self._to[:2] else 0
        if start < stop:
            if start or stop < columns.count:
                columns = columns.cut(start, stop)
            self._queue.append(columns)
            self._queue_bytes += columns.payload_bytes
            self._filled.set()
        if last:
            self._end()

    async def _wait_taken(self) -> None:
        while self._queue_bytes > self._options.read_ahead_bytes and not self._ended:
            if self._taken.is_set():
                self._taken = trio.Event()
            await self._taken.wait()

    def _end(self, error: DistributedLogError | None = None) -> None:
        """Nothing more will be fetched; ``error`` is raised behind what is in the queue."""
        self._ended = True
        if self._error is None:
            self._error = error
        self._filled.set()
        self._taken.set()

    async def _explained(self, error: DistributedLogError, segment: int) -> DistributedLogError:
        try:
            return await self._follower.explain(error, segment)
        except DistributedLogError as second:
            return second
