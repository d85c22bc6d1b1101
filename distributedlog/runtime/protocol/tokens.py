"""Tokens: who somebody is for a while, in a text that only the metadata nodes can make (pure).

    "dlog1_" + base64url, without padding, of
    | version u8 = 1 | key u16 | ends u32 s | since u64 | cluster id 16s | name 8s | length u8 | user
      | length u16 | narrowing | mac 32s |
      narrowing   msgpack [[namespace, path, rights], ...]; empty: all that the user may
      mac         HMAC-SHA256(T, "dlog token 1" 0 | all before)

T is a secret of the metadata quorum, and ``key`` its number: the two newest count. Bookies never see a
token, so a stolen bookie has none to show, and mints none. ``since`` is the number that the user's record has
for its tokens, and a revocation changes it: what ends one early goes by no clock (H237). Numbers are
little-endian.

What a narrowed token allows is what its user may, and its narrowing too, at each use. Who holds it can ask
for narrower ones alone.
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
"""Of AUTH, under TLS alone."""
PREFIX = b"dlog1_"
SECRET_BYTES = 32
"""Of T."""
NAME_BYTES = 8
BYTES_MAX = 1024
TEXT_BYTES_MAX = len(PREFIX) + (BYTES_MAX * 4 + 2) // 3
USER_CHARS_MAX = 41
SCOPE_PATHS_MAX = 16
"""Paths of one token."""
CLOCK_TOLERANCE_S = 300
"""Clocks differ: a token is taken for so long after its end."""
DAYS_MAX = 90
OWN_TOKEN_S_MAX = 24 * 3600
"""Of a token that somebody asks for himself."""

READ, WRITE, MANAGE = 1, 2, 4
"""Of a narrowing: bits of `metadata/model/rights.py`, for parts that know nothing of it."""

_HEADER = Struct("<BHIQ16s8s")
_VERSION = 1
_LABEL = b"dlog token 1\0"
_MAC_BYTES = 32
_SCOPE_FORM = rows(row(text(255, 1), text(255), number(1, 31)), SCOPE_PATHS_MAX)


def encode_token(token: Token, secret: bytes) -> bytes:
    """The text of a token. Raises `ValueError` where it would be too long."""
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
        raise ValueError(f"a token of {len(token_bytes)} bytes: name fewer paths, or a directory")
    return PREFIX + base64.urlsafe_b64encode(token_bytes).rstrip(b"=")


def verify_token(token_text: bytes, secret_by_number: Callable[[int], bytes]) -> Token:
    """A token whose seal is right. Raises `NotAuthenticated`, and what ``secret_of`` raises.

    ``secret_of`` has T by its number. Whether the token has ended is the caller's to see.
    """
    signed_bytes, token = _parse(token_text)
    if not hmac.compare_digest(
        _mac(secret_by_number(token.key), signed_bytes), _decode_base64(token_text)[-_MAC_BYTES:]
    ):
        raise NotAuthenticated("a token that this cluster has not made")
    return token


def read_token(token_text: bytes) -> Token:
    """What a token says, of whoever has made it. Raises `NotAuthenticated`."""
    return _parse(token_text)[1]


def is_token(content: bytes) -> bool:
    """Does it begin like one?"""
    return content.startswith(PREFIX)


def allowed_by(token_scope: TokenScope, namespace: str, path: str) -> int:
    """The bits that a narrowing leaves on that log; all of them, where there is none."""
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
    """What is left of these paths and their rights: both must allow it."""
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
    """Does ``outer`` allow all that ``inner`` does?"""
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
    """Is ``name`` within ``path``? By components: ``orders`` does not open ``orders-secret`` (H235)."""
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
    version, key, ends_s, issued_at_revision, cluster_id, name = _HEADER.unpack_from(signed_bytes)
    if version != _VERSION:
        raise NotAuthenticated(f"a token of version {version}: this one reads {_VERSION}")
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
        raise NotAuthenticated(f"a token of {LOCAL}, which is nobody's")
    return signed_bytes, Token(
        user,
        ends_s,
        issued_at_revision,
        key,
        cluster_id.hex(),
        name,
        token_scope,
        bytes(token_text),
    )
