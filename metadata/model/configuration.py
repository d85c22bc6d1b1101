"""Who forms the quorum (pure): the members by id, with the names and addresses people know them by.

A configuration is an entry of the replicated log, whole, not as a difference; the newest one in a node's
log counts there, committed or not (`raft_log.py`). Only voters are counted and campaign; learners are
replicated to. Two configurations that follow each other differ by at most one voter: then every majority
of the one meets every majority of the other.

    | 0xC1 | msgpack [format, [[node id, name, "host:port", votes], …]] |

No msgpack value begins with 0xC1, so no command of a client can pass for one.

Source: thesis (Ongaro 2014) chapter 4; hazard H5: ids live and die with data directories.
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
    """One node. ``address`` is "host:port" of its first listener, "" if unknown."""

    node_id: str
    name: str
    address: str
    votes: bool


@dataclass(frozen=True, slots=True)
class Configuration:
    """All members, sorted by name and id; none: not known yet."""

    members: tuple[Member, ...] = ()

    @classmethod
    def from_members(cls, members: Iterable[Member]) -> "Configuration":
        """Of members in any order."""
        return cls(tuple(sorted(members, key=lambda member: (member.name, member.node_id))))

    @classmethod
    def from_ids(cls, voters: Iterable[str], learners: Iterable[str] = ()) -> "Configuration":
        """Of ids that are their own names, without addresses: for worlds that have no network."""
        voter_members = [Member(node_id, node_id, "", True) for node_id in voters]
        return cls.from_members(
            [*voter_members, *(Member(node_id, node_id, "", False) for node_id in learners)]
        )

    @property
    def voters(self) -> tuple[str, ...]:
        """The ids of those that count, sorted."""
        return tuple(sorted(member.node_id for member in self.members if member.votes))

    @property
    def learners(self) -> tuple[str, ...]:
        """The ids of those that only receive, sorted."""
        return tuple(sorted(member.node_id for member in self.members if not member.votes))

    def others(self, node_id: str) -> tuple[str, ...]:
        """All ids but this one, sorted."""
        return tuple(sorted({member.node_id for member in self.members} - {node_id}))

    def member(self, node_id: str) -> Member | None:
        """The member of this id."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def members_named(self, name: str) -> list[Member]:
        """The members of this name: a voter, or a learner, or (while it is replaced) one of each."""
        return [member for member in self.members if member.name == name]

    def with_member(self, member: Member) -> "Configuration":
        """The same with one more, or one in the place of what had its id."""
        return self.from_members(
            [*(m for m in self.members if m.node_id != member.node_id), member]
        )

    def with_promoted(self, node_id: str) -> "Configuration":
        """The same with that learner as a voter."""
        member = self.member(node_id)
        assert member is not None, f"{node_id} is no member"
        return self.with_member(replace(member, votes=True))

    def without(self, node_id: str) -> "Configuration":
        """The same without that member."""
        return Configuration(tuple(m for m in self.members if m.node_id != node_id))

    def can_follow(self, previous: "Configuration") -> bool:
        """May this one come after ``before``: is there a voter, and at most one of them other?"""
        return bool(self.voters) and len({*self.voters} ^ {*previous.voters}) <= 1

    def encode(self) -> bytes:
        """As the data of an entry."""
        rows = [[m.node_id, m.name, m.address, m.votes] for m in self.members]
        return CONFIGURATION_MARKER + pack([FORMAT, rows])


UNKNOWN_CONFIGURATION = Configuration()


def is_configuration(data: bytes) -> bool:
    """Is an entry's data a configuration, and no command?"""
    return data[:1] == CONFIGURATION_MARKER


def decode_configuration(data: bytes) -> Configuration:
    """The way back. Raises `ProtocolError`."""
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
    """The address that a member's "host:port" means; None for anything else."""
    host, _, port = text.rpartition(":")
    # Only these are numbers to `int`: "²" is a digit, and none.
    is_valid = host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    return (host, int(port)) if is_valid else None
