"""Whole files of a disk: small ones that are replaced, and ones that the device cannot read everywhere.

A file that is replaced has, after a power cut, the old content or the new one.
"""

from collections.abc import Callable

from ..interfaces.errors import CorruptData
from ..interfaces.host import Buffer, Disk, File

ASIDE = ".new"
"""What the name of a file that is being written ends with. Nobody ever reads one."""
PIECE = 64 * 1024
"""Bytes that are abandoned around each bad place."""


async def replace_file(disk: Disk, name: str, data: Buffer) -> None:
    """Make ``data`` the content of ``name``; durable when this returns.

    Written aside, synced, renamed. One writer a name at a time. Raises `DiskFailed`, `DiskFull`: the
    old content then still stands, or the new one does.
    """
    aside = name + ASIDE
    if aside in disk.list():  # a crash, or a full disk, left it behind
        await disk.delete(aside)
    file = await disk.create(aside)
    try:
        await file.write_synced(0, data)
    finally:
        file.close()
    await disk.rename(aside, name)


async def read_file(disk: Disk, name: str) -> bytes | None:
    """The whole content, or None where there is no such file. Raises `DiskFailed`."""
    try:
        file = await disk.open(name)
    except FileNotFoundError:
        return None
    try:
        return await file.read_cold(0, file.size())
    finally:
        file.close()


async def read_around(
    file: File, offset: int, length: int, on_unreadable: Callable[[CorruptData, int], None]
) -> bytes:
    """The bytes, with zeros in place of the pieces that the device cannot read.

    ``on_unreadable`` receives each of them, with the offset where it ends.
    """
    try:
        return await file.read_cold(offset, length)
    except CorruptData as error:
        if length <= PIECE:
            on_unreadable(error, offset + length)
            return bytes(length)
    half = max(PIECE, length // 2 // PIECE * PIECE)
    first = await read_around(file, offset, half, on_unreadable)
    return first + await read_around(file, offset + half, length - half, on_unreadable)
