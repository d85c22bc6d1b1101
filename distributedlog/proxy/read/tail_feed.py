"""Read the end of a log once at a read proxy, into a ring for all its subscribers.

The feed is a reader at the end of the log that keeps entries as stored. It never waits for a subscriber. A
slower subscriber falls below the ring and is served by `history_reads.py` until it has caught up. A round
sends one frame to each subscriber at the ring. Subscribers at the same position receive the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from ...log.format.dlsn import DLSN
from ...log.format.record import EntryHeader
from ...log.interfaces.segment_store import SegmentEntry
from ...log.model.segment_record import SegmentRecord
from ...log.read.entry_queue import EntryQueue, ReadRange
from ...log.read.fetcher import Fetcher
from ...log.read.state_watch import StateWatch
from ...log.services.log_context import LogContext
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.net.link import Link
from ...runtime.protocol.frames import Op, envelope, error_body
from ..protocol.read_messages import SegmentHead
from .entry_ring import EntryPosition, EntryRings, RingSpan, SubscriberCursor

FRAME_BYTES = 128 * 1024
"""The maximum bytes of entries in one frame, unless one entry is larger."""
LINK_BYTES_MAX = 8 * 1024 * 1024
"""A connection with more unsent bytes receives no further frames."""
ROUND_SLICE_S = 0.002
"""A round yields to other tasks after this time."""
SUBSCRIBERS_PER_CLOCK_CHECK = 32
"""The number of subscribers between two clock checks."""


@dataclass(slots=True)
class SendCounters:
    """Counters of sent frames, and of entries read from the ends of logs."""

    frames: int = 0
    bytes: int = 0
    entries_read: int = 0


class Subscriber:
    """A subscription and its connection."""

    __slots__ = (
        "awaits_credit",
        "cursor",
        "failed_tries",
        "feed",
        "ident",
        "is_over",
        "link",
        "on_ended",
    )

    def __init__(
        self,
        link: Link,
        ident: int,
        cursor: SubscriberCursor,
        feed: "TailFeed",
        on_ended: Callable[[int], object],
    ) -> None:
        self.link = link
        self.ident = ident
        self.cursor = cursor
        self.feed = feed
        self.on_ended = on_ended
        self.is_over = False
        self.awaits_credit = False
        """Whether it waits for credit. It is then in no other queue."""
        self.failed_tries = 0
        """How often the entry at its position was not found."""

    def send(self, span: RingSpan) -> None:
        """Send these entries."""
        body = span.body
        self.link.send(envelope(Op.ENTRIES, len(body), ident=self.ident), body)
        self.cursor.on_sent(span)
        self.failed_tries = 0
        sent = self.feed.counters
        sent.frames += 1
        sent.bytes += len(body)

    def end(self, error: DistributedLogError | None) -> None:
        """End the subscription after all that was sent; None means that the log is sealed."""
        if not self.is_over:
            self.close()
            body = b"" if error is None else error_body(error)
            status = 0 if error is None else error.code
            self.link.send(
                envelope(Op.SUBSCRIPTION_ENDED, len(body), ident=self.ident, status=status), body
            )

    def close(self) -> None:
        """End the subscription without a frame to the client. Idempotent."""
        if not self.is_over:
            self.is_over = True
            self.feed.remove(self)
            self.on_ended(self.ident)


@dataclass(frozen=True, slots=True)
class SubscriberScheduler:
    """The queues to which the feeds of a proxy pass their subscribers."""

    has_capacity: Callable[[Link], bool]
    """Whether a connection can accept a frame."""
    request_round: Callable[["TailFeed"], object]
    """Requests a round of the feed."""
    add_to_history: Callable[[Subscriber], object]
    """Receives a subscriber that is below the ring."""
    add_to_blocked: Callable[[Subscriber], object]
    """Receives a subscriber whose connection is full."""


class TailFeed:
    """Reads the end of one log for its subscribers. `run` is a task of the proxy."""

    def __init__(
        self,
        context: LogContext,
        state_watch: StateWatch,
        start: DLSN,
        rings: EntryRings,
        counters: SendCounters,
        scheduler: SubscriberScheduler,
    ) -> None:
        self.name = state_watch.state.name
        self.context = context
        self.state_watch = state_watch
        self.ring = rings.open(start[:2])
        self.counters = counters
        self.subscribers = 0
        self.last_left_at = trio.current_time()
        """When the last subscriber left."""
        self._rings = rings
        self._scheduler = scheduler
        self._ready: dict[Subscriber, None] = {}
        """Subscribers at the ring that may receive entries."""
        self._awaiting_sequence_id: dict[Subscriber, None] = {}
        """Subscribers at the end of the ring for which the sequence ID of the next record is not
        determined."""
        self._queue = EntryQueue(
            self.name,
            state_watch.incarnation,
            ReadRange(start),
            options=context.options,
            meters=context.meters,
            on_activity=self._on_end,
        )
        self._fetcher = Fetcher(
            context, state_watch, self._queue, on_stored_entry=self._on_stored_entry
        )
        self._scope = trio.CancelScope()
        self._head: SegmentHead | None = None
        self._head_record: SegmentRecord | None = None

    async def run(self) -> None:
        """Run until `close`."""
        await self._fetcher.run()
        with self._scope:  # an ended log may still be truncated while it is read
            await self.state_watch.run()

    @property
    def has_failed(self) -> bool:
        """Whether an error ended the feed. New subscribers then need another one."""
        return self._queue.error is not None

    def close(self) -> None:
        """Close the feed, which is no longer used. Idempotent."""
        self._queue.close()
        self._scope.cancel()
        self._rings.close(self.ring)

    def fail(self, error: DistributedLogError) -> None:
        """End the feed and its subscribers after an invariant violation."""
        self._queue.fail(error)
        for subscriber in list(self._ready):
            subscriber.end(error)

    def mark_readable_before(self, dlsn: DLSN) -> None:
        """Record that a subscriber received everything before this position, so it is readable (H24)."""
        self._fetcher.mark_readable_before(dlsn)

    # --- who is here ------------------------------------------------------------------------------

    def admit(self, subscriber: Subscriber) -> None:
        """Add a subscriber."""
        self.subscribers += 1
        if (
            subscriber.cursor.next_sequence_id < 0
            and subscriber.cursor.next_position == self.ring.end
        ):
            self._awaiting_sequence_id[subscriber] = None
        self.attach(subscriber)

    def attach(self, subscriber: Subscriber) -> None:
        """Queue a subscriber: at the ring, or below it for a read from bookies."""
        if subscriber.is_over:
            return
        if subscriber.cursor.credit <= 0:
            subscriber.awaits_credit = True
        elif subscriber.cursor.next_position < self.ring.begin:
            self._scheduler.add_to_history(subscriber)
        else:
            self._ready[subscriber] = None
            self._scheduler.request_round(self)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber that has ended."""
        self._ready.pop(subscriber, None)
        self._awaiting_sequence_id.pop(subscriber, None)
        self.subscribers -= 1
        self.last_left_at = trio.current_time()

    # --- rounds -----------------------------------------------------------------------------------

    async def run_round(self) -> bool:
        """Send a frame to each subscriber at the ring that lacks entries.

        Returns:
            Whether another round is necessary.
        """
        self._rings.mark_used(self.ring)
        spans = self._new_span_cache()
        slice_started, has_more = trio.current_time(), False
        for number, subscriber in enumerate(list(self._ready), start=1):
            if (
                number % SUBSCRIBERS_PER_CLOCK_CHECK == 0
                and trio.current_time() - slice_started > ROUND_SLICE_S
            ):
                await trio.lowlevel.checkpoint()
                spans, slice_started = self._new_span_cache(), trio.current_time()
            if subscriber in self._ready:
                has_more |= self._serve(subscriber, spans)
        return has_more

    def _new_span_cache(self) -> dict[EntryPosition, RingSpan | None]:
        """Drop truncated entries from the ring (H188) and return an empty cache of frames by position."""
        self._rings.drop_below(self.ring, self.state_watch.state.truncated_to[:2])
        return {}

    def _serve(self, subscriber: Subscriber, spans: dict[EntryPosition, RingSpan | None]) -> bool:
        cursor, ring = subscriber.cursor, self.ring
        position = cursor.next_position
        if position < ring.begin:
            del self._ready[subscriber]
            self._scheduler.add_to_history(subscriber)
            return False
        if position in spans:
            span = spans[position]
        else:
            span = spans[position] = ring.next_span(position, FRAME_BYTES)
        if span is None:
            if self._queue.ended:
                subscriber.end(self._queue.error)
            return False
        if not self._scheduler.has_capacity(subscriber.link):
            del self._ready[subscriber]
            self._scheduler.add_to_blocked(subscriber)
            return False
        subscriber.send(span)
        if cursor.credit <= 0:
            del self._ready[subscriber]
            subscriber.awaits_credit = True
            return False
        return cursor.next_position < ring.end or self._queue.ended

    # --- from the fetcher -------------------------------------------------------------------------

    def _on_stored_entry(
        self, record: SegmentRecord, entry: SegmentEntry, header: EntryHeader
    ) -> None:
        first_id = record.start_sequence_id + header.records_before
        for subscriber in self._awaiting_sequence_id:
            subscriber.cursor.set_sequence_id(first_id)
        self._awaiting_sequence_id.clear()
        self.counters.entries_read += 1
        head = self._head
        if head is None or self._head_record is not record:
            head, self._head_record = SegmentHead.of(record), record
            self._head = head
        # Copy the bytes: a view would pin the megabyte that was received with them (H187).
        self._rings.push(self.ring, head, entry.entry, bytes(entry.record), first_id + header.count)
        self._scheduler.request_round(self)

    def _on_end(self) -> None:
        self._scheduler.request_round(self)
