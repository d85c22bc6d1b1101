"""The progress of a streaming query: its start, and the end and ranges of each micro-batch.

Answers without new data repeat the start in the same spelling, because Spark compares text. Given answers
remain valid after a restart, independent of the cluster's state (G5, H24).
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
from .data_loss_policy import LogAction, decide
from .offsets import Offset
from .scan_planner import log_of_turn, share_limit
from .source_logs import SourceLogs, current_log, for_each_log

T = TypeVar("T")

log = logging.getLogger("distributedlog.spark")


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The limit of a micro-batch: records, bytes, or none."""

    records: int | None
    size: int | None


class StreamProgress:
    """The progress of one query. All methods run in the background loop."""

    def __init__(
        self, namespace: Namespace, options: SourceOptions, previous: "StreamProgress | None" = None
    ) -> None:
        """``previous`` is the progress of this query with a client that has ended.

        Its answers remain valid.
        """
        self._namespace = namespace
        self._options = options
        self._logs = SourceLogs(namespace, options)
        self._initial: Offset | None = None if previous is None else previous._initial
        self._target: Offset | None = None if previous is None else previous._target
        """The ends that an AvailableNow run does not pass."""
        self._next_turn = 0
        self._waiting_from: float | None = None
        self._deleted_logs: dict[str, tuple[str, float]] = {}
        """Named logs that were deleted: their incarnation, and the time of the check.

        A new log of the name could have been deleted since, which leaves no view. Therefore the check is
        repeated with the next search for logs.
        """

    def close(self) -> None:
        """Stop watching all logs."""
        self._logs.close()

    @property
    def views(self) -> Mapping[str, LogView]:
        """The existing logs, as of the last update."""
        return self._logs.views

    # --- where to begin ---------------------------------------------------------------------------

    async def initial(self) -> Offset:
        """Return the start of a new query.

        It is computed once, because a moving ``latest`` would skip the records between two answers.
        """
        if self._initial is None:
            self._initial = await self._with_retry(self._compute_initial)
        return self._initial

    async def _compute_initial(self) -> Offset:
        await self._logs.discover()
        views = self._logs.views
        offset = Offset()
        for name, dlsn in (await self._logs.starts(sorted(views), "latest")).items():
            await self._put_position(offset, views[name], dlsn)
            if self._options.start.is_search and dlsn == views[name].end:
                # No record matches yet. The search is repeated for each micro-batch, because records after
                # this end may be earlier than the start.
                offset.searched.add(name)
        return offset

    async def set_target(self) -> None:
        """Set the ends for an AvailableNow run: all records that are acknowledged now."""
        await self._with_retry(self._set_target)

    async def _set_target(self) -> None:
        await self._discover()
        await self._logs.refresh(immediately=True)
        self._target = await self.ends()

    # --- how far ----------------------------------------------------------------------------------

    async def ends(self) -> Offset:
        """Return the ends, as of the last update."""
        offset = Offset()
        for name in sorted(self._logs.views):
            view = self._logs.views[name]
            await self._put_position(offset, view, view.end)
        return offset

    async def latest(self, start: Offset, limit: BatchLimit) -> Offset:
        """Return the end of the next micro-batch."""
        return await self._with_retry(partial(self._latest, start, limit))

    async def _latest(self, start: Offset, limit: BatchLimit) -> Offset:
        await self._discover()
        await self._logs.refresh()
        offset = Offset()
        starts = await self._starts(start, offset)
        ends: dict[str, DLSN] = {}
        for name, begin in starts.items():
            end = self._logs.views[name].end
            if self._target is not None:
                end = min(end, self._target.logs[name])
            ends[name] = max(begin, end)
        has_new_start = any(name in offset.logs for name in start.searched - offset.searched)
        backlog = await self._backlog(starts, ends, by_records=True)
        if not has_new_start and self._should_wait(backlog):
            return start
        if limit.records is not None or limit.size is not None:
            ends = await self._apply_limit(starts, ends, limit)
        for name, begin in starts.items():
            view = self._logs.views[name]
            is_moved = bool(view.ranges(begin, ends[name]))
            is_same_start = (
                start.ids.get(name) == view.incarnation and start.logs.get(name) == begin
            )
            if not is_moved and is_same_start:
                offset.copy_position(name, start)
            else:
                await self._put_position(offset, view, ends[name] if is_moved else begin)
        return offset

    async def _apply_limit(
        self, starts: dict[str, DLSN], ends: dict[str, DLSN], limit: BatchLimit
    ) -> dict[str, DLSN]:
        by_records = limit.records is not None
        total_limit = limit.records if limit.records is not None else limit.size
        assert total_limit is not None
        backlog = await self._backlog(starts, ends, by_records=by_records)
        if sum(backlog.values()) <= total_limit:
            return ends
        favored_log = log_of_turn(self._next_turn, backlog)
        self._next_turn += 1
        limited_ends = {}
        for name, log_limit in share_limit(total_limit, backlog).items():
            view, begin, end = self._logs.views[name], starts[name], ends[name]
            limited_ends[name] = await view.limit_position(
                begin,
                end,
                records=log_limit if by_records else None,
                size=None if by_records else log_limit,
            )
            if name == favored_log and not view.ranges(begin, limited_ends[name]):
                limited_ends[name] = min(end, view.entry_after(begin))
        return limited_ends

    async def _backlog(
        self, starts: dict[str, DLSN], ends: dict[str, DLSN], *, by_records: bool
    ) -> dict[str, int]:
        """Return the backlog of each log, in records or bytes; at least 1 if an entry is unread."""
        backlog = {}
        for name, begin in starts.items():
            view = self._logs.views[name]
            if not view.ranges(begin, ends[name]):
                backlog[name] = 0
                continue
            records, size = await view.totals_between(begin, ends[name])
            backlog[name] = max(1, records if by_records else size)
        return backlog

    def _should_wait(self, backlog: dict[str, int]) -> bool:
        """Whether ``minRecordsPerTrigger`` delays the micro-batch."""
        minimum = self._options.min_records_per_trigger
        if minimum is None or self._target is not None:
            return False
        now = trio.current_time()
        if self._waiting_from is None:
            self._waiting_from = now
        if (
            sum(backlog.values()) < minimum
            and now - self._waiting_from < self._options.max_trigger_delay_s
        ):
            return True
        self._waiting_from = None
        return False

    # --- what a micro-batch reads -----------------------------------------------------------------

    async def ranges(self, start: Offset, end: Offset) -> list[SegmentRange]:
        """Return the ranges between two offsets of this source, possibly from before a restart."""
        return await self._with_retry(partial(self._ranges, start, end))

    async def _ranges(self, start: Offset, end: Offset) -> list[SegmentRange]:
        views = self._logs.views
        absent = [name for name in end.logs if not self._is_current(name, end)]
        if absent:
            await self._logs.open_views([name for name in absent if name not in views])
        outdated = [
            name for name, dlsn in end.logs.items() if name in views and views[name].end < dlsn
        ]
        if outdated:
            await self._logs.refresh(immediately=True)
        ranges: list[SegmentRange] = []
        for name in sorted(end.logs):
            start_position = start.position_of(name)
            if start_position is not None and start_position.incarnation != end.ids[name]:
                start_position = None  # the previous log was decided about together with the offset
            if not self._is_current(name, end):
                self._check_deleted_after_planning(name, start_position, end)
                continue
            view = views[name]
            view.mark_readable_before(end.logs[name])
            if start_position is not None and name in start.searched:
                continue
            if start_position is not None:
                begin = self._logs.check_position(view, start_position)
            elif self._options.new_logs == "latest":
                continue  # the offset contains its end; earlier records are not read
            else:
                begin = view.earliest
            ranges += view.ranges(begin, end.logs[name])
        return ranges

    def _is_current(self, name: str, end: Offset) -> bool:
        view = self._logs.views.get(name)
        return view is not None and view.incarnation == end.ids[name]

    def _check_deleted_after_planning(
        self, name: str, start_position: HeldPosition | None, end: Offset
    ) -> None:
        """Check whether records of a planned micro-batch are lost because a log was deleted.

        Records after the batch were decided about with the next offset.
        """
        if start_position is None:
            if self._options.new_logs == "latest":
                return
            start_position = HeldPosition(DLSN.INITIAL, end.ids[name], 0)
        if start_position.dlsn == end.logs[name]:
            return
        sequence_id = end.sequence_ids.get(name)
        planned = LogEnd(end.logs[name], sequence_id or 0, is_exact=sequence_id is not None)
        deleted = DeletedLog(incarnation_id(end.ids[name]), planned, 0, 0)
        self._logs.apply_decision(
            decide(
                name, start_position, LogLookup(deleted_logs=[deleted]), self._logs.loss_rules(name)
            )
        )

    async def committed(self, end: Offset) -> None:
        """Advance the subscriber's positions.

        Failures are logged, because an exception here would end the query.
        """
        subscriber = self._options.subscriber
        assert subscriber is not None

        async def advance(name: str) -> None:
            try:
                log_handle = self._namespace.open_log(name, incarnation=end.ids[name])
                await log_handle.positions.advance(subscriber, end.logs[name])
            except DistributedLogError as error:
                log.warning('log "%s": position "%s" was not advanced: %s', name, subscriber, error)

        with trio.move_on_after(self._options.request_timeout_s) as timeout:
            await for_each_log(
                [name for name in sorted(end.logs) if name not in self._deleted_logs], advance
            )
        if timeout.cancelled_caught:
            log.warning(
                'positions "%s" were not advanced: no answer within %g s (option "requestTimeout")',
                subscriber,
                self._options.request_timeout_s,
            )

    async def _with_retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry while the cluster is unavailable, up to the ``readTimeout``, as in tasks (S27)."""
        return await retry_unavailable(attempt, self._options.read_timeout_s)

    # --- new and deleted logs ---------------------------------------------------------------------

    async def _discover(self) -> None:
        views, named_logs = self._logs.views, self._options.names
        if named_logs is None or any(name not in views for name in named_logs):
            every_s = self._options.discovery_interval_s if views else 0.0
            await self._logs.discover(every_s=every_s, required=False)

    async def _starts(self, start: Offset, offset: Offset) -> dict[str, DLSN]:
        """Return the start of each log in the next micro-batch. Unchanged ones are copied to ``offset``."""
        views = self._logs.views
        starts: dict[str, DLSN] = {}
        for name in sorted(set(views) | set(start.logs) | set(self._options.names or ())):
            position = start.position_of(name)
            if (
                position is not None
                and name not in views
                and self._is_recently_deleted(name, position)
            ):
                offset.copy_position(name, start)
                continue
            lookup = await self._look_up_log(name, position)
            if name in start.searched and position is not None and self._is_view_of(name, position):
                await self._search_start(name, start, offset)
                continue
            decision = self._logs.apply_decision(
                decide(name, position, lookup, self._logs.loss_rules(name))
            )
            if decision.action is LogAction.KEEP:
                offset.copy_position(name, start)
                if not lookup.is_being_deleted and position is not None:
                    self._deleted_logs[name] = position.incarnation, trio.current_time()
            elif decision.action is LogAction.READ and self._is_after_target(name):
                if position is not None:
                    offset.copy_position(name, start)
            elif decision.action is LogAction.READ:
                assert decision.start is not None
                starts[name] = decision.start
        return starts

    def _is_view_of(self, name: str, position: HeldPosition) -> bool:
        view = self._logs.views.get(name)
        return view is not None and view.incarnation == position.incarnation

    async def _search_start(self, name: str, start: Offset, offset: Offset) -> None:
        """Search again for the first record that the options select, in a log that had none.

        Records before it are not read. When it exists, the position moves there in a micro-batch without
        rows, and the next one reads from there, as after any restart.
        """
        if not self._options.start.is_search:
            first_dlsn: DLSN | None = start.logs[name]  # the option was removed in the meantime
        else:
            first_dlsn = await self._logs.first_matching(name)
        if first_dlsn is None:
            offset.copy_position(name, start)
        else:
            await self._put_position(offset, self._logs.views[name], first_dlsn)

    async def _look_up_log(self, name: str, position: HeldPosition | None) -> LogLookup:
        view = self._logs.views.get(name)
        if position is not None:
            if view is not None and view.incarnation == position.incarnation:
                view.mark_readable_before(position.dlsn)
            return await self._logs.look_up(name, position)
        if view is None:
            self._logs.warn_once(
                f'log "{name}" does not exist yet; the query continues to look for it'
            )
        return LogLookup(None if view is None else current_log(view))

    def _is_recently_deleted(self, name: str, position: HeldPosition) -> bool:
        identity, checked_at = self._deleted_logs.get(name, ("", 0.0))
        check_again_at = checked_at + self._options.discovery_interval_s
        return identity == position.incarnation and trio.current_time() < check_again_at

    def _is_after_target(self, name: str) -> bool:
        """Whether this log was found after an AvailableNow run began, so that it belongs to the next run."""
        view = self._logs.views[name]
        return self._target is not None and self._target.ids.get(name) != view.incarnation

    async def _put_position(self, offset: Offset, view: LogView, dlsn: DLSN) -> None:
        """Set a position, with its sequence ID if it can be determined now."""
        sequence_id: int | None = None
        try:
            sequence_id = (await view.totals_before(dlsn)).sequence_id
        except DistributedLogError as error:
            if not error.retryable:
                raise
        offset.put(view.name, dlsn, view.incarnation, sequence_id)
