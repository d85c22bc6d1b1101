"""Cut links between containers: rules in the network namespace of each one that a link touches.

A link is cut at both of its ends, by the addresses that containers have now; a container that starts has a
namespace without rules and maybe another address, so that all are laid anew then. Nothing is reset: what is
sent is dropped, as behind a broken switch.
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
"""How the words begin of a namespace that is gone: its container died meanwhile, and its rules with it."""


def refusal() -> str | None:
    """Why links cannot be cut here; None if they can."""
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
    """The file that names its network namespace; no process id, which somebody else may have by now."""
    address: str


def rules(name: str, cut: Sequence[Link], addresses: Mapping[str, str]) -> str:
    """The filter table of ``name``, for `iptables-restore`; ``addresses`` by node, and of `CLIENTS`."""
    lines = ["*filter", ":INPUT ACCEPT", ":FORWARD ACCEPT", ":OUTPUT ACCEPT"]
    for source, target in cut:
        if source == name and target in addresses:
            lines.append(f"-A OUTPUT -d {addresses[target]}/32 -j DROP")
        if target == name and source in addresses:
            lines.append(f"-A INPUT -s {addresses[source]}/32 -j DROP")
    return "\n".join([*lines, "COMMIT", ""])


async def load_table(namespace: str, table: str) -> None:
    """Make ``table`` the filter table of a network namespace. Raises `ChaosFailed`."""
    await call("nsenter", f"--net={namespace}", "iptables-restore", stdin=table.encode())


@dataclass(slots=True)
class Network:
    """The links that are cut, and the namespaces that say so."""

    gateway: str = ""
    """Where programs of this machine come from, as a container sees them."""
    load_table: Callable[[str, str], Awaitable[None]] = load_table
    """Makes a table that of a namespace."""
    _cut: Counter[Link] = field(default_factory=Counter)
    _ruled_names: dict[str, None] = field(default_factory=dict)
    """Names whose namespaces hold rules."""
    _lock: trio.Lock = field(default_factory=trio.Lock)

    def cut(self, links: Sequence[Link]) -> None:
        """Calls add up."""
        self._cut.update(links)

    def heal(self, links: Sequence[Link]) -> None:
        """One call to `cut` less of each."""
        self._cut.subtract(links)
        self._cut = +self._cut

    @property
    def is_clean(self) -> bool:
        """Is nothing cut, and no rule left?"""
        return not self._cut and not self._ruled_names

    async def apply_cuts(
        self, find_addresses: Callable[[], Awaitable[Mapping[str, ContainerAddress]]]
    ) -> None:
        """Make the namespaces of the running containers say what is cut. Raises `ChaosFailed`."""
        async with self._lock:  # the last one to lay has seen the latest
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
