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
from ...runtime.declarations.metrics_text import KIND, text_of
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Address, Host
from ...runtime.protocol.handshake import Hello
from ..process.http_server import NodePage, Pages, as_page
from ..repair.repair_metrics import METRICS as REPAIR
from ..status.node_health import ask_info, dialled, health_of

FRESH_S = 1.0
"""An answer is given again for so long."""
TABLES = {
    "bookie": (*BOOKIE, *REPAIR),
    "metadata": METADATA,
    "write-proxy": PROXY,
    "read-proxy": PROXY,
}
LEADERS = ("leader", "follower")

Value = TypeVar("Value")


class Once:
    """Asks at most once in `FRESH_S`; who comes meanwhile gets the same answer."""

    def __init__(self, ask: Callable[[], Awaitable[NodePage]]) -> None:
        self._ask = ask
        self._turn = trio.Lock()
        self._page: NodePage | None = None
        self._at = -FRESH_S

    async def page(self) -> NodePage:
        """The answer."""
        async with self._turn:
            if self._page is None or trio.current_time() - self._at >= FRESH_S:
                self._page = await self._ask()
                self._at = trio.current_time()
            return self._page


def pages_of(host: Host, name: str, place: list[Address]) -> Pages:
    """The pages of the node called ``name`` that will serve at ``place`` (empty: it has not started yet)."""

    async def asked() -> tuple[Hello, dict[str, Any]]:
        return await ask_info(host, dialled(place[0]))

    async def health() -> NodePage:
        found = await health_of(host, place)
        return as_page(200 if found.healthy else 503, found.as_json())

    async def ready() -> NodePage:
        reasons = ["it is starting"] if not place else []
        if place:
            try:
                peer, info = await asked()
                reasons = why_not_ready(peer.kind, info)
            except DistributedLogError as error:
                reasons = [f"{type(error).__name__}: {error}"]
        return as_page(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})

    async def metrics() -> NodePage:
        if not place:
            return NodePage(200, text_of([], {"name": name, "kind": "starting"}), KIND)
        try:
            peer, info = await asked()
        except DistributedLogError as error:
            return as_page(503, {"error": f"{type(error).__name__}: {error}"})
        node = {"name": name, "kind": peer.kind, "node_id": peer.node_id}
        return NodePage(200, text_of(samples(TABLES.get(peer.kind, ()), info), node), KIND)

    async def state() -> NodePage:
        if not place:
            return as_page(503, {"state": "starting"})
        try:
            peer, info = await asked()
        except DistributedLogError as error:
            return as_page(503, {"error": f"{type(error).__name__}: {error}"})
        shown = {key: value for key, value in info.items() if not isinstance(value, bytes)}
        return as_page(200, {"name": name, "kind": peer.kind, "node_id": peer.node_id, **shown})

    asking = {"/health": health, "/ready": ready, "/metrics": metrics, "/state": state}
    return {path: Once(ask).page for path, ask in asking.items()}


def why_not_ready(kind: str, info: dict[str, Any]) -> list[str]:
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
        why = info.get("read_only_codes")
        said = ", ".join(map(str, why)) if isinstance(why, list) else ""
        reasons.append(f"it takes no new entries{': ' if said else ''}{said}")
    return reasons
