"""The calls that other parts make on the metadata quorum.

`MetadataClient` sends them to the nodes. The tests run the same state machine in their own process
(`tests/metadata/local_metadata.py`), and one contract test covers both.
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
    """A change of one key. A delete contains the key with an empty value."""

    kind: Literal["put", "delete"]
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All changes in the watched range up to ``revision``, oldest first."""

    revision: int
    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True)
class RangePage:
    """Keys of a range in order, as of ``revision``."""

    items: tuple[KeyValue, ...]
    revision: int
    more: bool
    r"""Whether there are keys after the last one. The next page starts at its successor, ``key + b"\0"``."""


class MemberRole(enum.StrEnum):
    """The role of a metadata node in its quorum, or the reason why it has none."""

    LEADER = "leader"
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEARNER = "learner"
    REMOVED = "removed"
    STARTING = "starting"
    EMPTY = "empty"
    """The node has no data and belongs to no cluster, so it can be added."""
    DAMAGED = "damaged"
    """The log is damaged and the node cannot prove its hard state. It does not vote."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The status of a metadata node: reported by the node itself, or a placeholder if it is unreachable."""

    name: str
    address: str
    role: str
    """A value of `MemberRole`, or a role of a newer version."""
    term: int
    applied: int
    alive: bool
    node_id: str = ""
    conditions: tuple[HealthCondition, ...] = ()
    """Its health conditions. Those of a version without codes have `Code.LEGACY_TEXT`."""
    role_detail: str = ""
    """Why the node is damaged or unreachable, as text for operators."""
    version: str = ""
    """The version of its software. "": 0.1 or older (`versions.py`), or the node is unreachable."""

    @property
    def is_voter(self) -> bool:
        """Whether the quorum counts the node, alive or not."""
        return self.role not in (MemberRole.LEARNER, MemberRole.REMOVED)

    @property
    def lost_data(self) -> bool:
        """Whether the node has lost its data, or cannot use it."""
        return self.role in (MemberRole.EMPTY, MemberRole.DAMAGED)


class Watch(Protocol):
    """The changes of a range, in order, without gaps or duplicates, over reconnects."""

    async def next_batch(self) -> WatchBatch:
        """Wait for the next changes.

        Raises:
            Compacted: The changes are no longer kept. List the range, and watch from its revision.
        """
        ...


class Metadata(Protocol):
    """A linearizable, ordered key space with conditional transactions, leases and watches.

    Every call ends within the time limit of the client. It raises `QuorumUnreachable` if no node answered.
    """

    async def get(self, key: bytes) -> KeyValue | None:
        """Return the present state of a key, or None if it does not exist."""
        ...

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        """Return up to ``limit`` keys with start <= key < end, in order. `Scan` reads all of them."""
        ...

    async def transact(self, transaction: Transaction) -> TransactionReply:
        """Execute a transaction completely or not at all, and only once even if it is sent several times.

        Returns:
            The outcome. ``succeeded`` is False if a condition did not hold.

        Raises:
            TransactionTooLarge: The transaction exceeds a limit.
            InvalidRequest: A key is invalid, or is written twice.
            QuorumUnreachable: No quorum answered. The transaction was certainly not executed.
            OutcomeUnknown: The transaction may have been executed.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> int:
        """Create a lease and return its number.

        The lease ends ``ttl_ms`` after its last renewal. The caller renews it in time with `renew_lease`.
        If the connection is lost, the lease ends within 1 s unless it is renewed on another one.
        `MetadataClient` sends this one renewal automatically.

        Args:
            ttl_ms: The time to live in ms. Values below 100 ms or above one day are set to that limit.

        Raises:
            InvalidRequest: ``ttl_ms`` is negative.
        """
        ...

    async def renew_lease(self, lease: int) -> None:
        """Renew a lease, or raise `LeaseExpired`."""
        ...

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and delete its keys. An unknown lease is not an error."""
        ...

    def watch(
        self, start: bytes, end: bytes, *, after_revision: int
    ) -> AbstractAsyncContextManager[Watch]:
        """Watch the changes of start <= key < end after ``after_revision``.

        Raises:
            InvalidRequest: The range or the revision is invalid. Raised when the context is entered.
        """
        ...

    async def status(self) -> list[MemberStatus]:
        """Return the status of all nodes of the quorum, including unreachable ones."""
        ...


class Scan:
    """Read all keys with a prefix, or those with start <= key < end, in order and page by page.

    Use it once, as ``async for item in Scan(metadata, prefix)``. The result is not a snapshot, because each
    page has its own revision. A key that exists throughout is returned once, with a value that it had
    during the scan. A key that is put or deleted during the scan is returned once or not at all. A key that
    the loop body puts after the present position is returned too.

    For a consistent view, watch after ``revision``. The watch returns all changes that a later page may
    have missed, some of them again. No watch is open during the scan, so this watch may raise `Compacted`.
    Scan again in that case.

    The scan holds one page in memory, at most ``limit`` keys and about 1 MiB. Use a small limit if the loop
    body is slow, because it receives the keys as of the time when the page was read. The loop may end at
    any key. The scan raises the errors of `Metadata.range`.
    """

    def __init__(
        self, metadata: Metadata, start: bytes, end: bytes | None = None, *, limit: int = 1000
    ) -> None:
        self.revision = -1
        """Revision of the first page, so no change after it is lost. -1 until that page is read."""
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
    """Return the smallest key above all keys with this prefix."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "a prefix of 0xff bytes has no end"
    return stripped[:-1] + bytes([stripped[-1] + 1])
