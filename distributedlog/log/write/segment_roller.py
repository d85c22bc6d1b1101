"""The segments under a writer: made ready, rolled, replaced, completed.

A roll (H11): near its end the next segment is created and registered while this one is written on. The writer
goes over to it at the first moment when nothing is in flight, once readers have had time to open it too; when
this one is full it sends nothing more until all of it is acknowledged. After that this one is closed, in the
transaction that also writes where the next one's sequence ids begin. At most two are in progress.

What keeps a next segment from being made ready stops no writes: this one is written on, and it is tried
again. So it is where the next one's ledger fails before anything was sent to it (H150): it is recovered,
empty, and the writer goes over to it only then, to replace it at once.

After a ledger's error the writer recovers its own segment, so that it learns its end: what is below is
acknowledged, what is above is sent again, each once, to the next segment.
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
"""Readers at the log's end are given so long to open the next segment before it is entered."""
ROLL_CHECK_INTERVAL_S = 5.0
"""So often it is looked whether a segment should end for its age or its ledger (H22: within 60 s)."""
CAPACITY_WAIT_S = 1.0
IDLE_CHECK_INTERVAL_S = 0.25
"""How late it may be noticed that a writer has had nothing to write."""
AGE_FACTOR_MIN = 0.9
"""Of the greatest age, what a segment is given at least: logs that are opened together do not roll so."""

log = get_logger("distributedlog.log")


