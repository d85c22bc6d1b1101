"""TLS over connections: who is told what, what is never left inside, and what is refused in words."""

import datetime
import os
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from distributedlog.cli.access import certificates
from distributedlog.runtime.disk import reloaded_files as settled_files
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    InvalidRequest,
    NotAuthenticated,
)
from distributedlog.runtime.interfaces.host import Address, Buffer, Connection
from distributedlog.runtime.interfaces.principals import BY_CERTIFICATE, Credentials
from distributedlog.runtime.net import tls as module
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tls import EITHER, TLS, Tls, TlsConnection, read_identity, with_tls
from distributedlog.runtime.protocol.handshake import Hello

from ..contract_sides import settle
from ..pipe import PipeNetwork
from ..pki import authority, directory_of
from ..saying import Saying, asked

BOOKIE = Hello(kind="bookie", node_id="n1", label="b1")


def tls_of(principal: str, *more: str) -> Tls:
    return Tls(directory_of(principal, *more))


@asynccontextmanager
async def served(
    network: PipeNetwork, tls: Tls | None, transport: str = TLS
) -> AsyncIterator[tuple[Address, trio.Nursery]]:
    """A server at "b1" that says who came; without ``tls`` a plain one."""
    host = network.host("b1")
    if tls is not None:
        host = with_tls(host, tls, transport)
    async with trio.open_nursery() as nursery:
        listener = await host.listen(("b1", 0))
        nursery.start_soon(Endpoint(host, lambda: BOOKIE).serve, {"": listener}, Saying)
        yield listener.address, nursery
        nursery.cancel_scope.cancel()


async def ends_of(network: PipeNetwork) -> tuple[TlsConnection, TlsConnection]:
    """Two ends that have shaken hands: who dialled, who accepted."""
    listener = await with_tls(network.host("s"), tls_of("bookie/b1")).listen(("s", 0))
    dialled = await with_tls(network.host("c"), tls_of("user/etl")).dial(listener.address)
    accepted = await listener.accept()
    assert isinstance(dialled, TlsConnection)
    assert isinstance(accepted, TlsConnection)
    await settle(dialled, accepted)
    return dialled, accepted


async def test_both_ends_know_each_other(autojump_clock: trio.testing.MockClock) -> None:
    network = PipeNetwork()
    dialled, accepted = await ends_of(network)

    assert dialled.identity is not None
    assert accepted.identity is not None
    assert dialled.identity.principal == "bookie/b1"
    assert (accepted.identity.domain, accepted.identity.principal) == ("test", "user/etl")
    async with served(network, tls_of("bookie/b1")) as (address, _):
        host = with_tls(network.host("c"), tls_of("user/etl"))
        assert await asked(host, address) == "user/etl 0"


