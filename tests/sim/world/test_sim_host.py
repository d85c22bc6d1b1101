"""Machines: crashes, stalls, clocks, and processes that end by themselves."""

import pytest
import trio

from distributedlog.runtime.interfaces.errors import DiskFailed, QuorumUnreachable
from distributedlog.runtime.interfaces.host import Host
from tests.sim.toy import ToyWorld, run


async def client_done(world: ToyWorld) -> None:
    done = trio.Event()

    async def write(host: Host) -> None:
        try:
            await world.write(host)
        finally:
            done.set()
        await trio.sleep_forever()

    world.client.start(write)
    await done.wait()


def lose_power_after(sync: bool) -> list[ToyWorld]:
    worlds = []
    for seed in range(10):

        async def main(world: ToyWorld) -> None:
            world.sync = sync
            world.server.start(world.serve)
            await trio.sleep(0.5)
            await client_done(world)
            world.server.power_cut()

        worlds.append(run(seed, main))
    return worlds


def test_what_was_acknowledged_after_a_sync_survives() -> None:
    for world in lose_power_after(sync=True):
        assert len(world.acked) == 20
        assert world.durable().startswith(b"".join(world.acked))


def test_what_was_acknowledged_before_a_sync_is_lost() -> None:
    """The simulator can tell the difference."""
    lost = [
        world
        for world in lose_power_after(sync=False)
        if b"".join(world.acked) not in world.durable()
    ]

    assert len(lost) > 5


def test_a_crash_point_ends_the_machine_at_any_step() -> None:
    """At each disk and network step: what was acknowledged is durable."""
    acked = []
    for steps in range(1, 60, 3):

        async def main(world: ToyWorld, steps: int = steps) -> None:
            world.server.start(world.serve)
            world.server.state.crash_after(steps, power=True)
            await trio.sleep(0.5)
            done = trio.Event()

            async def write(host: Host) -> None:
                with trio.move_on_after(5.0):
                    await world.write(host)
                done.set()
                await trio.sleep_forever()

            if world.server.state.powered:
                world.client.start(write)
                await done.wait()
            if "log" in world.server.disks["journal"].durable_files:
                assert world.durable().startswith(b"".join(world.acked))
            acked.append(len(world.acked))

        run(7, main)

    assert len(set(acked)) > 3


def test_finally_blocks_cannot_tidy_up_a_machine_that_is_off() -> None:
    reached: list[str] = []

    async def main(world: ToyWorld) -> None:
        async def node(host: Host) -> None:
            disk = host.disks["journal"]
            file = await disk.create("f")
            try:
                await trio.sleep_forever()
            finally:
                reached.append("finally")
                file.write_at(0, (b"tidied up",))
                reached.append("wrote")

        world.server.start(node)
        await trio.sleep(1.0)
        world.server.power_cut()
        await trio.sleep(1.0)
        assert not world.server.disks["journal"].durable_files["f"].durable

    run(1, main)

    assert reached == ["finally"]


def test_a_stalled_machine_does_nothing_and_then_all_of_it() -> None:
    """H43d, H25: its timers come late, and all at once."""
    ticks: list[float] = []
    others: list[float] = []

    async def main(world: ToyWorld) -> None:
        def node(into: list[float]):  # type: ignore[no-untyped-def]
            async def tick(host: Host) -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    while True:
                        await trio.sleep(0.1)
                        into.append(trio.current_time())

            return tick

        world.server.start(node(ticks))
        world.client.start(node(others))
        await trio.sleep(1.05)
        world.server.stall(3.0)
        await trio.sleep(1.0)
        world.server.stall(0.5)  # inside the first: changes nothing
        await trio.sleep(3.0)

    run(1, main)

    assert not [tick for tick in ticks if 1.06 < tick < 4.05]
    assert [tick for tick in ticks if 4.04 < tick < 4.06]
    assert len(others) == 50


def test_a_stalled_machine_can_lose_power() -> None:
    async def main(world: ToyWorld) -> None:
        world.server.start(world.serve)
        await trio.sleep(1.0)
        world.server.stall(100.0)
        await trio.sleep(1.0)
        world.server.power_cut()
        await trio.sleep(1.0)
        world.server.start(world.serve)
        await trio.sleep(1.0)
        await client_done(world)

    assert len(run(1, main).acked) == 20


def test_clocks_of_machines_differ_and_jump() -> None:
    async def main(world: ToyWorld) -> None:
        host = world.server.host()
        before = host.wall_ms()
        world.server.jump_clock(-3_600_000)
        await trio.sleep(1.0)
        assert host.wall_ms() == before - 3_600_000 + 1000
        assert world.client.host().wall_ms() == before + 1000

    run(1, main)


@pytest.mark.parametrize(
    ("error", "planted", "fails"),
    [
        (AssertionError("a rule of ours"), False, True),
        (AssertionError("a rule of ours"), True, True),
        (KeyError("a bug"), False, True),
        (DiskFailed("no fault was planted"), False, True),
        (DiskFailed("EIO"), True, False),
        (QuorumUnreachable("at the start"), False, False),
    ],
)
def test_a_process_that_ends_by_itself_must_have_an_excuse(
    error: Exception, planted: bool, fails: bool
) -> None:
    async def main(world: ToyWorld) -> None:
        async def node(host: Host) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep(1.0)
                raise error

        world.server.disks["journal"].is_fault_injected = planted
        world.server.start(node)
        await trio.sleep(2.0)
        assert not world.server.state.running
        assert world.server.ended_by is error

    if fails:
        with pytest.raises(type(error)):
            run(1, main)
    else:
        run(1, main)
