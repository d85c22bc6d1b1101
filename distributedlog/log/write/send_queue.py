"""The batches between a writer's caller and its ledger: open, ready, in flight.

Batching adapts without a timer: while few entries are in flight, what gathered is sent at the end of the
loop turn; while the pipeline is busy the batch grows up to ``entry_bytes_max``. One task sends for all
pipelines of a process, once a turn (`distributedlog/runtime/schedule/call_scheduler.py`). The first error
sticks.

What is not yet durable is bounded in bytes, of the log and of the process (`memory_budget.py`), and a log may
have rates; above a limit the caller waits, or is refused. A record is compared with one number, up to where
the open batch may grow, which is low where a limit is near: then `SendQueue.try_reserve` decides.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ...runtime.interfaces.errors import AlreadyClosed, DistributedLogError, TooBusy, WriteFailed
from ...runtime.schedule.call_scheduler import ScheduledCall
from ..declarations.options import LogOptions
from ..format.dlsn import DLSN
from ..format.log_clock import LogClock
from ..interfaces.error_boundary import to_internal_error
from ..limits.write_throttle import WriteThrottle
from ..model.log_state import LogState
from ..services.log_context import LogContext
from .entry_batch import EntryBatch
from .producer_state_manager import ProducerStateManager

TIMING_SAMPLE_INTERVAL = 16
"""Of the entries of a log, while many logs are busy, one in so many is timed: two looks at the clock for each
lone record would be a tenth of what it costs."""


class EntryTarget(Protocol):
    """What entries are sent to: a segment (`OpenSegment`), or a stream to a proxy that has the log."""

    @property
    def has_capacity(self) -> bool:
        """Does it take another entry now?"""
        ...

    @property
    def segment_number(self) -> int:
        """Of the segment."""
        ...

    @property
    def position(self) -> tuple[DLSN, int]:
        """After the last record that is confirmed, with the sequence id there."""
        ...

    @property
    def needs_snapshot(self) -> bool:
        """Is the next entry to be a snapshot of the log's producers?"""
        ...

    def send(
        self, batch: EntryBatch, written_ms: int, producers: ProducerStateManager | None = None
    ) -> None:
        """Send a batch and give it an entry id, greater than those before. Raises what keeps it from that."""
        ...

    def confirm(self, batch: EntryBatch) -> None:
        """The batch is durable: finish it."""
        ...

    def publish(self) -> None:
        """Make what is confirmed readable."""
        ...


ConditionalAppend = Callable[[DLSN, bytes, int | None], Awaitable[DLSN]]
"""Of the position that is expected, a payload, and its txid where it has one."""


class EntrySink(Protocol):
    """Where the entries of a writer go: the log's segments (`SegmentRoller`), or a proxy."""

    @property
    def current_target(self) -> EntryTarget:
        """What entries are sent to now."""
        ...

    @property
    def can_send(self) -> bool:
        """May an entry go to it now?"""
        ...

    @property
    def next_segment(self) -> object | None:
        """What may follow what entries are sent to, where that must be looked at; None: nothing."""
        ...

    @property
    def conditional_append(self) -> "ConditionalAppend | None":
        """Has a record stored directly after another one; None: the writer does that itself, and takes frames
        (`SequencedWriter.append_batch`)."""
        ...

    def prepare_send(self, *, drained: bool) -> bool:
        """At each turn of the sender. ``drained``: nothing is in flight. Return `can_send`."""
        ...

    def wake(self) -> None:
        """Something is wrong with what entries are sent to, or may be."""
        ...

    def wake_on_capacity(self) -> None:
        """There was no room: have the sender woken when there is."""
        ...

    async def make_readable(self) -> None:
        """Wait until readers see every confirmed record. Raises `RequestTimeout` if that is not known."""
        ...

    def abort(self) -> None:
        """Send nothing more. Synchronous and idempotent."""
        ...

    async def run(self) -> None:
        """Do what is due, until cancelled or the writer is over."""
        ...

    async def finish(self, final_change: Callable[[LogState], LogState]) -> None:
        """Give the log up; all writes are settled. ``then``: what becomes of it."""
        ...


