"""Where the clients of a run find the cluster: its nodes, proxies before these, gateways."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..cluster.config import format_address
from ..cluster.plan import NAMESPACE
from .adapter import Node, Role

PROXIES = (Role.WRITE_PROXY, Role.READ_PROXY)


@dataclass(frozen=True, slots=True)
class Places:
    """A cluster, as clients name it."""

    nodes: str
    """``distributedlog://…``"""
    proxies: str = ""
    """``distributedlog+proxy://…``; empty where there are none."""
    gateways: tuple[str, ...] = ()
    """``http://…``"""


def places_of(uri: str, nodes: Sequence[Node]) -> Places:
    """Of a cluster whose metadata nodes are at ``uri``."""
    proxies = ",".join(format_address(node.address) for node in nodes if node.role in PROXIES)
    return Places(
        uri,
        f"distributedlog+proxy://{proxies}/{NAMESPACE}" if proxies else "",
        tuple(f"http://{format_address(n.address)}" for n in nodes if n.role is Role.GATEWAY),
    )
