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
from ..model.acl_records import encode_ended, ended_key
from ..model.command_results import CommandResult
from ..model.commands import Transact, encode_command
from ..model.transaction import Compare, Put, Transaction
from .replica import RaftReplica

Done = Callable[[DistributedLogError | None], None]
ROTATED = "secrets"
"""Nobody's name: what bookies watch is put anew under it, so that they ask for what they now check by."""


class SecretRotation:
    """Of one node."""

    def __init__(self, replica: RaftReplica, secret_bytes: Callable[[int], bytes]) -> None:
        self._replica = replica
        self._secret_bytes = secret_bytes

    def rotate(self, done: Done, *, first: bool = False) -> None:
        """Put a new generation before the one that was newest; what came before that ends.

        ``first``: only where there is none. ``done`` is told when it is applied, or why not: `NotLeader`
        where this node does not lead. Two at once are one.
        """
        known = generations_of(self._replica.state)
        if first and known:
            done(None)
            return
        new = Generation(
            known[0].number + 1 if known else 1,
            self._secret_bytes(SECRET_BYTES),
            self._secret_bytes(SECRET_BYTES),
        )
        value = encode_generations((new, *known)[:GENERATIONS_KEPT])
        told = () if first else (Put(ended_key(ROTATED), encode_ended(0)),)
        self._put(GENERATIONS_KEY, value, done, *told)

    def rotate_tokens(self, done: Done, *, first: bool = False) -> None:
        """The same of what tokens are sealed with: those of before the last rotation end."""
        known = token_secrets_of(self._replica.state)
        if first and known:
            done(None)
            return
        newest = max(known, default=0)
        secrets = {newest + 1: self._secret_bytes(SECRET_BYTES)}
        if known:
            secrets[newest] = known[newest]
        self._put(TOKENS_KEY, encode_token_secrets(secrets), done)

    def _put(self, key: bytes, value: bytes, done: Done, *more: Put) -> None:
        found = self._replica.state.get(key)
        unchanged = Compare.version(key, 0 if found is None else found.version)
        share = Transaction((unchanged,), (Put(key, value), *more))
        self._replica.propose(encode_command(Transact(transaction=share)), partial(_tell, done))
        self._replica.drain()


def _tell(done: Done, answer: CommandResult | DistributedLogError) -> None:
    done(answer if isinstance(answer, DistributedLogError) else answer.error)
