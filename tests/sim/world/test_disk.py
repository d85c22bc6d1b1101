"""What a power cut, a kill and a failing device leave of a simulated disk."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from distributedlog.runtime.interfaces.errors import CorruptData, DiskFailed, DiskFull
from distributedlog.runtime.interfaces.host import Disk, File, Host
from distributedlog.testing.sim.world.disk import SECTOR_BYTES, SimDisk
from distributedlog.testing.sim.world.disk_handle import DiskHandle
from distributedlog.testing.sim.world.machine_state import HostDown
from tests.sim.toy import ToyWorld, run


async def idle(host: Host) -> None:
    await trio.sleep_forever()


def booted(world: ToyWorld) -> tuple[SimDisk, Disk]:
    if not world.server.state.running:
        world.server.start(idle)
    disk = world.server.disks["journal"]
    return disk, DiskHandle(disk)


def test_a_power_cut_keeps_what_was_synced_and_a_part_of_the_rest() -> None:
    kept: list[int] = []

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        disk.faults.survive_chance = 0.5
        file = await handle.create("f", size=100 * SECTOR_BYTES)
        await file.write_synced(0, b"a" * 10 * SECTOR_BYTES)
        file.write_at(10 * SECTOR_BYTES, (b"b" * 40 * SECTOR_BYTES,))

        world.server.power_cut()
        file = await booted(world)[1].open("f")

        data = file.read_at(0, file.size())
        assert len(data) == 100 * SECTOR_BYTES
        assert data[: 10 * SECTOR_BYTES] == b"a" * 10 * SECTOR_BYTES
        sectors = [data[n * SECTOR_BYTES : (n + 1) * SECTOR_BYTES] for n in range(10, 50)]
        assert {bytes(sector) for sector in sectors} == {b"b" * SECTOR_BYTES, bytes(SECTOR_BYTES)}
        kept.append(sum(sector[0] == ord("b") for sector in sectors))

    for seed in range(3):
        run(seed, main)

    assert len(set(kept)) > 1  # and not in order


def test_a_kill_keeps_the_page_cache() -> None:
    async def main(world: ToyWorld) -> None:
        _, handle = booted(world)
        file = await handle.create("f")
        file.write_at(0, (b"not synced",))
        world.server.kill()

        file = await booted(world)[1].open("f")

        assert file.read_at(0, 100) == b"not synced"

    run(1, main)


def test_a_sync_takes_time_and_covers_only_what_was_written_before_it_began() -> None:
    """H10."""

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        disk.faults.survive_chance = 0.0
        file = await handle.create("f", size=4096)
        file.write_at(0, (b"before",))
        began = trio.current_time()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.sync)
            await trio.sleep(0.00001)
            file.write_at(100, (b"during",))

        assert trio.current_time() > began
        world.server.power_cut()
        file = await booted(world)[1].open("f")
        assert file.read_at(0, 6) == b"before"
        assert file.read_at(100, 6) == bytes(6)

    run(1, main)


def test_after_a_failed_sync_the_cache_lies() -> None:
    """fsyncgate: the next sync succeeds, the data is gone."""

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        disk.faults.survive_chance = 0.0
        file = await handle.create("f", size=4096)
        file.write_at(0, (b"lost",))
        disk.faults.failing_syncs = 1
        with pytest.raises(DiskFailed):
            await file.sync()
        with pytest.raises(DiskFailed):
            file.write_at(0, (b"more",))

        again = await handle.open("f")
        assert again.read_at(0, 4) == b"lost"
        await again.sync()
        world.server.power_cut()

        file = await booted(world)[1].open("f")
        assert file.read_at(0, 4) == bytes(4)

    run(1, main)


def test_what_one_of_two_syncs_lost_fails_the_other_too() -> None:
    """Bookie seed 53: a commit beside a step of zeros, whose sync took the commit's pages with it."""

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        disk.faults.sync_s = (0.001, 0.1)  # whichever ends first
        file = await handle.create("f", size=8192)
        file.write_at(0, (b"lost",))
        disk.faults.failing_syncs = 1
        failed = []

        async def fails(call: Callable[[], Awaitable[None]]) -> None:
            with pytest.raises(DiskFailed):
                await call()
            failed.append(call)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails, lambda: file.write_zeros(4096, 4096))
            nursery.start_soon(fails, file.sync)
        assert len(failed) == 2

    for seed in range(8):
        run(seed, main)


