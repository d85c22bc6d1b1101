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
    columns_of,
    txid_and_payload,
)
from .log.interfaces.error_boundary import error_boundary
from .log.interfaces.open_call import Opening
from .log.limits.memory_budget import FREE_BYTES
from .log.log import Log
from .log.model.log_state import BYTES
from .log.model.txid_policy import out_of_order
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
    INTERRUPTING,
    Background,
    CrossThreadFuture,
    Mutex,
    interrupts,
    uninterrupted,
)

T = TypeVar("T")

BUFFER_BYTES_MAX = 4 * 1024 * 1024
"""Between the caller and the writer, beside the writer's own bound."""
SIZE_MAX = 2 * RECORD_BYTES_MAX
"""Of columns or a set, more than the writer ever takes."""
GROWTH = 4
"""Of the bound of a buffer that is used, until it is the one above."""


MUTEX_YIELDS = 10
"""How often the loop yields to a caller that holds the mutex."""
MUTEX_RETRY_S = 0.005
"""Then its task sleeps for this time: the caller was interrupted."""
DROPPED_WAIT_S = 1.0
"""How long the records of a writer that was dropped unclosed are waited for."""

LONE_WRITES_MAX = 1000
"""A second: above that a program most likely means to pipeline."""


class LoneWrites:
    """Counts writes that are waited for one by one. Pure."""

    def __init__(self) -> None:
        self._count = 0
        self._since_s = 0.0
        self._said = False

    def too_many(self, now_s: float) -> bool:
        """One more; True once, when there were `LONE_WRITES_MAX` within a second."""
        if self._said:
            return False
        if now_s - self._since_s >= 1.0:
            self._since_s, self._count = now_s, 0
        self._count += 1
        self._said = self._count > LONE_WRITES_MAX
        return self._said


class Chunk:
    """Records on their way to the loop, and their outcome there. Filled under the buffer's mutex."""

    __slots__ = (
        "_asking",
        "buffer",
        "bulk",
        "bytes_max",
        "error",
        "left_bytes",
        "posted",
        "records",
    )

    def __init__(self, buffer: "WriteBuffer", bytes_max: int) -> None:
        self.buffer = buffer
        self.records: list[Any] = []
        """Txid, payload, txid, payload, ... Two at a time, so that an interrupt leaves a record whole, or
        out."""
        self.bytes_max = bytes_max
        self.left_bytes = bytes_max
        """How much more may be put in."""
        self.posted = False
        """The loop was told that there is something, or will be."""
        self.bulk: PendingBulk | None = None
        """Set when the writer has taken it."""
        self.error: DistributedLogError | None = None
        """Set when the writer refused it whole."""
        self._asking: list[tuple[int, Callable[[], object]]] = []
        """Slot, and who is to be told, until the writer has taken it or not."""

    @property
    def bytes(self) -> int:
        """Of what is in it."""
        return self.bytes_max - self.left_bytes

    @property
    def settled(self) -> bool:
        """Has the writer taken it, or refused it?"""
        return self.bulk is not None or self.error is not None

    def done(self, slot: int) -> bool:
        """Is a record's outcome known? From any thread."""
        bulk = self.bulk
        if bulk is None:
            return self.error is not None
        return bulk.place(slot)[0].done

    def result(self, slot: int) -> DLSN:
        """The DLSN of a record whose outcome is known, or its error raised. From any thread."""
        if self.bulk is None:
            assert self.error is not None, "asked only when the outcome is known"
            raise self.error.again()
        batch, place = self.bulk.place(slot)
        return batch.dlsn(place)

    def when_done(self, slot: int, callback: Callable[[], object]) -> None:
        """Have it called once, by the loop, or here where the outcome is known. It must not raise."""
        self._asking.append((slot, callback))
        if self.settled and self._forget(slot, callback):
            self._pass_on(slot, callback)

    def forget(self, slot: int, callback: Callable[[], object]) -> None:
        """Take back what was given to `when_done`, where it was not called."""
        if not self._forget(slot, callback) and self.bulk is not None:
            self.bulk.place(slot)[0].forget(callback)

    def settle(self) -> None:
        """In the loop: taken or refused."""
        self.records = []
        while self._asking:
            try:
                slot, callback = self._asking.pop(0)
            except IndexError:  # it was taken back at this moment
                break
            self._pass_on(slot, callback)

    def _forget(self, slot: int, callback: Callable[[], object]) -> bool:
        try:
            self._asking.remove((slot, callback))
        except ValueError:
            return False
        return True

    def _pass_on(self, slot: int, callback: Callable[[], object]) -> None:
        if self.bulk is None:
            callback()
        else:
            self.bulk.place(slot)[0].when_done(callback)


