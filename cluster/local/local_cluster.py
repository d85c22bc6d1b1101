"""Run a whole cluster on this machine: the implementation of `dlog local` and `local_cluster`.

The same nodes can run in three ways:

- ``in_process``: all nodes in this trio run. Tests use it, and `dlog local`, whose process has no other work.
- By default, all nodes in one child process, so that a caller that computes does not slow them down (H27).
- ``processes``: each node in its own process, for tests with faults.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from ...runtime.disk.output_file import write_file
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest
from ...runtime.interfaces.host import Host
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.machine import real_host, require_linux
from ...runtime.net.local_secret import SECRET_BYTES, with_local_secret
from ...runtime.net.port_reservation import ReservedPorts
from ..declarations.events import DIED
from ..declarations.options import PROXIES, to_json
from ..nodes import serve_node
from ..process.node_directories import memory_host, open_host
from ..process.process_lifetime import first_error
from . import cluster_plan as plans
from .child_processes import Child, start_child, start_fork_server
from .cluster_plan import ClusterPlan, PlannedNode
from .fork_server import ForkServer

HOST = "127.0.0.1"
RESTART_S = 1.0
"""With ``restart``, a node that terminated is started again after this time."""

log = get_logger("distributedlog.cluster")


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node of a local cluster."""

    name: str
    kind: str
    """``metadata``, ``bookie``, ``write-proxy`` or ``read-proxy``."""
    pid: int
    """The ID of its process."""
    address: str
    """``HOST:PORT``."""
    data: str | None
    """Its directory. None if it stores nothing on disk."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running cluster, with its address and nodes."""

    uri: str
    """The URI for `open_namespace`."""
    data: str | None
    """Its directory. None if it is in memory."""
    nodes: list[LocalNode]
    children: dict[str, Child]
    """The nodes with their own process, by name."""

    def ready(self) -> dict[str, Any]:
        """Return the ready line of `dlog local`."""
        line = {"uri": self.uri, "nodes": [asdict(node) for node in self.nodes]}
        return {**line, "proxied_uri": self.proxied_uri} if self.proxied_uri else line

    @property
    def proxied_uri(self) -> str:
        """The URI of the same logs through the cluster's proxies; "" if it has none."""
        addresses = ",".join(node.address for node in self.nodes if node.kind in PROXIES)
        return f"distributedlog+proxy://{addresses}/{plans.NAMESPACE}" if addresses else ""

    def kill(self, name: str) -> None:
        """Kill a node with its own process by SIGKILL."""
        self.children[name].kill()


@asynccontextmanager
async def local_cluster(
    data: str | Path | None = None,
    bookies: int = 3,
    metadata_nodes: int = 3,
    *,
    memory: bool = False,
    in_process: bool = False,
    port: int = 0,
    processes: bool = False,
    restart: bool = False,
    log_level: str = "WARNING",
    on_death: Callable[[str, str], None] | None = None,
    separate_nodes: Sequence[str] = (),
    forks: ForkServer | None = None,
    write_proxies: int = 0,
    read_proxies: int = 0,
) -> AsyncIterator[LocalCluster]:
    """Start a cluster, yield it when all nodes serve and are registered, and stop it at the end.

    Args:
        data: Its directory, which stores names, ports and the URI. The default is a temporary one, which is
            removed at the end.
        bookies: The number of bookies.
        metadata_nodes: The number of metadata nodes.
        memory: Store nothing on disk.
        in_process: Run the nodes in this trio run.
        port: The first port; 0 for any free ports.
        processes: Run each node in its own process.
        restart: Start nodes again that terminated.
        log_level: The log level of child processes.
        on_death: Called with name and reason when a node terminates unexpectedly.
        separate_nodes: With ``in_process``, nodes that nevertheless get their own process, so that they can
            be killed.
        forks: Starts the processes. By default, several processes are started by a fork server that ends with
            the cluster.
        write_proxies: The number of write proxies. Proxies store nothing, and have other ports at each start.
        read_proxies: The number of read proxies.

    Raises:
        AddressInUse: A port is in use.
        ForeignData: The directory belongs to another cluster.
        DataDirectoryInUse: Another process uses the directory.
        InvalidRequest: A number is invalid, or differs from the stored plan.
        DistributedLogError: A node could not start.
    """
    require_linux("a cluster of one's own")
    with _directory(data, memory) as directory, ReservedPorts() as ports:
        cluster_size = {
            "bookies": bookies,
            "metadata_nodes": metadata_nodes,
            "port": port,
            "write_proxies": write_proxies,
            "read_proxies": read_proxies,
        }
        plan = None
        if in_process or processes:
            plan = await _load_plan(directory, cluster_size, ports)
        secret = real_host("local").secret_bytes(SECRET_BYTES)
        run = _NodeRunner(directory, restart, log_level, on_death or _log_death, forks, secret)
        is_started = False
        try:
            async with trio.open_nursery() as nursery:
                try:
                    cluster = await run.start(
                        nursery, plan, cluster_size, separate_nodes if in_process else None
                    )
                    is_started = True
                    yield cluster
                finally:
                    nursery.cancel_scope.cancel()
                    run.end_metadata_last()
        except BaseExceptionGroup as group:
            if is_started and len(group.exceptions) == 1:
                # The caller's body raised it, without a group.
                raise group.exceptions[0] from None
            raise first_error(group) from None  # why a node could not start
        finally:
            await run.stop_children()


