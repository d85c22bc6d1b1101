"""How a node comes to its cluster: what it is told meanwhile is answered, all of it."""

import pytest
import trio

from distributedlog.metadata.declarations.options import MetadataOptions
from distributedlog.metadata.node.metadata_node import MetadataNode
from distributedlog.metadata.peers.bootstrap import Bootstrap, BootstrapAnswer
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.disk.node_identity import NodeIdentity
from distributedlog.runtime.interfaces.host import File

from ...runtime.pipe import PipeNetwork


class SlowDisk(MemoryDisk):
    """Takes a second for each new file."""

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        await trio.sleep(1)
        return await super().create(name, size=size, direct=direct)


@pytest.mark.parametrize("peers", [{"m1": ("m1", 1)}, {"m1": ("m1", 1), "m0": ("m0", 1)}])
async def test_who_comes_while_a_node_joins_is_told_at_once(
    peers: dict[str, tuple[str, int]], autojump_clock: object
) -> None:
    """It joins what it founds, or was told of first; the late one must not wait for an answer for ever."""
    options = MetadataOptions(name="m1", peers=peers)
    identity = NodeIdentity("", "id of m1", "metadata", "m1", 1, "a test")
    host = PipeNetwork(1, bytes_max=64 * 1024).host("m1", metadata=SlowDisk())
    node = MetadataNode(host, options, identity)
    told: dict[str, list[BootstrapAnswer]] = {"first": [], "late": []}
    async with trio.open_nursery() as nursery:
        if len(peers) > 1:
            node.offer_bootstrap(
                Bootstrap("first", {"m1": "id of m1"}, is_addition=True), told["first"].append
            )
        nursery.start_soon(node.bootstrap)
        await trio.sleep(0.5)

        node.offer_bootstrap(
            Bootstrap("late", {"m1": "id of m1"}, is_addition=True), told["late"].append
        )

    assert [answer.cluster_id for answer in told["late"]] == [""]
    assert [answer.cluster_id for answer in told["first"]] == ["first"] * (len(peers) - 1)
    assert node.cluster_id not in ("", "late")
