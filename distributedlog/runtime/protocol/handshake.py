"""The first messages on a connection: identity, expected peer and protocol version (pure).

Both sides send HELLO first. AUTH follows, with one of the methods that the server listed in its HELLO. The
checks prevent an answer from a wrong node, for example after another node took over a port or address (H6).
They also reject a certificate of the right authority that belongs to another node (H227).
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
"""Features that a peer must support. A peer rejects the connection if it does not have one of them."""
FEATURE_LACS = 1
"""Accepts WRITE_LACS: the LACs of many streams in one frame."""
FEATURE_ADD_MANY = 2
"""Accepts ADD_MANY: the adds of many streams in one frame."""
FEATURE_TRUST = 4
"""Supports principals: methods of AUTH in addition to ``none``, and authorization."""
FEATURE_ADMIN_RECOVERY = 8
"""Metadata nodes: supports requests of other nodes for the creation of an admin (H238)."""
FEATURE_COMMIT = 16
"""Write proxies: answers PRODUCE_COMMIT when readers can read the acknowledged records."""
FEATURE_ERROR_CODES = 32
"""Accepts codes and separate fields that earlier versions do not have.

Those are the state in an `AppendReply`, and the detail of an error in the answer to a command. Earlier
versions read a text, or use one field for two meanings.
"""
FEATURE_RECORD_HEADERS = 64
"""Of a write proxy: PRODUCE may have keys and headers, and the call ``permit_record_headers`` exists."""
FEATURES = (
    FEATURE_LACS
    | FEATURE_ADD_MANY
    | FEATURE_TRUST
    | FEATURE_ADMIN_RECOVERY
    | FEATURE_COMMIT
    | FEATURE_ERROR_CODES
    | FEATURE_RECORD_HEADERS
)
"""All optional features of this side."""
METHOD_NONE = "none"
"""The method of a client without a proof."""
UNAUTHENTICATED_BYTES_MAX = 4096
UNAUTHENTICATED_ITEMS_MAX = 64
"""The limits for bytes and items of a HELLO or AUTH."""
PROOF_BYTES_MAX = 2048
PRINCIPAL_CHARS_MAX = 160
SESSION_CREDENTIAL_BYTES_MAX = 320
CERTIFICATE_KIND_OF_NODE = {
    "metadata": METADATA,
    "bookie": BOOKIE,
    "write-proxy": PROXY,
    "read-proxy": PROXY,
}
"""The kind in the certificate of a node, by the kind in its HELLO. The names are also compared."""

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
    """The properties that one side states about itself. Empty text means unknown, or not a node."""

    cluster_id: str = ""
    node_id: str = ""
    kind: str = "client"
    """``client``, ``bookie``, ``metadata``, ``write-proxy``, ``read-proxy``, or ``health`` for a health check
    from the node's own machine."""
    label: str = ""
    """A name for people; never used for decisions about the protocol."""
    durability: str = ""
    """The meaning of an acknowledgement of this server: ``fdatasync`` or ``memory``."""
    features: int = FEATURES
    """Bits of `FEATURES` that this side supports. Unknown bits come from newer peers."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A received HELLO: the sender, the node that it expects here, and the name of the listener."""

    hello: Hello
    expected_node_id: str
    listener: str
    nonce: bytes = b""
    """A random value for this connection, if one side may use it in a proof; otherwise empty."""
    methods: tuple[str, ...] = (METHOD_NONE,)
    """The AUTH methods that a server accepts, or that a client has."""


def encode_hello(
    hello: Hello,
    *,
    expected_node_id: str = "",
    listener: str = "",
    nonce: bytes = b"",
    methods: Sequence[str] = (METHOD_NONE,),
) -> bytes:
    """Return the body of a HELLO frame."""
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
    if nonce:  # a HELLO without a nonce is equal to that of versions without nonces
        hello_fields["nonce"] = nonce
    return pack(hello_fields)


def decode_hello(body: Buffer, peer_address: str) -> Greeting:
    """Decode a HELLO.

    Raises:
        ProtocolError: The message is not a valid HELLO.
        UnsupportedFormat: The peer requires a protocol version or a feature that this side does not have.
    """
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
            f"{peer_address} supports protocol {low} to {high}, this side {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )
    if hello_fields["features_required"]:
        feature_names = ", ".join(hello_fields["features_required"])
        raise UnsupportedFormat(
            f"{peer_address} requires features that this version does not have: {feature_names:.200}"
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
    """Return the body of an AUTH frame."""
    return pack({"method": method_name, "proof": proof} if proof else {"method": method_name})


def decode_auth(body: Buffer, peer_address: str) -> tuple[str, bytes]:
    """Decode an AUTH: the method, which may be unknown here, and the proof. Raises `ProtocolError`."""
    what = f"AUTH from {peer_address}"
    value = unpack(
        body, what, bytes_max=UNAUTHENTICATED_BYTES_MAX, items_max=UNAUTHENTICATED_ITEMS_MAX
    )
    auth_fields = check_message(value, _AUTH, what)
    return auth_fields["method"], auth_fields["proof"]


def encode_welcome(welcome: Welcome) -> bytes:
    """Return the body of the reply to an AUTH, which is empty for `ANONYMOUS`."""
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
    """Decode the reply to an AUTH. Raises `ProtocolError`."""
    if not len(body):
        return Welcome()
    what = f"the reply to AUTH from {peer_address}"
    value = unpack(
        body, what, bytes_max=UNAUTHENTICATED_BYTES_MAX, items_max=UNAUTHENTICATED_ITEMS_MAX
    )
    return Welcome(*check_message(value, _WELCOME, what))


def check_hello(
    own_hello: Hello, peer_greeting: Greeting, peer_address: str, *, expected_node_id: str = ""
) -> None:
    """Check that two peers expect each other.

    Args:
        expected_node_id: The node ID that the peer must have; "" accepts any.

    Raises:
        WrongPeer: One of them belongs to another cluster or is another node. The message names it.
    """
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
    """Check that a node has the kind and name of its certificate.

    Args:
        identity: The identity in the certificate, or None without one.
        expected_kind: The kind that the certificate must have, if there is one; "" accepts any.
        expected_principal: The principal that it must have, if there is one; "" accepts any.

    Raises:
        NotAuthenticated: The certificate belongs to another node.
    """
    if expected_kind and identity is not None and identity.kind != expected_kind:
        raise NotAuthenticated(
            f"{peer_address} has the certificate of {identity.principal}, expected is a {expected_kind} node"
        )
    if expected_principal and identity is not None and identity.principal != expected_principal:
        raise NotAuthenticated(
            f"{peer_address} has the certificate of {identity.principal}, but node {hello.node_id} is"
            f" {expected_principal}"
        )
    kind = CERTIFICATE_KIND_OF_NODE.get(hello.kind)
    if identity is None or kind is None:
        return  # clients may have any certificate, or authenticate by other methods
    if (identity.kind, identity.name) != (kind, hello.label):
        raise NotAuthenticated(
            f"{peer_address} has the certificate of {identity.principal}, but its HELLO names a {kind}"
            " with another name"
        )
