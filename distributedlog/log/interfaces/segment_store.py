"""The interface that logs require of ledgers. `LedgerClient` implements it, and so does a test model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...metadata.model.transaction import Transaction
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Buffer


class NewSegmentLedger(Protocol):
    """A ledger with an ID and an ensemble that is not stored yet."""

    @property
    def ledger_id(self) -> int:
        """Its ID, which was never used before."""
        ...

    def create_ops(self) -> Transaction:
        """Return the operations that create it, as a part of a transaction."""
        ...


class ClosedLedger(Protocol):
    """The metadata of a closed ledger."""

    @property
    def last_entry(self) -> int | None:
        """Its last entry, or -1 if it is empty."""
        ...

    @property
    def length(self) -> int | None:
        """The size of the payloads of all entries in bytes."""
        ...


class SegmentEntry(Protocol):
    """An entry that was read. It owns its memory, and its digest was verified."""

    @property
    def entry(self) -> int:
        """Its ID."""
        ...

    @property
    def payload(self) -> memoryview:
        """The bytes that the log stored."""
        ...

    @property
    def length_so_far(self) -> int:
        """The size of the ledger's payloads up to and including this entry, in bytes."""
        ...

    @property
    def record(self) -> memoryview:
        """The complete record as its writer built it, to be forwarded unchanged."""
        ...


class SegmentEntryWriter(Protocol):
    """The writer of a ledger of this process. Methods without ``async`` never wait."""

    ledger_id: int
    lac: int

    @property
    def error(self) -> DistributedLogError | None:
        """The reason why it accepts no more entries, or None."""
        ...

    @property
    def last_entry(self) -> int:
        """The last entry that was added, or -1."""
        ...

    @property
    def has_capacity(self) -> bool:
        """Whether there is capacity for an entry now."""
        ...

    @property
    def needs_roll(self) -> bool:
        """Whether the log should continue in a new ledger.

        This is the case if slots lack entries, which are repaired only after the close, or if a better
        ensemble is available (H22).
        """
        ...

    @property
    def should_close_early(self) -> bool:
        """Whether the ledger should end even if it is empty.

        This is the case if one of its bookies is draining or unavailable, or waits for the end of the ledger,
        and a new ledger would avoid that bookie.
        """
        ...

    def add(self, buffers: Sequence[Buffer], payload_bytes: int) -> int:
        """Send one entry and return its ID.

        Raises:
            DistributedLogError: The writer has ended by `error`.
        """
        ...

    async def wait_capacity(self) -> None:
        """Wait until there is `has_capacity`, or an error."""
        ...

    def publish_lac(self) -> None:
        """Send the LAC to the bookies that do not have it yet.

        The writer does this automatically if no entry is in flight.
        """
        ...

    async def flush_lac(self) -> None:
        """Wait until an ack quorum has the LAC, so that readers see all acknowledged entries.

        Raises:
            RequestTimeout: No ack quorum answered.
            DistributedLogError: The writer has ended by `error`.
        """
        ...

    async def wait_settled(self) -> None:
        """Wait until no entry is in flight and the ledger may be closed.

        Return immediately after `close_ops`.

        Raises:
            DistributedLogError: The object in `error` itself, so that the caller can distinguish the end of
                the ledger from an error of the metadata store.
        """
        ...

    def close_ops(self, custom: Mapping[str, bytes] | None = None) -> Transaction:
        """Return the operations that close the ledger at its last entry, as a part of a transaction.

        The caller has waited for `wait_settled`. After this call, `error` is `AlreadyClosed`. The call may be
        repeated.

        Args:
            custom: Added to the custom metadata of the ledger.
        Raises:
            DistributedLogError: The object in `error` itself, if the writer has ended for another reason.
        """
        ...

    def abort(self) -> None:
        """Send nothing more, and stop tracking the entries in flight."""
        ...


class SegmentEntryReader(Protocol):
    """A ledger opened for reading, without recovery."""

    @property
    def lac(self) -> int:
        """The last entry that is known to be readable, or -1."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the final end of the ledger is known. If so, `lac` is the last entry."""
        ...

    @property
    def last_response_at(self) -> float:
        """The time at which a bookie last answered a wait for the end of the ledger.

        By trio's clock, -inf if none did.
        """
        ...

    async def why_unreadable(self, entry: int) -> str:
        """Return each replica's answer if an entry of a closed ledger cannot be read, otherwise "".

        An answer other than "" means that the entry certainly cannot be read.

        Raises:
            NoSuchLedger: The ledger was deleted.
        """
        ...

    def record_lac(self, lac: int) -> None:
        """Record that the caller has proof that ``lac`` is acknowledged (H24)."""
        ...

    def close(self) -> None:
        """Stop watching the ledger."""
        ...

    async def refresh_lac(self) -> int:
        """Request the LAC from the bookies.

        Raises:
            LedgerStateUnknown: Too few bookies answered.
        """
        ...

    async def read(self, first: int, last: int, *, bytes_max: int) -> Sequence[SegmentEntry]:
        """Return contiguous entries from ``first``, at least one."""
        ...

    async def wait(
        self,
        after: int,
        *,
        wait_s: float,
        on_entries: Callable[[Sequence[SegmentEntry]], int] | None = None,
    ) -> int:
        """Wait until the LAC is above an entry, the ledger is closed, or a timeout, and return the LAC.

        Args:
            after: The last entry that the caller has.
            wait_s: The timeout.
            on_entries: Receives the entries that arrive during the wait, from ``after`` + 1 without gaps, and
                returns the number that it accepted. The wait continues as long as it accepts all available
                entries.
        """
        ...


