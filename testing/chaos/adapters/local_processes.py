"""The adapter of local processes: every node a `dlog serve` of its own, on loopback."""

import os
import resource
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from ....cluster.local import cluster_plan as plans
from ....cluster.local.cluster_plan import ClusterPlan
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.machine import real_host
from ....runtime.net.port_reservation import HeldPorts
from ..clients.authorization_walk import place_of, principal_of
from ..clients.cluster_endpoints import HOST, free_places, places_of
from ..model.adapter import (
    NODE_MODULE,
    STORING,
    Capability,
    ChaosFailed,
    Link,
    Needs,
    Node,
    NodeRole,
)
from . import loop_disks as loops
from .node_forwarder import NodeForwarder, Weather, who_holds
from .process_node import ProcessNode
from .real_cluster import OWN_DISK, RealCluster

WRONG = frozenset({Capability.CLOCK, Capability.MEMORY})
"""What `faulty_node.py` is for."""
EXTRAS = (
    (Capability.GATEWAYS, "hypercorn", "gateway"),
    (Capability.CERTIFICATES, "cryptography", "pki"),
)
"""What must be installed for some of it."""
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
        self._plan = ClusterPlan(())
        self._weather = Weather()

    def refusal(self, capability: Capability) -> str | None:
        """See `Adapter.refusal`."""
        if capability in OWN_DISK:
            return loops.refusal()
        if capability in PROXIED and not os.path.exists("/proc/net/tcp"):
            return "needs /proc/net/tcp, to know which process a connection comes from"
        for needed, module, extra in EXTRAS:
            if capability is needed and find_spec(module) is None:
                return f"{module} is not installed: pip install '.[{extra}]'"
        return None

    @property
    def nodes(self) -> Sequence[Node]:
        """See `Adapter.nodes`."""
        return [
            Node(
                node.name,
                NodeRole(node.kind),
                address=node.address,
                pages=self._nodes[node.name].http if node.name in self._nodes else None,
            )
            for node in self._plan.nodes
        ]

    @property
    def uri(self) -> str:
        """Of the metadata nodes' doors."""
        return self._plan.uri

    # --- starting -------------------------------------------------------------------------------------

    async def _create(self, stack: AsyncExitStack) -> None:
        needs = self._needs
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        ports = stack.enter_context(HeldPorts())
        self._plan = private = await _planned(needs, ports)
        if needs.capabilities & PROXIED:
            # The public ports are taken by the doors first, so that the private ones are others.
            doors = []
            for node in self._plan.nodes:
                if node.kind == NodeRole.GATEWAY.value:
                    continue  # it answers those alone who call it by its own port
                door = NodeForwarder(node.name, node.address, (HOST, 0), self._weather, self._who)
                await nursery.start(door.run)
                doors.append(door)
            private = await _planned(needs, ports)
            for door in doors:
                [door.private] = [one.address for one in private.nodes if one.name == door.name]
        taken = [node.address for plan in (self._plan, private) for node in plan.nodes]
        pages = await free_places(len(self._plan.nodes), taken)
        for node, inner, page in zip(self._plan.nodes, private.nodes, pages, strict=True):
            address = node.address if node.kind == NodeRole.GATEWAY.value else inner.address
            made = ProcessNode(needs.directory / node.name, node, address)
            if needs.http:
                made.http = address if node.kind == NodeRole.GATEWAY.value else page
            await self._make_node(made)
        stack.push_async_callback(self._kill_all)

    async def _make_node(self, made: ProcessNode) -> None:
        """Its directories, and what it is started with."""
        needs, node, base, disk_mb = self._needs, made.planned, made.base, None
        base.mkdir(parents=True)
        made.data = base / "data"
        if needs.capabilities & OWN_DISK and NodeRole(node.kind) in STORING:
            made.data, disk_mb = await self._own_disk(node.name, base), needs.disk_mb
        if needs.certificates is not None:
            made.tls = place_of(needs.certificates, principal_of(node.name, NodeRole(node.kind)))
        options: Mapping[str, Any] = self._store if node.kind == "bookie" else {}
        if node.kind == NodeRole.GATEWAY.value:
            options = needs.gateway_settings
        places = places_of(self.uri, self.nodes)
        uri = places.proxies if needs.write_proxies else places.nodes
        made.write_config(self._plan, options, disk_mb, uri)
        self._nodes[node.name] = made

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """See `Adapter.start`."""
        module = self._needs.node_module
        if WRONG & self._needs.capabilities and module == NODE_MODULE:
            module = "distributedlog.testing.chaos.adapters.faulty_node"
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

    # --- settings, memory -----------------------------------------------------------------------------

    async def configure(self, name: str, settings: Mapping[str, Any]) -> None:
        """See `Adapter.configure`."""
        self._nodes[name].configure(settings)

    async def spoil_memory(self, name: str) -> None:
        """See `Adapter.spoil_memory`."""
        self._nodes[name].memory.touch()

    async def spoiled(self, name: str) -> bool:
        """See `Adapter.spoiled`."""
        return not self._nodes[name].memory.exists()

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """See `Adapter.log_of`."""
        return self._nodes[name].log()


async def _planned(needs: Needs, ports: HeldPorts) -> ClusterPlan:
    here = real_host("chaos")
    more = [
        *[NodeRole.WRITE_PROXY.value] * needs.write_proxies,
        *[NodeRole.READ_PROXY.value] * needs.read_proxies,
        *[NodeRole.GATEWAY.value] * needs.gateways,
    ]
    try:
        plan = await plans.make(
            None,
            bookies=needs.bookies + len(more),  # of these the last ones are places for the others
            metadata_nodes=needs.metadata_nodes,
            port=0,
            host=HOST,
            listen=here.listen,
            hold=ports.hold,
            chance=here.random,
        )
    except DistributedLogError as error:
        raise ChaosFailed(str(error)) from None
    own = plan.nodes[: needs.metadata_nodes + needs.bookies]
    counted = Counter[str]()
    others = []
    for kind, node in zip(more, plan.nodes[len(own) :], strict=True):
        counted[kind] += 1
        others.append(replace(node, name=f"{kind}{counted[kind]}", kind=kind))
    return ClusterPlan((*own, *others))
