"""The rules by which a quorum forms, and which nodes may never help to form one (pure). Hazard H5.

A node with an empty data directory has a random ID and no vote. Only the node with the smallest name founds
a cluster. It does so only after every listed peer has answered that it is empty and has the same list of
peers. The founder then sends the IDs of the voters. A peer joins if it is still empty and its own ID is on
that list.

A node whose directory was emptied later has a new ID and is on no list. It waits until an operator adds it
(`membership_changes.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...runtime.interfaces.errors import ProtocolError
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_message, flag, mapping, row, rows, text

VOTERS_MAX = 9
PEERS_MAX = 64
# These fields are written to messages and to the disk, so their lengths are limited.
_ANSWER = row(text(), text(), text(), rows(row(text(), text(300)), PEERS_MAX))
_BOOTSTRAP_FIELDS = (text(chars_min=1), mapping(text(chars_min=1), VOTERS_MAX))


def _decode_bootstrap_fields(value: Any) -> tuple[Any, ...]:
    form = (
        row(*_BOOTSTRAP_FIELDS, flag)
        if type(value) is list and len(value) == 3
        else row(*_BOOTSTRAP_FIELDS)
    )
    fields_read: tuple[Any, ...] = form(value)
    return fields_read


@dataclass(frozen=True, slots=True)
class BootstrapAnswer:
    """The answer of a node while a cluster forms."""

    name: str
    node_id: str
    cluster_id: str
    """Empty while the node belongs to no cluster."""
    peers: tuple[tuple[str, str], ...]
    """The node's list of peers, as sorted pairs of name and "host:port"."""

    def encode(self) -> bytes:
        """Encode the answer as a frame body."""
        return pack([self.name, self.node_id, self.cluster_id, [list(pair) for pair in self.peers]])

    @classmethod
    def decode(cls, body: Buffer) -> "BootstrapAnswer":
        """Decode a frame body, or raise `ProtocolError`."""
        return cls(*decode_message(body, _ANSWER, "an answer about forming"))


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The founding message to an empty node: its cluster, and node IDs of members by name.

    While a cluster forms, it contains all voters. With ``is_addition``, the cluster exists already, and the
    message contains only the ID of the new node. The other members are in the log that it will receive.
    """

    cluster_id: str
    voters: Mapping[str, str]
    is_addition: bool = False

    def encode(self) -> bytes:
        """Encode the message as a frame body."""
        head = [self.cluster_id, dict(self.voters)]
        return pack([*head, True] if self.is_addition else head)

    @classmethod
    def decode(cls, body: Buffer) -> "Bootstrap":
        """Decode a frame body, or raise `ProtocolError`."""
        what = "a founding"
        cluster_id, voters, *addition_flag = decode_message(body, _decode_bootstrap_fields, what)
        if addition_flag:
            (is_addition,) = addition_flag
            if not is_addition:
                raise ProtocolError(f"{what} that adds no node")
        if not voters or len({*voters.values()}) != len(voters):
            raise ProtocolError(f"{what} without voters of different ids")
        return cls(cluster_id, voters, bool(addition_flag))


def sorted_peers(peers: Mapping[str, Address]) -> tuple[tuple[str, str], ...]:
    """Return a list of peers in the form in which lists are compared."""
    return tuple(sorted((name, f"{address[0]}:{address[1]}") for name, address in peers.items()))


@dataclass(frozen=True, slots=True)
class ListDifference:
    """The difference between a list of metadata nodes and the list of this node."""

    peer: str
    """The node with the other list, or "" for the members of the quorum."""
    missing: tuple[str, ...] = ()
    """Names that are only in the list of this node."""
    additional: tuple[str, ...] = ()
    """Names that are only in the other list."""
    moved: tuple[tuple[str, str, str], ...] = ()
    """Name, address in the list of this node, and address in the other list."""

    def __str__(self) -> str:
        whose = f"the list of {self.peer}" if self.peer else "the members of the quorum"
        parts = [f"{name} is {here} here and {there} there" for name, here, there in self.moved]
        parts += [f"{name} is listed here alone" for name in self.missing]
        parts += [f"{name} is listed there alone" for name in self.additional]
        return f"the list of metadata nodes of this node differs from {whose}: {'; '.join(parts)}"


def list_difference(
    peer: str, own_peers: tuple[tuple[str, str], ...], other_peers: tuple[tuple[str, str], ...]
) -> ListDifference | None:
    """Compare two lists. Return None if they are equal."""
    if own_peers == other_peers:
        return None
    own_addresses, other_addresses = dict(own_peers), dict(other_peers)
    return ListDifference(
        peer,
        tuple(name for name in own_addresses if name not in other_addresses),
        tuple(name for name in other_addresses if name not in own_addresses),
        tuple(
            (name, own_addresses[name], other_addresses[name])
            for name in own_addresses
            if name in other_addresses and own_addresses[name] != other_addresses[name]
        ),
    )


def bootstrap_obstacle(own: BootstrapAnswer, answers: Mapping[str, BootstrapAnswer]) -> str:
    """Return why the node ``own`` may not found a cluster now, or "" if it may.

    ``answers`` are the answers of the other peers, by name.
    """
    names = [name for name, _ in own.peers]
    if own.name != min(names):
        return f"{min(names)} founds the cluster"
    for name in names:
        if name == own.name:
            continue
        answer = answers.get(name)
        if answer is None:
            return f"{name} has not answered yet"
        if answer.cluster_id:
            return f"{name} belongs to cluster {answer.cluster_id} already: this node waits to be added"
        if answer.name != name or answer.peers != own.peers:
            return f"{name} answers as {answer.name} and lists other peers: {answer.peers}"
    ids = [answer.node_id for answer in answers.values()]
    if len({own.node_id, *ids}) != len(names):
        return "two names have the same node ID"
    return ""


def may_join(own: BootstrapAnswer, bootstrap: Bootstrap) -> bool:
    """Whether an empty node belongs to a founded cluster. It does only under its own ID."""
    return not own.cluster_id and bootstrap.voters.get(own.name) == own.node_id
