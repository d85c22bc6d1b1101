"""Monitor the slots of one writer: connected, silent, slow, replaced or detached.

If the connection of a slot fails, the slot gets a new stream when the bookie is connected again within
``slot_silence_s``. After this time, or if the bookie rejects adds, the bookie is replaced (metadata first,
D4). If that is impossible, the slot is detached if every write set keeps its ack quorum (H22).

The client checks its writers for timeouts several times per ``slot_silence_s``, but only writers with
entries in flight or a problem. An ensemble change runs in a separate task. Nothing here runs per entry.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

import trio

from ...bookie.client.bookie_client import BookieClient
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    CapabilityOutdated,
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    EntryConflict,
    LedgerFenced,
    NotAllowed,
    NotReady,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    TooBusy,
    WriteFailed,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.capabilities import CapabilityKind
from ..declarations.events import BOOKIE_BACK, BOOKIE_BEHIND, BOOKIE_FAILED, BOOKIE_SILENT, DEGRADED
from ..declarations.options import LedgerOptions
from ..model import ledger_transactions as transactions
from ..model.ledger_ids import BLOCK_LIFETIME_S
from ..model.ledger_keys import ledger_key
from ..model.ledger_metadata import LedgerMetadata
from ..placement.bookie_pool import BookiePool
from ..placement.ensemble_placement import Candidate, RandomFraction, choose_replacements
from .add_streams import AddStreamListener, SlotStreams
from .ensemble_change import EnsembleChange, EnsembleChangeRound
from .flow_control import COUNTED_BYTES_MIN
from .missing_range_recorder import STORE_RETRY_S, MissingRangeRecorder
from .pending_adds import PendingAdds
from .slot_timers import SendProgress, SlotTimers

CHANGES_MAX = 16
"""After this many ensemble changes, rolling the ledger is better (docs/internals/invariants.md)."""
STARVED_RETRY_S = 0.25
"""The interval between attempts to reconnect a failed slot without a replacement, in seconds."""

TRANSIENT_ERRORS = (
    ConnectionLost,
    TooBusy,
    RequestTimeout,
    NotReady,
    CorruptData,
    ProtocolError,
    CapabilityOutdated,
)
"""Failures of a slot that another stream to the same bookie may not encounter again."""

log = get_logger("distributedlog.ledger")


@dataclass(frozen=True, slots=True)
class WriterCallbacks:
    """Methods of the writer that `EnsembleMonitor` calls."""

    on_acked: Callable[[], None]
    """Called after acknowledgements are counted."""
    on_internal_error: Callable[[Exception], None]
    """Receives exceptions of callbacks from connections and from the pool, which other ledgers share."""
    on_lac_advanced: Callable[[], None]
    """Called after the LAC has advanced without an acknowledgement."""
    throttled: Callable[[], bool]
    """Returns whether a slow slot blocks the writer at a limit."""
    wake_waiters: Callable[[], None]
    """Wakes tasks that wait for capacity or for acknowledgements."""
    arm_timer: Callable[[], None]
    """Starts the calls of `EnsembleMonitor.check_timeouts`."""
    fail: Callable[[DistributedLogError], None]
    """Ends the writer, which calls `EnsembleMonitor.end`."""


class EnsembleMonitor:
    """Keeps the slots of one writer working. The writer creates it and calls `run`."""

    def __init__(
        self,
        pending_adds: PendingAdds,
        change: EnsembleChange,
        writer: WriterCallbacks,
        *,
        store: Metadata,
        pool: BookiePool,
        options: LedgerOptions,
        rng: Random,
    ) -> None:
        metadata = change.metadata
        self.streams = SlotStreams(
            pending_adds,
            metadata.ledger_id,
            metadata.key,
            recovery=False,
            connection_of=pool.get,
            listener=AddStreamListener(
                pending_adds.on_acked,
                self._on_slot_failed,
                writer.on_internal_error,
                writer.on_acked,
            ),
        )
        self.changes_stopped = False
        """Whether no further ensemble change starts, because the ledger is being closed."""
        self._pending_adds = pending_adds
        self._change = change
        self._writer = writer
        self._store = store
        self._pool = pool
        self._options = options
        self._rng = rng
        self._ledger_id = metadata.ledger_id
        self._started_at = trio.current_time()
        self._ended = False
        self._nursery: trio.Nursery | None = None
        self._wake = trio.Event()
        self._next_change_at = float("-inf")
        self._missing_range_recorder = MissingRangeRecorder(
            store, pending_adds, change, writer.fail
        )
        # bookie -> the connection on which it failed
        self._failed_clients: dict[str, BookieClient] = {}
        self._slot_timers = SlotTimers(pending_adds)
        self._throttled_at: float | None = None

    def end(self) -> None:
        """Stop the streams and tasks, because the writer has ended."""
        self._ended = True
        self.streams.end_all()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # --- slots --------------------------------------------------------------------------------------

    def _on_slot_failed(self, slot: int, bookie: str, error: DistributedLogError) -> None:
        """Handle a broken stream or a rejected add."""
        if self._ended:
            return
        self._writer.arm_timer()
        if isinstance(error, LedgerFenced | EntryConflict | NotAllowed):
            self._writer.fail(error)
            return
        if isinstance(error, CapabilityOutdated):
            return  # the pool requests a new capability and reports the change
        BOOKIE_FAILED.emit(
            log,
            "ledger %d: bookie %s in slot %d: %s",
            self._ledger_id,
            bookie,
            slot,
            error,
            bookie=bookie,
            ledger=self._ledger_id,
            why=str(error),
        )
        if not isinstance(error, TRANSIENT_ERRORS):
            self._request_replacement(slot)
            self._wake.set()
        # Otherwise the next pool change or timeout check opens another stream, which avoids a hot loop of
        # rejections.

    def _request_replacement(self, slot: int) -> None:
        """Mark the slot's bookie as failed, so that it is replaced."""
        bookie = self._pending_adds.slots[slot].bookie
        client = self._pool.get(bookie)
        if client is not None:
            self._failed_clients[bookie] = client
        self._change.on_failure(slot, bookie)

    def _is_usable(self, bookie: str) -> bool:
        """Whether the bookie is connected, by another connection than the one on which it failed."""
        client = self._pool.get(bookie)
        return client is not None and self._failed_clients.get(bookie) is not client

    def _on_pool_change(self) -> None:
        """Check the slots after the bookies or their connections changed."""
        if self._ended:
            return
        try:
            self._writer.arm_timer()
            self._check_slots()
            if self._change.failed_slots and self._change.pending_round is None:
                self._wake.set()
        except Exception as error:  # the pool calls this for all ledgers
            self._writer.on_internal_error(error)

    def _check_slots(self) -> None:
        """Reconnect or attach slots, or start replacements, if possible now."""
        pending_adds = self._pending_adds
        for number, slot in enumerate(pending_adds.slots):
            if self.streams.is_open(number) or number in self._change.failed_slots:
                continue
            if not slot.detached:
                if self._is_usable(slot.bookie) and self.streams.open(number):
                    self.streams.send_lac(pending_adds.lac)
            elif not pending_adds.ensemble_changing and self._change.pending_round is None:
                # A read-only or draining bookie would reject the first add of the stream.
                if self._is_usable(slot.bookie) and self._pool.is_writable(slot.bookie):
                    BOOKIE_BACK.emit(
                        log,
                        "ledger %d: bookie %s is back",
                        self._ledger_id,
                        slot.bookie,
                        bookie=slot.bookie,
                        ledger=self._ledger_id,
                    )
                    pending_adds.attach(number)
                    self.streams.open(number)
                elif self._has_replacement(number):
                    self._change.on_failure(number, slot.bookie)

    def _has_replacement(self, number: int) -> bool:
        """Whether a slot could be replaced, under an enforced placement policy, too."""
        kept_bookies = {
            n: slot.bookie for n, slot in enumerate(self._pending_adds.slots) if n != number
        }
        return bool(self._choose_with([number], kept_bookies, (), lambda: 0.0))

    def _spare_bookies(self, excluded: Sequence[str]) -> list[Candidate]:
        ensemble = {slot.bookie for slot in self._pending_adds.slots}
        return [
            candidate
            for candidate in self._pool.candidates()
            if candidate.id not in ensemble
            and candidate.id not in excluded
            and self._is_usable(candidate.id)
        ]

    # --- tasks --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Change the ensemble when necessary, until the writer ends."""
        stop = self._pool.subscribe(self._on_pool_change)
        self._slot_timers.start(trio.current_time())
        self._writer.arm_timer()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                bookies = self._change.metadata.last_fragment.bookies
                wait_s = self._options.connect_timeout_s
                await self._pool.capabilities.wait_for_keys(
                    bookies, CapabilityKind.ADD, self._ledger_id, wait_s
                )
                self._check_slots()
                while not self._ended:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    if not self._ended and self._change_due():
                        self._begin_change()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            stop()
            self.streams.end_all()

    def _spawn(self, run: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._nursery is not None:  # otherwise the writer has ended
            self._nursery.start_soon(run, *arguments)

    def _change_due(self) -> bool:
        return (
            bool(self._change.failed_slots)
            and self._change.pending_round is None
            and not self.changes_stopped
            and trio.current_time() >= self._next_change_at
        )

    def check_timeouts(self) -> bool:
        """Check for late adds, silent slots and slots that block the writer, every ``sweep_s``.

        Returns:
            False if nothing is in flight or wrong, so that no check is necessary until that changes.
        """
        if self._ended:
            return False
        if self._nursery is None:
            return True
        self._pending_adds.release()
        if self._is_idle and not self._pending_adds.missing_ranges:  # usual for occasional writers
            self._writer.throttled()  # releases its share of the process's limit
            return False
        pending_adds, options = self._pending_adds, self._options
        self._slot_timers.on_timer(trio.current_time(), options.sweep_s, self._send_progress)
        if self._slot_timers.oldest_add_s >= options.add_timeout_s:
            self._writer.fail(
                WriteFailed(
                    f"ledger {self._ledger_id} entry {pending_adds.lac + 1}: no ack quorum of"
                    f" {pending_adds.striping.ack_quorum} within {options.add_timeout_s:g} s"
                    f" ({self._describe_slots()})"
                )
            )
            return False
        self._check_slots()
        self._replace_silent_slots()
        self._replace_stalled_slots(self._slot_timers.elapsed_s)
        self._missing_range_recorder.store_if_changed(self._spawn)
        if self._change_due():
            self._wake.set()
        return not self._is_idle

    @property
    def _is_idle(self) -> bool:
        """Whether all slots have all entries, and no failure or change is pending."""
        pending_adds = self._pending_adds
        return (
            pending_adds.is_fully_acked
            and not self._change.failed_slots
            and self._change.pending_round is None
            and self._throttled_at is None
            and self.streams.all_open
        )

    def _send_progress(self, number: int) -> SendProgress | None:
        client = self._pool.get(self._pending_adds.slots[number].bookie)
        return None if client is None or not self.streams.is_open(number) else client.send_progress

    def _replace_silent_slots(self) -> None:
        silent_slots = self._slot_timers.silent_slots(self._options.slot_silence_s)
        if self._change.pending_round is not None:
            return
        for number in silent_slots:
            bookie = self._pending_adds.slots[number].bookie
            BOOKIE_SILENT.emit(
                log,
                "ledger %d: bookie %s is silent",
                self._ledger_id,
                bookie,
                bookie=bookie,
                ledger=self._ledger_id,
            )
            self.streams.end(number)
            self._request_replacement(number)

    def _replace_stalled_slots(self, clock: float) -> None:
        """Replace slots that block the writer at a limit and do not catch up."""
        if not self._writer.throttled():
            if self._throttled_at is not None:
                self._writer.wake_waiters()  # other ledgers may have freed capacity
            self._throttled_at = None
        elif self._throttled_at is None:
            self._throttled_at = clock
        elif clock - self._throttled_at >= self._options.slot_stall_s:
            self._throttled_at = None
            pending_adds, bytes_max = self._pending_adds, self._options.slot_bytes_max
            # At the ledger's limit, replace slots that are far behind; at the process's limit, all slots
            # that count.
            unacked_min = (
                bytes_max // 4
                if pending_adds.retained_bytes > bytes_max // 2
                else COUNTED_BYTES_MIN - 1
            )
            for number in range(len(pending_adds.slots)):
                unacked_bytes = pending_adds.unacked_bytes(number) - pending_adds.in_flight_bytes
                if unacked_bytes > unacked_min:
                    bookie = pending_adds.slots[number].bookie
                    BOOKIE_BEHIND.emit(
                        log,
                        "ledger %d: bookie %s is %d bytes behind",
                        self._ledger_id,
                        bookie,
                        unacked_bytes,
                        bookie=bookie,
                        ledger=self._ledger_id,
                        bytes=unacked_bytes,
                    )
                    self.streams.end(number)
                    self._request_replacement(number)

    def _describe_slots(self) -> str:
        texts = []
        for number, slot in enumerate(self._pending_adds.slots):
            if slot.detached:
                state = "detached"
            elif not self.streams.is_open(number):
                state = "not connected"
            elif self._pending_adds.has_unacked(number):
                state = f"acked to {slot.acked_through}"
            else:
                state = "ok"
            texts.append(f"{slot.bookie}: {state}")
        return ", ".join(texts)

    # --- ensemble changes ---------------------------------------------------------------------------

    def _begin_change(self) -> None:
        """Start a round for all failures. No entry is confirmed until it is decided."""
        pending_adds = self._pending_adds
        detached_slots = [n for n, slot in enumerate(pending_adds.slots) if slot.detached]
        round_ = self._change.start_round(pending_adds.lac, detached_slots, self._choose)
        pending_adds.begin_change()
        for slot in (*round_.replacements, *round_.newly_detached):
            self.streams.end(slot)
        if round_.proposed is None:
            self._decided(round_.version)
        else:
            self._spawn(self._propose, round_)

    def _choose(
        self, slots: list[int], kept_bookies: dict[int, str], excluded: list[str]
    ) -> dict[int, str]:
        return self._choose_with(slots, kept_bookies, excluded, self._rng.random)

    def _choose_with(
        self,
        slots: Sequence[int],
        kept_bookies: dict[int, str],
        excluded: Sequence[str],
        random: RandomFraction,
    ) -> dict[int, str]:
        return choose_replacements(
            self._pending_adds.striping,
            kept_bookies,
            slots,
            self._spare_bookies(excluded),
            random,
            labels={bookie: self._pool.labels(bookie) for bookie in kept_bookies.values()},
            policy=self._pool.placement,
        )

    async def _propose(self, round_: EnsembleChangeRound) -> None:
        """Store the round, however long that takes, and continue with its ensemble (D4)."""
        try:
            version = await self._store_round(round_)
        except DistributedLogError as error:
            self._writer.fail(error)
        else:
            if version is not None:
                self._decided(version)

    async def _store_round(self, round_: EnsembleChangeRound) -> int | None:
        """Store the round and return the record's version; None if the writer has ended.

        Raises:
            LedgerFenced: Another client recovers or changed the ledger.
            LedgerClosed: The ledger is closed or being deleted.
            NoSuchLedger: The ledger was deleted.
        """
        change = self._change
        while not self._ended:
            assert round_.proposed is not None, "only a changed record is proposed"
            operations = transactions.change_ops(change.metadata, round_.proposed, round_.version)
            try:
                reply = await self._store.transact(operations)
                if reply.succeeded:
                    return round_.version + 1
                stored = reply.current[0]
            except OutcomeUnknown:
                stored = await self._read_record()
            except DistributedLogError as error:
                log.info(
                    "ledger %d: the ensemble change cannot be stored now (%s)",
                    self._ledger_id,
                    error,
                )
                await trio.sleep(STORE_RETRY_S)
                continue
            if self._ended:
                break
            record = None if stored is None else LedgerMetadata.decode(stored.key, stored.value)
            next_round = change.on_conflict(record, 0 if stored is None else stored.version)
            if next_round is None:
                assert stored is not None, "a stored round is in a record"
                return stored.version
            round_ = next_round
        return None

    async def _read_record(self) -> KeyValue | None:
        while True:
            try:
                return await self._store.get(ledger_key(self._ledger_id))
            except DistributedLogError as error:
                log.info("ledger %d: the record cannot be read now (%s)", self._ledger_id, error)
                await trio.sleep(STORE_RETRY_S)

    def _decided(self, version: int) -> None:
        """Continue with the ensemble of a round that is stored, or that required no storing."""
        if self._ended:
            return
        pending_adds = self._pending_adds
        committed = self._change.on_committed(version)
        confirmed_count = pending_adds.end_change(
            committed.replacements, self._change.metadata.last_fragment.epoch
        )
        for slot in committed.newly_detached:
            confirmed_count += pending_adds.detach(slot)
            bookie = pending_adds.slots[slot].bookie
            text = "ledger %d continues without bookie %s"
            DEGRADED.emit(log, text, self._ledger_id, bookie, bookie=bookie, ledger=self._ledger_id)
        if committed.unreplaced:  # limits the retries if the bookie rejects at once
            self._next_change_at = trio.current_time() + STARVED_RETRY_S
        for slot in committed.unreplaced:
            # Any connection to the bookie may be used again, because there is no replacement.
            self._failed_clients.pop(pending_adds.slots[slot].bookie, None)
        for slot in (*committed.replacements, *committed.unreplaced):
            self._slot_timers.reset(slot)
            if self.streams.open(slot):
                self.streams.send_lac(pending_adds.lac)
        if confirmed_count:
            self._writer.on_lac_advanced()
        self._writer.wake_waiters()
        self._missing_range_recorder.store_if_changed(self._spawn)
        if self._change.failed_slots:
            self._wake.set()

    @property
    def should_close_early(self) -> bool:
        """Whether a new ledger would avoid bookies of this ledger on which no ledger should stay open."""
        bookies_to_leave, limbo_below = self._pool.bookies_to_leave(), self._pool.limbo_below
        if not bookies_to_leave and not limbo_below:
            return False
        bookies = self._change.metadata.bookies()
        waiting_bookies = {
            bookie
            for bookie, below in limbo_below.items()
            if bookie in bookies and self._waits_for_close(bookie, below)
        }
        if not waiting_bookies and bookies_to_leave.isdisjoint(bookies):
            return False
        usable_count = sum(
            bookie.id in waiting_bookies
            or self._is_usable(bookie.id)  # a rejection may be what it waits for
            for bookie in self._pool.candidates()
        )
        return usable_count >= self._pending_adds.striping.ensemble_size

    def _waits_for_close(self, bookie: str, below: int) -> bool:
        """Whether a bookie lost data and can repair its part of this ledger only after the close.

        This is False until `BLOCK_LIFETIME_S` has passed. Only then all new ledgers have IDs above those
        affected, so that rolling helps. This also limits how often a bookie with an incorrect report causes
        a roll.
        """
        since = max(self._started_at, self._pool.registered_since(bookie))
        return self._ledger_id < below and trio.current_time() - since >= BLOCK_LIFETIME_S

    @property
    def needs_roll(self) -> bool:
        """Whether the log should continue in a new ledger.

        It should if the ensemble changed too often. It also should if entries are missing or slots detached
        although enough bookies are available, because repair waits for the end of this ledger.
        """
        if self._change.change_count >= CHANGES_MAX:
            return True
        if not self._pending_adds.missing_ranges and all(
            not slot.detached for slot in self._pending_adds.slots
        ):
            return False
        usable_count = sum(self._is_usable(candidate.id) for candidate in self._pool.candidates())
        return usable_count >= self._pending_adds.striping.ensemble_size
