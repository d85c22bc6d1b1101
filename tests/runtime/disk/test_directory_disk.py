"""What only a real directory shows: errors of the system, locks of processes, descriptors."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.sync_mode import Syncer, SyncMeasurement, choose_sync_mode
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DataDirectoryInUse,
    DataDirectoryLost,
    DiskFailed,
    DiskFull,
    TooBusy,
)
from distributedlog.runtime.interfaces.host import File
from tests.runtime.mounts import mounted

PAGE = 4096


@pytest.fixture(params=["inline", "thread"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DirectoryDisk]:
    disk = DirectoryDisk(tmp_path / "made" / "as needed", sync=request.param)
    yield disk
    await disk.close()


async def test_failed_create_leaves_no_descriptor_open(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has two descriptors, one of them for direct I/O, before the directory is synced."""

    def sync_names() -> None:
        raise OSError(errno.EIO, "injected")

    (await disk.create("first", size=PAGE, direct=True)).close()
    monkeypatch.setattr(disk, "_sync_names", sync_names)
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(DiskFailed, match="injected"):
        await disk.create("second", size=PAGE, direct=True)

    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_write_that_found_no_space_fails_the_file_for_good(disk: DirectoryDisk) -> None:
    """What lies in the page cache after a failed write or sync is not to be trusted."""
    os.symlink("/dev/full", disk.path / "full")
    file = await disk.open("full")

    with pytest.raises(DiskFull, match=r"full: write of 3 bytes at 7 failed: .* \(errno 28\)"):
        file.write_at(7, (b"abc",))

    with pytest.raises(DiskFull, match="stays failed"):
        file.write_at(0, (b"abc",))
    with pytest.raises(DiskFull, match="stays failed"):
        await file.sync()
    with pytest.raises(DiskFull, match="stays failed"):
        await file.write_synced(0, b"abc")
    with pytest.raises(DiskFull, match="stays failed"):
        file.truncate(0)
    file.close()


