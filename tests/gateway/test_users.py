"""A gateway that does what is asked as a user: at its door, what one user may have of it, its own TLS."""

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("hypercorn", reason="pip install '.[gateway]'")
pytest.importorskip("starlette", reason="pip install '.[gateway]'")

import trio
import trio.testing
from trio.testing import MockClock

from distributedlog.cluster.local.child_processes import environment
from distributedlog.gateway import append_handler as appending
from distributedlog.gateway import gateway_lifecycle as running
from distributedlog.gateway import https_certificates as https
from distributedlog.gateway.append_handler import AppendHandler
from distributedlog.gateway.error_responses import error_response
from distributedlog.gateway.metrics import GatewayMeters
from distributedlog.gateway.options import GatewayOptions
from distributedlog.gateway.request_format import ProducerRef, SubmittedRecords
from distributedlog.gateway.request_guard import RequestGuard, RequestSlot
from distributedlog.gateway.request_sessions import UserSessions
from distributedlog.gateway.user_share import UserShare
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.write.producer_state_manager import OpenedProducer
from distributedlog.proxy.client.batch_sender import StoredBatchPosition
from distributedlog.proxy.client.proxied_namespace import ProxiedNamespace
from distributedlog.runtime.disk import reloaded_files as settled_files
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    NamespaceFull,
    NotAllowed,
    NotAuthenticated,
    OverQuota,
    TooBusy,
)
from distributedlog.runtime.interfaces.host import Host
from distributedlog.runtime.interfaces.principals import Token
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.protocol.tokens import encode_token
from tests import preloaded

from ..cluster.story import dlog
from ..runtime.pki import directory_of
from .http_kit import TIMEOUT_S, Gate, gate
from .https_kit import Caller, certificate
from .test_bounds import scope
from .test_gateway import behind

pytestmark = pytest.mark.extra

ONE_REQUEST = GatewayOptions(requests_max=1, held_bytes_max=1, body_s=1.0, write_s=1.0)


def token(user: str, number: int = 0) -> str:
    name = number.to_bytes(8, "big")
    return encode_token(Token(user, 10**9, 0, 1, "00" * 16, name, ()), bytes(32)).decode()


def bearer(user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(user)}"}


async def nobody(*_: object) -> None:
    raise AssertionError("not reached")


def door(*, by_users: bool, own: str = "") -> RequestGuard:
    return RequestGuard(
        nobody,
        GatewayMeters(),
        ONE_REQUEST,
        port=8491,
        token=own,
        by_users=by_users,
    )


def test_a_door_of_users_lets_in_who_shows_a_users_token_and_nobody_else() -> None:
    it = door(by_users=True, own="secret-of-sixteen")

    def status(given: str, path: str = "/v1/logs") -> int:
        asked = scope(path, authorization=given) if given else scope(path)
        refused = it.check(asked)
        assert ("dlog.token" in asked) == (refused is None and path == "/v1/logs")
        return 200 if refused is None else refused[0]

    assert status(f"Bearer {token('etl')}") == 200
    for given in ("", token("etl"), f"Basic {token('etl')}", "Bearer dlog1_", "Bearer dlog1_AAAA"):
        assert status(given) == 401
    assert status("Bearer secret-of-sixteen") == 401, "it is no user's"
    assert status("Bearer secret-of-sixteen", "/metrics") == 200
    assert status(f"Bearer {token('etl')}", "/metrics") == 401
    assert status("", "/health") == status("", "/openapi.json") == 200
    assert door(by_users=True).check(scope("/metrics")) is not None, "nobody's is not everybody's"


def test_a_gateway_that_lends_its_own_rights_takes_no_users_token() -> None:
    """Who shows his means to be himself: it would be done with the gateway's rights."""
    refused = door(by_users=False).check(scope(authorization=f"Bearer {token('etl')}"))

    assert refused is not None
    assert (refused[0], "--users" in refused[2]) == (401, True)


