"""What a metadata node tells of itself and of the other members: the lines of a status, and addresses."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from ..runtime.errors import DistributedLogError, NotLeader
from .admission import who_is_at
from .configuration import Member, parse_place
from .interface import MemberStatus
from .wire import Reach, Row

if TYPE_CHECKING:
    from .server import MetadataNode

QUESTIONS_MAX = 16
EMPTY = "waiting, empty"
"""The role of a node that belongs to no cluster: it may be let in (`admission.py`)."""


class StatusBoard:
    """Of one node."""

    def __init__(self, node: "MetadataNode") -> None:
        self._node = node
        self._questions = 0

    def row(self) -> Row:
        """Our own line."""
        node = self._node
        options, replica = node.options, node.replica
        role, address, term, applied = EMPTY, "", 0, 0
        if node.damage:
            role = f"damaged: {node.damage}"
        elif replica is not None:
            raft = replica.raft
            term, applied = raft.term, replica.state.index
            known = raft.configuration.member(node.identity.node_id)
            address = known.address if known is not None else ""
            role = raft.role.value
            if known is not None and not known.votes:
                role = "learner"
            elif known is None and raft.configuration.members:
                role = "removed"
        elif node.hello().cluster_id:
            role = "starting"
        address = address or "{}:{}".format(*options.peers[options.name])
        status = MemberStatus(
            *(options.name, address, role, term, applied, True, node.identity.node_id),
            node.reasons.texts(),
        )
        return Row(status, {name: "{}:{}".format(*at) for name, at in options.advertised.items()})

    def ask_all(self, nursery: trio.Nursery, reply: Callable[[list[Row]], None]) -> bool:
        """Ask every member for its line; False when too many ask already."""
        if self._questions >= QUESTIONS_MAX:
            return False
        self._questions += 1
        nursery.start_soon(self._ask_all, reply)
        return True

    def reach(self, listener: str) -> list[Reach]:
        """All members with the addresses that whoever came in on this listener can dial."""
        replica = self._node.replica
        members = replica.raft.configuration.members if replica is not None else ()
        return [Reach(member, self._address(member, listener)) for member in members]

    def name_of(self, node_id: str) -> str:
        """A member's name, "" if it is none."""
        replica = self._node.replica
        member = replica.raft.configuration.member(node_id) if replica is not None else None
        return member.name if member is not None else ""

    def for_listener(self, error: DistributedLogError, listener: str) -> DistributedLogError:
        """A redirection to the leader's address on the listener that the asker came in on."""
        replica = self._node.replica
        if not isinstance(error, NotLeader) or replica is None:
            return error
        leader = replica.raft.configuration.member(replica.raft.leader_id)
        return NotLeader(str(error), self._address(leader, listener) if leader is not None else "")

    def _address(self, member: Member, listener: str) -> str:
        node = self._node
        if member.node_id == node.identity.node_id:
            return self.row().advertised.get(listener, member.address)
        assert node.peers is not None, "only who knows members knows their addresses"
        told = node.peers.advertised.get(member.node_id, {}).get(listener)
        listed = node.options.peers.get(member.name)
        return told or member.address or ("{}:{}".format(*listed) if listed else "")

    async def _ask_all(self, reply: Callable[[list[Row]], None]) -> None:
        own = self._node.identity.node_id
        replica = self._node.replica
        members = replica.raft.configuration.members if replica is not None else ()
        known = {member.node_id for member in members}
        rows = {own: self.row()} if own in known or not known else {}

        async def ask(member: Member) -> None:
            rows[member.node_id] = await self._row_of(member)

        try:
            async with trio.open_nursery() as nursery:
                for member in members:
                    if member.node_id != own:
                        nursery.start_soon(ask, member)
            reply(sorted(rows.values(), key=lambda row: (row.status.name, row.status.node_id)))
        finally:
            self._questions -= 1

    async def _row_of(self, member: Member) -> Row:
        peers = self._node.peers
        assert peers is not None
        address = self._address(member, "")
        row = await peers.ask_status(member.node_id)
        if row is not None:
            return replace(row, status=replace(row.status, name=member.name, address=address))
        why = peers.refusals.get(member.node_id, "")
        place = parse_place(address)
        alive = False
        if place is not None:
            try:
                met = await who_is_at(self._node.endpoint, place)
                if met.name == member.name and not met.cluster_id:
                    why, alive = EMPTY, True  # its disk was emptied: who votes is no more
            except DistributedLogError:
                pass
        return Row(
            MemberStatus(member.name, address, why or "unreachable", 0, 0, alive, member.node_id),
            {},
        )
