"""Small files that are replaced whole, on every disk."""

import pytest

from distributedlog.runtime.disk.atomic_file import TEMPORARY_SUFFIX, read_file, replace_file
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import DiskFull
from distributedlog.runtime.interfaces.host import Disk


async def test_there_is_the_old_or_the_new_content(disk: Disk) -> None:
    assert await read_file(disk, "vote") is None

    await replace_file(disk, "vote", b"term 1")
    assert await read_file(disk, "vote") == b"term 1"

    await replace_file(disk, "vote", b"")
    assert await read_file(disk, "vote") == b""
    assert disk.list() == ["vote"]


async def test_what_a_crash_left_aside_is_no_hindrance(disk: Disk) -> None:
    leftover = await disk.create("vote" + TEMPORARY_SUFFIX)
    leftover.write_at(0, (b"a longer half-written content",))
    leftover.close()

    await replace_file(disk, "vote", b"new")

    assert await read_file(disk, "vote") == b"new"
    assert disk.list() == ["vote"]


async def test_a_full_disk_leaves_the_old_content() -> None:
    disk = MemoryDisk(bytes_max=10)
    await replace_file(disk, "vote", b"old")

    with pytest.raises(DiskFull):
        await replace_file(disk, "vote", b"longer than what is left")

    assert await read_file(disk, "vote") == b"old"
    await replace_file(disk, "vote", b"fits")
    assert await read_file(disk, "vote") == b"fits"
