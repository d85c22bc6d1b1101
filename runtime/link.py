"""One connection with frames: a queue of outgoing bytes, and whole frames out of what comes in.

Two tasks a connection: `send_loop` and `receive_loop`. `Link.send` on an idle connection sends at once; on
a busy one it queues, and the sender task sends what has gathered by the end of the loop turn (H35), so that
many small frames of a turn share a system call. Received bytes land in one buffer a process; a frame that is
not complete moves to a buffer of its own that grows as its bytes arrive, out of the process' budget (H36).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import trio

from .errors import ConnectionLost, DistributedLogError, ProtocolError, TooBusy
from .frames import (
    ENVELOPE,
    ENVELOPE_BYTES,
    HTTP_REPLY,
    Op,
    check_length,
    envelope,
    error_body,
    is_http,
)
from .hello import Hello
from .host import Buffer, Connection
from .reuse import ReusedMemory

SEND_BUFFERS_MAX = 64
GATHER_S = 0.0002
"""A connection that sent nothing for so long is idle: what it is given leaves at once, not with the turn."""
RECEIVE_WINDOW_BYTES = 1024 * 1024
PARTIAL_FIRST_BYTES = 256 * 1024
"""A frame not yet complete gets this much at first, and four times as much when that is full."""
SLOW_AFTER_S = 0.1
SLOW_BYTES_PER_SECOND = 1024 * 1024
"""An unfinished frame that stands still for so long, or comes so slowly, gives its memory up to others."""
UNREAD_BYTES_MAX = 8 * 1024 * 1024
UNREAD_SUM_BYTES_MAX = 128 * 1024 * 1024
UNREAD_BYTES_MIN = 64 * 1024
"""A peer that does not take its answers is read no further: above the first of a link, and above a quarter of
what is left of the second, which all links of a process share, but never below the third."""
LARGE_BYTES = 1024 * 1024 + 64 * 1024
LARGE_BUFFERS = 12
"""A reader in sequence has three replies under way and about five not yet taken by its caller."""
FRAME_SECONDS = 5.0
FRAME_BYTES_PER_SECOND = 256 * 1024
"""A started frame must be complete within FRAME_SECONDS plus its length at this rate."""

OnFrame = Callable[[int, int, int, int, int, memoryview, bool], None]
"""op, flags, status, ident, deadline_ms, body, owned: a body that is not owned is gone after the call."""


class Session(Protocol):
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


@dataclass(slots=True)
class ReceiveSpace:
    """What the connections of a process share: one buffer, one budget for incomplete frames.

    The first ENVELOPE_BYTES of the buffer are room for the head of a frame whose envelope was cut.
    """

    buffer: memoryview
    partial_bytes: int
    partial_bytes_max: int
    large: ReusedMemory = field(default_factory=lambda: ReusedMemory(LARGE_BYTES, LARGE_BUFFERS))
    """Where large frames are received; who keeps a part of one keeps its buffer."""
    outgoing_bytes: int = 0
    """What waits to be sent, on all links."""
    partials: "dict[Link, None]" = field(default_factory=dict)
    """The links of peers, not of servers that we dialled, with a frame that is not complete."""

    def make_room(self, size: int, for_link: "Link") -> bool:
        """Is there room for so much more? Frames that hardly move give theirs up, the slowest first.

        Who announces much and sends little would hold the room of those who send: it is theirs first.
        """
        while self.partial_bytes + size > self.partial_bytes_max:
            now = trio.current_time()
            slow = [(link.partial_rate(now), n) for n, link in enumerate(self.partials)]
            slow = [(rate, n) for rate, n in slow if rate < SLOW_BYTES_PER_SECOND]
            if not slow:
                return False
            slowest = list(self.partials)[min(slow)[1]]
            if slowest is for_link:
                return False
            slowest.give_up_partial()
        return True


class Link:
    """One side of a connection. Made by `rpc.Endpoint`; both sides share this class."""

    window_bytes = RECEIVE_WINDOW_BYTES
    """How much of the process' receive buffer this connection reads into at a time."""
    partial_first_bytes = PARTIAL_FIRST_BYTES
    rests_unread = True
    """Is nothing more read while the peer does not take what it was sent? Not where we ask."""
    partial_may_be_taken = True
    """May the memory of an unfinished frame go to another link? Not that of a reply that we asked for."""

    def __init__(
        self,
        connection: Connection,
        space: ReceiveSpace,
        *,
        outgoing_bytes_max: int,
        frame_bytes_max: int,
    ) -> None:
        self._connection = connection
        self._space = space
        self._window = space.buffer[ENVELOPE_BYTES : ENVELOPE_BYTES + self.window_bytes]
        self._queue: deque[Buffer] = deque()
        self._wake = trio.Event()
        self._room: trio.Event | None = None
        self._outgoing_bytes_max = outgoing_bytes_max
        self._partial: memoryview | None = None
        self._partial_have = 0
        self._partial_length = 0
        self._partial_began = 0.0
        self.frame_bytes_max = frame_bytes_max
        """Small before the peer is known (H36), then FRAME_BYTES_MAX."""
        self.peer = Hello()
        self.peer_address = connection.peer
        self.listener = ""
        """The name of the listener that the connection came in on; "" is the default one."""
        self.principal = "anonymous"
        """Who the peer proved to be; passed to every permission check to come."""
        self.outgoing_bytes = 0
        self.sent_bytes = 0
        self._sent_at = -float("inf")
        self.received_at = trio.current_time()
        self.frame_deadline = float("inf")
        """When the frame that has begun must be complete."""
        self.handshake_deadline = float("inf")
        """When the peer must have said who it is."""
        self.closed: DistributedLogError | None = None
        self._held: trio.Event | None = None

    # --- back-pressure ----------------------------------------------------------------------------

    def hold(self) -> None:
        """Read nothing more until `release`: what was received is more than its server can take."""
        if self._held is None and self.closed is None:
            self._held = trio.Event()

    def release(self) -> None:
        """Read on."""
        if self._held is not None:
            self._held.set()
            self._held = None

    async def _rest(self, held: trio.Event) -> None:
        """Wait for the release; neither silence nor an unfinished frame is the peer's fault meanwhile."""
        began, deadline = trio.current_time(), self.frame_deadline
        self.received_at = self.frame_deadline = float("inf")
        await held.wait()
        self.received_at = trio.current_time()
        self.frame_deadline = deadline + self.received_at - began

    @property
    def _is_unread(self) -> bool:
        """Does the peer leave too much of what it was sent?"""
        if self.outgoing_bytes <= UNREAD_BYTES_MIN or not self.rests_unread:
            return False
        left = UNREAD_SUM_BYTES_MAX - self._space.outgoing_bytes
        return self.outgoing_bytes > min(UNREAD_BYTES_MAX, left // 4)

    async def _rest_unread(self) -> None:
        """Wait until the peer takes some of it: a sign of life. Without any, it ends as a silent one."""
        began = trio.current_time()
        if self._room is None:
            self._room = trio.Event()
        await self._room.wait()
        self.received_at = trio.current_time()
        self.frame_deadline += self.received_at - began

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
        self._space.outgoing_bytes += added
        if self.outgoing_bytes > self._outgoing_bytes_max:
            self.close(
                TooBusy(
                    f"{self.peer_address} does not read: {self.outgoing_bytes} bytes wait to be sent"
                )
            )
            return
        if self._wake.is_set():
            return  # the sender's turn comes, with all that gathers until then
        now = trio.current_time()
        if now - self._sent_at > GATHER_S:
            self._sent_at = now
            self.flush()
            if not self._queue:
                return
        self._wake.set()

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
                self._space.outgoing_bytes -= sent
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
            if self._room is not None:
                self._room.set()
                self._room = None

    async def wait_room(self, below_bytes: int) -> None:
        """Return when fewer than ``below_bytes`` wait to be sent. Raises what closed the link."""
        while self.outgoing_bytes >= below_bytes:
            if self.closed is not None:
                raise self.closed.again()
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
        if self.closed is not None:
            raise self.closed.again()

    async def send_loop(self) -> None:
        """Send what has gathered, a turn at a time, until the link is closed."""
        while self.closed is None:
            await self._wake.wait()
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
        self._queue.clear()
        self._space.outgoing_bytes -= self.outgoing_bytes
        self.outgoing_bytes = 0
        self._wake.set()
        self.release()
        if self._room is not None:
            self._room.set()
            self._room = None

    # --- incoming ---------------------------------------------------------------------------------

    async def receive_loop(self, on_frame: OnFrame, on_batch_end: Callable[[], None]) -> None:
        """Hand over whole frames until the connection ends; then `closed` says why."""
        head = b""  # the cut envelope of the next frame, if any
        try:
            while self.closed is None:
                if self._held is not None:
                    await self._rest(self._held)
                    continue
                if self._is_unread:
                    await self._rest_unread()
                    continue
                if self._partial is None:
                    received = await self._connection.receive_into(self._window)
                    if not received:
                        raise ConnectionLost(f"{self.peer_address} closed the connection")
                    self.received_at = trio.current_time()
                    start = ENVELOPE_BYTES - len(head)
                    self._space.buffer[start:ENVELOPE_BYTES] = head
                    head = self._split(start, ENVELOPE_BYTES + received, on_frame)
                else:
                    head = await self._finish_partial(self._partial, on_frame)
                if self.closed is None:
                    on_batch_end()
        except ConnectionLost as error:
            self.close(error)
        except DistributedLogError as error:  # the peer's fault: tell it if it still listens
            self.refuse(error)
        finally:
            self._drop_partial()

    def refuse(self, error: DistributedLogError) -> None:
        """End the link for what the peer did, and tell it why if it still listens."""
        self.reply_error(0, error)
        self.flush()
        self.close(error)

    def _split(self, start: int, end: int, on_frame: OnFrame) -> bytes:
        """Hand over the whole frames of the shared buffer; return the start of a cut envelope."""
        buffer = self._space.buffer
        unpack_from = ENVELOPE.unpack_from
        while end - start >= ENVELOPE_BYTES:
            length, op, flags, status, ident, deadline_ms, _ = unpack_from(buffer, start)
            if length > self.frame_bytes_max or length < ENVELOPE_BYTES:
                self._refuse_length(length)
            stop = start + length
            if stop > end:
                self._begin_partial(length, buffer[start:end])
                return b""
            on_frame(
                op, flags, status, ident, deadline_ms, buffer[start + ENVELOPE_BYTES : stop], False
            )
            if self.closed is not None:
                return b""
            start = stop
        if 4 <= end - start < ENVELOPE_BYTES:  # garbage is told from its first four bytes
            length = int.from_bytes(buffer[start : start + 4], "little")
            if length > self.frame_bytes_max or length < ENVELOPE_BYTES:
                self._refuse_length(length)
        head = bytes(buffer[start:end])
        self.frame_deadline = trio.current_time() + FRAME_SECONDS if head else float("inf")
        return head

    def _refuse_length(self, length: int) -> None:
        if is_http(length):
            self.send(HTTP_REPLY)
            self.flush()
        check_length(length, self.peer_address)
        raise ProtocolError(
            f"{self.peer_address} announced a frame of {length} bytes before it said who it is;"
            f" allowed are {self.frame_bytes_max}"
        )

    def _begin_partial(self, length: int, received: memoryview) -> None:
        self._partial_length = length
        self._partial_have = len(received)
        self._partial_began = trio.current_time()
        self._partial = memoryview(b"")
        if self.partial_may_be_taken:
            self._space.partials[self] = None
        self._grow_partial(max(len(received), min(length, self.partial_first_bytes)), received)
        self.frame_deadline = trio.current_time() + FRAME_SECONDS + length / FRAME_BYTES_PER_SECOND

    def _grow_partial(self, size: int, content: Buffer) -> None:
        assert self._partial is not None
        space, grown = self._space, size - len(self._partial)
        if space.partial_bytes + grown > space.partial_bytes_max and not space.make_room(
            grown, self
        ):
            raise TooBusy(
                f"incomplete frames hold {space.partial_bytes} of {space.partial_bytes_max} bytes here"
            )
        space.partial_bytes += grown
        larger = space.large.take(size)
        larger[: len(content)] = content
        self._partial = larger

    async def _finish_partial(self, partial: memoryview, on_frame: OnFrame) -> bytes:
        """Receive into the incomplete frame and, where that has all its room, behind it."""
        if self._partial_have == len(partial):
            self._grow_partial(min(self._partial_length, 4 * len(partial)), partial)
            assert self._partial is not None
            partial = self._partial
        whole = len(partial) == self._partial_length
        rest = partial[self._partial_have :]
        received = await self._connection.receive_into(rest, *((self._window,) if whole else ()))
        if self._partial is None:
            return b""  # closed meanwhile
        if not received:
            raise ConnectionLost(f"{self.peer_address} closed the connection within a frame")
        self.received_at = trio.current_time()
        extra = received - len(rest)
        self._partial_have += min(received, len(rest))
        if not whole or extra < 0:
            return b""
        return self._deliver_partial(ENVELOPE_BYTES, ENVELOPE_BYTES + extra, on_frame)

    def _deliver_partial(self, start: int, end: int, on_frame: OnFrame) -> bytes:
        partial = self._partial
        assert partial is not None
        self._drop_partial()
        _, op, flags, status, ident, deadline_ms, _ = ENVELOPE.unpack_from(partial, 0)
        body = partial[ENVELOPE_BYTES : self._partial_length]
        on_frame(op, flags, status, ident, deadline_ms, body, True)
        if self.closed is not None:
            return b""
        return self._split(start, end, on_frame)

    def partial_rate(self, now: float) -> float:
        """Bytes a second of the frame that is not complete; infinite while that says nothing."""
        took_s = now - self._partial_began
        # What its server does not read is not the peer's delay.
        if took_s < SLOW_AFTER_S or self._held is not None or self.closed is not None:
            return float("inf")
        stands_still = now - self.received_at >= SLOW_AFTER_S
        return 0.0 if stands_still else self._partial_have / took_s

    def give_up_partial(self) -> None:
        """The memory of the frame that is not complete is needed elsewhere: the link ends."""
        self._drop_partial()
        self.refuse(TooBusy(f"{self.peer_address} began a frame and hardly went on with it"))

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._space.partial_bytes -= len(self._partial)
            self._partial = None
            self._space.partials.pop(self, None)
        self.frame_deadline = float("inf")
