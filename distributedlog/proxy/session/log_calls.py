"""Calls about logs that a proxy makes for its clients. `proxy_messages.py` defines their arguments.

A log that another proxy writes must be deleted, sealed or renamed there: the client receives `Moved` with
that proxy. Each call requires a right of the client, and is cancelled if the right is revoked before it
completes.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack
from typing import Any

import trio

from ...log.format.dlsn import DLSN
from ...log.interfaces.log_names import check_namespace_path
from ...log.log import Log
from ...log.model.lock_record import lock_holder
from ...log.model.log_keys import incarnation_text
from ...log.namespace import LogPage, Namespace
from ...log.services.settings_update import permit_record_headers
from ...metadata.model.rights import ALL_LOG_RIGHTS, MANAGE
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InternalError,
    InvalidLogName,
    LogNotFound,
    LogRecreated,
    Moved,
    OwnershipAcquireFailed,
    RequestTimeout,
    TooBusy,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.net.link import Link
from ...runtime.protocol.frames import pack
from ..declarations.events import CHANGED
from ..protocol.proxy_messages import PERMIT_RECORD_HEADERS, LogCall
from .client_authorizer import READING_RIGHTS, WRITING_RIGHTS, ClientSession
from .fair_queue import is_fair
from .namespace_cache import Namespaces

log = get_logger("distributedlog.proxy")

CALL_TIMEOUT_S = 120.0
"""The time limit of a call, after which no client waits for it."""
PAGE_LOGS_MAX = 5000
"""The maximum names per page. Names can have 255 bytes, and a larger reply would be too large for clients."""


ReleaseLog = Callable[[str, str], Awaitable[None]]
"""Releases a log that this proxy has and that no producer has open.

