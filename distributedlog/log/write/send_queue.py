"""The batches between a writer's callers and its ledger: open, ready and in flight.

Batching adapts to the load without a timer. While few entries are in flight, the buffered records are sent at
the end of the event-loop iteration. While the writer is busy, the open batch grows up to ``entry_bytes_max``.
One task sends for all writers of a process, once per iteration
(`distributedlog/runtime/schedule/call_scheduler.py`). The first error is permanent.

The accepted bytes that are not durable yet are limited, per log and per process (`memory_budget.py`), and a
log can have rates. Above a limit the caller waits or is rejected. Each record is compared with only one
number, the size up to which the open batch may grow. It is low if a limit is near, and then
`SendQueue.try_reserve` decides.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

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
"""While many logs are busy, one in this many entries of a log is timed. Timing each one-record entry would
be a tenth of its cost."""


class EntryTarget(Protocol):
    """The destination of entries: a segment (`OpenSegment`), or a stream to a proxy that owns the log."""

    @property
    def has_capacity(self) -> bool:
        """Whether it accepts another entry now."""
        ...

    @property
    def segment_number(self) -> int:
        """The number of the segment."""
        ...

    @property
    def position(self) -> tuple[DLSN, int]:
        """The position and the sequence ID after the last confirmed record."""
        ...

    @property
    def needs_snapshot(self) -> bool:
        """Whether the next entry must be a snapshot of the log's producers."""
        ...

    def send(
        self, batch: EntryBatch, written_ms: int, producers: ProducerStateManager | None = None
    ) -> None:
        """Send a batch and set its entry ID, which is greater than all before.

        Raises:
            DistributedLogError: The batch cannot be sent.
        """
        ...

    def confirm(self, batch: EntryBatch) -> None:
        """Finish a durable batch."""
        ...

    def publish(self) -> None:
        """Make the confirmed entries readable."""
        ...


ConditionalAppend = Callable[[DLSN, Any, int | None], Awaitable[DLSN]]
"""Called with the expected position, a payload or `KeyedContent`, and its transaction ID or None."""


class EntrySink(Protocol):
    """The sink of a writer's entries: the log's segments (`SegmentRoller`), or a proxy."""

    @property
    def current_target(self) -> EntryTarget:
        """The present destination of entries."""
        ...

    @property
    def can_send(self) -> bool:
        """Whether an entry can be sent to it now."""
        ...

    @property
    def next_segment(self) -> object | None:
        """The prepared next segment, for which `prepare_send` must be called. None if there is none."""
        ...

    @property
    def conditional_append(self) -> "ConditionalAppend | None":
        """Appends a record directly after another one.

        None if the writer itself does that and accepts frames (`SequencedWriter.append_batch`).
        """
        ...

    def prepare_send(self, *, drained: bool) -> bool:
        """Prepare the next send, and return `can_send`. ``drained`` states that no batch is in flight."""
        ...

    def wake(self) -> None:
        """Check for due work, because the destination has failed or may have."""
        ...

    def wake_on_capacity(self) -> None:
        """Wake the sender when the destination accepts entries again."""
        ...

    async def make_readable(self) -> None:
        """Wait until readers can see every confirmed record.

        Raises:
            RequestTimeout: It is unknown whether they can.
        """
        ...

    async def permit_record_headers(self) -> None:
        """Permit keys and headers, if `conditional_append` is not None: a proxy owns the log.

        Raises:
            InvalidRequest: The log accepts none.
            UnsupportedFormat: The proxy has an older version.
            DistributedLogError: The proxies do not answer.
        """
        ...

    def abort(self) -> None:
        """Stop sending. Synchronous and idempotent."""
        ...

    async def run(self) -> None:
        """Run due work until cancelled, or until the writer has ended."""
        ...

    async def finish(self, final_change: Callable[[LogState], LogState]) -> None:
        """Close the log. All writes have an outcome. ``final_change`` is applied to the log's state."""
        ...


