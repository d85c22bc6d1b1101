"""Decide on nodes that claim to be members of the quorum and are not known as members here.

A message of a peer can raise the term, and a term is never left again. Therefore only messages of members
are accepted. But a member may be unknown here, because entries that this node lacks have added it, and it
may lead now (thesis 4.1). Then this node queries the members at all addresses that it has, and trusts their
answers. An operator configured these addresses, but any client can send any name in a handshake.

Messages of the unknown node are ignored until there is an answer, because Raft repeats them. If no node
answers at any address, they are accepted: all members that were known here may have been replaced while
this node was away.

One query serves all unknown nodes, so a crowd of them cannot block one that is a member.
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
"""The reason under which rejected messages of unknown nodes are counted and logged (`rejection_log.py`)."""


class UnknownPeers:
    """Decides which unknown nodes are accepted as members."""

    def __init__(
        self,
        raft: Raft,
        endpoint: Endpoint,
        known_addresses: Callable[[], Iterable[Address]],
        cluster_id: str,
        nursery: trio.Nursery,
    ) -> None:
        """``known_addresses`` returns the addresses of the known members, except those of this node."""
        self._raft = raft
        self._endpoint = endpoint
        self._known_addresses = known_addresses
        self._cluster_id = cluster_id
        self._nursery = nursery
        self._queried_at = -QUERY_INTERVAL_S
        self._is_querying = False
        self._vouched_members: frozenset[str] | None = None
        """The members according to the last answers. None if no node was queried or none answered."""
        self._no_answer = False

    def is_trusted(self, node_id: str, peer_address: str) -> bool:
        """Whether messages of that node are accepted as those of a member.

        ``peer_address`` is for the log.
        """
        raft = self._raft
        if node_id in raft.peers:
            return True  # first and fast, because each message takes this path
        if raft.configuration == UNKNOWN_CONFIGURATION:
            # A new member without a configuration accepts messages, because it waits to receive the
            # members.
            return True
        if raft.configuration.member(node_id):
            return True
        if raft.log.configuration_at(raft.commit).member(node_id):
            # It is being removed, and may be the only node with the newest configuration.
            return True
        if self._vouched_members is not None and node_id in self._vouched_members:
            return True
        if not self._is_querying and trio.current_time() - self._queried_at >= QUERY_INTERVAL_S:
            self._is_querying = True
            self._nursery.start_soon(self._query_all)
        if self._vouched_members is not None:
            reason = f"it claims to be metadata node {node_id}, which is not a member"
            self._endpoint.rejection_log.record(peer_address, NOT_A_MEMBER, reason)
        return self._no_answer

    def on_members(self) -> None:
        """Drop the last answers after a change of the members. Unknown nodes are checked again."""
        self._vouched_members, self._no_answer = None, False

    async def _query_all(self) -> None:
        answers: list[frozenset[str]] = []
        configuration_before = self._raft.configuration
        unit = "the query for the members of the quorum"
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
                    pass  # Another node may answer. Otherwise the query is repeated.
                nursery.cancel_scope.cancel()
