"""Our own network on real loopback: cut links hold what they carry, in one direction or both."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from distributedlog.testing.chaos.adapters.node_forwarder import (
    LinkConditions,
    NodeForwarder,
    owner_of,
    who_holds,
)
from distributedlog.testing.chaos.model.adapter import CLIENTS

HOST = "127.0.0.1"
A_WHILE_S = 0.3
"""Nothing may arrive within this; what may pass comes in a thousandth of it."""

pytestmark = pytest.mark.processes


async def _echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


@asynccontextmanager
async def door(weather: LinkConditions, source: str = "a") -> AsyncIterator[int]:
    """A door named "b" to an echo server; everybody who comes is ``source``. Gives its port."""
    async with trio.open_nursery() as nursery:
        inner = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, _echo, inner)
        port = await free_port()
        made = NodeForwarder(
            "b", (HOST, port), (HOST, inner[0].socket.getsockname()[1]), weather, lambda _: source
        )
        await nursery.start(made.run)
        yield port
        nursery.cancel_scope.cancel()


async def free_port() -> int:
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    port: int = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return port


async def heard(stream: trio.SocketStream, within_s: float = A_WHILE_S) -> bytes | None:
    """What arrives, or None."""
    with trio.move_on_after(within_s):
        return bytes(await stream.receive_some(100))
    return None


async def test_bytes_pass_both_ways_while_nothing_is_cut() -> None:
    async with door(LinkConditions()) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(b"hello")

        assert await heard(stream, 10.0) == b"hello"


@pytest.mark.parametrize("link", [("a", "b"), ("b", "a")])
async def test_a_cut_link_holds_bytes_and_gives_them_after_the_heal(link: tuple[str, str]) -> None:
    """As a partitioned TCP connection does: silent, not reset."""
    weather = LinkConditions()
    async with door(weather) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(b"1")
        assert await heard(stream, 10.0) == b"1"

        weather.cut[link] = 1
        weather.notify_changed()
        await stream.send_all(b"2")
        assert await heard(stream) is None

        weather.cut[link] = 0
        weather.notify_changed()
        assert await heard(stream, 10.0) == b"2"


async def test_a_new_connection_over_a_cut_link_hangs_until_the_heal() -> None:
    weather = LinkConditions(cut={("b", "a"): 1})
    async with door(weather) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(b"x")
        assert await heard(stream) is None

        weather.cut.clear()
        weather.notify_changed()
        assert await heard(stream, 10.0) == b"x"


async def test_links_of_others_are_not_touched() -> None:
    weather = LinkConditions(cut={("c", "b"): 1, ("b", CLIENTS): 1})
    async with door(weather) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(b"x")

        assert await heard(stream, 10.0) == b"x"


async def test_a_slow_link_delays() -> None:
    weather = LinkConditions(slow={("a", "b"): (A_WHILE_S * 3, 0.0)})
    async with door(weather) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(b"x")

        assert await heard(stream) is None
        assert await heard(stream, 10.0) == b"x"


async def test_a_dead_node_closes_the_connection_that_comes_to_its_door() -> None:
    async with trio.open_nursery() as nursery:
        port, nobody = await free_port(), await free_port()
        made = NodeForwarder("b", (HOST, port), (HOST, nobody), LinkConditions(), lambda _: "a")
        await nursery.start(made.run)
        async with await trio.open_tcp_stream(HOST, port) as stream:
            assert await heard(stream, 10.0) == b""
        nursery.cancel_scope.cancel()


async def test_a_connection_is_known_by_the_process_that_made_it() -> None:
    """A node is told from a client by the owner of its socket."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    port = listeners[0].socket.getsockname()[1]
    program = (
        f"import socket, sys; s = socket.create_connection(('{HOST}', {port})); sys.stdin.read()"
    )
    async with listeners[0], await trio.open_tcp_stream(HOST, port):
        ours = await listeners[0].accept()
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as other:  # noqa: ASYNC220
            theirs = await listeners[0].accept()
            pids = {"bookie1": other.pid}

            inodes = [owner_of(one.socket.getpeername()[1], port) for one in (ours, theirs)]
            names = [who_holds(inode, pids) for inode in inodes]
            own = who_holds(inodes[0], {"me": os.getpid()})

            await ours.aclose()
            await theirs.aclose()
    assert names == [CLIENTS, "bookie1"]
    assert own == "me"
