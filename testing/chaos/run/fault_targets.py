"""Select the targets of faults, so that no limit of the scenario is exceeded.

A lock per node prevents two faults on the same node. The number of impaired nodes is limited
(bounds.bookies_down_max, bounds.metadata_down_max). Proxies and gateways store nothing, and have no limit.
Damage to synced data affects only one bookie and one metadata node per run, because the guarantees require
one intact copy.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import trio

from ..clients.client_processes import Clients
from ..model.adapter import STORING, Node, NodeRole
from ..model.scenario import KINDS, MANY_NODES, AcceptanceLimits, Fault

BUSY_S = 0.25
"""Pause before the next attempt if no node can be a target now."""


class NoTargetLeft(Exception):
    """The run ended before a node could be the target of the fault within the limits."""


class Targets:
    """Nodes and clients of a run, and which of them can be targets of a fault now."""

    def __init__(
        self,
        nodes: Sequence[Node],
        clients: Clients,
        bounds: AcceptanceLimits,
        seed: int,
        leader: Callable[[], Awaitable[str | None]],
    ) -> None:
        self.is_over = trio.Event()
        """Set when no more faults start; present faults continue to their end."""
        self.refusing_nodes: dict[str, str] = {}
        """Nodes that refuse to start with their damaged data, and their messages."""
        self.locks = {node.name: trio.Lock() for node in nodes}
        self._nodes = nodes
        self._clients = clients
        self._bounds = bounds
        self._leader = leader
        client_names = [*clients.working_names(), *clients.working_names(is_waiting=True)]
        self._client_locks = {name: trio.Lock() for name in client_names}
        self._impaired: dict[str, None] = {}
        rng = Random(f"{seed}/rotten")
        self.damageable = {role: rng.choice(self.nodes_of_role(role)).name for role in STORING}

    async def wait_over(self, seconds: float) -> bool:
        """Wait, and return whether no more faults must start."""
        with trio.move_on_after(seconds):
            await self.is_over.wait()
        return self.is_over.is_set()

    def nodes_of_role(self, role: NodeRole) -> list[Node]:
        """Return the nodes of a role."""
        return [node for node in self._nodes if node.role is role]

    @asynccontextmanager
    async def acquire_nodes(self, fault: Fault, rng: Random) -> AsyncIterator[list[str]]:
        """Select the targets of a fault, and lock them against other faults while it lasts."""
        async with AsyncExitStack() as stack:
            if fault.target in MANY_NODES:
                names = [
                    node.name
                    for node in self._nodes
                    if fault.target == "all"
                    or node.role
                    is (NodeRole.METADATA if fault.target == "quorum" else NodeRole.BOOKIE)
                ]
                for name in names:  # always in the same order, to prevent a deadlock
                    await stack.enter_async_context(self.locks[name])
                names = [name for name in names if name not in self.refusing_nodes]
            else:
                while True:
                    candidates = await self._candidates(fault)
                    if candidates:
                        break
                    if await self.wait_over(BUSY_S):
                        raise NoTargetLeft
                names = [rng.choice(candidates)]
                self.locks[names[0]].acquire_nowait()
                stack.callback(self.locks[names[0]].release)
            for name in names:
                self._impaired[name] = None
                stack.callback(self._impaired.pop, name, None)
            yield names

    @asynccontextmanager
    async def acquire_client(self, fault: Fault, rng: Random) -> AsyncIterator[list[str]]:
        """Select one client of the fault's kind, and lock it while the fault lasts."""
        while True:
            names = [
                name
                for name in self._clients.working_names(
                    fault.target, is_waiting=fault.kind == "run-client"
                )
                if not self._client_locks[name].locked()
            ]
            if names:
                break
            if await self.wait_over(BUSY_S):
                raise NoTargetLeft
        name = rng.choice(names)
        async with self._client_locks[name]:
            yield [name]

    async def _candidates(self, fault: Fault) -> list[str]:
        leader = await self._leader() if fault.target in ("leader", "follower") else None
        if fault.target in ("leader", "follower") and leader is None:
            return []
        candidates = []
        for node in self._nodes:
            if not self._is_targeted(fault, node, leader) or node.name in self.refusing_nodes:
                continue
            if self.locks[node.name].locked() or self._has_max_impaired(node.role):
                continue
            candidates.append(node.name)
        return candidates

    def _is_targeted(self, fault: Fault, node: Node, leader: str | None) -> bool:
        if KINDS[fault.kind].destroys_data:
            return node.role.value == fault.target and node.name == self.damageable[node.role]
        match fault.target:
            case "node":
                return True
            case "bookie" | "metadata" | "write-proxy" | "read-proxy" | "gateway":
                return node.role.value == fault.target
            case "leader":
                return node.name == leader
            case "follower":
                return node.role is NodeRole.METADATA and node.name != leader
        return node.name == fault.target

    def _has_max_impaired(self, role: NodeRole) -> bool:
        """Whether the limit of impaired nodes of this role is reached."""
        if role not in STORING:
            return False
        bounds = self._bounds
        impaired_max = (
            bounds.bookies_down_max if role is NodeRole.BOOKIE else bounds.metadata_down_max
        )
        names = {node.name for node in self.nodes_of_role(role)}
        return len(names & {*self._impaired, *self.refusing_nodes}) >= impaired_max
