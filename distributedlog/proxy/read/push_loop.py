"""Serve the subscribers of a read proxy in rounds.

A round serves all feeds with news. Then the loop pauses for as long as the round took. There is one task
per process and none per subscriber. With one subscriber, a round takes microseconds and delays nothing.
With a thousand, it takes milliseconds, and records written in that time are sent together. With more
subscribers, each frame therefore contains more entries (H191).

If a subscriber waits for a full connection, all other subscribers of this connection queue behind it.
Otherwise the subscribers served first would fill it again each time, and the rest would receive nothing at
a high write rate.
"""

from collections.abc import Callable

import trio

from ...log.interfaces.error_boundary import error_boundary
from ...runtime.net.link import Link
from .tail_feed import Subscriber, TailFeed

BLOCKED_CHECK_INTERVAL_S = 0.02
"""The interval at which full connections are checked."""
ROUND_PAUSE_MAX_S = 0.05


class PushLoop:
    """Serves the feeds that have news."""

    def __init__(self, may_send: Callable[[Link], bool]) -> None:
        """Create the loop. ``may_send`` returns whether a connection can accept a frame."""
        self.rounds = 0
        self._may_send = may_send
        self._feeds_with_news: dict[TailFeed, None] = {}
        self._blocked: dict[Link, list[Subscriber]] = {}
        """By full connection, the subscriber that has waited longest first."""
        self._check_blocked_at = 0.0
        """When the full connections are checked next."""
        self._wake = trio.Event()

    def request_round(self, feed: TailFeed) -> None:
        """Request a round for a feed."""
        self._feeds_with_news[feed] = None
        self._wake.set()

    def block(self, subscriber: Subscriber) -> None:
        """Add a subscriber whose connection is full. It continues when the connection has capacity."""
        if not self._blocked:
            self._check_blocked_at = trio.current_time() + BLOCKED_CHECK_INTERVAL_S
            self._wake.set()
        self._blocked.setdefault(subscriber.link, []).append(subscriber)

    def has_blocked(self, link: Link) -> bool:
        """Whether a subscriber waits for this connection, so that others must queue behind it."""
        return link in self._blocked

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            if not self._feeds_with_news:
                with trio.move_on_at(self._check_blocked_at if self._blocked else float("inf")):
                    await self._wake.wait()
            self._wake = trio.Event()
            if self._blocked and trio.current_time() >= self._check_blocked_at:
                self._check_blocked_at = trio.current_time() + BLOCKED_CHECK_INTERVAL_S
                # Check per connection: a peer that never reads may have thousands of subscribers.
                for link in [
                    blocked_link
                    for blocked_link in self._blocked
                    if blocked_link.closed or self._may_send(blocked_link)
                ]:
                    for subscriber in self._blocked.pop(link):
                        subscriber.feed.attach(subscriber)
            feeds_with_news, self._feeds_with_news = self._feeds_with_news, {}
            started = trio.current_time()
            for feed in feeds_with_news:
                with error_boundary(f'log "{feed.name}" at this proxy', feed.fail):
                    if await feed.run_round():
                        self.request_round(feed)
            self.rounds += len(feeds_with_news)
            duration_s = trio.current_time() - started
            await trio.sleep(min(duration_s, ROUND_PAUSE_MAX_S))
