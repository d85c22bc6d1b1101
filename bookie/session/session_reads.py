"""The reads of one connection: each waits for its turn, all of them while the device or the peer is slow.

The connections take turns (`read_scheduler.py`); here is what a turn does. Replies are not made while the
peer does not take those it has.
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
from ..storage.entry_reader import RUNS_MAX
from ..store.bookie_store import BookieStore
from .bookie_authorizer import PresentedCapabilities
from .read_scheduler import READ_TURN_BYTES, ReadScheduler

CREDIT_RETRY_S = 0.005
LIST_RANGES_MAX = 250_000
RUN_BYTES = READ_TURN_BYTES // RUNS_MAX
"""What looking at a run costs of a turn, beside its bytes: tiny ones have their bound as well."""


@dataclass(slots=True, eq=False)
class _Read:
    """A READ that waits for its turn."""

    ident: int
    request: m.ReadEntriesRequest
    extent: LoadedExtent | None = None


@dataclass(slots=True, eq=False)
class _Listing:
    """A LIST_ENTRIES under way, some runs a turn."""

    ident: int
    request: m.LedgerRequest
    at: int = 0
    ranges: int = 0
    """So many, without the last one, are in ``body``."""
    body: bytearray = field(default_factory=bytearray)
    last: tuple[int, int] | None = None
    """The last one: the next turn may go on with it."""
    doubtful: bool = False
    """A turn found the ledger in limbo: what was healed since may lie behind ``at``."""


class SessionReads:
    """See the module. ``owner`` is the connection, in whose turn the device is asked."""

    def __init__(
        self,
        store: BookieStore,
        turns: ReadScheduler,
        shown: PresentedCapabilities,
        link: Link,
        owner: object,
    ) -> None:
        self.waiting: deque[_Read | _Listing] = deque()
        """Oldest first."""
        self.queued = False
        """Its turn will come."""
        self._store = store
        self._options = store.options
        self._turns = turns
        self._shown = shown
        self._link = link
        self._owner = owner
        self._parked = False
        self._reads_cold = False
        self._closed = False

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        self.waiting.clear()

    @property
    def outgoing_bytes(self) -> int:
        """What the peer has not taken yet."""
        return self._link.outgoing_bytes

    @property
    def has_credit(self) -> bool:
        """May this connection get another reply now?"""
        return self._turns.has_credit(self._link.outgoing_bytes)

    @property
    def resting(self) -> bool:
        """Its reads wait for the device, or for the peer to take what it was sent."""
        return self._parked or self._reads_cold

    def on_read(self, ident: int, request: m.ReadEntriesRequest) -> None:
        """A READ has come; one that fences is served when the fence is durable."""
        if not request.fence:
            self._enqueue(_Read(ident, request))
            return

        def fenced(ledger: Ledger) -> None:
            if not self._closed:
                self._enqueue(_Read(ident, request))

        self.fence(ident, request.ledger, request.key, fenced)

    def fence(
        self, ident: int, ledger: int, shown: bytes, fenced: Callable[[Ledger], None]
    ) -> None:
        """Fence a ledger, then ``fenced``; what keeps it from that is the answer."""

        def done(found: Ledger, error: DistributedLogError | None) -> None:
            if error is not None:
                self._link.reply_error(ident, error)
            else:
                fenced(found)

        try:
            key = self._shown.key(CapabilityKind.RECOVER, ledger, shown)
        except CapabilityOutdated as error:
            self._link.reply_error(ident, error)
        else:
            self._store.fence(ledger, key, done)

    def on_list(self, ident: int, request: m.LedgerRequest) -> None:
        """A LIST_ENTRIES has come."""
        self._enqueue(_Listing(ident, request))

    def _enqueue(self, read: _Read | _Listing) -> None:
        if len(self.waiting) >= self._options.reads_waiting_max:
            self._link.reply_error(
                read.ident, TooBusy(f"{len(self.waiting)} reads of this connection wait here")
            )
            return
        self.waiting.append(read)
        self._go_on()

    def _go_on(self) -> None:
        if self.waiting and not self.resting and not self._closed:
            self._turns.ready(self)

    def serve_one(self) -> int:
        """Serve the oldest read, or park them all while the peer takes no replies.

        Returns what it cost of the turn, in bytes: what was replied, and `RUN_BYTES` for each run.
        """
        if self._closed or self.resting or not self.waiting:
            return 0
        if not self.has_credit:
            self._parked = True
            self._turns.nursery.start_soon(self._wait_for_credit)
            return 0
        read = self.waiting.popleft()
        try:
            if isinstance(read, _Listing):
                return self._list(read)
            return self._read(read)
        except DistributedLogError as error:
            self._link.reply_error(read.ident, error)
            return ENVELOPE_BYTES
        except Exception as error:  # reads of other connections continue
            self._fail(error)
            return ENVELOPE_BYTES

    def _fail(self, error: Exception) -> None:
        """End this connection alone after an unexpected exception in its reads."""
        peer = self._link.peer_address
        self._store.failures.fail(f"the reads of {peer}", error)
        self._link.close(ConnectionLost(f"serving a read of {peer} failed here"))

    async def _wait_for_credit(self) -> None:
        """One task for all parked reads of the connection."""
        try:
            await self._link.wait_room(self._options.outgoing_bytes_max)
            while not self.has_credit:
                await trio.sleep(CREDIT_RETRY_S)
                await self._link.wait_room(self._options.outgoing_bytes_max)
        except DistributedLogError:
            return  # closed: `on_closed` cleans up
        except Exception as error:
            self._fail(error)
            return
        self._parked = False
        self._go_on()

    def _read(self, read: _Read) -> int:
        request = read.request
        key = self._shown.key(CapabilityKind.READ, request.ledger, request.key)
        ledger = self._store.ledgers.look_up(request.ledger, key)
        last = request.last if request.past_lac else min(request.last, ledger.lac)
        bytes_max = min(request.bytes_max, self._options.reply_bytes_max)
        found = self._store.collect(ledger, request.first, last, bytes_max, read.extent)
        cold = found.cold
        if cold is not None and not found.parts:

            def done(answer: LoadedExtent | DistributedLogError) -> None:
                self._reads_cold = False
                if self._closed:
                    return
                try:
                    if isinstance(answer, CorruptData):
                        self._store.met_damage(answer, ledger.id, request.first, last)
                    if not isinstance(answer, LoadedExtent):
                        raise answer
                    read.extent = answer
                    self._read(read)  # at once, whatever the credit: the extent is not kept
                except DistributedLogError as error:
                    self._link.reply_error(read.ident, error)
                self._go_on()

            self._store.cold.submit(self._owner, cold.file_number, cold.offset, cold.length, done)
            self._reads_cold = True
            self._store.stats.reads_cold += 1
            return found.runs * RUN_BYTES
        if ledger.limbo and not found.parts:
            raise LedgerStateUnknown(f"ledger {ledger.id}: this bookie lost data (limbo)")
        self._store.stats.reads += 1
        self._store.stats.read_bytes += found.size
        assert found.size < FRAME_BYTES_MAX - ENVELOPE_BYTES, "a reply fits a frame"
        self._link.reply(
            read.ident,
            m.encode_read_head(found.complete_to, ledger.lac),
            *found.parts,
            flags=0 if ledger.limbo else m.FLAG_KNOWN,
        )
        self._turns.note_reply(self, found.size)
        return found.size + found.runs * RUN_BYTES

    def _list(self, listing: _Listing) -> int:
        asked = listing.request
        key = self._shown.key(CapabilityKind.LIST, asked.ledger, asked.key)
        ledger = self._store.ledgers.look_up(asked.ledger, key)
        more, listing.at = self._store.ranges(ledger, listing.at, RUNS_MAX)
        cost = RUNS_MAX * RUN_BYTES
        listing.doubtful = listing.doubtful or ledger.limbo
        last = listing.last
        if last is not None and more and last[0] + last[1] == more[0][0]:
            more[0] = (last[0], last[1] + more[0][1])
        elif last is not None:
            more.insert(0, last)
        listing.last = more.pop() if more else None
        listing.body += m.encode_runs(more)
        listing.ranges += len(more)
        complete = listing.at < 0
        if not complete and listing.ranges < LIST_RANGES_MAX:
            self.waiting.append(listing)
            return cost
        if listing.last is not None:
            listing.body += m.encode_runs([listing.last])
        # What does not fit a frame is not known to be absent.
        known = complete and not listing.doubtful
        self._link.reply(listing.ident, bytes(listing.body), flags=m.FLAG_KNOWN if known else 0)
        return cost
