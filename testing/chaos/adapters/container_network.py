"""Cut links between containers by rules in the network namespaces of both ends.

The rules use the present addresses of the containers. A container that starts has a namespace without rules,
and maybe another address, so all rules are then applied again. Packets are dropped without a reset, as by a
broken switch.
"""

import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from ..model.adapter import CLIENTS, ChaosFailed, Link
from .docker_engine import call

TOOLS = ("nsenter", "iptables-restore")
NOT_ENTERED = "nsenter: "
"""The start of the error for the namespace of a container that has ended, and has no rules any more."""


def refusal() -> str | None:
    """Return why links cannot be cut on this machine; None if they can."""
    if os.geteuid() != 0:
        return "needs root, to enter the containers' network namespaces"
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"needs {tool} on the PATH"
    return None


@dataclass(frozen=True, slots=True)
class ContainerAddress:
    """A running container on the network."""

    namespace: str
    """The file of its network namespace. A process ID is not used, because it may be reused."""
    address: str


def rules(name: str, cut: Sequence[Link], addresses: Mapping[str, str]) -> str:
    """Return the filter table of a node for `iptables-restore`; ``addresses`` has nodes and `CLIENTS`."""
    lines = ["*filter", ":INPUT ACCEPT", ":FORWARD ACCEPT", ":OUTPUT ACCEPT"]
    for source, target in cut:
        if source == name and target in addresses:
            lines.append(f"-A OUTPUT -d {addresses[target]}/32 -j DROP")
        if target == name and source in addresses:
            lines.append(f"-A INPUT -s {addresses[source]}/32 -j DROP")
    return "\n".join([*lines, "COMMIT", ""])


async def load_table(namespace: str, table: str) -> None:
    """Replace the filter table of a network namespace. Raises `ChaosFailed`."""
    await call("nsenter", f"--net={namespace}", "iptables-restore", stdin=table.encode())


@dataclass(slots=True)
class Network:
    """The cut links, and the namespaces with rules for them."""

    gateway: str = ""
    """The address of this machine's programs in the network of the containers."""
    load_table: Callable[[str, str], Awaitable[None]] = load_table
    """Replaces the table of a namespace."""
    _cut: Counter[Link] = field(default_factory=Counter)
    _ruled_names: dict[str, None] = field(default_factory=dict)
    """The nodes whose namespaces have rules."""
    _lock: trio.Lock = field(default_factory=trio.Lock)

    def cut(self, links: Sequence[Link]) -> None:
        """Cut links. Each call adds one cut per link."""
        self._cut.update(links)

    def heal(self, links: Sequence[Link]) -> None:
        """Remove one cut per link."""
        self._cut.subtract(links)
        self._cut = +self._cut

    @property
    def is_clean(self) -> bool:
        """Whether no link is cut and no rule is left."""
        return not self._cut and not self._ruled_names

    async def apply_cuts(
        self, find_addresses: Callable[[], Awaitable[Mapping[str, ContainerAddress]]]
    ) -> None:
        """Apply the present cuts to the namespaces of the running containers. Raises `ChaosFailed`."""
        async with self._lock:  # so that the last caller applies the newest cuts
            containers = await find_addresses()
            cut_links = sorted(self._cut)
            addresses = {
                name: container_address.address for name, container_address in containers.items()
            }
            addresses[CLIENTS] = self.gateway
            cut_names = dict.fromkeys(name for link in cut_links for name in link)
            for name in dict.fromkeys([*cut_names, *self._ruled_names]):
                if name in containers:
                    await self._load_table(containers[name], rules(name, cut_links, addresses))
            self._ruled_names = cut_names

    async def _load_table(self, container_address: ContainerAddress, table: str) -> None:
        try:
            await self.load_table(container_address.namespace, table)
        except ChaosFailed as failed:
            if NOT_ENTERED not in str(failed):
                raise
