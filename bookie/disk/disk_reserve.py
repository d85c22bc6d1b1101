"""Files that only occupy space, two on each disk of a bookie, so that some is left on a full disk (H28).

The reserve of a disk's role is freed for three uses. A start on a full disk makes its first journal file of
it. A next journal file takes it if fences and deletions wait for one. A checkpoint that finds no space takes
it as well. The small reserve for starts is used for the bookie's identity only. A checkpoint of a bookie
that stays full must not take the space that the next start requires. Both are restored as soon as there is
space. Until then the bookie takes no new entries.
"""

import contextlib

import trio

from ...runtime.interfaces.errors import DiskFailed, DiskFull, TooBusy
from ...runtime.interfaces.host import Disk, File

ALIGN = 4096
START_ROLE = "start"
"""In place of a role: the reserve that a start frees to replace the identity, and then restores."""
START_BYTES = 64 * 1024
"""More than enough for a small file, in whatever blocks the file system allocates."""


def reserve_name(role: str) -> str:
    """The file's name on the disk of that role."""
    return f"reserve-{role}"


async def free_reserve(disk: Disk, role: str, wanted_bytes: int) -> bool:
    """Free about so many bytes on the disk; False where nothing of the reserve is left. Raises `DiskFailed`.

    Cut, not removed: who shares the file system may be quicker, and the rest is wanted a moment later.
    """
    try:
        file = await disk.open(reserve_name(role))
    except FileNotFoundError:
        return False
    except (TooBusy, DiskFailed):  # it holds no data, so it can be deleted whole
        await disk.delete(reserve_name(role))
        return True
    try:
        remaining_bytes = (file.size() - wanted_bytes) // ALIGN * ALIGN
        if remaining_bytes > 0:
            file.truncate(remaining_bytes)
            await file.sync()
            return True
    finally:
        file.close()
    await disk.delete(reserve_name(role))
    return True


async def restore_start_reserve(disk: Disk) -> None:
    """Restore the reserve for starts, as large as the free space allows. Raises `DiskFailed`."""
    wanted_bytes = min(START_BYTES, disk.free_bytes() // ALIGN * ALIGN)
    if wanted_bytes:
        with contextlib.suppress(TooBusy):
            await _ensure_reserve(disk, START_ROLE, wanted_bytes)


class Reserve:
    """The reserves of one disk, as a running bookie keeps them."""

    def __init__(self, disk: Disk, role: str, wanted_bytes: int) -> None:
        self.role = role
        self.is_complete = False
        """Both files are there, and whole."""
        self._disk = disk
        self._wanted_bytes = wanted_bytes
        self._lock = trio.Lock()
        """Ticks make it, a checkpoint and the journal give it up: one at a time."""

    async def ensure(self) -> None:
        """Have both whole, if there is space for them, and a descriptor. Raises `DiskFailed`."""
        async with self._lock:
            with contextlib.suppress(TooBusy):
                start_reserve_complete = await _ensure_reserve(self._disk, START_ROLE, START_BYTES)
                self.is_complete = start_reserve_complete and await _ensure_reserve(
                    self._disk, self.role, self._wanted_bytes
                )

    async def free(self) -> bool:
        """All of the role's; False where there is none."""
        async with self._lock:
            self.is_complete = False
            return await free_reserve(self._disk, self.role, 1 << 62)

    async def convert_to_file(self, name: str) -> tuple[File, int] | None:
        """Make the role's reserve the file ``name``; None if there is no reserve. Needs no space.

        None as well where it cannot be opened, for a lack of descriptors: then it is the reserve again.
        """
        async with self._lock:
            self.is_complete = False
            if reserve_name(self.role) not in self._disk.list():
                return None
            await self._disk.rename(reserve_name(self.role), name)
            try:
                file = await self._disk.open(name)
            except (TooBusy, DiskFailed):
                await self._disk.rename(name, reserve_name(self.role))
                return None
            return file, file.size()


async def _ensure_reserve(disk: Disk, role: str, wanted_bytes: int) -> bool:
    """Have one whole. Raises `DiskFailed`, `TooBusy`."""
    name = reserve_name(role)
    current_bytes = await _reserve_size(disk, name)
    if current_bytes is not None and current_bytes >= wanted_bytes:
        return True
    if disk.free_bytes() < wanted_bytes - (current_bytes or 0):
        return False
    if current_bytes is not None:
        await disk.delete(name)
    try:
        file = await disk.create(name, size=wanted_bytes)
    except DiskFull:
        return False
    file.close()
    return True


async def _reserve_size(disk: Disk, name: str) -> int | None:
    """None for a missing reserve, 0 for one that cannot be opened and is made again."""
    try:
        file = await disk.open(name)
    except FileNotFoundError:
        return None
    except DiskFailed:
        return 0
    try:
        return file.size()
    finally:
        file.close()
