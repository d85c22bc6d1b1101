"""How a quorum comes to be, and who may never help to form one (pure). Hazard H5.

A node with an empty data directory has a random id and no vote. Only the node with the smallest name founds
a cluster, and only after every listed peer has answered: empty, the same list of peers. It tells them who
votes, by id; a peer joins if it is empty still and its own id is on the list. A node whose directory was
emptied later has a new id, is on no list, and waits.
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
        try:
            name, node_id, cluster_id, peers = unpack(body, "an answer about forming")
            pairs = tuple((str(a), str(b)) for a, b in peers)
            return cls(str(name), str(node_id), str(cluster_id), pairs)
        except (TypeError, ValueError):
            raise ProtocolError("an answer about forming that cannot be read") from None


@dataclass(frozen=True, slots=True)
class Founding:
    """A cluster that was founded: its id, and who votes, by name."""

    cluster_id: str
    voters: Mapping[str, str]

    def encode(self) -> bytes:
        """As a frame body."""
        return pack([self.cluster_id, dict(self.voters)])

    @classmethod
    def decode(cls, body: Buffer) -> "Founding":
        """Raises `ProtocolError`."""
        value: Any = unpack(body, "a founding")
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict)):
            raise ProtocolError("a founding that cannot be read")
        voters = {str(name): str(node_id) for name, node_id in value[1].items()}
        if not value[0] or not 0 < len(voters) <= VOTERS_MAX:
            raise ProtocolError("a founding without cluster id or voters")
        return cls(str(value[0]), voters)


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
