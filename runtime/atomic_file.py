"""Small files that are replaced whole: after a power cut there is the old content or the new one."""

from .host import Buffer, Disk

ASIDE = ".new"
"""What the name of a file that is being written ends with. Nobody ever reads one."""


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
