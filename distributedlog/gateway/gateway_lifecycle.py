"""Run a gateway from its start to its end: listeners, sessions, and an orderly stop."""

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
"""The minimum of accepted bytes per user that are not durable yet."""


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
    """Serve until cancelled; then pending requests have `stop_s` to complete.

    Args:
        uri: The namespace.
        address: The address to listen on.
        name: The name for metrics and the ready line.
        hosts: Further host names of the gateway.
        token: The token that each request needs; with ``users``, only requests about the gateway itself.
        users: Run each request with the rights of the user in its token. Of DLOG_CREDENTIALS, only ``ca.pem``
            is used then, to verify the cluster.
        tls: A directory with the listener's certificate.
        timeout_s: The timeout for requests to the metadata quorum.
        task_status: Receives the ready line when the gateway has started.

    Raises:
        AddressInUse: Another program listens on the address.
        InvalidUri: The URI is invalid.
        InvalidRequest: An option, a certificate or the credentials are invalid.
        QuorumUnreachable: No metadata quorum answered.
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
                scope.shield = True  # from now on, it ends in order, by `stop_requested`
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
    """Open the sessions of requests.

    ``cluster_host`` verifies the cluster and has no identity. With None, all requests have the rights of the
    gateway.
    """
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
    # Each user has a namespace with its own limits. It is opened within the time limit of a request.
    user_config = {
        **config,
        "metadata_timeout_s": min(timeout_s, options.read_s),
        "process_bytes_max": max(USER_BYTES_MIN, options.held_bytes_max // 2),
    }

    def opened(token: bytes) -> AbstractAsyncContextManager[Namespace]:
        return open_namespace(uri, config=user_config, host=with_token(cluster_host, token))

    yield UserSessions(opened, options, meters)
