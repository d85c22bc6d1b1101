"""What the replicated state answers to a command, and the bytes of it (pure)."""

from dataclasses import dataclass
from typing import Any

from ...runtime.interfaces.errors import CorruptData, DistributedLogError, OutcomeUnknown, from_code
from ...runtime.protocol.frames import ERROR_CHARS_MAX, pack, unpack
from ...runtime.protocol.schema import SchemaError, is_number
from .transaction import NUMBER_MAX, KeyValue, TransactionReply

STALE_REQUEST = "the request is older than the answers that are remembered: it may have been done"
"""A constant: versions without `FEATURE_ERROR_CODES` compare it."""


@dataclass(slots=True, unsafe_hash=True)
class CommandResult:
    """What a command came to: a transaction's reply, a lease, or an error."""

    transaction: TransactionReply | None = None
    lease: int = 0
    error: DistributedLogError | None = None


def encode_answer(answer: CommandResult, *, codes: bool = True) -> bytes:
    """Return the answer for the wire, always below the limit of a control message.

    ``codes``: whether the peer has `FEATURE_ERROR_CODES`. An older version has no detail, and recognizes a
    stale request by its message.
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
    """Raises `ProtocolError` or, for nonsense inside, `CorruptData`."""
    try:
        match unpack(packed, "an answer of the metadata quorum"):
            case ["error", int() as code, str() as message]:
                stale = code == OutcomeUnknown.code and message == STALE_REQUEST
                detail = OutcomeUnknown.STALE if stale else ""  # of an older version
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
    """A key for the wire and for snapshots."""
    if item is None:
        return None
    return [item.key, item.value, item.version, item.create_revision, item.mod_revision, item.lease]


def item_from_list(value: Any) -> KeyValue | None:
    """The way back: a form of `schema.py`, by hand, for there are thousands in a page. Raises
    `SchemaError`."""
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