def test_names_are_lost_until_their_directory_is_synced() -> None:
    outcomes: set[tuple[str, ...]] = set()

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        await handle.create("durable")
        disk.stalled_until = trio.current_time() + 5.0

        async def create() -> None:
            with pytest.raises(HostDown):
                await handle.create("fresh")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await trio.sleep(1.0)
            assert handle.list() == ["durable", "fresh"]
            world.server.power_cut()
        outcomes.add(tuple(booted(world)[1].list()))

    for seed in range(8):
        run(seed, main)

    assert outcomes == {("durable",), ("durable", "fresh")}


def test_a_full_disk_says_so_and_recovers() -> None:
    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        file = await handle.create("f", size=1000)
        disk.faults.bytes_max = 1500
        assert handle.free_bytes() == 500
        with pytest.raises(DiskFull):
            await handle.create("g", size=600)
        file.write_at(0, (b"x" * 1400,))
        with pytest.raises(DiskFull):
            file.write_at(1400, (b"x" * 200,))
        disk.faults.bytes_max = 1 << 20
        await handle.create("g", size=600)

    run(1, main)


def test_rot_changes_what_is_read() -> None:
    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        assert disk.corrupt() == ""
        file = await handle.create("f", size=4096)
        await file.write_synced(0, bytes(range(256)) * 4)
        assert disk.corrupt() == ""  # the last sync's: not to be told from a torn tail
        assert not disk.is_fault_injected
        await (await handle.create("g")).write_synced(0, b"x")
        while not disk.corrupt().startswith("f"):
            pass
        assert file.read_at(0, 1024) != bytes(range(256)) * 4
        assert disk.is_fault_injected

    run(1, main)


def test_a_map_is_whole_after_a_power_cut() -> None:
    seen: set[int] = set()

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        index = await handle.open_map("index")
        await index.apply([(b"a", b"1"), (b"b", b"1")])
        disk.stalled_until = trio.current_time() + 5.0

        async def apply() -> None:
            with pytest.raises(HostDown):
                await index.apply([(b"a", b"2"), (b"b", b"2")])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(apply)
            await trio.sleep(1.0)
            world.server.power_cut()
        again = await booted(world)[1].open_map("index")
        values = [value for _, value in again.scan(b"a", b"z", 10)]
        assert values in ([b"1", b"1"], [b"2", b"2"])
        seen.add(int(values[0]))

    for seed in range(8):
        run(seed, main)

    assert seen == {1, 2}


def test_a_damaged_map_is_not_opened() -> None:
    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        index = await handle.open_map("index")
        index.close()
        assert disk.damage_map()
        with pytest.raises(CorruptData):
            await handle.open_map("index")
        await handle.delete_map("index")
        await handle.open_map("index")

    run(1, main)


def test_a_map_that_is_full_or_whose_device_fails_says_so() -> None:
    """H43a."""

    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        index = await handle.open_map("index")
        disk.faults.failing_syncs = 1
        with pytest.raises(DiskFailed):
            await index.apply([(b"k", b"v")])
        disk.faults.bytes_max = 10
        with pytest.raises(DiskFull):
            await index.apply([(b"k", b"v" * 100)])
        assert index.get(b"k") is None

    run(1, main)


def test_a_stalled_disk_ends_no_sync_before_its_time() -> None:
    async def main(world: ToyWorld) -> None:
        disk, handle = booted(world)
        file: File = await handle.create("f")
        disk.stalled_until = 10.0
        await file.write_synced(0, b"x")
        assert trio.current_time() >= 10.0

    run(1, main)
