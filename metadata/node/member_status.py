"""The status of this member and of the others, and the addresses of members."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from ...runtime.declarations.health_conditions import NodeConditions, limit_conditions
from ...runtime.interfaces.errors import DistributedLogError, NotLeader
from ...runtime.net.rpc import Endpoint
from ..declarations.options import MetadataOptions
from ..model.configuration import Member, parse_host_port
from ..model.interface import MemberRole, MemberStatus
from ..peers.membership_changes import query_node
from ..peers.raft_peers import RaftPeers
from ..protocol.client_messages import MemberAddress, MemberStatusRow
from ..replica.replica import RaftReplica

STATUS_REQUESTS_MAX = 16


def make_own_row(
    options: MetadataOptions,
    node_id: str,
    conditions: NodeConditions,
    role: str,
    *,
    role_detail: str = "",
    address: str = "",
    term: int = 0,
    applied: int = 0,
) -> MemberStatusRow:
    """Return the status of this node.

    Args:
        options: The options of the node.
        node_id: Its node ID.
        conditions: Its health conditions.
        role: A value of `MemberRole`.
        role_detail: The reason of the role, as text for operators.
        address: Its address in the configuration of the quorum, if it has one.
        term: Its term.
        applied: The index of its last applied command.
    """
    address = address or "{}:{}".format(*options.peers[options.name])
    status = MemberStatus(
        options.name,
        address,
        role,
        term,
        applied,
        True,
        node_id,
        limit_conditions(conditions.current()),
        role_detail,
        options.version,
    )
    return MemberStatusRow(
        status,
        {
            name: "{}:{}".format(*advertised_address)
            for name, advertised_address in options.advertised.items()
        },
    )


class StatusBoard:
    """Queries the status of all members, for one member."""

    def __init__(
        self,
        options: MetadataOptions,
        conditions: NodeConditions,
        replica: RaftReplica,
        peers: RaftPeers,
        endpoint: Endpoint,
        nursery: trio.Nursery,
    ) -> None:
        self._options = options
        self._conditions = conditions
        self._replica = replica
        self._peers = peers
        self._endpoint = endpoint
        self._nursery = nursery
        self._pending_requests = 0

    @property
    def _members(self) -> Sequence[Member]:
        return self._replica.raft.configuration.members

    def own_row(self) -> MemberStatusRow:
        """Return the status of this member."""
        raft = self._replica.raft
        own_member = raft.configuration.member(raft.node_id)
        role = raft.role.value
        if own_member is not None and not own_member.votes:
            role = MemberRole.LEARNER.value
        elif own_member is None and self._members:
            role = MemberRole.REMOVED.value
        return make_own_row(
            self._options,
            raft.node_id,
            self._conditions,
            role,
            address=own_member.address if own_member is not None else "",
            term=raft.term,
            applied=self._replica.state.index,
        )

    def query_all(self, reply: Callable[[list[MemberStatusRow]], None]) -> bool:
        """Query the status of all members. Return False if too many queries are running.

        ``reply`` receives the result.
        """
        if self._pending_requests >= STATUS_REQUESTS_MAX:
            return False
        self._pending_requests += 1
        self._nursery.start_soon(self._query_all, reply)
        return True

    def reachable_members(self, listener: str) -> list[MemberAddress]:
        """Return all members with the addresses that a client of this listener can dial."""
        return [
            MemberAddress(member, self._address_on_listener(member, listener))
            for member in self._members
        ]

    def with_leader_address(self, error: DistributedLogError, listener: str) -> DistributedLogError:
        """Add the leader's address on the client's listener to a `NotLeader` error."""
        if not isinstance(error, NotLeader):
            return error
        raft = self._replica.raft
        leader = raft.configuration.member(raft.leader_id)
        return NotLeader(
            str(error), self._address_on_listener(leader, listener) if leader is not None else ""
        )

    def _address_on_listener(self, member: Member, listener: str) -> str:
        if member.node_id == self._replica.raft.node_id:
            return self.own_row().advertised.get(listener, member.address)
        advertised = self._peers.advertised.get(member.node_id, {}).get(listener)
        configured = self._options.peers.get(member.name)
        return advertised or member.address or ("{}:{}".format(*configured) if configured else "")

    async def _query_all(self, reply: Callable[[list[MemberStatusRow]], None]) -> None:
        own_id, members = self._replica.raft.node_id, self._members
        member_ids = {member.node_id for member in members}
        rows = {own_id: self.own_row()} if own_id in member_ids or not member_ids else {}

        async def ask(queried: Member) -> None:
            rows[queried.node_id] = await self._query_row(queried)

        try:
            with self._endpoint.failures.attempt("the status query to all members"):
                async with trio.open_nursery() as nursery:
                    for member in members:
                        if member.node_id != own_id:
                            nursery.start_soon(ask, member)
            reply(sorted(rows.values(), key=lambda row: (row.status.name, row.status.node_id)))
        finally:
            self._pending_requests -= 1

    async def _query_row(self, member: Member) -> MemberStatusRow:
        address = self._address_on_listener(member, "")
        row = await self._peers.query_status(member.node_id)
        if row is not None:
            return replace(row, status=replace(row.status, name=member.name, address=address))
        role, alive = MemberRole.UNREACHABLE.value, False
        reason = self._peers.connect_errors.get(member.node_id, "")
        parsed_address = parse_host_port(address)
        if parsed_address is not None:
            try:
                answer = await query_node(self._endpoint, parsed_address)
                if answer.name == member.name and not answer.cluster_id:
                    # Its disk was emptied, so the former voter no longer exists.
                    role, reason, alive = MemberRole.EMPTY.value, "", True
            except DistributedLogError:
                pass
        return MemberStatusRow(
            MemberStatus(
                member.name, address, role, 0, 0, alive, member.node_id, role_detail=reason
            ),
            {},
        )