def test_who_it_is_and_what_it_may_are_two_statuses() -> None:
    no_user, no_right = NotAuthenticated("revoked"), NotAllowed("it needs write")

    assert error_response(no_user, "", is_write=True, by_users=True)[0] == 401
    assert error_response(no_right, "", is_write=True, by_users=True)[0] == 403
    full = NamespaceFull("namespace ns has 80 keys, allowed are 80")
    assert error_response(full, "", is_write=True)[0] == 409, "to come again helps nobody"
    assert error_response(OverQuota("1000 leases"), "", is_write=True)[0] == 429
    assert error_response(no_user, "", is_write=True)[0] == 500, (
        "the gateway's own: no matter of who asks"
    )


def test_one_user_has_half_of_a_gateway_at_most() -> None:
    share = UserShare("etl", GatewayOptions(requests_max=4, tails_max=2, held_bytes_max=10))
    share.begin_request()
    share.begin_request()
    with pytest.raises(TooBusy, match="user etl"):
        share.begin_request()
    share.reserve_bytes(5)
    with pytest.raises(TooBusy):
        share.reserve_bytes(1)
    share.end_request(5)
    share.begin_request()
    share.reserve_bytes(5)
    share.begin_tail()
    with pytest.raises(TooBusy):
        share.begin_tail()
    share.end_tail()
    share.begin_tail()


def test_what_a_request_holds_counts_with_its_user_until_it_leaves() -> None:
    options = GatewayOptions(requests_max=2, held_bytes_max=10)
    share, meters = UserShare("etl", options), GatewayMeters()
    for _ in range(3):
        meters.under_way += 1
        place = RequestSlot(meters, options.held_bytes_max)
        place.join(share)
        place.hold(5)
        with pytest.raises(TooBusy, match="user etl"):
            place.hold(1)
        place.release()
        place.release()
        assert (meters.held_bytes, meters.under_way) == (0, 0)


class Quiet:
    """A log's writer that only is open."""

    end_error = None

    def __init__(self, closed: list[str], log: str) -> None:
        self._closed = closed
        self._log = log

    async def aclose(self) -> None:
        self._closed.append(self._log)


async def test_one_user_has_half_of_the_writers_and_loses_his_own_idle_ones(
    autojump_clock: MockClock,
) -> None:
    """By all his tokens; else he has all of them, and others' are closed for his."""
    closed: list[str] = []

    async def opens(log: str) -> Quiet:
        return Quiet(closed, log)

    namespace: Any = SimpleNamespace(
        context=SimpleNamespace(random=Random(1)),
        open_log=lambda log: SimpleNamespace(open_writer=partial(opens, log)),
    )
    options, meters = GatewayOptions(writers_max=6, writer_idle_s=1000.0), GatewayMeters()
    shares = UserShare("etl", options), UserShare("ann", options)
    one, two, other = (
        AppendHandler(namespace, options, meters, share=shares[n]) for n in (0, 0, 1)
    )
    async with trio.open_nursery() as nursery:
        for each in (one, two, other):
            nursery.start_soon(each.run)
        await trio.testing.wait_all_tasks_blocked()
        for log in ("a", "b"):
            async with one._writer(log):
                await trio.sleep(0.1)
        async with two._writer("c"):
            assert (shares[0].writers, meters.writers) == (3, 3)
            async with one._writer("d"):
                await trio.sleep(0.1)
                assert closed == ["a"], "the one that was idle longest"
                async with one._writer("b"), other._writer("a"):
                    with pytest.raises(TooBusy, match="user etl has 3 logs open for writing"):
                        async with two._writer("e"):
                            pass
                    assert (shares[0].writers, shares[1].writers, meters.writers) == (3, 1, 4)
        async with one._writer("b"), one._writer("d"), one._writer("f"):
            await trio.sleep(5)
            assert closed == ["a", "c"], "an idle one of another token of his"
        nursery.cancel_scope.cancel()
    assert (shares[0].writers, shares[1].writers, meters.writers) == (0, 0, 0)
    assert sorted(closed) == ["a", "a", "b", "c", "d", "f"]
    assert shares[0].evictions == []


