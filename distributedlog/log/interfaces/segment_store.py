"""What the log needs of the ledger part, as protocols: `ledger.client` has it, and a model in the tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...metadata.model.transaction import Transaction
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Buffer


class NewSegmentLedger(Protocol):
    """A ledger that is chosen and not yet stored anywhere."""

    @property
    def ledger_id(self) -> int:
        """Its id, never used before."""
        ...

    def create_ops(self) -> Transaction:
        """The share of a transaction that creates it."""
        ...


class ClosedLedger(Protocol):
    """A ledger's metadata, closed."""

    @property
    def last_entry(self) -> int | None:
        """-1 where it is empty."""
        ...

    @property
    def length(self) -> int | None:
        """Payload bytes of all entries."""
        ...


class SegmentEntry(Protocol):
    """One entry as it was read: owned memory, digest verified."""

    @property
    def entry(self) -> int:
        """Its id."""
        ...

    @property
    def payload(self) -> memoryview:
        """What the log put in."""
        ...

    @property
    def length_so_far(self) -> int:
        """Payload bytes of the ledger up to this entry, itself included."""
        ...

    @property
    def record(self) -> memoryview:
        """The whole record as its writer made it, to be sent on verbatim."""
        ...


class SegmentEntryWriter(Protocol):
    """The ledger that this process writes. All but `wait_capacity` and `wait_settled` is synchronous."""

    ledger_id: int
    lac: int

    @property
    def error(self) -> DistributedLogError | None:
        """Why it takes no more entries, or None."""
        ...

    @property
    def last_entry(self) -> int:
        """The last one that was added; -1: none was."""
        ...

    @property
    def room(self) -> bool:
        """May an entry be added now?"""
        ...

    @property
    def needs_roll(self) -> bool:
        """Holes are noted, or a better ensemble exists (H22)."""
        ...

    @property
    def unwanted(self) -> bool:
        """It is on a bookie that is to leave, or gone, or waits for its end, and a new one would not be: also
        where it is empty.
        """
        ...

    def add(self, buffers: Sequence[Buffer], payload_bytes: int) -> int:
        """Send one entry; its id. Raises `error`."""
        ...

    async def wait_capacity(self) -> None:
        """Until `room`, or an error."""
        ...

    def publish_lac(self) -> None:
        """Tell the bookies how far is confirmed, where they do not know it yet.

        It does so itself when nothing is in flight.
        """
        ...

    async def flush_lac(self) -> None:
        """Wait until an ack quorum has the LAC, so that readers see all that is confirmed.

        Raises `error`, and `RequestTimeout` if no ack quorum answers.
        """
        ...

    async def wait_settled(self) -> None:
        """Until nothing is in flight and it may be closed; at once after `close_ops`.

        Raises `error` itself: by that an end of the ledger is told from an error of the store.
        """
        ...

    def close_ops(self, custom: Mapping[str, bytes] | None = None) -> Transaction:
        """The share of a transaction that closes it at its last entry, after `wait_settled`.

        ``custom`` is added to its custom metadata.
        From here on `error` is `AlreadyClosed`; may be asked again. Raises any other `error`, itself.
        """
        ...

    def abort(self) -> None:
        """Send nothing more; forget what is in flight."""
        ...


class SegmentEntryReader(Protocol):
    """A ledger opened for reading, without recovery."""

    @property
    def lac(self) -> int:
        """The last entry known to be readable, -1 for none."""
        ...

    @property
    def closed(self) -> bool:
        """Is its end known for good? Then ``lac`` is the last entry."""
        ...

    @property
    def last_response_at(self) -> float:
        """When a bookie last answered a wait for the ledger's end, by trio's clock; -inf: none did."""
        ...

    async def why_unreadable(self, entry: int) -> str:
        """What each replica says, where the entry of a closed ledger certainly cannot be read; else "".

        Raises `NoSuchLedger`.
        """
        ...

    def record_lac(self, lac: int) -> None:
        """Somebody proved that ``lac`` is confirmed (H24)."""
        ...

    def close(self) -> None:
        """Follow the ledger no longer."""
        ...

    async def refresh_lac(self) -> int:
        """Ask the bookies how far is confirmed. Raises `LedgerStateUnknown` when too few answer."""
        ...

    async def read(self, first: int, last: int, *, bytes_max: int) -> Sequence[SegmentEntry]:
        """Contiguous entries from ``first``, at least one."""
        ...

    async def wait(
        self,
        after: int,
        *,
        wait_s: float,
        on_entries: Callable[[Sequence[SegmentEntry]], int] | None = None,
    ) -> int:
        """The LAC, when it is above ``after``, the ledger is closed, or the time is over.

        ``take`` gets entries that come meanwhile, from ``after`` + 1 on without a gap, and says how many
        it took; the wait goes on while it takes all that there are.
        """
        ...


