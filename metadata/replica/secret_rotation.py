"""Generate the secrets of capabilities, passes and tokens on the leader, when they are first required.

A cluster that was always in mode "open" has none. Later generations are created only by command, and the
two newest are valid. No stored data depends on these secrets.
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
"""A name that no principal has.

A rotation puts its revocation key, which bookies watch, so that they request the new verification keys.
"""


class SecretRotation:
    """The secret rotation of one node."""

    def __init__(self, replica: RaftReplica, secret_bytes: Callable[[int], bytes]) -> None:
        self._replica = replica
        self._secret_bytes = secret_bytes

    def rotate(self, done: OnRotated, *, only_first: bool = False) -> None:
        """Create a new generation of ledger secrets. The previous generation stays valid, and older ones end.

        Two concurrent calls create one generation.

        Args:
            done: Receives None when the change is applied, or the error, for example `NotLeader`.
            only_first: Do nothing if a generation exists.
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
        """Create a new generation of token secrets. Tokens from before the previous rotation end.

        The arguments are those of `rotate`.
        """
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
