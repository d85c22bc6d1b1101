"""The buffer between a caller outside the trio event loop and the writer in it.

A record costs its caller an append to a chunk, under a mutex. The first record of a burst wakes the event
loop once. One task in the event loop submits complete chunks to the writer. A caller that waits for an
outcome leaves a callback, not a task.

The buffer enforces the limits for its writer, which accepts everything from the buffer. The event loop grants
the number of bytes that callers may append without asking it. The grant is small while nothing is written, so
that a thousand idle logs take nothing of the process's memory budget
(`distributedlog/log/limits/memory_budget.py`). When a caller reaches the limit, the event loop appends for
it.

A signal handler or a finalizer may interrupt a caller that holds the mutex. If it calls the same buffer, that
call raises `InvalidRequest`. The event loop waits for the mutex in a task, so its thread does not block. It
renews leases and writes other logs while the handler runs.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import trio

from .log.byte_stream import ByteWriter
from .log.format.dlsn import DLSN
from .log.format.record import (
    RECORD_BYTES_MAX,
    RECORD_COLUMN_BYTES,
    TXID_MAX,
    LogRecord,
    split_columns,
    txid_and_content,
)
from .log.format.record_headers import KeyedContent, content_bytes
from .log.interfaces.error_boundary import error_boundary
from .log.interfaces.open_call import Opening
from .log.limits.memory_budget import FREE_BYTES
from .log.log import Log
from .log.model.log_state import BYTES
from .log.model.txid_policy import txid_order_error
from .log.namespace import Namespace
from .log.write.entry_batch import PendingBulk
from .log.write.log_writer import LogWriter
from .log.write.record_validation import ValidatedBatch, validate_columns, validate_record
from .runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    TooBusy,
    WriteCancelled,
    WriteFailed,
)
from .runtime.interfaces.host import Buffer
from .runtime.process.fork_safety import watch_forks
from .runtime.schedule.background_loop import (
    INTERRUPTING_TEXT,
    Background,
    CrossThreadFuture,
    Mutex,
    has_interrupted,
    uninterrupted,
)

T = TypeVar("T")

BUFFER_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of the records between the caller and the writer, in addition to the writer's own limit."""
SUBMIT_BYTES_MAX = 2 * RECORD_BYTES_MAX
"""More bytes of columns or of a record set than the writer ever accepts."""
GROWTH_FACTOR = 4
"""Factor by which the limit of a buffer in use grows, up to `BUFFER_BYTES_MAX`."""


MUTEX_YIELDS = 10
"""How often the event loop yields to a caller that holds the mutex."""
MUTEX_RETRY_S = 0.005
"""Afterwards its task sleeps for this time, because the caller was interrupted."""
DROPPED_WAIT_S = 1.0
"""How long the records of a writer that was dropped unclosed are awaited."""

WAITED_WRITES_PER_S_MAX = 1000
"""Writes per second. A program with more of them most likely means to pipeline."""


class WaitedWriteCounter:
    """Counts writes that a program waits for one by one. Pure."""

    def __init__(self) -> None:
        self._count = 0
        self._second_start_s = 0.0
        self._warned = False

    def record_write(self, now_s: float) -> bool:
        """Count a write.

        Return True once, when there were more than `WAITED_WRITES_PER_S_MAX` within a second.
        """
        if self._warned:
            return False
        if now_s - self._second_start_s >= 1.0:
            self._second_start_s, self._count = now_s, 0
        self._count += 1
        self._warned = self._count > WAITED_WRITES_PER_S_MAX
        return self._warned


class Chunk:
    """Records on their way to the event loop, and their outcome. It is filled under the buffer's mutex."""

    __slots__ = (
        "_callbacks",
        "buffer",
        "bulk",
        "bytes_max",
        "error",
        "free_bytes",
        "is_posted",
        "records",
    )

    def __init__(self, buffer: "WriteBuffer", bytes_max: int) -> None:
        self.buffer = buffer
        self.records: list[Any] = []
        """Txid, payload, txid, payload, ... Both are added in one step, so that an interrupt leaves either
        a complete record or none."""
        self.bytes_max = bytes_max
        self.free_bytes = bytes_max
        """The number of bytes that may still be added."""
        self.is_posted = False
        """The event loop was notified, or will be."""
        self.bulk: PendingBulk | None = None
        """Set when the writer has accepted the chunk."""
        self.error: DistributedLogError | None = None
        """Set when the writer has refused the whole chunk."""
        self._callbacks: list[tuple[int, Callable[[], object]]] = []
        """Slots and callbacks, until the writer has accepted or refused the chunk."""

    @property
    def bytes(self) -> int:
        """The size of its records."""
        return self.bytes_max - self.free_bytes

    @property
    def is_settled(self) -> bool:
        """Whether the writer has accepted or refused the chunk."""
        return self.bulk is not None or self.error is not None

    def is_done(self, slot: int) -> bool:
        """Return whether a record's outcome is known. Callable from any thread."""
        bulk = self.bulk
        if bulk is None:
            return self.error is not None
        return bulk.locate(slot)[0].is_done

    def result(self, slot: int) -> DLSN:
        """Return the DLSN of a record whose outcome is known, or raise its error.

        Callable from any thread.
        """
        if self.bulk is None:
            assert self.error is not None, "the outcome is known"
            raise self.error.again()
        batch, index_in_batch = self.bulk.locate(slot)
        return batch.dlsn(index_in_batch)

    def add_done_callback(self, slot: int, callback: Callable[[], object]) -> None:
        """Call a function once when a record's outcome is known.

        It is called in the event loop, or here if the outcome is known already. It must not raise.
        """
        self._callbacks.append((slot, callback))
        if self.is_settled and self._remove_callback(slot, callback):
            self._run_or_attach(slot, callback)

    def remove_done_callback(self, slot: int, callback: Callable[[], object]) -> None:
        """Remove a function that was added with `add_done_callback`, unless it was called."""
        if not self._remove_callback(slot, callback) and self.bulk is not None:
            self.bulk.locate(slot)[0].remove_done_callback(callback)

    def settle(self) -> None:
        """Handle the acceptance or refusal of the chunk, in the event loop."""
        self.records = []
        while self._callbacks:
            try:
                slot, callback = self._callbacks.pop(0)
            except IndexError:  # removed concurrently
                break
            self._run_or_attach(slot, callback)

    def _remove_callback(self, slot: int, callback: Callable[[], object]) -> bool:
        try:
            self._callbacks.remove((slot, callback))
        except ValueError:
            return False
        return True

    def _run_or_attach(self, slot: int, callback: Callable[[], object]) -> None:
        if self.bulk is None:
            callback()
        else:
            self.bulk.locate(slot)[0].add_done_callback(callback)


