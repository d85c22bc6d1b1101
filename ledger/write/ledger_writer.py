"""The writer of one ledger: `add`, the LAC, back-pressure, the end.

`add` is synchronous: encode once, keep the record in the window, queue the same bytes on every slot's
stream. Confirmations come back synchronously from the ack path (`on_confirmed`). Nothing is made per entry
but the record. Slots that fail are `ensemble_monitor.py`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import trio

from ...bookie.format.entry import HEADER, encode
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Transaction
from ...runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InternalError,
    LedgerFenced,
    RequestTimeout,
    WriteFailed,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.call_scheduler import (
    CallScheduler,
    PeriodicCheck,
    PeriodicChecks,
    ScheduledCall,
)
from ..declarations.options import LedgerOptions
from ..model import ledger_transactions as transactions
from ..model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ..model.missing_range import merged
from ..model.stored_ledger import NewLedger
from ..placement.bookie_pool import BookiePool
from .ensemble_change import EnsembleChange, why_ended
from .ensemble_monitor import EnsembleMonitor, WriterCallbacks
from .explicit_lac import ExplicitLacFlusher, PendingLac
from .flow_control import COUNTED_FROM_BYTES, InFlightBytes, RetainedBytes
from .pending_adds import PendingAdds

FLUSH_RETRY_S = 0.5
"""An unanswered flush of the LAC asks the slots again after this time."""
LAG_S = 0.2
"""What slots that lag get before a close."""

log = get_logger("distributedlog.ledger")


@dataclass(frozen=True, slots=True)
class WriterServices:
    """Services that all writers of a client share."""

    store: Metadata
    pool: BookiePool
    options: LedgerOptions
    chance: Random
    kept: RetainedBytes
    sent: InFlightBytes
    turn: CallScheduler
    """Sends LACs for which readers wait."""
    lacs: ExplicitLacFlusher
    """Sends LACs of idle ledgers."""
    sweeps: PeriodicChecks
    """Looks for what is late."""


class LedgerWriter:
    """Made by `LedgerClient.writer`. All but `close`, `settle` and `wait_room` is synchronous."""

    __slots__ = (
        "_care", "_change", "_closing", "_flush_event", "_flushed", "_kept", "_lac_due", "_lacs",
        "_length", "_on_confirmed", "_on_failed", "_options", "_plain_bytes", "_published",
        "_rest_event", "_resting", "_room_event", "_sent",
        "_store", "_streams", "_sweep_round", "_sweeps", "_swept", "_throttled", "_window",
        "error", "lac", "ledger_id",
    )  # fmt: skip

    def __init__(
        self,
        new: NewLedger,
        services: WriterServices,
        *,
        on_confirmed: Callable[[int], None],
        on_failed: Callable[[DistributedLogError], None],
    ) -> None:
        """``new`` was created: its record is at version 1. The callbacks are as in `LedgerClient.writer`."""
        metadata = new.metadata
        self.ledger_id = metadata.ledger_id
        self.lac = NO_ENTRY
        """The last entry that is confirmed, with all before it; -1 for none."""
        self.error: DistributedLogError | None = None
        """Why it takes no more entries; None while it does."""
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._store = services.store
        self._options = services.options
        self._change = EnsembleChange(metadata, 1)
        fragment = metadata.last_fragment
        self._window = PendingAdds(
            metadata.striping, fragment.bookies, epoch=fragment.epoch, detached=new.detached
        )
        self._length = 0
        self._published = NO_ENTRY
        self._lacs = services.lacs
        self._resting = PendingLac(self._tell_rested, self.broken)
        self._lac_due = ScheduledCall(services.turn, self._tell_watched, self.broken)
        self._sweeps = services.sweeps
        self._sweep_round = PeriodicCheck(self._sweep, self.broken)
        self._swept = False
        self._throttled = False
        self._closing = False
        self._kept = services.kept.for_ledger()
        self._plain_bytes = _plain_bytes_of(services.options)
        self._sent = services.sent.for_ledger(self._wake_waiters)
        self._room_event: trio.Event | None = None
        self._rest_event: trio.Event | None = None
        self._flushed = NO_ENTRY
        """An ack quorum is known to have this LAC."""
        self._flush_event: trio.Event | None = None
        self._care = EnsembleMonitor(
            self._window,
            self._change,
            WriterCallbacks(
                progressed=self._on_progress,
                broken=self.broken,
                confirmed=self._tell_confirmed,
                throttled=lambda: self.throttled,
                wake_waiters=self._wake_waiters,
                stir=self._stir,
                fail=self.fail,
            ),
            store=services.store,
            pool=services.pool,
            options=services.options,
            chance=services.chance,
        )
        self._streams = self._care.streams

    # --- the hot path -----------------------------------------------------------------------------

    @property
    def last_entry(self) -> int:
        """The last entry added; -1 for none."""
        return self._window.last

    @property
    def length(self) -> int:
        """Payload bytes of all entries added."""
        return self._length

    @property
    def in_flight_bytes(self) -> int:
        """Record bytes added and not yet confirmed."""
        return self._window.in_flight_bytes

    def add(self, buffers: Sequence[Buffer], payload_bytes: int) -> int:
        """Send one entry, whose payload is ``buffers`` joined; return its id.

        The caller respects `room`. Raises `error`; an add that is never confirmed is unknown (G7).
        """
        if self.error is not None:
            raise self.error.again()
        window = self._window
        entry = window.last + 1
        length = self._length + payload_bytes
        record = encode(self.ledger_id, entry, length, window.lac, buffers, payload_bytes)
        self._length = length
        if not self._swept:
            self._stir()
        window.push(record)
        self._sent.sent(len(record))
        self._streams.send(entry, record)
        return entry

    def _on_progress(self) -> None:
        """The window has counted acknowledgements."""
        if self.error is not None:
            return
        try:
            if self.lac != self._window.lac:
                self._tell_confirmed()
            if self._window.awaited:
                self._wake_waiters()
        except Exception as error:  # this is a call of a connection that other ledgers share
            self.broken(error)

    def _wake_waiters(self) -> None:
        """There may be room, or rest."""
        if self._room_event is not None and self.room:
            self._room_event.set()
            self._room_event = None
        if self._rest_event is not None:
            self._rest_event.set()
            self._rest_event = None
        self._window.awaited = int(self._room_event is not None)

    def _tell_confirmed(self) -> None:
        """The window's LAC moved: tell the user, then the bookies."""
        window = self._window
        lac = self.lac = window.lac
        self._sent.left(window.pushed_bytes - window.lac_bytes)
        self._on_confirmed(lac)
        if lac == window.last:
            self._lacs.rests(self._resting, lac)
            if self._streams.watched:
                self._lac_due.soon()

    def publish_lac(self) -> None:
        """Tell the bookies how far is confirmed, now. Done soon whenever nothing is in flight."""
        if self.error is None and self._published < self._window.lac:
            self._published = self._window.lac
            self._streams.send_lac(self._published)

    async def flush_lac(self) -> None:
        """Wait until an ack quorum of the ensemble has the last-add-confirmed (LAC): then readers have it.

        A reader asks enough bookies to intersect each possible ack quorum. Raises `error`, and
        `RequestTimeout` after ``add_timeout_s``: the entries are durable, and readable at the latest when the
        ledger closes.
        """
        lac = self._window.lac
        if self._flushed >= lac:
            return
        timeout_s = self._options.add_timeout_s
        with trio.move_on_after(timeout_s):
            while self._flushed < lac and self.error is None:
                if self._flush_event is None:
                    self._flush_event = trio.Event()
                flushed = self._flush_event
                self._begin_flush(lac)
                # A slot that was reconnected since then is asked again.
                with trio.move_on_after(FLUSH_RETRY_S):
                    await flushed.wait()
        if self.error is not None and not self._closing:
            raise self.error.again()
        if self._flushed < lac and self.error is None:
            raise RequestTimeout(
                f"ledger {self.ledger_id}: no ack quorum received the LAC {lac} within {timeout_s:g} s;"
                " the entries are durable, readers may see them later"
            )

    def _begin_flush(self, lac: int) -> None:
        """Send the LAC, and count the slots whose bookies have processed it."""
        self._published = max(self._published, lac)
        self._streams.send_lac(lac)
        processed: set[int] = set()

        def on_processed(slot: int) -> None:
            processed.add(slot)
            if self._window.striping.ackable(processed):
                self._flushed = max(self._flushed, lac)
                if self._flush_event is not None:
                    self._flush_event.set()
                    self._flush_event = None

        self._streams.when_processed(on_processed, self._options.add_timeout_s)

    def _tell_watched(self) -> int:
        """Where readers wait a LAC is told at once, unless an add has followed, which says it."""
        window = self._window
        if window.lac == window.last and self.error is None and self._published < window.lac:
            self._streams.send_lac(window.lac, watched_only=True)
        return 0

    def _tell_rested(self, lac: int) -> None:
        """``lac`` was the last entry a while ago: tell it where no add has followed, which would say it."""
        if lac == self._window.last and self._published < lac and self.error is None:
            self._published = lac
            self._streams.send_lac(lac)

    # --- back-pressure ----------------------------------------------------------------------------

    @property
    def room(self) -> bool:
        """May an entry be added now? (After an error: yes, so that `add` raises it.)"""
        if self.error is not None:
            return True
        window = self._window
        if (
            window.pushed_bytes - window.released_bytes < self._plain_bytes
            and not self._throttled
            and not self._kept.bytes
        ):  # as most: no slot keeps anything that counts
            return self._sent.room
        options = self._options
        bound = options.slot_bytes_max
        in_flight = window.pushed_bytes - window.lac_bytes
        kept = window.kept_bytes
        for_slots = kept - in_flight
        crowded = (self._kept.bytes > 0 or for_slots >= COUNTED_FROM_BYTES) and (
            self._kept.crowded(for_slots)
        )
        if self._throttled:
            self._throttled = crowded or kept > bound // 2
        else:
            self._throttled = crowded or kept >= bound
        return not self._throttled and in_flight < options.window_bytes_max and self._sent.room

    @property
    def throttled(self) -> bool:
        """Does a slow slot keep the writer at its bound?"""
        return not self.room and self._throttled

    async def wait_room(self) -> None:
        """Return when there is `room`, or an error."""
        while not self.room:
            self._sent.wait()
            if self._room_event is None:
                self._room_event = trio.Event()
            self._window.awaited = 1
            await self._room_event.wait()

    def _stir(self) -> None:
        """Have it swept from now on, until nothing is late, or could be."""
        if not self._swept and self.error is None:
            self._swept = True
            self._sweeps.join(self._sweep_round)

    def _sweep(self) -> bool:
        self._swept = self._care.sweep()
        return self._swept

    async def run(self) -> None:
        """Look after the slots until the writer ends; started by the client."""
        try:
            await self._care.run()
        finally:
            # Without this task nobody looks after the slots: whoever waits for room must not for ever.
            self.fail(WriteFailed(f"ledger {self.ledger_id}: the client that writes it has ended"))

    @property
    def wants_roll(self) -> bool:
        """Would a new ledger be better off? Holes wait for this one's end, or it changed too often."""
        return self._care.wants_roll

    @property
    def unwanted(self) -> bool:
        """Should it end, also where it is empty, for one of its bookies (`EnsembleMonitor.unwanted`)?"""
        return self._care.unwanted

    # --- the end ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until nothing is in flight and no ensemble change is undecided. Raises `error` itself.

        Slots that lag get `LAG_S` more, so that a ledger which is closed next has no hole in its note.
        From here on no ensemble change begins: the ledger is to be closed, and takes no more adds.
        Returns at once where `closing_share` was given before.
        """
        if self._closing:
            return
        await self._until_decided()
        with trio.move_on_after(LAG_S):
            while self.error is None and any(map(self._lags, range(len(self._window.slots)))):
                await self._next_ack()
        await self._until_decided()  # a slot may have failed while it lagged
        if self.error is not None:
            raise self.error  # itself: by that its user knows a ledger's end from the store's errors
        self._care.settled = True

    async def _until_decided(self) -> None:
        while self.error is None and (
            self._window.lac < self._window.last or self._change.round is not None
        ):
            await self._next_ack()

    async def _next_ack(self) -> None:
        if self._rest_event is None:
            self._rest_event = trio.Event()
        self._window.awaited = 1
        await self._rest_event.wait()

    def _lags(self, slot: int) -> bool:
        return self._streams.is_open(slot) and self._window.owed(slot)

    def closing_share(self, custom: Mapping[str, bytes] | None = None) -> Transaction:
        """The share of a transaction that closes the ledger at its LAC, and adds to its custom metadata.

        From here on `add` raises `AlreadyClosed`. Nothing is in flight and no ensemble change is
        undecided (`settle`). When the transaction meets another version, the ledger is the recoverer's.
        May be asked again. Raises any other `error`, itself.
        """
        if self.error is not None and not self._closing:
            raise self.error
        window = self._window
        assert window.lac == window.last, "a ledger is closed when nothing is in flight"
        assert self._change.round is None, "a ledger is closed between ensemble changes"
        closed = self._change.metadata.close_by_writer(window.lac, self._confirmed_length())
        share = transactions.close_ops(
            closed if custom is None else closed.with_custom(custom),
            self._change.version,
            merged(window.all_holes(window.lac + 1)),
        )
        if not self._closing:
            self._closing = True
            self._end(AlreadyClosed(f"ledger {self.ledger_id} was closed by its writer"))
        return share

    def _confirmed_length(self) -> int:
        """Payload bytes up to the LAC: what stands before the first entry that is not confirmed."""
        first = self._window.record(self._window.lac + 1)
        if first is None:
            return self._length
        _, _, payload_bytes, _, _, _, _, _, length_so_far, _ = HEADER.unpack_from(first)
        return int(length_so_far) - int(payload_bytes)

    async def close(self) -> LedgerMetadata:
        """Close at the last entry, all of them confirmed; return the closed record.

        Raises `error` when adds fail or failed, `LedgerFenced` when somebody recovers the ledger,
        `OutcomeUnknown` or `QuorumUnreachable` from the store.
        """
        await self.settle()
        closed = self._change.metadata.close_by_writer(self._window.lac, self._confirmed_length())
        reply = await self._store.transact(self.closing_share())
        if reply.succeeded:
            return closed
        found = reply.current[0]
        record = None if found is None else LedgerMetadata.decode(found.key, found.value)
        if record is not None and (record.last_entry, record.length) == (
            closed.last_entry,
            closed.length,
        ):
            return record
        raise why_ended(self.ledger_id, record) or LedgerFenced(
            f"ledger {self.ledger_id}: somebody else changed its record"
        )

    def abort(self) -> None:
        """Send nothing more, leave the ledger as it is. What is in flight is unknown. Idempotent."""
        if self.error is None:
            self._end(AlreadyClosed(f"the writer of ledger {self.ledger_id} was given up"))

    def fail(self, error: DistributedLogError) -> None:
        """End by an error, and say so once."""
        if self.error is None:
            log.info("the writer of ledger %d ends: %s", self.ledger_id, error)
            self._end(error)
            self._on_failed(error)

    def broken(self, error: Exception) -> None:
        """A rule of ours was broken in here: this ledger ends, and confirms nothing more."""
        log.error("the writer of ledger %d broke a rule: %r", self.ledger_id, error, exc_info=error)
        self.fail(InternalError(f"ledger {self.ledger_id}: its writer broke a rule: {error!r}"))

    def _end(self, error: DistributedLogError) -> None:
        """Take no more. Streams that still owe acks end with the task, or here."""
        self.error = error
        self._kept.crowded(0)
        self._sent.end()
        self._care.end()
        self._sweeps.leave(self._sweep_round)
        for event in (self._room_event, self._rest_event, self._flush_event):
            if event is not None:
                event.set()
        self._room_event = self._rest_event = self._flush_event = None


def _plain_bytes_of(options: LedgerOptions) -> int:
    """Return how many bytes of records may be in memory before any bound is near."""
    return min(
        COUNTED_FROM_BYTES, options.slot_bytes_max - COUNTED_FROM_BYTES, options.window_bytes_max
    )
