"""Connections over TCP.

No stream objects: reading lands in the caller's buffers (3.4 GB/s at 64 KB messages, against 1.75
through `trio.SocketStream`), and sending is a plain call that takes what the socket takes.
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
"""Linux' IOV_MAX."""
BACKLOG = 1024
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Options of a socket, in seconds and probes."""
LOOPBACK_CONTROL = b"reno"
"""Of what is sent to this very machine, where nothing is congested. A congestion control that paces (BBR,
which some systems come with) takes two and a half times the CPU for it; this one is in every kernel."""
NO_DESCRIPTOR_WAIT_S = 0.075
"""How long `accept` waits when the process or the system has no descriptor left."""

_REFUSED = os.strerror(errno.ECONNREFUSED).lower()
_NO_DESCRIPTOR_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_UNAVAILABLE_ERRORS = (errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT)


class TcpConnection:
    """One TCP connection. See `Connection`; ``sock`` is connected and becomes this object's own."""

    identity: CertificateIdentity | None = None
    is_secret = False
    has_begun = False

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        tune(sock)
        self.peer = peer
        self._sock = sock
        self._sendmsg = _sendmsg_of(sock)
        self._end_reason = ""
        self._is_drained = False
        watch_forks(self)

    async def receive_into(self, *buffers: memoryview) -> int:
        """See `Connection.receive_into`. One task at a time."""
        if self._is_drained:  # the last read emptied the socket: waiting for more is the checkpoint
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
        """Close now; whoever waits gets `ConnectionLost`. Idempotent."""
        self._end_reason = self._end_reason or f"the connection to {self.peer} was closed here"
        _close(self._sock)

    def on_forked(self) -> None:
        """In a forked child: let go without a word to the peer, who talks to the parent (H15)."""
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
        self._first_reserved = descriptors.first_kept()
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
                continue  # somebody hung up before we came, or another listener was faster
            except trio.ClosedResourceError:
                continue
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR_ERRORS:
                    await trio.sleep(NO_DESCRIPTOR_WAIT_S)
                continue  # what ailed was that one connection: Linux reports its errors here
            if sock.fileno() >= self._first_reserved:
                sock.close()  # the last descriptors are for files
                await trio.sleep(NO_DESCRIPTOR_WAIT_S)
                continue
            return TcpConnection(sock, format_address(address))

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closed_reason = (
            self._closed_reason or f"nobody listens on {format_address(self.address)} any more"
        )
        _close(self._sock)

    def on_forked(self) -> None:
        """In a forked child: the parent goes on listening (H15)."""
        self._closed_reason = forked_message(f"the listener on {format_address(self.address)}")
        close_descriptor(self._sock.detach())


async def dial(address: Address) -> Connection:
    """Connect to the first of a host's addresses that answers. Raises `ConnectionLost`."""
    host, port = address
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (OSError, ValueError) as error:  # a name that is none: somebody registered it
        reason = _dial_reason(error)
        detail = REFUSED if reason == _REFUSED else ""
        raise ConnectionLost(
            f"{format_address(address)}: no connection: {reason}", detail
        ) from None
    sock = socket.socket(fileno=stream.socket.detach())
    try:
        is_own_end = sock.getsockname() == sock.getpeername()
    except OSError as error:  # it was let in and reset at once
        sock.close()
        raise ConnectionLost(
            f"{format_address(address)}: no connection: {_dial_reason(error)}"
        ) from None
    if is_own_end:
        # Nobody listens on this port of ours, and the system happened to choose it for our own end.
        sock.close()
        raise ConnectionLost(f"{format_address(address)}: no connection: {_REFUSED}", REFUSED)
    return TcpConnection(sock, format_address(address))


async def listen(
    address: Address, on_bound: Callable[[Address], None] = lambda address: None
) -> Listener:
    """Listen; an empty host means all addresses.

    Raises `AddressInUse`, `AddressUnavailable`, `InvalidRequest`.

    ``bound`` is told the address, with its real port, before anybody can be connected there.
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
    if not host:  # both families through one socket, where there are two
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
    assert problem is not None, "getaddrinfo found no address and said nothing"
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
    """An address for messages: ``10.0.0.3:4181``, ``[::1]:4181``."""
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


def tune(sock: socket.socket) -> None:
    """Set a connected socket as connections here are: no delays, keepalive, and nothing paced on loopback."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:  # clients also run elsewhere
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        peer = sock.getpeername()[0]
    except OSError:
        return  # broken already: the first read or send says so
    if (option := getattr(socket, "TCP_CONGESTION", None)) is not None and is_loopback(peer):
        with contextlib.suppress(OSError):  # as the system has it, then
            sock.setsockopt(socket.IPPROTO_TCP, option, LOOPBACK_CONTROL)


def is_loopback(host: str) -> bool:
    """Is the address, as a socket has it, one that no packet leaves the machine for?"""
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


def _sendmsg_of(sock: socket.socket) -> Callable[[Sequence[Buffer]], int]:
    if hasattr(sock, "sendmsg"):
        return sock.sendmsg
    return lambda buffers: sock.send(b"".join(buffers))  # Windows: a copy, for a client


def _close(sock: socket.socket) -> None:
    if sock.fileno() >= 0:
        with contextlib.suppress(RuntimeError):  # the run that used it is over: nobody waits
            trio.lowlevel.notify_closing(sock.fileno())
        sock.close()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _dial_reason(error: OSError | ValueError) -> str:
    """What trio's many attempts came to: the reasons of all, each once."""
    if isinstance(error, ValueError):
        return "its host is no name"
    if isinstance(error, socket.gaierror):
        return f"the name is not known ({error.strerror})"
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
