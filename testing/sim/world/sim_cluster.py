"""A whole cluster on simulated machines: the nodes of ``cluster/nodes.py``, and clients of the public API.

A supervisor restarts nodes that ended, as `dlog local --restart` does. Addresses can change between two
starts: bookies can swap theirs (H6), because a bookie ID belongs to its disk and an address does not.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import trio

from .... import open_namespace
from ....cluster.declarations.options import (
    READ_PROXY,
    WRITE_PROXY,
    BookieNodeConfig,
    MetadataNodeConfig,
    NodeConfig,
    ProxyNodeConfig,
)
from ....cluster.nodes import serve_node
from ....log.namespace import Namespace
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.host import Address, Host
from ....runtime.interfaces.principals import CertificateIdentity, Credentials
from .disk import DiskFaults, DiskWatcher, SimDisk
from .network import NetworkFaults, SimNetwork, Tap
from .oracle_taps import Oracles
from .scheduler import Simulation
from .sim_host import SimHost

PORT = 4181
ROLES = {
    "m": "metadata", "b": "bookie", "c": "client", "w": WRITE_PROXY, "r": READ_PROXY, "x": "client",
}  # fmt: skip
"""The role of a machine, by the first letter of its name."""
METADATA_TIMEOUT_S = 10.0
PATH = "sim"
"""The path of the namespace."""
RESTART_S = (0.05, 1.0)
"""Range of the delay after which a node that ended is restarted."""


class SimObserver(Tap, DiskWatcher, Protocol):
    """Observes connections and disks."""


ClientMain = Callable[[Namespace, Host], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of nodes and clients, and their configuration."""

    metadata_nodes: int = 3
    bookies: int = 4
    clients: int = 4
    write_proxies: int = 0
    read_proxies: int = 0
    quorums: tuple[int, int, int] = (3, 3, 2)
    """Ensemble, write quorum, ack quorum of every log."""
    store: Mapping[str, Any] = field(default_factory=dict)
    """Options of bookie/declarations/options.py."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open_namespace`."""
    proxy: Mapping[str, Any] = field(default_factory=dict)
    """Options of distributedlog/proxy/declarations/options.py."""
    lease_s: float = 3.0
    lost_after_s: float = 20.0
    audit_every_s: float = 5.0
    purge_grace_s: float = 3.0
    racks: tuple[str, ...] = ()
    """Racks, assigned to the bookies in rotation. If empty, bookies have no rack."""
    enforced: bool = False
    """Whether new ledgers must span racks: creating one in a single rack then fails."""
    disk_bytes: int = 1 << 28
    mixed: bool = False
    """Whether each process of a node or client randomly has this version or the older one.

    The first process of each metadata node has the older one, so the upgrade must be finalized.
    """
    others: int = 0
    """The number of additional client machines without a part in the workload."""
    certificates: Mapping[str, str] = field(default_factory=dict)
    """The principal in the certificate of each client machine, for example ``c1`` to ``user/app``. If there
    are any, all nodes have certificates, too, and reject peers without one."""


