"""The real machine as a `Host`."""

import os
import random
import socket
import time
from collections.abc import Mapping

from . import descriptors, tcp
from .host import Disk, Host


def real_host(name: str, *, disks: Mapping[str, Disk] | None = None) -> Host:
    """A host with this machine's network and clock, a freshly seeded chance, and the disks given."""
    return Host(
        name=name,
        dial=tcp.dial,
        listen=tcp.listen,
        disks=dict(disks or {}),
        random=random.Random(os.urandom(32)),
        wall_ms=_wall_ms,
        connections_max=descriptors.connections_max(),
    )


def process_name() -> str:
    """Who this process is, for people: ``host.example pid 4242``."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
