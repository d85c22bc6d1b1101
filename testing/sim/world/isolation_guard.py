"""Isolate a run from the real machine: use of its time, randomness, sockets or threads raises an error.

Code that bypasses `Host` would make two runs of a seed differ. With this guard it fails at the offending
line instead.
"""

import contextlib
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import trio

TIME_FUNCTIONS = (
    "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep",
)  # fmt: skip
RANDOM_FUNCTIONS = (
    "random", "randrange", "randint", "choice", "choices", "shuffle", "sample", "uniform",
    "getrandbits", "randbytes", "gauss", "expovariate", "seed",
)  # fmt: skip
SOCKET_METHODS = ("connect", "connect_ex", "bind", "listen")


class RealWorldTouched(RuntimeError):
    """Code under simulation used the time, randomness, sockets or threads of the real machine."""


@contextlib.contextmanager
def isolated_from_machine(log_time_s: Callable[[], float]) -> Iterator[None]:
    """Make calls to the real machine raise `RealWorldTouched` within the `with` block.

    Args:
        log_time_s: The time that log lines get, the only permitted use of `time.time`.
    """
    originals: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def wall(owner: Any, name: str) -> None:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise RealWorldTouched(f"{owner.__name__}.{name} was called under simulation")

        patch(owner, name, refuse)

    def virtual_time() -> float:
        if sys._getframe(1).f_globals.get("__name__") == logging.__name__:
            return log_time_s()
        raise RealWorldTouched("time.time was called under simulation")

    patch(time, "time", virtual_time)
    for name in TIME_FUNCTIONS:
        wall(time, name)
    wall(os, "urandom")
    wall(random, "_urandom")
    for name in RANDOM_FUNCTIONS:
        wall(random, name)
    wall(threading.Thread, "start")
    for name in SOCKET_METHODS:
        wall(socket.socket, name)
    wall(socket, "getaddrinfo")
    wall(trio.to_thread, "run_sync")
    try:
        yield
    finally:
        for owner, name, value in reversed(originals):
            setattr(owner, name, value)
