"""Frame bodies of META_TRUST requests about tokens and secrets, and of the replies (pure).

Requests and replies::

    ["token", user, valid s, [[namespace, path, rights], ...]]     REPLY  the token
    ["verify", token]                                              REPLY  [seconds left]
    ["rotate", "ledgers" | "tokens"]                               REPLY  [number]
    ["rescue", user]                                               REPLY  [names]

An empty user in "token" stands for the requester. Proxies and operators may send "verify", admins "rotate",
and metadata nodes "rescue" (`admin_recovery.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.principals import TokenScope
from ...runtime.protocol.frames import pack, unpack
from ...runtime.protocol.schema import (
    blob,
    check_message,
    decode_message,
    number,
    one_of,
    row,
    rows,
    text,
)
from ...runtime.protocol.tokens import SCOPE_PATHS_MAX, TEXT_BYTES_MAX, USER_CHARS_MAX, read_token
from ..model.acl_records import NAME_CHARS_MAX
from ..model.configuration import MEMBERS_MAX
from .client_messages import PATH_CHARS_MAX, AuthorizationRequest

_PATHS = rows(row(text(PATH_CHARS_MAX, 1), text(PATH_CHARS_MAX), number(1, 31)), SCOPE_PATHS_MAX)
_TOKEN = row(one_of("token"), text(USER_CHARS_MAX), number(), _PATHS)
_VERIFY = row(one_of("verify"), blob(TEXT_BYTES_MAX, 1))
_ROTATE = row(one_of("rotate"), one_of("ledgers", "tokens"))
_RESCUE = row(one_of("rescue"), text(NAME_CHARS_MAX, 1))
_BY = row(rows(text(), MEMBERS_MAX))
_LEFT = row(number())
_NUMBER = row(number(1))


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request to issue a token."""

    user: str
    valid_s: int
    token_scope: TokenScope = ()

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack(["token", self.user, self.valid_s, [list(scope) for scope in self.token_scope]])


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A request to verify a token."""

    proof: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack(["verify", self.proof])


@dataclass(frozen=True, slots=True)
class RotateRequest:
    """A request for a new generation of secrets."""

    what: str

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack(["rotate", self.what])


@dataclass(frozen=True, slots=True)
class AdminRecoveryRequest:
    """A request to make a user admin, because no admin is left."""

    user: str

    def encode(self) -> bytes:
        """Encode the request as a frame body."""
        return pack(["rescue", self.user])


def decode_authorization_request(
    body: Buffer,
) -> AuthorizationRequest | TokenRequest | VerifyRequest | RotateRequest | AdminRecoveryRequest:
    """Decode a META_TRUST request of any kind, or raise `ProtocolError`."""
    what = "META_TRUST"
    value = unpack(body, what)
    kind = value[0] if type(value) is list and value and type(value[0]) is str else ""
    if kind == "token":
        _, user, valid_s, token_scope = check_message(value, _TOKEN, what)
        return TokenRequest(user, valid_s, token_scope)
    if kind == "verify":
        return VerifyRequest(check_message(value, _VERIFY, what)[1])
    if kind == "rotate":
        return RotateRequest(check_message(value, _ROTATE, what)[1])
    if kind == "rescue":
        return AdminRecoveryRequest(check_message(value, _RESCUE, what)[1])
    return AuthorizationRequest.decode(body)


def encode_remaining(remaining_s: float) -> bytes:
    """Encode the reply to `VerifyRequest`."""
    return pack([max(0, int(remaining_s))])


def decode_remaining(body: Buffer) -> int:
    """Return the remaining seconds in the reply to `VerifyRequest`, or raise `ProtocolError`."""
    return int(decode_message(body, _LEFT, "the answer about a token")[0])


def encode_requesting_nodes(names: Sequence[str]) -> bytes:
    """Encode the reply to `AdminRecoveryRequest`: the nodes that made the request.

    The list is empty if too few nodes request the same.
    """
    return pack([list(names)])


def decode_requesting_nodes(body: Buffer) -> tuple[str, ...]:
    """Decode the reply to `AdminRecoveryRequest`, or raise `ProtocolError`."""
    names: tuple[str, ...] = decode_message(body, _BY, "the answer to a rescue")[0]
    return names


def encode_number(generation: int) -> bytes:
    """Encode the reply to `RotateRequest`: the number of the newest generation."""
    return pack([generation])


def decode_number(body: Buffer) -> int:
    """Decode the reply to `RotateRequest`, or raise `ProtocolError`."""
    return int(decode_message(body, _NUMBER, "the answer to a rotation")[0])


def decode_token(body: Buffer) -> bytes:
    """Return the token in the reply to `TokenRequest`, or raise `NotAuthenticated` if there is none."""
    token = bytes(body)
    read_token(token)
    return token
