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
from .entry_ring import EntryRings, Place, RingSpan, SubscriberCursor

FRAME_BYTES = 128 * 1024
"""Of entries in one frame, unless one alone is larger."""
LINK_BYTES_MAX = 8 * 1024 * 1024
"""A connection whose peer leaves so much waits for it."""
TURN_S = 0.002
"""A round lets others in so often."""
LOOKED_AT = 32
"""Subscribers between two looks at the clock."""


@dataclass(slots=True)
class Sent:
    """What a proxy has sent, and taken from the ends of logs for that."""

    frames: int = 0
    bytes: int = 0
    entries_taken: int = 0


class Subscriber:
    """A subscription on its connection."""

    __slots__ = ("cursor", "feed", "ident", "link", "on_ended", "over", "tries", "waits")

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
        self.over = False
        self.waits = False
        """For credit: it is nowhere else meanwhile."""
        self.tries = 0
        """How often what is at its place was not found."""

    def send(self, run: RingSpan) -> None:
        """These entries."""
        body = run.body
        self.link.send(envelope(Op.ENTRIES, len(body), ident=self.ident), body)
        self.cursor.on_sent(run)
        self.tries = 0
        sent = self.feed.sent
        sent.frames += 1
        sent.bytes += len(body)

    def end(self, error: DistributedLogError | None) -> None:
        """Nothing more comes; None: the log is sealed. Told after all that was sent."""
        if not self.over:
            self.leave()
            body = b"" if error is None else error_body(error)
            status = 0 if error is None else error.code
            self.link.send(
                envelope(Op.SUBSCRIPTION_ENDED, len(body), ident=self.ident, status=status), body
            )

    def leave(self) -> None:
        """It is over; nobody is told but its connection here. Idempotent."""
        if not self.over:
            self.over = True
            self.feed.remove(self)
            self.on_ended(self.ident)


@dataclass(frozen=True, slots=True)
class SubscriberScheduler:
    """Where the feeds of a proxy send their subscribers."""

    has_room: Callable[[Link], bool]
    """Whether that connection may be given a frame."""
    request_round: Callable[["TailFeed"], object]
    """Requests a round of the feed."""
    to_cold: Callable[[Subscriber], object]
    """Takes a subscriber that is below the ring."""
    to_blocked: Callable[[Subscriber], object]
    """Takes a subscriber whose connection is full."""


