"""The HTTP pages of a node. Each page describes this node only.

- ``/health``: 200 if the node answers its own protocol, otherwise 503. Supervisors restart a node by it.
- ``/ready``: 200 if the node takes part, otherwise 503 and the reasons. Load balancers use it.
- ``/metrics``: its metrics, for Prometheus.
- ``/state``: the same and more as JSON, for people.

All pages query the node through its own protocol, as a client does, and at most once per second in total. So
requests to the pages cannot slow down the node.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from ...bookie.declarations.metrics import METRICS as BOOKIE
from ...metadata.declarations.metrics import METRICS as METADATA
from ...proxy.declarations.metrics import METRICS as PROXY
from ...runtime.declarations.meters import samples
from ...runtime.declarations.metrics_text import TEXT_CONTENT_TYPE, metrics_text
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Address, Host
from ...runtime.protocol.handshake import Hello
from ..process.http_server import NodePage, Pages, as_page
from ..repair.repair_metrics import METRICS as REPAIR
from ..status.node_health import address_to_dial, health_at, query_info

CACHE_S = 1.0
"""How long a page is cached."""
METRICS_OF_KIND = {
    "bookie": (*BOOKIE, *REPAIR),
    "metadata": METADATA,
    "write-proxy": PROXY,
    "read-proxy": PROXY,
}
LEADERS = ("leader", "follower")

Value = TypeVar("Value")


class CachedPage:
    """Creates a page at most once in `CACHE_S`. Requests in between get the cached page."""

    def __init__(self, make_page: Callable[[], Awaitable[NodePage]]) -> None:
        self._make_page = make_page
        self._lock = trio.Lock()
        self._page: NodePage | None = None
        self._made_at = -CACHE_S

    async def page(self) -> NodePage:
        """Return the page, at most `CACHE_S` old."""
        async with self._lock:
            if self._page is None or trio.current_time() - self._made_at >= CACHE_S:
                self._page = await self._make_page()
                self._made_at = trio.current_time()
            return self._page


def node_pages(host: Host, name: str, serving_at: list[Address]) -> Pages:
    """Return the pages of a node, by path.

    Args:
        host: The machine.
        name: The name of the node.
        serving_at: The addresses of the node; empty until it has started.
    """

    async def asked() -> tuple[Hello, dict[str, Any]]:
        return await query_info(host, address_to_dial(serving_at[0]))

    async def health() -> NodePage:
        node_health = await health_at(host, serving_at)
        return as_page(200 if node_health.healthy else 503, node_health.as_json())

    async def ready() -> NodePage:
        reasons = ["it is starting"] if not serving_at else []
        if serving_at:
            try:
                peer, info = await asked()
                reasons = not_ready_reasons(peer.kind, info)
            except DistributedLogError as error:
                reasons = [f"{type(error).__name__}: {error}"]
        return as_page(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})

    async def metrics() -> NodePage:
        if not serving_at:
            return NodePage(
                200, metrics_text([], {"name": name, "kind": "starting"}), TEXT_CONTENT_TYPE
            )
        try:
            peer, info = await asked()
        except DistributedLogError as error:
            return as_page(503, {"error": f"{type(error).__name__}: {error}"})
        node = {"name": name, "kind": peer.kind, "node_id": peer.node_id}
        return NodePage(
            200,
            metrics_text(samples(METRICS_OF_KIND.get(peer.kind, ()), info), node),
            TEXT_CONTENT_TYPE,
        )

    async def state() -> NodePage:
        if not serving_at:
            return as_page(503, {"state": "starting"})
        try:
            peer, info = await asked()
        except DistributedLogError as error:
            return as_page(503, {"error": f"{type(error).__name__}: {error}"})
        shown = {key: value for key, value in info.items() if not isinstance(value, bytes)}
        return as_page(200, {"name": name, "kind": peer.kind, "node_id": peer.node_id, **shown})

    page_functions = {"/health": health, "/ready": ready, "/metrics": metrics, "/state": state}
    return {path: CachedPage(make_page).page for path, make_page in page_functions.items()}


def not_ready_reasons(kind: str, info: dict[str, Any]) -> list[str]:
    """Return the reasons why a node that answers should get no work now; empty if it should."""
    if kind == "metadata":
        role = info.get("role")
        return [] if role in LEADERS else [f"it is {role}, and does not take part"]
    reasons = []
    if not info.get("registered", True):
        reasons.append("it is not registered in the metadata store, or its lease has expired")
    if not info.get("accepting", True):
        reasons.append("it is draining, and accepts no more logs")
    if info.get("read_only"):
        codes = info.get("read_only_codes")
        shown_codes = ", ".join(map(str, codes)) if isinstance(codes, list) else ""
        reasons.append(f"it accepts no new entries{': ' if shown_codes else ''}{shown_codes}")
    return reasons
