"""A small cluster in this process, proxies beside it, and who speaks to them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from distributedlog import open_namespace
from distributedlog.cluster.declarations.options import WRITE_PROXY, NodeReady, ProxyNodeConfig
from distributedlog.cluster.local.local_cluster import local_cluster
from distributedlog.cluster.nodes import serve_node
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.uri import parse_uri

from .raw_producer import RawProducer

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@dataclass
class World:
    """A cluster in this process, proxies beside it, producers and a direct namespace."""

    nursery: trio.Nursery
    uri: str
    namespace: Namespace
    endpoint: Endpoint
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)

    async def proxy(self, name: str, kind: str = WRITE_PROXY, **options: object) -> NodeReady:
        config = ProxyNodeConfig(
            name, kind, parse_uri(self.uri).addresses, options={**ONE, **options}
        )

        async def serve(*, task_status: trio.TaskStatus[NodeReady]) -> None:
            with trio.CancelScope() as self.scopes[name]:
                await serve_node(real_host(name), config, task_status=task_status)

        found = await self.nursery.start(serve)
        assert isinstance(found, NodeReady)
        return found

    async def producer(self, proxy: NodeReady) -> RawProducer:
        return RawProducer(await self.endpoint.dial(proxy.address, nursery=self.nursery))

    async def stored(self, log: str) -> list[bytes]:
        async with self.namespace.open_log(log).open_reader(to="end") as reader:
            return [record.payload async for record in reader]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with (
        local_cluster(memory=True, in_process=True, bookies=1, metadata_nodes=1) as cluster,
        open_namespace(cluster.uri, config=ONE) as namespace,
        trio.open_nursery() as nursery,
    ):
        endpoint = Endpoint(real_host("client"), lambda: Hello(kind="client"))
        yield World(nursery, cluster.uri, namespace, endpoint)
        nursery.cancel_scope.cancel()
