"""A namespace whose logs this process reaches through proxies, knowing neither metadata nodes nor bookies."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from .direct import ClientOptions, open_by
from .ledger.options import LedgerOptions
from .log.metrics import Registry
from .log.namespace import Namespace
from .log.options import LogOptions
from .proxy.client import ProxyClient
from .proxy.proxied import ProxiedNamespace
from .runtime.hello import Hello
from .runtime.host import Host
from .runtime.rpc import Endpoint
from .uri import NamespaceUri


def open_through(
    uri: NamespaceUri,
    config: Mapping[str, Any] | None,
    host: Host | None,
    registry: "Registry | None" = None,
) -> AbstractAsyncContextManager[Namespace]:
    """The namespace for as long as the body runs."""
    return open_by(_assemble, uri, config, host, registry)


async def _assemble(
    uri: NamespaceUri,
    host: Host,
    owner: str,
    client: ClientOptions,
    _: LedgerOptions,
    log: LogOptions,
    nursery: trio.Nursery,
) -> Namespace:
    proxies = ProxyClient(
        Endpoint(host, lambda: Hello(cluster_id=proxies.cluster_id, label=owner)),
        uri.addresses,
        timeout_s=client.metadata_timeout_s,
    )
    await nursery.start(proxies.run)
    return ProxiedNamespace(
        uri.path,
        proxies,
        nursery=nursery,
        random=host.random,
        wall_ms=host.wall_ms,
        owner=owner,
        options=log,
        process_bytes_max=client.process_bytes_max,
    )
