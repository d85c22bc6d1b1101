"""What every `Connection` and `Listener` does, real and simulated
(distributedlog/runtime/interfaces/host.py)."""

import random
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from distributedlog.runtime.interfaces.errors import AddressInUse, ConnectionLost
from distributedlog.runtime.interfaces.host import Connection, Host
from tests.runtime.contract_sides import NetworkWorld, settle


async def connect(world: NetworkWorld) -> tuple[Connection, Connection]:
    """The two ends of a connection: who dialled, who accepted."""
    server, client = world.host("server"), world.host("client")
    listener = await server.listen(world.address("server"))
    dialled = await client.dial(listener.address)
    accepted = await listener.accept()
    await settle(dialled, accepted)
    listener.close()
    return dialled, accepted


@pytest.fixture
async def ends(network: NetworkWorld) -> AsyncIterator[tuple[Connection, Connection]]:
    dialled, accepted = await connect(network)
    yield dialled, accepted
    dialled.close()
    accepted.close()


async def send_all(connection: Connection, data: bytes) -> None:
    view = memoryview(data)
    while view:
        sent = connection.try_send((view,))
        view = view[sent:]
        if view:
            await connection.wait_writable()


async def receive_exactly(connection: Connection, length: int) -> bytes:
    data = memoryview(bytearray(length))
    have = 0
    while have < length:
        received = await connection.receive_into(data[have:])
        assert received, f"the stream ended after {have} of {length} bytes"
        have += received
    return bytes(data)


async def test_bytes_go_both_ways(ends: tuple[Connection, Connection]) -> None:
    for sender, receiver in (ends, ends[::-1]):
        await send_all(sender, b"hello" * 100)
        assert await receive_exactly(receiver, 500) == b"hello" * 100


async def test_peers_are_named(ends: tuple[Connection, Connection]) -> None:
    assert all(isinstance(end.peer, str) and end.peer for end in ends)


async def test_many_buffers_are_sent_in_order(ends: tuple[Connection, Connection]) -> None:
    """More of them than the system takes at once, empty ones too."""
    dialled, accepted = ends
    buffers = [b"%04d" % n if n % 7 else b"" for n in range(3000)]
    expected = b"".join(buffers)

    async def send() -> None:
        sent = dialled.try_send([memoryview(buffer) for buffer in buffers])
        await send_all(dialled, expected[sent:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await receive_exactly(accepted, len(expected)) == expected


async def test_sending_nothing_is_nothing(ends: tuple[Connection, Connection]) -> None:
    assert ends[0].try_send([]) == 0
    assert ends[0].try_send([b"", b""]) == 0


async def test_received_bytes_fill_the_buffers_in_order(
    ends: tuple[Connection, Connection],
) -> None:
    dialled, accepted = ends
    await send_all(dialled, b"abcdefgh")
    got = b""

    while len(got) < 8:
        small, rest = memoryview(bytearray(3)), memoryview(bytearray(100))
        received = await accepted.receive_into(small, rest)
        assert received > 0
        got += (bytes(small) + bytes(rest))[:received]

    assert got == b"abcdefgh"


async def test_a_full_connection_takes_no_more_until_it_is_read(
    ends: tuple[Connection, Connection],
) -> None:
    dialled, accepted = ends
    block = bytes(64 * 1024)
    sent = 0
    for _ in range(10_000):
        count = dialled.try_send((block,))
        sent += count
        if count == 0:
            break
    assert dialled.try_send((block,)) == 0
    with trio.move_on_after(0.01) as scope:
        await dialled.wait_writable()
    assert scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_exactly, accepted, sent)
        await dialled.wait_writable()
        assert dialled.try_send((b"\0",)) == 1  # the next byte of what was not taken
    assert await receive_exactly(accepted, 1) == b"\0"


async def test_a_long_stream_arrives_whole_at_any_cut(ends: tuple[Connection, Connection]) -> None:
    dialled, accepted = ends
    draw = random.Random(1)
    data = draw.randbytes(1_000_000)
    got = bytearray()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, dialled, data)
        while len(got) < len(data):
            buffer = memoryview(bytearray(draw.choice((1, 100, 5000, 100_000))))
            count = await accepted.receive_into(buffer)
            got += buffer[:count]

    assert bytes(got) == data


async def test_the_peers_close_is_an_end_after_all_it_sent(
    ends: tuple[Connection, Connection],
) -> None:
    dialled, accepted = ends
    await send_all(dialled, b"last words")

    dialled.close()

    assert await receive_exactly(accepted, 10) == b"last words"
    assert await accepted.receive_into(memoryview(bytearray(10))) == 0
    assert await accepted.receive_into(memoryview(bytearray(10))) == 0


