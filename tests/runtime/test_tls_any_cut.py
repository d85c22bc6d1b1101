"""TLS over a pipe of any size, offered and received in whatever cuts: each byte once, in order."""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.net.tls import (
    BURST_BYTES,
    ENCRYPT_CHUNK_BYTES,
    RECORD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Tls,
    TlsConnection,
    with_tls,
)

from .contract_sides import settle
from .pipe import PipeNetwork
from .pki import directory_of

SIZES = st.one_of(st.integers(1, 100), st.integers(1, 40_000), st.integers(1, 400_000))
WAITING_BYTES_MAX = BURST_BYTES + ENCRYPT_CHUNK_BYTES
WAITING_MORE_BYTES_MAX = (WAITING_BYTES_MAX // RECORD_BYTES + 2) * RECORD_OVERHEAD_BYTES


async def pairs_of(network: PipeNetwork, count: int) -> list[tuple[TlsConnection, TlsConnection]]:
    """Connections of one host to another, as processes have them: who dialled, who accepted."""
    listener = await with_tls(network.host("s"), Tls(directory_of("bookie/b1"))).listen(("s", 0))
    host = with_tls(network.host("c"), Tls(directory_of("user/etl")))
    pairs = []
    for _ in range(count):
        dialled, accepted = await host.dial(listener.address), await listener.accept()
        assert isinstance(dialled, TlsConnection)
        assert isinstance(accepted, TlsConnection)
        await settle(dialled, accepted)
        pairs.append((dialled, accepted))
    return pairs


async def cut_short(chance: random.Random, call: Callable[[], Awaitable[None]]) -> None:
    """Cancel it after some turns, if it still waits then; or do not."""
    turns = chance.choice([0, 1, 3, 30, None])
    if turns is None:
        await call()
        return

    async def cancel() -> None:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        await call()
        nursery.cancel_scope.cancel()


def waiting_bytes(end: TlsConnection) -> int:
    """What an end keeps that the socket has not taken."""
    return sum(map(len, end._unsent)) + end._outgoing.pending


async def send(end: TlsConnection, data: bytes, chance: random.Random, offered: list[int]) -> None:
    """As links do: what was not taken comes first again, in other cuts; what was taken nobody pushes."""
    at = 0

    async def wait() -> None:
        await end.wait_writable()

    while at < len(data):
        parts, stop = [], at
        for _ in range(chance.randint(1, 40)):
            begin, stop = stop, stop + chance.choice(offered)
            parts.append(memoryview(data)[begin:stop])
        sent = end.try_send(parts)
        assert sent <= sum(map(len, parts))
        assert waiting_bytes(end) <= WAITING_BYTES_MAX + WAITING_MORE_BYTES_MAX
        at += sent
        if not sent:
            await cut_short(chance, wait)
        elif chance.random() < 0.3:
            await trio.lowlevel.checkpoint()
    assert not waiting_bytes(end)


async def receive(
    end: TlsConnection, data: bytes, chance: random.Random, windows: list[int]
) -> None:
    got = bytearray()

    async def once() -> None:
        buffers = [
            memoryview(bytearray(chance.choice(windows))) for _ in range(chance.randint(1, 3))
        ]
        count = await end.receive_into(*buffers)
        assert count, "nobody closes it"
        got.extend(b"".join(buffers)[:count])
        room = sum(map(len, buffers))
        inside = end._incoming.pending
        assert inside <= max(room, 2 * RECORD_BYTES) + WAITING_MORE_BYTES_MAX + room // 100

    while len(got) < len(data):
        await cut_short(chance, once)
        assert data.startswith(got[-1000:], max(0, len(got) - 1000))
    assert got == data


@pytest.mark.properties
@settings(max_examples=40)
@given(
    bytes_max=st.one_of(st.integers(30, 300), st.integers(1, 20_000), SIZES, st.just(1 << 20)),
    offered=st.lists(SIZES, min_size=1, max_size=5),
    windows=st.lists(SIZES, min_size=1, max_size=5),
    seed=st.integers(0, 1 << 32),
)
def test_each_byte_comes_once_in_order_both_ways_at_once(
    bytes_max: int, offered: list[int], windows: list[int], seed: int
) -> None:
    """Two connections of one host take turns with its one buffer of ciphertext (1 MiB) and never mix."""
    chance = random.Random(seed)
    # A step moves as much as the smallest of them: as many bytes as some thousand steps move.
    steps_bytes = 300 * min(bytes_max, 8 * min(windows), 8 * min(offered))
    size = min(1_000_000, max(2000, steps_bytes))

    async def main() -> None:
        network = PipeNetwork(seed, bytes_max=bytes_max)
        with trio.fail_after(600):
            pairs = await pairs_of(network, 2)
            async with trio.open_nursery() as nursery:
                for dialled, accepted in pairs:
                    for here, there in ((dialled, accepted), (accepted, dialled)):
                        data = chance.randbytes(chance.randint(1, size))
                        own = random.Random(chance.random())
                        nursery.start_soon(send, here, data, own, offered)
                        nursery.start_soon(receive, there, data, own, windows)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("part_bytes", [100, RECORD_BYTES, 8 << 20])
async def test_who_never_reads_costs_its_peer_no_more_than_a_burst(
    part_bytes: int, autojump_clock: trio.testing.MockClock
) -> None:
    """However often it is offered more."""
    [(dialled, _)] = await pairs_of(PipeNetwork(bytes_max=100_000), 1)
    part, taken, stopped = bytes(part_bytes), 0, 0
    while stopped < 100:
        taken += (sent := dialled.try_send([part] * 10))
        assert taken < 100_000
        assert waiting_bytes(dialled) <= WAITING_BYTES_MAX + WAITING_MORE_BYTES_MAX
        if not sent:
            stopped += 1
            with trio.move_on_after(0.001):
                await dialled.wait_writable()