class SimCluster:
    """The machines of one run by name: ``m1``, ``b1``, ``c1``, proxies ``w1`` and ``r1``, others ``x1``."""

    def __init__(
        self,
        simulation: Simulation,
        shape: Shape,
        *,
        network: NetworkFaults | None = None,
        disks: Callable[[], DiskFaults] = DiskFaults,
    ) -> None:
        self.simulation = simulation
        self.shape = shape
        self.network = SimNetwork(simulation, network)
        self.oracles = Oracles(simulation, ack_quorum=shape.quorums[2])
        self.network.taps.append(self.oracles)
        self.machines: dict[str, SimHost] = {}
        self.ready: dict[str, bool] = {}
        self._all_ready = trio.Event()
        self._started = trio.Event()
        """Set and replaced when a node has started."""
        self.restarts = 0
        self.is_supervised = True
        self._rng = simulation.random_stream("supervisor")
        self._main_by_machine: dict[str, Callable[[Host], Awaitable[None]]] = {}
        self._address_by_machine: dict[str, Address] = {}
        self.metadata = [f"m{n + 1}" for n in range(shape.metadata_nodes)]
        self.bookies = [f"b{n + 1}" for n in range(shape.bookies)]
        self.clients = [f"c{n + 1}" for n in range(shape.clients)]
        self.write_proxies = [f"w{n + 1}" for n in range(shape.write_proxies)]
        self.read_proxies = [f"r{n + 1}" for n in range(shape.read_proxies)]
        self.others = [f"x{n + 1}" for n in range(shape.others)]
        kinds = (
            self.metadata,
            self.bookies,
            self.clients,
            self.write_proxies,
            self.read_proxies,
            self.others,
        )
        for network_number, names in enumerate(kinds, 1):
            for number, name in enumerate(names, 1):
                ip = f"10.0.{network_number}.{number}"
                self.machines[name] = SimHost(simulation, self.network, name, ip)
                self.machines[name].draws_version = shape.mixed
                # Such a cluster is not finalized for this version at its start.
                self.machines[name].first_is_older = names is self.metadata
                self._address_by_machine[name] = (ip, PORT)
        if shape.certificates:
            nodes = {name: f"metadata/{name}" for name in self.metadata}
            nodes |= {name: f"bookie/{name}" for name in self.bookies}
            nodes |= {name: f"proxy/{name}" for name in self.proxies}
            for name, principal in {**nodes, **shape.certificates}.items():
                self.network.identities[name] = identity_of(principal)
        for name in self.metadata:
            self._add_node(
                name, ("metadata",), "metadata", partial(self._serve_metadata, name), disks
            )
        for name in self.bookies:
            roles = ("journal", "index")
            self._add_node(name, roles, "bookie", partial(self._serve_bookie, name), disks)
        for name in self.proxies:
            self._main_by_machine[name] = partial(self._serve_proxy, name)

    def _add_node(
        self,
        name: str,
        roles: tuple[str, ...],
        kind: str,
        main: Callable[[Host], Awaitable[None]],
        disks: Callable[[], DiskFaults],
    ) -> None:
        host = self.machines[name]
        for role in roles:
            faults = disks()
            faults.bytes_max = self.shape.disk_bytes
            host.add_disk(role, SimDisk(self.simulation, host.state, role, faults))
        self._main_by_machine[name] = main
        self.oracles.add_machine(host, kind)

    def address_of(self, name: str) -> Address:
        """Return the address on which a node listens, or listened last."""
        return self._address_by_machine[name]

    def role_of(self, name: str) -> str:
        """Return ``metadata``, ``bookie``, ``client``, ``write-proxy`` or ``read-proxy``."""
        return ROLES[name[0]]

    def is_ready(self, name: str) -> bool:
        """Return whether the present process of this node serves."""
        return self.ready.get(name, False)

    def watch(self, watcher: SimObserver) -> None:
        """Let an observer see all bytes on the network and all changes on the nodes' disks."""
        self.network.taps.append(watcher)
        for name in self.storage:
            for disk in self.machines[name].devices():
                disk.watchers.append(watcher)

    @property
    def uri(self) -> str:
        """The URI for direct clients."""
        return f"distributedlog://{self._address_list(self.metadata)}/{PATH}"

    @property
    def proxied_uri(self) -> str:
        """The URI for clients that use proxies."""
        return f"distributedlog+proxy://{self._address_list(self.proxies)}/{PATH}"

    def _address_list(self, names: list[str]) -> str:
        return ",".join(
            f"{self._address_by_machine[name][0]}:{self._address_by_machine[name][1]}"
            for name in names
        )

    @property
    def nodes(self) -> list[str]:
        """All machines except clients."""
        return self.storage + self.proxies

    @property
    def storage(self) -> list[str]:
        """The nodes with disks."""
        return self.metadata + self.bookies

    @property
    def proxies(self) -> list[str]:
        """The proxies of both kinds."""
        return self.write_proxies + self.read_proxies

    # --- nodes ------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a node that is not running."""
        self.ready[name] = False
        self.machines[name].start(self._main_by_machine[name])

    def start_all(self) -> None:
        """Start every node that is not running."""
        for name in self.nodes:
            if not self.machines[name].state.running:
                self.start(name)

    async def supervise(self) -> None:
        """Restart nodes that ended without a kill or power cut, until cancelled."""
        while True:
            await trio.sleep(self._rng.uniform(*RESTART_S))
            for name in self.nodes:
                host = self.machines[name]
                if (
                    self.is_supervised
                    and not host.state.running
                    and host.ended_by is not None
                    and host.state.powered
                ):
                    self.restarts += 1
                    self.start(name)

    async def wait_all_ready(self) -> None:
        """Wait until every node has started once."""
        await self._all_ready.wait()

    def swap_addresses(self, first: str, second: str) -> None:
        """Swap the addresses of two bookies, both of which are down, for their next start (H6)."""
        self._address_by_machine[first], self._address_by_machine[second] = (
            self._address_by_machine[second],
            self._address_by_machine[first],
        )
        for name in (first, second):
            assert not self.machines[name].state.running, f"{name} still runs"
            self.network.machines[self._address_by_machine[name][0]] = self.machines[name].state
        self.simulation.record_event("swap addresses", first, second)

    async def _serve_metadata(self, name: str, host: Host) -> None:
        voters = {node: self._address_by_machine[node] for node in self.metadata}
        await self._serve(name, host, MetadataNodeConfig(name, voters))

    async def _serve_bookie(self, name: str, host: Host) -> None:
        config = BookieNodeConfig(
            name,
            tuple(self._address_by_machine[node] for node in self.metadata),
            {"": self._address_by_machine[name]},
            lease_s=self.shape.lease_s,
            lost_after_s=self.shape.lost_after_s,
            audit_every_s=self.shape.audit_every_s,
            purge_grace_s=self.shape.purge_grace_s,
            rack=self._rack_of(name),
            store=self.shape.store,
        )
        await self._serve(name, host, config)

    async def _serve_proxy(self, name: str, host: Host) -> None:
        options = {**self.client_config(name), **self.shape.proxy}
        del options["owner"]
        timeout_s = options.pop("metadata_timeout_s", METADATA_TIMEOUT_S)
        config = ProxyNodeConfig(
            name,
            self.role_of(name),
            tuple(self._address_by_machine[node] for node in self.metadata),
            {"": self._address_by_machine[name]},
            metadata_timeout_s=timeout_s,
            options=options,
        )
        await self._serve(name, host, config)

    def _rack_of(self, name: str) -> str:
        racks = self.shape.racks
        return racks[self.bookies.index(name) % len(racks)] if racks else ""

    async def _serve(self, name: str, host: Host, config: NodeConfig) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_node, host, config)
            self.ready[name] = True
            self._started.set()
            self._started = trio.Event()
            if all(self.ready.get(name) for name in self.nodes):
                self._all_ready.set()
            self.simulation.record_event("serves", name)

    # --- clients ----------------------------------------------------------------------------------

    def client_config(self, name: str) -> dict[str, Any]:
        """Return the options of `open_namespace` on a machine."""
        ensemble_size, write_quorum, ack_quorum = self.shape.quorums
        return {
            "owner": name,
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            **self.shape.client,
        }

    def start_client(
        self,
        name: str,
        main: ClientMain,
        *,
        proxied: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        """Run ``main`` with a namespace on a client machine. Opening the namespace is retried until it
        succeeds.

        Args:
            proxied: Use the proxies instead of a direct URI.
            credentials: The client's credentials, if they differ from the machine's certificate.
        """
        uri = self.proxied_uri if proxied else self.uri

        async def run(host: Host) -> None:
            if credentials is not None:
                host = replace(host, credentials=lambda address: credentials)
            while True:
                try:
                    async with open_namespace(
                        uri, config=self.client_config(name), host=host
                    ) as namespace:
                        await main(namespace, host)
                        return
                except DistributedLogError as error:
                    self.simulation.record_event("client", name, type(error).__name__)
                    await trio.sleep(0.5)

        self._main_by_machine[name] = run
        self.machines[name].start(run)

    def start_bare_machine(self, name: str, main: Callable[[Host], Awaitable[None]]) -> None:
        """Run ``main`` on a client machine without a namespace."""
        self._main_by_machine[name] = main
        self.machines[name].start(main)

    def restart_client(self, name: str) -> None:
        """Start a client process again, from the beginning of its ``main``."""
        self.machines[name].start(self._main_by_machine[name])

    # --- end of faults ----------------------------------------------------------------------------

    async def upgrade(self) -> None:
        """Restart each node that has the older version, one after the other. Afterwards no process has it."""
        for host in self.machines.values():
            host.draws_version = False
        for name in self.nodes:
            host = self.machines[name]
            if host.state.running and host.runs_older:
                host.kill()
                self.start(name)
            while not self.ready[name]:
                await self._started.wait()

    def heal(self) -> None:
        """End all faults and start all nodes. After this, every operation must succeed again."""
        self.network.heal()
        self.network.refusing_machines.clear()
        network_faults = self.network.faults
        network_faults.slow_chance = 0.0
        for name in self.nodes:
            self.machines[name].state.crash_after(0, power=False)
            for disk in self.machines[name].devices():
                disk.faults.failing_syncs = 0
                disk.faults.slow_chance = 0.0
                disk.faults.bytes_max = self.shape.disk_bytes
                disk.stalled_until = 0.0
        self.start_all()


def identity_of(principal: str) -> CertificateIdentity:
    """Return the certificate identity of a principal, in the only trust domain of the run."""
    kind, _, name = principal.partition("/")
    return CertificateIdentity("sim", kind, name, serial="1", ends_s=1 << 40)
