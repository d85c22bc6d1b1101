"""Connections: hypercorn speaks HTTP on them, this bounds them.

Its own server takes any number, and waits for a peer that takes nothing as long as that likes, also when it
is told to end: so a listener stands between that lets in so many at a time, and a stream whose writes have a
deadline and which can be hung up on.
"""

import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from ..runtime.descriptors import connections_max
from ..runtime.errors import AddressInUse
from ..runtime.host import Address
from .door import App
from .https import Certificates
from .metrics import GatewayMeters
from .options import GatewayOptions

HEAD_BYTES_MAX = 16 * 1024
"""Of a request's line and headers."""
SEND_BUFFER_BYTES = 128 * 1024
"""That the system holds of one connection; it would hold megabytes."""
STREAMS_OF_A_CONNECTION = 32
"""Requests at a time on one connection of HTTP/2."""
BACKLOG = 128

log = logging.getLogger("distributedlog.gateway")


class BoundedStream(trio.abc.HalfCloseableStream):
    """A connection whose peer takes what is sent to it in time, or is hung up on."""

    def __init__(self, stream: trio.SocketStream, bounds: "Bounds") -> None:
        self._stream = stream
        self._bounds = bounds
        self.socket = stream.socket
        """Hypercorn asks it who the peer is."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Raises `trio.BrokenResourceError` also where the peer has not taken it in time."""
        with trio.move_on_after(self._bounds.write_s):
            await self._stream.send_all(data)
            return
        self._bounds.meters.hung_up += 1
        self.hang_up()
        raise trio.BrokenResourceError(f"it has taken nothing for {self._bounds.write_s:g} s")

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
        self._bounds.left(self)
        self.socket.close()


class Bounds:
    """The connections that are open, of all listeners."""

    def __init__(self, connections_max: int, write_s: float, meters: GatewayMeters) -> None:
        self.write_s = write_s
        self.meters = meters
        self.room = trio.Semaphore(connections_max)
        self.open: set[BoundedStream] = set()
        self.empty = trio.Event()
        self.empty.set()

    def entered(self, stream: BoundedStream) -> None:
        """A connection was accepted."""
        if not self.open:
            self.empty = trio.Event()
        self.open.add(stream)
        self.meters.connections = len(self.open)

    def left(self, stream: BoundedStream) -> None:
        """It is closed. Idempotent."""
        if stream in self.open:
            self.open.discard(stream)
            self.room.release()
            self.meters.connections = len(self.open)
            if not self.open:
                self.empty.set()


class BoundedListener(trio.abc.Listener[BoundedStream]):
    """Accepts while there is room."""

    def __init__(self, listener: trio.SocketListener, bounds: Bounds) -> None:
        self._listener = listener
        self.bounds = bounds

    @property
    def address(self) -> Address:
        """Where it listens."""
        host, port = self._listener.socket.getsockname()[:2]
        return str(host), int(port)

    async def accept(self) -> BoundedStream:
        """The next connection, as soon as there may be one more."""
        await self.bounds.room.acquire()
        try:
            stream = await self._listener.accept()
        except BaseException:
            self.bounds.room.release()
            raise
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        found = BoundedStream(stream, self.bounds)
        self.bounds.entered(found)
        return found

    async def aclose(self) -> None:
        """Listen no more."""
        await self._listener.aclose()


async def listen(
    address: Address, options: GatewayOptions, meters: GatewayMeters
) -> list[BoundedListener]:
    """Listen there; port 0: a free one. Raises `AddressInUse`."""
    host, port = address
    bounds = Bounds(connections_max(options.connections_max), options.write_s, meters)
    try:
        found = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise AddressInUse(f"{host}:{port}: {error.strerror or error}") from None
    return [BoundedListener(one, bounds) for one in found]


async def serve(
    app: App,
    listeners: Sequence[BoundedListener],
    options: GatewayOptions,
    told: trio.Event,
    certificates: Certificates | None = None,
) -> None:
    """Answer until told to end; then requests that are under way have `stop_s`."""
    config = Config()
    config.errorlog = log
    config.accesslog = None
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.keep_alive_timeout = options.idle_s
    config.ssl_handshake_timeout = options.idle_s
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.h2_max_header_list_size = HEAD_BYTES_MAX
    config.h2_max_concurrent_streams = STREAMS_OF_A_CONNECTION
    context = WorkerContext(None)

    async def one(stream: BoundedStream) -> None:
        try:
            spoken: Any = stream if certificates is None else certificates.speak(stream)
            await TCPServer(ASGIWrapper(app), config, context, {}, spoken)
        except Exception:
            log.exception("a connection")  # and no other one
        finally:
            stream.hang_up()

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(trio.serve_listeners, one, list(listeners), handler_nursery=connections)
            )
            await told.wait()
            accepting.cancel_scope.cancel()
        bounds = listeners[0].bounds
        with trio.move_on_after(options.stop_s):
            await context.terminated.set()
            await bounds.empty.wait()
        for stream in list(bounds.open):
            stream.hang_up()  # a write that waits for its peer is not cancelled, but ends
        connections.cancel_scope.cancel()
