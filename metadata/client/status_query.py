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


async def ask_status(links: NodeConnections) -> list[MemberStatus]:
    """What a member says that knows a leader; else another one; else all nodes that wait.

    Raises `QuorumUnreachable` when nobody has answered within the client's time limit; `NotAuthenticated` at
    once where that is what all of them say: it would be no other later.
    """
    deadline = trio.current_time() + links.timeout_s
    places = dict.fromkeys([links.leader, *links.known.all])
    last: DistributedLogError | None = None
    while trio.current_time() < deadline:
        waiting: dict[str, MemberStatus] = {}
        leaderless: list[MemberStatus] = []
        refusals = 0
        for address in places:
            try:
                link = await links.link(address, deadline, may_wait=True)
                found = await _status_from(link)
            except DistributedLogError as error:
                last = error
                refusals += isinstance(error, NotAuthenticated)
                continue
            if any(status.role == "leader" for status in found):
                return found
            if link.peer.cluster_id:  # it may have been put out of the quorum, and not know it
                leaderless = leaderless or found
                continue
            link.close(NotReady("it may belong to a cluster when it is asked again"))
            waiting.update((status.node_id, status) for status in found)
        if leaderless:
            return leaderless
        if waiting:
            return sorted(waiting.values(), key=lambda status: status.name)
        if isinstance(last, NotAuthenticated) and refusals == len(places):
            raise last
        await trio.sleep(PAUSE_S)
    raise links.unreachable(f"{last}")


async def _status_from(link: ClientLink) -> list[MemberStatus]:
    reply = await link.request(Op.META_STATUS, pack(["all"]), timeout_s=ASK_S)
    return [
        replace(row.status, address=row.advertised.get(link.listener, row.status.address))
        for row in decode_rows(reply.body)
    ]
