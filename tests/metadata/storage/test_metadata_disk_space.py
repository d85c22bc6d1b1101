"""Full disks under a metadata quorum: nothing ends, nothing lies, and it goes on by itself (H108)."""

import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.metadata.raft.ready import HardState
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.storage.metadata_disk_space import (
    RESERVE_FILE,
    MetadataDiskSpace,
    is_disk_low,
)
from distributedlog.metadata.storage.raft_storage import remove_leftovers
from distributedlog.runtime.declarations.health_conditions import NodeConditions
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    DiskFull,
    MetadataFull,
    OutcomeUnknown,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.host import Disk
from tests.examples import few

from ...bookie.kit import CutDisk
from ..quorum import Quorum, put, quorum
from ..test_metadata_quorum import MIB
from .test_raft_storage import begun, block_offsets, entries, entry, flip, log_name, ready, started

DISK_BYTES = 40 * MIB
VALUE = bytes(64 * 1024)


async def fill(disk: Disk, name: str = "ballast") -> None:
    """Somebody else takes the last byte."""
    (await disk.create(name, size=disk.free_bytes())).close()


# --- the log on a full disk -----------------------------------------------------------------------


async def test_what_a_full_disk_did_not_take_is_written_when_there_is_room() -> None:
    """Nothing is durable before; then all of it is, in order, and a restart finds it (M4)."""
    disk = MemoryDisk(bytes_max=MIB)
    storage = await begun(disk)
    await storage.save([entry(1)])
    await fill(disk)

    for n in (2, 3):
        with pytest.raises(DiskFull):
            await storage.save([entry(n, data=bytes(5000))])
    await disk.delete("ballast")
    await storage.save([ready(hard_state=HardState(4, "b"))])

    _, loaded, _ = await started(disk)
    assert [index for index, _, _ in entries(loaded)] == [1, 2, 3]
    assert loaded.hard_state == HardState(4, "b")


async def test_a_crash_on_a_full_disk_keeps_what_was_durable_before() -> None:
    disk = MemoryDisk(bytes_max=MIB)
    storage = await begun(disk)
    await storage.save([entry(1)])
    await fill(disk)
    with pytest.raises(DiskFull):
        await storage.save([entry(2)])

    for _ in range(3):  # and starts again, with no byte free
        _, loaded, members = await started(disk)
        assert [index for index, _, _ in entries(loaded)] == [1]
        assert (loaded.damage, members.may_vote) == ("", True)


async def test_a_start_on_a_full_disk_is_written_on_and_found_again() -> None:
    """It goes on in the file that it replayed; the starts after it find both parts."""
    disk = MemoryDisk(bytes_max=MIB)
    storage = await begun(disk)
    await storage.save([entry(1), entry(2, data=bytes(20_000))])
    await fill(disk)
    for n in (3, 4, 5):
        storage, loaded, _ = await started(disk)
        assert loaded.log.last_index == n - 1
        await disk.delete("ballast")
        await storage.save([entry(n, data=bytes(6000))])
        await storage.write_watermark()
        await fill(disk)
    await disk.delete("ballast")

    _, loaded, _ = await started(disk)
    assert [index for index, _, _ in entries(loaded)] == [1, 2, 3, 4, 5]


async def test_what_a_start_on_a_full_disk_believes_is_durable_before_it_counts(
    autojump_clock: object,
) -> None:
    """H4: a process that was killed left it in the page cache, and the next one votes and acks by it."""
    disk = CutDisk(bytes_max=MIB, sync_s=0.0)
    storage = await begun(disk)
    await storage.save([entry(1)])
    disk.sync_s = 60.0
    with trio.move_on_after(1):  # killed within the sync
        await storage.save([entry(2)])
    disk.sync_s = 0.0
    await fill(disk)

    _, loaded, _ = await started(disk)
    assert [index for index, _, _ in entries(loaded)] == [1, 2]

    _, loaded, _ = await started(disk.cut(random.Random(1), survive=0.0))
    assert [index for index, _, _ in entries(loaded)] == [1, 2]


