"""Large files give their room back in slices, and nobody who reads them loses a byte by that."""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from distributedlog.runtime.disk import deferred_removal as removals
from distributedlog.runtime.disk.deferred_removal import DeferredRemovals
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.directory_file import DirectoryFile
from distributedlog.runtime.interfaces.errors import AlreadyClosed
from distributedlog.runtime.interfaces.host import File
from distributedlog.runtime.primitives import background_rate as pacer
from distributedlog.runtime.process import descriptor_limit as descriptors

SLICE = 4096
SIZE = 64 * SLICE
CONTENT = bytes(range(256)) * (SIZE // 256)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "SLICED_FROM_BYTES", SIZE)
    monkeypatch.setattr(removals, "SLICE_BYTES", SLICE)
    monkeypatch.setattr(pacer, "BASELINE_S", 0.001)


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[DirectoryDisk]:
    disk = DirectoryDisk(tmp_path)
    yield disk
    await disk.close()


class Cuts:
    """What `os.ftruncate` was asked for, and a gate before it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._truncate = os.ftruncate

    def __call__(self, descriptor: int, size: int) -> None:
        self.gate.wait(10)
        self.sizes.append(size)
        self._truncate(descriptor, size)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuts]:
    cuts = Cuts()
    monkeypatch.setattr(os, "ftruncate", cuts)
    yield cuts
    cuts.gate.set()


def made(path: Path, content: bytes = CONTENT) -> Path:
    path.write_bytes(content)
    return path


def until_idle(waiting: DeferredRemovals) -> None:
    thread = waiting._thread
    if thread is not None:
        thread.join(20)
    assert waiting._thread is None
    assert not waiting._waiting
    assert waiting._waiting_bytes == 0


def held(path: Path) -> int:
    """Descriptors of this process that have a file which was in that directory and is deleted."""
    links = (os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return sum(link.startswith(str(path)) and link.endswith(" (deleted)") for link in _there(links))


def _there(links: Iterator[str]) -> Iterator[str]:
    while True:
        try:
            yield next(links)
        except StopIteration:
            return
        except OSError:  # the listing's own
            return


async def test_a_large_file_is_cut_in_slices_once_its_name_is_gone(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts
) -> None:
    cuts.gate.clear()
    made(tmp_path / "large")
    await disk.delete("large")
    assert disk.list() == []
    assert held(tmp_path) == 1
    cuts.gate.set()
    until_idle(disk._deferred_removals)
    assert cuts.sizes == list(range(SIZE - SLICE, -1, -SLICE))
    assert held(tmp_path) == 0


async def test_each_slice_is_synced_before_the_next(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of the file system discards one slice, not all slices of a second."""
    sync, steps = os.fsync, list[int]()

    def fsync(descriptor: int) -> None:
        if threading.current_thread().name.startswith("removals"):
            steps.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    made(tmp_path / "large")
    await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert steps == cuts.sizes == list(range(SIZE - SLICE, -1, -SLICE))


async def test_slices_are_paced_by_the_syncs_of_the_disk(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all files, as long as something is freed; the rate stays for what is removed later."""
    noted = list[float]()
    monkeypatch.setattr(disk._deferred_removals._rate, "record_latency", noted.append)
    file = await disk.create("journal")
    await file.write_synced(0, b"x")
    assert noted == []
    cuts.gate.clear()
    made(tmp_path / "large")
    await disk.delete("large")
    await file.write_synced(0, b"y")
    await file.sync()
    assert len(noted) == 2
    assert min(noted) > 0
    cuts.gate.set()
    until_idle(disk._deferred_removals)
    await file.sync()
    assert len(noted) == 2
    file.close()


async def test_a_small_file_goes_as_it_is(disk: DirectoryDisk, tmp_path: Path, cuts: Cuts) -> None:
    made(tmp_path / "small", CONTENT[:-1])
    await disk.delete("small")
    assert disk.list() == []
    assert held(tmp_path) == 0
    assert cuts.sizes == []


async def test_an_open_file_stays_readable(disk: DirectoryDisk, tmp_path: Path) -> None:
    made(tmp_path / "large")
    file = await disk.open("large")
    await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert file.read_at(0, SIZE) == CONTENT
    file.close()


async def test_a_file_is_cut_whatever_was_opened_before(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts
) -> None:
    """Also where the open failed: who only was in doubt is so no longer."""
    made(tmp_path / "large")
    (await disk.open("large")).close()
    with pytest.raises(FileNotFoundError):
        await disk.open("nobody")
    await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert len(cuts.sizes) == SIZE // SLICE


async def test_a_renamed_file_that_is_open_stays_readable(
    disk: DirectoryDisk, tmp_path: Path
) -> None:
    made(tmp_path / "large")
    file = await disk.open("large")
    await disk.rename("large", "other")
    await disk.delete("other")
    until_idle(disk._deferred_removals)
    assert file.read_at(0, SIZE) == CONTENT
    file.close()


async def while_deleted(disk: DirectoryDisk, use: Callable[[], Awaitable[object]]) -> None:
    """Have the file deleted behind the first call of ``use``, which the worker has not begun yet."""
    async with trio.open_nursery() as nursery, disk._directory_worker:
        nursery.start_soon(use)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(disk.delete, "large")
        await trio.testing.wait_all_tasks_blocked()


async def read_late(disk: DirectoryDisk, found: list[bytes]) -> None:
    """Open it, and read all of it a while later."""
    file = await disk.open("large")
    await trio.sleep(0.2)
    found.append(file.read_at(0, SIZE))
    file.close()


async def test_who_just_opens_a_file_reads_all_of_it(disk: DirectoryDisk, tmp_path: Path) -> None:
    """It was asked for before the deletion, and is known only when the worker has it."""
    made(tmp_path / "large")
    found: list[bytes] = []
    read = partial(read_late, disk, found)

    await while_deleted(disk, read)
    assert found == [CONTENT]


async def test_who_just_makes_a_file_keeps_what_is_written(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts
) -> None:
    """Deleted before the call that makes it has returned."""
    found: list[bytes] = []

    async def make() -> None:
        file = await disk.create("large", size=SIZE)
        file.write_at(0, (CONTENT,))
        await trio.sleep(0.2)
        found.append(file.read_at(0, SIZE))
        file.close()

    await while_deleted(disk, make)
    assert found == [CONTENT]
    assert cuts.sizes == []


async def test_who_opens_a_file_that_gets_another_name_reads_all_of_it(
    disk: DirectoryDisk, tmp_path: Path
) -> None:
    """All three were asked for before any was done."""
    made(tmp_path / "large")
    found: list[bytes] = []
    read = partial(read_late, disk, found)

    async with trio.open_nursery() as nursery, disk._directory_worker:
        for call in (read, partial(disk.rename, "large", "other"), partial(disk.delete, "other")):
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
    assert found == [CONTENT]


async def test_what_others_open_and_make_meanwhile_hurries_nobody(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts
) -> None:
    """A removed file went as it was whenever any other was just being opened: beside readers of old files
    every third, a whole log's at a time."""
    made(tmp_path / "large")
    made(tmp_path / "other")
    opened: list[File] = []

    async def use() -> None:
        opened.append(await disk.open("other"))
        opened.append(await disk.create("new", size=SIZE))

    async with trio.open_nursery() as nursery, disk._directory_worker:
        nursery.start_soon(use)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(disk.delete, "large")
        await trio.testing.wait_all_tasks_blocked()
    until_idle(disk._deferred_removals)
    assert len(cuts.sizes) == SIZE // SLICE
    assert opened[0].read_at(0, SIZE) == CONTENT
    assert disk._opening_inodes == []
    for file in opened:
        file.close()


async def test_a_read_that_goes_on_after_the_close_gets_all_of_it(
    disk: DirectoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie closes what it deletes; a read of it may be on its way in a worker."""
    began, go_on = threading.Event(), threading.Event()
    read: Callable[[DirectoryFile, int, int], bytes] = DirectoryFile._read

    def late(file: DirectoryFile, offset: int, length: int) -> bytes:
        began.set()
        go_on.wait(20)
        return read(file, offset, length)

    monkeypatch.setattr(DirectoryFile, "_read", late)
    made(tmp_path / "large")
    file = await disk.open("large")
    found: list[bytes] = []

    async def read_all() -> None:
        found.append(await file.read_in_worker(0, SIZE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_all)
        await trio.to_thread.run_sync(began.wait)
        file.close()
        await disk.delete("large")
        until_idle(disk._deferred_removals)
        go_on.set()
    assert found == [CONTENT]
    assert not disk._files


async def test_another_name_of_the_file_keeps_its_bytes(
    disk: DirectoryDisk, tmp_path: Path
) -> None:
    """A copy by hard links is a copy to whoever made it."""
    made(tmp_path / "large")
    os.link(tmp_path / "large", tmp_path / ".kept")
    await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert (tmp_path / ".kept").read_bytes() == CONTENT


async def test_there_are_no_pauses_where_room_is_wanted(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "FREE_SPACE_DIVISOR", 1 << 60)
    made(tmp_path / "large")
    await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert cuts.sizes == []
    assert held(tmp_path) == 0


async def test_a_floor_of_free_space_ends_pauses(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts
) -> None:
    """Before anybody is refused: below it somebody may be."""
    disk.set_min_free_bytes(1 << 60)
    made(tmp_path / "large")
    await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert cuts.sizes == []
    disk.set_min_free_bytes(1)
    made(tmp_path / "next")
    await disk.delete("next")
    until_idle(disk._deferred_removals)
    assert len(cuts.sizes) == SIZE // SLICE


async def test_so_many_wait_and_no_more(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "WAITING_FILES_MAX", 2)
    cuts.gate.clear()
    names = [made(tmp_path / f"large-{number}").name for number in range(4)]
    await disk.delete(*names)
    assert disk.list() == []
    assert held(tmp_path) == 2
    cuts.gate.set()
    until_idle(disk._deferred_removals)
    assert len(cuts.sizes) == 2 * SIZE // SLICE


@pytest.mark.parametrize(
    "few", [{"first_reserved": 0}, {"limit": removals.DESCRIPTORS_DIVISOR - 1}]
)
async def test_the_last_descriptors_are_for_others(
    disk: DirectoryDisk,
    tmp_path: Path,
    cuts: Cuts,
    monkeypatch: pytest.MonkeyPatch,
    few: dict[str, int],
) -> None:
    for name, value in few.items():
        assert callable(getattr(descriptors, name))
        monkeypatch.setattr(removals, name, lambda value=value: value)
    made(tmp_path / "large")
    await disk.delete("large")
    assert disk.list() == []
    assert held(tmp_path) == 0
    assert cuts.sizes == []


async def test_a_name_that_is_not_there_holds_nothing(disk: DirectoryDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await disk.delete("nobody")
    until_idle(disk._deferred_removals)


async def test_a_file_goes_as_it_is_where_there_is_no_thread_for_it(
    disk: DirectoryDisk, tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one in slices, where there is one again."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as few:
        few.setattr(threading.Thread, "start", refused)
        disk._deferred_removals.unlink(made(tmp_path / "large"))
    assert disk.list() == []
    assert held(tmp_path) == 0
    made(tmp_path / "next")
    await disk.delete("next")
    until_idle(disk._deferred_removals)
    assert len(cuts.sizes) == SIZE // SLICE


async def test_what_cannot_be_removed_is_not_cut(
    disk: DirectoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **_: object) -> None:
        raise PermissionError(1, "not permitted")

    made(tmp_path / "large")
    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(Exception, match="not permitted"):
        await disk.delete("large")
    until_idle(disk._deferred_removals)
    assert (tmp_path / "large").read_bytes() == CONTENT
    links = (os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    assert str(tmp_path / "large") not in list(_there(links))


async def test_a_closed_disk_gives_the_rest_back_at_once(tmp_path: Path, cuts: Cuts) -> None:
    disk = DirectoryDisk(tmp_path)
    cuts.gate.clear()
    made(tmp_path / "large")
    made(tmp_path / "next")
    await disk.delete("large", "next")
    await disk.close()
    cuts.gate.set()
    until_idle(disk._deferred_removals)
    assert len(cuts.sizes) <= 1, "what was under way"
    assert held(tmp_path) == 0


async def test_a_disk_that_a_fork_left_behind_says_so(tmp_path: Path) -> None:
    """Though its open files have no descriptors any more."""
    disk = DirectoryDisk(tmp_path)
    file = await disk.create("f")
    disk.on_forked()
    file.on_forked()  # type: ignore[attr-defined]
    with pytest.raises(AlreadyClosed, match="fork"):
        await disk.delete("f")


def test_after_the_close_files_go_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = DeferredRemovals("test")
    waiting.close()
    monkeypatch.setattr(threading, "Thread", None)  # else one would be made
    waiting.unlink(made(tmp_path / "large"))
    assert held(tmp_path) == 0


async def test_a_close_that_fails_keeps_no_other_file(
    disk: DirectoryDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor is gone all the same, and its file is nobody's."""
    close = os.close
    failures = [OSError(5, "input/output error")]

    def failing(descriptor: int) -> None:
        close(descriptor)
        if failures and threading.current_thread().name.startswith("removals"):
            raise failures.pop()

    monkeypatch.setattr(os, "close", failing)
    names = [made(tmp_path / f"large-{number}").name for number in range(2)]
    await disk.delete(*names)
    until_idle(disk._deferred_removals)
    assert not failures
    assert held(tmp_path) == 0


def test_a_forked_child_cuts_nothing(tmp_path: Path, cuts: Cuts) -> None:
    """H15: the descriptors of a child are copies, and the file is the parent's to cut."""
    cuts.gate.clear()
    waiting = DeferredRemovals("test")
    waiting.unlink(made(tmp_path / "large"))
    child = os.fork()
    if not child:
        kept = held(tmp_path)
        waiting.unlink(made(tmp_path / "own"))
        os._exit(kept or held(tmp_path) or bool(waiting._thread))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cuts.gate.set()
    until_idle(waiting)
    assert len(cuts.sizes) == SIZE // SLICE
