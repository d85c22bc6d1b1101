"""The first words on a connection: who is there, who is expected, which protocol (pure).

HELLO goes both ways before anything else, then AUTH (method ``none`` today), so that TLS, accounts and
new formats can come without a break. The checks are the cure for H6 (an answer from the wrong node: a
port or address that another one has taken over).
"""

from dataclasses import dataclass

from .errors import ProtocolError, UnsupportedFormat, WrongPeer
from .frames import FRAME_BYTES_MAX, pack, unpack
from .host import Buffer
from .schema import TEXT_CHARS_MAX, fields, number, read, rows, text, word

MAGIC = "distributedlog"
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
FEATURES_REQUIRED: tuple[str, ...] = ()
"""What a peer must understand to talk to us; it refuses what it does not know."""
FEATURE_LACS = 1
"""Takes WRITE_LACS: the LACs of many streams in one frame."""
FEATURE_MANY = 2
"""Takes ADD_MANY: the adds of many streams in one frame."""
FEATURES = FEATURE_LACS | FEATURE_MANY
"""What this side understands and no peer has to."""
AUTH_METHODS = ("none",)
STRANGER_BYTES_MAX = 4096
STRANGER_ITEMS_MAX = 64
"""A HELLO or AUTH is no larger, and holds no more."""

_WORDS = rows(text(64), 16)
_HELLO = fields(
    {"features": (number(0, 0xFFFF_FFFF), 0)},
    protocol_min=number(0, 0xFFFF),
    protocol_max=number(0, 0xFFFF),
    features_required=_WORDS,
    auth=_WORDS,
    cluster=text(),
    node=text(),
    kind=text(),
    label=text(),
    durability=text(),
    expected=text(),
    listener=text(),
)
_AUTH = fields(method=word(*AUTH_METHODS))


@dataclass(frozen=True, slots=True)
class Hello:
    """What one side says of itself. Empty text: not known, or not a node."""

    cluster_id: str = ""
    node_id: str = ""
    kind: str = "client"
    """``client``, ``bookie``, ``metadata``, ``write-proxy``, ``read-proxy``, or ``health`` of who asks
    after a node on its own machine."""
    label: str = ""
    """A name for people; never compared."""
    durability: str = ""
    """What an acknowledgement of this server means: ``fdatasync`` or ``memory``."""
    features: int = FEATURES
    """Bits, `FEATURES`, of what this side takes beyond the protocol; unknown ones are a newer peer's."""


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
            "features": hello.features,
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
    what = f"HELLO from {peer_address}"
    value = unpack(body, what, bytes_max=STRANGER_BYTES_MAX, items_max=STRANGER_ITEMS_MAX)
    if not isinstance(value, dict) or value.get("magic") != MAGIC:
        raise ProtocolError(f"{peer_address} did not begin with a HELLO of distributedlog")
    said = read(value, _HELLO, what)
    low, high = said["protocol_min"], said["protocol_max"]
    if high < PROTOCOL_MIN or low > PROTOCOL_MAX:
        raise UnsupportedFormat(
            f"{peer_address} speaks protocol {low} to {high}, this one {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )
    if said["features_required"]:
        named = ", ".join(said["features_required"])
        raise UnsupportedFormat(
            f"{peer_address} requires features that are not known here: {named:.200}"
        )
    if not set(said["auth"]) & set(AUTH_METHODS):
        raise ProtocolError(f"{peer_address} offers no authentication method of {AUTH_METHODS}")
    hello = Hello(
        said["cluster"],
        said["node"],
        said["kind"],
        said["label"],
        said["durability"],
        said["features"],
    )
    return Greeting(hello, said["expected"], said["listener"])


def check_auth(body: Buffer, peer_address: str) -> None:
    """Read an AUTH: the method ``none`` is the only one today. Raises `ProtocolError`."""
    what = f"AUTH from {peer_address}"
    value = unpack(body, what, bytes_max=STRANGER_BYTES_MAX, items_max=STRANGER_ITEMS_MAX)
    read(value, _AUTH, what)


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
