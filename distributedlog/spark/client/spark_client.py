"""One trio client a worker process, in a background thread, made after the fork and kept between tasks (H15).

Spark's worker processes are forked, live from task to task, and may be killed at any time. So a client is
made lazily, cached by process id, replaced once where it is broken, and closed when nobody has used it for
a minute; it holds nothing that would need a goodbye.
"""

import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from ... import open_namespace
from ...log.namespace import Namespace
from ...runtime.interfaces.errors import AlreadyClosed
from ...runtime.interfaces.principals import Narrowing
from ...runtime.machine import CREDENTIALS, authority_of, client_host, token_host
from ...runtime.net.local_secret import METHOD as LOCAL
from ...runtime.protocol.tokens import read_token
from ...runtime.schedule.background_loop import Background
from ...thread_bridge import HeldContext
from ...uri import parse_uri
from ..options.options import SinkOptions, SourceOptions
from .delegation_token import AGAIN_S, BATCH_S, STREAM_S, DelegatedToken, token_scope
from .retry import wait_for
from .spark_errors import speak
from .worker_heap import settle

IDLE_S = 60.0
"""A client that nobody has used for this long is closed."""
GOODBYE_S = 2.0

T = TypeVar("T")

_clients: dict[tuple[int, str, float, object], "SparkClient"] = {}
_lock = threading.Lock()


class SparkClient:
    """A namespace in a background loop, for callers in plain threads."""

    def __init__(
        self,
        uri: str,
        request_timeout_s: float,
        credentials: str = "",
        lent: DelegatedToken | None = None,
    ) -> None:
        """Opens it. Raises `InvalidUri`, `QuorumUnreachable`, `NotAuthenticated`.

        ``credentials``: by name, on the driver; ``lent``: in a task.
        """
        speak()
        owner = f"spark-{os.getpid()}"
        config = {
            "metadata_timeout_s": request_timeout_s,
            "request_timeout_s": min(5.0, request_timeout_s),
            "owner": owner,
        }
        self._lent = lent
        self._lending: dict[tuple[Narrowing, int], tuple[float, DelegatedToken]] = {}
        if lent is not None:
            host = token_host(owner, self._token, lent.authority)
        else:
            host = client_host(owner, credentials)
        self.authority = ""
        """The cluster's ``ca.pem``, where it is one that we have credentials for; "" in a task."""
        where = parse_uri(uri)
        proof = host.credentials(where.addresses[0])
        if lent is None and proof is not None and proof.method != LOCAL and not where.proxied:
            self.authority = authority_of(credentials)
        manager = open_namespace(uri, config=config, host=host)
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

    def take(self, lent: DelegatedToken) -> None:
        """Another task of this worker was lent this: the next connection shows the newest.

        That is not the one that ends last: those of before a revocation, or a rotation, end with it.
        """
        before = self._lent
        if before is None or _age(lent) >= _age(before):
            self._lent = lent

    async def lend(self, narrowing: Narrowing, valid_s: int) -> DelegatedToken | None:
        """A token of our own for tasks; None: they need none. Raises `NotAllowed`, `InvalidRequest`."""
        if not self.authority:
            return None
        at, found = self._lending.get((narrowing, valid_s), (0.0, None))
        if found is None or trio.current_time() - at > AGAIN_S:
            metadata: Any = self.namespace.metadata
            token = await metadata.make_token(valid_s=valid_s, narrowing=narrowing)
            found = DelegatedToken(token, self.authority, narrowing)
            self._lending[narrowing, valid_s] = (trio.current_time(), found)
        return found

    def _token(self) -> bytes:
        assert self._lent is not None, "a client by a token has one"
        return self._lent.token

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


def _whose(lent: DelegatedToken) -> tuple[str, str, Narrowing, str]:
    """Tokens that may follow each other in one client: two users of one application are two."""
    said = read_token(lent.token)
    return said.cluster_id, said.user, lent.narrowing, lent.authority


def _age(lent: DelegatedToken) -> tuple[int, int, int]:
    said = read_token(lent.token)
    return said.since, said.key, said.ends_s


def client(
    uri: str, request_timeout_s: float, credentials: str = "", lent: DelegatedToken | None = None
) -> SparkClient:
    """This process's client of a namespace, by whom it is for; a broken one is replaced."""
    who: object = credentials if lent is None else _whose(lent)
    key = (os.getpid(), uri, request_timeout_s, who)
    with _lock:
        found = _clients.get(key)
        if found is not None and found.alive:
            found._used += 1
            if lent is not None:
                found.take(lent)
            return found
        made = _clients[key] = SparkClient(uri, request_timeout_s, credentials, lent)
    settle(with_client=True)
    return made


def run(
    uri: str,
    request_timeout_s: float,
    call: Callable[[SparkClient], Awaitable[T]],
    *,
    patience_s: float = 0.0,
    credentials: str = "",
) -> T:
    """One call with this process's client; what may pass is tried again for ``patience_s``.

    Only what may be done twice is asked patiently.
    """
    return wait_for(lambda: _run(uri, request_timeout_s, call, credentials), patience_s)


def _run(
    uri: str,
    request_timeout_s: float,
    call: Callable[[SparkClient], Awaitable[T]],
    credentials: str,
) -> T:
    """Once more with a new client where the old one had ended."""
    for again in (True, False):
        held = client(uri, request_timeout_s, credentials)
        held.users += 1
        try:
            return held.run(call, held)
        except AlreadyClosed:
            if not again or held.alive:
                raise
        finally:
            held.users -= 1
    raise AssertionError("the second try returns or raises")


def lent_for(options: SourceOptions | SinkOptions, *, stream: bool) -> DelegatedToken | None:
    """On the driver: what the tasks of this query get. Raises `NotAllowed`, `NotAuthenticated`."""
    if not (options.credentials or os.environ.get(CREDENTIALS)):
        return None

    async def ask(held: SparkClient) -> DelegatedToken | None:
        narrowing = token_scope(held.namespace.path, options)
        return await held.lend(narrowing, STREAM_S if stream else BATCH_S)

    return run(
        options.uri,
        options.request_timeout_s,
        ask,
        patience_s=options.read_timeout_s,
        credentials=options.credentials,
    )


def _after_fork() -> None:
    """The child has no thread of ours, and a lock that another thread held would stay held."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
