"""Rounds of a read proxy: whoever has news is served, then all rest as long as that took.

One task a process, and none a subscriber. With one subscriber a round takes microseconds and delays nothing;
with a thousand it takes milliseconds, and what is written meanwhile goes out together: the more there are to
serve, the more entries a frame has (H191).

Where somebody waits for a connection that is full, all others of that connection queue up behind: else who is
served first fills it again each time, and the rest get nothing while more is written than it can carry.
"""

from collections.abc import Callable

import trio

from ...log.interfaces.error_boundary import error_boundary
from ...runtime.net.link import Link
from .tail_feed import Subscriber, TailFeed

BLOCKED_CHECK_INTERVAL_S = 0.02
"""Connections that are full are looked at so often."""
ROUND_PAUSE_MAX_S = 0.05


class PushLoop:
    """Serves the feeds that have news."""

    def __init__(self, may_send: Callable[[Link], bool]) -> None:
        """``takes_more``: is there room on a connection?"""
        self.rounds = 0
        self._may_send = may_send
        self._feeds_with_news: dict[TailFeed, None] = {}
        self._blocked: dict[Link, list[Subscriber]] = {}
        """By the connection that they wait for; the one that waits longest first."""
        self._check_blocked_at = 0.0
        """When they are looked at."""
        self._wake = trio.Event()

    def request_round(self, feed: TailFeed) -> None:
        """A round is wanted there."""
        self._feeds_with_news[feed] = None
        self._wake.set()

    def block(self, subscriber: Subscriber) -> None:
        """Its connection is full; it goes on when that is not."""
        if not self._blocked:
            self._check_blocked_at = trio.current_time() + BLOCKED_CHECK_INTERVAL_S
            self._wake.set()
        self._blocked.setdefault(subscriber.link, []).append(subscriber)

    def has_blocked(self, link: Link) -> bool:
        """Does anybody wait for that connection? Then all its subscribers queue up behind."""
        return link in self._blocked

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._feeds_with_news:
                with trio.move_on_at(self._check_blocked_at if self._blocked else float("inf")):
                    await self._wake.wait()
            self._wake = trio.Event()
            if self._blocked and trio.current_time() >= self._check_blocked_at:
                self._check_blocked_at = trio.current_time() + BLOCKED_CHECK_INTERVAL_S
                # By connection: a peer that never reads may have thousands of subscribers there.
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