Receives path and name. Raises `OwnershipAcquireFailed`.
"""


class LogCalls:
    """The calls of all connections of a proxy. They run while `run` runs."""

    def __init__(
        self,
        namespaces: Namespaces,
        *,
        calls_max: int,
        is_live_proxy: Callable[[str], bool],
        release_log: ReleaseLog | None = None,
    ) -> None:
        """Create the calls.

        Args:
            namespaces: The open namespaces.
            calls_max: The maximum number of concurrent calls.
            is_live_proxy: Whether another write proxy with this ID is live.
            release_log: Releases a log that this proxy writes; None in a read proxy.
        """
        self._namespaces = namespaces
        self._calls_max = calls_max
        self._release_log = release_log
        self._is_live_proxy = is_live_proxy
        self._running_calls = 0
        self._scopes_by_link: dict[Link, dict[trio.CancelScope, None]] = {}
        """The running calls of each connection."""
        self._nursery: trio.Nursery | None = None
        self.calls_made = 0
        """The number of calls since the start."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def start_call(self, client: ClientSession, link: Link, ident: int, call: LogCall) -> None:
        """Start a call of the client on the link, which receives the answer."""
        link_calls = len(self._scopes_by_link.get(link, ()))
        if self._nursery is None or not is_fair(
            link_calls, 1, self._calls_max - self._running_calls
        ):
            error = TooBusy(
                f"{self._running_calls} calls are running on this proxy, {link_calls} of this connection"
            )
            link.reply_error(ident, error)
            return
        scope = trio.CancelScope(deadline=trio.current_time() + CALL_TIMEOUT_S)
        self._running_calls += 1
        self._scopes_by_link.setdefault(link, {})[scope] = None
        self._nursery.start_soon(self._run_call, client, link, ident, call, scope)

    def cancel_calls(self, link: Link) -> None:
        """Cancel the calls of a connection that has ended, which frees their places."""
        for scope in self._scopes_by_link.get(link, ()):
            scope.cancel()

    async def _run_call(
        self, client: ClientSession, link: Link, ident: int, call: LogCall, scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                link.reply(ident, pack(await self._authorize_and_call(client, call)))
                self.calls_made += 1
            if scope.cancelled_caught:  # whether the call was completed is unknown
                error = RequestTimeout(f"{call.call} took more than {CALL_TIMEOUT_S:g} s")
                link.reply_error(ident, error)
        except DistributedLogError as error:
            link.reply_error(ident, error)
        except Exception as error:  # an internal error must not end other calls
            log.exception("a call for %s of a client", call.call)
            link.reply_error(ident, InternalError(f"{call.call} failed: {type(error).__name__}"))
        finally:
            self._running_calls -= 1
            link_scopes = self._scopes_by_link[link]
            del link_scopes[scope]
            if not link_scopes:
                del self._scopes_by_link[link]

    async def _authorize_and_call(self, client: ClientSession, call: LogCall) -> Any:
        path = check_namespace_path(call.path)
        if call.call == "page":
            async with self._namespaces.using(path) as namespace:
                return await _page(namespace, client.visible_paths(path), *call.arguments)
        needed_rights = NEEDED_RIGHTS[call.call]
        await client.check_log(needed_rights, path, call.log, call.incarnation)
        names = [call.log]
        if call.call == "rename":
            names += call.arguments
            await client.check(needed_rights, path, names[1])
        changes = needed_rights == MANAGE
        unknown_outcome = (
            f"whether {call.call} of {call.log} was completed is unknown" if changes else ""
        )
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(
                    client.admitted(needed_rights, path, name, unknown_outcome=unknown_outcome)
                )
            answer = await self._execute(path, call)
        if changes:
            CHANGED.emit(
                log,
                'log "%s" of %s: %s, for %s',
                call.log,
                path,
                call.call,
                client.principal,
                log_name=call.log,
                namespace=path,
                call=call.call,
                principal=client.principal,
            )
        return answer

    async def _execute(self, path: str, call: LogCall) -> Any:
        arguments = call.arguments
        async with self._namespaces.using(path) as namespace:
            if call.call in NAMESPACE_CALLS:
                return await NAMESPACE_CALLS[call.call](namespace, call, *arguments)
            log_handle = namespace.open_log(call.log, incarnation=call.incarnation or None)
            try:
                if call.call in CALLS_WITHOUT_WRITER and self._release_log is not None:
                    await self._release_log(path, call.log)
                return await CALLS_ON_LOG[call.call](namespace, log_handle, *arguments)
            except OwnershipAcquireFailed as error:
                await self._redirect(namespace, call.log)
                raise error

    async def _redirect(self, namespace: Namespace, name: str) -> None:
        """Raise `Moved` if another proxy has the log."""
        holder = await lock_holder(namespace.metadata, await namespace.resolve_name(name))
        if holder is not None and holder.proxy and self._is_live_proxy(holder.proxy):
            raise Moved(f'log "{name}" is written by proxy {holder.proxy}', holder.proxy)


# --- the calls ------------------------------------------------------------------------------------


async def _create(
    namespace: Namespace, call: LogCall, durability: Any, config: Any, notes: Any, txids: Any
) -> None:
    await namespace.create_log(
        call.log, durability=durability, config=config, metadata=notes, txids=txids
    )


async def _exists(namespace: Namespace, call: LogCall) -> bool:
    return await namespace.log_exists(call.log)


async def _page(
    namespace: Namespace, visible: Collection[str] | None, prefix: str, after: str, limit: int
) -> list[Any]:
    """Return a page of log names. ``visible`` are the paths below which names are visible; None for all."""
    limit = min(limit, PAGE_LOGS_MAX)
    if visible is None:
        page = await namespace.log_page(prefix, after, limit)
        return [list(page.names), list(page.incarnations), page.next]
    names: list[str] = []
    incarnations: list[str] = []
    for name_prefix, is_log in visible_parts(visible, prefix):
        begin_after = after
        while True:
            if len(names) >= limit:
                return [names, incarnations, names[-1]]
            if is_log:
                next_page = await _single_log_page(namespace, name_prefix, begin_after)
            else:
                next_page = await namespace.log_page(name_prefix, begin_after, limit - len(names))
            names += next_page.names
            incarnations += next_page.incarnations
            if next_page.next is None:
                break
            begin_after = next_page.next
    return [names, incarnations, None]


async def _single_log_page(namespace: Namespace, name: str, after: str) -> LogPage:
    """Return a page with only this log, if it exists and its name is after ``after``."""
    if after.encode() < name.encode():
        try:
            log_id = await namespace.resolve_name(name)
        except (LogNotFound, InvalidLogName):
            pass
        else:
            return LogPage((name,), (incarnation_text(log_id),), None)
    return LogPage((), (), None)


def visible_parts(visible: Collection[str], prefix: str) -> list[tuple[str, bool]]:
    """Return the parts of all names with ``prefix`` that are visible, in the order of names (pure).

    Each part is a prefix of names, or a complete name (True). No name is in two parts.
    """
    parts: set[tuple[str, bool]] = set()
    for path in visible:
        is_log = bool(path) and not path.endswith("/")
        if path.startswith(prefix):
            parts.add((path, is_log))
        elif not is_log and prefix.startswith(path):
            parts.add((prefix, False))
    merged: list[tuple[str, bool]] = []
    for part, is_log in sorted(parts, key=lambda part_key: (part_key[0].encode(), part_key[1])):
        if not (merged and not merged[-1][1] and part.startswith(merged[-1][0])):
            merged.append((part, is_log))
    return merged


async def _rename(namespace: Namespace, log_handle: Log, new: str) -> None:
    await namespace.rename_log(log_handle.name, new)


async def _delete(namespace: Namespace, log_handle: Log, wait_s: float) -> None:
    await namespace.delete_log(log_handle.name, wait_s=wait_s)


async def _truncate(
    _: Namespace, log_handle: Log, dlsn_list: Any, txid: int | None, before_ms: int | None
) -> list[int]:
    dlsn = None if dlsn_list is None else DLSN(*dlsn_list)
    return list(await log_handle.truncate(dlsn, txid=txid, before=before_ms))


async def _seal(_: Namespace, log_handle: Log, takeover: bool, wait_s: float | None) -> bool:
    return await log_handle.seal(takeover=takeover, wait_s=wait_s)


async def _describe(_: Namespace, one: Log, segments_max: int) -> list[Any]:
    description = await one.describe(segments_max=segments_max)
    return [
        description.state.encode(),
        [one.encode() for one in description.segments],
        description.owner,
        None if description.first_dlsn is None else list(description.first_dlsn),
        None if description.last_dlsn is None else list(description.last_dlsn),
        description.records,
        description.size_bytes,
    ]


async def _settings(_: Namespace, log_handle: Log) -> list[Any]:
    stored_settings = await log_handle.settings()
    return [stored_settings.encode(), stored_settings.version]


async def _permit_record_headers(namespace: Namespace, log_handle: Log) -> bool:
    log_id = await namespace.resolve_name(log_handle.name)
    if log_handle.incarnation not in (None, incarnation_text(log_id)):
        raise LogRecreated(f'log "{log_handle.name}" was deleted and created again')
    metadata = namespace.context.metadata
    await permit_record_headers(metadata, namespace.path, log_id, log_handle.name)
    return True


async def _set(_: Namespace, log_handle: Log, settings: Any, notes: Any) -> list[Any]:
    stored_settings = await log_handle.set(settings, metadata=notes)
    return [stored_settings.encode(), stored_settings.version]


async def _find(_: Namespace, log_handle: Log, txid: int | None, since_ms: int | None) -> list[int]:
    return list(await log_handle.find(txid=txid, since=since_ms))


async def _count(_: Namespace, log_handle: Log, first: Any, to: Any) -> int:
    return await log_handle.count(
        None if first is None else DLSN(*first), None if to is None else DLSN(*to)
    )


NAMESPACE_CALLS: dict[str, Callable[..., Awaitable[Any]]] = {
    "create": _create,
    "exists": _exists,
}
CALLS_ON_LOG: dict[str, Callable[..., Awaitable[Any]]] = {
    "rename": _rename,
    "delete": _delete,
    "truncate": _truncate,
    "seal": _seal,
    "describe": _describe,
    "settings": _settings,
    PERMIT_RECORD_HEADERS: _permit_record_headers,
    "set": _set,
    "find": _find,
    "count": _count,
}
NEEDED_RIGHTS = {
    "create": MANAGE,
    "exists": ALL_LOG_RIGHTS,
    "rename": MANAGE,
    "delete": MANAGE,
    "truncate": MANAGE,
    "seal": MANAGE,
    "describe": ALL_LOG_RIGHTS,
    "settings": ALL_LOG_RIGHTS,
    PERMIT_RECORD_HEADERS: WRITING_RIGHTS,
    "set": MANAGE,
    "find": READING_RIGHTS,
    "count": READING_RIGHTS,
}
"""Any of these rights on the log allows the call. A page contains the logs on which a client has any
right."""
CALLS_WITHOUT_WRITER = {"rename", "delete", "seal"}
"""Calls that are possible only without a writer."""
