"""The sides that the contract tests of `runtime/host.py` run on: add a factory here, and no test.

A *world* is what survives a node's restart: `DiskWorld.look` gives a disk over the same storage each
time, as the next process would see it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from distributedlog.runtime.files import DirectoryDisk
from distributedlog.runtime.host import Address, Disk, Host
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.memory import MemoryDisk
from distributedlog.runtime.sync_mode import SyncMode
from tests.runtime.pipe import PipeNetwork
from tests.runtime.sim_sides import SimDiskWorld, SimNetworkWorld


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


class DirectoryWorld:
    def __init__(self, path: Path, sync: SyncMode) -> None:
        self.path = path
        self.sync = sync
        self.looks: list[DirectoryDisk] = []

    def look(self) -> Disk:
        self.looks.append(DirectoryDisk(self.path / "disk", sync=self.sync))
        return self.looks[-1]

    async def close(self) -> None:
        for disk in self.looks:
            await disk.close()


DISK_SIDES: dict[str, Callable[[Path], DiskWorld]] = {
    "inline": partial(DirectoryWorld, sync="inline"),
    "memory": MemoryWorld,
    "sim": SimDiskWorld,
    "thread": partial(DirectoryWorld, sync="thread"),
}
"""By name: a factory that is given an empty directory."""


class NetworkWorld(Protocol):
    def host(self, name: str) -> Host:
        """A machine on this world's network."""
        ...

    def address(self, name: str) -> Address:
        """Where the machine ``name`` may listen; the port may be 0."""
        ...


class LoopbackWorld:
    def host(self, name: str) -> Host:
        return real_host(name)

    def address(self, name: str) -> Address:
        return "127.0.0.1", 0


class PipeWorld:
    def __init__(self) -> None:
        self.network = PipeNetwork()

    def host(self, name: str) -> Host:
        return self.network.host(name)

    def address(self, name: str) -> Address:
        return name, 0


NETWORK_SIDES: dict[str, Callable[[], NetworkWorld]] = {
    "pipe": PipeWorld,
    "sim": SimNetworkWorld,
    "tcp": LoopbackWorld,
}
