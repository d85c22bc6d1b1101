"""What strangers can do to a gateway (H193): bounded, and at nobody else's cost."""

import errno
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("hypercorn", reason="pip install '.[gateway]'")
pytest.importorskip("starlette", reason="pip install '.[gateway]'")

import trio
import trio.testing

from distributedlog.cluster.auth.token_attempts import network_of
from distributedlog.gateway import app as gateway_app
from distributedlog.gateway import request_guard as gateway_door
from distributedlog.gateway import server
from distributedlog.gateway.app import Gateway
from distributedlog.gateway.append_handler import AppendHandler
from distributedlog.gateway.error_responses import RejectedRequest, error_response
from distributedlog.gateway.metrics import GatewayMeters
from distributedlog.gateway.options import GatewayOptions
from distributedlog.gateway.request_format import (
    ProducerRef,
    SubmittedRecords,
    is_json_lines,
    parse_seconds,
    records_of,
)
from distributedlog.gateway.request_guard import (
    HEAD_BYTES_MAX,
    Message,
    Receive,
    RequestGuard,
    Scope,
    Send,
    is_listen_allowed,
)
from distributedlog.gateway.request_sessions import GatewaySessions
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    OutcomeUnknown,
    ProducerForgotten,
    WriterFenced,
)
from distributedlog.runtime.process import descriptor_limit as descriptors

from ..proxy.proxy_world import ONE, World, world
from .http_kit import TIMEOUT_S, Answer, Gate, gate

pytestmark = pytest.mark.extra

ONE_REQUEST = GatewayOptions(requests_max=1, held_bytes_max=1, body_s=1.0, write_s=1.0)


@asynccontextmanager
async def alone(**options: Any) -> AsyncIterator[tuple[World, Gate]]:
    """A gateway over a cluster of one bookie, with a log ``a``."""
    async with world() as w:
        found = await gate(w.nursery, w.uri, **options)
        made = await found.ask("PUT", "/v1/logs/a", json.dumps({"config": ONE}))
        assert made.status == 201, made
        yield w, found


async def test_who_takes_nothing_is_hung_up_on_and_others_go_on() -> None:
    """Planted: without the deadline in `BoundedStream.send_all` the tail waits for ever."""
    async with alone(write_s=1.0, tails_max=1) as (_, one):
        deaf = await one.client()
        deaf.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        assert (await deaf.begin("GET", "/v1/logs/a/tail?from=earliest")).status == 200
        second = await one.ask("GET", "/v1/logs/a/tail")
        assert (second.status, second.headers["retry-after"]) == (429, "1")
        writer = await one.client()
        for _ in range(60):
            assert (await writer.ask("POST", "/v1/logs/a/records", "x" * 100_000)).status == 200
        await one.until("hung_up_total", 1)
        await one.until("tails", 0)
        assert (await writer.ask("POST", "/v1/logs/a/records", "x")).status == 200
        assert (
            await one.number("bytes_read_total") < 3_000_000
        )  # of six: what was held, and no more
        await writer.close()
        await deaf.close()


