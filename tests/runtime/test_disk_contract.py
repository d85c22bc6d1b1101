"""What every `Disk` and `File` does, real, in memory and simulated
(distributedlog/runtime/interfaces/host.py)."""

import ctypes

import pytest
import trio

from distributedlog.runtime.interfaces.errors import AlreadyClosed, DataDirectoryInUse
from distributedlog.runtime.interfaces.host import Disk
from tests.runtime.contract_sides import DiskWorld

PAGE = 4096


def page(disk: Disk, fill: bytes, pages: int = 1) -> memoryview:
    buffer = disk.aligned_buffer(pages * PAGE)
    buffer[:] = fill * (pages * PAGE)
    return buffer


async def test_a_new_disk_is_empty(disk: Disk) -> None:
    assert disk.list() == []
    assert disk.free_bytes() > 0
    assert disk.durability


async def test_files_are_listed_sorted(disk: Disk) -> None:
    for name in ("b", "journal-0000000002", "a.new", "FORMAT"):
        (await disk.create(name)).close()

    assert disk.list() == ["FORMAT", "a.new", "b", "journal-0000000002"]


async def test_a_preallocated_file_has_its_size_and_reads_as_zeros(disk: Disk) -> None:
    file = await disk.create("f", size=100_000)

    assert file.name == "f"
    assert file.size() == 100_000
    assert file.read_at(0, 200_000) == bytes(100_000)
    file.write_at(50_000, (b"x",))
    assert file.size() == 100_000
    assert file.read_at(49_999, 3) == b"\0x\0"
    file.close()


async def test_creating_what_exists_is_refused(disk: Disk) -> None:
    file = await disk.create("f")
    file.write_at(0, (b"kept",))

    with pytest.raises(FileExistsError):
        await disk.create("f")

    assert file.read_at(0, 10) == b"kept"
    file.close()


async def test_what_is_not_there_is_not_found(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        await disk.open("f")
    with pytest.raises(FileNotFoundError):
        await disk.delete("f")
    with pytest.raises(FileNotFoundError):
        await disk.rename("f", "g")


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "LOCK", "a\0b"])
async def test_names_are_flat(disk: Disk, name: str) -> None:
    with pytest.raises(AssertionError):
        await disk.create(name)


async def test_writes_are_read_back(disk: Disk) -> None:
    file = await disk.create("f")

    file.write_at(0, (b"abc", bytearray(b"def"), memoryview(b"ghi")))
    file.write_at(3, (b"DEF",))
    file.write_at(20, (b"z",))  # after a hole
    await file.sync()

    assert file.size() == 21
    assert file.read_at(0, 9) == b"abcDEFghi"
    assert file.read_at(9, 11) == bytes(11)
    assert file.read_at(19, 100) == b"\0z"  # fewer at the end
    assert file.read_at(21, 100) == b""
    assert file.read_at(1000, 1) == b""
    assert file.read_if_cached(0, 3) in (None, b"abc")
    assert await file.read_in_worker(0, 3) == b"abc"
    assert await file.read_in_worker_unbuffered(3, 100) == b"DEFghi" + bytes(11) + b"z"
    file.close()


async def test_many_small_buffers_are_one_write(disk: Disk) -> None:
    """More than the system takes in one call (IOV_MAX)."""
    file = await disk.create("f")
    pieces = [b"%05d" % n for n in range(3000)]

    file.write_at(7, pieces)

    assert file.read_at(7, 15_000) == b"".join(pieces)
    file.close()


async def test_the_next_look_sees_what_was_synced(disk_world: DiskWorld) -> None:
    file = await disk_world.look().create("f", size=2 * PAGE)
    await file.write_synced(PAGE, b"second")
    file.write_at(0, (b"first",))
    await file.sync()
    file.close()

    again = await disk_world.look().open("f")

    assert again.size() == 2 * PAGE
    assert again.read_at(0, 5) == b"first"
    assert again.read_at(PAGE, 6) == b"second"
    again.write_at(0, (b"FIRST",))
    assert again.read_at(0, 5) == b"FIRST"
    again.close()


async def test_what_was_synced_within_the_call_is_seen_by_the_next_look(
    disk_world: DiskWorld,
) -> None:
    """Where a disk syncs on the loop; the others say that they do not."""
    disk = disk_world.look()
    file = await disk.create("f", size=4 * PAGE, direct=True)
    if not file.syncs_inline:
        file.close()
        return
    file.write_synced_now(PAGE, page(disk, b"n"))
    await file.write_synced(2 * PAGE, page(disk, b"m"))
    file.close()

    again = await disk_world.look().open("f")

    assert again.read_at(PAGE - 1, 2) == b"\0n"
    assert again.read_at(2 * PAGE - 1, 2) == b"nm"
    again.close()


