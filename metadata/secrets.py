"""Draws the secrets that capabilities and passes are made with, at the leader, when they are first needed.

In a cluster that was never anything but open there are none. From then on a new generation comes by command
alone, and the two newest count: nothing that is stored holds anything made with them.
"""

from collections.abc import Callable
from functools import partial

from ..runtime.capabilities import GENERATIONS_KEPT, SECRET_BYTES, Generation
from ..runtime.errors import DistributedLogError
from .answers import Answer
from .capability_desk import generations_of
from .commands import Transact, encode_command
from .replica import Replica
from .secret_keys import GENERATIONS_KEY, encode_generations
from .transaction import Compare, Put, Transaction

Done = Callable[[DistributedLogError | None], None]


class Secrets:
    """Of one node."""

    def __init__(self, replica: Replica, secret_bytes: Callable[[int], bytes]) -> None:
        self._replica = replica
        self._secret_bytes = secret_bytes

    def rotate(self, done: Done, *, first: bool = False) -> None:
        """Put a new generation before the one that was newest; what came before that ends.

        ``first``: only where there is none. ``done`` is told when it is applied, or why not: `NotLeader`
        where this node does not lead. Two at once are one.
        """
        state = self._replica.state
        known = generations_of(state)
        if first and known:
            done(None)
            return
        found = state.get(GENERATIONS_KEY)
        new = Generation(
            known[0].number + 1 if known else 1,
            self._secret_bytes(SECRET_BYTES),
            self._secret_bytes(SECRET_BYTES),
        )
        value = encode_generations((new, *known)[:GENERATIONS_KEPT])
        unchanged = Compare.version(GENERATIONS_KEY, 0 if found is None else found.version)
        share = Transaction((unchanged,), (Put(GENERATIONS_KEY, value),))
        self._replica.propose(encode_command(Transact(transaction=share)), partial(_tell, done))
        self._replica.drain()


def _tell(done: Done, answer: Answer | DistributedLogError) -> None:
    done(answer if isinstance(answer, DistributedLogError) else answer.error)
