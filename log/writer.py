"""LogWriter: takes records, packs them into entries, sends them to the segment in progress.

Batching adapts without a timer: while few entries are in flight, what gathered is sent at the end of the
loop turn; while the pipeline is busy the batch grows up to ``entry_bytes_max``. One task is woken once a
burst. What is not yet durable is bounded in bytes; above the bound `submit` waits. The first error sticks.
Where segments begin and end is `keeper.py`'s.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

import trio

from ..runtime.errors import (
    AlreadyClosed,
    DistributedLogError,
    WriteCancelled,
    WriteFailed,
    WriterFenced,
)
from . import lock as locks
from .admission import admit, admit_columns, out_of_order
from .batch import Batch, PendingBulk, PendingWrite, again
from .dlsn import DLSN
from .keeper import SegmentKeeper
from .ledgers import Ledgers
from .lock import Claim, LockRecord
from .open_segment import OpenSegment
from .options import LogOptions
from .record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES, TXID_MAX, LogRecord

GOODBYE_S = 2.0
"""How long an aborted writer tries to give its lock back."""


class LogWriter:
    """The one writer of a log, under its epoch. Made by `Log.open_writer`.

    Any number of tasks may write; records of one task keep their order (G1). Leaving its ``async with``
    normally closes it; on an exception it is aborted and the segment left for recovery.
    """

    def __init__(
        self,
        claimed: Claim,
        lock_record: LockRecord,
        ledgers: Ledgers,
        options: LogOptions,
        wall_ms: Callable[[], int],
    ) -> None:
        self._claim = claimed
        self._lock_record = lock_record
        self._options = options
        self._wall_ms = wall_ms
        self._name = claimed.owned.state.name
        self._keeper = SegmentKeeper(self, claimed.owned, ledgers, options, wall_ms)
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self._wake = trio.Event()

        self._batch = Batch()
        self._ready: deque[Batch] = deque()  # closed by size, or taken back from a failed segment
        self._in_flight: deque[Batch] = deque()  # in the segment in progress, in entry order
        self._held_bytes = 0  # of ready and in flight
        self._last: Batch | None = None  # the newest one that holds a record
        self._entry_bytes_max = options.entry_bytes_max
        self._floor = max(0, claimed.owned.state.last_txid) if options.max_txid_check else 0
        self._ordered = options.max_txid_check
        self._last_txid = claimed.owned.state.last_txid
        # One flag for all that makes the next submit look up: no room, a yield due, closed, failed.
        self._pause = False
        self._room = trio.Event()
        self._closing = False
        self._closed = False
        self._error: DistributedLogError | None = None
        self._over: DistributedLogError | None = None

    # --- for the caller ---------------------------------------------------------------------------

    async def submit(self, record: LogRecord) -> PendingWrite:
        """Take one record; waits for room only. ``await`` what it returns for the DLSN.

        Raises `RecordTooLarge`, `TransactionIdOutOfOrder`, `InvalidRequest` (the writer goes on),
        `AlreadyClosed`, or the first error, for good. Cancelled, the record may or may not be in.
        """
        if self._pause:
            await self._before_submit()
        txid = record.txid
        payload = record.payload
        if (
            type(payload) is not bytes
            or type(txid) is not int
            or not self._floor <= txid <= TXID_MAX
            or len(payload) > RECORD_BYTES_MAX
        ):
            payload = admit(txid, payload, self._floor, self._name)
        if self._ordered:
            self._floor = txid
        batch = self._batch
        size = batch.bytes + len(payload) + RECORD_COLUMN_BYTES
        if size > self._entry_bytes_max and batch.txids:
            batch = self._close_batch()
            size = len(payload) + RECORD_COLUMN_BYTES
        batch.bytes = size
        txids = batch.txids
        slot = len(txids)
        txids.append(txid)
        batch.payloads.append(payload)
        if not slot:
            self._wake.set()
        return PendingWrite(batch, slot)

    async def write(self, record: LogRecord) -> DLSN:
        """Write one record; returns when it is durable (G2). Raises as `submit`, and `WriteFailed`."""
        pending = await self.submit(record)
        return await pending

    async def submit_bulk(self, records: Sequence[LogRecord]) -> PendingBulk:
        """Take many records, in order; waits for room only. ``await`` what it returns for the DLSNs.

        Raises only what closes or fails the writer; what is wrong with a record is its own outcome, and
        those behind it are not taken (scenario 13 of distributedlog.md).
        """
        return await self.submit_columns([r.txid for r in records], [r.payload for r in records])

    async def submit_columns(self, txids: list[int], payloads: list[bytes]) -> PendingBulk:
        """As `submit_bulk`, from a list of txids and one of payloads."""
        if self._error is not None or self._closing:
            await self._before_submit()
        bulk = PendingBulk(len(txids))
        taken = admit_columns(txids, payloads, self._floor, self._ordered, self._name)
        at = 0
        while at < taken.number:
            if self._pause:
                try:
                    await self._before_submit()
                except DistributedLogError as error:
                    if at == 0:
                        raise
                    bulk.refused(at, error)
                    return bulk
                if self._ordered and txids[at] < self._floor:
                    # Another task wrote greater ones while this waited.
                    bulk.refused(at, out_of_order(txids[at], self._floor, self._name))
                    return bulk
            batch = self._batch
            stop = taken.stop(at, self._entry_bytes_max, batch.bytes)
            if stop == at:
                self._close_batch()
                continue
            if not batch.txids:
                self._wake.set()
            bulk.took(at, batch, len(batch.txids))
            batch.txids += txids[at:stop]
            batch.payloads += taken.payloads[at:stop]
            batch.bytes += taken.bytes_of(at, stop)
            if self._ordered:
                self._floor = txids[stop - 1]
            at = stop
        if taken.refusal is not None:
            bulk.refused(at, taken.refusal)
            if at + 1 < len(bulk):
                why = f"record {at} of the call was refused: {taken.refusal}"
                bulk.refused(at + 1, WriteCancelled(why))
        return bulk

    async def write_bulk(self, records: Sequence[LogRecord]) -> list[DLSN]:
        """Write many records; returns their DLSNs when all are durable. Raises the first error."""
        return await (await self.submit_bulk(records))

    async def flush(self) -> None:
        """Send what is buffered; waits for nothing."""
        self._raise_if_over()
        if self._batch.txids:
            self._close_batch()

    async def commit(self) -> DLSN | None:
        """Wait until all written before is durable and readable; the last DLSN, None for no record.

        Raises the writer's first error, which sticks.
        """
        await self.flush()
        return await self._settle()

    @property
    def last_txid(self) -> int:
        """The txid of the newest record taken, of this writer or before it; -1 in an empty log."""
        batch = self._batch
        return batch.txids[-1] if batch.txids else self._last_txid

    @property
    def error(self) -> DistributedLogError | None:
        """The error that ended this writer, or None."""
        return self._error

    @property
    def over(self) -> DistributedLogError | None:
        """What the next write would raise because this writer has ended; None while it has not."""
        if self._over is None and self._error is None and self._closing:
            self._over = AlreadyClosed(f'log "{self._name}": this writer is closed')
        return self._over or self._error

    @property
    def segment(self) -> int:
        """The number of the segment in progress."""
        return self._keeper.current.number

    async def aclose(self) -> None:
        """Commit, complete the segment, give the lock back. Idempotent after success or failure.

        Raises the writer's first error, or what kept the segment from being completed; then it is left
        in progress, and the next writer recovers it. All that was acknowledged stays (G2).
        """
        if self._closed:
            return
        if self._error is not None:
            error = self._error
            await self.abort()
            raise again(error)
        self._closing = self._pause = True
        try:
            with trio.fail_after(self._options.close_timeout_s):
                if self._batch.txids:
                    self._close_batch()
                await self._settle()
                await self._keeper.finish()
        except trio.TooSlowError:
            await self.abort()
            raise WriteFailed(
                f'log "{self._name}": not everything was durable within '
                f"{self._options.close_timeout_s:g} s of closing; the segment is left for recovery"
            ) from None
        except BaseException:
            await self.abort()
            raise
        self._closed = True
        await self._stop()

    async def abort(self) -> None:
        """Send nothing more; what is not durable yet is unknown (G7). The segment awaits recovery."""
        if not self._closed:
            self._closed = self._closing = True
            if self._error is None:
                self._over = AlreadyClosed(f'log "{self._name}": this writer was aborted')
            self.fail(WriteFailed(f'log "{self._name}": the writer was aborted; it may be stored'))
            self._keeper.abort()
        await self._stop()

    async def __aenter__(self) -> "LogWriter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()

    # --- its tasks --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recover what was left, open the first segment (steps 2 to 4 of a takeover)."""
        failure: DistributedLogError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lock)  # recovery may take longer than the lease
            try:
                await self._keeper.begin()
            except DistributedLogError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if self._ordered:
            self._floor = max(0, self._claim.owned.state.last_txid)
        self._last_txid = self._claim.owned.state.last_txid

    async def run(self) -> None:
        """Send, roll, renew the lock, until closed or aborted. A task of the namespace."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_loop)
                    nursery.start_soon(self._keeper.run)
                    nursery.start_soon(self._keep_lock)
        finally:
            if not self._closed:
                self._over = AlreadyClosed(f'log "{self._name}": the namespace was closed')
                self.fail(
                    WriteFailed(f'log "{self._name}": the namespace was closed; it may be stored')
                )
            self._stopped.set()

    async def _send_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._send()

    async def _keep_lock(self) -> None:
        await locks.keep(
            self._claim.owned.metadata,
            self._claim,
            self._lock_record,
            lease_s=self._options.lock_lease_s,
            on_lost=self.fail,
            refresh=self._claim.owned.refresh,
        )

    async def _stop(self) -> None:
        self._scope.cancel()
        goodbye = trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_S)
        with goodbye, suppress(DistributedLogError):  # the lease ends by itself
            await self._claim.owned.metadata.revoke_lease(self._claim.lease)

    # --- batches ----------------------------------------------------------------------------------

    def _close_batch(self) -> Batch:
        """Close the open batch and send what can be sent; returns the new open one."""
        batch = self._batch
        self._last = batch
        self._last_txid = batch.txids[-1]
        self._batch = Batch()
        self._ready.append(batch)
        self._held_bytes += batch.bytes
        self._pause = True  # the next submit yields once, so that the sender gets its turn
        self._send_ready()
        return self._batch

    def _send(self) -> None:
        """Send what the pipeline takes now. Synchronous: nothing slips between."""
        if self._error is not None:
            return
        self._keeper.look(drained=not self._in_flight)
        if (
            self._batch.txids
            and not self._ready
            and len(self._in_flight) < self._options.eager_entries
            and self._keeper.sendable
        ):
            pause = self._pause
            self._close_batch()
            self._pause = pause  # nobody waits in submit: it was the sender that closed it
            self._check_room()
        else:
            self._send_ready()

    def _send_ready(self) -> None:
        keeper = self._keeper
        while self._ready and keeper.sendable:
            segment = keeper.current
            if not segment.ledger.room:
                keeper.wait_room()
                return
            batch = self._ready[0]
            try:
                segment.send(batch, self._wall_ms())
            except DistributedLogError:
                keeper.wake()  # it sees the ledger's error
                return
            self._ready.popleft()
            self._in_flight.append(batch)

    def confirmed(self, segment: OpenSegment, lac: int) -> None:
        """All entries of the segment up to ``lac`` are durable: tell whoever waits for them."""
        if segment is not self._keeper.current:
            return
        in_flight = self._in_flight
        while in_flight and in_flight[0].entry <= lac:
            batch = in_flight.popleft()
            self._held_bytes -= batch.bytes
            segment.confirm(batch)
        self._room.set()
        # What gathered while the pipeline was busy goes now: its entry carries the LAC.
        self._send()

    def take_back(self) -> None:
        """The segment ended below what is in flight: that is sent again, in order, to the next (H11)."""
        while self._in_flight:
            batch = self._in_flight.pop()
            batch.entry = -1
            self._ready.appendleft(batch)

    def wake(self) -> None:
        """Something changed that may let entries go."""
        self._wake.set()

    def fail(self, error: DistributedLogError) -> None:
        """This writer has ended: the first error sticks, and is every open write's."""
        if self._error is None:
            if error.retryable:
                error = WriteFailed(f'log "{self._name}": {error}')
            self._error = error
            if isinstance(error, WriterFenced):
                self._keeper.abort()
        self._pause = True
        for batch in (*self._in_flight, *self._ready, self._batch):
            if not batch.done:
                batch.finish(self._error)
        self._in_flight.clear()
        self._ready.clear()
        self._batch = Batch()
        self._held_bytes = 0
        self._room.set()

    # --- admission --------------------------------------------------------------------------------

    async def _before_submit(self) -> None:
        """The slow way in: yields at least once; raises when the writer is over; waits for room."""
        self._raise_if_over()
        await trio.lowlevel.checkpoint()
        while True:
            self._raise_if_over()
            if self._held_bytes < self._options.in_flight_bytes_max:
                self._pause = False
                return
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    def _check_room(self) -> None:
        if self._held_bytes >= self._options.in_flight_bytes_max:
            self._pause = True

    def _raise_if_over(self) -> None:
        over = self.over
        if over is not None:
            raise again(over)

    async def _settle(self) -> DLSN | None:
        """Wait for the newest batch; publish the LAC."""
        last = self._last
        if last is None:
            await trio.lowlevel.checkpoint()
            return None
        await last.wait()
        if last.error is not None:
            raise again(last.error)
        self._keeper.current.publish()
        return last.dlsn(last.count - 1)
