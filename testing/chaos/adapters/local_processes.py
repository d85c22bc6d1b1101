"""The adapter for local processes: every node is a separate `dlog serve` on the loopback interface."""

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
from ....runtime.net.port_reservation import ReservedPorts
from ..clients.authorization_walk import place_of, principal_of
from ..clients.cluster_endpoints import HOST, endpoints_of, free_addresses
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
from .node_forwarder import LinkConditions, NodeForwarder, who_holds
from .process_node import ProcessNode
from .real_cluster import OWN_DISK, RealCluster

WRONG = frozenset({Capability.CLOCK, Capability.MEMORY})
"""The capabilities that `faulty_node.py` provides."""
EXTRAS = (
    (Capability.GATEWAYS, "hypercorn", "gateway"),
    (Capability.CERTIFICATES, "cryptography", "pki"),
)
"""Modules that must be installed for some capabilities."""
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
        self._link_conditions = LinkConditions()

    def refusal(self, capability: Capability) -> str | None:
        """See `Adapter.refusal`."""
        if capability in OWN_DISK:
            return loops.refusal()
        if capability in PROXIED and not os.path.exists("/proc/net/tcp"):
            return "needs /proc/net/tcp, to identify the process of a connection"
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
        """The URI with the public addresses of the metadata nodes."""
        return self._plan.uri

    # --- starting -------------------------------------------------------------------------------------

    async def _create(self, stack: AsyncExitStack) -> None:
        needs = self._needs
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        ports = stack.enter_context(ReservedPorts())
        self._plan = private_plan = await _planned(needs, ports)
        if needs.capabilities & PROXIED:
            # The forwarders take the public ports first, so that the private ports differ from them.
            forwarders = []
            for node in self._plan.nodes:
                if node.kind == NodeRole.GATEWAY.value:
                    continue  # it rejects requests for another port than its own
                forwarder = NodeForwarder(
                    node.name, node.address, (HOST, 0), self._link_conditions, self._process_of
                )
                await nursery.start(forwarder.run)
                forwarders.append(forwarder)
            private_plan = await _planned(needs, ports)
            for forwarder in forwarders:
                [forwarder.private] = [
                    planned_node.address
                    for planned_node in private_plan.nodes
                    if planned_node.name == forwarder.name
                ]
        taken_addresses = [
            node.address for plan in (self._plan, private_plan) for node in plan.nodes
        ]
        pages = await free_addresses(len(self._plan.nodes), taken_addresses)
        for node, private_node, page_address in zip(
            self._plan.nodes, private_plan.nodes, pages, strict=True
        ):
            address = node.address if node.kind == NodeRole.GATEWAY.value else private_node.address
            process_node = ProcessNode(needs.directory / node.name, node, address)
            if needs.http:
                process_node.http = address if node.kind == NodeRole.GATEWAY.value else page_address
            await self._make_node(process_node)
        stack.push_async_callback(self._kill_all)

    async def _make_node(self, process_node: ProcessNode) -> None:
        """Create the directories of a node, and write its configuration."""
        needs, node, node_directory, disk_mb = (
            self._needs,
            process_node.plan,
            process_node.directory,
            None,
        )
        node_directory.mkdir(parents=True)
        process_node.data = node_directory / "data"
        if needs.capabilities & OWN_DISK and NodeRole(node.kind) in STORING:
            process_node.data, disk_mb = (
                await self._make_disk(node.name, node_directory),
                needs.disk_mb,
            )
        if needs.certificates is not None:
            process_node.tls = place_of(
                needs.certificates, principal_of(node.name, NodeRole(node.kind))
            )
        options: Mapping[str, Any] = self._store if node.kind == "bookie" else {}
        if node.kind == NodeRole.GATEWAY.value:
            options = needs.gateway_settings
        service_addresses = endpoints_of(self.uri, self.nodes)
        uri = service_addresses.proxies if needs.write_proxies else service_addresses.nodes
        process_node.write_config(self._plan, options, disk_mb, uri)
        self._nodes[node.name] = process_node

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

    async def is_running(self, name: str) -> bool:
        """See `Adapter.is_running`."""
        return self._nodes[name].is_running

    async def pause(self, name: str) -> None:
        """See `Adapter.pause`."""
        self._nodes[name].signal(signal.SIGSTOP)

    async def resume(self, name: str) -> None:
        """See `Adapter.resume`."""
        self._nodes[name].signal(signal.SIGCONT)

    # --- network --------------------------------------------------------------------------------------

    def _process_of(self, inode: int) -> str:
        pids = {
            name: node.process.pid for name, node in self._nodes.items() if node.process is not None
        }
        return who_holds(inode, pids)

    async def cut(self, links: Sequence[Link]) -> None:
        """See `Adapter.cut`."""
        for link in links:
            self._link_conditions.cut[link] = self._link_conditions.cut.get(link, 0) + 1
        self._link_conditions.notify_changed()

    async def heal(self, links: Sequence[Link]) -> None:
        """See `Adapter.heal`."""
        for link in links:
            self._link_conditions.cut[link] = max(0, self._link_conditions.cut.get(link, 0) - 1)
        self._link_conditions.notify_changed()

    async def slow(self, links: Sequence[Link], delay_s: float, bytes_per_s: float = 0.0) -> None:
        """See `Adapter.slow`."""
        for link in links:
            if delay_s or bytes_per_s:
                self._link_conditions.slow[link] = (delay_s, bytes_per_s)
            else:
                self._link_conditions.slow.pop(link, None)
        self._link_conditions.notify_changed()

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
        self._nodes[name].memory_fault_file.touch()

    async def is_memory_spoiled(self, name: str) -> bool:
        """See `Adapter.is_memory_spoiled`."""
        return not self._nodes[name].memory_fault_file.exists()

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """See `Adapter.log_of`."""
        return self._nodes[name].log_tail()


async def _planned(needs: Needs, ports: ReservedPorts) -> ClusterPlan:
    host = real_host("chaos")
    service_kinds = [
        *[NodeRole.WRITE_PROXY.value] * needs.write_proxies,
        *[NodeRole.READ_PROXY.value] * needs.read_proxies,
        *[NodeRole.GATEWAY.value] * needs.gateways,
    ]
    try:
        plan = await plans.make_plan(
            None,
            bookies=needs.bookies
            + len(service_kinds),  # the last ones provide addresses for the services
            metadata_nodes=needs.metadata_nodes,
            port=0,
            host=HOST,
            listen=host.listen,
            reserve_port=ports.reserve,
            rng=host.random,
        )
    except DistributedLogError as error:
        raise ChaosFailed(str(error)) from None
    storing_nodes = plan.nodes[: needs.metadata_nodes + needs.bookies]
    count_by_kind = Counter[str]()
    service_nodes = []
    for kind, node in zip(service_kinds, plan.nodes[len(storing_nodes) :], strict=True):
        count_by_kind[kind] += 1
        service_nodes.append(replace(node, name=f"{kind}{count_by_kind[kind]}", kind=kind))
    return ClusterPlan((*storing_nodes, *service_nodes))
