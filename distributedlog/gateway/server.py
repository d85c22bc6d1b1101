"""Accept connections and limit them; hypercorn handles HTTP on them.

Hypercorn's own server accepts any number of connections. It waits without a limit for a client that does not
read, even when it is stopped. So a listener in front of it limits the number of connections, and a stream has
a deadline for writes and can be closed at any time.

One address can have at most three quarters of the connection slots that other addresses leave. This machine's
own addresses have no such limit, because all clients of a local gateway, or a load balancer, connect from
them.
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
from ..runtime.process.descriptor_limit import connections_max, first_reserved
from .error_responses import rejection_body
from .https_certificates import Certificates
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_format import JSON
from .request_guard import HEAD_BYTES_MAX, HEADERS, App

SEND_BUFFER_BYTES = 128 * 1024
"""The send buffer of the system per connection, which would be megabytes by default."""
STREAMS_PER_CONNECTION = 32
"""Concurrent requests on one HTTP/2 connection."""
BACKLOG = 128
LOCAL_NETWORKS = frozenset(map(network_of, ("127.0.0.1", "::1")))
NO_DESCRIPTOR_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_DESCRIPTOR_WAIT_S = 0.075
"""The pause when the process or the system has no free descriptor."""
NO_DESCRIPTOR_LOG_S = 60.0

log = get_logger("distributedlog.gateway")


class BoundedStream(trio.abc.HalfCloseableStream):
    """A connection that is closed if its client does not read in time."""

    def __init__(
        self, stream: trio.SocketStream, open_connections: "OpenConnections", address: str
    ) -> None:
        self._stream = stream
        self._open_connections = open_connections
        self.address = address
        """The address of the client for counting: a network (`network_of`)."""
        self.socket = stream.socket
        """Hypercorn reads the client's address from it."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all data.

        Raises:
            trio.BrokenResourceError: The connection is broken, or the client did not read in time.
        """
        with trio.move_on_after(self._open_connections.write_s):
            await self._stream.send_all(data)
            return
        self._open_connections.meters.hung_up += 1
        self.close_now()
        raise trio.BrokenResourceError(
            f"the client has read nothing for {self._open_connections.write_s:g} s"
        )

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See `trio.abc.ReceiveStream`."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """See `trio.abc.HalfCloseableStream`."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        self.close_now()
        await trio.lowlevel.checkpoint()

    def close_now(self) -> None:
        """Close the connection, even during a write. Idempotent."""
        self._open_connections.remove(self)
        self.socket.close()


