"""Truncate logs by age and size, with or without a writer, on one elected bookie.

The work is level-triggered, with a schedule in memory. Every `RESCAN_S`, the settings of logs and namespaces
are read again (`distributedlog/log/model/stored_settings.py`). Each log with a retention rule is checked as
often as the rule needs, such as every 64th of its maximum age.

The metadata store holds the retention clock, and per log the times at which its segments were first observed
closed (`distributedlog/log/model/segment_expiry.py`). All changes are conditional on the clock's revision. If
two bookies are elected for a moment, one of them changes nothing.

A truncation has the same effect as `Log.truncate`. The bytes are freed later, as after any truncation
(`segment_purger.py`).

A segment that its writer left open is never closed and would never expire. It is closed here after 1.25 times
``segment_age_max_s``, if no client holds the log's lock and nothing was appended for a while.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

import trio

from ...log.consumers.work_state import WorkState
from ...log.declarations.options import LogOptions
from ...log.format.dlsn import DLSN
from ...log.model.log_keys import (
    decode_log_id,
    name_key,
    position_key,
    purge_key,
    segment_key,
    state_key,
    work_key,
)
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import (
    CLOCK_KEY,
    NO_HOLD,
    STEP_MAX_MS,
    SegmentCloseTimes,
    decode_clock,
    encode_clock,
    stamps_key,
)
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import (
    BIND_PREFIX,
    CONF_PREFIX,
    RETENTION,
    RetentionOptions,
    StoredSettings,
    effective_options,
    retention_of,
)
from ...log.services.named_positions import PositionRecord
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NotAllowed,
    OutcomeUnknown,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.gc_hold import ElectionStatus

RESCAN_S = 60.0
"""The longest time until a change of settings, or a new log, is noticed."""
EVERY_S = 5.0
CHECK_S_MAX = 600.0
SIZE_CHECK_S = 30.0
"""How often a log with a size limit is checked."""
CHECKS_PER_AGE = 64
PAGE = 500
LATE_FACTOR = 1.25
"""Times the writer's own age limit: a running writer has closed the segment before it is this old."""

UNIT = "retention"

log = get_logger("distributedlog.cluster.gc.retention")

CloseOrphaned = Callable[[int, int], Awaitable[bool]]
"""Closes the open segments of a log from a segment on if they have no writer, and returns whether it did.

See `distributedlog/log/takeover/orphaned_segment.py`.
"""
OpenCloser = Callable[[], AbstractAsyncContextManager[CloseOrphaned]]
"""Opens a `CloseOrphaned` with its clients for the time of its use."""


CLOSED_AT_ONCE = 16
ORPHANED_MAX = 1000
"""Segments that wait to be closed. Further ones are found again later."""
RELEVANT_SETTINGS = (*RETENTION, "segment_age_max_s")
"""The settings that are used here."""


class Superseded(Exception):
    """Another process has moved the clock, so this pass ends. The exception stays inside this module."""


class RetentionClock:
    """The stored clock, as this bookie advances it (see `distributedlog/log/model/segment_expiry.py`)."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._is_known = False
        self._counted_to = 0.0
        """The monotonic time up to which the stored clock counts."""
        self.now_ms = 0
        self.revision = 0

    def reset(self) -> None:
        """Forget the clock's value, because this bookie is not elected and another one may advance it."""
        self._is_known = False

    async def advance(self) -> None:
        """Add the time since the last call. The first call after `reset` adds nothing.

        Raises:
            Superseded: Another process has changed the clock.
        """
        if not self._is_known:
            item = await self._metadata.get(CLOCK_KEY)
            self.now_ms = 0 if item is None else decode_clock(item.value)
            self.revision = 0 if item is None else item.mod_revision
            self._is_known, self._counted_to = True, trio.current_time()
        now = trio.current_time()
        step_ms = min(int((now - self._counted_to) * 1000), STEP_MAX_MS)
        clock_ms = self.now_ms + step_ms
        change = Transaction(
            (Compare.mod_revision(CLOCK_KEY, self.revision),),
            (Put(CLOCK_KEY, encode_clock(clock_ms)),),
        )
        self._is_known = False  # until this change is certain to be stored
        reply = await self._metadata.transact(change)
        if not reply.succeeded:
            raise Superseded
        self._is_known, self._counted_to = True, now
        self.now_ms, self.revision = clock_ms, reply.revision

    def unchanged(self) -> Compare:
        """A condition that holds while no other process has changed the clock."""
        return Compare.mod_revision(CLOCK_KEY, self.revision)


