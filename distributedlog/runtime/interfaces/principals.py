"""Who speaks on a connection: principals, what proves them, and the shapes of a proof (pure).

A principal is a text: ``metadata/m1``, ``bookie/b4``, ``proxy/p1``, ``user/etl``, or `ANONYMOUS`. It is
proved once a connection, by one of the methods that the server takes; nothing in a later frame changes it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from .errors import InvalidRequest

ANONYMOUS = "anonymous"
LOCAL = "user/local"
"""Whoever holds the secret of a cluster on this machine (`local_secret.py`): all of it is theirs."""
METADATA, BOOKIE, PROXY, USER = "metadata", "bookie", "proxy", "user"
SERVERS = (METADATA, BOOKIE, PROXY)
"""Kinds that may be dialled."""
KINDS = (*SERVERS, USER)
NONCE_BYTES = 16
BY_CERTIFICATE = "cert"
"""The method by which TLS has shown who it is; see `tls.py`."""
BY_LOCAL_SECRET = "local"
"""That of a cluster on this machine; see `local_secret.py`."""
WARN_REMAINING_FRACTION = 0.2
"""The share of a certificate's life below which its end is a condition of the node."""


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """Who a certificate says the other end is."""

    domain: str
    """The cluster's name among certificates."""
    kind: str
    """One of `KINDS`."""
    name: str
    serial: str
    """Of the certificate, as `serial_of` gives it."""
    ends_s: int
    """Seconds since 1970."""
    begins_s: int = 0

    @property
    def principal(self) -> str:
        """``bookie/b4``"""
        return f"{self.kind}/{self.name}"

    def remaining_fraction(self, now_ms: int) -> float:
        """How much of the certificate's life is left: 1 at its beginning, 0 from its end on."""
        life_s = max(1, self.ends_s - self.begins_s)
        return min(1.0, max(0.0, (self.ends_s - now_ms / 1000) / life_s))

    @property
    def ends_at(self) -> str:
        """The end, for people."""
        return f"{datetime.fromtimestamp(self.ends_s, UTC):%Y-%m-%d %H:%M UTC}"


def serial_of(text: str) -> str:
    """A certificate's serial as it is compared: small hexadecimal digits without colons and leading zeros.

    Programs show it in different ways. Raises `InvalidRequest`.
    """
    digits = text.strip().replace(":", "").lower().lstrip("0")
    if not digits or not set(digits) <= set("0123456789abcdef"):
        raise InvalidRequest(f"{text[:60]!r} is no certificate's serial: hexadecimal digits are")
    return digits


def principal_kind(principal: str) -> str:
    """The part before the slash: one of `KINDS`, or `ANONYMOUS`."""
    return principal.partition("/")[0]


@dataclass(frozen=True, slots=True)
class HandshakeContext:
    """What both ends know of a connection when one of them proves who it is."""

    peer_address: str
    port: int
    """The server's."""
    server_nonce: bytes = b""
    """Drawn by the server for this connection; empty before its HELLO was heard."""
    client_nonce: bytes = b""
    listener: str = ""
    """The server's name for where the connection came in."""
    identity: CertificateIdentity | None = None
    """Of the other end, where that has a certificate."""
    is_secret: bool = False
    """Nobody between the two can read it: TLS."""


TokenScope = tuple[tuple[str, str, int], ...]
"""Namespace, path, rights (bits of `metadata/model/rights.py`); of no paths: not narrowed."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says. Whether that is so, its seal tells, and the user's record."""

    user: str
    ends_s: int
    """Seconds since 1970."""
    revoked_at_revision: int
    key: int
    """The number of the secret that it is sealed with."""
    cluster_id: str
    name: bytes
    """Drawn for it."""
    token_scope: TokenScope = ()
    proof: bytes = field(default=b"", repr=False, compare=False)
    """The token itself, as it was shown."""

    @property
    def principal(self) -> str:
        """``user/etl``"""
        return f"user/{self.user}"


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a server answers to a proof."""

    principal: str = ANONYMOUS
    generation: int = 0
    """Of the keys that its answers to this principal are made with; 0: none."""
    rights: int = 0
    """Bits that the method defines."""
    session_credential: bytes = b""
    """What the client shows elsewhere, or the server's own proof (method ``local``)."""
    token: Token | None = None
    """By which it is proved, for the server itself: neither this nor the next is sent."""
    valid_s: float = inf
    """Of the proof: the connection ends then."""


Verify = Callable[[HandshakeContext, bytes], Welcome]
"""A server's side of a method: who has this proof? Raises `NotAuthenticated`. Must not wait."""
RemoteVerify = Callable[[HandshakeContext, bytes], Awaitable[Welcome]]
"""The same where another server knows it. Raises what keeps that from answering, too."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's side of a method."""

    method: str
    prove: Callable[[HandshakeContext], bytes]
    """The proof; may raise `NotAuthenticated`."""
    needs_nonce: bool = False
    """The proof is made with the server's nonce, and so leaves one flight later."""
    proved_by_tls: bool = False
    """The proof is the connection's own: where it is plain there is none, and nothing to prove."""
    check: Callable[[HandshakeContext, Welcome], None] = lambda meeting, welcome: None
    """Is this server the one it should be? Raises `NotAuthenticated`."""


def anonymous(context: HandshakeContext, proof: bytes) -> Welcome:
    """The method ``none``: whoever comes is welcome."""
    return Welcome()
