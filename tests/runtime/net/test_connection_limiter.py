"""Who has a place among the connections of a server, and who gives his up."""

import random
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from distributedlog.runtime.interfaces.errors import TooBusy
from distributedlog.runtime.net.connection_limiter import (
    CONNECTIONS_PER_NODE_MAX,
    HEALTH,
    IDLE_S_MIN,
    ConnectionLimiter,
)
from distributedlog.runtime.net.frame_reader import ReceiveSpace
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.protocol.handshake import Hello

from ..pipe import PipeConnection, _Way

NODE = Hello(cluster_id="c1", node_id="n1", kind="metadata")


@dataclass
class Server:
    """Its places, and connections that come to it."""

    places: ConnectionLimiter = field(default_factory=lambda: ConnectionLimiter(64))
    ports: int = 0

    def enter(self, host: str) -> tuple[Link, Link | None]:
        """A connection comes; it, and who gives way to it."""
        self.ports += 1
        way = _Way(random.Random(1), 4096)
        link = Link(
            PipeConnection(f"{host}:{self.ports}", way, way),
            ReceiveSpace(64, 0),
            outgoing_bytes_max=4096,
            frame_bytes_max=4096,
        )
        return link, self.places.admit(link)

    def greet(
        self, host: str, hello: Hello, *, node: bool = False, local: bool = False
    ) -> Link | None:
        """One comes and says who it is; who gives way to it. Raises `TooBusy`."""
        link, _ = self.enter(host)
        now = trio.current_time()
        return self.places.classify(link, hello, is_node=node, is_local=local, now=now)

    def fill(self) -> None:
        """Clients from many addresses, each by a name of its own, take all that they may have."""
        for n in range(self.places.others_max):
            self.greet(f"h{n % 9}", Hello(cluster_id="c1", node_id=f"x{n}"))


def begin_handshake(link: Link) -> None:
    """As its peer does."""
    assert isinstance(link._connection, PipeConnection)
    link._connection.has_begun_handshake = True


async def test_clients_take_no_place_of_a_node_whatever_they_are_called(
    autojump_clock: MockClock,
) -> None:
    server = Server()
    server.fill()

    for n in range(server.places.nodes_max):
        assert server.greet("h1", Hello("c1", f"n{n}", "bookie"), node=True) is None
    assert len(server.places.nodes) == server.places.nodes_max


async def test_one_node_does_not_take_the_places_of_all(autojump_clock: MockClock) -> None:
    """Whoever forges the name of one."""
    server = Server(ConnectionLimiter(1000))
    server.fill()
    for _ in range(CONNECTIONS_PER_NODE_MAX):
        server.greet("h1", NODE, node=True)

    with pytest.raises(TooBusy):
        server.greet("h1", NODE, node=True)

    assert server.greet("h1", Hello("c1", "n2", "bookie"), node=True) is None


async def test_the_address_with_most_strangers_makes_room(autojump_clock: MockClock) -> None:
    server = Server()
    first, _ = server.enter("one that speaks soon")
    silent = [server.enter("silent")[0] for _ in range(server.places.unauthenticated_max - 1)]

    for n in range(5):
        assert server.enter("silent")[1] is silent[n]
    assert first in server.places.unauthenticated


async def test_who_has_begun_a_handshake_is_not_put_back_by_a_newcomer(
    autojump_clock: MockClock,
) -> None:
    """H224: of a crowd that comes at once each would lose its place just before its turn."""
    server = Server()
    silent = server.enter("crowd")[0]
    turn = [server.enter("crowd")[0] for _ in range(server.places.unauthenticated_max - 1)]
    for link in turn:
        begin_handshake(link)

    last, gone = server.enter("crowd")
    assert gone is silent
    begin_handshake(last)
    newcomer, gone = server.enter("crowd")
    assert gone is newcomer
    assert (
        server.enter("another")[1] is last
    )  # whoever comes from elsewhere has a place all the same
    assert all(link in server.places.unauthenticated for link in turn)


async def test_one_address_leaves_a_quarter_to_others(autojump_clock: MockClock) -> None:
    server = Server()
    for _ in range(server.places.others_max * 3 // 4):
        server.greet("greedy", Hello())

    with pytest.raises(TooBusy):
        server.greet("greedy", Hello())

    assert server.greet("another", Hello()) is None


async def test_who_was_silent_for_long_gives_way_and_who_leaves_is_gone(
    autojump_clock: MockClock,
) -> None:
    server = Server()
    server.fill()
    await trio.sleep(IDLE_S_MIN)
    links = list(server.places.others)
    for link in links[1:]:
        link.reader.received_at = trio.current_time()

    assert server.greet("new", Hello()) is links[0]
    with pytest.raises(TooBusy):
        server.greet("newer", Hello())
    server.places.release(links[1])
    assert server.greet("newer", Hello()) is None


async def test_health_has_its_places_on_its_own_machine_alone(autojump_clock: MockClock) -> None:
    server = Server()
    server.fill()
    asks = Hello(kind=HEALTH)

    assert server.greet("here", asks, local=True) is None
    with pytest.raises(TooBusy):
        server.greet("h1", asks)
