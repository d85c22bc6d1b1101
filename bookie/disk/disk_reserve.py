"""Reserve files, two on each disk of a bookie, so that some space can be freed on a full disk (H28).

The reserve of a disk's role is freed for three uses. A start on a full disk turns it into its first journal
file. The next journal file uses it if fences and deletions wait for one. A checkpoint that finds no space
uses it as well. The small reserve for starts is used only to replace the bookie's identity file. A checkpoint
of a bookie that stays full must not use the space that the next start requires. Both reserves are restored as
soon as there is space. Until then the bookie is read-only.
"""

import contextlib

import trio

from ...runtime.interfaces.errors import DiskFailed, DiskFull, TooBusy
from ...runtime.interfaces.host import Disk, File

ALIGN = 4096
START_ROLE = "start"
"""In place of a role: the reserve that a start frees to replace the identity file, and then restores."""
START_BYTES = 64 * 1024
"""More than enough for a small file, with any block size of the file system."""


def reserve_name(role: str) -> str:
    """Return the name of the reserve file of a role."""
    return f"reserve-{role}"


async def free_reserve(disk: Disk, role: str, wanted_bytes: int) -> bool:
    """Free about this many bytes of a reserve; return False if nothing of it is left. Raises `DiskFailed`.

    The file is truncated rather than removed. Other users of the file system could otherwise take the rest,
    which is needed a moment later.
    """
    try:
        file = await disk.open(reserve_name(role))
    except FileNotFoundError:
        return False
    except (TooBusy, DiskFailed):  # the file has no data, so it can be deleted as a whole
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
        """Both files exist in full size."""
        self._disk = disk
        self._wanted_bytes = wanted_bytes
        self._lock = trio.Lock()
        """The periodic check restores the reserve, and a checkpoint or the journal frees it: one
        at a time."""

    async def ensure(self) -> None:
        """Create both files in full size if there is enough space and a file descriptor.

        Raises `DiskFailed`.
        """
        async with self._lock:
            with contextlib.suppress(TooBusy):
                start_reserve_complete = await _ensure_reserve(self._disk, START_ROLE, START_BYTES)
                self.is_complete = start_reserve_complete and await _ensure_reserve(
                    self._disk, self.role, self._wanted_bytes
                )

    async def free(self) -> bool:
        """Free the reserve of the role; return False if there is none."""
        async with self._lock:
            self.is_complete = False
            return await free_reserve(self._disk, self.role, 1 << 62)

    async def convert_to_file(self, name: str) -> tuple[File, int] | None:
        """Rename the role's reserve to ``name`` and open it. This needs no free space.

        Returns:
            The file and its size. None if there is no reserve, or if it cannot be opened for lack of file
            descriptors; it then keeps its name.
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
    """Create one reserve in full size; return whether it exists. Raises `DiskFailed`, `TooBusy`."""
    name = reserve_name(role)
    current_bytes = await _reserve_size(disk, name)
    if current_bytes is not None and current_bytes >= wanted_bytes:
        return True
    if disk.free_bytes() < wanted_bytes - (current_bytes or 0):
        return False
    if current_bytes is not None:  # a part of it was freed, or it cannot be opened
        await disk.delete(name)
    try:
        file = await disk.create(name, size=wanted_bytes)
    except DiskFull:
        return False
    file.close()
    return True


async def _reserve_size(disk: Disk, name: str) -> int | None:
    """Return None for a missing reserve, and 0 for one that cannot be opened and is created again."""
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
