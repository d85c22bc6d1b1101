"""One node's container: what the compose files made of it, and what is done to it alone."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cluster.config import parse_named_addresses
from ..runtime.host import Address
from .adapter import ChaosFailed, Node, Role
from .container_files import DATA
from .engine import Watched, call, containers_of, inspect

OUTSIDE = "outside"
STOP_S = 15
NOT_RUNNING = "is not running"


@dataclass(slots=True)
class Container:
    """Created once a run; its process comes and goes."""

    node: Node
    id: str
    outside: Address
    """Its published port."""
    data: Path
    """On this machine."""
    process: Watched
    files: int = 0
    """Its limit of descriptors before somebody changed it; 0: nobody has."""

    async def start(self) -> None:
        """Returns when its process is there. Raises `ChaosFailed`."""
        await call("docker", "start", self.id)
        (found,) = await inspect(self.id)
        self.process.close()
        self.process = Watched(found["State"]["Pid"])

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to one that does not end."""
        await call("docker", "stop", "-t", str(STOP_S), self.id)

    async def signal(self, name: str) -> None:
        """KILL returns when it is gone; a container that does not run gets none."""
        try:
            await call("docker", "kill", "-s", name, self.id)
        except ChaosFailed as failed:
            if NOT_RUNNING not in str(failed):
                raise

    async def running(self) -> bool:
        """Also while it is stopped by a signal."""
        runs = self.process.runs()
        if runs is None:
            (found,) = await inspect(self.id)
            runs = bool(found["State"]["Running"])
        return runs

    async def limit_files(self, count: int | None) -> None:
        """See `Adapter.limit_files`."""
        (found,) = await inspect(self.id)
        pid = found["State"]["Pid"]
        if not pid:
            return
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self.files = self.files or soft
        wanted = self.files if count is None else count
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (wanted, hard))


async def find(project: str, names: Sequence[str]) -> dict[str, Container]:
    """What a project's files made of these services. Raises `ChaosFailed`."""
    made = await containers_of(project)
    found = {}
    for name in names:
        one = made[name]
        settings = dict(item.split("=", 1) for item in one["Config"]["Env"])
        role = Role.METADATA if name.startswith("metadata") else Role.BOOKIE
        told = settings[f"DLOG_SERVE_{role.name}_ADVERTISE"].split()
        outside = parse_named_addresses(told, "--advertise")[OUTSIDE]
        mounts = {mount["Destination"]: mount["Source"] for mount in one["Mounts"]}
        found[name] = Container(
            Node(name, role, settings.get("DLOG_SERVE_BOOKIE_RACK", ""), outside),
            one["Id"],
            outside,
            Path(mounts[DATA]),
            Watched(0),
        )
    return found
