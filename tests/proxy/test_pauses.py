"""In virtual time: for how long nobody writes a log that moves, or whose owner was killed."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import trio

from distributedlog import open_namespace
from distributedlog.cluster.declarations.options import WRITE_PROXY, NodeReady, ProxyNodeConfig
from distributedlog.cluster.node.proxy_assembly import serve_proxy_node
from distributedlog.log.model.lock_record import lock_holder
from distributedlog.log.namespace import Namespace
from distributedlog.proxy.membership.rendezvous_hash import rank_proxies
from distributedlog.proxy.protocol.proxy_messages import ProxyCall
from distributedlog.runtime.interfaces.host import Address, Host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_cluster import PORT, Shape, SimCluster
from distributedlog.testing.sim.world.sim_host import SimHost

SHAPE = Shape(
    metadata_nodes=1,
    bookies=3,
    clients=1,
    store={
        "journal_file_bytes": 256 * 1024,
        "gather_bytes": 64 * 1024,
        "free_bytes_min": 8 * 1024 * 1024,
    },
)
LOG = "shared"
EVERY_S = 0.02
AGAIN_S = 0.4
"""A proxy that was killed is started anew after this."""
KILL_S = 0.8
"""What a kill may cost its producers: less than the end of a lease, which nobody is to wait for."""
STALL_S = 8.0
MOVE_S = 0.6
"""What a move may cost them on slow disks: less than the second after which they ask others."""
HANGS_S = 4.5
"""What an opening may take while a proxy hangs that was never dialled: its dial, and an opening elsewhere."""
SILENT_S = 2.5
"""What it may cost them while the next one in order hangs."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Logs of faults help nobody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Tier:
    """Write proxies on machines of their own, beside a simulated cluster."""

    def __init__(self, cluster: SimCluster, number: int) -> None:
        self._cluster = cluster
        self.machines = {
            f"w{n}": SimHost(cluster.simulation, cluster.network, f"w{n}", f"10.0.9.{n}")
            for n in range(1, number + 1)
        }
        self.names: dict[str, str] = {}
        """By id, of all that were ever started."""
        self._serving: dict[str, trio.Event] = {}

    @property
    def uri(self) -> str:
        return f"distributedlog+proxy://{';'.join(f'{m.ip}:{PORT}' for m in self.machines.values())}/sim"

    async def start(self, name: str) -> None:
        """Until it serves."""
        self._serving[name] = trio.Event()
        self.machines[name].start(partial(self._serve, name))
        await self._serving[name].wait()

    async def start_again(self, name: str) -> None:
        await trio.sleep(AGAIN_S)
        await self.start(name)

    async def _serve(self, name: str, host: Host) -> None:
        metadata: tuple[Address, ...] = tuple(
            (self._cluster.machines[m].ip, PORT) for m in self._cluster.metadata
        )
        listen = {"": (self.machines[name].ip, PORT)}
        config = ProxyNodeConfig(name, WRITE_PROXY, metadata, listen)
        async with trio.open_nursery() as nursery:
            ready = await nursery.start(partial(serve_proxy_node, host, config))
            assert isinstance(ready, NodeReady)
            self.names[ready.node_id] = name
            self._serving[name].set()

    def living(self) -> list[str]:
        """Ids of those that run."""
        newest = {name: proxy_id for proxy_id, name in self.names.items()}
        return [newest[name] for name, m in self.machines.items() if m.state.running]


class World:
    """A producer that writes without a rest, and how long it was without an answer."""

    def __init__(self, direct: Namespace, tier: Tier, nursery: trio.Nursery) -> None:
        self.direct, self.tier, self.nursery = direct, tier, nursery
        self.acked = 0
        self._acked_at = 0.0
        self.longest_s = 0.0

    async def write(self, host: Host) -> None:
        async with open_namespace(self.tier.uri, host=host) as namespace:
            for number in range(12):
                await namespace.log_exists(f"log{number}")  # a connection to each proxy
            async with namespace.open_log(LOG).open_writer(producer="p") as writer:
                self._acked_at = trio.current_time()
                while True:
                    await writer.write(b"x" * 100)
                    now = trio.current_time()
                    self.longest_s = max(self.longest_s, now - self._acked_at)
                    self.acked, self._acked_at = self.acked + 1, now
                    await trio.sleep(EVERY_S)

    async def more(self, records: int) -> None:
        wanted = self.acked + records
        while self.acked < wanted:  # noqa: ASYNC110
            await trio.sleep(0.01)

    async def come_and_go(self, host: Host) -> None:
        """Another writer of the log, which is opened and closed all the time."""
        async with open_namespace(self.tier.uri, host=host) as namespace:
            while True:
                writer = await namespace.open_log(LOG).open_writer()
                await writer.aclose()
                await trio.sleep(EVERY_S / 2)

    async def move(self, host: Host) -> None:
        """Have the log given to another proxy."""
        owner = await self.owner()
        target = next(one for one in self.tier.living() if one != owner)
        call = ProxyCall("move", ["sim", LOG, target])
        async with trio.open_nursery() as nursery:
            place = (self.tier.machines[self.tier.names[owner]].ip, PORT)
            link = await Endpoint(host, Hello).dial(place, nursery=nursery)
            await link.request(Op.PROXY_CALL, call.encode(), timeout_s=30)
            nursery.cancel_scope.cancel()

    async def owner(self) -> str:
        holder = await lock_holder(self.direct.metadata, await self.direct.resolve_name(LOG))
        assert holder is not None
        return holder.proxy