class BufferedBulk:
    """Records that were handed over in one call; a `PendingBulk` of a face tells of them."""

    __slots__ = ("_asking", "_spans", "_watched", "_whole", "buffer", "length")

    def __init__(self, buffer: "WriteBuffer", length: int) -> None:
        self.buffer = buffer
        self.length = length
        self._spans: list[tuple[int, Chunk, int]] = []  # first index, chunk, slot of the first
        self._whole: PendingBulk | None = None
        self._asking: list[Callable[[], object]] = []
        self._watched = False

    def took(self, index: int, chunk: Chunk, slot: int) -> None:
        """Records from ``index`` on are in this chunk from ``slot`` on."""
        self._spans.append((index, chunk, slot))

    def refused(self, index: int, error: DistributedLogError) -> None:
        """Record ``index`` was not taken, and so none after it; a limit is what all of them met."""
        chunk = Chunk(self.buffer, 0)
        chunk.bulk = PendingBulk(self.length - index)
        chunk.bulk.refused(0, error)
        if index + 1 < self.length and not isinstance(error, TooBusy):
            why = f"record {index} of the call was refused: {error}"
            chunk.bulk.refused(1, WriteCancelled(why))
        self.took(index, chunk, 0)

    def place(self, index: int) -> tuple[Chunk, int]:
        """The chunk of one record, and its slot there. Raises `IndexError`."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            raise IndexError(index)
        at = bisect_right(self._spans, index, key=lambda span: span[0]) - 1
        first, chunk, slot = self._spans[at]
        return chunk, slot + index - first

    def done(self) -> bool:
        """Are all outcomes known? From any thread."""
        whole = self._as_taken()
        return whole is not None and whole.done()

    def whole(self) -> PendingBulk:
        """As the writer has them; of a bulk that is `done`."""
        whole = self._as_taken()
        assert whole is not None, "asked only when the outcomes are known"
        return whole

    def when_done(self, callback: Callable[[], object]) -> None:
        """Have it called once all are known, by the loop, or here. It must not raise."""
        self._asking.append(callback)
        if self.done():
            if self._take_back(callback):
                callback()
        elif not self._watched:
            self._watched = True
            self._watch()

    def forget(self, callback: Callable[[], object]) -> None:
        """Take back what was given to `when_done`, where it was not called."""
        self._take_back(callback)

    def _take_back(self, callback: Callable[[], object]) -> bool:
        try:
            self._asking.remove(callback)
        except ValueError:
            return False
        return True

    def _as_taken(self) -> PendingBulk | None:
        if self._whole is None and all([chunk.settled for _, chunk, _ in self._spans]):
            whole = PendingBulk(self.length)
            stops = [*[first for first, _, _ in self._spans], self.length][1:]
            for (first, chunk, slot), stop in zip(self._spans, stops, strict=True):
                if chunk.bulk is not None:
                    whole.took_part(first, chunk.bulk, slot, stop - first)
                elif chunk.error is not None:
                    whole.refused(first, chunk.error)
            self._whole = whole
        return self._whole

    def _watch(self) -> None:
        for _, chunk, slot in self._spans:
            if not chunk.settled:
                chunk.when_done(slot, self._watch)
                return
        self.whole().when_done(self._tell)

    def _tell(self) -> None:
        while self._asking:
            try:
                callback = self._asking.pop(0)
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
        "__weakref__", "_background", "_chunk", "_closed", "_entered", "_failed", "_floor", "_given_up",
        "_handed", "_handed_bytes", "_handing", "_idle", "_in_order", "_most", "_mutex", "_ordered", "_over",
        "_pipeline", "_rule", "_scope", "_wake", "lone", "name", "writer",
    )  # fmt: skip

    def __init__(self, writer: LogWriter, background: Background, name: str) -> None:
        self.writer = writer
        self.name = name
        self.lone = LoneWrites()
        self._background = background
        self._pipeline = writer.pipeline
        self._rule = writer.txid_rule
        self._ordered = writer.checks_txids
        self._floor = max(0, writer.last_txid) if self._ordered else 0
        """The least given txid that is accepted."""
        self._most = TXID_MAX if self._rule != BYTES else -1
        """The greatest that is plainly fine; -1: none is."""
        self._mutex = Mutex()
        self._entered = False
        """Somebody is at a step under the mutex, or was and did not come to its end."""
        self._handed: deque[PendingBulk] = deque()
        """Bulks that the writer took, until all their outcomes are known."""
        self._handing: Chunk | None = None
        """The chunk that it is about to take."""
        self._failed = 0
        """The number of records whose outcome is known and is an error."""
        self._given_up = False
        """By its owner, who knows."""
        self._handed_bytes = 0  # of the chunk that the writer is about to take
        self._in_order = trio.Lock()  # who waits for room, first come first served
        self._pipeline.part.free_bytes += FREE_BYTES
        self._pipeline.settled_by_owner(buffered=True)
        self._chunk = Chunk(self, 0)
        self._allow(0)
        self._closed = False
        self._over = False
        """Nothing is handed over any more."""
        self._scope = trio.CancelScope()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        watch_forks(self)
        background.watch_writes(self)

    def _admit(self, txid: object, payload: object) -> tuple[int | None, bytes | None]:
        """Under the mutex: a record that is not plainly fine. No payload: there is no room for it."""
        own, plain = validate_record(txid, payload, self._floor, self.name, self._rule)
        if len(plain) + RECORD_COLUMN_BYTES > self._chunk.left_bytes:
            return own, None
        return own, plain

    def _check_entry(self) -> None:
        """Under the mutex, where somebody seems to be at a step: raise `InvalidRequest` where that is so."""
        if interrupts(self._background, depth=1):
            raise InvalidRequest(
                f'log "{self.name}": {INTERRUPTING}; the record was not accepted, the writer continues. '
                "Set a flag or use another thread"
            )

    async def _at_step(self, step: Callable[[], T]) -> T:
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
            self._entered = True
            return step()
        finally:
            self._entered = False
            self._mutex.release()

    @uninterrupted
    def append(self, record: LogRecord | Buffer) -> tuple[Chunk, int] | None:
        """Take one record; its chunk and slot. None: no room, see `append_when_room`. Raises as
        `LogWriter.submit`.
        """
        try:
            txid, payload = record.txid, record.payload  # type: ignore[union-attr]
        except AttributeError:  # a payload alone
            txid, payload = txid_and_payload(record)
        with self._mutex:
            if self._entered:
                self._check_entry()
            self._entered = True
            if (
                type(payload) is not bytes
                or type(txid) is not int
                or not self._floor <= txid <= self._most
                or len(payload) > RECORD_BYTES_MAX
            ):
                txid, payload = self._admit(txid, payload)
            if self._closed or self._pipeline.over is not None:
                self._raise_if_over()
            chunk = self._chunk
            if (
                payload is None
                or (left := chunk.left_bytes - len(payload) - RECORD_COLUMN_BYTES) < 0
            ):
                self._entered = False
                return None
            if not chunk.posted:
                self._background.post(self._on_append)
                chunk.posted = True
            if self._ordered and txid is not None:
                self._floor = txid
            chunk.left_bytes = left
            records = chunk.records
            slot = len(records) >> 1
            records += (txid, payload)
            self._entered = False
        return chunk, slot

    @uninterrupted
    def offered(
        self, txids: Sequence[int | None] | None, payloads: Sequence[bytes]
    ) -> tuple[BufferedBulk, ValidatedBatch]:
        """Many records, checked, to be taken with `append_many`. Raises what ended the writer."""
        if self._closed or self._pipeline.over is not None:
            self._raise_if_over()
        bulk = BufferedBulk(self, len(payloads) if txids is None else len(txids))
        with self._mutex:
            if self._entered:
                self._check_entry()
            floor = self._floor
        taken = validate_columns(txids, payloads, floor, self._ordered, self.name, self._rule)
        if not taken.number and taken.refusal is not None:
            bulk.refused(0, taken.refusal)
        return bulk, taken

    @uninterrupted
    def append_many(self, bulk: BufferedBulk, taken: ValidatedBatch, at: int) -> int:
        """Take records from ``at`` on, as many as there is room for; which one is next. Waits for nothing.

        ``at``: no room, see `append_many_when_room`. What is wrong with a record is its own outcome, and
        those after it are not taken. Raises what ended the writer, where that is so before the first is in.
        """
        with self._mutex:
            if self._entered:
                self._check_entry()
            self._entered = True
            if self._closed or self._pipeline.over is not None:
                try:
                    self._raise_if_over()
                except DistributedLogError as error:
                    if not at:
                        raise
                    bulk.refused(at, error)
                    return taken.number
            chunk = self._chunk
            stop = taken.stop(at, chunk.left_bytes, 0)
            size = taken.bytes_of(at, stop)
            if size > chunk.left_bytes:
                return at
            records: list[Any] = [None] * (2 * (stop - at))
            if taken.txids is not None:
                records[::2] = taken.txids[at:stop]
            records[1::2] = taken.payloads[at:stop]
            given = [txid for txid in records[::2] if txid is not None] if self._ordered else ()
            if given and given[0] < self._floor:  # of another thread
                bulk.refused(at, out_of_order(given[0], self._floor, self.name))
                return taken.number
            if not chunk.posted:
                self._background.post(self._on_append)
                chunk.posted = True
            if given:
                self._floor = given[-1]
            chunk.left_bytes -= size
            bulk.took(at, chunk, len(chunk.records) >> 1)
            chunk.records += records
            self._entered = False
        if stop == taken.number and taken.refusal is not None:
            bulk.refused(stop, taken.refusal)
        return stop

    async def append_when_room(self, record: LogRecord | Buffer) -> tuple[Chunk, int]:
        """In the loop: `append`, as soon as there is room. Raises as that, and `TooBusy` by ``at_limit``."""
        size = memoryview(txid_and_payload(record)[1]).nbytes + RECORD_COLUMN_BYTES
        async with self._in_order:
            while True:
                found = await self._at_step(partial(self.append, record))
                if found is not None:
                    return found
                await self._until(lambda: self._make_room(1, lambda _: size))

    async def append_many_when_room(
        self, bulk: BufferedBulk, taken: ValidatedBatch, at: int
    ) -> int:
        """In the loop: `append_many`, as soon as there is room for one. Who is refused by ``at_limit`` has
        `TooBusy` for an outcome, and so have all that follow.
        """
        async with self._in_order:
            append = partial(self.append_many, bulk, taken, at)
            while (stop := await self._at_step(append)) == at:
                try:
                    await self._until(
                        lambda: self._make_room(
                            taken.number - at, lambda number: taken.bytes_of(at, at + number)
                        )
                    )
                except TooBusy as error:
                    bulk.refused(at, error)
                    return taken.number
        return stop

    async def take_packed(
        self, txids: Buffer | None, offsets: Buffer, payloads: Buffer
    ) -> BufferedBulk:
        """In the loop: `LogWriter.submit_packed`, after all that was appended before. Raises as that."""
        await self._drained()
        if self._closed:
            self._raise_if_over()
        try:
            records = max(1, memoryview(offsets).nbytes // 4 - 1)
            size = memoryview(payloads).nbytes + records * RECORD_COLUMN_BYTES
        except TypeError:
            records, size = 0, 0  # the writer says what is wrong with them
        if size > SIZE_MAX:
            records, size = 0, 0  # so it does: nobody waits for such room
        async with self._in_order:
            await self._until(lambda: self._room_aside(records, size))
        try:
            return await self._taken_aside(
                await self.writer.submit_packed(txids, offsets, payloads)
            )
        finally:
            self._pipeline.reserve()  # of what was refused nothing is held

    async def take_set(self, records: Sequence[LogRecord | Buffer]) -> BufferedBulk:
        """In the loop: `LogWriter.submit_set`, after all that was appended before. Raises as that."""
        await self._drained()
        if self._closed:
            self._raise_if_over()
        await self._room_for(records, one_txid=True)
        try:
            return await self._taken_aside(await self.writer.submit_set(records))
        finally:
            self._pipeline.reserve()  # of what was refused nothing is held

    async def _room_for(
        self, records: Sequence[LogRecord | Buffer], *, one_txid: bool = False
    ) -> None:
        """Until the writer may take these without a chunk. ``one_txid``: else they are refused."""
        txids, payloads = columns_of(records)
        try:
            size = sum([memoryview(one).nbytes for one in payloads])
        except TypeError:
            size = 0  # the writer says what is wrong with them
        size += len(records) * RECORD_COLUMN_BYTES
        if size > SIZE_MAX or (one_txid and any(txid != txids[0] for txid in txids)):
            size = 0  # as in `take_packed`
        async with self._in_order:
            await self._until(lambda: self._room_aside(len(records), size))

    async def write_frame(
        self,
        sequence: int,
        records: Sequence[LogRecord | Buffer],
        *,
        expect: DLSN | None = None,
    ) -> list[DLSN]:
        """In the loop: `LogWriter.write_frame`, after all that was appended before. Raises as that."""
        return await self._aside(
            records, lambda: self.writer.write_frame(sequence, records, expect=expect)
        )

    async def write_after(self, expect: DLSN, record: LogRecord | Buffer) -> DLSN:
        """In the loop: `LogWriter.write` with ``expect``, as `write_frame`."""
        return await self._aside([record], lambda: self.writer.write(record, expect=expect))

    async def _aside(
        self, records: Sequence[LogRecord | Buffer], write: Callable[[], Awaitable[T]]
    ) -> T:
        await self._drained()
        if self._closed:
            self._raise_if_over()
        await self._room_for(records)
        try:
            return await write()
        finally:
            if self._ordered:
                with trio.CancelScope(shield=True):
                    await self._at_step(self._raise_floor)
            self._pipeline.reserve()  # of what was refused nothing is held

    @uninterrupted
    def _raise_floor(self) -> None:
        self._floor = max(self._floor, self.writer.last_txid)

    async def _taken_aside(self, taken: PendingBulk) -> BufferedBulk:
        """What the writer took without a chunk, as a face has it."""
        chunk = Chunk(self, 0)
        chunk.bulk = taken
        self._note_handed(taken)
        if self._ordered:
            with trio.CancelScope(shield=True):
                await self._at_step(self._raise_floor)
        bulk = BufferedBulk(self, len(taken))
        bulk.took(0, chunk, 0)
        return bulk

    def expect(self, told: CrossThreadFuture[None]) -> None:
        """Somebody is about to wait for an outcome: let it fail where the loop ends before that.

        The loop is told that there may be something: the call that should have may have been interrupted.
        """
        self._background.expect(told, self._look)

    def check_may_wait(self) -> None:
        """See `Background.check_may_wait`."""
        self._background.check_may_wait()

    def push(self) -> None:
        """As `expect`, for whoever has left a callback."""
        with suppress(AlreadyClosed):
            self._background.post(self._look)

    def aside(self, callback: Callable[[], object]) -> None:
        """See `Background.aside`."""
        self._background.aside(callback)

    async def run(self) -> None:
        """Hand chunks to the writer, in order, until it or the namespace ends. A task of the latter."""
        try:
            with (
                self._scope,
                error_boundary(f'the write buffer of log "{self.name}"', self.writer.pipeline.fail),
            ):
                while True:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    await self._hand_over(await self._at_step(self._swap))
        finally:
            self._closed = self._over = True
            chunk, self._chunk = self._chunk, Chunk(self, 0)
            self._refuse(chunk)
            self._pipeline.throttle.wake_waiters()
            self._idle.set()  # who waits for what was appended is told by the writer why it ended

    async def _hand_over(self, chunk: Chunk) -> None:
        try:
            if chunk.records:
                self._handing = chunk
                txids, payloads = chunk.records[::2], chunk.records[1::2]
                chunk.bulk = await self.writer.submit_columns(txids, payloads)
                self._note_handed(chunk.bulk)
        except DistributedLogError as error:
            chunk.error = error
        except BaseException:  # a part of it may be in
            chunk.error = WriteFailed(f'log "{self.name}": its writer ended; it may be stored')
            raise
        finally:
            self._handing = None
            self._refuse(chunk)
        empty = await self._at_step(self._on_handed)
        self._pipeline.throttle.wake_waiters()
        if empty:
            self._idle.set()
        else:
            self._wake.set()

    @uninterrupted
    def _on_handed(self) -> bool:
        """Nothing is on its way to the writer; is nothing here either?"""
        self._handed_bytes = 0
        self._allow(0)
        return not self._chunk.records

    @uninterrupted
    def _swap(self) -> Chunk:
        chunk = self._chunk
        self._chunk = Chunk(self, chunk.left_bytes)
        self._handed_bytes = chunk.bytes
        return chunk

    def _note_handed(self, taken: PendingBulk) -> None:
        handed = self._handed
        while handed and handed[0].done():
            self._failed += handed.popleft().not_durable
        handed.append(taken)

    def _refuse(self, chunk: Chunk) -> None:
        """Its outcome, unless the writer has taken it, or said why not."""
        if chunk.bulk is None:
            self._failed += len(chunk.records) >> 1
            if chunk.error is None:
                over = self.writer.over
                chunk.error = (
                    AlreadyClosed(f'log "{self.name}": closed') if over is None else over.again()
                )
        chunk.settle()

    # --- limits, in the loop ----------------------------------------------------------------------

    async def _until(self, ask: Callable[[], tuple[float, int]]) -> None:
        """Until ``ask`` says 0: for how long to wait, and for how much of what the process may hold.

        Or until the writer is over. Raises `TooBusy` where the log refuses what is above a limit.
        """
        pipeline = self._pipeline
        try:
            while self.writer.over is None and not self._closed:
                wait_s, held = await self._at_step(ask)
                if wait_s <= 0:
                    return
                if pipeline.limits.at_limit == "reject":
                    raise TooBusy(
                        f'log "{self.name}": over its limits, or the process is over its own; nothing was '
                        "taken, the writer goes on"
                    )
                if held:
                    pipeline.part.wait(held)
                self._look()  # what is here makes room when it is taken
                with trio.move_on_after(wait_s):
                    await pipeline.throttle.wait_space()
        except BaseException:
            pipeline.part.leave()
            pipeline.reserve()  # what it was granted for this
            raise
        pipeline.part.leave()

    @uninterrupted
    def _make_room(self, records: int, bytes_of: Callable[[int], int]) -> tuple[float, int]:
        """For ``records``, or some of them, to be appended now; see `_until`."""
        pipeline = self._pipeline
        used = self._handed_bytes + self._chunk.bytes
        while True:
            size = bytes_of(records)
            fits = used + size <= BUFFER_BYTES_MAX or not used
            if fits:
                wait_s = float("inf")
                held = pipeline.held_bytes + used + size
                fits = pipeline.part.fits(held)
                if fits:
                    wait_s = pipeline.throttle.charge(records, size, divisible=True)
                if wait_s <= 0:
                    self._allow(size)
                    return 0.0, 0
            else:
                wait_s, held = float("inf"), 0  # the loop is about to take what is here
            if records == 1:
                return wait_s, 0 if fits else held
            records //= 2

    def _room_aside(self, records: int, size: int) -> tuple[float, int]:
        """For what goes to the writer without a chunk; see `_until`."""
        pipeline = self._pipeline
        held = pipeline.held_bytes + pipeline.outside_bytes + size
        if not pipeline.part.fits(held):
            return float("inf"), held
        return pipeline.throttle.charge(records, size, divisible=False), 0

    def _allow(self, size: int) -> None:
        """Under the mutex: ``size`` more bytes may be appended, for which there is room, or more than that
        where that costs nobody anything. A log with rates is asked about each record."""
        pipeline, chunk = self._pipeline, self._chunk
        if pipeline.over is not None:
            return  # nothing more is granted to it
        used = self._handed_bytes + chunk.bytes
        limit = used + size
        if not pipeline.throttle.rated:
            more = min(max(limit, GROWTH * used, FREE_BYTES), BUFFER_BYTES_MAX)
            if pipeline.part.fits(pipeline.held_bytes + more):
                limit = max(limit, more)
            else:
                limit = max(limit, min(more, pipeline.part.left(pipeline.held_bytes)))
        chunk.left_bytes, chunk.bytes_max = limit - used, limit - self._handed_bytes
        pipeline.outside_bytes = limit
        pipeline.reserve()

    async def commit(self) -> DLSN | None:
        """As `LogWriter.commit`, for all that was appended before."""
        await self._drained()
        return await self.writer.commit()

    async def flush(self) -> None:
        """As `LogWriter.flush`; waits for the writer's room."""
        await self._drained()
        await self.writer.flush()

    async def aclose(self) -> None:
        """As `LogWriter.aclose`, for all that was appended before."""
        await self._end(self.writer.aclose)

    async def mark_end_of_stream(self) -> None:
        """As `LogWriter.mark_end_of_stream`, for all that was appended before."""
        await self._end(self.writer.mark_end_of_stream)

    async def abort(self) -> None:
        """As `LogWriter.abort`."""
        self._given_up = True
        self._close()
        try:
            await self.writer.abort()
        finally:
            self._scope.cancel()

    async def drop(self) -> None:
        """As `abort`, for a writer that was dropped unclosed. The exit reports records that are lost."""
        await settle_dropped(self._background, self)
        await self.abort()

    async def settle(self) -> None:
        """Wait until the outcome of each record is known. Raises no `DistributedLogError`."""
        with suppress(DistributedLogError):
            await self.commit()

    @property
    def not_durable(self) -> int:
        """How many records were taken and are not known to be durable; 0 where its owner has given it up."""
        if self._given_up:
            return 0
        waiting = [chunk for chunk in (self._chunk, self._handing) if chunk is not None]
        found = self._failed + sum(len(chunk.records) >> 1 for chunk in waiting)
        return found + sum(bulk.not_durable for bulk in list(self._handed))

    async def _end(self, end_it: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self._close():
                await self._drained()
            await end_it()
            self._given_up = True  # each refused record has raised its error
        except BaseException:
            await self.writer.abort()  # what was cancelled before it began to end, too
            raise
        finally:
            self._scope.cancel()

    def _close(self) -> bool:
        before, self._closed = self._closed, True
        self._pipeline.throttle.wake_waiters()
        return before

    async def _drained(self) -> None:
        self._look()
        await self._idle.wait()

    def _look(self) -> None:
        if self._chunk.records:
            self._on_append()

    def _on_append(self) -> None:
        if self._over:  # posted in the last moment, for what was refused, or by an interrupted call
            self._refuse(self._chunk)
            return
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def _raise_if_over(self) -> None:
        over = self.writer.over
        if over is not None:
            raise over.again()
        self._background.check_running()
        raise AlreadyClosed(f'log "{self.name}": this writer is closed')

    def on_forked(self) -> None:
        """In a forked child: a thread of the parent may have held the mutex, and it is not here (H15)."""
        self._mutex = Mutex()
        self._entered = False
        self._closed = True


async def settle_dropped(background: Background, taken: "WriteBuffer | TakenBytes") -> None:
    """Wait for the records of a dropped writer, and note those that are not known to be durable."""
    with trio.move_on_after(DROPPED_WAIT_S):
        await taken.settle()
    background.lose(taken)


class TakenBytes:
    """The records of a byte writer, for the end of its namespace or of the interpreter."""

    __slots__ = ("__weakref__", "_background", "_ended", "_writer", "name")

    def __init__(self, writer: ByteWriter, background: Background) -> None:
        self.name = writer.name
        self._writer = writer
        self._background = background
        self._ended = False
        """By its owner, who knows."""
        writer.settled_by_owner()
        background.watch_writes(self)

    async def aclose(self) -> None:
        """As `ByteWriter.aclose`."""
        await self._writer.aclose()
        self._ended = True

    async def abort(self) -> None:
        """As `ByteWriter.abort`."""
        self._ended = True
        await self._writer.abort()

    async def drop(self) -> None:
        """As `abort`, for a writer that was dropped unclosed. The exit reports records that are lost."""
        await settle_dropped(self._background, self)
        await self.abort()

    async def settle(self) -> None:
        """Wait until the outcome of each record is known. Raises no `DistributedLogError`."""
        with suppress(DistributedLogError):
            await self._writer.flush()

    @property
    def not_durable(self) -> int:
        """How many records were taken and are not known to be durable; 0 after its owner has ended it."""
        return 0 if self._ended else self._writer.not_durable


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
