"""The first words on a connection: who is there, who is expected, which protocol (pure).

HELLO goes both ways before anything else, then AUTH (method ``none`` today), so that TLS, accounts and
new formats can come without a break. The checks are the cure for H6 (an answer from the wrong node: a
port or address that another one has taken over).
"""

from dataclasses import dataclass
from typing import Any

from .errors import ProtocolError, UnsupportedFormat, WrongPeer
from .frames import FRAME_BYTES_MAX, pack, unpack
from .host import Buffer

MAGIC = "distributedlog"
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
FEATURES_REQUIRED: tuple[str, ...] = ()
"""What a peer must understand to talk to us; it refuses what it does not know."""
AUTH_METHODS = ("none",)
TEXT_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class Hello:
    """What one side says of itself. Empty text: not known, or not a node."""

    cluster_id: str = ""
    node_id: str = ""
    kind: str = "client"
    """``client``, ``bookie`` or ``metadata``."""
    label: str = ""
    """A name for people; never compared."""
    durability: str = ""
    """What an acknowledgement of this server means: ``fdatasync`` or ``memory``."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A HELLO as it came in: the sender, whom it expects here, and the listener's name."""

    hello: Hello
    expected_node_id: str
    listener: str


def encode(hello: Hello, *, expected_node_id: str = "", listener: str = "") -> bytes:
    """The body of a HELLO frame."""
    return pack(
        {
            "magic": MAGIC,
            "protocol_min": PROTOCOL_MIN,
            "protocol_max": PROTOCOL_MAX,
            "features_required": list(FEATURES_REQUIRED),
            "cluster": hello.cluster_id,
            "node": hello.node_id,
            "kind": hello.kind,
            "label": hello.label[:TEXT_CHARS_MAX],
            "durability": hello.durability,
            "expected": expected_node_id,
            "listener": listener,
            "auth": list(AUTH_METHODS),
            "frame_bytes_max": FRAME_BYTES_MAX,
        }
    )


def decode(body: Buffer, peer_address: str) -> Greeting:
    """Read a HELLO. Raises `ProtocolError`, or `UnsupportedFormat` for a protocol we do not speak."""
    value = unpack(body, f"HELLO from {peer_address}")
    if not isinstance(value, dict) or value.get("magic") != MAGIC:
        raise ProtocolError(f"{peer_address} did not begin with a HELLO of distributedlog")
    low, high = (
        _number(value, "protocol_min", peer_address),
        _number(value, "protocol_max", peer_address),
    )
    if high < PROTOCOL_MIN or low > PROTOCOL_MAX:
        raise UnsupportedFormat(
            f"{peer_address} speaks protocol {low} to {high}, this one {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )
    required = value.get("features_required")
    if not isinstance(required, list) or required:
        raise UnsupportedFormat(
            f"{peer_address} requires features that are not known here: {required!r:.200}"
        )
    auth = value.get("auth")
    if not isinstance(auth, list) or not set(map(str, auth)) & set(AUTH_METHODS):
        raise ProtocolError(f"{peer_address} offers no authentication method of {AUTH_METHODS}")
    hello = Hello(
        cluster_id=_text(value, "cluster", peer_address),
        node_id=_text(value, "node", peer_address),
        kind=_text(value, "kind", peer_address),
        label=_text(value, "label", peer_address),
        durability=_text(value, "durability", peer_address),
    )
    return Greeting(
        hello, _text(value, "expected", peer_address), _text(value, "listener", peer_address)
    )


def check(ours: Hello, theirs: Greeting, peer_address: str, *, expected_node_id: str = "") -> None:
    """Are these two meant for each other? Raises `WrongPeer` that says what was met instead."""
    if ours.cluster_id and theirs.hello.cluster_id and ours.cluster_id != theirs.hello.cluster_id:
        raise WrongPeer(
            f"{peer_address} belongs to cluster {theirs.hello.cluster_id}, this is {ours.cluster_id}"
        )
    if expected_node_id and theirs.hello.node_id != expected_node_id:
        met = theirs.hello.node_id or "none"
        raise WrongPeer(f"{peer_address} is node {met}, expected was {expected_node_id}")
    if theirs.expected_node_id and theirs.expected_node_id != ours.node_id:
        raise WrongPeer(
            f"{peer_address} expects node {theirs.expected_node_id}, this is {ours.node_id or 'none'}"
        )


def _text(value: dict[str, Any], name: str, peer_address: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or len(found) > TEXT_CHARS_MAX:
        raise ProtocolError(f"HELLO from {peer_address}: {name} is not a short text")
    return found


def _number(value: dict[str, Any], name: str, peer_address: str) -> int:
    found = value.get(name)
    if not isinstance(found, int):
        raise ProtocolError(f"HELLO from {peer_address}: {name} is not a number")
    return found