class SegmentLedger(Protocol):
    """The metadata of a ledger at the time of reading.

    Operations that it returns apply only to this version of it.
    """

    @property
    def owner(self) -> tuple[int, int] | None:
        """The log ID and segment number of the log that refers to it, or None."""
        ...

    @property
    def closed(self) -> bool:
        """Whether its final end is known."""
        ...

    @property
    def incarnation(self) -> int:
        """The ID of the log for which it was created."""
        ...

    @property
    def last_entry(self) -> int | None:
        """Its last entry: -1 if it is empty, None if it is not closed."""
        ...

    @property
    def length(self) -> int | None:
        """The size of the payloads of all entries in bytes, or None if it is not closed."""
        ...

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Ensemble size, write quorum and ack quorum."""
        ...

    @property
    def custom(self) -> Mapping[str, bytes]:
        """The custom metadata that its creator, and the client that closed it, stored."""
        ...

    def link_ops(self, owner: tuple[int, int]) -> Transaction:
        """Return the operations that make it a segment of a log, as a part of a transaction.

        The ledger must be closed and have no owner.
        """
        ...

    def delete_ops(self) -> Transaction:
        """Return the operations that delete it, as a part of a transaction.

        Raises:
            InvalidRequest: A log refers to the ledger.
        """
        ...


class LedgerFinder(Protocol):
    """Finds the metadata of ledgers."""

    async def find(self, ledger_id: int) -> SegmentLedger:
        """Return the metadata of a ledger, to link or delete it.

        Raises:
            NoSuchLedger: The ledger does not exist.
        """
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
        """Choose an ID and an ensemble for a new ledger.

        Raises:
            NotEnoughBookies: There are too few bookies for the ensemble.
        """
        ...

    def writer(
        self,
        prepared: Any,
        *,
        on_confirmed: Callable[[int], None] = ...,
        on_failed: Callable[[DistributedLogError], None] = ...,
    ) -> SegmentEntryWriter:
        """Return the writer of a ledger whose creating transaction succeeded.

        Args:
            prepared: The result of `prepare`.
            on_confirmed: Called with each new LAC. It must not raise.
            on_failed: Called once, with `error`, when the writer ends by an error. Neither callback runs
                before this method returns.
        """
        ...

    def defer_sends(self) -> None:
        """Collect the entries that writers send from now on until `send_deferred`.

        The caller must call `send_deferred` before any task waits.
        """
        ...

    def send_deferred(self) -> None:
        """Send the collected entries."""
        ...

    async def open(self, ledger_id: int, *, replica_offset: int = 0) -> SegmentEntryReader:
        """Open a ledger for reading, without recovery.

        Args:
            ledger_id: The ledger.
            replica_offset: Readers with different numbers start with different bookies, if every bookie has
                all entries.
        Raises:
            NoSuchLedger: The ledger does not exist.
        """
        ...

    async def open_tailing(self, ledger_id: int) -> SegmentEntryReader:
        """Open a ledger as `open` does, for a reader that waits for new entries.

        The bookies are not asked for the LAC. The reader has the LAC that `SegmentEntryReader.wait` receives.

        Raises:
            NoSuchLedger: The ledger does not exist.
        """
        ...

    async def recover(self, ledger_id: int) -> ClosedLedger:
        """Fence a ledger, find its end and close it.

        Raises:
            RecoveryIncomplete: Too few bookies answered.
            NoSuchLedger: The ledger does not exist.
        """
        ...

    async def different_copy(self, ledger_id: int, digests: Sequence[int]) -> str:
        """Return a message about a replica of a closed ledger that differs, or "" if all match.

        A replica differs if it is missing, corrupt, or has other entries. An error of a bookie that does not
        answer is raised.

        Args:
            ledger_id: The ledger.
            digests: The xxh3_64 digest of each entry's payload, in order.
        """
        ...

    async def delete_ops(self, ledger_id: int) -> Transaction:
        """Return the operations that set the ledger's state to DELETING (H21).

        The result is empty if the ledger does not exist.
        """
        ...
