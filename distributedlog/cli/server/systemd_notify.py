"""Notify the service manager: the protocol of systemd's ``Type=notify``."""

import os
import socket
from contextlib import suppress


def notify_systemd(state: str) -> None:
    """Send a state such as ``READY=1`` to the socket of ``NOTIFY_SOCKET``, if it is set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket, which is not a file
        address = "\0" + address[1:]
    with (
        suppress(OSError),  # a service manager that has ended must not end the node
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify_socket,
    ):
        notify_socket.connect(address)
        notify_socket.send(state.encode())
