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
    enter: Callable[[str, str], Awaitable[None]] = load_table
    """Makes a table that of a namespace."""
    _cut: Counter[Link] = field(default_factory=Counter)
    _touched: dict[str, None] = field(default_factory=dict)
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
    def whole(self) -> bool:
        """Is nothing cut, and no rule left?"""
        return not self._cut and not self._touched

    async def lay(self, look: Callable[[], Awaitable[Mapping[str, ContainerAddress]]]) -> None:
        """Make the namespaces of the running containers say what is cut. Raises `ChaosFailed`."""
        async with self._lock:  # the last one to lay has seen the latest
            places = await look()
            cut = sorted(self._cut)
            addresses = {name: place.address for name, place in places.items()}
            addresses[CLIENTS] = self.gateway
            named = dict.fromkeys(name for link in cut for name in link)
            for name in dict.fromkeys([*named, *self._touched]):
                if name in places:
                    await self._lay(places[name], rules(name, cut, addresses))
            self._touched = named

    async def _lay(self, place: ContainerAddress, table: str) -> None:
        try:
            await self.enter(place.namespace, table)
        except ChaosFailed as failed:
            if NOT_ENTERED not in str(failed):
                raise
