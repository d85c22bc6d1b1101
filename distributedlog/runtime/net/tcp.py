"""Connections over TCP.

There are no stream objects. Reads place bytes into the caller's buffers (3.4 GB/s with messages of 64 KB,
against 1.75 GB/s with `trio.SocketStream`). A send is a plain call that sends as much as the socket accepts.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import trio

from ..interfaces.errors import (
    REFUSED,
    AddressInUse,
    AddressUnavailable,
    ConnectionLost,
    InvalidRequest,
)
from ..interfaces.host import Address, Buffer, Connection, Listener
from ..interfaces.principals import CertificateIdentity
from ..process import descriptor_limit as descriptors
from ..process.fork_safety import close_descriptor, forked_message, watch_forks

SEND_BUFFERS_MAX = 1024
"""IOV_MAX of Linux."""
BACKLOG = 1024
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Socket options, in seconds and numbers of probes."""
LOOPBACK_CONTROL = b"reno"
"""The congestion control for connections within this machine, where there is no congestion.

A congestion control with pacing (BBR, the default of some systems) takes two and a half times the CPU for
them. This one is in every kernel.
"""
NO_DESCRIPTOR_WAIT_S = 0.075
"""How long `accept` waits if the process or the system has no free descriptor."""

_REFUSED = os.strerror(errno.ECONNREFUSED).lower()
_NO_DESCRIPTOR_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_UNAVAILABLE_ERRORS = (errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT)


class TcpConnection:
    """One TCP connection, which owns the connected ``sock``. See `Connection`."""

    identity: CertificateIdentity | None = None
    is_secret = False
    has_begun_handshake = False

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        set_socket_options(sock)
        self.peer = peer
        self._sock = sock
        self._sendmsg = _sendmsg_of(sock)
        self._end_reason = ""
        self._is_drained = False
        watch_forks(self)

    async def receive_into(self, *buffers: memoryview) -> int:
        """See `Connection.receive_into`. One task at a time."""
        if self._is_drained:  # the last read emptied the socket, so waiting is the checkpoint
            await self._wait(trio.lowlevel.wait_readable)
        else:
            await trio.lowlevel.checkpoint()
        while True:
            self._check_alive()
            try:
                if len(buffers) == 1:
                    received = self._sock.recv_into(buffers[0])
                else:
                    received = self._sock.recvmsg_into(buffers)[0]
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)
                continue
            except OSError as error:
                raise self._connection_broken(error) from None
            self._is_drained = 0 < received < sum(map(len, buffers))
            return received

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """See `Connection.try_send`."""
        self._check_alive()
        sent = 0
        try:
            for first in range(0, len(buffers), SEND_BUFFERS_MAX):
                chunk = buffers[first : first + SEND_BUFFERS_MAX]
                count = self._sendmsg(chunk)
                sent += count
                if count < sum(map(len, chunk)):
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._connection_broken(error) from None
        return sent

    async def wait_writable(self) -> None:
        """See `Connection.wait_writable`. One task at a time."""
        self._check_alive()
        await self._wait(trio.lowlevel.wait_writable)

    def close(self) -> None:
        """Close now; waiting tasks get `ConnectionLost`. Idempotent."""
        self._end_reason = self._end_reason or f"the connection to {self.peer} was closed here"
        _close(self._sock)

    def on_forked(self) -> None:
        """Close the copy in a forked child, without a message to the peer of the parent (H15)."""
        self._end_reason = forked_message(f"the connection to {self.peer}")
        close_descriptor(self._sock.detach())

    async def _wait(self, until_ready: Callable[[int], Awaitable[None]]) -> None:
        self._check_alive()
        try:
            await until_ready(self._sock.fileno())
        except trio.ClosedResourceError:
            self._check_alive()
            raise

    def _connection_broken(self, error: OSError) -> ConnectionLost:
        self._end_reason = f"the connection to {self.peer} broke: {_reason(error)}"
        return ConnectionLost(self._end_reason)

    def _check_alive(self) -> None:
        if self._end_reason:
            raise ConnectionLost(self._end_reason)


