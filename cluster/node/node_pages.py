"""What a node answers over HTTP, each page about this node alone.

    /health     for who would start it again: does it answer its own protocol? 200 or 503
    /ready      for who sends it work: does it do its part? 200, or 503 and the reasons
    /metrics    its numbers, for Prometheus
    /state      the same and more as JSON, for people

All ask the node through its own protocol, as any client would, and at most once a second, whoever asks: a
door that cannot become a way to slow the node down.
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
"""An answer is given again for so long."""
METRICS_OF_KIND = {
    "bookie": (*BOOKIE, *REPAIR),
    "metadata": METADATA,
    "write-proxy": PROXY,
    "read-proxy": PROXY,
}
LEADERS = ("leader", "follower")

Value = TypeVar("Value")


class CachedPage:
    """Asks at most once in `CACHE_S`; who comes meanwhile gets the same answer."""

    def __init__(self, make_page: Callable[[], Awaitable[NodePage]]) -> None:
        self._make_page = make_page
        self._lock = trio.Lock()
        self._page: NodePage | None = None
        self._made_at = -CACHE_S

    async def page(self) -> NodePage:
        """The answer."""
        async with self._lock:
            if self._page is None or trio.current_time() - self._made_at >= CACHE_S:
                self._page = await self._make_page()
                self._made_at = trio.current_time()
            return self._page


def node_pages(host: Host, name: str, serving_at: list[Address]) -> Pages:
    """The pages of the node called ``name`` that will serve at ``place`` (empty: it has not started yet)."""

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
    """Why a node that answers should get no work now; [] when it should."""
    if kind == "metadata":
        role = info.get("role")
        return [] if role in LEADERS else [f"it is {role}, and takes no part"]
    reasons = []
    if not info.get("registered", True):
        reasons.append("the metadata has no registration of it, or its lease has ended")
    if not info.get("accepting", True):
        reasons.append("it takes no more logs: it drains")
    if info.get("read_only"):
        codes = info.get("read_only_codes")
        shown_codes = ", ".join(map(str, codes)) if isinstance(codes, list) else ""
        reasons.append(f"it takes no new entries{': ' if shown_codes else ''}{shown_codes}")
    return reasons
