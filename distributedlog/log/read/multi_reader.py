"""Read several logs as one stream, with one fetcher and queue per log and one byte limit for all.

Each log has a share of the byte limit, for its queued bytes and for its requests, so that no log displaces
another. In the order of arrival, the logs take turns by bytes. In the order of time, the oldest queued entry
by log time is next. The reader waits for a log without a queued entry, but no longer than ``time_wait_s``
(H172). A failure of one log is reported as an event and does not stop the others.

Logs are identified by their ID and reported with their present name. A renamed log continues under the new
name. A log that is created under a name that was used before is another log, even while the older one is
still read.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Literal
from weakref import WeakMethod

import trio

from ...runtime.declarations.options import check_seconds, check_wait, check_whole, quoted
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    LogRecreated,
    LogTruncated,
)
from ..format.record import Columns
from ..interfaces.error_boundary import error_boundary
from ..model.deleted_log_lookup import explain_deleted
from ..model.log_keys import incarnation_id
from ..model.position import Position
from ..model.position_outcome import HeldPosition
from ..services.log_context import LogContext
from ..services.log_metrics import ReaderLag
from ..services.log_watch import LogWatch, current_name
from .entry_queue import EntryQueue
from .fetcher import Fetcher, open_fetcher
from .log_reader import position_after
from .state_watch import open_state_watch

PARALLEL_OPENS_MAX = 16
BYTES_PER_TURN = 64 * 1024
"""The bytes that one log delivers in a row while other logs have entries, too."""
ENTRY_OVERHEAD_BYTES = 4 * 1024
"""The bytes that an entry counts in addition to its payload."""

Order = Literal["arrival", "time"]


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One entry of one of the logs."""

    log: str
    incarnation: str
    columns: Columns
    late: bool = False
    """Only in the order of time: a newer entry was delivered before this one."""

    @property
    def position(self) -> Position:
        """The position after this entry, where a reader of this log continues."""
        return position_after(self.incarnation, self.columns, self.columns.count)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A change of one of the logs."""

    log: str
    kind: Literal[
        "joined", "renamed", "ended", "sealed", "truncated", "deleted", "recreated", "failed"
    ]
    """After all kinds except "joined" and "renamed", no more entries of the log follow. With "ended", all
    records that were readable at the opening were delivered. With "renamed", the log has the name ``log``
    from now on, even if the pattern does not match it."""
    position: Position | None = None
    """For "joined": the start of the log, if it is known before the first record."""
    error: DistributedLogError | None = None
    """The error, for "truncated", "deleted", "recreated" and "failed"."""
    incarnation: str = ""
    """The incarnation of the log with this name. Empty if the log was never opened."""
    old_name: str = ""
    """The previous name, for "renamed"."""


Item = LogBatch | LogEvent


@dataclass(frozen=True, slots=True)
class MultiReadOptions:
    """How several logs are read as one, as the arguments of `Namespace.open_reader`."""

    positions: Mapping[str, Position]
    at: Literal["earliest", "latest"]
    to_end: bool
    order: Order
    time_wait_s: float
    bytes_max: int


@dataclass(slots=True, eq=False)
class _Member:
    name: str
    queue: EntryQueue
    empty_since: float
    """When its queue became empty."""
    last_activity: float
    """When it last received an entry or ended."""
    turn_bytes: int = 0
    is_ready: bool = False
    """Whether it is in `_ready`."""


class MultiReader:
    """Delivers entries of several logs, and changes of the logs. `Namespace.open_reader` creates it."""

    def __init__(
        self,
        context: LogContext,
        resolve_name: Callable[[str], Awaitable[int]],
        names: Mapping[str, int | None],
        *,
        watch: LogWatch | None,
        pattern: str,
        options: MultiReadOptions,
    ) -> None:
        self._context = context
        self._resolve_name = resolve_name
        self._names = names
        self._watch = watch
        self._pattern = pattern
        self._starts = dict(options.positions)
        self._default_start = options.at
        self._to_end = options.to_end
        self._ordered_by_time = options.order == "time"
        self._time_wait_s = options.time_wait_s
        self._bytes_max = options.bytes_max
        self._members: list[_Member] = []
        self._ready: deque[_Member] = deque()
        """The members with queued entries or an end, in the order of their turns."""
        self._events: deque[LogEvent] = deque()
        self._pending_opens = len(names)
        self._newest_delivered_ms = -1
        self._open_wait_deadline = trio.current_time() + options.time_wait_s
        self._activity = trio.Event()
        self._limiter = trio.CapacityLimiter(PARALLEL_OPENS_MAX)
        self._scope = trio.CancelScope()
        self._error: DistributedLogError | None = None
        self._positions: dict[str, Position] = {}
        self._incarnations: dict[str, str] = {}
        """The incarnation of each name, as reported to the caller. An older log with the name can still be
        read for a while."""
        self._log_ids: set[int] = set()
        """The IDs of the logs that are read or being opened."""
        self._renamed_while_opening: dict[int, str] = {}
        """The new names of logs that were renamed while they were being opened."""
        self._buffered: WeakMethod[Callable[[], Sequence[Item]]] | None = None
        context.meters.add_reader(self._lag)

    # --- for the caller ---------------------------------------------------------------------------

    async def next(self, wait_s: float | None = None) -> Item | None:
        """Return the next entry or event, waiting for it if necessary.

        An error that prevents the watch of a ``pattern`` ends the reader, and each further call raises it
        again.

        Args:
            wait_s: The longest wait in seconds. None for no limit, 0 to return only an item that is already
                fetched.
        Returns:
            The item. None after ``wait_s``, or if no log will deliver anything more.

        Raises: InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        await trio.lowlevel.checkpoint()
        deadline = trio.current_time() + (float("inf") if wait_s is None else wait_s)
        while True:
            if self._scope.cancel_called and self._error is not None:
                raise self._error.again()  # a log that was being opened may have joined since
            item, again_at = self._next_item()
            if item is not None:
                return self._record_delivery(item)
            if self._error is not None:
                raise self._error.again()
            if self.ended or trio.current_time() >= deadline:
                return None
            activity = self._activity
            with trio.move_on_at(min(deadline, again_at)):
                await activity.wait()

    async def next_many(
        self, wait_s: float | None = None, *, bytes_max: int = 1024 * 1024
    ) -> list[Item]:
        """Return an item as `next`, and further fetched items, up to about ``bytes_max``.

        Args:
            wait_s: As for `next`.
            bytes_max: The bytes after which no further item is added.
        Returns:
            The items. An empty list where `next` returns None.
        """
        check_whole("bytes_max", bytes_max, 1)
        first = await self.next(wait_s)
        items: list[Item] = [] if first is None else [first]
        bytes_left = bytes_max
        while items:
            last = items[-1]
            bytes_left -= ENTRY_OVERHEAD_BYTES
            if isinstance(last, LogBatch):
                bytes_left -= last.columns.payload_bytes
            if bytes_left <= 0:
                break
            item, _ = self._next_item()
            if item is None:
                break
            items.append(self._record_delivery(item))
        return items

    def count_buffered(self, buffered: Callable[[], Sequence[Item]]) -> None:
        """Include entries in the lag that were returned to another API variant, but not to the program.

        Args:
            buffered: A method that returns these items, in order. Any thread may call it. Its object can be
                freed before this reader, which keeps no reference to it.
        """
        self._buffered = WeakMethod(buffered)

    @property
    def positions(self) -> dict[str, Position]:
        """The position of each log after its delivered records. ``open_reader(positions=…)`` continues there.

        The keys are the names as reported in events. If two logs had the same name, it is the position of the
        newer one. Deleted logs are not included.
        """
        return dict(self._positions)

    @property
    def ended(self) -> bool:
        """Whether no log will deliver anything more."""
        return (
            self._watch is None
            and not self._pending_opens
            and not self._members
            and not self._events
        )

    def __aiter__(self) -> "MultiReader":
        return self

    async def __anext__(self) -> Item:
        item = await self.next()
        if item is None:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Stop fetching. Idempotent.

        Raises: nothing.
        """
        self._close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> "MultiReader":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close()

    def _lag(self) -> list[ReaderLag]:
        """Return the lag in each log, for metrics. Any thread may call it."""
        unreturned: dict[str, list[Columns]] = {}
        buffered = None if self._buffered is None else self._buffered()
        for item in () if buffered is None else buffered():
            if isinstance(item, LogBatch):
                unreturned.setdefault(item.incarnation, []).append(item.columns)
        queues = [member.queue for member in self._members.copy()]
        return [lag for queue in queues for lag in queue.lag(unreturned.get(queue.incarnation, ()))]

    def _record_delivery(self, item: Item) -> Item:
        """Update `positions` for an item that the caller receives."""
        incarnations, positions = self._incarnations, self._positions
        kind = item.kind if isinstance(item, LogEvent) else ""
        if kind == "joined":
            incarnations[item.log] = item.incarnation
            positions.pop(item.log, None)
        elif isinstance(item, LogEvent) and kind == "renamed":
            if incarnations.get(item.old_name) == item.incarnation:
                del incarnations[item.old_name]
                incarnations[item.log] = item.incarnation
                moved_position = positions.pop(item.old_name, None)
                positions.pop(item.log, None)
                if moved_position is not None:
                    positions[item.log] = moved_position
        elif incarnations.get(item.log) != item.incarnation:
            return item  # it belongs to an older log with that name
        elif kind in ("deleted", "recreated"):
            del incarnations[item.log]
            positions.pop(item.log, None)
        if item.position is not None:
            positions[item.log] = item.position
        return item

    # --- selection of the next item ---------------------------------------------------------------

    def _next_item(self) -> tuple[Item | None, float]:
        """Return the next available item. If there is none, return None and the time to check again."""
        if self._events:
            return self._events.popleft(), 0.0
        if self._ordered_by_time:
            return self._next_oldest()
        while self._ready:
            member = self._ready[0]
            if not member.queue.entries:
                self._ready.popleft()
                member.is_ready, member.turn_bytes = False, 0
                if member.queue.ended:
                    return self._remove_member(member), 0.0
                continue
            columns = member.queue.pop_entry()
            member.turn_bytes += columns.payload_bytes + ENTRY_OVERHEAD_BYTES
            if member.turn_bytes >= BYTES_PER_TURN:
                member.turn_bytes = 0
                self._ready.rotate(-1)
            return self._batch(member, columns), 0.0
        return None, float("inf")

    def _next_oldest(self) -> tuple[Item | None, float]:
        oldest, oldest_ms = None, 0
        now = trio.current_time()
        wait_until = -float("inf")
        for member in self._members:
            queue = member.queue
            if queue.entries:
                time_ms = queue.entries[0].time_ms
                if oldest is None or time_ms < oldest_ms:
                    oldest, oldest_ms = member, time_ms
            elif queue.ended:
                return self._remove_member(member), 0.0
            else:
                # At the end of the log all entries have arrived. The wait starts at its last activity, so
                # that the waits for many logs that become idle together overlap.
                since = (
                    member.last_activity
                    if queue.is_at_tail
                    else max(member.last_activity, member.empty_since)
                )
                wait_until = max(wait_until, since + self._time_wait_s)
        if oldest is None:
            return None, float("inf")
        if self._pending_opens and now < self._open_wait_deadline:
            wait_until = max(wait_until, self._open_wait_deadline)
        if now < wait_until:
            return None, wait_until
        columns = oldest.queue.pop_entry()
        if not oldest.queue.entries:
            oldest.empty_since = now
        late = oldest_ms < self._newest_delivered_ms
        self._newest_delivered_ms = max(self._newest_delivered_ms, oldest_ms)
        return self._batch(oldest, columns, late), 0.0

    def _batch(self, member: _Member, columns: Columns, late: bool = False) -> LogBatch:
        return LogBatch(member.name, member.queue.incarnation, columns, late)

    def _remove_member(self, member: _Member) -> LogEvent:
        self._members.remove(member)
        self._divide_budget()
        queue = member.queue
        self._log_ids.discard(incarnation_id(queue.incarnation))
        if queue.error is None:
            kind: Literal["sealed", "ended"] = "sealed" if queue.sealed else "ended"
            return LogEvent(member.name, kind, incarnation=queue.incarnation)
        return _failure_event(member.name, queue.error, queue.incarnation)

    # --- the tasks --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open and read the logs until closed. Runs in a task of the namespace."""
        finished = False
        try:
            with self._scope, error_boundary("a reader of several logs", self._end_with):
                async with trio.open_nursery() as nursery:
                    for name, log_id in self._names.items():
                        self._start_opening(name, log_id, nursery)
                    if self._watch is not None:
                        await self._follow(self._watch, nursery)
                finished = True
        finally:
            if self._watch is not None:
                with trio.CancelScope(shield=True):
                    await self._watch.aclose()
            if not finished:
                self._end_with(AlreadyClosed("a reader of several logs: the namespace was closed"))

    async def _follow(self, watch: LogWatch, nursery: trio.Nursery) -> None:
        while True:
            change = await watch.next()
            if change is None or not change.incarnation:
                continue
            log_id = incarnation_id(change.incarnation)
            if log_id in self._log_ids:
                name = change.name
                if change.kind == "deleted":  # or renamed to a name outside the prefix
                    name = await self._current_name(log_id)
                if name:
                    self._rename(log_id, name)
                continue
            # A log that matched before has ended here, and does not start again under another name.
            was_matched = change.kind == "renamed" and fnmatchcase(change.old_name, self._pattern)
            if (
                change.kind != "deleted"
                and not was_matched
                and fnmatchcase(change.name, self._pattern)
            ):
                self._pending_opens += 1
                self._start_opening(change.name, log_id, nursery)

    async def _current_name(self, log_id: int) -> str:
        try:
            return await current_name(self._context.metadata, log_id)
        except DistributedLogError:
            return ""  # the fetcher of the log reports the error

    def _rename(self, log_id: int, name: str) -> None:
        for member in self._members:
            if incarnation_id(member.queue.incarnation) == log_id:
                if member.name != name:
                    self._events.append(
                        LogEvent(
                            name,
                            "renamed",
                            incarnation=member.queue.incarnation,
                            old_name=member.name,
                        )
                    )
                    member.name = name
                    self._notify()
                return
        self._renamed_while_opening[log_id] = name

    def _start_opening(self, name: str, log_id: int | None, nursery: trio.Nursery) -> None:
        """Open one more log, which `_pending_opens` has already counted."""
        if log_id is not None:
            self._log_ids.add(log_id)
        nursery.start_soon(self._open_member, name, log_id, nursery)

    async def _open_member(self, name: str, log_id: int | None, nursery: trio.Nursery) -> None:
        try:
            async with self._limiter:
                fetcher = await self._open_fetcher(name, log_id)
        except DistributedLogError as error:
            if log_id is not None:
                self._log_ids.discard(log_id)
                name = self._renamed_while_opening.pop(log_id, name)
            self._events.append(_failure_event(name, error))
        else:
            now = trio.current_time()
            if log_id is not None:
                name = self._renamed_while_opening.pop(log_id, name)
            queue = fetcher.queue
            member = _Member(name, queue, now, now)
            self._members.append(member)
            self._divide_budget()
            self._events.append(
                LogEvent(name, "joined", queue.position, incarnation=queue.incarnation)
            )
            queue.subscribe(lambda: self._handle_activity(member))
            self._handle_activity(member)
            nursery.start_soon(fetcher.run)
        self._pending_opens -= 1
        self._notify()

    async def _open_fetcher(self, name: str, log_id: int | None) -> Fetcher:
        context, position = self._context, self._starts.pop(name, None)
        try:
            if log_id is None:
                log_id = await self._resolve_name(name)
            state_watch = await open_state_watch(context.metadata, log_id, name, context.namespace)
        except LogNotFound as error:
            if position is None:
                raise
            raise await explain_deleted(
                context.metadata, context.namespace, name, HeldPosition.of(position)
            ) from error
        to: Literal["end"] | None = "end" if self._to_end else None
        return await open_fetcher(context, state_watch, position or self._default_start, to)

    def _divide_budget(self) -> None:
        """Divide the byte limit: each log can queue half of its share and request the other half.

        Shares are not lent to other logs, because they would have to be reclaimed.
        """
        member_bytes = self._bytes_max // (2 * max(1, len(self._members)))
        for member in self._members:
            member.queue.limit_bytes(member_bytes)

    def _handle_activity(self, member: _Member) -> None:
        """Record that a log received an entry or ended. A connection that others share can make this call."""
        if self._ordered_by_time:
            member.last_activity = trio.current_time()
            self._notify()
        elif not member.is_ready:
            member.is_ready = True
            self._ready.append(member)
            self._notify()

    def _notify(self) -> None:
        self._activity.set()
        self._activity = trio.Event()

    def _close(self) -> None:
        self._scope.cancel()
        self._end_with(AlreadyClosed("this reader of several logs is closed"))
        for member in self._members:
            member.queue.close()
        self._members.clear()
        self._ready.clear()
        self._events.clear()

    def _end_with(self, error: DistributedLogError) -> None:
        if self._error is None:
            self._error = error
        self._notify()


