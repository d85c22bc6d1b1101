"""The simulated side of the contract tests: the same network and disks, driven by the test's own clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from distributedlog.runtime.host import Address, Disk, Host
from distributedlog.sim.connection import NetworkFaults
from distributedlog.sim.disk import DiskFaults, SimDisk
from distributedlog.sim.host import SimHost
from distributedlog.sim.network import SimNetwork
from distributedlog.sim.scheduler import Simulation


class Unwalled(Simulation):
    """Events happen in the run of the test, at the time of its clock; nothing is walled off."""

    def __init__(self) -> None:
        super().__init__(1)

    @property
    def now(self) -> float:
        return trio.current_time()

    @now.setter
    def now(self, value: float) -> None:
        pass

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        async def later() -> None:
            await trio.sleep_until(when)
            call(*args)

        trio.lowlevel.spawn_system_task(later)


def running(host: SimHost) -> SimHost:
    host.running = True
    host.incarnation = 1
    return host


class SimDiskWorld:
    def __init__(self, path: Path) -> None:
        simulation = Unwalled()
        host = running(SimHost(simulation, SimNetwork(simulation), "b1", "10.0.0.1"))
        faults = DiskFaults(sync_s=(0.0, 0.0002), slow_chance=0.0, cold_chance=0.5)
        self.disk = SimDisk(simulation, host, "journal", faults)

    def look(self) -> Disk:
        return self.disk.handle()

    async def close(self) -> None:
        pass


class SimNetworkWorld:
    def __init__(self) -> None:
        self.simulation = Unwalled()
        faults = NetworkFaults(
            latency_s=(0.0, 0.0005), slow_chance=0.0, split_chance=0.5, short_read_chance=0.5
        )
        self.network = SimNetwork(self.simulation, faults)
        self.hosts: dict[str, SimHost] = {}

    def _machine(self, name: str) -> SimHost:
        if name not in self.hosts:
            ip = f"10.0.0.{len(self.hosts) + 1}"
            self.hosts[name] = running(SimHost(self.simulation, self.network, name, ip))
        return self.hosts[name]

    def host(self, name: str) -> Host:
        return self._machine(name).host()

    def address(self, name: str) -> Address:
        return self._machine(name).ip, 0
