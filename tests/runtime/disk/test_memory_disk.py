"""The memory disk's bound; what else it does is in the contract tests."""

import pytest

from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import DiskFull


async def test_space_is_counted_by_size_and_given_back() -> None:
    disk = MemoryDisk(bytes_max=1000)
    one = await disk.create("one", size=400)
    two = await disk.create("two")
    two.write_at(100, (b"x" * 100,))
    assert disk.free_bytes() == 400

    one.truncate(100)
    assert disk.free_bytes() == 700
    await disk.rename("one", "two")
    assert disk.free_bytes() == 900
    await disk.delete("two")
    assert disk.free_bytes() == 1000
    assert two.read_at(100, 1) == b"x"  # open still, though its name is gone


async def test_a_full_disk_refuses_and_the_file_stays_failed() -> None:
    disk = MemoryDisk(bytes_max=100)
    file = await disk.create("f")
    file.write_at(0, (b"kept",))

    with pytest.raises(DiskFull, match="f: no space for 197 more bytes, 96 are free"):
        file.write_at(1, (bytes(200),))

    assert file.read_at(0, 10) == b"kept"
    with pytest.raises(DiskFull):
        file.write_at(0, (b"x",))
    with pytest.raises(DiskFull):
        await file.sync()
    with pytest.raises(DiskFull):
        await disk.create("g", size=97)
    assert disk.list() == ["f"]
    await disk.create("g", size=96)


async def test_preallocated_space_costs_no_memory() -> None:
    disk = MemoryDisk()
    file = await disk.create("journal", size=1 << 40)

    file.write_at(4096, (b"x",))

    assert file.size() == 1 << 40
    assert file.read_at((1 << 40) - 2, 10) == b"\0\0"
    assert file.read_at(4095, 3) == b"\0x\0"