def played(seed: int, story: Callable[[World, Host], Awaitable[None]], proxies: int) -> World:
    """The world after a story in it."""
    simulation = Simulation(seed)
    found: list[World] = []

    async def run(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, SHAPE)
        cluster.is_supervised = False
        cluster.start_all()
        await cluster.wait_all_ready()
        tier, over = Tier(cluster, proxies), trio.Event()
        for name in tier.machines:
            await tier.start(name)

        async def main(direct: Namespace, host: Host) -> None:
            async with trio.open_nursery() as nursery:
                world = World(direct, tier, nursery)
                found.append(world)
                nursery.start_soon(world.write, host)
                await world.more(10)
                await story(world, host)
                nursery.cancel_scope.cancel()
            over.set()

        cluster.start_client("c1", main)
        with trio.fail_after(120):
            await over.wait()

    simulation.run(run)
    assert not simulation.failures
    return found[0]


@pytest.mark.seeds
def test_an_owner_that_is_killed_again_and_again_is_missed_for_less_than_a_lease() -> None:
    """H78: its address refuses, so that nobody waits for its lease."""

    async def story(world: World, _: Host) -> None:
        for kill in range(4):
            name = world.tier.names[await world.owner()]
            world.tier.machines[name].kill()
            world.nursery.start_soon(world.tier.start_again, name)
            await world.more(10 + 20 * (kill % 3))

    world = played(1, story, 3)

    assert world.acked > 100
    assert world.longest_s < KILL_S


@pytest.mark.seeds
def test_who_hangs_is_not_waited_for_when_a_log_needs_another_owner() -> None:
    """Two at once: the owner is killed while the one that is asked next does not answer (H183)."""

    async def story(world: World, _: Host) -> None:
        owner = await world.owner()
        others = [one for one in world.tier.living() if one != owner]
        following = rank_proxies("sim", LOG, others)[0]
        world.tier.machines[world.tier.names[following]].stall(STALL_S)
        world.tier.machines[world.tier.names[owner]].kill()
        await world.more(10)
        await trio.sleep(STALL_S)

    world = played(1, story, 3)

    assert world.longest_s < SILENT_S


@pytest.mark.seeds
def test_whose_log_moves_is_told_whoever_else_asks_for_it_meanwhile() -> None:
    """H76: a writer that waits for nothing but to be told goes on at once, and not by asking others."""

    async def story(world: World, host: Host) -> None:
        world.nursery.start_soon(world.come_and_go, host)
        for _ in range(2):
            await world.more(10)
            await world.move(host)
        await world.more(10)

    world = played(1, story, 3)

    assert world.longest_s < MOVE_S


@pytest.mark.seeds
def test_many_logs_that_are_opened_while_a_proxy_hangs_wait_for_one_dial() -> None:
    """H78: of a new client, which has no connection there: it is not dialled once for each log, in turns."""
    took: list[float] = []

    async def story(world: World, host: Host) -> None:
        following = next(one for one in world.tier.living())
        async with open_namespace(world.tier.uri, host=host) as namespace:

            async def open_one(number: int) -> None:
                began = trio.current_time()
                async with namespace.open_log(f"many{number}").open_writer() as writer:
                    await writer.write(b"x")
                took.append(trio.current_time() - began)

            async with trio.open_nursery() as nursery:
                world.tier.machines[world.tier.names[following]].stall(STALL_S)
                for number in range(40):
                    nursery.start_soon(open_one, number)

    played(1, story, 3)

    assert len(took) == 40
    assert max(took) < HANGS_S
