"""The real machine as a `Host`."""

import os
import random
import socket
import sys
import time
from collections.abc import Mapping

from . import descriptors, tcp
from .errors import UnsupportedPlatform
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
        secret_bytes=os.urandom,
    )


def needs_linux(what: str) -> None:
    """Raises `UnsupportedPlatform` elsewhere: a node syncs by O_DIRECT, fdatasync and eventfd."""
    if sys.platform != "linux":
        raise UnsupportedPlatform(
            f"{what} needs Linux, this is {sys.platform}: run nodes there (docker/README.md, a virtual"
            " machine, WSL 2); clients work here, give --uri"
        )


def process_name() -> str:
    """Who this process is, for people: ``host.example pid 4242``."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def machine_id() -> str:
    """Of the machine below, the same in all of its containers until it is started again; or ""."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as found:
            return found.read(64).strip()
    except (OSError, ValueError):
        return ""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
