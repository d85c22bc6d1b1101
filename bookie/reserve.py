"""A file that only takes up room, one on each disk of a bookie, so that there is some when all is used (H28).

Given up in steps: for the bookie's identity and its first journal file at a start on a full disk, for a next
journal file where fences and deletions wait for one, for a checkpoint that finds no room. Whole again as
soon as there is space; until then the bookie takes no new entries.
"""

import contextlib

import trio

from ..runtime.errors import DiskFailed, DiskFull, TooBusy
from ..runtime.host import Disk, File

ALIGN = 4096


def reserve_name(role: str) -> str:
    """The file's name on the disk of that role."""
    return f"reserve-{role}"


async def give_up(disk: Disk, role: str, wanted_bytes: int) -> bool:
    """Free about so many bytes on the disk; False where nothing of the reserve is left. Raises `DiskFailed`.

    Cut, not removed: who shares the file system may be quicker, and the rest is wanted a moment later.
    """
    try:
        file = await disk.open(reserve_name(role))
    except FileNotFoundError:
        return False
    except (TooBusy, DiskFailed):  # it holds nothing: what cannot be cut goes whole
        await disk.delete(reserve_name(role))
        return True
    try:
        left = (file.size() - wanted_bytes) // ALIGN * ALIGN
        if left > 0:
            file.truncate(left)
            await file.sync()
            return True
    finally:
        file.close()
    await disk.delete(reserve_name(role))
    return True


class Reserve:
    """The reserve of one disk, as a running bookie keeps it."""

    def __init__(self, disk: Disk, role: str, wanted_bytes: int) -> None:
        self.role = role
        self.held = False
        """It is there, and whole."""
        self._disk = disk
        self._wanted_bytes = wanted_bytes
        self._lock = trio.Lock()
        """Ticks make it, a checkpoint and the journal give it up: one at a time."""

    async def make(self) -> None:
        """Have it whole, if there is room for it, and a descriptor. Raises `DiskFailed`."""
        async with self._lock:
            with contextlib.suppress(TooBusy):
                await self._make()

    async def _make(self) -> None:
        have = await self._size()
        if have is not None and have >= self._wanted_bytes:
            self.held = True
            return
        if self._disk.free_bytes() < self._wanted_bytes - (have or 0):
            return
        if have is not None:
            await self._disk.delete(reserve_name(self.role))
        try:
            file = await self._disk.create(reserve_name(self.role), size=self._wanted_bytes)
        except DiskFull:
            return
        file.close()
        self.held = True

    async def give_up(self) -> bool:
        """All of it; False where there is none."""
        async with self._lock:
            self.held = False
            return await give_up(self._disk, self.role, 1 << 62)

    async def become(self, name: str) -> tuple[File, int] | None:
        """Make what is there the file ``name``, of so many bytes; None: nothing is. Needs no space.

        None as well where it cannot be opened, for a lack of descriptors: then it is the reserve again.
        """
        async with self._lock:
            self.held = False
            if reserve_name(self.role) not in self._disk.list():
                return None
            await self._disk.rename(reserve_name(self.role), name)
            try:
                file = await self._disk.open(name)
            except (TooBusy, DiskFailed):
                await self._disk.rename(name, reserve_name(self.role))
                return None
            return file, file.size()

    async def _size(self) -> int | None:
        """None: it is not there; 0 for one that cannot be opened, which is made anew."""
        try:
            file = await self._disk.open(reserve_name(self.role))
        except FileNotFoundError:
            return None
        except DiskFailed:
            return 0
        try:
            return file.size()
        finally:
            file.close()