async def test_bounds_of_requests() -> None:
    async with alone(
        connections_max=3, requests_max=1, idle_s=0.5, body_s=0.5, held_bytes_max=300_000
    ) as (_, one):
        waits = await one.client()
        long = "/v1/logs/a/records?from=latest&wait_s=20"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits.ask, "GET", long)
            with trio.fail_after(TIMEOUT_S):
                while (busy := await one.ask("GET", "/health")).status == 200:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert (busy.status, busy.error) == (503, "TurnedAway")
            nursery.cancel_scope.cancel()
        await waits.close()  # a read ends when its peer goes
        with trio.fail_after(TIMEOUT_S):
            while (await one.ask("GET", "/health")).status != 200:  # noqa: ASYNC110 (nobody tells)
                await trio.sleep(0.01)

        slow = await one.client()
        await slow.stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: ")
        assert await _rest(slow.stream) == b""  # hung up within its head
        slow = await one.client()
        head = f"POST /v1/logs/a/records HTTP/1.1\r\nhost: {slow.host}\r\ncontent-length: 10\r\n\r\nhalf"
        await slow.stream.send_all(head.encode())
        assert b" 400 " in (await _rest(slow.stream)).partition(b"\r\n")[0]
        large = await one.ask("POST", "/v1/logs/a/records", b"x" * 110_000)
        assert (large.status, large.error) == (429, "TooBusy")
        heads = await one.client()
        await heads.stream.send_all(f"GET /health HTTP/1.1\r\nhost: {heads.host}\r\n".encode())
        with pytest.raises(trio.BrokenResourceError):
            await _send_without_end(heads.stream, b"x-more: " + b"y" * 1000 + b"\r\n")
        assert await one.number("held_bytes") == 0

        crowd = [await one.client() for _ in range(3)]  # two are in beside who asks, if at all
        assert (await one.ask("GET", "/health")).status == 200  # those that say nothing make room
        for each in crowd:
            await each.close()


async def test_a_request_of_two_lengths_is_refused_and_its_connection_closed() -> None:
    """Whoever stands before the gateway may go by the other one: the rest would be a request of its own."""
    hidden = "PUT /v1/logs/hidden HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n"
    async with alone() as (_, one):
        for lengths in (
            "content-length: {size}\r\ntransfer-encoding: chunked",
            "Transfer-Encoding: Chunked\r\nContent-Length: 5",
        ):
            bad = await one.client()
            after = hidden.format(host=bad.host)
            lengths = lengths.format(size=len(after) + 5)
            head = f"POST /v1/logs/a/records HTTP/1.1\r\nhost: {bad.host}\r\n{lengths}\r\n\r\n"
            await bad.stream.send_all(f"{head}0\r\n\r\n{after}".encode())
            said = await _rest(bad.stream)
            assert said.startswith(b"HTTP/1.1 400 "), said
            assert said.count(b"HTTP/1.1 ") == 1, "what comes after it is not looked at"
            assert b"connection: close" in said.lower()
            await bad.close()
        assert (await one.ask("GET", "/v1/logs/hidden")).status == 404
        chunked = await one.client()
        head = f"POST /v1/logs/a/records HTTP/1.1\r\nhost: {chunked.host}\r\n"
        await chunked.stream.send_all(
            f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n1\r\nx\r\n0\r\n\r\n".encode()
        )
        assert (await _rest(chunked.stream)).startswith(b"HTTP/1.1 200 "), "one length is one"
        await chunked.close()


async def test_no_connection_becomes_one_that_whoever_stands_before_cannot_read() -> None:
    """Hypercorn takes `Upgrade: h2c` from whoever asks; a balancer that passes it on sees no more."""
    async with alone() as (_, one):
        asks = await one.client()
        head = f"GET /health HTTP/1.1\r\nhost: {asks.host}\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
        head += "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n\r\n"
        await asks.stream.send_all(head.encode())
        with trio.fail_after(TIMEOUT_S):
            said = await asks.stream.receive_some(65536)
        assert said.startswith(b"HTTP/1.1 200 "), said
        await asks.close()


async def test_who_asks_for_a_websocket_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With anything after it each was two: a stranger's way to fill a log."""
    async with alone() as (_, one):
        asks = await one.client()
        head = f"GET /health HTTP/1.1\r\nhost: {asks.host}\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\n"
        head += f"sec-websocket-version: 13\r\nsec-websocket-key: {'A' * 22}==\r\n\r\nand more"
        await asks.stream.send_all(head.encode())
        said = await _rest(asks.stream)
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert b"WebSockets are not supported" in said
        await asks.close()
        await one.until("connections", 1)
    assert not [each for each in caplog.records if each.exc_info]


