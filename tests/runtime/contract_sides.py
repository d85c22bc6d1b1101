"""The sides that the contract tests of `runtime/host.py` run on: add a factory here, and no test.

A *world* is what survives a node's restart: `DiskWorld.look` gives a disk over the same storage each
time, as the next process would see it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from distributedlog.runtime.host import Disk
from distributedlog.runtime.memory import MemoryDisk


class DiskWorld(Protocol):
    def look(self) -> Disk:
        """A disk over this world's storage."""
        ...

    async def close(self) -> None:
        """Let go of threads and descriptors."""
        ...


class MemoryWorld:
    def __init__(self, path: Path) -> None:
        self.disk = MemoryDisk()

    def look(self) -> Disk:
        return self.disk

    async def close(self) -> None:
        await self.disk.close()


DISK_SIDES: dict[str, Callable[[Path], DiskWorld]] = {
    "memory": MemoryWorld,
}
"""By name: a factory that is given an empty directory."""
