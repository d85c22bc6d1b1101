"""The buffer between a caller outside of the trio run and the writer in it.

A record costs its caller an append to a chunk, under a mutex; the first one of a burst wakes the loop once.
One task there hands whole chunks to the writer. Who waits for an outcome leaves a callback, no task.

The buffer keeps the limits for its writer, which takes whatever comes from it. How much the caller may append
without asking is given out by the loop: little while nothing is written, so that a thousand idle logs hold
nothing of what the process may (`distributedlog/log/limits/memory_budget.py`). Who meets that bound has the
loop append for him.

A signal handler or a finalizer may interrupt a caller that holds the mutex. Its own call of the same buffer
raises `InvalidRequest`. The loop waits for the mutex in a task, its thread does not block. So the client
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
    txid_and_payload,
)
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
"""Between the caller and the writer, beside the writer's own bound."""
SUBMIT_BYTES_MAX = 2 * RECORD_BYTES_MAX
"""Of columns or a set, more than the writer ever takes."""
GROWTH_FACTOR = 4
"""Of the bound of a buffer that is used, until it is the one above."""


MUTEX_YIELDS = 10
"""How often the loop yields to a caller that holds the mutex."""
MUTEX_RETRY_S = 0.005
"""Then its task sleeps for this time: the caller was interrupted."""
DROPPED_WAIT_S = 1.0
"""How long the records of a writer that was dropped unclosed are waited for."""

WAITED_WRITES_PER_S_MAX = 1000
"""A second: above that a program most likely means to pipeline."""


class WaitedWriteCounter:
    """Counts writes that are waited for one by one. Pure."""

    def __init__(self) -> None:
        self._count = 0
        self._second_start_s = 0.0
        self._warned = False

    def record_write(self, now_s: float) -> bool:
        """One more; True once, when there were `WAITED_WRITES_PER_S_MAX` within a second."""
        if self._warned:
            return False
        if now_s - self._second_start_s >= 1.0:
            self._second_start_s, self._count = now_s, 0
        self._count += 1
        self._warned = self._count > WAITED_WRITES_PER_S_MAX
        return self._warned


