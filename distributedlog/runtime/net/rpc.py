"""Open and serve connections: authenticate the other side, and run the tasks of each link.

A node or client process has one `Endpoint` with its HELLO, its receive buffer and its memory limits. A server
makes a `LinkSession` per connection; a client gets a `ClientLink`.

A server ends a link that was silent for `SERVER_SILENCE_TIMEOUT_S`. For the client's side, see
`client_link.py`. Both sides detect a closed connection at once.

Data from a peer can end at most its own connection. A session decodes a frame first, and invalid data raises
a `ProtocolError`. Any other exception during serving is a bug of this program. The link then ends, and one
log line has the place in the code.

Only an `AssertionError` ends the node, because code that breaks its own rules can no longer be trusted.
Therefore no assertion may depend on bytes of a peer. Listeners, the check for silent links, and the tasks of
dialed connections are background work (`work_failures.py`).
"""

import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import trio

from ..declarations.health_conditions import Code, HealthCondition, condition
from ..declarations.versions import stated_version
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
    WARN_REMAINING_FRACTION,
    Credentials,
    HandshakeContext,
    RemoteVerifier,
    Verifier,
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
from ..protocol.operations import allowed_ops
from ..schedule.work_failures import WorkFailures
from .client_link import STALL_S, SWEEP_INTERVAL_S, ClientLink
from .connection_limiter import NODE_KINDS, ConnectionLimiter
from .frame_reader import Frame, ReceiveSpace
from .link import Link, LinkSession
from .rejection_log import (
    FAULT,
    SILENT,
    TOO_MANY_CONNECTIONS,
    UNFINISHED,
    RejectionLog,
    host_of,
    rejection_reason,
)

RECEIVE_BYTES = 1024 * 1024
PARTIAL_BYTES_MAX = 32 * 1024 * 1024
"""The limit for incomplete frames of all connections of a process. It keeps a server below 96 MB."""
OUTGOING_BYTES_MAX = 256 * 1024 * 1024
"""A link whose peer reads nothing ends at this limit. The users of links have lower limits."""
REPLIES_BYTES_MAX = 4 * 1024 * 1024
ALL_REPLIES_BYTES_MAX = 64 * 1024 * 1024
"""The limits of `Endpoint.has_credit`, per link and for all links."""
UNAUTHENTICATED_FRAME_BYTES_MAX = ENVELOPE_BYTES + hellos.UNAUTHENTICATED_BYTES_MAX
HANDSHAKE_TIMEOUT_S = 5.0
SERVER_SILENCE_TIMEOUT_S = 30.0
FAULT_TRACE_FRAMES = 6
"""The number of innermost frames that are logged of a traceback."""


