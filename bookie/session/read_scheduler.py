"""Whose reads come next, and how much on its way out a connection may have: shared by all of a bookie's.

Reads are served by one task with a budget of bytes a turn of the loop, the connections in turn, so that adds
and fences are looked at in between (H42b). Credit bounds what replies hold.
"""

from collections import deque
from collections.abc import Sized
from typing import Protocol

import trio

from ..declarations.options import BookieOptions

READ_BUDGET_BYTES = 2 * 1024 * 1024
"""Replies made in one turn of the loop, before adds are looked at again."""


class ConnectionReads(Protocol):
    """The reads of one connection (`session_reads.py`)."""

    is_queued: bool
    """Its turn will come; set here."""

    @property
    def pending_reads(self) -> Sized:
        """The reads that are not served yet."""
        ...

    @property
    def is_blocked(self) -> bool:
        """They wait for the device, or for the peer to take what it was sent."""
        ...

    @property
    def outgoing_bytes(self) -> int:
        """What the peer has not taken yet."""
        ...

    def serve_one(self) -> int:
        """Serve the oldest read; return what it cost of the turn, bytes."""
        ...


class ReadScheduler:
    """The queue of connections with reads to serve, and the credit of all connections.

    ``nursery`` ends with the server: connections wait there for credit.
    """

    def __init__(self, options: BookieOptions, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._options = options
        self._with_replies: dict[ConnectionReads, None] = {}
        self._outgoing_sum = 0
        """At least what they have on their way out; counted again at each turn."""
        self._ready: deque[ConnectionReads] = deque()
        self._wake = trio.Event()

    # --- credit -----------------------------------------------------------------------------------

    def record_reply(self, reads: ConnectionReads, size_bytes: int) -> None:
        """A reply of so many bytes was handed to the link."""
        self._with_replies[reads] = None
        self._outgoing_sum += size_bytes

    def has_credit(self, outgoing_bytes: int) -> bool:
        """May a connection with so much on its way out get another reply?

        The fuller all of them are together, the less each may have: who does not read cannot take the
        room of those who do.
        """
        free = self._options.outgoing_bytes_sum_max - self._outgoing_sum
        if not outgoing_bytes:
            return free > 0
        return outgoing_bytes < min(self._options.outgoing_bytes_max, free // 4)

    @property
    def outgoing_bytes(self) -> int:
        """What all connections together have on their way out, now."""
        return sum(reads.outgoing_bytes for reads in self._with_replies)

    # --- turns ------------------------------------------------------------------------------------

    def enqueue(self, reads: ConnectionReads) -> None:
        """A connection has reads to serve."""
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
            if self._ready:  # else it waits, which lets others on as well
                await trio.lowlevel.checkpoint()