class OpenConnections:
    """The open connections of all listeners."""

    def __init__(self, connections_max: int, write_s: float, meters: GatewayMeters) -> None:
        self.write_s = write_s
        self.meters = meters
        self.free_slots = trio.Semaphore(connections_max)
        self.open: set[BoundedStream] = set()
        self.empty = trio.Event()
        self.empty.set()
        self._count_by_address: Counter[str] = Counter()
        """The number of open connections per address."""
        self._rejection_log = RejectionLog()
        self._no_descriptor_logged_at = -float("inf")

    def has_share(self, address: str) -> bool:
        """Return whether an address may have one more connection, whose slot is already acquired."""
        own_count = self._count_by_address[address]
        return address in LOCAL_NETWORKS or own_count < max(
            1, (self.free_slots.value + 1 + own_count) * 3 // 4
        )

    def record_rejected(self, address: str) -> None:
        """Record a connection that was closed because its address has reached its limit."""
        self.meters.turned_away += 1
        self._rejection_log.record(
            address,
            TOO_MANY_CONNECTIONS,
            f"its limit is {self._count_by_address[address]} connections now",
        )

    def record_no_descriptor(self, why: str) -> None:
        """Log that no connection can be accepted now."""
        now = trio.current_time()
        if now - self._no_descriptor_logged_at >= NO_DESCRIPTOR_LOG_S:
            self._no_descriptor_logged_at = now
            log.warning(
                "no connection is accepted while there are no descriptors (%s): raise ulimit -n, or lower"
                " connections_max and sessions_max",
                why,
            )

    def add(self, stream: BoundedStream) -> None:
        """Add an accepted connection."""
        if not self.open:
            self.empty = trio.Event()
        self.open.add(stream)
        self._count_by_address[stream.address] += 1
        self.meters.connections = len(self.open)

    def remove(self, stream: BoundedStream) -> None:
        """Remove a closed connection. Idempotent."""
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
    """A listener that accepts connections while there are free slots."""

    def __init__(self, listener: trio.SocketListener, open_connections: OpenConnections) -> None:
        self._listener = listener
        self.open_connections = open_connections
        self._first_reserved = first_reserved()

    @property
    def address(self) -> Address:
        """The address that it listens on."""
        host, port = self._listener.socket.getsockname()[:2]
        return str(host), int(port)

    async def accept(self) -> BoundedStream:
        """Wait for a free slot, and return the next connection."""
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
        """Return the next connection and its address, when descriptors are free."""
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
                    except OSError:  # the client has disconnected already
                        stream.socket.close()
                        continue
                stream.socket.close()
                why = "the last ones are reserved"
            self.open_connections.record_no_descriptor(why)
            await trio.sleep(NO_DESCRIPTOR_WAIT_S)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()


class _Lines(HypercornLogger):  # type: ignore[misc]
    """Send hypercorn's log lines to the logger of this package. There is no access log.

    With any ``errorlog`` other than a `logging.Logger`, hypercorn makes its own logger and handler.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.error_logger = log


class UnsupportedRequest(Exception):
    """A request that is rejected without further checks, with the reason and the action to take."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(why)
        self.do = do


class GatewayServer(TCPServer):  # type: ignore[misc]
    """Reject requests that hypercorn and a proxy in front of the gateway may interpret differently.

    - A request with two lengths: by the other length, its end would be a separate request.
    - ``Upgrade: h2c``: a proxy passes on all later bytes without checking them. HTTP/2 is used only if TLS
      has negotiated it.
    - WebSockets: they are not supported, and hypercorn would fail on the data after the request for one.
    """

    def __init__(self, meters: GatewayMeters, *given: Any) -> None:
        super().__init__(*given)
        self._meters = meters

    async def _read_data(self) -> None:
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol):
            protocol._check_protocol = _check_request
        # If more bytes follow a request that ends its connection, the request may be performed and answered
        # with 400. No HTTP client sends such bytes.
        try:
            await super()._read_data()
            await self.idle_task.stop()  # a disconnected client does not keep its slot for `idle_s`
        except UnsupportedRequest as error:
            assert isinstance(protocol, H11Protocol), "only this protocol has the check"
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
    """Raise `UnsupportedRequest` for a request that is not supported."""
    if {b"transfer-encoding", b"content-length"} <= {name for name, _ in request.headers}:
        raise UnsupportedRequest(
            "Content-Length and Transfer-Encoding were both sent", "send only one of them"
        )
    if (b"upgrade", b"websocket") in ((name, value.lower()) for name, value in request.headers):
        raise UnsupportedRequest("WebSockets are not supported", "use HTTP: docs/guides/http.md")


async def listen(
    address: Address, options: GatewayOptions, meters: GatewayMeters
) -> list[BoundedListener]:
    """Listen on an address; port 0 selects a free port.

    Raises:
        AddressInUse: Another program listens on it.
        AddressUnavailable: This machine does not have the address.
    """
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
    """Serve connections until ``stop_requested``; then pending requests have `stop_s` to complete."""
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
            log.exception("a connection failed")  # other connections are not affected
        finally:
            stream.close_now()

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
            stream.close_now()  # hypercorn shields a waiting write from cancellation; this ends it
        connections.cancel_scope.cancel()