class Endpoint:
    """The state that a node has once for all its connections."""

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
        self.features = hellos.FEATURES & host.features
        """The optional features that this side supports (`handshake.py`)."""
        self._hello = hello
        self._receive_space = ReceiveSpace(receive_bytes, partial_bytes_max)
        self._outgoing_bytes_max = outgoing_bytes_max
        self._accepted_count = 0
        self.connections = 0
        self.methods: dict[str, Verifier] = dict(host.methods) or {hellos.METHOD_NONE: anonymous}
        """The methods by which clients authenticate, by name. Add to it before `serve`."""
        self.remote_methods: dict[str, RemoteVerifier] = {}
        """Methods whose proofs another server verifies. The deadline of the handshake includes that."""
        self.rejection_log = RejectionLog()
        self.failures = WorkFailures()
        """The failures of all background work of this node or client process."""

    def hello(self) -> Hello:
        """Return the present HELLO of this side."""
        return self.with_common_features(self._hello())

    def with_common_features(self, hello: Hello) -> Hello:
        """Return a HELLO without the features that this side does not support."""
        return replace(hello, features=hello.features & self.features)

    def has_credit(self, link: Link) -> bool:
        """Return whether ``link`` may get another large reply.

        The limit per link decreases as the queued bytes of all links grow.
        """
        free_bytes = ALL_REPLIES_BYTES_MAX - self._receive_space.outgoing_bytes
        if not link.outgoing_bytes:
            return free_bytes > 0
        return link.outgoing_bytes < min(REPLIES_BYTES_MAX, free_bytes // 4)

    def info(self) -> dict[str, float | str]:
        """Return the version, counters and gauges for `Op.INFO`."""
        certificate = self.host.certificate()
        extra_fields = (
            {}
            if certificate is None
            else {"certificate_left": certificate.remaining_fraction(self.host.wall_ms())}
        )
        return {
            "version": stated_version(self.host.version),
            "connections": self.connections,
            "refused": sum(self.rejection_log.counts_by_reason.values()),
            **extra_fields,
        }

    def certificate_warning(self) -> HealthCondition | None:
        """Return a condition if this node's certificate ends soon, or has ended."""
        certificate = self.host.certificate()
        remaining_fraction = (
            1.0 if certificate is None else certificate.remaining_fraction(self.host.wall_ms())
        )
        if certificate is None or remaining_fraction >= WARN_REMAINING_FRACTION:
            return None
        return condition(
            Code.CERTIFICATE_ENDS if remaining_fraction else Code.CERTIFICATE_ENDED,
            at=certificate.ends_at,
        )

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

        The handshake has a deadline. A caller may set a shorter one around the call.

        Args:
            address: Host and port.
            nursery: Runs the tasks of the link.
            expected_node_id: The required node ID; "" accepts any.
            listener: The name of the server's listener that this client uses.
            credentials: The credentials to use instead of those that the host has for the address.
            kind: The required kind of the server's certificate, if it has one. The certificate of a node of
                another kind is rejected (H227).
            principal: The required principal of the server's certificate, if it has one.
            on_connected: Called when the connection is open, before the HELLO.

        Raises:
            ConnectionLost: The connection failed, or the handshake took too long.
            NotAuthenticated: One side rejected the credentials of the other.
            WrongPeer: Another cluster or node answered.
            ProtocolError: The peer sent invalid data.
            UnsupportedFormat: The peer requires another protocol version or feature.
        """
        address_text = f"{address[0]}:{address[1]}"
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            connection = await self.host.dial(address)
            on_connected()
            link = ClientLink(
                connection, self._receive_space, outgoing_bytes_max=self._outgoing_bytes_max
            )
            for run in (link.receive, link.send_loop):
                nursery.start_soon(self._run_contained, link, address_text, run)
            try:
                greeting = await self._complete_handshake(
                    link,
                    address,
                    credentials,
                    expected_node_id=expected_node_id,
                    listener=listener,
                    kind=kind,
                    principal=principal,
                )
            except BaseException as error:
                reason = error if isinstance(error, DistributedLogError) else None
                link.close(
                    reason or ConnectionLost(f"the connection to {address_text} was abandoned")
                )
                raise
            link.peer = self.with_common_features(greeting.hello)
            link.listener = greeting.listener
            if link.identity is not None:
                link.principal = link.identity.principal
            nursery.start_soon(self._run_contained, link, address_text, link.monitor)
            return link
        raise ConnectionLost(f"{address_text} did not answer within {HANDSHAKE_TIMEOUT_S:g} s")

    async def _run_contained(
        self, link: ClientLink, address_text: str, run: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a task of a dialed connection. An unexpected exception ends only this connection."""
        with self.failures.attempt(f"the connection to {address_text}") as attempt:
            await run()
        if attempt.failed:
            link.close(ConnectionLost(f"the connection to {address_text} failed here"))

    async def _complete_handshake(
        self,
        link: ClientLink,
        address: Address,
        credentials: Credentials | None,
        *,
        expected_node_id: str,
        listener: str,
        kind: str,
        principal: str,
    ) -> Greeting:
        """Exchange HELLO and AUTH over a new link, and check the node's HELLO and certificate."""
        address_text = f"{address[0]}:{address[1]}"
        own_hello = self.hello()
        link_credentials = credentials or self.host.credentials(address)
        if link_credentials is not None and link_credentials.proved_by_tls and not link.is_secret:
            link_credentials = None
        greeting = await self._exchange_handshake(
            link,
            own_hello,
            address,
            link_credentials,
            expected_node_id=expected_node_id,
            listener=listener,
        )
        hellos.check_hello(own_hello, greeting, address_text, expected_node_id=expected_node_id)
        hellos.check_identity(
            link.identity,
            greeting.hello,
            address_text,
            expected_kind=kind,
            expected_principal=principal,
        )
        return greeting

    async def _exchange_handshake(
        self,
        link: ClientLink,
        own_hello: Hello,
        address: Address,
        link_credentials: Credentials | None,
        *,
        expected_node_id: str,
        listener: str,
    ) -> Greeting:
        """Send HELLO and AUTH, and wait for those of the server.

        Both are sent together, unless the proof needs the server's nonce.
        """
        needs_nonce = link_credentials is not None and link_credentials.needs_nonce
        nonce = self.host.secret_bytes(NONCE_BYTES) if needs_nonce else b""
        hello = hellos.encode_hello(
            own_hello,
            expected_node_id=expected_node_id,
            listener=listener,
            nonce=nonce,
            methods=(hellos.METHOD_NONE,)
            if link_credentials is None
            else (link_credentials.method, hellos.METHOD_NONE),
        )
        context = HandshakeContext(
            link.peer_address, address[1], client_nonce=nonce, is_secret=link.is_secret
        )
        first_frames: tuple[Buffer, ...] = (envelope(Op.HELLO, len(hello)), hello)
        if needs_nonce:
            link.send(*first_frames)
            greeting = await link.wait_hello()
            context = replace(
                context,
                server_nonce=greeting.nonce,
                listener=greeting.listener,
                identity=link.identity,
            )
            first_frames = ()
        auth = hellos.encode_auth()
        if link_credentials is not None:
            auth = hellos.encode_auth(link_credentials.method, link_credentials.prove(context))
        link.send(*first_frames, envelope(Op.AUTH, len(auth)), auth)
        greeting = await link.wait_welcome()
        if link_credentials is not None:
            link_credentials.check(context, link.welcome)
        return greeting

    async def serve(
        self,
        listeners: Mapping[str, Listener],
        make_session: Callable[[Link], LinkSession],
        *,
        is_node: Callable[[Hello], bool] | None = None,
    ) -> None:
        """Serve until cancelled. An `AssertionError` of a session ends the node.

        Args:
            listeners: The open listeners, by name.
            make_session: Makes the session of an authenticated connection.
            is_node: Whether a peer is a node of the cluster, for which connection slots are reserved. By
                default, the HELLO of the peer decides.
        """
        async with trio.open_nursery() as nursery:
            links: dict[int, Link] = {}
            limiter = ConnectionLimiter(self.host.connections_max)
            keep_running = self.failures.keep_running
            nursery.start_soon(
                keep_running, "the end of silent connections", self._end_overdue_links, links
            )
            for name in listeners:
                nursery.start_soon(
                    keep_running,
                    "the listener at {}:{}".format(*listeners[name].address),
                    self._accept,
                    name,
                    listeners[name],
                    make_session,
                    is_node or self._claims_node,
                    limiter,
                    links,
                    nursery,
                )

    def _claims_node(self, hello: Hello) -> bool:
        return hello.kind in NODE_KINDS and hello.cluster_id == self.hello().cluster_id != ""

    def _close_evicted(self, link: Link | None) -> None:
        """Close a connection that was evicted for another one."""
        if link is not None:
            self._end_link(link, TOO_MANY_CONNECTIONS, "a newer connection took its slot")

    async def _accept(
        self,
        name: str,
        listener: Listener,
        make_session: Callable[[Link], LinkSession],
        is_node: Callable[[Hello], bool],
        limiter: ConnectionLimiter,
        links: dict[int, Link],
        nursery: trio.Nursery,
    ) -> None:
        own_host = listener.address[0]
        while True:
            connection = await listener.accept()
            self._accepted_count += 1
            link = Link(
                connection,
                self._receive_space,
                outgoing_bytes_max=self._outgoing_bytes_max,
                frame_bytes_max=UNAUTHENTICATED_FRAME_BYTES_MAX,
            )
            link.listener = name
            link.handshake_deadline = trio.current_time() + HANDSHAKE_TIMEOUT_S
            self.connections += 1
            self._close_evicted(limiter.admit(link))
            local = host_of(link.peer_address) in ("127.0.0.1", "[::1]", own_host)

            def greeted(link: Link = link, local: bool = local) -> None:
                node = is_node(link.peer)
                now = trio.current_time()
                self._close_evicted(
                    limiter.classify(link, link.peer, is_node=node, is_local=local, now=now)
                )

            port = listener.address[1]
            server_connection = _ServerConnection(
                self, link, port, make_session, greeted, self._on_fault, nursery
            )
            nursery.start_soon(self._run_serving, link, link.send_loop)
            nursery.start_soon(
                self._run_serving,
                link,
                partial(self._receive, server_connection, limiter, links, self._accepted_count),
            )

    async def _run_serving(self, link: Link, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task of an accepted connection. An unexpected exception ends only this connection.

        An `AssertionError` passes, because it may come from the code by which the session acknowledges.
        """
        try:
            await run()
        except AssertionError:
            raise
        except Exception as error:
            self._on_fault(link, error)

    def _on_fault(self, link: Link, error: Exception) -> None:
        """Log an unexpected exception of a session with its place in the code, without data of the peer."""
        self.rejection_log.record(
            link.peer_address,
            FAULT,
            type(error).__name__,
            code_location="".join(traceback.format_tb(error.__traceback__)[-FAULT_TRACE_FRAMES:]),
            level=logging.ERROR,
        )
        link.close(ConnectionLost(f"serving {link.peer_address} failed here"))

    async def _receive(
        self,
        server_connection: "_ServerConnection",
        limiter: ConnectionLimiter,
        links: dict[int, Link],
        serial: int,
    ) -> None:
        """Receive the frames of an accepted connection until it ends, then free its slot.

        Args:
            server_connection: The connection.
            limiter: Counts the connections of the server.
            links: The open connections of the server, which `_end_overdue_links` checks for silence.
            serial: The key of this connection in ``links``.
        """
        link = server_connection.link
        links[serial] = link
        try:
            await link.receive_loop(server_connection.handle_frames)
        finally:
            del links[serial]
            limiter.release(link)
            self.connections -= 1
            if link.closed is not None and (reason := rejection_reason(link.closed)):
                self.rejection_log.record(link.peer_address, reason, link.closed)
            link.close(ConnectionLost(f"the connection of {link.peer_address} was closed here"))
            if server_connection.session is not None:
                server_connection.session.on_closed()

    async def _end_overdue_links(self, links: dict[int, Link]) -> None:
        while True:
            sleep_started = trio.current_time()
            await trio.sleep(SWEEP_INTERVAL_S)
            now = trio.current_time()
            oversleep_s = now - sleep_started - SWEEP_INTERVAL_S
            for link in list(links.values()):
                if oversleep_s > STALL_S:
                    link.reader.received_at += oversleep_s
                    link.reader.deadline += oversleep_s
                    link.handshake_deadline += oversleep_s
                elif now > link.handshake_deadline:
                    self._end_link(link, SILENT, "it did not authenticate in time")
                elif now > link.proof_ends_at:
                    token_text = f"the token of {link.principal} has ended"
                    link.refuse(NotAuthenticated(token_text, NotAuthenticated.ENDED))
                elif now > link.reader.deadline:
                    self._end_link(link, UNFINISHED, "it did not complete a frame in time")
                elif now - link.received_at > SERVER_SILENCE_TIMEOUT_S:
                    link.close(
                        ConnectionLost(
                            f"{link.peer_address} was silent for {SERVER_SILENCE_TIMEOUT_S:g} s"
                        )
                    )

    def _end_link(self, link: Link, reason: str, message: str) -> None:
        self.rejection_log.record(link.peer_address, reason, message)
        link.close(ConnectionLost(f"{link.peer_address}: {message}"))


class _ServerConnection:
    """The server's side of a connection: first HELLO and AUTH, then the frames of its session."""

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
        """The nonces of the client and of the server."""
        self._make_session = make_session
        self._on_greeted = on_greeted
        self._on_fault = on_fault
        self._has_hello = False
        self._is_verifying_remotely = False
        """Whether another server is verifying the proof."""
        self._nursery = nursery

    def handle_frames(self, frames: Iterator[Frame]) -> None:
        """Handle the frames of one receive; stop after one that closed the link."""
        link = self.link
        for op, flags, status, ident, deadline_ms, body, _ in frames:
            session = self.session
            allowed = link.allowed_operations
            try:
                if session is None:
                    self._handle_handshake(op, body)
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

    def _handle_handshake(self, op: int, body: memoryview) -> None:
        link = self.link
        if op == Op.HELLO and not self._has_hello:
            greeting = hellos.decode_hello(body, link.peer_address)
            own_hello = self._endpoint.hello()
            try:
                hellos.check_hello(own_hello, greeting, link.peer_address)
            except WrongPeer as error:
                # From the peer's point of view, this node is the wrong one.
                raise WrongPeer(
                    f"this is {own_hello.kind} {own_hello.node_id or '(no id yet)'} of cluster"
                    f" {own_hello.cluster_id or '(none yet)'}: {error}"
                ) from None
            hellos.check_identity(link.identity, greeting.hello, link.peer_address)
            link.peer = self._endpoint.with_common_features(greeting.hello)
            nonce = self._endpoint.host.secret_bytes(NONCE_BYTES) if greeting.nonce else b""
            self._nonces = (greeting.nonce, nonce)
            self._has_hello = True
            answer = hellos.encode_hello(
                own_hello,
                listener=link.listener,
                nonce=nonce,
                methods=[*self._endpoint.methods, *self._endpoint.remote_methods],
            )
            link.send(envelope(Op.HELLO, len(answer)), answer)
        elif op == Op.AUTH and self._has_hello and not self._is_verifying_remotely:
            method, proof = hellos.decode_auth(body, link.peer_address)
            verify_remotely = self._endpoint.remote_methods.get(method)
            if verify_remotely is None:
                self._accept_peer(self._verify(method, proof))
            else:
                self._is_verifying_remotely = True
                self._nursery.start_soon(self._verify_remotely, verify_remotely, proof)
        else:
            raise ProtocolError(f"{link.peer_address} sent operation {op} before HELLO and AUTH")

    def _accept_peer(self, welcome: Welcome) -> None:
        """Start to serve an authenticated peer."""
        link = self.link
        link.principal, link.rights = welcome.principal, welcome.rights
        link.token, link.proof_ends_at = welcome.token, trio.current_time() + welcome.valid_s
        link.allowed_operations = allowed_ops(welcome.principal)
        self._on_greeted()
        link.reader.frame_bytes_max = FRAME_BYTES_MAX
        link.handshake_deadline = float("inf")
        answer = hellos.encode_welcome(welcome)
        link.send(envelope(Op.AUTH, len(answer)), answer)
        self.session = self._make_session(link)

    async def _verify_remotely(self, verify: RemoteVerifier, proof: bytes) -> None:
        """Have another server verify the proof, within the deadline of the handshake.

        No other frame is accepted on this connection until then.
        """
        link = self.link
        try:
            with trio.move_on_at(link.handshake_deadline):
                welcome = await verify(self._handshake_context(), proof)
                if link.closed is None:
                    self._accept_peer(welcome)
        except DistributedLogError as error:
            link.refuse(error)
        except AssertionError:
            raise
        except Exception as error:
            self._on_fault(link, error)

    def _verify(self, method: str, proof: bytes) -> Welcome:
        """Verify a proof. Raises `NotAuthenticated`."""
        link, methods = self.link, self._endpoint.methods
        verify = methods.get(method)
        if verify is None:
            method_names = " or ".join([*methods, *self._endpoint.remote_methods])
            if BY_CERTIFICATE in methods and not link.is_secret:
                method_names += " over TLS (give --credentials)"
            if BY_LOCAL_SECRET in methods:
                method_names += (
                    " (a cluster of dlog local is for the user who started it, on this machine, with the"
                    " same HOME)"
                )
            raise NotAuthenticated(
                f"this server requires authentication by {method_names}; {link.peer_address} came with"
                f" {method if method.isascii() and method.isalnum() else 'another method'}"
            )
        return verify(self._handshake_context(), proof)

    def _handshake_context(self) -> HandshakeContext:
        link = self.link
        return HandshakeContext(
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
