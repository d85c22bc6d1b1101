"""What is put into the replicated log: commands with the request they came from (pure).

``client`` and ``request`` name the request, so that it is done once however often it is sent; ``base_index``
is the log index its client knew of when it first sent it (H20). Commands of the leader itself have no client.

A new command: its value and its bytes are here (`encode_command`, `decode_command`), what it does is in
`KeyValueState._execute` (kv_state.py); `MetadataSession._transact` (metadata_session.py) says which ones a
client may send, and `interface.Metadata` with `metadata_client.py` and `local.py` who asks for it. A node of
an older version that finds it in its log applies nothing any more and ends, with words, until it is upgraded
(H105): so none may be sent before a majority knows it, and the first one in the log is what the state's
version is.
"""

from dataclasses import dataclass
from typing import Any

from ...runtime.interfaces.errors import ProtocolError, UnsupportedFormat
from ...runtime.protocol.frames import pack, unpack
from .request_identity import CLIENT_CHARS_MAX
from .transaction import NUMBER_MAX, Transaction

NO_CHANGE = Transaction()
AUTHORIZATION_KIND = "trust"
AUTHORIZATION_CHANGE_PREFIX = pack([AUTHORIZATION_KIND, 0, 0])[:7]
"""Of the bytes of a `AuthorizationChange`."""


@dataclass(slots=True, unsafe_hash=True)
class ReplicatedCommand:
    """What all commands carry."""

    client: str = ""
    request_number: int = 0
    base_index: int = 0


@dataclass(slots=True, unsafe_hash=True)
class NoOp(ReplicatedCommand):
    """Changes nothing."""


@dataclass(slots=True, unsafe_hash=True)
class Transact(ReplicatedCommand):
    """A conditional change."""

    transaction: Transaction = NO_CHANGE


@dataclass(slots=True, unsafe_hash=True)
class AuthorizationChange(ReplicatedCommand):
    """A change of who may do what, composed by the leader (`acl_commands.py`); its kind says that it is one.

    So a key that somebody puts is none, and no command but this one costs a look at its keys.
    """

    transaction: Transaction = NO_CHANGE


@dataclass(slots=True, unsafe_hash=True)
class GrantLease(ReplicatedCommand):
    """Make a lease."""

    ttl_ms: int = 0


@dataclass(slots=True, unsafe_hash=True)
class RevokeLease(ReplicatedCommand):
    """End a lease, asked by its holder."""

    lease: int = 0


@dataclass(slots=True, unsafe_hash=True)
class ExpireLease(ReplicatedCommand):
    """End a lease that was not renewed; proposed by the leader, and final once it is in the log.

    No keep-alive that was answered can be undone by an older ``ExpireLease``, without a count of renewals in
    the state to compare (H19), because of what the leader does (`leases.py`):

    - It answers a keep-alive only after a quorum round that began later, from the state as applied up
      to that round's commit, and never once it has proposed the lease's end itself.
    - So while one node leads: keep-alives that it answered came before its proposal, and moved the time
      of that proposal on.
    - A leader of a later term: an ``ExpireLease`` of an earlier term is either in its log, then before the
      entry with which its term begins, without which no round ends: it is applied before the first
      keep-alive is answered, which finds no lease. Or it is not in its log: then it never is committed,
      because that first entry of the term took its place.
    - An earlier leader that has not heard of the later one ends no round any more, and answers nothing.
      What it answered before, it answered before the later one began, which grants a full time anew.

    Lease numbers are never used twice, so that an ``ExpireLease`` that is applied late, or twice, ends
    nothing else.
    """

    lease: int = 0


def encode_command(command: ReplicatedCommand) -> bytes:
    """For the log."""
    head = [command.client, command.request_number, command.base_index]
    if isinstance(command, Transact):
        return pack(["transact", head, command.transaction.to_list()])
    if isinstance(command, AuthorizationChange):
        return pack([AUTHORIZATION_KIND, head, command.transaction.to_list()])
    if isinstance(command, GrantLease):
        return pack(["grant", head, command.ttl_ms])
    if isinstance(command, RevokeLease):
        return pack(["revoke", head, command.lease])
    if isinstance(command, ExpireLease):
        return pack(["expire", head, command.lease])
    return pack(["nothing", head, 0])


def decode_command(data: bytes) -> ReplicatedCommand:
    """From the log. Raises `ProtocolError`, and what `Transaction.check` raises; never anything else but
    `UnsupportedFormat`, for a kind that only a newer version knows."""
    match unpack(data, "a command"):
        case [str() as kind, [str() as client, request, base_index], content]:
            if len(client) > CLIENT_CHARS_MAX:
                raise ProtocolError("a command whose client is not a short text")
        case _:
            raise ProtocolError("a command without kind, request and content")
    head = (client, _number(request), _number(base_index))
    if kind == "transact":
        return Transact(*head, Transaction.from_list(content))
    if kind == AUTHORIZATION_KIND:
        return AuthorizationChange(*head, Transaction.from_list(content))
    if kind == "grant":
        return GrantLease(*head, _number(content))
    if kind == "revoke":
        return RevokeLease(*head, _number(content))
    if kind == "expire":
        return ExpireLease(*head, _number(content))
    if kind == "nothing":
        return NoOp(*head)
    raise UnsupportedFormat(f"a command of kind {kind!r:.40}, which only newer versions know")


def _number(value: Any) -> int:
    # No value in the message: the text of a list nested a thousand deep is an error of its own.
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ProtocolError("a field of a command that is no number in range")
    return value
