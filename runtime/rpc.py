"""Served connections and pipelined client connections, over links.

An `Endpoint` is what one node (or client process) has once: its HELLO, its receive buffer, its byte
budget. A server makes a `Session` a connection; a client gets a `ClientLink`, whose `request` is for
control and reads. Adds go over streams (`bookie/client.py`) and use none of this per entry.

Liveness: a client link that hears nothing for `SILENCE_PING_S` pings, and ends after `SILENCE_END_S`;
a server ends a link that was silent for `SILENCE_SERVER_S`. A closed connection is news at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from . import hello as hellos
from .errors import (
    ConnectionLost,
    DistributedLogError,
    ProtocolError,
    RequestTimeout,
    WrongPeer,
)
from .frames import (
    ENVELOPE_BYTES,
    FRAME_BYTES_MAX,
    REPLY_MORE,
    Op,
    envelope,
    error_from,
    pack,
)
from .hello import Greeting, Hello
from .host import Address, Buffer, Connection, Host, Listener
from .link import Link, ReceiveSpace, Session

__all__ = ["ClientLink", "Endpoint", "Hello", "Link", "PendingReply", "Reply", "Session"]

RECEIVE_BYTES = 1024 * 1024
PARTIAL_BYTES_MAX = 32 * 1024 * 1024
"""Incomplete frames of all connections of a process: a server stays below 96 MB with it."""
OUTGOING_BYTES_MAX = 256 * 1024 * 1024
"""A link whose peer reads nothing is ended here; the users of links have lower bounds of their own."""
STRANGER_FRAME_BYTES_MAX = 64 * 1024
HANDSHAKE_S = 5.0
SILENCE_PING_S = 2.0
SILENCE_END_S = 6.0
SILENCE_SERVER_S = 30.0
SWEEP_S = 1.0
LATE_S = 0.5
"""A sweep that wakes this late was stalled itself: it gives everybody the time back (H25)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: its flags and its body, which is the receiver's own memory."""

    flags: int
    body: memoryview


OnReply = Callable[[Reply | DistributedLogError], None]


class PendingReply:
    """A request under way."""

    __slots__ = ("done", "error", "ident", "on_reply", "op", "reply")

    def __init__(self, op: int, ident: int, on_reply: OnReply | None = None) -> None:
        self.op = op
        self.ident = ident
        self.on_reply = on_reply
        """Gets the replies instead of whoever waits for `done`."""
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.error: DistributedLogError | None = None