class SegmentRoller:
    """The segment in progress of one writer, the one before it, and the next one."""

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
        """Tells, in this order: entries of a segment up to one are durable; what is in flight must be sent
        again, to another; entries may go; nothing was sent for `keep_alive_s`; the writer is over. None of it
        waits.
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
        """The next one, where it is made ready."""
        self._next_closed_empty = False
        """Its ledger failed, and was recovered: certainly empty."""
        self._readers_ready = False
        """Have readers had time to open the next one? Else it is entered only when this one is full."""
        self._drained_segment: OpenSegment | None = None
        """The one before it, while it waits for its close."""
        self._roll_reason = ""
        self._permit = RollPermit(context.roll_semaphore, self.wake)
        self._prepare_error: DistributedLogError | None = None
        """Why there was no next segment: no error of the writer's."""
        self._capacity_wanted = False
        self._backoff = Backoff(longest_s=RETRY_MAX_S)
        self._failing_since: float | None = None
        self._is_ended = False
        self._apply_options(context.options)
        self.current_target = self._begin_segment(*first_segment)

    conditional_append = None
    """Records that belong together are sent as such."""

    @property
    def can_send(self) -> bool:
        """May an entry go to the segment in progress?"""
        current = self.current_target
        if (
            self.next_segment is not None
            and self._is_usable(self.next_segment)
            and current.is_full(self._options)
        ):
            return False
        return current.ledger.error is None

    def prepare_send(self, *, drained: bool) -> bool:
        """At each turn of the sender: go over to the next segment, or see that one is wanted. Is it
        `can_send` then?"""
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
        """Wait until readers see every record that is confirmed."""
        drained = (
            self._drained_segment
        )  # its last records are readable by their LAC or by its close
        if drained is not None:
            await drained.ledger.flush_lac()
        await self.current_target.ledger.flush_lac()

    def _enter_next(self, next_segment: OpenSegment) -> None:
        """To the next segment; all of this one is acknowledged."""
        current = self.current_target
        assert current.is_drained, "readers are told that it ends with what is confirmed"
        current.publish()
        next_segment.continue_after(current)
        self._context.meters.rolls += 1
        self._drained_segment, self.current_target, self.next_segment = current, next_segment, None
        self._wake.set()

    def _is_usable(self, next_segment: OpenSegment) -> bool:
        """May the writer go over to it? Else it writes on where it is."""
        return next_segment.ledger.error is None or self._next_closed_empty

    def _check_segment(self) -> None:
        """Is a next one wanted, for whatever reason?"""
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
        """A ledger has an error, or there is a permit to roll."""
        self._wake.set()

    def wake_on_capacity(self) -> None:
        """The ledger's window is full: have the sender woken when it is not."""
        self._capacity_wanted = True
        self._wake.set()

    def abort(self) -> None:
        """Send nothing more. Synchronous and idempotent."""
        # A step that waits may come back in this very turn, before it is cancelled.
        self._is_ended = True
        self._release()
        for segment in (self._drained_segment, self.current_target, self.next_segment):
            if segment is not None:
                segment.ledger.abort()

    async def run(self) -> None:
        """Do what is due, until cancelled or the writer is over."""
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
                    while await self._run_step():  # what is due may be more than one thing
                        pass
                self._backoff.reset()
            except DistributedLogError as error:
                if error is not self._prepare_error and (
                    not (is_retryable(error) or isinstance(error, OverQuota))
                    or self._has_failed_too_long()
                ):
                    self._on_failed(error)
                    return
                log.warning('log "%s": %s; it is tried again', self._writer_state.state.name, error)
                await trio.sleep(self._backoff.next_s())
                self._wake.set()

    async def finish(
        self, final_change: Callable[[LogState], LogState] = LogState.without_owner
    ) -> None:
        """Complete the segment in progress and give the log up. All writes are settled.

        ``then`` is what becomes of the log in the transaction that closes its last segment.

        The caller sets the deadline; until then what is retryable is tried again.
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

    # --- steps, each may be repeated after any failure ----------------------------------------------

    async def _run_step(self) -> bool:
        """Do one of the things that are due; False: there was none."""
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
        """What fails here ends no writer, unless the log is not ours any more: this segment is written on."""
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
            await self._wake.wait()  # whatever else is to be done is more urgent
        self._readers_ready = True
        self._on_sendable()

    async def _close_failed_next(self, next_segment: OpenSegment) -> None:
        """The next one's ledger failed before anything was sent to it: make certain that it is empty."""
        self._permit.release()  # who knows how long that takes
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
        self._failing_since += trio.current_time() - started  # other logs were recovered
        try:
            with trio.move_on_at(self._failing_since + timeout_s) as scope:
                await self._replace_current()
                self._failing_since = None
        finally:
            self._recovery_semaphore.release(is_final=self._failing_since is None)
        if scope.cancelled_caught:
            raise error.again()

    async def _replace_current(self) -> None:
        """The segment in progress failed: make its end certain, acknowledge or take back, go on."""
        segment = self.current_target
        await self._writer_state.refresh()
        await self._complete_drained()
        ledger = await self._ledgers.recover(segment.record.ledger_id)
        self._check_not_ended()  # else what was in flight is nobody's any more
        assert ledger.last_entry is not None, "a recovered ledger knows its end"
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
        """Close a segment whose entries are all acknowledged, ledger and log in one transaction."""
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
            # Somebody recovered the ledger without taking the log, or it failed after its last
            # acknowledged entry: recovery finds all that we know of.
            await self._writer_state.refresh()
            closed = await self._ledgers.recover(segment.record.ledger_id)
            await close(segment.record, await read_end(self._ledgers, segment.record, closed))
        ledger.abort()

    async def _close_all(self, final_change: Callable[[LogState], LogState]) -> None:
        if self.next_segment is not None:
            self.prepare_send(drained=True)
        await self._complete_drained()
        if self.next_segment is not None:  # of the two ledgers one has failed
            await self._close(self.current_target)
            self.next_segment.continue_after(self.current_target)
            self.current_target, self.next_segment = self.next_segment, None
        await self._close(self.current_target, final_change)
        if self._writer_state.state.in_progress:
            # A registration whose outcome was not known: it went through before the close.
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
            except Exception as error:  # this is a call of a connection that other logs share
                self._fail_internal(error)

        writer = self._ledgers.writer(
            ledger, on_confirmed=on_confirmed, on_failed=lambda _: self.wake()
        )
        age_factor = self._context.random.uniform(AGE_FACTOR_MIN, 1.0)
        # Nothing is confirmed before something is sent to it.
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
    """Calls back when one writer has sent nothing for so long; costs nothing while it is off."""

    def __init__(
        self,
        periodic_checks: PeriodicChecks,
        *,
        sent_marker: Callable[[], object],
        on_idle: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """``sent``: something that is another with each entry; ``on_quiet``: nothing was sent for so long."""
        self._periodic_checks = periodic_checks
        self._check = PeriodicCheck(self._check_idle, on_error)
        self._sent_marker = sent_marker
        self._on_idle = on_idle
        self._interval_s = 0.0
        self._last_marker: object = None
        self._last_sent_at = 0.0

    def set_interval(self, interval_s: float) -> None:
        """Look from now on; 0: not any more."""
        if interval_s and not self._interval_s:
            self._last_marker, self._last_sent_at = self._sent_marker(), trio.current_time()
            self._periodic_checks.add(self._check)
        self._interval_s = interval_s

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self._interval_s = 0.0
        self._periodic_checks.remove(self._check)

    def _check_idle(self) -> bool:
        marker, now = self._sent_marker(), trio.current_time()
        if marker != self._last_marker:
            self._last_marker, self._last_sent_at = marker, now
        elif self._interval_s and now - self._last_sent_at >= self._interval_s:
            self._on_idle()
        return self._interval_s > 0