async def test_nothing_is_read_ahead_of_what_is_read_aside(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's way is as it was afterwards: readers in sequence want it."""
    advised: list[int] = []

    def noted(descriptor: int, offset: int, length: int, advice: int) -> None:
        advised.append(advice)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    file = await disk.create("f")
    file.write_at(0, (bytes(PAGE),))
    assert await file.read_in_worker_unbuffered(0, PAGE) == bytes(PAGE)
    assert await file.read_in_worker_unbuffered(PAGE - 1, 10) == b"\0"
    assert advised == 2 * [os.POSIX_FADV_RANDOM, os.POSIX_FADV_NORMAL]
    file.close()


async def test_a_synced_write_that_failed_raises_where_it_is_awaited(disk: DirectoryDisk) -> None:
    os.symlink("/dev/full", disk.path / "full")
    file = await disk.open("full")

    with pytest.raises(DiskFull, match="write of 3 bytes at 0"):
        await file.write_synced(0, b"abc")

    file.close()


async def test_a_failed_sync_fails_the_file_for_good(disk: DirectoryDisk) -> None:
    """The next fdatasync of the same file may well succeed, over pages that were lost."""
    os.symlink("/dev/full", disk.path / "no sync")  # a device that cannot be synced
    file = await disk.open("no sync")

    with pytest.raises(DiskFailed, match=r"no sync: fdatasync failed: .* \(errno 22\)"):
        await file.sync()

    with pytest.raises(DiskFailed, match="stays failed"):
        await file.sync()
    with pytest.raises(DiskFailed, match="stays failed"):
        file.write_at(0, (b"abc",))
    file.close()


async def test_of_two_syncs_at_once_none_succeeds_over_what_the_other_was_told_is_lost(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells a descriptor of a failed write-back once; bookie seed 53 acknowledged what was lost."""
    disk.sync_mode = (
        "thread"  # whatever the fixture says: on the loop the fake would wait for itself
    )
    file = await disk.create("f", size=2 * PAGE)
    told: set[int] = set()
    met = threading.Event()

    def fdatasync(descriptor: int) -> None:
        if descriptor in told:
            met.set()
            return
        told.add(descriptor)
        met.wait(0.2)  # as long as another one may come in between
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    failed = []
    async with trio.open_nursery() as nursery:

        async def fails(call: Callable[[], Awaitable[None]]) -> None:
            with pytest.raises(DiskFailed):
                await call()
            failed.append(call)

        nursery.start_soon(fails, lambda: file.write_zeros(PAGE, PAGE))
        nursery.start_soon(fails, lambda: file.write_synced(0, bytes(PAGE)))

    assert len(failed) == 2
    file.close()


async def test_what_the_device_cannot_read_is_corrupt(disk: DirectoryDisk) -> None:
    """A bad sector is lost data, to be repaired from elsewhere; not the end of the node."""
    os.symlink("/proc/self/mem", disk.path / "bad")
    file = await disk.open("bad")

    with pytest.raises(CorruptData, match=r"bad: read of 10 bytes at 0: .* \(errno 5\)"):
        file.read_at(0, 10)
    with pytest.raises(CorruptData):
        await file.read_in_worker(0, 10)
    with pytest.raises(CorruptData):
        file.read_if_cached(0, 10)
    file.close()


async def test_a_read_without_memory_says_nothing_about_the_bytes(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for corruption, a start under a limit of memory would repair what is sound."""
    file = await disk.create("sound", size=PAGE)

    def no_memory(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", no_memory)
        with pytest.raises(TooBusy, match="sound: read of 10 bytes at 0"):
            file.read_at(0, 10)
        with pytest.raises(TooBusy):
            await file.read_in_worker(0, 10)
    assert await file.read_in_worker(0, 10) == bytes(10)
    file.close()


async def test_a_file_that_finds_no_room_is_not_left_half_made(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "tmpfs", "-o", "size=1m") as small:
        disk = DirectoryDisk(small)
        free = disk.free_bytes()

        with pytest.raises(DiskFull, match="with 2000000 bytes failed"):
            await disk.create("journal", size=2_000_000)

        assert disk.list() == []
        assert disk.free_bytes() == free
        file = await disk.create("journal", size=100_000)
        with pytest.raises(DiskFull):
            file.write_at(0, (bytes(2_000_000),))
        await disk.close()


async def test_a_lack_of_descriptors_is_not_a_failed_disk(disk: DirectoryDisk) -> None:
    (await disk.create("f")).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)

    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(TooBusy, match="f: too many open files"):
            await disk.open("f")
        with pytest.raises(TooBusy):
            await disk.create("g")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert disk.list() == ["f"]
    (await disk.create("g")).close()


async def test_names_are_synced_where_no_descriptor_is_left(disk: DirectoryDisk) -> None:
    """A roll that renames and deletes while connections hold all descriptors: the directory is open."""
    for name in ("f", "g", "h"):
        (await disk.create(name)).close()
    await disk.rename("f", "f2")  # the worker's thread is there before descriptors run out
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)

    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        await disk.rename("g", "g2")
        await disk.delete("h")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert disk.list() == ["f2", "g2"]


async def test_file_systems_in_memory_are_hot(tmp_path: Path) -> None:
    """H37: they do not know RWF_NOWAIT."""
    with mounted(tmp_path / "small", "tmpfs", "-o", "size=1m") as small:
        disk = DirectoryDisk(small)
        file = await disk.create("f")
        file.write_at(0, (b"abc",))

        assert file.read_if_cached(1, 10) == b"bc"

        await disk.close()


async def test_where_direct_is_refused_files_are_buffered_and_it_shows(tmp_path: Path) -> None:
    with mounted(tmp_path / "ram", "ramfs") as ram:
        disk = DirectoryDisk(ram)
        try:
            file = await disk.create("f", direct=True)
        except DiskFailed:
            pytest.skip("ramfs cannot do this here")
        await file.write_synced(0, disk.aligned_buffer(PAGE))

        assert disk.direct_refused
        assert file.read_at(0, PAGE) == bytes(PAGE)
        assert disk.list() == ["f"]
        await disk.close()


async def test_direct_is_taken_where_it_can_be(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    file = await disk.create("f", size=4 * PAGE, direct=True)
    if disk.direct_refused:
        pytest.skip("this file system refuses O_DIRECT")

    with pytest.raises(AssertionError):
        file.write_at(1, (disk.aligned_buffer(PAGE),))
    with pytest.raises(AssertionError):
        file.write_at(0, (disk.aligned_buffer(PAGE)[1:],))
    file.write_at(0, (disk.aligned_buffer(PAGE),))

    await disk.close()


async def test_the_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    program = """
import sys
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.interfaces.host import File
disk = DirectoryDisk(sys.argv[1])
disk.lock()
print("locked", flush=True)
sys.stdin.read()
"""
    holder = await trio.lowlevel.open_process(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert (await holder.stdout.receive_some()).startswith(b"locked")
    disk = DirectoryDisk(tmp_path)

    with pytest.raises(DataDirectoryInUse, match=f"another process \\(pid {holder.pid}\\)"):
        disk.lock()

    holder.kill()
    await holder.wait()
    disk.lock()
    await disk.close()


async def test_a_file_closed_during_its_sync_keeps_its_descriptor_till_then(
    tmp_path: Path,
) -> None:
    """Else the number is given to the next file, and the sync goes there."""
    disk = DirectoryDisk(tmp_path, sync="thread")
    file = await disk.create("f")
    go = threading.Event()

    def hold() -> None:
        go.wait()

    before = open_descriptors()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk._syncer.run, hold)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(file.write_synced, 0, b"on its way")
        await trio.testing.wait_all_tasks_blocked()
        file.close()
        with pytest.raises(AlreadyClosed):
            file.size()
        assert open_descriptors() == before + 2  # two eventfds more, and the file's still
        go.set()

    assert open_descriptors() == before + 1
    assert (tmp_path / "f").read_bytes() == b"on its way"
    await disk.close()


async def test_a_closed_disk_holds_nothing(tmp_path: Path) -> None:
    before = open_descriptors()
    threads = threading.active_count()
    disk = DirectoryDisk(tmp_path, sync="thread")
    disk.lock()
    kept = await disk.create("f", direct=True)
    await kept.write_synced(0, disk.aligned_buffer(PAGE))
    await (await disk.create("g")).sync()
    index = await disk.open_map("index")
    await index.apply([(b"k", b"v")])
    index.close()

    await disk.close()
    await disk.close()

    assert open_descriptors() == before
    assert not [t.name for t in threading.enumerate() if t.name.startswith("sync ")]
    assert threading.active_count() <= threads + 2  # trio keeps idle workers a while
    with pytest.raises(AlreadyClosed):
        kept.size()
    with pytest.raises(AlreadyClosed):
        disk.list()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_syncs_in_the_thread_keep_their_order_and_leave_the_loop_free() -> None:
    """H10: each returns when its own call is through, not when an earlier one is."""
    syncer = Syncer("thread", "sync test")
    gates = [threading.Event() for _ in range(3)]
    begun: list[int] = []
    ended: list[int] = []

    async def sync(n: int) -> None:
        def call() -> None:
            begun.append(n)
            gates[n].wait()

        await syncer.run(call)
        ended.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(sync, n)
            await trio.testing.wait_all_tasks_blocked()
        gates[1].set()
        gates[2].set()
        try:
            with trio.fail_after(30):
                while not begun:  # noqa: ASYNC110 - the thread's doing
                    await trio.sleep(0.001)
            await trio.sleep(0.002)
            assert (begun, ended) == ([0], [])
        finally:  # else a failure would wait for a sync that never ends
            gates[0].set()

    assert begun == [0, 1, 2]
    assert sorted(ended) == [0, 1, 2]
    await syncer.close()


async def test_a_sync_that_began_is_not_cancelled() -> None:
    """The buffers it writes from are in use until it returns."""
    syncer = Syncer("thread", "sync test")
    gate = threading.Event()
    done: list[str] = []

    def call() -> None:
        gate.wait()
        done.append("through")

    async def open_gate() -> None:
        await trio.sleep(0.002)
        gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_gate)
        with trio.move_on_after(0.0005) as scope:
            await syncer.run(call)
            done.append("returned")

    assert done == ["through", "returned"]
    assert not scope.cancelled_caught
    await syncer.close()
    with pytest.raises(AlreadyClosed):
        await syncer.run(call)


async def test_the_disk_is_asked_where_to_sync(tmp_path: Path) -> None:
    measured = await choose_sync_mode(tmp_path)

    assert 0 < measured.p50_s <= measured.slowest_s
    assert measured.mode in ("inline", "thread")
    assert os.listdir(tmp_path) == []
    disk = DirectoryDisk(tmp_path)
    disk.sync_mode = measured.mode
    assert disk.sync_mode == measured.mode


@pytest.mark.parametrize(
    ("p50_s", "slowest_s", "mode"),
    [(0.0002, 0.001, "inline"), (0.0006, 0.001, "thread"), (0.0002, 0.02, "thread")],
)
def test_fast_and_even_disks_are_synced_inline(p50_s: float, slowest_s: float, mode: str) -> None:
    assert SyncMeasurement(p50_s, slowest_s).mode == mode


# --- files that are not where they were -----------------------------------------------------------------


async def _is_lost(disk: DirectoryDisk) -> str:
    with pytest.raises(DataDirectoryLost) as caught:
        await disk.check_directory()
    return str(caught.value)


def _remove_file(disk: DirectoryDisk) -> None:
    (disk.path / "journal-1").unlink()


def _move_file(disk: DirectoryDisk) -> None:
    (disk.path / "journal-1").rename(disk.path.parent / "journal-1")


def _replace_file(disk: DirectoryDisk) -> None:
    (disk.path / "other").write_bytes(b"other")
    (disk.path / "other").rename(disk.path / "journal-1")


def _remove_map(disk: DirectoryDisk) -> None:
    shutil.rmtree(disk.path / "index.lmdb")


def _replace_map(disk: DirectoryDisk) -> None:
    shutil.copytree(disk.path / "index.lmdb", disk.path / "copy.lmdb")
    shutil.rmtree(disk.path / "index.lmdb")
    (disk.path / "copy.lmdb").rename(disk.path / "index.lmdb")


def _remove_directory(disk: DirectoryDisk) -> None:
    shutil.rmtree(disk.path)


def _move_directory(disk: DirectoryDisk) -> None:
    disk.path.rename(disk.path.with_name("elsewhere"))


def _replace_directory(disk: DirectoryDisk) -> None:
    _move_directory(disk)
    disk.path.mkdir()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_remove_file, "journal-1"),
        (_move_file, "journal-1"),
        (_replace_file, "journal-1"),
        (_remove_map, "index.lmdb"),
        (_replace_map, "index.lmdb"),
        (_remove_directory, "as needed"),
        (_move_directory, "as needed"),
        (_replace_directory, "as needed"),
    ],
)
async def test_files_that_another_program_took_away_are_missed(
    disk: DirectoryDisk, change: Callable[[DirectoryDisk], None], named: str
) -> None:
    """The error names the path. The next start would not find the data that is written now."""
    file = await disk.create("journal-1", size=PAGE, direct=True)
    index = await disk.open_map("index")
    await index.apply([(b"k", b"v")])
    await disk.check_directory()

    change(disk)

    await file.write_synced(0, disk.aligned_buffer(PAGE))  # the system does not refuse it
    assert str(disk.path) in (text := await _is_lost(disk))
    assert named in text
    index.close()


