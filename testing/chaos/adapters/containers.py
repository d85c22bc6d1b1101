"""The adapter for containers: docker/compose.yaml and docker/chaos.yaml as a separate project.

The engine starts nothing automatically here: compose creates the containers, and they are started, killed and
queried one by one. Clients run on this machine and use the published ports, with the certificate of user/app,
which is copied out of its volume.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from ....cluster.declarations.config import format_address
from ....cluster.local.cluster_plan import NAMESPACE
from ....cluster.status.node_health import query_health
from ....runtime.machine import CREDENTIALS_VARIABLE, client_host, real_host
from ....runtime.net.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from ..model.adapter import NODE_MODULE, Capability, ChaosFailed, Link, Needs, Node, NodeRole
from . import container_network
from . import docker_engine as engine
from . import loop_disks as loops
from .container import Container, clock_file, find, node_config, override
from .container_network import ContainerAddress, Network
from .docker_engine import Compose, inspect
from .real_cluster import OWN_DISK, RealCluster

PROJECT = "dlog-chaos"
"""One machine can execute one run at a time, because the compose file fixes the published ports."""
SUBNET = "172.30.42.0/24"
BOOKIES_MAX = 6
METADATA_NODES = (1, 3)
USER = 10001
"""The user ID of the image, which owns directories of this machine to which a node writes."""
ASK_S = 2.0
POLL_S = 0.1
LOG_LINES = 40
PROCESSES_ALONE = {
    Capability.SLOW_LINK: "slow links",
    Capability.SETTINGS: "settings of one node",
    Capability.MEMORY: "wrong memory",
    Capability.PROXIES: "proxies",
    Capability.GATEWAYS: "gateways",
}
OURS = "/tls/app"
"""The directory of the clients' certificate in the service ``dlog``."""


