"""Is a node well? Asked of the node itself, through its own protocol, as any client would.

What is found is about this node alone: a node that waits for a quorum is well, for starting it again
would help nobody. Whether the cluster takes writes is what `dlog status` says.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

import trio

from ...metadata.model.interface import MemberRole
from ...metadata.protocol.client_messages import decode_rows
from ...runtime.declarations.condition_texts import as_json, texts_of
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition, either_form
from ...runtime.interfaces.errors import DistributedLogError, ProtocolError
from ...runtime.interfaces.host import Address, Host
from ...runtime.net.address_check import query_node
from ...runtime.net.client_link import ClientLink
from ...runtime.protocol.frames import Op, pack, unpack
from ...runtime.protocol.handshake import Hello
from ...runtime.protocol.schema import SchemaError

QUERY_S = 2.0
"""A node that does not answer within this many seconds is not well."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node said of itself, or why it said nothing."""

    healthy: bool
    state: str
    """A metadata node's role (``leader``, …), a bookie's ``up`` or ``read-only``; or why not."""
    answer_ms: float = 0.0
    """From the dial to the answer."""
    conditions: tuple[HealthCondition, ...] = ()
    """The conditions that the node reports. A restart would not help against them."""

    def as_json(self) -> dict[str, Any]:
        """For `/health`."""
        return {
            "healthy": self.healthy,
            "state": self.state,
            "answer_ms": round(self.answer_ms, 3),
            "conditions": as_json(self.conditions),
            "reasons": texts_of(self.conditions),
        }


async def query_health(host: Host, address: Address, *, timeout_s: float = QUERY_S) -> NodeHealth:
    """Dial the node, greet it, ask it. Raises nothing that a node can cause.

    A full bookie (``read-only``) is well, and so is one that lost data: it serves reads, and reports
    conditions. A metadata node with a damaged log is not.
    """
    started_at = trio.current_time()
    try:
        state, conditions = await query_node(host, address, _query_state, timeout_s)
    except DistributedLogError as error:
        return NodeHealth(False, f"{type(error).__name__}: {error}")
    answer_ms = (trio.current_time() - started_at) * 1e3
    return NodeHealth(state != MemberRole.DAMAGED, state, answer_ms, conditions)


async def query_info(
    host: Host, address: Address, *, timeout_s: float = QUERY_S
) -> tuple[Hello, dict[str, Any]]:
    """Who a node says it is, and its counters and gauges by name. Raises `DistributedLogError`."""

    async def info(link: ClientLink, timeout_s: float) -> tuple[Hello, dict[str, Any]]:
        return link.peer, await query_info_over(link, timeout_s)

    return await query_node(host, address, info, timeout_s)


async def health_at(host: Host, serving_at: list[Address]) -> NodeHealth:
    """What the node at ``place`` (empty: it has not started yet) says of itself over its own protocol."""
    if not serving_at:
        return NodeHealth(False, "starting")
    return await query_health(host, address_to_dial(serving_at[0]))


def address_to_dial(listening: Address) -> Address:
    """Where a node that listens there is dialled from its own machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening[0], listening[0]), listening[1]


async def _query_state(
    link: ClientLink, timeout_s: float
) -> tuple[str, tuple[HealthCondition, ...]]:
    """Return the state and the conditions. Raises `DistributedLogError`."""
    if link.peer.kind == "metadata":
        reply = await link.request(Op.META_STATUS, pack(["self"]), timeout_s=timeout_s)
        rows = decode_rows(reply.body)
        if len(rows) != 1:
            raise ProtocolError(f"META_STATUS: {len(rows)} rows of one node")
        status = rows[0].status
        if status.role != MemberRole.DAMAGED:
            return status.role, status.conditions
        damaged = condition(Code.METADATA_NODE_DAMAGED, error=status.role_detail, replaceable=0)
        return status.role, (damaged.about(node=status.name), *status.conditions)
    value = await query_info_over(link, timeout_s)
    try:
        conditions = either_form(value.get("conditions"), value.get("reasons"))
    except SchemaError as error:
        raise ProtocolError(f"INFO: {error}") from None
    return "read-only" if value.get("read_only") else "up", conditions


async def query_info_over(link: ClientLink, timeout_s: float) -> dict[str, Any]:
    """A node's counters and gauges by name, over a link that is there. Raises `DistributedLogError`.

    Numbers that are not finite are left out: no counter and no text of JSON has them.
    """
    reply = await link.request(Op.INFO, timeout_s=timeout_s)
    value = unpack(reply.body, "INFO")
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ProtocolError("INFO: not a map of names")
    return {
        name: number
        for name, number in value.items()
        if not isinstance(number, float) or isfinite(number)
    }
