"""A read proxy: readers subscribe to logs and receive entries as stored, while they have credit.

Every read proxy can serve every log. It owns and stores nothing. It reads the end of a log once for all its
readers (`tail_feed.py`) and serves them in rounds (`push_loop.py`). Readers that are far behind are served
from bookies (`history_reads.py`).
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal

import trio

from ...log.format.dlsn import DLSN
from ...log.interfaces.error_boundary import error_boundary
from ...log.interfaces.log_names import check_namespace_path
from ...log.model.deleted_log_lookup import explain_deleted
from ...log.model.log_keys import incarnation_id
from ...log.model.position import Position
from ...log.model.position_outcome import HeldPosition
from ...log.namespace import Namespace
from ...log.read.fetcher import resolve_read_range
from ...log.read.segment_reader import open_segment
from ...log.read.state_watch import open_state_watch
from ...runtime.interfaces.errors import (
    DistributedLogError,
    LogDeleted,
    LogNotFound,
    ProtocolError,
    RequestTimeout,
    TooBusy,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.net.link import Link
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op
from ..protocol.read_messages import Subscribe, Subscribed, decode_credit
from ..session.client_authorizer import READING_RIGHTS, ClientSession
from ..session.fair_queue import FairQueue
from ..session.proxy_session import CommonSession
from .entry_ring import EntryRings, SubscriberCursor
from .history_reads import HistoryReads
from .push_loop import PushLoop
from .tail_feed import LINK_BYTES_MAX, SendCounters, Subscriber, SubscriberScheduler, TailFeed

RING_BYTES_MAX = 16 * 1024 * 1024
"""Limit per log."""
RINGS_BYTES_MAX = 256 * 1024 * 1024
"""Limit of all logs together."""
SUBSCRIPTIONS_MAX = 20_000
LINK_SUBSCRIPTIONS_MAX = 5000
"""Limit per connection, so that one connection cannot use all subscriptions."""
PARALLEL_OPENS = 64
"""Subscriptions that are opened concurrently, by connections in turns.

Openings of logs whose bookies do not answer occupy them for up to `OPEN_TIMEOUT_S`. One connection can occupy
half of them.
"""
OPEN_TIMEOUT_S = 20.0
"""The time limit for finding the start of a subscription."""
IDLE_FEED_S = 30.0
"""How long the proxy follows a log without subscribers."""
SWEEP_INTERVAL_S = 5.0

log = get_logger("distributedlog.proxy")

OpenNamespace = Callable[[str], AbstractAsyncContextManager[Namespace]]
"""Returns the namespace of a path, which stays open while the body runs."""


@dataclass(slots=True, eq=False)
class _PendingSubscribe:
    """A SUBSCRIBE that waits for its answer."""

    ident: int
    request: Subscribe
    open_scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancels the opening."""


