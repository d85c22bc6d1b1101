"""How a client dials nodes that have more callers than they can greet (H224)."""

from contextlib import suppress

import trio
import trio.testing

from distributedlog.metadata.client import MetadataClient
from distributedlog.metadata.quorum_links import PAUSE_S, QuorumLinks
from distributedlog.runtime.errors import ConnectionLost, QuorumUnreachable
from distributedlog.runtime.hello import Hello
from distributedlog.runtime.host import Connection, Listener
from distributedlog.runtime.rpc import Endpoint

from ..runtime.pipe import PipeNetwork
from ..runtime.saying import Saying

PATIENCE_S = 60.0
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
        links = QuorumLinks(endpoint, [listener.address], PATIENCE_S, lambda link: None)
        await nursery.start(links.run)
        with trio.fail_after(PATIENCE_S):
            while links.open_link(listener.address) is None:
                with suppress(ConnectionLost):
                    await links.link(listener.address, trio.current_time() + PATIENCE_S)
                await trio.sleep(PAUSE_S)
        assert listener.dials == 1
        nursery.cancel_scope.cancel()
