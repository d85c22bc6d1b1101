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

BLOCKED_S = 0.02
"""Connections that are full are looked at so often."""
REST_S_MAX = 0.05


class PushLoop:
    """Serves the feeds that have news."""

    def __init__(self, takes_more: Callable[[Link], bool]) -> None:
        """``takes_more``: is there room on a connection?"""
        self.rounds = 0
        self._takes_more = takes_more
        self._dirty: dict[TailFeed, None] = {}
        self._blocked: dict[Link, list[Subscriber]] = {}
        """By the connection that they wait for; the one that waits longest first."""
        self._look_at = 0.0
        """When they are looked at."""
        self._wake = trio.Event()

    def wake(self, feed: TailFeed) -> None:
        """A round is wanted there."""
        self._dirty[feed] = None
        self._wake.set()

    def block(self, subscriber: Subscriber) -> None:
        """Its connection is full; it goes on when that is not."""
        if not self._blocked:
            self._look_at = trio.current_time() + BLOCKED_S
            self._wake.set()
        self._blocked.setdefault(subscriber.link, []).append(subscriber)

    def is_full(self, link: Link) -> bool:
        """Does anybody wait for that connection? Then all its subscribers queue up behind."""
        return link in self._blocked

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._dirty:
                with trio.move_on_at(self._look_at if self._blocked else float("inf")):
                    await self._wake.wait()
            self._wake = trio.Event()
            if self._blocked and trio.current_time() >= self._look_at:
                self._look_at = trio.current_time() + BLOCKED_S
                # By connection: a peer that never reads may have thousands of subscribers there.
                for link in [one for one in self._blocked if one.closed or self._takes_more(one)]:
                    for subscriber in self._blocked.pop(link):
                        subscriber.feed.attach(subscriber)
            dirty, self._dirty = self._dirty, {}
            began = trio.current_time()
            for feed in dirty:
                with error_boundary(f'log "{feed.name}" at this proxy', feed.fail):
                    if await feed.round():
                        self.wake(feed)
            self.rounds += len(dirty)
            took_s = trio.current_time() - began
            await trio.sleep(min(took_s, REST_S_MAX))