async def test_who_outlives_his_session_is_not_counted_again(autojump_clock: MockClock) -> None:
    """Another token of the user keeps the share: what counts there for good are writers that he has lost."""
    closed: list[str] = []
    lost = trio.Event()

    async def opens(log: str) -> Quiet:
        if log == "late":
            await lost.wait()
            raise TooBusy("no")
        return Quiet(closed, log)

    namespace: Any = SimpleNamespace(
        context=SimpleNamespace(random=Random(1)),
        open_log=lambda log: SimpleNamespace(open_writer=partial(opens, log)),
    )
    options, meters = GatewayOptions(), GatewayMeters()
    share = UserShare("etl", options)
    session = AppendHandler(namespace, options, meters, share=share)

    async def late() -> None:
        with pytest.raises(TooBusy):
            async with session._writer("late"):
                pass

    async with trio.open_nursery() as requests:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            requests.start_soon(late)
            async with session._writer("a"):
                await trio.sleep(0.1)
            assert (share.writers, meters.writers) == (2, 2)
            nursery.cancel_scope.cancel()
        assert (share.writers, meters.writers) == (0, 0)
        lost.set()
    assert (share.writers, meters.writers) == (0, 0)


async def test_one_user_has_half_of_the_producers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sender:
        def __init__(self, *given: object) -> None:
            self.name = given[3]

        async def open(self, deadline: float) -> OpenedProducer:
            return OpenedProducer(str(self.name), 7, 0, False)

        async def send(self, sequence: int, payloads: object, **_: object) -> StoredBatchPosition:
            if payloads == [b"waits"]:
                await trio.sleep_forever()
            return StoredBatchPosition(sequence, 1, DLSN(1, 0, 0), False)

        def close(self) -> None:
            closed.append(str(self.name))

    closed: list[str] = []
    monkeypatch.setattr(appending, "BatchSender", Sender)
    proxied: Any = ProxiedNamespace.__new__(ProxiedNamespace)
    proxied.context, proxied.client, proxied.path = SimpleNamespace(random=Random(1)), None, "ns"
    options, meters = GatewayOptions(producers_max=4), GatewayMeters()
    share = UserShare("etl", options)
    it = AppendHandler(proxied, options, meters, share=share)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.run)
        await it.open_producer("l", "x")
        waits = SubmittedRecords([b"waits"], None)
        nursery.start_soon(it.append_once, "l", ProducerRef(1, "y"), 0, waits, None)
        await trio.testing.wait_all_tasks_blocked()
        await it.open_producer("l", "z")
        assert (closed, share.producers) == (["x"], 2)
        nursery.start_soon(it.append_once, "l", ProducerRef(7, "z"), 0, waits, None)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TooBusy, match="2 producers of user etl"):
            await it.open_producer("l", "v")
        with pytest.raises(TooBusy, match="2 producers of user etl"):
            await it.append_once("l", ProducerRef(1, "v"), 0, SubmittedRecords([b"x"], None), None)
        nursery.cancel_scope.cancel()


class Opened:
    """What a gateway opens for tokens, as its sessions use it."""

    def __init__(self) -> None:
        self.count = 0
        self.context = SimpleNamespace(random=Random(0))

    @asynccontextmanager
    async def open(self, token: bytes) -> AsyncIterator[Any]:
        self.count += 1
        yield self


def asks(shown: str) -> dict[str, Any]:
    options = GatewayOptions()
    meters = GatewayMeters()
    meters.under_way += 1
    place = RequestSlot(meters, options.held_bytes_max)
    return {"dlog.token": shown.encode(), "client": ("10.0.0.1", 1), "dlog.slot": place}


