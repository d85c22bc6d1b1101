"""What the simulated network does to its users."""

import pytest
import trio

from distributedlog.runtime.interfaces.errors import AddressInUse, ConnectionLost
from distributedlog.runtime.interfaces.host import Connection, Host
from distributedlog.testing.sim.world.machine_state import HostDown
from distributedlog.testing.sim.world.network import SimConnection
from distributedlog.testing.sim.world.sim_host import SimHost
from tests.sim.toy import PORT, SERVER_IP, ToyWorld, run, send_all


async def two_ends(world: ToyWorld) -> tuple[SimConnection, SimConnection]:
    """A connection from client to server, both machines idle."""
    ends: list[Connection] = []
    ready = trio.Event()

    async def serve(host: Host) -> None:
        listener = await host.listen((SERVER_IP, PORT))
        ready.set()
        ends.append(await listener.accept())
        await trio.sleep_forever()

    async def dial(host: Host) -> None:
        await ready.wait()
        ends.append(await host.dial((SERVER_IP, PORT)))
        await trio.sleep_forever()

    world.server.start(serve)
    world.client.start(dial)
    await trio.sleep(1.0)
    near = next(
        end for end in ends if isinstance(end, SimConnection) and end.host is world.client.state
    )
    return near, near.peer_end


async def receive(end: SimConnection, size: int = 100_000) -> bytes:
    buffer = memoryview(bytearray(size))
    return bytes(buffer[: await end.receive_into(buffer)])


def test_bytes_split_and_merge_and_keep_their_order() -> None:
    """H43c."""
    sizes: list[int] = []

    async def main(world: ToyWorld) -> None:
        near, far = await two_ends(world)
        world.network.faults.split_chance = world.network.faults.short_read_chance = 0.5
        sent = bytes(range(256)) * 8

        async def send() -> None:
            for start in range(0, len(sent), 64):
                await send_all(near, sent[start : start + 64])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            got = b""
            while len(got) < len(sent):
                piece = await receive(far)
                sizes.append(len(piece))
                got += piece
        assert got == sent

    run(3, main)

    assert len(set(sizes)) > 5
    assert any(size > 64 for size in sizes)


def test_a_full_send_buffer_takes_a_part_and_then_nothing() -> None:
    async def main(world: ToyWorld) -> None:
        near, far = await two_ends(world)
        world.network.faults.send_buffer_bytes = 1000
        world.network.faults.short_send_chance = 0.0

        assert near.try_send([b"x" * 600, b"y" * 600]) == 1000
        assert near.try_send([b"z"]) == 0
        await trio.sleep(1.0)
        assert near.try_send([b"z"]) == 0
        got = await receive(far)
        await near.wait_writable()
        assert near.try_send([b"z" * 2000]) == len(got)

    run(4, main)


def test_a_cut_holds_one_direction() -> None:
    async def main(world: ToyWorld) -> None:
        near, far = await two_ends(world)
        world.network.cut("client", "server")
        near.try_send([b"held"])
        far.try_send([b"passes"])

        assert await receive(near) == b"passes"
        with trio.move_on_after(5.0) as scope:
            await receive(far)
        assert scope.cancelled_caught
        world.network.heal()
        assert await receive(far) == b"held"

    world = run(1, main)

    assert world.simulation.main_lasted_s < 8.0


def test_a_long_cut_breaks_the_connection_that_sends() -> None:
    async def main(world: ToyWorld) -> None:
        near, _ = await two_ends(world)
        world.network.cut("client", "server")
        near.try_send([b"never"])
        await trio.sleep(world.network.faults.give_up_s + 1.0)

        with pytest.raises(ConnectionLost, match="timed out"):
            near.try_send([b"more"])

    run(1, main)


def test_a_killed_process_closes_its_connections() -> None:
    async def main(world: ToyWorld) -> None:
        near, _ = await two_ends(world)
        world.server.kill()

        assert await receive(near) == b""
        near.try_send([b"too late"])
        await trio.sleep(1.0)
        with pytest.raises(ConnectionLost):
            near.try_send([b"again"])

    run(1, main)


def test_a_machine_without_power_is_silent_until_it_is_on_again() -> None:
    """Half-open: only a reset by the next kernel, or patience, ends it."""

    async def idle(host: Host) -> None:
        await trio.sleep_forever()

    async def main(world: ToyWorld) -> None:
        near, _ = await two_ends(world)
        world.server.power_cut()
        with trio.move_on_after(5.0) as scope:
            await receive(near)
        assert scope.cancelled_caught
        near.try_send([b"into the void"])
        await trio.sleep(1.0)

        world.server.start(idle)
        with pytest.raises(ConnectionLost, match="reset"):
            await receive(near)

    run(1, main)


def test_dialling_meets_refusal_silence_and_nobody() -> None:
    outcomes: list[str] = []

    async def dial(host: Host) -> None:
        for ip in ("10.9.9.9", SERVER_IP):
            try:
                await host.dial((ip, PORT))
            except ConnectionLost as error:
                outcomes.append(str(error))
        await trio.sleep_forever()

    async def main(world: ToyWorld) -> None:
        world.client.start(dial)
        await trio.sleep(1.0)
        world.client.kill()
        world.server.power_cut()
        world.client.start(dial)
        await trio.sleep(60.0)

    run(1, main)

    assert "no route" in outcomes[0]
    assert "refused" in outcomes[1]
    assert "did not answer" in outcomes[3]


def test_an_address_can_move_to_another_machine() -> None:
    """H6, H43g: an address is no identity."""
    served: list[str] = []

    async def main(world: ToyWorld) -> None:
        other = SimHost(world.simulation, world.network, "other", "10.0.0.2")

        def serve(name: str):  # type: ignore[no-untyped-def]
            async def main(host: Host) -> None:
                listener = await host.listen((SERVER_IP, PORT))
                with pytest.raises(AddressInUse):
                    await host.listen((SERVER_IP, PORT))
                while True:
                    await listener.accept()
                    served.append(name)

            return main

        async def dial(host: Host) -> None:
            await host.dial((SERVER_IP, PORT))
            await trio.sleep_forever()

        world.server.start(serve("server"))
        await trio.sleep(0.1)
        world.client.start(dial)
        await trio.sleep(1.0)
        world.server.kill()
        world.client.kill()
        world.network.machines[SERVER_IP] = other.state
        other.start(serve("other"))
        await trio.sleep(0.1)
        world.client.start(dial)
        await trio.sleep(1.0)

    run(1, main)

    assert served == ["server", "other"]


def test_handles_of_a_dead_process_are_dead() -> None:
    async def main(world: ToyWorld) -> None:
        _, far = await two_ends(world)
        host = world.server.host()
        world.server.kill()

        with pytest.raises(HostDown):
            far.try_send([b"x"])
        with pytest.raises(HostDown):
            await host.listen((SERVER_IP, 9))
        with pytest.raises(HostDown):
            host.disks["journal"].list()

    run(1, main)
