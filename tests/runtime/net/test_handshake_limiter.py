"""Handshakes in turn, nodes first (H224). In virtual time: what is counted is who came before whom."""

import trio
import trio.testing

from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.net.connection_limiter import UNAUTHENTICATED_MAX
from distributedlog.runtime.net.handshake_limiter import (
    HANDSHAKES_PER_S,
    NODE_HOSTS_MAX,
    HandshakeLimiter,
)
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tls import HANDSHAKE_ANSWER_S, with_tls
from distributedlog.runtime.protocol.handshake import Hello

from ..pipe import PipeNetwork
from .test_tls import served, tls_of

COMERS = 100


def still_there() -> None:
    """Nobody has gone."""


async def test_users_that_come_back_at_once_wait_in_turn_and_a_node_does_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, there = PipeNetwork(), list[float]()
    user = tls_of("user/etl")
    async with served(network, tls_of("bookie/b1")) as (address, nursery):
        b2 = Hello(kind="bookie", node_id="n2", label="b2")
        node = Endpoint(with_tls(network.host("b2"), tls_of("bookie/b2")), lambda: b2)
        await node.dial(address, nursery=nursery)
        await trio.sleep(1)
        began = trio.current_time()

        async def come(number: int) -> None:
            host = with_tls(network.host(f"c{number}"), user)
            await Endpoint(host, lambda: Hello(kind="client")).dial(address, nursery=nursery)
            there.append(trio.current_time() - began)

        async with trio.open_nursery() as comers:
            for number in range(COMERS):
                comers.start_soon(come, number)
            await trio.testing.wait_all_tasks_blocked()
            await node.dial(address, nursery=nursery)
            assert trio.current_time() == began
            assert len(there) <= 1

    assert len(there) == COMERS
    assert all(in_s >= (nth - 1) / HANDSHAKES_PER_S for nth, in_s in enumerate(sorted(there)))


async def test_who_has_gone_takes_no_turn(autojump_clock: trio.testing.MockClock) -> None:
    """Else those who give up would keep all others from theirs."""
    turns = HandshakeLimiter()
    await turns.wait_turn("c", still_there)
    began = trio.current_time()

    def gone() -> None:
        raise ConnectionLost("gave up")

    async def give_up() -> None:
        try:
            await turns.wait_turn("c", gone)
        except ConnectionLost:
            return

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(give_up)
        with trio.move_on_after(0):
            await turns.wait_turn("c", still_there)
        await trio.testing.wait_all_tasks_blocked()
        await turns.wait_turn("c", still_there)

    assert trio.current_time() - began <= 1 / HANDSHAKES_PER_S
    assert turns.waiting_count == 0


async def test_a_host_of_a_node_goes_first_until_it_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = HandshakeLimiter()
    turns.add_node_host("b1")
    began = trio.current_time()
    for _ in range(10):
        await turns.wait_turn("b1", still_there)
    assert trio.current_time() == began
    for number in range(NODE_HOSTS_MAX):
        turns.add_node_host(f"x{number}")
    for _ in range(10):
        await turns.wait_turn("b1", still_there)
    assert trio.current_time() > began


async def test_a_host_that_comes_back_for_ever_makes_its_own_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its thousand would be ten seconds of everybody's five."""
    turns = HandshakeLimiter()
    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(turns.wait_turn, "flood", still_there)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        for _ in range(5):
            await turns.wait_turn("user", still_there)
        assert trio.current_time() - began <= 2 * 5 / HANDSHAKES_PER_S + 1e-6
        nursery.cancel_scope.cancel()
    assert turns.waiting_count == 0
    assert not turns._waiting_by_host


async def test_who_begins_handshakes_and_ends_none_keeps_nobody_of_its_address_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Five bytes each five seconds were a place: all others of that machine were hung up on for as long."""
    network = PipeNetwork()
    async with served(network, tls_of("bookie/b1")) as (address, nursery):
        stranger, halves = network.host("c"), []
        for _ in range(UNAUTHENTICATED_MAX):
            halves.append(await stranger.dial(address))
            halves[-1].try_send([b"\x16\x03\x01\x02\x00"])
            await trio.sleep(1 / HANDSHAKES_PER_S)
        await trio.sleep(HANDSHAKE_ANSWER_S / 2)
        host = with_tls(network.host("c"), tls_of("user/etl"))
        await Endpoint(host, lambda: Hello(kind="client")).dial(address, nursery=nursery)
