"""Watch a namespace: its logs, and each created, renamed and deleted log, without a gap.

The names are listed in pages. Changes are then followed from the revision of the first page. A change that a
later page already included is detected by its revision and not reported again. If the kept history of the
metadata store does not reach back far enough, the watch lists the names again and reports the differences
(H29). A log that was created and deleted in between is then not reported.
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
"""Maximum number of changes in the queue. The watch pauses at this limit until the program reads some."""

KnownLogs = dict[str, tuple[int, int]]
"""The existing logs: name to log ID and to the revision that created the name."""

log = get_logger("distributedlog.log")


@dataclass(frozen=True, slots=True)
class LogChange:
    """A log that was created, deleted or renamed."""

    kind: Literal["created", "deleted", "renamed", "relisted"]
    """``relisted`` occurs only if the watch keeps no names: some changes were missed and are not known."""
    name: str
    incarnation: str
    """16 hex digits, or "" for a deletion if the watch keeps no names."""
    old_name: str = ""
    """The former name of a renamed log. A rename to or from a name outside the prefix is reported as
    ``deleted`` or ``created``."""


class LogWatch:
    """The logs with a prefix at the start, then their changes. `Namespace.watch_logs` creates it."""

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
        """None if no names are kept."""
        self._changes: deque[LogChange] = deque()
        self._revision = revision
        self._scope = trio.CancelScope()
        self._change_event = trio.Event()
        self._space_event = trio.Event()
        self._error: DistributedLogError | None = None

    @property
    def logs(self) -> dict[str, str]:
        """The names and incarnations of the logs, in order.

        They are the logs at the start, with all changes that the program has read since.

        Raises:
            InvalidRequest: The watch keeps no names.
        """
        if self._known_logs is None:
            raise InvalidRequest("this watch keeps no names: list them with logs() or log_page()")
        listed = dict(self._known_logs)
        # The program has not read the changes in the queue yet, so undo them, newest first.
        for change in reversed(self._changes):
            if change.kind != "deleted":
                listed.pop(change.name, None)
            if change.kind != "created":
                name = change.old_name or change.name
                listed[name] = (int(change.incarnation, 16), 0)
        return {name: incarnation_text(listed[name][0]) for name in sorted(listed, key=_utf8_key)}

    async def next(self, wait_s: float | None = None) -> LogChange | None:
        """Return the next change, or None after ``wait_s`` seconds.

        While the metadata quorum is unreachable, the call waits. It raises only errors that a retry cannot
        resolve, and `AlreadyClosed`.

        Args:
            wait_s: None means no limit. 0 returns only a change that is available.

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
        """Stop the watch. Idempotent.

        Raises: nothing.
        """
        self._close(AlreadyClosed("this watch is closed"))
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> "LogWatch":
        return self

    async def __anext__(self) -> LogChange:
        change = await self.next()
        assert change is not None, "without a time limit the call returns a change"
        return change

    async def __aenter__(self) -> "LogWatch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close(AlreadyClosed("this watch is closed"))

    async def run(self) -> None:
        """Follow changes until the watch is closed. Runs as a task of the namespace."""
        try:
            with self._scope, error_boundary(f"a watch of the logs of {self._path}", self._close):
                while True:
                    await self._follow()
        finally:
            self._close(AlreadyClosed("the namespace was closed"))

    # --- inside -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Queue changes until the watch ends. The queue and the revision always change together."""
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
        """Return the changes in the events of one revision, which is one transaction.

        A rename has both keys in it.
        """
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
                continue  # the listing includes it
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
    """Replace a deletion and a creation in one transaction by a rename. Only renames do both."""
    if len(changes) != 2 or {change.kind for change in changes} != {"created", "deleted"}:
        return changes
    deletion, creation = sorted(changes, key=lambda change: change.kind == "created")
    if deletion.name == creation.name or deletion.incarnation not in ("", creation.incarnation):
        return changes
    return [LogChange("renamed", creation.name, creation.incarnation, deletion.name)]


async def watch_logs(metadata: Metadata, path: str, prefix: str, *, keep_names: bool) -> LogWatch:
    """Create a watch, and list the logs if names are to be kept.

    Raises:
        QuorumUnreachable: The metadata quorum does not answer.
    """
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
    """Return the name and the log ID of a name's key, or None if the key is corrupt.

    A corrupt key is logged, and must not end the watch.
    """
    try:
        return log_name_in_key(path, item.key), decode_log_id(item.value)
    except CorruptData as error:
        log.warning("skipped: %s", error)
        return None


def _difference(before: KnownLogs, after: KnownLogs) -> Iterator[LogChange]:
    disappeared = {
        id_: name for name, (id_, _) in before.items() if after.get(name, (None,))[0] != id_
    }
    appeared = {
        id_: name for name, (id_, _) in after.items() if before.get(name, (None,))[0] != id_
    }
    # If another log had the new name before, report no rename: for names that were exchanged in a circle, no
    # order of renames would be correct.
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
