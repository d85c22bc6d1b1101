"""Streams of states are bounded, of all and of one browser, however many come at once (H260)."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.console.access_guard import AccessGuard
from distributedlog.console.http import ConsolePage, EventStreamResponse, Request
from distributedlog.console.server import STATES_MAX, STREAMS_MAX, STREAMS_PER_BROWSER, Console

TOKEN = "token"


class Looks:
    """A part of the console that always sees the same."""

    waited_s = 0.0
    labels: dict[str, str]

    def __init__(self) -> None:
        self.labels = {}

    async def poll(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"ok": 1}


class Browsers:
    """Some, let in; each stream that they open is noted while it is open."""

    def __init__(self, count: int) -> None:
        sessions = iter(range(count))
        guard = AccessGuard(TOKEN, 8490, (), lambda: f"s{next(sessions)}")
        look: Any = Looks()
        namespace: Any = SimpleNamespace(wall_ms=lambda: 0)
        self.console = Console(look, look, lambda: namespace, guard)
        for _ in range(count):
            guard.open_session(
                Request(
                    "POST",
                    "/session",
                    {},
                    {"content-type": "application/json"},
                    b'{"token": "token"}',
                )
            )
        self.open: list[int] = []
        self.refused = 0

    async def ask(self, browser: int, **query: str) -> ConsolePage | EventStreamResponse:
        headers = {"host": "127.0.0.1:8490", "cookie": f"dlog-console-8490=s{browser}"}
        return await self.console.handle(Request("GET", "/events", query, headers))

    async def watch(self, browser: int, together: trio.Event | None = None) -> None:
        """Until it is ended from the other side. ``together``: all have been answered before any begins."""
        answer = await self.ask(browser, page="cluster")
        if together is not None:
            await together.wait()
        if isinstance(answer, ConsolePage):
            assert answer.status == 503
            self.refused += 1
            return

        begun = False

        async def send(data: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                self.open.append(browser)
            await trio.lowlevel.checkpoint()

        try:
            await answer.run(send)
        finally:
            if begun:
                self.open.remove(browser)


async def _settle() -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("at_once", [False, True])
async def test_all_streams_are_bounded(nursery: trio.Nursery, at_once: bool) -> None:
    """A burst was counted before any of it was open: 64 had a stream each."""
    browsers = Browsers(3 * STREAMS_MAX)
    together = trio.Event() if at_once else None
    for number in range(3 * STREAMS_MAX):
        nursery.start_soon(browsers.watch, number, together)
        if not at_once:
            await _settle()
    if together is not None:
        await _settle()
        together.set()
    await _settle()

    assert len(browsers.open) == STREAMS_MAX
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_browsers_oldest_stream_makes_room(nursery: trio.Nursery, at_once: bool) -> None:
    browsers = Browsers(1 + STREAMS_MAX)
    together = trio.Event() if at_once else None
    for _ in range(3 * STREAMS_PER_BROWSER):
        nursery.start_soon(browsers.watch, 0, together)
        if not at_once:
            await _settle()
    if together is not None:
        await _settle()
        together.set()
    await _settle()
    assert browsers.open == [0] * STREAMS_PER_BROWSER

    for number in range(1, 1 + STREAMS_MAX):  # others fill what is left
        nursery.start_soon(browsers.watch, number)
        await _settle()
    assert len(browsers.open) == STREAMS_MAX
    nursery.start_soon(browsers.watch, 0)  # its own oldest makes room, also when all are taken
    await _settle()
    assert browsers.open.count(0) == STREAMS_PER_BROWSER
    nursery.cancel_scope.cancel()


async def test_states_that_anybody_names_are_bounded() -> None:
    browsers = Browsers(1)
    for number in range(3 * STATES_MAX):
        assert isinstance(
            await browsers.ask(0, page="logs", prefix=f"{number}/"), EventStreamResponse
        )

    assert len(browsers.console._states) == STATES_MAX + 2
    assert isinstance(await browsers.ask(0, page="cluster"), EventStreamResponse)  # these stay
