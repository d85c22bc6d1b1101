"""Tokens at a quorum that speaks TLS: made, narrowed, shown, revoked, ended, by right and by wrong clocks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.metadata.auth import principal_quotas as quotas
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.acl_records import AUDIT_PREFIX, AuditLine
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.rights import READ, WRITE
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.node.metadata_session import MetadataSession
from distributedlog.metadata.node.quorum_member import MemberNode
from distributedlog.metadata.protocol.token_messages import RotateRequest
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    OutcomeUnknown,
    OverQuota,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.host import Host
from distributedlog.runtime.interfaces.principals import Credentials, TokenScope
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tls import (
    CERTIFICATE,
    EITHER,
    TLS,
    Tls,
    token_credentials,
    with_tls,
)
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.runtime.protocol.tokens import CLOCK_TOLERANCE_S, encode_token, read_token
from tests.examples import few

from ..runtime.pki import authority, directory_of
from .quorum import Quorum, put, quorum
from .trusted import believe, trusted_quorum

ORDERS, BILLS = 0x11, 0x22
NAMES = {"orders": ORDERS, "bills": BILLS}
DAY_S = 24 * 3600


class World:
    """A quorum with TLS; ``root`` is an admin, ``etl`` writes all logs of ``ns``."""

    def __init__(self) -> None:
        self.nodes: Quorum
        self.transport = TLS
        self.late_s: dict[str, float] = {}
        """How much each node's wall clock is ahead; of none is nothing."""
        self._clients = 0

    def dress(self, name: str, host: Host) -> Host:
        """With the certificate that this machine has, and its wrong clock."""

        def wall_ms() -> int:
            return int((1_700_000_000 + trio.current_time() + self.late_s.get(name, 0.0)) * 1000)

        host = replace(host, wall_ms=wall_ms)
        who = f"metadata/{name}" if name.startswith("m") and name[1:].isdigit() else "metadata/seer"
        return with_tls(host, Tls(directory_of(who)), self.transport)

    async def by_certificate(
        self, user: str, nursery: trio.Nursery | None = None
    ) -> MetadataClient:
        """A client with that user's certificate."""
        return await self._client(Tls(directory_of(f"user/{user}")), CERTIFICATE, nursery)

    async def by_token(
        self, token: bytes, nursery: trio.Nursery | None = None, timeout_s: float = 3.0
    ) -> MetadataClient:
        """One that has a token, and knows the authority."""
        tls = Tls(authority(), shows_certificate=False)
        return await self._client(tls, token_credentials(lambda: token), nursery, timeout_s)

    async def _client(
        self,
        tls: Tls,
        credentials: Credentials,
        nursery: trio.Nursery | None,
        timeout_s: float = 10.0,
    ) -> MetadataClient:
        self._clients += 1
        name = f"machine {self._clients}"
        host = with_tls(self.nodes._network.host(name), tls)
        endpoint = Endpoint(
            replace(host, credentials=lambda address: credentials),
            lambda: Hello(cluster_id="", node_id="", kind="client"),
        )
        client = MetadataClient(
            endpoint,
            list(self.nodes.peers.values()),
            client_id=f"c{self._clients}",
            timeout_s=timeout_s,
        )
        await (nursery or self.nodes._nursery).start(
            lambda task_status: client.run(task_status=task_status)
        )
        return client


@asynccontextmanager
async def world(
    size: int = 1, mode: str = "required", transport: str = TLS
) -> AsyncIterator[tuple[World, MetadataClient]]:
    """And root's client."""
    made = World()
    made.transport = transport
    async with quorum(size, classes=KEY_CLASSES, dress=made.dress) as nodes:
        made.nodes = nodes
        await nodes.start()
        with trio.fail_after(4000):
            root = await made.by_certificate("root")
            logs: list[Put] = []
            for name, log_id in NAMES.items():
                logs += [
                    Put(log_keys.name_key("ns", name), log_keys.encode_log_id(log_id)),
                    Put(log_keys.state_key(log_id), LogState(log_id, name, 0).encode()),
                ]
            await root.transact(Transaction((), tuple(logs)))
            await root.change_authorization("mode", "report", "root")
            await root.change_authorization("user", "etl")
            await root.change_authorization("grant", "etl", "writer", "ns", "")
            await root.change_authorization("mode", mode, "")
            yield made, root


async def who(client: MetadataClient) -> str:
    return (await client.authorization_report(own=True)).principal


