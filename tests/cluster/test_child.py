"""The process of a node."""

import gc
import socket

import trio

from distributedlog.cluster.child import run_node
from distributedlog.cluster.options import MetadataNodeConfig, to_json


async def test_what_a_start_made_is_left_out_of_full_collections() -> None:
    """Modules and classes alone took 30 ms of CPU each time, in which a bookie answered nobody."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = taken.getsockname()
    config = MetadataNodeConfig("m1", {"m1": place}, {"": place})
    gc.unfreeze()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_node, {"config": to_json(config)})
            assert gc.get_freeze_count() > 10_000
            nursery.cancel_scope.cancel()
    finally:
        gc.unfreeze()
