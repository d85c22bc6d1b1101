"""Tokens: signed, time-limited proofs of a user, which only metadata nodes can make (pure).

The format is::

    "dlog1_" + base64url, without padding, of
    | version u8 = 1 | key u16 | ends u32 s | since u64 | cluster id 16s | name 8s | length u8 | user
      | length u16 | scope | mac 32s |
      scope       msgpack [[namespace, path, rights], ...]; empty: all rights of the user
      mac         HMAC-SHA256(T, "dlog token 1" 0 | all before)

Numbers are little-endian. T is a secret of the metadata quorum, and ``key`` is its number; the two newest are
valid. Bookies never receive a token, so a stolen bookie can neither show nor make one. ``since`` is a number
in the record of the user that applies to all tokens of the user. A revocation changes it, so a token can end
early independent of any clock (H237).

A restricted token has a scope. It allows the intersection of the user's rights and the scope, evaluated at
each use. Its holder can only request tokens with a narrower scope.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable
from struct import Struct

from ..interfaces.errors import DistributedLogError, NotAuthenticated
from ..interfaces.principals import LOCAL, Token, TokenScope
from .frames import pack, unpack
from .schema import check_message, number, row, rows, text

METHOD = "token"
"""The name of the AUTH method, which requires TLS."""
PREFIX = b"dlog1_"
SECRET_BYTES = 32
"""The size of T."""
NAME_BYTES = 8
BYTES_MAX = 1024
TEXT_BYTES_MAX = len(PREFIX) + (BYTES_MAX * 4 + 2) // 3
USER_CHARS_MAX = 41
SCOPE_PATHS_MAX = 16
"""The number of paths in one scope."""
CLOCK_TOLERANCE_S = 300
"""Clocks differ, so a token is accepted for this time after its end."""
DAYS_MAX = 90
OWN_TOKEN_S_MAX = 24 * 3600
"""The longest validity of a token that a user requests for itself."""

READ, WRITE, MANAGE = 1, 2, 4
"""Rights in a scope: bits of `metadata/model/rights.py`, for parts that do not import that module."""

_HEADER = Struct("<BHIQ16s8s")
_VERSION = 1
_LABEL = b"dlog token 1\0"
_MAC_BYTES = 32
_SCOPE_FORM = rows(row(text(255, 1), text(255), number(1, 31)), SCOPE_PATHS_MAX)


def encode_token(token: Token, secret: bytes) -> bytes:
    """Return the text of a token.

    Raises:
        ValueError: The token would be too long.
    """
    user = token.user.encode()
    scope_bytes = (
        pack([list(scope_row) for scope_row in token.token_scope]) if token.token_scope else b""
    )
    header = _HEADER.pack(
        _VERSION,
        token.key,
        token.ends_s,
        token.revoked_at_revision,
        bytes.fromhex(token.cluster_id),
        token.name,
    )
    signed_bytes = b"".join(
        (header, bytes((len(user),)), user, len(scope_bytes).to_bytes(2, "little"), scope_bytes)
    )
    token_bytes = signed_bytes + _mac(secret, signed_bytes)
    if len(token_bytes) > BYTES_MAX:
        raise ValueError(
            f"token of {len(token_bytes)} bytes is too long: name fewer paths, or a directory"
        )
    return PREFIX + base64.urlsafe_b64encode(token_bytes).rstrip(b"=")


def verify_token(token_text: bytes, secret_by_number: Callable[[int], bytes]) -> Token:
    """Decode a token and verify its signature. The caller checks its end.

    Args:
        token_text: The token.
        secret_by_number: Returns T by its number.

    Raises:
        NotAuthenticated: The token is malformed, or its signature is wrong. Errors of ``secret_by_number``
            are passed on.
    """
    signed_bytes, token = _parse(token_text)
    if not hmac.compare_digest(
        _mac(secret_by_number(token.key), signed_bytes), _decode_base64(token_text)[-_MAC_BYTES:]
    ):
        raise NotAuthenticated("a token that this cluster has not made")
    return token


def read_token(token_text: bytes) -> Token:
    """Decode a token without verifying its signature. Raises `NotAuthenticated` if it is malformed."""
    return _parse(token_text)[1]


def is_token(content: bytes) -> bool:
    """Return whether a text starts like a token."""
    return content.startswith(PREFIX)


def allowed_by(token_scope: TokenScope, namespace: str, path: str) -> int:
    """Return the bits of rights that a scope allows on a log; all bits for an empty scope."""
    if not token_scope:
        return -1
    allowed_rights = 0
    for scope_namespace, scope_path, rights in token_scope:
        if scope_namespace == namespace and covers(scope_path, path):
            allowed_rights |= rights
    return allowed_rights


def restrict_to_scope(
    granted: Iterable[tuple[str, str, int]], token_scope: TokenScope
) -> tuple[tuple[str, str, int], ...]:
    """Return the intersection of granted paths with their rights and a scope."""
    visible = []
    for namespace, path, rights in granted:
        for scope_namespace, scope_path, allowed in token_scope:
            if scope_namespace != namespace or not rights & allowed:
                continue
            if covers(path, scope_path):
                visible.append((scope_namespace, scope_path, rights & allowed))
            elif covers(scope_path, path):
                visible.append((scope_namespace, path, rights & allowed))
    return tuple(visible)


def is_within(narrower_scope: TokenScope, wider_scope: TokenScope) -> bool:
    """Return whether one scope allows no more than another one. An empty scope allows everything."""
    if not wider_scope:
        return True
    return bool(narrower_scope) and all(
        any(
            of == namespace and covers(path, wanted) and not rights & ~allowed
            for of, path, allowed in wider_scope
        )
        for namespace, wanted, rights in narrower_scope
    )


def covers(path: str, name: str) -> bool:
    """Return whether a path includes a name. Names are compared by components (H235).

    The path ``orders/`` includes ``orders/eu``; ``orders`` includes only ``orders``, and not
    ``orders-secret``.
    """
    return not path or path == name or (path.endswith("/") and name.startswith(path))


def _mac(secret: bytes, signed_bytes: bytes) -> bytes:
    return hmac.digest(secret, _LABEL + signed_bytes, "sha256")


def _decode_base64(token_text: bytes) -> bytes:
    try:
        body = bytes(token_text[len(PREFIX) :])
        return base64.b64decode(body + b"=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise NotAuthenticated("these bytes are no token") from None


def _parse(token_text: bytes) -> tuple[bytes, Token]:
    if not is_token(token_text) or len(token_text) > TEXT_BYTES_MAX:
        raise NotAuthenticated("these bytes are no token")
    token_bytes = _decode_base64(token_text)
    signed_bytes = token_bytes[:-_MAC_BYTES]
    if len(signed_bytes) <= _HEADER.size:
        raise NotAuthenticated("these bytes are no token")
    version, key, ends_s, revoked_at_revision, cluster_id, name = _HEADER.unpack_from(signed_bytes)
    if version != _VERSION:
        raise NotAuthenticated(f"token of version {version}, only {_VERSION} is supported")
    user_start = _HEADER.size + 1
    scope_start = user_start + signed_bytes[_HEADER.size] + 2
    if scope_start > len(signed_bytes) or scope_start + int.from_bytes(
        signed_bytes[scope_start - 2 : scope_start], "little"
    ) != len(signed_bytes):
        raise NotAuthenticated("these bytes are no token")
    try:
        user = signed_bytes[user_start : scope_start - 2].decode()
        token_scope: TokenScope = ()
        if signed_bytes[scope_start:]:
            token_scope = tuple(
                check_message(unpack(signed_bytes[scope_start:], "a token"), _SCOPE_FORM, "a token")
            )
    except (UnicodeDecodeError, DistributedLogError):
        raise NotAuthenticated("these bytes are no token") from None
    if not 0 < len(user) <= USER_CHARS_MAX or (signed_bytes[scope_start:] and not token_scope):
        raise NotAuthenticated("these bytes are no token")
    if f"user/{user}" == LOCAL:
        raise NotAuthenticated(f"a token of {LOCAL}, which is reserved")
    return signed_bytes, Token(
        user,
        ends_s,
        revoked_at_revision,
        key,
        cluster_id.hex(),
        name,
        token_scope,
        bytes(token_text),
    )
