"""The client's part of watches: changes in order, without gaps or duplicates, over reconnects (M6).

A watch stores the revision up to which its consumer has received all changes. It resumes there when its
connection ends, its node ends the watch, or its consumer is too slow for the bytes that may wait.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ...runtime.interfaces.errors import (
    Compacted,
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    ProtocolError,
)
from ...runtime.net.client_link import ClientLink
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.frames import Op, envelope, error_from
from ..model.interface import Watch, WatchBatch
from ..protocol.client_messages import WatchRequest, decode_events
from .node_connections import NodeConnections

WAITING_BYTES_MAX = 8 * 1024 * 1024
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0

FINAL_ERRORS = (Compacted, InvalidRequest, NotAllowed)
"""Errors of a watch that would be the same on every node."""


class WatchClient:
    """All watches of a client."""

    def __init__(self, links: NodeConnections) -> None:
        self._connections = links
        self._watch_by_number: dict[int, ClientWatch] = {}
        """Watches by number.

        All watches of a client have different numbers, so a frame finds its watch directly.
        """
        self._last_number = 0

    @asynccontextmanager
    async def watch(self, request: WatchRequest) -> AsyncIterator[Watch]:
        """See `interface.Metadata.watch`."""
        request.check()
        watch = ClientWatch(self, request)
        try:
            yield watch
        finally:
            self.cancel(watch)

    def on_link(self, link: ClientLink) -> None:
        """Receive the frames of a new connection that are not replies."""

        def on_frame(op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
            if op != Op.META_WATCH_EVENTS:
                raise ProtocolError(f"{link.peer_address} sent operation {op} to a client")
            watch = self._watch_by_number.get(ident)
            if watch is not None and watch.link is link:
                watch.on_frame(status, body)

        link.subscribe(on_frame, on_closed=self._on_closed)

    def _on_closed(self, reason: DistributedLogError) -> None:
        """Resume the watches of a closed connection on another one."""
        for watch in list(self._watch_by_number.values()):
            if watch.link is not None and watch.link.closed is not None:
                watch.detach()

    async def resume(self, watch: "ClientWatch") -> None:
        """Start or resume a watch after the revision that the consumer has received.

        Raises:
            QuorumUnreachable: No node answered within the time limit.
        """
        link = await self._connections.any_link()
        self._last_number += 1
        ident = self._last_number
        watch.link, watch.ident, watch.end_error = link, ident, None
        self._watch_by_number[ident] = watch
        request = WatchRequest(watch.request.start, watch.request.end, watch.revision)
        body = request.encode()
        link.send(envelope(Op.META_WATCH, len(body), ident=ident), body)

    async def pause_before_retry(self, backoff: Backoff) -> None:
        """Wait and select another node, because a node refused the watch."""
        self._connections.try_next_node()
        await trio.sleep(backoff.next_s())

    def cancel(self, watch: "ClientWatch") -> None:
        """Remove a watch and cancel it on its node."""
        self._watch_by_number.pop(watch.ident, None)
        if watch.link is not None and watch.link.closed is None:
            watch.link.send(envelope(Op.META_WATCH_CANCEL, 0, ident=watch.ident))
        watch.link = None


class ClientWatch:
    """One watch. Only one task at a time may call `next_batch`."""

    def __init__(self, watch_client: WatchClient, request: WatchRequest) -> None:
        self.request = request
        self.revision = request.after_revision
        """The consumer has received all changes up to this revision."""
        self.link: ClientLink | None = None
        self.ident = 0
        self.end_error: DistributedLogError | None = None
        self._watch_client = watch_client
        self._batches: deque[tuple[WatchBatch, int]] = deque()
        self._batch_bytes = 0
        self._retry_backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        """Grows with each node in a row that could not serve the watch."""
        self._wake = trio.Event()

    async def next_batch(self) -> WatchBatch:
        """See `interface.Watch.next_batch`."""
        await trio.lowlevel.checkpoint()
        while True:
            while self._batches:
                batch, size = self._batches.popleft()
                self._batch_bytes -= size
                self.revision = max(self.revision, batch.revision)
                if batch.events:
                    return batch
            if isinstance(self.end_error, FINAL_ERRORS):
                raise self.end_error
            if self.link is None:
                if self.end_error is not None:  # this node cannot serve it
                    await self._watch_client.pause_before_retry(self._retry_backoff)
                await self._watch_client.resume(self)
                continue
            self._wake = trio.Event()
            await self._wake.wait()

    def on_frame(self, status: int, body: memoryview) -> None:
        """Process changes, or the end of the watch, from the node."""
        if status:
            self.end_error = error_from(status, body)
            self.detach()
            return
        batch = decode_events(body)
        self._retry_backoff.reset()
        self._batches.append((batch, len(body)))
        self._batch_bytes += len(body)
        if self._batch_bytes > WAITING_BYTES_MAX:
            self.detach()  # resumed from the revision of the consumer
        self._wake.set()

    def detach(self) -> None:
        """Drop the waiting changes and end the watch on its node. They will be requested again."""
        self._watch_client.cancel(self)
        self._batches.clear()
        self._batch_bytes = 0
        self._wake.set()
