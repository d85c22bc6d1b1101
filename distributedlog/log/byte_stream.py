"""A log as a stream of bytes: one writer appends, readers read, seek and tell by offset.

Such a log has ``txids="bytes"``: a record's txid is the offset after it, given as it is taken. So the stream
has no gap: the next writer goes on where the recovered log ends, whatever was not acknowledged; and a search
by txid finds the record that holds an offset. The payloads of an entry are back to back, so what is read of
one is a view of it.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

import trio

from ..runtime.declarations.options import check_whole, quoted
from ..runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
    LogTruncated,
    TooBusy,
)
from ..runtime.interfaces.host import Buffer
from .format.record import TXID_MAX
from .model.log_state import BYTES, LogState
from .model.txid_policy import policy_name
from .read.log_reader import LogReader
from .write.entry_batch import PendingWrite
from .write.log_writer import LogWriter

RECORD_BYTES = 255 * 1024
"""What is written at once is divided into records of at most this: one to an entry under load."""


def check_stream(state: LogState) -> None:
    """Raise `InvalidRequest` unless the log is one of bytes."""
    if state.policy != BYTES:
        raise InvalidRequest(
            f'log "{state.name}" is no byte stream: its txid policy is "{policy_name(state.policy)}", not '
            f'"{BYTES}"'
        )


class ByteWriter:
    """Appends bytes to a log. Made by `Log.open_byte_writer`; for one task at a time."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self.name = writer.send_queue.name
        """Of the log."""
        self._durable_offset = max(0, writer.last_txid)
        self._unacked: deque[tuple[int, PendingWrite]] = (
            deque()
        )  # offsets after what is not known yet

    def __repr__(self) -> str:
        return f"ByteWriter({self._writer!r})"

    async def write(self, data: Buffer) -> int:
        """Take bytes; waits for room only. How many were taken: all, but where ``at_limit`` refuses the rest.

        Raises `TooBusy` where that refuses all, `AlreadyClosed`, or the first error of this writer, for good.

        Raises: TooBusy, AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        view = memoryview(data).cast("B")
        self._writer.send_queue.raise_if_over()
        for position in range(0, len(view), RECORD_BYTES):
            try:
                pending = await self._writer.submit(bytes(view[position : position + RECORD_BYTES]))
            except TooBusy:
                if position:
                    return position
                raise
            self._unacked.append((self._writer.last_txid, pending))
            self._advance_durable()
        return len(view)

    async def flush(self) -> int:
        """Wait until all that was taken is durable and readable; the offset after it.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await self._writer.commit()
        return await self.tell()

    async def tell(self) -> int:
        """The offset up to which all is durable.

        Raises: nothing.
        """
        await trio.lowlevel.checkpoint()
        self._advance_durable()
        return self._durable_offset

    def leave_settling_to_caller(self) -> None:
        """The caller waits for the records when the namespace ends."""
        self._writer.send_queue.leave_settling_to_caller()

    async def aclose(self) -> None:
        """As `flush`, then complete the segment and give the lock back. Idempotent.

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await self._writer.aclose()

    async def abort(self) -> None:
        """Send nothing more; what is not durable yet is unknown (G7).

        Raises: nothing.
        """
        await self._writer.abort()

    async def __aenter__(self) -> "ByteWriter":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._writer.__aexit__(kind, error, at)

    @property
    def not_durable(self) -> int:
        """The number of accepted records that are not known to be durable. From any thread."""
        return sum(not _is_durable(pending) for _, pending in list(self._unacked))

    def _advance_durable(self) -> None:
        unacked = self._unacked
        while unacked and unacked[0][1].done():
            if not _is_durable(unacked[0][1]):
                return  # nor is anything after it durable, as far as is known
            self._durable_offset = unacked.popleft()[0]


def _is_durable(pending: PendingWrite) -> bool:
    if not pending.done():
        return False
    try:
        pending.result()
    except DistributedLogError:
        return False
    return True


class ByteReader:
    """Reads a log as bytes, from an offset. Made by `Log.open_byte_reader`; for one task at a time."""

    def __init__(
        self,
        name: str,
        offset: int,
        *,
        follow: bool,
        open_reader_at: Callable[[int, bool], Awaitable[LogReader]],
        end_offset: Callable[[], Awaitable[int]],
    ) -> None:
        """``open_at`` opens a reader at a txid, and says whether it is to end at what is readable now;
        ``end`` is the offset of that."""
        self._name = name
        self._offset = check_offset(offset)
        self._follow = follow
        self._open_reader_at = open_reader_at
        self._end_offset = end_offset
        self._read_lock = trio.Lock()  # a call that was given up may be about to end
        self._reader: LogReader | None = None
        self._buffered = memoryview(b"")
        """From the offset on, of the entry at hand."""
        self._closed = False

    def __repr__(self) -> str:
        return f'ByteReader("{self._name}", at {self._offset})'

    async def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes: what the entry at hand has of them, and at least one; -1: all up to the end.

        ``b""`` at the end of what is readable. With ``follow`` it is waited for more there, and -1 gives what
        comes next; then only the end of a sealed log is one. Raises `LogTruncated` for an offset that is not
        left. Cancelled, or after an error, the next call begins where this one did.

        Raises: LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        async with self._read_lock:
            return await self._read(size)

    async def read_from(self, offset: int, size: int) -> bytes:
        """As `read`, from ``offset`` on. For a face, whose caller may not have had what the last one gave."""
        async with self._read_lock:
            if offset != self._offset:
                await self._move_to(offset)
            return await self._read(size)

    async def _read(self, size: int) -> bytes:
        check_whole("size", size, -1)
        if size >= 0 or self._follow:
            return await self._read_available(size)
        parts, start = [], self._offset
        try:
            while part := await self._read_available(-1):
                parts.append(part)
        except BaseException:  # nobody is given what was found
            with trio.CancelScope(shield=True):
                await self._drop_reader()
            self._offset = start
            raise
        return b"".join(parts)

    async def tell(self) -> int:
        """The offset of the next byte that is read.

        Raises: nothing.
        """
        await trio.lowlevel.checkpoint()
        return self._offset

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset, from the beginning (0), from here (1), or from the end of what is readable (2).

        Where that is. It may be after the end. What is there is looked for by the next read.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        self._check_open()
        await trio.lowlevel.checkpoint()
        check_whole("offset", offset, -TXID_MAX, TXID_MAX)
        if whence not in (0, 1, 2):
            raise InvalidRequest(f"whence is 0, 1 or 2, not {quoted(whence)}")
        async with self._read_lock:
            base = (0, self._offset)[whence] if whence < 2 else await self._end_offset()
            target = check_offset(base + offset)
            await self._move_to(target)
            return target

    @property
    def offset(self) -> int:
        """As `tell`."""
        return self._offset

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        self._closed = True
        await self._drop_reader()

    async def __aenter__(self) -> "ByteReader":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _read_available(self, size: int) -> bytes:
        self._check_open()
        if not self._buffered and size != 0:
            await self._fill()
        else:
            await trio.lowlevel.checkpoint()
        result = self._buffered if size < 0 else self._buffered[:size]
        self._buffered = self._buffered[len(result) :]
        self._offset += len(result)
        return bytes(result)

    async def _move_to(self, target: int) -> None:
        distance = target - self._offset
        if 0 <= distance <= len(self._buffered):
            self._buffered = self._buffered[distance:]
        else:
            await self._drop_reader()
        self._offset = target

    async def _fill(self) -> None:
        """Have bytes of the offset at hand, or none where that is the end."""
        has_started, saw_truncation = self._reader is not None, False
        while not self._buffered:
            if self._reader is None:
                self._reader = await self._open_reader_at(self._offset + 1, not self._follow)
            try:
                columns = await self._reader.read_columns()
            except EndOfStream:
                columns = None
            except LogTruncated:  # of a position: which offset is left is seen where that is read
                await self._drop_reader()
                if saw_truncation:
                    raise
                has_started, saw_truncation = False, True
                continue
            if columns is None:
                await self._drop_reader()
                if saw_truncation and (end := await self._end_offset()) > self._offset:
                    raise self._truncated_error(end)
                if not has_started or self._follow:
                    return
                has_started = False  # more may be there than when that one was opened
                continue
            end = columns.txids[columns.count - 1]
            start = end - columns.payload_bytes
            if start > self._offset and not has_started:
                raise self._truncated_error(start)
            if not start <= self._offset <= end:
                raise CorruptData(
                    f'log "{self._name}": an entry of bytes {start} to {end} where {self._offset} is next'
                )
            has_started = True
            entry_bytes = columns.payload[columns.offsets[0] : columns.offsets[columns.count]]
            self._buffered = entry_bytes[self._offset - start :]

    def _truncated_error(self, start: int) -> LogTruncated:
        return LogTruncated(
            f'log "{self._name}": its bytes before {start} are gone, {self._offset} was asked for',
            str(start),
        )

    async def _drop_reader(self) -> None:
        reader, self._reader, self._buffered = self._reader, None, memoryview(b"")
        if reader is not None:
            await reader.aclose()
        else:
            await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("this reader is closed")


def check_offset(offset: object) -> int:
    """Return it, or raise `InvalidRequest`."""
    if type(offset) is not int or not 0 <= offset < TXID_MAX:
        raise InvalidRequest(f"an offset is an int from 0 up, not {quoted(offset)}")
    return offset