class Chunk:
    """Records on their way to the loop, and their outcome there. Filled under the buffer's mutex."""

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
        """Txid, payload, txid, payload, ... Two at a time, so that an interrupt leaves a record whole, or
        out."""
        self.bytes_max = bytes_max
        self.free_bytes = bytes_max
        """How much more may be put in."""
        self.is_posted = False
        """The loop was told that there is something, or will be."""
        self.bulk: PendingBulk | None = None
        """Set when the writer has taken it."""
        self.error: DistributedLogError | None = None
        """Set when the writer refused it whole."""
        self._callbacks: list[tuple[int, Callable[[], object]]] = []
        """Slot, and who is to be told, until the writer has taken it or not."""

    @property
    def bytes(self) -> int:
        """Of what is in it."""
        return self.bytes_max - self.free_bytes

    @property
    def is_settled(self) -> bool:
        """Has the writer taken it, or refused it?"""
        return self.bulk is not None or self.error is not None

    def is_done(self, slot: int) -> bool:
        """Is a record's outcome known? From any thread."""
        bulk = self.bulk
        if bulk is None:
            return self.error is not None
        return bulk.locate(slot)[0].is_done

    def result(self, slot: int) -> DLSN:
        """The DLSN of a record whose outcome is known, or its error raised. From any thread."""
        if self.bulk is None:
            assert self.error is not None, "asked only when the outcome is known"
            raise self.error.again()
        batch, index_in_batch = self.bulk.locate(slot)
        return batch.dlsn(index_in_batch)

    def add_done_callback(self, slot: int, callback: Callable[[], object]) -> None:
        """Have it called once, by the loop, or here where the outcome is known. It must not raise."""
        self._callbacks.append((slot, callback))
        if self.is_settled and self._remove_callback(slot, callback):
            self._run_or_attach(slot, callback)

    def remove_done_callback(self, slot: int, callback: Callable[[], object]) -> None:
        """Take back what was given to `add_done_callback`, where it was not called."""
        if not self._remove_callback(slot, callback) and self.bulk is not None:
            self.bulk.locate(slot)[0].remove_done_callback(callback)

    def settle(self) -> None:
        """In the loop: taken or refused."""
        self.records = []
        while self._callbacks:
            try:
                slot, callback = self._callbacks.pop(0)
            except IndexError:  # it was taken back at this moment
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
    """Records that were handed over in one call; a `PendingBulk` of a face tells of them."""

    __slots__ = ("_callbacks", "_is_watching", "_spans", "_writer_bulk", "buffer", "length")

    def __init__(self, buffer: "WriteBuffer", length: int) -> None:
        self.buffer = buffer
        self.length = length
        self._spans: list[tuple[int, Chunk, int]] = []  # first index, chunk, slot of the first
        self._writer_bulk: PendingBulk | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._is_watching = False

    def add_span(self, index: int, chunk: Chunk, slot: int) -> None:
        """Records from ``index`` on are in this chunk from ``slot`` on."""
        self._spans.append((index, chunk, slot))

    def add_refused(self, index: int, error: DistributedLogError) -> None:
        """Record ``index`` was not taken, and so none after it; a limit is what all of them met."""
        chunk = Chunk(self.buffer, 0)
        chunk.bulk = PendingBulk(self.length - index)
        chunk.bulk.add_refused(0, error)
        if index + 1 < self.length and not isinstance(error, TooBusy):
            reason = f"record {index} of the call was refused: {error}"
            chunk.bulk.add_refused(1, WriteCancelled(reason))
        self.add_span(index, chunk, 0)

    def locate(self, index: int) -> tuple[Chunk, int]:
        """The chunk of one record, and its slot there. Raises `IndexError`."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            raise IndexError(index)
        span_index = bisect_right(self._spans, index, key=lambda span: span[0]) - 1
        first_index, chunk, slot = self._spans[span_index]
        return chunk, slot + index - first_index

    def is_done(self) -> bool:
        """Are all outcomes known? From any thread."""
        whole = self._merge_if_submitted()
        return whole is not None and whole.done()

    def writer_bulk(self) -> PendingBulk:
        """As the writer has them; of a bulk that is `is_done`."""
        whole = self._merge_if_submitted()
        assert whole is not None, "asked only when the outcomes are known"
        return whole

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Have it called once all are known, by the loop, or here. It must not raise."""
        self._callbacks.append(callback)
        if self.is_done():
            if self._remove_callback(callback):
                callback()
        elif not self._is_watching:
            self._is_watching = True
            self._watch_next_chunk()

    def remove_done_callback(self, callback: Callable[[], object]) -> None:
        """Take back what was given to `add_done_callback`, where it was not called."""
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
            except IndexError:  # it was taken back at this moment
                return
            callback()


