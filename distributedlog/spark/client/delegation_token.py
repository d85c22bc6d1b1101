"""What the driver lends to its executors: a token of its own user, for the logs of one query.

The driver alone has credentials. Where they are a certificate or a token it asks the metadata for a narrower
token, which travels in tasks and nowhere else: not in options, plans or checkpoints, and no `repr` shows it.
An executor that is stolen has what that token allows, until it ends. In a cluster that asks nobody, or of
this user on this machine, there is nothing to lend.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...runtime.interfaces.principals import TokenScope
from ...runtime.protocol.tokens import MANAGE, READ, WRITE
from ..options.options import SinkOptions, SourceOptions

BATCH_S = 24 * 3600
STREAM_S = 6 * 3600
"""A stream asks for another with each of its micro-batches, about; a task that runs longer fails."""
REUSE_S = 60.0
"""A token that was asked for so lately is lent again."""
LOGS_MAX = 8
CHARS_MAX = 400
"""Of more logs, or longer names, the directory that they share."""


@dataclass(frozen=True, slots=True)
class DelegatedToken:
    """Travels in tasks."""

    token: bytes = field(repr=False)
    authority: str = field(repr=False)
    """The cluster's ``ca.pem``."""
    scope: TokenScope = ()
    """Tokens of one user and one narrowing follow each other in one client of a worker."""


def token_scope(namespace: str, options: SourceOptions | SinkOptions) -> TokenScope:
    """What the tasks of such a query need."""
    if isinstance(options, SourceOptions):
        paths, rights = paths_of(options.names, options.log_pattern), READ
    else:
        paths = paths_of(None if options.log is None else (options.log,), None)
        rights = READ | WRITE | (MANAGE if options.create_logs else 0)
    return tuple((namespace, path, rights) for path in paths)


def paths_of(names: Sequence[str] | None, pattern: str | None) -> list[str]:
    """Logs, or a directory that has them all; "" is the whole namespace."""
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
    """What both begin with."""
    length = 0
    for first_char, last_char in zip(first, last, strict=False):
        if first_char != last_char:
            break
        length += 1
    return first[:length]