def only(name: str, rights: int = READ) -> TokenScope:
    return (("ns", name, rights),)


async def test_a_token_says_who_somebody_is_and_is_written_down(autojump_clock: object) -> None:
    async with world(3) as (here, root):
        token = await root.make_token("etl", valid_s=7 * DAY_S)
        etl = await here.by_token(token)

        assert await who(etl) == "user/etl"
        assert (await etl.transact(put(log_keys.position_key(ORDERS, "p")))).succeeded
        page = await root.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        last = AuditLine.decode(page.items[-1].value)
        assert (last.principal, last.action) == ("user/root", "token")
        assert last.subject == f"etl for {7 * DAY_S} s"
        assert not any(token in item.value for item in page.items)


async def test_a_stolen_executors_token_does_what_its_narrowing_says_and_no_more(
    autojump_clock: object,
) -> None:
    """Threat 5. Its user may write all logs; the token reads one of them."""
    async with world() as (here, _):
        etl = await here.by_certificate("etl")
        lease = await etl.grant_lease(600_000)
        thief = await here.by_token(await etl.make_token(valid_s=3600, token_scope=only("orders")))

        assert await thief.get(log_keys.state_key(ORDERS)) is not None
        names = log_keys.name_key("ns", "")
        page = await thief.range(names, prefix_end(names))
        assert [item.key for item in page.items] == [log_keys.name_key("ns", "orders")]
        with pytest.raises(NotAllowed, match="the token is restricted to read of orders in ns"):
            await thief.get(log_keys.state_key(BILLS))
        with pytest.raises(NotAllowed):
            await thief.transact(put(log_keys.position_key(ORDERS, "p")))
        with pytest.raises(NotAllowed):  # its user's other programs keep their locks
            await thief.revoke_lease(lease)
        with pytest.raises(NotAllowed):
            await thief.transact(put(log_keys.position_key(ORDERS, "p"), lease=lease))
        for wider in ((), only("bills"), only("orders", READ | WRITE), only("")):
            with pytest.raises(NotAllowed, match="fewer rights"):
                await thief.make_token(valid_s=3600, token_scope=wider)
        with pytest.raises(NotAllowed):
            await thief.make_token("etl", valid_s=3600)
        with pytest.raises(NotAllowed):
            await thief.change_authorization("grant", "etl", "admin", "", "")
        with pytest.raises(NotAllowed):
            await thief.rotate_secrets()
        again = read_token(await thief.make_token(valid_s=DAY_S, token_scope=only("orders")))
        assert (
            again.ends_s
            <= read_token(await etl.make_token(valid_s=3600, token_scope=only("orders"))).ends_s
        )


async def test_a_narrowed_token_of_an_admin_is_none(autojump_clock: object) -> None:
    async with world() as (here, root):
        thief = await here.by_token(await root.make_token(valid_s=3600, token_scope=only("orders")))

        for change in (("user", "eve"), ("mode", "open", "")):
            with pytest.raises(NotAllowed):
                await thief.change_authorization(*change)
        with pytest.raises(NotAllowed):
            await thief.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        with pytest.raises(NotAllowed):  # and it has what its user has, which is no log
            await thief.get(log_keys.state_key(ORDERS))


@pytest.mark.parametrize("mode", few(["required", "open", "report"], 1))
@pytest.mark.parametrize("change", [("tokens",), ("disable",), ("remove",)])
async def test_an_ex_user_is_out_with_tokens_and_open_connections(
    change: tuple[str], mode: str, autojump_clock: object
) -> None:
    """Threat 3: at once, in each mode, and what was made before never counts again."""
    async with world(mode=mode) as (here, root):
        old = await root.make_token("etl", valid_s=DAY_S)
        async with trio.open_nursery() as nursery:
            etl = await here.by_token(old, nursery)
            assert await who(etl) == "user/etl"
            await root.change_authorization(*change, "etl")
            with pytest.raises((NotAuthenticated, QuorumUnreachable), match=r"revoked|disabled"):
                await etl.get(b"k")
            nursery.cancel_scope.cancel()

        if change == ("disable",):
            await root.change_authorization("enable", "etl")
        elif change == ("remove",):
            await root.change_authorization("user", "etl")  # somebody else of that name
        alive = change == ("disable",)
        async with trio.open_nursery() as nursery:
            etl = await here.by_token(old, nursery)
            if alive:
                assert await who(etl) == "user/etl"
            else:
                with pytest.raises((NotAuthenticated, QuorumUnreachable), match="revoked"):
                    await who(etl)
            new = await here.by_token(await root.make_token("etl", valid_s=DAY_S), nursery)
            assert await who(new) == "user/etl"
            nursery.cancel_scope.cancel()


