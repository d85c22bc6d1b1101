"""A read proxy: readers subscribe to logs, and are sent entries as they are stored, while they have credit.

Any read proxy serves any log: nothing is owned and nothing is kept. A log is read once for all its readers
here (`tail_feed.py`); they are served in rounds (`push_loop.py`), those far behind from the bookies
(`history_reads.py`).
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
from ...log.read.fetcher import find_beginning
from ...log.read.segment_reader import open_segment
from ...log.read.state_watch import follow
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
from ..session.client_authorizer import CONSUMES, ClientSession
from ..session.fair_queue import FairQueue
from ..session.proxy_session import CommonSession
from .entry_ring import EntryRings, SubscriberCursor
from .history_reads import HistoryReads
from .push_loop import PushLoop
from .tail_feed import LINK_BYTES_MAX, Sent, Subscriber, SubscriberScheduler, TailFeed

RING_BYTES_MAX = 16 * 1024 * 1024
"""Of a log."""
RINGS_BYTES_MAX = 256 * 1024 * 1024
"""Of all logs."""
SUBSCRIPTIONS_MAX = 20_000
LINK_SUBSCRIPTIONS_MAX = 5000
"""Of one connection: it takes not all of the others'."""
OPENERS = 64
"""Subscriptions are opened at a time, by connections in turns: logs whose bookies do not answer hold as many
up, for `OPEN_S` each, and those of one connection half."""
OPEN_S = 20.0
"""To find where a subscription begins."""
FEED_REST_S = 30.0
"""A log without subscribers is followed for so long."""
SWEEP_S = 5.0

log = get_logger("distributedlog.proxy")

