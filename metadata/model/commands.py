"""Commands of the replicated log, with the identity of their request (pure).

``client`` and ``request_number`` identify a request, so that it is executed once even if it is sent several
times. ``base_index`` is the highest log index that the client had received when it first sent the request
(H20). Commands of the leader have no client.

To add a command:

- Add its class and its bytes here (`encode_command`, `decode_command`).
- Add its effect to `KeyValueState._execute` (kv_state.py).
- If clients may send it, allow it in `MetadataSession._transact` (metadata_session.py).
- Add the call to `interface.Metadata`, `metadata_client.py` and `tests/metadata/local_metadata.py`.

A node of an older version that finds an unknown command in its log applies no further entries. It ends with
an error message until it is upgraded (H105). Therefore send a new command only when a majority of the nodes
supports it.
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
"""First bytes of an encoded `AuthorizationChange`."""


@dataclass(slots=True, unsafe_hash=True)
class ReplicatedCommand:
    """The request identity that all commands contain."""

    client: str = ""
    request_number: int = 0
    base_index: int = 0


@dataclass(slots=True, unsafe_hash=True)
class NoOp(ReplicatedCommand):
    """Change nothing."""


@dataclass(slots=True, unsafe_hash=True)
class Transact(ReplicatedCommand):
    """Execute a transaction of a client."""

    transaction: Transaction = NO_CHANGE


@dataclass(slots=True, unsafe_hash=True)
class AuthorizationChange(ReplicatedCommand):
    """Change users, grants, quotas or the mode. The leader composes the transaction (`acl_commands.py`).

    Because this is a separate kind of command, a put by a client cannot pass for such a change. The keys of
    other commands need not be checked.
    """

    transaction: Transaction = NO_CHANGE


@dataclass(slots=True, unsafe_hash=True)
class GrantLease(ReplicatedCommand):
    """Create a lease."""

    ttl_ms: int = 0


@dataclass(slots=True, unsafe_hash=True)
class RevokeLease(ReplicatedCommand):
    """End a lease at the request of its holder."""

    lease: int = 0


@dataclass(slots=True, unsafe_hash=True)
class ExpireLease(ReplicatedCommand):
    """End a lease that was not renewed. The leader proposes it, and it is final once it is in the log.

    An ``ExpireLease`` never revokes a keep-alive that was answered, although the state has no count of
    renewals to compare (H19). The rules of the leader ensure this (`leases.py`):

    - The leader answers a keep-alive only after a quorum round that began later, from the state as applied
      up to the commit index of that round. It does not answer once it has proposed the end of the lease.
    - While one node leads, the keep-alives that it answered arrived before its proposal, and each of them
      postponed that proposal.
    - For a leader of a later term, an ``ExpireLease`` of an earlier term may be in its log. It is then
      before the first entry of the new term, without which no round completes. So it is applied before the
      first keep-alive is answered, and that keep-alive finds no lease.
    - If it is not in the log of the later leader, it is never committed, because the first entry of the new
      term replaced it.
    - An earlier leader that has not observed the later one completes no round and answers nothing. Its
      earlier answers preceded the later leader, which grants each lease its full time again.

    Lease numbers are never reused, so an ``ExpireLease`` that is applied late or twice ends no other lease.
    """

    lease: int = 0


def encode_command(command: ReplicatedCommand) -> bytes:
    """Encode a command for the log."""
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
    """Decode a command of the log.

    Raises:
        UnsupportedFormat: Only a newer version has this kind of command.
        ProtocolError: The bytes are not a command.
        TransactionTooLarge, InvalidRequest: The transaction exceeds a limit, or has an invalid key.
    """
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
    raise UnsupportedFormat(f"a command of kind {kind!r:.40}, which only newer versions support")


def _number(value: Any) -> int:
    # The message contains no value, because formatting a list nested a thousand levels deep would raise an
    # error.
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ProtocolError("a field of a command that is not a number in range")
    return value