async def test_a_request_leaves_its_session_which_ends_or_is_opened_anew(
    autojump_clock: MockClock,
) -> None:
    cluster = Opened()
    meters = GatewayMeters()
    users = UserSessions(cluster.open, GatewayOptions(session_idle_s=5.0), meters)

    def sessions() -> int:
        users.update_meters()
        return meters.sessions

    async with trio.open_nursery() as nursery:
        await nursery.start(users.run)
        first, second = asks(token("etl")), asks(token("etl"))
        for one in (first, second):
            await users.acquire(one)
        users.release(first)
        await trio.sleep(20)
        assert sessions() == 1, "one is under way"
        users.release(second)
        users.release(second)
        await trio.sleep(20)
        assert (sessions(), cluster.count) == (0, 1)
        third, fourth = asks(token("etl")), asks(token("etl"))
        await users.acquire(third)
        users.reject(third)
        await users.acquire(fourth)
        assert cluster.count == 3, "what the cluster takes no more is looked at anew"
        nursery.cancel_scope.cancel()


async def test_two_tokens_of_a_user_have_one_share_until_both_have_ended(
    autojump_clock: MockClock,
) -> None:
    users = UserSessions(Opened().open, GatewayOptions(session_idle_s=5.0), GatewayMeters())
    async with trio.open_nursery() as nursery:
        await nursery.start(users.run)
        stays, goes, later = (asks(token("etl", number)) for number in range(3))
        share = (await users.acquire(stays)).share
        assert (await users.acquire(goes)).share is share
        goes["dlog.slot"].release()
        users.release(goes)
        await trio.sleep(20)
        assert (await users.acquire(later)).share is share, "half is for both"
        for one in (stays, later):
            users.release(one)
        await trio.sleep(20)
        assert (await users.acquire(asks(token("etl")))).share is not share
        nursery.cancel_scope.cancel()


@pytest.fixture
def believing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a token names is taken: the cluster here asks for none."""

    def shows(host: Host, token: bytes) -> Host:
        return host

    monkeypatch.setattr(running, "authority_host", real_host)
    monkeypatch.setattr(running, "with_token", shows)


async def test_a_greedy_user_leaves_room_for_others(believing: None) -> None:
    async with behind("w1") as (w, uri):
        one: Gate = await gate(w.nursery, uri, users=True, requests_max=4, tails_max=2)
        assert (await one.ask("PUT", "/v1/logs/a", **bearer("etl"))).status == 201
        tail = await one.client()
        assert (await tail.begin("GET", "/v1/logs/a/tail", **bearer("etl"))).status == 200
        busy = await one.ask("GET", "/v1/logs/a/tail", **bearer("etl"))
        assert (busy.status, busy.error, "user etl" in busy.json["error"]["what"]) == (
            429,
            "TooBusy",
            True,
        )
        long = "/v1/logs/a/records?from=latest&wait_s=20"
        async with trio.open_nursery() as nursery:
            waiting = [await one.client() for _ in range(2)]
            for each in waiting:
                nursery.start_soon(partial(each.ask, "GET", long, **bearer("etl")))
            with trio.fail_after(TIMEOUT_S):
                while (await one.ask("GET", "/v1/logs", **bearer("etl"))).status != 429:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert (await one.ask("GET", "/v1/logs", **bearer("ann"))).status == 200
            nursery.cancel_scope.cancel()
        for each in (tail, *waiting):
            await each.close()
        with trio.fail_after(TIMEOUT_S):
            while (await one.ask("GET", "/v1/logs", **bearer("etl"))).status != 200:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_producers_of_one_name_are_each_users_own_and_go_on_at_another_gateway(
    believing: None,
) -> None:
    """Planted: with bare names the second opening fences the first user's producer."""
    async with behind("w1") as (w, uri):
        gates = [await gate(w.nursery, uri, users=True) for _ in range(2)]
        assert (await gates[0].ask("PUT", "/v1/logs/a", **bearer("etl"))).status == 201
        path = "/v1/logs/a"
        refs = {}
        for user in ("etl", "ann"):
            made = await gates[0].ask("POST", f"{path}/producers", '{"name": "x"}', **bearer(user))
            assert (made.status, made.json["name"]) == (201, "x"), made
            refs[user] = {"dlog_producer": made.json["producer"], "dlog_sequence": "0"}
        for user, ref in refs.items():
            for number, each in enumerate(gates):
                answer = await each.ask("POST", f"{path}/records", user, **bearer(user), **ref)
                assert (answer.status, answer.json["repeated"]) == (200, number == 1), answer
        long = await gates[0].ask(
            "POST", f"{path}/producers", f'{{"name": "{"x" * 255}"}}', **bearer("etl")
        )
        assert (long.status, long.error) == (400, "InvalidRequest"), long
        found = await gates[1].ask("GET", f"{path}/records", **bearer("ann"))
        assert [one["payload"] for one in found.json["records"]] == ["etl", "ann"]


