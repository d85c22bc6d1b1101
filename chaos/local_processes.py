"""The adapter of local processes: every node a `dlog serve` of its own, on loopback."""

import json
import os
import resource
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from ..cluster import plan as plans
from ..cluster.config import format_address
from ..cluster.plan import Plan
from ..runtime.errors import DistributedLogError
from ..runtime.host import Address
from ..runtime.machine import real_host
from . import disks as loops
from .adapter import NODE_MODULE, Capability, ChaosFailed, Link, Needs, Node, Role
from .process_node import ProcessNode
from .proxy import Door, Weather, who_holds
from .real_cluster import OWN_DISK, RealCluster
from .walk import place_of

HOST = "127.0.0.1"
TARGETS = "targets.json"
PROXIED = frozenset({Capability.NETWORK, Capability.SLOW_LINK})


class LocalProcesses(RealCluster):
    """A cluster of processes below one directory."""

    kind = "processes"
    start_s = 120.0

    def __init__(self, needs: Needs, store: Mapping[str, Any] | None = None) -> None:
        super().__init__(
            needs, {"journal_file_bytes": plans.LOCAL_JOURNAL_FILE_BYTES, **(store or {})}
        )
        self._nodes: dict[str, ProcessNode] = {}
        self._plan = Plan(())
        self._weather = Weather()

    def refusal(self, capability: Capability) -> str | None:
        """See `Adapter.refusal`."""
        if capability in OWN_DISK:
            return loops.refusal()
        if capability in PROXIED and not os.path.exists("/proc/net/tcp"):
            return "needs /proc/net/tcp, to know which process a connection comes from"
        if capability is Capability.CERTIFICATES and find_spec("cryptography") is None:
            return "needs the library cryptography (the extra pki), to make certificates"
        return None

    @property
    def nodes(self) -> Sequence[Node]:
        """Metadata nodes first."""
        return [Node(node.name, Role(node.kind)) for node in self._plan.nodes]

    @property
    def uri(self) -> str:
        """Of the metadata nodes' doors."""
        return self._plan.uri

    # --- starting -------------------------------------------------------------------------------------

    async def _create(self, stack: AsyncExitStack) -> None:
        needs = self._needs
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
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
            data, disk_mb = base / "data", None
            if needs.capabilities & OWN_DISK:
                data, disk_mb = await self._own_disk(node.name, base), needs.disk_mb
            http = await _free_place() if needs.http else None
            made = ProcessNode(base, node, inner.address, data, http)
            if needs.certificates is not None:
                made.tls = place_of(needs.certificates, f"{node.kind}/{node.name}")
            self._nodes[node.name] = made
            store = self._store if node.kind == "bookie" else {}
            made.write_config(self._plan, store, disk_mb)
        if needs.http:
            write_targets(needs.directory / TARGETS, self._nodes.values())
        stack.push_async_callback(self._kill_all)

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """See `Adapter.start`."""
        module = self._needs.node_module
        if Capability.CLOCK in self._needs.capabilities and module == NODE_MODULE:
            module = "distributedlog.chaos.node"
        return await self._nodes[name].start(module, timeout_s)

    async def _kill_all(self) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for name in self._nodes:
                    nursery.start_soon(self.kill, name)

    # --- machines -------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """See `Adapter.kill`."""
        await self._nodes[name].kill()

    async def stop(self, name: str) -> None:
        """See `Adapter.stop`."""
        await self._nodes[name].stop()

    async def running(self, name: str) -> bool:
        """See `Adapter.running`."""
        return self._nodes[name].runs

    async def pause(self, name: str) -> None:
        """See `Adapter.pause`."""
        self._nodes[name].signal(signal.SIGSTOP)

    async def resume(self, name: str) -> None:
        """See `Adapter.resume`."""
        self._nodes[name].signal(signal.SIGCONT)

    # --- network --------------------------------------------------------------------------------------

    def _who(self, inode: int) -> str:
        pids = {
            name: node.process.pid for name, node in self._nodes.items() if node.process is not None
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
        return self._nodes[name].data

    def _clock_file(self, name: str) -> Path:
        return self._needs.directory / name / "clock"

    async def limit_files(self, name: str, count: int | None) -> None:
        """See `Adapter.limit_files`."""
        process = self._nodes[name].process
        if process is None or process.returncode is not None:
            return
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if count is None else count
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """See `Adapter.log_of`."""
        return self._nodes[name].log()


async def _free_place() -> Address:
    """An address that nobody had a moment ago."""
    listener = await real_host("chaos").listen((HOST, 0))
    listener.close()
    return listener.address


def write_targets(path: Path, nodes: Iterable[ProcessNode]) -> None:
    """Where the nodes' pages are, as Prometheus reads it (``file_sd_configs``), whole or not at all."""
    found = [
        {
            "targets": [format_address(node.http)],
            "labels": {"instance": node.planned.name, "kind": node.planned.kind},
        }
        for node in nodes
        if node.http is not None
    ]
    aside = path.with_suffix(".aside")
    aside.write_text(json.dumps(found, indent=1) + "\n")
    aside.rename(path)


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
