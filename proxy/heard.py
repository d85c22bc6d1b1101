"""What a stream to a log's owner has answered, for who sends one frame at a time and waits."""

from collections import deque

import trio

from ..runtime.errors import DistributedLogError
from .client import StreamEnd
from .wire import Ack, Refusal

SUSPECT_S = 1.0
"""Without an answer for so long another proxy is asked, who may find that the log's owner is gone."""
PAUSE_S = 0.05
"""At least so long after a refusal that passes."""


class Heard:
    """What one stream has answered so far."""

    def __init__(self) -> None:
        self.acks: deque[Ack] = deque()
        self.refusal: Refusal | None = None
        self.lost: DistributedLogError | None = None
        self.since = float("inf")
        """When the wait for an answer began, or news came last."""
        self.late = False
        self.news = trio.Event()
        self.end = StreamEnd(self._on_ack, self._on_refused, self._on_lost, self._on_sweep)

    @property
    def over(self) -> bool:
        """Does nothing more come?"""
        return self.refusal is not None or self.lost is not None

    async def wait(self) -> None:
        """Until something was heard."""
        await self.news.wait()
        self.news = trio.Event()

    def _on_ack(self, ack: Ack) -> None:
        self.acks.append(ack)
        if self.since < float("inf"):  # else nobody waits: it is of something sent before
            self.since = trio.current_time()
        self.news.set()

    def _on_refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.news.set()

    def _on_lost(self, reason: DistributedLogError) -> None:
        self.lost = reason
        self.news.set()

    def _on_sweep(self, now: float) -> None:
        if now - self.since > SUSPECT_S:
            self.late, self.since = True, now
            self.news.set()
