"""A whole cluster on this machine: what `dlog local` and `local_cluster()` both are.

Three ways to run the same nodes: all in this run (``in_process``: tests, and `dlog local`, whose process
has nothing else to do), all in one child process (the default of `local_cluster`, so that a computing
caller does not starve them: H27), or each in its own process (``processes``: what faults are tried on).
"""

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ..runtime.errors import DistributedLogError
from ..runtime.host import Host
from ..runtime.machine import needs_linux, real_host
from . import plan as plans
from .directories import host_of, memory_host
from .lifeline import first_of
from .node import serve_node
from .options import to_json
from .plan import Plan, PlannedNode
from .processes import Child, start_child

HOST = "127.0.0.1"
RESTART_S = 1.0
"""A node that died is started again after this, with ``restart``."""

log = logging.getLogger("distributedlog.cluster")


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node as the ready line shows it."""

    name: str
    kind: str
    pid: int
    address: str
    data: str | None


class LocalCluster:
    """A running cluster: where it is, who its nodes are."""

    def __init__(self, data: str | None, plan: Plan | None) -> None:
        self.uri = plan.uri if plan is not None else ""
        self.data = data
        """Its directory; None in memory."""
        self.plan = plan if plan is not None else Plan(())
        self.nodes: list[LocalNode] = []
        self.children: dict[str, Child] = {}
        """By name, where each node is its own process."""

    def ready(self) -> dict[str, Any]:
        """The ready line of `dlog local`."""
        names = ("name", "kind", "pid", "address", "data")
        return {
            "uri": self.uri,
            "nodes": [{key: getattr(node, key) for key in names} for node in self.nodes],
        }

    def kill(self, name: str) -> None:
        """kill -9 a node that is its own process."""
        self.children[name].kill()

    async def start_again(self, name: str) -> None:
        """Start a killed node that was its own process. Raises what it cannot start with."""
        node = next(node for node in self.plan.nodes if node.name == name)
        await self.children[name].stop()
        self.children[name] = await start_child(name, _spec(self.plan, node, self.data))


@asynccontextmanager
async def local_cluster(
    data: str | Path | None = None,
    bookies: int = 3,
    metadata_nodes: int = 3,
    memory: bool = False,
    in_process: bool = False,
    port: int = 0,
    *,
    processes: bool = False,
    restart: bool = False,
    log_level: str = "WARNING",
    on_death: Callable[[str, str], None] | None = None,
    apart: Sequence[str] = (),
) -> AsyncIterator[LocalCluster]:
    """Start a cluster, yield it when every node serves and is registered, stop it in the end.

    ``data``: its directory, which keeps names, ports and URI (default: a temporary one, removed in the
    end). ``on_death(name, why)`` hears of nodes that die. ``apart``: with ``in_process``, nodes that get a
    process of their own all the same, to be killed. Raises `AddressInUse`, `ForeignData`,
    `DataDirectoryInUse`, `InvalidRequest` and whatever keeps a node from starting.
    """
    needs_linux("a cluster of one's own")
    if data is None and not memory:
        with tempfile.TemporaryDirectory(prefix="dlog-", ignore_cleanup_errors=True) as scratch:
            async with local_cluster(
                scratch,
                bookies,
                metadata_nodes,
                in_process=in_process,
                port=port,
                processes=processes,
                restart=restart,
                log_level=log_level,
                on_death=on_death,
                apart=apart,
            ) as cluster:
                yield cluster
        return
    directory = None if memory else _absolute(data)
    plan = None
    if in_process or processes:
        plan = await _plan(directory, bookies, metadata_nodes, port)
    cluster = LocalCluster(directory, plan)
    run = _Run(cluster, restart, log_level, on_death or _log_death)
    started = False
    try:
        async with trio.open_nursery() as nursery:
            if in_process:
                await run.in_this_process(nursery, apart)
            elif processes:
                await run.in_processes(nursery)
            else:
                await run.in_one_child(nursery, bookies, metadata_nodes, port)
            started = True
            try:
                yield cluster
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if started and len(group.exceptions) == 1:
            raise group.exceptions[
                0
            ] from None  # the caller's body raised it, not in a group of ours
        raise first_of(group) from None  # why a node could not start
    finally:
        await run.stop_children()


async def run_cluster_of(
    spec: dict[str, Any], *, task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED
) -> None:
    """The whole cluster in this process, as cluster/child.py was told; runs until cancelled."""
    async with local_cluster(
        spec["data"],
        spec["bookies"],
        spec["metadata_nodes"],
        memory=spec["data"] is None,
        in_process=True,
        port=spec["port"],
        restart=spec["restart"],
    ) as cluster:
        task_status.started(cluster.ready())
        await trio.sleep_forever()


class _Run:
    """Starts the nodes one way or another."""

    def __init__(
        self,
        cluster: LocalCluster,
        restart: bool,
        log_level: str,
        on_death: Callable[[str, str], None],
    ) -> None:
        self.cluster = cluster
        self.restart = restart
        self.log_level = log_level
        self.on_death = on_death

    async def in_this_process(self, nursery: trio.Nursery, apart: Sequence[str]) -> None:
        cluster = self.cluster
        ready: dict[str, dict[str, Any]] = {}

        async def start(node: PlannedNode) -> None:
            if node.name in apart:
                await self._start_child(node)
                ready[node.name] = cluster.children[node.name].ready
                nursery.start_soon(self._watch, node.name)
            else:
                ready[node.name] = await nursery.start(self._keep_node, node)

        async with trio.open_nursery() as starting:
            for node in cluster.plan.nodes:
                starting.start_soon(start, node)
        for node in cluster.plan.nodes:
            child = cluster.children.get(node.name)
            pid = os.getpid() if child is None else child.pid
            cluster.nodes.append(_local_node(ready[node.name], pid, node.name))

    async def _keep_node(
        self, node: PlannedNode, *, task_status: trio.TaskStatus[dict[str, Any]]
    ) -> None:
        """Run one node; once it has served, its death is its own (and, with restart, not for long)."""
        served = False
        plan, data = self.cluster.plan, self.cluster.data
        place = Path(data) / node.name if data is not None else None
        config = plan.config(node)
        in_memory = memory_host(config) if place is None else None

        async def serve(host: Host) -> None:
            nonlocal served
            async with trio.open_nursery() as nursery:
                found = await nursery.start(serve_node, host, config)
                if not served:
                    served = True
                    task_status.started(found.line(str(place) if place else None))

        while True:
            try:
                if in_memory is not None:
                    await serve(in_memory)
                else:
                    assert place is not None
                    async with host_of(config, place, alone=False) as host:
                        await serve(host)
            except* (DistributedLogError, OSError, AssertionError) as group:
                if not served:
                    raise
                self.on_death(node.name, _why(first_of(group)))
            if not self.restart:
                await trio.sleep_forever()
            await trio.sleep(RESTART_S)

    async def in_one_child(
        self, nursery: trio.Nursery, bookies: int, metadata_nodes: int, port: int
    ) -> None:
        cluster = self.cluster
        child = await start_child(
            "the cluster's process",
            {
                "run": "cluster",
                "data": cluster.data,
                "bookies": bookies,
                "metadata_nodes": metadata_nodes,
                "port": port,
                "restart": self.restart,
                "log_level": self.log_level,
            },
        )
        cluster.children["cluster"] = child
        cluster.uri = child.ready["uri"]
        cluster.nodes = [
            _local_node(node, child.pid, node["name"]) for node in child.ready["nodes"]
        ]
        nursery.start_soon(self._watch, "cluster")

    async def in_processes(self, nursery: trio.Nursery) -> None:
        cluster = self.cluster
        async with trio.open_nursery() as starting:
            for node in cluster.plan.nodes:
                starting.start_soon(self._start_child, node)
        for node in cluster.plan.nodes:
            child = cluster.children[node.name]
            cluster.nodes.append(_local_node(child.ready, child.pid, node.name))
            nursery.start_soon(self._watch, node.name)

    async def _start_child(self, node: PlannedNode) -> None:
        cluster = self.cluster
        cluster.children[node.name] = await start_child(
            node.name, _spec(cluster.plan, node, cluster.data, self.log_level)
        )

    async def _watch(self, name: str) -> None:
        """Tell of a child's death; start it again where that was asked."""
        while True:
            child = self.cluster.children[name]
            code = await child.process.wait()
            if self.cluster.children[name] is not child:
                continue  # somebody has started it again already
            self.on_death(name, f"its process {child.pid} ended with {code}")
            if not self.restart:
                return
            await trio.sleep(RESTART_S)
            try:
                await self.cluster.start_again(name)
            except DistributedLogError as error:
                self.on_death(name, _why(error))

    async def stop_children(self) -> None:
        children, self.cluster.children = self.cluster.children, {}
        async with trio.open_nursery() as nursery:
            for child in children.values():
                nursery.start_soon(child.stop)


