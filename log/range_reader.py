"""Reading stretches of segments that a planner chose, in any process: entries as columns, read ahead.

No search and no following: where the entries lie is in the range. The log's own state is read once at the
beginning and again on any miss, so that a log which was deleted or truncated meanwhile says so (H30).
"""

from collections import deque
from collections.abc import Sequence
from types import TracebackType

import trio

from ..metadata.interface import Metadata
from ..runtime.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    LogRecreated,
    NoSuchEntry,
    NoSuchLedger,
)
from .containment import contained
from .follower import StateFollower
from .keys import incarnation_text
from .ledgers import Ledgers
from .options import LogOptions
from .ranges import SegmentRange
from .record import Columns, Origin, decode, decode_header

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0


class RangeReader:
    """Gives the user records of some ranges, entry by entry, in the order of the ranges.

    Made by `Log.open_ranges`; for one task at a time. Columns pin their whole entry (H17).
    """

    def __init__(
        self,
        metadata: Metadata,
        ledgers: Ledgers,
        options: LogOptions,
        log_id: int,
        name: str,
        ranges: Sequence[SegmentRange],
    ) -> None:
        ours = incarnation_text(log_id)
        for one in ranges:
            if one.incarnation != ours:
                raise LogRecreated(
                    f'log "{name}" was deleted and made again: a range is of incarnation '
                    f"{one.incarnation}, this one is {ours}"
                )
        self._ledgers = ledgers
        self._options = options
        self._name = name
        self._ranges = list(ranges)
        self._follower = StateFollower(metadata, log_id, name)
        self._scope = trio.CancelScope()
        self._queue: deque[Columns] = deque()
        self._queue_bytes = 0
        self._filled = trio.Event()
        self._taken = trio.Event()
        self._ended = False
        self._error: DistributedLogError | None = None
        self._at = 0
        """The next entry of the range that is being fetched; behind it nothing is in the queue."""

    # --- for the caller ---------------------------------------------------------------------------

    async def read_columns(self) -> Columns | None:
        """The records of the next entry; None behind the last one.

        Raises `LogTruncated` (naming the first position that is left), `LogNotFound`, `CorruptData`, or what
        kept the entries from being read for ``read_retry_s``; after an error the reader is over.
        """
        if self._queue:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_filled()
        if not self._queue:
            if self._error is not None:
                raise self._error.again()
            return None
        return self._take()

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """As `read_columns`, then further entries that are here, up to ``bytes_max``; [] at the end."""
        first = await self.read_columns()
        if first is None:
            return []
        found, left = [first], bytes_max - first.payload_bytes
        while self._queue and left > 0:
            found.append(self._take())
            left -= found[-1].payload_bytes
        return found

    def __aiter__(self) -> "RangeReader":
        return self

    async def __anext__(self) -> Columns:
        columns = await self.read_columns()
        if columns is None:
            raise StopAsyncIteration
        return columns

    async def aclose(self) -> None:
        """Stop fetching. Idempotent."""
        self._close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "RangeReader":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close()

    # --- the fetching task ------------------------------------------------------------------------

    async def open(self) -> None:
        """Look at the log. Raises `LogNotFound`, `LogTruncated`."""
        await self._follower.load()
        for one in self._ranges:
            if one.first_entry <= one.last_entry:
                self._follower.check_position(one.segment, one.first_entry, one.first_slot)

    async def run(self) -> None:
        """Fetch all ranges, in order, ahead of the caller. A task of the namespace."""
        try:
            with self._scope, contained(f'a reader of ranges of log "{self._name}"', self._end):
                for one in self._ranges:
                    await self._fetch(one)
                self._end()
        finally:
            self._end(AlreadyClosed(f'log "{self._name}": the namespace was closed'))

    async def _fetch(self, one: SegmentRange) -> None:
        self._at = one.first_entry
        trouble_since: float | None = None
        retry_s = RETRY_FIRST_S
        while self._at <= one.last_entry:
            before = self._at
            try:
                await self._fetch_from(one)
                continue
            except (NoSuchLedger, NoSuchEntry) as error:
                raise await self._follower.explain(error, one.segment) from None
            except DistributedLogError as error:
                if not error.retryable:
                    raise
                if self._at != before or trouble_since is None:
                    trouble_since, retry_s = trio.current_time(), RETRY_FIRST_S
                elif trio.current_time() - trouble_since > self._options.read_retry_s:
                    raise
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _fetch_from(self, one: SegmentRange) -> None:
        ledger = await self._ledgers.open(one.ledger_id)
        try:
            if not ledger.closed:
                ledger.note_lac(one.last_entry)  # the planner saw that it can be read (H24)
            if ledger.lac < one.last_entry:
                raise InvalidRequest(
                    f'log "{self._name}": segment {one.segment} ends at entry {ledger.lac}, the range goes '
                    f"to {one.last_entry}"
                )
            while self._at <= one.last_entry:
                found = await ledger.read(
                    self._at, one.last_entry, bytes_max=self._options.read_bytes
                )
                for entry in found:
                    self._deliver(one, entry.entry, entry.payload)
                self._at = found[-1].entry + 1
                await self._wait_taken()
        finally:
            ledger.close()

    def _deliver(self, one: SegmentRange, entry: int, payload: memoryview) -> None:
        header = decode_header(payload)
        if header.control:
            return
        sequence_id = one.start_sequence_id + header.records_before
        origin = Origin(one.segment, entry, sequence_id, one.given_txid)
        columns = decode(payload, header, origin)
        if entry == one.first_entry and one.first_slot:
            start = min(one.first_slot, columns.count)
            if start == columns.count:
                return
            columns = columns.cut(start, columns.count)
        self._queue.append(columns)
        self._queue_bytes += columns.payload_bytes
        self._filled.set()

    # --- between ----------------------------------------------------------------------------------

    def _take(self) -> Columns:
        columns = self._queue.popleft()
        self._queue_bytes -= columns.payload_bytes
        self._taken.set()
        return columns

    async def _wait_filled(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._queue and not self._ended:
            if self._filled.is_set():
                self._filled = trio.Event()
            await self._filled.wait()

    async def _wait_taken(self) -> None:
        while self._queue_bytes > self._options.read_ahead_bytes and not self._ended:
            if self._taken.is_set():
                self._taken = trio.Event()
            await self._taken.wait()

    def _close(self) -> None:
        self._scope.cancel()
        self._end(AlreadyClosed(f'log "{self._name}": this reader is closed'))
        self._queue.clear()

    def _end(self, error: DistributedLogError | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
        self._filled.set()
        self._taken.set()
