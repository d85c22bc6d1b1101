"""Principals on a connection, the methods that prove them, and the forms of a proof (pure).

A principal is a text: ``metadata/m1``, ``bookie/b4``, ``proxy/p1``, ``user/etl``, or `ANONYMOUS`. It is
proved once per connection by one of the methods that the server accepts. No later frame changes it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from .errors import InvalidRequest

ANONYMOUS = "anonymous"
LOCAL = "user/local"
"""The principal of a client with the secret of a cluster on this machine (`local_secret.py`). It has all
rights."""
METADATA, BOOKIE, PROXY, USER = "metadata", "bookie", "proxy", "user"
SERVERS = (METADATA, BOOKIE, PROXY)
"""Kinds that accept connections."""
KINDS = (*SERVERS, USER)
NONCE_BYTES = 16
BY_CERTIFICATE = "cert"
"""The method for an identity that TLS has verified; see `tls.py`."""
BY_LOCAL_SECRET = "local"
"""The method of a cluster on this machine; see `local_secret.py`."""
WARN_REMAINING_FRACTION = 0.2
"""A certificate with less than this fraction of its life left causes a health condition of the node."""


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """The identity in the certificate of the other end."""

    domain: str
    """The name of the cluster in certificates."""
    kind: str
    """One of `KINDS`."""
    name: str
    serial: str
    """The serial number of the certificate, in the form of `serial_of`."""
    ends_s: int
    """Seconds since 1970."""
    begins_s: int = 0

    @property
    def principal(self) -> str:
        """The principal, such as ``bookie/b4``."""
        return f"{self.kind}/{self.name}"

    def remaining_fraction(self, now_ms: int) -> float:
        """Return the remaining fraction of the certificate's life: 1 at its beginning, 0 from its end on."""
        life_s = max(1, self.ends_s - self.begins_s)
        return min(1.0, max(0.0, (self.ends_s - now_ms / 1000) / life_s))

    @property
    def ends_at(self) -> str:
        """The end as text for people."""
        return f"{datetime.fromtimestamp(self.ends_s, UTC):%Y-%m-%d %H:%M UTC}"


def serial_of(text: str) -> str:
    """Normalize the serial number of a certificate, because programs print it in different forms.

    The result has lower-case hexadecimal digits, without colons and leading zeros.

    Raises:
        InvalidRequest: The text is not a hexadecimal number.
    """
    digits = text.strip().replace(":", "").lower().lstrip("0")
    if not digits or not set(digits) <= set("0123456789abcdef"):
        raise InvalidRequest(f"{text[:60]!r} is not a serial number: use hexadecimal digits")
    return digits


def principal_kind(principal: str) -> str:
    """Return the part before the slash: one of `KINDS`, or `ANONYMOUS`."""
    return principal.partition("/")[0]


@dataclass(frozen=True, slots=True)
class HandshakeContext:
    """The facts about a connection that both ends use for a proof."""

    peer_address: str
    port: int
    """The port of the server."""
    server_nonce: bytes = b""
    """A random value of the server for this connection; empty before its HELLO was received."""
    client_nonce: bytes = b""
    listener: str = ""
    """The server's name for the listener that accepted the connection."""
    identity: CertificateIdentity | None = None
    """The identity in the certificate of the other end, if it has one."""
    is_secret: bool = False
    """Whether the connection uses TLS, so that no third party can read it."""


TokenScope = tuple[tuple[str, str, int], ...]
"""Rows of namespace, path and rights (bits of `metadata/model/rights.py`); empty for an unrestricted token.
"""


@dataclass(frozen=True, slots=True)
class Token:
    """The content of a token. The signature and the user's record determine whether it is valid."""

    user: str
    ends_s: int
    """Seconds since 1970."""
    revoked_at_revision: int
    key: int
    """The number of the secret with which it is signed."""
    cluster_id: str
    name: bytes
    """A random value for this token."""
    token_scope: TokenScope = ()
    proof: bytes = field(default=b"", repr=False, compare=False)
    """The token as the client sent it."""

    @property
    def principal(self) -> str:
        """The principal, such as ``user/etl``."""
        return f"user/{self.user}"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The reply of a server to a proof."""

    principal: str = ANONYMOUS
    generation: int = 0
    """The generation of the secrets with which its capabilities for this principal are made; 0 for none."""
    rights: int = 0
    """Bits that the method defines."""
    session_credential: bytes = b""
    """The credential that the client presents to other servers, or the server's own proof (method ``local``).
    """
    token: Token | None = None
    """The token that proved the principal. Only the server uses it; neither this field nor the next is sent.
    """
    valid_s: float = inf
    """How long the proof is valid, in seconds. The connection ends then."""


Verifier = Callable[[HandshakeContext, bytes], Welcome]
"""The server's side of a method: returns the principal of a proof. Raises `NotAuthenticated`. Must not wait.
"""
RemoteVerifier = Callable[[HandshakeContext, bytes], Awaitable[Welcome]]
"""A `Verifier` that queries another server. Also raises the errors of that query."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The client's side of a method."""

    method: str
    prove: Callable[[HandshakeContext], bytes]
    """Returns the proof; may raise `NotAuthenticated`."""
    needs_nonce: bool = False
    """Whether the proof uses the server's nonce, and is therefore sent one round trip later."""
    proved_by_tls: bool = False
    """Whether the TLS handshake is the proof. A plain connection has no proof then."""
    check: Callable[[HandshakeContext, Welcome], None] = lambda context, welcome: None
    """Checks that the server is the expected one. Raises `NotAuthenticated`."""


def anonymous(context: HandshakeContext, proof: bytes) -> Welcome:
    """Accept any client as anonymous: the method ``none``."""
    return Welcome()
