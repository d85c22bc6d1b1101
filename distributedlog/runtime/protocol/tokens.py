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
from ..interfaces.principals import LOCAL, Narrowing, Token
from .frames import pack, unpack
from .schema import number, read, row, rows, text

METHOD = "token"
"""Of AUTH, under TLS alone."""
PREFIX = b"dlog1_"
SECRET_BYTES = 32
"""Of T."""
NAME_BYTES = 8
BYTES_MAX = 1024
TEXT_BYTES_MAX = len(PREFIX) + (BYTES_MAX * 4 + 2) // 3
USER_CHARS_MAX = 41
NARROWING_MAX = 16
"""Paths of one token."""
TOLERANCE_S = 300
"""Clocks differ: a token is taken for so long after its end."""
DAYS_MAX = 90
OWN_S_MAX = 24 * 3600
"""Of a token that somebody asks for himself."""

READ, WRITE, MANAGE = 1, 2, 4
"""Of a narrowing: bits of `metadata/model/rights.py`, for parts that know nothing of it."""

_HEAD = Struct("<BHIQ16s8s")
_VERSION = 1
_LABEL = b"dlog token 1\0"
_MAC_BYTES = 32
_PATHS = rows(row(text(255, 1), text(255), number(1, 31)), NARROWING_MAX)


def seal(token: Token, secret: bytes) -> bytes:
    """The text of a token. Raises `ValueError` where it would be too long."""
    user = token.user.encode()
    narrowing = pack([list(one) for one in token.narrowing]) if token.narrowing else b""
    head = _HEAD.pack(
        _VERSION, token.key, token.ends_s, token.since, bytes.fromhex(token.cluster_id), token.name
    )
    said = b"".join(
        (head, bytes((len(user),)), user, len(narrowing).to_bytes(2, "little"), narrowing)
    )
    sealed = said + _mac(secret, said)
    if len(sealed) > BYTES_MAX:
        raise ValueError(f"a token of {len(sealed)} bytes: name fewer paths, or a directory")
    return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=")


def opened(shown: bytes, secret_of: Callable[[int], bytes]) -> Token:
    """A token whose seal is right. Raises `NotAuthenticated`, and what ``secret_of`` raises.

    ``secret_of`` has T by its number. Whether the token has ended is the caller's to see.
    """
    said, token = _parsed(shown)
    if not hmac.compare_digest(_mac(secret_of(token.key), said), _raw(shown)[-_MAC_BYTES:]):
        raise NotAuthenticated("a token that this cluster has not made")
    return token


def read_token(shown: bytes) -> Token:
    """What a token says, of whoever has made it. Raises `NotAuthenticated`."""
    return _parsed(shown)[1]


def is_token(content: bytes) -> bool:
    """Does it begin like one?"""
    return content.startswith(PREFIX)


def allowed_by(narrowing: Narrowing, namespace: str, path: str) -> int:
    """The bits that a narrowing leaves on that log; all of them, where there is none."""
    if not narrowing:
        return -1
    held = 0
    for of, granted, rights in narrowing:
        if of == namespace and covers(granted, path):
            held |= rights
    return held


def scoped(
    rows_: Iterable[tuple[str, str, int]], narrowing: Narrowing
) -> tuple[tuple[str, str, int], ...]:
    """What is left of these paths and their rights: both must allow it."""
    found = []
    for namespace, path, rights in rows_:
        for of, inner, allowed in narrowing:
            if of != namespace or not rights & allowed:
                continue
            if covers(path, inner):
                found.append((of, inner, rights & allowed))
            elif covers(inner, path):
                found.append((of, path, rights & allowed))
    return tuple(found)


def is_within(inner: Narrowing, outer: Narrowing) -> bool:
    """Does ``outer`` allow all that ``inner`` does?"""
    if not outer:
        return True
    return bool(inner) and all(
        any(
            of == namespace and covers(path, wanted) and not rights & ~allowed
            for of, path, allowed in outer
        )
        for namespace, wanted, rights in inner
    )


def covers(path: str, name: str) -> bool:
    """Is ``name`` within ``path``? By components: ``orders`` does not open ``orders-secret`` (H235)."""
    return not path or path == name or (path.endswith("/") and name.startswith(path))


def _mac(secret: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, _LABEL + said, "sha256")


def _raw(shown: bytes) -> bytes:
    try:
        body = bytes(shown[len(PREFIX) :])
        return base64.b64decode(body + b"=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise NotAuthenticated("these bytes are no token") from None


def _parsed(shown: bytes) -> tuple[bytes, Token]:
    if not is_token(shown) or len(shown) > TEXT_BYTES_MAX:
        raise NotAuthenticated("these bytes are no token")
    raw = _raw(shown)
    said = raw[:-_MAC_BYTES]
    if len(said) <= _HEAD.size:
        raise NotAuthenticated("these bytes are no token")
    version, key, ends_s, since, cluster_id, name = _HEAD.unpack_from(said)
    if version != _VERSION:
        raise NotAuthenticated(f"a token of version {version}: this one reads {_VERSION}")
    user_at = _HEAD.size + 1
    paths_at = user_at + said[_HEAD.size] + 2
    if paths_at > len(said) or paths_at + int.from_bytes(
        said[paths_at - 2 : paths_at], "little"
    ) != len(said):
        raise NotAuthenticated("these bytes are no token")
    try:
        user = said[user_at : paths_at - 2].decode()
        narrowing: Narrowing = ()
        if said[paths_at:]:
            narrowing = tuple(read(unpack(said[paths_at:], "a token"), _PATHS, "a token"))
    except (UnicodeDecodeError, DistributedLogError):
        raise NotAuthenticated("these bytes are no token") from None
    if not 0 < len(user) <= USER_CHARS_MAX or (said[paths_at:] and not narrowing):
        raise NotAuthenticated("these bytes are no token")
    if f"user/{user}" == LOCAL:
        raise NotAuthenticated(f"a token of {LOCAL}, which is nobody's")
    return said, Token(user, ends_s, since, key, cluster_id.hex(), name, narrowing, bytes(shown))
