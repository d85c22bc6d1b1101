"""Conditions and operations as values, so that parts can build their share and join them (pure).

As etcd's transactions: all compares hold, or nothing is done. A part that takes a share in a change
returns a `Transaction`; the highest part adds the shares up (``ours + theirs``) and commits them as one.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ..runtime.errors import ProtocolError, TransactionTooLarge

OPERATIONS_MAX = 4096
BYTES_MAX = 1024 * 1024
KEY_BYTES_MAX = 4096

CompareKind = Literal["version", "exists", "mod_revision"]


@dataclass(frozen=True, slots=True)
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

    def holds(self, found: KeyValue | None) -> bool:
        """Is the condition true of what was found?"""
        if self.kind == "exists":
            return found is not None
        if found is None:
            return self.number == 0
        return self.number == (found.version if self.kind == "version" else found.mod_revision)


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key; under a lease if not 0."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. No error where there is none."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """Conditions, and what is done when all hold. Operations apply in order, at one revision."""

    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()

    def __add__(self, other: "Transaction") -> "Transaction":
        return Transaction(self.compares + other.compares, self.operations + other.operations)

    def check(self) -> None:
        """Raise `TransactionTooLarge` above the limits; called before anything is sent."""
        count = len(self.compares) + len(self.operations)
        size = sum(len(c.key) for c in self.compares)
        for operation in self.operations:
            size += len(operation.key)
            if isinstance(operation, Put):
                size += len(operation.value)
        if count > OPERATIONS_MAX or size > BYTES_MAX:
            raise TransactionTooLarge(
                f"a transaction of {count} conditions and operations and {size} bytes;"
                f" allowed are {OPERATIONS_MAX} and {BYTES_MAX}"
            )

    def to_list(self) -> list[Any]:
        """For `frames.pack`."""
        return [
            [[c.kind, c.key, c.number] for c in self.compares],
            [[o.key, o.value, o.lease] if isinstance(o, Put) else [o.key] for o in self.operations],
        ]

    @classmethod
    def from_list(cls, value: Any) -> "Transaction":
        """From `frames.unpack`. Raises `ProtocolError`, `TransactionTooLarge`."""
        try:
            compares, operations = value
            made = cls(
                tuple(_compare(item) for item in compares),
                tuple(_operation(item) for item in operations),
            )
        except (TypeError, ValueError):
            raise ProtocolError("not a transaction") from None
        made.check()
        return made


@dataclass(frozen=True, slots=True)
class TransactionReply:
    """What became of a transaction."""

    succeeded: bool
    revision: int
    """The state's revision after it (unchanged when it did not succeed)."""
    current: tuple[KeyValue | None, ...] = ()
    """Each compared key, in order, as the transaction found it."""


def _compare(item: Any) -> Compare:
    kind, key, number = item
    if kind not in ("version", "exists", "mod_revision") or not isinstance(number, int):
        raise ValueError(kind)
    return Compare(kind, _key(key), number)


def _operation(item: Any) -> Put | Delete:
    if len(item) == 1:
        return Delete(_key(item[0]))
    key, value, lease = item
    if not isinstance(value, bytes) or not isinstance(lease, int):
        raise ValueError(key)
    return Put(_key(key), value, lease)


def _key(key: Any) -> bytes:
    if not isinstance(key, bytes) or not 0 < len(key) <= KEY_BYTES_MAX:
        raise ValueError(key)
    return key
