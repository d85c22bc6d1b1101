"""Nodes that speak as members of the quorum and are none that this node knows of.

What a peer says moves terms, and a term that is entered is never left: it is taken from members alone. But a
member may be newer than all that this node has read: it was let in, or put in another's place, by entries
that this node lacks, and leads now (thesis 4.1). Then those at the addresses that this node does know are
asked who the members are, and believed: an address was given by an operator, a name in a greeting by anybody.
Until they have answered, the stranger is not heard: what it said is said again. Where nobody answers at any
of those addresses it is heard: all whom this node knew may have been replaced while it was away.

One question serves all strangers: a crowd of them cannot stand before the one that is a member.
"""

from collections.abc import Callable, Iterable

import trio

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.principals import METADATA
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op
from ..model.configuration import UNKNOWN_CONFIGURATION
from ..protocol.client_messages import MembersRequest, decode_members
from ..raft.raft import Raft

QUERY_TIMEOUT_S = 1.0
QUERY_INTERVAL_S = 1.0
NOT_A_MEMBER = "no member"
"""The reason under which one that is not heard is counted, and told (`rejection_log.py`)."""


class UnknownPeers:
    """Who of those that are no members here may speak all the same."""

    def __init__(
        self,
        raft: Raft,
        endpoint: Endpoint,
        known_addresses: Callable[[], Iterable[Address]],
        cluster_id: str,
        nursery: trio.Nursery,
    ) -> None:
        """``places``: the addresses of the members that are known here, but our own."""
        self._raft = raft
        self._endpoint = endpoint
        self._known_addresses = known_addresses
        self._cluster_id = cluster_id
        self._nursery = nursery
        self._queried_at = -QUERY_INTERVAL_S
        self._is_querying = False
        self._vouched_members: frozenset[str] | None = None
        """The members as those that were asked last say; None: nobody was asked, or nobody answered."""
        self._no_answer = False

    def is_trusted(self, node_id: str, peer_address: str) -> bool:
        """Whether what that node says as a member is heard. ``where`` is its address, for the log."""
        raft = self._raft
        if node_id in raft.peers:
            return True  # a member: the short way, for each message takes it
        if raft.configuration == UNKNOWN_CONFIGURATION:
            return True  # let in just now: who the members are is what it waits to be told
        if raft.configuration.member(node_id):
            return True
        if raft.log.configuration_at(raft.commit).member(node_id):
            return True  # it is being put out, and may be the only one that knows
        if self._vouched_members is not None and node_id in self._vouched_members:
            return True
        if not self._is_querying and trio.current_time() - self._queried_at >= QUERY_INTERVAL_S:
            self._is_querying = True
            self._nursery.start_soon(self._query_all)
        if self._vouched_members is not None:
            reason = f"it speaks as metadata node {node_id}, which is no member"
            self._endpoint.rejection_log.record(peer_address, NOT_A_MEMBER, reason)
        return self._no_answer

    def on_members(self) -> None:
        """Other members count: whoever was vouched for is one of them now, or is asked about again."""
        self._vouched_members, self._no_answer = None, False

    async def _query_all(self) -> None:
        answers: list[frozenset[str]] = []
        configuration_before = self._raft.configuration
        unit = "the question whether one is a member who says so"
        try:
            with self._endpoint.failures.attempt(unit):
                async with trio.open_nursery() as nursery:
                    for address in dict.fromkeys(self._known_addresses()):
                        nursery.start_soon(self._query_members, address, answers)
        finally:
            self._is_querying = False
            self._queried_at = trio.current_time()
        if self._raft.configuration is configuration_before:
            self._vouched_members = frozenset().union(*answers) if answers else None
            self._no_answer = not answers

    async def _query_members(self, address: Address, answers: list[frozenset[str]]) -> None:
        with trio.move_on_after(QUERY_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                try:
                    link = await self._endpoint.dial(address, nursery=nursery, kind=METADATA)
                    if link.peer.kind == "metadata" and link.peer.cluster_id == self._cluster_id:
                        reply = await link.request(
                            Op.META_MEMBERS,
                            MembersRequest("show").encode(),
                            timeout_s=QUERY_TIMEOUT_S,
                        )
                        reached = decode_members(reply.body)
                        answers.append(frozenset(reach.member.node_id for reach in reached))
                except DistributedLogError:
                    pass  # another one may answer; else it is asked again
                nursery.cancel_scope.cancel()