async def test_tokens_are_made_for_others_by_admins_and_for_oneself_for_a_day(
    autojump_clock: object,
) -> None:
    async with world() as (here, root):
        etl = await here.by_certificate("etl")

        with pytest.raises(NotAllowed, match="needs admin"):
            await etl.make_token("root", valid_s=DAY_S)
        for user, valid_s in (("etl", 91 * DAY_S), ("etl", 0), ("nobody", DAY_S), ("", 2 * DAY_S)):
            with pytest.raises(InvalidRequest):
                await root.make_token(user, valid_s=valid_s)
        assert read_token(await etl.make_token(valid_s=DAY_S)).user == "etl"


async def test_a_token_is_neither_said_nor_taken_in_clear(autojump_clock: object) -> None:
    """H228: both ends see to it; nor is it shown to who is neither a metadata node nor a proxy."""
    async with world() as (here, root):
        token = await root.make_token("etl", valid_s=DAY_S)
        plain = here.nodes._network.host("plain")
        shown: list[bytes] = []

        def told() -> bytes:
            shown.append(token)
            return token

        async def dial(host: Host, address: tuple[str, int], proof: Credentials) -> None:
            async with trio.open_nursery() as nursery:
                endpoint = Endpoint(host, lambda: Hello("", "", "client"))
                link = await endpoint.dial(address, nursery=nursery, credentials=proof)
                link.close(NotAuthenticated("nobody should come here"))
                nursery.cancel_scope.cancel()

        async def serve(host: Host, address: tuple[str, int]) -> None:
            server = Endpoint(host, lambda: Hello("", "b", "bookie", label="b1"))
            await server.serve({"": await host.listen(address)}, lambda link: NotImplemented)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, plain, ("plain", 1))
            bookie = with_tls(here.nodes._network.host("b1"), Tls(directory_of("bookie/b1")))
            nursery.start_soon(serve, bookie, ("b1", 1))
            await trio.sleep(0.1)
            ours = here.nodes._network.host("ours")
            secret = with_tls(ours, Tls(authority(), shows_certificate=False))
            for host, address in ((ours, ("plain", 1)), (secret, ("b1", 1))):
                with pytest.RaisesGroup(
                    pytest.RaisesExc(NotAuthenticated, match=r"not sent without TLS|is bookie/b1")
                ):
                    await dial(host, address, token_credentials(told))
            assert shown == []
            nursery.cancel_scope.cancel()


async def test_a_node_that_takes_plain_connections_too_takes_no_token_there(
    autojump_clock: object,
) -> None:
    """H228: on the way from plain to TLS."""
    async with world(mode="report", transport=EITHER) as (here, root):
        token = await root.make_token("etl", valid_s=DAY_S)
        plain = Endpoint(here.nodes._network.host("plain"), lambda: Hello("", "", "client"))
        async with trio.open_nursery() as nursery:
            careless = Credentials("token", lambda meeting: token)
            with pytest.raises(NotAuthenticated, match="accepted only over TLS"):
                await plain.dial(("m1", 4181), nursery=nursery, credentials=careless)
            nursery.cancel_scope.cancel()
        assert await who(await here.by_token(token)) == "user/etl"


