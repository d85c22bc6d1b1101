"""Calls about logs that a proxy makes for its clients; what they take and give: `proxy_messages.py`.

A log that another proxy has is that one's to delete, seal or rename: the client is told who (`Moved`). Each
call needs a right of the client's own, and is given up where that is taken away before it is done.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack
from typing import Any

import trio

from ...log.format.dlsn import DLSN
from ...log.interfaces.log_names import check_namespace_path
from ...log.log import Log
from ...log.model.lock_record import holder_of
from ...log.model.log_keys import incarnation_text
from ...log.namespace import LogPage, Namespace
from ...metadata.model.rights import ANY_OF_A_LOG, MANAGE
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InternalError,
    InvalidLogName,
    LogNotFound,
    Moved,
    OwnershipAcquireFailed,
    RequestTimeout,
    TooBusy,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.net.link import Link
from ...runtime.protocol.frames import pack
from ..declarations.events import CHANGED
from ..protocol.proxy_messages import LogCall
from .client_authorizer import CONSUMES, ClientSession
from .fair_queue import fits
from .namespace_cache import Namespaces

log = get_logger("distributedlog.proxy")

CALL_S = 120.0
"""No call takes longer: whoever asked has given up by then."""
PAGE_LOGS_MAX = 5000
"""Names of 255 bytes, and more of them, would be a reply that no client reads."""


Release = Callable[[str, str], Awaitable[None]]
"""Gives a log up that this proxy has and nobody writes: path and name. Raises `OwnershipAcquireFailed`."""


class LogCalls:
    """The calls of all connections of a proxy. `run` serves them."""

    def __init__(
        self,
        namespaces: Namespaces,
        *,
        calls_max: int,
        serves: Callable[[str], bool],
        release: Release | None = None,
    ) -> None:
        """``serves``: is this the id of another write proxy that lives?"""
        self._namespaces = namespaces
        self._calls_max = calls_max
        self._release = release
        self._serves = serves
        self._under_way = 0
        self._of: dict[Link, dict[trio.CancelScope, None]] = {}
        """The calls of each connection."""
        self._nursery: trio.Nursery | None = None
        self.made = 0
        """Calls since the start."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def take(self, client: ClientSession, link: Link, ident: int, call: LogCall) -> None:
        """Begin a call of who speaks on the link; its answer goes there."""
        mine = len(self._of.get(link, ()))
        if self._nursery is None or not fits(mine, 1, self._calls_max - self._under_way):
            error = TooBusy(
                f"{self._under_way} calls are under way on this proxy, {mine} of this connection"
            )
            link.reply_error(ident, error)
            return
        scope = trio.CancelScope(deadline=trio.current_time() + CALL_S)
        self._under_way += 1
        self._of.setdefault(link, {})[scope] = None
        self._nursery.start_soon(self._make, client, link, ident, call, scope)

    def leave(self, link: Link) -> None:
        """The connection has ended: nobody waits for its calls, and they have their places no longer."""
        for scope in self._of.get(link, ()):
            scope.cancel()

    async def _make(
        self, client: ClientSession, link: Link, ident: int, call: LogCall, scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                link.reply(ident, pack(await self._judged(client, call)))
                self.made += 1
            if scope.cancelled_caught:  # whether it is done is not known
                error = RequestTimeout(f"{call.call} took more than {CALL_S:g} s")
                link.reply_error(ident, error)
        except DistributedLogError as error:
            link.reply_error(ident, error)
        except Exception as error:  # a fault of ours is this call's end, not everybody's
            log.exception("a call for %s of a client", call.call)
            link.reply_error(ident, InternalError(f"{call.call} failed: {type(error).__name__}"))
        finally:
            self._under_way -= 1
            mine = self._of[link]
            del mine[scope]
            if not mine:
                del self._of[link]

    async def _judged(self, client: ClientSession, call: LogCall) -> Any:
        path = check_namespace_path(call.path)
        if call.call == "page":
            async with self._namespaces.using(path) as namespace:
                return await _page(namespace, client.visible(path), *call.arguments)
        needed = NEEDED[call.call]
        await client.check_log(needed, path, call.log, call.incarnation)
        names = [call.log]
        if call.call == "rename":
            names += call.arguments
            await client.check(needed, path, names[1])
        changes = needed == MANAGE
        unknown = f"whether {call.call} of {call.log} was done is not known" if changes else ""
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(client.doing(needed, path, name, unknown=unknown))
            answer = await self._answer(path, call)
        if changes:
            CHANGED.say(
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

    async def _answer(self, path: str, call: LogCall) -> Any:
        arguments = call.arguments
        async with self._namespaces.using(path) as namespace:
            if call.call in OF_NAMESPACES:
                return await OF_NAMESPACES[call.call](namespace, call, *arguments)
            one = namespace.open_log(call.log, incarnation=call.incarnation or None)
            try:
                if call.call in ALONE and self._release is not None:
                    await self._release(path, call.log)
                return await OF_LOGS[call.call](namespace, one, *arguments)
            except OwnershipAcquireFailed as error:
                await self._redirect(namespace, call.log)
                raise error

    async def _redirect(self, namespace: Namespace, name: str) -> None:
        """Raise `Moved` where another proxy has the log."""
        holder = await holder_of(namespace.metadata, await namespace.find(name))
        if holder is not None and holder.proxy and self._serves(holder.proxy):
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
    """``visible``: the paths that names may be seen below; None: all of them."""
    limit = min(limit, PAGE_LOGS_MAX)
    if visible is None:
        page = await namespace.log_page(prefix, after, limit)
        return [list(page.names), list(page.incarnations), page.next]
    names: list[str] = []
    incarnations: list[str] = []
    for part, is_log in parts_within(visible, prefix):
        begin = after
        while True:
            if len(names) >= limit:
                return [names, incarnations, names[-1]]
            if is_log:
                found = await _one(namespace, part, begin)
            else:
                found = await namespace.log_page(part, begin, limit - len(names))
            names += found.names
            incarnations += found.incarnations
            if found.next is None:
                break
            begin = found.next
    return [names, incarnations, None]


async def _one(namespace: Namespace, name: str, after: str) -> LogPage:
    """The page that holds this log alone, if it is there and comes after that name."""
    if after.encode() < name.encode():
        try:
            log_id = await namespace.find(name)
        except (LogNotFound, InvalidLogName):
            pass
        else:
            return LogPage((name,), (incarnation_text(log_id),), None)
    return LogPage((), (), None)


def parts_within(visible: Collection[str], prefix: str) -> list[tuple[str, bool]]:
    """Of all names that begin with ``prefix`` those that may be seen, in the order of names (pure).

    Beginnings of names, and whole names (True): no name is in two of them.
    """
    parts: set[tuple[str, bool]] = set()
    for path in visible:
        is_log = bool(path) and not path.endswith("/")
        if path.startswith(prefix):
            parts.add((path, is_log))
        elif not is_log and prefix.startswith(path):
            parts.add((prefix, False))
    found: list[tuple[str, bool]] = []
    for part, is_log in sorted(parts, key=lambda one: (one[0].encode(), one[1])):
        if not (found and not found[-1][1] and part.startswith(found[-1][0])):
            found.append((part, is_log))
    return found


async def _rename(namespace: Namespace, one: Log, new: str) -> None:
    await namespace.rename_log(one.name, new)


async def _delete(namespace: Namespace, one: Log, wait_s: float) -> None:
    await namespace.delete_log(one.name, wait_s=wait_s)


async def _truncate(
    _: Namespace, one: Log, place: Any, txid: int | None, before_ms: int | None
) -> list[int]:
    dlsn = None if place is None else DLSN(*place)
    return list(await one.truncate(dlsn, txid=txid, before=before_ms))


async def _seal(_: Namespace, one: Log, takeover: bool, wait_s: float | None) -> bool:
    return await one.seal(takeover=takeover, wait_s=wait_s)


async def _describe(_: Namespace, one: Log, segments_max: int) -> list[Any]:
    found = await one.describe(segments_max=segments_max)
    return [
        found.state.encode(),
        [one.encode() for one in found.segments],
        found.owner,
        None if found.first_dlsn is None else list(found.first_dlsn),
        None if found.last_dlsn is None else list(found.last_dlsn),
        found.records,
        found.size_bytes,
    ]


async def _settings(_: Namespace, one: Log) -> list[Any]:
    found = await one.settings()
    return [found.encode(), found.version]


async def _set(_: Namespace, one: Log, settings: Any, notes: Any) -> list[Any]:
    found = await one.set(settings, metadata=notes)
    return [found.encode(), found.version]


async def _find(_: Namespace, one: Log, txid: int | None, since_ms: int | None) -> list[int]:
    return list(await one.find(txid=txid, since=since_ms))


async def _count(_: Namespace, one: Log, first: Any, to: Any) -> int:
    return await one.count(
        None if first is None else DLSN(*first), None if to is None else DLSN(*to)
    )


OF_NAMESPACES: dict[str, Callable[..., Awaitable[Any]]] = {
    "create": _create,
    "exists": _exists,
}
OF_LOGS: dict[str, Callable[..., Awaitable[Any]]] = {
    "rename": _rename,
    "delete": _delete,
    "truncate": _truncate,
    "seal": _seal,
    "describe": _describe,
    "settings": _settings,
    "set": _set,
    "find": _find,
    "count": _count,
}
NEEDED = {
    "create": MANAGE,
    "exists": ANY_OF_A_LOG,
    "rename": MANAGE,
    "delete": MANAGE,
    "truncate": MANAGE,
    "seal": MANAGE,
    "describe": ANY_OF_A_LOG,
    "settings": ANY_OF_A_LOG,
    "set": MANAGE,
    "find": CONSUMES,
    "count": CONSUMES,
}
"""Any one of these rights on the log, of each call that names one; a list shows what a client has any on."""
ALONE = {"rename", "delete", "seal"}
"""Those that no writer may be there for."""
