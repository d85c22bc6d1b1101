"""What only LMDB shows: damaged files, leaked readers, full disks, a loop that goes on (H38)."""

import random
import sys
from pathlib import Path

import lmdb
import pytest
import trio
import trio.testing

from distributedlog.cluster.local.child_processes import environment
from distributedlog.runtime.disk import lmdb_map
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.lmdb_map import open_map, probe_map
from distributedlog.runtime.interfaces.errors import CorruptData, DiskFailed, DiskFull
from tests.runtime.mounts import mounted


async def filled(path: Path, pairs: int = 2000) -> None:
    index = await open_map(path)
    await index.apply([(b"%06d" % n, b"value" * 8) for n in range(pairs)])
    index.close()


async def test_a_sound_map_passes_the_probe(tmp_path: Path) -> None:
    await filled(tmp_path / "index")

    assert await probe_map(tmp_path / "index")
    assert await probe_map(tmp_path / "never there")


async def test_what_is_no_map_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.mkdir()
    (path / "data.mdb").write_bytes(random.Random(1).randbytes(64 * 1024))

    with pytest.raises(CorruptData):
        await open_map(path)
    assert not await probe_map(path)


async def test_lying_pages_fail_in_the_child_not_here(tmp_path: Path) -> None:
    """A page that lies may crash its reader (here: a bus error past the file's end)."""
    path = tmp_path / "index"
    await filled(path)
    data = path / "data.mdb"
    whole = data.read_bytes()

    data.write_bytes(whole[: 3 * 4096])
    assert not await probe_map(path)

    damaged = bytearray(whole)
    for page in range(2, len(whole) // 4096):
        damaged[page * 4096 : page * 4096 + 64] = bytes(64)
    data.write_bytes(damaged)
    assert not await probe_map(path)

    data.write_bytes(whole)
    assert await probe_map(path)


async def _opened(path: Path) -> None:
    disk = DirectoryDisk(path)
    try:
        (await disk.open_map("index")).close()
    finally:
        await disk.close()


@pytest.mark.parametrize(
    "ends",
    ["signal.raise_signal(signal.SIGKILL)", "raise MemoryError", "import no_such_module"],
)
async def test_a_reader_that_could_not_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Killed for want of memory, or at the end of the system: the map is sound, and stays."""
    await filled(tmp_path / "index.lmdb")
    monkeypatch.setattr(lmdb_map, "_PROBE", f"import signal\nprint('reading', flush=True)\n{ends}")

    with pytest.raises(DiskFailed, match="was not changed"):
        await _opened(tmp_path)


async def test_a_reader_that_crashes_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice is damage; before it reads any page a crash is none."""
    await filled(tmp_path / "index.lmdb")
    crash = "import os, signal\nprint('reading', flush=True)\nsignal.raise_signal(signal.SIGSEGV)"
    once = f"import os\ntry: os.mkdir({str(tmp_path / 'tried')!r})\nexcept OSError: os._exit(0)\n"
    monkeypatch.setattr(lmdb_map, "_PROBE", once + crash)
    await _opened(tmp_path)

    monkeypatch.setattr(lmdb_map, "_PROBE", crash)
    with pytest.raises(CorruptData):
        await _opened(tmp_path)

    monkeypatch.setattr(lmdb_map, "_PROBE", "import signal\nsignal.raise_signal(signal.SIGSEGV)")
    with pytest.raises(DiskFailed, match="was not changed"):
        await _opened(tmp_path)


async def test_without_a_process_to_read_it_the_map_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path / "index.lmdb")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))

    with pytest.raises(DiskFailed, match="starting a process"):
        await _opened(tmp_path)


async def test_a_lack_of_slots_for_readers_is_no_damage(tmp_path: Path) -> None:
    """Other programs that look at the map hold them; every look-up of the bookie needs one."""
    index = await open_map(tmp_path / "index")
    await index.apply([(b"k", b"v")])
    readers = [index._environment.lmdb.begin() for _ in range(lmdb_map.READERS_MAX)]
    for read in (
        lambda: index.get(b"k"),
        lambda: index.floor(b"k"),
        lambda: index.scan(b"a", b"z", 1),
    ):
        with pytest.raises(DiskFailed):
            read()
    while readers:
        readers.pop().abort()
    assert index.get(b"k") == b"v"
    index.close()


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
"""


OPEN_A_DISK = """
import sys, trio
from distributedlog.runtime.interfaces.errors import CorruptData
from distributedlog.runtime.disk.directory_disk import DirectoryDisk

async def main():
    disk = DirectoryDisk(sys.argv[1])
    try:
        index = await disk.open_map("index")
    except CorruptData:
        print("corrupt")
    else:
        await index.apply([(b"%06d" % n, b"value" * 8) for n in range(500)])
        print(len(index.scan(b"0", b"9", 10_000)))