class WriteBuffer:
    """The buffer before one writer. `append` from any thread; all else in the loop.

    In a log of the policy ``strict`` it checks the order of given txids. Those that are filled in are known
    once the loop has taken them: a given one that turns out to be below is refused there, and those after it
    in its chunk are `WriteCancelled`.

    An interrupt (Ctrl-C) may come anywhere in `append`. The loop is told first, under the mutex that it
    needs to look: at worst it looks for nothing. A record that is in is one that the loop will see.

    The end of the buffer does not take the mutex. The loop refuses a record that is appended at that time.
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
        "_in_step",
        "_is_abandoned",
        "_max_txid_unchecked",
        "_min_txid",
        "_mutex",
        "_scope",
        "_send_queue",
        "_submitted",
        "_submitting",
        "_submitting_bytes",
        "_txid_rule",
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
        self._txid_rule = writer.txid_rule
        self._checks_txids = writer.checks_txids
        self._min_txid = max(0, writer.last_txid) if self._checks_txids else 0
        """The least given txid that is accepted."""
        self._max_txid_unchecked = TXID_MAX if self._txid_rule != BYTES else -1
        """The greatest that is plainly fine; -1: none is."""
        self._mutex = Mutex()
        self._in_step = False
        """Somebody is at a step under the mutex, or was and did not come to its end."""
        self._submitted: deque[PendingBulk] = deque()
        """Bulks that the writer took, until all their outcomes are known."""
        self._submitting: Chunk | None = None
        """The chunk that it is about to take."""
        self._failed_records = 0
        """The number of records whose outcome is known and is an error."""
        self._is_abandoned = False
        """By its owner, who knows."""
        self._submitting_bytes = 0  # of the chunk that the writer is about to take
        self._fifo_lock = trio.Lock()  # who waits for room, first come first served
        self._send_queue.budget_share.free_bytes += FREE_BYTES
        self._send_queue.leave_settling_to_caller(buffered=True)
        self._chunk = Chunk(self, 0)
        self._grant(0)
        self._closed = False
        self._has_ended = False
        """Nothing is handed over any more."""
        self._scope = trio.CancelScope()
        self._wake_event = trio.Event()
        self._idle_event = trio.Event()
        self._idle_event.set()
        watch_forks(self)
        background.watch_writes(self)

    def _validate(self, txid: object, payload: object) -> tuple[int | None, bytes | None]:
        """Under the mutex: a record that is not plainly fine. No payload: there is no room for it."""
        checked_txid, checked_payload = validate_record(
            txid, payload, self._min_txid, self.name, self._txid_rule
        )
        if len(checked_payload) + RECORD_COLUMN_BYTES > self._chunk.free_bytes:
            return checked_txid, None
        return checked_txid, checked_payload

    def _check_reentry(self) -> None:
        """Under the mutex, where somebody seems to be at a step: raise `InvalidRequest` where that is so."""
        if has_interrupted(self._background, depth=1):
            raise InvalidRequest(
                f'log "{self.name}": {INTERRUPTING_TEXT}; the record was not accepted, the writer continues. '
                "Set a flag or use another thread"
            )

    async def _run_step(self, step: Callable[[], T]) -> T:
        """In the loop: make a step under the mutex. Its thread never blocks for that.

        A caller that holds it needs microseconds, once it has the interpreter lock again. If the loop
        blocked, each release of the mutex would be a system call.
        """
        yields = 0
        while not self._mutex.acquire(blocking=False):
            if yields < MUTEX_YIELDS:
                yields += 1
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(MUTEX_RETRY_S)
        try:
            self._in_step = True
            return step()
        finally:
            self._in_step = False
            self._mutex.release()

    @uninterrupted
    def append(self, record: LogRecord | Buffer) -> tuple[Chunk, int] | None:
        """Take one record; its chunk and slot. None: no room, see `append_when_capacity`. Raises as
        `LogWriter.submit`.
        """
        try:
            txid, payload = record.txid, record.payload  # type: ignore[union-attr]
        except AttributeError:  # a payload alone
            txid, payload = txid_and_payload(record)
        with self._mutex:
            if self._in_step:
                self._check_reentry()
            self._in_step = True
            if (
                type(payload) is not bytes
                or type(txid) is not int
                or not self._min_txid <= txid <= self._max_txid_unchecked
                or len(payload) > RECORD_BYTES_MAX
            ):
                txid, payload = self._validate(txid, payload)
            if self._closed or self._send_queue.over is not None:
                self._raise_if_ended()
            chunk = self._chunk
            if (
                payload is None
                or (free_bytes := chunk.free_bytes - len(payload) - RECORD_COLUMN_BYTES) < 0
            ):
                self._in_step = False
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
            self._in_step = False
        return chunk, slot

    @uninterrupted
    def validate_many(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> tuple[BufferedBulk, ValidatedBatch]:
        """Many records, checked, to be taken with `append_many`. Raises what ended the writer."""
        if self._closed or self._send_queue.over is not None:
            self._raise_if_ended()
        bulk = BufferedBulk(self, len(payloads) if txids is None else len(txids))
        with self._mutex:
            if self._in_step:
                self._check_reentry()
            min_txid = self._min_txid
        validated = validate_columns(
            txids, payloads, min_txid, self._checks_txids, self.name, self._txid_rule
        )
        if not validated.record_count and validated.refusal is not None:
            bulk.add_refused(0, validated.refusal)
        return bulk, validated

    @uninterrupted
    def append_many(self, bulk: BufferedBulk, validated: ValidatedBatch, start: int) -> int:
        """Take records from ``at`` on, as many as there is room for; which one is next. Waits for nothing.

        ``at``: no room, see `append_many_when_capacity`. What is wrong with a record is its own outcome, and
        those after it are not taken. Raises what ended the writer, where that is so before the first is in.
        """
        with self._mutex:
            if self._in_step:
                self._check_reentry()
            self._in_step = True
            if self._closed or self._send_queue.over is not None:
                try:
                    self._raise_if_ended()
                except DistributedLogError as error:
                    if not start:
                        raise
                    bulk.add_refused(start, error)
                    return validated.record_count
            chunk = self._chunk
            stop = validated.fitting_end(start, chunk.free_bytes, 0)
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
            if given_txids and given_txids[0] < self._min_txid:  # of another thread
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
            self._in_step = False
        if stop == validated.record_count and validated.refusal is not None:
            bulk.add_refused(stop, validated.refusal)
        return stop

    async def append_when_capacity(self, record: LogRecord | Buffer) -> tuple[Chunk, int]:
        """In the loop: `append`, as soon as there is room. Raises as that, and `TooBusy` by ``at_limit``."""
        size_bytes = memoryview(txid_and_payload(record)[1]).nbytes + RECORD_COLUMN_BYTES
        async with self._fifo_lock:
            while True:
                chunk_and_slot = await self._run_step(partial(self.append, record))
                if chunk_and_slot is not None:
                    return chunk_and_slot
                await self._wait_until_allowed(
                    lambda: self._reserve_for_append(1, lambda _: size_bytes)
                )

    async def append_many_when_capacity(
        self, bulk: BufferedBulk, validated: ValidatedBatch, start: int
    ) -> int:
        """In the loop: `append_many`, as soon as there is room for one. Who is refused by ``at_limit`` has
        `TooBusy` for an outcome, and so have all that follow.
        """
        async with self._fifo_lock:
            append = partial(self.append_many, bulk, validated, start)
            while (stop := await self._run_step(append)) == start:
                try:
                    await self._wait_until_allowed(
                        lambda: self._reserve_for_append(
                            validated.record_count - start,
                            lambda number: validated.entry_bytes(start, start + number),
                        )
                    )
                except TooBusy as error:
                    bulk.add_refused(start, error)
                    return validated.record_count
        return stop

    async def submit_packed(
        self, txids: Buffer | None, offsets: Buffer, payloads: Buffer
    ) -> BufferedBulk:
        """In the loop: `LogWriter.submit_packed`, after all that was appended before. Raises as that."""
        await self._wait_drained()
        if self._closed:
            self._raise_if_ended()
        try:
            records = max(1, memoryview(offsets).nbytes // 4 - 1)
            size_bytes = memoryview(payloads).nbytes + records * RECORD_COLUMN_BYTES
        except TypeError:
            records, size_bytes = 0, 0  # the writer says what is wrong with them
        if size_bytes > SUBMIT_BYTES_MAX:
            records, size_bytes = 0, 0  # so it does: nobody waits for such room
        async with self._fifo_lock:
            await self._wait_until_allowed(lambda: self._reserve_unbuffered(records, size_bytes))
        try:
            return await self._wrap_unbuffered(
                await self.writer.submit_packed(txids, offsets, payloads)
            )
        finally:
            self._send_queue.trim_reservation()  # of what was refused nothing is held

    async def submit_set(self, records: Sequence[LogRecord | Buffer]) -> BufferedBulk:
        """In the loop: `LogWriter.submit_set`, after all that was appended before. Raises as that."""
        await self._wait_drained()
        if self._closed:
            self._raise_if_ended()
        await self._wait_capacity_for(records, one_txid=True)
        try:
            return await self._wrap_unbuffered(await self.writer.submit_set(records))
        finally:
            self._send_queue.trim_reservation()  # of what was refused nothing is held

    async def _wait_capacity_for(
        self, records: Sequence[LogRecord | Buffer], *, one_txid: bool = False
    ) -> None:
        """Until the writer may take these without a chunk. ``one_txid``: else they are refused."""
        txids, payloads = split_columns(records)
        try:
            size_bytes = sum([memoryview(payload).nbytes for payload in payloads])
        except TypeError:
            size_bytes = 0  # the writer says what is wrong with them
        size_bytes += len(records) * RECORD_COLUMN_BYTES
        if size_bytes > SUBMIT_BYTES_MAX or (one_txid and any(txid != txids[0] for txid in txids)):
            size_bytes = 0  # as in `submit_packed`
        async with self._fifo_lock:
            await self._wait_until_allowed(
                lambda: self._reserve_unbuffered(len(records), size_bytes)
            )

    async def write_frame(
        self,
        sequence: int,
        records: Sequence[LogRecord | Buffer],
        *,
        expect: DLSN | None = None,
    ) -> list[DLSN]:
        """In the loop: `LogWriter.write_frame`, after all that was appended before. Raises as that."""
        return await self._write_unbuffered(
            records, lambda: self.writer.write_frame(sequence, records, expect=expect)
        )

    async def write_after(self, expect: DLSN, record: LogRecord | Buffer) -> DLSN:
        """In the loop: `LogWriter.write` with ``fail_when_ended``, as `write_frame`."""
        return await self._write_unbuffered(
            [record], lambda: self.writer.write(record, expect=expect)
        )

    async def _write_unbuffered(
        self, records: Sequence[LogRecord | Buffer], write: Callable[[], Awaitable[T]]
    ) -> T:
        await self._wait_drained()
        if self._closed:
            self._raise_if_ended()
        await self._wait_capacity_for(records)
        try:
            return await write()
        finally:
            if self._checks_txids:
                with trio.CancelScope(shield=True):
                    await self._run_step(self._raise_min_txid)
            self._send_queue.trim_reservation()  # of what was refused nothing is held

    @uninterrupted
    def _raise_min_txid(self) -> None:
        self._min_txid = max(self._min_txid, self.writer.last_txid)

    async def _wrap_unbuffered(self, writer_bulk: PendingBulk) -> BufferedBulk:
        """What the writer took without a chunk, as a face has it."""
        chunk = Chunk(self, 0)
        chunk.bulk = writer_bulk
        self._record_submitted(writer_bulk)
        if self._checks_txids:
            with trio.CancelScope(shield=True):
                await self._run_step(self._raise_min_txid)
        bulk = BufferedBulk(self, len(writer_bulk))
        bulk.add_span(0, chunk, 0)
        return bulk

    def fail_when_ended(self, outcome: CrossThreadFuture[None]) -> None:
        """Somebody is about to wait for an outcome: let it fail where the loop ends before that.

        The loop is told that there may be something: the call that should have may have been interrupted.
        """
        self._background.fail_when_ended(outcome, self._wake_if_pending)

    def check_may_wait(self) -> None:
        """See `Background.check_may_wait`."""
        self._background.check_may_wait()

    def wake_loop(self) -> None:
        """As `fail_when_ended`, for whoever has left a callback."""
        with suppress(AlreadyClosed):
            self._background.post(self._wake_if_pending)

    def call_in_thread(self, callback: Callable[[], object]) -> None:
        """See `Background.call_in_thread`."""
        self._background.call_in_thread(callback)

    async def run(self) -> None:
        """Hand chunks to the writer, in order, until it or the namespace ends. A task of the latter."""
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
            self._idle_event.set()  # who waits for what was appended is told by the writer why it ended

    async def _submit_chunk(self, chunk: Chunk) -> None:
        try:
            if chunk.records:
                self._submitting = chunk
                txids, payloads = chunk.records[::2], chunk.records[1::2]
                chunk.bulk = await self.writer.submit_columns(txids, payloads)
                self._record_submitted(chunk.bulk)
        except DistributedLogError as error:
            chunk.error = error
        except BaseException:  # a part of it may be in
            chunk.error = WriteFailed(f'log "{self.name}": its writer ended; it may be stored')
            raise
        finally:
            self._submitting = None
            self._fail_unsubmitted(chunk)
        is_empty = await self._run_step(self._on_submitted)
        self._send_queue.throttle.wake_waiters()
        if is_empty:
            self._idle_event.set()
        else:
            self._wake_event.set()

    @uninterrupted
    def _on_submitted(self) -> bool:
        """Nothing is on its way to the writer; is nothing here either?"""
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
        """Its outcome, unless the writer has taken it, or said why not."""
        if chunk.bulk is None:
            self._failed_records += len(chunk.records) >> 1
            if chunk.error is None:
                end_error = self.writer.over
                chunk.error = (
                    AlreadyClosed(f'log "{self.name}": closed')
                    if end_error is None
                    else end_error.again()
                )
        chunk.settle()

    # --- limits, in the loop ----------------------------------------------------------------------

    async def _wait_until_allowed(self, try_reserve: Callable[[], tuple[float, int]]) -> None:
        """Until ``ask`` says 0: for how long to wait, and for how much of what the process may hold.

        Or until the writer is over. Raises `TooBusy` where the log refuses what is above a limit.
        """
        send_queue = self._send_queue
        try:
            while self.writer.over is None and not self._closed:
                wait_s, needed_bytes = await self._run_step(try_reserve)
                if wait_s <= 0:
                    return
                if send_queue.limits.at_limit == "reject":
                    raise TooBusy(
                        f'log "{self.name}": over its limits, or the process is over its own; nothing was '
                        "taken, the writer goes on"
                    )
                if needed_bytes:
                    send_queue.budget_share.request(needed_bytes)
                self._wake_if_pending()  # what is here makes room when it is taken
                with trio.move_on_after(wait_s):
                    await send_queue.throttle.wait_space()
        except BaseException:
            send_queue.budget_share.cancel_request()
            send_queue.trim_reservation()  # what it was granted for this
            raise
        send_queue.budget_share.cancel_request()

    @uninterrupted
    def _reserve_for_append(
        self, records: int, bytes_of: Callable[[int], int]
    ) -> tuple[float, int]:
        """For ``records``, or some of them, to be appended now; see `_wait_until_allowed`."""
        send_queue = self._send_queue
        used_bytes = self._submitting_bytes + self._chunk.bytes
        while True:
            size_bytes = bytes_of(records)
            fits = used_bytes + size_bytes <= BUFFER_BYTES_MAX or not used_bytes
            if fits:
                wait_s = float("inf")
                needed_bytes = send_queue.unacked_bytes + used_bytes + size_bytes
                fits = send_queue.budget_share.try_reserve(needed_bytes)
                if fits:
                    wait_s = send_queue.throttle.charge(records, size_bytes, divisible=True)
                if wait_s <= 0:
                    self._grant(size_bytes)
                    return 0.0, 0
            else:
                wait_s, needed_bytes = float("inf"), 0  # the loop is about to take what is here
            if records == 1:
                return wait_s, 0 if fits else needed_bytes
            records //= 2

    def _reserve_unbuffered(self, records: int, size_bytes: int) -> tuple[float, int]:
        """For what goes to the writer without a chunk; see `_wait_until_allowed`."""
        send_queue = self._send_queue
        needed_bytes = send_queue.unacked_bytes + send_queue.write_buffer_bytes + size_bytes
        if not send_queue.budget_share.try_reserve(needed_bytes):
            return float("inf"), needed_bytes
        return send_queue.throttle.charge(records, size_bytes, divisible=False), 0

    def _grant(self, size_bytes: int) -> None:
        """Under the mutex: ``size`` more bytes may be appended, for which there is room, or more than that
        where that costs nobody anything. A log with rates is asked about each record."""
        send_queue, chunk = self._send_queue, self._chunk
        if send_queue.over is not None:
            return  # nothing more is granted to it
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
        """As `LogWriter.commit`, for all that was appended before."""
        await self._wait_drained()
        return await self.writer.commit()

    async def flush(self) -> None:
        """As `LogWriter.flush`; waits for the writer's room."""
        await self._wait_drained()
        await self.writer.flush()

    async def aclose(self) -> None:
        """As `LogWriter.aclose`, for all that was appended before."""
        await self._finish(self.writer.aclose)

    async def mark_end_of_stream(self) -> None:
        """As `LogWriter.mark_end_of_stream`, for all that was appended before."""
        await self._finish(self.writer.mark_end_of_stream)

    async def abort(self) -> None:
        """As `LogWriter.abort`."""
        self._is_abandoned = True
        self._mark_closed()
        try:
            await self.writer.abort()
        finally:
            self._scope.cancel()

    async def drop(self) -> None:
        """As `abort`, for a writer that was dropped unclosed. The exit reports records that are lost."""
        await wait_settled_after_drop(self._background, self)
        await self.abort()

    async def settle(self) -> None:
        """Wait until the outcome of each record is known. Raises no `DistributedLogError`."""
        with suppress(DistributedLogError):
            await self.commit()

    @property
    def not_durable(self) -> int:
        """How many records were taken and are not known to be durable; 0 where its owner has given it up."""
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
            await self.writer.abort()  # what was cancelled before it began to end, too
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
        if (
            self._has_ended
        ):  # posted in the last moment, for what was refused, or by an interrupted call
            self._fail_unsubmitted(self._chunk)
            return
        if self._idle_event.is_set():
            self._idle_event = trio.Event()
        self._wake_event.set()

    def _raise_if_ended(self) -> None:
        end_error = self.writer.over
        if end_error is not None:
            raise end_error.again()
        self._background.check_running()
        raise AlreadyClosed(f'log "{self.name}": this writer is closed')

    def on_forked(self) -> None:
        """In a forked child: a thread of the parent may have held the mutex, and it is not here (H15)."""
        self._mutex = Mutex()
        self._in_step = False
        self._closed = True