def _failure_event(name: str, error: DistributedLogError, incarnation: str = "") -> LogEvent:
    kind: Literal["truncated", "deleted", "recreated", "failed"] = "failed"
    if isinstance(error, LogRecreated):
        kind = "recreated"
    elif isinstance(error, LogNotFound):
        kind = "deleted"
    elif isinstance(error, LogTruncated):
        kind = "truncated"
    return LogEvent(name, kind, error=error, incarnation=incarnation)


def check_multi_read(
    pattern: object, positions: object, time_wait_s: object, bytes_max: object
) -> None:
    """Raise `InvalidRequest` for invalid arguments of `Namespace.open_reader`."""
    if not (pattern is None or (isinstance(pattern, str) and pattern)):
        raise InvalidRequest(f"pattern must be a non-empty text, got {quoted(pattern)}")
    if not isinstance(positions, Mapping | None) or not all(
        isinstance(name, str) and isinstance(start, Position)
        for name, start in (positions or {}).items()
    ):
        raise InvalidRequest(f"positions must map names to `Position`, got {quoted(positions)}")
    check_seconds("time_wait_s", time_wait_s)
    check_whole("bytes_max", bytes_max, 1)


async def open_multi_reader(
    context: LogContext,
    resolve_name: Callable[[str], Awaitable[int]],
    open_watch: Callable[[str], Awaitable[LogWatch]],
    logs: Sequence[str] | None,
    pattern: str | None,
    options: MultiReadOptions,
) -> MultiReader:
    """Open a reader of several logs, as `Namespace.open_reader`."""
    watch = None
    if pattern is not None:
        prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        watch = await open_watch(prefix)
    try:
        names: dict[str, int | None] = dict.fromkeys(logs or ())
        if watch is not None and pattern is not None:
            names = {
                name: incarnation_id(incarnation)
                for name, incarnation in watch.logs.items()
                if fnmatchcase(name, pattern)
            }
        reader = MultiReader(
            context, resolve_name, names, watch=watch, pattern=pattern or "", options=options
        )
        context.start(reader.run)
    except BaseException:
        if watch is not None:
            await watch.aclose()
        raise
    return reader