@pytest.mark.parametrize("size", [0, 64 * PAGE])
async def test_a_direct_file_takes_aligned_writes(disk: Disk, size: int) -> None:
    file = await disk.create("f", size=size, direct=True)

    file.write_at(0, (page(disk, b"a"), page(disk, b"b", 2)))
    await file.write_synced(3 * PAGE, page(disk, b"c")[:])
    file.write_at(4 * PAGE, (page(disk, b"d", 2)[PAGE:],))
    await file.sync()

    assert file.read_at(PAGE - 1, 2) == b"ab"  # reads need no alignment
    assert await file.read_in_worker(3 * PAGE - 1, 2) == b"bc"
    assert file.read_if_cached(4 * PAGE - 1, 2) in (None, b"cd")
    assert file.size() == (size or 5 * PAGE)
    file.close()


async def test_a_direct_file_shows_what_was_written_after_a_read(disk: Disk) -> None:
    """A read of preallocated space must not leave zeros in a cache that later reads are served from."""
    file = await disk.create("f", size=256 * PAGE, direct=True)
    await file.write_synced(0, page(disk, b"a"))

    for n in range(1, 20):
        assert file.read_at(0, 64 * PAGE)[n * PAGE] == 0
        await file.write_synced(n * PAGE, page(disk, b"x"))
        assert file.read_at(n * PAGE, PAGE) == b"x" * PAGE
        assert file.read_if_cached(n * PAGE, PAGE) in (None, b"x" * PAGE)
    file.close()


async def test_zeros_land_beside_other_writes_and_are_written_over(disk: Disk) -> None:
    file = await disk.create("f", size=512 * PAGE, direct=True)
    file.write_at(8 * PAGE, (page(disk, b"o", 24),))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.write_zeros, 8 * PAGE, 16 * PAGE)
        nursery.start_soon(file.write_zeros, 256 * PAGE, 256 * PAGE)
        for n in range(8):
            await file.write_synced(n * PAGE, page(disk, b"x"))

    assert file.read_at(0, 8 * PAGE) == b"x" * 8 * PAGE
    assert file.read_at(8 * PAGE, 16 * PAGE) == bytes(16 * PAGE)
    assert file.read_at(24 * PAGE, PAGE)[:1] == b"o", "after the zeros nothing was touched"
    await file.write_synced(9 * PAGE, page(disk, b"y"))
    assert file.read_at(9 * PAGE - 1, PAGE + 2) == b"\0" + b"y" * PAGE + b"\0"
    assert file.size() == 512 * PAGE
    file.close()


async def test_concurrent_synced_writes_all_land(disk: Disk) -> None:
    files = [await disk.create(f"f{n}", size=64 * PAGE) for n in range(3)]

    async with trio.open_nursery() as nursery:
        for n in range(16):
            for file in files:
                nursery.start_soon(file.write_synced, n * PAGE, b"%04d" % n)

    for file in files:
        assert [file.read_at(n * PAGE, 4) for n in range(16)] == [b"%04d" % n for n in range(16)]
        file.close()


async def test_a_cancelled_call_has_done_nothing_or_all(disk: Disk) -> None:
    """The buffer must stay as it is until the call returns: it may not return half-way."""
    file = await disk.create("f", size=PAGE)

    with trio.CancelScope() as scope:
        scope.cancel()
        await file.write_synced(0, b"never")
    assert scope.cancelled_caught
    assert file.read_at(0, 5) == bytes(5)

    with trio.move_on_after(0.0001):
        await file.write_synced(0, b"maybe")
    assert file.read_at(0, 5) in (b"maybe", bytes(5))
    await file.sync()
    file.close()


async def test_rename_replaces_and_open_files_stay(disk: Disk) -> None:
    old, new = await disk.create("old"), await disk.create("new")
    old.write_at(0, (b"from old",))
    new.write_at(0, (b"was new",))

    await disk.rename("old", "new")

    assert disk.list() == ["new"]
    assert new.read_at(0, 10) == b"was new"
    found = await disk.open("new")
    assert found.read_at(0, 10) == b"from old"
    for file in (old, new, found):
        file.close()


async def test_many_files_are_deleted_at_once(disk: Disk) -> None:
    for name in ("a", "b", "c", "d"):
        (await disk.create(name)).close()

    await disk.delete("a", "c", "d")

    assert disk.list() == ["b"]
    with pytest.raises(FileNotFoundError):
        await disk.delete("b", "never there")


