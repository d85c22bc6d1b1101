"""Conditions and operations on the metadata key space, as values (pure).

Every part builds its share of a transaction here, and the highest part joins the shares (``a + b``):
all of it happens at one revision, or none of it. Keys are non-empty bytes, ordered as bytes; values
are bytes. Model: etcd v3 (global revision, version a key), with compares joined by AND and no "else".
"""

from dataclasses import dataclass
from typing import Literal

from ..runtime.errors import InvalidRequest, TransactionTooLarge

OPERATIONS_MAX = 4096
"""Compares and operations of one transaction, in sum."""
BYTES_MAX = 1024 * 1024
"""Keys and values of one transaction, in sum."""
KEY_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stands. A deleted one, in an event: value b"", version 0, create_revision 0."""

    key: bytes
    value: bytes
    version: int
    """Puts since the key was made, from 1; a key that is made again begins anew."""
    create_revision: int
    mod_revision: int
    lease: int
    """The lease it dies with; 0: none."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, as watches tell it."""

    kind: Literal["put", "delete"]
    item: KeyValue
    """As it stands after the change; its ``mod_revision`` is the change's revision."""


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition on one key. Made by `version`, `exists`, `missing` or `mod_revision`."""

    key: bytes
    kind: Literal["version", "exists", "mod_revision"]
    number: int

    @classmethod
    def version(cls, key: bytes, n: int) -> "Compare":
        """The key has been put ``n`` times since it was made; 0: it does not exist."""
        return cls(key, "version", n)

    @classmethod
    def exists(cls, key: bytes) -> "Compare":
        """The key exists, at whatever version."""
        return cls(key, "exists", 0)

    @classmethod
    def missing(cls, key: bytes) -> "Compare":
        """The key does not exist."""
        return cls(key, "version", 0)

    @classmethod
    def mod_revision(cls, key: bytes, r: int) -> "Compare":
        """The key was last changed at revision ``r``; 0: it does not exist."""
        return cls(key, "mod_revision", r)

    def holds(self, found: KeyValue | None) -> bool:
        """Whether the key, as found, fulfils the condition."""
        if self.kind == "exists":
            return found is not None
        if found is None:
            return self.number == 0
        return self.number == (found.version if self.kind == "version" else found.mod_revision)


@dataclass(frozen=True, slots=True)
class Put:
    """Make or replace a key. ``lease`` 0: it lives until it is deleted, whatever it had before."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key; no change where there is none."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """If all compares hold, all operations happen, at one new revision; else nothing.

    A key may be compared any number of times and written once.
    """

    compares: tuple[Compare, ...] = ()
    operations: tuple[Put | Delete, ...] = ()

    def __add__(self, other: "Transaction") -> "Transaction":
        """Both, or neither."""
        return Transaction(self.compares + other.compares, self.operations + other.operations)

    @property
    def size_bytes(self) -> int:
        """Keys and values in sum, as `BYTES_MAX` counts them."""
        size = sum(len(compare.key) for compare in self.compares)
        for operation in self.operations:
            size += len(operation.key)
            if isinstance(operation, Put):
                size += len(operation.value)
        return size

    def check(self) -> None:
        """Refuse what no quorum would take, before it is sent.

        Raises `TransactionTooLarge` above the limits, `InvalidRequest` for an empty or too long key, or
        one that is written twice.
        """
        count, size = len(self.compares) + len(self.operations), self.size_bytes
        if count > OPERATIONS_MAX or size > BYTES_MAX:
            raise TransactionTooLarge(
                f"a transaction of {count} compares and operations with {size} bytes;"
                f" allowed are {OPERATIONS_MAX} and {BYTES_MAX}"
            )
        for compare in self.compares:
            check_key(compare.key)
        written: set[bytes] = set()
        for operation in self.operations:
            check_key(operation.key)
            if operation.key in written:
                raise InvalidRequest(f"a transaction writes key {operation.key!r:.200} twice")
            written.add(operation.key)


@dataclass(frozen=True, slots=True)
class TransactionReply:
    """What became of a transaction."""

    succeeded: bool
    revision: int
    """Succeeded: the revision at which it stands. Failed: the newest one when it was judged."""
    current: tuple[KeyValue | None, ...] = ()
    """Failed: each compared key as it was found, in the order of the compares. Succeeded: empty."""


def check_key(key: bytes) -> None:
    """Raises `InvalidRequest` for a key that cannot be."""
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvalidRequest(f"a key of {len(key)} bytes; allowed are 1 to {KEY_BYTES_MAX}")
