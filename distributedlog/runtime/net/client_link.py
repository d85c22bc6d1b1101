"""The client's end of a connection, with pipelined requests that are matched to replies by number.

`ClientLink.request` is for control requests and reads. Adds use streams (`bookie/client/bookie_client.py`),
which need none of this per entry. A link sends a ping after `PING_AFTER_SILENCE_S` without received bytes,
and ends after `END_AFTER_SILENCE_S`. `rpc.Endpoint` makes these links.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import trio

from ..interfaces.errors import ConnectionLost, DistributedLogError, ProtocolError, RequestTimeout
from ..interfaces.host import Buffer, Connection
from ..interfaces.principals import Welcome
from ..protocol import handshake as hellos
from ..protocol.frames import FRAME_BYTES_MAX, REPLY_MORE, Op, envelope, error_from
from ..protocol.handshake import Greeting
from .frame_reader import Frame, ReceiveSpace
from .link import Link

PING_AFTER_SILENCE_S = 2.0
END_AFTER_SILENCE_S = 6.0
"""Without this limit, a watch on a half-open connection would wait forever. TCP keepalive alone is slower,
and the simulator does not have it."""
SWEEP_INTERVAL_S = 1.0
STALL_S = 0.5
"""A sweep that wakes this late was stalled itself. It then restarts the silence timers of the peers (H25)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. The receiver owns the memory of the body."""

    flags: int
    body: memoryview


OnReply = Callable[[Reply | DistributedLogError], None]
OnFrame = Callable[[int, int, int, int, memoryview], None]
"""Receives op, flags, status, ident and body of a frame. The body is valid during the call only."""


class PendingReply:
    """A request that is not answered yet."""

    __slots__ = ("error", "finished", "ident", "on_reply", "op", "reply")

    def __init__(self, op: int, ident: int, on_reply: OnReply | None = None) -> None:
        self.op = op
        self.ident = ident
        self.on_reply = on_reply
        """Receives the replies. If it is None, a task waits for `finished`."""
        self.finished = trio.Event()
        self.reply: Reply | None = None
        self.error: DistributedLogError | None = None


class ClientLink(Link):
    """A connection to a server, with any number of pending requests."""

    _on_frame: OnFrame | None = None
    """Receives frames that are not replies to requests."""
    _on_batch: Callable[[], None] | None = None
    """Called after all complete frames of one receive, to act once on many acknowledgements."""

    def __init__(
        self,
        connection: Connection,
        receive_space: ReceiveSpace,
        *,
        outgoing_bytes_max: int,
    ) -> None:
        super().__init__(
            connection,
            receive_space,
            outgoing_bytes_max=outgoing_bytes_max,
            frame_bytes_max=FRAME_BYTES_MAX,
            dialed=True,
        )
        self.on_closed: list[Callable[[DistributedLogError], None]] = []
        self._pending: dict[int, PendingReply] = {}
        self._last_request = 0
        self._greeting: Greeting | None = None
        self._hello_event = trio.Event()
        self._welcome_event = trio.Event()
        self.welcome = Welcome()
        """The server's answer to this client's proof."""

    def subscribe(
        self,
        on_frame: OnFrame,
        *,
        on_batch: Callable[[], None] | None = None,
        before_send: Callable[[], None] | None = None,
        on_closed: Callable[[DistributedLogError], None] | None = None,
    ) -> None:
        """Give the one owner of the link all frames that are not replies to requests.

        Args:
            on_frame: Receives each of these frames.
            on_batch: Called after all complete frames of one receive, to act once on many frames.
            before_send: Called just before the send task sends (`Link.subscribe_sends`).
            on_closed: Receives the reason when the link has ended, after all pending requests received it.
        """
        self._on_frame = on_frame
        self._on_batch = on_batch
        if before_send is not None:
            self.subscribe_sends(before_send)
        if on_closed is not None:
            self.on_closed.append(on_closed)

    async def request(self, op: int, *body: Buffer, flags: int = 0, timeout_s: float) -> Reply:
        """Send a request and wait for the reply.

        Args:
            timeout_s: The timeout, which the server also receives as a deadline.

        Raises:
            RequestTimeout: No reply arrived in time. The outcome is unknown.
            ConnectionLost: The link ended.
            DistributedLogError: The reply carries an error, or the link was closed with it.
        """
        return await self.wait_reply(
            self.start_request(op, *body, flags=flags, timeout_s=timeout_s), timeout_s
        )

    def start_request(
        self, op: int, *body: Buffer, flags: int = 0, timeout_s: float
    ) -> PendingReply:
        """Send a request without waiting.

        Pass the result to `wait_reply` or `discard_request`. Raises the error that closed the link.
        """
        return self._send_request(op, body, flags, timeout_s, None)

    def start_repeated_request(
        self, op: int, *body: Buffer, flags: int = 0, timeout_s: float, on_reply: OnReply
    ) -> PendingReply:
        """Send a request that may have several replies, without a task.

        The last reply has no `REPLY_MORE`, or is an error. The end of the link counts as an error. The caller
        enforces the deadline, and can call `discard_request` before the last reply.

        Args:
            flags: The flags of the frame.
            timeout_s: The deadline that the server receives.
            on_reply: Receives each reply.

        Raises:
            DistributedLogError: The link is closed; the error is the reason.
        """
        return self._send_request(op, body, flags, timeout_s, on_reply)

    def _send_request(
        self,
        op: int,
        body: tuple[Buffer, ...],
        flags: int,
        timeout_s: float,
        on_reply: OnReply | None,
    ) -> PendingReply:
        if self.closed is not None:
            raise self.closed.again()
        self._last_request += 1
        pending = PendingReply(op, self._last_request, on_reply)
        self._pending[self._last_request] = pending
        size = sum(len(part) for part in body)
        deadline_ms = max(1, int(timeout_s * 1000))
        self.send(
            envelope(op, size, ident=pending.ident, flags=flags, deadline_ms=deadline_ms), *body
        )
        return pending

    async def wait_reply(self, pending: PendingReply, timeout_s: float) -> Reply:
        """Wait up to ``timeout_s`` for the reply to `start_request`.

        Does not yield if the reply is already there. Raises the same errors as `request`.
        """
        try:
            if not pending.finished.is_set():
                with trio.move_on_after(timeout_s):
                    await pending.finished.wait()
        finally:
            self.discard_request(pending)
        if pending.error is not None:
            raise pending.error
        if pending.reply is None:
            raise RequestTimeout(
                f"{self.peer_address} did not answer operation {pending.op} within {timeout_s:g} s"
            )
        return pending.reply

    def discard_request(self, pending: PendingReply) -> None:
        """Ignore any further reply to a request."""
        self._pending.pop(pending.ident, None)

    # --- driven by the endpoint -------------------------------------------------------------------

    def _handle_frames(self, frames: Iterator[Frame]) -> None:
        for op, flags, status, ident, _, body, owned in frames:
            if op == Op.REPLY:
                self._handle_reply(flags, status, ident, body, owned)
            elif self._greeting is None or not self._welcome_event.is_set():
                self._handle_handshake(op, status, body)
            elif self._on_frame is not None:
                self._on_frame(op, flags, status, ident, body)
            if self.closed is not None:
                return
        if self._on_batch is not None:
            self._on_batch()

    def _handle_reply(
        self, flags: int, status: int, ident: int, body: memoryview, owned: bool
    ) -> None:
        if (
            ident == 0 and status
        ):  # the reason for which the server is about to close the connection
            self.close(error_from(status, body))
            return
        pending = self._pending.get(ident)
        if pending is None or pending.finished.is_set():
            return  # the request was discarded
        if pending.on_reply is not None:
            if status or not flags & REPLY_MORE:
                self.discard_request(pending)
            pending.on_reply(
                error_from(status, body)
                if status
                else Reply(flags, body if owned else memoryview(bytes(body)))
            )
            return
        if status:
            pending.error = error_from(status, body)
        else:
            pending.reply = Reply(flags, body if owned else memoryview(bytes(body)))
        pending.finished.set()

    def _handle_handshake(self, op: int, status: int, body: memoryview) -> None:
        if status:
            self.close(error_from(status, body))
        elif op == Op.HELLO and self._greeting is None:
            self._greeting = hellos.decode_hello(body, self.peer_address)
            self._hello_event.set()
        elif op == Op.AUTH and self._greeting is not None:
            self.welcome = hellos.decode_welcome(body, self.peer_address)
            self._welcome_event.set()
        else:
            raise ProtocolError(f"{self.peer_address} sent operation {op} before HELLO and AUTH")

    async def wait_hello(self) -> Greeting:
        """Wait for the server's HELLO. Raises the error that closed the link."""
        await self._hello_event.wait()
        if self._greeting is None:
            assert self.closed is not None, "the event is set by a HELLO or by the end of the link"
            raise self.closed.again()
        return self._greeting

    async def wait_welcome(self) -> Greeting:
        """Wait for the server's HELLO and its answer to AUTH. Raises the error that closed the link."""
        await self._welcome_event.wait()
        if self.closed is not None:
            raise self.closed.again()
        assert self._greeting is not None, "AUTH is answered after HELLO"
        return self._greeting

    async def receive(self) -> None:
        """Receive frames until the link ends, then pass the reason to all pending requests."""
        try:
            await self.receive_loop(self._handle_frames)
        finally:
            reason = self.closed
            if reason is None:
                reason = ConnectionLost(f"the connection to {self.peer_address} was closed here")
                self.close(reason)
            pendings, self._pending = self._pending, {}
            for pending in pendings.values():
                if pending.on_reply is not None:
                    pending.on_reply(_lost_request_error(reason, self.peer_address))
                elif not pending.finished.is_set():
                    pending.error = _lost_request_error(reason, self.peer_address)
                    pending.finished.set()
            self._hello_event.set()
            self._welcome_event.set()
            for callback in self.on_closed:
                callback(reason)

    async def monitor(self) -> None:
        """Send a ping when the peer is silent, and end the link if it stays silent."""
        pinged = False
        while self.closed is None:
            sleep_started = trio.current_time()
            await trio.sleep(SWEEP_INTERVAL_S)
            now = trio.current_time()
            if now - sleep_started > SWEEP_INTERVAL_S + STALL_S:
                self.reader.received_at = now
                continue
            silent_s = now - self.received_at
            if silent_s >= END_AFTER_SILENCE_S:
                self.close(ConnectionLost(f"{self.peer_address} was silent for {silent_s:.1f} s"))
            elif now > self.reader.deadline:
                self.close(ConnectionLost(f"{self.peer_address} did not complete a frame in time"))
            elif silent_s < PING_AFTER_SILENCE_S:
                pinged = False
            elif not pinged:
                self.send(envelope(Op.PING, 0))
                pinged = True


def _lost_request_error(reason: DistributedLogError, peer: str) -> DistributedLogError:
    """Return the error for a pending request when its link ends: its outcome is unknown."""
    if isinstance(reason, ConnectionLost):
        return reason.again()
    return ConnectionLost(f"the connection to {peer} ended: {reason}")
