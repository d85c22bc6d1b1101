"""The first words on a connection: who is there, who is expected, which protocol (pure).

HELLO goes both ways before anything else, then AUTH, by one of the methods that the server named in HELLO.
The checks are the cure for H6 (an answer from the wrong node: a port or address that another one has taken
over) and for H227 (the right authority's certificate in the wrong hands).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..interfaces.errors import NotAuthenticated, ProtocolError, UnsupportedFormat, WrongPeer
from ..interfaces.host import Buffer
from ..interfaces.principals import (
    BOOKIE,
    METADATA,
    NONCE_BYTES,
    PROXY,
    CertificateIdentity,
    Welcome,
)
from .frames import FRAME_BYTES_MAX, pack, unpack
from .schema import TEXT_CHARS_MAX, blob, check_message, fields, number, row, rows, text

MAGIC = "distributedlog"
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
FEATURES_REQUIRED: tuple[str, ...] = ()
"""What a peer must understand to talk to us; it refuses what it does not know."""
FEATURE_LACS = 1
"""Takes WRITE_LACS: the LACs of many streams in one frame."""
FEATURE_ADD_MANY = 2
"""Takes ADD_MANY: the adds of many streams in one frame."""
FEATURE_TRUST = 4
"""Knows principals: methods of AUTH beside ``none``, and what follows from them."""
FEATURE_ADMIN_RECOVERY = 8
"""Of a metadata node: is asked for an admin by others (H238)."""
FEATURE_COMMIT = 16
"""Of a write proxy: answers PRODUCE_COMMIT when readers see what was acknowledged."""
FEATURE_ERROR_CODES = 32
"""Takes codes and own fields where earlier versions read a text or share a field between two meanings: the
state in an `AppendReply`, the detail of an error in the answer to a command."""
FEATURES = (
    FEATURE_LACS
    | FEATURE_ADD_MANY
    | FEATURE_TRUST
    | FEATURE_ADMIN_RECOVERY
    | FEATURE_COMMIT
    | FEATURE_ERROR_CODES
)
"""What this side understands and no peer has to."""
METHOD_NONE = "none"
"""The method of who proves nothing."""
UNAUTHENTICATED_BYTES_MAX = 4096
UNAUTHENTICATED_ITEMS_MAX = 64
"""A HELLO or AUTH is no larger, and holds no more."""
PROOF_BYTES_MAX = 2048
PRINCIPAL_CHARS_MAX = 160
SESSION_CREDENTIAL_BYTES_MAX = 320
CERTIFICATE_KIND_OF_NODE = {
    "metadata": METADATA,
    "bookie": BOOKIE,
    "write-proxy": PROXY,
    "read-proxy": PROXY,
}
"""What a node that says in HELLO to be of that kind has in its certificate, with its name."""

_TEXTS = rows(text(64), 16)
_U32 = number(0, 0xFFFF_FFFF)
_HELLO = fields(
    {"features": (_U32, 0), "nonce": (blob(NONCE_BYTES), b"")},
    protocol_min=number(0, 0xFFFF),
    protocol_max=number(0, 0xFFFF),
    features_required=_TEXTS,
    auth=_TEXTS,
    cluster=text(),
    node=text(),
    kind=text(),
    label=text(),
    durability=text(),
    expected=text(),
    listener=text(),
)
_AUTH = fields({"proof": (blob(PROOF_BYTES_MAX), b"")}, method=text(16))
_WELCOME = row(
    text(PRINCIPAL_CHARS_MAX, 1), _U32, _U32, blob(SESSION_CREDENTIAL_BYTES_MAX), later=True
)


@dataclass(frozen=True, slots=True)
class Hello:
    """What one side says of itself. Empty text: not known, or not a node."""

    cluster_id: str = ""
    node_id: str = ""
    kind: str = "client"
    """``client``, ``bookie``, ``metadata``, ``write-proxy``, ``check_message-proxy``, or ``health`` of who
    asks after a node on its own machine."""
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
    nonce: bytes = b""
    """Drawn for this connection, where one of both ends may make a proof with it; else empty."""
    methods: tuple[str, ...] = (METHOD_NONE,)
    """Of AUTH: those that a server takes, or that a client has."""


def encode_hello(
    hello: Hello,
    *,
    expected_node_id: str = "",
    listener: str = "",
    nonce: bytes = b"",
    methods: Sequence[str] = (METHOD_NONE,),
) -> bytes:
    """The body of a HELLO frame."""
    hello_fields = {
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
        "auth": list(methods),
        "frame_bytes_max": FRAME_BYTES_MAX,
    }
    if nonce:  # without one a HELLO is what it was before there were any
        hello_fields["nonce"] = nonce
    return pack(hello_fields)


def decode_hello(body: Buffer, peer_address: str) -> Greeting:
    """Read a HELLO. Raises `ProtocolError`, or `UnsupportedFormat` for a protocol we do not speak."""
    what = f"HELLO from {peer_address}"
    hello_map = unpack(
        body, what, bytes_max=UNAUTHENTICATED_BYTES_MAX, items_max=UNAUTHENTICATED_ITEMS_MAX
    )
    if not isinstance(hello_map, dict) or hello_map.get("magic") != MAGIC:
        raise ProtocolError(f"{peer_address} did not begin with a HELLO of distributedlog")
    hello_fields = check_message(hello_map, _HELLO, what)
    low, high = hello_fields["protocol_min"], hello_fields["protocol_max"]
    if high < PROTOCOL_MIN or low > PROTOCOL_MAX:
        raise UnsupportedFormat(
            f"{peer_address} speaks protocol {low} to {high}, this one {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )
    if hello_fields["features_required"]:
        feature_names = ", ".join(hello_fields["features_required"])
        raise UnsupportedFormat(
            f"{peer_address} requires features that are not known here: {feature_names:.200}"
        )
    hello = Hello(
        hello_fields["cluster"],
        hello_fields["node"],
        hello_fields["kind"],
        hello_fields["label"],
        hello_fields["durability"],
        hello_fields["features"],
    )
    return Greeting(
        hello,
        hello_fields["expected"],
        hello_fields["listener"],
        hello_fields["nonce"],
        hello_fields["auth"],
    )


def encode_auth(method_name: str = METHOD_NONE, proof: bytes = b"") -> bytes:
    """The body of an AUTH."""
    return pack({"method": method_name, "proof": proof} if proof else {"method": method_name})


def decode_auth(body: Buffer, peer_address: str) -> tuple[str, bytes]:
    """An AUTH: the method, known here or not, and the proof. Raises `ProtocolError`."""
    what = f"AUTH from {peer_address}"
    value = unpack(
        body, what, bytes_max=UNAUTHENTICATED_BYTES_MAX, items_max=UNAUTHENTICATED_ITEMS_MAX
    )
    auth_fields = check_message(value, _AUTH, what)
    return auth_fields["method"], auth_fields["proof"]


def encode_welcome(welcome: Welcome) -> bytes:
    """The body of the answer to an AUTH; of `ANONYMOUS` there is nothing to say."""
    if welcome == Welcome():
        return b""
    welcome_fields = [
        welcome.principal,
        welcome.generation,
        welcome.rights,
        welcome.session_credential,
    ]
    return pack(welcome_fields)


def decode_welcome(body: Buffer, peer_address: str) -> Welcome:
    """The other way round. Raises `ProtocolError`."""
    if not len(body):
        return Welcome()
    what = f"AUTH's answer of {peer_address}"
    value = unpack(
        body, what, bytes_max=UNAUTHENTICATED_BYTES_MAX, items_max=UNAUTHENTICATED_ITEMS_MAX
    )
    return Welcome(*check_message(value, _WELCOME, what))


def check_hello(
    own_hello: Hello, peer_greeting: Greeting, peer_address: str, *, expected_node_id: str = ""
) -> None:
    """Are these two meant for each other? Raises `WrongPeer` that says what was met instead."""
    if (
        own_hello.cluster_id
        and peer_greeting.hello.cluster_id
        and own_hello.cluster_id != peer_greeting.hello.cluster_id
    ):
        raise WrongPeer(
            f"{peer_address} belongs to cluster {peer_greeting.hello.cluster_id}, this is "
            f"{own_hello.cluster_id}"
        )
    if expected_node_id and peer_greeting.hello.node_id != expected_node_id:
        actual_node_id = peer_greeting.hello.node_id or "none"
        raise WrongPeer(f"{peer_address} is node {actual_node_id}, expected was {expected_node_id}")
    if peer_greeting.expected_node_id and peer_greeting.expected_node_id != own_hello.node_id:
        raise WrongPeer(
            f"{peer_address} expects node {peer_greeting.expected_node_id}, this is "
            f"{own_hello.node_id or 'none'}"
        )


def check_identity(
    identity: CertificateIdentity | None,
    hello: Hello,
    peer_address: str,
    *,
    expected_kind: str = "",
    expected_principal: str = "",
) -> None:
    """Is a node what its certificate says, by kind and name? Raises `NotAuthenticated`.

    ``wanted``: the kind that it has to be, where it has one, and ``principal`` who; "": any.
    """
    if expected_kind and identity is not None and identity.kind != expected_kind:
        raise NotAuthenticated(
            f"{peer_address} shows the certificate of {identity.principal}, wanted is a {expected_kind} node"
        )
    if expected_principal and identity is not None and identity.principal != expected_principal:
        raise NotAuthenticated(
            f"{peer_address} shows the certificate of {identity.principal}, and node {hello.node_id} is"
            f" {expected_principal}"
        )
    kind = CERTIFICATE_KIND_OF_NODE.get(hello.kind)
    if identity is None or kind is None:
        return  # a client may have any certificate, and who has none proves something else, or nothing
    if (identity.kind, identity.name) != (kind, hello.label):
        raise NotAuthenticated(
            f"{peer_address} shows the certificate of {identity.principal} and says that it is a {kind}"
            " of another name"
        )
