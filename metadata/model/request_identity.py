"""Whose a request and a lease are, as the replicated log says it (pure).

A principal is ``KIND/NAME``, or `ANONYMOUS`. It is proved once a connection, and the leader puts it before
the client id in the field that each command has for that (H216): ``user/etl/5f0c…``. So what a request came
to is remembered for its principal alone, a lease knows whose it is (H217), and commands have the bytes that
they always had; those of anonymous clients have not changed at all. No client id holds a slash.
"""

import hashlib

from xxhash import xxh3_64_hexdigest

from ...runtime.interfaces.principals import ANONYMOUS, KINDS, Token
from ...runtime.protocol.frames import pack

CLIENT_CHARS_MAX = 64
"""In a command: the principal, a slash, the client's id."""
PRINCIPAL_CHARS_MAX = 46
"""A slash and the 16 digits of a digest go after it."""


def is_principal(text: str) -> bool:
    """Is it ``KIND/NAME`` of a known kind, short and printable, with no other slash?"""
    kind, _, name = text.partition("/")
    return kind in KINDS and len(text) <= PRINCIPAL_CHARS_MAX and is_name(name)


def is_name(name: str) -> bool:
    """Can it stand after the kind?"""
    return (
        0 < len(name) <= PRINCIPAL_CHARS_MAX
        and "/" not in name
        and name.isprintable()
        and not any(character.isspace() for character in name)
    )


def request_identity(principal: str, token: Token | None) -> str:
    """Whose requests and leases those of a connection are: its principal's, or a narrowed token's.

    These are of whoever has the same narrowing: so such a token ends no lock of its user's other programs,
    and its successor keeps its own.
    """
    if token is None or not token.token_scope:
        return principal
    scope_bytes = pack([principal, token.token_scope])
    return f"user/~{hashlib.blake2s(scope_bytes, digest_size=8).hexdigest()}"


def qualified_client(principal: str, client: str) -> str:
    """What a command of this principal's client has for its client."""
    if principal == ANONYMOUS:
        return client
    named = f"{principal}/{client}"
    if len(named) <= CLIENT_CHARS_MAX:
        return named
    return f"{principal}/{xxh3_64_hexdigest(client.encode())}"


def principal_of_client(client: str) -> str:
    """The principal in what `qualified_client` gave; "" for an anonymous one."""
    return client.rpartition("/")[0]