trio.run(main)
"""


async def opened_by_another_process(path: Path) -> tuple[int | None, bytes]:
    """Exit code and words of a process that opens the map as a disk does, and writes."""
    done = await trio.run_process(
        [sys.executable, "-c", OPEN_A_DISK, str(path)], capture_stdout=True, check=False,
        env=environment(),
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("pages", [3, 9, 20])
async def test_a_map_cut_short_is_told_by_the_disk_and_ends_nobody(
    tmp_path: Path, pages: int
) -> None:
    """Found by chaos: a bookie whose index had lost its tail died of SIGBUS at each start, for ever."""
    await filled(tmp_path / "index.lmdb")
    data = tmp_path / "index.lmdb" / "data.mdb"
    whole = data.read_bytes()
    assert len(whole) > 21 * 4096
    data.write_bytes(whole[: pages * 4096 + 480])

    code, said = await opened_by_another_process(tmp_path)

    assert code == 0, "the process that opened it ended with a signal"
    assert said == b"corrupt\n"


async def test_a_map_stays_whose_reader_has_too_little_memory(tmp_path: Path) -> None:
    """Less address space than the map: as `ulimit -v` and batch systems give it."""
    await filled(tmp_path / "index.lmdb")
    before = (tmp_path / "index.lmdb" / "data.mdb").stat()

    done = await trio.run_process(
        [sys.executable, "-c", LIMITED + OPEN_A_DISK, str(tmp_path)], capture_stdout=True,
        capture_stderr=True, check=False, env=environment(),
    )  # fmt: skip

    assert done.returncode == 1
    assert b"corrupt" not in done.stdout
    assert b"DiskFailed" in done.stderr
    assert b"was not changed" in done.stderr
    after = (tmp_path / "index.lmdb" / "data.mdb").stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert await probe_map(tmp_path / "index.lmdb")


async def test_a_list_of_free_pages_that_was_cut_off_is_told_too(tmp_path: Path) -> None:
    """Found by chaos: every pair could be read, and the first commit ended the bookie."""
    path = tmp_path / "index.lmdb"
    index = await open_map(path)
    for _ in range(6):
        await index.apply([(b"%06d" % n, b"value" * 8) for n in range(1500)])
        await index.apply([], [b"%06d" % n for n in range(3, 1500)])
    index.close()
    data = path / "data.mdb"
    whole = data.read_bytes()

    heard = []
    for pages in (6, 7, 8, 9, 12):
        data.write_bytes(whole[: pages * 4096 + 480])
        code, said = await opened_by_another_process(tmp_path)
        assert code == 0, f"cut to {pages} pages"
        heard.append(said)

    assert b"corrupt\n" in heard, "there are pages whose loss only a writer meets"
    assert heard[-1] == b"500\n", "what only lost space that is free anyway is sound"


async def test_a_reader_that_died_with_its_process_is_cleared(tmp_path: Path) -> None:
    """Else its snapshot pins pages, and the file grows for ever."""
    path = tmp_path / "index"
    await filled(path)
    program = """
import lmdb, os, sys
reader = lmdb.open(sys.argv[1], map_size=64 << 30).begin()
reader.get(b"000001")
os._exit(0)
"""
    await trio.run_process([sys.executable, "-c", program, str(path)])

    index = await open_map(path)
    for n in range(40):
        await index.apply([(b"%06d" % key, b"%d" % n) for key in range(2000)])

    assert index._environment.lmdb.readers().strip() == "(no active readers)"
    assert (path / "data.mdb").stat().st_size < 2_000_000
    index.close()


async def test_reads_leave_no_reader_behind(tmp_path: Path) -> None:
    path = tmp_path / "index"
    await filled(path)
    index = await open_map(path)

    for n in range(100):
        await index.apply([(b"%06d" % key, b"%d" % n) for key in range(2000)])
        index.get(b"000001")
        index.floor(b"0005")
        index.scan(b"", b"1", 10)

    assert (path / "data.mdb").stat().st_size < 2_000_000
    index.close()


async def test_a_full_map_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_map, "MAP_BYTES", 256 * 1024)
    index = await open_map(tmp_path / "index")
    await index.apply([(b"k", b"v")])

    with pytest.raises(DiskFull, match="index"):
        await index.apply([(b"%06d" % n, bytes(100)) for n in range(5000)])

    assert index.scan(b"", b"\xff", 10) == [(b"k", b"v")]
    await index.apply([(b"l", b"w")])
    index.close()


async def test_a_full_disk_keeps_what_it_had(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "tmpfs", "-o", "size=1m") as small:
        index = await open_map(small / "index")
        await index.apply([(b"k", b"v")])

        with pytest.raises(DiskFull):
            await index.apply([(b"%06d" % n, bytes(1000)) for n in range(5000)])

        assert index.get(b"k") == b"v"
        assert index.get(b"000001") is None
        index.close()
        assert await probe_map(small / "index")


async def test_the_loop_goes_on_during_a_commit(tmp_path: Path) -> None:
    """A checkpoint of 50,000 runs takes long; heartbeats do not wait for it (H34)."""
    index = await open_map(tmp_path / "index")
    pairs = [(b"%08d" % n, bytes(60)) for n in range(50_000)]
    turns = 0
    done = False

    async def commit() -> None:
        nonlocal done
        await index.apply(pairs)
        done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        while not done:
            turns += 1
            await trio.sleep(0.001)

    assert turns >= 3
    index.close()


async def test_one_environment_a_path(tmp_path: Path) -> None:
    """Opened twice in a process, LMDB loses its file locks."""
    (tmp_path / "link").symlink_to(tmp_path)
    first = await open_map(tmp_path / "index")
    second = await open_map(tmp_path / "link" / "index")

    assert first._environment is second._environment

    first.close()
    await second.apply([(b"k", b"v")])
    assert second.get(b"k") == b"v"
    second.close()
    with lmdb.open(str(tmp_path / "index")) as environment:  # nobody holds it any more
        assert environment.stat()["entries"] == 1


async def test_closed_during_a_commit_the_commit_goes_through(tmp_path: Path) -> None:
    index = await open_map(tmp_path / "index")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.apply, [(b"%06d" % n, b"v") for n in range(20_000)])
        await trio.testing.wait_all_tasks_blocked()
        index.close()

    again = await open_map(tmp_path / "index")
    assert again.get(b"019999") == b"v"
    again.close()