class ReadServer:
    """All subscriptions of a process. They are served while `run` runs."""

    def __init__(
        self,
        endpoint: Endpoint,
        open_namespace: OpenNamespace,
        *,
        ring_bytes_max: int | None = None,
        rings_bytes_max: int = RINGS_BYTES_MAX,
        subscriptions_max: int = SUBSCRIPTIONS_MAX,
    ) -> None:
        self.open_subscriptions = 0
        """Subscriptions that are answered and not ended."""
        self.subscriptions_total = 0
        """Subscriptions that were answered since the start."""
        self.sent = SendCounters()
        self.rings = EntryRings(
            rings_bytes_max, RING_BYTES_MAX if ring_bytes_max is None else ring_bytes_max
        )
        self.push_loop = PushLoop(self._may_send)
        self.history_reads = HistoryReads(
            has_capacity=self._has_capacity, to_blocked=self.push_loop.block
        )
        self._scheduler = SubscriberScheduler(
            has_capacity=self._has_capacity,
            request_round=self.push_loop.request_round,
            add_to_history=self.history_reads.add,
            add_to_blocked=self.push_loop.block,
        )
        self._endpoint = endpoint
        self._open_namespace = open_namespace
        self._subscriptions_max = subscriptions_max
        self._pending: FairQueue[ReadSession, _PendingSubscribe] = FairQueue(PARALLEL_OPENS)
        self._idle_openers = trio.lowlevel.ParkingLot()
        """Opener tasks without work."""
        self._feeds_by_log: dict[int, TailFeed] = {}
        """The current feed of each log, by log ID, for new subscribers."""
        self._all_feeds: dict[TailFeed, None] = {}
        self._feeds_opening: dict[int, trio.Event] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            keep_running = self._endpoint.failures.keep_running
            nursery.start_soon(keep_running, "rounds of subscribers", self.push_loop.run)
            nursery.start_soon(self.history_reads.run, self._endpoint.failures)
            for _ in range(PARALLEL_OPENS):
                nursery.start_soon(keep_running, "the opening of subscriptions", self._run_opener)
            task_status.started()
            await keep_running("the sweep of feeds", self._sweep_periodically)

    async def _sweep_periodically(self) -> None:
        while True:
            await trio.sleep(SWEEP_INTERVAL_S)
            self._sweep()

    def info(self) -> dict[str, int]:
        """Return counters."""
        return {
            "subscriptions": self.open_subscriptions,
            "subscribed": self.subscriptions_total,
            "cold_subscriptions": self.history_reads.waiting,
            "feeds": len(self._all_feeds),
            "ring_bytes": self.rings.total_bytes,
            "rounds": self.push_loop.rounds,
            "frames_sent": self.sent.frames,
            "bytes_sent": self.sent.bytes,
            "entries_taken": self.sent.entries_read,
            "ranges_read": self.history_reads.ranges_read,
            "range_bytes_read": self.history_reads.bytes_read,
        }

    def _has_capacity(self, link: Link) -> bool:
        return not self.push_loop.has_blocked(link) and self._may_send(link)

    def _may_send(self, link: Link) -> bool:
        """Whether a connection may receive a frame.

        A connection without waiting bytes may always receive one. Peers that read nothing therefore cannot
        block other connections.
        """
        waiting_bytes = link.outgoing_bytes
        return not waiting_bytes or (
            waiting_bytes < LINK_BYTES_MAX and self._endpoint.has_credit(link)
        )

    # --- opening ----------------------------------------------------------------------------------

    def enqueue_subscribe(
        self, session: "ReadSession", ident: int, request: Subscribe
    ) -> _PendingSubscribe:
        """Queue a SUBSCRIBE, which is answered later.

        Raises:
            TooBusy: The connection or the proxy has too many subscriptions.
        """
        if (
            session.subscriptions >= LINK_SUBSCRIPTIONS_MAX
            or self.open_subscriptions + len(self._pending) >= self._subscriptions_max
        ):
            raise TooBusy(
                f"this proxy serves {self.open_subscriptions} subscriptions; use another proxy"
            )
        pending = _PendingSubscribe(ident, request)
        self._pending.add(session, pending)
        self._idle_openers.unpark()
        return pending

    def cancel_pending(self, session: "ReadSession", pending: _PendingSubscribe) -> None:
        """Cancel the opening of a subscription. Idempotent."""
        self._pending.discard(session, pending)
        pending.open_scope.cancel()

    async def _run_opener(self) -> None:
        while True:
            session_and_pending = self._pending.acquire_next()
            if session_and_pending is None:
                await self._idle_openers.park()
                continue
            session, pending = session_and_pending
            ident = pending.ident

            def refuse(
                error: DistributedLogError, session: ReadSession = session, ident: int = ident
            ) -> None:
                session.refuse(ident, error)

            try:
                with error_boundary(f'a subscription to "{pending.request.name}"', refuse):
                    pending.open_scope.deadline = trio.current_time() + OPEN_TIMEOUT_S
                    with pending.open_scope:
                        await self._open_subscription(session, ident, pending.request)
                    if pending.open_scope.cancelled_caught and session.is_pending(ident):
                        raise RequestTimeout(
                            f'log "{pending.request.name}": no start position was found within '
                            f"{OPEN_TIMEOUT_S:g} s"
                        )
            finally:
                self._pending.release(session)

    async def _open_subscription(
        self, session: "ReadSession", ident: int, request: Subscribe
    ) -> None:
        path = check_namespace_path(request.path)
        async with self._open_namespace(path) as namespace:
            if request.incarnation:
                await session.client.check_log(
                    READING_RIGHTS, path, request.name, request.incarnation
                )
            if (
                not request.resumes
            ):  # otherwise the log may have been renamed, and its new name counts
                await session.client.check(READING_RIGHTS, path, request.name)
            await self._open_in_namespace(namespace, session, ident, request)

    async def _open_in_namespace(
        self, namespace: Namespace, session: "ReadSession", ident: int, request: Subscribe
    ) -> None:
        context = namespace.context
        start = request.read_start
        held_position = HeldPosition(request.dlsn or DLSN.INITIAL, request.incarnation, None)
        if isinstance(start, Position):
            held_position = HeldPosition.of(start)
        try:
            if request.resumes:
                log_id = incarnation_id(request.incarnation)
            else:
                log_id = await namespace.resolve_name(request.name)
                if request.incarnation and log_id != incarnation_id(request.incarnation):
                    raise LogNotFound(f'log "{request.name}" has another incarnation now')
            state_watch = await open_state_watch(
                context.metadata, log_id, request.name, request.path
            )
        except (LogNotFound, LogDeleted) as error:
            if not request.incarnation:
                raise
            raise await explain_deleted(
                context.metadata, request.path, request.name, held_position
            ) from error
        to: DLSN | Literal["end"] | None = "end" if request.to_end else request.to
        read_range = await resolve_read_range(context, state_watch, start, to)
        sequence_id = -1 if read_range.position is None else read_range.position.sequence_id
        answer = Subscribed(
            state_watch.state.name,
            state_watch.incarnation,
            read_range.start,
            sequence_id,
            read_range.last_dlsn,
            read_range.is_empty,
        )
        if read_range.is_empty:
            session.reply(ident, answer)
            return
        feed = await self._get_or_open_feed(log_id, namespace, request.name)
        if not session.is_pending(ident):
            return
        next_id = -1 if sequence_id < 0 else sequence_id - read_range.start.slot
        cursor = SubscriberCursor(read_range.start[:2], next_id, request.credit)
        subscriber = Subscriber(session.link, ident, cursor, feed, session.forget)
        session.reply(
            ident,
            answer,
            subscriber,
            session.client.admit(
                READING_RIGHTS, namespace.path, lambda: feed.state_watch.state.name, subscriber.end
            ),
        )
        self.open_subscriptions += 1
        self.subscriptions_total += 1
        feed.admit(subscriber)
        if request.proven and read_range.start[:2] > feed.ring.end:
            await self._mark_readable_before(feed, read_range.start)

    async def _mark_readable_before(self, feed: TailFeed, dlsn: DLSN) -> None:
        """Make a position readable that a reader claims to have passed, but that is not readable here yet.

        The claim is accepted only if the entry exists. A false claim would end the feed for all its
        readers.
        """
        last = dlsn.entry - (dlsn.slot == 0)
        if last < 0:
            return
        try:
            record = await feed.state_watch.segment(dlsn.segment)
            ledger = await open_segment(feed.context.ledgers, record)
            try:
                if not ledger.closed:
                    ledger.record_lac(last)
                    await ledger.read(last, last, bytes_max=1)
                    feed.mark_readable_before(dlsn)
            finally:
                ledger.close()
        except DistributedLogError as error:
            log.info(
                'log "%s": cannot verify that a reader received all before %s (%s)',
                feed.name,
                dlsn,
                error,
            )

    async def _get_or_open_feed(self, log_id: int, namespace: Namespace, name: str) -> TailFeed:
        """Return the feed of a log; open it if necessary.

        The caller must not block before it uses the feed.
        """
        while True:
            feed = self._feeds_by_log.get(log_id)
            if feed is not None and not feed.has_failed:
                return feed
            feed_opening = self._feeds_opening.get(log_id)
            if feed_opening is not None:
                await feed_opening.wait()
                continue
            self._feeds_opening[log_id] = trio.Event()
            try:
                feed = await self._create_feed(log_id, namespace, name)
                assert self._nursery is not None, "subscriptions are opened by `run`"
                try:
                    await self._nursery.start(self._run_feed, feed, namespace.path)
                except BaseException:
                    feed.close()
                    raise
                self._feeds_by_log[log_id] = feed
                self._all_feeds[feed] = None
                return feed
            finally:
                self._feeds_opening.pop(log_id).set()

    async def _run_feed(
        self,
        feed: TailFeed,
        path: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with self._open_namespace(path):
            task_status.started()
            with error_boundary(f'log "{feed.name}" at this proxy', feed.fail):
                await feed.run()

    async def _create_feed(self, log_id: int, namespace: Namespace, name: str) -> TailFeed:
        context = namespace.context
        state_watch = await open_state_watch(context.metadata, log_id, name, namespace.path)
        read_range = await resolve_read_range(context, state_watch, "latest")
        return TailFeed(
            context,
            state_watch,
            read_range.start,
            self.rings,
            self.sent,
            self._scheduler,
        )

    def _sweep(self) -> None:
        """Close feeds without subscribers, and drop unused ranges."""
        now = trio.current_time()
        for feed in list(self._all_feeds):
            if not feed.subscribers and now - feed.last_left_at > IDLE_FEED_S:
                feed.close()
                del self._all_feeds[feed]
        self._feeds_by_log = {
            key: feed for key, feed in self._feeds_by_log.items() if feed in self._all_feeds
        }
        self.history_reads.sweep()


class ReadSession:
    """One connection of readers. A `LinkSession`."""

    def __init__(
        self,
        server: ReadServer,
        link: Link,
        client: ClientSession,
        common_session: CommonSession | None,
    ) -> None:
        """Create the session.

        Args:
            server: The read proxy.
            link: The connection.
            client: The rights of the client. ``common_session`` ends it when the connection ends.
            common_session: Answers requests that both kinds of proxies answer.
        """
        self.link = link
        self.client = client
        self._server = server
        self._common_session = common_session
        self._pending: dict[int, _PendingSubscribe] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._operations: dict[int, int] = {}
        """By subscription: the number of the client's admitted operation."""

    # --- frames -----------------------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Process one frame.

        Raises:
            ProtocolError: The frame is invalid, so the connection must end.
        """
        if op == Op.CREDIT:
            subscriber = self._subscribers.get(ident)
            if subscriber is not None and subscriber.cursor.on_credit(decode_credit(body)):
                self._resume(subscriber)
        elif op == Op.SUBSCRIBE:
            if ident in self._pending or ident in self._subscribers:
                raise ProtocolError(f"subscription {ident} already exists")
            request = Subscribe.decode(body)
            try:
                self._pending[ident] = self._server.enqueue_subscribe(self, ident, request)
            except TooBusy as error:
                self.link.reply_error(ident, error)
        elif op == Op.UNSUBSCRIBE:
            pending = self._pending.pop(ident, None)
            if pending is not None:
                self._server.cancel_pending(self, pending)
            subscriber = self._subscribers.get(ident)
            if subscriber is not None:
                subscriber.close()
        elif self._common_session is None or not self._common_session.try_serve(op, ident, body):
            raise ProtocolError(f"{self.link.peer_address} sent operation {op} to a read proxy")

    def on_batch_end(self) -> None:
        """Do nothing: no frames are batched."""

    def on_closed(self) -> None:
        """End all subscriptions of the closed connection."""
        while self._pending:
            self._server.cancel_pending(self, self._pending.popitem()[1])
        for subscriber in list(self._subscribers.values()):
            subscriber.close()
        if self._common_session is not None:
            self._common_session.on_closed()

    @staticmethod
    def _resume(subscriber: Subscriber) -> None:
        if subscriber.awaits_credit:
            subscriber.awaits_credit = False
            subscriber.feed.attach(subscriber)

    @property
    def subscriptions(self) -> int:
        """The number of pending and open subscriptions."""
        return len(self._pending) + len(self._subscribers)

    # --- for the server ---------------------------------------------------------------------------

    def is_pending(self, ident: int) -> bool:
        """Whether the client still waits for this answer."""
        return ident in self._pending

    def reply(
        self,
        ident: int,
        answer: Subscribed,
        subscriber: Subscriber | None = None,
        operation: int = 0,
    ) -> None:
        """Answer a SUBSCRIBE. Without a subscriber, no entries follow.

        Args:
            ident: The number of the subscription.
            answer: The answer.
            subscriber: The subscriber that receives entries.
            operation: The number of the client's admitted operation.
        """
        if self._pending.pop(ident, None) is not None:
            self.link.reply(ident, answer.encode())
            if subscriber is not None:
                self._subscribers[ident] = subscriber
                self._operations[ident] = operation

    def refuse(self, ident: int, error: DistributedLogError) -> None:
        """Answer a SUBSCRIBE with an error."""
        if self._pending.pop(ident, None) is not None:
            self.link.reply_error(ident, error)

    def forget(self, ident: int) -> None:
        """Remove a subscription that has ended."""
        if self._subscribers.pop(ident, None) is not None:
            self.client.finish(self._operations.pop(ident))
            self._server.open_subscriptions -= 1