class SendQueue:
    """The accepted records of one writer that are not durable yet.

    All methods except the waits are synchronous.
    """

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
        "end_error",
        "error",
        "has_write_buffer",
        "is_direct_write",
        "last_durable_batch",
        "limits",
        "name",
        "needs_slow_path",
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
        """Start with an empty open batch.

        Args:
            state: The log's state after the takeover.
            make_sink: Makes the destination of the entries.
            on_failed: Called when the writer has failed.
        """
        self.name = state.name
        self.needs_slow_path = False
        """Whether the next submit must call `before_submit`: the queue is full, closed or failed, or other
        tasks must run."""
        self.is_direct_write = False
        """Whether `LogWriter.write` itself sends the record that it submits, so that no task is woken for
        it."""
        self.error: DistributedLogError | None = None
        """The error that ended the writer. Permanent."""
        self.end_error: DistributedLogError | None = None
        """The error of further calls, once the writer has failed or was closed."""
        self.txids_given = False
        """Whether the records of the open batch have transaction IDs. Used with proxies, which assign the
        omitted ones."""
        self.sent_bytes = 0
        """The bytes of sent batches. A batch that is sent again counts again."""
        self.limits = context.current_options
        """The present options, updated by the watch of the log's settings."""
        self.throttle = WriteThrottle(self.limits)
        """The log's rates, and the calls that wait for free space."""
        self.budget_share = context.memory_budget.create_share(self.throttle.wake_waiters)
        """The log's share of the process's memory budget."""
        self.write_buffer_bytes = 0
        """The bytes that a `WriteBuffer` before this queue has accepted, or can accept without a check.
        They count as held."""
        self.has_write_buffer = False
        """Whether there is such a buffer. It enforces the limits, so this queue accepts everything."""
        self._unsettled_queues = context.unsettled_queues
        self._unsettled_queues.add(self)
        self._meters = context.meters
        self._entry_bytes_max = context.options.entry_bytes_max
        self.last_durable_batch: EntryBatch | None = None
        """The newest durable batch with records. None if there is none."""
        self.producers: ProducerStateManager | None = None
        """The producers of the log, of which each entry has a section. None if the log never had one."""
        self._producer_opening: EntryBatch | None = None  # the newest opening of a producer
        self._reserve_order = trio.Lock()  # the calls that wait for capacity, in their order
        self._waiter_count = 0  # their number
        self._now_ms = LogClock(context.clock_ms, self.name, state.time_ms).now_ms
        self._on_failed = on_failed
        self._scheduler = context.call_scheduler
        self._scheduled_send = ScheduledCall(context.call_scheduler, self.send, self._fail_internal)
        # Batches that were closed by size, or returned from a failed segment.
        self._ready: deque[EntryBatch] = deque()
        self._in_flight: deque[EntryBatch] = deque()  # in the open segment, in entry order
        self._timed_batch: EntryBatch | None = None  # the batch in flight that is timed
        self._timed_since = 0.0
        self._closed_bytes = 0  # of the batches that are ready or in flight
        self._newest_closed: EntryBatch | None = None
        self.batch = self._new_batch()
        """The open batch. `LogWriter.submit` appends to it, up to its ``bytes_max``."""
        if context.followed_log is not None:
            context.followed_log.subscribe(self._update_limits)
        # Last, because the sink may call back during its creation.
        self.sink = make_sink(self)
        """The destination of the entries."""

    def leave_settling_to_caller(self, *, buffered: bool = False) -> None:
        """Do not wait for the records of this writer when the namespace is closed. The caller does that.

        Args:
            buffered: The caller's buffer enforces the limits, and this queue accepts everything.
        """
        self._unsettled_queues.discard(self)
        self.has_write_buffer = buffered

    # --- for the writer's callers -----------------------------------------------------------------

    def close_batch(self) -> EntryBatch:
        """Close the open batch, send as many batches as possible, and return the new open one."""
        self._make_ready()
        self.needs_slow_path = True  # the next submit yields once, so that the sender can run
        if self.sink.can_send:
            self._send_ready()
        return self.batch

    def send_open(self) -> None:
        """Close the open batch if it has a record, and send as many batches as possible."""
        self.raise_if_over()
        if self.batch.txids:
            self.close_batch()

    def _make_ready(self) -> None:
        """Close the open batch, which must have a record, and open the next one."""
        batch = self.batch
        self._newest_closed = batch
        batch.has_given_txids = self.txids_given
        if self.producers is not None:
            self.producers.close_batch(batch)
        self._ready.append(batch)
        self._closed_bytes += batch.size_bytes
        self.batch = self._new_batch()

    def open_producer(self, batch: EntryBatch) -> None:
        """Send a batch with the opening of a producer, after all accepted records."""
        if self.batch.txids:
            self.close_batch()
            self.raise_if_over()
        self._producer_opening = batch
        self._ready.append(batch)
        if self.sink.can_send:
            self._send_ready()

    async def before_submit(self) -> None:
        """Yield at least once, and wait while the queue is full.

        Raises:
            TooBusy: The queue is full, and the log rejects records above a limit.
            DistributedLogError: The writer has ended.
        """
        self.raise_if_over()
        await trio.lowlevel.checkpoint()
        while True:
            self.raise_if_over()
            full = self._closed_bytes >= self.limits.in_flight_bytes_max
            if not full and not self._waiter_count:
                self.needs_slow_path = False
                return
            if full and self._rejects_above_limit:
                raise self._too_busy_error(f"{self._closed_bytes} bytes are not durable yet")
            await self.throttle.wait_space()

    def try_reserve(self, records: int, size: int, *, divisible: bool = False) -> bool:
        """Make space for records in the open batch, without waiting.

        If the entry would be too large, the open batch is closed first. Accepted records are charged to the
        log's rates, and the caller must add them at once.

        Args:
            records: The number of records.
            size: Their bytes, as counted in an entry.
            divisible: Whether the caller can add fewer records instead.
        Returns:
            False if the caller must call `wait_capacity` first.
        Raises:
            DistributedLogError: The writer has ended.
        """
        batch = self.batch
        if batch.txids and batch.size_bytes + size > self._entry_bytes_max:
            batch = self.close_batch()
            self.raise_if_over()  # sending the batch may have ended the writer
        needed_bytes = batch.size_bytes + size
        if self.has_write_buffer:
            batch.bytes_max = max(needed_bytes, self._entry_bytes_max)
            return True
        budget_share = self.budget_share
        if not budget_share.try_reserve(self._closed_bytes + needed_bytes):
            return False
        if self.throttle.has_rate:
            batch.bytes_max = 0  # so that each call is charged here
            return self.throttle.charge(records, size, divisible=divisible) <= 0
        if self._closed_bytes:  # the log is busy, so the rest of the entry is likely to be needed
            budget_share.prefetch(self._closed_bytes + self._entry_bytes_max)
        available_bytes = budget_share.available(self._closed_bytes)
        batch.bytes_max = max(needed_bytes, min(self._entry_bytes_max, available_bytes))
        return True

    def try_reserve_batch(self, records: int, size: int) -> bool:
        """Reserve space for a frame as `try_reserve`.

        It overtakes no waiting call, and fails if the limit is reached.
        """
        if self._waiter_count or self._closed_bytes >= self.limits.in_flight_bytes_max:
            return False
        return self.try_reserve(records, size)

    async def wait_batch_capacity(self, records: int, size: int) -> None:
        """Wait until `try_reserve_batch` may succeed, as `wait_capacity`."""
        await self.before_submit()
        total_bytes = self.unacked_bytes + size
        if (
            not self.budget_share.try_reserve(total_bytes)
            or self.throttle.wait_s(records, size) > 0
        ):
            await self.wait_capacity(records, size)

    async def wait_capacity(self, records: int, size: int) -> None:
        """Wait until `try_reserve` may succeed, in the order of the calls.

        Call that again without a checkpoint between. It can still fail, because other tasks write, too.

        Raises:
            TooBusy: The log rejects records above a limit.
            DistributedLogError: The writer has ended.
        """
        self.is_direct_write = False  # other tasks can submit during the wait
        self.needs_slow_path = True  # so that they wait after this call
        self._waiter_count += 1
        try:
            if self._rejects_above_limit:
                self.trim_reservation()  # releases bytes that were granted before the rate check failed
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
        self.limits = limits
        self.throttle.set_limits(limits)
        if self.throttle.has_rate and not self.has_write_buffer:
            self.batch.bytes_max = 0

    @property
    def unacked_bytes(self) -> int:
        """The accepted bytes that are not durable yet, including the open batch."""
        return self._closed_bytes + self.batch.size_bytes

    def trim_reservation(self) -> None:
        """Return unneeded bytes to the process's memory budget."""
        budget_share = self.budget_share
        budget_share.release_to(self.unacked_bytes + self.write_buffer_bytes)
        if not self.has_write_buffer and self.batch.bytes_max:
            self.batch.bytes_max = min(
                self._entry_bytes_max, budget_share.available(self._closed_bytes)
            )

    async def settle(self) -> DLSN | None:
        """Wait until the newest batch is durable, publish the LAC, and return the last DLSN.

        None if no record was written. Raises the error of the batch.
        """
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
        """Wait until the newest batch is durable and readable, and return the last DLSN.

        None if no record was written.

        Raises:
            RequestTimeout: The records are durable, but may not be readable yet.
            DistributedLogError: The error of the batch or of the writer.
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
        """The number of accepted records that are not known to be durable."""
        return sum(len(batch.txids) for batch in (self.batch, *self._ready, *self._in_flight))

    def raise_if_over(self) -> None:
        """Raise the error that ended the writer, if it has ended."""
        if self.end_error is not None:
            raise self.end_error.again()

    def _new_batch(self) -> EntryBatch:
        entry_bytes_max = self._entry_bytes_max
        if self.throttle.has_rate or self.has_write_buffer:
            return EntryBatch(entry_bytes_max if self.has_write_buffer else 0)
        budget_share = self.budget_share
        available_bytes = (
            budget_share.free_bytes + budget_share.granted - self._closed_bytes
        )  # as `BudgetShare.available`
        return EntryBatch(available_bytes if available_bytes < entry_bytes_max else entry_bytes_max)

    @property
    def _rejects_above_limit(self) -> bool:
        return self.limits.at_limit == "reject" and not self.has_write_buffer

    def _too_busy_error(self, reason: str) -> TooBusy:
        return TooBusy(f'log "{self.name}": {reason} (nothing was accepted, the writer stays open)')

    def _limit_reason(self, records: int, size: int) -> str:
        if self.throttle.wait_s(records, size) > 0:
            return f"{records} records of {size} bytes are above the log's rate"
        return f"this process has {self.budget_share.budget.granted_bytes} bytes that are not durable yet"

    def close(self, reason: str) -> None:
        """Accept no more records. The accepted ones are still sent."""
        self.needs_slow_path = True
        self.throttle.wake_waiters()
        if self.end_error is None:
            self.end_error = AlreadyClosed(f'log "{self.name}": {reason}')

    # --- sending ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a send, because a batch has its first record, or entries may be sendable again."""
        if not self.is_direct_write:
            self._scheduled_send.schedule()

    def _fail_internal(self, error: Exception) -> None:
        self.fail(to_internal_error(f'the writer of log "{self.name}"', error))

    def keep_alive(self) -> None:
        """Send an entry without records if the writer is idle, so that readers see that it is alive."""
        if not (self.end_error or self._in_flight or self._ready or self.batch.txids):
            self._ready.append(EntryBatch())
            if self.sink.can_send:
                self._send_ready()

    @property
    def has_unsent(self) -> bool:
        """Whether there is something to send."""
        return bool(self._ready or self.batch.txids)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is buffered or in flight and the queue is open, so that a record would be sent
        alone."""
        return not (self.needs_slow_path or self._in_flight or self._ready or self.batch.txids)

    def send(self) -> int:
        """Send as many batches as possible and return their bytes.

        Synchronous, so no other task runs in between.
        """
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
            # The sender closed the batch, so callers need not yield, unless the limit is reached.
            if self._closed_bytes >= limits.in_flight_bytes_max:
                self.needs_slow_path = True
        self._send_ready()
        return self.sent_bytes - sent_before

    def _send_ready(self) -> None:
        """Send the ready batches, of which there is at least one, while the sink accepts them."""
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
                sink.wake()  # it handles the ledger's error
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

    # --- calls of the ledger and the roller -------------------------------------------------------

    def handle_confirmed(self, segment: EntryTarget, lac: int) -> None:
        """Finish the batches of a segment up to the entry ``lac``, which are durable."""
        if segment is not self.sink.current_target:
            return
        in_flight, meters = self._in_flight, self._meters
        while in_flight:
            batch = in_flight[0]
            if batch.entry > lac:
                break
            # It is removed after its outcome is set, so that an error before that fails it, too.
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
        # Send the records buffered in the meantime. Their entry carries the LAC.
        if self.batch.txids or self._ready or self.sink.next_segment is not None:
            self.send()

    def record_separate_write(self, batch: EntryBatch) -> None:
        """Count a batch that the sink stored separately, when all earlier batches were durable."""
        if (
            self._newest_closed is None or self._newest_closed.is_done
        ):  # otherwise `settle` waits for that one
            self._newest_closed = batch
        meters = self._meters
        meters.entries_written += 1
        meters.records_written += batch.count
        meters.bytes_written += batch.size_bytes

    def return_to_queue(self) -> None:
        """Take back the batches in flight, because the segment ended before them. They are sent again in
        order (H11).

        A snapshot is dropped, because it includes batches that were cut off. The next segment starts with its
        own snapshot.
        """
        while self._in_flight:
            batch = self._in_flight.pop()
            batch.entry = -1
            if batch.producer_section is None or batch.producer_section.table is None:
                self._ready.appendleft(batch)
            elif batch is self._timed_batch:
                self._timed_batch = None

    def fail(self, error: DistributedLogError) -> None:
        """End the writer with its first error, which becomes the error of all open writes."""
        if self.error is None:
            if error.retryable:
                error = WriteFailed(f'log "{self.name}": {error}')
            self.error = error
            self._meters.writers_failed += 1
            self.end_error = self.end_error or error
            self.sink.abort()
        self.needs_slow_path = True
        in_flight_error = self.error
        if (
            in_flight_error.definite
        ):  # it only applies to the last request, and sent batches may be stored anyway (G7)
            in_flight_error = WriteFailed(
                f'log "{self.name}": {in_flight_error}; sent records may be stored'
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
"""Makes a writer's sink, which reports the outcomes of the entries to the queue."""
