"""One connection with frames: a queue of outgoing bytes, and whole frames out of what comes in.

Two tasks a connection: `send_loop` and `receive_loop`. `Link.send` on an idle connection sends at once; on
a busy one it queues, and the sender task sends what has gathered by the end of the loop turn (H35), so that
many small frames of a turn share a system call. What comes in goes through a `FrameReader`.
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
"""A connection that sent nothing for so long is idle: what it is given leaves at once, not with the turn."""
UNREAD_BYTES_MAX = 8 * 1024 * 1024
ALL_UNREAD_BYTES_MAX = 128 * 1024 * 1024
UNREAD_BYTES_MIN = 64 * 1024
"""A peer that does not take its answers is read no further: above the first of a link, and above a quarter of
what is left of the second, which all links of a process share, but never below the third."""


class LinkSession(Protocol):
    """The server's side of one connection. All calls are synchronous and must not block."""

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Take one frame; ``body`` is valid during the call only. Raise to end the connection."""
        ...

    def on_batch_end(self) -> None:
        """All whole frames of one receive have been handed over."""
        ...

    def on_closed(self) -> None:
        """The connection has ended; called once."""
        ...


class Link:
    """One side of a connection. Made by `rpc.Endpoint`; both sides share this class."""

    def __init__(
        self,
        connection: Connection,
        receive_space: ReceiveSpace,
        *,
        outgoing_bytes_max: int,
        frame_bytes_max: int,
        dialled: bool = False,
    ) -> None:
        self._connection = connection
        self.created_at = trio.current_time()
        self._receive_space = receive_space
        self._queue: deque[Buffer] = deque()
        self._wake = trio.Event()
        self._capacity_event: trio.Event | None = None
        self._outgoing_bytes_max = outgoing_bytes_max
        self._pauses_when_unread = not dialled
        """Is nothing more read while the peer does not take what it was sent? Not where we ask."""
        self.reader = FrameReader(
            receive_space,
            connection.peer,
            frame_bytes_max=frame_bytes_max,
            on_partial_dropped=self._refuse_slow,
            dialled=dialled,
            now=trio.current_time(),
        )
        self.peer = Hello()
        self.peer_address = connection.peer
        self.listener = ""
        """The name of the listener that the connection came in on; "" is the default one."""
        self.principal = ANONYMOUS
        """Who the other end has proved to be (`principals.py`); on a dialled link that is the server."""
        self.rights = 0
        """Bits that the method of its proof defines."""
        self.token: Token | None = None
        """By which it was proved, if it was a token: it may allow less than its user may."""
        self.proof_ends_at = inf
        """When the proof ends, and the connection with it."""
        self.allowed_operations: bytes | None = None
        """A byte an operation, not 0 where the peer may ask for it; None: all (`operations.py`)."""
        self._on_turn: Callable[[], None] | None = None
        """Sends what its owner has gathered while `is_gathering`, just before the sender's turn sends."""
        self.outgoing_bytes = 0
        self.sent_bytes = 0
        self._sent_at = -inf
        self._gathering = False
        self.handshake_deadline = inf
        """When the peer must have said who it is."""
        self.closed: DistributedLogError | None = None
        self._paused: trio.Event | None = None

    @property
    def is_secret(self) -> bool:
        """Can nobody between read what goes over it?"""
        return self._connection.is_secret

    @property
    def has_begun(self) -> bool:
        """See `Connection.has_begun`."""
        return self._connection.has_begun

    @property
    def identity(self) -> CertificateIdentity | None:
        """Of the other end's certificate, if it has shown one."""
        return self._connection.identity

    @property
    def received_at(self) -> float:
        """When the peer was heard last; infinite while nothing is read."""
        return self.reader.received_at

    def subscribe_turns(self, on_turn: Callable[[], None]) -> None:
        """Call `the subscriber` just before each turn of the sender: it sends what its owner has gathered.

        A link has one such owner.
        """
        self._on_turn = on_turn

    # --- back-pressure ----------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`: what was received is more than its server can take."""
        if self._paused is None and self.closed is None:
            self._paused = trio.Event()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    async def _wait_resumed(self, paused: trio.Event) -> None:
        """Wait for the release; neither silence nor an unfinished frame is the peer's fault meanwhile."""
        reader = self.reader
        pause_started, deadline = trio.current_time(), reader.deadline
        reader.received_at = reader.deadline = inf
        await paused.wait()
        reader.received_at = trio.current_time()
        reader.deadline = deadline + reader.received_at - pause_started

    @property
    def _peer_lags(self) -> bool:
        """Does the peer leave too much of what it was sent?"""
        if self.outgoing_bytes <= UNREAD_BYTES_MIN or not self._pauses_when_unread:
            return False
        free_bytes = ALL_UNREAD_BYTES_MAX - self._receive_space.outgoing_bytes
        return self.outgoing_bytes > min(UNREAD_BYTES_MAX, free_bytes // 4)

    async def _wait_peer_reads(self) -> None:
        """Wait until the peer takes some of it: a sign of life. Without any, it ends as a silent one."""
        pause_started = trio.current_time()
        if self._capacity_event is None:
            self._capacity_event = trio.Event()
        await self._capacity_event.wait()
        self.reader.received_at = trio.current_time()
        self.reader.deadline += self.reader.received_at - pause_started

    # --- outgoing ---------------------------------------------------------------------------------

    def send(self, *buffers: Buffer) -> None:
        """Queue whole frames. The buffers are kept by reference: never change them after.

        Silently dropped on a closed link: whoever waits for an answer learns it from the close.
        """
        if self.closed is not None:
            return
        added = 0
        for buffer in buffers:
            size = len(buffer)
            if size:  # of an empty one a connection takes 0 bytes for ever
                added += size
                self._queue.append(buffer)
        self.outgoing_bytes += added
        self._receive_space.outgoing_bytes += added
        if self.outgoing_bytes > self._outgoing_bytes_max:
            self.close(
                TooBusy(
                    f"{self.peer_address} does not read: {self.outgoing_bytes} bytes wait to be sent"
                )
            )
            return
        if self._gathering or self._wake.is_set():
            return  # `send_gathered`, or the sender's turn, comes with all that gathers until then
        now = trio.current_time()
        if now - self._sent_at > IDLE_AFTER_S:
            self._sent_at = now
            self.flush()
            if not self._queue:
                return
        self._wake.set()

    @property
    def is_gathering(self) -> bool:
        """Whether the subscriber to turns will be called, whatever else is sent. Not on an idle link."""
        return self._gathering or self._wake.is_set()

    def request_turn(self) -> None:
        """Call the subscriber to turns soon, even if nothing is queued."""
        if not self._gathering:
            self._wake.set()

    def gather(self) -> None:
        """Whoever calls this is about to send several frames, and calls `send_gathered` in the same turn."""
        self._gathering = True

    def send_gathered(self) -> None:
        """Send what was gathered since `gather`, without a turn of the sender."""
        try:
            if self.closed is not None or self._wake.is_set():
                return
            if self._on_turn is not None:
                self._on_turn()
            if self._queue:
                self._sent_at = trio.current_time()
                self.flush()
                if self._queue:
                    self._wake.set()
        finally:
            self._gathering = False

    def reply(self, ident: int, *body: Buffer, flags: int = 0) -> None:
        """Answer request ``ident``."""
        size = 0
        for part in body:
            size += len(part)
        self.send(envelope(Op.REPLY, size, ident=ident, flags=flags), *body)

    def reply_error(self, ident: int, error: DistributedLogError, *, op: int = Op.REPLY) -> None:
        """Answer request ``ident`` with an error."""
        body = error_body(error)
        self.send(envelope(op, len(body), ident=ident, status=error.code), body)

    def flush(self) -> None:
        """Send what the connection takes now, without waiting for the end of the turn."""
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
        """Return when fewer than ``below_bytes`` wait to be sent. Raises what closed the link."""
        while self.outgoing_bytes >= below_bytes:
            if self.closed is not None:
                raise self.closed.again()
            if self._capacity_event is None:
                self._capacity_event = trio.Event()
            await self._capacity_event.wait()
        if self.closed is not None:
            raise self.closed.again()

    async def send_loop(self) -> None:
        """Send what has gathered, a turn at a time, until the link is closed."""
        while self.closed is None:
            await self._wake.wait()
            if self._on_turn is not None:
                self._on_turn()
            self.flush()
            if self._queue:
                try:
                    await self._connection.wait_writable()
                except ConnectionLost as error:
                    self.close(error)
            elif self.closed is None:
                self._wake = trio.Event()

    def close(self, reason: DistributedLogError) -> None:
        """End the link now. Its owner is told by the receiver task, never from inside this call."""
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
        """Hand over what comes, the frames of a receive at a time, until the connection ends.

        ``take`` goes through them at once, and stops where one of them closed the link. At the end `closed`
        says why.
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
        except DistributedLogError as error:  # the peer's fault: tell it if it still listens
            if reader.is_http:
                self.send(HTTP_REPLY)
            self.refuse(error)

    def refuse(self, error: DistributedLogError) -> None:
        """End the link for what the peer did, and tell it why if it still listens."""
        self.reply_error(0, error)
        self.flush()
        self.close(error)

    def _refuse_slow(self) -> None:
        self.refuse(TooBusy(f"{self.peer_address} began a frame and hardly went on with it"))
