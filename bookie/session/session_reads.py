"""The reads of one connection, served when it is the connection's turn (`read_scheduler.py`).

All reads of a connection wait while one of them waits for the device, or while the peer has not received
earlier replies.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ...runtime.interfaces.errors import (
    CapabilityOutdated,
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    LedgerStateUnknown,
    TooBusy,
)
from ...runtime.net.link import Link
from ...runtime.protocol.capabilities import CapabilityKind
from ...runtime.protocol.frames import ENVELOPE_BYTES, FRAME_BYTES_MAX
from ..format import bookie_messages as m
from ..format.read_sources import LoadedExtent
from ..ledgers.ledger_table import Ledger
from ..storage.entry_reader import EXTENTS_PER_REPLY_MAX
from ..store.bookie_store import BookieStore
from .bookie_authorizer import PresentedCapabilities
from .read_scheduler import READ_BUDGET_BYTES, ReadScheduler

CREDIT_RETRY_S = 0.005
LIST_RANGES_MAX = 250_000
EXTENT_COST_BYTES = READ_BUDGET_BYTES // EXTENTS_PER_REPLY_MAX
"""The cost of one extent in the budget, in addition to its bytes. This also limits reads of tiny extents."""


@dataclass(slots=True, eq=False)
class _PendingRead:
    """A READ that waits for its turn."""

    ident: int
    request: m.ReadEntriesRequest
    extent: LoadedExtent | None = None


@dataclass(slots=True, eq=False)
class _PendingListing:
    """A LIST_ENTRIES in progress, with some extents per iteration."""

    ident: int
    request: m.LedgerRequest
    next_entry: int = 0
    range_count: int = 0
    """The number of ranges in `encoded_ranges`, which lack `last_range`."""
    encoded_ranges: bytearray = field(default_factory=bytearray)
    last_range: tuple[int, int] | None = None
    """The last range so far, which the next iteration may extend."""
    saw_limbo: bool = False
    """Whether the ledger was in limbo state in an iteration. Entries repaired since then may be below
    `next_entry`."""


class SessionReads:
    """The reads of one connection.

    ``owner`` is the connection, to which reads from the device are attributed.
    """

    def __init__(
        self,
        store: BookieStore,
        read_scheduler: ReadScheduler,
        presented: PresentedCapabilities,
        link: Link,
        owner: object,
    ) -> None:
        self.pending_reads: deque[_PendingRead | _PendingListing] = deque()
        """Oldest first."""
        self.is_queued = False
        """Whether the connection is in the scheduler's queue."""
        self._store = store
        self._options = store.options
        self._read_scheduler = read_scheduler
        self._presented = presented
        self._link = link
        self._owner = owner
        self._waits_for_peer = False
        self._waits_for_device = False
        self._closed = False

    def close(self) -> None:
        """Drop all reads, because the connection has ended."""
        self._closed = True
        self.pending_reads.clear()

    @property
    def outgoing_bytes(self) -> int:
        """Bytes of replies that the peer has not received yet."""
        return self._link.outgoing_bytes

    @property
    def has_credit(self) -> bool:
        """Whether this connection may get another reply now."""
        return self._read_scheduler.has_credit(self._link.outgoing_bytes)

    @property
    def is_blocked(self) -> bool:
        """Whether its reads wait for the device, or for the peer to receive earlier replies."""
        return self._waits_for_peer or self._waits_for_device

    def on_read(self, ident: int, request: m.ReadEntriesRequest) -> None:
        """Handle a READ. If it fences, it is served after the fence is durable."""
        if not request.fence:
            self._enqueue(_PendingRead(ident, request))
            return

        def fenced(fenced_ledger: Ledger) -> None:
            if not self._closed:
                self._enqueue(_PendingRead(ident, request))

        self.fence(ident, request.ledger, request.key, fenced)

    def fence(
        self, ident: int, ledger: int, presented_key: bytes, on_fenced: Callable[[Ledger], None]
    ) -> None:
        """Fence a ledger, then call ``on_fenced``. An error is sent as the reply."""

        def done(fenced_ledger: Ledger, error: DistributedLogError | None) -> None:
            if error is not None:
                self._link.reply_error(ident, error)
            else:
                on_fenced(fenced_ledger)

        try:
            key = self._presented.key_to_check(CapabilityKind.RECOVER, ledger, presented_key)
        except CapabilityOutdated as error:
            self._link.reply_error(ident, error)
        else:
            self._store.fence(ledger, key, done)

    def on_list(self, ident: int, request: m.LedgerRequest) -> None:
        """Handle a LIST_ENTRIES."""
        self._enqueue(_PendingListing(ident, request))

    def _enqueue(self, read: _PendingRead | _PendingListing) -> None:
        if len(self.pending_reads) >= self._options.reads_waiting_max:
            self._link.reply_error(
                read.ident, TooBusy(f"{len(self.pending_reads)} reads of this connection wait here")
            )
            return
        self.pending_reads.append(read)
        self._schedule_next()

    def _schedule_next(self) -> None:
        if self.pending_reads and not self.is_blocked and not self._closed:
            self._read_scheduler.enqueue(self)

    def serve_one(self) -> int:
        """Serve the oldest read, or wait for credit; return the cost in bytes.

        The cost is the size of the reply, and `EXTENT_COST_BYTES` for each extent that was examined.
        """
        if self._closed or self.is_blocked or not self.pending_reads:
            return 0
        if not self.has_credit:
            self._waits_for_peer = True
            self._read_scheduler.nursery.start_soon(self._wait_for_credit)
            return 0
        read = self.pending_reads.popleft()
        try:
            if isinstance(read, _PendingListing):
                return self._serve_listing(read)
            return self._serve_read(read)
        except DistributedLogError as error:
            self._link.reply_error(read.ident, error)
            return ENVELOPE_BYTES
        except Exception as error:  # the reads of other connections continue
            self._close_after_failure(error)
            return ENVELOPE_BYTES

    def _close_after_failure(self, error: Exception) -> None:
        """End this connection alone after an unexpected exception in its reads."""
        peer = self._link.peer_address
        self._store.failures.record_failure(f"the reads of {peer}", error)
        self._link.close(ConnectionLost(f"serving a read of {peer} failed here"))

    async def _wait_for_credit(self) -> None:
        """Wait for credit, in one task for all reads of the connection."""
        try:
            await self._link.wait_capacity(self._options.outgoing_bytes_max)
            while not self.has_credit:
                await trio.sleep(CREDIT_RETRY_S)
                await self._link.wait_capacity(self._options.outgoing_bytes_max)
        except DistributedLogError:
            return  # closed: `on_closed` cleans up
        except Exception as error:
            self._close_after_failure(error)
            return
        self._waits_for_peer = False
        self._schedule_next()

    def _serve_read(self, pending_read: _PendingRead) -> int:
        request = pending_read.request
        key = self._presented.key_to_check(CapabilityKind.READ, request.ledger, request.key)
        ledger = self._store.ledgers.get_known(request.ledger, key)
        last = request.last if request.past_lac else min(request.last, ledger.lac)
        bytes_max = min(request.bytes_max, self._options.reply_bytes_max)
        collected = self._store.collect(ledger, request.first, last, bytes_max, pending_read.extent)
        device_extent = collected.device_extent
        if device_extent is not None and not collected.parts:

            def done(answer: LoadedExtent | DistributedLogError) -> None:
                self._waits_for_device = False
                if self._closed:
                    return
                try:
                    if isinstance(answer, CorruptData):
                        self._store.on_corruption(answer, ledger.id, request.first, last)
                    if not isinstance(answer, LoadedExtent):
                        raise answer
                    pending_read.extent = answer
                    # At once and without a check of the credit, because the extent is not kept.
                    self._serve_read(pending_read)
                except DistributedLogError as error:
                    self._link.reply_error(pending_read.ident, error)
                self._schedule_next()

            self._store.device_reader.submit(
                self._owner,
                device_extent.file_number,
                device_extent.offset,
                device_extent.length,
                done,
            )
            self._waits_for_device = True
            self._store.stats.reads_cold += 1
            return collected.extents_examined * EXTENT_COST_BYTES
        if ledger.limbo and not collected.parts:
            raise LedgerStateUnknown(f"ledger {ledger.id}: this bookie lost data (limbo)")
        self._store.stats.reads += 1
        self._store.stats.read_bytes += collected.size_bytes
        assert collected.size_bytes < FRAME_BYTES_MAX - ENVELOPE_BYTES, "a reply fits a frame"
        self._link.reply(
            pending_read.ident,
            m.encode_read_head(collected.complete_to, ledger.lac),
            *collected.parts,
            flags=0 if ledger.limbo else m.FLAG_PROVES_ABSENCE,
        )
        self._read_scheduler.record_reply(self, collected.size_bytes)
        return collected.size_bytes + collected.extents_examined * EXTENT_COST_BYTES

    def _serve_listing(self, listing: _PendingListing) -> int:
        request = listing.request
        key = self._presented.key_to_check(CapabilityKind.LIST, request.ledger, request.key)
        ledger = self._store.ledgers.get_known(request.ledger, key)
        ranges, listing.next_entry = self._store.ranges(
            ledger, listing.next_entry, EXTENTS_PER_REPLY_MAX
        )
        cost = EXTENTS_PER_REPLY_MAX * EXTENT_COST_BYTES
        listing.saw_limbo = listing.saw_limbo or ledger.limbo
        last_range = listing.last_range
        if last_range is not None and ranges and last_range[0] + last_range[1] == ranges[0][0]:
            ranges[0] = (last_range[0], last_range[1] + ranges[0][1])
        elif last_range is not None:
            ranges.insert(0, last_range)
        listing.last_range = ranges.pop() if ranges else None
        listing.encoded_ranges += m.encode_entry_ranges(ranges)
        listing.range_count += len(ranges)
        complete = listing.next_entry < 0
        if not complete and listing.range_count < LIST_RANGES_MAX:
            self.pending_reads.append(listing)
            return cost
        if listing.last_range is not None:
            listing.encoded_ranges += m.encode_entry_ranges([listing.last_range])
        # Entries that do not fit into the frame are not proven to be absent.
        proves_absence = complete and not listing.saw_limbo
        self._link.reply(
            listing.ident,
            bytes(listing.encoded_ranges),
            flags=m.FLAG_PROVES_ABSENCE if proves_absence else 0,
        )
        return cost