async def test_a_file_system_mounted_over_the_directory_is_noticed_and_left_alone(
    tmp_path: Path,
) -> None:
    """It has files of the same names, of the bookie whose disk it is."""
    path = tmp_path / "data"
    path.mkdir()
    disk = DirectoryDisk(path)
    for name in ("journal-1", "journal-2", "journal-3"):
        (await disk.create(name, size=PAGE)).close()
    path.rename(tmp_path / "below")
    with mounted(path, "tmpfs", "-o", "size=1m"):
        for name in ("journal-1", "journal-2", "journal-3"):
            (path / name).write_bytes(b"of the other")

        assert "mounted over it" in await _is_lost(disk)
        await disk.delete("journal-1")
        await disk.rename("journal-2", "journal-3")
        (await disk.create("journal-4")).close()

        assert {each.name: each.read_bytes() for each in path.iterdir()} == dict.fromkeys(
            ("journal-1", "journal-2", "journal-3"), b"of the other"
        )
        assert disk.list() == ["journal-3", "journal-4"]
    await disk.close()


async def test_in_a_directory_that_was_removed_no_file_is_made(disk: DirectoryDisk) -> None:
    shutil.rmtree(disk.path)

    with pytest.raises(DataDirectoryLost, match="as needed"):
        await disk.create("journal-1")


async def test_files_that_the_disk_removed_itself_are_not_missed(disk: DirectoryDisk) -> None:
    """Readers keep them open. So are links to files elsewhere, and names that were replaced."""
    files = [await disk.create(name, size=PAGE) for name in ("a", "b", "c", "d")]
    (disk.path.parent / "linked").write_bytes(b"x")
    (disk.path / "link").symlink_to(disk.path.parent / "linked")
    files.append(await disk.open("link"))
    await disk.delete("a", "b")
    await disk.rename("c", "d")
    await disk.check_directory()

    async with trio.open_nursery() as nursery:  # opened, and removed before it is known to be open
        for n in range(50):
            (disk.path / f"{n}").write_bytes(b"x")
            nursery.start_soon(_open_into, disk, f"{n}", files)
            nursery.start_soon(disk.delete, f"{n}")
            nursery.start_soon(disk.check_directory)
    await disk.check_directory()
    for file in files:
        file.close()


async def _open_into(disk: DirectoryDisk, name: str, files: list[File]) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.append(await disk.open(name))
