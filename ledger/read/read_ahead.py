"""Request ranges of entries ahead of the reader, from one bookie, so that replies are always in flight.

The end of a range is an entry ID, not a byte count, so that the next range can be requested before the
answer arrives. The number of entries is estimated from the sizes of the latest entries. If the estimate was
too large, the answer is partial, and the rest is requested again.

The requests in flight are limited: `RANGES_MAX` requests of at most the bytes that the reader requests, and
fewer requests if these are large.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from ...bookie.client.bookie_client import BookieClient, ReadResponse
from ...bookie.format.bookie_messages import ReadEntriesRequest
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.net.client_link import PendingReply

RANGES_MAX = 3
"""One range is received, one is prepared by the bookie, and one waits there."""
RANGES_MIN = 2
READ_AHEAD_BYTES = 4 * 1024 * 1024
"""Long replies need no third request in flight. Received and unread replies stay in memory."""
FILL_TARGET = 0.9
"""The fraction of its bytes that a range should fill if entries have different sizes."""


@dataclass(slots=True, eq=False)
class _PendingRange:
    client: BookieClient
    request: ReadEntriesRequest
    pending_reply: PendingReply


class ReadAhead:
    """The prefetch requests of one reader, in the order of their entries."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ranges: deque[_PendingRange] = deque()
        self._mean_bytes = 1.0
        self._longest_bytes = 1

    def observe_sizes(self, sizes: list[int]) -> None:
        """Record the sizes, in bytes, of the entries in the newest answer."""
        self._mean_bytes = sum(sizes) / len(sizes)
        self._longest_bytes = max(sizes)

    def request_ahead(self, client: BookieClient, request: ReadEntriesRequest) -> None:
        """Keep requests for the next entries in flight.

        Args:
            client: The bookie.
            request: The whole range that may be requested.
        """
        ranges = self._ranges
        if ranges and ranges[-1].client is not client:
            self.cancel_all()
        first = ranges[-1].request.last + 1 if ranges else request.first
        # At full speed, a writer creates entries of one size, so the number that fits is certain.
        guaranteed_count = request.bytes_max // self._longest_bytes
        count = max(1, guaranteed_count, int(FILL_TARGET * request.bytes_max / self._mean_bytes))
        ranges_max = min(RANGES_MAX, max(RANGES_MIN, READ_AHEAD_BYTES // request.bytes_max))
        with suppress(DistributedLogError):  # the connection ended, which the next read notices
            while len(ranges) < ranges_max and first <= request.last:
                last = min(request.last, first + count - 1)
                self._send_request(client, self._subrange(request, first, last), at_front=False)
                first = last + 1

    async def next_response(
        self, client: BookieClient, request: ReadEntriesRequest, wait_s: float
    ) -> ReadResponse | None:
        """Return the answer to the oldest range, if it starts as ``request`` and was sent to ``client``.

        Returns:
            The answer, or None if no range fits. All ranges are then cancelled.

        Raises:
            RequestTimeout: There was no answer within ``wait_s``.
            DistributedLogError: The error that the bookie returned.
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
        """Cancel all requests in flight. Idempotent."""
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
