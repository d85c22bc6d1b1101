"""Ports that are kept for those who are told of them, from the choice on.

Two clusters that start at one moment on one machine would find the same ports free, and whichever bound
second would not start. A socket that is bound without SO_REUSEADDR has its port alone, and is given none that
anybody has; set afterwards, it lets one listener with that option in beside it, as all of ours have it (and
Linux chooses the port for nobody's own end of a connection).
"""

import contextlib
import errno
import socket

from ..interfaces.errors import AddressInUse, InvalidRequest
from ..interfaces.host import Address
from ..process.fork_safety import close_descriptor, watch_forks
from .tcp import format_address

DIAL_TIMEOUT_S = 0.5


def is_listened_on(address: Address) -> bool:
    """Whether a program listens there, or may: False only if the machine refuses the connection."""
    try:
        with socket.create_connection(address, timeout=DIAL_TIMEOUT_S) as sock:
            # A free port may be chosen for this very connection, which then leads to itself.
            return bool(sock.getsockname() != sock.getpeername())
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):
        return True


class ReservedPorts:
    """Some ports of this machine, until `close` or the end of the process."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        watch_forks(self)

    def __enter__(self) -> "ReservedPorts":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reserve(self, address: Address) -> None:
        """Keep a port of an IPv4 address of this machine.

        Raises `AddressInUse`: somebody has it, or had it just now.
        """
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.bind(address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"{format_address(address)} is in use by another program"
                ) from None
            raise InvalidRequest(
                f"cannot listen on {format_address(address)}: {error.strerror}"
            ) from None
        self._sockets.append(sock)

    def close(self) -> None:
        """Let go of them; who listens there is not disturbed. Idempotent."""
        while self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.pop().close()

    def on_forked(self) -> None:
        """In a forked child: they are the parent's (H15)."""
        while self._sockets:
            close_descriptor(self._sockets.pop().detach())
