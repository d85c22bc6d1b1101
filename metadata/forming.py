"""How a quorum comes to be, and who may never help to form one (pure). Hazard H5.

A node with an empty data directory has a random id and no vote. Only the node with the smallest name founds
a cluster, and only after every listed peer has answered: empty, the same list of peers. It tells them who
votes, by id; a peer joins if it is empty still and its own id is on the list. A node whose directory was
emptied later has a new id, is on no list, and waits until an operator has it let in (`admission.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..runtime.errors import ProtocolError
from ..runtime.frames import pack, unpack
from ..runtime.host import Address, Buffer

VOTERS_MAX = 9


@dataclass(frozen=True, slots=True)
class FormAnswer:
    """What a node says of itself while a cluster forms."""

    name: str
    node_id: str
    cluster_id: str
    """"" while it belongs to none."""
    peers: tuple[tuple[str, str], ...]
    """Its list, as sorted (name, "host:port")."""

    def encode(self) -> bytes:
        """As a frame body."""
        return pack([self.name, self.node_id, self.cluster_id, [list(pair) for pair in self.peers]])

    @classmethod
    def decode(cls, body: Buffer) -> "FormAnswer":
        """Raises `ProtocolError`."""
        match unpack(body, "an answer about forming"):
            case [str() as name, str() as node_id, str() as cluster_id, list() as peers]:
                return cls(name, node_id, cluster_id, tuple(map(_pair, peers)))
        raise ProtocolError("an answer about forming that cannot be read")


@dataclass(frozen=True, slots=True)
class Founding:
    """What an empty node is told: the cluster that it belongs to, and the ids of members by name.

    While a cluster forms: all its voters. ``let_in``: the cluster formed before; the node's own id only,
    and who else there is will be in the log that it gets.
    """

    cluster_id: str
    voters: Mapping[str, str]
    let_in: bool = False

    def encode(self) -> bytes:
        """As a frame body."""
        head = [self.cluster_id, dict(self.voters)]
        return pack([*head, True] if self.let_in else head)

    @classmethod
    def decode(cls, body: Buffer) -> "Founding":
        """Raises `ProtocolError`."""
        match unpack(body, "a founding"):
            case [str() as cluster_id, dict() as voters, *more] if cluster_id and more in (
                [],
                [True],
            ):
                names = [name for name in voters if isinstance(name, str)]
                ids = [
                    node_id for node_id in voters.values() if isinstance(node_id, str) and node_id
                ]
                if 0 < len(voters) <= VOTERS_MAX and len(names) == len(set(ids)) == len(voters):
                    return cls(cluster_id, dict(zip(names, ids, strict=True)), bool(more))
        raise ProtocolError("a founding without cluster id or voters of different ids")


def _pair(value: Any) -> tuple[str, str]:
    match value:
        case [str() as name, str() as address]:
            return name, address
    raise ProtocolError("a list of peers that cannot be read")


def listed(peers: Mapping[str, Address]) -> tuple[tuple[str, str], ...]:
    """A list of peers in the form that is compared."""
    return tuple(sorted((name, f"{address[0]}:{address[1]}") for name, address in peers.items()))


def may_found(ours: FormAnswer, answers: Mapping[str, FormAnswer]) -> str:
    """Why ``ours`` may not found a cluster now; "" if it may. ``answers`` are the other peers', by name."""
    names = [name for name, _ in ours.peers]
    if ours.name != min(names):
        return f"{min(names)} is the one that founds"
    for name in names:
        if name == ours.name:
            continue
        answer = answers.get(name)
        if answer is None:
            return f"{name} has not answered yet"
        if answer.cluster_id:
            return f"{name} belongs to cluster {answer.cluster_id} already: this node waits to be added"
        if answer.name != name or answer.peers != ours.peers:
            return f"{name} calls itself {answer.name} and lists other peers: {answer.peers}"
    ids = [answer.node_id for answer in answers.values()]
    if len({ours.node_id, *ids}) != len(names):
        return "two names answer with one node id"
    return ""


def may_join(ours: FormAnswer, founding: Founding) -> bool:
    """Does an empty node belong to a cluster that was founded? Only under its own id."""
    return not ours.cluster_id and founding.voters.get(ours.name) == ours.node_id
