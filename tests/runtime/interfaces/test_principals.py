"""Who speaks: methods of AUTH, the gate of operations, certificates against what a HELLO says."""

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from distributedlog.runtime.interfaces.errors import InvalidRequest, NotAllowed, NotAuthenticated
from distributedlog.runtime.interfaces.host import Address, Connection
from distributedlog.runtime.interfaces.principals import (
    ANONYMOUS,
    KINDS,
    LOCAL,
    WARN_REMAINING_FRACTION,
    CertificateIdentity,
    Credentials,
    HandshakeContext,
    Verifier,
    Welcome,
    serial_of,
)
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op
from distributedlog.runtime.protocol.handshake import (
    Hello,
    decode_welcome,
    encode_hello,
    encode_welcome,
)
from distributedlog.runtime.protocol.operations import ALLOWED_KINDS, OPS_MAX, allowed_ops

from ..pipe import PipeConnection, PipeNetwork
from ..saying import Saying

SERVER = Hello(cluster_id="c1", node_id="n1", kind="bookie", label="b1")
CLIENT = Hello(kind="client")


@asynccontextmanager
async def served(
    methods: dict[str, Verifier],
    *,
    server_is: CertificateIdentity | None = None,
    client_is: CertificateIdentity | None = None,
    hello: Hello = CLIENT,
    server_says: Hello = SERVER,
) -> AsyncIterator["Place"]:
    """A server that takes these methods, and a client; both hold certificates where one is given."""
    network = PipeNetwork(3)
    server = replace(network.host("server"), methods=methods)
    client = network.host("client")

    async def dial(address: Address) -> Connection:
        connection = await client.dial(address)
        assert isinstance(connection, PipeConnection)
        connection.identity = server_is
        return connection

    async with trio.open_nursery() as nursery:
        listener = await server.listen(("server", 0))
        accept = listener.accept

        async def accepted() -> Connection:
            connection = await accept()
            assert isinstance(connection, PipeConnection)
            connection.identity = client_is
            return connection

        listener.accept = accepted  # type: ignore[method-assign]
        endpoint = Endpoint(server, lambda: server_says)
        nursery.start_soon(endpoint.serve, {"": listener}, Saying)
        asking = Endpoint(replace(client, dial=dial), lambda: hello)
        yield Place(asking, listener.address, nursery)
        nursery.cancel_scope.cancel()


class Place:
    def __init__(self, client: Endpoint, address: Address, nursery: trio.Nursery) -> None:
        self.client, self.address, self.nursery = client, address, nursery

    async def dial(self, credentials: Credentials | None = None, *, kind: str = "") -> ClientLink:
        return await self.client.dial(
            self.address, nursery=self.nursery, credentials=credentials, kind=kind
        )


def keyed(key: bytes) -> Credentials:
    def check(meeting: HandshakeContext, welcome: Welcome) -> None:
        if welcome.session_credential != proof_of(key, meeting, b"server"):
            raise NotAuthenticated("the server does not know the key")

    return Credentials(
        "keyed", lambda meeting: proof_of(key, meeting, b"client"), True, check=check
    )


def proof_of(key: bytes, meeting: HandshakeContext, side: bytes) -> bytes:
    return hmac.digest(key, side + meeting.server_nonce + meeting.client_nonce, "sha256")


def taking(key: bytes, *, honest: bool = True) -> Verifier:
    def verify(meeting: HandshakeContext, proof: bytes) -> Welcome:
        if honest and not hmac.compare_digest(proof, proof_of(key, meeting, b"client")):
            raise NotAuthenticated(f"{meeting.peer_address} does not know the key")
        return Welcome("user/etl", 7, 5, proof_of(key, meeting, b"server"))

    return verify


