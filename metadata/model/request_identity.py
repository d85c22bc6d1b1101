"""The principal of a request and of a lease, as the replicated log stores it (pure).

A principal is ``KIND/NAME``, or `ANONYMOUS`. It is authenticated once per connection. The leader prefixes
it to the client ID in the client field of each command (H216), for example ``user/etl/5f0c…``. Therefore
the result of a request is remembered for its principal alone, and a lease has an owner (H217). The format
of commands is unchanged, and commands of anonymous clients have the same bytes as in versions without
principals. A client ID contains no slash.
"""

import hashlib

from xxhash import xxh3_64_hexdigest

from ...runtime.interfaces.principals import ANONYMOUS, KINDS, Token
from ...runtime.protocol.frames import pack

CLIENT_CHARS_MAX = 64
"""Length of the client field of a command: principal, slash and client ID."""
PRINCIPAL_CHARS_MAX = 46
"""Leaves space for a slash and the 16 digits of a digest."""


def is_principal(text: str) -> bool:
    """Whether the text is ``KIND/NAME`` of a known kind, short and printable, with no other slash."""
    kind, _, name = text.partition("/")
    return kind in KINDS and len(text) <= PRINCIPAL_CHARS_MAX and is_name(name)


def is_name(name: str) -> bool:
    """Whether the text is a valid name in a principal."""
    return (
        0 < len(name) <= PRINCIPAL_CHARS_MAX
        and "/" not in name
        and name.isprintable()
        and not any(character.isspace() for character in name)
    )


def request_identity(principal: str, token: Token | None) -> str:
    """Return the owner of the requests and leases of a connection: the principal, or a restricted token.

    All connections with the same principal and restriction share one owner. So a restricted token cannot
    end a lock of its user's other programs, and a renewed token keeps the locks of its predecessor.
    """
    if token is None or not token.token_scope:
        return principal
    scope_bytes = pack([principal, token.token_scope])
    return f"user/~{hashlib.blake2s(scope_bytes, digest_size=8).hexdigest()}"


def qualified_client(principal: str, client: str) -> str:
    """Return the client field of a command of this principal's client."""
    if principal == ANONYMOUS:
        return client
    named = f"{principal}/{client}"
    if len(named) <= CLIENT_CHARS_MAX:
        return named
    return f"{principal}/{xxh3_64_hexdigest(client.encode())}"


def principal_of_client(client: str) -> str:
    """Return the principal in a field that `qualified_client` made, or "" for an anonymous client."""
    return client.rpartition("/")[0]