async def test_a_gateway_speaks_https_and_takes_a_new_certificate_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled_files, "SETTLED_S", 0.0)
    place = certificate(tmp_path / "https")
    old = tmp_path / "old.pem"
    old.write_bytes((place / "cert.pem").read_bytes())
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri, tls=place)
        assert one.url.startswith("https://")

        def status(trusts: Path) -> int:
            return Caller(one.url, trusts=trusts).ask("GET", "/health").status

        def speaks(protocol: str) -> str | None:
            context = ssl.create_default_context(cafile=old)
            context.set_alpn_protocols([protocol])
            with (
                socket.create_connection(one.place, timeout=TIMEOUT_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secret,
            ):
                return secret.selected_alpn_protocol()

        assert await trio.to_thread.run_sync(speaks, "h2") == "h2"
        assert await trio.to_thread.run_sync(speaks, "http/1.1") == "http/1.1"
        assert await trio.to_thread.run_sync(status, old) == 200
        (place / "key.pem").write_bytes(b"half of a key")
        assert await trio.to_thread.run_sync(status, old) == 200, "what is no good is not used"
        certificate(place)
        assert await trio.to_thread.run_sync(status, place / "cert.pem") == 200
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await trio.to_thread.run_sync(status, old)


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    place = certificate(tmp_path / "https")
    (place / "key.pem").chmod(0o640)

    with pytest.raises(InvalidRequest, match="chmod 600"):
        https.Certificates(place)


def test_a_certificate_whose_key_is_mended_as_told_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A chmod changes neither the file nor its time: what was no good is looked at again."""
    monkeypatch.setattr(settled_files, "SETTLED_S", 0.0)
    monkeypatch.setattr(settled_files, "RETRY_INTERVAL_S", 3600.0)
    place = certificate(tmp_path / "https")
    found = https.Certificates(place)
    before = found._files.loaded
    certificate(place)
    (place / "key.pem").chmod(0o640)
    for _ in range(3):
        assert found._files.reload_if_changed() is before
    assert caplog.text.count("chmod 600") == 1, "it is not said for each connection"
    (place / "key.pem").chmod(0o600)
    found._files._retry_at_s = 0.0
    assert found._files.reload_if_changed() is not before


def test_a_key_with_a_passphrase_asks_nobody(tmp_path: Path) -> None:
    """OpenSSL would ask at the terminal, and all connections would wait for what is typed."""
    from cryptography.hazmat.primitives import serialization

    place = certificate(tmp_path / "https")
    key = serialization.load_pem_private_key((place / "key.pem").read_bytes(), None)
    (place / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"of somebody"),
        )
    )

    with pytest.raises(InvalidRequest, match=r"key\.pem.* passphrase"):
        https.Certificates(place)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0", "--allow-host", "h"], "--insecure"),
        (["--users"], "ca.pem"),
        (["--credentials", "file:USER"], "--users"),
        (["--credentials", "file:EMPTY", "--users"], "ca.pem"),
        (["--tls", "EMPTY"], "key.pem"),
    ],
)
def test_what_a_gateway_wants_to_know_before_it_starts(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    places = {"USER": str(directory_of("user/etl")), "EMPTY": str(tmp_path)}
    for name, place in places.items():
        arguments = [one.replace(name, place) for one in arguments]
    done = preloaded.run(
        dlog("serve", "gateway", "--uri", "distributedlog+proxy://127.0.0.1:1/ns", *arguments),
        timeout=60,
        env={**environment(), "HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    said = done.stderr.decode()

    assert done.returncode == 2, said
    assert words in said
    assert len(said.strip().splitlines()) == 1, said