async def test_an_address_has_three_quarters_of_what_others_left_and_this_machine_all() -> None:
    async with alone(connections_max=8, idle_s=60.0) as (_, one):
        host, port = one.place

        async def comes(address: str) -> trio.SocketStream:
            return await trio.open_tcp_stream(host, port, local_address=address)

        crowd = [await comes("127.0.0.2") for _ in range(20)]
        with trio.fail_after(TIMEOUT_S):
            while await one.number("requests_turned_away_total") < 14:  # noqa: ASYNC110
                await trio.sleep(0.02)
        other = await comes("127.0.0.3")
        assert (await one.ask("GET", "/health")).status == 200
        for stream in crowd:
            await stream.aclose()
        await other.aclose()
        await one.until("connections", 1)
        again = await comes("127.0.0.2")
        await one.until("connections", 2)
        await again.aclose()
        here = [await comes("127.0.0.1") for _ in range(7)]
        await one.until("connections", 8)
        for stream in here:
            await stream.aclose()


def test_this_machine_is_known_by_each_of_its_addresses_and_a_network_is_one() -> None:
    bounds = server.OpenConnections(4, 1.0, GatewayMeters())
    bounds._count_by_address.update(
        {network_of(one): 3 for one in ("127.0.0.1", "::1", "2001:db8::1")}
    )
    for one, may in (("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("::1", True)):
        assert bounds.has_share(network_of(one)) == may
    bounds.free_slots = trio.Semaphore(0)
    assert not bounds.has_share(network_of("2001:db8::2"))
    assert bounds.has_share(network_of("2001:db8:0:1::2"))


class Starved:
    """A listener of a process that has no descriptor left, for a while."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def accept(self) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        self.times -= 1
        if self.times >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise OSError(errno.EBADF, "closed")


async def test_a_lack_of_descriptors_is_waited_out_and_told_once_a_minute(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Trio's own loop prints a traceback for each try, ten a second."""
    bounds = server.OpenConnections(4, 1.0, GatewayMeters())
    starved: Any = Starved(times=int(150 / server.NO_DESCRIPTOR_WAIT_S))
    with pytest.raises(OSError, match="closed"):
        await server.BoundedListener(starved, bounds).accept()

    assert bounds.free_slots.value == 4
    assert caplog.text.count("no connection is accepted") == 3
    assert "Traceback" not in caplog.text


async def test_the_last_descriptors_are_for_what_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway dials a cluster for each token: without them who is let in is told that it is away."""
    monkeypatch.setattr(server, "first_reserved", lambda: 0)
    [listener] = await server.listen(("127.0.0.1", 0), GatewayOptions(), GatewayMeters())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept)
        stream = await trio.open_tcp_stream(*listener.address)
        assert await _rest(stream) == b""
        await stream.aclose()
        nursery.cancel_scope.cancel()
    await listener.aclose()
    assert "the last ones are reserved" in caplog.text


async def _send_without_end(stream: trio.SocketStream, data: bytes) -> None:
    with trio.fail_after(TIMEOUT_S):
        while True:
            await stream.send_all(data)


async def _rest(stream: trio.SocketStream) -> bytes:
    found = b""
    with trio.fail_after(TIMEOUT_S):
        while part := await stream.receive_some(65536):
            found += part
    return found


async def test_it_ends_with_open_tails() -> None:
    """Read or not: a write that hypercorn shields does not hold the end up."""
    async with alone(write_s=600.0, stop_s=0.2) as (_, one):
        deaf = await one.client()
        deaf.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        assert (await deaf.begin("GET", "/v1/logs/a/tail?from=earliest")).status == 200
        for _ in range(10):
            assert (await one.ask("POST", "/v1/logs/a/records", "x" * 500_000)).status == 200
        await one.stop()
        await deaf.close()


async def test_a_broken_connection_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: without the `except` in `serve` the gateway ends."""
    async with alone() as (_, one):

        def broken(*given: object) -> object:
            raise RuntimeError("a defect of the server")

        with monkeypatch.context() as patch:
            patch.setattr(server, "GatewayServer", broken)
            bad = await one.client()
            assert await _rest(bad.stream) == b""
        assert (await one.ask("GET", "/health")).status == 200


async def test_a_defect_before_anything_was_asked_has_a_known_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was 504, "it may have happened, send it again": a producer did so for ever."""

    def broken(*given: object) -> object:
        raise RuntimeError("a defect of the gateway")

    async with alone() as (_, one):
        with monkeypatch.context() as patch:
            patch.setattr(gateway_app, "records_of", broken)
            answer = await one.ask("POST", "/v1/logs/a/records", "x")
        error = answer.json["error"]
        assert (answer.status, error["definite"], error["retryable"]) == (500, True, False)


def scope(path: str = "/v1/logs", **headers: str) -> dict[str, object]:
    named = {"host": "127.0.0.1:8491", **headers}
    return {
        "type": "http",
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }


async def test_who_is_let_in() -> None:
    async def nobody(*_: object) -> None:
        raise AssertionError("not reached")

    door = RequestGuard(
        nobody,
        GatewayMeters(),
        ONE_REQUEST,
        port=8491,
        hosts=["logs.example"],
        token="secret-of-sixteen",
    )

    def status(path: str = "/v1/logs", **headers: str) -> int:
        refused = door.check(scope(path, **headers))
        return 200 if refused is None else refused[0]

    ours = {"authorization": "Bearer secret-of-sixteen"}
    assert status(**ours) == 200
    for host in ("localhost:8491", "[::1]:8491", "logs.example", "LOGS.example:8491"):
        assert status(host=host, **ours) == 200
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:80", "logs.example:80", ""):
        assert status(host=host, **ours) == 421
    assert status(origin="http://logs.example", **ours) == 200
    for origin in ("http://evil.example", "null", "file://", "https://logs.example.evil"):
        assert status(origin=origin, **ours) == 403
    assert status() == 401
    for given in (
        "secret-of-sixteen",
        "Basic secret-of-sixteen",
        "Bearer secret-of-sixtee",
        "Bearer ",
    ):
        assert status(authorization=given) == 401
    assert status("/health") == status("/openapi.json") == 200
    assert status(x="x" * HEAD_BYTES_MAX) == 431, "the parser passes a whole head of any size"
    for name in (
        b"host origin authorization content-type content-encoding if-match last-event-id"
        b" dlog-producer dlog-sequence dlog-txid".split()
    ):
        value = dict(scope(**ours)["headers"]).get(name, b"http://localhost:8491")  # type: ignore[call-overload]
        once = scope(**ours)
        others = [one for one in once["headers"] if one[0] != name]  # type: ignore[attr-defined]
        once["headers"] = [*others, (name, value)]
        assert door.check(once) is None
        for second in (value, b"2"):
            twice = {**once, "headers": [*others, (name, value), (name, second)]}
            assert (door.check(twice) or (200,))[0] == 400, "the first one would count, unsaid"
    assert is_listen_allowed("127.0.0.1", ())
    assert not is_listen_allowed("0.0.0.0", ())
    assert is_listen_allowed("0.0.0.0", ("logs.example",))


async def test_a_large_body_is_dropped_after_its_answer_and_the_connection_stays() -> None:
    """It was closed at once: http.client and urllib reported a broken pipe, and not what was wrong."""
    body = b"x" * 8_000_000
    async with alone(body_bytes_max=100_000) as (_, one):
        client = await one.client()
        for path, status, headers in (
            ("/v1/logs/a/records", 413, {}),
            ("/v1/nothing", 404, {}),
            ("/v1/logs/a/records", 421, {"host": "elsewhere"}),
            ("/v1/logs/a/records", 415, {"content_encoding": "gzip"}),
        ):
            answer = await client.ask("POST", path, body, **headers)
            assert (answer.status, answer.json["error"]["definite"]) == (status, True)
        assert (await client.ask("POST", "/v1/logs/a/records", b"small")).status == 200
        await client.close()
        assert await one.number("records_written_total") == 1


async def test_of_a_body_without_end_so_much_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_door, "DROPPED_BYTES_MAX", 1_000_000)
    async with alone(body_bytes_max=100_000) as (_, one):
        client = await one.client()
        head = f"POST /v1/logs/a/records HTTP/1.1\r\nhost: {client.host}\r\n"
        await client.stream.send_all(f"{head}content-length: 1000000000\r\n\r\n".encode())
        with pytest.raises(trio.BrokenResourceError):
            await _send_without_end(client.stream, b"x" * 100_000)
        await client.close()
        await one.until("connections", 1)


async def test_a_request_may_name_the_gateway_in_its_target() -> None:
    """As a client of an HTTP proxy does (RFC 9112, 3.2.2): it was 404."""
    async with alone() as (_, one):
        url = f"http://{one.url.partition('://')[2]}"
        for target in (f"{url}/v1/logs?prefix=a", f"{url.replace('http', 'HTTPS')}/v1/logs"):
            answer = await one.ask("GET", target)
            assert (answer.status, answer.json.get("logs")) == (200, ["a"])
        assert (await one.ask("GET", f"{url}/health")).status == 200
        assert (await one.ask("GET", url)).status == 404, "its path is /"
        for target, headers in (
            ("http://evil.example/v1/logs", {}),
            (f"{url}/v1/logs", {"host": "evil.example"}),
            (url.replace("://", "://user@") + "/v1/logs", {}),
        ):
            assert (await one.ask("GET", target, **headers)).status == 421


async def test_connections_leave_descriptors_for_what_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many systems allow 1024: as many strangers would leave none for the links of those who are let in."""
    monkeypatch.setattr(descriptors, "limit", lambda: 1024)
    [one] = await server.listen(("127.0.0.1", 0), GatewayOptions(), GatewayMeters())
    assert one.open_connections.free_slots.value == 1024 - descriptors.FILE_DESCRIPTORS
    await one.aclose()
    options = GatewayOptions(connections_max=10)
    [one] = await server.listen(("127.0.0.1", 0), options, GatewayMeters())
    assert one.open_connections.free_slots.value == 10
    await one.aclose()


async def test_a_stream_without_window_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Over HTTP/2 a connection lives on while one of its streams takes nothing."""
    meters = GatewayMeters()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:  # as a tail has one
            nursery.start_soon(trio.sleep_forever)
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def nothing() -> Message:
        await trio.sleep_forever()

    async def never(message: Message) -> None:
        await trio.sleep_forever()

    door = RequestGuard(endless, meters, ONE_REQUEST, port=8491)
    await door({**scope(), "raw_path": b"/v1/logs"}, nothing, never)

    assert (meters.hung_up, meters.under_way) == (1, 0)


def test_the_description_and_the_routes_say_the_same() -> None:
    text = (Path(server.__file__).parent / "openapi.json").read_text()
    said = json.loads(text)

    class NoNamespace:
        class context:
            random = None

    options, meters = GatewayOptions(), GatewayMeters()
    sessions = GatewaySessions(NoNamespace(), options, meters)  # type: ignore[arg-type]
    gateway = Gateway(sessions, options, "g", meters)
    routes = {
        (route.path, method.lower())
        for route in gateway.app().routes  # type: ignore[attr-defined]
        for method in route.methods - {"HEAD"}
    }
    described = {
        (path, method)
        for path, item in said["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert routes == described

    for ref in re.findall(r'"\$ref": "#/([^"]+)"', text):
        at = said
        for part in ref.split("/"):
            at = at[part]
    for path, item in said["paths"].items():
        shared = [one.get("$ref", "").rpartition("/")[2] for one in item.get("parameters", [])]
        assert re.findall(r"{(\w+)}", path) == shared
        for method in item.keys() - {"parameters"}:
            assert item[method]["operationId"]
            assert path in ("/openapi.json", "/health") or "default" in item[method]["responses"]


async def test_answers_have_what_the_description_says() -> None:
    said = json.loads((Path(server.__file__).parent / "openapi.json").read_text())
    schemas = said["components"]["schemas"]

    def fits(answer: Answer, name: str) -> None:
        found = answer.json
        assert set(schemas[name]["required"]) <= found.keys() <= schemas[name]["properties"].keys()

    async with alone() as (_, one):
        assert (await one.ask("GET", "/openapi.json")).json == said
        fits(await one.ask("POST", "/v1/logs/a/producers"), "Producer")
        fits(await one.ask("POST", "/v1/logs/a/records", "x"), "Stored")
        read = await one.ask("GET", "/v1/logs/a/records?wait_s=30")
        fits(read, "Records")
        [record] = read.json["records"]
        record_schema = schemas["Record"]
        assert set(record_schema["required"]) <= record.keys() <= record_schema["properties"].keys()
        fits(await one.ask("GET", "/v1/logs/a"), "Log")
        missing = await one.ask("GET", "/v1/logs/b")
        fits(missing, "Fault")
        assert set(missing.json["error"]) == set(
            schemas["Fault"]["properties"]["error"]["required"]
        )


@pytest.mark.parametrize(
    "line",
    [
        "1",
        "[]",
        "{}",
        '{"payload": 1}',
        '{"payload": 0}',
        '{"payload": false}',
        '{"payload": []}',
        '{"payload": {}}',
        '{"payload_base64": false}',
        '{"payload": "a", "payload_base64": ""}',
        '{"payload_base64": "?"}',
        '{"payload_base64": "YQ"}',
        '{"payload": "a", "txid": true}',
        '{"payload": "a", "txid": -1}',
        '{"payload": "a", "txid": 9223372036854775807}',
        '{"payload": "a", "more": 1}',
        '"\\ud800"',
        '{"payload": "a", "key": 1}',
        '{"payload": "a", "key": "", "key_base64": ""}',
        '{"payload": "a", "key": false}',
        '{"payload": "a", "txid": 1.0}',
        '{"payload": "a", "txid": "1"}',
        '{"payload": "a", "txid": false}',
        '{"payload": "a", "headers": 0}',
        '{"payload": "a", "headers": false}',
        '{"payload": "a", "headers": ""}',
        '{"payload": "a", "headers": {}}',
        '{"payload": "a", "headers": [[]]}',
        '{"payload": "a", "headers": [{"name": 0, "value": "b"}]}',
        '{"payload": "a", "headers": {"name": "a", "value": "b"}}',
        '{"payload": "a", "headers": [{"name": "a"}]}',
        '{"payload": "a", "headers": [{"name": "a", "value": "b", "more": 1}]}',
        json.dumps({"payload": "a", "headers": [{"name": "", "value": ""}] * 65}),
        '"a"\n{"payload": "b", "txid": 1}',
        "\xff",
        "{" * 10_000,
    ],
)
def test_a_line_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequest):
        records_of(True, line.encode("latin-1"), None, 10)


@pytest.mark.parametrize("line", ["[]", "null"])
def test_a_record_without_headers_may_say_so(line: str) -> None:
    records = records_of(True, b'{"payload": "a", "headers": %s}' % line.encode(), None, 10)
    assert records.payloads == [b"a"]


@pytest.mark.parametrize(
    "text", ["", "nan", "-1", "31", "inf", "1_0", " 1", "\u0661", "0x1", "1s", "1" * 100_000 + "s"]
)
def test_a_text_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    """`float` accepts more texts than a number of seconds has."""
    with pytest.raises(InvalidRequest):
        parse_seconds("wait_s", text, 30.0)


def test_seconds_may_have_fractions() -> None:
    assert [parse_seconds("wait_s", text, 30.0) for text in ("0", "30", "0.5", ".5", "1e1")] == [
        0, 30, 0.5, 0.5, 10,
    ]  # fmt: skip


WRONG_TYPES: tuple[Any, ...] = (0, 1, True, False, "x", [], {}, None, 1.5)


async def test_a_field_of_a_wrong_type_is_an_invalid_request() -> None:
    async with alone() as (_, one):
        requests = [("PUT", "/v1/logs/new", "txids", value) for value in WRONG_TYPES]
        requests += [("PUT", "/v1/logs/new", "durability", value) for value in WRONG_TYPES]
        requests += [
            ("PUT", "/v1/logs/new", "config", value)
            for value in WRONG_TYPES
            if value not in ({}, None)
        ]
        requests += [
            ("POST", "/v1/logs/a/producers", "name", value) for value in WRONG_TYPES if value != "x"
        ]
        client = await one.client()
        for method, path, field, value in requests:
            answer = await client.ask(method, path, json.dumps({field: value}))
            found = (answer.status, answer.json["error"]["name"])
            assert found == (400, "InvalidRequest"), (field, value)
        for body in ("0", "[]", "false", '""', "null"):
            assert (await client.ask("PUT", "/v1/logs/new", body)).status == 400, body
        assert (await client.ask("GET", "/v1/logs/new")).status == 404
        await client.close()


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/x-jsonl",
        "application/jsonlines",
        "application/json-lines",
        "application/x-json-stream",
        "application/stream+json",
        "text/x-ndjson",
        "APPLICATION/X-NDJSON",
        "application/jsonl;charset=UTF-8",
        'application/jsonl; charset="utf-8"',
    ],
)
def test_json_lines_have_many_names(kind: str) -> None:
    """Their lines became one record."""
    assert is_json_lines(kind)


def test_a_body_of_another_type_is_one_record_or_refused() -> None:
    for kind in ("", ";;;", "application/json", "text/plain", "image/jsonl"):
        assert not is_json_lines(kind)
    assert not is_json_lines("application/x-www-form-urlencoded"), "curl says so of `-d`"
    for kind in ("multipart/form-data; boundary=x", "application/jsonl; charset=utf-16"):
        with pytest.raises(RejectedRequest) as refused:
            is_json_lines(kind)
        assert refused.value.status == 415


@pytest.mark.parametrize("text", ["", "7", "x:a", "0:a", "-1:a", "7:", "7:%ff", f"{1 << 64}:a"])
def test_what_is_no_producer_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        ProducerRef.parse(text)


def test_a_producer_is_written_so_that_it_is_read() -> None:
    for name in ("a", "a b/ü:%", "\u2603" * 85):
        found = ProducerRef(1 << 63, name)
        assert ProducerRef.parse(str(found)) == found
        assert str(found).isascii()


async def test_of_an_opening_that_takes_too_long_it_is_not_said_that_it_did_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """G7: who had the name may have been fenced by it."""

    class Slow:
        end_error = None

        @property
        def sequenced_writer(self) -> "Slow":
            return self

        async def open_writer(self) -> "Slow":
            return self

        async def open_producer(self, name: str) -> None:
            await trio.sleep_forever()

    slow = Slow()
    namespace: Any = SimpleNamespace(
        context=SimpleNamespace(random=Random(1)), open_log=lambda log: slow
    )
    appending = AppendHandler(namespace, GatewayOptions(), GatewayMeters())

    with pytest.raises(OutcomeUnknown) as unknown:
        await appending.open_producer("orders", "me")
    assert error_response(unknown.value, "POST …/producers", is_write=True)[0] == 504


async def test_a_gateway_that_lost_the_log_says_no_to_no_producer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """H64: another gateway has it by now, and knows producers that this one does not."""

    class Lost:
        end_error = None

        @property
        def sequenced_writer(self) -> "Lost":
            return self

        async def open_writer(self) -> "Lost":
            return self

        def resume_producer(self, name: str, number: int) -> None:
            raise ProducerForgotten("as far as is known here")

        async def check_owner(self) -> None:
            raise WriterFenced("another one has it")

    lost = Lost()
    namespace: Any = SimpleNamespace(
        context=SimpleNamespace(random=Random(1)), open_log=lambda log: lost
    )
    appending = AppendHandler(namespace, GatewayOptions(), GatewayMeters())

    with pytest.raises(WriterFenced):
        await appending.append_once(
            "orders", ProducerRef(3, "me"), 0, SubmittedRecords([b"x"], None), None
        )