@contextmanager
def _directory(data: str | Path | None, memory: bool) -> Iterator[str | None]:
    """Yield the cluster's directory; None if it is in memory. A temporary directory is removed at the end."""
    if memory:
        yield None
    elif data is not None:
        yield os.path.abspath(str(data))
    else:
        try:
            scratch = tempfile.TemporaryDirectory(prefix="dlog-", ignore_cleanup_errors=True)
        except OSError as error:
            raise InvalidRequest(
                f"a cluster without a data directory needs a temporary one: {error.strerror}; set TMPDIR to a"
                " writable directory, or give a data directory (--data)"
            ) from None
        with scratch as directory:
            yield directory


async def run_cluster(
    spec: dict[str, Any], *, task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a whole cluster in this process, as `cluster/local/node_child.py` requests, until cancelled."""
    async with local_cluster(
        spec["data"],
        spec["bookies"],
        spec["metadata_nodes"],
        memory=spec["data"] is None,
        in_process=True,
        port=spec["port"],
        restart=spec["restart"],
        write_proxies=spec["write_proxies"],
        read_proxies=spec["read_proxies"],
    ) as cluster:
        task_status.started(cluster.ready())
        await trio.sleep_forever()


class _NodeRunner:
    """Starts the nodes in one of the three ways, and restarts them if requested."""

    def __init__(
        self,
        data: str | None,
        restart: bool,
        log_level: str,
        on_death: Callable[[str, str], None],
        fork_server: ForkServer | None,
        secret: bytes,
    ) -> None:
        self._data = data
        self._restart = restart
        self._log_level = log_level
        self._on_death = on_death
        self._fork_server = fork_server
        self._secret = secret
        """Authenticates clients of the nodes (`distributedlog/runtime/net/local_secret.py`).

        Generated at each start.
        """
        self._started_fork_server: ForkServer | None = None
        self._children: dict[str, Child] = {}
        self._metadata_scopes: list[trio.CancelScope] = []
        """Cancel scopes of the metadata nodes in this run.

        They shield running nodes from a cancellation from outside.
        """
        self._running_other_nodes = 0
        """The number of other nodes in this run that have not ended."""
        self._is_ending = False

    async def start(
        self,
        nursery: trio.Nursery,
        plan: ClusterPlan | None,
        cluster_size: Mapping[str, int],
        separate_nodes: Sequence[str] | None,
    ) -> LocalCluster:
        """Start ``separate_nodes`` (None for all) in their own processes, the others in this run.

        Without a plan, one child runs all nodes.
        """
        if plan is None:
            return await self.start_in_one_child(nursery, cluster_size)
        names = [node.name for node in plan.nodes] if separate_nodes is None else separate_nodes
        return await self.start_planned(nursery, plan, names)

    async def start_planned(
        self, nursery: trio.Nursery, plan: ClusterPlan, separate: Sequence[str]
    ) -> LocalCluster:
        """Start the nodes of a plan: those in ``separate`` in their own processes, the others in this run."""
        ready: dict[str, dict[str, Any]] = {}
        if self._fork_server is None and len(separate) > 1:
            self._fork_server = self._started_fork_server = start_fork_server()

        async def start(node: PlannedNode) -> None:
            if node.name in separate:
                spec = {
                    "run": "node",
                    "config": to_json(plan.config(node)),
                    "data": self._data_directory(node),
                    "log_level": self._log_level,
                    "secret": self._secret.hex(),
                }
                ready[node.name] = await self._start_child(nursery, node.name, spec)
            elif node.kind == "metadata":
                scope = trio.CancelScope()
                self._metadata_scopes.append(scope)
                ready[node.name] = await nursery.start(self._run_in_scope, scope, plan, node)
                scope.shield = True
            else:
                ready[node.name] = await nursery.start(self._run_other_node, plan, node)

        async with trio.open_nursery() as starting:
            for node in plan.nodes:
                starting.start_soon(start, node)
        return self._cluster(plan.uri, [ready[node.name] for node in plan.nodes])

    async def start_in_one_child(
        self, nursery: trio.Nursery, shape: Mapping[str, int]
    ) -> LocalCluster:
        """Start one child that runs all nodes."""
        spec = {
            "run": "cluster",
            "data": self._data,
            "restart": self._restart,
            "log_level": self._log_level,
            **shape,
        }
        ready = await self._start_child(nursery, "the cluster's process", spec)
        return self._cluster(ready["uri"], ready["nodes"])

    def _data_directory(self, node: PlannedNode) -> str | None:
        if self._data is None or node.kind in PROXIES:
            return None
        return str(Path(self._data) / node.name)

    def _cluster(self, uri: str, ready: Sequence[dict[str, Any]]) -> LocalCluster:
        nodes = [
            LocalNode(
                line["name"],
                line["kind"],
                line.get("pid", os.getpid()),
                line["address"],
                line["data"],
            )
            for line in ready
        ]
        return LocalCluster(uri, self._data, nodes, self._children)

    def end_metadata_last(self) -> None:
        """End the metadata nodes of this run as soon as all other nodes have ended.

        A bookie that ends stores its progress record and revokes its lease. Without a quorum it would wait
        for its timeouts, and the next start would find the registration of a bookie that has ended.
        """
        self._is_ending = True
        if not self._running_other_nodes:
            for scope in self._metadata_scopes:
                scope.cancel()

    async def _run_in_scope(
        self,
        scope: trio.CancelScope,
        plan: ClusterPlan,
        node: PlannedNode,
        *,
        task_status: trio.TaskStatus[dict[str, Any]],
    ) -> None:
        with scope:
            await self._run_node(plan, node, task_status=task_status)

    async def _run_other_node(
        self, plan: ClusterPlan, node: PlannedNode, *, task_status: trio.TaskStatus[dict[str, Any]]
    ) -> None:
        self._running_other_nodes += 1
        try:
            await self._run_node(plan, node, task_status=task_status)
        finally:
            self._running_other_nodes -= 1
            if self._is_ending:
                self.end_metadata_last()

    async def _run_node(
        self, plan: ClusterPlan, node: PlannedNode, *, task_status: trio.TaskStatus[dict[str, Any]]
    ) -> None:
        """Run one node. After its start, a failure ends only this node, or restarts it if requested."""
        has_served = False
        directory = self._data_directory(node)
        config = plan.config(node)
        in_memory = memory_host(config) if directory is None else None

        async def serve(host: Host) -> None:
            nonlocal has_served
            async with trio.open_nursery() as nursery:
                guarded_host = with_local_secret(host, self._secret)
                node_ready = await nursery.start(serve_node, guarded_host, config)
                if not has_served:
                    has_served = True
                    task_status.started(node_ready.line(directory))

        while True:
            try:
                if in_memory is not None:
                    await serve(in_memory)
                else:
                    assert directory is not None
                    async with open_host(config, Path(directory), is_only_node=False) as host:
                        await serve(host)
            except* (DistributedLogError, OSError, AssertionError) as group:
                if not has_served:
                    raise
                self._on_death(node.name, _error_text(first_error(group)))
            if not self._restart:
                await trio.sleep_forever()
            await trio.sleep(RESTART_S)

    async def _start_child(
        self, nursery: trio.Nursery, name: str, spec: dict[str, Any]
    ) -> dict[str, Any]:
        """Start and watch a child, and return its ready line."""
        child = self._children[name] = await start_child(name, spec, self._fork_server)
        nursery.start_soon(self._watch_child, name, spec)
        return child.ready

    async def _watch_child(self, name: str, spec: dict[str, Any]) -> None:
        """Report the end of a child, and start it again if requested."""
        while True:
            child = self._children[name]
            code = await child.process.wait()
            self._on_death(name, f"its process {child.pid} ended with exit code {code}")
            if not self._restart:
                return
            await child.stop()
            while self._children[name] is child:
                await trio.sleep(RESTART_S)
                try:
                    self._children[name] = await start_child(name, spec, self._fork_server)
                except DistributedLogError as error:
                    self._on_death(name, _error_text(error))

    async def stop_children(self) -> None:
        """Stop all children, metadata nodes last (see `end_metadata_last`)."""
        kinds = {name: child.ready.get("kind") for name, child in self._children.items()}
        metadata = {name for name, kind in kinds.items() if kind == "metadata"}
        for names in (self._children.keys() - metadata, metadata):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(self._children[name].stop)
        if self._started_fork_server is not None:
            self._started_fork_server.close()


async def _load_plan(
    directory: str | None, cluster_size: Mapping[str, int], ports: ReservedPorts
) -> ClusterPlan:
    """Return the stored plan of a directory, or a new one, which is then stored, with proxies added."""
    machine_host = real_host("local", disks={})
    file = Path(directory) / plans.FILE_NAME if directory is not None else None
    stored_plan = None
    if file is not None and file.exists():
        stored_plan = plans.decode(file.read_text(), str(file))
    plan = await plans.make_plan(
        stored_plan,
        bookies=cluster_size["bookies"],
        metadata_nodes=cluster_size["metadata_nodes"],
        port=cluster_size["port"],
        host=HOST,
        listen=machine_host.listen,
        reserve_port=ports.reserve,
        rng=machine_host.random,
    )
    if file is not None and plan != stored_plan:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, plans.encode(plan))
    plan = plans.with_bookies(plan, cluster_size["bookies"])
    return plans.with_proxies(
        plan, cluster_size["write_proxies"], cluster_size["read_proxies"], HOST
    )


def _error_text(error: BaseException) -> str:
    code = f" ({error.code})" if isinstance(error, DistributedLogError) else ""
    return f"{type(error).__name__}{code}: {error}"


def _log_death(name: str, why: str) -> None:
    DIED.emit(log, "%s died: %s", name, why, node_name=name, why=why)
