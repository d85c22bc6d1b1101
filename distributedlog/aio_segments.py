"""The asyncio flavour of what is written beside a log and read by ranges; see `aio.py`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

import trio

from .bridge import Inbox, Owned, give_up
from .log.range_reader import RangeReader as TrioRangeReader
from .log.ranges import SegmentToken
from .log.record import Columns, LogRecord
from .log.segment_writer import SegmentWriter as TrioSegmentWriter
from .runtime.background import Background, Handover, Outcome
from .runtime.host import Buffer

T = TypeVar("T")
C = TypeVar("C", bound=Owned)


async def run(background: Background, call: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run a call in the trio loop; cancelled here, it is cancelled there."""
    outcome: Outcome[T] = Outcome()
    scope = trio.CancelScope()
    try:
        background.begin(outcome, scope, call, *args)
        return await outcome_of(outcome)
    except BaseException:
        background.cancel(scope)
        raise


async def outcome_of(outcome: Outcome[T]) -> T:
    """Wait for what the trio loop gives."""
    loop = asyncio.get_running_loop()
    told = loop.create_future()

    def take() -> None:
        if not told.done():
            told.set_result(None)

    def tell() -> None:
        with suppress(RuntimeError):  # the event loop has ended: nobody waits
            loop.call_soon_threadsafe(take)

    outcome.when_done(tell)
    await told
    return outcome.result()


async def opened(background: Background, open_it: Callable[[], Awaitable[C]]) -> C:
    """What ``open_it`` opens in the trio loop; cancelled wherever, it is given up there."""
    handover = Handover(background, open_it, give_up)
    try:
        return await outcome_of(handover.begin())
    except BaseException:
        handover.give_up()
        raise


class SegmentWriter(Owned):
    """Writes one ledger for a log, then closes it; see `distributedlog.SegmentWriter`.

    Each call is a hop to the background thread: hand over whole entries (`write_packed`), or many records.
    """

    def __init__(self, background: Background, writer: TrioSegmentWriter) -> None:
        super().__init__(background, f"the writer of ledger {writer.ledger_id}", writer.abort)
        self._writer = writer

    @property
    def ledger_id(self) -> int:
        """The ledger that is written."""
        return self._writer.ledger_id

    @property
    def size_bytes(self) -> int:
        """Entry bytes so far, what is buffered included."""
        return self._writer.size_bytes

    @property
    def records(self) -> int:
        """Records taken so far."""
        return self._writer.records

    @property
    def token(self) -> SegmentToken | None:
        """Set by `aclose`."""
        return self._writer.token

    async def write(self, record: LogRecord) -> None:
        """Take one record; waits for room only."""
        await run(self._background, self._writer.write, record)

    async def write_bulk(self, records: Sequence[LogRecord]) -> None:
        """Take records, in order; waits for room only."""
        await run(self._background, self._writer.write_bulk, records)

    async def write_columns(self, txids: Sequence[int] | None, payloads: Sequence[bytes]) -> None:
        """Take records as a list of txids and one of payloads; waits for room only."""
        await run(self._background, self._writer.write_columns, txids, payloads)

    async def write_packed(self, txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> None:
        """Write one entry whose columns are there already, as Arrow lays them out."""
        await run(self._background, self._writer.write_packed, txids, offsets, payloads)

    async def flush(self) -> None:
        """Send what is buffered; waits for room only."""
        await run(self._background, self._writer.flush)

    async def aclose(self) -> SegmentToken:
        """Wait until everything is durable, close the ledger, return its token. Idempotent."""
        token = await run(self._background, self._writer.aclose)
        self._ended()
        return token

    async def abort(self) -> None:
        """Send nothing more, and delete the ledger if the metadata answers. Idempotent."""
        await run(self._background, self._writer.abort)
        self._ended()

    async def __aenter__(self) -> "SegmentWriter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()


class RangeReader(Owned):
    """Gives the user records of some ranges, entry by entry; see `distributedlog.RangeReader`."""

    def __init__(self, background: Background, reader: TrioRangeReader) -> None:
        super().__init__(background, "a reader of ranges", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Columns] = Inbox()

    async def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """The next entry and those that are here behind it, up to ``bytes_max``; [] at the end."""

        fetch = partial(self._reader.read_columns_many, bytes_max=bytes_max)
        await run(self._background, self._inbox.fill, fetch)
        return self._inbox.take()

    async def __aiter__(self) -> AsyncIterator[Columns]:
        while found := await self.read_columns_many():
            for columns in found:
                yield columns

    async def aclose(self) -> None:
        """Stop fetching. Idempotent."""
        await run(self._background, self._reader.aclose)
        self._ended()

    async def __aenter__(self) -> "RangeReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
