"""Nodes that speak as members of the quorum and are none that this node knows of.

What a peer says moves terms, and a term that is entered is never left: it is taken from members alone. But a
member may be newer than all that this node has read: it was let in, or put in another's place, by entries
that this node lacks, and leads now (thesis 4.1). Then those at the addresses that this node does know are
asked who the members are, and believed: an address was given by an operator, a name in a greeting by anybody.
Until they have answered, the stranger is not heard: what it said is said again. Where nobody answers at any
of those addresses it is heard: all whom this node knew may have been replaced while it was away.
"""

import logging
from collections.abc import Callable, Iterable

import trio

from ..runtime.errors import DistributedLogError
from ..runtime.frames import Op
from ..runtime.host import Address
from ..runtime.rpc import Endpoint
from .configuration import UNKNOWN
from .raft import Raft
from .wire import MembersRequest, decode_members

log = logging.getLogger("distributedlog.metadata.strangers")

ASK_S = 1.0
ASK_AGAIN_S = 1.0
REMEMBERED_MAX = 64
"""So many strangers are kept in mind; the one asked about longest ago is forgotten."""


class Strangers:
    """Who of those that are no members here may speak all the same."""

    def __init__(
        self,
        raft: Raft,
        endpoint: Endpoint,
        places: Callable[[], Iterable[Address]],
        cluster_id: str,
        nursery: trio.Nursery,
    ) -> None:
        """``places``: the addresses of the members that are known here, but our own."""
        self._raft = raft
        self._endpoint = endpoint
        self._places = places
        self._cluster_id = cluster_id
        self._nursery = nursery
        self._asked_at: dict[str, float] = {}
        self._vouched: dict[str, None] = {}
        self._asking = False

    def may_speak(self, node_id: str, where: str) -> bool:
        """Whether what that node says as a member is heard. ``where`` is its address, for the log."""
        raft = self._raft
        if raft.configuration == UNKNOWN:
            return True  # let in just now: who the members are is what it waits to be told
        if raft.configuration.member(node_id) or node_id in self._vouched:
            return True
        if raft.log.configuration_at(raft.commit).member(node_id):
            return True  # it is being put out, and may be the only one that knows
        now = trio.current_time()
        if not self._asking and now - self._asked_at.get(node_id, -ASK_AGAIN_S) >= ASK_AGAIN_S:
            if node_id not in self._asked_at:
                log.info("%s speaks as metadata node %s, unknown here: asking", where, node_id)
            self._asking = True
            self._nursery.start_soon(self._ask_about, node_id, where)
        return False

    def on_members(self) -> None:
        """Other members count: whoever was vouched for is one of them now, or is asked about again."""
        self._vouched.clear()

    async def _ask_about(self, node_id: str, where: str) -> None:
        first = node_id not in self._asked_at
        answers: list[bool] = []
        try:
            async with trio.open_nursery() as asking:
                for place in dict.fromkeys(self._places()):
                    asking.start_soon(self._ask, place, node_id, answers)
        finally:
            self._asking = False
        if any(answers) or not answers:
            self._vouched[node_id] = None
        self._asked_at.pop(node_id, None)
        self._asked_at[node_id] = trio.current_time()
        while len(self._asked_at) > REMEMBERED_MAX:
            self._vouched.pop(self._forget_oldest(), None)
        if first and node_id not in self._vouched:
            log.warning("%s speaks as metadata node %s, which is no member", where, node_id)

    def _forget_oldest(self) -> str:
        oldest = next(iter(self._asked_at))
        del self._asked_at[oldest]
        return oldest

    async def _ask(self, place: Address, node_id: str, answers: list[bool]) -> None:
        with trio.move_on_after(ASK_S):
            async with trio.open_nursery() as nursery:
                try:
                    link = await self._endpoint.dial(place, nursery=nursery)
                    if link.peer.kind == "metadata" and link.peer.cluster_id == self._cluster_id:
                        reply = await link.request(
                            Op.META_MEMBERS, MembersRequest("show").encode(), timeout_s=ASK_S
                        )
                        members = [reach.member.node_id for reach in decode_members(reply.body)]
                        answers.append(node_id in members)
                except DistributedLogError:
                    pass  # another one may answer; else it is asked again
                nursery.cancel_scope.cancel()
