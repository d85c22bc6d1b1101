"""How a streaming query gets on: where it begins, how far the next micro-batch goes, what it reads.

Answers that say "nothing new" repeat the start as it was spelled: Spark compares text. What was given once
stays true after a restart, whatever the cluster remembers (G5, H24).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from ...log.format.dlsn import DLSN
from ...log.model.deleted_log import DeletedLog
from ...log.model.log_keys import incarnation_id
from ...log.model.log_state import LogEnd
from ...log.model.position_outcome import HeldPosition, LogLookup
from ...log.model.segment_ranges import SegmentRange
from ...log.namespace import Namespace
from ...log.read.log_view import LogView
from ...runtime.interfaces.errors import DistributedLogError
from ..client.retry import retry_unavailable
from ..options.options import SourceOptions
from .data_loss_policy import Do, decide
from .offsets import Offset
from .scan_planner import shares, turn_of
from .source_logs import SourceLogs, each, seen

T = TypeVar("T")

log = logging.getLogger("distributedlog.spark")


@dataclass(frozen=True, slots=True)
class Limit:
    """Of a micro-batch: records, or bytes, or neither."""

    records: int | None
    size: int | None


class StreamProgress:
    """One query's. All in the background loop."""

    def __init__(
        self, namespace: Namespace, options: SourceOptions, before: "StreamProgress | None" = None
    ) -> None:
        """``before``: the same query's, whose client has ended; what was answered stays true."""
        self._namespace = namespace
        self._options = options
        self._logs = SourceLogs(namespace, options)
        self._initial: Offset | None = None if before is None else before._initial
        self._target: Offset | None = None if before is None else before._target
        """What an AvailableNow run will not pass."""
        self._turn = 0
        self._waiting_since: float | None = None
        self._kept: dict[str, tuple[str, float]] = {}
        """Named logs that are gone: their incarnation, and when that was found. Another log of the name may
        have come and gone since, which leaves no view: so it is asked again with the next look for logs."""

    def close(self) -> None:
        """Follow nothing more."""
        self._logs.close()

    @property
    def views(self) -> Mapping[str, LogView]:
        """The logs that are there, as they were last seen."""
        return self._logs.views

    # --- where to begin ---------------------------------------------------------------------------

    async def initial(self) -> Offset:
        """Of a new query. Computed once: a moving ``latest`` would lose what lies between two answers."""
        if self._initial is None:
            self._initial = await self._patiently(self._first)
        return self._initial

    async def _first(self) -> Offset:
        await self._logs.discover()
        views = self._logs.views
        found = Offset()
        for name, dlsn in (await self._logs.starts(sorted(views), "latest")).items():
            await self._put(found, views[name], dlsn)
            if self._options.start.searches and dlsn == views[name].end:
                found.searched.add(name)
        return found

    async def set_target(self) -> None:
        """AvailableNow: what is there now, and acknowledged, is what this run reads."""
        await self._patiently(self._set_target)

    async def _set_target(self) -> None:
        await self._discover()
        await self._logs.refresh(now=True)
        self._target = await self.ends()

    # --- how far ----------------------------------------------------------------------------------

    async def ends(self) -> Offset:
        """The ends as they were last seen."""
        found = Offset()
        for name in sorted(self._logs.views):
            view = self._logs.views[name]
            await self._put(found, view, view.end)
        return found

    async def latest(self, start: Offset, limit: Limit) -> Offset:
        """How far the next micro-batch goes."""
        return await self._patiently(partial(self._latest, start, limit))

    async def _latest(self, start: Offset, limit: Limit) -> Offset:
        await self._discover()
        await self._logs.refresh()
        found = Offset()
        starts = await self._starts(start, found)
        ends: dict[str, DLSN] = {}
        for name, begin in starts.items():
            end = self._logs.views[name].end
            if self._target is not None:
                end = min(end, self._target.logs[name])
            ends[name] = max(begin, end)
        begun = any(name in found.logs for name in start.searched - found.searched)
        backlog = await self._backlog(starts, ends, count=True)
        if not begun and self._should_wait(backlog):
            return start
        if limit.records is not None or limit.size is not None:
            ends = await self._limited(starts, ends, limit)
        for name, begin in starts.items():
            view = self._logs.views[name]
            moved = bool(view.ranges(begin, ends[name]))
            same = start.ids.get(name) == view.incarnation and start.logs.get(name) == begin
            if not moved and same:
                found.keep(name, start)
            else:
                await self._put(found, view, ends[name] if moved else begin)
        return found

    async def _limited(
        self, starts: dict[str, DLSN], ends: dict[str, DLSN], limit: Limit
    ) -> dict[str, DLSN]:
        count = limit.records is not None
        bound = limit.records if limit.records is not None else limit.size
        assert bound is not None
        backlog = await self._backlog(starts, ends, count=count)
        if sum(backlog.values()) <= bound:
            return ends
        whose = turn_of(self._turn, backlog)
        self._turn += 1
        found = {}
        for name, share in shares(bound, backlog).items():
            view, begin, end = self._logs.views[name], starts[name], ends[name]
            found[name] = await view.advance(
                begin, end, records=share if count else None, size=None if count else share
            )
            if name == whose and not view.ranges(begin, found[name]):
                found[name] = min(end, view.entry_after(begin))
        return found

    async def _backlog(
        self, starts: dict[str, DLSN], ends: dict[str, DLSN], *, count: bool
    ) -> dict[str, int]:
        """Of each log, in records or bytes; at least 1 where an entry waits."""
        found = {}
        for name, begin in starts.items():
            view = self._logs.views[name]
            if not view.ranges(begin, ends[name]):
                found[name] = 0
                continue
            records, size = await view.between(begin, ends[name])
            found[name] = max(1, records if count else size)
        return found

    def _should_wait(self, backlog: dict[str, int]) -> bool:
        """``minRecordsPerTrigger``: is it too early for a micro-batch?"""
        least = self._options.min_records_per_trigger
        if least is None or self._target is not None:
            return False
        now = trio.current_time()
        if self._waiting_since is None:
            self._waiting_since = now
        if (
            sum(backlog.values()) < least
            and now - self._waiting_since < self._options.max_trigger_delay_s
        ):
            return True
        self._waiting_since = None
        return False

    # --- what a micro-batch reads -----------------------------------------------------------------

    async def ranges(self, start: Offset, end: Offset) -> list[SegmentRange]:
        """Between two offsets that this source gave, perhaps before a restart."""
        return await self._patiently(partial(self._ranges, start, end))

    async def _ranges(self, start: Offset, end: Offset) -> list[SegmentRange]:
        views = self._logs.views
        absent = [name for name in end.logs if not self._is_there(name, end)]
        if absent:
            await self._logs.look_for([name for name in absent if name not in views])
        behind = [
            name for name, dlsn in end.logs.items() if name in views and views[name].end < dlsn
        ]
        if behind:
            await self._logs.refresh(now=True)
        found: list[SegmentRange] = []
        for name in sorted(end.logs):
            held = start.held(name)
            if held is not None and held.identity != end.ids[name]:
                held = None  # what became of the log before it was decided with the offset
            if not self._is_there(name, end):
                self._planned_and_gone(name, held, end)
                continue
            view = views[name]
            view.prove(end.logs[name])
            if held is not None and name in start.searched:
                continue
            if held is not None:
                begin = self._logs.still_there(view, held)
            elif self._options.new_logs == "latest":
                continue  # its end is in the offset: nothing before it
            else:
                begin = view.earliest
            found += view.ranges(begin, end.logs[name])
        return found

    def _is_there(self, name: str, end: Offset) -> bool:
        view = self._logs.views.get(name)
        return view is not None and view.incarnation == end.ids[name]

    def _planned_and_gone(self, name: str, held: HeldPosition | None, end: Offset) -> None:
        """A log was deleted before a micro-batch that was to read it: is anything of the batch lost?

        What lies after the batch was decided about with the next offset.
        """
        if held is None:
            if self._options.new_logs == "latest":
                return
            held = HeldPosition(DLSN.INITIAL, end.ids[name], 0)
        if held.dlsn == end.logs[name]:
            return
        sequence_id = end.sequence_ids.get(name)
        planned = LogEnd(end.logs[name], sequence_id or 0, exact=sequence_id is not None)
        batch = DeletedLog(incarnation_id(end.ids[name]), planned, 0, 0)
        self._logs.heed(decide(name, held, LogLookup(gone=[batch]), self._logs.rules(name)))

    async def committed(self, end: Offset) -> None:
        """Advance the subscriber's positions; what fails is logged: an exception here would end the query."""
        subscriber = self._options.subscriber
        assert subscriber is not None

        async def advance(name: str) -> None:
            try:
                target = self._namespace.open_log(name, incarnation=end.ids[name])
                await target.positions.advance(subscriber, end.logs[name])
            except DistributedLogError as error:
                log.warning('log "%s": position "%s" stays behind: %s', name, subscriber, error)

        with trio.move_on_after(self._options.request_timeout_s) as patience:
            await each([name for name in sorted(end.logs) if name not in self._kept], advance)
        if patience.cancelled_caught:
            log.warning(
                'positions "%s" stay behind: no answer within %g s (option "requestTimeout")',
                subscriber,
                self._options.request_timeout_s,
            )

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the store or bookies are away, up to the ``readTimeout``: as tasks do (S27)."""
        return await retry_unavailable(attempt, self._options.read_timeout_s)

    # --- logs that come and go --------------------------------------------------------------------

    async def _discover(self) -> None:
        views, named = self._logs.views, self._options.names
        if named is None or any(name not in views for name in named):
            every_s = self._options.discovery_interval_s if views else 0.0
            await self._logs.discover(every_s=every_s, required=False)

    async def _starts(self, start: Offset, offset: Offset) -> dict[str, DLSN]:
        """Where each log begins in the next micro-batch; what stays as it is goes into ``offset``."""
        views = self._logs.views
        starts: dict[str, DLSN] = {}
        for name in sorted(set(views) | set(start.logs) | set(self._options.names or ())):
            held = start.held(name)
            if held is not None and name not in views and self._is_known_gone(name, held):
                offset.keep(name, start)
                continue
            found = await self._found(name, held)
            if name in start.searched and held is not None and self._has(name, held):
                await self._search(name, start, offset)
                continue
            decision = self._logs.heed(decide(name, held, found, self._logs.rules(name)))
            if decision.do is Do.KEEP:
                offset.keep(name, start)
                if not found.deleting and held is not None:
                    self._kept[name] = held.identity, trio.current_time()
            elif decision.do is Do.READ and self._is_late(name):
                if held is not None:
                    offset.keep(name, start)
            elif decision.do is Do.READ:
                assert decision.at is not None
                starts[name] = decision.at
        return starts

    def _has(self, name: str, held: HeldPosition) -> bool:
        view = self._logs.views.get(name)
        return view is not None and view.incarnation == held.identity

    async def _search(self, name: str, start: Offset, offset: Offset) -> None:
        """Look again for the first record that the options mean, of a log that had none.

        Records before it are not read. When it exists, the position moves there in a micro-batch
        without rows, and the next one reads from there, as after any restart.
        """
        if not self._options.start.searches:
            at: DLSN | None = start.logs[name]  # the option was left out since
        else:
            at = await self._logs.first(name)
        if at is None:
            offset.keep(name, start)
        else:
            await self._put(offset, self._logs.views[name], at)

    async def _found(self, name: str, held: HeldPosition | None) -> LogLookup:
        view = self._logs.views.get(name)
        if held is not None:
            if view is not None and view.incarnation == held.identity:
                view.prove(held.dlsn)
            return await self._logs.found(name, held)
        if view is None:
            self._logs.warn(f'log "{name}" does not exist (yet): it is looked for')
        return LogLookup(None if view is None else seen(view))

    def _is_known_gone(self, name: str, held: HeldPosition) -> bool:
        identity, asked = self._kept.get(name, ("", 0.0))
        due = asked + self._options.discovery_interval_s
        return identity == held.identity and trio.current_time() < due

    def _is_late(self, name: str) -> bool:
        """Was this log found after an AvailableNow run began? Then it is the next run's."""
        view = self._logs.views[name]
        return self._target is not None and self._target.ids.get(name) != view.incarnation

    async def _put(self, offset: Offset, view: LogView, dlsn: DLSN) -> None:
        """Set a position, with its sequence id where that can be known now."""
        sequence_id: int | None = None
        try:
            sequence_id = (await view.mark(dlsn)).sequence_id
        except DistributedLogError as error:
            if not error.retryable:
                raise
        offset.put(view.name, dlsn, view.incarnation, sequence_id)
