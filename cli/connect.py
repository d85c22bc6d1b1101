"""The way of every command to the cluster: one namespace, and a deadline on every answer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from ..runtime.errors import RequestTimeout
from .options import Settings

Result = TypeVar("Result")


@asynccontextmanager
async def namespace(settings: Settings) -> AsyncIterator[Any]:
    """The namespace that the command is about. Raises `QuorumUnreachable` within the timeout."""
    uri = settings.where()
    from .. import open_namespace

    async with open_namespace(uri, timeout_s=settings.timeout_s) as found:
        yield found


async def answer(settings: Settings, what: str, call: Callable[[], Awaitable[Result]]) -> Result:
    """Await one answer of the cluster. Raises `RequestTimeout` when the timeout passes first."""
    # The parts below have deadlines of their own, with better words: they get the first say.
    with trio.move_on_after(settings.timeout_s + 1.0):
        return await call()
    raise RequestTimeout(f"no answer for {settings.timeout_s:g} s: {what}")


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run a command's coroutine."""
    trio.run(work)
