"""The namespaces that a proxy serves: one object each, made when a first client names its path."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ...log.namespace import Namespace
from ...runtime.interfaces.errors import TooBusy


@dataclass(slots=True)
class _Served:
    namespace: Namespace
    scope: trio.CancelScope
    users: int = 0


class Namespaces:
    """By path, at most so many; of those that nobody uses the one goes that was used least lately."""

    def __init__(
        self, make: Callable[[str, trio.Nursery], Namespace], *, namespaces_max: int
    ) -> None:
        """``make``: a namespace object of a path, its tasks in a nursery."""
        self._make = make
        self._most = namespaces_max
        self._served: dict[str, _Served] = {}  # the one that was used last at the end
        self._nursery: trio.Nursery | None = None
        self._turn = trio.Lock()
        """Of who enters: else openings at one moment would pass the bound."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of all of them until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @asynccontextmanager
    async def using(self, path: str) -> AsyncIterator[Namespace]:
        """The namespace of a path, for as long as the body runs. Raises `TooBusy`."""
        namespace = await self.enter(path)
        try:
            yield namespace
        finally:
            self.leave(path)

    async def enter(self, path: str) -> Namespace:
        """The same, until `leave`."""
        async with self._turn:
            served = self._served.pop(path, None)
            if served is None:
                self._make_room()
                assert self._nursery is not None, "asked while it runs"
                served = await self._nursery.start(self._serve, path)
            self._served[path] = served
            served.users += 1
            return served.namespace

    def is_used(self, path: str) -> bool:
        """Is anybody between `enter` and `leave` there?"""
        found = self._served.get(path)
        return found is not None and found.users > 0

    @property
    def left(self) -> int:
        """How many more may be used at a time."""
        return self._most - sum(1 for one in self._served.values() if one.users)

    def leave(self, path: str) -> None:
        """One user less."""
        self._served[path].users -= 1

    def _make_room(self) -> None:
        if len(self._served) >= self._most:
            idle = next((path for path, one in self._served.items() if not one.users), None)
            if idle is None:
                raise TooBusy(f"{len(self._served)} namespaces are in use on this proxy")
            self._served.pop(idle).scope.cancel()

    async def _serve(
        self, path: str, *, task_status: trio.TaskStatus[_Served] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            namespace = self._make(path, nursery)
            try:
                task_status.started(_Served(namespace, nursery.cancel_scope))
                await trio.sleep_forever()
            finally:
                namespace.close()