async def test_no_token_is_made_or_looked_at_in_clear_nor_for_who_owns_local_clusters(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as plain:
        root = await plain.one("user/root")
        await root.change_authorization("mode", "report", "root")
        with pytest.raises(NotAllowed, match="issued only over TLS"):
            await root.make_token(valid_s=DAY_S)
        with pytest.raises(NotAllowed, match="over TLS"):
            await (await plain.one("proxy/p1")).verify_token(b"dlog1_whatever")
    async with world() as (_, root):
        await root.change_authorization("user", "local")
        with pytest.raises(InvalidRequest, match="cannot have tokens"):
            await root.make_token("local", valid_s=DAY_S)


async def test_a_token_ends_and_its_connections_with_it(autojump_clock: object) -> None:
    async with world() as (here, root):
        token = await root.make_token("etl", valid_s=60)
        async with trio.open_nursery() as nursery:
            etl = await here.by_token(token, nursery)
            assert await who(etl) == "user/etl"
            await trio.sleep(60 + CLOCK_TOLERANCE_S - 5)
            assert await who(etl) == "user/etl"
            await trio.sleep(10)
            with pytest.raises((NotAuthenticated, QuorumUnreachable), match="has ended"):
                await who(etl)
            nursery.cancel_scope.cancel()


@pytest.mark.properties
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_clocks_that_jump_by_an_hour_neither_end_nor_keep_a_token(
    jump_s: float, autojump_clock: object
) -> None:
    """H237: of the leader, then of all nodes."""
    async with world(3) as (here, root):
        token = await root.make_token("etl", valid_s=60)
        for names in ([await here.nodes.leader()], list(here.nodes.names)):
            here.late_s.update(dict.fromkeys(names, jump_s))
            await trio.sleep(5)
            async with trio.open_nursery() as nursery:
                assert await who(await here.by_token(token, nursery)) == "user/etl"
                nursery.cancel_scope.cancel()
        # Right for a token of a minute that is taken for five minutes more, and of a clock that follows
        # a jump by a twelfth of what passes.
        await trio.sleep((60 + CLOCK_TOLERANCE_S) * 12 / 11 + 10)
        async with trio.open_nursery() as nursery:
            with pytest.raises((NotAuthenticated, QuorumUnreachable), match="has ended"):
                await who(await here.by_token(token, nursery))
            nursery.cancel_scope.cancel()


async def test_a_revocation_ends_tokens_of_a_leader_whose_clock_was_ahead(
    autojump_clock: object,
) -> None:
    """H237: a number in the log says which are revoked, not the time they were made at."""
    async with world() as (here, root):
        here.late_s["m1"] = 4 * 3600.0
        await here.nodes.kill("m1")
        await here.nodes.start("m1")
        token = await root.make_token("etl", valid_s=DAY_S)
        here.late_s["m1"] = 0.0
        await here.nodes.kill("m1")
        await here.nodes.start("m1")
        await root.change_authorization("tokens", "etl")

        with pytest.raises((NotAuthenticated, QuorumUnreachable), match="revoked"):
            await who(await here.by_token(token))
        new = await root.make_token("etl", valid_s=DAY_S)
        assert await who(await here.by_token(new)) == "user/etl"


async def test_two_rotations_end_tokens_and_one_does_not(autojump_clock: object) -> None:
    async with world() as (here, root):
        token = await root.make_token("etl", valid_s=DAY_S)
        assert await root.rotate_secrets("tokens") == 2
        assert await who(await here.by_token(token)) == "user/etl"
        assert await root.rotate_secrets("ledgers") == 1  # the first that there are
        assert await root.rotate_secrets("ledgers") == 2
        assert await who(await here.by_token(token)) == "user/etl"
        assert await root.rotate_secrets("tokens") == 3
        with pytest.raises((NotAuthenticated, QuorumUnreachable), match="after a rotation"):
            await who(await here.by_token(token))
        etl = await here.by_certificate("etl")
        with pytest.raises(NotAllowed, match="needs admin"):
            await etl.rotate_secrets("tokens")


async def test_a_proxy_has_a_clients_token_looked_at_and_others_have_not(
    autojump_clock: object,
) -> None:
    async with world(3) as (here, root):
        etl = await here.by_certificate("etl")
        token = await etl.make_token(valid_s=3600, token_scope=only("orders"))
        tls = Tls(directory_of("proxy/p1"))
        proxy = await here._client(tls, CERTIFICATE, None)

        welcome = await proxy.verify_token(token)
        assert welcome.principal == "user/etl"
        assert welcome.token is not None
        assert welcome.token.token_scope == only("orders")
        assert 3600 < welcome.valid_s <= 3600 + CLOCK_TOLERANCE_S
        with pytest.raises(NotAllowed):
            await etl.verify_token(token)
        with pytest.raises(NotAuthenticated):
            await proxy.verify_token(token[:-8] + b"A" * 8)
        # Made by a stranger, of a key that will never be: the proxy has no reason to ask somebody else.
        forged = encode_token(
            replace(read_token(token), key=60_000), b"no secret of this cluster's here"
        )
        began, leader = trio.current_time(), proxy._connections.leader
        with pytest.raises(NotAuthenticated, match="has not made"):
            await proxy.verify_token(forged)
        assert trio.current_time() - began < 1
        assert proxy._connections.leader == leader
        await root.change_authorization("tokens", "etl")
        with pytest.raises(NotAuthenticated, match="revoked"):
            await proxy.verify_token(token)


async def test_a_server_that_asks_elsewhere_lets_in_who_is_known_there(
    autojump_clock: object,
) -> None:
    """As a proxy does: the answer to AUTH waits for the metadata, for no longer than a handshake may."""
    async with world() as (here, root):
        token = await root.make_token("etl", valid_s=60)
        host = with_tls(here.nodes._network.host("p1"), Tls(directory_of("proxy/p1")))
        asks = await here._client(Tls(directory_of("proxy/p1")), CERTIFICATE, None)
        server = Endpoint(host, lambda: Hello("", "p", "write-proxy", label="p1"))
        seen: list[tuple[str, bool]] = []
        waits = False

        async def verify(meeting: object, proof: bytes) -> object:
            if waits:
                await trio.sleep_forever()
            return await asks.verify_token(proof)

        class Session:
            def __init__(self, link: object) -> None:
                seen.append((link.principal, link.token.proof == token))  # type: ignore[attr-defined]

            def on_frame(self, *frame: object) -> None: ...
            def on_batch_end(self) -> None: ...
            def on_closed(self) -> None: ...

        server.remote_methods["token"] = verify  # type: ignore[assignment]
        tls = Tls(authority(), shows_certificate=False)
        client = Endpoint(
            with_tls(here.nodes._network.host("c"), tls), lambda: Hello("", "", "client")
        )
        async with trio.open_nursery() as nursery:
            listener = await host.listen(("p1", 1))
            nursery.start_soon(server.serve, {"": listener}, Session)

            async def dial(shown: bytes) -> None:
                proof = token_credentials(lambda: shown)
                await client.dial(("p1", 1), nursery=nursery, credentials=proof)

            await dial(token)
            assert seen == [("user/etl", True)]
            with pytest.raises(NotAuthenticated):
                await dial(token[:-8] + b"A" * 8)  # the last one alone may say nothing
            waits = True
            with pytest.raises(DistributedLogError):
                await dial(token)
            assert len(seen) == 1
            nursery.cancel_scope.cancel()


async def test_leases_of_a_users_narrowed_tokens_count_together(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    monkeypatch.setattr(quotas, "LEASES_PER_PRINCIPAL_MAX", 2)
    async with world() as (made, _root):
        etl = await made.by_certificate("etl")
        clients = [
            await made.by_token(await etl.make_token(valid_s=3600, token_scope=only(name)))
            for name in ("orders", "bills", "more")
        ]
        for client in clients[:2]:
            await client.grant_lease(60_000)
        for client in (clients[2], clients[0], etl):
            with pytest.raises(OverQuota, match="holds 2 leases"):
                await client.grant_lease(60_000)


async def test_a_refused_certificate_leaves_no_token_behind(autojump_clock: object) -> None:
    """Who had stolen it may have asked for one: that ends with it, and in no mode is there another."""
    serial = Tls(directory_of("user/etl")).identity
    assert serial is not None
    async with world(mode="report") as (made, root):
        etl = await made.by_certificate("etl")
        token = await etl.make_token(valid_s=3600)
        assert await who(await made.by_token(token)) == "user/etl"
        await root.change_authorization("refuse", "etl", serial.serial)
        with pytest.raises(NotAuthenticated, match="revoked"):
            await who(await made.by_token(token))
        with pytest.raises(NotAuthenticated, match="was disabled"):
            await etl.make_token(valid_s=3600)


async def test_a_rotation_whose_answer_was_lost_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """The second would end all tokens; whether there was one, the audit says."""
    lost: list[int] = []
    rotate = MetadataSession._rotate

    def losing(
        self: MetadataSession, member: MemberNode, ident: int, request: RotateRequest
    ) -> None:
        if not lost:
            lost.append(ident)
            cut = ConnectionLost("cut")
            monkeypatch.setattr(self._link, "reply", lambda *body: self._link.close(cut))
        rotate(self, member, ident, request)

    async with world() as (made, root):
        token = await root.make_token("etl", valid_s=DAY_S)
        monkeypatch.setattr(MetadataSession, "_rotate", losing)
        with pytest.raises(OutcomeUnknown, match="Check dlog trust audit"):
            await root.rotate_secrets("tokens")
        assert await who(await made.by_token(token)) == "user/etl"
        page = await root.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        line = AuditLine.decode(page.items[-1].value)
        assert (line.principal, line.action, line.subject) == ("user/root", "rotate", "tokens")
        assert await root.rotate_secrets("tokens") == 3
