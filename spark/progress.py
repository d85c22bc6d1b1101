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

from ..log.dlsn import DLSN
from ..log.namespace import Namespace
from ..runtime.errors import DistributedLogError, LogNotFound
from .catalog import Catalog, each, remade
from .feed import RETRY_FIRST_S, RETRY_MAX_S
from .logview import LogView
from .offsets import Offset
from .options import SourceOptions
from .planning import EntryRange
from .sharing import shares, turn_of

T = TypeVar("T")

log = logging.getLogger("distributedlog.spark")


@dataclass(frozen=True, slots=True)
class Limit:
    """Of a micro-batch: records, or bytes, or neither."""

    records: int | None
    size: int | None


class Progress:
    """One query's. All in the background loop."""

    def __init__(
        self, namespace: Namespace, options: SourceOptions, before: "Progress | None" = None
    ) -> None:
        """``before``: the same query's, whose client has ended; what was answered stays true."""
        self._namespace = namespace
        self._options = options
        self._catalog = Catalog(namespace, options)
        self._initial: Offset | None = None if before is None else before._initial
        self._target: Offset | None = None if before is None else before._target
        """What an AvailableNow run will not pass."""
        self._turn = 0
        self._waiting_since: float | None = None
        self._warned: set[str] = set()

    def close(self) -> None:
        """Follow nothing more."""
        self._catalog.close()

    @property
    def views(self) -> Mapping[str, LogView]:
        """The logs that are there, as they were last seen."""
        return self._catalog.views

    # --- where to begin ---------------------------------------------------------------------------

    async def initial(self) -> Offset:
        """Of a new query. Computed once: a moving ``latest`` would lose what lies between two answers."""
        if self._initial is None:
            await self._catalog.discover()
            views = self._catalog.views
            found = Offset()
            for name, dlsn in (await self._catalog.starts(sorted(views), "latest")).items():
                await self._put(found, views[name], dlsn)
            self._initial = found
        return self._initial

    async def set_target(self) -> None:
        """AvailableNow: what is there now, and acknowledged, is what this run reads."""
        await self._discover(set())
        await self._catalog.refresh(now=True)
        self._target = await self.ends()

    # --- how far ----------------------------------------------------------------------------------

    async def ends(self) -> Offset:
        """The ends as they were last seen."""
        found = Offset()
        for name in sorted(self._catalog.views):
            view = self._catalog.views[name]
            await self._put(found, view, view.end)
        return found

    async def latest(self, start: Offset, limit: Limit) -> Offset:
        """How far the next micro-batch goes."""
        return await self._patiently(partial(self._latest, start, limit))

    async def _latest(self, start: Offset, limit: Limit) -> Offset:
        await self._discover(set(start.logs))
        await self._catalog.refresh()
        starts, found = await self._starts(start), Offset()
        ends: dict[str, DLSN] = {}
        for name, begin in starts.items():
            end = self._catalog.views[name].end
            if self._target is not None:
                end = min(end, self._target.logs.get(name, begin))
            ends[name] = max(begin, end)
        if self._should_wait(await self._backlog(starts, ends, count=True), start):
            return start
        if limit.records is not None or limit.size is not None:
            ends = await self._limited(starts, ends, limit)
        for name, begin in starts.items():
            view = self._catalog.views[name]
            moved = bool(view.ranges(begin, ends[name]))
            same = start.ids.get(name) == view.identity and start.logs.get(name) == begin
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
            view, begin, end = self._catalog.views[name], starts[name], ends[name]
            found[name] = await view.advance(
                begin, end, records=share if count else None, size=None if count else share
            )
            if name == whose and not view.ranges(begin, found[name]):
                found[name] = min(end, view.entry_behind(begin))
        return found

    async def _backlog(
        self, starts: dict[str, DLSN], ends: dict[str, DLSN], *, count: bool
    ) -> dict[str, int]:
        """Of each log, in records or bytes; at least 1 where an entry waits."""
        found = {}
        for name, begin in starts.items():
            view = self._catalog.views[name]
            if not view.ranges(begin, ends[name]):
                found[name] = 0
                continue
            records, size = await view.between(begin, ends[name])
            found[name] = max(1, records if count else size)
        return found

    def _should_wait(self, backlog: dict[str, int], start: Offset) -> bool:
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

    async def ranges(self, start: Offset, end: Offset) -> list[EntryRange]:
        """Between two offsets that this source gave, perhaps before a restart."""
        return await self._patiently(partial(self._ranges, start, end))

    async def _ranges(self, start: Offset, end: Offset) -> list[EntryRange]:
        if any(name not in self._catalog.views for name in end.logs):
            await self._discover(set(start.logs))
        behind = [
            name
            for name, dlsn in end.logs.items()
            if name in self._catalog.views and self._catalog.views[name].end < dlsn
        ]
        if behind:
            await self._catalog.refresh(now=True)
        found: list[EntryRange] = []
        for name in sorted(end.logs):
            view = self._catalog.views.get(name)
            if view is None or view.identity != end.ids[name]:
                self._lost(
                    f'log "{name}" was deleted before its records up to {end.logs[name]} were read'
                )
                continue
            view.prove(end.logs[name])
            begin = self._begin(view, start)
            begin = self._catalog.not_truncated(view, begin, start.sequence_ids.get(name))
            found += view.ranges(begin, end.logs[name])
        return found

    def _begin(self, view: LogView, start: Offset) -> DLSN:
        """Where a log begins in a micro-batch: its position, or by ``newLogs`` for one that is new."""
        if view.name in start.logs and start.ids[view.name] == view.identity:
            return start.logs[view.name]
        if view.name not in start.logs and self._options.new_logs == "latest":
            return DLSN(
                view.state.last_segment + 2, 0, 0
            )  # its end is in the offset: nothing before it
        return view.earliest

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
            await each(sorted(end.logs), advance)
        if patience.cancelled_caught:
            log.warning(
                'positions "%s" stay behind: no answer within %g s (option "requestTimeout")',
                subscriber,
                self._options.request_timeout_s,
            )

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the store or bookies are away, up to the ``readTimeout``: as tasks do (S27)."""
        began, pause_s = trio.current_time(), RETRY_FIRST_S
        while True:
            try:
                return await attempt()
            except DistributedLogError as error:
                waited_s = trio.current_time() - began
                if not error.retryable or waited_s > self._options.read_timeout_s:
                    raise
                log.warning("the query waits: %s; asked again", error)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    # --- logs that come and go --------------------------------------------------------------------

    async def _discover(self, known: set[str]) -> None:
        every_s = self._options.discovery_interval_s if self._catalog.views else 0.0
        missing = set() if self._options.fail_on_data_loss else known
        if self._options.names is None or not self._catalog.views:
            await self._catalog.discover(every_s=every_s, missing=missing)

    async def _starts(self, start: Offset) -> dict[str, DLSN]:
        """Where each log begins in the next micro-batch."""
        views = self._catalog.views
        starts: dict[str, DLSN] = {}
        for name in sorted(set(views) | set(start.logs)):
            view = views.get(name)
            if view is None:
                self._check_gone(name, start)
            elif name in start.logs:
                if start.ids[name] != view.identity:
                    if self._options.fail_on_data_loss:
                        raise remade(name, "the checkpoint")
                    self._warn(f'log "{name}" was deleted and made again; the new one is read')
                    starts[name] = view.earliest
                else:
                    view.prove(start.logs[name])
                    starts[name] = self._catalog.not_truncated(
                        view, start.logs[name], start.sequence_ids.get(name)
                    )
            elif self._target is not None and name not in self._target.logs:
                continue  # found after an AvailableNow run began: the next run's
            elif self._options.new_logs == "earliest":
                starts[name] = view.earliest
            elif self._options.new_logs == "latest":
                starts[name] = view.end
        return starts

    def _check_gone(self, name: str, start: Offset) -> None:
        """A log of the checkpoint is not there (any more): was all of it read?"""
        named = self._options.names
        if named is not None and name not in named:
            self._warn(
                f'log "{name}" of the checkpoint is not among the options: its position is dropped'
            )
            return
        end = self._catalog.gone.get(name)
        if end is None:
            self._lost(
                f'log "{name}" does not exist any more; whether all of it was read is not known'
            )
        elif start.logs[name] < end and start.logs[name] != end:
            self._lost(f'log "{name}" was deleted: read up to {start.logs[name]}, it went to {end}')
        else:
            self._warn(f'log "{name}" was deleted; all of it had been read')

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise LogNotFound(f'{what}; "failOnDataLoss"=false goes on without it')
        self._warn(f"{what} (failOnDataLoss=false)")

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", what)

    async def _put(self, offset: Offset, view: LogView, dlsn: DLSN) -> None:
        """Set a position, with its sequence id where that can be known now."""
        sequence_id: int | None = None
        try:
            sequence_id = (await view.mark(dlsn)).sequence_id
        except DistributedLogError as error:
            if not error.retryable:
                raise
        offset.put(view.name, dlsn, view.identity, sequence_id)
