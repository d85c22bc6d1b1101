"""A simulated machine: disks and addresses that outlive crashes, and a process that does not.

A crash is a power cut followed by a cancellation. First the disks stop, a random part of the unsynced writes
survives, listeners vanish and connections break. Only then is the scope of the process cancelled, so that
``finally`` blocks cannot clean up on a machine that is off. Each handle checks whether its process still
lives and otherwise raises `HostDown`.

An error that ends a process (`DiskFailed`, a failed assertion) cancels only its scope. An error that no
injected fault explains fails the run.
"""

from collections.abc import Awaitable, Callable

import trio

from ....runtime.interfaces.errors import CorruptData, DiskFailed, DistributedLogError
from ....runtime.interfaces.host import Address, Connection, Host, Listener
from ....runtime.interfaces.log_lines import get_logger
from ....runtime.interfaces.principals import BY_CERTIFICATE
from ....runtime.net.tls import CERTIFICATE, verify_certificate
from ....runtime.protocol.handshake import (
    FEATURE_ADD_MANY,
    FEATURE_ADMIN_RECOVERY,
    FEATURE_COMMIT,
    FEATURE_LACS,
    FEATURE_TRUST,
    FEATURES,
)
from .bug_injection import Injected
from .disk import SimDisk
from .disk_handle import DiskHandle
from .machine_state import HostDown, MachineState, count_stall, machine_of_task
from .network import SimNetwork
from .scheduler import EPOCH_S, Simulation

log = get_logger("distributedlog.testing.sim")

OLDER_FEATURES = (
    FEATURE_LACS | FEATURE_ADD_MANY | FEATURE_TRUST | FEATURE_ADMIN_RECOVERY | FEATURE_COMMIT
)
"""The protocol features of commit fea56d70."""

Main = Callable[[Host], Awaitable[None]]


