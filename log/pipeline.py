"""The batches between a writer's caller and its ledger: open, ready, in flight.

Batching adapts without a timer: while few entries are in flight, what gathered is sent at the end of the
loop turn; while the pipeline is busy the batch grows up to ``entry_bytes_max``. One task sends for all
pipelines of a process, once a turn (`runtime/turns.py`). What is not yet durable is bounded in bytes; above
the bound the caller waits. The first error sticks.
"""

from collections import deque
from collections.abc import Callable

import trio

from ..runtime.errors import AlreadyClosed, DistributedLogError, WriteFailed
from ..runtime.turns import Due
from .batch import Batch
from .containment import broken
from .context import LogContext
from .dlsn import DLSN
from .keeper import SegmentKeeper
from .ledgers import NewLedger
from .log_time import LogClock
from .open_segment import OpenSegment
from .ownership import OwnedLog
from .segments import SegmentRecord


class Pipeline:
    """What one writer has taken and not yet seen durable. Everything but the waits is synchronous."""

    def __init__(
        self,
        context: LogContext,
        owned: OwnedLog,
        first: tuple[SegmentRecord, NewLedger],
        on_failed: Callable[[], None],
    ) -> None:
        self.name = owned.state.name
        self.keeper = SegmentKeeper(
            context,
            owned,
            first,
            on_confirmed=self.confirmed,
            on_replaced=self.take_back,
            on_sendable=self.wake,
            on_quiet=self.keep_alive,
            on_failed=self.fail,
        )
        """Where the entries go."""
        self.batch = Batch()
        """The open one: `LogWriter.submit` appends to it."""
        self.pause = False
        """The next submit must look up: no room, a turn is due to others, closed, failed."""
        self.direct = False
        """`LogWriter.write` sends by itself what it is about to submit: nobody need be woken for it."""
        self.error: DistributedLogError | None = None
        """Why the writer has failed; sticks."""
        self.over: DistributedLogError | None = None
        """What the next call raises, once the writer has failed or was closed."""
        self.last_txid = owned.state.last_txid
        """Of the batches before the open one, or of the log before."""
        self.sent_bytes = 0
        """Of batches that went to a segment; those that went again count again."""
        self._options = context.options
        self._now_ms = LogClock(context.wall_ms, self.name, owned.state.time_ms).now_ms
        self._on_failed = on_failed
        self._due = Due(context.turn, self.send, self._broken)
        self._room: trio.Event | None = None
        self._ready: deque[Batch] = deque()  # closed by size, or taken back from a failed segment
        self._in_flight: deque[Batch] = deque()  # in the segment in progress, in entry order
        self._held_bytes = 0  # of ready and in flight
        self._last: Batch | None = None  # the newest one that was closed

    # --- from the caller --------------------------------------------------------------------------

    def close_batch(self) -> Batch:
        """Close the open batch and send what can be sent; returns the new open one."""
        batch = self.batch
        self._last = batch
        self.last_txid = batch.txids[-1]
        self.batch = Batch()
        self._ready.append(batch)
        self._held_bytes += batch.bytes
        self.pause = True  # the next submit yields once, so that the sender gets its turn
        self._send_ready()
        return self.batch

    async def before_submit(self) -> None:
        """The slow way in: yields at least once; raises when the writer is over; waits for room."""
        self.raise_if_over()
        await trio.lowlevel.checkpoint()
        while True:
            self.raise_if_over()
            if self._held_bytes < self._options.in_flight_bytes_max:
                self.pause = False
                return
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    async def settle(self) -> DLSN | None:
        """Wait for the newest batch, publish the LAC; the last DLSN, None for none. Raises its error."""
        last = self._last
        if last is None:
            await trio.lowlevel.checkpoint()
            return None
        await last.wait()
        if last.error is not None:
            raise last.error.again()
        self.keeper.current.publish()
        return last.dlsn(last.count - 1)

    def raise_if_over(self) -> None:
        """Raise what ended the writer."""
        if self.over is not None:
            raise self.over.again()

    def close(self, why: str) -> None:
        """Take no more records; what was taken goes on."""
        self.pause = True
        if self.over is None:
            self.over = AlreadyClosed(f'log "{self.name}": {why}')

    # --- to the ledger ----------------------------------------------------------------------------

    def wake(self) -> None:
        """A batch has begun, or something changed that may let entries go."""
        if not self.direct:
            self._due.soon()

    def _broken(self, error: Exception) -> None:
        self.fail(broken(f'the writer of log "{self.name}"', error))

    def keep_alive(self) -> None:
        """Nothing was sent for a while: an entry without records says that the writer lives."""
        if not (self.over or self._in_flight or self._ready or self.batch.txids):
            self._ready.append(Batch())
            self._send_ready()

    @property
    def idle(self) -> bool:
        """Is nothing on its way or gathered, and room? Another record would go alone."""
        return not (self.pause or self._in_flight or self._ready or self.batch.txids)

    def send(self) -> int:
        """Send what the pipeline takes now; return its bytes. Synchronous: nothing slips between."""
        if self.error is not None:
            return 0
        before = self.sent_bytes
        self.keeper.look(drained=not self._in_flight)
        if (
            self.batch.txids
            and not self._ready
            and len(self._in_flight) < self._options.eager_entries
            and self.keeper.sendable
        ):
            pause = self.pause
            self.close_batch()
            # It was not a caller that closed it: nobody has to yield, unless the bound is reached.
            self.pause = pause or self._held_bytes >= self._options.in_flight_bytes_max
        elif self._ready:
            self._send_ready()
        return self.sent_bytes - before

    def _send_ready(self) -> None:
        keeper = self.keeper
        while self._ready and keeper.sendable:
            segment = keeper.current
            if not segment.ledger.room:
                keeper.wait_room()
                return
            batch = self._ready[0]
            try:
                segment.send(batch, self._now_ms())
            except DistributedLogError:
                keeper.wake()  # it sees the ledger's error
                return
            self._ready.popleft()
            self._in_flight.append(batch)
            self.sent_bytes += batch.bytes

    # --- from the ledger and the keeper -----------------------------------------------------------

    def confirmed(self, segment: OpenSegment, lac: int) -> None:
        """All entries of the segment up to ``lac`` are durable: tell whoever waits for them."""
        if segment is not self.keeper.current:
            return
        in_flight = self._in_flight
        while in_flight and in_flight[0].entry <= lac:
            batch = in_flight[0]
            # It leaves when its outcome is known: what breaks here fails it, too.
            segment.confirm(batch)
            in_flight.popleft()
            self._held_bytes -= batch.bytes
        if self._room is not None:
            self._let_in()
        # What gathered while the pipeline was busy goes now: its entry carries the LAC.
        if self.batch.txids or self._ready or not self.keeper.settled:
            self.send()

    def take_back(self) -> None:
        """The segment ended below what is in flight: that is sent again, in order, to the next (H11)."""
        while self._in_flight:
            batch = self._in_flight.pop()
            batch.entry = -1
            self._ready.appendleft(batch)

    def fail(self, error: DistributedLogError) -> None:
        """The writer has ended: the first error sticks, and is every open write's."""
        if self.error is None:
            if error.retryable:
                error = WriteFailed(f'log "{self.name}": {error}')
            self.error = error
            self.over = self.over or error
            self.keeper.abort()
        self.pause = True
        unknown = self.error
        if (
            unknown.definite
        ):  # of what was asked last; what was sent may be stored all the same (G7)
            unknown = WriteFailed(f'log "{self.name}": {unknown}; what was sent may be stored')
        for batch in self._in_flight:
            if not batch.done:
                batch.finish(unknown)
        for batch in (*self._ready, self.batch):
            if not batch.done:
                batch.finish(self.error)
        self._in_flight.clear()
        self._ready.clear()
        self.batch = Batch()
        self._held_bytes = 0
        self._let_in()
        self._on_failed()

    def _let_in(self) -> None:
        """Whoever waits for room looks again."""
        if self._room is not None:
            self._room.set()
            self._room = None
