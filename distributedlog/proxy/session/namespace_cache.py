"""The namespaces that a proxy serves: one object per path, created when a client first uses the path."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ...log.namespace import Namespace
from ...runtime.interfaces.errors import TooBusy


@dataclass(slots=True)
class _CachedNamespace:
    namespace: Namespace
    scope: trio.CancelScope
    users: int = 0


class Namespaces:
    """Namespaces by path, up to a limit. The least recently used namespace without users is closed first."""

    def __init__(
        self, create: Callable[[str, trio.Nursery], Namespace], *, namespaces_max: int
    ) -> None:
        """Create the cache.

        Args:
            create: Creates the namespace of a path, with its tasks in a nursery.
            namespaces_max: The maximum number of open namespaces.
        """
        self._create = create
        self._namespaces_max = namespaces_max
        self._cached: dict[str, _CachedNamespace] = {}  # the most recently used one is last
        self._nursery: trio.Nursery | None = None
        self._acquire_lock = trio.Lock()
        """Serializes `acquire`. Otherwise concurrent calls could open a path twice, or exceed the limit."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of all namespaces until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @asynccontextmanager
    async def using(self, path: str) -> AsyncIterator[Namespace]:
        """Return the namespace of a path, open while the body runs.

        Raises:
            TooBusy: Too many namespaces are in use.
        """
        namespace = await self.acquire(path)
        try:
            yield namespace
        finally:
            self.release(path)

    async def acquire(self, path: str) -> Namespace:
        """Return the namespace of a path, open until `release`.

        Raises:
            TooBusy: Too many namespaces are in use.
        """
        async with self._acquire_lock:
            cached = self._cached.pop(path, None)
            if cached is None:
                self._evict_unused()
                assert self._nursery is not None, "`run` is running"
                cached = await self._nursery.start(self._run_namespace, path)
            self._cached[path] = cached
            cached.users += 1
            return cached.namespace

    def is_used(self, path: str) -> bool:
        """Whether a namespace is acquired and not released."""
        cached = self._cached.get(path)
        return cached is not None and cached.users > 0

    @property
    def free_places(self) -> int:
        """The number of further namespaces that can be in use."""
        return self._namespaces_max - sum(1 for cached in self._cached.values() if cached.users)

    def release(self, path: str) -> None:
        """Release a namespace after `acquire`."""
        self._cached[path].users -= 1

    def _evict_unused(self) -> None:
        if len(self._cached) >= self._namespaces_max:
            unused_path = next(
                (path for path, cached in self._cached.items() if not cached.users), None
            )
            if unused_path is None:
                raise TooBusy(f"{len(self._cached)} namespaces are in use on this proxy")
            self._cached.pop(unused_path).scope.cancel()

    async def _run_namespace(
        self,
        path: str,
        *,
        task_status: trio.TaskStatus[_CachedNamespace] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with trio.open_nursery() as nursery:
            namespace = self._create(path, nursery)
            try:
                task_status.started(_CachedNamespace(namespace, nursery.cancel_scope))
                await trio.sleep_forever()
            finally:
                namespace.close()
