"""Keep connections to the nodes between requests for their figures.

A new connection per request, with its handshake and receive buffer, costs a millisecond and a megabyte that
only garbage collection frees. A request over an existing connection costs a fifth of the time.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from ..cluster.declarations.config import parse_address
from ..cluster.status.node_health import query_info_over
from ..runtime.interfaces.errors import ConnectionLost, RequestTimeout
from ..runtime.interfaces.host import Host
from ..runtime.net.client_link import ClientLink
from ..runtime.net.connection_limiter import HEALTH
from ..runtime.net.rpc import Endpoint
from ..runtime.protocol.handshake import Hello

IDLE_S = 10.0
"""An unused connection is closed after this time, in seconds, for example because the node has ended."""
RECEIVE_BYTES = 64 * 1024
"""Sufficient, because the figures of a node have a few kilobytes."""


class NodeLinks:
    """The connections of one console. Created by `node_links`."""

    def __init__(self, host: Host, nursery: trio.Nursery) -> None:
        self._endpoint = Endpoint(host, lambda: Hello(kind=HEALTH), receive_bytes=RECEIVE_BYTES)
        self._nursery = nursery
        self._links: dict[str, ClientLink] = {}
        self._requested_at: dict[str, float] = {}

    async def info(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the counters and gauges of a node by name. One request per address at a time.

        Raises `DistributedLogError`, at the latest after ``timeout_s`` seconds.
        """
        self._requested_at[address] = trio.current_time()
        with trio.move_on_after(timeout_s):
            link = self._links.get(address)
            if link is not None and link.closed is None:
                try:
                    return await query_info_over(link, timeout_s)
                except ConnectionLost:
                    pass  # the node restarted or closed the connection: connect again
            link = await self._endpoint.dial(
                parse_address(address, "an address"), nursery=self._nursery
            )
            self._links[address] = link
            return await query_info_over(link, timeout_s)
        raise RequestTimeout(f"{address} did not answer within {timeout_s:g} s")

    async def run(self) -> None:
        """Close idle connections until cancelled."""
        await self._endpoint.failures.keep_running("the end of idle links", self._close_idle)

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(IDLE_S / 2)
            now = trio.current_time()
            for address in [
                idle_address
                for idle_address, requested_at in self._requested_at.items()
                if now - requested_at >= IDLE_S
            ]:
                del self._requested_at[address]
                link = self._links.pop(address, None)
                if link is not None:
                    link.close(ConnectionLost("the connection was idle"))


@asynccontextmanager
async def node_links(host: Host) -> AsyncIterator[NodeLinks]:
    """Yield connections that are closed at the end of the block."""
    async with trio.open_nursery() as nursery:
        links = NodeLinks(host, nursery)
        nursery.start_soon(links.run)
        yield links
        nursery.cancel_scope.cancel()
