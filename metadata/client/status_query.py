"""Query the members of the quorum and the status of each node. Any node can answer."""

from dataclasses import replace

import trio

from ...runtime.interfaces.errors import DistributedLogError, NotAuthenticated, NotReady
from ...runtime.net.client_link import ClientLink
from ...runtime.protocol.frames import Op, pack
from ..model.interface import MemberStatus
from ..protocol.client_messages import decode_rows
from .node_connections import NodeConnections

QUERY_TIMEOUT_S = 2.0
PAUSE_S = 0.05
OTHER_ANSWERS_S = 1.0
"""After the answer of a version that states no versions, others are queried for this time."""


async def query_status(connections: NodeConnections) -> list[MemberStatus]:
    """Return the status from a member with a known leader, otherwise from another member.

    The answer of a node that passes on the versions of all members is preferred.

    If no member answers, return the status of all nodes that wait for a cluster.

    Raises:
        QuorumUnreachable: No node answered within the time limit of the client.
        NotAuthenticated: All nodes reject this client. Raised immediately, because a retry would not help.
    """
    deadline = trio.current_time() + connections.timeout_s
    addresses = dict.fromkeys([connections.leader, *connections.known_nodes.addresses])
    last_error: DistributedLogError | None = None
    while trio.current_time() < deadline:
        unjoined: dict[str, MemberStatus] = {}
        leaderless: list[MemberStatus] = []
        without_versions: list[MemberStatus] = []
        refusals = 0
        connect_deadline = deadline
        for address in addresses:
            if trio.current_time() >= connect_deadline:
                break
            try:
                link = await connections.connect(address, connect_deadline, allow_unjoined=True)
                statuses = await _status_from(link)
            except DistributedLogError as error:
                last_error = error
                refusals += isinstance(error, NotAuthenticated)
                continue
            if any(status.role == "leader" for status in statuses):
                if any(status.version for status in statuses):
                    return statuses
                # version 0.1, which drops the versions of newer members from its answer
                without_versions = without_versions or statuses
                connect_deadline = min(connect_deadline, trio.current_time() + OTHER_ANSWERS_S)
                continue
            # it may have been removed from the quorum without having received the change
            if link.peer.cluster_id:
                leaderless = leaderless or statuses
                continue
            link.close(NotReady("it may belong to a cluster at the next query"))
            unjoined.update((status.node_id, status) for status in statuses)
        if without_versions or leaderless:
            return without_versions or leaderless
        if unjoined:
            return sorted(unjoined.values(), key=lambda status: status.name)
        if isinstance(last_error, NotAuthenticated) and refusals == len(addresses):
            raise last_error
        await trio.sleep(PAUSE_S)
    raise connections.unreachable_error(f"{last_error}")


async def _status_from(link: ClientLink) -> list[MemberStatus]:
    reply = await link.request(Op.META_STATUS, pack(["all"]), timeout_s=QUERY_TIMEOUT_S)
    return [
        replace(row.status, address=row.advertised.get(link.listener, row.status.address))
        for row in decode_rows(reply.body)
    ]
