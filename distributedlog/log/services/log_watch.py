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
    name_key,
    name_of,
    state_key,
)
from ..model.log_state import LogState

RETRY_S = 0.5
CHANGES_MAX = 10_000
"""Changes that nobody has taken; at the bound it follows no further until some are."""

Known = dict[str, tuple[int, int]]
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
        self, metadata: Metadata, path: str, prefix: str, known: Known | None, revision: int
    ) -> None:
        self._metadata = metadata
        self._path = path
        self._prefix = prefix
        self._known = known
        """None: no names are kept."""
        self._changes: deque[LogChange] = deque()
        self._revision = revision
        self._scope = trio.CancelScope()
        self._filled = trio.Event()
        self._taken = trio.Event()
        self._error: DistributedLogError | None = None

    @property
    def logs(self) -> dict[str, str]:
        """Name to incarnation, in order: as listed at first, and as the changes that were taken made it.

        Raises `InvalidRequest` where it keeps no names.
        """
        if self._known is None:
            raise InvalidRequest("this watch keeps no names: list them with logs() or log_page()")
        pending = dict(self._known)
        # What waits in the queue has not been told yet: undo it, newest first.
        for change in reversed(self._changes):
            if change.kind != "deleted":
                pending.pop(change.name, None)
            if change.kind != "created":
                name = change.old_name or change.name
                pending[name] = (int(change.incarnation, 16), 0)
        return {name: incarnation_text(pending[name][0]) for name in sorted(pending, key=_by_bytes)}

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        """The next change; None when ``wait_s`` is over (None: no limit; 0: takes only what is here).

        While the quorum is away it waits; it raises only what no retry can mend, and `AlreadyClosed`.

        Raises: QuorumUnreachable, InvalidRequest, AlreadyClosed.
        """
        check_wait(wait_s)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(float("inf") if wait_s is None else wait_s):
            while not self._changes and self._error is None:
                self._filled = trio.Event()
                await self._filled.wait()
        if not self._changes:
            if self._error is not None:
                raise self._error.again()
            return None
        change = self._changes.popleft()
        self._taken.set()
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
                    batch = await watch.next()
                    for _, events in groupby(batch.events, lambda one: one.item.mod_revision):
                        self._changes.extend(self._told(list(events)))
                    self._revision = max(self._revision, batch.revision)
                    await self._room()
        except Compacted:
            await self._relist()
        except DistributedLogError as error:
            if not error.retryable:
                raise
            await trio.sleep(RETRY_S)

    async def _room(self) -> None:
        self._filled.set()
        while len(self._changes) >= CHANGES_MAX:
            self._taken = trio.Event()
            await self._taken.wait()

    def _close(self, error: DistributedLogError) -> None:
        self._scope.cancel()
        if self._error is None:
            self._error = error
        self._filled.set()

    async def _relist(self) -> None:
        try:
            if self._known is None:
                self._revision = await _now(self._metadata, self._path, self._prefix)
                self._changes.append(LogChange("relisted", "", ""))
                await self._room()
                return
            found, revision = await _listed(self._metadata, self._path, self._prefix)
        except DistributedLogError as error:
            if not error.retryable:
                raise
            await trio.sleep(RETRY_S)
            return
        before, self._known, self._revision = self._known, found, revision
        self._changes.extend(_difference(before, found))
        await self._room()

    def _told(self, events: list[WatchEvent]) -> list[LogChange]:
        """What the events of one revision, so of one transaction, say. Both keys of a rename are in it."""
        changes: list[LogChange] = []
        for event in events:
            item = event.item
            if event.kind == "delete":
                item = replace(item, value=encode_log_id(0))  # a deleted key has no value
            read = read_name(self._path, item)
            if read is None:
                continue
            name, log_id = read
            known = None if self._known is None else self._known.get(name)
            if known is not None and item.mod_revision <= known[1]:
                continue  # the listing had seen it
            if self._known is not None and known is not None:
                del self._known[name]
                changes.append(LogChange("deleted", name, incarnation_text(known[0])))
            elif self._known is None and event.kind == "delete":
                changes.append(LogChange("deleted", name, ""))
            if event.kind == "put":
                if self._known is not None:
                    self._known[name] = (log_id, item.mod_revision)
                changes.append(LogChange("created", name, incarnation_text(log_id)))
        return _paired(changes)


def _paired(changes: list[LogChange]) -> list[LogChange]:
    """A log that went and came in one transaction, under two names, was renamed: nothing else does both."""
    if len(changes) != 2 or {one.kind for one in changes} != {"created", "deleted"}:
        return changes
    went, came = sorted(changes, key=lambda one: one.kind == "created")
    if went.name == came.name or went.incarnation not in ("", came.incarnation):
        return changes
    return [LogChange("renamed", came.name, came.incarnation, went.name)]


async def watch_logs(metadata: Metadata, path: str, prefix: str, *, keep: bool) -> LogWatch:
    """List the logs, if they are to be kept, to follow them on. Raises `QuorumUnreachable`."""
    if keep:
        return LogWatch(metadata, path, prefix, *await _listed(metadata, path, prefix))
    return LogWatch(metadata, path, prefix, None, await _now(metadata, path, prefix))


async def name_now(metadata: Metadata, log_id: int) -> str:
    """Return the name of the log with this ID, or "" if it is deleted or being deleted."""
    found = await metadata.get(state_key(log_id))
    state = None if found is None else LogState.decode(found.value)
    return "" if state is None or state.deleting else state.name


async def _now(metadata: Metadata, path: str, prefix: str) -> int:
    start = name_key(path, prefix)
    return (await metadata.range(start, prefix_end(start), limit=1)).revision


async def _listed(metadata: Metadata, path: str, prefix: str) -> tuple[Known, int]:
    found: Known = {}
    scan = Scan(metadata, name_key(path, prefix))
    async for item in scan:
        if (read := read_name(path, item)) is not None:
            found[read[0]] = (read[1], item.mod_revision)
    return found, scan.revision


def read_name(path: str, item: KeyValue) -> tuple[str, int] | None:
    """Name and log id of a name's key; None for what cannot be read: it ends nobody's watch."""
    try:
        return name_of(path, item.key), decode_log_id(item.value)
    except CorruptData as error:
        log.warning("passed over: %s", error)
        return None


def _difference(before: Known, after: Known) -> Iterator[LogChange]:
    went = {id_: name for name, (id_, _) in before.items() if after.get(name, (None,))[0] != id_}
    came = {id_: name for name, (id_, _) in after.items() if before.get(name, (None,))[0] != id_}
    # A name that another log had before is not told as a rename's: names that went round in a circle
    # have no order in which that would be right.
    renamed = {id_ for id_, name in came.items() if id_ in went and name not in before}
    for log_id, name in went.items():
        if log_id not in renamed:
            yield LogChange("deleted", name, incarnation_text(log_id))
    for log_id in renamed:
        yield LogChange("renamed", came[log_id], incarnation_text(log_id), went[log_id])
    for log_id, name in came.items():
        if log_id not in renamed:
            yield LogChange("created", name, incarnation_text(log_id))


def _by_bytes(name: str) -> bytes:
    return name.encode()
