"""Real power cuts: ext4 on a loop device, shut down under a running writer without flushing its log.

What `DirectoryDisk`, `replace_file` and `LmdbMap` said was durable must be there afterwards, and blocks
whose sync had not returned must read as a tail, never as corruption (H3). Needs root; skips itself else.
"""

import fcntl
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distributedlog.runtime.disk.atomic_file import read_file
from distributedlog.runtime.disk.checksummed_blocks import classify_tail, scan
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.lmdb_map import probe_map

FS_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
WITHOUT_LOG_FLUSH = 2
SEED = 77

WRITER = """
import sys, trio
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.disk.atomic_file import replace_file
from distributedlog.runtime.interfaces.errors import DiskFailed
from distributedlog.runtime.disk.directory_disk import DirectoryDisk

path, sync, direct = sys.argv[1], sys.argv[2], sys.argv[3] == "direct"


def durable(what, number):
    print(what, number, flush=True)


async def main():
    disk = DirectoryDisk(path, sync=sync)
    index = await disk.open_map("index")
    sequence = known = 0
    for number in range(1, 1000):
        name = f"journal-{number:06}"
        file = await disk.create(name, size=64 * 4096, direct=direct)
        if number > 3:
            await disk.delete(f"journal-{number - 3:06}")
        offset = 0
        for count in range(12):
            buffer = disk.aligned_buffer(3 * 4096)
            length = 0
            for _ in range(3):  # several blocks a sync
                sequence += 1
                length += blocks.write_header(
                    buffer, length, kind=1, payload_bytes=100, start_count=1, sequence=sequence,
                    durable_to=known, file_number=number, file_offset=offset + length, seed=77,
                )
            if count % 2:
                await file.write_synced(offset, buffer)
            else:
                file.write_at(offset, (buffer,))
                await file.sync()
            offset += length
            known = sequence
            durable("journal", sequence)
        await replace_file(disk, "state", b"%d" % number)
        durable("state", number)
        await index.apply([(b"%06d" % n, b"%d" % number) for n in range(50)])
        durable("map", number)
        file.close()


trio.run(main)
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def image(base: Path) -> Iterator[tuple[Path, Path]]:
    """A fresh small ext4 on a loop device, mounted: (image, mount point)."""
    if os.geteuid() != 0:
        pytest.skip("cutting the power of a file system needs root")
    disk, mount = base / "image", base / "mount"
    mount.mkdir()
    with open(disk, "wb") as file:
        file.truncate(48 << 20)
    try:
        run("mkfs.ext4", "-q", "-F", str(disk))
        run("mount", "-o", "loop", str(disk), str(mount))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system on a loop device here: {error}")
    try:
        yield disk, mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], capture_output=True, check=False)


def cut_power(mount: Path) -> None:
    descriptor = os.open(mount, os.O_RDONLY)
    fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
    os.close(descriptor)


def promised(lines: list[str]) -> dict[str, int]:
    last = {"journal": 0, "state": 0, "map": 0}
    for line in lines:
        what, _, number = line.partition(" ")
        last[what] = int(number)
    return last


@pytest.mark.processes
@pytest.mark.parametrize(
    ("seed", "sync", "direct"),
    [(1, "inline", "direct"), (2, "thread", "direct"), (3, "thread", "buffered")],
)
async def test_what_was_durable_outlives_the_power(
    tmp_path: Path, seed: int, sync: str, direct: str
) -> None:
    with image(tmp_path) as (disk_image, mount):
        writer = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", WRITER, str(mount / "data"), sync, direct],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(random.Random(seed).randint(40, 120))]
        cut_power(mount)
        rest, errors = writer.communicate(timeout=20)
        lines += rest.splitlines()
        assert "DiskFailed" in errors, f"the writer went on, or ended otherwise: {errors}"
        run("umount", str(mount))
        run("mount", "-o", "loop", str(disk_image), str(mount))

        said = promised(lines)
        assert said["state"] >= 2
        disk = DirectoryDisk(mount / "data")
        found: list[tuple[int, int]] = []
        journals = [name for name in disk.list() if name.startswith("journal")]
        for name in journals:
            file = await disk.open(name)
            content = memoryview(file.read_at(0, file.size()))
            found += [(b.sequence, b.durable_to) for b in scan(int(name[-6:]), content, SEED)]
        first = (int(journals[0][-6:]) - 1) * 36 + 1
        verdict = classify_tail(found, from_sequence=first, min_durable_to=0)
        assert verdict.lost_ranges == []
        assert verdict.tail_from > said["journal"]
        assert int(await read_file(disk, "state") or b"0") >= said["state"]
        assert await probe_map(mount / "data" / "index.lmdb")
        index = await disk.open_map("index")
        values = {value for _, value in index.scan(b"0", b"9", 100)}
        assert len(values) == 1, "all of a transaction or nothing"
        assert int(values.pop()) >= said["map"]
        index.close()
        await disk.close()