class SimHost:
    """One machine. `start` runs a process on it, at most one at a time."""

    def __init__(self, simulation: Simulation, network: SimNetwork, name: str, ip: str) -> None:
        self.simulation = simulation
        self.network = network
        self.name = name
        self.ip = ip
        self.disks: dict[str, SimDisk] = {}
        self.state = MachineState(name, self._crash)
        self.wall_offset_ms = 0
        self.connections_max = 1000
        """`Host.connections_max` of processes that start from now on."""
        self.draws_version = False
        """Whether each process randomly has this version or the older one."""
        self.first_is_older = False
        """Whether the first process has the older version in any case, if `draws_version`."""
        self.runs_older = False
        """Whether the present process has the older version."""
        self.ended_by: BaseException | None = None
        """The error that ended the process; None while one runs and after a kill or power cut."""
        self.last_end: BaseException | None = None
        """Like `ended_by`, but kept when the next process starts."""
        self.stalled_until = 0.0
        """When the last stall ended. Tasks of the machine may still be late after it."""
        self._stall_end = 0.0
        self._scope: trio.CancelScope | None = None
        network.machines[ip] = self.state

    def add_disk(self, role: str, disk: SimDisk) -> None:
        """Add a disk. Several roles may share one."""
        self.disks[role] = disk

    def devices(self) -> list[SimDisk]:
        """Return the disks, each once."""
        return list(dict.fromkeys(self.disks.values()))

    # --- start and end ------------------------------------------------------------------------------

    def start(self, main: Main) -> None:
        """Power the machine on if necessary, and run ``main`` as a new process."""
        state = self.state
        assert not state.running, f"{self.name} runs already"
        was_off = not state.powered
        state.powered = state.running = True
        self.ended_by = None
        state.incarnation += 1
        state.crash_after(0, power=False)
        self.simulation.record_event("start", self.name, state.incarnation)
        if was_off:
            self.network.retransmit_stuck()
        self.simulation.nursery.start_soon(
            self._run, main, state.incarnation, name=f"node {self.name}"
        )

    def power_cut(self) -> None:
        """Turn the machine off at once. Idempotent."""
        if not self.state.powered:
            return
        self.simulation.record_event("power cut", self.name, self.state.incarnation)
        self.state.powered = self.state.running = False
        for disk in self.devices():
            disk.on_power_cut()
        self.network.on_power_cut(self.state)
        self._end()

    def kill(self) -> None:
        """End the process at once. The machine and its page cache stay. Idempotent."""
        if not self.state.running:
            return
        self.simulation.record_event("kill", self.name, self.state.incarnation)
        self.state.running = False
        for disk in self.devices():
            disk.on_kill()
        self.network.on_kill(self.state)
        self._end()

    def stall(self, seconds: float) -> None:
        """Stop all tasks of the process for some seconds, so that timers, deliveries and syncs are late."""
        if not self.state.running:
            return
        self._stall_end = max(self._stall_end, self.simulation.now + seconds)
        self.simulation.record_event("stall", self.name, f"{seconds:.3f}")
        if not self.state.stalled:
            self.state.stalled = True
            count_stall(1)
        self.simulation.call_at(self._stall_end, self._end_stall)

    def jump_clock(self, milliseconds: int) -> None:
        """Move the wall clock of the machine. Virtual time does not change."""
        self.simulation.record_event("clock", self.name, milliseconds)
        self.wall_offset_ms += milliseconds

    def _end_stall(self) -> None:
        if self.state.stalled and self.simulation.now >= self._stall_end:
            self.state.stalled = False
            self.stalled_until = self.simulation.now
            count_stall(-1)
            self.simulation.release_stalled()

    def _end(self) -> None:
        self._stall_end = 0.0
        self._end_stall()
        self.state.crash_after(0, power=False)
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _run(self, main: Main, incarnation: int) -> None:
        machine_of_task.set(self.state)
        with trio.CancelScope() as scope:
            if not self.state.is_current(incarnation):
                return
            self._scope = scope
            try:
                await main(self.host())
                causes: list[BaseException] = []
            except BaseException as error:  # classified below
                causes = [
                    cause for cause in flatten_errors(error) if not isinstance(cause, HostDown)
                ]
                if causes and all(isinstance(cause, trio.Cancelled) for cause in causes):
                    return  # cancelled by this class or at the end of the run
            if self.state.is_current(incarnation):
                self._on_ended(causes)
            else:
                self._check_dead(causes)

    def _on_ended(self, causes: list[BaseException]) -> None:
        """Clean up after a process that ended without a kill, and fail the run if no fault explains it."""
        cause = next((c for c in causes if not isinstance(c, trio.Cancelled)), None)
        self.simulation.record_event(
            "ended", self.name, self.state.incarnation, type(cause).__name__
        )
        if self.simulation.trace is not None:
            log.warning("%s ended", self.name, exc_info=cause)
        self.ended_by = self.last_end = cause
        self.state.running = False
        for disk in self.devices():
            disk.on_kill()
        self.network.on_kill(self.state)
        self._scope = None
        for leaf in causes:
            if not self._is_explained(leaf):
                self.simulation.fail(leaf)
                return

    def _check_dead(self, causes: list[BaseException]) -> None:
        """Check the errors that a killed process raised while it unwound. Only failed assertions count."""
        for cause in causes:
            if isinstance(cause, AssertionError):
                self.simulation.fail(cause)

    def _is_explained(self, cause: BaseException) -> bool:
        if isinstance(cause, (trio.Cancelled, HostDown)):
            return True
        if isinstance(cause, Injected):
            return cause.ends_node
        if isinstance(cause, (DiskFailed, CorruptData)):
            return any(disk.is_fault_injected for disk in self.devices())
        return isinstance(cause, DistributedLogError) and cause.retryable

    def _crash(self, crash_point: str, power: bool) -> None:
        self.simulation.record_event("crash point", self.name, crash_point)
        if power:
            self.power_cut()
        else:
            self.kill()

    # --- the platform of a process ------------------------------------------------------------------

    def host(self) -> Host:
        """Return the `Host` of the present process."""
        incarnation = self.state.incarnation
        handles = {disk: DiskHandle(disk) for disk in self.devices()}

        async def dial(address: Address) -> Connection:
            return await self.network.dial(self.state, incarnation, address)

        async def listen(address: Address) -> Listener:
            return await self.network.listen(self.state, incarnation, address)

        identity = self.network.identities.get(self.name)
        self.runs_older = self._draw_older(incarnation)
        return Host(
            name=self.name,
            dial=dial,
            listen=listen,
            disks={role: handles[disk] for role, disk in self.disks.items()},
            random=self.simulation.random_stream(f"host/{self.name}/{incarnation}"),
            wall_ms=self.wall_ms,
            connections_max=self.connections_max,
            features=OLDER_FEATURES if self.runs_older else FEATURES,
            version="" if self.runs_older else None,
            secret_bytes=self.simulation.random_stream(
                f"secret/{self.name}/{incarnation}"
            ).randbytes,
            methods={BY_CERTIFICATE: verify_certificate} if identity is not None else {},
            credentials=lambda address: CERTIFICATE if identity is not None else None,
            certificate=lambda: identity,
        )

    def _draw_older(self, incarnation: int) -> bool:
        if not self.draws_version:
            return False
        if self.first_is_older and incarnation == 1:
            return True
        rng = self.simulation.random_stream(f"version/{self.name}/{incarnation}")
        return rng.choice((False, True))

    def wall_ms(self) -> int:
        """Return the wall clock of the machine in milliseconds since 1970."""
        return int((EPOCH_S + self.simulation.now) * 1000) + self.wall_offset_ms


def flatten_errors(error: BaseException) -> list[BaseException]:
    """Return the exceptions inside groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in flatten_errors(inner)]
    return [error]