async def _plan(directory: str | None, bookies: int, metadata_nodes: int, port: int) -> Plan:
    """The plan that the directory keeps, or a new one, kept there from now on."""
    here = real_host("local", disks={})
    file = Path(directory) / plans.FILE_NAME if directory is not None else None
    kept = None
    if file is not None and file.exists():
        kept = plans.decode(file.read_text(), str(file))
    plan = await plans.make(
        kept,
        bookies=bookies,
        metadata_nodes=metadata_nodes,
        port=port,
        host=HOST,
        listen=here.listen,
        chance=here.random,
    )
    if file is not None and plan != kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".aside")
        with aside.open("w") as out:
            out.write(plans.encode(plan))
            out.flush()
            os.fsync(out.fileno())
        aside.rename(file)
    return plans.started(plan, bookies)


def _spec(
    plan: Plan, node: PlannedNode, data: str | None, level: str = "WARNING"
) -> dict[str, Any]:
    return {
        "run": "node",
        "config": to_json(plan.config(node)),
        "data": str(Path(data) / node.name) if data is not None else None,
        "log_level": level,
    }


def _absolute(path: str | Path | None) -> str:
    return os.path.abspath(str(path))


def _local_node(ready: dict[str, Any], pid: int, name: str) -> LocalNode:
    return LocalNode(name, ready["kind"], pid, ready["address"], ready["data"])


def _why(error: BaseException) -> str:
    code = f" ({error.code})" if isinstance(error, DistributedLogError) else ""
    return f"{type(error).__name__}{code}: {error}"


def _log_death(name: str, why: str) -> None:
    log.error("%s died: %s", name, why)
