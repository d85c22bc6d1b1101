"""The driver of `ledger_recovery.py`: asks the bookies, writes back, closes in the store.

Each request has a deadline of its own, so that a hung bookie holds up nothing that can be decided without
it. A task a request; recoveries are rare.
"""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import trio

from ...bookie.client.bookie_client import BookieClient
from ...bookie.format.entry import records
from ...metadata.model.interface import Metadata
from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    InternalError,
    OutcomeUnknown,
    RequestTimeout,
    TooBusy,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.capabilities import CapabilityKind
from ..declarations.options import LedgerOptions
from ..model import ledger_transactions as transactions
from ..model.ledger_keys import ledger_key, under_key
from ..model.ledger_metadata import NO_ENTRY, LedgerMetadata, lacks
from ..model.missing_range import MissingRange
from ..placement.bookie_pool import BookiePool
from ..placement.ensemble_placement import choose_replacements
from ..write.add_streams import AddStreamListener, SlotStreams
from .ledger_recovery import Phase, Recovery
from .recovery_actions import Action, Close, Fence, FoundEntry, OpenRecoveryStream, Read, Send

BUSY_FIRST_S = 0.1
BUSY_LONGEST_S = 1.0
LIST_S = 0.5
"""For the list of what a bookie holds: a takeover waits for it."""

T = TypeVar("T")

log = get_logger("distributedlog.ledger")