class ClientLink(Link):
    """A connection to a server, with any number of requests under way."""

    # A server is trusted with its announced length, and a large reply is received where it will stay:
    # only its first bytes pass through the shared buffer.
    window_bytes = 64 * 1024
    partial_first_bytes = FRAME_BYTES_MAX

    on_frame: Callable[[int, int, int, int, memoryview], None] | None = None
    """Gets op, flags, status, ident, body of frames that answer no request; body valid in the call."""
    on_batch: Callable[[], None] | None = None
    """Called after all whole frames of one receive: the place to act once on many acks."""

    def __init__(
        self,
        connection: Connection,
        space: ReceiveSpace,
        *,
        outgoing_bytes_max: int,
        frame_bytes_max: int,
    ) -> None:
        super().__init__(
            connection,
            space,
            outgoing_bytes_max=outgoing_bytes_max,
            frame_bytes_max=frame_bytes_max,
        )
        self.on_closed: list[Callable[[DistributedLogError], None]] = []
        self._pending: dict[int, PendingReply] = {}
        self._last_request = 0
        self._greeting: Greeting | None = None
        self._welcome = trio.Event()

    async def request(self, op: int, *body: Buffer, flags: int = 0, timeout_s: float) -> Reply:
        """Ask and wait for the answer.

        Raises the error that the answer carries, `RequestTimeout` after ``timeout_s`` (the outcome is
        unknown), or what closed the link.
        """
        return await self.finish(self.begin(op, *body, flags=flags, timeout_s=timeout_s), timeout_s)

    def begin(self, op: int, *body: Buffer, flags: int = 0, timeout_s: float) -> "PendingReply":
        """Ask, and go on: `finish` or `forget` what is returned. Raises what closed the link."""
        return self._begin(op, body, flags, timeout_s, None)

    def stand(
        self, op: int, *body: Buffer, flags: int = 0, timeout_s: float, on_reply: OnReply
    ) -> "PendingReply":
        """Ask what may be answered more than once, without a task: ``on_reply`` gets each answer.

        The last one has no `REPLY_MORE`, or is an error, also the one that closed the link. The caller
        looks after the deadline, and may `forget` it before. Raises what closed the link.
        """
        return self._begin(op, body, flags, timeout_s, on_reply)

    def _begin(
        self,
        op: int,
        body: tuple[Buffer, ...],
        flags: int,
        timeout_s: float,
        on_reply: OnReply | None,
    ) -> "PendingReply":
        if self.closed is not None:
            raise self.closed
        self._last_request += 1
        pending = PendingReply(op, self._last_request, on_reply)
        self._pending[self._last_request] = pending
        size = sum(len(part) for part in body)
        deadline_ms = max(1, int(timeout_s * 1000))
        self.send(
            envelope(op, size, ident=pending.ident, flags=flags, deadline_ms=deadline_ms), *body
        )
        return pending

    async def finish(self, pending: "PendingReply", timeout_s: float) -> Reply:
        """Wait up to ``timeout_s`` for the answer to `begin`. Raises as `request`."""
        try:
            with trio.move_on_after(timeout_s):
                await pending.done.wait()
        finally:
            self.forget(pending)
        if pending.error is not None:
            raise pending.error
        if pending.reply is None:
            raise RequestTimeout(
                f"{self.peer_address} did not answer operation {pending.op} within {timeout_s:g} s"
            )
        return pending.reply

    def forget(self, pending: "PendingReply") -> None:
        """The answer to `begin` is not wanted any more."""
        self._pending.pop(pending.ident, None)

    # --- driven by the endpoint -------------------------------------------------------------------

    def _take_frame(
        self,
        op: int,
        flags: int,
        status: int,
        ident: int,
        deadline_ms: int,
        body: memoryview,
        owned: bool,
    ) -> None:
        if op == Op.REPLY:
            if ident == 0 and status:  # the server says why it is about to close
                self.close(error_from(status, body))
                return
            pending = self._pending.get(ident)
            if pending is None or pending.done.is_set():
                return  # the one who asked has given up
            if pending.on_reply is not None:
                if status or not flags & REPLY_MORE:
                    self.forget(pending)
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
            pending.done.set()
        elif self._greeting is None or not self._welcome.is_set():
            self._take_greeting(op, status, body)
        elif self.on_frame is not None:
            self.on_frame(op, flags, status, ident, body)

    def _take_greeting(self, op: int, status: int, body: memoryview) -> None:
        if status:
            self.close(error_from(status, body))
        elif op == Op.HELLO and self._greeting is None:
            self._greeting = hellos.decode(body, self.peer_address)
        elif op == Op.AUTH and self._greeting is not None:
            self._welcome.set()
        else:
            raise ProtocolError(f"{self.peer_address} sent operation {op} before HELLO and AUTH")

    def _take_batch_end(self) -> None:
        if self.on_batch is not None:
            self.on_batch()

    async def _receive(self) -> None:
        try:
            await self.receive_loop(self._take_frame, self._take_batch_end)
        finally:
            reason = self.closed
            if reason is None:
                reason = ConnectionLost(f"the connection to {self.peer_address} was closed here")
                self.close(reason)
            pendings, self._pending = self._pending, {}
            for pending in pendings.values():
                if pending.on_reply is not None:
                    pending.on_reply(_lost(reason, self.peer_address))
                elif not pending.done.is_set():
                    pending.error = _lost(reason, self.peer_address)
                    pending.done.set()
            self._welcome.set()
            for callback in self.on_closed:
                callback(reason)

    async def _mind(self) -> None:
        """Ping when silent; end the link when the silence goes on."""
        pinged = False
        while self.closed is None:
            before = trio.current_time()
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            if now - before > SWEEP_S + LATE_S:
                self.received_at = now
                continue
            silent_s = now - self.received_at
            if silent_s >= SILENCE_END_S:
                self.close(ConnectionLost(f"{self.peer_address} was silent for {silent_s:.1f} s"))
            elif now > self.frame_deadline:
                self.close(
                    ConnectionLost(f"{self.peer_address} did not finish a frame it had begun")
                )
            elif silent_s < SILENCE_PING_S:
                pinged = False
            elif not pinged:
                self.send(envelope(Op.PING, 0))
                pinged = True


