"""Serve the reads of all connections in turn, and limit the bytes of their replies.

One task serves reads, with a byte limit per event-loop iteration, so that adds and fences are handled in
between (H42b). The connections take turns. A credit limits the memory of unsent replies.
"""

from collections import deque
from collections.abc import Sized
from typing import Protocol

import trio

from ..declarations.options import BookieOptions

READ_BUDGET_BYTES = 2 * 1024 * 1024
"""The bytes of replies in one event-loop iteration, before adds are handled again."""


class ConnectionReads(Protocol):
    """The reads of one connection (`session_reads.py`)."""

    is_queued: bool
    """Whether the connection is in the queue. Set by the scheduler."""

    @property
    def pending_reads(self) -> Sized:
        """The reads that are not served yet."""
        ...

    @property
    def is_blocked(self) -> bool:
        """Whether the reads wait for the device, or for the peer to receive earlier replies."""
        ...

    @property
    def outgoing_bytes(self) -> int:
        """Bytes of replies that the peer has not received yet."""
        ...

    def serve_one(self) -> int:
        """Serve the oldest read; return its cost in bytes of the budget."""
        ...


class ReadScheduler:
    """The queue of connections with reads to serve, and the credit of all connections.

    Tasks of connections that wait for credit run in ``nursery``, which ends with the server.
    """

    def __init__(self, options: BookieOptions, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._options = options
        self._with_replies: dict[ConnectionReads, None] = {}
        self._outgoing_sum = 0
        """An upper estimate of the unsent bytes of all connections. It is computed again in each
        iteration."""
        self._ready: deque[ConnectionReads] = deque()
        self._wake = trio.Event()

    # --- credit -----------------------------------------------------------------------------------

    def record_reply(self, reads: ConnectionReads, size_bytes: int) -> None:
        """Record a reply of this size that was given to the connection."""
        self._with_replies[reads] = None
        self._outgoing_sum += size_bytes

    def has_credit(self, outgoing_bytes: int) -> bool:
        """Whether a connection with this many unsent bytes may get another reply.

        The more bytes all connections have together, the lower is the limit of each. So a peer that does not
        read cannot use the memory of the others.
        """
        free = self._options.outgoing_bytes_sum_max - self._outgoing_sum
        if not outgoing_bytes:
            return free > 0
        return outgoing_bytes < min(self._options.outgoing_bytes_max, free // 4)

    @property
    def outgoing_bytes(self) -> int:
        """The present number of unsent bytes of all connections."""
        return sum(reads.outgoing_bytes for reads in self._with_replies)

    # --- turns ------------------------------------------------------------------------------------

    def enqueue(self, reads: ConnectionReads) -> None:
        """Add a connection with pending reads to the queue."""
        if not reads.is_queued:
            reads.is_queued = True
            self._ready.append(reads)
            self._wake.set()

    async def run(self) -> None:
        """Serve reads until cancelled."""
        while True:
            if not self._ready:
                self._wake = trio.Event()
                await self._wake.wait()
            budget = READ_BUDGET_BYTES
            self._with_replies = {
                connection: None for connection in self._with_replies if connection.outgoing_bytes
            }
            self._outgoing_sum = self.outgoing_bytes
            while self._ready and budget > 0:
                reads = self._ready.popleft()
                reads.is_queued = False
                budget -= reads.serve_one()
                if reads.pending_reads and not reads.is_blocked:
                    self.enqueue(reads)
            if self._ready:  # otherwise the wait above lets other tasks run
                await trio.lowlevel.checkpoint()
