"""The sides that the contract tests of `distributedlog/runtime/interfaces/host.py` run on: add a factory
here, and no test.

A *world* is what survives a node's restart: `DiskWorld.look` gives a disk over the same storage each
time, as the next process would see it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.disk.sync_mode import SyncMode
from distributedlog.runtime.interfaces.host import Address, Connection, Disk, Host
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.tls import Tls, TlsConnection, with_tls
from tests.runtime.pipe import PipeNetwork
from tests.runtime.pki import directory_of
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
    def __init__(self, bytes_max: int = 64 * 1024) -> None:
        self.network = PipeNetwork(bytes_max=bytes_max)

    def host(self, name: str) -> Host:
        return self.network.host(name)

    def address(self, name: str) -> Address:
        return name, 0


class TlsWorld:
    """Another world, with TLS over its connections."""

    def __init__(self, inner: NetworkWorld) -> None:
        self.inner = inner

    def host(self, name: str) -> Host:
        return with_tls(self.inner.host(name), Tls(directory_of("bookie/b1")))

    def address(self, name: str) -> Address:
        return self.inner.address(name)


async def settle(*ends: Connection) -> None:
    """Where connections begin with a handshake, have both ends do it."""
    async with trio.open_nursery() as nursery:
        for end in ends:
            if isinstance(end, TlsConnection):
                nursery.start_soon(end.handshake)


NETWORK_SIDES: dict[str, Callable[[], NetworkWorld]] = {
    "pipe": PipeWorld,
    "sim": SimNetworkWorld,
    "tcp": LoopbackWorld,
    "tls over pipe": lambda: TlsWorld(PipeWorld(256 * 1024)),  # above what is encrypted at once
    "tls over tcp": lambda: TlsWorld(LoopbackWorld()),
}