async def test_deleted_files_stay_readable_while_open(disk: Disk) -> None:
    """A reader of a journal file meets its deletion (H16)."""
    file = await disk.create("f")
    file.write_at(0, (b"still here",))

    await disk.delete("f")

    assert disk.list() == []
    assert file.read_at(0, 100) == b"still here"
    file.close()
    again = await disk.create("f")
    assert again.size() == 0
    again.close()


async def test_truncate_cuts_and_extends(disk: Disk) -> None:
    file = await disk.create("f")
    file.write_at(0, (b"abcdef",))

    file.truncate(3)
    assert file.size() == 3
    file.truncate(6)

    assert file.read_at(0, 10) == b"abc\0\0\0"
    file.close()


async def test_a_hole_takes_no_space_and_reads_as_zeros(disk: Disk) -> None:
    """Whole pages alone: a punch that rounded outwards would take a neighbour (H87)."""
    file = await disk.create("f", size=64 * PAGE, direct=True)
    await file.write_synced(0, page(disk, b"x", 64))
    before = file.allocated_bytes()

    if not await file.punch_hole(3 * PAGE - 1, 50 * PAGE + 2):  # 3 to 52, and a byte at each end
        assert file.read_at(0, 64 * PAGE) == b"x" * 64 * PAGE
        file.close()
        return

    assert file.read_at(3 * PAGE - 1, 50 * PAGE + 2) == b"x" + bytes(50 * PAGE) + b"x"
    assert file.size() == 64 * PAGE
    assert file.allocated_bytes() == before - 50 * PAGE
    assert await file.punch_hole(5 * PAGE + 1, PAGE), "nothing whole: nothing done"
    assert await file.punch_hole(4 * PAGE, 2 * PAGE), "again"
    assert file.allocated_bytes() == before - 50 * PAGE
    await file.write_synced(10 * PAGE, page(disk, b"y"))
    assert file.read_at(10 * PAGE - 1, PAGE + 2) == b"\0" + b"y" * PAGE + b"\0"
    assert file.allocated_bytes() == before - 49 * PAGE
    file.close()


async def test_what_is_written_aside_is_there_and_durable(disk_world: DiskWorld) -> None:
    disk = disk_world.look()
    file = await disk.create("f", size=8 * PAGE, direct=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.write_in_worker, 4 * PAGE, page(disk, b"a", 2))
        await file.write_synced(0, page(disk, b"x"))
    file.close()

    again = await disk_world.look().open("f")

    assert again.read_at(PAGE - 1, 2) == b"x\0"
    assert again.read_at(4 * PAGE - 1, 2 * PAGE + 2) == b"\0" + b"a" * 2 * PAGE + b"\0"
    again.close()


async def test_a_closed_file_says_so(disk: Disk) -> None:
    file = await disk.create("f")
    file.close()
    file.close()

    with pytest.raises(AlreadyClosed):
        file.write_at(0, (b"x",))
    with pytest.raises(AlreadyClosed):
        file.read_at(0, 1)
    with pytest.raises(AlreadyClosed):
        file.read_if_cached(0, 1)
    with pytest.raises(AlreadyClosed):
        file.size()
    with pytest.raises(AlreadyClosed):
        file.truncate(0)
    with pytest.raises(AlreadyClosed):
        await file.sync()
    with pytest.raises(AlreadyClosed):
        await file.write_synced(0, b"x")
    with pytest.raises(AlreadyClosed):
        await file.read_in_worker(0, 1)
    with pytest.raises(AlreadyClosed):
        await file.read_in_worker_unbuffered(0, 1)
    with pytest.raises(AlreadyClosed):
        await file.write_in_worker(0, b"x")
    with pytest.raises(AlreadyClosed):
        await file.punch_hole(0, PAGE)
    with pytest.raises(AlreadyClosed):
        file.allocated_bytes()


async def test_one_node_has_the_disk(disk_world: DiskWorld) -> None:
    first = disk_world.look()
    first.lock()

    with pytest.raises(DataDirectoryInUse):
        disk_world.look().lock()
    with pytest.raises(DataDirectoryInUse):
        first.lock()

    first.unlock()
    first.unlock()
    second = disk_world.look()
    second.lock()
    assert second.list() == []
    second.unlock()


async def test_buffers_are_aligned_and_zeroed(disk: Disk) -> None:
    for length in (PAGE, 3 * PAGE, 1 << 20):
        buffer = disk.aligned_buffer(length)

        assert len(buffer) == length
        assert bytes(buffer) == bytes(length)
        buffer[-1] = 1
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % PAGE == 0
