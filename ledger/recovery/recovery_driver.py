"""Carry out the requests of `ledger_recovery.py` on bookies and in the metadata.

Each request has a separate time limit, so that an unresponsive bookie delays no decision that is possible
without it. There is one task per request, because recoveries are rare.
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
from ..model.ledger_keys import ledger_key, missing_ranges_key
from ..model.ledger_metadata import NO_ENTRY, LedgerMetadata, lacks_entries
from ..model.missing_range import MissingRange
from ..placement.bookie_pool import BookiePool
from ..placement.ensemble_placement import choose_replacements
from ..write.add_streams import AddStreamListener, SlotStreams
from .ledger_recovery import LedgerRecovery, RecoveryPhase
from .recovery_actions import (
    CloseLedger,
    FenceBookie,
    FoundEntry,
    OpenRecoveryStream,
    ReadReplica,
    RecoveryAction,
    SendEntries,
)

BUSY_RETRY_MIN_S = 0.1
BUSY_RETRY_MAX_S = 1.0
LIST_TIMEOUT_S = 0.5
"""The time limit for a list of a bookie's entries, because a takeover waits for it."""

T = TypeVar("T")

log = get_logger("distributedlog.ledger")


class RecoveryDriver:
    """One attempt to recover a ledger. Call `run` once."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        store: Metadata,
        pool: BookiePool,
        options: LedgerOptions,
        rng: Random,
    ) -> None:
        self._ledger_id = metadata.ledger_id
        self._key = metadata.key
        self._stored_metadata = metadata
        self._version = version
        self._store = store
        self._pool = pool
        self._options = options
        self._rng = rng
        self._striping = metadata.striping
        self._recovery = LedgerRecovery(metadata, self._choose)
        self._streams: SlotStreams | None = None
        self._done = trio.Event()
        self._internal_error: InternalError | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self) -> LedgerMetadata:
        """Recover the ledger and return the closed record.

        Raises:
            RecoveryIncomplete: Too few bookies answered, so nothing was decided.
            NoSuchLedger: The ledger was deleted.
            InternalError: An invariant was violated.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._pool.capabilities.wait_for_keys(
                    self._stored_metadata.bookies(),
                    CapabilityKind.RECOVER,
                    self._ledger_id,
                    self._options.connect_timeout_s,
                )
                self._execute(self._recovery.begin())
                await self._done.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._streams is not None:
                self._streams.end_all()  # later acknowledgements are ignored
        if self._internal_error is not None:
            raise self._internal_error
        if self._recovery.error is not None:
            raise self._recovery.error
        assert self._recovery.result is not None, "a recovery ends with a result or an error"
        return self._recovery.result

    def _execute(self, actions: Sequence[RecoveryAction]) -> None:
        """Carry out the actions. Their results return through this method."""
        assert self._nursery is not None
        for action in actions:
            if isinstance(action, FenceBookie):
                self._nursery.start_soon(self._fence, action)
            elif isinstance(action, ReadReplica):
                self._nursery.start_soon(self._read, action)
            elif isinstance(action, OpenRecoveryStream):
                self._open(action)
            elif isinstance(action, SendEntries):
                assert self._streams is not None, "streams are opened before anything is sent"
                self._streams.send_unsent()
            else:
                self._nursery.start_soon(self._close, action)
        if self._recovery.phase in (RecoveryPhase.DONE, RecoveryPhase.FAILED):
            self._done.set()

    def _on_internal_error(self, error: Exception) -> None:
        """End this attempt after an invariant violation in a callback of a shared connection."""
        log.error(
            "the recovery of ledger %d violated an invariant: %r",
            self._ledger_id,
            error,
            exc_info=error,
        )
        self._internal_error = InternalError(
            f"the recovery of ledger {self._ledger_id} violated an invariant: {error!r}"
        )
        self._done.set()

    async def _request_with_retry(
        self, bookie: str, send_request: Callable[[BookieClient], Awaitable[T]]
    ) -> T:
        """Send a request and return the answer.

        If the bookie is too busy, the request is repeated until its time limit.
        """
        deadline = trio.current_time() + self._options.request_timeout_s
        backoff = Backoff(BUSY_RETRY_MIN_S, BUSY_RETRY_MAX_S)
        while True:
            client = await self._pool.connected(bookie, self._options.connect_timeout_s)
            try:
                return await send_request(client)
            except TooBusy:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(backoff.next_s(self._rng.random()))

    async def _fence(self, action: FenceBookie) -> None:
        timeout_s = self._options.request_timeout_s
        try:
            response = await self._request_with_retry(
                action.bookie, lambda client: client.fence(self._ledger_id, self._key, timeout_s)
            )
        except DistributedLogError as error:
            self._execute(self._recovery.on_fence_failed(action.slot, error))
        else:
            self._execute(
                self._recovery.on_fenced(action.slot, response.lac, response.proves_absence)
            )

    async def _read(self, action: ReadReplica) -> None:
        try:
            response = await self._request_with_retry(
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
            self._execute(self._recovery.on_read_failed(action.request_id, error))
            return
        entries, damaged = self._parse(response.body)
        self._execute(
            self._recovery.on_read(
                action.request_id,
                response.complete_to,
                response.proves_absence,
                entries,
                damaged=damaged,
            )
        )

    def _parse(self, body: memoryview) -> tuple[list[FoundEntry], bool]:
        """Return the valid records before the first damaged one, and whether there is a damaged one."""
        entries: list[FoundEntry] = []
        try:
            for record in records(body):
                if record.ledger != self._ledger_id or (
                    entries and record.entry <= entries[-1].entry
                ):
                    return entries, True
                entries.append(FoundEntry(record.entry, record.length_so_far, record.record))
        except (CorruptData, UnsupportedFormat):
            return entries, True
        return entries, False

    # --- write-back -------------------------------------------------------------------------------

    def _choose(
        self, slots: list[int], kept_bookies: dict[int, str], excluded: list[str]
    ) -> dict[int, str]:
        return choose_replacements(
            self._striping,
            kept_bookies,
            slots,
            self._pool.candidates(),
            self._rng.random,
            excluded=excluded,
            labels={bookie: self._pool.labels(bookie) for bookie in kept_bookies.values()},
            policy=self._pool.placement.as_preference(),
        )

    def _open(self, action: OpenRecoveryStream) -> None:
        assert self._nursery is not None
        if self._streams is None:
            self._streams = self._make_streams()
            self._nursery.start_soon(self._check_silent_slots)
        if self._pool.capabilities.active:
            self._nursery.start_soon(self._open_when_allowed, action)
        else:
            self._open_now(action, self._streams)

    async def _open_when_allowed(self, action: OpenRecoveryStream) -> None:
        keys, timeout_s = self._pool.capabilities, self._options.request_timeout_s
        await keys.wait_for_keys(
            (action.bookie,), CapabilityKind.RECOVER, self._ledger_id, timeout_s
        )
        assert self._streams is not None
        self._open_now(action, self._streams)

    def _make_streams(self) -> SlotStreams:
        return SlotStreams(
            self._recovery.pending_adds,
            self._ledger_id,
            self._key,
            recovery=True,
            connection_of=self._pool.get,
            listener=AddStreamListener(
                on_acked=lambda stream, count: self._execute(
                    self._recovery.on_acked(stream, count)
                ),
                on_failed=lambda slot, bookie, error: self._execute(
                    self._recovery.on_write_failed(slot, bookie, error)
                ),
                on_internal_error=self._on_internal_error,
            ),
        )

    def _open_now(self, action: OpenRecoveryStream, streams: SlotStreams) -> None:
        slot = self._recovery.pending_adds.slots[action.slot]
        if slot.bookie != action.bookie or slot.detached:
            return  # the recovery has continued without this slot
        if not streams.open(action.slot):
            self._execute(
                self._recovery.on_write_failed(
                    action.slot, action.bookie, ConnectionLost("no connection")
                )
            )

    async def _check_silent_slots(self) -> None:
        """Fail each bookie that owes acknowledgements and sends none."""
        pending_adds, streams = self._recovery.pending_adds, self._streams
        assert streams is not None, "the streams are open"
        acked_before: dict[int, int] = {}
        while self._recovery.phase is RecoveryPhase.READING:
            await trio.sleep(self._options.slot_silence_s)
            acked_now = {
                n: slot.acked_through
                for n, slot in enumerate(pending_adds.slots)
                if pending_adds.has_unacked(n)
            }
            for number, acked_through in acked_now.items():
                bookie = pending_adds.slots[number].bookie
                if acked_before.get(number) == acked_through:
                    streams.end(number)
                    self._execute(
                        self._recovery.on_write_failed(
                            number,
                            bookie,
                            RequestTimeout(f"no ack for {self._options.slot_silence_s:g} s"),
                        )
                    )
            acked_before = acked_now

    # --- the close --------------------------------------------------------------------------------

    async def _missing_on_bookies(self, closed: LedgerMetadata) -> list[MissingRange]:
        """Return missing ranges for the bookies that do not list every entry that they should have.

        All entries of such a bookie count as missing, because the writer's own record may be lost. Bookies
        at which the fence failed are not queried.
        """
        missing_ranges: list[MissingRange] = []

        async def ask(bookie: str) -> None:
            client = None if bookie in self._recovery.unfenced_bookies else self._pool.get(bookie)
            try:
                if client is not None:
                    listing = await client.list_entries(self._ledger_id, self._key, LIST_TIMEOUT_S)
                    if not lacks_entries(closed, bookie, listing.ranges):
                        return
            except DistributedLogError as error:
                log.info(
                    "ledger %d: bookie %s did not list its entries (%s)",
                    self._ledger_id,
                    bookie,
                    error,
                )
            missing_ranges.append(MissingRange(bookie, 0, None))

        if closed.last_entry != NO_ENTRY:
            async with trio.open_nursery() as nursery:
                for bookie in closed.bookies():
                    nursery.start_soon(ask, bookie)
        return missing_ranges

    async def _close(self, action: CloseLedger) -> None:
        missing_ranges = (*action.missing_ranges, *await self._missing_on_bookies(action.metadata))
        while True:
            try:
                # Keep the missing entries that the writer recorded. Their record must not change until the
                # close.
                stored_ranges = await self._store.get(missing_ranges_key(self._ledger_id))
                operations = transactions.recovery_ops(
                    self._stored_metadata,
                    action.metadata,
                    self._version,
                    missing_ranges,
                    stored_ranges,
                )
                reply = await self._store.transact(operations)
                if reply.succeeded:
                    self._execute(self._recovery.on_closed(action.metadata))
                    return
                stored = reply.current[0]
                if stored is not None and stored.version == self._version:
                    continue  # the record of missing entries changed concurrently
                break
            except OutcomeUnknown:
                try:
                    stored = await self._store.get(ledger_key(self._ledger_id))
                    break
                except DistributedLogError as error:
                    self._execute(
                        self._recovery.abandon(f"the result of the close cannot be read: {error}")
                    )
                    return
            except DistributedLogError as error:
                self._execute(
                    self._recovery.abandon(f"the closed record cannot be stored: {error}")
                )
                return
        record = None if stored is None else LedgerMetadata.decode(stored.key, stored.value)
        if record is not None and stored is not None:
            self._stored_metadata, self._version = record, stored.version
        self._execute(self._recovery.on_close_conflict(record))
