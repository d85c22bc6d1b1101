"""Connections made and served: who the other side is, and the tasks of each link.

An `Endpoint` is what one node (or client process) has once: its HELLO, its receive buffer, its byte
budget. A server makes a `LinkSession` a connection; a client gets a `ClientLink`.

A server ends a link that was silent for `SILENCE_SERVER_S`; a client's own care is in `client_link.py`. A
closed connection is news at once.

What a peer sends ends at most its own connection. A session decodes first: what cannot be meant is a
`ProtocolError`. Any other exception while it serves is a fault of ours: that link ends, with one line that
says where. Only an `AssertionError` goes on and ends the node: a core that breaks its own rule is not to be
trusted any more, and so no assert may be in reach of a peer's bytes. What listens, looks for silence, or runs
a connection that was dialed is background work (`work_failures.py`).
"""

import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import trio

from ..declarations.health_conditions import Code, HealthCondition, condition
from ..interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    ProtocolError,
    WrongPeer,
)
from ..interfaces.host import Address, Buffer, Host, Listener
from ..interfaces.principals import (
    BY_CERTIFICATE,
    BY_LOCAL_SECRET,
    NONCE_BYTES,
    WARN_LEFT,
    Credentials,
    Meeting,
    Verify,
    VerifyElsewhere,
    Welcome,
    anonymous,
)
from ..protocol import handshake as hellos
from ..protocol.frames import (
    ENVELOPE_BYTES,
    FRAME_BYTES_MAX,
    Op,
    envelope,
)
from ..protocol.handshake import Greeting, Hello
from ..protocol.operations import allowed_to
from ..schedule.work_failures import WorkFailures
from .client_link import LATE_S, SWEEP_S, ClientLink
from .connection_limiter import NODE_KINDS, ConnectionLimiter
from .frame_reader import Frame, ReceiveSpace
from .link import Link, LinkSession
from .rejection_log import CROWDED, FAULT, SILENT, UNFINISHED, RejectionLog, host_of, reason_of

