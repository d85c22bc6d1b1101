"""What only real sockets show: names, families, a lack of descriptors."""

import contextlib
import errno
import os
import resource
import socket

import pytest
import trio
import trio.testing

from distributedlog.runtime.interfaces.errors import (
    REFUSED,
    AddressInUse,
    AddressUnavailable,
    ConnectionLost,
)
from distributedlog.runtime.interfaces.host import Connection
from distributedlog.runtime.net import tcp
from distributedlog.runtime.net.tcp import (
    TcpConnection,
    TcpListener,
    dial,
    format_address,
    is_loopback,
    listen,
)


async def test_errors_name_the_address_and_the_reason() -> None:
    listener = await listen(("127.0.0.1", 0))
    port = listener.address[1]

    with pytest.raises(AddressInUse, match=f"127.0.0.1:{port} is in use"):
        await listen(("127.0.0.1", port))
    listener.close()
    with pytest.raises(
        ConnectionLost, match=f"127.0.0.1:{port}: no connection: connection refused"
    ) as refused:
        await dial(("127.0.0.1", port))
    assert refused.value.detail == REFUSED


async def test_address_or_name_that_may_come_later_is_unavailable_and_not_a_wrong_usage() -> None:
    """At boot a node starts before its address or name service; wrong usage is never started again."""
    with pytest.raises(
        AddressUnavailable, match=r"cannot listen on 192\.0\.2\.1:4181: "
    ) as missing:
        await listen(("192.0.2.1", 4181))  # an address that no machine has
    with pytest.raises(AddressUnavailable, match=r"no-such-host\.invalid:4181"):
        await listen(("no-such-host.invalid", 4181))
    assert missing.value.exit_code == 4


async def test_a_name_that_is_not_known_is_said_to_be_that() -> None:
    with pytest.raises(
        ConnectionLost, match=r"no-such-host\.invalid:4181: .*name cannot be resolved"
    ) as unknown:
        await dial(("no-such-host.invalid", 4181))
    assert unknown.value.detail != REFUSED


async def test_who_has_no_descriptor_for_a_dial_does_not_say_that_it_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor do others who cannot know whether anybody listens there: who was refused is taken for gone."""
    listener = await listen(("127.0.0.1", 0))

    async def starved(*args: object) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(trio, "open_tcp_stream", starved)
    with pytest.raises(ConnectionLost) as lost:
        await dial(listener.address)
    assert lost.value.detail != REFUSED
    listener.close()


async def test_a_broken_connection_says_that_it_was_reset() -> None:
    listener = await listen(("127.0.0.1", 0))
    dialled = await dial(listener.address)
    accepted = await listener.accept()
    assert isinstance(accepted, TcpConnection)
    linger = b"\1\0\0\0\0\0\0\0"  # close with a reset
    accepted._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    accepted.close()

    with pytest.raises(ConnectionLost, match=f"{listener.address[1]} broke: connection reset"):
        await dialled.receive_into(memoryview(bytearray(1)))
    with pytest.raises(ConnectionLost, match="broke: connection reset"):
        dialled.try_send((b"x",))
    dialled.close()
    listener.close()


async def test_an_empty_host_listens_everywhere() -> None:
    listener = await listen(("", 0))
    port = listener.address[1]

    dialled = await dial(("127.0.0.1", port))
    accepted = await listener.accept()

    assert dialled.peer == f"127.0.0.1:{port}"
    assert accepted.peer.startswith("127.0.0.1:")
    for end in (dialled, accepted):
        end.close()
    listener.close()


async def test_a_name_is_tried_at_all_its_addresses() -> None:
    """``localhost`` is often ::1 first, where nobody listens."""
    listener = await listen(("127.0.0.1", 0))

    dialled = await dial(("localhost", listener.address[1]))

    assert dialled.peer == f"localhost:{listener.address[1]}"
    (await listener.accept()).close()
    dialled.close()
    listener.close()


async def test_delays_are_off_and_keepalive_is_on() -> None:
    listener = await listen(("127.0.0.1", 0))
    dialled = await dial(listener.address)
    accepted = await listener.accept()

    for end in (dialled, accepted):
        assert isinstance(end, TcpConnection)
        assert end._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        end.close()
    listener.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system has no such choice")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_nothing_is_paced_within_a_machine(host: str) -> None:
    """Both ends: what one sends is its own end's to pace."""
    listener = await listen((host, 0))
    dialled = await dial(listener.address)
    accepted = await listener.accept()

    for end in (dialled, accepted):
        assert isinstance(end, TcpConnection)
        control = end._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert control.rstrip(b"\0") == b"reno"
        end.close()
    listener.close()


@pytest.mark.parametrize(
    ("host", "within"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::ffff:127.0.0.1", True),
        ("::1", True),
        ("10.127.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("128.0.0.1", False),
        ("0.0.0.0", False),
    ],
)
def test_between_machines_the_control_is_the_systems(host: str, within: bool) -> None:
    assert is_loopback(host) is within


async def test_accept_outlives_a_lack_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "NO_DESCRIPTOR_WAIT_S", 0.001)
    listener = await listen(("127.0.0.1", 0))
    dialled = await dial(listener.address)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    accepted: list[Connection] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        highest = os.dup(0)
        os.close(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))  # the lowest free number
        try:
            nursery.start_soon(accept)
            await trio.sleep(0.005)
            assert accepted == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert len(accepted) == 1
    accepted[0].close()
    dialled.close()
    listener.close()


async def test_the_last_descriptors_are_not_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are kept for files: such a connection is hung up on at once, and the next one is let in."""
    monkeypatch.setattr(tcp, "NO_DESCRIPTOR_WAIT_S", 0.001)
    listener = await listen(("127.0.0.1", 0))
    assert isinstance(listener, TcpListener)
    listener._first_reserved = 3
    beyond = await dial(listener.address)
    accepted: list[Connection] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        with trio.fail_after(5), contextlib.suppress(ConnectionLost):
            assert await beyond.receive_into(memoryview(bytearray(1))) == 0
        assert accepted == []
        listener._first_reserved = 1 << 20
        within = await dial(listener.address)

    assert len(accepted) == 1
    for end in (accepted[0], beyond, within):
        end.close()
    listener.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "h\0x", "\udc80"])
async def test_a_host_that_is_no_name_is_a_lost_connection(host: str) -> None:
    """A registration may say anything: who dials it goes on."""
    with pytest.raises(ConnectionLost):
        await dial((host, 80))


async def test_a_closed_listener_wakes_its_accept() -> None:
    listener = await listen(("127.0.0.1", 0))
    assert isinstance(listener, TcpListener)

    async def accept() -> None:
        with pytest.raises(ConnectionLost, match="was closed here"):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked(0.001)
        listener.close()
    with pytest.raises(ConnectionLost):
        await listener.accept()


async def test_one_is_not_connected_to_oneself() -> None:
    """The system may choose, for our own end, the very port that we dial and nobody listens on."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    address = sock.getsockname()
    sock.connect(address)
    assert sock.getsockname() == sock.getpeername()  # this is what happens then
    sock.close()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("10.0.0.3", 4181), "10.0.0.3:4181"),
        (("::1", 1), "[::1]:1"),
        (("::ffff:10.0.0.3", 1, 0, 0), "10.0.0.3:1"),
        (("bookie-1", 1), "bookie-1:1"),
    ],
)
def test_places(address: tuple[object, ...], text: str) -> None:
    assert format_address(address) == text
