"""What a member of the quorum tells of itself and of the others: the lines of a status, and addresses."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from ...runtime.declarations.health_conditions import NodeConditions, limited
from ...runtime.interfaces.errors import DistributedLogError, NotLeader
from ...runtime.net.rpc import Endpoint
from ..declarations.options import MetadataOptions
from ..model.configuration import Member, parse_place
from ..model.interface import MemberRole, MemberStatus
from ..peers.membership_changes import who_is_at
from ..peers.raft_peers import RaftPeers
from ..protocol.client_messages import MemberAddress, Row
from ..replica.replica import RaftReplica

QUESTIONS_MAX = 16


def own_row(
    options: MetadataOptions,
    node_id: str,
    conditions: NodeConditions,
    role: str,
    *,
    role_detail: str = "",
    address: str = "",
    term: int = 0,
    applied: int = 0,
) -> Row:
    """A node's line about itself. ``address``: as the members know it, if they do."""
    address = address or "{}:{}".format(*options.peers[options.name])
    status = MemberStatus(
        options.name,
        address,
        role,
        term,
        applied,
        True,
        node_id,
        limited(conditions.current()),
        role_detail,
    )
    return Row(status, {name: "{}:{}".format(*at) for name, at in options.advertised.items()})


class StatusBoard:
    """Of one member."""

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
        self._questions = 0

    @property
    def _members(self) -> Sequence[Member]:
        return self._replica.raft.configuration.members

    def row(self) -> Row:
        """Our own line."""
        raft = self._replica.raft
        known = raft.configuration.member(raft.node_id)
        role = raft.role.value
        if known is not None and not known.votes:
            role = MemberRole.LEARNER.value
        elif known is None and self._members:
            role = MemberRole.REMOVED.value
        return own_row(
            self._options,
            raft.node_id,
            self._conditions,
            role,
            address=known.address if known is not None else "",
            term=raft.term,
            applied=self._replica.state.index,
        )

    def ask_all(self, reply: Callable[[list[Row]], None]) -> bool:
        """Ask every member for its line; False when too many ask already."""
        if self._questions >= QUESTIONS_MAX:
            return False
        self._questions += 1
        self._nursery.start_soon(self._ask_all, reply)
        return True

    def reach(self, listener: str) -> list[MemberAddress]:
        """All members with the addresses that whoever came in on this listener can dial."""
        return [MemberAddress(member, self._address(member, listener)) for member in self._members]

    def for_listener(self, error: DistributedLogError, listener: str) -> DistributedLogError:
        """A redirection to the leader's address on the listener that the asker came in on."""
        if not isinstance(error, NotLeader):
            return error
        raft = self._replica.raft
        leader = raft.configuration.member(raft.leader_id)
        return NotLeader(str(error), self._address(leader, listener) if leader is not None else "")

    def _address(self, member: Member, listener: str) -> str:
        if member.node_id == self._replica.raft.node_id:
            return self.row().advertised.get(listener, member.address)
        told = self._peers.advertised.get(member.node_id, {}).get(listener)
        listed = self._options.peers.get(member.name)
        return told or member.address or ("{}:{}".format(*listed) if listed else "")

    async def _ask_all(self, reply: Callable[[list[Row]], None]) -> None:
        own, members = self._replica.raft.node_id, self._members
        known = {member.node_id for member in members}
        rows = {own: self.row()} if own in known or not known else {}

        async def ask(member: Member) -> None:
            rows[member.node_id] = await self._row_of(member)

        try:
            with self._endpoint.failures.contained("the question to all members for a status"):
                async with trio.open_nursery() as nursery:
                    for member in members:
                        if member.node_id != own:
                            nursery.start_soon(ask, member)
            reply(sorted(rows.values(), key=lambda row: (row.status.name, row.status.node_id)))
        finally:
            self._questions -= 1

    async def _row_of(self, member: Member) -> Row:
        address = self._address(member, "")
        row = await self._peers.ask_status(member.node_id)
        if row is not None:
            return replace(row, status=replace(row.status, name=member.name, address=address))
        role, alive = MemberRole.UNREACHABLE.value, False
        why = self._peers.refusals.get(member.node_id, "")
        place = parse_place(address)
        if place is not None:
            try:
                met = await who_is_at(self._endpoint, place)
                if met.name == member.name and not met.cluster_id:
                    # Its disk was emptied: the member that voted is no more.
                    role, why, alive = MemberRole.EMPTY.value, "", True
            except DistributedLogError:
                pass
        return Row(
            MemberStatus(member.name, address, role, 0, 0, alive, member.node_id, role_detail=why),
            {},
        )
