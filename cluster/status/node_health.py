"""Check the health of a node by its own protocol, as a client does.

The result is about this node only. A node that waits for a quorum is healthy, because a restart would not
help. `dlog status` reports whether the cluster accepts writes.
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
"""A node that does not answer within this many seconds is not healthy."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The state that a node reported, or the reason why it did not answer."""

    healthy: bool
    state: str
    """A metadata node's role (``leader``, …), or a bookie's ``up`` or ``read-only``; otherwise the reason."""
    answer_ms: float = 0.0
    """From the start of the connection to the answer, in milliseconds."""
    conditions: tuple[HealthCondition, ...] = ()
    """The conditions that the node reports. A restart would not remove them."""
    version: str = ""
    """The version of its software. "": unknown, or 0.1 or older."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON values for the page `/health`."""
        return {
            "healthy": self.healthy,
            "state": self.state,
            "answer_ms": round(self.answer_ms, 3),
            "version": self.version,
            "conditions": as_json(self.conditions),
            "reasons": texts_of(self.conditions),
        }


async def query_health(host: Host, address: Address, *, timeout_s: float = QUERY_S) -> NodeHealth:
    """Connect to a node and query its health. Errors of the node are part of the result and are not raised.

    A full bookie (``read-only``) is healthy. So is one that lost data: it serves reads, and reports
    conditions. A metadata node with a damaged log is not healthy.
    """
    started_at = trio.current_time()
    try:
        state, conditions, version = await query_node(host, address, _query_state, timeout_s)
    except DistributedLogError as error:
        return NodeHealth(False, f"{type(error).__name__}: {error}")
    answer_ms = (trio.current_time() - started_at) * 1e3
    return NodeHealth(state != MemberRole.DAMAGED, state, answer_ms, conditions, version)


async def query_info(
    host: Host, address: Address, *, timeout_s: float = QUERY_S
) -> tuple[Hello, dict[str, Any]]:
    """Return a node's identity, and its counters and gauges by name.

    Raises:
        DistributedLogError: The node did not answer, or its answer is invalid.
    """

    async def info(link: ClientLink, timeout_s: float) -> tuple[Hello, dict[str, Any]]:
        return link.peer, await query_info_over(link, timeout_s)

    return await query_node(host, address, info, timeout_s)


async def health_at(host: Host, serving_at: list[Address]) -> NodeHealth:
    """Return the health of the node at ``serving_at``, which is empty if the node has not started yet."""
    if not serving_at:
        return NodeHealth(False, "starting")
    return await query_health(host, address_to_dial(serving_at[0]))


def address_to_dial(listening: Address) -> Address:
    """Return the address by which a node is reached from its own machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening[0], listening[0]), listening[1]


async def _query_state(
    link: ClientLink, timeout_s: float
) -> tuple[str, tuple[HealthCondition, ...], str]:
    """Return the state, the conditions and the version of a node.

    Raises:
        DistributedLogError: The node did not answer, or its answer is invalid.
    """
    if link.peer.kind == "metadata":
        reply = await link.request(Op.META_STATUS, pack(["self"]), timeout_s=timeout_s)
        rows = decode_rows(reply.body)
        if len(rows) != 1:
            raise ProtocolError(f"META_STATUS: {len(rows)} rows of one node")
        status = rows[0].status
        if status.role != MemberRole.DAMAGED:
            return status.role, status.conditions, status.version
        damaged = condition(Code.METADATA_NODE_DAMAGED, error=status.role_detail, replaceable=0)
        conditions = (damaged.about(node=status.name), *status.conditions)
        return status.role, conditions, status.version
    value = await query_info_over(link, timeout_s)
    try:
        conditions = either_form(value.get("conditions"), value.get("reasons"))
    except SchemaError as error:
        raise ProtocolError(f"INFO: {error}") from None
    version = value.get("version")
    state = "read-only" if value.get("read_only") else "up"
    return state, conditions, version if isinstance(version, str) else ""


async def query_info_over(link: ClientLink, timeout_s: float) -> dict[str, Any]:
    """Return a node's counters and gauges by name, over an open connection.

    Numbers that are not finite are left out, because JSON cannot contain them.

    Raises:
        DistributedLogError: The node did not answer, or its answer is invalid.
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