async def test_a_start_on_a_full_disk_cuts_off_the_tail_that_it_does_not_believe() -> None:
    """A write was torn in its first block: its second one must not come back after what follows (H4)."""
    disk = MemoryDisk(bytes_max=4 * MIB)
    storage = await begun(disk)
    await storage.save([entry(1)])
    name = log_name(disk)
    torn_at = (await disk.open(name)).size()
    await storage.save([entry(2, data=bytes(300_000)), entry(3, data=b"never acknowledged")])
    assert len([at for at in await block_offsets(disk, name) if at >= torn_at]) == 2
    await flip(disk, name, torn_at + blocks.HEADER_BYTES)
    await fill(disk)

    storage, loaded, _ = await started(disk)
    assert loaded.log.last_index == 1
    await disk.delete("ballast")
    await storage.save([entry(2, term=2, data=bytes(299_000))])

    _, loaded, members = await started(disk)
    assert [(index, term) for index, term, _ in entries(loaded)] == [(1, 1), (2, 2)]
    assert (loaded.damage, members.may_vote) == ("", True)


async def test_what_was_being_written_when_a_node_was_killed_is_removed_first() -> None:
    disk = MemoryDisk(bytes_max=MIB)
    await begun(disk)
    (await disk.create("snapshot.0000000000000007.1.new", size=MIB // 2)).close()
    (await disk.create("received.new", size=MIB // 8)).close()

    await remove_leftovers(disk)

    assert not [name for name in disk.list() if name.endswith(".new")]


async def test_what_is_pending_refuses_a_request_and_does_not_make_the_disk_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else "short" and "has enough free space again" alternate with the requests."""
    caplog.set_level("INFO")
    disk = MemoryDisk(bytes_max=DISK_BYTES)
    conditions = NodeConditions()
    room = MetadataDiskSpace(disk, await begun(disk), conditions, "m1")
    await room.start()
    spare = disk.free_bytes() - room.needed_bytes
    for _ in range(10):
        assert room.refusal(spare) is not None
        room.on_written()
        assert room.refusal(0) is None
        assert not room.is_low
        assert not is_disk_low(conditions.current())
    assert "space" not in caplog.text


def test_what_makes_the_state_larger() -> None:
    """What leads to room is none of it: deletions, notes without a value, what lives under a lease."""
    state = KeyValueState()
    state._transact(put(b"k", bytes(1000)))
    assert state.growth_bytes(put(b"new", b"v")) > 0
    assert state.growth_bytes(put(b"k", bytes(1100))) == 100
    assert state.growth_bytes(put(b"k", bytes(900))) == -100
    assert state.growth_bytes(put(b"note")) == 0
    assert state.growth_bytes(put(b"lock", bytes(500), lease=1)) == 0
    assert state.growth_bytes(Transaction((), (Delete(b"k"),))) < -1000


async def test_what_is_proposed_and_not_written_counts_twice() -> None:
    """Into the log, and into the next snapshot."""
    disk = MemoryDisk(bytes_max=DISK_BYTES)
    room = MetadataDiskSpace(disk, await begun(disk), NodeConditions(), "m1")
    await room.start()
    spare = disk.free_bytes() - room.needed_bytes

    assert room.refusal(0) is None
    assert room.refusal(spare // 2) is None
    assert room.refusal(spare // 2 + 1) is not None


async def test_a_snapshot_that_ends_after_a_newer_one_came_counts_once() -> None:
    """A node's own is being written when its leader's comes: what was applied since is not less for it."""
    disk = MemoryDisk(bytes_max=DISK_BYTES)
    room = MetadataDiskSpace(disk, await begun(disk), NodeConditions(), "m1")
    room.applied_bytes += 1000
    own = room.applied_bytes
    room.applied_bytes += 500
    await room.on_snapshot(room.applied_bytes)
    room.applied_bytes += 70
    await room.on_snapshot(own)

    assert room.grown_bytes == 70


# --- a quorum on full disks -----------------------------------------------------------------------


async def put_until_refused(client: MetadataClient) -> int:
    """Keys of 64 KiB until they are refused for good; how many there are."""
    n = refused = 0
    while refused < 20:
        try:
            await client.transact(put(b"k%05d" % n, VALUE))
        except MetadataFull:
            refused += 1
            await trio.sleep(0.3)
        else:
            n, refused = n + 1, 0
    return n


async def delete(client: MetadataClient, *numbers: int) -> None:
    for n in numbers:
        await client.transact(Transaction((), (Delete(b"k%05d" % n),)))


async def put_when_there_is_room(client: MetadataClient, key: bytes) -> None:
    with trio.fail_after(120):
        while True:
            try:
                await client.transact(put(key, VALUE))
                return
            except (MetadataFull, QuorumUnreachable, OutcomeUnknown):
                await trio.sleep(0.5)


async def live_through_full_disks(nodes: Quorum) -> None:
    """Fill, refuse, delete, restart, go on: with the disks that ``nodes`` has."""
    await nodes.start()
    client = await nodes.client(timeout_s=30)
    lease = await client.grant_lease(3_600_000)

    count = await put_until_refused(client)

    assert count > 50
    rows = await nodes.rows()
    assert set(rows) == set(nodes.names)
    assert any(is_disk_low(row.conditions) for row in rows.values())
    await client.transact(put(b"lock", b"mine", lease))  # a session's housekeeping goes on
    await client.renew_lease(lease)
    assert await client.get(b"k00000") is not None
    await nodes.kill()
    for disk in nodes.disks.values():  # killed in the middle of a snapshot
        await fill(disk, "snapshot.000000000000ffff.1.new")
    await nodes.start()
    other = await nodes.client(timeout_s=30)
    page = await other.range(b"k", b"l", limit=10_000)
    assert page.items
    await delete(other, *range(count // 2))
    await put_when_there_is_room(other, b"after")
    assert (await other.get(b"k00000")) is None
    assert (await other.get(b"k%05d" % (count - 1))) is not None
    with trio.fail_after(60):
        while any(is_disk_low(row.conditions) for row in (await nodes.rows()).values()):  # noqa: ASYNC110
            await trio.sleep(0.2)


async def test_a_quorum_on_full_disks_refuses_deletes_and_goes_on(autojump_clock: object) -> None:
    async with quorum(3) as nodes:
        for name in nodes.names:
            nodes.disks[name] = MemoryDisk(bytes_max=DISK_BYTES)
        await live_through_full_disks(nodes)


async def test_a_burst_is_refused_before_it_fills_the_disks(autojump_clock: object) -> None:
    """What is proposed and not written yet counts, or a hundred changes pass where there is room for one."""
    async with quorum(3) as nodes:
        for name in nodes.names:
            nodes.disks[name] = MemoryDisk(bytes_max=DISK_BYTES)
        await nodes.start()
        client = await nodes.client(timeout_s=30)
        refused = 0

        async def one(n: int) -> None:
            nonlocal refused
            try:
                await client.transact(put(b"k%05d" % n, VALUE))
            except MetadataFull:
                refused += 1

        for turn in range(8):
            async with trio.open_nursery() as nursery:
                for n in range(200):
                    nursery.start_soon(one, turn * 200 + n)

        assert refused > 800
        assert min(disk.free_bytes() for disk in nodes.disks.values()) > MIB


@pytest.mark.parametrize("filled", few([2, 1, 3], 1))
async def test_disks_that_others_filled_to_the_last_byte_end_no_node(
    filled: int, autojump_clock: object
) -> None:
    """What is acknowledged is there; what is not is unknown or refused; then it goes on by itself."""
    async with quorum(3) as nodes:
        for name in nodes.names:
            nodes.disks[name] = MemoryDisk(bytes_max=DISK_BYTES)
        await nodes.start()
        client = await nodes.client(timeout_s=5)
        stored = []
        for n in range(100):
            if n == 40:
                for name in nodes.names[:filled]:
                    await fill(nodes.disks[name])
            try:
                await client.transact(put(b"k%05d" % n, VALUE))
                stored.append(n)
            except (MetadataFull, OutcomeUnknown, QuorumUnreachable):
                await trio.sleep(0.2)
        assert set(await nodes.rows()) == set(nodes.names)
        if filled == 1:
            assert len(stored) > 80
        await nodes.kill()
        await nodes.start()
        for name in nodes.names[:filled]:
            await nodes.disks[name].delete("ballast")

        await put_when_there_is_room(await nodes.client(timeout_s=5), b"after")
        again = await nodes.client()
        for n in stored:
            assert await again.get(b"k%05d" % n) is not None
        with trio.fail_after(60):
            while any(RESERVE_FILE not in disk.list() for disk in nodes.disks.values()):  # noqa: ASYNC110
                await trio.sleep(0.2)


async def test_a_snapshot_that_there_is_no_room_for_is_an_alarm(autojump_clock: object) -> None:
    async with quorum(1) as nodes:
        disk = nodes.disks["m1"] = MemoryDisk(bytes_max=DISK_BYTES)
        await nodes.start()
        client = await nodes.client()
        for n in range(100):
            await client.transact(put(b"k%05d" % n, VALUE))
        (await disk.create("ballast", size=disk.free_bytes() - MIB)).close()
        await trio.sleep(10)

        (row,) = (await nodes.rows()).values()
        assert is_disk_low(row.conditions)
        assert not [name for name in disk.list() if name.endswith(".new")]
        await client.transact(put(b"lock", b"", await client.grant_lease(1000)))
        await disk.delete("ballast")
        await put_when_there_is_room(client, b"after")


async def test_a_failed_snapshot_that_is_not_needed_any_more_is_no_alarm(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's own snapshot failed while a newer one from the leader was installed."""
    spaces: list[MetadataDiskSpace] = []
    start = MetadataDiskSpace.start

    async def noted(self: MetadataDiskSpace) -> None:
        spaces.append(self)
        await start(self)

    monkeypatch.setattr(MetadataDiskSpace, "start", noted)
    async with quorum(1) as nodes:
        await nodes.start()
        client = await nodes.client()
        for has_new_entry in (True, False):
            if has_new_entry:
                await client.transact(put(b"k"))
            await spaces[0].on_snapshot_failed(DiskFull("no space is left"))
            (row,) = (await nodes.rows()).values()
            assert is_disk_low(row.conditions)

            with trio.fail_after(10):
                while any(is_disk_low(row.conditions) for row in (await nodes.rows()).values()):  # noqa: ASYNC110
                    await trio.sleep(0.2)


# --- on real mounts -------------------------------------------------------------------------------


@contextmanager
def mounted(path: Path) -> Iterator[Path]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("mounting needs root")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@asynccontextmanager
async def closing(disk: DirectoryDisk) -> AsyncIterator[DirectoryDisk]:
    try:
        yield disk
    finally:
        await disk.close()


@pytest.mark.processes
async def test_three_nodes_on_full_file_systems(tmp_path: Path) -> None:
    """The same on three real mounts of 40 MB."""
    with (
        mounted(tmp_path / "m1") as one,
        mounted(tmp_path / "m2") as two,
        mounted(tmp_path / "m3") as three,
    ):
        async with (
            closing(DirectoryDisk(one)) as disk1,
            closing(DirectoryDisk(two)) as disk2,
            closing(DirectoryDisk(three)) as disk3,
            quorum(3) as nodes,
        ):
            nodes.disks = {"m1": disk1, "m2": disk2, "m3": disk3}  # type: ignore[dict-item]
            await live_through_full_disks(nodes)
