"""The file FORMAT: found, absent, damaged or newer are four answers, never confused."""

import random

import pytest
import xxhash

from distributedlog.runtime.disk.atomic_file import read_file, replace_file
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.disk.node_identity import (
    FILE_NAME,
    NodeIdentity,
    load_identity,
    new_node_id,
    store_identity,
)
from distributedlog.runtime.interfaces.errors import CorruptData, UnsupportedFormat
from distributedlog.runtime.interfaces.host import Disk

IDENTITY = NodeIdentity("c" * 32, "n" * 32, "bookie", "b1", 3, "0.1.0", 1, 1)


async def test_what_was_stored_is_loaded(disk: Disk) -> None:
    assert await load_identity(disk) is None

    await store_identity(disk, IDENTITY)

    assert await load_identity(disk) == IDENTITY


async def test_every_truncation_and_flipped_bit_is_refused() -> None:
    """A damaged FORMAT must not look like an empty directory: an empty node may found a cluster (H5)."""
    disk = MemoryDisk()
    await store_identity(disk, IDENTITY)
    content = await read_file(disk, FILE_NAME)
    assert content is not None

    for cut in range(len(content)):
        await replace_file(disk, FILE_NAME, content[:cut])
        with pytest.raises(CorruptData):
            await load_identity(disk)
    for bit in range(0, len(content) * 8, 3):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        await replace_file(disk, FILE_NAME, damaged)
        with pytest.raises(CorruptData):
            await load_identity(disk)


def signed(body: bytes) -> bytes:
    return body + b"\nxxh3_64 " + xxhash.xxh3_64_hexdigest(body).encode() + b"\n"


async def test_a_directory_of_a_newer_version_is_refused_in_one_line() -> None:
    disk = MemoryDisk()
    await replace_file(
        disk, FILE_NAME, signed(b'{"reader_min": 2, "written_by": "9.1", "other": []}')
    )

    with pytest.raises(UnsupportedFormat, match=r"made by 9\.1 and needs a reader of format 2"):
        await load_identity(disk)


@pytest.mark.parametrize("body", [b"{}", b'{"kind": 1}', b"no json"])
async def test_a_form_that_nobody_writes_is_damage(body: bytes) -> None:
    disk = MemoryDisk()
    await replace_file(disk, FILE_NAME, signed(body))

    with pytest.raises(CorruptData):
        await load_identity(disk)


def test_node_ids_are_drawn() -> None:
    assert new_node_id(random.Random(1)) == new_node_id(random.Random(1))
    assert new_node_id(random.Random(1)) != new_node_id(random.Random(2))
    assert len(new_node_id(random.Random(1))) == 32
