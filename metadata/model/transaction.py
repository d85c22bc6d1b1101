"""Conditions and operations as values (pure).

Several parts can build their shares of a change and combine them.

Transactions work as in etcd: either all compares hold, or nothing changes. A part that takes a share in a
change returns a `Transaction`. The highest part adds the shares (``first + second``) and commits the sum.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ...runtime.interfaces.errors import InvalidRequest, ProtocolError, TransactionTooLarge

OPERATIONS_MAX = 4096
"""Maximum number of compares and operations of one transaction together."""
BYTES_MAX = 1024 * 1024
"""Maximum size of all keys and values of one transaction."""
KEY_BYTES_MAX = 4096
NUMBER_MAX = (1 << 63) - 1

CompareKind = Literal["version", "exists", "mod_revision"]


@dataclass(slots=True, unsafe_hash=True)
class KeyValue:
    """A key and its value at some revision."""

    key: bytes
    value: bytes
    version: int
    """Number of puts since the key was created, from 1."""
    create_revision: int
    mod_revision: int
    lease: int
    """The lease to which the key is bound, or 0."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. Create it with the class methods."""

    kind: CompareKind
    key: bytes
    number: int = 0

    @classmethod
    def version(cls, key: bytes, number: int) -> "Compare":
        """Require that the key has this version. 0 means that it does not exist."""
        return cls("version", key, number)

    @classmethod
    def exists(cls, key: bytes) -> "Compare":
        """Require that the key exists, with any version."""
        return cls("exists", key)

    @classmethod
    def mod_revision(cls, key: bytes, revision: int) -> "Compare":
        """Require that the key was last changed at ``revision``. 0 means that it does not exist."""
        return cls("mod_revision", key, revision)

    def holds(self, item: KeyValue | None) -> bool:
        """Whether the condition is true for the stored key."""
        if self.kind == "exists":
            return item is not None
        if item is None:
            return self.number == 0
        return self.number == (item.version if self.kind == "version" else item.mod_revision)


@dataclass(slots=True, unsafe_hash=True)
class Put:
    """Set a key, bound to a lease if ``lease`` is not 0."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key. A missing key is not an error."""

    key: bytes


@dataclass(slots=True, unsafe_hash=True)
class Transaction:
    """Conditions, and the operations to execute at one revision if all of them hold.

    A key may be compared several times, but written only once. Two shares that write the same key were
    built without regard to each other, so one of the two writes would be lost.
    """

    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()

    def __add__(self, other: "Transaction") -> "Transaction":
        return Transaction(self.compares + other.compares, self.operations + other.operations)

    def check(self) -> None:
        """Validate the transaction. The client calls this before it sends, and the state before it applies.

        Raises:
            TransactionTooLarge: The transaction exceeds `OPERATIONS_MAX` or `BYTES_MAX`.
            InvalidRequest: A key is empty, too long, or written twice.
        """
        compares, operations = self.compares, self.operations
        count = len(compares) + len(operations)
        size = 0
        keys_valid = True
        for compare in compares:
            key_bytes = len(compare.key)
            keys_valid = keys_valid and 0 < key_bytes <= KEY_BYTES_MAX
            size += key_bytes
        for operation in operations:
            key_bytes = len(operation.key)
            keys_valid = keys_valid and 0 < key_bytes <= KEY_BYTES_MAX
            size += key_bytes
            if isinstance(operation, Put):
                size += len(operation.value)
        if count > OPERATIONS_MAX or size > BYTES_MAX:
            raise TransactionTooLarge(
                f"a transaction of {count} conditions and operations and {size} bytes;"
                f" allowed are {OPERATIONS_MAX} and {BYTES_MAX}"
            )
        if not keys_valid:
            for item in (*compares, *operations):
                _check_key(item.key)
        if len(operations) > 1:
            self._check_written_once()

    def _check_written_once(self) -> None:
        written: set[bytes] = set()
        for operation in self.operations:
            if operation.key in written:
                raise InvalidRequest(f"a transaction writes the key {operation.key!r:.200} twice")
            written.add(operation.key)

    def to_list(self) -> list[Any]:
        """Return the transaction as lists for `frames.pack`."""
        return [
            [[c.kind, c.key, c.number] for c in self.compares],
            [[o.key, o.value, o.lease] if isinstance(o, Put) else [o.key] for o in self.operations],
        ]

    @classmethod
    def from_list(cls, value: Any) -> "Transaction":
        """Return the transaction of lists from `frames.unpack`.

        Raises:
            ProtocolError: The lists are not a transaction.
            TransactionTooLarge, InvalidRequest: As for `check`.
        """
        match value:
            case [list() as compares, list() as operations]:
                transaction = cls(
                    tuple(map(_compare, compares)), tuple(map(_operation, operations))
                )
            case _:
                raise ProtocolError("a transaction that is not a pair of lists")
        transaction.check()
        return transaction


@dataclass(slots=True, unsafe_hash=True)
class TransactionReply:
    """The outcome of a transaction."""

    succeeded: bool
    revision: int
    """Revision of the state after the transaction. Unchanged if it did not succeed."""
    current: tuple[KeyValue | None, ...] = ()
    """If the transaction failed: each compared key, in the order of the compares, as of this answer.

    A repeated request gets the keys as of the repeated answer, not as of the original decision. By then all
    conditions may hold. Empty if the transaction succeeded.
    """


def check_number(value: Any, what: str, *, minimum: int = 0) -> None:
    """Raise `InvalidRequest` for a number that no request can contain, before the request is sent."""
    if type(value) is not int or not minimum <= value <= NUMBER_MAX:
        # Only a small integer is printed. A list may be nested too deeply, and an integer may be too long.
        small = type(value) is int and abs(value) <= 1 << 64
        printable = str(value) if small else f"this {type(value).__name__}"
        raise InvalidRequest(f"{what} must be {minimum} to {NUMBER_MAX}, not {printable}")


def _check_key(key: bytes) -> None:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvalidRequest(f"a key of {len(key)} bytes; allowed are 1 to {KEY_BYTES_MAX}")


def _compare(item: Any) -> Compare:
    match item:
        case ["version" | "exists" | "mod_revision" as kind, bytes() as key, number]:
            return Compare(kind, key, _number(number))
    raise ProtocolError("a condition that cannot be read")


def _operation(item: Any) -> Put | Delete:
    match item:
        case [bytes() as key]:
            return Delete(key)
        case [bytes() as key, bytes() as value, lease]:
            return Put(key, value, _number(lease))
    raise ProtocolError("an operation that cannot be read")


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ProtocolError("a field of a transaction that is not a number in range")
    return value
