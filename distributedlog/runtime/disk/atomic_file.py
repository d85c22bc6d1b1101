"""Replace small files of a disk atomically, and read files with unreadable parts.

After a power cut, a replaced file has the old content or the new one.
"""

from collections.abc import Callable

from ..interfaces.errors import CorruptData
from ..interfaces.host import Buffer, Disk, File

TEMPORARY_SUFFIX = ".new"
"""The suffix of a file while it is written. Such a file is never read."""
UNREADABLE_CHUNK_BYTES = 64 * 1024
"""The number of bytes that are abandoned around each unreadable place."""


async def replace_file(disk: Disk, name: str, data: Buffer) -> None:
    """Make ``data`` the content of a file; durable when the call returns.

    The data is written to another file, synced, and renamed. A name may have one writer at a time. If the
    call raises `DiskFailed` or `DiskFull`, the file has the old content or the new one.
    """
    temporary_name = name + TEMPORARY_SUFFIX
    if temporary_name in disk.list():  # left behind by a crash or a full disk
        await disk.delete(temporary_name)
    file = await disk.create(temporary_name)
    try:
        await file.write_synced(0, data)
    finally:
        file.close()
    await disk.rename(temporary_name, name)


async def read_file(disk: Disk, name: str) -> bytes | None:
    """Return the whole content of a file, or None if it does not exist. Raises `DiskFailed`."""
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
    """Read bytes, with zeros for the pieces that the device cannot read.

    ``on_unreadable`` receives the error of each piece, and the offset of its end.
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
