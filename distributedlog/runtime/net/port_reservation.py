"""Reserve ports from their choice until the chosen processes listen on them.

Two clusters that start at the same time on one machine would find the same free ports, and the second one to
bind would not start.

A socket that is bound without SO_REUSEADDR gets its port exclusively, and only if no other socket has it.
After the option is set on it, one listener with the same option can share the port, and all listeners here
have the option. Linux also chooses no such port for the local end of a connection.
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
    """Return whether a program listens or may listen at an address.

    The result is False only if the machine refuses the connection.
    """
    try:
        with socket.create_connection(address, timeout=DIAL_TIMEOUT_S) as sock:
            # A free port may be chosen for this very connection, which then leads to itself.
            return bool(sock.getsockname() != sock.getpeername())
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):
        return True


class ReservedPorts:
    """Reserved ports of this machine, until `close` or the end of the process."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        watch_forks(self)

    def __enter__(self) -> "ReservedPorts":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reserve(self, address: Address) -> None:
        """Reserve a port of an IPv4 address of this machine.

        Raises:
            AddressInUse: Another socket has the port, or had it a short time ago.
            InvalidRequest: The system refuses the address for another reason.
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
        """Release the ports. Listeners on them are not affected. Idempotent."""
        while self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.pop().close()

    def on_forked(self) -> None:
        """Close the copies in a forked child; the parent has the ports (H15)."""
        while self._sockets:
            close_descriptor(self._sockets.pop().detach())