class SegmentLedger(Protocol):
    """A ledger's record as it was read; shares made from it are conditional on its version."""

    @property
    def owner(self) -> tuple[int, int] | None:
        """(log id, segment) of the log that refers to it, or None."""
        ...

    @property
    def closed(self) -> bool:
        """Is its end known for good?"""
        ...

    @property
    def incarnation(self) -> int:
        """The id of the log it was made for."""
        ...

    @property
    def last_entry(self) -> int | None:
        """-1 where it is empty, None where it is not closed."""
        ...

    @property
    def length(self) -> int | None:
        """Payload bytes of all entries, None where it is not closed."""
        ...

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Ensemble, write quorum, ack quorum."""
        ...

    @property
    def custom(self) -> Mapping[str, bytes]:
        """What its creator, and who closed it, wrote beside it."""
        ...

    def link_ops(self, owner: tuple[int, int]) -> Transaction:
        """The share of a transaction that makes it a log's segment. It is closed and has no owner."""
        ...

    def delete_ops(self) -> Transaction:
        """The share of a transaction that deletes it. Raises `InvalidRequest` where a log refers to it."""
        ...


class LedgerFinder(Protocol):
    """Who finds ledgers' records."""

    async def find(self, ledger_id: int) -> SegmentLedger:
        """The record, for whoever links or deletes it. Raises `NoSuchLedger`."""
        ...


class SegmentEntryStore(LedgerFinder, Protocol):
    """The client of all ledgers."""

    async def prepare(
        self,
        *,
        custom: Mapping[str, bytes] | None = None,
        owner: tuple[int, int] | None = None,
        quorums: tuple[int, int, int] | None = None,
        incarnation: int = 0,
    ) -> NewSegmentLedger:
        """Choose an id and an ensemble. Raises `NotEnoughBookies`."""
        ...

    def writer(
        self,
        prepared: Any,
        *,
        on_confirmed: Callable[[int], None] = ...,
        on_failed: Callable[[DistributedLogError], None] = ...,
    ) -> SegmentEntryWriter:
        """The writer of a ledger whose creating transaction succeeded.

        ``on_confirmed`` is called with each new LAC and must not raise, ``on_failed`` once, with `error`.
        Neither is called before this returns.
        """
        ...

    def gather(self) -> None:
        """What writers send from now on may wait for `send_gathered`, which follows before anyone waits."""
        ...

    def send_gathered(self) -> None:
        """Send it."""
        ...

    async def open(self, ledger_id: int, *, turn: int = 0) -> SegmentEntryReader:
        """For reading, without recovery. Raises `NoSuchLedger`.

        ``turn``: where all bookies hold everything, who reads with another one asks another one first.
        """
        ...

    async def follow(self, ledger_id: int) -> SegmentEntryReader:
        """As `open`, for who waits for what comes: the LAC is what `wait` is told. Raises `NoSuchLedger`."""
        ...

    async def recover(self, ledger_id: int) -> ClosedLedger:
        """Fence, find the end, close. Raises `RecoveryIncomplete`, `NoSuchLedger`."""
        ...

    async def different_copy(self, ledger_id: int, digests: Sequence[int]) -> str:
        """Which copy of a closed ledger is absent, damaged or other than meant, in words; "": none is.

        ``digests``: xxh3_64 of each entry's payload, in order. Raises what keeps a bookie from being asked.
        """
        ...

    async def delete_ops(self, ledger_id: int) -> Transaction:
        """The share of a transaction that turns it to DELETING (H21). Empty where it is gone."""
        ...
