"""Calls about logs that a proxy makes for its clients; what they take and give: `wire.py`.

A log that another proxy has is that one's to delete, seal or rename: the client is told who (`Moved`).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..log.dlsn import DLSN
from ..log.handle import Log
from ..log.lock import holder_of
from ..log.names import check_namespace_path
from ..log.namespace import Namespace
from ..runtime.errors import (
    DistributedLogError,
    InternalError,
    Moved,
    OwnershipAcquireFailed,
    RequestTimeout,
    TooBusy,
)
from ..runtime.frames import pack
from ..runtime.link import Link
from .fairness import fits
from .namespaces import Namespaces
from .wire import LogCall

log = logging.getLogger("distributedlog.proxy")

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

    def take(self, link: Link, ident: int, call: LogCall) -> None:
        """Begin a call; its answer goes to the link."""
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
        self._nursery.start_soon(self._make, link, ident, call, scope)

    def leave(self, link: Link) -> None:
        """The connection has ended: nobody waits for its calls, and they have their places no longer."""
        for scope in self._of.get(link, ()):
            scope.cancel()

    async def _make(self, link: Link, ident: int, call: LogCall, scope: trio.CancelScope) -> None:
        try:
            with scope:
                link.reply(ident, pack(await self._answer(call)))
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

    async def _answer(self, call: LogCall) -> Any:
        arguments = call.arguments
        path = check_namespace_path(call.path)
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


async def _page(namespace: Namespace, _: LogCall, prefix: str, after: str, limit: int) -> list[Any]:
    page = await namespace.log_page(prefix, after, min(limit, PAGE_LOGS_MAX))
    return [list(page.names), list(page.incarnations), page.next]


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
    "page": _page,
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
ALONE = {"rename", "delete", "seal"}
"""Those that no writer may be there for."""
