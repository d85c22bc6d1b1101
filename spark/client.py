"""One trio client a worker process, in a background thread, made after the fork and kept between tasks (H15).

Spark's worker processes are forked, live from task to task, and may be killed at any time. So a client is
made lazily, cached by process id, replaced once where it is broken, and closed when nobody has used it for
a minute; it holds nothing that would need a goodbye.
"""

import gc
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from .. import open_namespace
from ..bridge import HeldContext
from ..log.namespace import Namespace
from ..runtime.background import Background
from ..runtime.errors import AlreadyClosed
from .notices import speak
from .patience import wait_for

IDLE_S = 60.0
"""A client that nobody has used for this long is closed."""
GOODBYE_S = 2.0

T = TypeVar("T")

_clients: dict[tuple[int, str, float], "SparkClient"] = {}
_lock = threading.Lock()
_settled_pid = 0


class SparkClient:
    """A namespace in a background loop, for callers in plain threads."""

    def __init__(self, uri: str, request_timeout_s: float) -> None:
        """Opens it. Raises `InvalidUri`, `QuorumUnreachable`."""
        speak()
        config = {
            "metadata_timeout_s": request_timeout_s,
            "request_timeout_s": min(5.0, request_timeout_s),
            "owner": f"spark-{os.getpid()}",
        }
        manager = open_namespace(uri, config=config)
        # Else a task that computes keeps the loop waiting for 5 ms each time (H27).
        self.background = Background("distributedlog spark", quick_switches=True)
        self.background.start()
        self.users = 0
        """Readers and writers that hold it; it is not idle while there are any."""
        self._closed = False
        self._used = 0
        try:
            self._held = HeldContext(self.background, manager)
            self.namespace: Namespace = self._held.entered.wait()
        except BaseException:
            self.background.stop(GOODBYE_S)
            raise
        self.background.submit(self._close_when_idle)

    def run(self, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Have ``call(*args)`` run in the loop, and wait for it."""
        self._used += 1
        return self.background.run(call, *args)

    @property
    def alive(self) -> bool:
        """May it be used?"""
        return not self._closed and not self._held.left.done

    def close(self) -> None:
        """End its thread. Idempotent."""
        self._closed = True
        self.background.stop(GOODBYE_S)

    async def _close_when_idle(self) -> None:
        seen = -1
        while not self._closed:
            await trio.sleep(IDLE_S)
            # Under the lock whoever asks for a client gets this one alive, or a new one. It is held while a
            # client is made, for seconds where its cluster is away: this loop does not wait for that.
            if _lock.acquire(blocking=False):
                try:
                    self._closed = not self.users and seen == self._used
                finally:
                    _lock.release()
            seen = self._used
        threading.Thread(target=self.close, name="distributedlog spark ends", daemon=True).start()


def client(uri: str, request_timeout_s: float) -> SparkClient:
    """This process's client of a namespace; a broken one is replaced."""
    key = (os.getpid(), uri, request_timeout_s)
    with _lock:
        found = _clients.get(key)
        if found is not None and found.alive:
            found._used += 1
            return found
        made = _clients[key] = SparkClient(uri, request_timeout_s)
        return made


def run(
    uri: str,
    request_timeout_s: float,
    call: Callable[[SparkClient], Awaitable[T]],
    *,
    patience_s: float = 0.0,
) -> T:
    """One call with this process's client; what may pass is tried again for ``patience_s``.

    Only what may be done twice is asked patiently.
    """
    return wait_for(lambda: _run(uri, request_timeout_s, call), patience_s)


def _run(uri: str, request_timeout_s: float, call: Callable[[SparkClient], Awaitable[T]]) -> T:
    """Once more with a new client where the old one had ended."""
    for again in (True, False):
        held = client(uri, request_timeout_s)
        held.users += 1
        try:
            return held.run(call, held)
        except AlreadyClosed:
            if not again or held.alive:
                raise
        finally:
            held.users -= 1
    raise AssertionError("the second try returns or raises")


def settle() -> None:
    """Once a worker process: what is loaded by now is looked at by no collection any more.

    Spark's daemon collects after *every* task, 40 ms with pyarrow and numpy loaded; a task of one row then
    costs 31 ms instead of 4 (with Unix domain sockets, see `settings.recommended_conf`).
    """
    global _settled_pid
    if _settled_pid != os.getpid():
        _settled_pid = os.getpid()
        gc.collect()
        gc.freeze()


def _after_fork() -> None:
    """The child has no thread of ours, and a lock that another thread held would stay held."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
