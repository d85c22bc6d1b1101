"""One log at a read proxy: what is written goes into its ring once, and from there to all its subscribers.

The feed is a reader at the end of the log that keeps entries as they are stored. It waits for nobody: who
is slower than the log falls below the ring and is served by `history_reads.py`, until he has caught up. A
round gives each subscriber at the ring one frame; those who stand at the same place are given the same bytes.
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
"""Of entries in one frame, unless one alone is larger."""
LINK_BYTES_MAX = 8 * 1024 * 1024
"""A connection whose peer leaves so much waits for it."""
ROUND_SLICE_S = 0.002
"""A round lets others in so often."""
SUBSCRIBERS_PER_CLOCK_CHECK = 32
"""Subscribers between two looks at the clock."""


@dataclass(slots=True)
class SendCounters:
    """What a proxy has sent, and taken from the ends of logs for that."""

    frames: int = 0
    bytes: int = 0
    entries_read: int = 0


class Subscriber:
    """A subscription on its connection."""

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
        """For credit: it is nowhere else meanwhile."""
        self.failed_tries = 0
        """How often what is at its place was not found."""

    def send(self, span: RingSpan) -> None:
        """These entries."""
        body = span.body
        self.link.send(envelope(Op.ENTRIES, len(body), ident=self.ident), body)
        self.cursor.on_sent(span)
        self.failed_tries = 0
        sent = self.feed.counters
        sent.frames += 1
        sent.bytes += len(body)

    def end(self, error: DistributedLogError | None) -> None:
        """Nothing more comes; None: the log is sealed. Told after all that was sent."""
        if not self.is_over:
            self.close()
            body = b"" if error is None else error_body(error)
            status = 0 if error is None else error.code
            self.link.send(
                envelope(Op.SUBSCRIPTION_ENDED, len(body), ident=self.ident, status=status), body
            )

    def close(self) -> None:
        """It is over; nobody is told but its connection here. Idempotent."""
        if not self.is_over:
            self.is_over = True
            self.feed.remove(self)
            self.on_ended(self.ident)


@dataclass(frozen=True, slots=True)
class SubscriberScheduler:
    """Where the feeds of a proxy send their subscribers."""

    has_capacity: Callable[[Link], bool]
    """Whether that connection may be given a frame."""
    request_round: Callable[["TailFeed"], object]
    """Requests a round of the feed."""
    add_to_history: Callable[[Subscriber], object]
    """Takes a subscriber that is below the ring."""
    add_to_blocked: Callable[[Subscriber], object]
    """Takes a subscriber whose connection is full."""


class TailFeed:
    """See the module. Made by `open_feed`; `run` is a task of the proxy."""

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
        """When the last one went."""
        self._rings = rings
        self._scheduler = scheduler
        self._ready: dict[Subscriber, None] = {}
        """Those at the ring that may be sent something."""
        self._awaiting_sequence_id: dict[Subscriber, None] = {}
        """Those that came to the end of the ring, and do not know the sequence id of what comes."""
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
        """Until `close`."""
        await self._fetcher.run()
        with self._scope:  # what is left of an ended log may be truncated while it is read
            await self.state_watch.run()

    @property
    def has_failed(self) -> bool:
        """Did it end because of an error? An other one is made for whoever comes then."""
        return self._queue.error is not None

    def close(self) -> None:
        """Nobody wants it any more. Idempotent."""
        self._queue.close()
        self._scope.cancel()
        self._rings.close(self.ring)

    def fail(self, error: DistributedLogError) -> None:
        """A rule of its own is broken: it ends, and so do all who wait here."""
        self._queue.fail(error)
        for subscriber in list(self._ready):
            subscriber.end(error)

    def mark_readable_before(self, dlsn: DLSN) -> None:
        """A subscriber was given everything before this position (H24)."""
        self._fetcher.mark_readable_before(dlsn)

    # --- who is here ------------------------------------------------------------------------------

    def admit(self, subscriber: Subscriber) -> None:
        """One more."""
        self.subscribers += 1
        if subscriber.cursor.next_sequence_id < 0 and subscriber.cursor.next_place == self.ring.end:
            self._awaiting_sequence_id[subscriber] = None
        self.attach(subscriber)

    def attach(self, subscriber: Subscriber) -> None:
        """It may be sent something: from the ring, or, below that, from the bookies."""
        if subscriber.is_over:
            return
        if subscriber.cursor.credit <= 0:
            subscriber.awaits_credit = True
        elif subscriber.cursor.next_place < self.ring.begin:
            self._scheduler.add_to_history(subscriber)
        else:
            self._ready[subscriber] = None
            self._scheduler.request_round(self)

    def remove(self, subscriber: Subscriber) -> None:
        """It is over."""
        self._ready.pop(subscriber, None)
        self._awaiting_sequence_id.pop(subscriber, None)
        self.subscribers -= 1
        self.last_left_at = trio.current_time()

    # --- rounds -----------------------------------------------------------------------------------

    async def run_round(self) -> bool:
        """A frame to each subscriber at the ring that lacks something; is one wanted again?"""
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
        """What was found for places in this turn; what was truncated is given to nobody (H188)."""
        self._rings.drop_below(self.ring, self.state_watch.state.truncated_to[:2])
        return {}

    def _serve(self, subscriber: Subscriber, spans: dict[EntryPosition, RingSpan | None]) -> bool:
        cursor, ring = subscriber.cursor, self.ring
        place = cursor.next_place
        if place < ring.begin:
            del self._ready[subscriber]
            self._scheduler.add_to_history(subscriber)
            return False
        if place in spans:
            span = spans[place]
        else:
            span = spans[place] = ring.next_span(place, FRAME_BYTES)
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
        return cursor.next_place < ring.end or self._queue.ended

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
        # Bytes of their own: a view would pin a megabyte that was received with it (H187).
        self._rings.push(self.ring, head, entry.entry, bytes(entry.record), first_id + header.count)
        self._scheduler.request_round(self)

    def _on_end(self) -> None:
        self._scheduler.request_round(self)
