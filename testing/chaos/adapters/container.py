"""The container of one node: its settings in the compose files, and the actions on it.

A run overrides the compose files with one configuration for all nodes, and with settings per service.
"""

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....cluster.declarations.config import parse_named_addresses
from ....cluster.local.cluster_plan import LOCAL_JOURNAL_FILE_BYTES
from ....runtime.interfaces.host import Address
from ..model.adapter import Capability, ChaosFailed, Needs, Node, NodeRole
from .docker_engine import ObservedProcess, call, containers_of, inspect
from .faulty_node import CLOCK
from .process_node import FREE_BYTES_MIN
from .real_cluster import OWN_DISK

DATA = "/var/lib/dlog"
INSIDE_PORT = 4181
CLOCK_DIRECTORY = "/run/chaos"
NOT_ASKED = {"test": ["CMD", "true"], "interval": "24h"}
"""A health check that never runs, because the adapter queries the nodes itself.

Compose v1.29 merges ``disable: true`` or the test ``NONE`` with the interval of compose.yaml, and rejects the
result.
"""
OUTSIDE = "outside"
STOP_S = 15
NOT_RUNNING = "is not running"


@dataclass(slots=True)
class Container:
    """A container, which exists for a whole run while its process starts and ends."""

    node: Node
    id: str
    published: Address
    """Its published port."""
    data: Path
    """On this machine."""
    first_process: ObservedProcess
    original_files_limit: int = 0
    """Its descriptor limit before the first change; 0 if it was never changed."""

    async def start(self) -> None:
        """Start the container, and return when its process exists. Raises `ChaosFailed`."""
        await call("docker", "start", self.id)
        (inspected,) = await inspect(self.id)
        self.first_process.close()
        self.first_process = ObservedProcess(inspected["State"]["Pid"])

    async def stop(self) -> None:
        """Stop it by SIGTERM, and by SIGKILL if it does not end."""
        await call("docker", "stop", "-t", str(STOP_S), self.id)

    async def signal(self, name: str) -> None:
        """Send a signal; KILL returns when the process has ended. A stopped container receives no signal."""
        try:
            await call("docker", "kill", "-s", name, self.id)
        except ChaosFailed as failed:
            if NOT_RUNNING not in str(failed):
                raise

    async def is_running(self) -> bool:
        """Return whether its process exists, including a paused one."""
        is_running_now = self.first_process.is_running()
        if is_running_now is None:
            (inspected,) = await inspect(self.id)
            is_running_now = bool(inspected["State"]["Running"])
        return is_running_now

    async def limit_files(self, count: int | None) -> None:
        """See `Adapter.limit_files`."""
        (inspected,) = await inspect(self.id)
        pid = inspected["State"]["Pid"]
        if not pid:
            return
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self.original_files_limit = self.original_files_limit or soft
        new_limit = self.original_files_limit if count is None else count
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (new_limit, hard))


async def find(project: str, names: Sequence[str]) -> dict[str, Container]:
    """Return the containers that compose created for some services of a project. Raises `ChaosFailed`."""
    inspected_by_name = await containers_of(project)
    containers = {}
    for name in names:
        inspected = inspected_by_name[name]
        settings = dict(item.split("=", 1) for item in inspected["Config"]["Env"])
        role = NodeRole.METADATA if name.startswith("metadata") else NodeRole.BOOKIE
        advertised = settings[f"DLOG_SERVE_{role.name}_ADVERTISE"].split()
        published = parse_named_addresses(advertised, "--advertise")[OUTSIDE]
        mounts = {mount["Destination"]: mount["Source"] for mount in inspected["Mounts"]}
        containers[name] = Container(
            Node(name, role, settings.get("DLOG_SERVE_BOOKIE_RACK", ""), published),
            inspected["Id"],
            published,
            Path(mounts[DATA]),
            ObservedProcess(0),
        )
    return containers


def node_config(names: Sequence[str], needs: Needs, store: Mapping[str, Any]) -> str:
    """Return the text of node.toml: the quorum of this run, and the scenario's options of the store."""
    voters = [name for name in names if name.startswith("metadata")]
    quorum = json.dumps(",".join(f"{name}={name}:{INSIDE_PORT}" for name in voters))
    options: dict[str, Any] = {"journal_file_bytes": LOCAL_JOURNAL_FILE_BYTES, **store}
    if needs.capabilities & OWN_DISK:
        options.setdefault("free_bytes_min", FREE_BYTES_MIN)
        options["journal_file_bytes"] = min(
            int(options["journal_file_bytes"]), (needs.disk_mb << 20) // 16
        )
    lines = []
    for table in ("metadata", "bookie"):
        lines += [f"[{table}]", f"data = {json.dumps(DATA)}", f"metadata = {quorum}", ""]
    lines += ["[store]", *(f"{key} = {json.dumps(value)}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def override(names: Sequence[str], needs: Needs, config: Path, disks: Mapping[str, Path]) -> str:
    """Return a compose file to merge over the others, as JSON, which is valid YAML.

    ``disks`` has the data directories on this machine.
    """
    services: dict[str, Any] = {}
    for name in names:
        volumes = [f"{config}:/etc/dlog/node.toml:ro"]
        service: dict[str, Any] = {"healthcheck": dict(NOT_ASKED), "volumes": volumes}
        if name in disks:
            volumes.append(f"{disks[name]}:{DATA}")
        if Capability.CLOCK in needs.capabilities:
            volumes.append(f"{clock_file(needs, name).parent}:{CLOCK_DIRECTORY}:ro")
            service["entrypoint"] = [
                "python",
                "-m",
                "distributedlog.testing.chaos.adapters.faulty_node",
            ]
            service["environment"] = {CLOCK: f"{CLOCK_DIRECTORY}/clock"}
        services[name] = service
    return json.dumps({"services": services}, indent=1)


def clock_file(needs: Needs, name: str) -> Path:
    """Return the file with the offset of a node's wall clock. Its directory has no other file."""
    return needs.directory / name / "clock" / "clock"
