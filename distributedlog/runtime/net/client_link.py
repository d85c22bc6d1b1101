"""A client's end of a connection to a server: requests pipelined, each answered by its number.

`request` is for control and reads; adds go over streams (`bookie/client/bookie_client.py`) and use none of
this per entry. A link that hears nothing for `PING_AFTER_SILENCE_S` pings, and ends after
`END_AFTER_SILENCE_S`. Made by `rpc.Endpoint`.
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
"""A watch on a half-open connection would wait forever. TCP keepalive alone is slower, and the simulator has
none."""
SWEEP_INTERVAL_S = 1.0
STALL_S = 0.5
"""A sweep that wakes this late was stalled itself: it gives everybody the time back (H25)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: its flags and its body, which is the receiver's own memory."""

    flags: int
    body: memoryview


OnReply = Callable[[Reply | DistributedLogError], None]
OnFrame = Callable[[int, int, int, int, memoryview], None]
"""Gets op, flags, status, ident and body of a frame; the body is valid during the call only."""


class PendingReply:
    """A request under way."""

    __slots__ = ("error", "finished", "ident", "on_reply", "op", "reply")

    def __init__(self, op: int, ident: int, on_reply: OnReply | None = None) -> None:
        self.op = op
        self.ident = ident
        self.on_reply = on_reply
        """Gets the replies instead of whoever waits for `done`."""
        self.finished = trio.Event()
        self.reply: Reply | None = None
        self.error: DistributedLogError | None = None


class ClientLink(Link):
    """A connection to a server, with any number of requests under way."""

    _on_frame: OnFrame | None = None
    """Gets the frames that answer no request."""
    _on_batch: Callable[[], None] | None = None
    """Called after all whole frames of one receive: the place to act once on many acks."""

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
            dialled=True,
        )
        self.on_closed: list[Callable[[DistributedLogError], None]] = []
        self._pending: dict[int, PendingReply] = {}
        self._last_request = 0
        self._greeting: Greeting | None = None
        self._hello_event = trio.Event()
        self._welcome_event = trio.Event()
        self.welcome = Welcome()
        """What the server answered to our proof."""

    def subscribe(
        self,
        on_frame: OnFrame,
        *,
        on_batch: Callable[[], None] | None = None,
        on_turn: Callable[[], None] | None = None,
        on_closed: Callable[[DistributedLogError], None] | None = None,
    ) -> None:
        """Give the link's one owner the frames that answer no request.

        Args:
            on_frame: Gets each of these frames.
            on_batch: Called after all whole frames of one receive: the place to act once on many of them.
            on_turn: Called just before each turn of the sender (`Link.subscribe_turns`).
            on_closed: Gets the reason when the link has ended, after the owners of requests got it.
        """
        self._on_frame = on_frame
        self._on_batch = on_batch
        if on_turn is not None:
            self.subscribe_turns(on_turn)
        if on_closed is not None:
            self.on_closed.append(on_closed)

    async def request(self, op: int, *body: Buffer, flags: int = 0, timeout_s: float) -> Reply:
        """Ask and wait for the answer.

        Raises the error that the answer carries, `RequestTimeout` after ``timeout_s`` (the outcome is
        unknown), or what closed the link.
        """
        return await self.wait_reply(
            self.start_request(op, *body, flags=flags, timeout_s=timeout_s), timeout_s
        )

    def start_request(
        self, op: int, *body: Buffer, flags: int = 0, timeout_s: float
    ) -> PendingReply:
        """Ask, and go on: `wait_reply` or `discard_request` what is returned. Raises what closed the link."""
        return self._send_request(op, body, flags, timeout_s, None)

    def start_repeated_request(
        self, op: int, *body: Buffer, flags: int = 0, timeout_s: float, on_reply: OnReply
    ) -> PendingReply:
        """Ask what may be answered more than once, without a task: ``on_reply`` gets each answer.

        The last one has no `REPLY_MORE`, or is an error, also the one that closed the link. The caller
        looks after the deadline, and may `discard_request` it before. Raises what closed the link.
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
        """Wait up to ``timeout_s`` for the answer to `start_request`. Raises as `request`.

        Does not yield where the answer is here already.
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
        """The answer to `start_request` is not wanted any more."""
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
        if ident == 0 and status:  # the server says why it is about to close
            self.close(error_from(status, body))
            return
        pending = self._pending.get(ident)
        if pending is None or pending.finished.is_set():
            return  # the one who asked has given up
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
        """Wait for the server's HELLO. Raises what closed the link."""
        await self._hello_event.wait()
        if self._greeting is None:
            assert self.closed is not None, "told of a HELLO, or of the end"
            raise self.closed.again()
        return self._greeting

    async def wait_welcome(self) -> Greeting:
        """Wait for the server's HELLO and its answer to AUTH. Raises what closed the link."""
        await self._welcome_event.wait()
        if self.closed is not None:
            raise self.closed.again()
        assert self._greeting is not None, "AUTH is answered after HELLO"
        return self._greeting

    async def receive(self) -> None:
        """Take what comes until the link ends, then tell all who wait."""
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
        """Ping when silent; end the link when the silence goes on."""
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
                self.close(
                    ConnectionLost(f"{self.peer_address} did not finish a frame it had begun")
                )
            elif silent_s < PING_AFTER_SILENCE_S:
                pinged = False
            elif not pinged:
                self.send(envelope(Op.PING, 0))
                pinged = True


def _lost_request_error(reason: DistributedLogError, peer: str) -> DistributedLogError:
    """What a request under way learns from the end of its link: its outcome is unknown."""
    if isinstance(reason, ConnectionLost):
        return reason.again()
    return ConnectionLost(f"the connection to {peer} ended: {reason}")
