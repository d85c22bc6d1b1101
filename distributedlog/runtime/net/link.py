"""One connection with frames: a queue of outgoing bytes, and complete frames out of the received bytes.

A connection has two tasks, `Link.send_loop` and `Link.receive_loop`. On an idle connection, `Link.send` sends
at once. On a busy one it queues, and the send task sends all queued frames at the end of the event-loop
iteration (H35). Many small frames of one iteration then share a system call. Received bytes are split by a
`FrameReader`.

The docstrings here call one iteration of the send task a turn.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Protocol

import trio

from ..interfaces.errors import ConnectionLost, DistributedLogError, TooBusy
from ..interfaces.host import Buffer, Connection
from ..interfaces.principals import ANONYMOUS, CertificateIdentity, Token
from ..protocol.frames import HTTP_REPLY, Op, envelope, error_body
from ..protocol.handshake import Hello
from .frame_reader import Frame, FrameReader, ReceiveSpace

SEND_BUFFERS_MAX = 64
IDLE_AFTER_S = 0.0002
"""A connection that sent nothing for this time is idle. The next frame is sent at once, not at the end of the
turn."""
UNREAD_BYTES_MAX = 8 * 1024 * 1024
ALL_UNREAD_BYTES_MAX = 128 * 1024 * 1024
UNREAD_BYTES_MIN = 64 * 1024
"""No further requests are read from a peer that leaves too many bytes of its replies unread.

