"""The calls that the parts above make on the metadata quorum.

`client.MetadataClient` sends them to the nodes. The tests have the same state machine in their process
(`tests/metadata/local_metadata.py`); one contract test runs both.
"""

import enum
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from ...runtime.declarations.health_conditions import HealthCondition
from .transaction import KeyValue, Transaction, TransactionReply


@dataclass(slots=True, unsafe_hash=True)
class WatchEvent:
    """One change of one key. A delete carries the key with an empty value."""

    kind: Literal["put", "delete"]
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All changes in the watched range up to ``revision``, oldest first."""

    revision: int
    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True)
class RangePage:
    """Keys of a range in order, as they were at ``revision``."""

    items: tuple[KeyValue, ...]
    revision: int
    more: bool
    """There are keys after the last one; ask again from its successor (``key + b"\\0"``)."""


class MemberRole(enum.StrEnum):
    """The part of a metadata node in its quorum, or why it has none."""

    LEADER = "leader"
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEARNER = "learner"
    REMOVED = "removed"
    STARTING = "starting"
    EMPTY = "empty"
    """It has no data and belongs to no cluster: it may be added."""
    DAMAGED = "damaged"
    """Its log is damaged, and it has no proof of what it promised: it never votes."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A metadata node as it says of itself, or a row for one that does not answer."""

    name: str
    address: str
    role: str
    """A value of `MemberRole`, or that of a newer version."""
    term: int
    applied: int
    alive: bool
    node_id: str = ""
    conditions: tuple[HealthCondition, ...] = ()
    """Its health conditions, those of a version without codes as `Code.LEGACY_TEXT`."""
    role_detail: str = ""
    """Why it is damaged or unreachable, for people."""

    @property
    def is_voter(self) -> bool:
        """Whether the quorum counts it, alive or not."""
        return self.role not in (MemberRole.LEARNER, MemberRole.REMOVED)

    @property
    def lost_data(self) -> bool:
        """Whether it has lost its data, or cannot use it."""
        return self.role in (MemberRole.EMPTY, MemberRole.DAMAGED)


class Watch(Protocol):
    """Changes of a range, in order, without gap or duplicate, over reconnects."""

    async def next_batch(self) -> WatchBatch:
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
        """Up to ``limit`` keys with start <= key < end, in order; `Scan` reads all of them."""
        ...

    async def transact(self, transaction: Transaction) -> TransactionReply:
        """Do it all or nothing, once, however often it had to be sent.

        Raises `TransactionTooLarge`; `QuorumUnreachable` when it certainly was not done;
        `OutcomeUnknown` when it may have been.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> int:
        """A new lease: it ends ``ttl_ms`` after its last renewal; 1 s after the death of this process.

        Raises `InvalidRequest` for a negative ``ttl_ms``.
        """
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
        """Follow the changes of start <= key < end after ``after_revision``.

        Raises `InvalidRequest` when it is entered, for a range or a revision that cannot be.
        """
        ...

    async def status(self) -> list[MemberStatus]:
        """All nodes of the quorum, those that do not answer included."""
        ...


class Scan:
    """All keys that begin with ``start``, or those with start <= key < end, in order, read page by page.

    ``async for item in Scan(metadata, prefix)``, once. What it gives is not one moment: each page is as of
    its own. A key that is there throughout comes once, with a value that it had meanwhile; one that is put
    or deleted meanwhile comes once or not at all; what the loop's body puts after its place comes too.
    For one moment on: watch after ``revision``, which tells all that a later page may have missed, some of
    it again. No watch is open while it scans, so that one may begin with `Compacted`: scan again.

    Holds one page, at most ``limit`` keys and about 1 MiB; small for a slow body, which meets them as they
    were when the page was read. May be left at any item. Raises what `Metadata.range` raises.
    """

    def __init__(
        self, metadata: Metadata, start: bytes, end: bytes | None = None, *, limit: int = 1000
    ) -> None:
        self.revision = -1
        """Of the first page, so of before all that was missed; -1 until it is read."""
        self._metadata = metadata
        self._next_key: bytes | None = start
        self._end = prefix_end(start) if end is None else end
        self._limit = limit
        self._page: Iterator[KeyValue] = iter(())

    def __aiter__(self) -> "Scan":
        return self

    async def __anext__(self) -> KeyValue:
        while (item := next(self._page, None)) is None:
            if self._next_key is None:
                raise StopAsyncIteration
            page = await self._metadata.range(self._next_key, self._end, limit=self._limit)
            if self.revision < 0:
                self.revision = page.revision
            self._page = iter(page.items)
            self._next_key = page.items[-1].key + b"\0" if page.more else None
        return item


def prefix_end(prefix: bytes) -> bytes:
    """The smallest key above all keys that begin with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "a prefix of 0xff bytes has no end"
    return stripped[:-1] + bytes([stripped[-1] + 1])
