"""The console's door: bounds on whoever comes, and states that nothing queues behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.console.http import (
    ACTION_BODY_BYTES_MAX,
    BODY_BYTES_MAX,
    CONNECTIONS_MAX,
    REQUEST_S,
    WRITE_S,
    WRITE_TOTAL_S,
    ConsolePage,
    EventStreamResponse,
    Request,
    Send,
    as_page,
    serve_http,
)
from distributedlog.console.server import EVERY_S, REST_FACTOR, SharedState
from distributedlog.runtime.interfaces.errors import ConnectionLost, QuorumUnreachable
from distributedlog.runtime.interfaces.host import Connection

from ..runtime.pipe import PipeNetwork

LARGE = bytes(2**20)


class Door:
    """An echo of requests at ``/``, and a stream at ``/stream``."""

    def __init__(self) -> None:
        self.network = PipeNetwork(5)
        self.asked: list[Request] = []
        self.streams = 0
        self.sent = 0

    async def answer(self, request: Request) -> ConsolePage | EventStreamResponse:
        self.asked.append(request)
        if request.path == "/broken":
            raise RuntimeError("a defect")
        if request.path == "/large":
            return ConsolePage(200, LARGE)
        if request.path != "/stream":
            return as_page(200, {"path": request.path, **request.query})
        return EventStreamResponse(self._count)

    async def _count(self, send: Send) -> None:
        self.streams += 1
        try:
            while True:
                await send(b"x" * 10_000)
                self.sent += 1
                await trio.sleep(1)
        finally:
            self.streams -= 1

    async def dial(self) -> Connection:
        return await self.network.host("browser").dial(("node", 80))


@asynccontextmanager
async def _door(body_bytes_max: int = BODY_BYTES_MAX) -> AsyncIterator[Door]:
    door = Door()
    listener = await door.network.host("node").listen(("node", 80))
    async with trio.open_nursery() as nursery:
        headers = {"x-always": "yes"}
        nursery.start_soon(serve_http, listener, door.answer, headers, body_bytes_max)
        yield door
        nursery.cancel_scope.cancel()


async def _send(connection: Connection, data: bytes) -> None:
    while data:
        data = data[connection.try_send([data]) :]
        await connection.wait_writable()


async def _asked(door: Door, request: bytes) -> bytes:
    """The whole answer."""
    connection = await door.dial()
    buffer, found = memoryview(bytearray(4096)), b""
    try:
        with suppress(ConnectionLost):
            await _send(connection, request)
        with suppress(ConnectionLost):
            while count := await connection.receive_into(buffer):
                found += bytes(buffer[:count])
    finally:
        connection.close()
    return found


async def test_a_request_comes_apart_and_an_answer_says_what_always_is_said(
    autojump_clock: object,
) -> None:
    async with _door() as door:
        answer = await _asked(
            door,
            b"POST /a%2Fb?log=x%20y&log=%E2%82%AC&empty= HTTP/1.1\r\nHost: n\r\nCookie: a=b\r\n"
            b"Content-Length: 3\r\n\r\nabc",
        )

    [request] = door.asked
    assert (request.method, request.path, request.body) == ("POST", "/a/b", b"abc")
    assert request.query == {"log": "€", "empty": ""}
    assert request.headers["cookie"] == "a=b"
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\nx-always: yes\r\n" in answer


@pytest.mark.parametrize(("excess", "status"), [(0, 200), (1, 413)])
async def test_a_body_of_a_change_is_bounded(
    autojump_clock: object, excess: int, status: int
) -> None:
    length = ACTION_BODY_BYTES_MAX + excess
    head = b"POST /actions HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n" % length
    async with _door(ACTION_BODY_BYTES_MAX) as door:
        answer = await _asked(door, head + b"x" * length)
        assert int(answer.split(b" ", 2)[1]) == status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x00\x01 what is this\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
        (b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 9999\r\n\r\n" + b"x" * (BODY_BYTES_MAX + 1), 413),
        (b"GET /?" + b"&".join([b"a=1"] * 17) + b" HTTP/1.1\r\nHost: n\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\nHost: n\r\n\r\n", 200),
    ],
)  # fmt: skip
async def test_anything_else_is_answered_and_does_no_harm(
    request_: bytes, status: int, autojump_clock: object
) -> None:
    async with _door() as door:
        answer = await _asked(door, request_)
        assert int(answer.split(b" ", 2)[1]) == status
        assert b"x-always: yes" in answer
        assert (await _asked(door, b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )


async def test_a_defect_ends_its_own_connection(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with _door() as door:
        assert await _asked(door, b"GET /broken HTTP/1.1\r\nHost: n\r\n\r\n") == b""
        assert (await _asked(door, b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
    assert "a defect" in caplog.text


async def test_who_takes_nothing_is_hung_up_on_and_nothing_gathers_for_him(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H260: a laptop that sleeps. The pipe takes a few states, then none."""
    async with _door() as door:
        asleep = [await door.dial() for _ in range(10)]
        for connection in asleep:
            await _send(connection, b"GET /stream HTTP/1.1\r\nHost: n\r\n\r\n")
        await trio.sleep(0.5)
        assert door.streams == 10

        await trio.sleep(60)
        taken = door.sent
        assert door.streams == 0
        await trio.sleep(WRITE_S + 60)
        assert door.sent == taken


