"""Retention: records go by age and by size, of logs with and without writers, at one elected bookie.

Level-triggered, by a schedule in memory: which logs have a rule is read anew every `RESCAN_S` from their
settings and their namespace's (`distributedlog/log/model/stored_settings.py`), and each of them is looked at
as often as its rule needs: each 64th of its age. What is kept in the store are the clock and, for each log,
by when its segments were seen closed (`distributedlog/log/model/segment_expiry.py`); both are changed under a
comparison with the clock's revision, so that of two bookies that are elected for a moment one does nothing.
What goes is given up as by `Log.truncate`; the bytes follow as after any truncation (`segment_purger.py`).

A segment that its writer left open never closes and so never ages: after `segment_age_max_s` and a quarter
of it more it is closed here, if nobody holds the log's lock and nothing was added for a while.
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
    STEP_MAX_MS,
    UNHELD,
    Stamps,
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
    effective,
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
"""How long a change of settings, or a new log, may stay unknown here."""
EVERY_S = 5.0
LOOK_S_MAX = 600.0
SIZE_S = 30.0
"""How often a log that goes by size is looked at."""
SHARE_OF_AGE = 64
PAGE = 500
LATE = 1.25
"""Times its writer's own age limit: a living writer has ended the segment by then."""

UNIT = "retention"

log = get_logger("distributedlog.cluster.gc.retention")

Close = Callable[[int, int], Awaitable[bool]]
"""Closes what is in progress in a log from a segment on, if it was left; was it?
(`distributedlog/log/takeover/orphaned_segment.py`)"""
Closing = Callable[[], AbstractAsyncContextManager[Close]]
"""Opens what that takes, for as long as it is needed."""


CLOSED_AT_ONCE = 16
ABANDONED_MAX = 1000
"""That wait to be closed; the others are found again."""
ASKED = (*RETENTION, "segment_age_max_s")
"""What is read of the settings here."""


class Superseded(Exception):
    """Somebody else has moved the clock: this pass ends. Inside of this module."""


class RetentionClock:
    """The stored clock, as this bookie moves it (see `distributedlog/log/model/segment_expiry.py`)."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._known = False
        self._at = 0.0
        """Our own time up to which the stored value counts."""
        self.now_ms = 0
        self.revision = 0

    def forget(self) -> None:
        """Not elected: somebody else counts now."""
        self._known = False

    async def move(self) -> None:
        """Count the time since the last call. The first one after `forget` counts nothing."""
        if not self._known:
            found = await self._metadata.get(CLOCK_KEY)
            self.now_ms = 0 if found is None else decode_clock(found.value)
            self.revision = 0 if found is None else found.mod_revision
            self._known, self._at = True, trio.current_time()
        now = trio.current_time()
        step_ms = min(int((now - self._at) * 1000), STEP_MAX_MS)
        clock_ms = self.now_ms + step_ms
        change = Transaction(
            (Compare.mod_revision(CLOCK_KEY, self.revision),),
            (Put(CLOCK_KEY, encode_clock(clock_ms)),),
        )
        self._known = False  # unless it is certain that this very change was made
        reply = await self._metadata.transact(change)
        if not reply.succeeded:
            raise Superseded
        self._known, self._at = True, now
        self.now_ms, self.revision = clock_ms, reply.revision

    def unmoved(self) -> Compare:
        """Holds while nobody else has moved it."""
        return Compare.mod_revision(CLOCK_KEY, self.revision)


@dataclass(slots=True)
class _Watched:
    """A log with a rule."""

    rule: RetentionOptions
    segment_age_max_s: float
    due_at: float = 0.0
    """Of the next look, by this process's own time."""
    counted_from: int = 0
    """First segment that `counted_bytes` has; 0: nothing is counted."""
    counted_to: int = 0
    counted_bytes: int = 0

    def next_s(self) -> float:
        """How long until the look after this one."""
        by_age = LOOK_S_MAX
        if self.rule.retention_s:
            by_age = self.rule.retention_s / SHARE_OF_AGE
        by_size = SIZE_S if self.rule.retention_bytes else LOOK_S_MAX
        by_open = self.segment_age_max_s * (LATE - 1)
        return max(EVERY_S, min(by_age, by_size, by_open, LOOK_S_MAX))