The limit is the first of these values per link. It is lower if the second, which all links of a process
share, has less than four times this much left. It is never below the third.
"""


class LinkSession(Protocol):
    """The server's side of one connection. All calls are synchronous and must not block."""

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Handle one frame. ``body`` is valid during the call only. Raise an error to end the connection."""
        ...

    def on_batch_end(self) -> None:
        """Called after all complete frames of one receive."""
        ...

    def on_closed(self) -> None:
        """Called once when the connection has ended."""
        ...


class Link:
    """One side of a connection. `rpc.Endpoint` makes it; both sides share this class."""

    def __init__(
        self,
        connection: Connection,
        receive_space: ReceiveSpace,
        *,
        outgoing_bytes_max: int,
        frame_bytes_max: int,
        dialed: bool = False,
    ) -> None:
        self._connection = connection
        self.created_at = trio.current_time()
        self._receive_space = receive_space
        self._queue: deque[Buffer] = deque()
        self._wake = trio.Event()
        self._capacity_event: trio.Event | None = None
        self._outgoing_bytes_max = outgoing_bytes_max
        self._pauses_when_unread = not dialed
        """Whether reading pauses while the peer leaves its replies unread. False on dialed links, which send
        the requests."""
        self.reader = FrameReader(
            receive_space,
            connection.peer,
            frame_bytes_max=frame_bytes_max,
            on_partial_dropped=self._refuse_slow,
            dialed=dialed,
            now=trio.current_time(),
        )
        self.peer = Hello()
        """The HELLO of the other end, with the features that both ends support."""
        self.peer_address = connection.peer
        self.listener = ""
        """The name of the listener that accepted the connection; "" is the default one."""
        self.principal = ANONYMOUS
        """The principal that the other end has proved (`principals.py`). On a dialed link, this is the
        server."""
        self.rights = 0
        """Bits that the method of the proof defines."""
        self.token: Token | None = None
        """The token of the proof, if it was one. It may allow less than the rights of its user."""
        self.proof_ends_at = inf
        """When the proof, and with it the connection, ends."""
        self.allowed_operations: bytes | None = None
        """One byte per operation, nonzero if the peer may request it (`operations.py`). None allows all."""
        self._before_send: Callable[[], None] | None = None
        """Sends the data that the owner gathered while `will_send`. Called just before the send task
        sends."""
        self.outgoing_bytes = 0
        self.sent_bytes = 0
        self._sent_at = -inf
        self._defers_sends = False
        self.handshake_deadline = inf
        """When the peer must have completed the handshake."""
        self.closed: DistributedLogError | None = None
        self._paused: trio.Event | None = None

    @property
    def is_secret(self) -> bool:
        """Whether the connection is encrypted."""
        return self._connection.is_secret

    @property
    def has_begun_handshake(self) -> bool:
        """See `Connection.has_begun_handshake`."""
        return self._connection.has_begun_handshake

    @property
    def identity(self) -> CertificateIdentity | None:
        """The identity in the other end's certificate, or None if it showed none."""
        return self._connection.identity

    @property
    def received_at(self) -> float:
        """When bytes were last received from the peer; infinite while reading is paused."""
        return self.reader.received_at

    def subscribe_sends(self, before_send: Callable[[], None]) -> None:
        """Call ``before_send`` just before the send task sends, to send the data that the owner gathered.

        A link has one such owner.
        """
        self._before_send = before_send

    # --- back-pressure ----------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`, because the server cannot handle more received frames now."""
        if self._paused is None and self.closed is None:
            self._paused = trio.Event()

    def resume_reading(self) -> None:
        """Resume reading after `pause_reading`."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    async def _wait_resumed(self, paused: trio.Event) -> None:
        """Wait until reading resumes. The peer's silence and frame timers do not run during this time."""
        reader = self.reader
        pause_started, deadline = trio.current_time(), reader.deadline
        reader.received_at = reader.deadline = inf
        await paused.wait()
        reader.received_at = trio.current_time()
        reader.deadline = deadline + reader.received_at - pause_started

    @property
    def _peer_lags(self) -> bool:
        """Whether the peer leaves too many bytes of its replies unread."""
        if self.outgoing_bytes <= UNREAD_BYTES_MIN or not self._pauses_when_unread:
            return False
        free_bytes = ALL_UNREAD_BYTES_MAX - self._receive_space.outgoing_bytes
        return self.outgoing_bytes > min(UNREAD_BYTES_MAX, free_bytes // 4)

    async def _wait_peer_reads(self) -> None:
        """Wait until the peer accepts some bytes, which counts as a sign of life.

        A peer that accepts none ends as a silent one.
        """
        pause_started = trio.current_time()
        if self._capacity_event is None:
            self._capacity_event = trio.Event()
        await self._capacity_event.wait()
        self.reader.received_at = trio.current_time()
        self.reader.deadline += self.reader.received_at - pause_started

    # --- outgoing ---------------------------------------------------------------------------------

    def send(self, *buffers: Buffer) -> None:
        """Queue complete frames. The buffers are kept by reference and must not change afterwards.

        On a closed link the frames are dropped. Callers that wait for a reply receive the reason from the
        close.
        """
        if self.closed is not None:
            return
        added = 0
        for buffer in buffers:
            size = len(buffer)
            if size:  # a connection accepts 0 bytes of an empty buffer, forever
                added += size
                self._queue.append(buffer)
        self.outgoing_bytes += added
        self._receive_space.outgoing_bytes += added
        if self.outgoing_bytes > self._outgoing_bytes_max:
            self.close(
                TooBusy(
                    f"{self.peer_address} does not read: {self.outgoing_bytes} bytes are queued for it"
                )
            )
            return
        if self._defers_sends or self._wake.is_set():
            return  # `send_deferred`, or the next turn, sends all frames that are queued by then
        now = trio.current_time()
        if now - self._sent_at > IDLE_AFTER_S:
            self._sent_at = now
            self.flush()
            if not self._queue:
                return
        self._wake.set()

    @property
    def will_send(self) -> bool:
        """Whether ``before_send`` will be called anyway. False on an idle link."""
        return self._defers_sends or self._wake.is_set()

    def request_send(self) -> None:
        """Call ``before_send`` soon, even if nothing is queued."""
        if not self._defers_sends:
            self._wake.set()

    def defer_sends(self) -> None:
        """Announce several frames. The caller calls `send_deferred` in the same event-loop iteration."""
        self._defers_sends = True

    def send_deferred(self) -> None:
        """Send the frames that were deferred since `defer_sends`, without the send task."""
        try:
            if self.closed is not None or self._wake.is_set():
                return
            if self._before_send is not None:
                self._before_send()
            if self._queue:
                self._sent_at = trio.current_time()
                self.flush()
                if self._queue:
                    self._wake.set()
        finally:
            self._defers_sends = False

    def reply(self, ident: int, *body: Buffer, flags: int = 0) -> None:
        """Send the reply to request ``ident``."""
        size = 0
        for part in body:
            size += len(part)
        self.send(envelope(Op.REPLY, size, ident=ident, flags=flags), *body)

    def reply_error(self, ident: int, error: DistributedLogError, *, op: int = Op.REPLY) -> None:
        """Reply to request ``ident`` with an error."""
        body = error_body(error)
        self.send(envelope(op, len(body), ident=ident, status=error.code), body)

    def flush(self) -> None:
        """Send as much as the connection accepts now, without waiting for the end of the turn."""
        queue = self._queue
        try:
            while queue:
                sent = self._connection.try_send(
                    [queue[0]] if len(queue) == 1 else list(islice(queue, SEND_BUFFERS_MAX))
                )
                if not sent:
                    return
                self.outgoing_bytes -= sent
                self._receive_space.outgoing_bytes -= sent
                self.sent_bytes += sent
                while sent:
                    size = len(queue[0])
                    if sent >= size:
                        queue.popleft()
                        sent -= size
                    else:
                        queue[0] = memoryview(queue[0])[sent:]
                        sent = 0
        except ConnectionLost as error:
            self.close(error)
        finally:
            if self._capacity_event is not None:
                self._capacity_event.set()
                self._capacity_event = None

    async def wait_capacity(self, below_bytes: int) -> None:
        """Wait until fewer than ``below_bytes`` are queued. Raises the error that closed the link."""
        while self.outgoing_bytes >= below_bytes:
            if self.closed is not None:
                raise self.closed.again()
            if self._capacity_event is None:
                self._capacity_event = trio.Event()
            await self._capacity_event.wait()
        if self.closed is not None:
            raise self.closed.again()

    async def send_loop(self) -> None:
        """Send queued frames, one turn at a time, until the link is closed."""
        while self.closed is None:
            await self._wake.wait()
            if self._before_send is not None:
                self._before_send()
            self.flush()
            if self._queue:
                try:
                    await self._connection.wait_writable()
                except ConnectionLost as error:
                    self.close(error)
            elif self.closed is None:
                self._wake = trio.Event()

    def close(self, reason: DistributedLogError) -> None:
        """End the link now. The receive task notifies its owner later, never inside this call."""
        if self.closed is not None:
            return
        self.closed = reason
        self._connection.close()
        self.reader.drop_partial()
        self._queue.clear()
        self._receive_space.outgoing_bytes -= self.outgoing_bytes
        self.outgoing_bytes = 0
        self._wake.set()
        self.resume_reading()
        if self._capacity_event is not None:
            self._capacity_event.set()
            self._capacity_event = None

    # --- incoming ---------------------------------------------------------------------------------

    async def receive_loop(self, handle_frames: Callable[[Iterator[Frame]], None]) -> None:
        """Receive frames and hand them over, those of one receive at a time, until the connection ends.

        Afterwards, `closed` has the reason.

        Args:
            handle_frames: Iterates over the frames at once, and stops if one of them closed the link.
        """
        reader = self.reader
        try:
            while self.closed is None:
                if self._paused is not None:
                    await self._wait_resumed(self._paused)
                    continue
                if self._peer_lags:
                    await self._wait_peer_reads()
                    continue
                count = await self._connection.receive_into(*reader.buffers)
                if not count:
                    within = " within a frame" if reader.deadline < inf else ""
                    raise ConnectionLost(f"{self.peer_address} closed the connection{within}")
                if self.closed is None:
                    now = trio.current_time()
                    handle_frames(reader.parse_received(count, now))
                    if self._pauses_when_unread:
                        reader.adapt_window(count, trio.current_time() - now)
        except ConnectionLost as error:
            self.close(error)
        except DistributedLogError as error:  # caused by the peer, which receives the reason
            if reader.is_http:
                self.send(HTTP_REPLY)
            self.refuse(error)

    def refuse(self, error: DistributedLogError) -> None:
        """End the link because of an error of the peer, and send it the reason."""
        self.reply_error(0, error)
        self.flush()
        self.close(error)

    def _refuse_slow(self) -> None:
        self.refuse(TooBusy(f"{self.peer_address} sends a large frame too slowly"))
