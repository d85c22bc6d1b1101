"""The process of a node."""

import gc
import json
import socket
import subprocess

import trio

from distributedlog.cluster.declarations.options import MetadataNodeConfig, to_json
from distributedlog.cluster.local.child_processes import COMMAND, environment
from distributedlog.cluster.local.node_child import run_node


async def test_what_a_start_made_is_left_out_of_full_collections() -> None:
    """Modules and classes alone took 30 ms of CPU each time, in which a bookie answered nobody."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = taken.getsockname()
    config = MetadataNodeConfig("m1", {"m1": place}, {"": place})
    before = gc.get_freeze_count()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_node, {"config": to_json(config)})
        assert gc.get_freeze_count() > before
        nursery.cancel_scope.cancel()


def test_why_a_node_did_not_start_is_told_though_who_started_it_is_gone() -> None:
    """Its port was taken: the line for the parent breaks, and the reason is on stderr all the same."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = taken.getsockname()
        config = MetadataNodeConfig("m1", {"m1": place}, {"": place})
        spec = {"run": "node", "name": "m1", "config": to_json(config)}
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(), text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        said = process.stderr.read()
        process.stdin.close()
        process.stderr.close()
        assert process.wait() == 1
    assert "AddressInUse" in said
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
