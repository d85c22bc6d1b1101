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
from ...runtime.interfaces.principals import TokenScope
from ...runtime.machine import CREDENTIALS_VARIABLE, authority_text, client_host, token_host
from ...runtime.net.local_secret import METHOD as LOCAL
from ...runtime.protocol.tokens import read_token
from ...runtime.schedule.background_loop import Background
from ...thread_bridge import BackgroundContext
from ...uri import parse_uri
from ..options.options import SinkOptions, SourceOptions
from .delegation_token import BATCH_S, REUSE_S, STREAM_S, DelegatedToken, token_scope
from .retry import retry_unavailable_blocking
from .spark_errors import log_warnings_to_stderr
from .worker_heap import freeze_worker_heap

IDLE_S = 60.0
"""A client that nobody has used for this long is closed."""
CLOSE_S = 2.0

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
        delegated_token: DelegatedToken | None = None,
    ) -> None:
        """Opens it. Raises `InvalidUri`, `QuorumUnreachable`, `NotAuthenticated`.

        ``credentials``: by name, on the driver; ``lent``: in a task.
        """
        log_warnings_to_stderr()
        owner = f"spark-{os.getpid()}"
        config = {
            "metadata_timeout_s": request_timeout_s,
            "request_timeout_s": min(5.0, request_timeout_s),
            "owner": owner,
        }
        self._delegated_token = delegated_token
        self._issued_tokens: dict[tuple[TokenScope, int], tuple[float, DelegatedToken]] = {}
        if delegated_token is not None:
            host = token_host(owner, self._token, delegated_token.authority)
        else:
            host = client_host(owner, credentials)
        self.authority = ""
        """The cluster's ``ca.pem``, where it is one that we have credentials for; "" in a task."""
        namespace_uri = parse_uri(uri)
        proof = host.credentials(namespace_uri.addresses[0])
        if (
            delegated_token is None
            and proof is not None
            and proof.method != LOCAL
            and not namespace_uri.is_proxied
        ):
            self.authority = authority_text(credentials)
        opening = open_namespace(uri, config=config, host=host)
        # Else a task that computes keeps the loop waiting for 5 ms each time (H27).
        self.background = Background("distributedlog spark", quick_switches=True)
        self.background.start()
        self.users = 0
        """Readers and writers that hold it; it is not idle while there are any."""
        self._is_closed = False
        self._use_count = 0
        try:
            self._context = BackgroundContext(self.background, opening)
            self.namespace: Namespace = self._context.enter_outcome.wait()
        except BaseException:
            self.background.stop(CLOSE_S)
            raise
        self.background.submit(self._close_when_idle)

    def run(self, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Have ``call(*args)`` run in the loop, and wait for it."""
        self._use_count += 1
        return self.background.run(call, *args)

    def update_token(self, received: DelegatedToken) -> None:
        """Another task of this worker was lent this: the next connection shows the newest.

        That is not the one that ends last: those of before a revocation, or a rotation, end with it.
        """
        current = self._delegated_token
        if current is None or _token_age(received) >= _token_age(current):
            self._delegated_token = received

    async def delegate_token(self, scope: TokenScope, valid_s: int) -> DelegatedToken | None:
        """A token of our own for tasks; None: they need none. Raises `NotAllowed`, `InvalidRequest`."""
        if not self.authority:
            return None
        issued_at, delegated = self._issued_tokens.get((scope, valid_s), (0.0, None))
        if delegated is None or trio.current_time() - issued_at > REUSE_S:
            metadata: Any = self.namespace.metadata
            token = await metadata.make_token(valid_s=valid_s, narrowing=scope)
            delegated = DelegatedToken(token, self.authority, scope)
            self._issued_tokens[scope, valid_s] = (trio.current_time(), delegated)
        return delegated

    def _token(self) -> bytes:
        assert self._delegated_token is not None, "a client by a token has one"
        return self._delegated_token.token

    @property
    def is_alive(self) -> bool:
        """May it be used?"""
        return not self._is_closed and not self._context.exit_outcome.is_done

    def close(self) -> None:
        """End its thread. Idempotent."""
        self._is_closed = True
        self.background.stop(CLOSE_S)

    async def _close_when_idle(self) -> None:
        last_use_count = -1
        while not self._is_closed:
            await trio.sleep(IDLE_S)
            # Under the lock whoever asks for a client gets this one alive, or a new one. It is held while a
            # client is made, for seconds where its cluster is away: this loop does not wait for that.
            if _lock.acquire(blocking=False):
                try:
                    self._is_closed = not self.users and last_use_count == self._use_count
                finally:
                    _lock.release()
            last_use_count = self._use_count
        threading.Thread(target=self.close, name="distributedlog spark ends", daemon=True).start()


def _token_identity(delegated: DelegatedToken) -> tuple[str, str, TokenScope, str]:
    """Tokens that may follow each other in one client: two users of one application are two."""
    token = read_token(delegated.token)
    return token.cluster_id, token.user, delegated.scope, delegated.authority


def _token_age(delegated: DelegatedToken) -> tuple[int, int, int]:
    token = read_token(delegated.token)
    return token.revoked_at_revision, token.key, token.ends_s


def client(
    uri: str,
    request_timeout_s: float,
    credentials: str = "",
    delegated_token: DelegatedToken | None = None,
) -> SparkClient:
    """This process's client of a namespace, by whom it is for; a broken one is replaced."""
    identity: object = credentials if delegated_token is None else _token_identity(delegated_token)
    key = (os.getpid(), uri, request_timeout_s, identity)
    with _lock:
        existing = _clients.get(key)
        if existing is not None and existing.is_alive:
            existing._use_count += 1
            if delegated_token is not None:
                existing.update_token(delegated_token)
            return existing
        created = _clients[key] = SparkClient(uri, request_timeout_s, credentials, delegated_token)
    freeze_worker_heap(with_client=True)
    return created


def run(
    uri: str,
    request_timeout_s: float,
    call: Callable[[SparkClient], Awaitable[T]],
    *,
    retry_s: float = 0.0,
    credentials: str = "",
) -> T:
    """One call with this process's client; what may pass is tried again for ``patience_s``.

    Only what may be done twice is asked patiently.
    """
    return retry_unavailable_blocking(
        lambda: _run(uri, request_timeout_s, call, credentials), retry_s
    )


def _run(
    uri: str,
    request_timeout_s: float,
    call: Callable[[SparkClient], Awaitable[T]],
    credentials: str,
) -> T:
    """Once more with a new client where the old one had ended."""
    for is_first_try in (True, False):
        spark_client = client(uri, request_timeout_s, credentials)
        spark_client.users += 1
        try:
            return spark_client.run(call, spark_client)
        except AlreadyClosed:
            if not is_first_try or spark_client.is_alive:
                raise
        finally:
            spark_client.users -= 1
    raise AssertionError("the second try returns or raises")


def delegated_token_for(
    options: SourceOptions | SinkOptions, *, is_stream: bool
) -> DelegatedToken | None:
    """On the driver: what the tasks of this query get. Raises `NotAllowed`, `NotAuthenticated`."""
    if not (options.credentials or os.environ.get(CREDENTIALS_VARIABLE)):
        return None

    async def ask(spark_client: SparkClient) -> DelegatedToken | None:
        scope = token_scope(spark_client.namespace.path, options)
        return await spark_client.delegate_token(scope, STREAM_S if is_stream else BATCH_S)

    return run(
        options.uri,
        options.request_timeout_s,
        ask,
        retry_s=options.read_timeout_s,
        credentials=options.credentials,
    )


def _after_fork() -> None:
    """The child has no thread of ours, and a lock that another thread held would stay held."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
