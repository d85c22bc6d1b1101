"""How a client dials nodes that have more callers than they can greet (H224)."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.client.node_connections import PAUSE_S, REDIAL_MAX_S, NodeConnections
from distributedlog.runtime.interfaces.errors import ConnectionLost, QuorumUnreachable
from distributedlog.runtime.interfaces.host import Connection, Listener
from distributedlog.runtime.interfaces.principals import CertificateIdentity
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.handshake_limiter import HANDSHAKES_PER_S, HandshakeLimiter
from distributedlog.runtime.net.rejection_log import host_of
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello

from ...runtime.pipe import PipeNetwork
from ...runtime.saying import Saying

PATIENCE_S = 60.0
CROWD = 250
"""With four times the strangers that the server takes; fewer than have a place in the end."""
HOSTS = 16
NODES = 3


async def test_a_node_that_hangs_up_is_dialled_less_and_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Else hundreds that it cannot greet keep it, each with twenty dials a second, from greeting any."""
    network = PipeNetwork()
    dials = 0

    async def hang_up(name: str, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        nonlocal dials
        listener = await network.host(name).listen((name, 0))
        task_status.started(listener.address)
        while True:
            (await listener.accept()).close()
            dials += 1

    async with trio.open_nursery() as nursery:
        places = [await nursery.start(hang_up, f"m{n}") for n in range(NODES)]
        endpoint = Endpoint(network.host("c"), lambda: Hello(kind="client"))
        client = MetadataClient(endpoint, places, client_id="c", timeout_s=PATIENCE_S)
        await nursery.start(client.run)
        try:
            await client.get(b"key")
        except QuorumUnreachable:
            nursery.cancel_scope.cancel()

    assert NODES <= dials <= NODES * 25


class LateListener:
    """What it takes is heard of some seconds later, as behind a crowd."""

    def __init__(self, inner: Listener, late_s: float) -> None:
        self.address = inner.address
        self.dials = 0
        self._inner = inner
        self._late_s = late_s
        self.close = inner.close

    async def accept(self) -> Connection:
        connection = await self._inner.accept()
        self.dials += 1
        await trio.sleep(self._late_s)
        return connection


async def test_who_is_taken_waits_for_its_turn(autojump_clock: trio.testing.MockClock) -> None:
    """Who gave up after two seconds had to begin again behind all others."""
    network = PipeNetwork()
    host = network.host("m1")
    listener = LateListener(await host.listen(("m1", 0)), 4.0)
    async with trio.open_nursery() as nursery:
        node = Endpoint(host, lambda: Hello("c1", "m1", "metadata"))
        nursery.start_soon(node.serve, {"": listener}, Saying)
        endpoint = Endpoint(network.host("c"), lambda: Hello(kind="client"))
        links = NodeConnections(endpoint, [listener.address], PATIENCE_S, lambda link: None)
        await nursery.start(links.run)
        with trio.fail_after(PATIENCE_S):
            while links.current_link(listener.address) is None:
                with suppress(ConnectionLost):
                    await links.connect(listener.address, trio.current_time() + PATIENCE_S)
                await trio.sleep(PAUSE_S)
        assert listener.dials == 1
        nursery.cancel_scope.cancel()


class Turned:
    """A connection that is heard of when its turn has come, and ``late_s`` after that: as a handshake."""

    identity: CertificateIdentity | None = None
    is_secret = False

    def __init__(self, inner: Connection, turns: HandshakeLimiter, late_s: float) -> None:
        self.peer = inner.peer
        self.has_begun_handshake = False
        self.try_send, self.wait_writable = inner.try_send, inner.wait_writable
        self._inner = inner
        self._turns = turns
        self._late_s = late_s
        self._gone = False

    async def receive_into(self, *buffers: memoryview) -> int:
        count = await self._inner.receive_into(*buffers)
        if not self.has_begun_handshake:
            self.has_begun_handshake = True
            said = [bytes(buffer) for buffer in buffers]
            await self._turns.wait_turn(host_of(self.peer), self._check)
            await trio.sleep(self._late_s)
            self._check()
            for buffer, was in zip(buffers, said, strict=True):
                buffer[:] = was
        return count

    def _check(self) -> None:
        if self._gone:
            raise ConnectionLost("closed here")

    def close(self) -> None:
        self._gone = True
        self._inner.close()


class TurningListener:
    def __init__(self, inner: Listener, late_s: float) -> None:
        self.address = inner.address
        self.close = inner.close
        self._inner = inner
        self._turns = HandshakeLimiter()
        self._late_s = late_s

    async def accept(self) -> Connection:
        return Turned(await self._inner.accept(), self._turns, self._late_s)


@pytest.mark.properties
async def test_a_crowd_that_comes_at_once_is_there_when_its_handshakes_are_done(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H224. They gave up in their turn, or were put back before it, and all took several of them."""
    network = PipeNetwork()
    host = replace(network.host("m1"), connections_max=6 * 64)
    listener = TurningListener(await host.listen(("m1", 0)), late_s=1.0)
    async with trio.open_nursery() as nursery:
        node = Endpoint(host, lambda: Hello("c1", "m1", "metadata"))
        nursery.start_soon(node.serve, {"": listener}, Saying)

        async def come(number: int) -> None:
            here = network.host(f"h{number % HOSTS}")
            here.random.seed(number)
            endpoint = Endpoint(here, lambda: Hello(kind="client"), receive_bytes=1 << 16)
            links = NodeConnections(endpoint, [listener.address], PATIENCE_S, lambda link: None)
            await nursery.start(links.run)
            while links.current_link(listener.address) is None:
                with suppress(ConnectionLost):
                    await links.connect(listener.address, trio.current_time() + PATIENCE_S)
                await trio.sleep(PAUSE_S)

        began = trio.current_time()
        async with trio.open_nursery() as crowd:
            for number in range(CROWD):
                crowd.start_soon(come, number)
        assert trio.current_time() - began < CROWD / HANDSHAKES_PER_S + 3 * REDIAL_MAX_S
        nursery.cancel_scope.cancel()


async def test_thousands_that_want_a_connection_make_one_search(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each that gave a silent node up by itself woke with all others, and left the connection no time."""
    network = PipeNetwork()
    silent = [await network.host(f"m{n}").listen((f"m{n}", 0)) for n in range(NODES)]
    endpoint = Endpoint(network.host("c"), lambda: Hello(kind="client"))
    asked = 0

    class Counting(NodeConnections):
        async def link(self, *arguments: Any, **more: Any) -> ClientLink:
            nonlocal asked
            asked += 1
            return await super().connect(*arguments, **more)

    async with trio.open_nursery() as nursery:
        links = Counting(endpoint, [one.address for one in silent], 10.0, lambda link: None)
        await nursery.start(links.run)
        failed = 0

        async def want() -> None:
            nonlocal failed
            with suppress(QuorumUnreachable):
                await links.any_link()
                return
            failed += 1

        async with trio.open_nursery() as callers:
            for _ in range(200):
                callers.start_soon(want)
        assert failed == 200
        assert asked <= 10.0 / PAUSE_S
        nursery.cancel_scope.cancel()
