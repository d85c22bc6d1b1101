"""Prepare, roll, replace and close the segments of a writer.

A roll (H11): near the end of a segment the next one is created and registered, while the present one is
written. The writer enters the next segment as soon as no entry is in flight and readers have had time to open
it. If the present segment is full, nothing is sent until all its entries are acknowledged. The present
segment is then closed in the transaction that stores the first sequence ID of the next one. At most two
segments are in progress.

If the next segment cannot be prepared, the writer continues in the present one and retries. The same applies
if the ledger of the next segment fails before anything was sent to it (H150). That ledger is recovered, which
proves that it is empty. Only then does the writer enter it, to replace it at once.

After an error of its ledger the writer recovers its own segment to find the end. Entries up to the end are
acknowledged. Entries above it are sent again, each once, to the next segment.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from ...runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    LogNotFound,
    OverQuota,
    VersionConflict,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.schedule.call_scheduler import PeriodicCheck, PeriodicChecks
from ..declarations.options import LogOptions
from ..format.compression import Compression
from ..interfaces.error_boundary import to_internal_error
from ..interfaces.segment_store import NewSegmentLedger
from ..limits.recovery_semaphore import RETRY_MAX_S
from ..limits.roll_semaphore import RollPermit
from ..model.log_state import LogState
from ..model.segment_record import SegmentRecord
from ..model.writer_log_state import WriterLogState, is_retryable
from ..services.log_context import LogContext
from ..takeover.takeover import SegmentOpening, close_segment, read_end
from .open_segment import PREPARE_NEXT_FRACTION, OpenSegment

READER_OPEN_TIME_S = 0.1
"""The time that readers at the end of the log have to open the next segment before the writer enters it."""
ROLL_CHECK_INTERVAL_S = 5.0
"""How often the age and the ledger of a segment are checked for a roll (H22: within 60 s)."""
CAPACITY_WAIT_S = 1.0
IDLE_CHECK_INTERVAL_S = 0.25
"""The greatest delay with which an idle writer is detected."""
AGE_FACTOR_MIN = 0.9
"""The smallest random share of the maximum age that a segment gets, so that logs opened together do not
roll together."""

log = get_logger("distributedlog.log")


class SegmentRoller:
    """The open segment of one writer, the segment before it until it is closed, and the prepared next one."""

    __slots__ = (
        "_backoff",
        "_capacity_wanted",
        "_clock_ms",
        "_compression",
        "_context",
        "_drained_segment",
        "_failing_since",
        "_is_ended",
        "_keep_alive",
        "_ledgers",
        "_next_closed_empty",
        "_on_confirmed",
        "_on_failed",
        "_on_replaced",
        "_on_sendable",
        "_options",
        "_periodic_checks",
        "_permit",
        "_prepare_at_bytes",
        "_prepare_error",
        "_readers_ready",
        "_recovery_semaphore",
        "_roll_check",
        "_roll_reason",
        "_segment_opening",
        "_step_lock",
        "_wake",
        "_writer_state",
        "current_target",
        "next_segment",
    )

    def __init__(
        self,
        context: LogContext,
        writer_state: WriterLogState,
        first_segment: tuple[SegmentRecord, NewSegmentLedger],
        *,
        on_confirmed: Callable[[OpenSegment, int], None],
        on_replaced: Callable[[], None],
        on_sendable: Callable[[], None],
        on_idle: Callable[[], None],
        on_failed: Callable[[DistributedLogError], None],
    ) -> None:
        """Start with the first segment, whose ledger is not written yet.

        No callback waits.

        Args:
            on_confirmed: All entries of a segment up to this one are durable.
            on_replaced: The batches in flight must be sent again, to another segment.
            on_sendable: Entries can be sent again.
            on_idle: Nothing was sent for ``keep_alive_s``.
            on_failed: The writer has ended.
        """
        self._on_confirmed = on_confirmed
        self._on_replaced = on_replaced
        self._on_sendable = on_sendable
        self._on_failed = on_failed
        self._writer_state = writer_state
        self._ledgers = context.ledgers
        self._context = context
        self._compression = Compression(writer_state.state.name, context.options.codec)
        self._clock_ms = context.clock_ms
        self._recovery_semaphore = context.recovery_semaphore
        self._periodic_checks = context.segment_checks
        self._roll_check = PeriodicCheck(self._run_periodic_check, self._fail_internal)
        self._keep_alive = KeepAlive(
            context.idle_checks,
            sent_marker=lambda: (
                self.current_target.segment_number,
                self.current_target.sent_bytes,
            ),
            on_idle=on_idle,
            on_error=self._fail_internal,
        )
        self._wake = trio.Event()
        self._step_lock = trio.Lock()
        self._segment_opening: SegmentOpening | None = None
        self.next_segment: OpenSegment | None = None
        """The next segment, once it is prepared."""
        self._next_closed_empty = False
        """Whether the ledger of the next segment failed and was recovered, so that it is certainly empty."""
        self._readers_ready = False
        """Whether readers have had time to open the next segment. Otherwise it is entered only when the
        present one is full."""
        self._drained_segment: OpenSegment | None = None
        """The previous segment, while it waits to be closed."""
        self._roll_reason = ""
        self._permit = RollPermit(context.roll_semaphore, self.wake)
        self._prepare_error: DistributedLogError | None = None
        """The reason why the next segment could not be prepared. It does not end the writer."""
        self._capacity_wanted = False
        self._backoff = Backoff(longest_s=RETRY_MAX_S)
        self._failing_since: float | None = None
        self._is_ended = False
        self._apply_options(context.options)
        self.current_target = self._begin_segment(*first_segment)

    conditional_append = None
    """None: the writer itself checks expected positions and accepts frames."""

    async def permit_record_headers(self) -> None:
        """Do nothing: the writer itself permits them (`WriterOwnership.permit_record_headers`)."""

    @property
    def can_send(self) -> bool:
        """Whether an entry can be sent to the open segment."""
        current = self.current_target
        if (
            self.next_segment is not None
            and self._is_usable(self.next_segment)
            and current.is_full(self._options)
        ):
            return False
        return current.ledger.error is None

    def prepare_send(self, *, drained: bool) -> bool:
        """Enter the next segment, or check whether one is needed. Called before each send.

        Args:
            drained: No batch is in flight.
        Returns:
            `can_send` after this call.
        """
        if self.next_segment is None:
            current = self.current_target
            if current.sent_bytes >= self._prepare_at_bytes:
                self._check_segment()
            return current.ledger.error is None
        if (
            drained
            and self.current_target.ledger.error is None
            and self._is_usable(self.next_segment)
            and (self._readers_ready or self.current_target.is_full(self._options))
        ):
            self._enter_next(self.next_segment)
        return self.can_send

    async def make_readable(self) -> None:
        """Wait until readers can see every confirmed record."""
        drained = (
            self._drained_segment
        )  # its last records become readable by its LAC or by its close
        if drained is not None:
            await drained.ledger.flush_lac()
        await self.current_target.ledger.flush_lac()

    def _enter_next(self, next_segment: OpenSegment) -> None:
        """Enter the next segment. All entries of the present one are acknowledged."""
        current = self.current_target
        assert current.is_drained, "the segment ends for readers at its last confirmed entry"
        current.publish()
        next_segment.continue_after(current)
        self._context.meters.rolls += 1
        self._drained_segment, self.current_target, self.next_segment = current, next_segment, None
        self._wake.set()

    def _is_usable(self, next_segment: OpenSegment) -> bool:
        """Return whether the writer can enter the next segment. Otherwise it continues in the present one."""
        return next_segment.ledger.error is None or self._next_closed_empty

    def _check_segment(self) -> None:
        if self.next_segment is None and not self._roll_reason:
            self._apply_options(self._context.current_options)
            self._roll_reason = self.current_target.next_segment_reason(self._options)
            if self._roll_reason:
                self._wake.set()

    def _apply_options(self, options: LogOptions) -> None:
        self._options = options
        self._prepare_at_bytes = options.segment_bytes_max * PREPARE_NEXT_FRACTION

    def _run_periodic_check(self) -> bool:
        latest = self._context.current_options
        self._keep_alive.set_interval(latest.keep_alive_s)
        self._compression.update_codec(latest.codec)
        self._check_segment()
        return not self._is_ended

    def _fail_internal(self, error: Exception) -> None:
        self._on_failed(
            to_internal_error(f'the writer of log "{self._writer_state.state.name}"', error)
        )

    def wake(self) -> None:
        """Check for due work, because a ledger has failed or a permit to roll was granted."""
        self._wake.set()

    def wake_on_capacity(self) -> None:
        """Wake the sender when the ledger's window is no longer full."""
        self._capacity_wanted = True
        self._wake.set()

    def abort(self) -> None:
        """Stop sending. Synchronous and idempotent."""
        # A waiting step can resume in the same event-loop iteration, before it is cancelled.
        self._is_ended = True
        self._release()
        for segment in (self._drained_segment, self.current_target, self.next_segment):
            if segment is not None:
                segment.ledger.abort()

    async def run(self) -> None:
        """Run due steps until cancelled, or until the writer has ended."""
        if not self._is_ended:
            self._periodic_checks.add(self._roll_check)
            self._keep_alive.set_interval(self._options.keep_alive_s)
        try:
            await self._run()
        finally:
            self._release()

    def _release(self) -> None:
        self._periodic_checks.remove(self._roll_check)
        self._keep_alive.stop()
        self._permit.release()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                async with self._step_lock:
                    while await self._run_step():  # several steps can be due
                        pass
                self._backoff.reset()
            except DistributedLogError as error:
                if error is not self._prepare_error and (
                    not (is_retryable(error) or isinstance(error, OverQuota))
                    or self._has_failed_too_long()
                ):
                    self._on_failed(error)
                    return
                log.warning('log "%s": %s. Retrying.', self._writer_state.state.name, error)
                await trio.sleep(self._backoff.next_s())
                self._wake.set()

    async def finish(
        self, final_change: Callable[[LogState], LogState] = LogState.without_owner
    ) -> None:
        """Close the segments in progress and release the log. All writes have an outcome.

        Retryable errors are retried. The caller sets the deadline.

        Args:
            final_change: Applied to the log's state in the transaction that closes the last segment.
        """
        self._wake.set()
        async with self._step_lock:
            while True:
                try:
                    await self._close_all(final_change)
                    return
                except DistributedLogError as error:
                    if not is_retryable(error):
                        raise
                await trio.sleep(self._backoff.next_s())

    # --- steps, each of which can be repeated after any failure -------------------------------------

    async def _run_step(self) -> bool:
        """Run one due step. Return False if there was none."""
        next_segment = self.next_segment
        if self._capacity_wanted:
            self._capacity_wanted = False
            with trio.move_on_after(CAPACITY_WAIT_S):
                await self.current_target.ledger.wait_capacity()
            self._on_sendable()
        elif self.current_target.ledger.error is not None:
            await self._replace_with_permit(self.current_target.ledger.error)
        elif self._drained_segment is not None:
            await self._complete_drained()
        elif next_segment is not None:
            if self._is_usable(next_segment):
                return False
            await self._run_nonfatal(lambda: self._close_failed_next(next_segment))
        elif self._roll_reason:
            if not self.current_target.needs_better_ensemble and not self._permit.acquire():
                return False
            log.info(
                'log "%s": next segment, for %s', self._writer_state.state.name, self._roll_reason
            )
            await self._run_nonfatal(self._prepare_next)
        else:
            return False
        return True

    async def _run_nonfatal(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Run a step whose errors do not end the writer, which continues in the present segment.

        Errors that show the loss of the log are the exception.
        """
        try:
            await prepare()
        except DistributedLogError as error:
            self._permit.release()
            if not (error.fatal_to_writer or isinstance(error, LogNotFound | AlreadyClosed)):
                self._prepare_error = error
            raise

    async def _prepare_next(self) -> None:
        self.next_segment, self._next_closed_empty = await self._open_segment(), False
        self._readers_ready, self._roll_reason = False, ""
        with trio.move_on_after(READER_OPEN_TIME_S):
            await self._wake.wait()  # any other step is more urgent
        self._readers_ready = True
        self._on_sendable()

    async def _close_failed_next(self, next_segment: OpenSegment) -> None:
        """Prove that the next segment is empty, after its ledger failed before anything was sent to it."""
        self._permit.release()  # the recovery can take long
        ledger = await self._ledgers.recover(next_segment.record.ledger_id)
        assert ledger.last_entry == -1, "nothing was ever sent to it"
        self._next_closed_empty = True
        self._on_sendable()

    async def _replace_with_permit(self, error: DistributedLogError) -> None:
        started = trio.current_time()
        if self._failing_since is None:
            self._failing_since = started
        timeout_s = self._options.recover_timeout_s
        if not await self._recovery_semaphore.acquire(timeout_s):
            raise error.again()
        self._failing_since += trio.current_time() - started  # without the wait for other logs
        try:
            with trio.move_on_at(self._failing_since + timeout_s) as scope:
                await self._replace_current()
                self._failing_since = None
        finally:
            self._recovery_semaphore.release(is_final=self._failing_since is None)
        if scope.cancelled_caught:
            raise error.again()

    async def _replace_current(self) -> None:
        """Recover the failed open segment, acknowledge or requeue its entries, and continue in the next
        one."""
        segment = self.current_target
        await self._writer_state.refresh()
        await self._complete_drained()
        ledger = await self._ledgers.recover(segment.record.ledger_id)
        self._check_not_ended()  # after the end, the batches in flight have an outcome already
        assert ledger.last_entry is not None, "a recovered ledger has an end"
        self._on_confirmed(segment, ledger.last_entry)
        self._on_replaced()
        segment.ledger.abort()
        end = segment.segment_end()
        assert end.last_entry == ledger.last_entry, "only this writer wrote this ledger"
        await close_segment(self._writer_state, segment.record, end, closed_ms=self._clock_ms())
        if self.next_segment is None:
            self.next_segment = await self._open_segment()
        self.next_segment.continue_after(segment)
        self._context.meters.ledgers_replaced += 1
        self.current_target, self.next_segment, self._roll_reason = self.next_segment, None, ""
        self._permit.release()
        self._on_sendable()

    async def _complete_drained(self) -> None:
        if self._drained_segment is not None:
            await self._close(self._drained_segment)
            self._drained_segment = None
            self._permit.release()

    async def _close(
        self, segment: OpenSegment, final_change: Callable[[LogState], LogState] | None = None
    ) -> None:
        """Close a segment whose entries are all acknowledged: its ledger and its record, in one
        transaction."""
        ledger = segment.ledger
        close = partial(
            close_segment, self._writer_state, closed_ms=self._clock_ms(), final_change=final_change
        )
        try:
            await ledger.wait_settled()
            await close(segment.record, segment.segment_end(), ledger_close_ops=ledger.close_ops)
        except DistributedLogError as error:
            if not isinstance(error, VersionConflict) and error is not ledger.error:
                raise
            # Another client recovered the ledger without taking over the log, or the ledger failed after
            # its last acknowledged entry. Recovery finds all acknowledged entries.
            await self._writer_state.refresh()
            closed = await self._ledgers.recover(segment.record.ledger_id)
            await close(segment.record, await read_end(self._ledgers, segment.record, closed))
        ledger.abort()

    async def _close_all(self, final_change: Callable[[LogState], LogState]) -> None:
        if self.next_segment is not None:
            self.prepare_send(drained=True)
        await self._complete_drained()
        if self.next_segment is not None:  # one of the two ledgers has failed
            await self._close(self.current_target)
            self.next_segment.continue_after(self.current_target)
            self.current_target, self.next_segment = self.next_segment, None
        await self._close(self.current_target, final_change)
        if self._writer_state.state.in_progress:
            # The registration of a next segment had an unknown outcome, and took effect before the close.
            leftover = await self._open_segment()
            leftover.continue_after(self.current_target)
            self.current_target = leftover
            await self._close(self.current_target, final_change)

    async def _open_segment(self) -> OpenSegment:
        if self._segment_opening is None:
            self._segment_opening = SegmentOpening(
                self._writer_state, self._ledgers, self._clock_ms()
            )
        record, ledger = await self._segment_opening.open()
        self._segment_opening = None
        self._check_not_ended()
        return self._begin_segment(record, ledger)

    def _begin_segment(self, record: SegmentRecord, ledger: NewSegmentLedger) -> OpenSegment:
        def on_confirmed(lac: int) -> None:
            try:
                self._on_confirmed(segment, lac)
            except Exception as error:  # a connection that other logs share makes this call
                self._fail_internal(error)

        writer = self._ledgers.writer(
            ledger, on_confirmed=on_confirmed, on_failed=lambda _: self.wake()
        )
        age_factor = self._context.random.uniform(AGE_FACTOR_MIN, 1.0)
        # Nothing is confirmed before the first entry is sent, so the callback has a segment.
        segment = OpenSegment(record, writer, self._compression, age_factor=age_factor)
        return segment

    def _check_not_ended(self) -> None:
        if self._is_ended:
            raise AlreadyClosed(f'log "{self._writer_state.state.name}": the writer has ended')

    def _has_failed_too_long(self) -> bool:
        failing_since = self._failing_since
        return (
            failing_since is not None
            and trio.current_time() >= failing_since + self._options.recover_timeout_s
        )


class KeepAlive:
    """Call back when one writer has sent nothing for an interval. Costs nothing while it is off."""

    def __init__(
        self,
        periodic_checks: PeriodicChecks,
        *,
        sent_marker: Callable[[], object],
        on_idle: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Start switched off.

        Args:
            sent_marker: Returns a value that differs after each sent entry.
            on_idle: Called when nothing was sent for the interval.
        """
        self._periodic_checks = periodic_checks
        self._check = PeriodicCheck(self._check_idle, on_error)
        self._sent_marker = sent_marker
        self._on_idle = on_idle
        self._interval_s = 0.0
        self._last_marker: object = None
        self._last_sent_at = 0.0

    def set_interval(self, interval_s: float) -> None:
        """Set the interval in seconds. 0 switches the check off."""
        if interval_s and not self._interval_s:
            self._last_marker, self._last_sent_at = self._sent_marker(), trio.current_time()
            self._periodic_checks.add(self._check)
        self._interval_s = interval_s

    def stop(self) -> None:
        """Switch the check off. Idempotent."""
        self._interval_s = 0.0
        self._periodic_checks.remove(self._check)

    def _check_idle(self) -> bool:
        marker, now = self._sent_marker(), trio.current_time()
        if marker != self._last_marker:
            self._last_marker, self._last_sent_at = marker, now
        elif self._interval_s and now - self._last_sent_at >= self._interval_s:
            self._on_idle()
        return self._interval_s > 0
