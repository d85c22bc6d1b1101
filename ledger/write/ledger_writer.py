"""The writer of one ledger: `add`, the LAC, back-pressure and the close.

`add` is synchronous. It encodes the entry once, keeps the record in `PendingAdds`, and queues the same
bytes on every slot's stream. Confirmations are synchronous calls in the acknowledgement path
(`on_confirmed`). Except for the record, no object is created per entry. `ensemble_monitor.py` handles
failed slots.
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
from ..model.missing_range import merge_ranges
from ..model.stored_ledger import NewLedger
from ..placement.bookie_pool import BookiePool
from .ensemble_change import EnsembleChange, writer_end_error
from .ensemble_monitor import EnsembleMonitor, WriterCallbacks
from .explicit_lac import ExplicitLacFlusher, PendingLac
from .flow_control import COUNTED_BYTES_MIN, InFlightBytes, RetainedBytes
from .pending_adds import PendingAdds

FLUSH_RETRY_S = 0.5
"""An unanswered flush of the LAC is repeated after this time, in seconds."""
LAGGING_SLOTS_S = 0.2
"""How long a close waits for lagging slots, in seconds."""

log = get_logger("distributedlog.ledger")


@dataclass(frozen=True, slots=True)
class WriterServices:
    """Services that all writers of a client share."""

    store: Metadata
    pool: BookiePool
    options: LedgerOptions
    rng: Random
    retained_bytes: RetainedBytes
    in_flight_bytes: InFlightBytes
    call_scheduler: CallScheduler
    """Sends LACs for which readers wait."""
    lac_flusher: ExplicitLacFlusher
    """Sends LACs of idle ledgers."""
    timeout_checks: PeriodicChecks
    """Checks for timeouts."""


class LedgerWriter:
    """Writes one ledger. `LedgerClient.writer` creates it.

    All methods except `close`, `wait_settled`, `wait_capacity` and `flush_lac` are synchronous.
    """

    __slots__ = (
        "_acked_event",
        "_capacity_event",
        "_change",
        "_closing",
        "_ensemble_monitor",
        "_flush_event",
        "_flushed_lac",
        "_in_flight_bytes",
        "_lac_call",
        "_lac_flusher",
        "_length",
        "_on_confirmed",
        "_on_failed",
        "_options",
        "_pending_adds",
        "_pending_lac",
        "_published_lac",
        "_retained_bytes",
        "_store",
        "_streams",
        "_throttled",
        "_timeout_check",
        "_timeout_checks",
        "_timer_armed",
        "_uncounted_bytes_max",
        "error",
        "lac",
        "ledger_id",
    )

    def __init__(
        self,
        new_ledger: NewLedger,
        services: WriterServices,
        *,
        on_confirmed: Callable[[int], None],
        on_failed: Callable[[DistributedLogError], None],
    ) -> None:
        """Create the writer of a ledger whose record is at version 1.

        The callbacks are those of `LedgerClient.writer`.
        """
        metadata = new_ledger.metadata
        self.ledger_id = metadata.ledger_id
        self.lac = NO_ENTRY
        """The last entry that is confirmed together with all earlier ones; -1 for none."""
        self.error: DistributedLogError | None = None
        """Why the writer accepts no more entries; None while it accepts them."""
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._store = services.store
        self._options = services.options
        self._change = EnsembleChange(metadata, 1)
        fragment = metadata.last_fragment
        self._pending_adds = PendingAdds(
            metadata.striping, fragment.bookies, epoch=fragment.epoch, detached=new_ledger.detached
        )
        self._length = 0
        self._published_lac = NO_ENTRY
        self._lac_flusher = services.lac_flusher
        self._pending_lac = PendingLac(self._flush_idle_lac, self.on_internal_error)
        self._lac_call = ScheduledCall(
            services.call_scheduler, self._send_lac_to_waiting, self.on_internal_error
        )
        self._timeout_checks = services.timeout_checks
        self._timeout_check = PeriodicCheck(self._check_timeouts, self.on_internal_error)
        self._timer_armed = False
        self._throttled = False
        self._closing = False
        self._retained_bytes = services.retained_bytes.for_ledger()
        self._uncounted_bytes_max = _uncounted_bytes_max(services.options)
        self._in_flight_bytes = services.in_flight_bytes.for_ledger(self._wake_waiters)
        self._capacity_event: trio.Event | None = None
        self._acked_event: trio.Event | None = None
        self._flushed_lac = NO_ENTRY
        """An ack quorum has this LAC."""
        self._flush_event: trio.Event | None = None
        self._ensemble_monitor = EnsembleMonitor(
            self._pending_adds,
            self._change,
            self._monitor_callbacks(),
            store=services.store,
            pool=services.pool,
            options=services.options,
            rng=services.rng,
        )
        self._streams = self._ensemble_monitor.streams

    def _monitor_callbacks(self) -> WriterCallbacks:
        """Return the methods of this writer that its ensemble monitor calls."""
        return WriterCallbacks(
            on_acked=self._on_progress,
            on_internal_error=self.on_internal_error,
            on_lac_advanced=self._report_confirmed,
            throttled=lambda: self.throttled,
            wake_waiters=self._wake_waiters,
            arm_timer=self._arm_timer,
            fail=self.fail,
        )

    # --- the hot path -----------------------------------------------------------------------------

    @property
    def last_entry(self) -> int:
        """The last entry added; -1 for none."""
        return self._pending_adds.last_entry

    @property
    def length(self) -> int:
        """Payload bytes of all entries added."""
        return self._length

    @property
    def in_flight_bytes(self) -> int:
        """Record bytes added and not yet confirmed."""
        return self._pending_adds.in_flight_bytes

    def add(self, buffers: Sequence[Buffer], payload_bytes: int) -> int:
        """Send one entry and return its ID. Call it only if there is `has_capacity`.

        Args:
            buffers: The payload, in parts.
            payload_bytes: The total size of the payload.

        Raises:
            DistributedLogError: The writer has ended (`error`). The outcome of unconfirmed adds is unknown
                (G7).
        """
        if self.error is not None:
            raise self.error.again()
        pending_adds = self._pending_adds
        entry = pending_adds.last_entry + 1
        length = self._length + payload_bytes
        record = encode(self.ledger_id, entry, length, pending_adds.lac, buffers, payload_bytes)
        self._length = length
        if not self._timer_armed:
            self._arm_timer()
        pending_adds.add(record)
        self._in_flight_bytes.add_sent(len(record))
        self._streams.send(entry, record)
        return entry

    def _on_progress(self) -> None:
        """Process counted acknowledgements."""
        if self.error is not None:
            return
        try:
            if self.lac != self._pending_adds.lac:
                self._report_confirmed()
            if self._pending_adds.notify_every_ack:
                self._wake_waiters()
        except Exception as error:  # this is a callback of a connection that other ledgers share
            self.on_internal_error(error)

    def _wake_waiters(self) -> None:
        """Wake tasks that wait for capacity or acknowledgements."""
        if self._capacity_event is not None and self.has_capacity:
            self._capacity_event.set()
            self._capacity_event = None
        if self._acked_event is not None:
            self._acked_event.set()
            self._acked_event = None
        self._pending_adds.notify_every_ack = int(self._capacity_event is not None)

    def _report_confirmed(self) -> None:
        """Report the advanced LAC to the user, then to the bookies."""
        pending_adds = self._pending_adds
        lac = self.lac = pending_adds.lac
        self._in_flight_bytes.set_unconfirmed(pending_adds.pushed_bytes - pending_adds.lac_bytes)
        self._on_confirmed(lac)
        if lac == pending_adds.last_entry:
            self._lac_flusher.schedule(self._pending_lac, lac)
            if self._streams.has_lac_waiters:
                self._lac_call.schedule()

    def publish_lac(self) -> None:
        """Send the LAC to the bookies now.

        Without this call, it is sent soon after all entries are confirmed.
        """
        if self.error is None and self._published_lac < self._pending_adds.lac:
            self._published_lac = self._pending_adds.lac
            self._streams.send_lac(self._published_lac)

    async def flush_lac(self) -> None:
        """Wait until an ack quorum has the last-add-confirmed (LAC), so that readers receive it.

        A reader queries enough bookies to intersect every possible ack quorum.

        Raises:
            RequestTimeout: There was no ack quorum within ``add_timeout_s``. The entries are durable, and
                readable when the ledger is closed at the latest.
            DistributedLogError: The writer has ended (`error`).
        """
        lac = self._pending_adds.lac
        if self._flushed_lac >= lac:
            return
        timeout_s = self._options.add_timeout_s
        with trio.move_on_after(timeout_s):
            while self._flushed_lac < lac and self.error is None:
                if self._flush_event is None:
                    self._flush_event = trio.Event()
                flushed = self._flush_event
                self._begin_flush(lac)
                # A slot that was reconnected in the meantime receives the LAC again.
                with trio.move_on_after(FLUSH_RETRY_S):
                    await flushed.wait()
        if self.error is not None and not self._closing:
            raise self.error.again()
        if self._flushed_lac < lac and self.error is None:
            raise RequestTimeout(
                f"ledger {self.ledger_id}: no ack quorum received the LAC {lac} within {timeout_s:g} s."
                " The entries are durable, but readers may receive them later."
            )

    def _begin_flush(self, lac: int) -> None:
        """Send the LAC, and count the slots whose bookies have processed it."""
        self._published_lac = max(self._published_lac, lac)
        self._streams.send_lac(lac)
        processed: set[int] = set()

        def on_processed(slot: int) -> None:
            processed.add(slot)
            if self._pending_adds.striping.keeps_ack_quorums(processed):
                self._flushed_lac = max(self._flushed_lac, lac)
                if self._flush_event is not None:
                    self._flush_event.set()
                    self._flush_event = None

        self._streams.call_when_processed(on_processed, self._options.add_timeout_s)

    def _send_lac_to_waiting(self) -> int:
        """Send the LAC where readers wait, unless an add has followed, which carries it."""
        pending_adds = self._pending_adds
        if (
            pending_adds.lac == pending_adds.last_entry
            and self.error is None
            and self._published_lac < pending_adds.lac
        ):
            self._streams.send_lac(pending_adds.lac, waiting_only=True)
        return 0

    def _flush_idle_lac(self, lac: int) -> None:
        """Send the LAC of an idle ledger, unless an add has followed, which carries it."""
        if (
            lac == self._pending_adds.last_entry
            and self._published_lac < lac
            and self.error is None
        ):
            self._published_lac = lac
            self._streams.send_lac(lac)

    # --- back-pressure ----------------------------------------------------------------------------

    @property
    def has_capacity(self) -> bool:
        """Whether an entry may be added now. True after an error, so that `add` raises it."""
        if self.error is not None:
            return True
        pending_adds = self._pending_adds
        if (
            pending_adds.pushed_bytes - pending_adds.released_bytes < self._uncounted_bytes_max
            and not self._throttled
            and not self._retained_bytes.counted_bytes
        ):  # the usual case: no slot keeps a relevant number of bytes
            return self._in_flight_bytes.has_capacity
        options = self._options
        bytes_max = options.slot_bytes_max
        in_flight_bytes = pending_adds.pushed_bytes - pending_adds.lac_bytes
        retained_bytes = pending_adds.retained_bytes
        bytes_for_slots = retained_bytes - in_flight_bytes
        over_budget = (
            self._retained_bytes.counted_bytes > 0 or bytes_for_slots >= COUNTED_BYTES_MIN
        ) and (self._retained_bytes.is_over_budget(bytes_for_slots))
        if self._throttled:
            self._throttled = over_budget or retained_bytes > bytes_max // 2
        else:
            self._throttled = over_budget or retained_bytes >= bytes_max
        return (
            not self._throttled
            and in_flight_bytes < options.window_bytes_max
            and self._in_flight_bytes.has_capacity
        )

    @property
    def throttled(self) -> bool:
        """Whether a slow slot blocks the writer at a limit."""
        return not self.has_capacity and self._throttled

    async def wait_capacity(self) -> None:
        """Wait until there is `has_capacity`, or an error."""
        while not self.has_capacity:
            self._in_flight_bytes.join_queue()
            if self._capacity_event is None:
                self._capacity_event = trio.Event()
            self._pending_adds.notify_every_ack = 1
            await self._capacity_event.wait()

    def _arm_timer(self) -> None:
        """Start the timeout checks. They continue until nothing can be late."""
        if not self._timer_armed and self.error is None:
            self._timer_armed = True
            self._timeout_checks.add(self._timeout_check)

    def _check_timeouts(self) -> bool:
        self._timer_armed = self._ensemble_monitor.check_timeouts()
        return self._timer_armed

    async def run(self) -> None:
        """Manage the slots until the writer ends. `LedgerClient` starts this task."""
        try:
            await self._ensemble_monitor.run()
        finally:
            # Without this task the slots are not managed, so waiting writers must be woken with an error.
            self.fail(WriteFailed(f"ledger {self.ledger_id}: its client has ended"))

    @property
    def needs_roll(self) -> bool:
        """Whether the log should continue in a new ledger (`EnsembleMonitor.needs_roll`)."""
        return self._ensemble_monitor.needs_roll

    @property
    def should_close_early(self) -> bool:
        """Whether the ledger should be closed because of a bookie, even if empty
        (`EnsembleMonitor.should_close_early`)."""
        return self._ensemble_monitor.should_close_early

    # --- the end ----------------------------------------------------------------------------------

    async def wait_settled(self) -> None:
        """Wait until nothing is in flight and no ensemble change is pending, to close the ledger next.

        Lagging slots get `LAGGING_SLOTS_S` more, so that the closed ledger has no missing entries to
        record. Afterwards no ensemble change starts, and the caller must not add entries. After
        `close_ops`, this returns at once.

        Raises:
            DistributedLogError: The writer has ended. This is the object in `error`.
        """
        if self._closing:
            return
        await self._wait_until_decided()
        with trio.move_on_after(LAGGING_SLOTS_S):
            while self.error is None and any(
                map(self._is_lagging, range(len(self._pending_adds.slots)))
            ):
                await self._wait_next_ack()
        await self._wait_until_decided()  # a slot may have failed while it lagged
        if self.error is not None:
            # the same object: the caller distinguishes it from errors of the metadata store
            raise self.error
        self._ensemble_monitor.changes_stopped = True

    async def _wait_until_decided(self) -> None:
        while self.error is None and (
            self._pending_adds.lac < self._pending_adds.last_entry
            or self._change.pending_round is not None
        ):
            await self._wait_next_ack()

    async def _wait_next_ack(self) -> None:
        if self._acked_event is None:
            self._acked_event = trio.Event()
        self._pending_adds.notify_every_ack = 1
        await self._acked_event.wait()

    def _is_lagging(self, slot: int) -> bool:
        return self._streams.is_open(slot) and self._pending_adds.has_unacked(slot)

    def close_ops(self, custom: Mapping[str, bytes] | None = None) -> Transaction:
        """Return operations that close the ledger at its LAC and add custom metadata.

        Call `wait_settled` first. Afterwards `add` raises `AlreadyClosed`. If the transaction finds another
        version of the record, another client is recovering the ledger. This method can be called again.

        Raises:
            DistributedLogError: The writer has ended with another error. This is the object in `error`.
        """
        if self.error is not None and not self._closing:
            raise self.error
        pending_adds = self._pending_adds
        assert pending_adds.lac == pending_adds.last_entry, (
            "a ledger is closed when nothing is in flight"
        )
        assert self._change.pending_round is None, "a ledger is closed between ensemble changes"
        closed = self._change.metadata.close_by_writer(pending_adds.lac, self._confirmed_length())
        operations = transactions.close_ops(
            closed if custom is None else closed.with_custom(custom),
            self._change.version,
            merge_ranges(pending_adds.all_missing_ranges(pending_adds.lac + 1)),
        )
        if not self._closing:
            self._closing = True
            self._end(AlreadyClosed(f"ledger {self.ledger_id} was closed by its writer"))
        return operations

    def _confirmed_length(self) -> int:
        """Return the payload bytes up to the LAC, which precede the first unconfirmed entry."""
        first = self._pending_adds.record(self._pending_adds.lac + 1)
        if first is None:
            return self._length
        _, _, payload_bytes, _, _, _, _, _, length_so_far, _ = HEADER.unpack_from(first)
        return int(length_so_far) - int(payload_bytes)

    async def close(self) -> LedgerMetadata:
        """Wait until all entries are confirmed, close the ledger after the last one, and return its record.

        Raises:
            LedgerFenced: Another client recovers the ledger.
            OutcomeUnknown: The outcome in the metadata store is unknown.
            QuorumUnreachable: The metadata quorum did not answer.
            DistributedLogError: The writer has ended (`error`).
        """
        await self.wait_settled()
        closed = self._change.metadata.close_by_writer(
            self._pending_adds.lac, self._confirmed_length()
        )
        reply = await self._store.transact(self.close_ops())
        if reply.succeeded:
            return closed
        stored = reply.current[0]
        record = None if stored is None else LedgerMetadata.decode(stored.key, stored.value)
        if record is not None and (record.last_entry, record.length) == (
            closed.last_entry,
            closed.length,
        ):
            return record
        raise writer_end_error(self.ledger_id, record) or LedgerFenced(
            f"ledger {self.ledger_id}: another client changed its record"
        )

    def abort(self) -> None:
        """Stop sending and leave the ledger open. The outcome of entries in flight is unknown. Idempotent."""
        if self.error is None:
            self._end(AlreadyClosed(f"the writer of ledger {self.ledger_id} was aborted"))

    def fail(self, error: DistributedLogError) -> None:
        """End the writer with an error, and report the error once."""
        if self.error is None:
            log.info("the writer of ledger %d ends: %s", self.ledger_id, error)
            self._end(error)
            self._on_failed(error)

    def on_internal_error(self, error: Exception) -> None:
        """End the writer after an invariant violation. It confirms nothing more."""
        log.error(
            "the writer of ledger %d violated an invariant: %r",
            self.ledger_id,
            error,
            exc_info=error,
        )
        self.fail(
            InternalError(f"the writer of ledger {self.ledger_id} violated an invariant: {error!r}")
        )

    def _end(self, error: DistributedLogError) -> None:
        """Accept no more entries, and stop the streams."""
        self.error = error
        self._retained_bytes.is_over_budget(0)
        self._in_flight_bytes.end()
        self._ensemble_monitor.end()
        self._timeout_checks.remove(self._timeout_check)
        for event in (self._capacity_event, self._acked_event, self._flush_event):
            if event is not None:
                event.set()
        self._capacity_event = self._acked_event = self._flush_event = None


def _uncounted_bytes_max(options: LedgerOptions) -> int:
    """Return the bytes of records below which no limit needs to be checked."""
    return min(
        COUNTED_BYTES_MIN, options.slot_bytes_max - COUNTED_BYTES_MIN, options.window_bytes_max
    )
