"""One client per worker process, in a background thread, created after the fork and kept between tasks (H15).

Spark's worker processes are forked, live from task to task, and can be killed at any time. Therefore a client
is created on demand, cached by process ID, replaced once if it fails, and closed after a minute without use.
It has no state that requires a shutdown.
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
"""An unused client is closed after this time, in seconds."""
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
        """Open the namespace.

        Args:
            uri: The cluster and namespace.
            request_timeout_s: Timeout of one request, in seconds.
            credentials: The credentials of the driver, as ``file:PATH``.
            delegated_token: The token of a task, instead of credentials.

        Raises:
            InvalidUri, QuorumUnreachable, NotAuthenticated: The namespace cannot be opened.
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
        """The ``ca.pem`` of the cluster, if this client has credentials for it; "" in a task."""
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
        # Otherwise a computing task delays the loop by 5 ms each time (H27).
        self.background = Background("distributedlog spark", quick_switches=True)
        self.background.start()
        self.users = 0
        """Number of readers and writers that use it. It is not idle while there are any."""
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
        """Run ``call(*args)`` in the loop, and wait for the result."""
        self._use_count += 1
        return self.background.run(call, *args)

    def update_token(self, received: DelegatedToken) -> None:
        """Use the token of another task for later connections, if it is newer.

        The newest token need not be the one that expires last, because a revocation or a key rotation ends
        older ones.
        """
        current = self._delegated_token
        if current is None or _token_age(received) >= _token_age(current):
            self._delegated_token = received

    async def delegate_token(self, scope: TokenScope, valid_s: int) -> DelegatedToken | None:
        """Return a restricted token of this client for tasks; None if they need none.

        Raises:
            NotAllowed, InvalidRequest: The cluster issues no such token.
        """
        if not self.authority:
            return None
        issued_at, delegated = self._issued_tokens.get((scope, valid_s), (0.0, None))
        if delegated is None or trio.current_time() - issued_at > REUSE_S:
            metadata: Any = self.namespace.metadata
            token = await metadata.make_token(valid_s=valid_s, token_scope=scope)
            delegated = DelegatedToken(token, self.authority, scope)
            self._issued_tokens[scope, valid_s] = (trio.current_time(), delegated)
        return delegated

    def _token(self) -> bytes:
        assert self._delegated_token is not None, "a client of a task has a token"
        return self._delegated_token.token

    @property
    def is_alive(self) -> bool:
        """Whether the client can be used."""
        return not self._is_closed and not self._context.exit_outcome.is_done

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._is_closed = True
        self.background.stop(CLOSE_S)

    async def _close_when_idle(self) -> None:
        last_use_count = -1
        while not self._is_closed:
            await trio.sleep(IDLE_S)
            # Under the lock, a caller of `client` gets this client alive, or a new one. The lock is held
            # while a client is created, for seconds if its cluster is unavailable. This loop does not wait.
            if _lock.acquire(blocking=False):
                try:
                    self._is_closed = not self.users and last_use_count == self._use_count
                finally:
                    _lock.release()
            last_use_count = self._use_count
        threading.Thread(target=self.close, name="distributedlog spark ends", daemon=True).start()


def _token_identity(delegated: DelegatedToken) -> tuple[str, str, TokenScope, str]:
    """Return the identity of the client for a token. Two users have two clients."""
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
    """Return this process's client of a namespace for these credentials. A failed one is replaced."""
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
    """Run one call with this process's client.

    Args:
        uri: The cluster and namespace.
        request_timeout_s: Timeout of one request, in seconds.
        call: The call. With ``retry_s``, it must be safe to repeat.
        retry_s: Time of retries after temporary errors, in seconds.
        credentials: As for `SparkClient`.
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
    """Call, and repeat the call once with a new client if the old one was closed."""
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
    """Return the token for the tasks of a query, on the driver. Raises `NotAllowed` or `NotAuthenticated`."""
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
    """Reset the module in a forked child. It has no threads, and a held lock would stay locked."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
