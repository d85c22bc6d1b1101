"""What a service manager is told: the protocol of systemd's ``Type=notify``."""

import os
import socket
from contextlib import suppress


def notify_systemd(state: str) -> None:
    """Send ``READY=1`` or the like to whom ``NOTIFY_SOCKET`` names; nothing where nobody asked."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # no file, but a name in the kernel's own space
        address = "\0" + address[1:]
    with (
        suppress(OSError),  # a manager that has gone is no reason to end
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify_socket,
    ):
        notify_socket.connect(address)
        notify_socket.send(state.encode())
