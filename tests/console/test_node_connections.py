"""Nodes are asked over links that stay while somebody asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from distributedlog.console.node_connections import IDLE_S, NodeLinks, node_links
from distributedlog.runtime.interfaces.errors import ConnectionLost, RequestTimeout
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, pack
from distributedlog.runtime.protocol.handshake import Hello
from tests.runtime.pipe import PipeNetwork


class Node:
    """Says how often its links were asked; one that is ``silent`` says nothing."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.open = 0
        self.silent = False

    def session(self, link: Link) -> "Node.Session":
        self.links.append(link)
        self.open += 1
        return Node.Session(self, link)

    class Session:
        def __init__(self, node: "Node", link: Link) -> None:
            self._node = node
            self._link = link
            self._asked = 0

        def on_frame(
            self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
        ) -> None:
            if op == Op.INFO and not self._node.silent:
                self._asked += 1
                self._link.reply(ident, pack({"asked": self._asked}))

        def on_batch_end(self) -> None:
            pass

        def on_closed(self) -> None:
            self._node.open -= 1


@asynccontextmanager
async def _asked() -> AsyncIterator[tuple[Node, NodeLinks, str]]:
    network, node = PipeNetwork(1), Node()
    server = Endpoint(network.host("node"), lambda: Hello(cluster_id="c1", kind="bookie"))
    async with trio.open_nursery() as nursery:
        listener = await server.host.listen(("node", 0))
        nursery.start_soon(server.serve, {"": listener}, node.session)
        async with node_links(network.host("console")) as links:
            yield node, links, f"{listener.address[0]}:{listener.address[1]}"
        nursery.cancel_scope.cancel()


async def test_a_node_is_dialled_once_and_asked_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each question had a buffer of a megabyte, and a console of 60 MiB half of it in garbage."""
    async with _asked() as (node, links, address):
        for number in range(1, 60):
            assert await links.info(address, timeout_s=1) == {"asked": number}
            await trio.sleep(1)

        assert len(node.links) == 1


async def test_a_link_goes_when_nobody_asks(autojump_clock: trio.testing.MockClock) -> None:
    async with _asked() as (node, links, address):
        await links.info(address, timeout_s=1)
        assert node.open == 1
        await trio.sleep(2 * IDLE_S)
        assert node.open == 0

        assert await links.info(address, timeout_s=1) == {"asked": 1}


async def test_a_node_that_was_started_again_is_dialled_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _asked() as (node, links, address):
        await links.info(address, timeout_s=1)
        node.links[0].close(ConnectionLost("killed"))

        assert await links.info(address, timeout_s=1) == {"asked": 1}


async def test_a_node_that_says_nothing_is_waited_for_no_longer_than_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _asked() as (node, links, address):
        await links.info(address, timeout_s=1)
        node.silent = True
        begun = trio.current_time()
        with pytest.raises(RequestTimeout):
            await links.info(address, timeout_s=1)
        assert trio.current_time() - begun == pytest.approx(1, abs=0.01)

        node.silent = False
        assert await links.info(address, timeout_s=1) == {"asked": 2}
