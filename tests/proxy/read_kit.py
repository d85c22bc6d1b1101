"""Read proxies and readers in one process: the model's ledgers below, pipes between, virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.services.log_metrics import LogMeters
from distributedlog.metadata.auth.acl_cache import AclCache
from distributedlog.proxy.client.entry_source import ReadLinks, open_proxied_reader
from distributedlog.proxy.protocol.read_messages import Subscribe
from distributedlog.proxy.read.read_server import ReadServer, ReadSession
from distributedlog.proxy.session.client_authorizer import ClientAuthorizer
from distributedlog.runtime.declarations.options import with_overrides
from distributedlog.runtime.interfaces.errors import TooBusy
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from tests.log.conftest import World
from tests.runtime.pipe import PipeNetwork


class Proxy:
    """A read proxy: `kill` it."""

    def __init__(self, server: ReadServer, address: Address, scope: trio.CancelScope) -> None:
        self.server = server
        self.address = address
        self._scope = scope

    def kill(self) -> None:
        self._scope.cancel()


class Proxies:
    """Read proxies over one world, and the readers of one client process."""

    def __init__(self, world: World, nursery: trio.Nursery, seed: int = 1) -> None:
        self.world = world
        self.network = PipeNetwork(seed)
        self.running: list[Proxy] = []
        self.known: list[Address] = []
        """What clients take for the log's proxies, in this order."""
        self.principal = ""
        """Whom a connection is taken for, from now on; "": nobody."""
        self.rights: ClientAuthorizer | None = None
        """Of the proxies that are started from now on; None: they judge nobody."""
        self._nursery = nursery
        self._readers = 0
        self.endpoint = Endpoint(self.network.host("client"), partial(Hello, "c1", label="reader"))
        self.links = ReadLinks(self.endpoint, nursery, lambda path, name: list(self.known))

    async def start(self, **limits: Any) -> Proxy:
        """One more; ``limits`` of `ReadServer`, and options of its logs by their name."""
        options = {k: limits.pop(k) for k in list(limits) if k in LogOptions.__slots__}
        proxy: Proxy = await self._nursery.start(partial(self._serve, limits, options))
        self.running.append(proxy)
        self.known.append(proxy.address)
        return proxy

    async def _serve(
        self,
        limits: dict[str, Any],
        options: dict[str, Any],
        *,
        task_status: trio.TaskStatus[Proxy] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        host = self.network.host(f"proxy{len(self.running)}")
        listener = await host.listen((host.name, 0))
        try:
            with trio.CancelScope() as scope:
                async with self.world.process(host.name, **options) as namespace:

                    @asynccontextmanager
                    async def using(path: str) -> AsyncIterator[Namespace]:
                        if path != "ns":
                            raise TooBusy(f"not {path}")
                        await trio.lowlevel.checkpoint()
                        yield namespace

                    hello = Hello("c1", host.name, "read-proxy", host.name)
                    endpoint = Endpoint(host, lambda: hello)
                    server = ReadServer(endpoint, using, **limits)
                    rights = self.rights or ClientAuthorizer(namespace.metadata, AclCache())

                    def session(link: Link) -> ReadSession:
                        if self.principal:
                            link.principal = self.principal
                        return ReadSession(server, link, rights.admit(link), None)

                    async with trio.open_nursery() as nursery:
                        await nursery.start(server.run)
                        task_status.started(Proxy(server, listener.address, scope))
                        await endpoint.serve({"": listener}, session)
        finally:
            listener.close()

    async def reader(
        self, name: str, *, options: dict[str, Any] | None = None, **ask: Any
    ) -> LogReader:
        """A reader through the proxies."""
        self._readers += 1
        return await open_proxied_reader(
            self.links,
            Subscribe("ns", name, **ask),
            options=with_overrides(LogOptions(), options or {}),
            meters=LogMeters(),
            proxy_offset=self._readers,
            start=self._nursery.start_soon,
        )


@asynccontextmanager
async def proxies(world: World, number: int = 1, **limits: Any) -> AsyncIterator[Proxies]:
    """So many read proxies; leaving it kills all."""
    async with trio.open_nursery() as nursery:
        made = Proxies(world, nursery)
        for _ in range(number):
            await made.start(**limits)
        yield made
        nursery.cancel_scope.cancel()
