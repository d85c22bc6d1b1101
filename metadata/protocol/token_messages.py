"""What is asked about tokens and secrets by META_TRUST, and what is answered: frame bodies (pure).

["token", user, valid s, [[namespace, path, rights], ...]]     user "": for the asker    REPLY  the token
["verify", token]                                        of a proxy, an operator    REPLY  [seconds left]
["rotate", "ledgers" | "tokens"]                         of an admin                REPLY  [number]
["rescue", user]                                         of a metadata node (`admin_recovery.py`)    REPLY
[names]
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.principals import Narrowing
from ...runtime.protocol.frames import pack, unpack
from ...runtime.protocol.schema import blob, message, number, read, row, rows, text, word
from ...runtime.protocol.tokens import NARROWING_MAX, TEXT_BYTES_MAX, USER_CHARS_MAX, read_token
from ..model.acl_records import NAME_CHARS_MAX
from ..model.configuration import MEMBERS_MAX
from .client_messages import PATH_CHARS_MAX, TrustRequest

_PATHS = rows(row(text(PATH_CHARS_MAX, 1), text(PATH_CHARS_MAX), number(1, 31)), NARROWING_MAX)
_TOKEN = row(word("token"), text(USER_CHARS_MAX), number(), _PATHS)
_VERIFY = row(word("verify"), blob(TEXT_BYTES_MAX, 1))
_ROTATE = row(word("rotate"), word("ledgers", "tokens"))
_RESCUE = row(word("rescue"), text(NAME_CHARS_MAX, 1))
_BY = row(rows(text(), MEMBERS_MAX))
_LEFT = row(number())
_NUMBER = row(number(1))


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Make one."""

    user: str
    valid_s: int
    narrowing: Narrowing = ()

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["token", self.user, self.valid_s, [list(one) for one in self.narrowing]])


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Whose is it?"""

    proof: bytes = field(repr=False)

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["verify", self.proof])


@dataclass(frozen=True, slots=True)
class RotateRequest:
    """A new generation of secrets."""

    what: str

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["rotate", self.what])


@dataclass(frozen=True, slots=True)
class RescueRequest:
    """Make that user an admin, for nobody else is left who could."""

    user: str

    def encode(self) -> bytes:
        """As a frame body."""
        return pack(["rescue", self.user])


def decode_trust_question(
    body: Buffer,
) -> TrustRequest | TokenRequest | VerifyRequest | RotateRequest | RescueRequest:
    """A META_TRUST. Raises `ProtocolError`."""
    what = "META_TRUST"
    value = unpack(body, what)
    kind = value[0] if type(value) is list and value and type(value[0]) is str else ""
    if kind == "token":
        _, user, valid_s, narrowing = read(value, _TOKEN, what)
        return TokenRequest(user, valid_s, narrowing)
    if kind == "verify":
        return VerifyRequest(read(value, _VERIFY, what)[1])
    if kind == "rotate":
        return RotateRequest(read(value, _ROTATE, what)[1])
    if kind == "rescue":
        return RescueRequest(read(value, _RESCUE, what)[1])
    return TrustRequest.decode(body)


def encode_left(left_s: float) -> bytes:
    """The answer to `VerifyRequest`."""
    return pack([max(0, int(left_s))])


def decode_left(body: Buffer) -> int:
    """Seconds. Raises `ProtocolError`."""
    return int(message(body, _LEFT, "the answer about a token")[0])


def encode_by(names: Sequence[str]) -> bytes:
    """The answer to `RescueRequest`: the nodes for whom it was done; none: too few ask."""
    return pack([list(names)])


def decode_by(body: Buffer) -> tuple[str, ...]:
    """Raises `ProtocolError`."""
    found: tuple[str, ...] = message(body, _BY, "the answer to a rescue")[0]
    return found


def encode_number(generation: int) -> bytes:
    """The answer to `RotateRequest`: of the newest generation."""
    return pack([generation])


def decode_number(body: Buffer) -> int:
    """Raises `ProtocolError`."""
    return int(message(body, _NUMBER, "the answer to a rotation")[0])


def decode_token(body: Buffer) -> bytes:
    """The answer to `TokenRequest`: a token. Raises `NotAuthenticated` where it is none."""
    made = bytes(body)
    read_token(made)
    return made