async def _read_slowly(door: Door, bytes_per_read: int, pause_s: float) -> tuple[int, float]:
    """Return the bytes of a large page, and the seconds, that a slow viewer receives."""
    connection = await door.dial()
    started_at, size = trio.current_time(), 0
    buffer = memoryview(bytearray(bytes_per_read))
    await _send(connection, b"GET /large HTTP/1.1\r\nHost: n\r\n\r\n")
    with suppress(ConnectionLost):
        while count := await connection.receive_into(buffer):
            size += count
            await trio.sleep(pause_s)
    return size, trio.current_time() - started_at


async def test_a_slow_viewer_that_reads_on_receives_a_large_page(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The whole page had to be accepted within the time of one step."""
    async with _door() as door:
        size, took_s = await _read_slowly(door, 128 * 1024, 0.3 * WRITE_S)

    assert size > len(LARGE)
    assert took_s > 2 * WRITE_S


async def test_a_viewer_that_reads_too_slowly_is_disconnected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _door() as door:
        size, _ = await _read_slowly(door, 1024, 1.0)

    buffered = 64 * 1024  # by the pipe
    assert buffered + WRITE_S * 1024 < size <= buffered + WRITE_TOTAL_S * 1024


async def test_who_hangs_up_ends_his_stream_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with _door() as door:
        connection = await door.dial()
        await _send(connection, b"GET /stream HTTP/1.1\r\nHost: n\r\n\r\n")
        await trio.sleep(0.5)
        assert door.streams == 1
        connection.close()
        await trio.sleep(0.01)
        assert door.streams == 0


async def test_who_says_nothing_takes_a_place_for_a_while_and_others_are_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _door() as door:
        silent = [await door.dial() for _ in range(CONNECTIONS_MAX)]
        await trio.sleep(0.1)
        answer = await _asked(door, b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        assert not door.asked

        await trio.sleep(REQUEST_S)
        assert (await _asked(door, b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
        for connection in silent:
            connection.close()


async def test_many_who_look_are_one_look_and_nobody_is_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H261: the watcher must not be the load."""
    looks: list[float] = []

    async def look() -> dict[str, Any]:
        looks.append(trio.current_time())
        await trio.sleep(0.05)
        return {"number": len(looks)}

    shared = SharedState(look)

    async def watch() -> None:
        for _ in range(10):
            await shared.data()
            await trio.sleep(EVERY_S)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(watch)
    assert len(looks) <= 11
    assert min(after - before for before, after in pairwise(looks)) >= EVERY_S

    await trio.sleep(100)
    assert len(looks) <= 11


async def test_a_look_that_takes_long_comes_seldom(autojump_clock: trio.testing.MockClock) -> None:
    spent = 0.0

    async def look() -> dict[str, Any]:
        nonlocal spent
        await trio.sleep(2)
        spent += 2
        return {}

    shared = SharedState(look)
    while trio.current_time() < 200:
        await shared.data()
        await trio.sleep(EVERY_S)

    assert spent <= 200 / REST_FACTOR + 4


async def test_a_look_that_waits_for_who_is_silent_comes_as_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A node that hangs costs nobody anything, and must not hide for four seconds what else is wrong."""
    looks: list[float] = []

    async def look() -> dict[str, Any]:
        looks.append(trio.current_time())
        await trio.sleep(1.05)
        return {}

    shared = SharedState(look, lambda: 1.0)
    while len(looks) < 5:
        await shared.data()
        await trio.sleep(0.1)

    apart = [after - before for before, after in pairwise(looks)]
    assert min(apart) >= 2 * EVERY_S
    assert max(apart) <= 2 * EVERY_S + 0.2


async def test_an_error_is_a_state_and_the_next_look_mends_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: list[Exception | dict[str, Any]] = [QuorumUnreachable("nobody\n\ndata: x"), {"ok": 1}]

    async def look() -> dict[str, Any]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    shared = SharedState(look)
    # Nothing in a state ends its event.
    text = b'data: {"error": "QuorumUnreachable: nobody\\n\\ndata: x", "code": %d}\n\n'
    assert await shared.data() == text % QuorumUnreachable.code
    await trio.sleep(EVERY_S)
    assert await shared.data() == b'data: {"ok": 1}\n\n'
