"""Issue a restricted token of the driver's user to executors, for the logs of one query.

Only the driver has credentials. If they are a certificate or a token, it requests a restricted token, which
is sent in tasks only. It is not part of options, plans, checkpoints or any `repr`. A compromised executor has
the rights of this token until it expires. Clusters without authentication, or local clusters of this user,
need no token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...runtime.interfaces.principals import TokenScope
from ...runtime.protocol.tokens import MANAGE, READ, WRITE
from ..options.options import SinkOptions, SourceOptions

BATCH_S = 24 * 3600
STREAM_S = 6 * 3600
"""Validity in seconds. A stream requests a new token about once per micro-batch. Longer tasks fail."""
REUSE_S = 60.0
"""A token that is at most this old, in seconds, is used again."""
LOGS_MAX = 8
CHARS_MAX = 400
"""For more logs or longer names, the token covers the directory that they share."""


@dataclass(frozen=True, slots=True)
class DelegatedToken:
    """A token that is sent in tasks."""

    token: bytes = field(repr=False)
    authority: str = field(repr=False)
    """The ``ca.pem`` of the cluster."""
    scope: TokenScope = ()
    """Tokens of one user and one scope replace each other in one client of a worker."""


def token_scope(namespace: str, options: SourceOptions | SinkOptions) -> TokenScope:
    """Return the rights that the tasks of a query need."""
    if isinstance(options, SourceOptions):
        paths, rights = paths_of(options.names, options.log_pattern), READ
    else:
        paths = paths_of(None if options.log is None else (options.log,), None)
        rights = READ | WRITE | (MANAGE if options.create_logs else 0)
    return tuple((namespace, path, rights) for path in paths)


def paths_of(names: Sequence[str] | None, pattern: str | None) -> list[str]:
    """Return the logs, or a directory that contains them all; "" is the whole namespace."""
    if names is not None and len(names) <= LOGS_MAX and sum(map(len, names)) <= CHARS_MAX:
        return sorted(set(names))
    if names is not None:
        pattern = _common_prefix(min(names), max(names)) + "*"
    if pattern is None:
        return [""]
    wildcard_index = next(
        (index for index, letter in enumerate(pattern) if letter in "*?["), len(pattern)
    )
    return [
        pattern
        if wildcard_index == len(pattern)
        else pattern[: pattern.rfind("/", 0, wildcard_index) + 1]
    ]


def _common_prefix(first: str, last: str) -> str:
    """Return the common prefix of two texts."""
    length = 0
    for first_char, last_char in zip(first, last, strict=False):
        if first_char != last_char:
            break
        length += 1
    return first[:length]
