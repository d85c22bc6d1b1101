"""Connect to a namespace: assemble the clients below it, for direct access or for access through proxies.

With direct access, this process reads and writes the logs itself. Through proxies, it has no connection to
metadata nodes or bookies.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakSet

import trio

from .ledger.declarations.options import LedgerOptions
from .ledger.ledger_client import start_client
from .log.declarations.options import LogOptions
from .log.limits.memory_budget import PROCESS_BYTES_MAX
from .log.model.stored_settings import reject_stored_only
from .log.namespace import Namespace
from .log.services.log_metrics import Registry, register, unregister
from .metadata.client.metadata_client import MetadataClient
from .runtime.declarations.options import (
    MIB,
    Options,
    check,
    option,
    option_names,
    unknown_option_error,
    with_overrides,
)
from .runtime.interfaces.errors import DistributedLogError
from .runtime.interfaces.host import Host
from .runtime.interfaces.log_lines import get_logger
from .runtime.machine import client_host, process_name
from .runtime.net.rpc import Endpoint
from .runtime.protocol.handshake import Hello
from .runtime.schedule.background_loop import EXIT_S_MAX, lost_records_text
from .uri import NamespaceUri

OPENING_KEY = b"next/ledger"
"""Read once when a namespace is opened. The answer contains the cluster's ID and the name of our listener."""


logger = get_logger("distributedlog.connect")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options for the connection of a client process to its cluster."""

    metadata_timeout_s: float = option(
        30.0,
        "s",
        "a call raises `QuorumUnreachable` if the metadata quorum does not answer within this time",
    )
    owner: str = option(
        "", "", "name of this process for other clients (none: its host and process ID)"
    )
    credentials: str = option(
        "",
        "",
        "identity of the program, `file:DIR` from `dlog pki issue` or `file:FILE` from `dlog "
        "user token` (none: `DLOG_CREDENTIALS`)",
    )
    process_bytes_max: int = option(
        PROCESS_BYTES_MAX,
        "bytes",
        "accepted records that are not yet durable, over all logs of a namespace object, plus "
        "64 KiB per log; see `at_limit`",
        at_least=4 * MIB,
    )

    def __post_init__(self) -> None:
        check(self)


NamespaceFactory: TypeAlias = Callable[
    [NamespaceUri, Host, str, ClientOptions, LedgerOptions, LogOptions, trio.Nursery],
    Awaitable[Namespace],
]
"""Creates the clients that a namespace uses, and the namespace. The third argument is the name of its
owner."""


def open_direct(
    uri: NamespaceUri,
    config: Mapping[str, Any] | None,
    host: Host | None,
    registry: "Registry | None" = None,
) -> AbstractAsyncContextManager[Namespace]:
    """Open a namespace with direct access, for as long as the body runs."""
    return open_with_factory(_open_direct_namespace, uri, config, host, registry)


@asynccontextmanager
async def open_with_factory(
    factory: NamespaceFactory,
    uri: NamespaceUri,
    config: Mapping[str, Any] | None,
    host: Host | None,
    registry: "Registry | None",
) -> AsyncIterator[Namespace]:
    """Open a namespace with a factory, for as long as the body runs.

    The tasks of the clients run until the body ends. An exception of the body is raised unchanged.
    """
    client, ledger, log = split_config(config)
    owner = client.owner or process_name()
    if host is None:
        host = client_host(owner, client.credentials)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            namespace = await factory(uri, host, owner, client, ledger, log, nursery)
            if registry is not None:
                register(registry, namespace.metrics)
            try:
                yield namespace
                await _wait_settled(namespace.context.unsettled_queues, EXIT_S_MAX)
            finally:
                namespace.close()
                if registry is not None:
                    unregister(registry, namespace.metrics)
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error  # raised below, because the nursery would wrap it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _wait_settled(send_queues: WeakSet[Any], timeout_s: float) -> None:
    """Wait until the records of open writers are durable, and log the number of records that are not.

    ``send_queues`` has the `SendQueue` of each writer (`LogContext.unsettled_queues`).
    """
    open_queues = [send_queue for send_queue in send_queues if send_queue.end_error is None]

    async def wait(send_queue: Any) -> None:
        with suppress(DistributedLogError):
            send_queue.send_open()
            await send_queue.settle()

    with trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            for send_queue in open_queues:
                nursery.start_soon(wait, send_queue)
    lost_by_log = {
        send_queue.name: record_count
        for send_queue in open_queues
        if (record_count := send_queue.records_left)
    }
    if lost_by_log:
        logger.warning("%s; their writers were left open", lost_records_text(lost_by_log))


async def _open_direct_namespace(
    uri: NamespaceUri,
    host: Host,
    owner: str,
    client: ClientOptions,
    ledger: LedgerOptions,
    log: LogOptions,
    nursery: trio.Nursery,
) -> Namespace:
    def hello() -> Hello:
        return Hello(cluster_id=metadata.cluster_id, kind="client", label=owner)

    endpoint = Endpoint(host, hello)
    metadata = MetadataClient(
        endpoint,
        uri.addresses,
        client_id=f"{host.random.getrandbits(64):016x}",
        timeout_s=client.metadata_timeout_s,
    )
    await nursery.start(metadata.run)
    await metadata.get(OPENING_KEY)
    ledgers = await start_client(nursery, host, endpoint, metadata, ledger)
    return Namespace(
        uri.path,
        metadata=metadata,
        ledgers=ledgers,
        nursery=nursery,
        random=host.random,
        wall_ms=host.wall_ms,
        owner=owner,
        options=log,
        quorums=(ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum),
        process_bytes_max=client.process_bytes_max,
    )


def open_via_proxies(
    uri: NamespaceUri,
    config: Mapping[str, Any] | None,
    host: Host | None,
    registry: "Registry | None" = None,
) -> AbstractAsyncContextManager[Namespace]:
    """Open a namespace through proxies, for as long as the body runs."""
    return open_with_factory(_open_proxied_namespace, uri, config, host, registry)


async def _open_proxied_namespace(
    uri: NamespaceUri,
    host: Host,
    owner: str,
    client: ClientOptions,
    _: LedgerOptions,
    log: LogOptions,
    nursery: trio.Nursery,
) -> Namespace:
    # Imported here, because clients with direct access and the zip file for Spark do not need these modules.
    from .proxy.client.proxied_namespace import ProxiedNamespace
    from .proxy.client.proxy_client import ProxyClient

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


def split_config(
    config: Mapping[str, Any] | None,
) -> tuple[ClientOptions, LedgerOptions, LogOptions]:
    """Return the options in a flat mapping as the options of the client, the ledgers and the logs.

    Raises:
        InvalidRequest: An option is unknown, is only stored with a log, or has an invalid value.
    """
    options_by_name = config or {}
    reject_stored_only(options_by_name)
    known_names = [
        *option_names(ClientOptions),
        *option_names(LedgerOptions),
        *option_names(LogOptions),
    ]
    for name in options_by_name:
        if name not in known_names:
            raise unknown_option_error(name, known_names)

    def part(options: Options) -> Options:
        return with_overrides(
            options,
            {
                name: options_by_name[name]
                for name in option_names(type(options))
                if name in options_by_name
            },
        )

    return part(ClientOptions()), part(LedgerOptions()), part(LogOptions())