@dataclass(slots=True)
class _WatchedLog:
    """A log with a retention rule."""

    options: RetentionOptions
    segment_age_max_s: float
    due_at: float = 0.0
    """When the next check is due, by the monotonic clock."""
    counted_from: int = 0
    """The first segment in `counted_bytes`; 0 if nothing is counted."""
    counted_to: int = 0
    counted_bytes: int = 0

    def check_interval_s(self) -> float:
        """Return the time from one check to the next one, in seconds."""
        by_age = CHECK_S_MAX
        if self.options.retention_s:
            by_age = self.options.retention_s / CHECKS_PER_AGE
        by_size = SIZE_CHECK_S if self.options.retention_bytes else CHECK_S_MAX
        by_open = self.segment_age_max_s * (LATE_FACTOR - 1)
        return max(EVERY_S, min(by_age, by_size, by_open, CHECK_S_MAX))


class Retention:
    """Truncates logs that exceed their maximum age or size, while this bookie is elected."""

    def __init__(
        self,
        metadata: Metadata,
        election: ElectionStatus,
        *,
        open_closer: OpenCloser | None = None,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._election = election
        self._open_closer = open_closer
        self._clock = RetentionClock(metadata)
        self._watched_logs: dict[int, _WatchedLog] = {}
        self._readable_settings: dict[bytes, StoredSettings] = {}
        """The last readable settings that are relevant here, by key."""
        self._scanned_at = float("-inf")
        self._orphaned_segments: dict[int, int] = {}
        """By log: the segment that has been open for too long."""
        self._wake = trio.Event()
        self._blocked_work = BlockedWorkLog(log, "logs are skipped by retention")
        self._unreadable = BlockedWorkLog(log, "unreadable settings keep their last values")
        self._out_of_range = BlockedWorkLog(log, "stored numbers are out of range")
        self.truncated_segments = 0
        """Since the start."""
        self.closed_orphaned_segments = 0
        """Segments that their writers had left open; since the start."""

    async def run(self) -> None:
        """Apply retention until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._open_closer is not None:
                unit = "the closing of segments that were left open"
                nursery.start_soon(
                    self._failures.keep_running, unit, self._close_orphaned, self._open_closer
                )
            while True:
                try:
                    with self._failures.attempt(UNIT):
                        await self._run_pass_if_elected()
                except DistributedLogError as error:
                    self._clock.reset()
                    log.warning("%s: %s; trying again", type(error).__name__, error)
                await trio.sleep(max(EVERY_S, self._failures.retry_delay_s(UNIT)))

    async def _run_pass_if_elected(self) -> None:
        try:
            if await self._election.is_elected():
                await self.run_pass()
            else:
                self._reset()
        except Superseded:
            log.info("another bookie has advanced the retention clock; this one starts again")
            self._reset()

    async def run_pass(self) -> None:
        """Check all logs that are due once.

        An unexpected exception or an unreadable record affects only its log. Other errors end the pass.

        Raises:
            Superseded: Another process has changed the clock.
            DistributedLogError: The metadata store did not answer, for example. `run` repeats the pass.
        """
        now = trio.current_time()
        if now - self._scanned_at >= RESCAN_S:
            await self._rescan()
            self._scanned_at = now
        if not self._watched_logs:
            self._clock.reset()  # the clock stands still until a log has a retention rule again
            return
        await self._clock.advance()
        for log_id, watched in [*self._watched_logs.items()]:
            if watched.due_at > now:
                continue
            unit = f"the retention of log {log_id:016x}"
            if self._failures.is_waiting(unit):
                continue
            # `attempt` would record `Superseded` as a failure of this log, so it is raised after the attempt.
            is_superseded = False
            try:
                with self._failures.attempt(unit, every_s=CHECK_S_MAX):
                    watched.due_at = now + watched.check_interval_s()
                    try:
                        await self._check_log(log_id, watched)
                    except Superseded:
                        is_superseded = True
            except (CorruptData, NotAllowed, UnsupportedFormat) as error:
                # Not allowed: the metadata leader uses settings that have changed, or that it cannot read.
                self._blocked_work.record(type(error).__name__, f"log {log_id:016x}: {error}")
            if is_superseded:
                raise Superseded
            if self._failures.is_waiting(unit):
                watched.due_at = 0.0  # an unexpected failure: due when its retry delay has passed
        self._blocked_work.end_pass()

    def _reset(self) -> None:
        self._clock.reset()
        self._watched_logs.clear()
        self._readable_settings.clear()
        self._orphaned_segments.clear()
        self._scanned_at = float("-inf")

    # --- which logs -------------------------------------------------------------------------------

    async def _rescan(self) -> None:
        """Find the logs that have a retention rule.

        For unreadable settings, the last readable ones apply. If there are none, no log is truncated by them.
        """
        own_settings: dict[int, StoredSettings | None] = {}
        readable_settings: dict[bytes, StoredSettings] = {}
        async for item in Scan(self._metadata, CONF_PREFIX, limit=PAGE):
            try:
                log_id = decode_log_id(item.key.removeprefix(CONF_PREFIX))
            except CorruptData as error:
                self._unreadable.record("CorruptData", str(error))
                continue
            log_settings = self._decode_settings(item)
            if log_settings is None or log_settings.select(RELEVANT_SETTINGS):
                own_settings[log_id] = log_settings
            if log_settings is not None and log_settings.select(RELEVANT_SETTINGS):
                readable_settings[item.key] = log_settings
        watched_logs: dict[int, _WatchedLog] = {}
        for log_id, log_settings in own_settings.items():
            with self._failures.attempt(_settings_unit(log_id)):
                self._watch_log(watched_logs, log_id, StoredSettings(), log_settings)
        async for item in Scan(self._metadata, BIND_PREFIX, limit=PAGE):
            namespace_settings = self._decode_settings(item)
            if namespace_settings is not None:
                readable_settings[item.key] = namespace_settings
            start = name_key(item.key.removeprefix(BIND_PREFIX).decode(errors="replace"), "")
            async for name_item in Scan(self._metadata, start, limit=PAGE):
                with suppress(CorruptData):
                    log_id = decode_log_id(name_item.value)
                    with self._failures.attempt(_settings_unit(log_id)):
                        self._watch_log(
                            watched_logs,
                            log_id,
                            namespace_settings,
                            own_settings.get(log_id, StoredSettings()),
                        )
        self._watched_logs, self._readable_settings = watched_logs, readable_settings
        self._unreadable.end_pass()
        self._out_of_range.end_pass()

    def _decode_settings(self, item: KeyValue) -> StoredSettings | None:
        """Return the settings, or the last readable ones; None if there are none of these either."""
        try:
            with self._failures.attempt(f"the settings {item.key!r}"):
                settings = StoredSettings.decode(item.value)
                for why in settings.out_of_range:
                    self._out_of_range.record("out of range", f"{item.key!r}: {why}")
                return settings
        except (CorruptData, UnsupportedFormat) as error:
            self._unreadable.record(type(error).__name__, f"{item.key!r}: {error}")
        return self._readable_settings.get(item.key)

    def _watch_log(
        self,
        watched_logs: dict[int, _WatchedLog],
        log_id: int,
        namespace_settings: StoredSettings | None,
        log_settings: StoredSettings | None,
    ) -> None:
        options = (
            None
            if namespace_settings is None or log_settings is None
            else retention_of(namespace_settings, log_settings)
        )
        if (
            namespace_settings is None
            or log_settings is None
            or options is None
            or not options.is_limited
        ):
            watched_logs.pop(log_id, None)
            return
        age_max_s = effective_options(
            LogOptions(), (), namespace_settings, log_settings
        ).segment_age_max_s
        watched_log = self._watched_logs.get(log_id)
        if watched_log is None:
            watched_log = _WatchedLog(options, age_max_s)
        elif watched_log.options != options:
            watched_log.due_at = 0.0
        watched_log.options, watched_log.segment_age_max_s = options, age_max_s
        watched_logs[log_id] = watched_log

    # --- one log ----------------------------------------------------------------------------------

    async def _check_log(self, log_id: int, watched: _WatchedLog) -> None:
        stamps_at, state_at = stamps_key(log_id), state_key(log_id)
        page = await self._metadata.range(stamps_at, state_at + b"\x00", limit=2)
        items = {item.key: item for item in page.items}
        if state_at not in items:
            self._watched_logs.pop(log_id, None)
            return
        state = LogState.decode(items[state_at].value)
        if state.deleting:
            return
        stamps_item = items.get(stamps_at)
        stored_stamps = (
            SegmentCloseTimes() if stamps_item is None else self._decode_stamps(stamps_item)
        )
        open_segment = state.first_open_segment if state.in_progress else 0
        clock_ms = self._clock.now_ms
        every_ms = watched.options.retention_ms // CHECKS_PER_AGE
        stamps = stored_stamps.after_check(
            state.first_open_segment - 1, open_segment, clock_ms, mark_interval_ms=every_ms
        )
        late_ms = LATE_FACTOR * watched.segment_age_max_s * 1000
        if open_segment and clock_ms - stamps.open_since_ms >= late_ms:
            self._queue_orphaned(log_id, open_segment)
        last_to_truncate = await self._last_to_truncate(watched, state, stamps)
        new_state = (
            await self._truncated_state(state, last_to_truncate) if last_to_truncate else state
        )
        change = Transaction(
            (
                self._clock.unchanged(),
                Compare.version(stamps_at, 0 if stamps_item is None else stamps_item.version),
            ),
            (Put(stamps_at, stamps.without_segments_to(last_to_truncate).encode()),),
        )
        if new_state != state:
            change += Transaction(
                (Compare.version(state_at, items[state_at].version),),
                (Put(state_at, new_state.encode()), Put(purge_key(log_id), b"")),
            )
        elif stamps == stored_stamps:
            return
        else:
            change += Transaction((Compare.exists(state_at),), ())
        try:
            reply = await self._metadata.transact(change)
        except OutcomeUnknown:
            watched.due_at = 0.0  # checked again, whatever the outcome
            return
        if reply.succeeded:
            if new_state != state:
                self.truncated_segments += (
                    last_to_truncate + 1 - max(state.earliest.segment, state.first_segment)
                )
            return
        current_clock = reply.current[0]
        if current_clock is None or current_clock.mod_revision != self._clock.revision:
            raise Superseded
        watched.due_at = 0.0  # its writer changed the state in between

    def _decode_stamps(self, item: KeyValue) -> SegmentCloseTimes:
        """Return the stored times of a log.

        If they are damaged, ages start again, so that segments are deleted later and never earlier.
        """
        try:
            return SegmentCloseTimes.decode(item.value)
        except CorruptData as error:
            log.warning("%r: %s; ages start again from now", item.key, error)
            return SegmentCloseTimes()

    async def _last_to_truncate(
        self, watched: _WatchedLog, state: LogState, stamps: SegmentCloseTimes
    ) -> int:
        """Return the number of the last segment to truncate; 0 for none."""
        options = watched.options
        last = 0
        if options.retention_s:
            last = stamps.last_older_than(self._clock.now_ms, options.retention_ms)
        if options.retention_bytes:
            last = max(last, await self._last_over_size(watched, state))
        last = min(
            last, state.first_open_segment - 1, state.last_segment - options.retention_segments_min
        )
        if DLSN(last + 1, 0, 0) > state.earliest:
            last = await self._last_not_held(options, state.log_id, last)
        return last if DLSN(last + 1, 0, 0) > state.earliest else 0

    async def _last_not_held(self, options: RetentionOptions, log_id: int, last: int) -> int:
        """Limit a truncation to segments that no named position and no work queue holds (H153).

        A hold that is added after this check changes the stamps, on which the truncation is conditional.
        """
        at_most_ms = options.hold_max_ms
        holds: list[tuple[int, DLSN]] = []
        async for item in Scan(self._metadata, position_key(log_id, ""), limit=PAGE):
            position = PositionRecord.decode(item.value)
            holds.append((position.hold_renewed_ms, position.dlsn))
        async for item in Scan(self._metadata, work_key(log_id, ""), limit=PAGE):
            queue = WorkState.decode(item.value)
            holds.append((queue.hold_renewed_ms, queue.floor))
        for hold_renewed_ms, dlsn in holds:
            if hold_renewed_ms != NO_HOLD and self._clock.now_ms - hold_renewed_ms < at_most_ms:
                last = min(last, dlsn.segment - 1)
        return last

    async def _last_over_size(self, watched: _WatchedLog, state: LogState) -> int:
        """Return the last of the oldest closed segments that the size limit does not need; 0 for none."""
        first, log_id = state.earliest.segment, state.log_id
        counted_segments = 0
        if watched.counted_from and watched.counted_from < first <= watched.counted_to + 1:
            async for _, size in self._closed_segment_sizes(
                log_id, watched.counted_from, first - 1
            ):
                counted_segments, watched.counted_bytes = (
                    counted_segments + 1,
                    watched.counted_bytes - size,
                )
        # If some of them were not there any more, all are counted again.
        if not watched.counted_from or counted_segments != first - watched.counted_from:
            watched.counted_to, watched.counted_bytes = first - 1, 0
        watched.counted_from = first
        async for segment, size in self._closed_segment_sizes(
            log_id, watched.counted_to + 1, state.first_open_segment - 1
        ):
            watched.counted_to, watched.counted_bytes = segment, watched.counted_bytes + size
        last, remaining_bytes = 0, watched.counted_bytes
        if remaining_bytes > watched.options.retention_bytes:
            async for segment, size in self._closed_segment_sizes(
                log_id, first, watched.counted_to
            ):
                remaining_bytes -= size
                if remaining_bytes < watched.options.retention_bytes:
                    break
                last = segment
        return last

    async def _closed_segment_sizes(
        self, log_id: int, first: int, last: int
    ) -> AsyncIterator[tuple[int, int]]:
        """Yield number and bytes of closed segments, in order, from the metadata store."""
        if first <= last:
            start, end = segment_key(log_id, first), segment_key(log_id, last) + b"\x00"
            async for item in Scan(self._metadata, start, end, limit=PAGE):
                record = SegmentRecord.decode(item.value)
                yield record.segment, record.size_bytes

    async def _truncated_state(self, state: LogState, last: int) -> LogState:
        """Return the state without the segments up to ``last``; unchanged if it was truncated further."""
        next_segment = last + 1
        sequence_id = state.next_sequence_id
        if next_segment < state.first_open_segment:
            item = await self._metadata.get(segment_key(state.log_id, next_segment))
            if item is None:
                return state  # it was truncated further since
            sequence_id = SegmentRecord.decode(item.value).start_sequence_id
        return state.with_truncation(DLSN(next_segment, 0, 0), sequence_id)

    # --- segments that their writers left open ----------------------------------------------------

    def _queue_orphaned(self, log_id: int, segment: int) -> None:
        if self._failures.is_waiting(_closing_unit(log_id)):
            return
        if self._open_closer is not None and len(self._orphaned_segments) < ORPHANED_MAX:
            self._orphaned_segments[log_id] = segment
            self._wake.set()

    async def _close_orphaned(self, open_closer: OpenCloser) -> None:
        """Close queued segments in the background, so that retention does not wait for them."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            if not self._orphaned_segments:
                continue
            async with open_closer() as close, trio.open_nursery() as nursery:
                for _ in range(CLOSED_AT_ONCE):
                    nursery.start_soon(self._close_queued, close)

    async def _close_queued(self, close: CloseOrphaned) -> None:
        while self._orphaned_segments:
            log_id, segment = self._orphaned_segments.popitem()
            try:
                with self._failures.attempt(_closing_unit(log_id)):
                    if await close(log_id, segment):
                        self.closed_orphaned_segments += 1
            except DistributedLogError as error:
                log.warning("log %016x: its open segment could not be closed: %s", log_id, error)


def _settings_unit(log_id: int) -> str:
    return f"the retention settings of log {log_id:016x}"


def _closing_unit(log_id: int) -> str:
    return f"closing the open segment of log {log_id:016x}"
