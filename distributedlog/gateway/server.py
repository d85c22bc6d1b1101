"""Connections: hypercorn speaks HTTP on them, this bounds them.

Its own server takes any number, and waits for a peer that takes nothing as long as that likes, also when it
is told to end: so a listener stands between that lets in so many at a time, and a stream whose writes have a
deadline and which can be hung up on.

One address has at most three quarters of the connections that others have left; but for this machine's own,
where all clients of a gateway for this machine come from, and a balancer may.
"""

import errno
import os
import socket
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.logging import Logger as HypercornLogger
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from ..cluster.auth.token_attempts import network_of
from ..runtime.interfaces.errors import AddressInUse, AddressUnavailable
from ..runtime.interfaces.host import Address
from ..runtime.interfaces.log_lines import get_logger
from ..runtime.net.rejection_log import TOO_MANY_CONNECTIONS, RejectionLog
from ..runtime.process.descriptor_limit import connections_max, first_kept
from .error_responses import rejection_body
from .https_certificates import Certificates
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_format import JSON
from .request_guard import HEAD_BYTES_MAX, HEADERS, App

SEND_BUFFER_BYTES = 128 * 1024
"""That the system holds of one connection; it would hold megabytes."""
STREAMS_PER_CONNECTION = 32
"""Requests at a time on one connection of HTTP/2."""
BACKLOG = 128
LOCAL_NETWORKS = frozenset(map(network_of, ("127.0.0.1", "::1")))
NO_DESCRIPTOR_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_DESCRIPTOR_WAIT_S = 0.075
"""How long none is accepted when the process or the system has no descriptor left."""
NO_DESCRIPTOR_LOG_S = 60.0

log = get_logger("distributedlog.gateway")


class BoundedStream(trio.abc.HalfCloseableStream):
    """A connection whose peer takes what is sent to it in time, or is hung up on."""

    def __init__(
        self, stream: trio.SocketStream, open_connections: "OpenConnections", address: str
    ) -> None:
        self._stream = stream
        self._open_connections = open_connections
        self.address = address
        """Of the peer, as it is counted."""
        self.socket = stream.socket
        """Hypercorn asks it who the peer is."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Raises `trio.BrokenResourceError` also where the peer has not taken it in time."""
        with trio.move_on_after(self._open_connections.write_s):
            await self._stream.send_all(data)
            return
        self._open_connections.meters.hung_up += 1
        self.hang_up()
        raise trio.BrokenResourceError(
            f"it has taken nothing for {self._open_connections.write_s:g} s"
        )

    async def wait_send_all_might_not_block(self) -> None:
        """As of any stream."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As of any stream."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """As of any stream."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it. Idempotent."""
        self.hang_up()
        await trio.lowlevel.checkpoint()

    def hang_up(self) -> None:
        """Close it, whoever writes to it. Idempotent."""
        self._open_connections.remove(self)
        self.socket.close()


class OpenConnections:
    """The connections that are open, of all listeners."""

    def __init__(self, connections_max: int, write_s: float, meters: GatewayMeters) -> None:
        self.write_s = write_s
        self.meters = meters
        self.free_slots = trio.Semaphore(connections_max)
        self.open: set[BoundedStream] = set()
        self.empty = trio.Event()
        self.empty.set()
        self._count_by_address: Counter[str] = Counter()
        """How many of them each address has."""
        self._rejection_log = RejectionLog()
        self._no_descriptor_logged_at = -float("inf")

    def has_share(self, address: str) -> bool:
        """May one more of that address be accepted, whose place was taken?"""
        own_count = self._count_by_address[address]
        return address in LOCAL_NETWORKS or own_count < max(
            1, (self.free_slots.value + 1 + own_count) * 3 // 4
        )

    def record_rejected(self, address: str) -> None:
        """One was hung up on, for its address has its share."""
        self.meters.turned_away += 1
        self._rejection_log.record(
            address,
            TOO_MANY_CONNECTIONS,
            f"{self._count_by_address[address]} connections are its share",
        )

    def record_no_descriptor(self, why: str) -> None:
        """None is accepted for now."""
        now = trio.current_time()
        if now - self._no_descriptor_logged_at >= NO_DESCRIPTOR_LOG_S:
            self._no_descriptor_logged_at = now
            log.warning(
                "no connection is accepted while there are no descriptors (%s): raise ulimit -n, or lower"
                " connections_max and sessions_max",
                why,
            )

    def add(self, stream: BoundedStream) -> None:
        """A connection was accepted."""
        if not self.open:
            self.empty = trio.Event()
        self.open.add(stream)
        self._count_by_address[stream.address] += 1
        self.meters.connections = len(self.open)

    def remove(self, stream: BoundedStream) -> None:
        """It is closed. Idempotent."""
        if stream in self.open:
            self.open.discard(stream)
            self._count_by_address[stream.address] -= 1
            if not self._count_by_address[stream.address]:
                del self._count_by_address[stream.address]
            self.free_slots.release()
            self.meters.connections = len(self.open)
            if not self.open:
                self.empty.set()