class SendQueue:
    """What one writer has taken and not yet seen durable. Everything but the waits is synchronous."""

    __slots__ = (
        "__weakref__",
        "_closed_bytes",
        "_entry_bytes_max",
        "_in_flight",
        "_meters",
        "_newest_closed",
        "_now_ms",
        "_on_failed",
        "_producer_opening",
        "_ready",
        "_reserve_order",
        "_scheduled_send",
        "_scheduler",
        "_timed_batch",
        "_timed_since",
        "_unsettled_queues",
        "_waiter_count",
        "batch",
        "budget_share",
        "error",
        "has_write_buffer",
        "is_direct_write",
        "last_durable_batch",
        "limits",
        "name",
        "over",
        "pause",
        "producers",
        "sent_bytes",
        "sink",
        "throttle",
        "txids_given",
        "write_buffer_bytes",
    )  # fmt: skip

    def __init__(
        self,
        context: LogContext,
        state: LogState,
        make_sink: "MakeSink",
        on_failed: Callable[[], None],
    ) -> None:
        """``state``: of the log, as it is taken over."""
        self.name = state.name
        self.pause = False
        """The next submit must look up: no room, a turn is due to others, closed, failed."""
        self.is_direct_write = False
        """`LogWriter.write` sends by itself what it is about to submit: nobody need be woken for it."""
        self.error: DistributedLogError | None = None
        """Why the writer has failed; sticks."""
        self.over: DistributedLogError | None = None
        """What the next call raises, once the writer has failed or was closed."""
        self.txids_given = False
        """Do the records of the open batch have txids? Asked behind proxies, which fill in the others'."""
        self.sent_bytes = 0
        """Of batches that went to a segment; those that went again count again."""
        self.limits = context.current_options
        """Those that hold now: told by whoever follows them."""
        self.throttle = WriteThrottle(self.limits)
        """The log's rates, and the callers that wait for free space."""
        self.budget_share = context.memory_budget.create_share(self.throttle.wake_waiters)
        """What this log may hold of the process."""
        self.write_buffer_bytes = 0
        """What a `WriteBuffer` before this one has taken, or may without asking; counts as held."""
        self.has_write_buffer = False
        """There is such a buffer. It keeps the limits: what comes here was taken."""
        self._unsettled_queues = context.unsettled_queues
        self._unsettled_queues.add(self)
        self._meters = context.meters
        self._entry_bytes_max = context.options.entry_bytes_max
        self.last_durable_batch: EntryBatch | None = None
        """The newest one with records that is durable; None: none of this writer is."""
        self.producers: ProducerStateManager | None = None
        """Of a log that has any: each of its entries says what it holds of them."""
        self._producer_opening: EntryBatch | None = None  # the newest opening of a producer
        self._reserve_order = trio.Lock()  # who waits to fit, first come first served
        self._waiter_count = 0  # how many do
        self._now_ms = LogClock(context.clock_ms, self.name, state.time_ms).now_ms
        self._on_failed = on_failed
        self._scheduler = context.call_scheduler
        self._scheduled_send = ScheduledCall(context.call_scheduler, self.send, self._fail_internal)
        # Batches that were closed by size, or returned from a failed segment.
        self._ready: deque[EntryBatch] = deque()
        self._in_flight: deque[EntryBatch] = deque()  # in the segment in progress, in entry order
        self._timed_batch: EntryBatch | None = None  # one at a time of those in flight is timed
        self._timed_since = 0.0
        self._closed_bytes = 0  # of ready and in flight
        self._newest_closed: EntryBatch | None = None  # the newest one that was closed
        self.batch = self._new_batch()
        """The open one: `LogWriter.submit` appends to it, up to its ``bytes_max``."""
        if context.followed_log is not None:
            context.followed_log.subscribe(self._update_limits)
        # Last: the sink calls back, and all that it may call is there now.
        self.sink = make_sink(self)
        """Where the entries go."""

    def leave_settling_to_caller(self, *, buffered: bool = False) -> None:
        """Leave it to the caller to wait for the records when the namespace ends.

        ``buffered``: the caller's buffer keeps the limits, and whatever comes here is taken.
        """
        self._unsettled_queues.discard(self)
        self.has_write_buffer = buffered

    # --- from the caller --------------------------------------------------------------------------

    def close_batch(self) -> EntryBatch:
        """Close the open batch and send what can be sent; returns the new open one."""
        self._make_ready()
        self.pause = True  # the next submit yields once, so that the sender gets its turn
        if self.sink.can_send:
            self._send_ready()
        return self.batch

    def send_open(self) -> None:
        """Close the open batch, if it has a record, and send what can be sent."""
        self.raise_if_over()
        if self.batch.txids:
            self.close_batch()

    def _make_ready(self) -> None:
        """Nothing joins the open batch any more, in which there is something; the next one is open."""
        batch = self.batch
        self._newest_closed = batch
        batch.has_given_txids = self.txids_given
        if self.producers is not None:
            self.producers.close_batch(batch)
        self._ready.append(batch)
        self._closed_bytes += batch.size_bytes
        self.batch = self._new_batch()

    def open_producer(self, batch: EntryBatch) -> None:
        """Send what says that a producer is opened, after all that was taken before."""
        if self.batch.txids:
            self.close_batch()
            self.raise_if_over()
        self._producer_opening = batch
        self._ready.append(batch)
        if self.sink.can_send:
            self._send_ready()

    async def before_submit(self) -> None:
        """The slow way in: yields at least once; raises when the writer is over; waits for room.

        Raises `TooBusy` where the log refuses what is above a limit.
        """
        self.raise_if_over()
        await trio.lowlevel.checkpoint()
        while True:
            self.raise_if_over()
            full = self._closed_bytes >= self.limits.in_flight_bytes_max
            if not full and not self._waiter_count:
                self.pause = False
                return
            if full and self._rejects_above_limit:
                raise self._too_busy_error(f"{self._closed_bytes} bytes are not durable yet")
            await self.throttle.wait_space()

    def try_reserve(self, records: int, size: int, *, divisible: bool = False) -> bool:
        """Make room in the open batch for so much; False: `wait_capacity` first. Waits for nothing.

        The open batch is closed where the entry would be too large. What fits is charged to the log's rates:
        put it in, at once. Raises what ended the writer.
        """
        batch = self.batch
        if batch.txids and batch.size_bytes + size > self._entry_bytes_max:
            batch = self.close_batch()
            self.raise_if_over()  # what it sent may have met the writer's end
        needed_bytes = batch.size_bytes + size
        if self.has_write_buffer:
            batch.bytes_max = max(needed_bytes, self._entry_bytes_max)
            return True
        budget_share = self.budget_share
        if not budget_share.try_reserve(self._closed_bytes + needed_bytes):
            return False
        if self.throttle.has_rate:
            batch.bytes_max = 0  # each call comes here
            return self.throttle.charge(records, size, divisible=divisible) <= 0
        if self._closed_bytes:  # it is busy: the rest of the entry is likely to come
            budget_share.prefetch(self._closed_bytes + self._entry_bytes_max)
        available_bytes = budget_share.available(self._closed_bytes)
        batch.bytes_max = max(needed_bytes, min(self._entry_bytes_max, available_bytes))
        return True

    def try_reserve_batch(self, records: int, size: int) -> bool:
        """As `try_reserve`, of a frame: it passes nobody who waits, and is not taken where the bound is
        reached."""
        if self._waiter_count or self._closed_bytes >= self.limits.in_flight_bytes_max:
            return False
        return self.try_reserve(records, size)

    async def wait_batch_capacity(self, records: int, size: int) -> None:
        """Until `try_reserve_batch` may say yes; as `wait_capacity`."""
        await self.before_submit()
        total_bytes = self.unacked_bytes + size
        if (
            not self.budget_share.try_reserve(total_bytes)
            or self.throttle.wait_s(records, size) > 0
        ):
            await self.wait_capacity(records, size)

    async def wait_capacity(self, records: int, size: int) -> None:
        """Until `try_reserve` may say yes, in the order of the calls: ask it again without a checkpoint
        between.

        Others may have written meanwhile. Raises what ended the writer, and `TooBusy` where the log refuses
        what is above a limit.
        """
        self.is_direct_write = False  # this waits, and others may submit meanwhile
        self.pause = True  # they look up, and wait after this one
        self._waiter_count += 1
        try:
            if self._rejects_above_limit:
                self.trim_reservation()  # what it was granted before its rate refused it
                await trio.lowlevel.checkpoint()
                raise self._too_busy_error(self._limit_reason(records, size))
            async with self._reserve_order:
                await self._wait_until_reservable(records, size)
        finally:
            self._waiter_count -= 1
            self.throttle.wake_waiters()

    async def _wait_until_reservable(self, records: int, size: int) -> None:
        try:
            while True:
                self.raise_if_over()
                only_counted = self.limits.at_limit == "count"
                rate_wait_s = 0.0 if only_counted else self.throttle.wait_s(records, size)
                total_bytes = self.unacked_bytes + size
                if not self.budget_share.try_reserve(total_bytes):
                    self.budget_share.request(total_bytes)
                elif rate_wait_s <= 0:
                    self.budget_share.cancel_request()
                    return
                with trio.move_on_after(rate_wait_s if rate_wait_s > 0 else float("inf")):
                    await self.throttle.wait_space()
        except BaseException:
            self.budget_share.cancel_request()
            self.trim_reservation()
            raise

    def _update_limits(self, limits: LogOptions) -> None:
        """They are others from now on: nobody waits for what they were."""
        self.limits = limits
        self.throttle.set_limits(limits)
        if self.throttle.has_rate and not self.has_write_buffer:
            self.batch.bytes_max = 0

    @property
    def unacked_bytes(self) -> int:
        """Taken and not yet durable, the open batch included."""
        return self._closed_bytes + self.batch.size_bytes

    def trim_reservation(self) -> None:
        """Give the process back what this log need not hold."""
        budget_share = self.budget_share
        budget_share.release_to(self.unacked_bytes + self.write_buffer_bytes)
        if not self.has_write_buffer and self.batch.bytes_max:
            self.batch.bytes_max = min(
                self._entry_bytes_max, budget_share.available(self._closed_bytes)
            )

    async def settle(self) -> DLSN | None:
        """Wait for the newest batch, publish the LAC; the last DLSN, None for none. Raises its error."""
        if self._producer_opening is not None:
            await self._producer_opening.wait()
        last = self._newest_closed
        if last is None:
            await trio.lowlevel.checkpoint()
            return None
        await last.wait()
        if last.error is not None:
            raise last.error.again()
        self.sink.current_target.publish()
        return last.dlsn(last.count - 1)

    async def commit(self) -> DLSN | None:
        """Wait until the newest batch is durable and readable; return the last DLSN, or None for no record.

        Raises the batch's error, the writer's error, or `RequestTimeout`: durable, perhaps not readable yet.
        """
        last = await self.settle()
        if last is not None:
            try:
                await self.sink.make_readable()
            except DistributedLogError:
                self.raise_if_over()
                raise
        return last

    @property
    def records_left(self) -> int:
        """How many records were taken and are not known to be durable."""
        return sum(len(batch.txids) for batch in (self.batch, *self._ready, *self._in_flight))

    def raise_if_over(self) -> None:
        """Raise what ended the writer."""
        if self.over is not None:
            raise self.over.again()

    def _new_batch(self) -> EntryBatch:
        entry_bytes_max = self._entry_bytes_max
        if self.throttle.has_rate or self.has_write_buffer:
            return EntryBatch(entry_bytes_max if self.has_write_buffer else 0)
        budget_share = self.budget_share
        available_bytes = (
            budget_share.free_bytes + budget_share.granted - self._closed_bytes
        )  # as `LogBytes.left`
        return EntryBatch(available_bytes if available_bytes < entry_bytes_max else entry_bytes_max)

    @property
    def _rejects_above_limit(self) -> bool:
        return self.limits.at_limit == "reject" and not self.has_write_buffer

    def _too_busy_error(self, reason: str) -> TooBusy:
        return TooBusy(f'log "{self.name}": {reason}; nothing was taken, the writer goes on')

    def _limit_reason(self, records: int, size: int) -> str:
        if self.throttle.wait_s(records, size) > 0:
            return f"{records} records of {size} bytes are above the log's rate"
        return f"this process has {self.budget_share.budget.granted_bytes} bytes that are not durable yet"

    def close(self, reason: str) -> None:
        """Take no more records; what was taken goes on."""
        self.pause = True
        self.throttle.wake_waiters()
        if self.over is None:
            self.over = AlreadyClosed(f'log "{self.name}": {reason}')

    # --- to the ledger ----------------------------------------------------------------------------

    def wake(self) -> None:
        """A batch has begun, or something changed that may let entries go."""
        if not self.is_direct_write:
            self._scheduled_send.schedule()

    def _fail_internal(self, error: Exception) -> None:
        self.fail(to_internal_error(f'the writer of log "{self.name}"', error))

    def keep_alive(self) -> None:
        """Nothing was sent for a while: an entry without records says that the writer lives."""
        if not (self.over or self._in_flight or self._ready or self.batch.txids):
            self._ready.append(EntryBatch())
            if self.sink.can_send:
                self._send_ready()

    @property
    def has_unsent(self) -> bool:
        """Is there something to be sent?"""
        return bool(self._ready or self.batch.txids)

    @property
    def is_idle(self) -> bool:
        """Is nothing on its way or gathered, and room? Another record would go alone."""
        return not (self.pause or self._in_flight or self._ready or self.batch.txids)

    def send(self) -> int:
        """Send what the pipeline takes now; return its bytes. Synchronous: nothing slips between."""
        if self.error is not None:
            return 0
        sent_before, in_flight = self.sent_bytes, self._in_flight
        if not self.sink.prepare_send(drained=not in_flight):
            return 0
        if not self._ready:
            limits = self.limits
            if not self.batch.txids or len(in_flight) >= limits.eager_entries:
                return 0
            self._make_ready()
            # It was not a caller that closed it: nobody has to yield, unless the bound is reached.
            if self._closed_bytes >= limits.in_flight_bytes_max:
                self.pause = True
        self._send_ready()
        return self.sent_bytes - sent_before

    def _send_ready(self) -> None:
        """Send what is ready, of which there is something, to a sink that takes it."""
        sink, ready = self.sink, self._ready
        while True:
            segment = sink.current_target
            if not segment.has_capacity:
                sink.wake_on_capacity()
                return
            producers, batch, snapshot = self.producers, ready[0], False
            if producers is not None and segment.needs_snapshot:
                snapshot, batch = True, producers.snapshot(self._in_flight)
            try:
                segment.send(batch, self._now_ms(), producers)
            except DistributedLogError:
                sink.wake()  # it sees the ledger's error
                return
            if not snapshot:
                ready.popleft()
            self._in_flight.append(batch)
            self.sent_bytes += batch.size_bytes
            if (
                not (self._scheduler.is_busy and batch.entry % TIMING_SAMPLE_INTERVAL)
                and self._timed_batch is None
            ):
                self._timed_batch, self._timed_since = batch, trio.current_time()
            if not (ready and sink.can_send):
                return

    # --- from the ledger and the keeper -----------------------------------------------------------

    def handle_confirmed(self, segment: EntryTarget, lac: int) -> None:
        """All entries of the segment up to ``lac`` are durable: tell whoever waits for them."""
        if segment is not self.sink.current_target:
            return
        in_flight, meters = self._in_flight, self._meters
        while in_flight:
            batch = in_flight[0]
            if batch.entry > lac:
                break
            # It leaves when its outcome is known: what breaks here fails it, too.
            if self.producers is not None:
                self.producers.apply_confirmed(batch)
            segment.confirm(batch)
            in_flight.popleft()
            if batch is self._timed_batch:
                self._timed_batch = None
                meters.write_seconds.observe(trio.current_time() - self._timed_since)
            size, count = batch.size_bytes, batch.count
            if count:
                self.last_durable_batch = batch
            self._closed_bytes -= size
            meters.entries_written += 1
            meters.records_written += count
            meters.bytes_written += size
        budget_share = self.budget_share
        if budget_share.granted and not (
            self._closed_bytes
            and not self.has_write_buffer
            and budget_share.retain(self.unacked_bytes, self._entry_bytes_max)
        ):
            self.trim_reservation()
        if self.throttle.space is not None:
            self.throttle.wake_waiters()
        # What gathered while the pipeline was busy goes now: its entry carries the LAC.
        if self.batch.txids or self._ready or self.sink.next_segment is not None:
            self.send()

    def record_separate_write(self, batch: EntryBatch) -> None:
        """The sink had this one stored by itself, when all that was closed before was durable."""
        if (
            self._newest_closed is None or self._newest_closed.is_done
        ):  # else `settle` waits for that one
            self._newest_closed = batch
        meters = self._meters
        meters.entries_written += 1
        meters.records_written += batch.count
        meters.bytes_written += batch.size_bytes

    def return_to_queue(self) -> None:
        """The segment ended below what is in flight: that is sent again, in order, to the next (H11).

        A snapshot is not: it says what was sent before it, which is cut off there, and the next segment
        begins with one of its own.
        """
        while self._in_flight:
            batch = self._in_flight.pop()
            batch.entry = -1
            if batch.producer_section is None or batch.producer_section.table is None:
                self._ready.appendleft(batch)
            elif batch is self._timed_batch:
                self._timed_batch = None

    def fail(self, error: DistributedLogError) -> None:
        """The writer has ended: the first error sticks, and is every open write's."""
        if self.error is None:
            if error.retryable:
                error = WriteFailed(f'log "{self.name}": {error}')
            self.error = error
            self._meters.writers_failed += 1
            self.over = self.over or error
            self.sink.abort()
        self.pause = True
        in_flight_error = self.error
        if (
            in_flight_error.definite
        ):  # of what was asked last; what was sent may be stored all the same (G7)
            in_flight_error = WriteFailed(
                f'log "{self.name}": {in_flight_error}; what was sent may be stored'
            )
        for batch in self._in_flight:
            if not batch.is_done:
                batch.finish(in_flight_error)
        for batch in (*self._ready, self.batch):
            if not batch.is_done:
                batch.finish(self.error)
        self._in_flight.clear()
        self._timed_batch = None
        self._ready.clear()
        self._closed_bytes = 0
        self.batch = self._new_batch()
        self.budget_share.close()
        self.throttle.wake_waiters()
        self._on_failed()


MakeSink = Callable[[SendQueue], EntrySink]
"""Makes a writer's sink, which tells its pipeline what becomes of the entries."""
