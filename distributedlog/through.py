"""A namespace whose logs this process reaches through proxies, knowing neither metadata nodes nor bookies."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from .direct import split_config
from .log.metrics import Registry, register, unregister
from .log.namespace import Namespace
from .proxy.client import ProxyClient
from .proxy.proxied import ProxiedNamespace
from .runtime.hello import Hello
from .runtime.host import Host
from .runtime.machine import process_name, real_host
from .runtime.rpc import Endpoint
from .uri import NamespaceUri


@asynccontextmanager
async def open_through(
    uri: NamespaceUri,
    config: Mapping[str, Any] | None,
    host: Host | None,
    registry: "Registry | None" = None,
) -> AsyncIterator[Namespace]:
    """The client's tasks run until this ends; whatever the body raises comes out as it is."""
    client, _, log = split_config(config)
    owner = client.owner or process_name()
    if host is None:
        host = real_host(owner)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            proxies = ProxyClient(
                Endpoint(host, lambda: Hello(cluster_id=proxies.cluster_id, label=owner)),
                uri.addresses,
                timeout_s=client.metadata_timeout_s,
            )
            await nursery.start(proxies.run)
            namespace = ProxiedNamespace(
                uri.path,
                proxies,
                nursery=nursery,
                random=host.random,
                wall_ms=host.wall_ms,
                owner=owner,
                options=log,
                process_bytes_max=client.process_bytes_max,
            )
            if registry is not None:
                register(registry, namespace.metrics)
            try:
                yield namespace
            finally:
                namespace.close()
                if registry is not None:
                    unregister(registry, namespace.metrics)
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error  # the nursery would wrap it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
