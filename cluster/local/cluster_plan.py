"""Plan the nodes of a cluster on one machine.

The plan is stored in its directory and reused at each start.
"""

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ...runtime.interfaces.errors import AddressInUse, CorruptData, InvalidRequest
from ...runtime.interfaces.host import Address, Listener
from ...runtime.protocol.schema import fields, one_of, rows, text
from ..declarations.config import format_address, parse_address
from ..declarations.options import (
    PROXIES,
    READ_PROXY,
    WRITE_PROXY,
    BookieNodeConfig,
    MetadataNodeConfig,
    NodeConfig,
    ProxyNodeConfig,
)

FILE_NAME = "cluster.json"
NAMESPACE = "default"
PORT_LOW, PORT_HIGH = 20_000, 32_000
"""The range in which ports are selected, below the ephemeral ports.

A client that repeatedly dials a stopped node on an ephemeral port would eventually get that port as its own
local port, and connect to itself.
"""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node and its address."""

    name: str
    kind: str
    address: Address


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The nodes of a cluster, metadata nodes first."""

    nodes: tuple[PlannedNode, ...]

    @property
    def uri(self) -> str:
        """The URI of the cluster, ``distributedlog://HOST:PORT,…/default``."""
        addresses = ",".join(
            format_address(node.address) for node in self.nodes_of_kind("metadata")
        )
        return f"distributedlog://{addresses}/{NAMESPACE}"

    def nodes_of_kind(self, kind: str) -> list[PlannedNode]:
        """Return the nodes of one kind."""
        return [node for node in self.nodes if node.kind == kind]

    def config(self, node: PlannedNode) -> NodeConfig:
        """Return the configuration of a node."""
        voters = {other.name: other.address for other in self.nodes_of_kind("metadata")}
        if node.kind == "metadata":
            return MetadataNodeConfig(node.name, voters)
        if node.kind in PROXIES:
            return ProxyNodeConfig(node.name, node.kind, tuple(voters.values()), {"": node.address})
        return BookieNodeConfig(
            node.name,
            tuple(voters.values()),
            {"": node.address},
            labels={
                "host": node.name
            },  # placement treats the bookies as if they had separate machines
            store={"journal_file_bytes": LOCAL_JOURNAL_FILE_BYTES},
        )


LOCAL_JOURNAL_FILE_BYTES = 32 * 1024 * 1024
"""Small files for small clusters (32 MiB under `dlog local`)."""


def encode(plan: ClusterPlan) -> str:
    """Return a plan as the text of its file."""
    nodes = [
        {"name": node.name, "kind": node.kind, "address": format_address(node.address)}
        for node in plan.nodes
    ]
    return json.dumps({"format": 1, "uri": plan.uri, "nodes": nodes}, indent=1) + "\n"


def decode(text: str, where: str) -> ClusterPlan:
    """Return the plan in the text of its file.

    Raises:
        CorruptData: The text is not a valid plan.
    """
    try:
        nodes = _PLAN(json.loads(text))["nodes"]
        return ClusterPlan(
            tuple(
                PlannedNode(node["name"], node["kind"], parse_address(node["address"], where))
                for node in nodes
            )
        )
    except RecursionError:
        raise CorruptData(f"{where} is damaged; restore it, or use another --data") from None
    except (ValueError, InvalidRequest) as error:
        raise CorruptData(
            f"{where} is damaged ({error}); restore it, or use another --data"
        ) from None


_PLAN = fields(
    nodes=rows(fields(name=text(), kind=one_of("metadata", "bookie"), address=text()), 1000, 1)
)


