"""The simulated side of the contract tests: the same network and disks, driven by the test's own clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from distributedlog.runtime.interfaces.host import Address, Disk, Host
from distributedlog.testing.sim.world.disk import DiskFaults, SimDisk
from distributedlog.testing.sim.world.disk_handle import DiskHandle
from distributedlog.testing.sim.world.machine_state import MachineState
from distributedlog.testing.sim.world.network import NetworkFaults, SimNetwork
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_host import SimHost


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

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        async def later() -> None:
            await trio.sleep_until(when)
            call(*args)

        trio.lowlevel.spawn_system_task(later)


def running(name: str) -> MachineState:
    def die(what: str, power: bool) -> None:
        raise AssertionError("nobody asked for a crash point")

    return started(MachineState(name, die))


def started(machine: MachineState) -> MachineState:
    machine.running = True
    machine.incarnation = 1
    return machine


class SimDiskWorld:
    def __init__(self, path: Path) -> None:
        simulation = Unwalled()
        faults = DiskFaults(sync_s=(0.0, 0.0002), slow_chance=0.0, cold_chance=0.5)
        self.disk = SimDisk(simulation, running("b1"), "journal", faults)

    def look(self) -> Disk:
        return DiskHandle(self.disk)

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
            self.hosts[name] = SimHost(self.simulation, self.network, name, ip)
            started(self.hosts[name].state)
        return self.hosts[name]

    def host(self, name: str) -> Host:
        return self._machine(name).host()

    def address(self, name: str) -> Address:
        return self._machine(name).ip, 0
