"""Following a namespace: which logs there are, and each one that comes or goes, without a gap.

The names are listed page by page, then changes are followed from the revision of the first page; what a
later page had seen already is told by its revision. A watch that fell behind the kept history lists again
and tells the difference (H29): then a log that came and went in between is not told.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from types import TracebackType
from typing import Literal

import trio

from ...metadata.model.interface import Metadata, Scan, WatchEvent, prefix_end
from ...metadata.model.transaction import KeyValue
from ...runtime.declarations.options import check_wait
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    Compacted,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
)
from ...runtime.interfaces.log_lines import get_logger
from ..interfaces.error_boundary import error_boundary
from ..model.log_keys import (
    decode_log_id,
    encode_log_id,
    incarnation_text,
    log_name_in_key,
    name_key,
    state_key,
)
from ..model.log_state import LogState

RETRY_S = 0.5
CHANGES_MAX = 10_000
"""Changes that nobody has taken; at the bound it follows no further until some are."""

KnownLogs = dict[str, tuple[int, int]]
"""The logs that are there: name to log id, and the revision that made it."""

log = get_logger("distributedlog.log")


@dataclass(frozen=True, slots=True)
class LogChange:
    """A log has come or gone, or has another name."""

    kind: Literal["created", "deleted", "renamed", "relisted"]
    """``relisted``, of a watch that keeps no names: changes were missed, and nobody knows which."""
    name: str
    incarnation: str
    """16 hex digits; "" of a deletion where the watch keeps no names."""
    old_name: str = ""
    """Of a log that was renamed. To or from a name below another prefix is ``created`` or ``deleted``."""


class LogWatch:
    """The logs below a prefix, as they were at first, then their changes. Made by `Namespace.watch_logs`."""

    def __init__(
        self,
        metadata: Metadata,
        path: str,
        prefix: str,
        known_logs: KnownLogs | None,
        revision: int,
    ) -> None:
        self._metadata = metadata
        self._path = path
        self._prefix = prefix
        self._known_logs = known_logs
        """None: no names are kept."""
        self._changes: deque[LogChange] = deque()
        self._revision = revision
        self._scope = trio.CancelScope()
        self._change_event = trio.Event()
        self._space_event = trio.Event()
        self._error: DistributedLogError | None = None

    @property
    def logs(self) -> dict[str, str]:
        """Name to incarnation, in order: as listed at first, and as the changes that were taken made it.

        Raises `InvalidRequest` where it keeps no names.
        """
        if self._known_logs is None:
            raise InvalidRequest("this watch keeps no names: list them with logs() or log_page()")
        listed = dict(self._known_logs)
        # What waits in the queue has not been told yet: undo it, newest first.
        for change in reversed(self._changes):
            if change.kind != "deleted":
                listed.pop(change.name, None)
            if change.kind != "created":
                name = change.old_name or change.name
                listed[name] = (int(change.incarnation, 16), 0)
        return {name: incarnation_text(listed[name][0]) for name in sorted(listed, key=_utf8_key)}

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        """The next change; None when ``wait_s`` is over (None: no limit; 0: takes only what is here).

        While the quorum is away it waits; it raises only what no retry can mend, and `AlreadyClosed`.

        Raises: QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(float("inf") if wait_s is None else wait_s):
            while not self._changes and self._error is None:
                self._change_event = trio.Event()
                await self._change_event.wait()
        if not self._changes:
            if self._error is not None:
                raise self._error.again()
            return None
        change = self._changes.popleft()
        self._space_event.set()
        return change

    async def aclose(self) -> None:
        """Stop following. Idempotent.

        Raises: nothing.
        """
        self._close(AlreadyClosed("this watch is closed"))
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> "LogWatch":
        return self

    async def __anext__(self) -> LogChange:
        change = await self.next()
        assert change is not None, "without a limit there is a change in the end"
        return change

    async def __aenter__(self) -> "LogWatch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close(AlreadyClosed("this watch is closed"))

    async def run(self) -> None:
        """Follow until closed. A task of the namespace."""
        try:
            with self._scope, error_boundary(f"a watch of the logs of {self._path}", self._close):
                while True:
                    await self._follow()
        finally:
            self._close(AlreadyClosed("the namespace was closed"))

    # --- inside -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Queue changes until the watch ends; a change is in the queue and the revision moved, or neither."""
        start = name_key(self._path, self._prefix)
        try:
            async with self._metadata.watch(
                start, prefix_end(start), after_revision=self._revision
            ) as watch:
                while True:
                    batch = await watch.next_batch()
                    for _, events in groupby(batch.events, lambda event: event.item.mod_revision):
                        self._changes.extend(self._changes_of(list(events)))
                    self._revision = max(self._revision, batch.revision)
                    await self._wait_queue_space()
        except Compacted:
            await self._relist()
        except DistributedLogError as error:
            if not error.retryable:
                raise
            await trio.sleep(RETRY_S)

    async def _wait_queue_space(self) -> None:
        self._change_event.set()
        while len(self._changes) >= CHANGES_MAX:
            self._space_event = trio.Event()
            await self._space_event.wait()

    def _close(self, error: DistributedLogError) -> None:
        self._scope.cancel()
        if self._error is None:
            self._error = error
        self._change_event.set()

    async def _relist(self) -> None:
        try:
            if self._known_logs is None:
                self._revision = await _current_revision(self._metadata, self._path, self._prefix)
                self._changes.append(LogChange("relisted", "", ""))
                await self._wait_queue_space()
                return
            listed, revision = await _list_logs(self._metadata, self._path, self._prefix)
        except DistributedLogError as error:
            if not error.retryable:
                raise
            await trio.sleep(RETRY_S)
            return
        old_logs, self._known_logs, self._revision = self._known_logs, listed, revision
        self._changes.extend(_difference(old_logs, listed))
        await self._wait_queue_space()

    def _changes_of(self, events: list[WatchEvent]) -> list[LogChange]:
        """What the events of one revision, so of one transaction, say. Both keys of a rename are in it."""
        changes: list[LogChange] = []
        for event in events:
            item = event.item
            if event.kind == "delete":
                item = replace(item, value=encode_log_id(0))  # a deleted key has no value
            name_and_id = read_name(self._path, item)
            if name_and_id is None:
                continue
            name, log_id = name_and_id
            known_log = None if self._known_logs is None else self._known_logs.get(name)
            if known_log is not None and item.mod_revision <= known_log[1]:
                continue  # the listing had seen it
            if self._known_logs is not None and known_log is not None:
                del self._known_logs[name]
                changes.append(LogChange("deleted", name, incarnation_text(known_log[0])))
            elif self._known_logs is None and event.kind == "delete":
                changes.append(LogChange("deleted", name, ""))
            if event.kind == "put":
                if self._known_logs is not None:
                    self._known_logs[name] = (log_id, item.mod_revision)
                changes.append(LogChange("created", name, incarnation_text(log_id)))
        return _merge_renames(changes)


