"""The members of the quorum by node ID, with their names and addresses (pure).

An entry of the replicated log contains a complete configuration, not a difference. The newest one in a
node's log applies on that node, committed or not (`raft_log.py`). Only voters are counted and campaign.
Learners receive the log. Two consecutive configurations differ by at most one voter, so every majority of
one shares a node with every majority of the other. The entry::

    | 0xC1 | msgpack [format, [[node id, name, "host:port", votes], …]] |

No msgpack value begins with 0xC1, so a client's command cannot be mistaken for a configuration.

Source: thesis (Ongaro 2014) chapter 4. Hazard H5: a node ID is bound to its data directory.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...runtime.interfaces.errors import ProtocolError
from ...runtime.interfaces.host import Address
from ...runtime.protocol.frames import pack, unpack

CONFIGURATION_MARKER = b"\xc1"
FORMAT = 1
MEMBERS_MAX = 9


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the quorum. ``address`` is "host:port" of its first listener, or "" if unknown."""

    node_id: str
    name: str
    address: str
    votes: bool


@dataclass(frozen=True, slots=True)
class Configuration:
    """All members, sorted by name and node ID. An empty configuration is not yet known."""

    members: tuple[Member, ...] = ()

    @classmethod
    def from_members(cls, members: Iterable[Member]) -> "Configuration":
        """Create a configuration from members in any order."""
        return cls(tuple(sorted(members, key=lambda member: (member.name, member.node_id))))

    @classmethod
    def from_ids(cls, voters: Iterable[str], learners: Iterable[str] = ()) -> "Configuration":
        """Create a configuration whose node IDs are also the names, without addresses.

        For tests and simulations without a network.
        """
        voter_members = [Member(node_id, node_id, "", True) for node_id in voters]
        return cls.from_members(
            [*voter_members, *(Member(node_id, node_id, "", False) for node_id in learners)]
        )

    @property
    def voters(self) -> tuple[str, ...]:
        """Return the sorted node IDs of the voters."""
        return tuple(sorted(member.node_id for member in self.members if member.votes))

    @property
    def learners(self) -> tuple[str, ...]:
        """Return the sorted node IDs of the learners."""
        return tuple(sorted(member.node_id for member in self.members if not member.votes))

    def others(self, node_id: str) -> tuple[str, ...]:
        """Return the sorted node IDs of all other members."""
        return tuple(sorted({member.node_id for member in self.members} - {node_id}))

    def member(self, node_id: str) -> Member | None:
        """Return the member with this node ID, or None."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def members_named(self, name: str) -> list[Member]:
        """Return the members with this name: one voter or learner, or one of each during a replacement."""
        return [member for member in self.members if member.name == name]

    def with_member(self, member: Member) -> "Configuration":
        """Return a copy with this member added, or replaced if its node ID is present."""
        return self.from_members(
            [*(m for m in self.members if m.node_id != member.node_id), member]
        )

    def with_promoted(self, node_id: str) -> "Configuration":
        """Return a copy in which this learner is a voter."""
        member = self.member(node_id)
        assert member is not None, f"{node_id} is no member"
        return self.with_member(replace(member, votes=True))

    def without(self, node_id: str) -> "Configuration":
        """Return a copy without this member."""
        return Configuration(tuple(m for m in self.members if m.node_id != node_id))

    def can_follow(self, previous: "Configuration") -> bool:
        """Whether this configuration may follow ``previous``. It needs a voter, and at most one changed."""
        return bool(self.voters) and len({*self.voters} ^ {*previous.voters}) <= 1

    def encode(self) -> bytes:
        """Encode the configuration as the data of a log entry."""
        rows = [[m.node_id, m.name, m.address, m.votes] for m in self.members]
        return CONFIGURATION_MARKER + pack([FORMAT, rows])


UNKNOWN_CONFIGURATION = Configuration()


def is_configuration(data: bytes) -> bool:
    """Whether the data of a log entry is a configuration and not a command."""
    return data[:1] == CONFIGURATION_MARKER


def decode_configuration(data: bytes) -> Configuration:
    """Decode the data of a log entry, or raise `ProtocolError`."""
    match unpack(memoryview(data)[1:], "a configuration of the quorum"):
        case [int() as form, list() as rows] if form == FORMAT and data[:1] == CONFIGURATION_MARKER:
            configuration = Configuration.from_members(_member(row) for row in rows)
            if len({m.node_id for m in configuration.members}) == len(rows) <= MEMBERS_MAX:
                return configuration
    raise ProtocolError("a configuration of the quorum that cannot be read")


def _member(row: Any) -> Member:
    match row:
        case [str() as node_id, str() as name, str() as address, bool() as votes] if node_id:
            return Member(node_id, name, address, votes)
    raise ProtocolError("a member of the quorum that cannot be read")


def parse_host_port(text: str) -> Address | None:
    """Return the address in a member's "host:port", or None if the text is something else."""
    host, _, port = text.rpartition(":")
    # `isdigit` alone would accept "²", which `int` rejects.
    is_valid = host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    return (host, int(port)) if is_valid else None