class TcpListener:
    """A listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        host, port = sock.getsockname()[:2]
        self.address: Address = (host, port)
        self._closed_reason = ""
        self._first_reserved = descriptors.first_reserved()
        watch_forks(self)

    async def accept(self) -> Connection:
        """Wait for the next connection. Raises `ConnectionLost` when this listener is closed."""
        while True:
            if self._closed_reason:
                raise ConnectionLost(self._closed_reason)
            try:
                await trio.lowlevel.wait_readable(self._sock.fileno())
                sock, address = self._sock.accept()
            except BlockingIOError:
                continue  # the client disconnected already, or another listener was faster
            except trio.ClosedResourceError:
                continue
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR_ERRORS:
                    await trio.sleep(NO_DESCRIPTOR_WAIT_S)
                continue  # Linux reports errors of the new connection here
            if sock.fileno() >= self._first_reserved:
                sock.close()  # the last descriptors are reserved for files
                await trio.sleep(NO_DESCRIPTOR_WAIT_S)
                continue
            return TcpConnection(sock, format_address(address))

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closed_reason = (
            self._closed_reason or f"the listener on {format_address(self.address)} was closed here"
        )
        _close(self._sock)

    def on_forked(self) -> None:
        """Close the copy in a forked child; the parent continues to listen (H15)."""
        self._closed_reason = forked_message(f"the listener on {format_address(self.address)}")
        close_descriptor(self._sock.detach())


async def dial(address: Address) -> Connection:
    """Connect to the first of a host's addresses that answers.

    Raises:
        ConnectionLost: No address accepted the connection.
    """
    host, port = address
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (OSError, ValueError) as error:  # ValueError for an invalid host name in a registration
        reason = _dial_reason(error)
        detail = REFUSED if reason == _REFUSED else ""
        raise ConnectionLost(
            f"{format_address(address)}: no connection: {reason}", detail
        ) from None
    sock = socket.socket(fileno=stream.socket.detach())
    try:
        is_own_end = sock.getsockname() == sock.getpeername()
    except OSError as error:  # it was accepted and reset at once
        sock.close()
        raise ConnectionLost(
            f"{format_address(address)}: no connection: {_dial_reason(error)}"
        ) from None
    if is_own_end:
        # No program listens on this local port, and the system chose it for this end of the connection.
        sock.close()
        raise ConnectionLost(f"{format_address(address)}: no connection: {_REFUSED}", REFUSED)
    return TcpConnection(sock, format_address(address))


async def listen(
    address: Address, on_bound: Callable[[Address], None] = lambda address: None
) -> Listener:
    """Listen on an address.

    Args:
        address: Host and port. An empty host means all addresses; port 0 lets the system choose one.
        on_bound: Receives the address with its real port before any client can connect.

    Raises:
        AddressInUse: Another program listens on the address.
        AddressUnavailable: The host name cannot be resolved, or no network interface has the address.
        InvalidRequest: The system refuses the address for another reason.
    """
    host, port = address
    try:
        candidates = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise AddressUnavailable(
            f"cannot listen on {format_address(address)}: the host name cannot be resolved ({error.strerror})"
        ) from None
    if not host:  # one IPv6 socket accepts both families, if the system has both
        candidates.sort(key=lambda entry: entry[0] != socket.AF_INET6)
    problem: OSError | None = None
    for family, kind, protocol, _, socket_address in candidates:
        try:
            return TcpListener(
                _bind(family, kind, protocol, socket_address, on_bound, both_families=not host)
            )
        except OSError as error:
            problem = problem or error
            if error.errno not in _UNAVAILABLE_ERRORS:
                problem = error
                break
    assert problem is not None, "getaddrinfo returns an address or raises an error"
    if problem.errno == errno.EADDRINUSE:
        raise AddressInUse(f"{format_address(address)} is in use by another program") from None
    if problem.errno == errno.EADDRNOTAVAIL:
        raise AddressUnavailable(
            f"cannot listen on {format_address(address)}: no network interface has this address"
        ) from None
    raise InvalidRequest(
        f"cannot listen on {format_address(address)}: {problem.strerror}"
    ) from None


def format_address(address: Sequence[object]) -> str:
    """Return an address as text: ``10.0.0.3:4181`` or ``[::1]:4181``."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(
    family: int,
    kind: int,
    protocol: int,
    socket_address: tuple[object, ...],
    on_bound: Callable[[Address], None],
    *,
    both_families: bool,
) -> socket.socket:
    """Return a listening socket; see `listen`.

    ``on_bound`` is called before the socket listens. It publishes or removes the secret of the address
    (`local_secret.py`), which must be complete when the first client connects.
    """
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both_families else 1)
        sock.bind(socket_address)
        host, port = sock.getsockname()[:2]
        on_bound((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def set_socket_options(sock: socket.socket) -> None:
    """Set the socket options of a connection: no delays, keepalive, and no pacing on loopback."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:  # clients also run elsewhere
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        peer = sock.getpeername()[0]
    except OSError:
        return  # already broken: the first read or send raises the error
    if (option := getattr(socket, "TCP_CONGESTION", None)) is not None and is_loopback(peer):
        with contextlib.suppress(OSError):  # otherwise, the system's default stays
            sock.setsockopt(socket.IPPROTO_TCP, option, LOOPBACK_CONTROL)


def is_loopback(host: str) -> bool:
    """Return whether a socket's address is a loopback address of this machine."""
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


def _sendmsg_of(sock: socket.socket) -> Callable[[Sequence[Buffer]], int]:
    if hasattr(sock, "sendmsg"):
        return sock.sendmsg
    return lambda buffers: sock.send(b"".join(buffers))  # Windows: a copy, for a client


def _close(sock: socket.socket) -> None:
    if sock.fileno() >= 0:
        with contextlib.suppress(RuntimeError):  # the trio run has ended, so no task waits
            trio.lowlevel.notify_closing(sock.fileno())
        sock.close()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _dial_reason(error: OSError | ValueError) -> str:
    """Return the distinct reasons of all connection attempts that trio made."""
    if isinstance(error, ValueError):
        return "invalid host name"
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error.strerror})"
    causes: list[BaseException] = [error.__cause__] if error.__cause__ else [error]
    reasons: list[str] = []
    while causes:
        cause = causes.pop(0)
        if isinstance(cause, BaseExceptionGroup):
            causes += cause.exceptions
        elif isinstance(cause, OSError):
            reasons.append(_reason(cause))
        else:
            reasons.append(str(cause))
    return ", ".join(dict.fromkeys(reasons))
