"""What is put into the replicated log: commands with the request they came from (pure).

``client`` and ``request`` name the request, so that it is done once however often it is sent; ``base_index``
is the log index its client knew of when it first sent it (H20). Commands of the leader itself have no client.
"""

from dataclasses import dataclass
from typing import Any

from ..runtime.errors import ProtocolError
from ..runtime.frames import pack, unpack
from .transaction import Transaction

CLIENT_CHARS_MAX = 64
NO_CHANGE = Transaction()


@dataclass(frozen=True, slots=True)
class Command:
    """What all commands carry."""

    client: str = ""
    request: int = 0
    base_index: int = 0


@dataclass(frozen=True, slots=True)
class Nothing(Command):
    """Changes nothing."""


@dataclass(frozen=True, slots=True)
class Transact(Command):
    """A conditional change."""

    transaction: Transaction = NO_CHANGE


@dataclass(frozen=True, slots=True)
class Grant(Command):
    """Make a lease."""

    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Revoke(Command):
    """End a lease, asked by its holder."""

    lease: int = 0


@dataclass(frozen=True, slots=True)
class Expire(Command):
    """End a lease that was not renewed; proposed by the leader."""

    lease: int = 0


def encode_command(command: Command) -> bytes:
    """For the log."""
    head = [command.client, command.request, command.base_index]
    if isinstance(command, Transact):
        return pack(["transact", head, command.transaction.to_list()])
    if isinstance(command, Grant):
        return pack(["grant", head, command.ttl_ms])
    if isinstance(command, Revoke):
        return pack(["revoke", head, command.lease])
    if isinstance(command, Expire):
        return pack(["expire", head, command.lease])
    return pack(["nothing", head, 0])


def decode_command(data: bytes) -> Command:
    """From the log. Raises `ProtocolError`, `TransactionTooLarge`."""
    value = unpack(data, "a command")
    try:
        kind, (client, request, base_index), content = value
    except (TypeError, ValueError):
        raise ProtocolError("a command without request and content") from None
    if not isinstance(client, str) or len(client) > CLIENT_CHARS_MAX:
        raise ProtocolError("a command whose client is not a short text")
    head = (client, _number(request), _number(base_index))
    if kind == "transact":
        return Transact(*head, Transaction.from_list(content))
    if kind == "grant":
        return Grant(*head, _number(content))
    if kind == "revoke":
        return Revoke(*head, _number(content))
    if kind == "expire":
        return Expire(*head, _number(content))
    if kind == "nothing":
        return Nothing(*head)
    raise ProtocolError(f"a command of unknown kind {kind!r:.40}")


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ProtocolError(f"{value!r:.40} where a number belongs")
    return value