async def wait_settled_after_drop(
    background: Background, writer_handle: "WriteBuffer | ByteWriterHandle"
) -> None:
    """Wait for the records of a dropped writer, and note those that are not known to be durable."""
    with trio.move_on_after(DROPPED_WAIT_S):
        await writer_handle.settle()
    background.record_lost(writer_handle)


class ByteWriterHandle:
    """The records of a byte writer, for the end of its namespace or of the interpreter."""

    __slots__ = ("__weakref__", "_background", "_is_ended", "_writer", "name")

    def __init__(self, writer: ByteWriter, background: Background) -> None:
        self.name = writer.name
        self._writer = writer
        self._background = background
        self._is_ended = False
        """By its owner, who knows."""
        writer.leave_settling_to_caller()
        background.watch_writes(self)

    async def aclose(self) -> None:
        """As `ByteWriter.aclose`."""
        await self._writer.aclose()
        self._is_ended = True

    async def abort(self) -> None:
        """As `ByteWriter.abort`."""
        self._is_ended = True
        await self._writer.abort()

    async def drop(self) -> None:
        """As `abort`, for a writer that was dropped unclosed. The exit reports records that are lost."""
        await wait_settled_after_drop(self._background, self)
        await self.abort()

    async def settle(self) -> None:
        """Wait until the outcome of each record is known. Raises no `DistributedLogError`."""
        with suppress(DistributedLogError):
            await self._writer.flush()

    @property
    def not_durable(self) -> int:
        """How many records were taken and are not known to be durable; 0 after its owner has ended it."""
        return 0 if self._is_ended else self._writer.not_durable


async def open_buffer(
    background: Background, namespace: Namespace, log: Log, opening: Opening[LogWriter]
) -> WriteBuffer:
    """In the loop: the writer that an opening gives, with its buffer, which runs as long as that."""
    writer = await opening
    try:
        buffer = WriteBuffer(writer, background, log.name)
        namespace.start(buffer.run)
    except BaseException:
        await writer.abort()
        raise
    return buffer
