"""How a client dials nodes that have more callers than they can greet (H224)."""

import trio
import trio.testing

from distributedlog.metadata.client import MetadataClient
from distributedlog.runtime.errors import QuorumUnreachable
from distributedlog.runtime.hello import Hello
from distributedlog.runtime.rpc import Endpoint

from ..runtime.pipe import PipeNetwork

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