Using = Callable[[str], AbstractAsyncContextManager[Namespace]]
"""The namespace of a path, for as long as the body runs."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A SUBSCRIBE that waits for its answer."""

    ident: int
    subscribe: Subscribe
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of its opening."""


class ReadServer:
    """All subscriptions of a process. `run` must be running."""

    def __init__(
        self,
        endpoint: Endpoint,
        using: Using,
        *,
        ring_bytes_max: int = RING_BYTES_MAX,
        rings_bytes_max: int = RINGS_BYTES_MAX,
        subscriptions_max: int = SUBSCRIPTIONS_MAX,
    ) -> None:
        self.subscriptions = 0
        """Answered, and not over."""
        self.subscribed = 0
        """Ever answered."""
        self.sent = Sent()
        self.rings = EntryRings(rings_bytes_max, ring_bytes_max)
        self.pusher = PushLoop(self._takes_more)
        self.cold = HistoryReads(has_room=self._has_room, to_blocked=self.pusher.block)
        self._scheduler = SubscriberScheduler(
            has_room=self._has_room,
            request_round=self.pusher.wake,
            to_cold=self.cold.add,
            to_blocked=self.pusher.block,
        )
        self._endpoint = endpoint
        self._using = using
        self._subscriptions_max = subscriptions_max
        self._asked: FairQueue[ReadSession, _Asked] = FairQueue(OPENERS)
        self._idle = trio.lowlevel.ParkingLot()
        """Openers that have nothing to do."""
        self._feeds: dict[int, TailFeed] = {}
        """By log id, those that new subscribers come to."""
        self._all_feeds: dict[TailFeed, None] = {}
        self._making: dict[int, trio.Event] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            keep = self._endpoint.failures.keep
            nursery.start_soon(keep, "rounds of subscribers", self.pusher.run)
            nursery.start_soon(self.cold.run, self._endpoint.failures)
            for _ in range(OPENERS):
                nursery.start_soon(keep, "the opening of subscriptions", self._open_all)
            task_status.started()
            await keep("the sweep of feeds", self._sweep_again)

    async def _sweep_again(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            self._sweep()

    def info(self) -> dict[str, int]:
        """What is counted here."""
        return {
            "subscriptions": self.subscriptions,
            "subscribed": self.subscribed,
            "cold_subscriptions": self.cold.waiting,
            "feeds": len(self._all_feeds),
            "ring_bytes": self.rings.bytes,
            "rounds": self.pusher.rounds,
            "frames_sent": self.sent.frames,
            "bytes_sent": self.sent.bytes,
            "entries_taken": self.sent.entries_taken,
            "ranges_read": self.cold.ranges_read,
            "range_bytes_read": self.cold.bytes_read,
        }

    def _has_room(self, link: Link) -> bool:
        return not self.pusher.is_full(link) and self._takes_more(link)

    def _takes_more(self, link: Link) -> bool:
        """One frame always: whoever reads nothing takes no other one's room."""
        waits = link.outgoing_bytes
        return not waits or (waits < LINK_BYTES_MAX and self._endpoint.has_credit(link))

    # --- opening ----------------------------------------------------------------------------------

    def subscribe(self, session: "ReadSession", ident: int, subscribe: Subscribe) -> _Asked:
        """A SUBSCRIBE has come; the answer follows. Raises `TooBusy`."""
        if (
            session.subscriptions >= LINK_SUBSCRIPTIONS_MAX
            or self.subscriptions + len(self._asked) >= self._subscriptions_max
        ):
            raise TooBusy(f"{self.subscriptions} subscriptions are served here: ask another proxy")
        asked = _Asked(ident, subscribe)
        self._asked.add(session, asked)
        self._idle.unpark()
        return asked

    def forget(self, session: "ReadSession", asked: _Asked) -> None:
        """Nobody waits for the answer any more. Idempotent."""
        self._asked.discard(session, asked)
        asked.scope.cancel()

    async def _open_all(self) -> None:
        while True:
            found = self._asked.take()
            if found is None:
                await self._idle.park()
                continue
            session, asked = found
            ident = asked.ident

            def refuse(
                error: DistributedLogError, session: ReadSession = session, ident: int = ident
            ) -> None:
                session.refuse(ident, error)

            try:
                with error_boundary(f'a subscription to "{asked.subscribe.name}"', refuse):
                    asked.scope.deadline = trio.current_time() + OPEN_S
                    with asked.scope:
                        await self._open(session, ident, asked.subscribe)
                    if asked.scope.cancelled_caught and session.wants(ident):
                        raise RequestTimeout(
                            f'log "{asked.subscribe.name}": where to begin was not found in {OPEN_S:g} s'
                        )
            finally:
                self._asked.give_back(session)

    async def _open(self, session: "ReadSession", ident: int, ask: Subscribe) -> None:
        path = check_namespace_path(ask.path)
        async with self._using(path) as namespace:
            if ask.incarnation:
                await session.client.check_log(CONSUMES, path, ask.name, ask.incarnation)
            if not ask.resumes:  # else the log may have another name by now, and that one counts
                await session.client.check(CONSUMES, path, ask.name)
            await self._open_in(namespace, session, ident, ask)

    async def _open_in(
        self, namespace: Namespace, session: "ReadSession", ident: int, ask: Subscribe
    ) -> None:
        context = namespace.context
        start = ask.read_start
        held = HeldPosition(ask.dlsn or DLSN.INITIAL, ask.incarnation, None)
        if isinstance(start, Position):
            held = HeldPosition.of(start)
        try:
            if ask.resumes:
                log_id = incarnation_id(ask.incarnation)
            else:
                log_id = await namespace.find(ask.name)
                if ask.incarnation and log_id != incarnation_id(ask.incarnation):
                    raise LogNotFound(f'log "{ask.name}" is another one now')
            follower = await follow(context.metadata, log_id, ask.name, ask.path)
        except (LogNotFound, LogDeleted) as error:
            if not ask.incarnation:
                raise
            raise await explain_deleted(context.metadata, ask.path, ask.name, held) from error
        to: DLSN | Literal["end"] | None = "end" if ask.to_end else ask.to
        found = await find_beginning(context, follower, start, to)
        sequence_id = -1 if found.position is None else found.position.sequence_id
        answer = Subscribed(
            follower.state.name,
            follower.incarnation,
            found.start,
            sequence_id,
            found.to,
            found.is_empty,
        )
        if found.is_empty:
            session.answer(ident, answer)
            return
        feed = await self._feed_of(log_id, namespace, ask.name)
        if not session.wants(ident):
            return
        next_id = -1 if sequence_id < 0 else sequence_id - found.start.slot
        cursor = SubscriberCursor(found.start[:2], next_id, ask.credit)
        subscriber = Subscriber(session.link, ident, cursor, feed, session.forget)
        session.answer(
            ident,
            answer,
            subscriber,
            session.client.let_in(
                CONSUMES, namespace.path, lambda: feed.follower.state.name, subscriber.end
            ),
        )
        self.subscriptions += 1
        self.subscribed += 1
        feed.admit(subscriber)
        if ask.proven and found.start[:2] > feed.ring.end:
            await self._prove(feed, found.start)

    async def _prove(self, feed: TailFeed, dlsn: DLSN) -> None:
        """A reader says that it was given everything before this position, which is not readable here yet.

        Believed where the entry is there: a word that cannot be kept would end the feed for all its readers.
        """
        last = dlsn.entry - (dlsn.slot == 0)
        if last < 0:
            return
        try:
            record = await feed.follower.segment(dlsn.segment)
            ledger = await open_segment(feed.context.ledgers, record)
            try:
                if not ledger.closed:
                    ledger.note_lac(last)
                    await ledger.read(last, last, bytes_max=1)
                    feed.prove(dlsn)
            finally:
                ledger.close()
        except DistributedLogError as error:
            log.info('log "%s": a reader has had all before %s: %s', feed.name, dlsn, error)

    async def _feed_of(self, log_id: int, namespace: Namespace, name: str) -> TailFeed:
        """Who follows the log here. Nothing is waited for between its being found and this one's end."""
        while True:
            feed = self._feeds.get(log_id)
            if feed is not None and not feed.failed:
                return feed
            making = self._making.get(log_id)
            if making is not None:
                await making.wait()
                continue
            self._making[log_id] = trio.Event()
            try:
                feed = await self._make_feed(log_id, namespace, name)
                assert self._nursery is not None, "subscriptions are opened by `run`"
                try:
                    await self._nursery.start(self._run_feed, feed, namespace.path)
                except BaseException:
                    feed.close()
                    raise
                self._feeds[log_id] = feed
                self._all_feeds[feed] = None
                return feed
            finally:
                self._making.pop(log_id).set()

    async def _run_feed(
        self,
        feed: TailFeed,
        path: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with self._using(path):
            task_status.started()
            with error_boundary(f'log "{feed.name}" at this proxy', feed.fail):
                await feed.run()

    async def _make_feed(self, log_id: int, namespace: Namespace, name: str) -> TailFeed:
        context = namespace.context
        follower = await follow(context.metadata, log_id, name, namespace.path)
        found = await find_beginning(context, follower, "latest")
        return TailFeed(
            context,
            follower,
            found.start,
            self.rings,
            self.sent,
            self._scheduler,
        )

    def _sweep(self) -> None:
        """Forget what nobody wants any more."""
        now = trio.current_time()
        for feed in list(self._all_feeds):
            if not feed.subscribers and now - feed.left_at > FEED_REST_S:
                feed.close()
                del self._all_feeds[feed]
        self._feeds = {key: feed for key, feed in self._feeds.items() if feed in self._all_feeds}
        self.cold.sweep()


class ReadSession:
    """One connection of readers. A `Session`."""

    def __init__(
        self, server: ReadServer, link: Link, client: ClientSession, common: CommonSession | None
    ) -> None:
        """``client``: who speaks on the link; ``common`` tells it when that is over."""
        self.link = link
        self.client = client
        self._server = server
        self._common = common
        self._asked: dict[int, _Asked] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._let_in: dict[int, int] = {}
        """Of each of them, what the client's right to it is left by."""

    # --- frames -----------------------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Take one frame. Raises `ProtocolError`, which ends the connection."""
        if op == Op.CREDIT:
            subscriber = self._subscribers.get(ident)
            if subscriber is not None and subscriber.cursor.on_credit(decode_credit(body)):
                self._go_on(subscriber)
        elif op == Op.SUBSCRIBE:
            if ident in self._asked or ident in self._subscribers:
                raise ProtocolError(f"subscription {ident} is there already")
            subscribe = Subscribe.decode(body)
            try:
                self._asked[ident] = self._server.subscribe(self, ident, subscribe)
            except TooBusy as error:
                self.link.reply_error(ident, error)
        elif op == Op.UNSUBSCRIBE:
            asked = self._asked.pop(ident, None)
            if asked is not None:
                self._server.forget(self, asked)
            subscriber = self._subscribers.get(ident)
            if subscriber is not None:
                subscriber.leave()
        elif self._common is None or not self._common.take(op, ident, body):
            raise ProtocolError(f"{self.link.peer_address} sent operation {op} to a read proxy")

    def on_batch_end(self) -> None:
        """Nothing is gathered."""

    def on_closed(self) -> None:
        """Nobody is there any more."""
        while self._asked:
            self._server.forget(self, self._asked.popitem()[1])
        for subscriber in list(self._subscribers.values()):
            subscriber.leave()
        if self._common is not None:
            self._common.on_closed()

    @staticmethod
    def _go_on(subscriber: Subscriber) -> None:
        if subscriber.waits:
            subscriber.waits = False
            subscriber.feed.attach(subscriber)

    @property
    def subscriptions(self) -> int:
        """Asked for, or answered and not over."""
        return len(self._asked) + len(self._subscribers)

    # --- for the server ---------------------------------------------------------------------------

    def wants(self, ident: int) -> bool:
        """Does it still wait for this answer?"""
        return ident in self._asked

    def answer(
        self,
        ident: int,
        answer: Subscribed,
        subscriber: Subscriber | None = None,
        let_in: int = 0,
    ) -> None:
        """The answer to a SUBSCRIBE; without a subscriber nothing follows. ``let_in``: of its client."""
        if self._asked.pop(ident, None) is not None:
            self.link.reply(ident, answer.encode())
            if subscriber is not None:
                self._subscribers[ident] = subscriber
                self._let_in[ident] = let_in

    def refuse(self, ident: int, error: DistributedLogError) -> None:
        """The same, an error."""
        if self._asked.pop(ident, None) is not None:
            self.link.reply_error(ident, error)

    def forget(self, ident: int) -> None:
        """A subscription is over."""
        if self._subscribers.pop(ident, None) is not None:
            self.client.leave(self._let_in.pop(ident))
            self._server.subscriptions -= 1