class Endpoint:
    """What a node has once for all its connections."""

    def __init__(
        self,
        host: Host,
        hello: Callable[[], Hello],
        *,
        receive_bytes: int = RECEIVE_BYTES,
        partial_bytes_max: int = PARTIAL_BYTES_MAX,
        outgoing_bytes_max: int = OUTGOING_BYTES_MAX,
    ) -> None:
        self.host = host
        self._hello = hello
        self._space = ReceiveSpace(
            memoryview(bytearray(ENVELOPE_BYTES + receive_bytes)), 0, partial_bytes_max
        )
        self._outgoing_bytes_max = outgoing_bytes_max
        self._accepted = 0
        self.connections = 0

    async def dial(
        self,
        address: Address,
        *,
        nursery: trio.Nursery,
        expected_node_id: str = "",
        listener: str = "",
    ) -> ClientLink:
        """Connect, exchange HELLO and AUTH, and run the link's tasks in ``nursery``.

        Raises `ConnectionLost`, `WrongPeer`, `ProtocolError`, `UnsupportedFormat`. The handshake has
        a deadline of its own; a caller may set a shorter one around the call.
        """
        place = f"{address[0]}:{address[1]}"
        with trio.move_on_after(HANDSHAKE_S):
            connection = await self.host.dial(address)
            link = ClientLink(
                connection,
                self._space,
                outgoing_bytes_max=self._outgoing_bytes_max,
                frame_bytes_max=FRAME_BYTES_MAX,
            )
            nursery.start_soon(link._receive)
            nursery.start_soon(link.send_loop)
            try:
                ours = self._hello()
                body = hellos.encode(ours, expected_node_id=expected_node_id, listener=listener)
                auth = pack({"method": "none"})
                link.send(envelope(Op.HELLO, len(body)), body, envelope(Op.AUTH, len(auth)), auth)
                await link._welcome.wait()
                if link.closed is not None:
                    raise link.closed
                greeting = link._greeting
                assert greeting is not None, "AUTH is answered after HELLO"
                hellos.check(ours, greeting, place, expected_node_id=expected_node_id)
            except BaseException as error:
                reason = error if isinstance(error, DistributedLogError) else None
                link.close(reason or ConnectionLost(f"the connection to {place} was given up"))
                raise
            link.peer = greeting.hello
            link.listener = greeting.listener
            nursery.start_soon(link._mind)
            return link
        raise ConnectionLost(f"{place} did not answer within {HANDSHAKE_S:g} s")

    async def serve(
        self,
        listeners: Mapping[str, Listener],
        make_session: Callable[[Link], Session],
        *,
        connections_max: int = 1000,
    ) -> None:
        """Serve until cancelled. What a session raises that is no `DistributedLogError` ends the node."""
        async with trio.open_nursery() as nursery:
            links: dict[int, Link] = {}
            nursery.start_soon(self._sweep, links)
            for name in listeners:
                nursery.start_soon(
                    self._accept,
                    name,
                    listeners[name],
                    make_session,
                    links,
                    connections_max,
                    nursery,
                )

    async def _accept(
        self,
        name: str,
        listener: Listener,
        make_session: Callable[[Link], Session],
        links: dict[int, Link],
        connections_max: int,
        nursery: trio.Nursery,
    ) -> None:
        while True:
            connection = await listener.accept()
            if self.connections >= connections_max:
                connection.close()
                continue
            self._accepted += 1
            link = Link(
                connection,
                self._space,
                outgoing_bytes_max=self._outgoing_bytes_max,
                frame_bytes_max=STRANGER_FRAME_BYTES_MAX,
            )
            link.listener = name
            link.handshake_deadline = trio.current_time() + HANDSHAKE_S
            self.connections += 1
            served = _Served(self._hello, link, make_session)
            nursery.start_soon(link.send_loop)
            nursery.start_soon(self._receive, served, links, self._accepted)

    async def _receive(self, served: "_Served", links: dict[int, Link], serial: int) -> None:
        link = served.link
        links[serial] = link
        try:
            await link.receive_loop(served.take_frame, served.take_batch_end)
        finally:
            del links[serial]
            self.connections -= 1
            link.close(ConnectionLost(f"the connection of {link.peer_address} was closed here"))
            if served.session is not None:
                served.session.on_closed()

    async def _sweep(self, links: dict[int, Link]) -> None:
        while True:
            before = trio.current_time()
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            late_s = now - before - SWEEP_S
            for link in list(links.values()):
                if late_s > LATE_S:
                    link.received_at += late_s
                    link.frame_deadline += late_s
                    link.handshake_deadline += late_s
                elif now > link.handshake_deadline:
                    link.close(ProtocolError(f"{link.peer_address} did not say who it is in time"))
                elif now > link.frame_deadline:
                    link.close(
                        ProtocolError(f"{link.peer_address} did not finish a frame it had begun")
                    )
                elif now - link.received_at > SILENCE_SERVER_S:
                    link.close(
                        ConnectionLost(f"{link.peer_address} was silent for {SILENCE_SERVER_S:g} s")
                    )


