"""A proxy as a node: who it is, who there is, and calls about logs that it makes for who asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from distributedlog import open_namespace
from distributedlog.cluster.declarations.options import (
    READ_PROXY,
    WRITE_PROXY,
    NodeReady,
    ProxyNodeConfig,
)
from distributedlog.cluster.local.local_cluster import LocalCluster, local_cluster
from distributedlog.cluster.nodes import serve_node
from distributedlog.log.model.log_state import LogState
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.runtime.interfaces.errors import DistributedLogError, LogExists, LogNotFound
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.client_link import ClientLink, Reply
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, unpack
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.uri import parse_uri


@asynccontextmanager
async def proxies(cluster: LocalCluster, *kinds: str) -> AsyncIterator[list[NodeReady]]:
    """One proxy of each of these kinds beside a cluster."""
    addresses = parse_uri(cluster.uri).addresses
    async with trio.open_nursery() as nursery:
        found = []
        for number, kind in enumerate(kinds, 1):
            config = ProxyNodeConfig(f"{kind}{number}", kind, addresses)
            found.append(await nursery.start(serve_node, real_host(config.name), config))
        yield found
        nursery.cancel_scope.cancel()


async def called(link: ClientLink, call: str, log: str, *arguments: Any) -> Any:
    body = wire.LogCall("ns", call, log, "", list(arguments)).encode()
    reply = await link.request(Op.LOG_CALL, body, timeout_s=10)
    return unpack(reply.body, call)


async def test_a_proxy_says_who_there_is_and_makes_calls() -> None:
    async with (
        local_cluster(memory=True, in_process=True, bookies=3, metadata_nodes=1) as cluster,
        proxies(cluster, WRITE_PROXY, READ_PROXY) as [writer, reader],
        trio.open_nursery() as nursery,
    ):
        endpoint = Endpoint(real_host("client"), lambda: Hello(kind="client"))
        link = await endpoint.dial(reader.address, nursery=nursery)
        send, told = trio.open_memory_channel[set[str]](9)

        def on_reply(reply: Reply | DistributedLogError) -> None:
            if isinstance(reply, Reply):  # else the end of the link
                send.send_nowait({one.id for one in wire.decode_members(reply.body)})

        link.start_repeated_request(Op.MEMBERS, timeout_s=10, on_reply=on_reply)
        assert (link.peer.kind, link.peer.node_id) == (READ_PROXY, reader.node_id)

        assert await called(link, "create", "orders", "standard", {}, {}, "count") is None
        with pytest.raises(LogExists):
            await called(link, "create", "orders", "standard", {}, {}, "count")
        assert await called(link, "exists", "orders") is True
        assert (await called(link, "page", "", "", "", 10))[0] == ["orders"]
        state = LogState.decode((await called(link, "describe", "orders", 10))[0])
        assert (state.name, state.txid_rule) == ("orders", "count")
        assert await called(link, "seal", "orders", False, None) is True
        await called(link, "delete", "orders", 0.0)
        with pytest.raises(LogNotFound):
            await called(link, "describe", "orders", 10)

        assert await told.receive() == {writer.node_id, reader.node_id}
        async with proxies(cluster, WRITE_PROXY) as [third]:
            assert await told.receive() == {writer.node_id, reader.node_id, third.node_id}
        while third.node_id in (now := await told.receive()):
            pass  # that it takes no more logs
        assert now == {writer.node_id, reader.node_id}, "it has said goodbye"
        nursery.cancel_scope.cancel()


async def test_a_cluster_of_ones_own_has_proxies_where_they_are_asked_for() -> None:
    """Written and read through them, with three bookies as by default."""
    async with (
        local_cluster(
            memory=True, in_process=True, metadata_nodes=1, write_proxies=1, read_proxies=1
        ) as cluster,
        open_namespace(cluster.ready()["proxied_uri"]) as namespace,
    ):
        log = namespace.open_log("orders")
        async with log.open_writer(producer="me") as writer:
            await writer.write_bulk([b"%d" % n for n in range(10)])
        async with log.open_reader(to="end") as reader:
            assert [one.payload async for one in reader] == [b"%d" % n for n in range(10)]