RECEIVE_BYTES = 1024 * 1024
PARTIAL_BYTES_MAX = 32 * 1024 * 1024
"""Incomplete frames of all connections of a process: a server stays below 96 MB with it."""
OUTGOING_BYTES_MAX = 256 * 1024 * 1024
"""A link whose peer reads nothing is ended here; the users of links have lower bounds of their own."""
REPLIES_BYTES_MAX = 4 * 1024 * 1024
REPLIES_SUM_BYTES_MAX = 64 * 1024 * 1024
"""Above these `Endpoint.has_credit` has none: of a link, and of all."""
STRANGER_FRAME_BYTES_MAX = ENVELOPE_BYTES + hellos.STRANGER_BYTES_MAX
HANDSHAKE_S = 5.0
SILENCE_SERVER_S = 30.0
FAULT_PLACES = 6
"""Of the calls in a fault's traceback, the innermost ones."""


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
        self.hello = hello
        """What we say of ourselves now."""
        self._space = ReceiveSpace(receive_bytes, partial_bytes_max)
        self._outgoing_bytes_max = outgoing_bytes_max
        self._accepted = 0
        self.connections = 0
        self.methods: dict[str, Verify] = dict(host.methods) or {hellos.NONE: anonymous}
        """How who comes proves who it is, by the method's name; add to it before `serve`."""
        self.asked: dict[str, VerifyElsewhere] = {}
        """The same for methods whose proofs another server knows; a client waits for no longer than ever."""
        self.refusals = RejectionLog()
        self.failures = WorkFailures()
        """Of all background work of this node, or client process."""

    def has_credit(self, link: Link) -> bool:
        """May ``link`` get another large answer? The fuller all of them are, the less each may have."""
        left = REPLIES_SUM_BYTES_MAX - self._space.outgoing_bytes
        if not link.outgoing_bytes:
            return left > 0
        return link.outgoing_bytes < min(REPLIES_BYTES_MAX, left // 4)

    def info(self) -> dict[str, float]:
        """Counters and gauges, for `Op.INFO`."""
        own = self.host.certificate()
        left = {} if own is None else {"certificate_left": own.left(self.host.wall_ms())}
        return {
            "connections": self.connections,
            "refused": sum(self.refusals.counts.values()),
            **left,
        }

    def certificate_warning(self) -> HealthCondition | None:
        """Return a condition if this node's certificate ends soon, or has ended."""
        own = self.host.certificate()
        left = 1.0 if own is None else own.left(self.host.wall_ms())
        if own is None or left >= WARN_LEFT:
            return None
        return condition(Code.CERTIFICATE_ENDS if left else Code.CERTIFICATE_ENDED, at=own.ends_at)

    async def dial(
        self,
        address: Address,
        *,
        nursery: trio.Nursery,
        expected_node_id: str = "",
        listener: str = "",
        credentials: Credentials | None = None,
        kind: str = "",
        principal: str = "",
        on_connected: Callable[[], None] = lambda: None,
    ) -> ClientLink:
        """Connect, exchange HELLO and AUTH, and run the link's tasks in ``nursery``.

        Raises `ConnectionLost`, `NotAuthenticated`, `WrongPeer`, `ProtocolError`, `UnsupportedFormat`. The
        handshake has a deadline of its own; a caller may set a shorter one around the call.
        ``credentials``: instead of what the host has for that address. ``kind``: whose certificate has to be
        shown there, where one is: one node's is not enough to be taken for one of another kind (H227).
        ``principal``: the same by kind and name. ``on_connected``: called when the connection is there, and
        nobody has greeted.
        """
        place = f"{address[0]}:{address[1]}"
        with trio.move_on_after(HANDSHAKE_S):
            connection = await self.host.dial(address)
            on_connected()
            link = ClientLink(connection, self._space, outgoing_bytes_max=self._outgoing_bytes_max)
            for run in (link.receive, link.send_loop):
                nursery.start_soon(self._contained, link, place, run)
            try:
                ours = self.hello()
                proof = credentials or self.host.credentials(address)
                if proof is not None and proof.by_tls and not link.is_secret:
                    proof = None
                greeting = await self._introduce(
                    link, ours, address, proof, expected_node_id=expected_node_id, listener=listener
                )
                hellos.check(ours, greeting, place, expected_node_id=expected_node_id)
                hellos.check_identity(
                    link.identity, greeting.hello, place, wanted=kind, principal=principal
                )
            except BaseException as error:
                reason = error if isinstance(error, DistributedLogError) else None
                link.close(reason or ConnectionLost(f"the connection to {place} was given up"))
                raise
            link.peer = greeting.hello
            link.listener = greeting.listener
            if link.identity is not None:
                link.principal = link.identity.principal
            nursery.start_soon(self._contained, link, place, link.mind)
            return link
        raise ConnectionLost(f"{place} did not answer within {HANDSHAKE_S:g} s")

    async def _contained(
        self, link: ClientLink, place: str, run: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a task of a connection that was dialed; an unexpected exception ends the connection alone."""
        with self.failures.contained(f"the connection to {place}") as attempt:
            await run()
        if attempt.failed:
            link.close(ConnectionLost(f"the connection to {place} failed here"))

    async def _introduce(
        self,
        link: ClientLink,
        ours: Hello,
        address: Address,
        proof: Credentials | None,
        *,
        expected_node_id: str,
        listener: str,
    ) -> Greeting:
        """Say who we are, prove it, hear who is there. One flight, but where a proof needs the server's."""
        waits = proof is not None and proof.needs_nonce
        nonce = self.host.secret_bytes(NONCE_BYTES) if waits else b""
        hello = hellos.encode(
            ours,
            expected_node_id=expected_node_id,
            listener=listener,
            nonce=nonce,
            methods=(hellos.NONE,) if proof is None else (proof.method, hellos.NONE),
        )
        meeting = Meeting(
            link.peer_address, address[1], client_nonce=nonce, is_secret=link.is_secret
        )
        first: tuple[Buffer, ...] = (envelope(Op.HELLO, len(hello)), hello)
        if waits:
            link.send(*first)
            greeting = await link.greeted()
            meeting = replace(
                meeting,
                server_nonce=greeting.nonce,
                listener=greeting.listener,
                identity=link.identity,
            )
            first = ()
        auth = hellos.encode_auth()
        if proof is not None:
            auth = hellos.encode_auth(proof.method, proof.prove(meeting))
        link.send(*first, envelope(Op.AUTH, len(auth)), auth)
        greeting = await link.welcomed()
        if proof is not None:
            proof.check(meeting, link.welcome)
        return greeting

    async def serve(
        self,
        listeners: Mapping[str, Listener],
        make_session: Callable[[Link], LinkSession],
        *,
        is_node: Callable[[Hello], bool] | None = None,
    ) -> None:
        """Serve until cancelled. An `AssertionError` of a session ends the node.

        ``is_node``: is this a node of the cluster, for which places are kept? By default whoever says so.
        """
        async with trio.open_nursery() as nursery:
            links: dict[int, Link] = {}
            places = ConnectionLimiter(self.host.connections_max)
            keep = self.failures.keep
            nursery.start_soon(keep, "the end of silent connections", self._sweep, links)
            for name in listeners:
                nursery.start_soon(
                    keep,
                    "the listener at {}:{}".format(*listeners[name].address),
                    self._accept,
                    name,
                    listeners[name],
                    make_session,
                    is_node or self._says_node,
                    places,
                    links,
                    nursery,
                )

    def _says_node(self, hello: Hello) -> bool:
        return hello.kind in NODE_KINDS and hello.cluster_id == self.hello().cluster_id != ""

    def _crowd_out(self, link: Link | None) -> None:
        """That one gives its place to another one."""
        if link is not None:
            self._end(link, CROWDED, "it gave its place to a newer connection")

    async def _accept(
        self,
        name: str,
        listener: Listener,
        make_session: Callable[[Link], LinkSession],
        is_node: Callable[[Hello], bool],
        places: ConnectionLimiter,
        links: dict[int, Link],
        nursery: trio.Nursery,
    ) -> None:
        own_host = listener.address[0]
        while True:
            connection = await listener.accept()
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
            self._crowd_out(places.enter(link))
            local = host_of(link.peer_address) in ("127.0.0.1", "[::1]", own_host)

            def greeted(link: Link = link, local: bool = local) -> None:
                node = is_node(link.peer)
                now = trio.current_time()
                self._crowd_out(places.greet(link, link.peer, node=node, local=local, now=now))

            port = listener.address[1]
            served = _Served(self, link, port, make_session, greeted, self._on_fault, nursery)
            nursery.start_soon(self._contain_fault, link, link.send_loop)
            nursery.start_soon(
                self._contain_fault,
                link,
                partial(self._receive, served, places, links, self._accepted),
            )

    async def _contain_fault(self, link: Link, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task of a connection; an unexpected exception ends the connection alone.

        A broken rule passes: it may be that of the core by which the session acknowledges.
        """
        try:
            await run()
        except AssertionError:
            raise
        except Exception as error:
            self._on_fault(link, error)

    def _on_fault(self, link: Link, error: Exception) -> None:
        """A session did what nobody foresaw: where, but not what the peer had sent."""
        self.refusals.note(
            link.peer_address,
            FAULT,
            type(error).__name__,
            where="".join(traceback.format_tb(error.__traceback__)[-FAULT_PLACES:]),
            level=logging.ERROR,
        )
        link.close(ConnectionLost(f"serving {link.peer_address} failed here"))

    async def _receive(
        self, served: "_Served", places: ConnectionLimiter, links: dict[int, Link], serial: int
    ) -> None:
        link = served.link
        links[serial] = link
        try:
            await link.receive_loop(served.take)
        finally:
            del links[serial]
            places.leave(link)
            self.connections -= 1
            if link.closed is not None and (reason := reason_of(link.closed)):
                self.refusals.note(link.peer_address, reason, link.closed)
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
                    link.reader.received_at += late_s
                    link.reader.deadline += late_s
                    link.handshake_deadline += late_s
                elif now > link.handshake_deadline:
                    self._end(link, SILENT, "it did not say who it is in time")
                elif now > link.ends_at:
                    ended = f"the token of {link.principal} has ended"
                    link.refuse(NotAuthenticated(ended, NotAuthenticated.ENDED))
                elif now > link.reader.deadline:
                    self._end(link, UNFINISHED, "it did not finish a frame it had begun")
                elif now - link.received_at > SILENCE_SERVER_S:
                    link.close(
                        ConnectionLost(f"{link.peer_address} was silent for {SILENCE_SERVER_S:g} s")
                    )

    def _end(self, link: Link, reason: str, why: str) -> None:
        self.refusals.note(link.peer_address, reason, why)
        link.close(ConnectionLost(f"{link.peer_address}: {why}"))


class _Served:
    """A connection on the server's side: first HELLO and AUTH, then its session's frames."""

    def __init__(
        self,
        endpoint: Endpoint,
        link: Link,
        port: int,
        make_session: Callable[[Link], LinkSession],
        on_greeted: Callable[[], None],
        on_fault: Callable[[Link, Exception], None],
        nursery: trio.Nursery,
    ) -> None:
        self.link = link
        self.session: LinkSession | None = None
        self._endpoint = endpoint
        self._port = port
        self._nonces = (b"", b"")
        """Of the client and of us."""
        self._make_session = make_session
        self._on_greeted = on_greeted
        self._on_fault = on_fault
        self._greeted = False
        self._is_asking = False
        """Does another server look at its proof?"""
        self._nursery = nursery

    def take(self, frames: Iterator[Frame]) -> None:
        """Serve the frames of one receive; none after one that closed the link."""
        link = self.link
        for op, flags, status, ident, deadline_ms, body, _ in frames:
            session = self.session
            allowed = link.allowed
            try:
                if session is None:
                    self._greet(op, body)
                elif allowed is not None and not allowed[op]:
                    self._refuse(op, ident)
                elif op == Op.PING:
                    link.reply(ident)
                else:
                    session.on_frame(op, flags, status, ident, deadline_ms, body)
            except (DistributedLogError, AssertionError):
                raise
            except Exception as error:
                self._on_fault(link, error)
            if link.closed is not None:
                return
        if self.session is not None:
            self.session.on_batch_end()

    def _greet(self, op: int, body: memoryview) -> None:
        link = self.link
        if op == Op.HELLO and not self._greeted:
            greeting = hellos.decode(body, link.peer_address)
            ours = self._endpoint.hello()
            try:
                hellos.check(ours, greeting, link.peer_address)
            except WrongPeer as error:
                # Said the other way round: to the peer it is we who are the wrong one.
                raise WrongPeer(
                    f"this is {ours.kind} {ours.node_id or '(no id yet)'} of cluster"
                    f" {ours.cluster_id or '(none yet)'}: {error}"
                ) from None
            hellos.check_identity(link.identity, greeting.hello, link.peer_address)
            link.peer = greeting.hello
            nonce = self._endpoint.host.secret_bytes(NONCE_BYTES) if greeting.nonce else b""
            self._nonces = (greeting.nonce, nonce)
            self._greeted = True
            answer = hellos.encode(
                ours,
                listener=link.listener,
                nonce=nonce,
                methods=[*self._endpoint.methods, *self._endpoint.asked],
            )
            link.send(envelope(Op.HELLO, len(answer)), answer)
        elif op == Op.AUTH and self._greeted and not self._is_asking:
            method, proof = hellos.decode_auth(body, link.peer_address)
            elsewhere = self._endpoint.asked.get(method)
            if elsewhere is None:
                self._welcome(self._verify(method, proof))
            else:
                self._is_asking = True
                self._nursery.start_soon(self._verify_elsewhere, elsewhere, proof)
        else:
            raise ProtocolError(f"{link.peer_address} sent operation {op} before HELLO and AUTH")

    def _welcome(self, welcome: Welcome) -> None:
        """It is known who is there: from here on it is served."""
        link = self.link
        link.principal, link.rights = welcome.principal, welcome.rights
        link.token, link.ends_at = welcome.token, trio.current_time() + welcome.left_s
        link.allowed = allowed_to(welcome.principal)
        self._on_greeted()
        link.reader.frame_bytes_max = FRAME_BYTES_MAX
        link.handshake_deadline = float("inf")
        answer = hellos.encode_welcome(welcome)
        link.send(envelope(Op.AUTH, len(answer)), answer)
        self.session = self._make_session(link)

    async def _verify_elsewhere(self, verify: VerifyElsewhere, proof: bytes) -> None:
        """Ask; until then nothing else is taken on this connection, and its handshake's deadline holds."""
        link = self.link
        try:
            with trio.move_on_at(link.handshake_deadline):
                welcome = await verify(self._meeting(), proof)
                if link.closed is None:
                    self._welcome(welcome)
        except DistributedLogError as error:
            link.refuse(error)
        except AssertionError:
            raise
        except Exception as error:
            self._on_fault(link, error)

    def _verify(self, method: str, proof: bytes) -> Welcome:
        """Who has this proof? Raises `NotAuthenticated`."""
        link, methods = self.link, self._endpoint.methods
        verify = methods.get(method)
        if verify is None:
            how = " or ".join([*methods, *self._endpoint.asked])
            if BY_CERTIFICATE in methods and not link.is_secret:
                how += " over TLS (give --credentials)"
            if BY_LOCAL_SECRET in methods:
                how += (
                    " (a cluster of dlog local is for the user who started it, on this machine, with the"
                    " same HOME)"
                )
            raise NotAuthenticated(
                f"who speaks here says who it is by {how}; {link.peer_address} came with"
                f" {method if method.isascii() and method.isalnum() else 'another method'}"
            )
        return verify(self._meeting(), proof)

    def _meeting(self) -> Meeting:
        link = self.link
        return Meeting(
            link.peer_address,
            self._port,
            server_nonce=self._nonces[1],
            client_nonce=self._nonces[0],
            listener=link.listener,
            identity=link.identity,
            is_secret=link.is_secret,
        )

    def _refuse(self, op: int, ident: int) -> None:
        link = self.link
        link.reply_error(ident, NotAllowed(f"operation {op} is not for {link.principal}"))