class RecoveryDriver:
    """One attempt; `run` once."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        store: Metadata,
        pool: BookiePool,
        options: LedgerOptions,
        chance: Random,
    ) -> None:
        self._ledger_id = metadata.ledger_id
        self._key = metadata.key
        self._stored = metadata
        self._version = version
        self._store = store
        self._pool = pool
        self._options = options
        self._chance = chance
        self._striping = metadata.striping
        self._core = Recovery(metadata, self._choose)
        self._streams: SlotStreams | None = None
        self._over = trio.Event()
        self._fault: InternalError | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self) -> LedgerMetadata:
        """Return the closed record. Raises `RecoveryIncomplete`, `NoSuchLedger`, `InternalError`."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._pool.shown_keys.have(
                    self._stored.bookies(),
                    CapabilityKind.RECOVER,
                    self._ledger_id,
                    self._options.connect_timeout_s,
                )
                self._act(self._core.begin())
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._streams is not None:
                self._streams.end_all()  # acks that come later concern nobody
        if self._fault is not None:
            raise self._fault
        if self._core.error is not None:
            raise self._core.error
        assert self._core.result is not None, "a recovery ends with a result or an error"
        return self._core.result

    def _act(self, actions: Sequence[Action]) -> None:
        """Carry out what the core says; its answers come back through here."""
        assert self._nursery is not None
        for action in actions:
            if isinstance(action, Fence):
                self._nursery.start_soon(self._fence, action)
            elif isinstance(action, Read):
                self._nursery.start_soon(self._read, action)
            elif isinstance(action, OpenRecoveryStream):
                self._open(action)
            elif isinstance(action, Send):
                assert self._streams is not None, "streams are opened before anything is sent"
                self._streams.send_new()
            else:
                self._nursery.start_soon(self._close, action)
        if self._core.phase in (Phase.DONE, Phase.FAILED):
            self._over.set()

    def _broken(self, error: Exception) -> None:
        """A rule of ours was broken in a call of a connection, which others share: this attempt ends."""
        log.error(
            "the recovery of ledger %d broke a rule: %r", self._ledger_id, error, exc_info=error
        )
        self._fault = InternalError(
            f"ledger {self._ledger_id}: its recovery broke a rule: {error!r}"
        )
        self._over.set()

    async def _asked(self, bookie: str, ask: Callable[[BookieClient], Awaitable[T]]) -> T:
        """A bookie's answer; one that is too busy is asked again until the request's time is over."""
        deadline = trio.current_time() + self._options.request_timeout_s
        backoff = Backoff(BUSY_FIRST_S, BUSY_LONGEST_S)
        while True:
            client = await self._pool.connected(bookie, self._options.connect_timeout_s)
            try:
                return await ask(client)
            except TooBusy:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(backoff.next_s(self._chance.random()))

    async def _fence(self, action: Fence) -> None:
        timeout_s = self._options.request_timeout_s
        try:
            answer = await self._asked(
                action.bookie, lambda client: client.fence(self._ledger_id, self._key, timeout_s)
            )
        except DistributedLogError as error:
            self._act(self._core.on_fence_failed(action.slot, error))
        else:
            self._act(self._core.on_fenced(action.slot, answer.lac, answer.known))

    async def _read(self, action: Read) -> None:
        try:
            answer = await self._asked(
                action.bookie,
                lambda client: client.read(
                    self._ledger_id,
                    self._key,
                    action.first,
                    action.last,
                    action.bytes_max,
                    fence=action.fence,
                    past_lac=True,
                    timeout_s=self._options.request_timeout_s,
                ),
            )
        except DistributedLogError as error:
            self._act(self._core.on_read_failed(action.request, error))
            return
        found, damaged = self._parse(answer.body)
        self._act(
            self._core.on_read(
                action.request, answer.complete_to, answer.known, found, damaged=damaged
            )
        )

    def _parse(self, body: memoryview) -> tuple[list[FoundEntry], bool]:
        """The sound records before the first damaged one, and whether there was one."""
        found: list[FoundEntry] = []
        try:
            for one in records(body):
                if one.ledger != self._ledger_id or (found and one.entry <= found[-1].entry):
                    return found, True
                found.append(FoundEntry(one.entry, one.length_so_far, one.raw))
        except (CorruptData, UnsupportedFormat):
            return found, True
        return found, False

    # --- write-back -------------------------------------------------------------------------------

    def _choose(
        self, slots: list[int], kept: dict[int, str], excluded: list[str]
    ) -> dict[int, str]:
        return choose_replacements(
            self._striping,
            kept,
            slots,
            self._pool.candidates(),
            self._chance.random,
            excluded=excluded,
            labels={bookie: self._pool.labels(bookie) for bookie in kept.values()},
            policy=self._pool.placement.preferred(),
        )

    def _open(self, action: OpenRecoveryStream) -> None:
        assert self._nursery is not None
        if self._streams is None:
            self._streams = self._made_streams()
            self._nursery.start_soon(self._sweep)
        if self._pool.shown_keys.active:
            self._nursery.start_soon(self._open_when_allowed, action)
        else:
            self._open_now(action, self._streams)

    async def _open_when_allowed(self, action: OpenRecoveryStream) -> None:
        keys, timeout_s = self._pool.shown_keys, self._options.request_timeout_s
        await keys.have((action.bookie,), CapabilityKind.RECOVER, self._ledger_id, timeout_s)
        assert self._streams is not None
        self._open_now(action, self._streams)

    def _made_streams(self) -> SlotStreams:
        return SlotStreams(
            self._core.window,
            self._ledger_id,
            self._key,
            recovery=True,
            target=self._pool.get,
            listener=AddStreamListener(
                acked=lambda stream, count: self._act(self._core.on_acked(stream, count)),
                failed=lambda slot, bookie, error: self._act(
                    self._core.on_write_failed(slot, bookie, error)
                ),
                broken=self._broken,
            ),
        )

    def _open_now(self, action: OpenRecoveryStream, streams: SlotStreams) -> None:
        slot = self._core.window.slots[action.slot]
        if slot.bookie != action.bookie or slot.detached:
            return  # the core has gone on without it meanwhile
        if not streams.open(action.slot):
            self._act(
                self._core.on_write_failed(
                    action.slot, action.bookie, ConnectionLost("no connection")
                )
            )

    async def _sweep(self) -> None:
        """A bookie that owes acks and gives none has failed."""
        window, streams = self._core.window, self._streams
        assert streams is not None, "the streams are swept that were opened"
        before: dict[int, int] = {}
        while self._core.phase is Phase.READING:
            await trio.sleep(self._options.slot_silence_s)
            now = {n: slot.through for n, slot in enumerate(window.slots) if window.owed(n)}
            for number, through in now.items():
                bookie = window.slots[number].bookie
                if before.get(number) == through:
                    streams.end(number)
                    self._act(
                        self._core.on_write_failed(
                            number,
                            bookie,
                            RequestTimeout(f"no ack for {self._options.slot_silence_s:g} s"),
                        )
                    )
            before = now

    # --- the close --------------------------------------------------------------------------------

    async def _unheard(self, closed: LedgerMetadata) -> list[MissingRange]:
        """Who does not say that it holds all it should: noted whole, for the writer's own notes may be lost.

        A bookie at which the fence failed is not asked.
        """
        holes: list[MissingRange] = []

        async def ask(bookie: str) -> None:
            client = None if bookie in self._core.unfenced else self._pool.get(bookie)
            try:
                if client is not None:
                    held = await client.list_entries(self._ledger_id, self._key, LIST_S)
                    if not lacks(closed, bookie, held.ranges):
                        return
            except DistributedLogError as error:
                log.info("ledger %d: bookie %s lists nothing: %s", self._ledger_id, bookie, error)
            holes.append(MissingRange(bookie, 0, None))

        if closed.last_entry != NO_ENTRY:
            async with trio.open_nursery() as nursery:
                for bookie in closed.bookies():
                    nursery.start_soon(ask, bookie)
        return holes

    async def _close(self, action: Close) -> None:
        holes = (*action.holes, *await self._unheard(action.metadata))
        while True:
            try:
                # What the writer noted stays: the note is read, and must be the same at the close.
                note = await self._store.get(under_key(self._ledger_id))
                share = transactions.recovery_ops(
                    self._stored, action.metadata, self._version, holes, note
                )
                reply = await self._store.transact(share)
                if reply.succeeded:
                    self._act(self._core.on_closed(action.metadata))
                    return
                found = reply.current[0]
                if found is not None and found.version == self._version:
                    continue  # the note changed meanwhile
                break
            except OutcomeUnknown:
                try:
                    found = await self._store.get(ledger_key(self._ledger_id))
                    break
                except DistributedLogError as error:
                    self._act(self._core.abandon(f"the close cannot be looked up: {error}"))
                    return
            except DistributedLogError as error:
                self._act(self._core.abandon(f"the close cannot be written: {error}"))
                return
        record = None if found is None else LedgerMetadata.decode(found.key, found.value)
        if record is not None and found is not None:
            self._stored, self._version = record, found.version
        self._act(self._core.on_close_conflict(record))
