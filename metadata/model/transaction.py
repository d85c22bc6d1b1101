"""Conditions and operations as values, so that parts can build their share and join them (pure).

As etcd's transactions: all compares hold, or nothing is done. A part that takes a share in a change
returns a `Transaction`; the highest part adds the shares up (``ours + theirs``) and commits them as one.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ...runtime.interfaces.errors import InvalidRequest, ProtocolError, TransactionTooLarge

OPERATIONS_MAX = 4096
"""Compares and operations of one transaction, in sum."""
BYTES_MAX = 1024 * 1024
"""Keys and values of one transaction, in sum."""
KEY_BYTES_MAX = 4096
NUMBER_MAX = (1 << 63) - 1

CompareKind = Literal["version", "exists", "mod_revision"]


@dataclass(slots=True, unsafe_hash=True)
class KeyValue:
    """A key as it was found."""

    key: bytes
    value: bytes
    version: int
    """How often it was put since it was created, from 1."""
    create_revision: int
    mod_revision: int
    lease: int
    """The lease it lives under; 0 for none."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. Made by the class methods."""

    kind: CompareKind
    key: bytes
    number: int = 0

    @classmethod
    def version(cls, key: bytes, number: int) -> "Compare":
        """The key's version is ``number``; 0: it does not exist."""
        return cls("version", key, number)

    @classmethod
    def exists(cls, key: bytes) -> "Compare":
        """The key exists, whatever its version."""
        return cls("exists", key)

    @classmethod
    def mod_revision(cls, key: bytes, revision: int) -> "Compare":
        """The key was changed last at ``revision``; 0: it does not exist."""
        return cls("mod_revision", key, revision)

    def holds(self, item: KeyValue | None) -> bool:
        """Is the condition true of what was found?"""
        if self.kind == "exists":
            return item is not None
        if item is None:
            return self.number == 0
        return self.number == (item.version if self.kind == "version" else item.mod_revision)


@dataclass(slots=True, unsafe_hash=True)
class Put:
    """Set a key; under a lease if not 0."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. No error where there is none."""

    key: bytes


@dataclass(slots=True, unsafe_hash=True)
class Transaction:
    """Conditions, and what is done when all hold, at one revision.

    A key may be compared any number of times and is written once: two shares that write one key do not
    know of each other, and joined one of them would be lost.
    """

    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()

    def __add__(self, other: "Transaction") -> "Transaction":
        return Transaction(self.compares + other.compares, self.operations + other.operations)

    def check(self) -> None:
        """Refuse what cannot be done anywhere; called before anything is sent, and where it is applied.

        Raises `TransactionTooLarge` above the limits; `InvalidRequest` for an empty or too long key, or one
        that is written twice.
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
        """For `frames.pack`."""
        return [
            [[c.kind, c.key, c.number] for c in self.compares],
            [[o.key, o.value, o.lease] if isinstance(o, Put) else [o.key] for o in self.operations],
        ]

    @classmethod
    def from_list(cls, value: Any) -> "Transaction":
        """From `frames.unpack`. Raises `ProtocolError`, and what `check` raises."""
        match value:
            case [list() as compares, list() as operations]:
                transaction = cls(
                    tuple(map(_compare, compares)), tuple(map(_operation, operations))
                )
            case _:
                raise ProtocolError("a transaction that is no pair of lists")
        transaction.check()
        return transaction


@dataclass(slots=True, unsafe_hash=True)
class TransactionReply:
    """What became of a transaction."""

    succeeded: bool
    revision: int
    """The state's revision after it (unchanged when it did not succeed)."""
    current: tuple[KeyValue | None, ...] = ()
    """Not succeeded: each compared key, in the order of the compares, as it was when this was answered.
    Asked again after a lost answer that is later than when it was judged: all conditions may hold by then.
    Succeeded: empty."""


def check_number(value: Any, what: str, *, minimum: int = 0) -> None:
    """Raises `InvalidRequest` for what no request can carry: it is refused before it is sent."""
    if type(value) is not int or not minimum <= value <= NUMBER_MAX:
        # Only a small number is shown: a list may be too deep for that, and an integer too long.
        small = type(value) is int and abs(value) <= 1 << 64
        printable = str(value) if small else f"this {type(value).__name__}"
        raise InvalidRequest(f"{what} is {minimum} to {NUMBER_MAX}, not {printable}")


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
        raise ProtocolError("a field of a transaction that is no number in range")
    return value
