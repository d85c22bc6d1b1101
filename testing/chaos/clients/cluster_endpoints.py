"""The addresses of the cluster for clients, and the metrics pages of nodes and clients for Prometheus."""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ....cluster.declarations.config import format_address
from ....cluster.local.cluster_plan import NAMESPACE, PORT_HIGH, PORT_LOW
from ....runtime.disk.output_file import write_file
from ....runtime.interfaces.errors import AddressInUse
from ....runtime.interfaces.host import Address
from ....runtime.machine import real_host
from ..model.adapter import Node, NodeRole

HOST = "127.0.0.1"
TARGETS = "targets.json"
PROXIES = (NodeRole.WRITE_PROXY, NodeRole.READ_PROXY)


@dataclass(frozen=True, slots=True)
class ClusterEndpoints:
    """The URIs of a cluster for clients."""

    nodes: str
    """``distributedlog://…``"""
    proxies: str = ""
    """``distributedlog+proxy://…``; empty if there are no proxies."""
    gateways: tuple[str, ...] = ()
    """``http://…``"""


def endpoints_of(uri: str, nodes: Sequence[Node]) -> ClusterEndpoints:
    """Return the endpoints of a cluster whose metadata nodes are at ``uri``."""
    proxies = ",".join(format_address(node.address) for node in nodes if node.role in PROXIES)
    return ClusterEndpoints(
        uri,
        f"distributedlog+proxy://{proxies}/{NAMESPACE}" if proxies else "",
        tuple(
            f"http://{format_address(gateway.address)}"
            for gateway in nodes
            if gateway.role is NodeRole.GATEWAY
        ),
    )


async def free_addresses(count: int, taken: Collection[Address] = ()) -> list[Address]:
    """Return addresses that were just free, below the ephemeral ports, and not in ``taken``."""
    host, addresses = real_host("chaos"), list[Address]()
    while len(addresses) < count:
        address = (HOST, host.random.randrange(PORT_LOW, PORT_HIGH))
        if address in taken or address in addresses:
            continue
        with suppress(AddressInUse):
            (await host.listen(address)).close()
            addresses.append(address)
    return addresses


def write_targets(path: Path, pages: Iterable[tuple[str, str, Address]]) -> None:
    """Write name, kind and address of each page for Prometheus (``file_sd_configs``), atomically."""
    targets = [
        {"targets": [format_address(address)], "labels": {"instance": name, "kind": kind}}
        for name, kind, address in pages
    ]
    write_file(path, json.dumps(targets, indent=1) + "\n")