async def test_sending_to_a_peer_that_closed_fails_soon(
    ends: tuple[Connection, Connection],
) -> None:
    dialled, accepted = ends
    accepted.close()

    async def send_on() -> None:
        while True:
            dialled.try_send((b"x" * 1000,))
            await trio.sleep(0.001)

    with pytest.raises(ConnectionLost), trio.fail_after(5):
        await send_on()


async def test_close_wakes_whoever_waits(ends: tuple[Connection, Connection]) -> None:
    dialled, _ = ends
    while dialled.try_send((bytes(64 * 1024),)):
        pass
    lost: list[str] = []

    async def receive() -> None:
        with pytest.raises(ConnectionLost):
            await dialled.receive_into(memoryview(bytearray(10)))
        lost.append("receive")

    async def wait_writable() -> None:
        with pytest.raises(ConnectionLost):
            await dialled.wait_writable()
        lost.append("writable")

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            nursery.start_soon(wait_writable)
            await trio.testing.wait_all_tasks_blocked(0.01)
            dialled.close()

    assert sorted(lost) == ["receive", "writable"]


async def test_a_closed_connection_says_so(ends: tuple[Connection, Connection]) -> None:
    dialled, _ = ends
    dialled.close()
    dialled.close()

    with pytest.raises(ConnectionLost):
        dialled.try_send((b"x",))
    with pytest.raises(ConnectionLost):
        await dialled.receive_into(memoryview(bytearray(1)))
    with pytest.raises(ConnectionLost):
        await dialled.wait_writable()


async def test_a_receive_that_was_cancelled_took_nothing(
    ends: tuple[Connection, Connection],
) -> None:
    dialled, accepted = ends
    with trio.move_on_after(0.001):
        await accepted.receive_into(memoryview(bytearray(10)))

    await send_all(dialled, b"kept")
    with trio.CancelScope() as scope:
        scope.cancel()
        await accepted.receive_into(memoryview(bytearray(10)))

    assert scope.cancelled_caught
    assert await receive_exactly(accepted, 4) == b"kept"


async def test_nothing_runs_between_the_read_and_the_return(network: NetworkWorld) -> None:
    """A buffer that many connections share may be parsed before the next await (H17, H36)."""
    shared = memoryview(bytearray(1000))
    pairs = [await connect(network) for _ in range(4)]
    wrong: list[bytes] = []

    async def read(connection: Connection, own: bytes) -> None:
        have = 0
        while have < 50_000:
            count = await connection.receive_into(shared)
            if bytes(shared[:count]) != own * count:
                wrong.append(own)
            have += count

    async with trio.open_nursery() as nursery:
        for n, (dialled, accepted) in enumerate(pairs):
            nursery.start_soon(read, accepted, b"%d" % n)
            nursery.start_soon(send_all, dialled, b"%d" % n * 50_000)

    assert wrong == []
    for dialled, accepted in pairs:
        dialled.close()
        accepted.close()


async def test_nobody_listening_is_a_lost_connection(network: NetworkWorld) -> None:
    server, client = network.host("server"), network.host("client")
    listener = await server.listen(network.address("server"))
    listener.close()
    listener.close()

    with pytest.raises(ConnectionLost, match=str(listener.address[1])):
        await client.dial(listener.address)


async def test_an_address_is_listened_on_once(network: NetworkWorld) -> None:
    server = network.host("server")
    listener = await server.listen(network.address("server"))
    assert listener.address[1] != 0

    with pytest.raises(AddressInUse, match=str(listener.address[1])):
        await server.listen(listener.address)

    listener.close()
    again = await server.listen(listener.address)  # a restart finds its port free
    assert again.address == listener.address
    again.close()


async def test_a_port_is_free_again_though_its_connections_live(network: NetworkWorld) -> None:
    """A node that restarts while its clients still hold the old connections."""
    server, client = network.host("server"), network.host("client")
    listener = await server.listen(network.address("server"))
    dialled = await client.dial(listener.address)
    accepted = await listener.accept()
    await settle(dialled, accepted)
    listener.close()
    accepted.close()

    again = await server.listen(listener.address)
    second = await client.dial(again.address)
    fresh = await again.accept()
    await settle(second, fresh)

    await send_all(second, b"new")
    assert await receive_exactly(fresh, 3) == b"new"
    again.close()
    for end in (dialled, second, fresh):
        end.close()


async def test_listeners_give_connections_in_turn(network: NetworkWorld) -> None:
    server, client = network.host("server"), network.host("client")
    listener = await server.listen(network.address("server"))
    dialled = [await client.dial(listener.address) for _ in range(3)]

    accepted = [await listener.accept() for _ in range(3)]
    await settle(*dialled, *accepted)
    for n, end in enumerate(dialled):
        await send_all(end, b"%d" % n)

    assert [await receive_exactly(end, 1) for end in accepted] == [b"0", b"1", b"2"]
    listener.close()
    for end in (*dialled, *accepted):
        end.close()


def test_a_world_gives_hosts(network: NetworkWorld) -> None:
    assert isinstance(network.host("a"), Host)
