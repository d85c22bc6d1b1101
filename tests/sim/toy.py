"""A toy node for tests of the simulator itself: an echo server with a journal of its own.

A line is appended, synced, and only then echoed; ``bug`` leaves the sync out.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.interfaces.host import Connection, Host
from distributedlog.testing.sim.world.disk import SimDisk
from distributedlog.testing.sim.world.network import SimNetwork
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_host import SimHost

PORT = 4181
SERVER_IP = "10.0.0.1"


@dataclass
class ToyWorld:
    simulation: Simulation
    network: SimNetwork = field(init=False)
    server: SimHost = field(init=False)
    client: SimHost = field(init=False)
    acked: list[bytes] = field(default_factory=list)
    sync: bool = True

    def __post_init__(self) -> None:
        self.network = SimNetwork(self.simulation)
        self.server = SimHost(self.simulation, self.network, "server", SERVER_IP)
        self.server.add_disk("journal", SimDisk(self.simulation, self.server.state, "journal"))
        self.client = SimHost(self.simulation, self.network, "client", "10.0.0.9")

    async def serve(self, host: Host) -> None:
        disk = host.disks["journal"]
        disk.lock()
        names = disk.list()
        file = await (disk.open("log") if "log" in names else disk.create("log"))
        end = file.size()

        async def talk(connection: Connection) -> None:
            nonlocal end
            buffer = memoryview(bytearray(64))
            line = b""
            try:
                while count := await connection.receive_into(buffer):
                    line += bytes(buffer[:count])
                    while b"\n" in line:
                        one, line = line.split(b"\n", 1)
                        at, end = end, end + len(one) + 1
                        file.write_at(at, (one + b"\n",))
                        if self.sync:
                            await file.sync()
                        await send_all(connection, one + b"\n")
            except ConnectionLost:
                connection.close()

        listener = await host.listen((SERVER_IP, PORT))
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(talk, await listener.accept())

    async def write(self, host: Host, count: int = 20) -> None:
        connection = await host.dial((SERVER_IP, PORT))
        buffer = memoryview(bytearray(64))
        for number in range(count):
            line = b"line %d\n" % number
            await send_all(connection, line)
            back = b""
            while not back.endswith(b"\n"):
                got = await connection.receive_into(buffer)
                if not got:
                    return
                back += bytes(buffer[:got])
            assert back == line
            self.acked.append(line)
        connection.close()

    def durable(self) -> bytes:
        return bytes(self.server.disks["journal"].durable_files["log"].durable)


async def send_all(connection: Connection, data: bytes) -> None:
    view = memoryview(data)
    while view:
        sent = connection.try_send([view])
        view = view[sent:]
        if view:
            await connection.wait_writable()


def run(
    seed: int, main: Callable[[ToyWorld], Awaitable[None]], *, keep_trace: bool = False
) -> ToyWorld:
    """Run ``main`` in a toy world; raise what failed."""
    simulation = Simulation(seed, virtual_seconds_max=120.0, keep_trace=keep_trace)
    worlds: list[ToyWorld] = []

    async def start(simulation: Simulation) -> None:
        worlds.append(ToyWorld(simulation))
        await main(worlds[0])

    simulation.run(start)
    if simulation.failures:
        raise simulation.failures[0]
    return worlds[0]