async def make_plan(
    stored_plan: ClusterPlan | None,
    *,
    bookies: int,
    metadata_nodes: int,
    port: int,
    host: str,
    listen: Callable[[Address], Awaitable[Listener]],
    reserve_port: Callable[[Address], object],
    rng: random.Random,
) -> ClusterPlan:
    """Return the stored plan, extended if necessary, or a new plan on free ports.

    If there are more bookies than in the stored plan, new ones are added. `with_bookies` leaves out bookies
    if there are fewer.

    Args:
        stored_plan: The plan in the cluster's directory, if there is one.
        bookies: The number of bookies.
        metadata_nodes: The number of metadata nodes.
        port: The first of consecutive ports; 0 for any free ports.
        host: The host of all addresses.
        listen: Listens on an address, to check whether a requested port is free.
        reserve_port: Reserves a selected port until a node listens on it, so that no other process selects it
            (`distributedlog/runtime/net/port_reservation.py`).
        rng: Selects the first port if none is requested.

    Raises:
        InvalidRequest: A number is invalid, or differs from the stored plan. The number of metadata nodes
            cannot be changed, because the quorum is replicated state and not an option.
        AddressInUse: A requested port is in use, or there are too few free ports.
    """
    if metadata_nodes not in (1, 3, 5):
        raise InvalidRequest(f"{metadata_nodes} metadata nodes: a quorum has 1, 3 or 5")
    if bookies < 1:
        raise InvalidRequest(f"{bookies} bookies: there must be at least one")
    nodes = list(stored_plan.nodes) if stored_plan is not None else []
    voters = [node for node in nodes if node.kind == "metadata"]
    if voters and len(voters) != metadata_nodes:
        raise InvalidRequest(
            f"this cluster has {len(voters)} metadata nodes, not {metadata_nodes};"
            f" start it with --metadata-nodes {len(voters)}"
        )
    if port and stored_plan is not None and port not in {node.address[1] for node in nodes}:
        raise InvalidRequest(
            f"this cluster has stored ports, from {nodes[0].address[1]} on; --port {port} cannot change them"
        )
    new_names = [f"metadata{number + 1}" for number in range(metadata_nodes)] if not voters else []
    bookie_count = sum(1 for node in nodes if node.kind == "bookie")
    new_names += [f"bookie{number + 1}" for number in range(bookie_count, bookies)]
    used_ports = [node.address[1] for node in nodes]
    start = port + len(nodes) if port else 0
    ports = await _free_ports(len(new_names), start, host, used_ports, listen, reserve_port, rng)
    for name, free_port in zip(new_names, ports, strict=True):
        nodes.append(PlannedNode(name, name.rstrip("0123456789"), (host, free_port)))
    nodes.sort(key=lambda node: node.kind != "metadata")
    return ClusterPlan(tuple(nodes))


def with_bookies(plan: ClusterPlan, bookies: int) -> ClusterPlan:
    """Return the plan without the bookies that this start leaves out."""
    started_nodes = [*plan.nodes_of_kind("metadata"), *plan.nodes_of_kind("bookie")[:bookies]]
    return replace(plan, nodes=tuple(started_nodes))


def with_proxies(
    plan: ClusterPlan, write_proxies: int, read_proxies: int, host: str
) -> ClusterPlan:
    """Return the plan with proxies added.

    A proxy stores no data and is not in the stored plan. Port 0 lets the system choose a free port at each
    start.
    """
    proxies = [
        PlannedNode(f"{kind}{number + 1}", kind, (host, 0))
        for kind, count in ((WRITE_PROXY, write_proxies), (READ_PROXY, read_proxies))
        for number in range(count)
    ]
    return replace(plan, nodes=(*plan.nodes, *proxies))


async def _free_ports(
    count: int,
    first: int,
    host: str,
    used_ports: Sequence[int],
    listen: Callable[[Address], Awaitable[Listener]],
    reserve_port: Callable[[Address], object],
    rng: random.Random,
) -> list[int]:
    """Return ``count`` free ports: consecutive ones from ``first`` on, or any if ``first`` is 0."""
    ports: list[int] = []
    first_port = first or rng.randrange(PORT_LOW, PORT_HIGH - 500)
    for port in range(first_port, min(first_port + 500, 65_536)):
        if len(ports) == count:
            break
        if port in used_ports:
            continue
        try:
            if first:
                # A reservation would refuse a port that a stopped cluster had a short time ago. Only this
                # check shows whether a listener can have it.
                (await listen((host, port))).close()
            else:
                reserve_port((host, port))
        except AddressInUse:
            if first:
                raise
            continue
        ports.append(port)
    if len(ports) < count:
        raise AddressInUse(f"{host} has no {count} free ports from {first_port} on")
    return ports
