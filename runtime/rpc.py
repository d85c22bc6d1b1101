"""Connections made and served: who the other side is, and the tasks of each link.

An `Endpoint` is what one node (or client process) has once: its HELLO, its receive buffer, its byte
budget. A server makes a `Session` a connection; a client gets a `ClientLink`.

A server ends a link that was silent for `SILENCE_SERVER_S`; a client's own care is in `client_link.py`. A
closed connection is news at once.
"""

from collections.abc import Callable, Mapping

import trio

from . import hello as hellos
from .client_link import LATE_S, SWEEP_S, ClientLink, PendingReply, Reply
from .errors import (
    ConnectionLost,
    DistributedLogError,
    ProtocolError,
    WrongPeer,
)
from .frames import (
    ENVELOPE_BYTES,
    FRAME_BYTES_MAX,
    Op,
    envelope,
    pack,
)
from .hello import Hello
from .host import Address, Host, Listener
from .link import Link, ReceiveSpace, Session

__all__ = ["ClientLink", "Endpoint", "Hello", "Link", "PendingReply", "Reply", "Session"]

RECEIVE_BYTES = 1024 * 1024
PARTIAL_BYTES_MAX = 32 * 1024 * 1024
"""Incomplete frames of all connections of a process: a server stays below 96 MB with it."""
OUTGOING_BYTES_MAX = 256 * 1024 * 1024
"""A link whose peer reads nothing is ended here; the users of links have lower bounds of their own."""
STRANGER_FRAME_BYTES_MAX = 64 * 1024
HANDSHAKE_S = 5.0
SILENCE_SERVER_S = 30.0


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
            nursery.start_soon(link.receive)
            nursery.start_soon(link.send_loop)
            try:
                ours = self._hello()
                body = hellos.encode(ours, expected_node_id=expected_node_id, listener=listener)
                auth = pack({"method": "none"})
                link.send(envelope(Op.HELLO, len(body)), body, envelope(Op.AUTH, len(auth)), auth)
                greeting = await link.greeted()
                hellos.check(ours, greeting, place, expected_node_id=expected_node_id)
            except BaseException as error:
                reason = error if isinstance(error, DistributedLogError) else None
                link.close(reason or ConnectionLost(f"the connection to {place} was given up"))
                raise
            link.peer = greeting.hello
            link.listener = greeting.listener
            nursery.start_soon(link.mind)
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
