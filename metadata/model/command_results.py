"""The results of commands of the replicated state, and their bytes (pure)."""

from dataclasses import dataclass
from typing import Any

from ...runtime.interfaces.errors import CorruptData, DistributedLogError, OutcomeUnknown, from_code
from ...runtime.protocol.frames import ERROR_CHARS_MAX, pack, unpack
from ...runtime.protocol.schema import SchemaError, is_number
from .transaction import NUMBER_MAX, KeyValue, TransactionReply

STALE_REQUEST = "the request is older than the answers that are remembered: it may have been done"
"""Constant, because versions without `FEATURE_ERROR_CODES` compare it."""


@dataclass(slots=True, unsafe_hash=True)
class CommandResult:
    """The result of a command: a transaction reply, a lease, or an error."""

    transaction: TransactionReply | None = None
    lease: int = 0
    error: DistributedLogError | None = None


def encode_answer(answer: CommandResult, *, codes: bool = True) -> bytes:
    """Encode a result for the wire, always below the size limit of a control message.

    Args:
        answer: The result.
        codes: Whether the peer has `FEATURE_ERROR_CODES`. An older version receives no detail, and
            recognizes a stale request by its message.
    """
    if (error := answer.error) is not None:
        detail = [error.detail[:ERROR_CHARS_MAX]] if codes and error.detail else []
        return pack(["error", error.code, str(error), *detail])
    if answer.transaction is None:
        return pack(["lease", answer.lease])
    reply = answer.transaction
    current = [item_to_list(item) for item in reply.current]
    return pack(["transaction", reply.succeeded, reply.revision, current])


def decode_answer(packed: bytes | memoryview) -> CommandResult:
    """Decode a result.

    Raises:
        ProtocolError: The bytes are not valid msgpack.
        CorruptData: The fields are not a valid result.
    """
    try:
        match unpack(packed, "an answer of the metadata quorum"):
            case ["error", int() as code, str() as message]:
                stale = code == OutcomeUnknown.code and message == STALE_REQUEST
                detail = OutcomeUnknown.STALE if stale else ""  # sent by an older version
                return CommandResult(error=from_code(code, message[:ERROR_CHARS_MAX], detail))
            case ["error", int() as code, str() as message, str() as detail]:
                detail = detail[:ERROR_CHARS_MAX]
                return CommandResult(error=from_code(code, message[:ERROR_CHARS_MAX], detail))
            case ["lease", lease] if is_number(lease):
                return CommandResult(lease=lease)
            case ["transaction", bool() as succeeded, revision, list() as current] if is_number(
                revision
            ):
                items = tuple(map(item_from_list, current))
                return CommandResult(TransactionReply(succeeded, revision, items))
    except SchemaError:
        pass
    raise CorruptData("an answer of the metadata quorum that cannot be read")


def item_to_list(item: KeyValue | None) -> list[Any] | None:
    """Return a key and its value as a list, for the wire and for snapshots."""
    if item is None:
        return None
    return [item.key, item.value, item.version, item.create_revision, item.mod_revision, item.lease]


def item_from_list(value: Any) -> KeyValue | None:
    """Return the key of a list that `item_to_list` made, or raise `SchemaError`.

    This check is written by hand and not as a form of `schema.py`, because a page has thousands of keys.
    """
    if value is None:
        return None
    if type(value) is list and len(value) == 6:
        key, content, version, created, changed, lease = value
        if (
            type(key) is type(content) is bytes
            and type(version) is type(created) is type(changed) is type(lease) is int
            and min(version, created, changed, lease) >= 0
            and max(version, created, changed, lease) <= NUMBER_MAX
        ):
            return KeyValue(key, content, version, created, changed, lease)
    raise SchemaError("a key that cannot be read")