async def test_a_lone_message_gets_through_a_send_buffer_of_one_byte(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H218: what is encrypted and not taken by the socket is not sent; nobody else comes to push it."""
    network = PipeNetwork(bytes_max=1)
    async with served(network, tls_of("bookie/b1")) as (address, _):
        host = with_tls(network.host("c"), tls_of("user/etl"))
        with trio.fail_after(60):
            assert await asked(host, address) == "user/etl 0"


@pytest.mark.parametrize(("pipe_bytes", "offered_bytes"), [(3000, 30_011), (400_000, 900_001)])
async def test_what_was_counted_as_sent_is_not_encrypted_again(
    pipe_bytes: int, offered_bytes: int, autojump_clock: trio.testing.MockClock
) -> None:
    """A record, or a burst of pieces, that went in part is offered in other cuts: each byte comes once."""
    network = PipeNetwork(bytes_max=pipe_bytes)
    dialled, accepted = await ends_of(network)
    data = os.urandom(20 * offered_bytes // 3)
    got = bytearray()

    async def send() -> None:
        at, step = 0, 7
        while at < len(data):
            step = step * 5 % offered_bytes + 1
            parts = [data[at : at + step], b"", data[at + step : at + 3 * step]]
            sent = dialled.try_send(parts)
            assert sent <= sum(map(len, parts))
            at += sent
            if not sent:
                await dialled.wait_writable()
        assert dialled.try_send([]) == 0
        while not dialled._flush():
            await dialled.wait_writable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while len(got) < len(data):
            buffer = memoryview(bytearray(5000))
            got += buffer[: await accepted.receive_into(buffer)]

    assert bytes(got) == data


async def test_what_fits_the_buffers_comes_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With the end of its last record: who has a frame but for that end waits, and serves it another time."""
    dialled, accepted = await ends_of(PipeNetwork(bytes_max=1 << 20))
    data = os.urandom(100_000)
    buffers = [memoryview(bytearray(size)) for size in (30_000, 70_000)]
    assert dialled.try_send([data]) == len(data)

    assert await accepted.receive_into(*buffers) == len(data)
    assert b"".join(buffers) == data


async def test_what_is_large_is_offered_to_the_socket_in_few_calls(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its heads go with it; what is encrypted and waits is bounded, and so is OpenSSL's buffer (H219)."""
    dialled, _ = await ends_of(PipeNetwork(bytes_max=4 << 20))
    offered: list[int] = []
    inner = dialled._inner
    try_send = inner.try_send

    def counted(buffers: Sequence[Buffer]) -> int:
        assert dialled._outgoing.pending == 0
        offered.append(sum(map(len, buffers)))
        return try_send(buffers)

    monkeypatch.setattr(inner, "try_send", counted)
    assert dialled.try_send([b"head", bytes(1 << 20), b"head", bytes(100)]) == (1 << 20) + 108

    assert len(offered) <= (1 << 20) // module.BURST_BYTES + 1
    assert max(offered) <= module.BURST_BYTES + module.ENCRYPT_CHUNK_BYTES + module.RECORD_BYTES


async def test_what_came_before_a_broken_record_is_received_and_then_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """All of it came at once, and is fed to OpenSSL in parts, which says why once. The other end is told."""
    dialled, accepted = await ends_of(PipeNetwork(bytes_max=1 << 20))
    data = os.urandom(100_000)
    assert dialled.try_send([data]) == len(data)
    broken = [b"\x17\x03\x03\x00\x20" + bytes(32)]
    while broken[0]:
        broken[0] = broken[0][dialled._inner.try_send(broken) :]
    got = bytearray()
    sink = memoryview(bytearray(200_000))

    with pytest.raises(ConnectionLost, match="bad record mac"):
        await receive_all(accepted, got, sink)

    assert got == data
    with trio.fail_after(60), pytest.raises(ConnectionLost, match="alert bad record mac"):
        await dialled.receive_into(sink)


async def receive_all(receiver: Connection, got: bytearray, sink: memoryview) -> None:
    while True:
        got += sink[: await receiver.receive_into(sink)]


async def test_who_receives_by_the_byte_does_not_ask_the_socket_for_each(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    dialled, accepted = await ends_of(PipeNetwork())
    assert dialled.try_send([bytes(20_000)]) == 20_000
    rooms: list[int] = []
    receive_into = accepted._inner.receive_into

    async def counted(*buffers: memoryview) -> int:
        rooms.append(sum(map(len, buffers)))
        return await receive_into(*buffers)

    monkeypatch.setattr(accepted._inner, "receive_into", counted)
    assert await accepted.receive_into(memoryview(bytearray(1))) == 1
    assert min(rooms) >= 2 * module.RECORD_BYTES


@pytest.mark.parametrize("window", [1, 100, 16_385])
async def test_nothing_stays_inside_when_the_wire_is_silent(
    window: int, autojump_clock: trio.testing.MockClock
) -> None:
    """H220: the socket is dry, and the rest of a record waits within OpenSSL."""
    dialled, accepted = await ends_of(PipeNetwork())
    data = os.urandom(20_000)
    at = 0
    while at < len(data):  # the pipe holds all of it
        at += dialled.try_send([data[at:]])
    got = bytearray()

    with trio.fail_after(60):
        while len(got) < len(data):
            buffer = memoryview(bytearray(window))
            got += buffer[: await accepted.receive_into(buffer)]

    assert bytes(got) == data


async def test_a_connection_whose_keys_were_used_for_long_ends_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """H222: by bytes, and by time; an ordinary loss."""
    monkeypatch.setattr(module, "KEY_LIFETIME_BYTES", 100_000)
    network = PipeNetwork(bytes_max=1 << 20)
    dialled, accepted = await ends_of(network)
    sink = memoryview(bytearray(1 << 20))

    for _ in range(8):
        assert accepted.try_send([bytes(10_000)]) == 10_000
        await dialled.receive_into(sink)
    with pytest.raises(ConnectionLost, match="reached the end of their lifetime"):
        await exhaust(accepted, dialled, sink)
    dialled, accepted = await ends_of(network)
    accepted.try_send([b"x"])
    await trio.sleep(module.KEY_LIFETIME_S)
    with pytest.raises(ConnectionLost, match="reached the end of their lifetime"):
        await dialled.receive_into(sink)


@pytest.mark.parametrize("message_bytes", [10_000, 100_000])
async def test_what_is_sent_uses_the_keys_too(
    message_bytes: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """H222: who sends much and is answered little; in one record, or in a burst of them."""
    monkeypatch.setattr(module, "KEY_LIFETIME_BYTES", 300_000)
    dialled, accepted = await ends_of(PipeNetwork(bytes_max=1 << 20))
    for _ in range(400_000 // message_bytes):
        assert dialled.try_send([bytes(message_bytes)]) == message_bytes
    accepted.try_send([b"taken"])

    with pytest.raises(ConnectionLost, match="reached the end of their lifetime"):
        await dialled.receive_into(memoryview(bytearray(10)))


async def exhaust(sender: Connection, receiver: Connection, sink: memoryview) -> None:
    while True:
        sender.try_send([bytes(10_000)])
        await receiver.receive_into(sink)


async def test_each_connection_is_judged_anew(autojump_clock: trio.testing.MockClock) -> None:
    """H223: no tickets, so nothing to resume with."""
    dialled, accepted = await ends_of(PipeNetwork())
    accepted.try_send([b"x"])
    await dialled.receive_into(memoryview(bytearray(10)))

    assert dialled._ssl_object is not None
    assert not dialled._ssl_object.session_reused
    assert dialled._ssl_object.session is None or not dialled._ssl_object.session.has_ticket


async def test_a_forked_child_encrypts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """H225: two processes that write with one key and one counter give both texts away."""
    dialled, accepted = await ends_of(PipeNetwork())
    rest = dialled._inner

    dialled.on_forked()

    with pytest.raises(ConnectionLost, match="fork"):
        dialled.try_send([b"x"])
    with pytest.raises(ConnectionLost, match="fork"):
        await dialled.receive_into(memoryview(bytearray(10)))
    rest.close()
    accepted.close()


# --- who is refused -------------------------------------------------------------------------------


def expired(tmp_path: Path) -> Tls:
    """A certificate that ended; only its pair of before was ever sound, so it is put there by hand."""
    place = tmp_path / "expired"
    certificates.issue(authority(), "user/late", place)
    tls = Tls(place)
    before = certificates._now

    def long_ago() -> datetime.datetime:
        return before() - datetime.timedelta(days=30)

    certificates._now = long_ago
    try:
        certificates.issue(authority(), "user/late", place, days=1)
    finally:
        certificates._now = before
    tls.context_for(server=False).load_cert_chain(place / "cert.pem", place / "key.pem")
    return tls


@pytest.mark.parametrize(("ahead_days", "words"), [(30, "clock"), (-30, "dlog pki renew")])
def test_a_certificate_outside_its_time_is_no_wrong_usage(
    ahead_days: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At boot the clock may be wrong until NTP corrects it. A service manager has to start the node again."""
    now = certificates._now()
    certificates.issue(authority(), "bookie/b1", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_now", lambda: now + datetime.timedelta(days=ahead_days))
        certificates.issue(authority(), "bookie/b1", tmp_path, days=1)

    with pytest.raises(NotAuthenticated, match=words):
        Tls(tmp_path)


def without_certificate(tmp_path: Path) -> Tls:
    place = tmp_path / "bare"
    place.mkdir()
    shutil.copy(directory_of("user/etl") / "ca.pem", place)
    return Tls(place)


def mixed(tmp_path: Path) -> Tls:
    """Signed by somebody else's authority, and it trusts ours."""
    place = tmp_path / "mixed"
    shutil.copytree(directory_of("user/etl", "test", "other"), place)
    ours = (directory_of("user/etl") / "ca.pem").read_bytes()
    with (place / "ca.pem").open("ab") as bundle:
        bundle.write(ours)
    return Tls(place)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (expired, "has expired"),
        (without_certificate, "came with none"),
        (mixed, "does not trust the authority"),
    ],
)
async def test_a_client_that_is_not_taken_is_told_why(
    make: Callable[[Path], Tls], words: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """H221: in TLS 1.3 a client is done before it is judged; a sentence, and not a broken network."""
    network = PipeNetwork()
    async with served(network, tls_of("bookie/b1")) as (address, _):
        host = with_tls(network.host("c"), make(tmp_path))
        with pytest.raises(NotAuthenticated, match=words):
            await asked(host, address)


@pytest.mark.parametrize(
    ("client", "server", "words"),
    [
        (("user/etl",), ("bookie/b1", "test", "other"), "is not accepted"),
        (("user/etl",), ("user/b1",), "not a server"),
        (("user/etl",), ("bookie/b2",), "bookie/b2"),
        (("user/etl",), ("metadata/b1",), "metadata/b1"),
    ],
)
async def test_a_server_that_is_another_one_is_not_talked_to(
    client: tuple[str, ...],
    server: tuple[str, ...],
    words: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H227: our authority's certificate is not enough; kind and name are compared."""
    network = PipeNetwork()
    async with served(network, tls_of(*server)) as (address, _):
        with pytest.raises(NotAuthenticated, match=words):
            await asked(with_tls(network.host("c"), tls_of(*client)), address)


async def test_another_domain_of_the_same_authority_is_refused(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Two clusters that share an authority: by both ends."""
    both = b"".join((authority(name) / "ca.pem").read_bytes() for name in ("test", "prod"))
    places = {}
    for domain, principal in (("test", "bookie/b1"), ("prod", "user/etl")):
        places[domain] = tmp_path / domain
        shutil.copytree(directory_of(principal, domain), places[domain])
        (places[domain] / "ca.pem").write_bytes(both)
    network = PipeNetwork()
    async with served(network, Tls(places["test"])) as (address, _):
        with pytest.raises(NotAuthenticated, match="of domain test, not prod"):
            await asked(with_tls(network.host("c"), Tls(places["prod"])), address)


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "b1"),),
        (("URI", "dlog://d/bookie/b1"), ("URI", "dlog://d/user/b1")),
        (("URI", "dlog://d/operator/b1"),),
        (("URI", "dlog://d/user/local"),),
        (("URI", "dlog://d/user/a/b"),),
        (("URI", "dlog://d/user/"),),
        (("URI", "dlog://d/user/" + "x" * 38),),
        (("URI", "dlog:bookie"),),
    ],
)
def test_a_certificate_names_exactly_one(names: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(NotAuthenticated):
        read_identity({"subjectAltName": names, "notAfter": "Nov 23 00:00:00 2030 GMT"}, "peer")


# --- plain and TLS --------------------------------------------------------------------------------


async def test_credentials_never_speak_plain(autojump_clock: trio.testing.MockClock) -> None:
    """H228: somebody between, or an older server, that answers without TLS."""
    network = PipeNetwork()
    async with served(network, None) as (address, _):
        with pytest.raises(ConnectionLost, match=r"does not speak TLS|closed|broke"):
            await asked(with_tls(network.host("c"), tls_of("user/etl")), address)


async def test_a_plain_client_is_not_served_where_tls_is_wanted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is told so in words, in clear, and nothing else: whatever it says of itself."""
    network = PipeNetwork(3)
    async with served(network, tls_of("bookie/b1")) as (address, nursery):
        with pytest.raises(NotAuthenticated, match=r"by cert over TLS \(give --credentials\)"):
            await asked(network.host("c"), address)
        for said in (Hello(kind="bookie", label="b2"), Hello(kind="metadata", label="m1")):
            with pytest.raises(NotAuthenticated, match="over TLS"):
                await asked(network.host("c"), address, said)
        for method in (BY_CERTIFICATE, "pass", "token", "local"):
            claimed = Credentials(method, lambda meeting: b"user/etl")
            client = Endpoint(network.host("c"), Hello)
            with pytest.raises(NotAuthenticated):
                await client.dial(address, nursery=nursery, credentials=claimed)


async def test_on_the_way_from_plain_to_tls_all_four_kinds_meet(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nodes are started again one by one, first with ``either``, then with ``tls``: nobody is cut off."""
    network = PipeNetwork(5)
    plain = network.host("c")
    either = with_tls(plain, tls_of("bookie/b2"), EITHER)
    only = with_tls(plain, tls_of("bookie/b2"), TLS)
    async with served(network, tls_of("bookie/b1"), EITHER) as (address, _):
        for _ in range(5):  # at any cut of the first bytes
            assert await asked(plain, address) == "anonymous 0"
        assert await asked(either, address) == "bookie/b2 0"
        assert await asked(only, address) == "bookie/b2 0"
    async with served(network, None) as (address, _):
        assert await asked(either, address) == "anonymous 0"


# --- files ----------------------------------------------------------------------------------------


def put(place: Path, name: str, content: bytes) -> None:
    """As somebody renames it there, a while ago."""
    aside = place / "aside"
    aside.write_bytes(content)
    aside.chmod(0o600)
    os.utime(aside, (1_700_000_000, 1_700_000_000 + len(content)))
    aside.rename(place / name)


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_half_of_a_new_pair_is_not_used(order: tuple[int, ...], tmp_path: Path) -> None:
    """H226: whichever file comes first, and with garbage between: the old pair until the new one is whole."""
    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    tls = Tls(place)
    before = tls.identity
    new = directory_of("bookie/b1", "test", "other")
    names = ["ca.pem", "cert.pem", "key.pem"]
    for step, index in enumerate(order):
        if step == 1:
            put(place, names[index], b"garbage")
            tls.context_for(server=True)
            assert tls.identity == before
        put(place, names[index], (new / names[index]).read_bytes())
        tls.context_for(server=True)
        if step < 2:
            assert tls.identity == before, "half of it"

    assert tls.identity is not None
    assert before is not None
    assert tls.identity.serial != before.serial


def test_files_that_still_change_are_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    tls = Tls(place)
    before = tls.identity
    certificates.issue(authority(), "bookie/b1", place)

    tls.context_for(server=False)

    assert tls.identity == before


@pytest.mark.parametrize("now", ["", "bookie/b2", "user/b1", "prod", "chain"])
async def test_a_process_stays_who_it_is(
    now: str,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H226: a certificate that is away, or another one's, while it is used: a node goes on as who it was."""
    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        put(place, name, (place / name).read_bytes())
    network = PipeNetwork()
    host = with_tls(network.host("c"), tls_of("user/etl"))
    async with served(network, Tls(place)) as (address, _):
        assert await asked(host, address) == "user/etl 0"
        if not now:
            (place / "cert.pem").unlink()
        elif now == "chain":
            put(
                place, "cert.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
            )
        else:
            domain, who = ("prod", "bookie/b1") if now == "prod" else ("test", now)
            if domain == "prod":  # of an authority that is trusted, too
                both = (place / "ca.pem").read_bytes()
                put(place, "ca.pem", both + (authority("prod") / "ca.pem").read_bytes())
            for name in ("key.pem", "cert.pem"):
                put(place, name, (directory_of(who, domain) / name).read_bytes())
        assert await asked(host, address) == "user/etl 0"
        assert "cert.pem" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ca.pem", None, "no such file"),
        ("ca.pem", b"garbage", "cannot be used"),
        ("key.pem", None, "key.pem"),
        ("key.pem", b"garbage", "do not match"),
        ("cert.pem", b"", "do not match"),
    ],
)
def test_a_directory_that_is_no_good_is_refused_by_the_files_name(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    (place / name).unlink()
    if content is not None:
        (place / name).write_bytes(content)
        (place / name).chmod(0o600)

    with pytest.raises(InvalidRequest, match=words) as caught:
        Tls(place)
    assert str(place) in str(caught.value)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    (place / "key.pem").chmod(0o640)

    with pytest.raises(InvalidRequest, match="chmod 600"):
        Tls(place)


def test_a_new_key_that_is_mended_as_told_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A chmod changes neither the file nor its time: what was no good is looked at again."""
    monkeypatch.setattr(settled_files, "RETRY_INTERVAL_S", 3600.0)
    ca, place = tmp_path / "ca", tmp_path / "b1"
    certificates.make_authority(ca, "mended")
    certificates.issue(ca, "bookie/b1", place)
    tls = Tls(place)
    before = tls.current_identity()
    certificates.renew(ca, place)
    for file in place.iterdir():
        os.utime(file, (1_700_000_000, file.stat().st_mtime - 100))
    (place / "key.pem").chmod(0o640)
    for _ in range(3):
        assert tls.current_identity() == before
    assert caplog.text.count("chmod 600") == 1, "it is not said for each connection"
    (place / "key.pem").chmod(0o600)
    assert tls._files is not None
    tls._files._retry_at_s = 0.0
    after = tls.current_identity()
    assert after is not None
    assert after != before


def test_a_key_with_a_passphrase_asks_nobody(tmp_path: Path) -> None:
    """OpenSSL would ask at the terminal, and the process would wait for what is typed."""
    from cryptography.hazmat.primitives import serialization

    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    key = serialization.load_pem_private_key((place / "key.pem").read_bytes(), None)
    (place / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"of somebody"),
        )
    )

    with pytest.raises(InvalidRequest, match=r"key\.pem.* passphrase"):
        Tls(place)


async def test_the_authority_is_replaced_without_a_refused_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Trust first, at all; then new certificates, one after the other."""
    ca = tmp_path / "ca"
    certificates.make_authority(ca, "rolled")
    places = [tmp_path / name for name in ("b1", "etl")]
    for place, principal in zip(places, ("bookie/b1", "user/etl"), strict=True):
        certificates.issue(ca, principal, place)
    server, client = map(Tls, places)
    network = PipeNetwork()

    def settled(place: Path) -> None:
        for file in place.iterdir():
            os.utime(file, (1_700_000_000, file.stat().st_mtime - 100))

    async with served(network, server) as (address, _):
        host = with_tls(network.host("c"), client)
        steps: list[Callable[[], object]] = [partial(certificates.roll_authority, ca)]
        steps += [partial(certificates.trust, ca, place) for place in places]
        steps += [partial(certificates.renew, ca, place) for place in places]
        for step in steps:
            assert await asked(host, address) == "user/etl 0"
            step()
            for place in places:
                settled(place)
        assert await asked(host, address) == "user/etl 0"
        serials = [tls.identity.serial for tls in (server, client) if tls.identity is not None]
        assert serials == [certificates.show(place).serial for place in places]


async def test_who_is_on_the_list_is_refused_and_nobody_else(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A stolen node, a lost laptop: by servers and by who dials, in words, without a start; over a new
    authority, too, each of which needs a list of its own."""
    ca = tmp_path / "ca"
    certificates.make_authority(ca, "listed")
    places = {
        who: tmp_path / who.replace("/", "-") for who in ("bookie/b1", "user/etl", "user/eve")
    }
    for who, place in places.items():
        certificates.issue(ca, who, place)
    network = PipeNetwork()
    servers = Tls(places["bookie/b1"])

    def settled(name: str) -> None:
        old = time.time() - 10
        for file in places[name].iterdir():
            os.utime(file, (old, old + file.stat().st_size / 1e6))

    async def comes(who: str) -> str:
        return await asked(with_tls(network.host("c"), Tls(places[who])), address)

    async with served(network, servers) as (address, _):
        assert await comes("user/eve") == "user/eve 0"
        certificates.revoke(ca, [certificates.show(places["user/eve"]).serial])
        certificates.trust(ca, places["bookie/b1"])
        settled("bookie/b1")
        with pytest.raises(NotAuthenticated, match="was revoked"):
            await comes("user/eve")
        assert await comes("user/etl") == "user/etl 0"

        certificates.roll_authority(ca)
        certificates.trust(ca, places["bookie/b1"])
        settled("bookie/b1")
        certificates.renew(ca, places["user/etl"])
        assert await comes("user/etl") == "user/etl 0"
        with pytest.raises(NotAuthenticated, match="was revoked"):
            await comes("user/eve")

        certificates.renew(ca, places["bookie/b1"])
        certificates.revoke(ca, [certificates.show(places["bookie/b1"]).serial])
        certificates.trust(ca, places["user/etl"])
        settled("bookie/b1")
        with pytest.raises(NotAuthenticated, match="certificate revoked"):
            await comes("user/etl")


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    place = tmp_path / "d"
    shutil.copytree(directory_of("bookie/b1"), place)
    (place / "crl.pem").write_bytes(b"garbage")
    with pytest.raises(InvalidRequest, match=r"crl\.pem"):
        Tls(place)
    shutil.copytree(authority(), tmp_path / "ca")
    (tmp_path / "ca" / "crl.pem").write_bytes(b"garbage" + certificates._LIST_ENDS)
    with pytest.raises(InvalidRequest, match=r"crl\.pem"):
        certificates.revoke(tmp_path / "ca", [])


def test_only_tls_13_is_spoken() -> None:
    for server in (True, False):
        context = tls_of("bookie/b1").context_for(server=server)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
