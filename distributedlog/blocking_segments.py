"""The blocking flavour of what is written beside a log and read by ranges; see `blocking.py`."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

from .bridge import Inbox, Owned, give_up
from .log.range_reader import RangeReader as TrioRangeReader
from .log.ranges import SegmentToken
from .log.record import Columns, LogRecord
from .log.segment_writer import SegmentWriter as TrioSegmentWriter
from .runtime.background import Background, Handover
from .runtime.host import Buffer

C = TypeVar("C", bound=Owned)


def opened(background: Background, open_it: Callable[[], Awaitable[C]]) -> C:
    """What ``open_it`` opens in the loop; interrupted wherever, it is given up there."""
    handover = Handover(background, open_it, give_up)
    try:
        return handover.begin().wait()
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
        """Set by `close`."""
        return self._writer.token

    def write(self, record: LogRecord) -> None:
        """Take one record; waits for room only."""
        self._background.run(self._writer.write, record)

    def write_bulk(self, records: Sequence[LogRecord]) -> None:
        """Take records, in order; waits for room only."""
        self._background.run(self._writer.write_bulk, records)

    def write_columns(self, txids: Sequence[int] | None, payloads: Sequence[bytes]) -> None:
        """Take records as a list of txids and one of payloads; waits for room only."""
        self._background.run(self._writer.write_columns, txids, payloads)

    def write_packed(self, txids: Buffer | None, offsets: Buffer, payloads: Buffer) -> None:
        """Write one entry whose columns are there already, as Arrow lays them out."""
        self._background.run(self._writer.write_packed, txids, offsets, payloads)

    def flush(self) -> None:
        """Send what is buffered; waits for room only."""
        self._background.run(self._writer.flush)

    def close(self) -> SegmentToken:
        """Wait until everything is durable, close the ledger, return its token. Idempotent."""
        token = self._background.run(self._writer.aclose)
        self._ended()
        return token

    def abort(self) -> None:
        """Send nothing more, and delete the ledger if the metadata answers. Idempotent."""
        self._background.run(self._writer.abort)
        self._ended()

    def __enter__(self) -> "SegmentWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class RangeReader(Owned):
    """Gives the user records of some ranges, entry by entry; see `distributedlog.RangeReader`."""

    def __init__(self, background: Background, reader: TrioRangeReader) -> None:
        super().__init__(background, "a reader of ranges", reader.aclose)
        self._reader = reader
        self._inbox: Inbox[Columns] = Inbox()

    def read_columns_many(self, *, bytes_max: int = 1024 * 1024) -> list[Columns]:
        """The next entry and those that are here behind it, up to ``bytes_max``; [] at the end."""

        fetch = partial(self._reader.read_columns_many, bytes_max=bytes_max)
        self._background.run(self._inbox.fill, fetch)
        return self._inbox.take()

    def __iter__(self) -> Iterator[Columns]:
        while found := self.read_columns_many():
            yield from found

    def close(self) -> None:
        """Stop fetching. Idempotent."""
        self._background.run(self._reader.aclose)
        self._ended()

    def __enter__(self) -> "RangeReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
