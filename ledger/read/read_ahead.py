"""Ranges of entries asked for ahead of the reader, at the bookie it stays with: replies are always under way.

Where a range ends is said by entry ids, not by bytes, so that the next one can be asked for before the
answer is here: as many entries as fit, by the sizes of those that came last. A guess that was too large is
answered in part, and the rest is asked for again. What is under way is bounded: `RANGES_MAX` requests of at
most the bytes that the reader asks for, fewer where those are many.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from ...bookie.client.bookie_client import BookieClient, ReadResponse
from ...bookie.format.bookie_messages import ReadEntriesRequest
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.net.client_link import PendingReply

RANGES_MAX = 3
"""One is received, one is made by the bookie, one waits there for its turn."""
RANGES_MIN = 2
READ_AHEAD_BYTES = 4 * 1024 * 1024
"""Long replies need no third one under way: what has come and is not taken stays in memory."""
FILL_TARGET = 0.9
"""How full of its bytes a range is meant to be where entries differ."""


@dataclass(slots=True, eq=False)
class _PendingRange:
    client: BookieClient
    request: ReadEntriesRequest
    pending_reply: PendingReply


class ReadAhead:
    """The requests of one reader that nobody waits for yet, in the order of their entries."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ranges: deque[_PendingRange] = deque()
        self._mean_bytes = 1.0
        self._longest_bytes = 1

    def observe_sizes(self, sizes: list[int]) -> None:
        """The entries of the newest answer had so many bytes each."""
        self._mean_bytes = sum(sizes) / len(sizes)
        self._longest_bytes = max(sizes)

    def request_ahead(self, client: BookieClient, request: ReadEntriesRequest) -> None:
        """Keep requests for what follows under way, ``request`` being all that may be asked for next."""
        ranges = self._ranges
        if ranges and ranges[-1].client is not client:
            self.cancel_all()
        first = ranges[-1].request.last + 1 if ranges else request.first
        # A writer at full speed makes entries of one size, and then of those it is known how many fit.
        guaranteed_count = request.bytes_max // self._longest_bytes
        count = max(1, guaranteed_count, int(FILL_TARGET * request.bytes_max / self._mean_bytes))
        ranges_max = min(RANGES_MAX, max(RANGES_MIN, READ_AHEAD_BYTES // request.bytes_max))
        with suppress(DistributedLogError):  # the connection is gone: whoever reads next sees it
            while len(ranges) < ranges_max and first <= request.last:
                last = min(request.last, first + count - 1)
                self._send_request(client, self._subrange(request, first, last), at_front=False)
                first = last + 1

    async def next_response(
        self, client: BookieClient, request: ReadEntriesRequest, wait_s: float
    ) -> ReadResponse | None:
        """The answer to the oldest range, if it begins as ``request`` does and was asked of ``client``.

        None where nothing fits: then nothing is under way any more. Raises what the bookie answered, or
        `RequestTimeout` after ``wait_s``.
        """
        if not self._ranges:
            return None
        oldest = self._ranges[0]
        if (
            oldest.client is not client
            or oldest.request.first != request.first
            or oldest.request.last > request.last
        ):
            self.cancel_all()
            return None
        self._ranges.popleft()
        response = await client.finish_read(oldest.pending_reply, wait_s)
        if oldest.request.first <= response.complete_to < oldest.request.last:
            remainder = self._subrange(
                oldest.request, response.complete_to + 1, oldest.request.last
            )
            with suppress(DistributedLogError):
                self._send_request(client, remainder, at_front=True)
        return response

    def cancel_all(self) -> None:
        """What is under way is not wanted any more. Idempotent."""
        while self._ranges:
            pending_range = self._ranges.popleft()
            pending_range.client.cancel(pending_range.pending_reply)

    def _send_request(
        self, client: BookieClient, request: ReadEntriesRequest, *, at_front: bool
    ) -> None:
        pending_range = _PendingRange(client, request, client.begin_read(request, self._timeout_s))
        if at_front:
            self._ranges.appendleft(pending_range)
        else:
            self._ranges.append(pending_range)

    @staticmethod
    def _subrange(request: ReadEntriesRequest, first: int, last: int) -> ReadEntriesRequest:
        return ReadEntriesRequest(
            request.ledger, request.key, first, last, request.bytes_max, past_lac=request.past_lac
        )
