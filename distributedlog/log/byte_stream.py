"""A log as a stream of bytes: one writer appends, and readers read and seek by offset.

Such a log has ``txids="bytes"``: the txid of a record is the offset after it, assigned when the record is
accepted. The stream has no gap, because the next writer continues at the end of the recovered log, regardless
of unacknowledged bytes. A search by txid finds the record at an offset. The payloads of an entry are
contiguous, so the bytes that are read from one entry are a view of it.
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
"""Larger writes are divided into records of at most this size, which become one entry each under load."""


def check_stream(state: LogState) -> None:
    """Raise `InvalidRequest` unless the log is a byte stream."""
    if state.policy != BYTES:
        raise InvalidRequest(
            f'log "{state.name}" is not a byte stream: its txid policy is "{policy_name(state.policy)}", not '
            f'"{BYTES}"'
        )


class ByteWriter:
    """Appends bytes to a log. `Log.open_byte_writer` creates it. Only one task at a time may use it."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self.name = writer.send_queue.name
        """The log's name."""
        self._durable_offset = max(0, writer.last_txid)
        self._unacked: deque[tuple[int, PendingWrite]] = (
            deque()
        )  # each write with the offset after it

    def __repr__(self) -> str:
        return f"ByteWriter({self._writer!r})"

    async def write(self, data: Buffer) -> int:
        """Append bytes, and return the number that was accepted, without waiting until they are durable.

        The call waits only for free space in the queue and for the log's rate. It accepts all bytes, unless a
        limit is reached and ``at_limit`` is "reject". If then no byte is accepted, it raises `TooBusy`. The
        first other error of the writer is raised by all later calls.

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
        """Wait until all accepted bytes are durable and readable, and return the offset after them.

        Raises: AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await self._writer.commit()
        return await self.tell()

    async def tell(self) -> int:
        """Return the offset up to which all bytes are durable.

        Raises: nothing.
        """
        await trio.lowlevel.checkpoint()
        self._advance_durable()
        return self._durable_offset

    def leave_settling_to_caller(self) -> None:
        """Let the caller, not the namespace, wait for pending records when the namespace closes."""
        self._writer.send_queue.leave_settling_to_caller()

    async def aclose(self) -> None:
        """Wait as `flush` does, close the segment and release the lock. Idempotent.

        Raises: WriterFenced, WriteFailed, NotEnoughBookies.
        """
        await self._writer.aclose()

    async def abort(self) -> None:
        """Send nothing more. The outcome of bytes that are not durable yet is unknown (G7).

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
        """The number of accepted records that are not known to be durable. It may be read from any thread."""
        return sum(not _is_durable(pending) for _, pending in list(self._unacked))

    def _advance_durable(self) -> None:
        unacked = self._unacked
        while unacked and unacked[0][1].done():
            if not _is_durable(unacked[0][1]):
                return  # later bytes are not known to be durable either
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
    """Reads a log as bytes, from an offset.

    `Log.open_byte_reader` creates it. Only one task at a time may use it.
    """

    def __init__(
        self,
        name: str,
        offset: int,
        *,
        follow: bool,
        open_reader_at: Callable[[int, bool], Awaitable[LogReader]],
        end_offset: Callable[[], Awaitable[int]],
    ) -> None:
        """Create the reader.

        Args:
            name: The log's name.
            offset: The first offset to read.
            follow: Wait for more bytes at the end of the log.
            open_reader_at: Opens a reader at a txid. If the second argument is true, the reader ends at the
                present end of the log.
            end_offset: Returns the offset of the present end of the log.
        """
        self._name = name
        self._offset = check_offset(offset)
        self._follow = follow
        self._open_reader_at = open_reader_at
        self._end_offset = end_offset
        self._read_lock = trio.Lock()  # a cancelled call may still be ending
        self._reader: LogReader | None = None
        self._buffered = memoryview(b"")
        """The bytes of the current entry from the offset on."""
        self._closed = False

    def __repr__(self) -> str:
        return f'ByteReader("{self._name}", at {self._offset})'

    async def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, at least one, or ``b""`` at the end of the log.

        Unless ``size`` is -1, the result contains only bytes of the current entry. If the reader follows the
        log, it waits for more bytes at the end, and ``b""`` means that the log is sealed. If the call is
        cancelled or raises an error, the next call starts at the same offset.

        Args:
            size: Maximum number of bytes; 0 returns ``b""`` at once. -1 means all bytes up to the end, or, if
                the reader follows the log, the available bytes of the current entry.

        Raises: LogTruncated, LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest,
        QuorumUnreachable, AlreadyClosed.
        """
        async with self._read_lock:
            return await self._read(size)

    async def read_from(self, offset: int, size: int) -> bytes:
        """Read as `read` does, at an offset.

        For the other API variants, whose caller may not have received the result of the last call.
        """
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
        except BaseException:  # the caller does not receive the bytes, so read them again
            with trio.CancelScope(shield=True):
                await self._drop_reader()
            self._offset = start
            raise
        return b"".join(parts)

    async def tell(self) -> int:
        """Return the offset of the next byte to read.

        Raises: nothing.
        """
        await trio.lowlevel.checkpoint()
        return self._offset

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Set the offset of the next read, and return it.

        The offset may be after the end. It is checked only at the next read.

        Args:
            offset: Relative to the start (``whence`` 0), to the present offset (1), or to the readable end
                (2).
            whence: 0, 1 or 2.

        Raises: LogNotFound, LogRecreated, LedgerStateUnknown, CorruptData, InvalidRequest, QuorumUnreachable,
        AlreadyClosed.
        """
        self._check_open()
        await trio.lowlevel.checkpoint()
        check_whole("offset", offset, -TXID_MAX, TXID_MAX)
        if whence not in (0, 1, 2):
            raise InvalidRequest(f"whence must be 0, 1 or 2, not {quoted(whence)}")
        async with self._read_lock:
            base = (0, self._offset)[whence] if whence < 2 else await self._end_offset()
            target = check_offset(base + offset)
            await self._move_to(target)
            return target

    @property
    def offset(self) -> int:
        """The offset of the next byte to read."""
        return self._offset

    async def aclose(self) -> None:
        """Stop reading ahead. Idempotent.

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
        """Fetch bytes at the offset, or none at the end of the log."""
        has_started, saw_truncation = self._reader is not None, False
        while not self._buffered:
            if self._reader is None:
                self._reader = await self._open_reader_at(self._offset + 1, not self._follow)
            try:
                columns = await self._reader.read_columns()
            except EndOfStream:
                columns = None
            except (
                LogTruncated
            ):  # it names a position; the next entry shows the first available offset
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
                has_started = False  # the log may have grown since that reader was opened
                continue
            end = columns.txids[columns.count - 1]
            start = end - columns.payload_bytes
            if start > self._offset and not has_started:
                raise self._truncated_error(start)
            if not start <= self._offset <= end:
                raise CorruptData(
                    f'log "{self._name}": an entry has bytes {start} to {end}, but {self._offset} is next'
                )
            has_started = True
            entry_bytes = columns.payload[columns.offsets[0] : columns.offsets[columns.count]]
            self._buffered = entry_bytes[self._offset - start :]

    def _truncated_error(self, start: int) -> LogTruncated:
        return LogTruncated(
            f'log "{self._name}": offset {self._offset} was truncated, the first available one is {start}',
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
    """Return the offset if it is valid.

    Raises:
        InvalidRequest: It is not an int from 0 up.
    """
    if type(offset) is not int or not 0 <= offset < TXID_MAX:
        raise InvalidRequest(f"an offset must be an int from 0 up, not {quoted(offset)}")
    return offset