class Containers(RealCluster):
    """A compose cluster for one run, with separate volumes that are removed at the end."""

    kind = "containers"
    start_s = 90.0

    def __init__(self, needs: Needs, store: Mapping[str, Any] | None = None) -> None:
        super().__init__(needs, store or {})
        self._names = [f"metadata{n + 1}" for n in range(needs.metadata_nodes)]
        self._names += [f"bookie{n + 1}" for n in range(needs.bookies)]
        self._containers: dict[str, Container] = {}
        self._network = Network()
        self._host = real_host("chaos")

    def refusal(self, capability: Capability) -> str | None:
        """See `Adapter.refusal`."""
        needs = self._needs
        if needs.bookies > BOOKIES_MAX or needs.metadata_nodes not in METADATA_NODES:
            return (
                f"the compose file has up to {BOOKIES_MAX} bookies and 1 or 3 metadata nodes, required are"
                f" {needs.bookies} and {needs.metadata_nodes}"
            )
        if needs.node_module != NODE_MODULE:
            return f"the image contains only the product, not {needs.node_module}"
        reason = engine.refusal()
        if reason is not None:
            return reason
        if capability in OWN_DISK:
            return loops.refusal()
        if capability is Capability.NETWORK:
            return container_network.refusal()
        if capability is Capability.DATA and os.geteuid() != 0:
            return "needs root, to reach a container's files"
        if capability is Capability.FILES_LIMIT and not engine.may_limit_others():
            return "needs root with CAP_SYS_RESOURCE, to change a container's limits"
        if capability in PROCESSES_ALONE:
            return f"no {PROCESSES_ALONE[capability]} with containers; local processes have them"
        if capability is Capability.CERTIFICATES:
            return (
                "the compose file creates its own; local processes can use certificates of the run"
            )
        return None

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, metadata nodes first."""
        return [self._containers[name].node for name in self._names]

    @property
    def uri(self) -> str:
        """The URI with the published ports of the metadata nodes."""
        addresses = [
            container.published
            for container in self._containers.values()
            if container.node.role is NodeRole.METADATA
        ]
        return f"distributedlog://{';'.join(map(format_address, addresses))}/{NAMESPACE}"

    # --- creating -------------------------------------------------------------------------------------

    async def _create(self, stack: AsyncExitStack) -> None:
        compose = await self._prepare()
        await compose("down", "-v", "--remove-orphans")  # remains of a killed run
        stack.push_async_callback(self._end, compose)
        if "DLOG_IMAGE" not in os.environ:
            await compose("build", "pki", limit_s=engine.BUILD_S)
        await compose("run", "--rm", "--no-deps", "-T", "pki")
        credentials_before = os.environ.get(CREDENTIALS_VARIABLE)
        stack.callback(_name_credentials, credentials_before)
        _name_credentials(f"file:{await self._copy_credentials(compose)}")
        self._host = client_host("chaos")
        await compose("up", "--no-start", "--no-build", "--no-deps", *self._names)
        self._containers = await find(PROJECT, self._names)

    async def _prepare(self) -> Compose:
        """Write the files that override the compose files, and create the disks."""
        compose_folder = engine.folder()
        assert compose_folder is not None, "refused before"
        needs = self._needs
        disks = {}
        for name in self._names:
            clock_file(needs, name).parent.mkdir(parents=True)
            if needs.capabilities & OWN_DISK:
                disks[name] = await self._make_disk(name, needs.directory / name)
                disks[name].mkdir()
                os.chown(disks[name], USER, USER)
        config, override_file = needs.directory / "node.toml", needs.directory / "override.yaml"
        config.write_text(node_config(self._names, needs, self._store))
        config.chmod(0o644)
        override_file.write_text(override(self._names, needs, config, disks))
        has_sixth_bookie = "1" if needs.bookies == BOOKIES_MAX else "0"
        variables = {"DLOG_SUBNET": SUBNET, "DLOG_SIXTH_BOOKIE": has_sixth_bookie}
        return Compose(
            PROJECT, [*(compose_folder / name for name in engine.FILES), override_file], variables
        )

    async def _copy_credentials(self, compose: Compose) -> Path:
        """Copy the clients' certificate out of its volume, and return its directory."""
        tls_directory = self._needs.directory / "tls"
        tls_directory.mkdir(mode=0o700)
        for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
            arguments = ("--rm", "--no-deps", "-T", "--entrypoint", "cat", "dlog", f"{OURS}/{name}")
            text = await compose("run", *arguments)
            (tls_directory / name).touch(mode=0o600)
            (tls_directory / name).write_text(text)
        return tls_directory

    async def _end(self, compose: Compose) -> None:
        with trio.CancelScope(shield=True):
            for container in self._containers.values():
                container.first_process.close()
            await compose("down", "-v", "-t", "0", "--remove-orphans")

    # --- machines -------------------------------------------------------------------------------------

    async def start(self, name: str, timeout_s: float = 30.0) -> str | None:
        """See `Adapter.start`. The node serves when it answers at its published port."""
        container = self._containers[name]
        await container.start()
        if not self._network.is_clean:
            await self._network.apply_cuts(self._container_addresses)
        state = "silent"
        with trio.move_on_after(timeout_s):
            while await self.is_running(name):
                health = await query_health(self._host, container.published, timeout_s=ASK_S)
                if health.healthy:
                    return None
                state = health.state
                await trio.sleep(POLL_S)
        has_ended = not await self.is_running(name)
        await self.kill(name)
        log_tail = self.log_of(name)[-400:]
        return (
            f"ended: {log_tail}"
            if has_ended
            else f"did not serve within {timeout_s:g} s, {state}: {log_tail}"
        )

    async def kill(self, name: str) -> None:
        """See `Adapter.kill`."""
        await self._containers[name].signal("KILL")

    async def stop(self, name: str) -> None:
        """See `Adapter.stop`."""
        await self._containers[name].stop()

    async def is_running(self, name: str) -> bool:
        """See `Adapter.is_running`."""
        return await self._containers[name].is_running()

    async def pause(self, name: str) -> None:
        """See `Adapter.pause`."""
        await self._containers[name].signal("STOP")

    async def resume(self, name: str) -> None:
        """See `Adapter.resume`."""
        await self._containers[name].signal("CONT")

    # --- network --------------------------------------------------------------------------------------

    async def _container_addresses(self) -> dict[str, ContainerAddress]:
        """Return the present addresses of the running containers."""
        names = list(self._containers)
        inspections = await inspect(*(self._containers[name].id for name in names))
        addresses = {}
        for name, inspection in zip(names, inspections, strict=True):
            if not inspection["State"]["Running"]:
                continue
            (network,) = inspection["NetworkSettings"]["Networks"].values()
            self._network.gateway = network["Gateway"]
            addresses[name] = ContainerAddress(
                inspection["NetworkSettings"]["SandboxKey"], network["IPAddress"]
            )
        return addresses

    async def cut(self, links: Sequence[Link]) -> None:
        """See `Adapter.cut`."""
        self._network.cut(links)
        await self._network.apply_cuts(self._container_addresses)

    async def heal(self, links: Sequence[Link]) -> None:
        """See `Adapter.heal`."""
        self._network.heal(links)
        await self._network.apply_cuts(self._container_addresses)

    async def slow(self, links: Sequence[Link], delay_s: float, bytes_per_s: float = 0.0) -> None:
        """Raise `ChaosFailed`: not available, as the next three methods (see `refusal`)."""
        raise ChaosFailed("no slow links with containers")

    async def configure(self, name: str, settings: Mapping[str, Any]) -> None:
        """See `slow`."""
        raise ChaosFailed("no settings of one node with containers")

    async def spoil_memory(self, name: str) -> None:
        """See `slow`."""
        raise ChaosFailed("no wrong memory with containers")

    async def is_memory_spoiled(self, name: str) -> bool:
        """See `slow`."""
        raise ChaosFailed("no wrong memory with containers")

    # --- disks, clocks, limits ------------------------------------------------------------------------

    def data_directory(self, name: str) -> Path:
        """See `Adapter.data_directory`."""
        return self._containers[name].data

    def _clock_file(self, name: str) -> Path:
        return clock_file(self._needs, name)

    async def limit_files(self, name: str, count: int | None) -> None:
        """See `Adapter.limit_files`."""
        await self._containers[name].limit_files(count)

    # --- for the report -------------------------------------------------------------------------------

    def log_of(self, name: str) -> str:
        """See `Adapter.log_of`."""
        completed = subprocess.run(
            ["docker", "logs", "--tail", str(LOG_LINES), self._containers[name].id],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return completed.stdout.decode(errors="replace")


def _name_credentials(credentials: str | None) -> None:
    """Set the credentials of this process and its clients; None for no credentials."""
    if credentials is None:
        os.environ.pop(CREDENTIALS_VARIABLE, None)
    else:
        os.environ[CREDENTIALS_VARIABLE] = credentials
