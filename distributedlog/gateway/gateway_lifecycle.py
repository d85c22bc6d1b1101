"""A gateway from its start to its end: listeners, whose rights, who is let in, requests that may end well."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from .. import open_namespace
from ..log.namespace import Namespace
from ..runtime.declarations.options import KIB, MIB
from ..runtime.interfaces.host import Address, Host
from ..runtime.machine import authority_host, with_token
from ..uri import format_address
from .app import Gateway
from .https_certificates import Certificates
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_guard import RequestGuard
from .request_sessions import GatewaySessions, UserSessions
from .server import listen, serve

READER_BYTES = 256 * KIB
"""The bytes that each reader of a gateway fetches ahead: a gateway may have hundreds of them."""
USER_BYTES_MIN = 4 * MIB
"""Of one user, taken and not yet durable: at least."""


async def run_gateway(
    uri: str,
    address: Address,
    options: GatewayOptions,
    *,
    name: str = "gateway",
    hosts: Collection[str] = (),
    token: str = "",
    users: bool = False,
    tls: Path | None = None,
    timeout_s: float = 30.0,
    task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then requests that are under way have `stop_s`. Started with its ready line.

    ``users``: do everything as whom a token names; the `ca.pem` by which the cluster is known is that of
    DLOG_CREDENTIALS, and nothing else of it is used. ``tls``: a directory with the listener's certificate.
    Raises `AddressInUse`, `InvalidUri`, `InvalidRequest`, `QuorumUnreachable`.
    """
    meters = GatewayMeters()
    certificates = None if tls is None else Certificates(tls)
    cluster_host = authority_host(name) if users else None
    listeners = await listen(address, options, meters)
    stop_requested = trio.Event()

    async def all_of_it(task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as scope:
            async with _sessions(uri, timeout_s, cluster_host, options, meters) as sessions:
                gateway = Gateway(sessions, options, name, meters)
                guard = RequestGuard(
                    gateway.app(),
                    meters,
                    options,
                    port=listeners[0].address[1],
                    hosts=hosts,
                    token=token,
                    by_users=users,
                    on_request_end=sessions.release,
                )
                scope.shield = True  # from now on it ends when it is told, and in order
                async with trio.open_nursery() as nursery:
                    await nursery.start(sessions.run)
                    task_status.started()
                    await serve(guard, listeners, options, stop_requested, certificates)
                    nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(all_of_it)
        shown_address = format_address(listeners[0].address)
        task_status.started(
            {
                "name": name,
                "kind": "gateway",
                "url": f"{'https' if tls else 'http'}://{shown_address}",
            }
        )
        try:
            await trio.sleep_forever()
        finally:
            stop_requested.set()


@asynccontextmanager
async def _sessions(
    uri: str,
    timeout_s: float,
    cluster_host: Host | None,
    options: GatewayOptions,
    meters: GatewayMeters,
) -> AsyncIterator[GatewaySessions | UserSessions]:
    """``known``: a host that knows the cluster and shows nobody; None: all is done as the gateway itself."""
    config = {
        "metadata_timeout_s": timeout_s,
        "create_if_missing": False,
        "read_ahead_bytes": READER_BYTES,
        "read_bytes": READER_BYTES,
    }
    if cluster_host is None:
        async with open_namespace(uri, config=config) as namespace:
            yield GatewaySessions(namespace, options, meters)
        return
    user_config = {
        **config,
        "metadata_timeout_s": min(timeout_s, options.read_s),
        "process_bytes_max": max(USER_BYTES_MIN, options.held_bytes_max // 2),
    }

    def opened(token: bytes) -> AbstractAsyncContextManager[Namespace]:
        return open_namespace(uri, config=user_config, host=with_token(cluster_host, token))

    yield UserSessions(opened, options, meters)
