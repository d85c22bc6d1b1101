"""The adapter of local processes: every node a `dlog serve` of its own, on loopback."""

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from ..cluster import plan as plans
from ..cluster.plan import Plan
from ..runtime.errors import DistributedLogError
from ..runtime.machine import real_host
from . import disks as loops
from .adapter import Capability, ChaosFailed, Link, Needs, Node, Role
from .disks import LoopDisk
from .place import Place
from .proxy import Door, Weather, who_holds

HOST = "127.0.0.1"
START_S = 120.0
OWN_DISK = frozenset({Capability.POWER, Capability.DISK_FULL, Capability.SYNC_ERRORS})
PROXIED = frozenset({Capability.NETWORK, Capability.SLOW_LINK})


class LocalProcesses:
    """A cluster of processes below one directory."""

    kind = "processes"

    def __init__(self, needs: Needs, store: Mapping[str, Any] | None = None) -> None:
        self._needs = needs
        self._store = {"journal_file_bytes": plans.LOCAL_JOURNAL_FILE_BYTES, **(store or {})}
        self._own_disks = bool(needs.capabilities & OWN_DISK)
        self._places: dict[str, Place] = {}
        self._plan = Plan(())
        self._weather = Weather()
        self._clients: list[int] = []
        self._stack = AsyncExitStack()

    def refusal(self, capability: Capability) -> str | None:
        """See `Adapter.refusal`."""
        if capability in OWN_DISK:
            return loops.refusal()
        if capability in PROXIED and not os.path.exists("/proc/net/tcp"):
            return "needs /proc/net/tcp, to know which process a connection comes from"
        return None

    async def __aenter__(self) -> Self:
        """Start everything."""
        stack = self._stack
        await stack.__aenter__()
        try:
            nursery = await stack.enter_async_context(trio.open_nursery())
            stack.callback(nursery.cancel_scope.cancel)
            stack.push_async_callback(self._end)
            await self._prepare(nursery)
            said: dict[str, str] = {}

            async def start(name: str) -> None:
                refused = await self.start(name, START_S)
                if refused is not None:
                    said[name] = refused

            async with trio.open_nursery() as starting:
                for name in self._places:
                    starting.start_soon(start, name)
            if said:
                raise ChaosFailed("; ".join(f"{name}: {why}" for name, why in said.items()))
        except BaseException:
            await stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End everything."""
        await self._stack.aclose()

    @property
    def nodes(self) -> Sequence[Node]:
        """Metadata nodes first."""
        return [Node(node.name, Role(node.kind)) for node in self._plan.nodes]

    @property
    def uri(self) -> str:
        """Of the metadata nodes' doors."""
        return self._plan.uri

    @property
    def client_environment(self) -> Mapping[str, str]:
        """None."""
        return {}

    def client_started(self, pid: int) -> None:
        """Everybody who is no node is a client: nothing to remember."""

    # --- starting -------------------------------------------------------------------------------------

    async def _prepare(self, nursery: trio.Nursery) -> None:
        needs = self._needs
        self._plan = private = await _planned(needs)
        if needs.capabilities & PROXIED:
            # The public ports are taken by the doors first, so that the private ones are others.
            doors = []
            for node in self._plan.nodes:
                door = Door(node.name, node.address, (HOST, 0), self._weather, self._who)
                await nursery.start(door.run)
                doors.append(door)
            private = await _planned(needs)
            for door, node in zip(doors, private.nodes, strict=True):
                door.private = node.address
        for node, inner in zip(self._plan.nodes, private.nodes, strict=True):
            base = needs.directory / node.name
            base.mkdir(parents=True)
            place = Place(base, node, inner.address, base / "data")
            self._places[node.name] = place
            if self._own_disks:
                breakable = Capability.SYNC_ERRORS in needs.capabilities
                place.disk = LoopDisk(base, needs.disk_mb, breakable=breakable)
                await place.disk.make()
                place.data = place.disk.mount_point / "data"
            store = self._store if node.kind == "bookie" else {}
            place.write_config(self._plan, store)

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """See `Adapter.start`."""
        module = self._needs.node_module
        if Capability.CLOCK in self._needs.capabilities and module == "distributedlog.cli.main":
            module = "distributedlog.chaos.node"
        return await self._places[name].start(module, timeout_s)

    async def _end(self) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for name in self._places:
                    nursery.start_soon(self.kill, name)
            for place in self._places.values():
                if place.disk is not None:
                    await place.disk.remove()

    # --- machines -------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """See `Adapter.kill`."""
        await self._places[name].kill()

    async def stop(self, name: str) -> None:
        """See `Adapter.stop`."""
        await self._places[name].stop()

    async def running(self, name: str) -> bool:
        """See `Adapter.running`."""
        return self._places[name].runs

    async def pause(self, name: str) -> None:
        """See `Adapter.pause`."""
        self._places[name].signal(signal.SIGSTOP)

    async def resume(self, name: str) -> None:
        """See `Adapter.resume`."""
        self._places[name].signal(signal.SIGCONT)

    # --- network --------------------------------------------------------------------------------------

    def _who(self, inode: int) -> str:
        pids = {
            name: place.process.pid
            for name, place in self._places.items()
            if place.process is not None
        }
        return who_holds(inode, pids)

    async def cut(self, links: Sequence[Link]) -> None:
        """See `Adapter.cut`."""
        for link in links:
            self._weather.cut[link] = self._weather.cut.get(link, 0) + 1
        self._weather.tell()

    async def heal(self, links: Sequence[Link]) -> None:
        """See `Adapter.heal`."""
        for link in links:
            self._weather.cut[link] = max(0, self._weather.cut.get(link, 0) - 1)
        self._weather.tell()

    async def slow(self, links: Sequence[Link], delay_s: float, bytes_per_s: float = 0.0) -> None:
        """See `Adapter.slow`."""
        for link in links:
            if delay_s or bytes_per_s:
                self._weather.slow[link] = (delay_s, bytes_per_s)
            else:
                self._weather.slow.pop(link, None)
        self._weather.tell()

    # --- disks, clocks, limits ------------------------------------------------------------------------

    def data_directory(self, name: str) -> Path:
        """See `Adapter.data_directory`."""
        return self._places[name].data

    async def cut_power(self, names: Sequence[str]) -> None:
        """See `Adapter.cut_power`."""
        disks = [self._disk(name) for name in names]
        loops.cut_power(disks)
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self.kill, name)
        for disk in disks:
            await disk.unmount()
            await disk.mount()

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        """See `Adapter.fill_disk`."""
        self._disk(name).fill(leave_bytes)

    async def free_disk(self, name: str) -> None:
        """See `Adapter.free_disk`."""
        self._disk(name).free()

    async def fail_writes(self, name: str) -> None:
        """See `Adapter.fail_writes`."""
        self._disk(name).break_device()

    async def mend_writes(self, name: str) -> None:
        """See `Adapter.mend_writes`."""
        await self.kill(name)
        await self._disk(name).mend_device()

    def _disk(self, name: str) -> LoopDisk:
        disk = self._places[name].disk
        assert disk is not None, (
            f"{name} has no disk of its own: the scenario did not say it needs one"
        )
        return disk

    async def set_clock(self, name: str, offset_s: float) -> None:
        """See `Adapter.set_clock`."""
        file = self._needs.directory / name / "clock"
        aside = file.with_suffix(".aside")
        aside.write_text(f"{offset_s}")
        aside.rename(file)

    async def limit_files(self, name: str, count: int | None) -> None:
        """See `Adapter.limit_files`."""
        process = self._places[name].process
        if process is None or process.returncode is not None:
            return
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if count is None else count
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """See `Adapter.log_of`."""
        return self._places[name].log()


async def _planned(needs: Needs) -> Plan:
    here = real_host("chaos")
    try:
        return await plans.make(
            None,
            bookies=needs.bookies,
            metadata_nodes=needs.metadata_nodes,
            port=0,
            host=HOST,
            listen=here.listen,
            chance=here.random,
        )
    except DistributedLogError as error:
        raise ChaosFailed(str(error)) from None