class BufferedBulk:
    """Records that were submitted in one call. A `PendingBulk` of an API variant shows them to users."""

    __slots__ = ("_callbacks", "_is_watching", "_spans", "_writer_bulk", "buffer", "length")

    def __init__(self, buffer: "WriteBuffer", length: int) -> None:
        self.buffer = buffer
        self.length = length
        self._spans: list[tuple[int, Chunk, int]] = []  # first index, chunk, slot of the first
        self._writer_bulk: PendingBulk | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._is_watching = False

    def add_span(self, index: int, chunk: Chunk, slot: int) -> None:
        """Record that the records from ``index`` on are in a chunk from ``slot`` on."""
        self._spans.append((index, chunk, slot))

    def add_refused(self, index: int, error: DistributedLogError) -> None:
        """Record that ``index`` and the records after it were not accepted.

        `TooBusy` applies to all of them.
        """
        chunk = Chunk(self.buffer, 0)
        chunk.bulk = PendingBulk(self.length - index)
        chunk.bulk.add_refused(0, error)
        if index + 1 < self.length and not isinstance(error, TooBusy):
            reason = f"record {index} of the call was refused: {error}"
            chunk.bulk.add_refused(1, WriteCancelled(reason))
        self.add_span(index, chunk, 0)

    def locate(self, index: int) -> tuple[Chunk, int]:
        """Return the chunk of a record, and its slot there.

        Raises:
            IndexError: There is no such record.
        """
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            raise IndexError(index)
        span_index = bisect_right(self._spans, index, key=lambda span: span[0]) - 1
        first_index, chunk, slot = self._spans[span_index]
        return chunk, slot + index - first_index

    def is_done(self) -> bool:
        """Return whether all outcomes are known. Callable from any thread."""
        whole = self._merge_if_submitted()
        return whole is not None and whole.done()

    def writer_bulk(self) -> PendingBulk:
        """Return the writer's bulk of all records. `is_done` must be true."""
        whole = self._merge_if_submitted()
        assert whole is not None, "the outcomes are known"
        return whole

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function once when all outcomes are known.

        It is called in the event loop, or here if they are known already. It must not raise.
        """
        self._callbacks.append(callback)
        if self.is_done():
            if self._remove_callback(callback):
                callback()
        elif not self._is_watching:
            self._is_watching = True
            self._watch_next_chunk()

    def remove_done_callback(self, callback: Callable[[], object]) -> None:
        """Remove a function that was added with `add_done_callback`, unless it was called."""
        self._remove_callback(callback)

    def _remove_callback(self, callback: Callable[[], object]) -> bool:
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True

    def _merge_if_submitted(self) -> PendingBulk | None:
        if self._writer_bulk is None and all([chunk.is_settled for _, chunk, _ in self._spans]):
            merged = PendingBulk(self.length)
            stops = [*[first_index for first_index, _, _ in self._spans], self.length][1:]
            for (first_index, chunk, slot), stop in zip(self._spans, stops, strict=True):
                if chunk.bulk is not None:
                    merged.add_part_of(first_index, chunk.bulk, slot, stop - first_index)
                elif chunk.error is not None:
                    merged.add_refused(first_index, chunk.error)
            self._writer_bulk = merged
        return self._writer_bulk

    def _watch_next_chunk(self) -> None:
        for _, chunk, slot in self._spans:
            if not chunk.is_settled:
                chunk.add_done_callback(slot, self._watch_next_chunk)
                return
        self.writer_bulk().when_done(self._run_callbacks)

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # removed concurrently
                return
            callback()


class WriteBuffer:
    """The buffer of one writer.

    `append` may be called from any thread, the other methods only in the event loop.

    For a log with the policy ``strict``, it checks the order of given txids. Assigned txids are known only
    when the event loop has submitted the records. A given txid that turns out to be lower is then refused,
    and the records after it in its chunk are `WriteCancelled`.

    An interrupt (Ctrl-C) may occur anywhere in `append`. The event loop is notified first. It needs the mutex
    to check the chunk, so at worst it finds no record. It finds each record that was added.

    The end of the buffer does not take the mutex. The event loop refuses a record that is appended at that
    time.
    """

    __slots__ = (
        "__weakref__",
        "_background",
        "_checks_txids",
        "_chunk",
        "_closed",
        "_failed_records",
        "_fifo_lock",
        "_has_ended",
        "_idle_event",
        "_is_abandoned",
        "_max_txid_unchecked",
        "_may_be_in_step",
        "_min_txid",
        "_mutex",
        "_scope",
        "_send_queue",
        "_submitted",
        "_submitting",
        "_submitting_bytes",
        "_txid_policy",
        "_wake_event",
        "name",
        "waited_writes",
        "writer",
    )

    def __init__(self, writer: LogWriter, background: Background, name: str) -> None:
        self.writer = writer
        self.name = name
        self.waited_writes = WaitedWriteCounter()
        self._background = background
        self._send_queue = writer.send_queue
        self._txid_policy = writer.txid_policy
        self._checks_txids = writer.checks_txids
        self._min_txid = max(0, writer.last_txid) if self._checks_txids else 0
        """The lowest given txid that is accepted."""
        self._max_txid_unchecked = TXID_MAX if self._txid_policy != BYTES else -1
        """The greatest given txid that needs no further check. -1 means that all need one."""
        self._mutex = Mutex()
        self._may_be_in_step = False
        """Whether a thread may be inside a step, or was interrupted in one.

        It stays True if a step raised an error or returned early. This is harmless: if it is True,
        `_check_reentry` inspects the stack of the thread (`has_interrupted`), and only that decides.
        """
        self._submitted: deque[PendingBulk] = deque()
        """Bulks that the writer has accepted, until all their outcomes are known."""
        self._submitting: Chunk | None = None
        """The chunk that is being submitted to the writer."""
        self._failed_records = 0
        """The number of records whose outcome is an error."""
        self._is_abandoned = False
        """Whether the owner has abandoned the records deliberately."""
        self._submitting_bytes = 0  # size of the chunk that is being submitted
        self._fifo_lock = trio.Lock()  # calls that wait for capacity, in the order of their arrival
        self._send_queue.budget_share.free_bytes += FREE_BYTES
        self._send_queue.leave_settling_to_caller(buffered=True)
        self._chunk = Chunk(self, 0)
        self._grant(0)
        self._closed = False
        self._has_ended = False
        """Nothing more is submitted."""
        self._scope = trio.CancelScope()
        self._wake_event = trio.Event()
        self._idle_event = trio.Event()
        self._idle_event.set()
        watch_forks(self)
        background.watch_writes(self)

    def _validate(self, txid: object, payload: object) -> tuple[int | None, Any]:
        """Check a record, under the mutex.

        The payload in the result is None if there is no capacity for it, or if `append_when_capacity` must
        first permit keys and headers.
        """
        checked_txid, checked_payload = validate_record(
            txid, payload, self._min_txid, self.name, self._txid_policy
        )
        if len(checked_payload) + RECORD_COLUMN_BYTES > self._chunk.free_bytes or (
            type(checked_payload) is KeyedContent and not self._is_keyed_permitted
        ):
            return checked_txid, None
        return checked_txid, checked_payload

    @property
    def _is_keyed_permitted(self) -> bool:
        return self.writer.sequenced_writer.is_keyed_permitted

    def _check_reentry(self) -> None:
        """Raise `InvalidRequest` if this call has interrupted a step of its thread. The caller holds the
        mutex."""
        if has_interrupted(self._background, depth=1):
            raise InvalidRequest(
                f'log "{self.name}": {INTERRUPTING_TEXT}; the record was not accepted, the writer continues. '
                "Set a flag or use another thread"
            )

    async def _run_step(self, step: Callable[[], T]) -> T:
        """Run a step under the mutex, in the event loop, without blocking its thread.

        A caller that holds the mutex needs microseconds after it gets the interpreter lock again. If the
        event loop blocked, each release of the mutex would be a system call.
        """
        yields = 0
        while not self._mutex.acquire(blocking=False):
            if yields < MUTEX_YIELDS:
                yields += 1
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(MUTEX_RETRY_S)
        try:
            self._may_be_in_step = True
            return step()
        finally:
            self._may_be_in_step = False
            self._mutex.release()

    @uninterrupted
    def append(self, record: LogRecord | Buffer) -> tuple[Chunk, int] | None:
        """Append one record.

        Args:
            record: The record, or its payload.
        Returns:
            Its chunk and slot, or None if there is no capacity (see `append_when_capacity`).
        Raises:
            DistributedLogError: As for `LogWriter.submit`.
        """
        try:
            txid, payload = record.txid, record.content  # type: ignore[union-attr]
        except AttributeError:  # only a payload
            txid, payload = txid_and_content(record)
        with self._mutex:
            if self._may_be_in_step:
                self._check_reentry()
            self._may_be_in_step = True
            if (
                type(payload) is not bytes
                or type(txid) is not int
                or not self._min_txid <= txid <= self._max_txid_unchecked
                or len(payload) > RECORD_BYTES_MAX
            ):
                txid, payload = self._validate(txid, payload)
            if self._closed or self._send_queue.end_error is not None:
                self._raise_if_ended()
            chunk = self._chunk
            if (
                payload is None
                or (free_bytes := chunk.free_bytes - len(payload) - RECORD_COLUMN_BYTES) < 0
            ):
                self._may_be_in_step = False
                return None
            if not chunk.is_posted:
                self._background.post(self._on_append)
                chunk.is_posted = True
            if self._checks_txids and txid is not None:
                self._min_txid = txid
            chunk.free_bytes = free_bytes
            records = chunk.records
            slot = len(records) >> 1
            records += (txid, payload)
            self._may_be_in_step = False
        return chunk, slot

    @uninterrupted
    def validate_many(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> tuple[BufferedBulk, ValidatedBatch]:
        """Check many records, to append them with `append_many`. Raises the error that ended the writer."""
        if self._closed or self._send_queue.end_error is not None:
            self._raise_if_ended()
        bulk = BufferedBulk(self, len(payloads) if txids is None else len(txids))
        with self._mutex:
            if self._may_be_in_step:
                self._check_reentry()
            min_txid = self._min_txid
        validated = validate_columns(
            txids, payloads, min_txid, self._checks_txids, self.name, self._txid_policy
        )
        if not validated.record_count and validated.refusal is not None:
            bulk.add_refused(0, validated.refusal)
        return bulk, validated

    @uninterrupted
    def append_many(self, bulk: BufferedBulk, validated: ValidatedBatch, start: int) -> int:
        """Append as many records from ``start`` on as there is capacity for, without waiting.

        An invalid record has its own error as outcome, and the records after it are not accepted. The error
        that ended the writer is raised only before the first record is appended.

        Returns:
            The index of the next record to append. If it is ``start``, there is no capacity (see
            `append_many_when_capacity`).
        """
        with self._mutex:
            if self._may_be_in_step:
                self._check_reentry()
            self._may_be_in_step = True
            if self._closed or self._send_queue.end_error is not None:
                try:
                    self._raise_if_ended()
                except DistributedLogError as error:
                    if not start:
                        raise
                    bulk.add_refused(start, error)
                    return validated.record_count
            chunk = self._chunk
            stop = validated.fitting_end(start, chunk.free_bytes, 0)
            if validated.first_keyed < stop and not self._is_keyed_permitted:
                # A refusal by the writer would cancel records of other calls in the same chunk.
                stop = validated.first_keyed
                if stop <= start:
                    self._may_be_in_step = False
                    return start
            size_bytes = validated.entry_bytes(start, stop)
            if size_bytes > chunk.free_bytes:
                return start
            records: list[Any] = [None] * (2 * (stop - start))
            if validated.txids is not None:
                records[::2] = validated.txids[start:stop]
            records[1::2] = validated.payloads[start:stop]
            given_txids = (
                [txid for txid in records[::2] if txid is not None] if self._checks_txids else ()
            )
            if (
                given_txids and given_txids[0] < self._min_txid
            ):  # another thread appended a greater one
                bulk.add_refused(start, txid_order_error(given_txids[0], self._min_txid, self.name))
                return validated.record_count
            if not chunk.is_posted:
                self._background.post(self._on_append)
                chunk.is_posted = True
            if given_txids:
                self._min_txid = given_txids[-1]
            chunk.free_bytes -= size_bytes
            bulk.add_span(start, chunk, len(chunk.records) >> 1)
            chunk.records += records
            self._may_be_in_step = False
        if stop == validated.record_count and validated.refusal is not None:
            bulk.add_refused(stop, validated.refusal)
        return stop

    async def append_when_capacity(self, record: LogRecord | Buffer) -> tuple[Chunk, int]:
        """Append as `append` does, in the event loop, when there is capacity.

        It also raises `TooBusy`, if ``at_limit`` is "reject".
        """
        content = txid_and_content(record)[1]
        size_bytes = content_bytes(content) + RECORD_COLUMN_BYTES
        if type(content) is KeyedContent:
            await self.writer.sequenced_writer.permit_keyed()
        append = partial(self.append, record)
        return await self._append_when_allowed(append, 1, lambda _: size_bytes)

    async def append_many_when_capacity(
        self, bulk: BufferedBulk, validated: ValidatedBatch, start: int
    ) -> int:
        """Append as `append_many` does, in the event loop, when there is capacity for a record.

        If ``at_limit`` refuses a record, its outcome and that of all records after it is `TooBusy`.
        """
        if start == validated.first_keyed and not self._is_keyed_permitted:
            try:
                await self.writer.sequenced_writer.permit_keyed()
            except DistributedLogError as error:
                bulk.add_refused(start, error)
                return validated.record_count

        def append() -> int | None:
            stop = self.append_many(bulk, validated, start)
            return None if stop == start else stop

        try:
            return await self._append_when_allowed(
                append,
                validated.record_count - start,
                lambda number: validated.entry_bytes(start, start + number),
            )
        except TooBusy as error:
            bulk.add_refused(start, error)
            return validated.record_count

    async def submit_packed(
        self,
        txids: Buffer | None,
        offsets: Buffer,
        payloads: Buffer,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> BufferedBulk:
        """Call `LogWriter.submit_packed` in the event loop, after the earlier records are submitted.

        Raises its errors.
        """
        await self._wait_submitted()
        try:
            records = max(1, memoryview(offsets).nbytes // 4 - 1)
            size_bytes = memoryview(payloads).nbytes + records * RECORD_COLUMN_BYTES
        except TypeError:
            records, size_bytes = 0, 0  # the writer raises the error

        async def submit() -> BufferedBulk:
            return self._wrap_unbuffered(
                await self.writer.submit_packed(
                    txids, offsets, payloads, keys=keys, headers=headers
                )
            )

        return await self._call_with_capacity(records, size_bytes, submit, is_durable=False)

    async def submit_set(self, records: Sequence[LogRecord | Buffer]) -> BufferedBulk:
        """Call `LogWriter.submit_set` in the event loop, after the earlier records are submitted.

        Raises its errors.
        """
        await self._wait_submitted()
        txids = split_columns(records)[0]
        is_refused = any(txid != txids[0] for txid in txids)
        record_count, size_bytes = (0, 0) if is_refused else _capacity_for(records)

        async def submit() -> BufferedBulk:
            return self._wrap_unbuffered(await self.writer.submit_set(records))

        return await self._call_with_capacity(record_count, size_bytes, submit, is_durable=False)

    async def write_frame(
        self,
        sequence: int,
        records: Sequence[LogRecord | Buffer],
        *,
        expect: DLSN | None = None,
    ) -> list[DLSN]:
        """Call `LogWriter.write_frame` in the event loop, after the earlier records are submitted.

        Raises its errors.
        """
        await self._wait_submitted()
        record_count, size_bytes = _capacity_for(records) if self._is_new(sequence) else (0, 0)
        return await self._call_with_capacity(
            record_count,
            size_bytes,
            lambda: self.writer.write_frame(sequence, records, expect=expect),
            is_durable=True,
        )

    async def write_after(self, expect: DLSN, record: LogRecord | Buffer) -> DLSN:
        """Call `LogWriter.write` with ``expect`` in the event loop, as `write_frame` does."""
        await self._wait_submitted()
        return await self._call_with_capacity(
            *_capacity_for([record]),
            lambda: self.writer.write(record, expect=expect),
            is_durable=True,
        )

    async def _wait_submitted(self) -> None:
        """Wait until the earlier records are submitted. Raise the error that ended the writer."""
        await self._wait_drained()
        if self._closed:
            self._raise_if_ended()

    def _is_new(self, sequence: int) -> bool:
        """Return whether a frame of the producer may be stored: it is not a repetition, and has no error."""
        producer = self.writer.producer
        try:
            return producer is not None and not self.writer.sequenced_writer.is_duplicate(
                producer.number, sequence
            )
        except DistributedLogError:
            return False  # the writer raises it

    async def _call_with_capacity(
        self, records: int, size_bytes: int, call: Callable[[], Awaitable[T]], *, is_durable: bool
    ) -> T:
        """Call a method of the writer when there is capacity for records that have no chunk.

        Records that are certainly not stored are not charged to the log's rates. Raises `TooBusy` if
        ``at_limit`` is "reject".

        Args:
            records: The number of records. 0 if the writer will store none of them.
            size_bytes: Their bytes, as counted in an entry.
            is_durable: Whether the method returns when the records are durable. They may be stored if it is
                cancelled. Otherwise it returns when they are accepted, and accepts none if it is cancelled.
        """
        if size_bytes > SUBMIT_BYTES_MAX:
            records = 0  # the writer refuses them
        is_over = await self._reserve_when_capacity(records, size_bytes) if records else False
        try:
            return await call()
        except BaseException as error:
            is_definite = isinstance(error, DistributedLogError) and error.definite
            if records and (is_definite or not is_durable):
                self._send_queue.throttle.refund(records, size_bytes, is_over=is_over)
            raise
        finally:
            if self._checks_txids:
                with trio.CancelScope(shield=True):
                    await self._run_step(self._raise_min_txid)
            self._send_queue.trim_reservation()  # frees the capacity of refused records

    async def _reserve_when_capacity(self, records: int, size_bytes: int) -> bool:
        """Reserve capacity for records without a chunk, and wait until there is enough.

        Returns:
            Whether the records are above a rate that is only counted.
        """
        throttle = self._send_queue.throttle
        over_rate = 0

        def reserve() -> tuple[float, int]:
            nonlocal over_rate
            over_rate = throttle.over_rate
            return self._reserve_unbuffered(records, size_bytes)

        async with self._fifo_lock:
            await self._wait_until_allowed(reserve)
            return throttle.over_rate > over_rate

    @uninterrupted
    def _raise_min_txid(self) -> None:
        self._min_txid = max(self._min_txid, self.writer.last_txid)

    def _wrap_unbuffered(self, writer_bulk: PendingBulk) -> BufferedBulk:
        """Return records that the writer accepted without a chunk as a buffered bulk."""
        chunk = Chunk(self, 0)
        chunk.bulk = writer_bulk
        self._record_submitted(writer_bulk)
        bulk = BufferedBulk(self, len(writer_bulk))
        bulk.add_span(0, chunk, 0)
        return bulk

    def fail_when_ended(self, outcome: CrossThreadFuture[None]) -> None:
        """Let an outcome fail if the event loop ends before it is known.

        The event loop is notified of possible records, because the call that should have notified it may have
        been interrupted.
        """
        self._background.fail_when_ended(outcome, self._wake_if_pending)

    def check_may_wait(self) -> None:
        """See `Background.check_may_wait`."""
        self._background.check_may_wait()

    def wake_loop(self) -> None:
        """Notify the event loop as `fail_when_ended` does, for a caller that has left a callback."""
        with suppress(AlreadyClosed):
            self._background.post(self._wake_if_pending)

    def call_in_thread(self, callback: Callable[[], object]) -> None:
        """See `Background.call_in_thread`."""
        self._background.call_in_thread(callback)

    async def run(self) -> None:
        """Submit chunks to the writer, in order, until the writer or the namespace ends.

        Runs as a task of the namespace.
        """
        try:
            with (
                self._scope,
                error_boundary(
                    f'the write buffer of log "{self.name}"', self.writer.send_queue.fail
                ),
            ):
                while True:
                    await self._wake_event.wait()
                    self._wake_event = trio.Event()
                    await self._submit_chunk(await self._run_step(self._swap_chunk))
        finally:
            self._closed = self._has_ended = True
            chunk, self._chunk = self._chunk, Chunk(self, 0)
            self._fail_unsubmitted(chunk)
            self._send_queue.throttle.wake_waiters()
            self._idle_event.set()  # callers that wait then receive the writer's error

    async def _submit_chunk(self, chunk: Chunk) -> None:
        payloads = chunk.records[1::2]
        try:
            if chunk.records:
                self._submitting = chunk
                chunk.bulk = await self.writer.submit_columns(chunk.records[::2], payloads)
                self._record_submitted(chunk.bulk)
        except DistributedLogError as error:
            chunk.error = error
        except BaseException:  # the writer may have accepted a part
            chunk.error = WriteFailed(
                f'log "{self.name}": its writer ended; the record may be stored'
            )
            raise
        finally:
            self._submitting = None
            self._fail_unsubmitted(chunk)
        self._refund_refused(payloads[0 if chunk.bulk is None else chunk.bulk.accepted_count :])
        is_empty = await self._run_step(self._on_submitted)
        self._send_queue.throttle.wake_waiters()
        if is_empty:
            self._idle_event.set()
        else:
            self._wake_event.set()

    def _refund_refused(self, payloads: Sequence[Any]) -> None:
        """Take back the charge of records in a chunk that the writer refused.

        A rate that is only counted includes them.
        """
        send_queue = self._send_queue
        if payloads and send_queue.limits.at_limit != "count":
            size_bytes = sum(map(len, payloads)) + len(payloads) * RECORD_COLUMN_BYTES
            send_queue.throttle.refund(len(payloads), size_bytes)

    @uninterrupted
    def _on_submitted(self) -> bool:
        """Record that no chunk is being submitted. Return whether the current chunk is empty too."""
        self._submitting_bytes = 0
        self._grant(0)
        return not self._chunk.records

    @uninterrupted
    def _swap_chunk(self) -> Chunk:
        chunk = self._chunk
        self._chunk = Chunk(self, chunk.free_bytes)
        self._submitting_bytes = chunk.bytes
        return chunk

    def _record_submitted(self, writer_bulk: PendingBulk) -> None:
        handed = self._submitted
        while handed and handed[0].done():
            self._failed_records += handed.popleft().not_durable
        handed.append(writer_bulk)

    def _fail_unsubmitted(self, chunk: Chunk) -> None:
        """Set the outcome of a chunk, unless the writer has accepted or refused it."""
        if chunk.bulk is None:
            self._failed_records += len(chunk.records) >> 1
            if chunk.error is None:
                end_error = self.writer.end_error
                chunk.error = (
                    AlreadyClosed(f'log "{self.name}": closed')
                    if end_error is None
                    else end_error.again()
                )
        chunk.settle()

    # --- limits, in the loop ----------------------------------------------------------------------

    async def _wait_until_allowed(self, try_reserve: Callable[[], tuple[float, int]]) -> None:
        """Wait until ``try_reserve`` returns a waiting time of 0, or the writer has ended.

        Args:
            try_reserve: Returns the time to wait, and the bytes to request from the process's memory budget.
        Raises:
            TooBusy: ``at_limit`` is "reject", and a limit is reached.
        """
        send_queue = self._send_queue
        try:
            while self.writer.end_error is None and not self._closed:
                wait_s, needed_bytes = await self._run_step(try_reserve)
                if wait_s <= 0:
                    return
                if send_queue.limits.at_limit == "reject":
                    raise TooBusy(
                        f'log "{self.name}": a limit of the log or of the process is reached (nothing was '
                        "accepted, the writer stays open)"
                    )
                if needed_bytes:
                    send_queue.budget_share.request(needed_bytes)
                self._wake_if_pending()  # submitting the chunk frees capacity
                with trio.move_on_after(wait_s):
                    await send_queue.throttle.wait_space()
        except BaseException:
            send_queue.budget_share.cancel_request()
            send_queue.trim_reservation()  # free the capacity that was granted for this call
            raise
        send_queue.budget_share.cancel_request()

    async def _append_when_allowed(
        self, append: Callable[[], T | None], records: int, bytes_of: Callable[[int], int]
    ) -> T:
        """Call ``append`` when there is capacity, after the calls that wait already.

        Args:
            append: Appends under the mutex. It returns None if there is no capacity.
            records: The greatest number of records that it appends.
            bytes_of: Returns the bytes of that many of them.
        Raises:
            TooBusy: As for `_wait_until_allowed`.
            DistributedLogError: As for ``append``.
        """
        appended: T | None = None

        def try_append() -> tuple[float, int]:
            nonlocal appended
            appended, wait_s, needed_bytes = self._reserve_and_append(append, records, bytes_of)
            return wait_s, needed_bytes

        async with self._fifo_lock:
            while appended is None:
                await self._wait_until_allowed(try_append)
                if appended is None:  # the writer has ended, and this call raises its error
                    appended = await self._run_step(append)
        return appended

    def _reserve_and_append(
        self, append: Callable[[], T | None], records: int, bytes_of: Callable[[int], int]
    ) -> tuple[T | None, float, int]:
        """Append, if necessary with newly reserved capacity. A step of `_append_when_allowed`.

        Because this is one step, no other call can use the capacity or make a transaction ID too low after
        the charge. A cancelled call has charged nothing.

        Returns:
            The result of ``append``, the time to wait, and the bytes to request from the memory budget.
        """
        appended = append()
        if appended is not None:
            return appended, 0.0, 0
        self._may_be_in_step = True  # `append` has reset it
        throttle = self._send_queue.throttle
        over_rate = throttle.over_rate
        reserved, wait_s, needed_bytes = self._reserve_for_append(records, bytes_of)
        if not reserved:
            return None, wait_s, needed_bytes
        chunk = self._chunk
        record_count, size_bytes = len(chunk.records) >> 1, chunk.bytes
        try:
            return append(), 0.0, 0
        finally:
            unused = reserved - (len(chunk.records) >> 1) + record_count
            if unused > 0:  # `append` refused records, or stopped at the first with a key
                unused_bytes = bytes_of(reserved) - chunk.bytes + size_bytes
                throttle.refund(unused, unused_bytes, is_over=throttle.over_rate > over_rate)
                self._may_be_in_step = True
                self._revoke_grant()

    @uninterrupted
    def _revoke_grant(self) -> None:
        """Take back the bytes that were granted with a charge, and were not used."""
        self._grant(0)

    @uninterrupted
    def _reserve_for_append(
        self, records: int, bytes_of: Callable[[int], int]
    ) -> tuple[int, float, int]:
        """Reserve capacity to append ``records`` records now, or some of them.

        Returns:
            The number of records. 0 if there is no capacity, with the time to wait, and the bytes to request
            from the process's memory budget.
        """
        send_queue = self._send_queue
        used_bytes = self._submitting_bytes + self._chunk.bytes
        while True:
            size_bytes = bytes_of(records)
            wait_s, needed_bytes = float("inf"), 0  # the event loop is about to submit the chunk
            if used_bytes + size_bytes <= BUFFER_BYTES_MAX or not used_bytes:
                needed_bytes = send_queue.unacked_bytes + used_bytes + size_bytes
                if send_queue.budget_share.try_reserve(needed_bytes):
                    needed_bytes = 0
                    wait_s = send_queue.throttle.charge(records, size_bytes, divisible=True)
                if wait_s <= 0:
                    self._grant(size_bytes)
                    return records, 0.0, 0
            if records == 1:
                return 0, wait_s, needed_bytes
            records //= 2

    def _reserve_unbuffered(self, records: int, size_bytes: int) -> tuple[float, int]:
        """Reserve capacity for records that are submitted without a chunk (see `_wait_until_allowed`)."""
        send_queue = self._send_queue
        needed_bytes = send_queue.unacked_bytes + send_queue.write_buffer_bytes + size_bytes
        if not send_queue.budget_share.try_reserve(needed_bytes):
            return float("inf"), needed_bytes
        return send_queue.throttle.charge(records, size_bytes, divisible=False), 0

    def _grant(self, size_bytes: int) -> None:
        """Grant ``size_bytes``, for which there is capacity, and more if that takes it from no other log.

        The caller holds the mutex. A log with rate limits gets no more, because each of its records is
        checked.
        """
        send_queue, chunk = self._send_queue, self._chunk
        if send_queue.end_error is not None:
            return  # the writer has ended, so grant nothing
        used_bytes = self._submitting_bytes + chunk.bytes
        limit_bytes = used_bytes + size_bytes
        if not send_queue.throttle.has_rate:
            more_bytes = min(
                max(limit_bytes, GROWTH_FACTOR * used_bytes, FREE_BYTES), BUFFER_BYTES_MAX
            )
            if send_queue.budget_share.try_reserve(send_queue.unacked_bytes + more_bytes):
                limit_bytes = max(limit_bytes, more_bytes)
            else:
                limit_bytes = max(
                    limit_bytes,
                    min(more_bytes, send_queue.budget_share.available(send_queue.unacked_bytes)),
                )
        chunk.free_bytes, chunk.bytes_max = (
            limit_bytes - used_bytes,
            limit_bytes - self._submitting_bytes,
        )
        send_queue.write_buffer_bytes = limit_bytes
        send_queue.trim_reservation()

    async def commit(self) -> DLSN | None:
        """Commit as `LogWriter.commit` does, after the earlier records are submitted."""
        await self._wait_drained()
        return await self.writer.commit()

    async def flush(self) -> None:
        """Flush as `LogWriter.flush` does, after the writer has capacity for the earlier records."""
        await self._wait_drained()
        await self.writer.flush()

    async def aclose(self) -> None:
        """Close as `LogWriter.aclose` does, after the earlier records are submitted."""
        await self._finish(self.writer.aclose)

    async def mark_end_of_stream(self) -> None:
        """Seal as `LogWriter.mark_end_of_stream` does, after the earlier records are submitted."""
        await self._finish(self.writer.mark_end_of_stream)

    async def abort(self) -> None:
        """Abort as `LogWriter.abort` does."""
        self._is_abandoned = True
        self._mark_closed()
        try:
            await self.writer.abort()
        finally:
            self._scope.cancel()

    async def drop(self) -> None:
        """Abort a writer that was dropped unclosed. Records that are lost are reported at the exit."""
        await wait_settled_after_drop(self._background, self)
        await self.abort()

    async def settle(self) -> None:
        """Wait until the outcome of each record is known. Never raises a `DistributedLogError`."""
        with suppress(DistributedLogError):
            await self.commit()

    @property
    def not_durable(self) -> int:
        """The number of accepted records that are not known to be durable.

        It is 0 if the owner has abandoned them.
        """
        if self._is_abandoned:
            return 0
        unsubmitted_chunks = [
            chunk for chunk in (self._chunk, self._submitting) if chunk is not None
        ]
        record_count = self._failed_records + sum(
            len(chunk.records) >> 1 for chunk in unsubmitted_chunks
        )
        return record_count + sum(bulk.not_durable for bulk in list(self._submitted))

    async def _finish(self, end_it: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self._mark_closed():
                await self._wait_drained()
            await end_it()
            self._is_abandoned = True  # each refused record has raised its error
        except BaseException:
            await self.writer.abort()  # also if the call was cancelled before the end began
            raise
        finally:
            self._scope.cancel()

    def _mark_closed(self) -> bool:
        was_closed, self._closed = self._closed, True
        self._send_queue.throttle.wake_waiters()
        return was_closed

    async def _wait_drained(self) -> None:
        self._wake_if_pending()
        await self._idle_event.wait()

    def _wake_if_pending(self) -> None:
        if self._chunk.records:
            self._on_append()

    def _on_append(self) -> None:
        if self._has_ended:  # posted late, for refused records, or by an interrupted call
            self._fail_unsubmitted(self._chunk)
            return
        if self._idle_event.is_set():
            self._idle_event = trio.Event()
        self._wake_event.set()

    def _raise_if_ended(self) -> None:
        end_error = self.writer.end_error
        if end_error is not None:
            raise end_error.again()
        self._background.check_running()
        raise AlreadyClosed(f'log "{self.name}": this writer is closed')

    def on_forked(self) -> None:
        """Replace the mutex in a forked child process.

        Its holder, a thread of the parent process, does not exist there (H15).
        """
        self._mutex = Mutex()
        self._may_be_in_step = False
        self._closed = True


def _capacity_for(records: Sequence[LogRecord | Buffer]) -> tuple[int, int]:
    """Return the number of records and their bytes, as counted in an entry. (0, 0) if one has no size."""
    try:
        size_bytes = sum(map(content_bytes, split_columns(records)[1]))
    except TypeError:
        return 0, 0  # the writer raises the error
    return len(records), size_bytes + len(records) * RECORD_COLUMN_BYTES


async def wait_settled_after_drop(
    background: Background, writer_handle: "WriteBuffer | ByteWriterHandle"
) -> None:
    """Wait for the records of a dropped writer, and report those that are not known to be durable."""
    with trio.move_on_after(DROPPED_WAIT_S):
        await writer_handle.settle()
    background.record_lost(writer_handle)


class ByteWriterHandle:
    """The pending records of a byte writer, for the end of its namespace or of the interpreter."""

    __slots__ = ("__weakref__", "_background", "_is_ended", "_writer", "name")

    def __init__(self, writer: ByteWriter, background: Background) -> None:
        self.name = writer.name
        self._writer = writer
        self._background = background
        self._is_ended = False
        """Whether the owner has closed or aborted it deliberately."""
        writer.leave_settling_to_caller()
        background.watch_writes(self)

    async def aclose(self) -> None:
        """Close as `ByteWriter.aclose` does."""
        await self._writer.aclose()
        self._is_ended = True

    async def abort(self) -> None:
        """Abort as `ByteWriter.abort` does."""
        self._is_ended = True
        await self._writer.abort()

    async def drop(self) -> None:
        """Abort a writer that was dropped unclosed. Records that are lost are reported at the exit."""
        await wait_settled_after_drop(self._background, self)
        await self.abort()

    async def settle(self) -> None:
        """Wait until the outcome of each record is known. Never raises a `DistributedLogError`."""
        with suppress(DistributedLogError):
            await self._writer.flush()

    @property
    def not_durable(self) -> int:
        """The number of accepted records that are not known to be durable.

        It is 0 after the owner has ended the writer.
        """
        return 0 if self._is_ended else self._writer.not_durable


async def open_buffer(
    background: Background, namespace: Namespace, log: Log, opening: Opening[LogWriter]
) -> WriteBuffer:
    """Open a writer in the event loop, with a buffer that runs as long as the writer."""
    writer = await opening
    try:
        buffer = WriteBuffer(writer, background, log.name)
        namespace.start(buffer.run)
    except BaseException:
        await writer.abort()
        raise
    return buffer
