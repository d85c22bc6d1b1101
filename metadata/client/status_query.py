"""The client's question who forms the quorum and how each node is: any node can say something."""

from dataclasses import replace

import trio

from ...runtime.interfaces.errors import DistributedLogError, NotAuthenticated, NotReady
from ...runtime.net.client_link import ClientLink
from ...runtime.protocol.frames import Op, pack
from ..model.interface import MemberStatus
from ..protocol.client_messages import decode_rows
from .node_connections import NodeConnections

ASK_S = 2.0
PAUSE_S = 0.05


async def query_status(connections: NodeConnections) -> list[MemberStatus]:
    """What a member says that knows a leader; else another one; else all nodes that wait.

    Raises `QuorumUnreachable` when nobody has answered within the client's time limit; `NotAuthenticated` at
    once where that is what all of them say: it would be no other later.
    """
    deadline = trio.current_time() + connections.timeout_s
    addresses = dict.fromkeys([connections.leader, *connections.known_nodes.addresses])
    last_error: DistributedLogError | None = None
    while trio.current_time() < deadline:
        unjoined: dict[str, MemberStatus] = {}
        leaderless: list[MemberStatus] = []
        refusals = 0
        for address in addresses:
            try:
                link = await connections.connect(address, deadline, allow_unjoined=True)
                statuses = await _status_from(link)
            except DistributedLogError as error:
                last_error = error
                refusals += isinstance(error, NotAuthenticated)
                continue
            if any(status.role == "leader" for status in statuses):
                return statuses
            if link.peer.cluster_id:  # it may have been put out of the quorum, and not know it
                leaderless = leaderless or statuses
                continue
            link.close(NotReady("it may belong to a cluster when it is asked again"))
            unjoined.update((status.node_id, status) for status in statuses)
        if leaderless:
            return leaderless
        if unjoined:
            return sorted(unjoined.values(), key=lambda status: status.name)
        if isinstance(last_error, NotAuthenticated) and refusals == len(addresses):
            raise last_error
        await trio.sleep(PAUSE_S)
    raise connections.unreachable_error(f"{last_error}")


async def _status_from(link: ClientLink) -> list[MemberStatus]:
    reply = await link.request(Op.META_STATUS, pack(["all"]), timeout_s=ASK_S)
    return [
        replace(row.status, address=row.advertised.get(link.listener, row.status.address))
        for row in decode_rows(reply.body)
    ]