async def test_a_server_knows_who_proved_it_and_the_client_that_it_did(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Both nonces go into the proof; nothing in a later frame changes the principal."""
    async with served({"keyed": taking(b"k")}) as there:
        link = await there.dial(keyed(b"k"))

        assert bytes((await link.request(Op.INFO, timeout_s=5)).body) == b"user/etl 5"
        assert (link.welcome.principal, link.welcome.generation) == ("user/etl", 7)


async def test_who_proves_nothing_is_anonymous_where_nothing_is_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served({}) as there:
        link = await there.dial()

        assert bytes((await link.request(Op.META_RAFT, timeout_s=5)).body) == b"anonymous 0"
        assert link.welcome == Welcome()


@pytest.mark.parametrize(
    "credentials", [None, keyed(b"x"), Credentials("token", lambda meeting: b"t")]
)
async def test_who_cannot_prove_it_is_told_so_in_words(
    credentials: Credentials | None, autojump_clock: trio.testing.MockClock
) -> None:
    async with served({"keyed": taking(b"k")}) as there:
        with pytest.raises(NotAuthenticated, match=r"keyed|does not know the key"):
            await there.dial(credentials)


async def test_a_server_that_knows_no_secret_gets_no_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Somebody else listens where the server was: it says yes to every proof."""
    async with served({"keyed": taking(b"squatter", honest=False)}) as there:
        with pytest.raises(NotAuthenticated, match="the server does not know"):
            await there.dial(keyed(b"k"))


async def test_an_operation_that_is_not_for_a_principal_is_refused_and_the_next_one_served(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served({"keyed": taking(b"k")}) as there:
        link = await there.dial(keyed(b"k"))

        for op in (Op.META_RAFT, Op.META_FORM, 250):
            with pytest.raises(NotAllowed, match="user/etl"):
                await link.request(op, timeout_s=5)
        assert bytes((await link.request(Op.READ, timeout_s=5)).body) == b"user/etl 5"


def test_each_operation_has_a_row_and_a_kind_without_one_gets_nothing() -> None:
    """An operation that somebody adds is for nobody until its row says for whom."""
    ops = {value for name, value in vars(Op).items() if name.isupper()}

    assert set(ALLOWED_KINDS) == ops
    assert all(row <= set(KINDS) for row in ALLOWED_KINDS.values())
    assert allowed_ops(ANONYMOUS) is None
    assert allowed_ops(LOCAL) is None
    assert allowed_ops("operator/me") == bytes(OPS_MAX)
    for op in (Op.META_RAFT, Op.META_FORM, Op.META_DIFFERS, Op.META_RECALL):
        allowed = [kind for kind in KINDS if (allowed_ops(f"{kind}/x") or b"")[op]]
        assert allowed == ["metadata"], "between members alone"


def of(principal: str) -> CertificateIdentity:
    kind, _, name = principal.partition("/")
    return CertificateIdentity("prod", kind, name, "1f", 2_000_000_000)


@pytest.mark.parametrize("principal", ["metadata/m1", "bookie/b1", "proxy/p1", "user/etl"])
@pytest.mark.parametrize("kind", ["metadata", "bookie", "write-proxy", "client"])
async def test_a_node_is_what_its_certificate_says(
    principal: str, kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    """H227: each kind of certificate against each kind of HELLO, on the server's side."""
    name = principal.partition("/")[2]
    fits = kind == "client" or kind.endswith(principal.partition("/")[0])
    async with served({}, client_is=of(principal), hello=Hello(kind=kind, label=name)) as there:
        if fits:
            await there.dial()
        else:
            with pytest.raises(NotAuthenticated, match=principal):
                await there.dial()


@pytest.mark.parametrize("principal", ["bookie/b2", "metadata/b1", "user/b1"])
async def test_a_server_with_another_ones_certificate_is_not_talked_to(
    principal: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with served({}, server_is=of(principal)) as there:
        with pytest.raises(NotAuthenticated, match=principal):
            await there.dial()
    async with served({}, server_is=of("bookie/b1")) as there:
        assert (await there.dial()).principal == "bookie/b1"


@pytest.mark.parametrize("said", ["bookie", "client", "health"])
async def test_a_server_of_another_kind_is_not_talked_to(
    said: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A stolen bookie at a metadata node's address: what it says of itself agrees with its certificate."""
    hello = Hello(kind=said, label="b1", node_id="n1")
    async with served({}, server_is=of("bookie/b1"), server_says=hello) as there:
        with pytest.raises(NotAuthenticated, match=r"of bookie/b1, expected is a metadata node"):
            await there.dial(kind="metadata")
        await there.dial(kind="bookie")
        await there.dial()


def test_a_greeting_without_proofs_is_no_longer_than_before() -> None:
    """Whoever proves nothing pays nothing; an older node reads what it reads today."""
    plain, proving = (
        encode_hello(CLIENT),
        encode_hello(CLIENT, nonce=bytes(16), methods=["local", "none"]),
    )

    assert b"nonce" not in plain
    assert len(plain) < len(proving) < len(plain) + 40
    assert encode_welcome(Welcome()) == b""
    assert decode_welcome(b"", "peer") == Welcome()


@pytest.mark.parametrize("shown", ["0F10A3", "f10a3", "0f:10:a3", " 00f10a3\n"])
def test_a_serial_is_the_same_however_it_is_shown(shown: str) -> None:
    """OpenSSL gives an even number of digits: one in sixteen could not be refused as `dlog pki` shows it."""
    assert serial_of(shown) == "f10a3"


@pytest.mark.parametrize("text", ["", "0", "xyz", "-5", "5f0c 1"])
def test_what_is_no_serial_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        serial_of(text)


BEGIN_S = 1_700_000_000
DAY_S = 86_400


@pytest.mark.parametrize(
    ("days_left", "left", "warns"),
    [(365, 1.0, False), (74, 0.2, False), (72, 0.19, True), (1, 0.0, True)],
)
def test_a_certificate_warns_when_a_fifth_of_its_life_is_left(
    days_left: int, left: float, warns: bool
) -> None:
    """A month's is renewed in another week than a year's."""
    ends_s = BEGIN_S + 365 * DAY_S
    one = CertificateIdentity("prod", "bookie", "b1", "1f", ends_s, BEGIN_S)
    now_ms = (ends_s - days_left * DAY_S) * 1000
    assert one.remaining_fraction(now_ms) == pytest.approx(left, abs=0.01)
    assert (one.remaining_fraction(now_ms) < WARN_REMAINING_FRACTION) == warns
    assert one.ends_at == "2024-11-13 22:13 UTC"


def test_nothing_is_left_of_a_certificate_that_has_ended_whatever_the_clock() -> None:
    one = CertificateIdentity("prod", "bookie", "b1", "1f", BEGIN_S + DAY_S, BEGIN_S)
    for after_s in (0, 1, 10**9):
        now_ms = (BEGIN_S + DAY_S + after_s) * 1000
        assert one.remaining_fraction(now_ms) == 0
    assert one.remaining_fraction(0) == 1  # a clock that is far behind
    assert (
        CertificateIdentity("prod", "bookie", "b1", "1f", BEGIN_S, BEGIN_S).remaining_fraction(0)
        == 1
    )