class BoundedListener(trio.abc.Listener[BoundedStream]):
    """Accepts while there is room."""

    def __init__(self, listener: trio.SocketListener, open_connections: OpenConnections) -> None:
        self._listener = listener
        self.open_connections = open_connections
        self._first_reserved = first_kept()

    @property
    def address(self) -> Address:
        """Where it listens."""
        host, port = self._listener.socket.getsockname()[:2]
        return str(host), int(port)

    async def accept(self) -> BoundedStream:
        """The next connection, as soon as there may be one more."""
        while True:
            await self.open_connections.free_slots.acquire()
            try:
                stream, address = await self._accept_next()
            except BaseException:
                self.open_connections.free_slots.release()
                raise
            if self.open_connections.has_share(address):
                bounded_stream = BoundedStream(stream, self.open_connections, address)
                self.open_connections.add(bounded_stream)
                return bounded_stream
            self.open_connections.free_slots.release()
            self.open_connections.record_rejected(address)
            stream.socket.close()

    async def _accept_next(self) -> tuple[trio.SocketStream, str]:
        """One that is still there, when there are descriptors; and where it comes from."""
        while True:
            try:
                stream = await self._listener.accept()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR_ERRORS:
                    raise
                why = os.strerror(error.errno)
            else:
                if stream.socket.fileno() < self._first_reserved:
                    try:
                        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                        return stream, network_of(str(stream.socket.getpeername()[0]))
                    except OSError:  # it has gone already
                        stream.socket.close()
                        continue
                stream.socket.close()
                why = "the last ones are for what is done here"
            self.open_connections.record_no_descriptor(why)
            await trio.sleep(NO_DESCRIPTOR_WAIT_S)

    async def aclose(self) -> None:
        """Listen no more."""
        await self._listener.aclose()


class _Lines(HypercornLogger):  # type: ignore[misc]
    """Hypercorn's log lines, which go where all lines of this package go. There is no access log.

    From any other ``errorlog`` than a `logging.Logger`, Hypercorn makes a logger and a handler of its own.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.error_logger = log


class UnsupportedRequest(Exception):
    """A request that is not looked at any further: why, and what to do."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(why)
        self.do = do


class GatewayServer(TCPServer):  # type: ignore[misc]
    """What hypercorn takes and is not taken here, for whoever stands before the gateway sees it otherwise.

    - A request with two lengths: by the other one its end would be a request of its own.
    - ``Upgrade: h2c``: all that comes after it would be passed on, and nothing of it looked at. HTTP/2 is
      spoken where TLS has agreed on it.
    - WebSockets: there are none, and what came after the question for one ended in a traceback.
    """

    def __init__(self, meters: GatewayMeters, *given: Any) -> None:
        super().__init__(*given)
        self._meters = meters

    async def _read_data(self) -> None:
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol):
            protocol._check_protocol = _check_request
        # If more bytes follow a request that ends its connection, it may be done and answered 400. No HTTP
        # client sends them.
        try:
            await super()._read_data()
            await self.idle_task.stop()  # who has hung up keeps no place until `idle_s` is over
        except UnsupportedRequest as error:
            assert isinstance(protocol, H11Protocol), "there are none elsewhere"
            self._meters.turned_away += 1
            self._meters.refused += 1
            body = rejection_body(400, str(error), error.do)
            headers = {
                **HEADERS,
                b"content-type": JSON.encode(),
                b"content-length": b"%d" % len(body),
                b"connection": b"close",
            }
            for event in (
                h11.Response(status_code=400, headers=list(headers.items())),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                await protocol._send_h11_event(event)


async def _check_request(request: h11.Request) -> None:
    """Raises `UnsupportedRequest`."""
    if {b"transfer-encoding", b"content-length"} <= {name for name, _ in request.headers}:
        raise UnsupportedRequest(
            "Content-Length and Transfer-Encoding come together", "say once how long a request is"
        )
    if (b"upgrade", b"websocket") in ((name, value.lower()) for name, value in request.headers):
        raise UnsupportedRequest("there are no WebSockets here", "ask by HTTP: docs/guides/http.md")


async def listen(
    address: Address, options: GatewayOptions, meters: GatewayMeters
) -> list[BoundedListener]:
    """Listen there; port 0: a free one. Raises `AddressInUse`, `AddressUnavailable`."""
    host, port = address
    open_connections = OpenConnections(
        connections_max(options.connections_max), options.write_s, meters
    )
    try:
        tcp_listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        reason = f"cannot listen on {host}:{port} (--listen): {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(reason) from None
        raise AddressUnavailable(reason) from None
    return [BoundedListener(tcp_listener, open_connections) for tcp_listener in tcp_listeners]


async def serve(
    app: App,
    listeners: Sequence[BoundedListener],
    options: GatewayOptions,
    stop_requested: trio.Event,
    certificates: Certificates | None = None,
) -> None:
    """Answer until told to end; then requests that are under way have `stop_s`."""
    config = Config()
    config.logger_class = _Lines
    config.errorlog = None
    config.accesslog = None
    config.include_server_header = False
    config.keep_alive_timeout = options.idle_s
    config.ssl_handshake_timeout = options.idle_s
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.h2_max_header_list_size = HEAD_BYTES_MAX
    config.h2_max_concurrent_streams = STREAMS_PER_CONNECTION
    context = WorkerContext(None)
    open_connections = listeners[0].open_connections

    async def one(stream: BoundedStream) -> None:
        try:
            server_stream: Any = stream if certificates is None else certificates.wrap_tls(stream)
            await GatewayServer(
                open_connections.meters, ASGIWrapper(app), config, context, {}, server_stream
            )
        except Exception:
            log.exception("a connection")  # and no other one
        finally:
            stream.hang_up()

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(trio.serve_listeners, one, list(listeners), handler_nursery=connections)
            )
            await stop_requested.wait()
            accepting.cancel_scope.cancel()
        with trio.move_on_after(options.stop_s):
            await context.terminated.set()
            await open_connections.empty.wait()
        for stream in list(open_connections.open):
            stream.hang_up()  # a write that waits for its peer is not cancelled, but ends
        connections.cancel_scope.cancel()
