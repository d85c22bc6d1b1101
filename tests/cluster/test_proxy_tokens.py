"""A whole proxy that serves, before a quorum that makes tokens: what it takes, over TLS in one process."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.declarations.options import READ_PROXY, WRITE_PROXY, ProxyNodeConfig
from distributedlog.cluster.node.proxy_assembly import serve_proxy_node
from distributedlog.metadata.model.rights import READ
from distributedlog.proxy.client.proxy_client import ProxyClient
from distributedlog.proxy.protocol.proxy_messages import LogCall
from distributedlog.runtime.interfaces.errors import NotAllowed, NotAuthenticated
from distributedlog.runtime.interfaces.host import Address, Host
from distributedlog.runtime.interfaces.principals import PROXY, Credentials
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tls import Tls, token_credentials, with_tls
from distributedlog.runtime.protocol.frames import Op, unpack
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.runtime.protocol.tokens import METHOD
from tests.metadata.test_tokens import world
from tests.runtime.pki import authority, directory_of

NS = "ns"
TIMEOUT_S = 30.0


async def client_of(
    address: Address, host: Host, tls: Tls, token: bytes, nursery: trio.Nursery
) -> None:
    """Begin as a program does that has a token."""
    known = replace(with_tls(host, tls), credentials=lambda _: token_credentials(lambda: token))
    endpoint = Endpoint(known, lambda: Hello("", "", "client"))
    await nursery.start(ProxyClient(endpoint, [address], timeout_s=TIMEOUT_S).run)


async def exists(link: ClientLink, log: str) -> Any:
    reply = await link.request(
        Op.LOG_CALL, LogCall(NS, "exists", log, "", []).encode(), timeout_s=30
    )
    return unpack(reply.body, "exists")


@pytest.mark.parametrize("kind", [WRITE_PROXY, READ_PROXY])
async def test_a_proxy_takes_tokens_over_tls_for_as_long_as_they_are_good(
    autojump_clock: MockClock, kind: str
) -> None:
    async with world() as (here, root), trio.open_nursery() as nursery:
        network = here.nodes._network
        host = with_tls(network.host("p1"), Tls(directory_of("proxy/p1")))
        config = ProxyNodeConfig(
            "p1", kind, tuple(here.nodes.peers.values()), listen={"": ("p1", 4183)}
        )
        ready = await nursery.start(partial(serve_proxy_node, host, config))
        token = await root.make_token("etl", valid_s=600, token_scope=((NS, "orders", READ),))

        async def dial(proof: Credentials, tls: Tls | None) -> ClientLink:
            client = network.host("client")
            client = client if tls is None else with_tls(client, tls)
            endpoint = Endpoint(client, lambda: Hello("", "", "client"))
            wanted = "" if tls is None else PROXY
            return await endpoint.dial(
                ready.address, nursery=nursery, credentials=proof, kind=wanted
            )

        tls = Tls(authority(), shows_certificate=False)
        link = await dial(token_credentials(lambda: token), tls)
        assert await exists(link, "orders") is True
        with pytest.raises(NotAllowed, match="user/etl"):
            await exists(link, "bills")
        with pytest.raises(NotAuthenticated, match="in clear"):
            await dial(Credentials(METHOD, lambda meeting: token), None)
        await client_of(ready.address, network.host("client"), tls, token, nursery)
        await root.change_authorization("tokens", "etl")
        await trio.sleep(1)
        assert isinstance(link.closed, NotAuthenticated)
        with pytest.raises(NotAuthenticated, match="revoked"):
            await dial(token_credentials(lambda: token), tls)
        begun = trio.current_time()
        with pytest.raises(NotAuthenticated, match="revoked"):
            await client_of(ready.address, network.host("client"), tls, token, nursery)
        assert trio.current_time() < begun + TIMEOUT_S, "it is no matter of trying for long"
        nursery.cancel_scope.cancel()