def _merge_renames(changes: list[LogChange]) -> list[LogChange]:
    """A log that went and came in one transaction, under two names, was renamed: nothing else does both."""
    if len(changes) != 2 or {change.kind for change in changes} != {"created", "deleted"}:
        return changes
    deletion, creation = sorted(changes, key=lambda change: change.kind == "created")
    if deletion.name == creation.name or deletion.incarnation not in ("", creation.incarnation):
        return changes
    return [LogChange("renamed", creation.name, creation.incarnation, deletion.name)]


async def watch_logs(metadata: Metadata, path: str, prefix: str, *, keep_names: bool) -> LogWatch:
    """List the logs, if they are to be kept, to follow them on. Raises `QuorumUnreachable`."""
    if keep_names:
        return LogWatch(metadata, path, prefix, *await _list_logs(metadata, path, prefix))
    return LogWatch(metadata, path, prefix, None, await _current_revision(metadata, path, prefix))


async def current_name(metadata: Metadata, log_id: int) -> str:
    """Return the name of the log with this ID, or "" if it is deleted or being deleted."""
    item = await metadata.get(state_key(log_id))
    state = None if item is None else LogState.decode(item.value)
    return "" if state is None or state.deleting else state.name


async def _current_revision(metadata: Metadata, path: str, prefix: str) -> int:
    start = name_key(path, prefix)
    return (await metadata.range(start, prefix_end(start), limit=1)).revision


async def _list_logs(metadata: Metadata, path: str, prefix: str) -> tuple[KnownLogs, int]:
    logs: KnownLogs = {}
    scan = Scan(metadata, name_key(path, prefix))
    async for item in scan:
        if (name_and_id := read_name(path, item)) is not None:
            logs[name_and_id[0]] = (name_and_id[1], item.mod_revision)
    return logs, scan.revision


def read_name(path: str, item: KeyValue) -> tuple[str, int] | None:
    """Name and log id of a name's key; None for what cannot be read: it ends nobody's watch."""
    try:
        return log_name_in_key(path, item.key), decode_log_id(item.value)
    except CorruptData as error:
        log.warning("passed over: %s", error)
        return None


def _difference(before: KnownLogs, after: KnownLogs) -> Iterator[LogChange]:
    disappeared = {
        id_: name for name, (id_, _) in before.items() if after.get(name, (None,))[0] != id_
    }
    appeared = {
        id_: name for name, (id_, _) in after.items() if before.get(name, (None,))[0] != id_
    }
    # A name that another log had before is not told as a rename's: names that went round in a circle
    # have no order in which that would be right.
    renamed = {id_ for id_, name in appeared.items() if id_ in disappeared and name not in before}
    for log_id, name in disappeared.items():
        if log_id not in renamed:
            yield LogChange("deleted", name, incarnation_text(log_id))
    for log_id in renamed:
        yield LogChange("renamed", appeared[log_id], incarnation_text(log_id), disappeared[log_id])
    for log_id, name in appeared.items():
        if log_id not in renamed:
            yield LogChange("created", name, incarnation_text(log_id))


def _utf8_key(name: str) -> bytes:
    return name.encode()
