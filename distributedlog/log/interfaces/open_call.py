"""The result of ``open_writer``, ``open_reader`` and similar calls, for ``async with`` or ``await``."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=AbstractAsyncContextManager[Any, None])


class Opening(Coroutine[Any, Any, T], AbstractAsyncContextManager[T], Generic[T]):
    """An object to open later: enter it with ``async with``, or ``await`` it and close the result later.

    ``asyncio.create_task`` and similar functions accept it as a coroutine. It opens nothing before it runs.
    """

    def __init__(self, open_object: Callable[[], Awaitable[T]]) -> None:
        self.open = open_object
        """Opens a new object at each call."""
        self._opened: T | None = None
        self._running: Generator[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self.open().__await__()

    def send(self, value: Any) -> Any:
        """Resume the call, as the method of a coroutine."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the call, as the method of a coroutine."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """End the call, as the method of a coroutine."""
        if self._running is not None:
            self._running.close()

    def _coroutine(self) -> Generator[Any, Any, T]:
        if self._running is None:
            self._running = self.__await__()
        return self._running

    async def __aenter__(self) -> T:
        self._opened = await self.open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, at)
