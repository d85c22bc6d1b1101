"""The same store on a real directory: direct writes, buffered reads, LMDB, both sync modes."""

from dataclasses import replace
from pathlib import Path

import pytest

from distributedlog.bookie.options import BookieOptions
from distributedlog.bookie.store import Store
from distributedlog.runtime.files import DirectoryDisk
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.sync_mode import SyncMode

from .kit import KEY, OPTIONS, Adder, fence, read_all, record, running

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
                assert store.look_up(8, KEY).fenced
            adder = Adder(store, 7)
            for n in range(30):
                adder.send(record(7, len(sent) + n, bytes([n]) * 5000))
            await adder.all_acked()
            sent += adder.sent
            assert list((await read_all(store, 7)).values()) == sent
            await fence(store, 8)
            assert store.limbo.below == 0
            assert store.info()["sync_mode"] == sync
        await journal.close()
        await index.close()


async def test_the_defaults_open(tmp_path: Path) -> None:
    """The options as they are, on a disk that is not asked for a gigabyte."""
    disk = DirectoryDisk(tmp_path)
    host = real_host("b1", disks={"journal": disk, "index": disk})

    store = await Store.open(host, replace(BookieOptions(), journal_file_bytes=1 << 20))

    assert store.ledgers() == []
    store.close()
    await disk.close()


def test_every_option_says_its_unit_and_reason() -> None:
    for option in BookieOptions.__dataclass_fields__.values():
        assert option.metadata["unit"]
        assert option.metadata["reason"]
