"""Whole files of a disk: small ones that are replaced, and ones that the device cannot read everywhere.

A file that is replaced has, after a power cut, the old content or the new one.
"""

from collections.abc import Callable

from ..interfaces.errors import CorruptData
from ..interfaces.host import Buffer, Disk, File

TEMPORARY_SUFFIX = ".new"
"""What the name of a file that is being written ends with. Nobody ever reads one."""
UNREADABLE_CHUNK_BYTES = 64 * 1024
"""Bytes that are abandoned around each bad place."""


async def replace_file(disk: Disk, name: str, data: Buffer) -> None:
    """Make ``data`` the content of ``name``; durable when this returns.

    Written aside, synced, renamed. One writer a name at a time. Raises `DiskFailed`, `DiskFull`: the
    old content then still stands, or the new one does.
    """
    temporary_name = name + TEMPORARY_SUFFIX
    if temporary_name in disk.list():  # a crash, or a full disk, left it behind
        await disk.delete(temporary_name)
    file = await disk.create(temporary_name)
    try:
        await file.write_synced(0, data)
    finally:
        file.close()
    await disk.rename(temporary_name, name)


async def read_file(disk: Disk, name: str) -> bytes | None:
    """The whole content, or None where there is no such file. Raises `DiskFailed`."""
    try:
        file = await disk.open(name)
    except FileNotFoundError:
        return None
    try:
        return await file.read_in_worker(0, file.size())
    finally:
        file.close()


async def read_skipping_unreadable(
    file: File, offset: int, length: int, on_unreadable: Callable[[CorruptData, int], None]
) -> bytes:
    """The bytes, with zeros in place of the pieces that the device cannot read.

    ``on_unreadable`` receives each of them, with the offset where it ends.
    """
    try:
        return await file.read_in_worker(offset, length)
    except CorruptData as error:
        if length <= UNREADABLE_CHUNK_BYTES:
            on_unreadable(error, offset + length)
            return bytes(length)
    first_length = max(
        UNREADABLE_CHUNK_BYTES, length // 2 // UNREADABLE_CHUNK_BYTES * UNREADABLE_CHUNK_BYTES
    )
    first_part = await read_skipping_unreadable(file, offset, first_length, on_unreadable)
    return first_part + await read_skipping_unreadable(
        file, offset + first_length, length - first_length, on_unreadable
    )