class TailFeed:
    """See the module. Made by `open_feed`; `run` is a task of the proxy."""

    def __init__(
        self,
        context: LogContext,
        follower: StateWatch,
        start: DLSN,
        rings: EntryRings,
        sent: Sent,
        scheduler: SubscriberScheduler,
    ) -> None:
        self.name = follower.state.name
        self.context = context
        self.follower = follower
        self.ring = rings.open(start[:2])
        self.sent = sent
        self.subscribers = 0
        self.left_at = trio.current_time()
        """When the last one went."""
        self._rings = rings
        self._scheduler = scheduler
        self._tail: dict[Subscriber, None] = {}
        """Those at the ring that may be sent something."""
        self._unnumbered: dict[Subscriber, None] = {}
        """Those that came to the end of the ring, and do not know the sequence id of what comes."""
        self._out = EntryQueue(
            self.name,
            follower.incarnation,
            ReadRange(start),
            options=context.options,
            meters=context.meters,
            on_news=self._on_end,
        )
        self._fetcher = Fetcher(context, follower, self._out, take_stored=self._take)
        self._scope = trio.CancelScope()
        self._head: SegmentHead | None = None
        self._head_of: SegmentRecord | None = None

    async def run(self) -> None:
        """Until `close`."""
        await self._fetcher.run()
        with self._scope:  # what is left of an ended log may be truncated while it is read
            await self.follower.run()

    @property
    def failed(self) -> bool:
        """Did it end because of an error? An other one is made for whoever comes then."""
        return self._out.error is not None

    def close(self) -> None:
        """Nobody wants it any more. Idempotent."""
        self._out.close()
        self._scope.cancel()
        self._rings.close(self.ring)

    def fail(self, error: DistributedLogError) -> None:
        """A rule of its own is broken: it ends, and so do all who wait here."""
        self._out.fail(error)
        for subscriber in list(self._tail):
            subscriber.end(error)

    def prove(self, dlsn: DLSN) -> None:
        """A subscriber was given everything before this position (H24)."""
        self._fetcher.prove(dlsn)

    # --- who is here ------------------------------------------------------------------------------

    def admit(self, subscriber: Subscriber) -> None:
        """One more."""
        self.subscribers += 1
        if subscriber.cursor.next_id < 0 and subscriber.cursor.at == self.ring.end:
            self._unnumbered[subscriber] = None
        self.attach(subscriber)

    def attach(self, subscriber: Subscriber) -> None:
        """It may be sent something: from the ring, or, below that, from the bookies."""
        if subscriber.over:
            return
        if subscriber.cursor.credit <= 0:
            subscriber.waits = True
        elif subscriber.cursor.at < self.ring.begin:
            self._scheduler.to_cold(subscriber)
        else:
            self._tail[subscriber] = None
            self._scheduler.request_round(self)

    def remove(self, subscriber: Subscriber) -> None:
        """It is over."""
        self._tail.pop(subscriber, None)
        self._unnumbered.pop(subscriber, None)
        self.subscribers -= 1
        self.left_at = trio.current_time()

    # --- rounds -----------------------------------------------------------------------------------

    async def round(self) -> bool:
        """A frame to each subscriber at the ring that lacks something; is one wanted again?"""
        self._rings.used(self.ring)
        runs = self._fresh()
        began, more = trio.current_time(), False
        for number, subscriber in enumerate(list(self._tail), start=1):
            if number % LOOKED_AT == 0 and trio.current_time() - began > TURN_S:
                await trio.lowlevel.checkpoint()
                runs, began = self._fresh(), trio.current_time()
            if subscriber in self._tail:
                more |= self._serve(subscriber, runs)
        return more

    def _fresh(self) -> dict[Place, RingSpan | None]:
        """What was found for places in this turn; what was truncated is given to nobody (H188)."""
        self._rings.drop_below(self.ring, self.follower.state.truncated_to[:2])
        return {}

    def _serve(self, subscriber: Subscriber, runs: dict[Place, RingSpan | None]) -> bool:
        cursor, ring = subscriber.cursor, self.ring
        at = cursor.at
        if at < ring.begin:
            del self._tail[subscriber]
            self._scheduler.to_cold(subscriber)
            return False
        if at in runs:
            run = runs[at]
        else:
            run = runs[at] = ring.run(at, FRAME_BYTES)
        if run is None:
            if self._out.ended:
                subscriber.end(self._out.error)
            return False
        if not self._scheduler.has_room(subscriber.link):
            del self._tail[subscriber]
            self._scheduler.to_blocked(subscriber)
            return False
        subscriber.send(run)
        if cursor.credit <= 0:
            del self._tail[subscriber]
            subscriber.waits = True
            return False
        return cursor.at < ring.end or self._out.ended

    # --- from the fetcher -------------------------------------------------------------------------

    def _take(self, record: SegmentRecord, entry: SegmentEntry, header: EntryHeader) -> None:
        first_id = record.start_sequence_id + header.records_before
        for subscriber in self._unnumbered:
            subscriber.cursor.on_number(first_id)
        self._unnumbered.clear()
        self.sent.entries_taken += 1
        head = self._head
        if head is None or self._head_of is not record:
            head, self._head_of = SegmentHead.of(record), record
            self._head = head
        # Bytes of their own: a view would pin a megabyte that was received with it (H187).
        self._rings.push(self.ring, head, entry.entry, bytes(entry.raw), first_id + header.count)
        self._scheduler.request_round(self)

    def _on_end(self) -> None:
        self._scheduler.request_round(self)
