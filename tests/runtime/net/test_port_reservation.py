"""A port that is held has nobody else, and who is told of it listens there."""

import os
import socket

import pytest
import trio

from distributedlog.runtime.interfaces.errors import AddressInUse, ConnectionLost
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.net import tcp
from distributedlog.runtime.net.port_reservation import ReservedPorts, is_listened_on


async def _free() -> Address:
    listener = await tcp.listen(("127.0.0.1", 0))
    listener.close()
    return listener.address


async def test_one_has_it_and_one_listens_there_as_often_as_it_starts() -> None:
    place = await _free()
    with ReservedPorts() as ports, ReservedPorts() as others:
        ports.reserve(place)
        for _ in range(2):  # a node that was killed comes back, and has connections from before
            with pytest.raises(AddressInUse, match=str(place[1])):
                others.reserve(place)
            with pytest.raises(ConnectionLost):
                await tcp.dial(place)
            listener = await tcp.listen(place)
            with pytest.raises(AddressInUse):
                await tcp.listen(place)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tcp.dial, place)
                (await listener.accept()).close()
            listener.close()
        ports.close()
        ports.close()


async def test_who_listens_is_not_disturbed_and_has_it_alone() -> None:
    with ReservedPorts() as ports:
        place = await _free()
        ports.reserve(place)
        listener = await tcp.listen(place)
    with ReservedPorts() as others, pytest.raises(AddressInUse):
        others.reserve(place)
    connection = await tcp.dial(place)
    connection.close()
    listener.close()


def test_a_forked_child_holds_nothing() -> None:
    place = trio.run(_free)
    ports = ReservedPorts()
    ports.reserve(place)
    (there, say), (wait, end) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.write(say, b"x")
        os.read(wait, 1)
        os._exit(0)
    assert os.read(there, 1)
    ports.close()
    with ReservedPorts() as again:
        again.reserve(place)
    for descriptor in (there, say, wait, end):
        os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0


def test_a_port_is_listened_on_while_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert is_listened_on(address)

    assert not is_listened_on(address)


def test_a_connection_to_itself_is_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may choose the dialed port as the local port of the same connection."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = sock.getsockname()
        sock.connect(address)
        monkeypatch.setattr(socket, "create_connection", lambda *_, **__: sock)

        assert not is_listened_on(address)
