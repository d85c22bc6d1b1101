"""A write proxy and a read proxy that judge, in one process and virtual time; who speaks is who he says."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from distributedlog.log.namespace import Namespace
from distributedlog.metadata.auth.acl_cache import AclCache
from distributedlog.metadata.model.acl_records import (
    MODE_KEY,
    User,
    encode_grant,
    encode_mode,
    grant_key,
    user_key,
)
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.proxy.declarations.options import ProxyOptions
from distributedlog.proxy.membership.proxy_members import ProxyMembers
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.proxy.protocol.read_messages import Subscribe, Subscribed
from distributedlog.proxy.read.read_server import ReadServer, ReadSession
from distributedlog.proxy.session.client_authorizer import ClientAuthorizer
from distributedlog.proxy.session.log_calls import LogCalls
from distributedlog.proxy.session.namespace_cache import Namespaces
from distributedlog.proxy.session.proxy_session import CommonSession
from distributedlog.proxy.write.log_manager import LogManager
from distributedlog.proxy.write.produce_session import ProduceSession, ProxyRateLimits
from distributedlog.proxy.write.write_proxy_peers import WriteProxyPeers
from distributedlog.runtime.interfaces.host import Address, Host
from distributedlog.runtime.interfaces.principals import (
    PROXY,
    Credentials,
    Token,
    TokenScope,
    Welcome,
)
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.link import Link, LinkSession
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tls import EITHER, Tls, token_credentials, with_tls
from distributedlog.runtime.protocol.frames import Op, error_from, unpack
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.runtime.protocol.tokens import METHOD, encode_token, read_token, verify_token
from tests.log.conftest import World
from tests.runtime.pipe import PipeNetwork
from tests.runtime.pki import authority, directory_of

from .raw_producer import RawProducer

NS = "default"
T = bytes(32)
"""What the tokens of `Judged.token` are sealed with."""


@dataclass
class RawReader:
    """Subscriptions over one connection: how many frames of each have come, and how it ended."""

    link: ClientLink

    def __post_init__(self) -> None:
        self.frames: dict[int, int] = {}
        self.ended: dict[int, BaseException | None] = {}
        self.link.subscribe(self._on_frame)

    async def subscribe(self, log: str, path: str = NS, **ask: Any) -> Subscribed:
        reply = await self.link.request(
            Op.SUBSCRIBE, Subscribe(path, log, **ask).encode(), timeout_s=30
        )
        return Subscribed.decode(reply.body)

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        if op == Op.ENTRIES:
            self.frames[ident] = self.frames.get(ident, 0) + 1
        else:
            assert op == Op.SUBSCRIPTION_ENDED
            self.ended[ident] = error_from(status, body) if status else None


class Judged:
    """The two proxies, and who comes to them."""

    def __init__(self, world: World, rights: ClientAuthorizer, nursery: trio.Nursery) -> None:
        self.world = world
        self.rights = rights
        self.network = PipeNetwork(1)
        self.writes: Address = ("", 0)
        self.reads: Address = ("", 0)
        self.owner: LogManager | None = None
        self.asked: list[bytes] = []
        """Tokens that the metadata were asked about."""
        self._nursery = nursery

    # --- what the metadata say --------------------------------------------------------------------

    async def put(self, *operations: Put | Delete) -> None:
        await self.world.metadata.transact(Transaction((), operations))

    async def mode(self, mode: str) -> None:
        await self.put(Put(MODE_KEY, encode_mode(mode)))

    async def grant(self, name: str, role: str, path: str, namespace: str = NS) -> None:
        await self.put(
            Put(user_key(name), User().encode()),
            Put(grant_key(name, namespace, path), encode_grant(role)),
        )

    async def revoke(self, name: str, path: str, namespace: str = NS) -> None:
        await self.put(Delete(grant_key(name, namespace, path)))

    async def tokens_from(self, name: str, number: int) -> None:
        """All tokens of that user end that were made with another number."""
        await self.put(Put(user_key(name), User(tokens_valid_from=number).encode()))

    def token(
        self, name: str, *paths: tuple[str, int], since: int = 0, valid_s: float = 3600
    ) -> bytes:
        """Narrowed to these paths of the namespace and their rights."""
        token_scope: TokenScope = tuple((NS, path, rights) for path, rights in paths)
        ends_s = int(trio.current_time() + valid_s)
        return encode_token(Token(name, ends_s, since, 1, "00" * 16, bytes(8), token_scope), T)

    async def whose(self, shown: bytes) -> Welcome:
        """What the metadata say of such a token; the moment of this is the moment of the answer."""
        self.asked.append(shown)
        token = verify_token(shown, lambda key: T)
        item = await self.world.metadata.get(user_key(token.user))
        table = AclCache()
        if item is not None:
            table.update(item.key, item.value)
        why = table.token_error(token)
        if why is not None:
            raise why
        left_s = token.ends_s - trio.current_time()
        return Welcome(token.principal, token=read_token(shown), valid_s=left_s)

    # --- who comes --------------------------------------------------------------------------------

    async def link(self, principal: str, address: Address) -> ClientLink:
        host = self.network.host("client")
        endpoint = Endpoint(host, partial(Hello, "c1", label=principal))
        return await endpoint.dial(address, nursery=self._nursery)

    async def link_by(self, token: bytes, address: Address) -> ClientLink:
        """With a token, by TLS."""
        host = with_tls(self.network.host("client"), Tls(authority(), shows_certificate=False))
        proof = token_credentials(lambda: token)
        return await self._dial(host, address, proof, PROXY)

    async def link_in_clear_by(self, token: bytes, address: Address) -> ClientLink:
        """As a careless program would."""
        proof = Credentials(METHOD, lambda meeting: token)
        return await self._dial(self.network.host("client"), address, proof, "")

    async def _dial(
        self, host: Host, address: Address, proof: Credentials, kind: str
    ) -> ClientLink:
        endpoint = Endpoint(host, partial(Hello, "c1", label="user/somebody-else"))
        return await endpoint.dial(address, nursery=self._nursery, credentials=proof, kind=kind)

    async def producer(self, principal: str) -> RawProducer:
        return RawProducer(await self.link(principal, self.writes))

    async def reader(self, principal: str) -> RawReader:
        return RawReader(await self.link(principal, self.reads))

    async def call(self, principal: str, call: str, log: str, *arguments: Any, **of: Any) -> Any:
        """A call over a connection of its own. ``path``, ``incarnation``: of the log."""
        return await self.call_over(
            await self.link(principal, self.writes), call, log, *arguments, **of
        )

    async def call_over(
        self, link: ClientLink, call: str, log: str, *arguments: Any, **of: Any
    ) -> Any:
        """The same over that one."""
        asked = wire.LogCall(
            of.get("path", NS), call, log, of.get("incarnation", ""), list(arguments)
        )
        reply = await link.request(Op.LOG_CALL, asked.encode(), timeout_s=130)
        return unpack(reply.body, call)

    async def stored(self, log: str) -> list[bytes]:
        async with (
            self.namespace() as namespace,
            namespace.open_log(log).open_reader(to="end") as reader,
        ):
            return [record.payload async for record in reader]

    @asynccontextmanager
    async def namespace(self, path: str = NS) -> AsyncIterator[Namespace]:
        """Directly, beside the proxies."""
        async with trio.open_nursery() as nursery:
            yield self.of(path, nursery)
            nursery.cancel_scope.cancel()

    def of(self, path: str, nursery: trio.Nursery) -> Namespace:
        return self.world.namespace(nursery, "test", {}, path)


@asynccontextmanager
async def judged(
    world: World,
    *,
    rights: Callable[[Any], ClientAuthorizer] = ClientAuthorizer,
    mode: str = "required",
    takes_tokens: bool = False,
    whose: Callable[[bytes], Awaitable[Welcome]] | None = None,
) -> AsyncIterator[Judged]:
    """Both proxies; leaving it kills them. ``rights``: of the metadata.

    ``takes_tokens``: over TLS; who comes plainly is still who he says. ``whose``: instead of `Judged.whose`.
    """
    async with trio.open_nursery() as nursery:
        it = Judged(world, rights(world.metadata), nursery)
        await it.mode(mode)
        await nursery.start(it.rights.run)
        namespaces = Namespaces(it.of, namespaces_max=10)
        await nursery.start(namespaces.run)
        members = ProxyMembers(world.metadata)
        peers = WriteProxyPeers(Endpoint(it.network.host("p1"), Hello))
        owner = it.owner = LogManager("p1", namespaces, members, ProxyOptions(), peers)
        await nursery.start(owner.run)
        calls = LogCalls(
            namespaces,
            calls_max=100,
            is_live_proxy=lambda _: False,
            release_log=owner.release_unused,
        )
        await nursery.start(calls.run)
        network = it.network
        hosts = [network.host(name) for name in ("writes", "reads")]
        if takes_tokens:
            hosts = [
                with_tls(host, Tls(directory_of(f"proxy/{host.name}")), EITHER) for host in hosts
            ]
        endpoints = [
            Endpoint(host, partial(Hello, "c1", host.name, kind, host.name))
            for host, kind in zip(hosts, ("write-proxy", "read-proxy"), strict=True)
        ]
        for endpoint in endpoints if takes_tokens else ():
            endpoint.remote_methods[METHOD] = partial(it.rights.verify_token, whose or it.whose)
        reading = ReadServer(endpoints[1], namespaces.using)
        await nursery.start(reading.run)

        def session(link: Link, writes: bool) -> LinkSession:
            if link.token is None:
                link.principal = link.peer.label
            client = it.rights.admit(link)
            common = CommonSession(link, client, members, calls, dict)
            if writes:
                return ProduceSession(link, owner, ProxyRateLimits(0, 0), common)
            return ReadSession(reading, link, client, common)

        places = []
        for host, endpoint, writes in zip(hosts, endpoints, (True, False), strict=True):
            listener = await host.listen((host.name, 0))
            places.append(listener.address)
            nursery.start_soon(endpoint.serve, {"": listener}, partial(session, writes=writes))
        it.writes, it.reads = places
        with trio.fail_after(1000):
            yield it
        nursery.cancel_scope.cancel()
