"""Secrets in the replicated state, which no client can read or write (pure).

The keys and values::

    secret/ledgers      [1, [[number, K 32s, P 32s], ...]]       newest first, at most two
    secret/tokens       [1, [[number, T 32s], ...]]              likewise

This applies in every mode and to all reads and writes of keys, ranges and watches. It also applies to
conditions, because their result depends on the compared value. A backup omits them, so that a cluster that
is made from it creates new ones.
"""

from collections.abc import Mapping

from ...runtime.interfaces.errors import NotAllowed
from ...runtime.protocol.capabilities import GENERATIONS_KEPT, SECRET_BYTES, Generation
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import blob, decode_stored, number, row, rows
from ..model.interface import prefix_end
from ..model.transaction import Transaction

SECRET_PREFIX = b"secret/"
SECRET_END = prefix_end(SECRET_PREFIX)
GENERATIONS_KEY = b"secret/ledgers"
TOKENS_KEY = b"secret/tokens"
FORMAT = 1

_SECRET = blob(SECRET_BYTES, SECRET_BYTES)
_GENERATIONS = row(number(FORMAT, FORMAT), rows(row(number(1), _SECRET, _SECRET), GENERATIONS_KEPT))
_TOKENS = row(number(FORMAT, FORMAT), rows(row(number(1, 0xFFFF), _SECRET), GENERATIONS_KEPT))


def check_not_secret(start: bytes, end: bytes | None = None) -> None:
    """Raise `NotAllowed` for a secret key, or a range that may contain one."""
    if end is None:
        touches_secret = start.startswith(SECRET_PREFIX)
    else:
        touches_secret = start < SECRET_END and end > SECRET_PREFIX
    if touches_secret:
        raise NotAllowed("keys below secret/ cannot be read or written by clients")


def check_no_secrets(transaction: Transaction) -> None:
    """Raise `NotAllowed` for a transaction that contains a secret key. A compare is a read (H234)."""
    for item in (*transaction.compares, *transaction.operations):
        check_not_secret(item.key)


def encode_generations(generations: tuple[Generation, ...]) -> bytes:
    """Encode the value of `GENERATIONS_KEY`."""
    return pack(
        [
            FORMAT,
            [
                [generation.number, generation.key, generation.credential_key]
                for generation in generations
            ],
        ]
    )


def decode_generations(value: bytes) -> tuple[Generation, ...]:
    """Decode the value of `GENERATIONS_KEY`, or raise `CorruptData`."""
    _, generation_rows = decode_stored(value, _GENERATIONS, "the secrets of ledgers")
    return tuple(Generation(*generation_row) for generation_row in generation_rows)


def encode_token_secrets(secrets: Mapping[int, bytes]) -> bytes:
    """Encode the value of `TOKENS_KEY`, with the secrets by number, newest first."""
    return pack([FORMAT, [[number, secret] for number, secret in secrets.items()]])


def decode_token_secrets(value: bytes) -> dict[int, bytes]:
    """Decode the value of `TOKENS_KEY`, or raise `CorruptData`."""
    return dict(decode_stored(value, _TOKENS, "the secrets of tokens")[1])
