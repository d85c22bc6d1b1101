"""What the parts above ask of the metadata quorum, whoever answers.

`client.MetadataClient` asks the nodes; `local.LocalMetadata` is the same state machine in the process.
One contract test holds both.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from .transaction import KeyValue, Transaction, TransactionReply

__all__ = [
    "Event",
    "MemberStatus",
    "Metadata",
    "RangePage",
    "Watch",
    "WatchBatch",
    "prefix_end",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key. A delete carries the key with an empty value."""

    kind: Literal["put", "delete"]
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All changes in the watched range up to ``revision``, oldest first."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class RangePage:
    """Keys of a range in order, as they were at ``revision``."""

    items: tuple[KeyValue, ...]
    revision: int
    more: bool
    """There are keys behind the last one; ask again from its successor (``key + b"\\0"``)."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A metadata node as it says of itself, or a row for one that does not answer."""

    name: str
    address: str
    role: str
    term: int
    applied: int
    alive: bool
    node_id: str = ""
    reasons: tuple[str, ...] = ()
    """What it says is wrong with it (runtime/reasons.py)."""


class Watch(Protocol):
    """Changes of a range, in order, without gap or duplicate, over reconnects."""

    async def next(self) -> WatchBatch:
        """Wait for the next changes. Raises `Compacted`: list, then watch from there."""
        ...


class Metadata(Protocol):
    """A linearizable, ordered key space with conditional transactions, leases and watches.

    Every call ends within the client's time limit, with `QuorumUnreachable` if nobody answered.
    """

    async def get(self, key: bytes) -> KeyValue | None:
        """The key as it is now, or None."""
        ...

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        """Up to ``limit`` keys with start <= key < end, in order."""
        ...

    async def transact(self, transaction: Transaction) -> TransactionReply:
        """Do it all or nothing, once, however often it had to be sent.

        Raises `TransactionTooLarge`; `QuorumUnreachable` when it certainly was not done;
        `OutcomeUnknown` when it may have been.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> int:
        """A new lease, which ends ``ttl_ms`` after its last renewal."""
        ...

    async def renew_lease(self, lease: int) -> None:
        """Keep a lease. Raises `LeaseExpired`."""
        ...

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and delete its keys. No error where there is none."""
        ...

    def watch(
        self, start: bytes, end: bytes, *, after_revision: int
    ) -> AbstractAsyncContextManager[Watch]:
        """Follow the changes of start <= key < end behind ``after_revision``."""
        ...

    async def status(self) -> list[MemberStatus]:
        """All nodes of the quorum, those that do not answer included."""
        ...


def prefix_end(prefix: bytes) -> bytes:
    """The smallest key above all keys that begin with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "a prefix of 0xff bytes has no end"
    return stripped[:-1] + bytes([stripped[-1] + 1])
