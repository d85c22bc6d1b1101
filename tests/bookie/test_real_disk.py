"""The same store on a real directory: direct writes, buffered reads, LMDB, both sync modes."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.sync_mode import SyncMode, choose_sync_mode
from distributedlog.runtime.interfaces.errors import BookieReadOnly
from distributedlog.runtime.machine import real_host
from tests.examples import few
from tests.runtime.mounts import mounted

from .kit import KEY, OPTIONS, Adder, fence, ids, read_all, record, running

MIB = 1 << 20
SMALL = replace(
    OPTIONS, journal_file_bytes=128 << 10, gather_bytes=64 << 10, unsynced_bytes_max=48 << 10
)


@pytest.mark.parametrize("sync", ["thread", "inline"])
async def test_rolls_restarts_and_a_lost_index(tmp_path: Path, sync: SyncMode) -> None:
    """G1 on ext4 or whatever is under the test's directory."""
    sent: list[bytes] = []
    for start in range(3):
        journal = DirectoryDisk(tmp_path / "journal", sync=sync)
        index = DirectoryDisk(tmp_path / "index")
        if start == 2:
            await index.delete_map("bookie")
        async with running(journal, SMALL, index) as store:
            if sent:
                assert list((await read_all(store, 7)).values()) == sent
                assert store.ledgers.get_known(8, KEY).fenced
            adder = Adder(store, 7)
            for n in range(30):
                adder.send(record(7, len(sent) + n, bytes([n]) * 5000))
            await adder.all_acked()
            sent += adder.sent
            assert list((await read_all(store, 7)).values()) == sent
            await fence(store, 8)
            assert store.ledgers.limbo_below == 0
            assert store.info()["sync_mode"] == sync
        await journal.close()
        await index.close()


async def test_the_defaults_open(tmp_path: Path) -> None:
    """The options as they are, on a disk that is not asked for a gigabyte."""
    disk = DirectoryDisk(tmp_path)
    host = real_host("b1", disks={"journal": disk, "index": disk})

    store = await open_store(host, replace(BookieOptions(), journal_file_bytes=1 << 20))

    assert await ids(store) == []
    store.close()
    await disk.close()


@pytest.mark.parametrize("full", few(["both", "journal", "index"], 1))
async def test_a_full_device_is_started_on_and_served_from(tmp_path: Path, full: str) -> None:
    """H28: to the last byte, on file systems of 40 MB, again and again; then room is made."""
    options = replace(BookieOptions(), journal_file_bytes=4 * MIB, gather_bytes=1 * MIB)
    options = replace(options, free_bytes_min=4 * MIB)
    with (
        mounted(tmp_path / "a", "tmpfs", "-o", "size=40m") as first,
        mounted(tmp_path / "b", "tmpfs", "-o", "size=40m") as second,
    ):
        places = {"journal": first, "index": second}
        filled = [each for role, each in places.items() if full in (role, "both")]
        sent: list[bytes] = []
        for start in range(5):
            if start == 4:
                for each in filled:
                    (each / "ballast").unlink()
            disks = {role: DirectoryDisk(each / role) for role, each in places.items()}
            for disk in disks.values():
                disk.lock()
            assert (await choose_sync_mode(disks["journal"].path)).mode in ("inline", "thread")
            async with running(disks["journal"], options, disks["index"]) as store:
                if sent:
                    assert list((await read_all(store, 7)).values()) == sent
                    assert store.ledgers.get_known(8, KEY).fenced
                adder = Adder(store, 7)
                if start in (0, 4):
                    for n in range(20):
                        adder.send(record(7, len(sent) + n, bytes([n]) * 50_000))
                    await adder.all_acked()
                    sent += adder.sent
                    await fence(store, 8)
                    await store.delete_ledger(9)
                    await store.checkpoint()
                    for each in [] if start else filled:
                        _fill(each / "ballast")
                else:
                    adder.send(record(7, len(sent)))
                    error, _ = await adder.refusal()
                    assert isinstance(error, BookieReadOnly)
                    await fence(store, 100 + start)
                    await store.delete_ledger(200 + start)
                    if full != "both":
                        await store.checkpoint()
                    for each in filled:
                        _fill(each / "ballast")
                assert store.ledgers.limbo_below == 0
            for disk in disks.values():
                await disk.close()


def _fill(path: Path) -> None:
    """Take the rest of the file system, to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
