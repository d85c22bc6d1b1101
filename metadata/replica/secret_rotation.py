"""Draws what capabilities, passes and tokens are made with, at the leader, when it is first needed.

In a cluster that was never anything but open there are none. From then on a new generation comes by command
alone, and the two newest count: nothing that is stored holds anything made with them.
"""

from collections.abc import Callable
from functools import partial

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.protocol.capabilities import GENERATIONS_KEPT, SECRET_BYTES, Generation
from ..auth.capability_issuer import generations_of
from ..auth.quorum_secrets import (
    GENERATIONS_KEY,
    TOKENS_KEY,
    encode_generations,
    encode_token_secrets,
)
from ..auth.token_service import token_secrets_of
from ..model.acl_records import encode_revoked, revoked_key
from ..model.command_results import CommandResult
from ..model.commands import Transact, encode_command
from ..model.transaction import Compare, Put, Transaction
from .replica import RaftReplica

OnRotated = Callable[[DistributedLogError | None], None]
ROTATION_MARKER = "secrets"
"""Nobody's name: what bookies watch is put anew under it, so that they ask for what they now check by."""


class SecretRotation:
    """Of one node."""

    def __init__(self, replica: RaftReplica, secret_bytes: Callable[[int], bytes]) -> None:
        self._replica = replica
        self._secret_bytes = secret_bytes

    def rotate(self, done: OnRotated, *, only_first: bool = False) -> None:
        """Put a new generation before the one that was newest; what came before that ends.

        ``first``: only where there is none. ``done`` is told when it is applied, or why not: `NotLeader`
        where this node does not lead. Two at once are one.
        """
        generations = generations_of(self._replica.state)
        if only_first and generations:
            done(None)
            return
        new = Generation(
            generations[0].number + 1 if generations else 1,
            self._secret_bytes(SECRET_BYTES),
            self._secret_bytes(SECRET_BYTES),
        )
        value = encode_generations((new, *generations)[:GENERATIONS_KEPT])
        marker_puts = () if only_first else (Put(revoked_key(ROTATION_MARKER), encode_revoked(0)),)
        self._put(GENERATIONS_KEY, value, done, *marker_puts)

    def rotate_tokens(self, done: OnRotated, *, only_first: bool = False) -> None:
        """The same of what tokens are sealed with: those of before the last rotation end."""
        current_secrets = token_secrets_of(self._replica.state)
        if only_first and current_secrets:
            done(None)
            return
        newest = max(current_secrets, default=0)
        secrets = {newest + 1: self._secret_bytes(SECRET_BYTES)}
        if current_secrets:
            secrets[newest] = current_secrets[newest]
        self._put(TOKENS_KEY, encode_token_secrets(secrets), done)

    def _put(self, key: bytes, value: bytes, done: OnRotated, *more_puts: Put) -> None:
        item = self._replica.state.get(key)
        unchanged = Compare.version(key, 0 if item is None else item.version)
        transaction = Transaction((unchanged,), (Put(key, value), *more_puts))
        self._replica.propose(
            encode_command(Transact(transaction=transaction)), partial(_report_result, done)
        )
        self._replica.drain()


def _report_result(done: OnRotated, answer: CommandResult | DistributedLogError) -> None:
    done(answer if isinstance(answer, DistributedLogError) else answer.error)
