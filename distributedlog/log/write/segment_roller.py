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
from .open_segment import AHEAD, OpenSegment

READERS_S = 0.1
"""Readers at the log's end are given so long to open the next segment before it is entered."""
TICK_S = 5.0
"""So often it is looked whether a segment should end for its age or its ledger (H22: within 60 s)."""
ROOM_WAIT_S = 1.0
QUIET_CHECK_S = 0.25
"""How late it may be noticed that a writer has had nothing to write."""
AGE_SHARE_MIN = 0.9
"""Of the greatest age, what a segment is given at least: logs that are opened together do not roll so."""

log = get_logger("distributedlog.log")


class SegmentRoller:
    """The segment in progress of one writer, the one before it, and the next one."""

    __slots__ = (
        "_ahead_bytes", "_backoff", "_compression", "_context", "_drained", "_keep_alive", "_ledgers",
        "_next_closed", "_on_confirmed", "_on_failed", "_on_replaced", "_on_sendable", "_opening",
        "_options", "_over", "_owned", "_permit", "_readers_told", "_room_wanted", "_round", "_rounds",
        "_trouble_since", "_turn", "_turns", "_unprepared", "_wake", "_wall_ms", "_why_roll", "current",
        "following",
    )  # fmt: skip

    def __init__(
        self,
        context: LogContext,
        owned: WriterLogState,
        first: tuple[SegmentRecord, NewSegmentLedger],
        *,
        on_confirmed: Callable[[OpenSegment, int], None],
        on_replaced: Callable[[], None],
        on_sendable: Callable[[], None],
        on_quiet: Callable[[], None],
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
        self._owned = owned
        self._ledgers = context.ledgers
        self._context = context
        self._compression = Compression(owned.state.name, context.options.codec)
        self._wall_ms = context.wall_ms
        self._turns = context.turns
        self._rounds = context.rounds
        self._round = PeriodicCheck(self._look_round, self._broken)
        self._keep_alive = KeepAlive(
            context.quiet,
            sent=lambda: (self.current.number, self.current.sent_bytes),
            on_quiet=on_quiet,
            broken=self._broken,
        )
        self._wake = trio.Event()
        self._turn = trio.Lock()
        self._opening: SegmentOpening | None = None
        self.following: OpenSegment | None = None
        """The next one, where it is made ready."""
        self._next_closed = False
        """Its ledger failed, and was recovered: certainly empty."""
        self._readers_told = False
        """Have readers had time to open the next one? Else it is entered only when this one is full."""
        self._drained: OpenSegment | None = None
        """The one before it, while it waits for its close."""
        self._why_roll = ""
        self._permit = RollPermit(context.permits, self.wake)
        self._unprepared: DistributedLogError | None = None
        """Why there was no next segment: no error of the writer's."""
        self._room_wanted = False
        self._backoff = Backoff(longest_s=RETRY_MAX_S)
        self._trouble_since: float | None = None
        self._over = False
        self._take_options(context.options)
        self.current = self._begin(*first)

    append_after = None
    """Records that belong together are sent as such."""

    @property
    def sendable(self) -> bool:
        """May an entry go to the segment in progress?"""
        current = self.current
        if (
            self.following is not None
            and self._usable(self.following)
            and current.is_full(self._options)
        ):
            return False
        return current.ledger.error is None

    def look(self, *, drained: bool) -> bool:
        """At each turn of the sender: go over to the next segment, or see that one is wanted. Is it
        `sendable` then?"""
        if self.following is None:
            current = self.current
            if current.sent_bytes >= self._ahead_bytes:
                self._look_at_segment()
            return current.ledger.error is None
        if (
            drained
            and self.current.ledger.error is None
            and self._usable(self.following)
            and (self._readers_told or self.current.is_full(self._options))
        ):
            self._go_over(self.following)
        return self.sendable

    async def make_readable(self) -> None:
        """Wait until readers see every record that is confirmed."""
        drained = self._drained  # its last records are readable by their LAC or by its close
        if drained is not None:
            await drained.ledger.flush_lac()
        await self.current.ledger.flush_lac()

    def _go_over(self, following: OpenSegment) -> None:
        """To the next segment; all of this one is acknowledged."""
        current = self.current
        assert current.drained, "readers are told that it ends with what is confirmed"
        current.publish()
        following.follow(current)
        self._context.meters.rolls += 1
        self._drained, self.current, self.following = current, following, None
        self._wake.set()

    def _usable(self, following: OpenSegment) -> bool:
        """May the writer go over to it? Else it writes on where it is."""
        return following.ledger.error is None or self._next_closed

    def _look_at_segment(self) -> None:
        """Is a next one wanted, for whatever reason?"""
        if self.following is None and not self._why_roll:
            self._take_options(self._context.latest)
            self._why_roll = self.current.why_next(self._options)
            if self._why_roll:
                self._wake.set()

    def _take_options(self, options: LogOptions) -> None:
        self._options = options
        self._ahead_bytes = options.segment_bytes_max * AHEAD

    def _look_round(self) -> bool:
        latest = self._context.latest
        self._keep_alive.follow(latest.keep_alive_s)
        self._compression.follow(latest.codec)
        self._look_at_segment()
        return not self._over

    def _broken(self, error: Exception) -> None:
        self._on_failed(to_internal_error(f'the writer of log "{self._owned.state.name}"', error))

    def wake(self) -> None:
        """A ledger has an error, or there is a permit to roll."""
        self._wake.set()

    def wait_room(self) -> None:
        """The ledger's window is full: have the sender woken when it is not."""
        self._room_wanted = True
        self._wake.set()

    def abort(self) -> None:
        """Send nothing more. Synchronous and idempotent."""
        # A step that waits may come back in this very turn, before it is cancelled.
        self._over = True
        self._leave()
        for segment in (self._drained, self.current, self.following):
            if segment is not None:
                segment.ledger.abort()

    async def run(self) -> None:
        """Do what is due, until cancelled or the writer is over."""
        if not self._over:
            self._rounds.join(self._round)
            self._keep_alive.follow(self._options.keep_alive_s)
        try:
            await self._run()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._rounds.leave(self._round)
        self._keep_alive.end()
        self._permit.give_back()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                async with self._turn:
                    while await self._step():  # what is due may be more than one thing
                        pass
                self._backoff.reset()
            except DistributedLogError as error:
                if error is not self._unprepared and (
                    not (is_retryable(error) or isinstance(error, OverQuota))
                    or self._in_trouble_too_long()
                ):
                    self._on_failed(error)
                    return
                log.warning('log "%s": %s; it is tried again', self._owned.state.name, error)
                await trio.sleep(self._backoff.next_s())
                self._wake.set()

    async def finish(self, then: Callable[[LogState], LogState] = LogState.released) -> None:
        """Complete the segment in progress and give the log up. All writes are settled.

        ``then`` is what becomes of the log in the transaction that closes its last segment.

        The caller sets the deadline; until then what is retryable is tried again.
        """
        self._wake.set()
        async with self._turn:
            while True:
                try:
                    await self._finish(then)
                    return
                except DistributedLogError as error:
                    if not is_retryable(error):
                        raise
                await trio.sleep(self._backoff.next_s())

    # --- steps, each may be repeated after any failure ----------------------------------------------

    async def _step(self) -> bool:
        """Do one of the things that are due; False: there was none."""
        following = self.following
        if self._room_wanted:
            self._room_wanted = False
            with trio.move_on_after(ROOM_WAIT_S):
                await self.current.ledger.wait_room()
            self._on_sendable()
        elif self.current.ledger.error is not None:
            await self._replace_in_turn(self.current.ledger.error)
        elif self._drained is not None:
            await self._complete_drained()
        elif following is not None:
            if self._usable(following):
                return False
            await self._without_end(lambda: self._give_up(following))
        elif self._why_roll:
            if not self.current.is_worse and not self._permit.ask():
                return False
            log.info('log "%s": next segment, for %s', self._owned.state.name, self._why_roll)
            await self._without_end(self._prepare)
        else:
            return False
        return True

    async def _without_end(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """What fails here ends no writer, unless the log is not ours any more: this segment is written on."""
        try:
            await prepare()
        except DistributedLogError as error:
            self._permit.give_back()
            if not (error.fatal_to_writer or isinstance(error, LogNotFound | AlreadyClosed)):
                self._unprepared = error
            raise

    async def _prepare(self) -> None:
        self.following, self._next_closed = await self._open(), False
        self._readers_told, self._why_roll = False, ""
        with trio.move_on_after(READERS_S):
            await self._wake.wait()  # whatever else is to be done is more urgent
        self._readers_told = True
        self._on_sendable()

    async def _give_up(self, following: OpenSegment) -> None:
        """The next one's ledger failed before anything was sent to it: make certain that it is empty."""
        self._permit.give_back()  # who knows how long that takes
        ledger = await self._ledgers.recover(following.record.ledger_id)
        assert ledger.last_entry == -1, "nothing was ever sent to it"
        self._next_closed = True
        self._on_sendable()

    async def _replace_in_turn(self, error: DistributedLogError) -> None:
        asked = trio.current_time()
        if self._trouble_since is None:
            self._trouble_since = asked
        timeout_s = self._options.recover_timeout_s
        if not await self._turns.take(timeout_s):
            raise error.again()
        self._trouble_since += trio.current_time() - asked  # other logs were recovered
        try:
            with trio.move_on_at(self._trouble_since + timeout_s) as scope:
                await self._replace()
                self._trouble_since = None
        finally:
            self._turns.give(done=self._trouble_since is None)
        if scope.cancelled_caught:
            raise error.again()

    async def _replace(self) -> None:
        """The segment in progress failed: make its end certain, acknowledge or take back, go on."""
        segment = self.current
        await self._owned.refresh()
        await self._complete_drained()
        ledger = await self._ledgers.recover(segment.record.ledger_id)
        self._check_not_over()  # else what was in flight is nobody's any more
        assert ledger.last_entry is not None, "a recovered ledger knows its end"
        self._on_confirmed(segment, ledger.last_entry)
        self._on_replaced()
        segment.ledger.abort()
        end = segment.end()
        assert end.last_entry == ledger.last_entry, "only this writer wrote this ledger"
        await close_segment(self._owned, segment.record, end, closed_ms=self._wall_ms())
        if self.following is None:
            self.following = await self._open()
        self.following.follow(segment)
        self._context.meters.ledgers_replaced += 1
        self.current, self.following, self._why_roll = self.following, None, ""
        self._permit.give_back()
        self._on_sendable()

    async def _complete_drained(self) -> None:
        if self._drained is not None:
            await self._complete(self._drained)
            self._drained = None
            self._permit.give_back()

    async def _complete(
        self, segment: OpenSegment, then: Callable[[LogState], LogState] | None = None
    ) -> None:
        """Close a segment whose entries are all acknowledged, ledger and log in one transaction."""
        ledger = segment.ledger
        close = partial(close_segment, self._owned, closed_ms=self._wall_ms(), then=then)
        try:
            await ledger.settle()
            await close(segment.record, segment.end(), ledger_share=ledger.closing_share)
        except DistributedLogError as error:
            if not isinstance(error, VersionConflict) and error is not ledger.error:
                raise
            # Somebody recovered the ledger without taking the log, or it failed after its last
            # acknowledged entry: recovery finds all that we know of.
            await self._owned.refresh()
            closed = await self._ledgers.recover(segment.record.ledger_id)
            await close(segment.record, await read_end(self._ledgers, segment.record, closed))
        ledger.abort()

    async def _finish(self, then: Callable[[LogState], LogState]) -> None:
        if self.following is not None:
            self.look(drained=True)
        await self._complete_drained()
        if self.following is not None:  # of the two ledgers one has failed
            await self._complete(self.current)
            self.following.follow(self.current)
            self.current, self.following = self.following, None
        await self._complete(self.current, then)
        if self._owned.state.in_progress:
            # A registration whose outcome was not known: it went through before the close.
            following = await self._open()
            following.follow(self.current)
            self.current = following
            await self._complete(self.current, then)

    async def _open(self) -> OpenSegment:
        if self._opening is None:
            self._opening = SegmentOpening(self._owned, self._ledgers, self._wall_ms())
        record, ledger = await self._opening.open()
        self._opening = None
        self._check_not_over()
        return self._begin(record, ledger)

    def _begin(self, record: SegmentRecord, ledger: NewSegmentLedger) -> OpenSegment:
        def on_confirmed(lac: int) -> None:
            try:
                self._on_confirmed(segment, lac)
            except Exception as error:  # this is a call of a connection that other logs share
                self._broken(error)

        writer = self._ledgers.writer(
            ledger, on_confirmed=on_confirmed, on_failed=lambda _: self.wake()
        )
        share = self._context.random.uniform(AGE_SHARE_MIN, 1.0)
        # Nothing is confirmed before something is sent to it.
        segment = OpenSegment(record, writer, self._compression, age_share=share)
        return segment

    def _check_not_over(self) -> None:
        if self._over:
            raise AlreadyClosed(f'log "{self._owned.state.name}": the writer has ended')

    def _in_trouble_too_long(self) -> bool:
        since = self._trouble_since
        return since is not None and trio.current_time() >= since + self._options.recover_timeout_s


class KeepAlive:
    """Calls back when one writer has sent nothing for so long; costs nothing while it is off."""

    def __init__(
        self,
        rounds: PeriodicChecks,
        *,
        sent: Callable[[], object],
        on_quiet: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """``sent``: something that is another with each entry; ``on_quiet``: nothing was sent for so long."""
        self._rounds = rounds
        self._round = PeriodicCheck(self._look, broken)
        self._sent = sent
        self._on_quiet = on_quiet
        self._after_s = 0.0
        self._last: object = None
        self._since = 0.0

    def follow(self, after_s: float) -> None:
        """Look from now on; 0: not any more."""
        if after_s and not self._after_s:
            self._last, self._since = self._sent(), trio.current_time()
            self._rounds.join(self._round)
        self._after_s = after_s

    def end(self) -> None:
        """Look no more. Idempotent."""
        self._after_s = 0.0
        self._rounds.leave(self._round)

    def _look(self) -> bool:
        sent, now = self._sent(), trio.current_time()
        if sent != self._last:
            self._last, self._since = sent, now
        elif self._after_s and now - self._since >= self._after_s:
            self._on_quiet()
        return self._after_s > 0