class Retention:
    """Gives up what is older, or more, than its log is to keep, while this bookie is the elected one."""

    def __init__(
        self,
        metadata: Metadata,
        election: ElectionStatus,
        *,
        closing: Closing | None = None,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._election = election
        self._closing = closing
        self._clock = RetentionClock(metadata)
        self._watched: dict[int, _Watched] = {}
        self._good: dict[bytes, StoredSettings] = {}
        """Settings that have a say here, by key: the last ones that could be read."""
        self._scanned_at = float("-inf")
        self._abandoned: dict[int, int] = {}
        """Log to the segment that is open for too long."""
        self._wake = trio.Event()
        self._held_up = BlockedWorkLog(log, "logs are passed over by retention")
        self._unreadable = BlockedWorkLog(log, "settings cannot be read: what they were last holds")
        self._out_of_range = BlockedWorkLog(log, "stored numbers are out of range")
        self.given_up_segments = 0
        """Since the start."""
        self.closed_segments = 0
        """That their writers had left open; since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._closing is not None:
                unit = "the end of segments that were left open"
                nursery.start_soon(self._failures.keep, unit, self._close_abandoned, self._closing)
            while True:
                try:
                    with self._failures.contained(UNIT):
                        await self._work_if_elected()
                except DistributedLogError as error:
                    self._clock.forget()
                    log.warning("%s: %s; trying again", type(error).__name__, error)
                await trio.sleep(max(EVERY_S, self._failures.rest_s(UNIT)))

    async def _work_if_elected(self) -> None:
        try:
            if await self._election.elected():
                await self.work()
            else:
                self._forget()
        except Superseded:
            log.info("another bookie counts the time for retention; this one starts again")
            self._forget()

    async def work(self) -> None:
        """Look once at what is due. Raises `Superseded`."""
        now = trio.current_time()
        if now - self._scanned_at >= RESCAN_S:
            await self._rescan()
            self._scanned_at = now
        if not self._watched:
            self._clock.forget()
            return
        await self._clock.move()
        for log_id, one in [*self._watched.items()]:
            if one.due_at > now:
                continue
            unit = f"the retention of log {log_id:016x}"
            if self._failures.rests(unit):
                continue
            superseded = False
            try:
                with self._failures.contained(unit, every_s=LOOK_S_MAX):
                    one.due_at = now + one.next_s()
                    try:
                        await self._look_at(log_id, one)
                    except Superseded:
                        superseded = True
            except (CorruptData, NotAllowed, UnsupportedFormat) as error:
                # Not allowed: the leader goes by settings that are others by now, or that it cannot read.
                self._held_up.note(type(error).__name__, f"log {log_id:016x}: {error}")
            if superseded:
                raise Superseded
            if self._failures.rests(unit):
                one.due_at = 0.0  # it has failed: tried again after its rest
        self._held_up.end_pass()

    def _forget(self) -> None:
        self._clock.forget()
        self._watched.clear()
        self._good.clear()
        self._abandoned.clear()
        self._scanned_at = float("-inf")

    # --- which logs -------------------------------------------------------------------------------

    async def _rescan(self) -> None:
        """Which logs have a rule now. What cannot be read is as it was; not known, nothing goes by it."""
        own: dict[int, StoredSettings | None] = {}
        good: dict[bytes, StoredSettings] = {}
        async for item in Scan(self._metadata, CONF_PREFIX, limit=PAGE):
            try:
                log_id = decode_log_id(item.key.removeprefix(CONF_PREFIX))
            except CorruptData as error:
                self._unreadable.note("CorruptData", str(error))
                continue
            conf = self._decoded(item)
            if conf is None or conf.only(ASKED):
                own[log_id] = conf
            if conf is not None and conf.only(ASKED):
                good[item.key] = conf
        watched: dict[int, _Watched] = {}
        for log_id, conf in own.items():
            with self._failures.contained(_settings_unit(log_id)):
                self._watch(watched, log_id, StoredSettings(), conf)
        async for item in Scan(self._metadata, BIND_PREFIX, limit=PAGE):
            bind = self._decoded(item)
            if bind is not None:
                good[item.key] = bind
            start = name_key(item.key.removeprefix(BIND_PREFIX).decode(errors="replace"), "")
            async for name in Scan(self._metadata, start, limit=PAGE):
                with suppress(CorruptData):
                    log_id = decode_log_id(name.value)
                    with self._failures.contained(_settings_unit(log_id)):
                        self._watch(watched, log_id, bind, own.get(log_id, StoredSettings()))
        self._watched, self._good = watched, good
        self._unreadable.end_pass()
        self._out_of_range.end_pass()

    def _decoded(self, item: KeyValue) -> StoredSettings | None:
        """Settings, or the last ones that could be read; None where there are none of these either."""
        try:
            with self._failures.contained(f"the settings {item.key!r}"):
                found = StoredSettings.decode(item.value)
                for why in found.out_of_range:
                    self._out_of_range.note("out of range", f"{item.key!r}: {why}")
                return found
        except (CorruptData, UnsupportedFormat) as error:
            self._unreadable.note(type(error).__name__, f"{item.key!r}: {error}")
        return self._good.get(item.key)

    def _watch(
        self,
        watched: dict[int, _Watched],
        log_id: int,
        bind: StoredSettings | None,
        own: StoredSettings | None,
    ) -> None:
        rule = None if bind is None or own is None else retention_of(bind, own)
        if bind is None or own is None or rule is None or not rule.wanted:
            watched.pop(log_id, None)
            return
        age_max_s = effective(LogOptions(), (), bind, own).segment_age_max_s
        one = self._watched.get(log_id)
        if one is None:
            one = _Watched(rule, age_max_s)
        elif one.rule != rule:
            one.due_at = 0.0
        one.rule, one.segment_age_max_s = rule, age_max_s
        watched[log_id] = one

    # --- one log ----------------------------------------------------------------------------------

    async def _look_at(self, log_id: int, one: _Watched) -> None:
        start, end = stamps_key(log_id), state_key(log_id)
        page = await self._metadata.range(start, end + b"\x00", limit=2)
        found = {item.key: item for item in page.items}
        if end not in found:
            self._watched.pop(log_id, None)
            return
        state = LogState.decode(found[end].value)
        if state.deleting:
            return
        stored = found.get(start)
        before = Stamps() if stored is None else self._stamps(stored)
        open_segment = state.open_from if state.in_progress else 0
        clock_ms = self._clock.now_ms
        every_ms = one.rule.retention_ms // SHARE_OF_AGE
        stamps = before.seen(state.open_from - 1, open_segment, clock_ms, every_ms=every_ms)
        late_ms = LATE * one.segment_age_max_s * 1000
        if open_segment and clock_ms - stamps.open_since_ms >= late_ms:
            self._give_closer(log_id, open_segment)
        last = await self._last_to_go(one, state, stamps)
        changed = await self._given_up(state, last) if last else state
        share = Transaction(
            (
                self._clock.unmoved(),
                Compare.version(start, 0 if stored is None else stored.version),
            ),
            (Put(start, stamps.without(last).encode()),),
        )
        if changed != state:
            share += Transaction(
                (Compare.version(end, found[end].version),),
                (Put(end, changed.encode()), Put(purge_key(log_id), b"")),
            )
        elif stamps == before:
            return
        else:
            share += Transaction((Compare.exists(end),), ())
        try:
            reply = await self._metadata.transact(share)
        except OutcomeUnknown:
            one.due_at = 0.0  # looked at again, whatever became of it
            return
        if reply.succeeded:
            if changed != state:
                self.given_up_segments += (
                    last + 1 - max(state.earliest.segment, state.first_segment)
                )
            return
        now = reply.current[0]
        if now is None or now.mod_revision != self._clock.revision:
            raise Superseded
        one.due_at = 0.0  # its writer came in between

    def _stamps(self, item: KeyValue) -> Stamps:
        """Those that are damaged begin anew: everything goes later, nothing earlier."""
        try:
            return Stamps.decode(item.value)
        except CorruptData as error:
            log.warning("%r: %s; ages count from now on", item.key, error)
            return Stamps()

    async def _last_to_go(self, one: _Watched, state: LogState, stamps: Stamps) -> int:
        """The number of the last segment that is to go; 0 for none."""
        rule = one.rule
        last = 0
        if rule.retention_s:
            last = stamps.aged(self._clock.now_ms, rule.retention_ms)
        if rule.retention_bytes:
            last = max(last, await self._too_many(one, state))
        last = min(last, state.open_from - 1, state.last_segment - rule.retention_segments_min)
        if DLSN(last + 1, 0, 0) > state.earliest:
            last = await self._not_held(rule, state.log_id, last)
        return last if DLSN(last + 1, 0, 0) > state.earliest else 0

    async def _not_held(self, rule: RetentionOptions, log_id: int, last: int) -> int:
        """As far of what is to go as no named position and no work queue holds it (H153).

        One that begins to hold after this look changes the stamps, which what follows is compared with.
        """
        at_most_ms = rule.hold_max_ms
        holds: list[tuple[int, DLSN]] = []
        async for item in Scan(self._metadata, position_key(log_id, ""), limit=PAGE):
            one = PositionRecord.decode(item.value)
            holds.append((one.held_ms, one.dlsn))
        async for item in Scan(self._metadata, work_key(log_id, ""), limit=PAGE):
            queue = WorkState.decode(item.value)
            holds.append((queue.held_ms, queue.floor))
        for held_ms, dlsn in holds:
            if held_ms != UNHELD and self._clock.now_ms - held_ms < at_most_ms:
                last = min(last, dlsn.segment - 1)
        return last

    async def _too_many(self, one: _Watched, state: LogState) -> int:
        """The last of the oldest closed segments without which there is still enough; 0 for none."""
        first, log_id = state.earliest.segment, state.log_id
        gone = 0
        if one.counted_from and one.counted_from < first <= one.counted_to + 1:
            async for _, size in self._sizes(log_id, one.counted_from, first - 1):
                gone, one.counted_bytes = gone + 1, one.counted_bytes - size
        # Where not all of them were there still, it is counted anew.
        if not one.counted_from or gone != first - one.counted_from:
            one.counted_to, one.counted_bytes = first - 1, 0
        one.counted_from = first
        async for segment, size in self._sizes(log_id, one.counted_to + 1, state.open_from - 1):
            one.counted_to, one.counted_bytes = segment, one.counted_bytes + size
        last, left = 0, one.counted_bytes
        if left > one.rule.retention_bytes:
            async for segment, size in self._sizes(log_id, first, one.counted_to):
                left -= size
                if left < one.rule.retention_bytes:
                    break
                last = segment
        return last

    async def _sizes(self, log_id: int, first: int, last: int) -> AsyncIterator[tuple[int, int]]:
        """Number and bytes of closed segments, in order, from the store."""
        if first <= last:
            start, end = segment_key(log_id, first), segment_key(log_id, last) + b"\x00"
            async for item in Scan(self._metadata, start, end, limit=PAGE):
                record = SegmentRecord.decode(item.value)
                yield record.segment, record.size_bytes

    async def _given_up(self, state: LogState, last: int) -> LogState:
        """The state without the segments up to ``last``."""
        following = last + 1
        sequence_id = state.next_sequence_id
        if following < state.open_from:
            found = await self._metadata.get(segment_key(state.log_id, following))
            if found is None:
                return state  # it was truncated further meanwhile
            sequence_id = SegmentRecord.decode(found.value).start_sequence_id
        return state.with_truncated(DLSN(following, 0, 0), sequence_id)

    # --- segments that their writers left open ----------------------------------------------------

    def _give_closer(self, log_id: int, segment: int) -> None:
        if self._failures.rests(_closing_unit(log_id)):
            return
        if self._closing is not None and len(self._abandoned) < ABANDONED_MAX:
            self._abandoned[log_id] = segment
            self._wake.set()

    async def _close_abandoned(self, closing: Closing) -> None:
        """Each takes its time, and nothing waits for it."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            if not self._abandoned:
                continue
            async with closing() as close, trio.open_nursery() as nursery:
                for _ in range(CLOSED_AT_ONCE):
                    nursery.start_soon(self._close_some, close)

    async def _close_some(self, close: Close) -> None:
        while self._abandoned:
            log_id, segment = self._abandoned.popitem()
            try:
                with self._failures.contained(_closing_unit(log_id)):
                    if await close(log_id, segment):
                        self.closed_segments += 1
            except DistributedLogError as error:
                log.warning("log %016x: its open segment stays: %s", log_id, error)


def _settings_unit(log_id: int) -> str:
    return f"the retention settings of log {log_id:016x}"


def _closing_unit(log_id: int) -> str:
    return f"closing the open segment of log {log_id:016x}"
