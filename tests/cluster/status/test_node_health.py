"""A node says of itself whether it is well, over its own protocol and over HTTP."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from distributedlog.cluster.declarations.options import (
    WRITE_PROXY,
    BookieNodeConfig,
    MetadataNodeConfig,
    NodeReady,
    ProxyNodeConfig,
)
from distributedlog.cluster.nodes import serve_node
from distributedlog.cluster.process.http_server import (
    CONNECTIONS_MAX,
    REQUEST_S,
    NodePage,
    as_page,
    header_bytes,
    is_allowed_host,
    serve_http,
)
from distributedlog.cluster.process.process_lifetime import first_error
from distributedlog.cluster.status.node_health import (
    NodeHealth,
    address_to_dial,
    health_at,
    query_health,
)
from distributedlog.metadata.model import cluster_version
from distributedlog.runtime.declarations.versions import UNREPORTED, VERSION
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import ConnectionLost, UnsupportedFormat
from distributedlog.runtime.interfaces.host import Connection, Host
from distributedlog.runtime.machine import real_host

from ...runtime.pipe import PipeNetwork

UP = NodeHealth(True, "up", 1.5)
Dial = Callable[[], Awaitable[Connection]]


def _disks(*roles: str) -> dict[str, MemoryDisk]:
    return {role: MemoryDisk() for role in roles}


@asynccontextmanager
async def _metadata(voters: int = 1) -> AsyncIterator[tuple[Host, NodeReady, trio.Nursery]]:
    """The first node of a quorum; the others are never there."""
    host = real_host("m", disks=_disks("metadata"))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = [await host.listen(("127.0.0.1", 0)) for _ in range(voters)]
            places = {f"m{number}": one.address for number, one in enumerate(listeners)}
            for listener in listeners:
                listener.close()
            ready = await nursery.start(serve_node, host, MetadataNodeConfig("m0", places))
            yield host, ready, nursery
            nursery.cancel_scope.cancel()


async def test_a_node_says_its_role() -> None:
    async with _metadata() as (host, metadata, nursery):
        config = BookieNodeConfig("b", (metadata.address,), metadata_timeout_s=5)
        disks = _disks("journal", "index")
        bookie = await nursery.start(serve_node, real_host("b", disks=disks), config)

        led, stored = (
            await query_health(host, metadata.address),
            await query_health(host, bookie.address),
        )

    assert (led.healthy, led.state) == (True, "leader")
    assert (stored.healthy, stored.state) == (True, "up")
    assert stored.answer_ms > 0
    assert led.version == stored.version == stored.as_json()["version"] == VERSION


async def test_node_below_the_finalized_version_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _metadata() as (_, metadata, nursery):
        address = metadata.address
        bookie = BookieNodeConfig("b", (address,), metadata_timeout_s=5)
        disks = _disks("journal", "index")
        ended = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[NodeReady]) -> None:
            with ended:
                await serve_node(real_host("b", disks=disks), bookie, task_status=task_status)

        await nursery.start(serve)  # the cluster has its version then
        ended.cancel()
        monkeypatch.setattr(cluster_version, "CURRENT", UNREPORTED)
        for host, config in (
            (real_host("b", disks=_disks("journal", "index")), bookie),
            (real_host("p"), ProxyNodeConfig("p", WRITE_PROXY, (address,))),
        ):
            with pytest.raises(BaseExceptionGroup) as refused:
                await nursery.start(serve_node, host, config)
            assert isinstance(first_error(refused.value), UnsupportedFormat)


async def test_a_metadata_node_that_waits_for_its_peers_is_well() -> None:
    """To start it again would help nobody; whether the cluster works is another question."""
    async with _metadata(voters=3) as (host, ready, _):
        found = await query_health(host, ready.address)

    assert found.healthy
    assert found.state == "empty"


async def test_a_node_that_is_not_there_or_says_nothing_is_not_well(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = PipeNetwork(1)
    silent = await network.host("node").listen(("node", 0))
    asker = network.host("asker")

    found = await query_health(asker, silent.address, timeout_s=2)
    assert not found.healthy
    assert found.state == "RequestTimeout: no answer within 2 s"
    assert trio.current_time() >= 2

    silent.close()
    found = await query_health(asker, silent.address)
    assert not found.healthy
    assert "ConnectionLost" in found.state


async def test_a_node_that_has_not_started_is_not_well() -> None:
    assert await health_at(real_host("n"), []) == NodeHealth(False, "starting")


def test_a_node_that_listens_everywhere_is_asked_on_its_own_machine() -> None:
    assert address_to_dial(("0.0.0.0", 1)) == ("127.0.0.1", 1)
    assert address_to_dial(("::", 1)) == ("::1", 1)
    assert address_to_dial(("h", 1)) == ("h", 1)


# --- over HTTP ------------------------------------------------------------------------------------


@asynccontextmanager
async def _door(health: NodeHealth = UP) -> AsyncIterator[Dial]:
    network = PipeNetwork(3)
    listener = await network.host("node").listen(("node", 0))

    async def ask() -> NodePage:
        return as_page(200 if health.healthy else 503, health.as_json())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_http, listener, {"/health": ask}, {"node.example.org"})
        yield lambda: network.host("asker").dial(listener.address)
        nursery.cancel_scope.cancel()


async def _read(connection: Connection) -> bytes:
    buffer, found = memoryview(bytearray(4096)), b""
    while count := await connection.receive_into(buffer):
        found += bytes(buffer[:count])
    return found


async def _asked(dial: Dial, request: bytes) -> tuple[int, bytes]:
    """(status, body)"""
    connection = await dial()
    try:
        with suppress(ConnectionLost):  # an answer may come before the whole question is out
            while request:
                request = request[connection.try_send([request]) :]
                await connection.wait_writable()
        head, _, body = (await _read(connection)).partition(b"\r\n\r\n")
    finally:
        connection.close()
    return int(head.split(b" ", 2)[1]), body


@pytest.mark.parametrize(("health", "status"), [(UP, 200), (NodeHealth(False, "starting"), 503)])
async def test_the_status_says_whether_the_node_is_well(
    health: NodeHealth, status: int, autojump_clock: object
) -> None:
    async with _door(health) as dial:
        found, body = await _asked(dial, b"GET /health HTTP/1.1\r\nHost: n\r\n\r\n")

    assert found == status
    assert json.loads(body) == health.as_json()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health?verbose=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: n\r\n\r\n", 404),
        (b"POST /health HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"\x00\x01 what is this\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
        (
            b"GET /health HTTP/1.1\r\nHost: n\r\n" + 400 * (b"X: " + b"x" * 40 + b"\r\n") + b"\r\n",
            431,
        ),
        (b"GET /health HTTP/1.1\r\nHost: evil.example.org\r\n\r\n", 421),
        (b"GET /health HTTP/1.1\r\nHost: node.example.org.:8480\r\n\r\n", 200),
    ],
)
async def test_anything_else_is_answered_and_does_no_harm(
    request_: bytes, status: int, autojump_clock: object
) -> None:
    async with _door() as dial:
        assert (await _asked(dial, request_))[0] == status
        assert (await _asked(dial, b"GET /health HTTP/1.0\r\n\r\n"))[0] == 200


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("b1", True), ("localhost:8480", True), ("10.0.0.7", True), ("10.0.0.7:80", True),
        ("[::1]:8480", True), ("[fe80::1]", True), ("B1.Example.org", True), ("b1.example.org:1", True),
        ("127.evil.org", False), ("b1.example.org.evil.org", False), ("", False),
        ("10.0.0.7.evil.org:80", False),
    ],
)  # fmt: skip
def test_a_page_of_another_site_does_not_name_this_node(host: str, own: bool) -> None:
    """It would read what the node says by a domain of its own that leads here (DNS rebinding)."""
    assert is_allowed_host(host, {"b1.example.org"}) is own


async def test_a_head_request_has_no_body(autojump_clock: object) -> None:
    async with _door() as dial:
        assert await _asked(dial, b"HEAD /health HTTP/1.0\r\n\r\n") == (200, b"")
        assert await _asked(dial, b"HEAD / HTTP/1.0\r\n\r\n") == (404, b"")


async def test_who_says_nothing_makes_room_for_who_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _door() as dial:
        idle = [await dial() for _ in range(CONNECTIONS_MAX)]
        await trio.sleep(1)

        assert (await _asked(dial, b"GET /health HTTP/1.0\r\n\r\n"))[0] == 200
        assert trio.current_time() < REQUEST_S
        with suppress(ConnectionLost):
            assert await _read(idle[0]) == b"", "the oldest was hung up on"
        await trio.sleep(REQUEST_S)
        assert (await _asked(dial, b"GET /health HTTP/1.0\r\n\r\n"))[0] == 200
        for connection in idle:
            connection.close()


def test_headers_count_with_their_separators() -> None:
    """As on the wire: ``name: value`` and the end of the line."""
    assert header_bytes([]) == 0
    assert header_bytes([(b"host", b"node1"), (b"accept", b"*/*")]) == len(
        b"host: node1\r\naccept: */*\r\n"
    )
