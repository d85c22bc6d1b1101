"""The slots of one writer: who is connected, silent, behind, replaced, or gone without.

A slot whose connection broke is given a new stream when the pool has the bookie again, within
``slot_silence_s``; beyond it, or when the bookie refuses, it is replaced (metadata first, D4), or gone
without while every write set keeps its ack quorum (H22). The client sweeps its writers twice a second
for what is late, those alone for which something is under way or amiss; a change of the ensemble has a
task of its own while it lasts. Nothing here is done per entry.
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
from ..model.ledger_ids import KEPT_S
from ..model.ledger_keys import ledger_key
from ..model.ledger_metadata import LedgerMetadata
from ..placement.bookie_pool import BookiePool
from ..placement.ensemble_placement import Candidate, Draw, choose_replacements
from .add_streams import AddStreamListener, SlotStreams
from .ensemble_change import EnsembleChange, EnsembleChangeRound
from .flow_control import COUNTED_FROM_BYTES
from .missing_range_recorder import STORE_RETRY_S, MissingRangeRecorder
from .pending_adds import PendingAdds
from .slot_timers import Leaving, SlotTimers

CHANGES_MAX = 16
"""After so many ensemble changes the ledger is better rolled (docs/internals/invariants.md)."""
STARVED_RETRY_S = 0.25
"""Between two tries of a slot that failed and that nobody can take over, in seconds."""

PASSING = (
    ConnectionLost,
    TooBusy,
    RequestTimeout,
    NotReady,
    CorruptData,
    ProtocolError,
    CapabilityOutdated,
)
"""Failures of a slot that another stream to the same bookie may not meet again."""

log = get_logger("distributedlog.ledger")


@dataclass(frozen=True, slots=True)
class WriterCallbacks:
    """Methods of the writer that `EnsembleMonitor` calls."""

    progressed: Callable[[], None]
    """Acknowledgements were counted."""
    broken: Callable[[Exception], None]
    """Gets what is raised in calls that other ledgers share, of connections and of the pool."""
    confirmed: Callable[[], None]
    """The LAC has moved without any acknowledgement."""
    throttled: Callable[[], bool]
    """Is the writer kept at its bound by a slow slot?"""
    wake_waiters: Callable[[], None]
    """There may be room, or rest."""
    stir: Callable[[], None]
    """`EnsembleMonitor.sweep` is to be called from now on."""
    fail: Callable[[DistributedLogError], None]
    """Ends the writer, and so calls `EnsembleMonitor.end`."""


class EnsembleMonitor:
    """See the module. Made by its writer; `run` lives as long as that."""

    def __init__(
        self,
        window: PendingAdds,
        change: EnsembleChange,
        writer: WriterCallbacks,
        *,
        store: Metadata,
        pool: BookiePool,
        options: LedgerOptions,
        chance: Random,
    ) -> None:
        metadata = change.metadata
        self.streams = SlotStreams(
            window,
            metadata.ledger_id,
            metadata.key,
            recovery=False,
            target=pool.get,
            listener=AddStreamListener(
                window.on_acked, self._on_slot_failed, writer.broken, writer.progressed
            ),
        )
        self.settled = False
        """No more ensemble changes: the ledger is to be closed."""
        self._window = window
        self._change = change
        self._writer = writer
        self._store = store
        self._pool = pool
        self._options = options
        self._chance = chance
        self._ledger_id = metadata.ledger_id
        self._began = trio.current_time()
        self._ended = False
        self._nursery: trio.Nursery | None = None
        self._wake = trio.Event()
        self._change_not_before = float("-inf")
        self._note = MissingRangeRecorder(store, window, change, writer.fail)
        self._failed_clients: dict[str, BookieClient] = {}  # bookie -> the connection it failed on
        self._lateness = SlotTimers(window)
        self._throttled_at: float | None = None

    def end(self) -> None:
        """The writer has ended: stop the streams and the tasks."""
        self._ended = True
        self.streams.end_all()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # --- slots --------------------------------------------------------------------------------------

    def _on_slot_failed(self, slot: int, bookie: str, error: DistributedLogError) -> None:
        """A stream broke, or the bookie refused an add."""
        if self._ended:
            return
        self._writer.stir()
        if isinstance(error, LedgerFenced | EntryConflict | NotAllowed):
            self._writer.fail(error)
            return
        if isinstance(error, CapabilityOutdated):
            return  # what is shown in its place is asked for, and is news of the pool's
        BOOKIE_FAILED.say(
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
        if not isinstance(error, PASSING):
            self._give_up_on(slot)
            self._wake.set()
        # Else the pool's next change, or the next sweep, opens another stream: no hot loop of refusals.

    def _give_up_on(self, slot: int) -> None:
        """Ask for the slot's bookie to be replaced."""
        bookie = self._window.slots[slot].bookie
        client = self._pool.get(bookie)
        if client is not None:
            self._failed_clients[bookie] = client
        self._change.on_failure(slot, bookie)

    def _usable(self, bookie: str) -> bool:
        """Is the bookie connected, by another connection than the one it failed on?"""
        client = self._pool.get(bookie)
        return client is not None and self._failed_clients.get(bookie) is not client

    def _on_pool_change(self) -> None:
        """Somebody came, went, or reconnected."""
        if self._ended:
            return
        try:
            self._writer.stir()
            self._look_at_slots()
            if self._change.failed and self._change.round is None:
                self._wake.set()
        except Exception as error:  # this is a call of the pool, which tells all ledgers
            self._writer.broken(error)

    def _look_at_slots(self) -> None:
        """Reconnect, take back, or try again to replace: whatever can be done now."""
        window = self._window
        for number, slot in enumerate(window.slots):
            if self.streams.is_open(number) or number in self._change.failed:
                continue
            if not slot.detached:
                if self._usable(slot.bookie) and self.streams.open(number):
                    self.streams.send_lac(window.lac)
            elif not window.changing and self._change.round is None:
                # A read-only or leaving bookie would refuse the stream's first add at once.
                if self._usable(slot.bookie) and self._pool.takes_entries(slot.bookie):
                    BOOKIE_BACK.say(
                        log,
                        "ledger %d: bookie %s is back",
                        self._ledger_id,
                        slot.bookie,
                        bookie=slot.bookie,
                        ledger=self._ledger_id,
                    )
                    window.attach(number)
                    self.streams.open(number)
                elif self._replaceable(number):
                    self._change.on_failure(number, slot.bookie)

    def _replaceable(self, number: int) -> bool:
        """Is there somebody for a slot, also where the policy is enforced?"""
        kept = {n: slot.bookie for n, slot in enumerate(self._window.slots) if n != number}
        return bool(self._chosen([number], kept, (), lambda: 0.0))

    def _spares(self, excluded: Sequence[str]) -> list[Candidate]:
        here = {slot.bookie for slot in self._window.slots}
        return [
            one
            for one in self._pool.candidates()
            if one.id not in here and one.id not in excluded and self._usable(one.id)
        ]

    # --- tasks --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Change the ensemble where that is wanted, until the writer ends."""
        stop = self._pool.subscribe(self._on_pool_change)
        self._lateness.begin(trio.current_time())
        self._writer.stir()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                bookies = self._change.metadata.last_fragment.bookies
                wait_s = self._options.connect_timeout_s
                await self._pool.shown_keys.have(
                    bookies, CapabilityKind.ADD, self._ledger_id, wait_s
                )
                self._look_at_slots()
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
        if self._nursery is not None:  # else the writer has ended
            self._nursery.start_soon(run, *arguments)

    def _change_due(self) -> bool:
        return (
            bool(self._change.failed)
            and self._change.round is None
            and not self.settled
            and trio.current_time() >= self._change_not_before
        )

    def sweep(self) -> bool:
        """Look for adds, slots and bounds that are late; sweeps are ``sweep_s`` apart, or were late.

        False: nothing is under way or amiss, no sweep is needed before that changes.
        """
        if self._ended:
            return False
        if self._nursery is None:
            return True
        self._window.release()
        if self._at_rest and not self._window.holes:  # as most are that write now and then
            self._writer.throttled()  # its share of the process's bound is given back
            return False
        window, options = self._window, self._options
        self._lateness.on_sweep(trio.current_time(), options.sweep_s, self._leaving)
        if self._lateness.oldest_add_s >= options.add_timeout_s:
            self._writer.fail(
                WriteFailed(
                    f"ledger {self._ledger_id} entry {window.lac + 1}: no ack quorum of"
                    f" {window.striping.ack_quorum} within {options.add_timeout_s:g} s"
                    f" ({self._slots_text()})"
                )
            )
            return False
        self._look_at_slots()
        self._sweep_slots()
        self._sweep_bound(self._lateness.clock)
        self._note.look(self._spawn)
        if self._change_due():
            self._wake.set()
        return not self._at_rest

    @property
    def _at_rest(self) -> bool:
        """All slots have all there is, and nothing is to be done about them."""
        window = self._window
        return (
            window.at_rest
            and not self._change.failed
            and self._change.round is None
            and self._throttled_at is None
            and self.streams.all_open
        )

    def _leaving(self, number: int) -> Leaving | None:
        client = self._pool.get(self._window.slots[number].bookie)
        return None if client is None or not self.streams.is_open(number) else client.leaving

    def _sweep_slots(self) -> None:
        silent = self._lateness.silent_slots(self._options.slot_silence_s)
        if self._change.round is not None:
            return
        for number in silent:
            bookie = self._window.slots[number].bookie
            BOOKIE_SILENT.say(
                log,
                "ledger %d: bookie %s is silent",
                self._ledger_id,
                bookie,
                bookie=bookie,
                ledger=self._ledger_id,
            )
            self.streams.end(number)
            self._give_up_on(number)

    def _sweep_bound(self, clock: float) -> None:
        """A slot that keeps the writer at its bound, and does not catch up, is let go."""
        if not self._writer.throttled():
            if self._throttled_at is not None:
                self._writer.wake_waiters()  # other ledgers may have made the room
            self._throttled_at = None
        elif self._throttled_at is None:
            self._throttled_at = clock
        elif clock - self._throttled_at >= self._options.slot_stall_s:
            self._throttled_at = None
            window, bound = self._window, self._options.slot_bytes_max
            # At its own bound the slots that are far behind go; at the process's each that is counted.
            least = bound // 4 if window.kept_bytes > bound // 2 else COUNTED_FROM_BYTES - 1
            for number in range(len(window.slots)):
                behind = window.behind_bytes(number) - window.in_flight_bytes
                if behind > least:
                    bookie = window.slots[number].bookie
                    BOOKIE_BEHIND.say(
                        log,
                        "ledger %d: bookie %s is %d bytes behind",
                        self._ledger_id,
                        bookie,
                        behind,
                        bookie=bookie,
                        ledger=self._ledger_id,
                        bytes=behind,
                    )
                    self.streams.end(number)
                    self._give_up_on(number)

    def _slots_text(self) -> str:
        said = []
        for number, slot in enumerate(self._window.slots):
            if slot.detached:
                state = "gone without"
            elif not self.streams.is_open(number):
                state = "not connected"
            elif self._window.owed(number):
                state = f"acked to {slot.through}"
            else:
                state = "ok"
            said.append(f"{slot.bookie}: {state}")
        return ", ".join(said)

    # --- ensemble changes ---------------------------------------------------------------------------

    def _begin_change(self) -> None:
        """Start a round for all that failed; the window confirms nothing until it is decided."""
        window = self._window
        detached = [n for n, slot in enumerate(window.slots) if slot.detached]
        round_ = self._change.start(window.lac, detached, self._choose)
        window.begin_change()
        for slot in (*round_.replaced, *round_.detached):
            self.streams.end(slot)
        if round_.proposed is None:
            self._decided(round_.version)
        else:
            self._spawn(self._propose, round_)

    def _choose(
        self, slots: list[int], kept: dict[int, str], excluded: list[str]
    ) -> dict[int, str]:
        return self._chosen(slots, kept, excluded, self._chance.random)

    def _chosen(
        self, slots: Sequence[int], kept: dict[int, str], excluded: Sequence[str], draw: Draw
    ) -> dict[int, str]:
        return choose_replacements(
            self._window.striping,
            kept,
            slots,
            self._spares(excluded),
            draw,
            labels={bookie: self._pool.labels(bookie) for bookie in kept.values()},
            policy=self._pool.placement,
        )

    async def _propose(self, round_: EnsembleChangeRound) -> None:
        """Go on with the round once the store holds it, however long that takes (D4)."""
        try:
            version = await self._stored_at(round_)
        except DistributedLogError as error:
            self._writer.fail(error)
        else:
            if version is not None:
                self._decided(version)

    async def _stored_at(self, round_: EnsembleChangeRound) -> int | None:
        """The record's version once it holds the round; None: the writer has ended.

        Raises why it must: `LedgerFenced`, `LedgerClosed`, `NoSuchLedger`.
        """
        change = self._change
        while not self._ended:
            assert round_.proposed is not None, "what changes nothing is not proposed"
            share = transactions.change_ops(change.metadata, round_.proposed, round_.version)
            try:
                reply = await self._store.transact(share)
                if reply.succeeded:
                    return round_.version + 1
                found = reply.current[0]
            except OutcomeUnknown:
                found = await self._look_up()
            except DistributedLogError as error:
                log.info("ledger %d: its ensemble cannot change now: %s", self._ledger_id, error)
                await trio.sleep(STORE_RETRY_S)
                continue
            if self._ended:
                break
            record = None if found is None else LedgerMetadata.decode(found.key, found.value)
            again = change.on_conflict(record, 0 if found is None else found.version)
            if again is None:
                assert found is not None, "a round that was taken is in a record"
                return found.version
            round_ = again
        return None

    async def _look_up(self) -> KeyValue | None:
        while True:
            try:
                return await self._store.get(ledger_key(self._ledger_id))
            except DistributedLogError as error:
                log.info("ledger %d: its record cannot be read now: %s", self._ledger_id, error)
                await trio.sleep(STORE_RETRY_S)

    def _decided(self, version: int) -> None:
        """The round is in the store (or needs nothing there): go on with its ensemble."""
        if self._ended:
            return
        window = self._window
        done = self._change.on_committed(version)
        confirmed = window.end_change(done.replaced, self._change.metadata.last_fragment.epoch)
        for slot in done.detached:
            confirmed += window.detach(slot)
            bookie = window.slots[slot].bookie
            text = "ledger %d goes on without bookie %s"
            DEGRADED.say(log, text, self._ledger_id, bookie, bookie=bookie, ledger=self._ledger_id)
        if done.starved:  # whoever refuses at once would be asked again at once, for ever
            self._change_not_before = trio.current_time() + STARVED_RETRY_S
        for slot in done.starved:
            # Its bookie may be tried again by any connection: there is nobody else.
            self._failed_clients.pop(window.slots[slot].bookie, None)
        for slot in (*done.replaced, *done.starved):
            self._lateness.forgive(slot)
            if self.streams.open(slot):
                self.streams.send_lac(window.lac)
        if confirmed:
            self._writer.confirmed()
        self._writer.wake_waiters()
        self._note.look(self._spawn)
        if self._change.failed:
            self._wake.set()

    @property
    def unwanted(self) -> bool:
        """Does the record name a bookie on which it should not stay open, where a new one would be better?"""
        unwanted, lost = self._pool.unwanted(), self._pool.limbo_below
        if not unwanted and not lost:
            return False
        bookies = self._change.metadata.bookies()
        waiting = {one for one, below in lost.items() if one in bookies and self._waits(one, below)}
        if not waiting and unwanted.isdisjoint(bookies):
            return False
        usable = sum(
            one.id in waiting or self._usable(one.id)  # what it refused is what it waits for
            for one in self._pool.candidates()
        )
        return usable >= self._window.striping.ensemble_size

    def _waits(self, bookie: str, below: int) -> bool:
        """Did a bookie lose data, and can it heal what it has of this ledger only when that has ended?

        Not before each new ledger has a later id than the loss, or the next one would be no better; nor, if
        a bookie says what cannot be, more often than that.
        """
        since = max(self._began, self._pool.came_at(bookie))
        return self._ledger_id < below and trio.current_time() - since >= KEPT_S

    @property
    def wants_roll(self) -> bool:
        """Would a new ledger be better off? A hole waits for this one's end and bookies are back, or
        the ensemble changed too often.
        """
        if self._change.changes >= CHANGES_MAX:
            return True
        if not self._window.holes and all(not slot.detached for slot in self._window.slots):
            return False
        usable = sum(self._usable(one.id) for one in self._pool.candidates())
        return usable >= self._window.striping.ensemble_size