class _Served:
    """A connection on the server's side: first HELLO and AUTH, then its session's frames."""

    def __init__(
        self, hello: Callable[[], Hello], link: Link, make_session: Callable[[Link], Session]
    ) -> None:
        self.link = link
        self.session: Session | None = None
        self._hello = hello
        self._make_session = make_session
        self._greeted = False

    def take_frame(
        self,
        op: int,
        flags: int,
        status: int,
        ident: int,
        deadline_ms: int,
        body: memoryview,
        owned: bool,
    ) -> None:
        session = self.session
        if session is None:
            self._greet(op, body)
        elif op == Op.PING:
            self.link.reply(ident)
        else:
            session.on_frame(op, flags, status, ident, deadline_ms, body)

    def take_batch_end(self) -> None:
        if self.session is not None:
            self.session.on_batch_end()

    def _greet(self, op: int, body: memoryview) -> None:
        link = self.link
        if op == Op.HELLO and not self._greeted:
            greeting = hellos.decode(body, link.peer_address)
            ours = self._hello()
            try:
                hellos.check(ours, greeting, link.peer_address)
            except WrongPeer as error:
                # Said the other way round: to the peer it is we who are the wrong one.
                raise WrongPeer(
                    f"this is {ours.kind} {ours.node_id or '(no id yet)'} of cluster"
                    f" {ours.cluster_id or '(none yet)'}: {error}"
                ) from None
            link.peer = greeting.hello
            self._greeted = True
            answer = hellos.encode(ours, listener=link.listener)
            link.send(envelope(Op.HELLO, len(answer)), answer)
        elif op == Op.AUTH and self._greeted:
            link.frame_bytes_max = FRAME_BYTES_MAX
            link.handshake_deadline = float("inf")
            link.send(envelope(Op.AUTH, 0))
            self.session = self._make_session(link)
        else:
            raise ProtocolError(f"{link.peer_address} sent operation {op} before HELLO and AUTH")


def _lost(reason: DistributedLogError, peer: str) -> DistributedLogError:
    """What a request under way learns from the end of its link: its outcome is unknown."""
    if isinstance(reason, ConnectionLost):
        return reason
    return ConnectionLost(f"the connection to {peer} ended: {reason}")
