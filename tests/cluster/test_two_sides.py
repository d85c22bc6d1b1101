"""Nodes with two addresses each: a client is given those of the side that it came in on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.declarations.options import BookieNodeConfig, MetadataNodeConfig
from distributedlog.cluster.nodes import serve_node
from distributedlog.cluster.status.cluster_overview import status
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello

LOOPBACK = "127.0.0.1"
STORE = {"journal_file_bytes": 4 << 20, "gather_bytes": 1 << 20}


async def _free(count: int) -> list[Address]:
    here = real_host("ports")
    listeners = [await here.listen((LOOPBACK, 0)) for _ in range(count)]
    for listener in listeners:
        listener.close()
    return [listener.address for listener in listeners]


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[Address, Address]]:
    """A metadata node and two bookies; yields where the metadata node is inside and outside.

    From here no inside address of a bookie can be dialled: whoever is given one cannot write.
    """
    inside, outside = await _free(2)
    sides = {"inside": inside, "outside": outside}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            host = real_host("m", disks={"metadata": MemoryDisk()})
            config = MetadataNodeConfig("m", {"m": inside}, sides, sides)
            await nursery.start(serve_node, host, config)
            for name in ("b1", "b2"):
                door, hidden = await _free(2)
                bookie = BookieNodeConfig(
                    name,
                    (inside,),
                    {"inside": hidden, "outside": door},
                    {"inside": (f"{name}.invalid", 4182)},
                    metadata_timeout_s=5,
                    store=STORE,
                )
                disks = {"journal": MemoryDisk(), "index": MemoryDisk()}
                await nursery.start(serve_node, real_host(name, disks=disks), bookie)
            yield inside, outside
            nursery.cancel_scope.cancel()


async def _shown(address: Address) -> tuple[list[str], list[str]]:
    """The addresses of metadata nodes and of bookies, as `dlog status` shows them from there."""
    endpoint = Endpoint(real_host("test"), Hello)
    client = MetadataClient(endpoint, [address], client_id="test", timeout_s=10)
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        found = await status(client, 10)
        nursery.cancel_scope.cancel()
    return (
        [member["address"] for member in found["metadata"]],
        [bookie["address"] for bookie in found["bookies"]],
    )


async def test_the_status_shows_the_addresses_of_the_askers_side() -> None:
    async with _cluster() as (inside, outside):
        members, bookies = await _shown(inside)
        assert members == [f"{LOOPBACK}:{inside[1]}"]
        assert sorted(bookies) == ["b1.invalid:4182", "b2.invalid:4182"]

        members, bookies = await _shown(outside)
        assert members == [f"{LOOPBACK}:{outside[1]}"]
        assert all(bookie.startswith(LOOPBACK) for bookie in bookies)


async def test_a_client_from_outside_writes_and_reads() -> None:
    """The log goes over bookies whose inside addresses nobody here can dial."""
    async with _cluster() as (_, outside):
        uri = f"distributedlog://{outside[0]}:{outside[1]}/ns"
        config = {"ensemble_size": 2, "write_quorum": 2}
        async with open_namespace(uri, config=config) as namespace:
            log = namespace.open_log("story")
            async with log.open_writer() as writer:
                await writer.write(LogRecord(1, b"from outside"))
                await writer.commit()
                async with log.open_reader() as reader:
                    record = await reader.read_next()

    assert record is not None
    assert record.payload == b"from outside"
